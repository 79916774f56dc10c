//! Writes a tree anew where the overlay changes it, and keeps every node that it does not.
//!
//! What is kept may be shared with other trees; what is written is the tree's own, born in the era of that moment. The
//! keys that lead to nodes stay, so that whoever compares two trees finds in both what they share.
//!
//! A node that is given up is left out. What the overlay says of its keys takes its place.

use super::allocator::Allocator;
use super::builder::{FILL_BYTES, NodeMaker};
use crate::CheckError;
use crate::lost::Lost;
use crate::overlay::Overlay;
use crate::parent::Parent;
use crate::walk::Trees;
use std::cell::RefCell;
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
    /// The tree's nodes that are given up.
    pub(crate) lost: Option<&'a Lost>,
    /// Where nodes may have become others: the era of the tree that it descends from, and that tree as it is now.
    pub(crate) parent: Option<(Era, RefCell<Parent<'a>>)>,
}

/// What takes the place of a node.
enum Place {
    /// It stays.
    Kept,
    /// These, each with the key that leads to it.
    Others(Vec<(Key, NodePointer)>),
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
        let mut nodes = match self.node(root, (Key::MIN, whole), allocator)? {
            Place::Kept => return Ok(root),
            Place::Others(nodes) => nodes,
        };
        let mut level = root.level;
        while nodes.len() > 1 {
            level += 1;
            nodes = self.pack(level, Key::MIN, slots_of(nodes), allocator)?;
        }
        match nodes.pop() {
            Some((_, root)) => Ok(root),
            None => self.maker.write(self.tree, 0, self.birth, &[], allocator),
        }
    }

    /// What takes the place of a node.
    fn node(
        &self,
        pointer: NodePointer,
        (slot, range): (Key, Range),
        allocator: &mut Allocator<'_>,
    ) -> Result<Place, CheckError> {
        if self.trees.is_given_up(self.tree, &pointer) {
            return self.instead(pointer.level, (slot, range), allocator);
        }
        let is_copied = self.is_missing_above(&pointer, slot);
        if !self.is_changed(range) && !is_copied && (pointer.level == 0 || self.is_shared(&pointer)) {
            return Ok(Place::Kept);
        }
        let bytes = self.trees.read(self.tree, &pointer).map_err(|_| unreadable(&pointer))?;
        let count = usize::from(node::head(&bytes).count.get());
        let mut slots = Slots::new();
        if pointer.level == 0 {
            let stored = (0..count).map(|index| (node::slot_key(&bytes, index), index));
            let kept = stored.filter(|(key, _)| !self.overlay.speaks_of(*key));
            slots.extend(kept.map(|(key, index)| (key, node::slot_value(&bytes, index).to_vec())));
            slots.extend(self.changes(range));
            slots.sort_by_key(|(key, _)| *key);
            return self.pack(0, slot, slots, allocator).map(Place::Others);
        }
        let mut is_same = !is_copied;
        for index in 0..count {
            let key = node::slot_key(&bytes, index);
            let low = if index == 0 { range.low } else { key };
            let next = (index + 1 < count).then(|| node::slot_key(&bytes, index + 1));
            let child = NodePointer::decode(node::slot_value(&bytes, index));
            let child = child.map_err(|_| unreadable(&pointer))?;
            let below = Range { low, high: next.or(range.high) };
            match self.node(child, (key, below), allocator)? {
                Place::Kept => slots.push((key, child.encode().to_vec())),
                Place::Others(nodes) => {
                    is_same = false;
                    slots.extend(slots_of(nodes));
                }
            }
        }
        if is_same {
            return Ok(Place::Kept);
        }
        self.pack(pointer.level, slot, slots, allocator).map(Place::Others)
    }

    /// What the overlay says of the keys of a node that is given up, in nodes of its level.
    fn instead(
        &self,
        level: u16,
        (slot, range): (Key, Range),
        allocator: &mut Allocator<'_>,
    ) -> Result<Place, CheckError> {
        let mut nodes = self.pack(0, slot, self.changes(range).collect(), allocator)?;
        for above in 1..=level {
            nodes = self.pack(above, slot, slots_of(nodes), allocator)?;
        }
        Ok(Place::Others(nodes))
    }

    /// The items that the overlay puts into a range.
    fn changes(&self, range: Range) -> impl Iterator<Item = (Key, Vec<u8>)> + '_ {
        let is_inside = move |key: &Key| range.high.is_none_or(|high| *key < high);
        let changes = self.overlay.range(range.low..=Key::MAX).take_while(move |(key, _)| is_inside(key));
        changes.filter_map(|(key, value)| Some((*key, value.clone()?)))
    }

    /// Whether all below the node is the tree's only as long as its parent has it.
    fn is_shared(&self, pointer: &NodePointer) -> bool {
        self.parent.as_ref().is_none_or(|(era, _)| pointer.birth <= *era)
    }

    /// Whether the parent is to have the node, and has it no more.
    fn is_missing_above(&self, pointer: &NodePointer, slot: Key) -> bool {
        let parent = self.parent.as_ref().filter(|(era, _)| pointer.birth <= *era);
        parent.is_some_and(|(_, parent)| !parent.borrow_mut().has_node(pointer, slot))
    }

    fn is_changed(&self, range: Range) -> bool {
        let first = self.overlay.range(range.low..=Key::MAX).next();
        first.is_some_and(|(key, _)| range.high.is_none_or(|high| *key < high))
            || self.lost.is_some_and(|lost| lost.meets_node(range.low, range.high))
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

fn slots_of(nodes: Vec<(Key, NodePointer)>) -> Slots {
    nodes.into_iter().map(|(key, pointer)| (key, pointer.encode().to_vec())).collect()
}

/// It was readable a moment ago.
fn unreadable(pointer: &NodePointer) -> CheckError {
    // EIO.
    CheckError::Device(DeviceError::Io { operation: Operation::Read, block: pointer.block, errno: 5 })
}
