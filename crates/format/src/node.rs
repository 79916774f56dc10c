//! Tree nodes: 16 KiB, a sorted array of slots growing up and a heap of values growing down.
//!
//! Leaves hold items; the values of interior nodes are [`NodePointer`]s, and a slot's key is the smallest key that
//! the child's subtree may hold (the first slot of an interior node stands for everything below the second as well).
//! This module checks and describes the bytes; editing them is the store's business (`store::tree::page`).

use crate::header::{self, BlockHeader, HEADER_BYTES, MAGIC_NODE, VolumeId};
use crate::{
    BlockNo, Era, FormatError, Generation, ITEM_VALUE_BYTES_MAX, Key, Kind, NODE_BYTES, ObjectNo, TreeId,
    range,
};
use std::cmp::Ordering;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Head of a node: the common header and the node's own fields.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct NodeHeader {
    pub header: BlockHeader,
    /// 0 for a leaf.
    pub level: U16,
    /// Number of slots.
    pub count: U16,
    /// Offset in the node of the lowest byte of the value heap.
    pub heap: U16,
    pub reserved: U16,
    /// The tree this node belongs to ([`TreeId::of_nodes`]).
    pub tree: U32,
    pub reserved2: U32,
    pub reserved3: U64,
}

const _: () = assert!(size_of::<NodeHeader>() == NODE_HEADER_BYTES);
const _: () = assert!(NODE_HEADER_BYTES >= HEADER_BYTES);

/// One slot: key, and where the value lies in the node.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct Slot {
    pub object: U64,
    pub offset: U64,
    pub value_at: U16,
    pub value_len: U16,
    pub kind: u8,
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// Bytes of a node before its slots.
pub const NODE_HEADER_BYTES: usize = 64;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 24;
/// Bytes of a node for slots and values.
pub const NODE_SPACE_BYTES: usize = NODE_BYTES - NODE_HEADER_BYTES;
/// Deepest allowed level of a root; a tree of this height holds more than any device.
pub const LEVEL_MAX: u16 = 12;

/// Pointer to a child node, as stored.
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct NodePointerRaw {
    pub block: U64,
    pub checksum: U64,
    pub generation: U64,
    pub level: U16,
    pub reserved: [u8; 2],
    pub birth: U32,
}

const _: () = assert!(size_of::<NodePointerRaw>() == NODE_POINTER_BYTES);
const _: () = assert!(std::mem::offset_of!(NodePointerRaw, birth) == NODE_POINTER_BIRTH_AT);

/// Bytes of a stored node pointer.
pub const NODE_POINTER_BYTES: usize = 32;
/// Where its birth is.
pub const NODE_POINTER_BIRTH_AT: usize = 28;

/// Where a node lies and what it must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NodePointer {
    pub block: BlockNo,
    /// The node's own checksum field: the parent vouches for the child.
    pub checksum: u64,
    pub generation: Generation,
    pub level: u16,
    /// The era in which the node was made, or last copied by a change.
    pub birth: Era,
}

impl From<NodePointer> for NodePointerRaw {
    fn from(pointer: NodePointer) -> NodePointerRaw {
        NodePointerRaw {
            block: U64::new(pointer.block.0),
            checksum: U64::new(pointer.checksum),
            generation: U64::new(pointer.generation.0),
            level: U16::new(pointer.level),
            reserved: [0; 2],
            birth: U32::new(pointer.birth.0),
        }
    }
}

impl TryFrom<NodePointerRaw> for NodePointer {
    type Error = FormatError;

    fn try_from(raw: NodePointerRaw) -> Result<NodePointer, FormatError> {
        range::POINTER_LEVEL.check(u64::from(raw.level.get()))?;
        Ok(NodePointer {
            block: BlockNo(raw.block.get()),
            checksum: raw.checksum.get(),
            generation: Generation(raw.generation.get()),
            level: raw.level.get(),
            birth: Era(raw.birth.get()),
        })
    }
}

