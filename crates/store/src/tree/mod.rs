//! The copy-on-write B+tree in memory.
//!
//! A node is *current* when it was made or copied since the last freeze: only current nodes are edited. Everything
//! else is shared with the frozen tree of a checkpoint or identical to a node on the device; editing it makes a
//! current copy and notes the old node as *superseded*. A freeze is therefore the cloning of one `Arc`. So is a
//! snapshot: it makes all nodes of the tree immutable, and the ones that it shares from here on are not superseded by
//! the tree that goes on, because that does not own them any more (R25).
//!
//! Children of interior nodes are either *clean* (only a pointer; the node is in the cache or on the device) or held by
//! an `Arc`. Reading and editing never touch the device: a missing node is reported as [`Missing`] before anything is
//! changed, the caller loads it without any lock and tries again.
//!
//! Leaves are merged only when a neighbour is in memory; an empty node is always removed. Underfull leaves cost space,
//! never correctness.
//!
//! Only nodes that hold no keys outside of their [`Place`] are edited: on a damaged volume an edit could bring keys out
//! of order, or back.

pub(crate) mod cache;
pub(crate) mod page;

mod edit;

use page::Page;
use std::sync::{Arc, OnceLock};
use syncline_format::node::{NODE_SPACE_BYTES, NodePointer};
use syncline_format::{BlockNo, Era, Key, TreeId};

pub(crate) use edit::{Editor, nodes_bound};

/// A node in memory.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) page: Page,
    /// The freeze number during which this copy was made; 0 for nodes read from the device.
    pub(crate) freeze: u64,
    /// The era in which it was.
    pub(crate) birth: Era,
    /// Where the node lies on the device, once a checkpoint has written it.
    pub(crate) home: OnceLock<NodePointer>,
    /// Interior nodes: children that are in memory because they (or theirs) changed. Parallel to the slots.
    pub(crate) children: Vec<Option<Arc<Node>>>,
}

/// A node that has left the tree and whose blocks are freed at the next freeze.
pub(crate) enum Superseded {
    /// The running checkpoint still writes it and will give it a home.
    Unwritten(Arc<Node>),
    /// It lies here. Its content is not kept: under random changes every leaf would be in memory twice.
    At(BlockNo),
}

impl Superseded {
    fn new(node: Arc<Node>) -> Superseded {
        node.home.get().map(|home| home.block).map_or(Superseded::Unwritten(node), Superseded::At)
    }

    pub(crate) fn home(&self) -> Option<BlockNo> {
        match self {
            Superseded::Unwritten(node) => node.home.get().map(|home| home.block),
            Superseded::At(block) => Some(*block),
        }
    }

    /// Lets go of the content if the node has been written meanwhile.
    pub(crate) fn settle(&mut self) {
        if let Some(block) = self.home() {
            *self = Superseded::At(block);
        }
    }
}

/// A node that has to be loaded before the operation can go on, and the tree that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Missing {
    pub(crate) tree: TreeId,
    pub(crate) pointer: NodePointer,
}

/// Why an edit cannot begin.
#[derive(Debug)]
pub(crate) enum Obstacle {
    Missing(Missing),
    /// This node holds keys of another place.
    Misplaced(BlockNo),
}

impl From<Missing> for Obstacle {
    fn from(missing: Missing) -> Obstacle {
        Obstacle::Missing(missing)
    }
}

/// Finds clean nodes that are in memory.
pub(crate) trait Resident {
    fn resident(&self, pointer: &NodePointer) -> Option<Arc<Node>>;
}

/// Root of a tree.
#[derive(Clone)]
pub(crate) enum Root {
    Clean(NodePointer),
    Held(Arc<Node>),
}

/// A tree of the volume.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    pub(crate) root: Root,
    /// Number of the freeze or snapshot that its newest nodes are behind; they may be edited in place.
    pub(crate) freeze: u64,
    /// The era of its parent: what was born behind it the tree owns. `None`: it owns everything.
    pub(crate) low: Option<Era>,
    /// A node with so many items is full, whatever its bytes: only in tests.
    pub(crate) items_max: usize,
}

impl Node {
    pub(crate) fn clean(page: Page, home: NodePointer) -> Node {
        Node { page, freeze: 0, birth: home.birth, home: OnceLock::from(home), children: Vec::new() }
    }

    /// A node that is current.
    pub(crate) fn made(page: Page, editor: &Editor<'_>, children: Vec<Option<Arc<Node>>>) -> Node {
        Node { page, freeze: editor.freeze, birth: editor.birth, home: OnceLock::new(), children }
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.page.level() == 0
    }

