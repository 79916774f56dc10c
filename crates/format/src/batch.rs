//! Batches inside a record: the operations that one commit made, in absolute values.
//!
//! A batch is a length, a count, and operations back to back. Replaying a batch twice gives the same tree as once.

use crate::item::ExtentItem;
use crate::key::{KEY_BYTES, Key, Kind, array};
use crate::{BLOCK_BYTES, BlockNo, FormatError, ITEM_VALUE_BYTES_MAX, ObjectNo, TreeId, range};

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_ALLOCATE: u8 = 3;
const OP_FREE: u8 = 4;
const OP_IMAGE: u8 = 5;
const OP_DROP: u8 = 6;
const OP_PUT_FRESH: u8 = 7;

/// Bytes before a batch's operations: length of the whole batch (u32), number of operations (u32).
pub const BATCH_HEADER_BYTES: usize = 8;
/// Encoded size of a put without its value.
pub const PUT_OVERHEAD_BYTES: usize = 1 + 4 + KEY_BYTES + 2;
/// Encoded size of a delete.
pub const DELETE_BYTES: usize = 1 + 4 + KEY_BYTES;
/// Encoded size of an allocation or a free.
pub const SPACE_OP_BYTES: usize = 1 + 8 + 4;
/// Encoded size of an image without its bytes.
pub const IMAGE_OVERHEAD_BYTES: usize = 1 + 4 + 8 + 8 + 2;
/// Encoded size of a drop.
pub const DROP_BYTES: usize = 1 + 4 + 8 + 8 + 8;

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Sets an item. `fresh`: the value is an extent whose data was written by this very batch, so that recovery
    /// verifies it (R4).
    Put { tree: TreeId, key: Key, value: &'a [u8], fresh: bool },
    /// Removes an item, which need not exist.
    Delete { tree: TreeId, key: Key },
    /// Marks blocks as used.
    Allocate { start: BlockNo, len: u32 },
    /// Marks blocks as free; they are handed out again only after a durable checkpoint that contains this (R11).
    Free { start: BlockNo, len: u32 },
    /// The content of one 4 KiB page of a file; bytes beyond `bytes` are zero.
    Image { tree: TreeId, object: ObjectNo, page: u64, bytes: &'a [u8] },
    /// The images of the pages `first..end` are void (R5).
    Drop { tree: TreeId, object: ObjectNo, first: u64, end: u64 },
}

/// Builds a batch's bytes; the very same bytes are applied and logged.
#[derive(Debug, Clone)]
pub struct BatchBuf {
    bytes: Vec<u8>,
    ops: u32,
}

impl Default for BatchBuf {
    fn default() -> Self {
        BatchBuf::new()
    }
}

impl BatchBuf {
    pub fn new() -> BatchBuf {
        BatchBuf { bytes: vec![0; BATCH_HEADER_BYTES], ops: 0 }
    }

    /// Number of operations so far.
    pub fn ops(&self) -> u32 {
        self.ops
    }

    pub fn is_empty(&self) -> bool {
        self.ops == 0
    }

    /// Encoded length in bytes, header included.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends one operation.
    ///
    /// Panics if a value is larger than [`ITEM_VALUE_BYTES_MAX`] or an image larger than a block: callers check their
    /// own input first.
    pub fn push(&mut self, op: Op<'_>) {
        let out = &mut self.bytes;
        match op {
            Op::Put { tree, key, value, fresh } => {
                assert!(value.len() <= ITEM_VALUE_BYTES_MAX, "item value too large");
                out.push(if fresh { OP_PUT_FRESH } else { OP_PUT });
                out.extend_from_slice(&tree.0.to_le_bytes());
                key.encode(out);
                out.extend_from_slice(&(value.len() as u16).to_le_bytes());
                out.extend_from_slice(value);
            }
            Op::Delete { tree, key } => {
                out.push(OP_DELETE);
                out.extend_from_slice(&tree.0.to_le_bytes());
                key.encode(out);
            }
            Op::Allocate { start, len } => space(out, OP_ALLOCATE, start, len),
            Op::Free { start, len } => space(out, OP_FREE, start, len),
            Op::Image { tree, object, page, bytes } => {
                assert!(bytes.len() <= BLOCK_BYTES, "image larger than a page");
                let used = bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
                out.push(OP_IMAGE);
                out.extend_from_slice(&tree.0.to_le_bytes());
                out.extend_from_slice(&object.0.to_le_bytes());
                out.extend_from_slice(&page.to_le_bytes());
                out.extend_from_slice(&(used as u16).to_le_bytes());
                out.extend_from_slice(&bytes[..used]);
            }
            Op::Drop { tree, object, first, end } => {
                out.push(OP_DROP);
                out.extend_from_slice(&tree.0.to_le_bytes());
                out.extend_from_slice(&object.0.to_le_bytes());
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
        }
        self.ops += 1;
    }

    /// A batch with room for so many encoded bytes in all.
    pub fn with_capacity(bytes: usize) -> BatchBuf {
        let mut encoded = Vec::with_capacity(bytes.max(BATCH_HEADER_BYTES));
        encoded.resize(BATCH_HEADER_BYTES, 0);
        BatchBuf { bytes: encoded, ops: 0 }
    }

    /// The finished batch, as its own bytes.
    pub fn into_encoded(mut self) -> Vec<u8> {
        self.encoded();
        self.bytes
    }

    /// The finished batch.
    pub fn encoded(&mut self) -> &[u8] {
        let len = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&len.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&self.ops.to_le_bytes());
        &self.bytes
    }

    /// The operations again, in order.
    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        let mut rest = &self.bytes[BATCH_HEADER_BYTES..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            Some(take_op(&mut rest).expect("a batch decodes what it encoded"))
        })
    }
}

