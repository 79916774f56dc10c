//! Clones: heads that begin as a snapshot is; and a head that takes another one's place.
//!
//! A clone is one batch. It shares the snapshot's root, which nobody changes, and owns what is born behind the
//! snapshot's era, as every head does behind its parent's. It ends no era: the snapshot's has ended already. While more
//! than one tree descends from a snapshot, a deletion of the snapshot waits hidden (R27).
//!
//! A snapshot's overlay is not shared: a block that two trees name has to be in the tree that they both descend from
//! (R28), and an overlay is in none. So a clone of a snapshot with an overlay is made *hidden*; the filesystem writes
//! the pages anew into the clone, and then the clone gets its name. After a crash in between the hidden head is taken
//! apart like any other hidden tree.

use crate::deletion::{PUT_TREE_BYTES, begin, item_of};
use crate::limits::TREES_MAX;
use crate::trees::Trees;
use crate::{Batch, Class, Estimate, Pressure, SnapshotLabel, Store, StoreError, TreeReader};
use std::cell::Cell;
use std::sync::Arc;
use syncline_format::batch::{BATCH_HEADER_BYTES, MAKE_TREE_BYTES, Op};
use syncline_format::tree_item::{Role, Stay, TreeItem, TreeState, is_tree_name};
use syncline_format::{Era, Key, Lsn, TreeId};

impl Store {
    /// The head that is shown when nobody names one.
    pub fn default_head(&self) -> TreeId {
        self.shared.trees.read().default_head().unwrap_or(TreeId::MAIN)
    }

    /// Whether the tree is a head that lives: it can change.
    pub fn is_head(&self, tree: TreeId) -> bool {
        tree.is_filesystem() && self.shared.trees.read().changing_tree(tree).is_ok()
    }

    /// Makes a head that begins as a snapshot is. It is there at once, and durable once `force` has returned for the
    /// LSN. With an overlay, which it does not get by this, it is hidden: give it the pages and then its name by
    /// [`Store::show_head`]. Nobody takes it apart while the reader exists. Call it without locks.
    ///
    /// Errors: among others `NeedsUpgrade`, `NotASnapshot`, `BadTreeName`, `TreeExists`, `TooManyTrees`, `NoSpace` if
    /// so little is left that the first changes fail (R35), `Pressure`.
    pub fn clone_tree(
        &self,
        of: TreeId,
        label: &SnapshotLabel,
        is_hidden: bool,
    ) -> Result<(TreeReader, Lsn), StoreError> {
        check_clone(&self.shared.trees.read(), of, &label.name)?;
        // Its images would have to be settled for the clone as well.
        while self.is_settling(of) {
            self.settle()?;
        }
        self.check_available()?;
        // No step of a deletion may find a hidden tree before somebody reads it.
        let _turn = self.shared.settling.lock();
        let bytes = BATCH_HEADER_BYTES + MAKE_TREE_BYTES + PUT_TREE_BYTES;
        let made = Cell::new(of);
        let lsn =
            self.change_trees(Class::Normal, Estimate { bytes, items: 2, images: 0 }, |trees, batch| {
                made.set(clone_batch(trees, of, label, is_hidden, batch)?);
                Ok(())
            })?;
        let tree = made.get();
        if let Some(branches) = &mut self.shared.trees.write().branches {
            *branches.readers.entry(tree).or_default() += 1;
        }
        Ok((TreeReader { shared: Arc::clone(&self.shared), tree }, lsn))
    }

    /// Gives a hidden head a name; durable once `force` has returned for the LSN. Errors: among others `TreeExists`.
    pub fn show_head(&self, head: &TreeReader, name: &str) -> Result<Lsn, StoreError> {
        let estimate = Estimate { bytes: BATCH_HEADER_BYTES + PUT_TREE_BYTES, items: 1, images: 0 };
        self.change_trees(Class::Normal, estimate, |trees, batch| {
            check_name(trees, name)?;
            let item = item_of(trees, head.tree)?.clone();
            batch.put(
                Key::tree_info(head.tree),
                &TreeItem { is_hidden: false, name: name.to_owned(), ..item }.encode(),
            );
            Ok(())
        })
    }