    /// Where it lies; 0 if that is not decided.
    pub(crate) fn block(&self) -> BlockNo {
        self.home.get().map_or(BlockNo(0), |home| home.block)
    }

    /// Pointer stored in slot `index` of an interior node; meaningless while the child is held.
    pub(crate) fn pointer(&self, index: usize) -> NodePointer {
        NodePointer::decode(self.page.value(index)).expect("interior values are verified pointers")
    }

    /// Where the keys of the child at `index` end, if the node says so.
    pub(crate) fn end_of(&self, index: usize) -> Option<Key> {
        (index + 1 < self.page.count()).then(|| self.page.key(index + 1))
    }

    /// The child at `index`, if it is in memory.
    pub(crate) fn child(&self, index: usize, resident: &dyn Resident) -> Result<Arc<Node>, Missing> {
        if let Some(Some(child)) = self.children.get(index) {
            return Ok(Arc::clone(child));
        }
        let pointer = self.pointer(index);
        resident.resident(&pointer).ok_or(Missing { tree: self.page.tree(), pointer })
    }
}

/// The keys that a node may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) low: Option<Key>,
    /// From here on the next node holds all.
    pub(crate) end: Option<Key>,
}

impl Place {
    /// The place of the child at `index` of the node in this place, also within it. The first slot stands for
    /// everything from the node's place on, whatever its key.
    fn child(self, node: &Node, index: usize) -> Place {
        let low = if index > 0 { self.low.max(Some(node.page.key(index))) } else { self.low };
        let end = match (self.end, node.end_of(index)) {
            (Some(own), Some(end)) => Some(own.min(end)),
            (own, end) => end.or(own),
        };
        Place { low, end }
    }

    /// Whether the node holds only keys of this place, and some unless it is the only one. On a damaged volume it may
    /// be another one's, and what it lacks may exist.
    fn holds(self, node: &Node) -> bool {
        let page = &node.page;
        let Some(last) = page.count().checked_sub(1) else { return self == Place::default() };
        // An interior node's first slot begins where its place does, whatever its key, and is not empty.
        let above_low = |low| match node.is_leaf() {
            true => page.key(0) >= low,
            false => last == 0 || page.key(1) > low,
        };
        self.low.is_none_or(above_low) && self.end.is_none_or(|end| page.key(last) < end)
    }

    fn check(self, node: &Node) -> Result<(), Obstacle> {
        if self.holds(node) { Ok(()) } else { Err(Obstacle::Misplaced(node.block())) }
    }
}

/// What a change finds that goes to a leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    /// The key before which all others have the same way; `None`: there is no end.
    pub(crate) end: Option<Key>,
    /// Items of the leaf, and its bytes that are not free at once.
    count: usize,
    occupied: usize,
    /// Items that fill it.
    items_max: usize,
}

impl Reached {
    fn leaf(leaf: &Node, end: Option<Key>, items_max: usize) -> Reached {
        Reached { end, count: leaf.page.count(), occupied: leaf.page.occupied_bytes(), items_max }
    }

    /// Whether a batch may empty the leaf, or split it and empty a half.
    pub(crate) fn may_be_emptied(&self, change: Change) -> bool {
        self.count <= change.deletes
            || self.occupied + change.bytes > NODE_SPACE_BYTES
            || self.count + change.puts > self.items_max
    }
}

/// How large a batch is that may empty leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub(crate) puts: usize,
    pub(crate) deletes: usize,
    pub(crate) bytes: usize,
}

/// A node found by a lookup, and its place.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) leaf: Arc<Node>,
    pub(crate) place: Place,
}

impl Found {
    pub(crate) fn is_in_place(&self) -> bool {
        self.place.holds(&self.leaf)
    }

    /// Whether it is the node that covers the key.
    pub(crate) fn covers(&self, key: Key) -> bool {
        self.place.low.is_none_or(|low| low <= key) && self.place.end.is_none_or(|end| key < end)
    }

    /// Where the child lies that covers the key, if it was ever written. Only of nodes above leaves.
    pub(crate) fn home_below(&self, key: Key) -> Option<NodePointer> {
        let index = self.leaf.page.child_index(key);
        match self.leaf.children.get(index) {
            Some(Some(child)) => child.home.get().copied(),
            _ => Some(self.leaf.pointer(index)),
        }
    }

    /// The place of the child at `index`.
    pub(crate) fn place_of(&self, index: usize) -> Place {
        self.place.child(&self.leaf, index)
    }

    pub(crate) fn child(&self, index: usize, resident: &dyn Resident) -> Result<Found, Missing> {
        Ok(Found { leaf: self.leaf.child(index, resident)?, place: self.place.child(&self.leaf, index) })
    }
}

