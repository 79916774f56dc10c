//! Walks trees in key order, checks each node against its parent, and lays the log's overlay over the items.
//!
//! A walk always ends: levels fall by one from parent to child, and a visitor that refuses nodes it has seen bounds
//! the number of nodes by the size of the device.

use crate::Code;
use crate::lost::LostLeaf;
use crate::replay::Overlay;
use std::collections::{BTreeSet, btree_map};
use std::iter::Peekable;
use syncline_device::{Buffer, Device};
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, Generation, Key, Kind, NODE_BLOCKS, TreeId};

/// Receives what a walk meets.
pub(crate) trait Visitor {
    /// A node is about to be read; `false` leaves it and everything below out.
    fn node(&mut self, _pointer: &NodePointer) -> bool {
        true
    }

    /// A node, or part of it, is damaged; the walk goes on behind it.
    fn damaged(&mut self, _code: Code, _block: BlockNo, _message: String) {}

    /// A leaf of the main tree that is not its root cannot be read; the walk goes on behind it.
    fn lost(&mut self, _leaf: LostLeaf, _message: String) {}

    /// An item of the tree as the log leaves it, in key order.
    fn item(&mut self, key: Key, value: &[u8]);

    /// A key that a leaf holds, whatever the log says of it.
    fn stored_key(&mut self, _key: Key) {}
}

/// Leaves that a walk leaves out, because they could not be read.
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
    root: BlockNo,
    /// Items below and beyond are left out.
    range: (Key, Key),
    overlay: Peekable<btree_map::Range<'a, Key, Option<Vec<u8>>>>,
    visitor: &'v mut dyn Visitor,
}

/// What a node's place in the tree says about it.
#[derive(Clone, Copy)]
struct Bounds {
    low: Key,
    /// Exclusive; `None` is the end of all keys.
    high: Option<Key>,
    generation: Generation,
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
        let mut walk = Walk { trees: *self, tree, root: root.block, range, overlay, visitor };
        let bounds = Bounds { low: Key::MIN, high: None, generation: self.superblock.generation };
        walk.descend(root, bounds);
        walk.overlay_until(None);
    }

    /// The items of a range.
    pub(crate) fn items(
        &self,
        root: &NodePointer,
        overlay: &'a Overlay,
        range: (Key, Key),
    ) -> Vec<(Key, Vec<u8>)> {
        struct Collect(Vec<(Key, Vec<u8>)>);
        impl Visitor for Collect {
            fn item(&mut self, key: Key, value: &[u8]) {
                self.0.push((key, value.to_vec()));
            }
        }
        let mut collect = Collect(Vec::new());
        self.walk_range(TreeId::MAIN, root, overlay, range, &mut collect);
        collect.0
    }

    /// One item of the main tree.
    pub(crate) fn get(&self, root: &NodePointer, overlay: &'a Overlay, key: Key) -> Option<Vec<u8>> {
        self.items(root, overlay, (key, key)).pop().map(|(_, value)| value)
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
        if !self.visitor.node(pointer) || self.is_given_up(pointer) {
            return;
        }
        let mut bytes = Buffer::zeroed(NODE_BLOCKS as usize);
        let read = self.trees.device.read(pointer.block, &mut bytes).map_err(|error| error.to_string());
        let valid = read.and_then(|()| {
            let verified = node::verify(&bytes, pointer, self.tree, superblock.volume_id());
            verified.map_err(|error| error.to_string())
        });
        if let Err(message) = valid {
            return self.unreadable(pointer, bounds, message);
        }
        if pointer.level == 0 {
            self.leaf(&bytes, pointer, bounds);
        } else {
            self.children(&bytes, pointer, bounds);
        }
    }

    fn is_given_up(&self, pointer: &NodePointer) -> bool {
        self.tree == TreeId::MAIN && pointer.level == 0 && self.trees.given_up.contains(&pointer.block)
    }

    fn unreadable(&mut self, pointer: &NodePointer, bounds: Bounds, message: String) {
        let block = pointer.block;
        if self.tree == TreeId::MAIN && pointer.level == 0 && block != self.root {
            let leaf = LostLeaf { block, low: bounds.low, high: bounds.high };
            return self.visitor.lost(leaf, message);
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
                Ok(child) => self.descend(&child, Bounds { low, high, generation: pointer.generation }),
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
                self.visitor.item(key, node::slot_value(bytes, index));
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
                self.visitor.item(*over, value);
            }
        }
        spoken
    }
}

/// Reads the root tree: the pointer of the main tree, and what else is there.
pub(crate) struct RootTree {
    pub(crate) main: Option<NodePointer>,
    /// Code, block and message of what is wrong with the root tree.
    pub(crate) damage: Vec<(Code, BlockNo, String)>,
    /// Its nodes.
    pub(crate) nodes: Vec<NodePointer>,
    root: BlockNo,
}

/// Items and nodes of a root tree beyond which it is nonsense: it has one item per tree.
const ROOT_TREE_NODES_MAX: usize = 1024;

impl RootTree {
    pub(crate) fn read(trees: &Trees<'_>, root: &NodePointer) -> RootTree {
        let mut found = RootTree { main: None, damage: Vec::new(), nodes: Vec::new(), root: root.block };
        let overlay = Overlay::new();
        Trees { ..*trees }.walk(TreeId::ROOT, root, &overlay, &mut found);
        if found.main.is_none() && found.damage.is_empty() {
            found.damage.push((Code::MainTreeMissing, root.block, "no pointer to tree 1".into()));
        }
        found
    }
}

impl Visitor for RootTree {
    fn node(&mut self, pointer: &NodePointer) -> bool {
        if self.nodes.len() >= ROOT_TREE_NODES_MAX
            || self.nodes.iter().any(|node| node.block == pointer.block)
        {
            self.damaged(Code::NodeShared, pointer.block, "the root tree is no tree".into());
            return false;
        }
        self.nodes.push(*pointer);
        true
    }

    fn damaged(&mut self, code: Code, block: BlockNo, message: String) {
        self.damage.push((code, block, message));
    }

    fn item(&mut self, key: Key, value: &[u8]) {
        let is_main = key == Key::tree(TreeId::MAIN);
        match NodePointer::decode(value) {
            Ok(pointer) if is_main => self.main = Some(pointer),
            Err(error) if is_main => self.damaged(Code::MainTreeMissing, self.root, error.to_string()),
            _ => {
                let what = if key.kind == Kind::Tree { "a tree" } else { "an item" };
                let message = format!("{what} with object {} that this version does not know", key.object);
                self.damaged(Code::RootTreeItem, self.root, message);
            }
        }
    }
}