impl NodePointer {
    pub fn encode(self) -> [u8; NODE_POINTER_BYTES] {
        let mut out = [0; NODE_POINTER_BYTES];
        out.copy_from_slice(NodePointerRaw::from(self).as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<NodePointer, FormatError> {
        match NodePointerRaw::read_from_bytes(bytes) {
            Ok(raw) => NodePointer::try_from(raw),
            Err(_) => Err(FormatError::Truncated {
                what: "node pointer",
                want: NODE_POINTER_BYTES,
                got: bytes.len(),
            }),
        }
    }
}

/// Head of a node whose bytes are long enough; the caller has verified it or is about to.
#[inline]
pub fn head(bytes: &[u8]) -> &NodeHeader {
    NodeHeader::ref_from_prefix(bytes).expect("a node buffer holds a header").0
}

/// Slot `index` of a node; the caller keeps it below the count.
#[inline]
pub fn slot(bytes: &[u8], index: usize) -> &Slot {
    let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
    Slot::ref_from_prefix(&bytes[at..]).expect("a slot lies inside its node").0
}

/// All slots of a verified node, ascending.
#[inline]
pub fn slots(bytes: &[u8]) -> &[Slot] {
    let count = usize::from(head(bytes).count.get());
    let slots = <[Slot]>::ref_from_prefix_with_elems(&bytes[NODE_HEADER_BYTES..], count);
    slots.expect("the slots lie inside their node").0
}

/// Key of slot `index` of a verified node.
#[inline]
pub fn slot_key(bytes: &[u8], index: usize) -> Key {
    let slot = slot(bytes, index);
    let kind = Kind::try_from(slot.kind).expect("a verified node has only known kinds");
    Key::new(ObjectNo(slot.object.get()), kind, slot.offset.get())
}

/// Value of slot `index` of a verified node.
#[inline]
pub fn slot_value(bytes: &[u8], index: usize) -> &[u8] {
    let slot = slot(bytes, index);
    let at = usize::from(slot.value_at.get());
    &bytes[at..at + usize::from(slot.value_len.get())]
}

/// Verifies a whole node read from where `pointer` points, so that every accessor above is safe to call on it: header
/// and checksum, level and tree (what its nodes name), slots in bounds and strictly ascending, kinds known, child
/// pointers decodable.
pub fn verify(
    bytes: &[u8],
    pointer: &NodePointer,
    tree: TreeId,
    volume: VolumeId,
) -> Result<(), FormatError> {
    const WHAT: &str = "tree node";
    if bytes.len() != NODE_BYTES {
        return Err(FormatError::Truncated { what: WHAT, want: NODE_BYTES, got: bytes.len() });
    }
    let common = header::verify(WHAT, MAGIC_NODE, bytes, pointer.block, volume)?;
    let field = |field, value| Err(FormatError::Field { what: WHAT, field, value });
    if common.checksum.get() != pointer.checksum {
        return Err(FormatError::Checksum { what: WHAT, want: pointer.checksum, got: common.checksum.get() });
    }
    if common.generation() != pointer.generation {
        return field("generation", common.generation.get());
    }
    let head = head(bytes);
    let level = head.level.get();
    if level != pointer.level || level > LEVEL_MAX {
        return field("level", u64::from(level));
    }
    if head.tree.get() != tree.of_nodes().0 {
        return field("tree", u64::from(head.tree.get()));
    }
    let count = usize::from(head.count.get());
    let slots_end = NODE_HEADER_BYTES + count * SLOT_BYTES;
    let heap = usize::from(head.heap.get());
    if slots_end > heap || heap > NODE_BYTES {
        return field("heap", heap as u64);
    }
    if level > 0 && count == 0 {
        return field("count", 0);
    }
    let mut previous: Option<Key> = None;
    let mut used = 0;
    for index in 0..count {
        let slot = slot(bytes, index);
        let (at, len) = (usize::from(slot.value_at.get()), usize::from(slot.value_len.get()));
        if at < heap || at + len > NODE_BYTES || len > ITEM_VALUE_BYTES_MAX {
            return field("value", at as u64);
        }
        // Values may not share bytes, or the node would not hold its own items once it is rebuilt.
        used += SLOT_BYTES + len;
        if used > NODE_SPACE_BYTES {
            return field("values", used as u64);
        }
        let key = Key::new(ObjectNo(slot.object.get()), Kind::try_from(slot.kind)?, slot.offset.get());
        if previous.is_some_and(|previous| previous >= key) {
            return field("key order", index as u64);
        }
        previous = Some(key);
        if level > 0 {
            let child = NodePointer::decode(slot_value(bytes, index))?;
            if child.level + 1 != level {
                return field("child level", u64::from(child.level));
            }
        }
    }
    Ok(())
}

/// Head of a node for editing.
pub fn head_mut(bytes: &mut [u8]) -> &mut NodeHeader {
    NodeHeader::mut_from_prefix(bytes).expect("a node buffer holds a header").0
}

/// Slot `index` of a node for editing.
pub fn slot_mut(bytes: &mut [u8], index: usize) -> &mut Slot {
    let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
    Slot::mut_from_prefix(&mut bytes[at..]).expect("a slot lies inside its node").0
}

impl Slot {
    /// How its key compares with `key`.
    #[inline]
    pub fn compare(&self, key: &Key) -> Ordering {
        let of_slot = (self.object.get(), self.kind, self.offset.get());
        of_slot.cmp(&(key.object.0, key.kind as u8, key.offset))
    }

    pub fn new(key: Key, value_at: u16, value_len: u16) -> Slot {
        Slot {
            object: U64::new(key.object.0),
            offset: U64::new(key.offset),
            value_at: U16::new(value_at),
            value_len: U16::new(value_len),
            kind: key.kind as u8,
            reserved: [0; 3],
        }
    }
}

/// Completes a node's common header for its final address and computes its checksum. The pointer is one of birth 0.
pub fn seal(bytes: &mut [u8], block: BlockNo, generation: Generation, volume: VolumeId) -> NodePointer {
    head_mut(bytes).header = BlockHeader::new(MAGIC_NODE, block, generation, volume);
    let checksum = header::seal(bytes);
    NodePointer { block, checksum, generation, level: head(bytes).level.get(), birth: Era(0) }
}
