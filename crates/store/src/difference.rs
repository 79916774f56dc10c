//! What differs between two trees. What they share is not read: a walk goes through both side by side, in the order of
//! keys, and passes by the nodes that both have. So it reads the nodes on the ways to what differs, and no others.

use crate::limits::LEAVES_AHEAD;
use crate::store::{check_place, misplaced};
use crate::tree::cache::{NodeCache, Pinned};
use crate::tree::{Found, Missing, Node, Place, Root, Tree};
use crate::{Store, StoreError};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_format::node::NodePointer;
use syncline_format::{Key, TreeId};

/// Told of an item that differs: its key, and its value in the older and in the newer tree.
pub type Visitor<'a> = dyn FnMut(Key, Option<&[u8]>, Option<&[u8]>) -> ControlFlow<()> + 'a;

/// A node as its parent knows it.
pub(crate) struct Known {
    home: Option<NodePointer>,
    held: Option<Arc<Node>>,
    level: u16,
    place: Place,
}

impl Known {
    pub(crate) fn of_root(tree: &Tree) -> Known {
        match &tree.root {
            Root::Clean(pointer) => Known::clean(*pointer, Place::default()),
            Root::Held(node) => Known::held(node, Place::default()),
        }
    }

    fn clean(pointer: NodePointer, place: Place) -> Known {
        Known { home: Some(pointer), held: None, level: pointer.level, place }
    }

    fn held(node: &Arc<Node>, place: Place) -> Known {
        let home = node.home.get().copied();
        Known { home, held: Some(Arc::clone(node)), level: node.page.level(), place }
    }

    fn child(of: &Found, index: usize) -> Known {
        let place = of.place_of(index);
        match of.leaf.children.get(index) {
            Some(Some(child)) => Known::held(child, place),
            _ => Known::clean(of.leaf.pointer(index), place),
        }
    }

    /// Whether all that it holds lies behind a key.
    fn begins_behind(&self, key: Key) -> bool {
        self.place.low.is_some_and(|low| low > key)
    }

    pub(crate) fn is_same(&self, other: &Known) -> bool {
        let held = self.held.as_ref().zip(other.held.as_ref());
        self.home.is_some() && self.home == other.home
            || held.is_some_and(|(own, other)| Arc::ptr_eq(own, other))
    }
}

/// Where a walk stands.
enum At<'a> {
    /// Before a node that may be entered or passed by.
    Node(&'a Known),
    Item(Key, &'a [u8]),
    End,
}

struct Walk {
    tree: TreeId,
    /// The node before which it stands.
    next: Option<Known>,
    /// The nodes that it is in, from the root down, each with the slot where it stands.
    within: Vec<(Found, usize)>,
}

impl Walk {
    fn new(tree: &Tree) -> Walk {
        Walk { tree: tree.id, next: Some(Known::of_root(tree)), within: Vec::new() }
    }

    fn at(&self) -> At<'_> {
        match (&self.next, self.within.last()) {
            (Some(known), _) => At::Node(known),
            (None, Some((found, index))) => {
                At::Item(found.leaf.page.key(*index), found.leaf.page.value(*index))
            }
            (None, None) => At::End,
        }
    }

    fn item(&self) -> Option<(Key, &[u8])> {
        match self.at() {
            At::Item(key, value) => Some((key, value)),
            At::Node(_) | At::End => None,
        }
    }

    /// The leaves from where it stands on, as far as one node tells where they lie.
    fn leaves(&self) -> impl Iterator<Item = NodePointer> {
        let above = self.within.iter().rev().find(|(found, _)| found.leaf.page.level() == 1);
        above.into_iter().flat_map(|(found, index)| {
            let is_clean = |index: &usize| !matches!(found.leaf.children.get(*index), Some(Some(_)));
            (*index..found.leaf.page.count()).filter(is_clean).map(|index| found.leaf.pointer(index))
        })
    }

    /// Whether the node before which it stands is a leaf that has to be read.
    fn waits_for_leaf(&self, cache: &NodeCache) -> bool {
        let known = self.next.as_ref().filter(|known| known.level == 0 && known.held.is_none());
        known.and_then(|known| known.home).is_some_and(|home| !cache.holds(&home))
    }

    /// Goes to the next slot, out of nodes that end.
    fn advance(&mut self) {
        self.next = None;
        while let Some((found, index)) = self.within.last_mut() {
            *index += 1;
            if *index < found.leaf.page.count() {
                self.stand();
                return;
            }
            self.within.pop();
        }
    }

    /// The slot where it stands is an item, or leads to a node.
    fn stand(&mut self) {
        let Some((found, index)) = self.within.last() else { return };
        self.next = (!found.leaf.is_leaf()).then(|| Known::child(found, *index));
    }

    /// Enters the node before which it stands.
    fn enter(&mut self, store: &Store) -> Result<(), StoreError> {
        let Some(known) = self.next.take() else { return Ok(()) };
        let leaf = match (known.held, known.home) {
            (Some(node), _) => node,
            (None, Some(pointer)) => store.node(self.tree, pointer)?,
            (None, None) => unreachable!("a node is held or has a home"),
        };
        let above = self.within.last().map(|(above, _)| above.leaf.page.level());
        if above.is_some_and(|above| leaf.page.level() >= above) {
            return Err(misplaced(leaf.block()));
        }
        let found = Found { leaf, place: known.place };
        check_place(&found)?;
        if found.leaf.page.count() == 0 {
            self.advance();
            return Ok(());
        }
        self.within.push((found, 0));
        self.stand();
        Ok(())
    }
}