fn space(out: &mut Vec<u8>, code: u8, start: BlockNo, len: u32) {
    out.push(code);
    out.extend_from_slice(&start.0.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
}

/// Splits a record's payload into its batches and decodes every operation of each.
///
/// Errors: a length or count that does not fit, an unknown operation, an item put where its kind cannot lie, an
/// undecodable fresh extent. What is deleted may lie anywhere: a volume that was damaged may hold it.
pub fn decode_batches(payload: &[u8], batches: u32) -> Result<Vec<Vec<Op<'_>>>, FormatError> {
    let mut rest = payload;
    let mut out = Vec::new();
    for _ in 0..batches {
        let head = take(&mut rest, BATCH_HEADER_BYTES)?;
        let len = u32::from_le_bytes(array(&head[0..4])) as usize;
        let ops = u32::from_le_bytes(array(&head[4..8]));
        let body = match len.checked_sub(BATCH_HEADER_BYTES) {
            Some(body) => body,
            None => return Err(field("length", len as u64)),
        };
        let mut body = take(&mut rest, body)?;
        let mut decoded = Vec::new();
        while !body.is_empty() {
            let op = take_op(&mut body)?;
            check(&op)?;
            decoded.push(op);
        }
        if decoded.len() != ops as usize {
            return Err(field("operations", u64::from(ops)));
        }
        out.push(decoded);
    }
    if !rest.is_empty() {
        return Err(field("rest", rest.len() as u64));
    }
    Ok(out)
}

/// Whether an operation's fields are in their ranges, as far as they do not depend on the volume.
fn check(op: &Op<'_>) -> Result<(), FormatError> {
    match *op {
        Op::Put { key, value, fresh, tree } => {
            if tree == TreeId::MAIN {
                key.check_offset()?;
            }
            if fresh && key.kind != Kind::Extent {
                return Err(field("fresh", key.kind as u64));
            }
            if fresh { ExtentItem::decode(value).map(drop) } else { Ok(()) }
        }
        Op::Image { page, .. } => range::OPERATION_IMAGE_PAGE.check(page).map(drop),
        // Recovery holds runs against the volume's groups.
        Op::Allocate { .. } | Op::Free { .. } | Op::Delete { .. } | Op::Drop { .. } => Ok(()),
    }
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: "batch", field, value }
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], FormatError> {
    if rest.len() < len {
        return Err(FormatError::Truncated { what: "batch", want: len, got: rest.len() });
    }
    let (taken, left) = rest.split_at(len);
    *rest = left;
    Ok(taken)
}

