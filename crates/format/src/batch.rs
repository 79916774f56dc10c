//! Batches inside a record: the operations that one commit made, in absolute values.
//!
//! A batch is a length, a count, and operations back to back. Replaying a batch twice gives the same tree as once.

use crate::item::ExtentItem;
use crate::key::{KEY_BYTES, Key, Kind, array};
use crate::tree_item::{OverlayItem, Role};
use crate::{BLOCK_BYTES, BlockNo, Era, FormatError, ITEM_VALUE_BYTES_MAX, ObjectNo, TreeId, range};
use std::sync::Arc;

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_ALLOCATE: u8 = 3;
const OP_FREE: u8 = 4;
const OP_IMAGE: u8 = 5;
const OP_DROP: u8 = 6;
const OP_PUT_FRESH: u8 = 7;
const OP_MAKE_TREE: u8 = 8;
const OP_TREE_GONE: u8 = 11;

/// Bytes before a batch's operations: length of the whole batch (u32), number of operations (u32).
pub const BATCH_HEADER_BYTES: usize = 8;
/// Encoded size of a put without its value.
pub const PUT_OVERHEAD_BYTES: usize = 1 + 4 + KEY_BYTES + 2;
/// Encoded size of a delete.
pub const DELETE_BYTES: usize = 1 + 4 + KEY_BYTES;
/// Encoded size of an allocation or a free.
pub const SPACE_OP_BYTES: usize = 1 + 8 + 4;
/// Encoded size of a release.
pub const RELEASE_BYTES: usize = SPACE_OP_BYTES + 4;
/// Encoded size of the making of a tree.
pub const MAKE_TREE_BYTES: usize = 1 + 4 + 4 + 4 + 4;
/// Encoded size of the end of a tree.
pub const TREE_GONE_BYTES: usize = 1 + 4;
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
    /// A tree comes to be: what the source is by now, its live images included, or empty. The volume's era is at least
    /// `era` from here on.
    MakeTree { tree: TreeId, source: Option<TreeId>, role: Role, era: Era },
    /// An item that named the blocks since `birth` is gone.
    Release { outcome: Outcome, start: BlockNo, len: u32, birth: Era },
    /// A tree ceases to be.
    TreeGone { tree: TreeId },
}

impl Op<'_> {
    /// Whether only a volume of version 2 has it.
    pub fn needs_trees(&self) -> bool {
        matches!(self, Op::MakeTree { .. } | Op::Release { .. } | Op::TreeGone { .. })
    }
}

/// What becomes of blocks that an item named: decided when the batch is committed, by one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// They are free, as by [`Op::Free`].
    Free = 9,
    /// A snapshot has them.
    Left = 10,
    /// Another item of the volume's heads has them.
    Shared = 12,
}

impl Outcome {
    fn of_code(code: u8) -> Option<Outcome> {
        [Outcome::Free, Outcome::Left, Outcome::Shared].into_iter().find(|outcome| *outcome as u8 == code)
    }
}

/// A place in a batch that is still being built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// In what the batch owns.
    own: usize,
    /// Shared bytes in front of it.
    shared: usize,
}

impl Mark {
    /// So many bytes further on, in the same operation.
    #[must_use]
    pub fn plus(self, bytes: usize) -> Mark {
        Mark { own: self.own + bytes, ..self }
    }

    /// Where it is in the finished batch.
    pub fn in_encoded(self) -> usize {
        BATCH_HEADER_BYTES + self.own + self.shared
    }
}

/// Shorter images are copied into the batch rather than shared: a page held for each would take much more memory.
const SHARED_IMAGE_BYTES_MIN: usize = BLOCK_BYTES / 4;

/// Builds a batch's bytes; the very same bytes are applied and logged.
///
/// The content of a page can stay where it is until the batch is copied to where it is written from
/// ([`BatchBuf::push_image`]).
#[derive(Debug, Clone, Default)]
pub struct BatchBuf {
    /// The operations without what is shared.
    own: Vec<u8>,
    shared: Vec<Shared>,
    /// Bytes of `shared` in all.
    shared_bytes: usize,
    ops: u32,
}