impl Store {
    /// Visits the items that differ between two trees, ascending by key, with the value in the older and in the newer
    /// one, until the visitor breaks. Neither may change meanwhile: snapshots that have a reader, or trees of a store
    /// that is opened read-only.
    pub fn difference(
        &self,
        older: TreeId,
        newer: TreeId,
        visit: &mut Visitor<'_>,
    ) -> Result<(), StoreError> {
        let (mut old, mut new) = {
            let trees = self.shared.trees.read();
            (Walk::new(trees.tree(older)?), Walk::new(trees.tree(newer)?))
        };
        loop {
            // Whose item comes next.
            let (is_old, is_new) = match (old.at(), new.at()) {
                (At::End, At::End) => return Ok(()),
                (At::Node(one), At::Node(other)) => {
                    if one.is_same(other) {
                        old.advance();
                        new.advance();
                        continue;
                    }
                    // The higher one may have the other among its children; of two of a level, the one that begins
                    // first may end before the other.
                    let order = one.level.cmp(&other.level).then(other.place.low.cmp(&one.place.low));
                    self.read_ahead(&old, &new);
                    if order.is_ge() {
                        old.enter(self)?;
                    }
                    if order.is_le() {
                        new.enter(self)?;
                    }
                    continue;
                }
                (At::Item(key, _), At::Node(known)) if known.begins_behind(key) => (true, false),
                (At::Node(known), At::Item(key, _)) if known.begins_behind(key) => (false, true),
                (At::Node(_), _) => {
                    old.enter(self)?;
                    continue;
                }
                (_, At::Node(_)) => {
                    new.enter(self)?;
                    continue;
                }
                (At::Item(key, _), At::Item(other, _)) => (key <= other, key >= other),
                (old, _) => (matches!(old, At::Item(..)), !matches!(old, At::Item(..))),
            };
            let one = old.item().filter(|_| is_old);
            let other = new.item().filter(|_| is_new);
            let differs = one.map(|(_, value)| value) != other.map(|(_, value)| value);
            if let Some((key, _)) = one.or(other)
                && differs
                && visit(key, one.map(|(_, value)| value), other.map(|(_, value)| value)).is_break()
            {
                return Ok(());
            }
            if is_old {
                old.advance();
            }
            if is_new {
                new.advance();
            }
        }
    }

    /// Reads leaves together that the walks will come to, but for those that they pass by.
    fn read_ahead(&self, old: &Walk, new: &Walk) {
        let cache = &self.shared.cache;
        if !old.waits_for_leaf(cache) && !new.waits_for_leaf(cache) {
            return;
        }
        let mut wanted = Vec::with_capacity(2 * LEAVES_AHEAD);
        for (own, other) in [(old, new), (new, old)] {
            let shared: HashSet<NodePointer> = other.leaves().collect();
            let leaves = own.leaves().filter(|pointer| !shared.contains(pointer) && !cache.holds(pointer));
            let missing = leaves.map(|pointer| Missing { tree: own.tree, pointer });
            wanted.extend(missing.take(LEAVES_AHEAD));
        }
        cache.load_ahead(&*self.shared.device, &wanted);
    }

    /// A node, from memory or from the device.
    fn node(&self, tree: TreeId, pointer: NodePointer) -> Result<Arc<Node>, StoreError> {
        use crate::tree::Resident;
        let shared = &self.shared;
        if let Some(node) = shared.cache.resident(&pointer) {
            return Ok(node);
        }
        let pinned = Pinned::new(&shared.cache);
        let mut stale = None;
        loop {
            pinned.load(&*shared.device, &Missing { tree, pointer }, &mut stale)?;
            if let Some(node) = pinned.resident(&pointer) {
                return Ok(node);
            }
        }
    }
}
