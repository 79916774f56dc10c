//! A tree that goes away, held against the one that descends from it.

use crate::tree::{Found, Missing, Resident, Root, Tree};
use crate::trees::Trees;
use crate::{Pressure, StoreError};
use std::cell::RefCell;
use std::sync::Arc;
use syncline_format::node::NodePointer;
use syncline_format::{BlockNo, Era, Key, TreeId};

/// What two trees are held against each other by.
pub(super) struct Pair<'a> {
    pub(super) dying: &'a Tree,
    /// Everything up to this era its parent has.
    pub(super) low: Option<Era>,
    pub(super) child: Option<&'a Tree>,
    pub(super) resident: &'a dyn Resident,
    /// The child's leaf that was looked at last, and the node above leaves: the walks go on in the order of keys.
    pub(super) leaf: RefCell<Option<Found>>,
    above: RefCell<Option<Found>>,
}

impl Trees {
    /// Whether the tree that descends from this one has the same root, on the device or not: it has all of it then,
    /// and nothing need be read or written to know that.
    pub(super) fn is_as_its_child(&self, tree: TreeId) -> bool {
        let child = self.branches.as_ref().and_then(|branches| branches.children(tree).next());
        let trees = self.tree(tree).ok().zip(child.and_then(|child| self.tree(child).ok()));
        trees.is_some_and(|(tree, child)| match (&tree.root, &child.root) {
            (Root::Held(node), Root::Held(other)) => Arc::ptr_eq(node, other),
            (Root::Clean(home), Root::Clean(other)) => home == other,
            _ => false,
        })
    }

    /// A tree that goes away beside the one that descends from it. Errors: among others `Pressure` if it is not wholly
    /// on the device, and they differ: the one that descends from it has changed since it was looked at.
    pub(super) fn pair<'a>(
        &'a self,
        tree: TreeId,
        resident: &'a dyn Resident,
    ) -> Result<Pair<'a>, StoreError> {
        let branches = self.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
        if matches!(self.tree(tree)?.root, Root::Held(_)) && !self.is_as_its_child(tree) {
            return Err(StoreError::Pressure(Pressure::Nodes));
        }
        let dying = self.tree(tree)?;
        let child = branches.children(tree).next().map(|child| self.tree(child)).transpose()?;
        Ok(Pair::new(dying, child, resident))
    }
}

impl<'a> Pair<'a> {
    pub(super) fn new(dying: &'a Tree, child: Option<&'a Tree>, resident: &'a dyn Resident) -> Pair<'a> {
        Pair { dying, low: dying.low, child, resident, leaf: RefCell::default(), above: RefCell::default() }
    }

    /// Whether nobody but the dying tree may have a node: it was born behind its parent, and the child has another one
    /// there. `place` is where its keys begin.
    pub(super) fn is_alone(
        &self,
        block: BlockNo,
        level: u16,
        birth: Era,
        place: Key,
    ) -> Result<bool, Missing> {
        if self.low.is_some_and(|low| birth <= low) {
            return Ok(false);
        }
        let Some(child) = self.child else { return Ok(true) };
        if level > 0 {
            return Ok(child.block_at(level, place, self.resident)? != Some(block));
        }
        Ok(self.leaf_of_child(place)?.0.map(|leaf| leaf.block) != Some(block))
    }

    /// Where the child's leaf lies that covers a key, `None` if there is none, or it was never written; and where the
    /// next one begins.
    pub(super) fn leaf_of_child(&self, key: Key) -> Result<(Option<NodePointer>, Option<Key>), Missing> {
        let Some(child) = self.child else { return Ok((None, None)) };
        if child.root_level() == 0 {
            return Ok((child.clean_root(), None));
        }
        let mut above = self.above.borrow_mut();
        if !above.as_ref().is_some_and(|above| above.covers(key)) {
            *above = child.find_at(1, key, self.resident)?;
        }
        let Some(above) = &*above else { return Ok((None, None)) };
        Ok((above.home_below(key), above.place_of(above.leaf.page.child_index(key)).end))
    }

    /// The dying tree's root, if it lies on the device; if it does not, the child has the same.
    pub(super) fn root(&self) -> Option<NodePointer> {
        self.dying.clean_root()
    }
}