/// Content that the batch does not own.
#[derive(Clone)]
struct Shared {
    /// Its place: in front of this byte of [`BatchBuf::own`].
    at: usize,
    content: Arc<dyn AsRef<[u8]> + Send + Sync>,
    len: usize,
}

impl Shared {
    fn bytes(&self) -> &[u8] {
        &(*self.content).as_ref()[..self.len]
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {}", self.len, self.at)
    }
}

impl BatchBuf {
    pub fn new() -> BatchBuf {
        BatchBuf::default()
    }

    /// A batch with room for so many encoded bytes in all, but for what is shared.
    pub fn with_capacity(bytes: usize) -> BatchBuf {
        BatchBuf { own: Vec::with_capacity(bytes), ..BatchBuf::default() }
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
        BATCH_HEADER_BYTES + self.own.len() + self.shared_bytes
    }

    /// Where the next operation begins.
    pub fn mark(&self) -> Mark {
        Mark { own: self.own.len(), shared: self.shared_bytes }
    }

    /// Changes bytes of an operation that was appended: a birth, or the outcome of a release.
    pub fn overwrite(&mut self, at: Mark, bytes: &[u8]) {
        self.own[at.own..at.own + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends one operation.
    ///
    /// Panics if a value is larger than [`ITEM_VALUE_BYTES_MAX`] or an image larger than a block: callers check their
    /// own input first.
    pub fn push(&mut self, op: Op<'_>) {
        let out = &mut self.own;
        match op {
            Op::Put { tree, key, value, fresh } => {
                assert!(value.len() <= ITEM_VALUE_BYTES_MAX, "item value too large");
                let mut head = [0; PUT_OVERHEAD_BYTES];
                head[0] = if fresh { OP_PUT_FRESH } else { OP_PUT };
                head[1..5].copy_from_slice(&tree.0.to_le_bytes());
                head[5..5 + KEY_BYTES].copy_from_slice(&key.encode());
                head[5 + KEY_BYTES..].copy_from_slice(&(value.len() as u16).to_le_bytes());
                out.reserve(PUT_OVERHEAD_BYTES + value.len());
                out.extend_from_slice(&head);
                out.extend_from_slice(value);
            }
            Op::Delete { tree, key } => {
                let mut head = [0; DELETE_BYTES];
                head[0] = OP_DELETE;
                head[1..5].copy_from_slice(&tree.0.to_le_bytes());
                head[5..].copy_from_slice(&key.encode());
                out.extend_from_slice(&head);
            }
            Op::Allocate { start, len } => space(out, OP_ALLOCATE, start, len),
            Op::Free { start, len } => space(out, OP_FREE, start, len),
            Op::Image { tree, object, page, bytes } => {
                assert!(bytes.len() <= BLOCK_BYTES, "image larger than a page");
                let used = used(bytes);
                image_head(out, tree, object, page, used);
                out.extend_from_slice(&bytes[..used]);
            }
            Op::Drop { tree, object, first, end } => {
                out.push(OP_DROP);
                out.extend_from_slice(&tree.0.to_le_bytes());
                out.extend_from_slice(&object.0.to_le_bytes());
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&end.to_le_bytes());
            }
            Op::MakeTree { tree, source, role, era } => {
                out.push(OP_MAKE_TREE);
                out.extend_from_slice(&tree.0.to_le_bytes());
                out.extend_from_slice(&source.map_or(0, |source| source.0).to_le_bytes());
                out.extend_from_slice(&[role as u8, 0, 0, 0]);
                out.extend_from_slice(&era.0.to_le_bytes());
            }
            Op::Release { outcome, start, len, birth } => {
                space(out, outcome as u8, start, len);
                out.extend_from_slice(&birth.0.to_le_bytes());
            }
            Op::TreeGone { tree } => {
                out.push(OP_TREE_GONE);
                out.extend_from_slice(&tree.0.to_le_bytes());
            }
        }
        self.ops += 1;
    }

    /// Appends an image whose content, at most a block, is copied when the batch is. Nobody changes it meanwhile:
    /// whoever wants to finds that it is shared.
    pub fn push_image<B>(&mut self, tree: TreeId, object: ObjectNo, page: u64, content: &Arc<B>)
    where
        B: AsRef<[u8]> + Send + Sync + 'static,
    {
        let bytes = (**content).as_ref();
        let len = used(bytes);
        if len < SHARED_IMAGE_BYTES_MIN {
            return self.push(Op::Image { tree, object, page, bytes });
        }
        assert!(bytes.len() <= BLOCK_BYTES, "image larger than a page");
        image_head(&mut self.own, tree, object, page, len);
        self.shared.push(Shared { at: self.own.len(), content: content.clone(), len });
        self.shared_bytes += len;
        self.ops += 1;
    }

    /// The finished batch.
    pub fn into_encoded(self) -> Vec<u8> {
        let mut encoded = vec![0; self.len()];
        self.encode_into(&mut encoded);
        encoded
    }

    /// Writes the finished batch; `out` has its length.
    pub fn encode_into(&self, out: &mut [u8]) {
        let (header, mut out) = out.split_at_mut(BATCH_HEADER_BYTES);
        header[0..4].copy_from_slice(&(self.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&self.ops.to_le_bytes());
        let mut done = 0;
        for shared in &self.shared {
            put(&mut out, &self.own[done..shared.at]);
            put(&mut out, shared.bytes());
            done = shared.at;
        }
        put(&mut out, &self.own[done..]);
        assert!(out.is_empty(), "a batch fills the room for it");
    }

    /// The operations again, in order.
    pub fn iter(&self) -> impl Iterator<Item = Op<'_>> {
        let mut rest = self.own.as_slice();
        let mut shared = self.shared.iter().peekable();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let here = self.own.len() - rest.len() + IMAGE_OVERHEAD_BYTES;
            match shared.next_if(|shared| shared.at == here) {
                Some(shared) => {
                    let (tree, object, page, _) = take_image_head(&mut &rest[1..]).expect(DECODES);
                    rest = &rest[IMAGE_OVERHEAD_BYTES..];
                    Some(Op::Image { tree, object, page, bytes: shared.bytes() })
                }
                None => Some(take_op(&mut rest).expect(DECODES)),
            }
        })
    }
}

