//! Walks trees in key order, checks each node against its parent, and lays the log's overlay over the items.
//!
//! A walk always ends: levels fall by one from parent to child, and a visitor that refuses nodes it has seen bounds
//! the number of nodes by the size of the device.

use crate::Code;
use crate::lost::LostNode;
use crate::overlay::{self, Overlay};
use std::collections::BTreeSet;
use std::iter::Peekable;
use syncline_device::{Buffer, Device};
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, Era, Generation, Key, NODE_BLOCKS, TreeId};

/// Receives what a walk meets.
pub(crate) trait Visitor {
    /// A node is about to be read; `false` leaves it and everything below out.
    fn node(&mut self, _pointer: &NodePointer, _place: &Place) -> bool {
        true
    }

    /// A node, or part of it, is damaged; the walk goes on behind it.
    fn damaged(&mut self, _code: Code, _block: BlockNo, _message: String) {}

    /// A node of a head or a snapshot cannot be read; the walk goes on behind it.
    fn lost(&mut self, _node: LostNode, _message: String) {}

    /// An item of the tree as the log leaves it, in key order.
    fn item(&mut self, key: Key, value: &[u8], source: Source);

    /// A key that a leaf holds, whatever the log says of it.
    fn stored_key(&mut self, _key: Key) {}
}

/// Where a node hangs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// No key below it is in the node.
    pub(crate) low: Key,
    /// Exclusive; `None` is the end of all keys.
    pub(crate) high: Option<Key>,
    /// The key of the slot that leads to it; of a root the smallest of all.
    pub(crate) slot: Key,
    /// Birth of the node above; `None`: it is a root.
    pub(crate) above: Option<Era>,
}

/// Where an item comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A leaf of this birth.
    Leaf(Era),
    Log,
}

/// Nodes of heads and snapshots that a walk leaves out, with all below them, because they could not be read.
pub(crate) type GivenUp = BTreeSet<BlockNo>;

/// The trees of one volume.
#[derive(Clone, Copy)]
pub(crate) struct Trees<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    /// These are not read again: all walks have to show the same items.
    given_up: &'a GivenUp,
}

/// One walk under way.
struct Walk<'a, 'v> {
    trees: Trees<'a>,
    tree: TreeId,
    /// Items below and beyond are left out.
    range: (Key, Key),
    overlay: Peekable<overlay::Range<'a>>,
    visitor: &'v mut dyn Visitor,
}

/// What a node's place in the tree says about it.
#[derive(Clone, Copy)]
struct Bounds {
    low: Key,
    /// Exclusive; `None` is the end of all keys.
    high: Option<Key>,
    generation: Generation,
    slot: Key,
    above: Option<Era>,
}

impl<'a> Trees<'a> {
    pub(crate) fn new(
        device: &'a dyn Device,
        superblock: &'a Superblock,
        given_up: &'a GivenUp,
    ) -> Trees<'a> {
        Trees { device, superblock, given_up }
    }

    /// Walks the tree whose root is `root`, with `overlay` laid over it.
    pub(crate) fn walk(
        &self,
        tree: TreeId,
        root: &NodePointer,
        overlay: &'a Overlay,
        visitor: &mut dyn Visitor,
    ) {
        self.walk_range(tree, root, overlay, (Key::MIN, Key::MAX), visitor);
    }

    /// The same for the keys from `range.0` to `range.1`, both included.
    pub(crate) fn walk_range(
        &self,
        tree: TreeId,
        root: &NodePointer,
        overlay: &'a Overlay,
        range: (Key, Key),
        visitor: &mut dyn Visitor,
    ) {
        let overlay = overlay.range(range.0..=range.1).peekable();
        let mut walk = Walk { trees: *self, tree, range, overlay, visitor };
        let generation = self.superblock.generation;
        let bounds = Bounds { low: Key::MIN, high: None, generation, slot: Key::MIN, above: None };
        walk.descend(root, bounds);
        walk.overlay_until(None);
    }

    /// The items of a range of a tree.
    pub(crate) fn items(
        &self,
        tree: TreeId,
        root: &NodePointer,
        overlay: &'a Overlay,
        range: (Key, Key),
    ) -> Vec<(Key, Vec<u8>)> {
        struct Collect(Vec<(Key, Vec<u8>)>);
        impl Visitor for Collect {
            fn item(&mut self, key: Key, value: &[u8], _source: Source) {
                self.0.push((key, value.to_vec()));
            }
        }
        let mut collect = Collect(Vec::new());
        self.walk_range(tree, root, overlay, range, &mut collect);
        collect.0
    }

    /// A node that a pointer of the tree leads to. Errors: what is wrong with it.
    pub(crate) fn read(&self, tree: TreeId, pointer: &NodePointer) -> Result<Buffer, String> {
        let mut bytes = Buffer::zeroed(NODE_BLOCKS as usize);
        self.device.read(pointer.block, &mut bytes).map_err(|error| error.to_string())?;
        let verified = node::verify(&bytes, pointer, tree, self.superblock.volume_id());
        verified.map(|()| bytes).map_err(|error| error.to_string())
    }

    /// Whether a node may lie where the pointer leads.
    pub(crate) fn holds(&self, pointer: &NodePointer) -> bool {
        self.superblock.layout.holds_node(pointer.block)
    }

    /// Whether walks leave the node out.
    pub(crate) fn is_given_up(&self, tree: TreeId, pointer: &NodePointer) -> bool {
        tree.is_filesystem() && self.given_up.contains(&pointer.block)
    }
}

