//! What a deletion of snapshots would give back, found by the walks that a deletion makes, without changing anything.
//!
//! Of the trees that a deletion takes apart each is held against one other at most: the nearest below it that stays
//! (R27). What it has from behind its parent's era, and that one has not, is nobody's any more. So the blocks of a set
//! are the sum over these trees; what goes away without the set, because it was deleted before, is subtracted.

use super::{Hindered, Pair, data, nodes};
use crate::tree::Root;
use crate::tree::cache::Pinned;
use crate::trees::{Branches, Trees};
use crate::{Pressure, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Key, NODE_BLOCKS, TreeId};

/// Leaves, or nodes above them, that are looked at under one lock.
const LOOKED_AT_TOGETHER: usize = 8;
/// How often the walks begin anew because a deletion under way has ended.
const TRIES: usize = 64;

/// A tree that goes away, and the one below it that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ending {
    tree: TreeId,
    stays: Option<TreeId>,
}

/// Errors: `Pressure` while the tree is not wholly on the device.
fn pair<'a>(trees: &'a Trees, ending: Ending, resident: &'a Pinned<'_>) -> Result<Pair<'a>, StoreError> {
    let dying = trees.tree(ending.tree)?;
    if !matches!(&dying.root, Root::Clean(_)) {
        return Err(StoreError::Pressure(Pressure::Nodes));
    }
    let child = ending.stays.map(|stays| trees.tree(stays)).transpose()?;
    Ok(Pair::new(dying, child, resident))
}

impl Store {
    /// Blocks that would become free if these snapshots were deleted and nobody read any of them: data, nodes, and
    /// pages beside the trees. What deleted snapshots have that are not taken apart yet does not count. Exact if
    /// nothing changes meanwhile, but for the tables of the volume, which become shorter. Call it without locks.
    ///
    /// Errors: `NoTree`, `NotASnapshot`; `Pressure` while a tree is not wholly on the device; damage.
    pub fn usage(&self, snapshots: &BTreeSet<TreeId>) -> Result<u64, StoreError> {
        // None of them is taken apart meanwhile.
        let mut readers = Vec::with_capacity(snapshots.len());
        for tree in snapshots {
            readers.push(self.reader(*tree)?);
        }
        for _ in 1..TRIES {
            match self.usage_of(snapshots) {
                // One that was deleted before is gone by now.
                Err(StoreError::NoTree { tree }) if !snapshots.contains(&tree) => {}
                done => return done,
            }
        }
        self.usage_of(snapshots)
    }

    fn usage_of(&self, snapshots: &BTreeSet<TreeId>) -> Result<u64, StoreError> {
        let (with, without) = {
            let trees = self.shared.trees.read();
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            let no_snapshot = |tree: &&TreeId| branches.items[tree].role != Role::Snapshot;
            if let Some(tree) = snapshots.iter().find(no_snapshot) {
                return Err(StoreError::NotASnapshot { tree: *tree });
            }
            (endings(&trees, branches, snapshots), endings(&trees, branches, &BTreeSet::new()))
        };
        let sum = |endings: Vec<&Ending>| {
            endings.into_iter().map(|ending| self.blocks_of(*ending)).sum::<Result<u64, StoreError>>()
        };
        let ends = sum(with.difference(&without).collect())?;
        // That is a part of it, unless heads have changed in between.
        let mut blocks = ends.saturating_sub(sum(without.difference(&with).collect())?);
        // Also that of one from which several descend, and that only waits for these.
        let go_anyway: BTreeSet<TreeId> = without.iter().map(|ending| ending.tree).collect();
        for Ending { tree, .. } in with.iter().filter(|ending| !go_anyway.contains(&ending.tree)) {
            let overlay = self.overlay_items(*tree)?;
            blocks += overlay.iter().map(|(_, item)| u64::from(item.extent.pages())).sum::<u64>();
        }
        Ok(blocks)
    }

    /// What a tree has that neither its parent nor the one below it has.
    fn blocks_of(&self, ending: Ending) -> Result<u64, StoreError> {
        let mut data_blocks = 0;
        let mut cursor = Key::MIN;
        while cursor < Key::MAX {
            let found;
            (found, cursor) = self.looked_at(ending, (cursor, LOOKED_AT_TOGETHER), |pair| {
                data::dying(pair, cursor, LOOKED_AT_TOGETHER)
            })?;
            data_blocks += found;
        }
        let mut lost: BTreeSet<BlockNo> = BTreeSet::new();
        let mut cursor = Key::MIN;
        while cursor < Key::MAX {
            let found;
            (found, cursor) = self.looked_at(ending, (cursor, 0), |pair| nodes::look(pair, cursor))?;
            lost.extend(found);
        }
        Ok(data_blocks + lost.len() as u64 * u64::from(NODE_BLOCKS))
    }

    /// Looks at a tree and the one that stays.
    fn looked_at<T>(
        &self,
        ending: Ending,
        ahead: (Key, usize),
        look: impl Fn(&Pair<'_>) -> Result<T, Hindered>,
    ) -> Result<T, StoreError> {
        let pinned = Pinned::new(&self.shared.cache);
        self.looked(&pinned, ahead, |trees, pinned| pair(trees, ending, pinned), look)
    }
}

/// The trees that are taken apart in the end if these are deleted as well as those that were deleted before.
fn endings(trees: &Trees, branches: &Branches, deleted: &BTreeSet<TreeId>) -> BTreeSet<Ending> {
    let is_there = |tree: &TreeId| trees.tree(*tree).is_ok();
    let mut children: BTreeMap<Option<TreeId>, Vec<TreeId>> = BTreeMap::new();
    for tree in branches.items.keys().copied().filter(is_there) {
        children.entry(trees.parent_of(tree)).or_default().push(tree);
    }
    // Each behind its children.
    let mut order = children.get(&None).cloned().unwrap_or_default();
    let mut looked_at = 0;
    while let Some(tree) = order.get(looked_at) {
        order.extend(children.get(&Some(*tree)).into_iter().flatten().copied());
        looked_at += 1;
    }
    let is_deleted = |tree: &TreeId, item: &TreeItem| {
        item.is_hidden || item.state != TreeState::Live || deleted.contains(tree)
    };
    let mut ends = BTreeSet::new();
    // What stays of a tree and those below it, nearest to the root.
    let mut staying: BTreeMap<TreeId, Vec<TreeId>> = BTreeMap::new();
    for tree in order.into_iter().rev() {
        let below = children.get(&Some(tree)).into_iter().flatten();
        let below: Vec<TreeId> = below.flat_map(|child| staying.remove(child).unwrap_or_default()).collect();
        let goes = is_deleted(&tree, &branches.items[&tree]) && below.len() <= 1;
        if goes {
            ends.insert(Ending { tree, stays: below.first().copied() });
        }
        staying.insert(tree, if goes { below } else { vec![tree] });
    }
    ends
}