const DECODES: &str = "a batch decodes what it encoded";

/// Bytes in front of the zeros at the end.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1)
}

fn image_head(out: &mut Vec<u8>, tree: TreeId, object: ObjectNo, page: u64, len: usize) {
    out.push(OP_IMAGE);
    out.extend_from_slice(&tree.0.to_le_bytes());
    out.extend_from_slice(&object.0.to_le_bytes());
    out.extend_from_slice(&page.to_le_bytes());
    out.extend_from_slice(&(len as u16).to_le_bytes());
}

/// Writes to the beginning of `out`, of which the rest is left.
fn put(out: &mut &mut [u8], bytes: &[u8]) {
    let (here, rest) = std::mem::take(out).split_at_mut(bytes.len());
    here.copy_from_slice(bytes);
    *out = rest;
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
            if tree.is_filesystem() {
                key.check_offset()?;
            } else if tree == TreeId::VOLUME {
                key.check_volume()?;
            }
            if fresh { fresh_extent(key, value).map(drop) } else { Ok(()) }
        }
        Op::Image { page, .. } => range::OPERATION_IMAGE_PAGE.check(page).map(drop),
        Op::MakeTree { tree, source, era, .. } => {
            range::SUPERBLOCK_NEXT_TREE.check(u64::from(tree.0))?;
            range::OPERATION_TREE.check(u64::from(tree.0))?;
            range::OPERATION_SOURCE.check(source.map_or(0, |source| u64::from(source.0)))?;
            range::OPERATION_ERA.check(u64::from(era.0)).map(drop)
        }
        // Recovery holds runs against the volume's groups, and trees against those that there are.
        Op::Allocate { .. } | Op::Free { .. } | Op::Release { .. } => Ok(()),
        Op::Delete { .. } | Op::Drop { .. } | Op::TreeGone { .. } => Ok(()),
    }
}