    /// A hidden head takes the place and the name of another one, which goes away; with `keep` what the other one
    /// shows stays as a snapshot. One batch, durable once `force` has returned for its LSN. Nobody may use the other
    /// one any more. Call it without locks.
    ///
    /// Errors: as [`Store::snapshot`]; `NotAHead`; `Pressure` also while a head that is kept has images.
    pub fn replace_head(
        &self,
        old: TreeId,
        new: &TreeReader,
        keep: Option<&SnapshotLabel>,
    ) -> Result<Lsn, StoreError> {
        let ending = self.beginning_of(old);
        let bytes = ending.bytes + MAKE_TREE_BYTES + 2 * PUT_TREE_BYTES;
        if keep.is_some() {
            self.check_available()?;
        }
        self.change_trees(Class::Normal, Estimate { bytes, items: 4, images: 0 }, |trees, batch| {
            trees.changing_tree(old)?;
            let item = item_of(trees, old)?.clone();
            let gone = match keep {
                None => item.clone(),
                Some(label) => {
                    self.check_snapshot(trees, old, label)?;
                    // A snapshot would inherit them.
                    if trees.images.of(old).next().is_some() {
                        return Err(StoreError::Pressure(Pressure::Journal));
                    }
                    let (era, kept) = keep_batch(trees, old, label, batch)?;
                    TreeItem { parent: Some(kept), known: era, ..item.clone() }
                }
            };
            let head = item_of(trees, new.tree)?.clone();
            let (is_default, name) = (item.is_default, item.name);
            let head = TreeItem { is_hidden: false, is_default, name, ..head };
            batch.put(Key::tree_info(new.tree), &head.encode());
            begin(trees, old, TreeItem { is_default: false, name: String::new(), ..gone }, batch);
            Ok(())
        })
    }
}

impl Trees {
    /// Whether a tree of this role may be made of the source.
    pub(crate) fn may_become(&self, source: TreeId, role: Role) -> bool {
        match role {
            Role::Snapshot => source.is_filesystem() && self.changing_tree(source).is_ok(),
            Role::Head => self.is_live_snapshot(source) && self.tree(source).is_ok(),
        }
    }

    fn is_live_snapshot(&self, tree: TreeId) -> bool {
        let item = self.branches.as_ref().and_then(|branches| branches.items.get(&tree));
        item.is_some_and(|item| item.role == Role::Snapshot && item.state == TreeState::Live)
    }
}

fn check_name(trees: &Trees, name: &str) -> Result<(), StoreError> {
    let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
    match () {
        () if !is_tree_name(name) => Err(StoreError::BadTreeName { name: name.to_owned() }),
        () if branches.named(name).is_some() => Err(StoreError::TreeExists { name: name.to_owned() }),
        () => Ok(()),
    }
}

fn check_clone(trees: &Trees, of: TreeId, name: &str) -> Result<(), StoreError> {
    let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
    let item = item_of(trees, of)?;
    check_name(trees, name)?;
    match () {
        () if !trees.is_live_snapshot(of) => Err(StoreError::NotASnapshot { tree: of }),
        () if item.is_hidden => Err(StoreError::NoTree { tree: of }),
        () if branches.items.len() >= TREES_MAX || branches.is_worn() => {
            Err(StoreError::TooManyTrees { most: TREES_MAX })
        }
        () => Ok(()),
    }
}

/// The batch of a clone, and the clone's number.
fn clone_batch(
    trees: &Trees,
    of: TreeId,
    label: &SnapshotLabel,
    is_hidden: bool,
    batch: &mut Batch,
) -> Result<TreeId, StoreError> {
    check_clone(trees, of, &label.name)?;
    assert!(trees.images.of(of).next().is_none(), "a snapshot's images are settled once");
    let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
    let (era, tree) = (branches.state.era, branches.state.next_tree);
    let item = TreeItem {
        role: Role::Head,
        state: TreeState::Live,
        is_default: false,
        is_hidden,
        era: Era(0),
        parent: Some(of),
        known: item_of(trees, of)?.era,
        lsn: trees.lsn.next(),
        made: label.made,
        uuid: label.uuid,
        stay: Stay::default(),
        name: if is_hidden { String::new() } else { label.name.clone() },
    };
    batch.ops.push(Op::MakeTree { tree, source: Some(of), role: Role::Head, era });
    batch.put(Key::tree_info(tree), &item.encode());
    Ok(tree)
}

/// What a head shows becomes a snapshot; its era and its number.
fn keep_batch(
    trees: &Trees,
    head: TreeId,
    label: &SnapshotLabel,
    batch: &mut Batch,
) -> Result<(Era, TreeId), StoreError> {
    let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
    let (era, tree) = (branches.state.era, branches.state.next_tree);
    let item = TreeItem {
        role: Role::Snapshot,
        state: TreeState::Live,
        is_default: false,
        is_hidden: false,
        era,
        parent: item_of(trees, head)?.parent,
        known: Era(0),
        lsn: trees.lsn.next(),
        made: label.made,
        uuid: label.uuid,
        stay: label.stay,
        name: label.name.clone(),
    };
    batch.ops.push(Op::MakeTree { tree, source: Some(head), role: Role::Snapshot, era: era.next() });
    batch.put(Key::tree_info(tree), &item.encode());
    Ok((era, tree))
}