impl Walk<'_, '_> {
    fn descend(&mut self, pointer: &NodePointer, bounds: Bounds) {
        let superblock = self.trees.superblock;
        if !superblock.layout.holds_node(pointer.block) {
            let message = format!("a pointer of level {} leads outside the groups", pointer.level);
            self.visitor.damaged(Code::NodePlace, pointer.block, message);
            return;
        }
        if pointer.generation > bounds.generation {
            let message =
                format!("generation {}, but {} points to it", pointer.generation, bounds.generation);
            self.visitor.damaged(Code::NodeNewer, pointer.block, message);
        }
        let place = Place { low: bounds.low, high: bounds.high, slot: bounds.slot, above: bounds.above };
        if !self.visitor.node(pointer, &place) || self.trees.is_given_up(self.tree, pointer) {
            return;
        }
        let bytes = match self.trees.read(self.tree, pointer) {
            Ok(bytes) => bytes,
            Err(message) => return self.unreadable(pointer, bounds, message),
        };
        if pointer.level == 0 {
            self.leaf(&bytes, pointer, bounds);
        } else {
            self.children(&bytes, pointer, bounds);
        }
    }

    fn unreadable(&mut self, pointer: &NodePointer, bounds: Bounds, message: String) {
        let (block, level) = (pointer.block, pointer.level);
        if self.tree.is_filesystem() {
            let node = LostNode { block, level, low: bounds.low, high: bounds.high };
            return self.visitor.lost(node, message);
        }
        self.visitor.damaged(Code::NodeUnreadable, block, message);
    }

    fn children(&mut self, bytes: &[u8], pointer: &NodePointer, bounds: Bounds) {
        let count = usize::from(node::head(bytes).count.get());
        for index in 0..count {
            let key = node::slot_key(bytes, index);
            // The first slot stands for everything from the parent's bound on, whatever its key.
            let low = if index == 0 { bounds.low } else { key };
            let next = (index + 1 < count).then(|| node::slot_key(bytes, index + 1));
            let high = next.or(bounds.high);
            let outside = low < bounds.low || bounds.high.is_some_and(|end| key >= end);
            if outside {
                let message = format!("slot {index} has a key outside the node's range");
                self.visitor.damaged(Code::NodeBounds, pointer.block, message);
                continue;
            }
            let beyond = low > self.range.1 || high.is_some_and(|high| high <= self.range.0);
            if beyond {
                continue;
            }
            match NodePointer::decode(node::slot_value(bytes, index)) {
                Ok(child) => {
                    let (generation, above) = (pointer.generation, Some(pointer.birth));
                    self.descend(&child, Bounds { low, high, generation, slot: key, above });
                }
                Err(error) => {
                    self.visitor.damaged(Code::NodeUnreadable, pointer.block, error.to_string());
                }
            }
        }
    }

    fn leaf(&mut self, bytes: &[u8], pointer: &NodePointer, bounds: Bounds) {
        let block = pointer.block;
        let is_only_one = bounds.low == Key::MIN && bounds.high.is_none();
        if node::head(bytes).count.get() == 0 && !is_only_one {
            return self.unreadable(pointer, bounds, "it holds nothing, but is not the only one".into());
        }
        for index in 0..usize::from(node::head(bytes).count.get()) {
            let key = node::slot_key(bytes, index);
            if key < bounds.low || bounds.high.is_some_and(|high| key >= high) {
                let message = format!("item {index} lies outside the node's range");
                self.visitor.damaged(Code::NodeBounds, block, message);
                continue;
            }
            if key < self.range.0 || key > self.range.1 {
                continue;
            }
            self.visitor.stored_key(key);
            if !self.overlay_until(Some(key)) {
                self.visitor.item(key, node::slot_value(bytes, index), Source::Leaf(pointer.birth));
            }
        }
    }

    /// Hands out the overlay's items up to `key`; tells whether the overlay has a word on `key` itself.
    fn overlay_until(&mut self, key: Option<Key>) -> bool {
        let mut spoken = false;
        while let Some((over, value)) = self.overlay.next_if(|(over, _)| key.is_none_or(|key| **over <= key))
        {
            spoken |= Some(*over) == key;
            if let Some(value) = value {
                self.visitor.item(*over, value, Source::Log);
            }
        }
        spoken
    }
}