fn take_u16(rest: &mut &[u8]) -> Result<u16, FormatError> {
    Ok(u16::from_le_bytes(array(take(rest, 2)?)))
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, FormatError> {
    Ok(u32::from_le_bytes(array(take(rest, 4)?)))
}

fn take_u64(rest: &mut &[u8]) -> Result<u64, FormatError> {
    Ok(u64::from_le_bytes(array(take(rest, 8)?)))
}

fn take_key(rest: &mut &[u8]) -> Result<Key, FormatError> {
    Key::decode(&array(take(rest, KEY_BYTES)?))
}

fn take_op<'a>(rest: &mut &'a [u8]) -> Result<Op<'a>, FormatError> {
    let code = take(rest, 1)?[0];
    Ok(match code {
        OP_PUT | OP_PUT_FRESH => {
            let tree = TreeId(take_u32(rest)?);
            let key = take_key(rest)?;
            let len = usize::from(take_u16(rest)?);
            if len > ITEM_VALUE_BYTES_MAX {
                return Err(field("value length", len as u64));
            }
            Op::Put { tree, key, value: take(rest, len)?, fresh: code == OP_PUT_FRESH }
        }
        OP_DELETE => Op::Delete { tree: TreeId(take_u32(rest)?), key: take_key(rest)? },
        OP_ALLOCATE => Op::Allocate { start: BlockNo(take_u64(rest)?), len: take_u32(rest)? },
        OP_FREE => Op::Free { start: BlockNo(take_u64(rest)?), len: take_u32(rest)? },
        OP_IMAGE => {
            let tree = TreeId(take_u32(rest)?);
            let object = ObjectNo(take_u64(rest)?);
            let page = take_u64(rest)?;
            let len = usize::from(take_u16(rest)?);
            if len > BLOCK_BYTES {
                return Err(field("image length", len as u64));
            }
            Op::Image { tree, object, page, bytes: take(rest, len)? }
        }
        OP_DROP => Op::Drop {
            tree: TreeId(take_u32(rest)?),
            object: ObjectNo(take_u64(rest)?),
            first: take_u64(rest)?,
            end: take_u64(rest)?,
        },
        other => return Err(field("operation", u64::from(other))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_decodes_to_the_operations_that_were_pushed() {
        let extent = ExtentItem::written(BlockNo(500), vec![7, 8]).encode();
        let key = Key::extent(ObjectNo(9), 3);
        let mut batch = BatchBuf::new();
        batch.push(Op::Put { tree: TreeId::MAIN, key, value: &extent, fresh: true });
        batch.push(Op::Delete { tree: TreeId::MAIN, key });
        batch.push(Op::Allocate { start: BlockNo(500), len: 2 });
        batch.push(Op::Free { start: BlockNo(100), len: 1 });
        batch.push(Op::Image { tree: TreeId::MAIN, object: ObjectNo(9), page: 1, bytes: b"ab\0\0" });
        batch.push(Op::Drop { tree: TreeId::MAIN, object: ObjectNo(9), first: 0, end: u64::MAX });
        let ops: Vec<_> = batch.clone().iter().map(|op| format!("{op:?}")).collect();
        let bytes = batch.encoded().to_vec();
        let decoded = decode_batches(&bytes, 1).expect("well-formed");
        assert_eq!(decoded.len(), 1);
        assert_eq!(ops, decoded[0].iter().map(|op| format!("{op:?}")).collect::<Vec<_>>());
        assert!(matches!(decoded[0][4], Op::Image { bytes: b"ab", .. }), "trailing zeros are not stored");
        for cut in 0..bytes.len() {
            assert!(decode_batches(&bytes[..cut], 1).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn an_image_beyond_the_largest_file_is_refused() {
        for (page, valid) in
            [(0, true), (range::FILE_PAGES_MAX - 1, true), (range::FILE_PAGES_MAX, false), (u64::MAX, false)]
        {
            let mut batch = BatchBuf::new();
            batch.push(Op::Image { tree: TreeId::MAIN, object: ObjectNo(9), page, bytes: b"x" });
            assert_eq!(decode_batches(batch.encoded(), 1).is_ok(), valid, "page {page}");
        }
    }
}
