//! What one tree owns of what it has.
//!
//! Its parent has all that was born up to the parent's era, so that is accounted there, and has to be there. What was
//! born behind it is the tree's own. While the parent goes away, what lies before its cursor has passed to the tree.

use crate::lost::Lost;
use crate::parent::Parent;
use crate::replay::Replay;
use crate::walk::Trees;
use syncline_format::tree_item::{Role, TreeState};
use syncline_format::{Era, Key, TreeId};

/// The rules of one tree.
pub(crate) struct Owner<'a> {
    /// `None`: all is its own, and nothing is said of births.
    births: Option<Births>,
    parent: Option<Parent<'a>>,
    /// What the parent has lost.
    parent_lost: Option<&'a Lost>,
}

#[derive(Debug, Clone, Copy)]
struct Births {
    /// The parent's era.
    low: Option<Era>,
    /// The era that the tree ended, or the volume's.
    most: Era,
    /// What lies before the key and was born behind the era has passed from the parent.
    passed: Option<(Key, Option<Era>)>,
    /// The tree itself goes away, and has given back what lies before the key.
    cursor: Option<Key>,
}

impl<'a> Owner<'a> {
    pub(crate) fn new(tree: TreeId, replay: &'a Replay, trees: Trees<'a>) -> Owner<'a> {
        let forest = &replay.forest;
        let mut owner = Owner { births: None, parent: None, parent_lost: None };
        if forest.state.is_none() || !forest.is_whole {
            return owner;
        }
        let low = |tree| forest.parent(tree).map(|(_, parent)| parent.era);
        let cursor = |state: TreeState| match state {
            TreeState::Deleting { cursor } => Some(cursor),
            TreeState::Live => None,
        };
        let item = forest.items.get(&tree);
        let mut births = Births { low: None, most: forest.era(), passed: None, cursor: None };
        if let Some(item) = item {
            births.most = if item.role == Role::Head { births.most } else { item.era };
            births.cursor = cursor(item.state);
        }
        if let Some((number, parent)) = forest.parent(tree) {
            births.low = Some(parent.era);
            births.passed = cursor(parent.state).map(|cursor| (cursor, low(number)));
            let branch = forest.branches.get(&number);
            owner.parent_lost = replay.lost.get(&number);
            owner.parent = branch.map(|branch| Parent::new(trees, number, branch));
        }
        owner.births = Some(births);
        owner
    }

    /// The last era in which something of the tree can have been born.
    pub(crate) fn most(&self) -> Option<Era> {
        self.births.map(|births| births.most)
    }

    /// The parent, if what was born then has to be there as well.
    pub(crate) fn parent_with(&mut self, birth: Era) -> Option<&mut Parent<'a>> {
        let is_old = self.births.is_some_and(|births| !is_behind(births.low, birth));
        self.parent.as_mut().filter(|_| is_old)
    }

    /// The same for an extent. One that has passed from the parent may have been written in place by a session that
    /// had seen the parent's end: of such a session a crash leaves the log, and the checkpoint that still has the
    /// parent.
    pub(crate) fn parent_with_extent(&mut self, key: Key, birth: Era) -> Option<&mut Parent<'a>> {
        let has_passed = self.may_hold_passed(key, birth);
        self.parent_with(birth).filter(|_| !has_passed)
    }

    pub(crate) fn owns_node(&self, birth: Era) -> bool {
        self.births.is_none_or(|births| is_behind(births.low, birth))
    }

    pub(crate) fn owns_extent(&self, key: Key, birth: Era) -> bool {
        self.owns_node(birth) || self.may_hold_passed(key, birth)
    }

    /// Whether something that was born then, or before, and lies from the key on may have passed from the parent.
    pub(crate) fn may_hold_passed(&self, from: Key, birth: Era) -> bool {
        let passed = self.births.and_then(|births| births.passed);
        passed.is_some_and(|(cursor, low)| from < cursor && is_behind(low, birth))
    }

    /// Whether a node that the parent is to have, from the one key to below the other, may hang there below one that is
    /// lost.
    pub(crate) fn is_lost_in_parent(&self, low: Key, high: Option<Key>) -> bool {
        self.parent_lost.is_some_and(|lost| lost.meets_node(low, high))
    }

    /// The cursor of a tree that goes away, if the extent lies before it and was the tree's own.
    pub(crate) fn cursor_behind(&self, key: Key, birth: Era) -> Option<Key> {
        self.births?.cursor.filter(|cursor| key < *cursor && self.owns_node(birth))
    }
}

fn is_behind(low: Option<Era>, birth: Era) -> bool {
    low.is_none_or(|low| birth > low)
}
