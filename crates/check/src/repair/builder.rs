//! Packs items that come in key order into new tree nodes, bottom-up.

use super::{allocator::Allocator, write};
use crate::CheckError;
use crate::walk::{Source, Visitor};
use syncline_device::Device;
use syncline_format::header::{self, BlockHeader, MAGIC_NODE};
use syncline_format::node::{
    LEVEL_MAX, NODE_HEADER_BYTES, NODE_SPACE_BYTES, NodeHeader, NodePointer, SLOT_BYTES, Slot,
};
use syncline_format::superblock::Superblock;
use syncline_format::{Era, Generation, Key, NODE_BYTES, TreeId};

/// Bytes of a node that are filled; the rest is left to later inserts.
pub(super) const FILL_BYTES: usize = NODE_SPACE_BYTES * 7 / 8;

/// A tree being written.
pub(crate) struct TreeBuilder<'a, 'd> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    tree: TreeId,
    generation: Generation,
    birth: Era,
    allocator: &'a mut Allocator<'d>,
    /// The open node of each level, leaves first.
    levels: Vec<OpenNode>,
    /// The first failure; everything after it is left out.
    failed: Option<CheckError>,
}

/// A node that is being filled.
#[derive(Default)]
struct OpenNode {
    slots: Vec<(Key, Vec<u8>)>,
    bytes: usize,
}

impl<'a, 'd> TreeBuilder<'a, 'd> {
    pub(crate) fn new(
        device: &'a dyn Device,
        superblock: &'a Superblock,
        tree: TreeId,
        (generation, birth): (Generation, Era),
        allocator: &'a mut Allocator<'d>,
    ) -> TreeBuilder<'a, 'd> {
        let levels = vec![OpenNode::default()];
        TreeBuilder { device, superblock, tree, generation, birth, allocator, levels, failed: None }
    }

    /// Writes what is open; returns the root's pointer.
    pub(crate) fn finish(mut self) -> Result<NodePointer, CheckError> {
        let mut level = 0;
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            let node = std::mem::take(&mut self.levels[level]);
            let is_root = level + 1 == self.levels.len();
            let (key, pointer) = self.write_node(level as u16, &node)?;
            if is_root {
                return Ok(pointer);
            }
            self.push(level + 1, key, pointer.encode().to_vec());
            level += 1;
        }
    }

    fn push(&mut self, level: usize, key: Key, value: Vec<u8>) {
        if level == self.levels.len() {
            assert!(level <= usize::from(LEVEL_MAX), "no device holds so high a tree");
            self.levels.push(OpenNode::default());
        }
        let bytes = SLOT_BYTES + value.len();
        if self.levels[level].bytes + bytes > FILL_BYTES && !self.levels[level].slots.is_empty() {
            let full = std::mem::take(&mut self.levels[level]);
            match self.write_node(level as u16, &full) {
                Ok((first, pointer)) => self.push(level + 1, first, pointer.encode().to_vec()),
                Err(error) => self.failed = self.failed.take().or(Some(error)),
            }
        }
        let node = &mut self.levels[level];
        node.bytes += bytes;
        node.slots.push((key, value));
    }

    fn write_node(&mut self, level: u16, node: &OpenNode) -> Result<(Key, NodePointer), CheckError> {
        let maker =
            NodeMaker { device: self.device, superblock: self.superblock, generation: self.generation };
        let pointer = maker.write(self.tree, level, self.birth, &node.slots, self.allocator)?;
        let first = node.slots.first().map_or(Key::MIN, |(key, _)| *key);
        Ok((first, pointer))
    }
}

/// Writes nodes of the new checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct NodeMaker<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) superblock: &'a Superblock,
    pub(crate) generation: Generation,
}

impl NodeMaker<'_> {
    /// Writes one node with these slots, which fit.
    pub(crate) fn write(
        &self,
        tree: TreeId,
        level: u16,
        birth: Era,
        slots: &[(Key, Vec<u8>)],
        allocator: &mut Allocator<'_>,
    ) -> Result<NodePointer, CheckError> {
        let block = allocator.node()?;
        let mut bytes = vec![0; NODE_BYTES];
        let mut heap = NODE_BYTES;
        for (index, (key, value)) in slots.iter().enumerate() {
            heap -= value.len();
            bytes[heap..heap + value.len()].copy_from_slice(value);
            let slot = Slot {
                object: key.object.0.into(),
                offset: key.offset.into(),
                value_at: (heap as u16).into(),
                value_len: (value.len() as u16).into(),
                kind: key.kind as u8,
                reserved: [0; 3],
            };
            let at = NODE_HEADER_BYTES + index * SLOT_BYTES;
            bytes[at..at + SLOT_BYTES].copy_from_slice(zerocopy::IntoBytes::as_bytes(&slot));
        }
        let head = NodeHeader {
            header: BlockHeader::new(MAGIC_NODE, block, self.generation, self.superblock.volume_id()),
            level: level.into(),
            count: (slots.len() as u16).into(),
            heap: (heap as u16).into(),
            reserved: 0.into(),
            tree: tree.of_nodes().0.into(),
            reserved2: 0.into(),
            reserved3: 0.into(),
        };
        bytes[..NODE_HEADER_BYTES].copy_from_slice(zerocopy::IntoBytes::as_bytes(&head));
        let checksum = header::seal(&mut bytes);
        write(self.device, block, &bytes)?;
        Ok(NodePointer { block, checksum, generation: self.generation, level, birth })
    }
}

impl Visitor for TreeBuilder<'_, '_> {
    fn item(&mut self, key: Key, value: &[u8], _source: Source) {
        if self.failed.is_none() {
            self.push(0, key, value.to_vec());
        }
    }

    fn lost(&mut self, leaf: crate::lost::LostNode, message: String) {
        self.damaged(crate::Code::LeafUnreadable, leaf.block, message);
    }

    /// A node that was readable a moment ago is not any more: the new tree would miss items.
    fn damaged(&mut self, _code: crate::Code, block: syncline_format::BlockNo, _message: String) {
        let error = syncline_device::DeviceError::Io {
            operation: syncline_device::Operation::Read,
            block,
            // EIO.
            errno: 5,
        };
        self.failed = self.failed.take().or(Some(CheckError::Device(error)));
    }
}