/// The extent whose data a batch wrote: of an item put as fresh.
///
/// Errors: items of other kinds bring no data, and those that do have to be decodable.
pub fn fresh_extent(key: Key, value: &[u8]) -> Result<ExtentItem, FormatError> {
    match key.kind {
        Kind::Extent => ExtentItem::decode(value),
        Kind::Overlay => OverlayItem::decode(value).map(|item| item.extent),
        kind => Err(field("fresh", kind as u64)),
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

/// What an image's code is followed by, up to its bytes: tree, object, page, and the length of its bytes.
fn take_image_head(rest: &mut &[u8]) -> Result<(TreeId, ObjectNo, u64, usize), FormatError> {
    let (tree, object) = (TreeId(take_u32(rest)?), ObjectNo(take_u64(rest)?));
    let (page, len) = (take_u64(rest)?, usize::from(take_u16(rest)?));
    if len > BLOCK_BYTES {
        return Err(field("image length", len as u64));
    }
    Ok((tree, object, page, len))
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
            let (tree, object, page, len) = take_image_head(rest)?;
            Op::Image { tree, object, page, bytes: take(rest, len)? }
        }
        OP_DROP => Op::Drop {
            tree: TreeId(take_u32(rest)?),
            object: ObjectNo(take_u64(rest)?),
            first: take_u64(rest)?,
            end: take_u64(rest)?,
        },
        OP_MAKE_TREE => {
            let tree = TreeId(take_u32(rest)?);
            let source = Some(TreeId(take_u32(rest)?)).filter(|source| source.0 != 0);
            let role = Role::try_from(take(rest, 4)?[0])?;
            Op::MakeTree { tree, source, role, era: Era(take_u32(rest)?) }
        }
        OP_TREE_GONE => Op::TreeGone { tree: TreeId(take_u32(rest)?) },
        code if let Some(outcome) = Outcome::of_code(code) => {
            let (start, len) = (BlockNo(take_u64(rest)?), take_u32(rest)?);
            Op::Release { outcome, start, len, birth: Era(take_u32(rest)?) }
        }
        other => return Err(field("operation", u64::from(other))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::EXTENT_BIRTH_AT;

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
        let (made, main) = (TreeId(17), Some(TreeId::MAIN));
        batch.push(Op::MakeTree { tree: made, source: main, role: Role::Snapshot, era: Era(3) });
        batch.push(Op::MakeTree { tree: made, source: None, role: Role::Head, era: Era(3) });
        for outcome in [Outcome::Free, Outcome::Left, Outcome::Shared] {
            batch.push(Op::Release { outcome, start: BlockNo(7), len: 3, birth: Era(u32::MAX) });
        }
        batch.push(Op::TreeGone { tree: made });
        let item =
            OverlayItem { object: ObjectNo(9), page: 4, extent: ExtentItem::written(BlockNo(5), vec![1]) };
        let (key, value) = (Key::overlay(made, 0), item.encode());
        batch.push(Op::Put { tree: TreeId::VOLUME, key, value: &value, fresh: true });
        let ops: Vec<_> = batch.clone().iter().map(|op| format!("{op:?}")).collect();
        let bytes = batch.into_encoded();
        let decoded = decode_batches(&bytes, 1).expect("well-formed");
        assert_eq!(decoded.len(), 1);
        assert_eq!(ops, decoded[0].iter().map(|op| format!("{op:?}")).collect::<Vec<_>>());
        assert!(matches!(decoded[0][4], Op::Image { bytes: b"ab", .. }), "trailing zeros are not stored");
        for cut in 0..bytes.len() {
            assert!(decode_batches(&bytes[..cut], 1).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_shared_image_is_encoded_as_one_that_is_copied() {
        let content = |len: usize| [vec![7; len], vec![0; BLOCK_BYTES - len]].concat();
        let lengths =
            [0, 1, SHARED_IMAGE_BYTES_MIN - 1, SHARED_IMAGE_BYTES_MIN, BLOCK_BYTES - 1, BLOCK_BYTES];
        let (mut shared, mut copied) = (BatchBuf::new(), BatchBuf::new());
        for (page, len) in (0..).zip(lengths) {
            let bytes = Arc::new(content(len));
            let (tree, object) = (TreeId::MAIN, ObjectNo(9));
            shared.push_image(tree, object, page, &bytes);
            copied.push(Op::Image { tree, object, page, bytes: &bytes });
            let is_shared = Arc::strong_count(&bytes) > 1;
            assert_eq!(is_shared, len >= SHARED_IMAGE_BYTES_MIN, "{len} bytes");
            for batch in [&mut shared, &mut copied] {
                batch.push(Op::Free { start: BlockNo(page), len: 1 });
            }
        }
        assert_eq!((shared.len(), shared.ops()), (copied.len(), copied.ops()));
        assert_eq!(shared.iter().collect::<Vec<_>>(), copied.iter().collect::<Vec<_>>());
        assert_eq!(shared.into_encoded(), copied.into_encoded());
    }

    #[test]
    fn operations_have_the_lengths_that_estimates_count_on() {
        let of = |op: Op<'_>| {
            let mut batch = BatchBuf::new();
            batch.push(op);
            batch.len() - BATCH_HEADER_BYTES
        };
        let (tree, start, birth) = (TreeId(16), BlockNo(9), Era(1));
        assert_eq!(of(Op::Free { start, len: 1 }), SPACE_OP_BYTES);
        assert_eq!(of(Op::Release { outcome: Outcome::Free, start, len: 1, birth }), RELEASE_BYTES);
        assert_eq!(of(Op::MakeTree { tree, source: None, role: Role::Head, era: birth }), MAKE_TREE_BYTES);
        assert_eq!(of(Op::TreeGone { tree }), TREE_GONE_BYTES);
    }

    #[test]
    fn births_and_outcomes_are_decided_in_a_batch_that_is_built_already() {
        let key = Key::extent(ObjectNo(9), 3);
        let build = |birth: Era, outcome: Outcome| {
            let mut batch = BatchBuf::new();
            batch.push_image(TreeId::MAIN, ObjectNo(9), 0, &Arc::new(vec![7; BLOCK_BYTES]));
            let put = batch.mark();
            let value = ExtentItem::written(BlockNo(500), vec![7]).born(birth).encode();
            batch.push(Op::Put { tree: TreeId::MAIN, key, value: &value, fresh: true });
            let release = batch.mark();
            batch.push(Op::Release { outcome, start: BlockNo(80), len: 1, birth: Era(2) });
            (batch, put.plus(PUT_OVERHEAD_BYTES + EXTENT_BIRTH_AT), release)
        };
        let (mut batch, birth, release) = build(Era(0), Outcome::Free);
        let mut laid = batch.clone().into_encoded();
        let decided = build(Era(5), Outcome::Left).0.into_encoded();
        for (at, bytes) in [(birth, &5u32.to_le_bytes()[..]), (release, &[Outcome::Left as u8])] {
            batch.overwrite(at, bytes);
            laid[at.in_encoded()..at.in_encoded() + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(laid, decided, "in the finished batch");
        assert_eq!(batch.into_encoded(), decided, "before it is finished");
    }

    #[test]
    fn what_only_other_trees_hold_is_refused() {
        let decodes = |op: Op<'_>| {
            let mut batch = BatchBuf::new();
            batch.push(op);
            decode_batches(&batch.into_encoded(), 1).is_ok()
        };
        let info = Key::tree_info(TreeId(16));
        let put = |tree, key| Op::Put { tree, key, value: &[], fresh: false };
        assert!(decodes(put(TreeId::VOLUME, info)) && !decodes(put(TreeId(16), info)));
        assert!(decodes(put(TreeId(16), Key::inode(ObjectNo(5)))));
        assert!(!decodes(put(TreeId::VOLUME, Key::inode(ObjectNo(5)))));
        let make =
            |tree, era| Op::MakeTree { tree: TreeId(tree), source: None, role: Role::Head, era: Era(era) };
        assert!(decodes(make(16, 1)) && decodes(make(range::TREES_MAX as u32 - 1, u32::MAX - 1)));
        assert!(!decodes(make(15, 1)) && !decodes(make(range::TREES_MAX as u32, 1)));
        assert!(!decodes(make(16, 0)) && !decodes(make(16, u32::MAX)));
    }

    #[test]
    fn an_image_beyond_the_largest_file_is_refused() {
        for (page, valid) in
            [(0, true), (range::FILE_PAGES_MAX - 1, true), (range::FILE_PAGES_MAX, false), (u64::MAX, false)]
        {
            let mut batch = BatchBuf::new();
            batch.push(Op::Image { tree: TreeId::MAIN, object: ObjectNo(9), page, bytes: b"x" });
            assert_eq!(decode_batches(&batch.into_encoded(), 1).is_ok(), valid, "page {page}");
        }
    }
}
