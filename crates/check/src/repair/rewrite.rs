//! Writes a tree anew where the overlay changes it, and keeps every node that it does not.
//!
//! What is kept may be shared with other trees; what is written is the tree's own, born in the era of that moment. The
//! keys that lead to nodes stay, so that whoever compares two trees finds in both what they share.

use super::allocator::Allocator;
use super::builder::{FILL_BYTES, NodeMaker};
use crate::CheckError;
use crate::overlay::Overlay;
use crate::walk::Trees;
use syncline_device::{DeviceError, Operation};
use syncline_format::node::{self, NodePointer, SLOT_BYTES};
use syncline_format::{Era, Key, TreeId};

type Slots = Vec<(Key, Vec<u8>)>;

pub(crate) struct Rewriter<'a> {
    pub(crate) trees: Trees<'a>,
    pub(crate) maker: NodeMaker<'a>,
    pub(crate) tree: TreeId,
    /// Of the nodes that are written.
    pub(crate) birth: Era,
    pub(crate) overlay: &'a Overlay,
}

/// The keys that a node may hold.
#[derive(Clone, Copy)]
struct Range {
    low: Key,
    /// Exclusive.
    high: Option<Key>,
}

impl Rewriter<'_> {
    /// The new root; the old one if nothing changes.
    pub(crate) fn root(
        &self,
        root: NodePointer,
        allocator: &mut Allocator<'_>,
    ) -> Result<NodePointer, CheckError> {
        let whole = Range { low: Key::MIN, high: None };
        let (mut level, mut nodes) = (root.level, self.node(root, (Key::MIN, whole), allocator)?);
        while nodes.len() > 1 {
            level += 1;
            let slots = nodes.into_iter().map(|(key, pointer)| (key, pointer.encode().to_vec())).collect();
            nodes = self.pack(level, Key::MIN, slots, allocator)?;
        }
        match nodes.pop() {
            Some((_, root)) => Ok(root),
            None => self.maker.write(self.tree, 0, self.birth, &[], allocator),
        }
    }

    /// What takes the place of a node, each with the key that leads to it.
    fn node(
        &self,
        pointer: NodePointer,
        (slot, range): (Key, Range),
        allocator: &mut Allocator<'_>,
    ) -> Result<Vec<(Key, NodePointer)>, CheckError> {
        if !self.is_changed(range) {
            return Ok(vec![(slot, pointer)]);
        }
        let bytes = self.trees.read(self.tree, &pointer).map_err(|_| unreadable(&pointer))?;
        let count = usize::from(node::head(&bytes).count.get());
        let mut slots = Slots::new();
        if pointer.level == 0 {
            let stored = (0..count).map(|index| (node::slot_key(&bytes, index), index));
            let kept = stored.filter(|(key, _)| !self.overlay.speaks_of(*key));
            slots.extend(kept.map(|(key, index)| (key, node::slot_value(&bytes, index).to_vec())));
            let is_inside = |key: &Key| range.high.is_none_or(|high| *key < high);
            let changes = self.overlay.range(range.low..=Key::MAX).take_while(|(key, _)| is_inside(key));
            slots.extend(changes.filter_map(|(key, value)| Some((*key, value.clone()?))));
            slots.sort_by_key(|(key, _)| *key);
            return self.pack(0, slot, slots, allocator);
        }
        for index in 0..count {
            let key = node::slot_key(&bytes, index);
            let low = if index == 0 { range.low } else { key };
            let next = (index + 1 < count).then(|| node::slot_key(&bytes, index + 1));
            let child = NodePointer::decode(node::slot_value(&bytes, index));
            let child = child.map_err(|_| unreadable(&pointer))?;
            let below = Range { low, high: next.or(range.high) };
            let nodes = self.node(child, (key, below), allocator)?;
            slots.extend(nodes.into_iter().map(|(key, pointer)| (key, pointer.encode().to_vec())));
        }
        self.pack(pointer.level, slot, slots, allocator)
    }

    fn is_changed(&self, range: Range) -> bool {
        let first = self.overlay.range(range.low..=Key::MAX).next();
        first.is_some_and(|(key, _)| range.high.is_none_or(|high| *key < high))
    }

    /// Writes nodes that hold the slots. `slot` leads to what was there before, and to the first of them.
    fn pack(
        &self,
        level: u16,
        slot: Key,
        slots: Slots,
        allocator: &mut Allocator<'_>,
    ) -> Result<Vec<(Key, NodePointer)>, CheckError> {
        let (mut nodes, mut open, mut bytes) = (Vec::new(), Slots::new(), 0);
        let mut write = |open: &mut Slots, nodes: &mut Vec<(Key, NodePointer)>| {
            let first = open.first().map_or(slot, |(key, _)| *key);
            let leads = if nodes.is_empty() { slot.min(first) } else { first };
            let pointer = self.maker.write(self.tree, level, self.birth, open, allocator)?;
            nodes.push((leads, pointer));
            open.clear();
            Ok::<_, CheckError>(())
        };
        for (key, value) in slots {
            let takes = SLOT_BYTES + value.len();
            if bytes + takes > FILL_BYTES && !open.is_empty() {
                write(&mut open, &mut nodes)?;
                bytes = 0;
            }
            bytes += takes;
            open.push((key, value));
        }
        if !open.is_empty() {
            write(&mut open, &mut nodes)?;
        }
        Ok(nodes)
    }
}

/// It was readable a moment ago.
fn unreadable(pointer: &NodePointer) -> CheckError {
    // EIO.
    CheckError::Device(DeviceError::Io { operation: Operation::Read, block: pointer.block, errno: 5 })
}