impl Tree {
    pub(crate) fn new(id: TreeId, root: Root, freeze: u64) -> Tree {
        Tree { id, root, freeze, low: None, items_max: usize::MAX }
    }

    pub(crate) fn root(&self, resident: &dyn Resident) -> Result<Arc<Node>, Missing> {
        match &self.root {
            Root::Held(node) => Ok(Arc::clone(node)),
            Root::Clean(pointer) => {
                resident.resident(pointer).ok_or(Missing { tree: self.id, pointer: *pointer })
            }
        }
    }

    /// Where the root lies; `None` if it was never written.
    pub(crate) fn clean_root(&self) -> Option<NodePointer> {
        match &self.root {
            Root::Clean(pointer) => Some(*pointer),
            Root::Held(node) => node.home.get().copied(),
        }
    }

    /// The root, in its place.
    pub(crate) fn root_found(&self, resident: &dyn Resident) -> Result<Found, Missing> {
        Ok(Found { leaf: self.root(resident)?, place: Place::default() })
    }

    /// Where the node lies that covers `key` at a level; `None` if there is none, or it was never written.
    pub(crate) fn block_at(
        &self,
        level: u16,
        key: Key,
        resident: &dyn Resident,
    ) -> Result<Option<BlockNo>, Missing> {
        if self.root_level() <= level {
            return Ok(self.clean_root().filter(|root| root.level == level).map(|root| root.block));
        }
        let above = self.find_at(level + 1, key, resident)?;
        Ok(above.and_then(|above| above.home_below(key)).map(|home| home.block))
    }

    /// The node that covers `key` at a level; `None` if there is none.
    pub(crate) fn find_at(
        &self,
        level: u16,
        key: Key,
        resident: &dyn Resident,
    ) -> Result<Option<Found>, Missing> {
        if self.root_level() < level {
            return Ok(None);
        }
        let mut found = self.root_found(resident)?;
        while found.leaf.page.level() > level {
            let child = found.child(found.leaf.page.child_index(key), resident)?;
            // Levels fall on every way; a damaged volume's may not.
            if child.leaf.page.level() >= found.leaf.page.level() {
                return Ok(None);
            }
            found = child;
        }
        Ok(Some(found).filter(|found| found.leaf.page.level() == level))
    }

    /// The leaf that covers `key`.
    pub(crate) fn find(&self, key: Key, resident: &dyn Resident) -> Result<Found, Missing> {
        let mut place = Place::default();
        let root;
        let mut held = match &self.root {
            Root::Held(node) => node,
            Root::Clean(_) => {
                root = self.root(resident)?;
                &root
            }
        };
        // What is held by its parent needs no counting on the way.
        let mut found = loop {
            if held.is_leaf() {
                return Ok(Found { leaf: Arc::clone(held), place });
            }
            let index = held.page.child_index(key);
            place = place.child(held, index);
            match held.children.get(index) {
                Some(Some(child)) => held = child,
                _ => break Found { leaf: held.child(index, resident)?, place },
            }
        };
        while !found.leaf.is_leaf() {
            found = found.child(found.leaf.page.child_index(key), resident)?;
        }
        Ok(found)
    }

    /// The leaf with the last item at or before `key`, and where it is there. A leaf that is not in its place comes
    /// back as it is.
    pub(crate) fn last_at_or_before(
        &self,
        key: Key,
        resident: &dyn Resident,
    ) -> Result<Option<(Found, usize)>, Missing> {
        let root = Found { leaf: self.root(resident)?, place: Place::default() };
        last_at_or_before(root, key, resident)
    }

    /// Level of the root: 0 for a lone leaf.
    pub(crate) fn root_level(&self) -> u16 {
        match &self.root {
            Root::Clean(pointer) => pointer.level,
            Root::Held(node) => node.page.level(),
        }
    }
}

/// Looks in the covering child first; a leaf may hold only greater keys, then the sibling before it has the item (no
/// leaf but a lone root is empty; two children a node also bound the search in a hostile tree).
fn last_at_or_before(
    found: Found,
    key: Key,
    resident: &dyn Resident,
) -> Result<Option<(Found, usize)>, Missing> {
    let page = &found.leaf.page;
    if found.leaf.is_leaf() {
        return Ok(match page.search(key) {
            Ok(index) => Some((found, index)),
            Err(0) if found.is_in_place() => None,
            Err(index) => Some((found, index.saturating_sub(1))),
        });
    }
    for index in (0..=page.child_index(key)).rev().take(2) {
        if let Some(found) = last_at_or_before(found.child(index, resident)?, key, resident)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
