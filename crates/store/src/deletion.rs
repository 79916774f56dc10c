//! Deleting trees.
//!
//! A tree is deleted by one batch that takes its name and its images away; the rest is done behind it, by
//! [`Store::reap`], a step at a time. What the tree has and neither its parent nor the tree that descends from it has
//! too is nobody's any more. Its parent has everything that was born up to the parent's era, so that is passed by.
//! There is at most one tree that descends from it (R27), and no other tree can have what is behind the parent's era.
//!
//! The steps, in this order:
//! 1. The overlay, by batches.
//! 2. The *data*: leaf after leaf is held against the child's, by batches of frees that also move a cursor (R29). What
//!    lies before the cursor and the child has is the child's own from then on (R25).
//! 3. The *nodes*, in memory: only interior nodes are read. What is found, and what the child lets go of meanwhile,
//!    goes into the bitmaps of the next checkpoint, whose root tree lacks the tree. Frees of nodes are never logged:
//!    which nodes a tree has is decided by checkpoints and by replay, and these need not agree.
//! 4. When neither superblock leads to the tree any more, a batch ends its item, and the child gets its parent.

mod ahead;
mod data;
mod nodes;
mod pair;
mod usage;

pub(crate) use ahead::Ahead;
use pair::Pair;

use crate::checkpoint::Purpose;
use crate::limits::{REAPED_BYTES, REAPED_LEAVES_MAX, REAPED_OVERLAYS};
use crate::locks::MutexGuard;
use crate::primitives::Ordering;
use crate::shared::Shared;
use crate::tree::cache::Pinned;
use crate::tree::{Missing, Obstacle, Resident, Root};
use crate::trees::Trees;
use crate::{Batch, Class, Estimate, Store, StoreError};
use std::sync::Arc;
use syncline_format::batch::{
    BATCH_HEADER_BYTES, DELETE_BYTES, DROP_BYTES, Op, PUT_OVERHEAD_BYTES, RELEASE_BYTES, TREE_GONE_BYTES,
};
use syncline_format::item::NAME_BYTES_MAX;
use syncline_format::tree_item::{Role, Stay, TREE_ITEM_BYTES, TreeItem, TreeState, is_tree_name};
use syncline_format::{Key, Lsn, TreeId};

/// Bytes of an encoded tree item, with its operation.
pub(crate) const PUT_TREE_BYTES: usize = PUT_OVERHEAD_BYTES + TREE_ITEM_BYTES + NAME_BYTES_MAX;

/// Keeps a tree from being taken apart: somebody reads it (R27).
#[derive(Debug)]
pub struct TreeReader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tree: TreeId,
}

impl TreeReader {
    /// What is read.
    pub fn tree(&self) -> TreeId {
        self.tree
    }
}

impl Drop for TreeReader {
    fn drop(&mut self) {
        let mut trees = self.shared.trees.write();
        let Some(branches) = &mut trees.branches else { return };
        if let Some(readers) = branches.readers.get_mut(&self.tree) {
            *readers -= 1;
            if *readers == 0 {
                branches.readers.remove(&self.tree);
            }
        }
    }
}

/// What the reaper turns to next.
pub(crate) enum Task {
    /// Nobody needs a hidden tree any more.
    Begin(TreeId),
    /// The tree's inherited images, which nobody reads any more, still stand in the way.
    Settle,
    /// The tree is not wholly on the device yet.
    Checkpoint,
    Overlay(TreeId),
    Data(TreeId),
    Nodes(TreeId),
    /// Only its item is left.
    End(TreeId),
}

impl Store {
    /// A tree to be read: it is not taken apart while the reader exists. Errors: `NoTree`, also if it is being deleted.
    pub fn reader(&self, tree: TreeId) -> Result<TreeReader, StoreError> {
        let mut trees = self.shared.trees.write();
        trees.tree(tree)?;
        if let Some(branches) = &mut trees.branches {
            let is_live = |item: &TreeItem| item.state == TreeState::Live && !item.is_hidden;
            if !branches.items.get(&tree).is_some_and(is_live) {
                return Err(StoreError::NoTree { tree });
            }
            *branches.readers.entry(tree).or_default() += 1;
        }
        Ok(TreeReader { shared: Arc::clone(&self.shared), tree })
    }

    /// Deletes a snapshot, or a head that is not the default one. It has no name any more when this has returned, and
    /// it is gone for good once `force` has returned for the LSN. Its space comes back by [`Store::reap`]: when nobody
    /// reads it any more, and at most one tree descends from it.
    ///
    /// Errors: among others `NoTree`, `DefaultHead`, `TreeHeld`.
    pub fn delete_tree(&self, tree: TreeId) -> Result<Lsn, StoreError> {
        self.change_trees(Class::Deletion, self.beginning_of(tree), |trees, batch| {
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            let is_there = |item: &&TreeItem| item.state == TreeState::Live && !item.is_hidden;
            let item = branches.items.get(&tree).filter(is_there).ok_or(StoreError::NoTree { tree })?;
            if item.is_default {
                return Err(StoreError::DefaultHead);
            }
            if item.stay.is_held {
                return Err(StoreError::TreeHeld { name: item.name.clone() });
            }
            delete(trees, tree, item, batch);
            Ok(())
        })
    }

    /// Whether some tree was deleted whose space has not come back so far.
    pub fn is_reaping(&self) -> bool {
        let trees = self.shared.trees.read();
        let gone = |item: &TreeItem| item.is_hidden || item.state != TreeState::Live;
        trees.branches.as_ref().is_some_and(|branches| branches.items.values().any(gone))
    }

    /// Gives a snapshot, or another head than the default one, another name; durable once `force` has returned for the
    /// LSN. Errors: among others `NoTree`, `TreeExists`, `BadTreeName`.
    pub fn rename_tree(&self, tree: TreeId, name: &str) -> Result<Lsn, StoreError> {
        if !is_tree_name(name) {
            return Err(StoreError::BadTreeName { name: name.to_owned() });
        }
        let estimate = Estimate { bytes: BATCH_HEADER_BYTES + PUT_TREE_BYTES, items: 1, images: 0 };
        self.change_trees(Class::Normal, estimate, |trees, batch| {
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            let is_there = |item: &&TreeItem| item.state == TreeState::Live && !item.is_hidden;
            let item = branches.items.get(&tree).filter(is_there).ok_or(StoreError::NoTree { tree })?;
            if branches.named(name).is_some_and(|other| other != tree) {
                return Err(StoreError::TreeExists { name: name.to_owned() });
            }
            // Who gives a snapshot of the schedule a name wants to keep it.
            let stay = Stay { is_scheduled: false, ..item.stay };
            batch.put(
                Key::tree_info(tree),
                &TreeItem { name: name.to_owned(), stay, ..item.clone() }.encode(),
            );
            Ok(())
        })
    }

    /// Says whether a snapshot is held: it is not deleted before it is released. Durable once `force` has returned for
    /// the LSN. Errors: among others `NoTree`, `NotASnapshot`.
    pub fn hold_tree(&self, tree: TreeId, is_held: bool) -> Result<Lsn, StoreError> {
        let estimate = Estimate { bytes: BATCH_HEADER_BYTES + PUT_TREE_BYTES, items: 1, images: 0 };
        // A full volume is emptied by deletions, and a release may have to come before.
        let class = if is_held { Class::Normal } else { Class::Deletion };
        self.change_trees(class, estimate, |trees, batch| {
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            let is_there = |item: &&TreeItem| item.state == TreeState::Live && !item.is_hidden;
            let item = branches.items.get(&tree).filter(is_there).ok_or(StoreError::NoTree { tree })?;
            if item.role != Role::Snapshot {
                return Err(StoreError::NotASnapshot { tree });
            }
            if item.stay.is_held != is_held {
                let stay = Stay { is_held, ..item.stay };
                batch.put(Key::tree_info(tree), &TreeItem { stay, ..item.clone() }.encode());
            }
            Ok(())
        })
    }

    /// Takes one step in giving back what deleted trees had, in which it looks at no more than `leaves` leaves (or 32),
    /// or nodes above; `false`: nothing is to be done now. Call it without locks: one caller at a time does it, the
    /// others wait.
    ///
    /// Errors: `Pressure` before a checkpoint. Damage in the tree: it stays as it is.
    pub fn reap(&self, leaves: usize) -> Result<bool, StoreError> {
        self.reap_some(leaves, false)
    }

    /// As [`Store::reap`], for whoever waits for the space: it leaves undone what gives none back, and does not wait
    /// for whoever does that. When it has returned `false`, all that was given back so far is free once
    /// [`Store::checkpoint_of_freed`] has returned.
    pub fn reap_space(&self, leaves: usize) -> Result<bool, StoreError> {
        self.reap_some(leaves, true)
    }

    fn reap_some(&self, leaves: usize, for_space: bool) -> Result<bool, StoreError> {
        let shared = &self.shared;
        if shared.journal.get().is_none() || for_space && !has_space_to_give(&shared.trees.read()) {
            return Ok(false);
        }
        let mut turn = shared.settling.lock();
        let task = {
            let trees = shared.trees.read();
            if for_space && !has_space_to_give(&trees) {
                return Ok(false);
            }
            next_task(&trees)
        };
        if !matches!(task, Some(Task::Data(_))) {
            *turn = None;
        }
        let went_on = self.step(task, leaves, &mut turn);
        // Who waits for the turn is not to wait for the next steps of a thread that takes several: the last of a tree
        // writes two checkpoints.
        MutexGuard::hand_on(turn);
        went_on
    }

    fn step(&self, task: Option<Task>, leaves: usize, ahead: &mut Option<Ahead>) -> Result<bool, StoreError> {
        match task {
            None => return Ok(false),
            Some(Task::Begin(tree)) => drop(self.begin_hidden(tree)?),
            Some(Task::Settle) => drop(self.settle_some()?),
            Some(Task::Checkpoint) => return self.checkpoint_again(),
            Some(Task::Overlay(tree)) => self.reap_overlay(tree)?,
            Some(Task::Data(tree)) => self.reap_data(tree, leaves.clamp(1, REAPED_LEAVES_MAX), ahead)?,
            Some(Task::Nodes(tree)) => self.reap_nodes(tree, leaves.max(1))?,
            Some(Task::End(tree)) => return self.end_tree(tree),
        }
        Ok(true)
    }

    /// What steps of deletions have given back so far is free when this has returned: a checkpoint that holds it is
    /// durable (R11). None is written if there is one, or if deletions have freed nothing, whatever others have; one
    /// that is under way is waited for. Call it without locks.
    pub fn checkpoint_of_freed(&self) -> Result<(), StoreError> {
        let wanted = self.shared.trees.read().given_back_by;
        let is_durable = || self.shared.generation.load(Ordering::Acquire) >= wanted.0;
        if !is_durable() {
            // Whoever writes one has the turn. What has frozen before is not enough, and what comes then may be.
            drop(self.shared.checkpointing.lock());
        }
        // Nothing need have been logged since the last one: nodes are found without that.
        if is_durable() { Ok(()) } else { self.write_checkpoint(Purpose::Again) }
    }

    /// Writes a checkpoint, also of a state that is on the device already; `false`: the session ends, and writes none.
    fn checkpoint_again(&self) -> Result<bool, StoreError> {
        let generation = || self.shared.generation.load(Ordering::Relaxed);
        let before = generation();
        self.write_checkpoint(Purpose::Again)?;
        Ok(generation() > before)
    }

    fn begin_hidden(&self, tree: TreeId) -> Result<Lsn, StoreError> {
        self.change_trees(Class::Deletion, self.beginning_of(tree), |trees, batch| {
            let item = item_of(trees, tree)?.clone();
            // A reader may have come: the next step looks again.
            if !is_needed(trees, tree) {
                begin(trees, tree, item, batch);
            }
            Ok(())
        })
    }

    /// What the batch takes that begins a deletion. A snapshot's images become fewer only.
    pub(crate) fn beginning_of(&self, tree: TreeId) -> Estimate {
        let images = self.shared.trees.read().images.of(tree).count();
        Estimate { bytes: BATCH_HEADER_BYTES + PUT_TREE_BYTES + images * DROP_BYTES, items: 1, images: 0 }
    }

    /// Looks at two trees, with all nodes in memory that this takes; what is missing is read without locks, along with
    /// what a look at `leaves` leaves from a key on needs as well.
    fn looked<T>(
        &self,
        pinned: &Pinned<'_>,
        (from, leaves): (Key, usize),
        pair_of: impl for<'a> Fn(&'a Trees, &'a Pinned<'_>) -> Result<Pair<'a>, StoreError>,
        look: impl Fn(&Pair<'_>) -> Result<T, Hindered>,
    ) -> Result<T, StoreError> {
        let shared = &self.shared;
        let mut stale = None;
        let mut has_read_ahead = false;
        loop {
            let (missing, ahead) = {
                let trees = shared.trees.read();
                let pair = pair_of(&trees, pinned)?;
                match look(&pair) {
                    Ok(found) => return Ok(found),
                    Err(Hindered::Missing(missing)) => {
                        let is_first = !has_read_ahead && leaves > 0;
                        let ahead = is_first.then(|| ahead::wanted(&pair, from, leaves));
                        (missing, ahead)
                    }
                    Err(Hindered::For(error)) => return Err(error),
                }
            };
            let missing = match ahead {
                Some(Ok((wanted, _))) => {
                    has_read_ahead = true;
                    shared.cache.load_ahead(&*shared.device, &wanted);
                    missing
                }
                // First what leads there.
                Some(Err(missing)) => missing,
                None => missing,
            };
            if pinned.resident(&missing.pointer).is_none() {
                pinned.load(&*shared.device, &missing, &mut stale)?;
            }
        }
    }

    /// Gives back some pages of the tree's overlay.
    fn reap_overlay(&self, tree: TreeId) -> Result<(), StoreError> {
        let mut overlay = self.overlay_items(tree)?;
        overlay.truncate(REAPED_OVERLAYS);
        let bytes = BATCH_HEADER_BYTES + overlay.len() * (DELETE_BYTES + RELEASE_BYTES);
        let items = overlay.len();
        self.change_trees(Class::Deletion, Estimate { bytes, items, images: 0 }, |_, batch| {
            for (key, item) in &overlay {
                batch.delete(*key);
                batch.give_back(item.extent.start, item.extent.pages(), item.extent.birth);
            }
            Ok(())
        })?;
        if overlay.is_empty() {
            self.set_cursor(tree, BEGUN)?;
        }
        Ok(())
    }

    /// The tree has no root any more: its item ends when no superblock leads to it.
    fn end_tree(&self, tree: TreeId) -> Result<bool, StoreError> {
        // A superblock that is lost is replaced by the one before: that must not have the tree either.
        for _ in 0..2 {
            if !self.checkpoint_again()? {
                return Ok(false);
            }
        }
        let bytes = BATCH_HEADER_BYTES + 2 * PUT_TREE_BYTES + DELETE_BYTES + TREE_GONE_BYTES;
        self.change_trees(Class::Deletion, Estimate { bytes, items: 2, images: 0 }, |trees, batch| {
            let parent = item_of(trees, tree)?.parent;
            batch.ops.push(Op::TreeGone { tree });
            let branches = trees.branches.as_ref().ok_or(StoreError::NeedsUpgrade)?;
            if let Some(child) = branches.children(tree).next() {
                let item = TreeItem { parent, ..item_of(trees, child)?.clone() };
                batch.put(Key::tree_info(child), &item.encode());
            }
            batch.delete(Key::tree_info(tree));
            Ok(())
        })?;
        Ok(true)
    }

    /// Moves the cursor of a tree that goes away.
    fn set_cursor(&self, tree: TreeId, cursor: Key) -> Result<Lsn, StoreError> {
        let bytes = BATCH_HEADER_BYTES + PUT_TREE_BYTES;
        self.change_trees(Class::Deletion, Estimate { bytes, items: 1, images: 0 }, |trees, batch| {
            put_cursor(trees, tree, cursor, batch)
        })
    }

    /// Commits a batch of the volume tree that is made under the lock under which trees come and go. `make` is called
    /// again where nodes were missing. A batch that stays empty is not logged.
    pub(crate) fn change_trees(
        &self,
        class: Class,
        estimate: Estimate,
        make: impl Fn(&Trees, &mut Batch) -> Result<(), StoreError>,
    ) -> Result<Lsn, StoreError> {
        let pinned = Pinned::new(&self.shared.cache);
        self.change_trees_with(class, estimate, &pinned, |trees, batch| {
            make(trees, batch).map_err(Hindered::For)
        })
    }

    /// The same, with nodes of other trees that have to be in memory.
    fn change_trees_with(
        &self,
        class: Class,
        estimate: Estimate,
        pinned: &Pinned<'_>,
        make: impl Fn(&Trees, &mut Batch) -> Result<(), Hindered>,
    ) -> Result<Lsn, StoreError> {
        let shared = &self.shared;
        let mut permit = self.admit(class, estimate)?;
        if let Some(journal) = shared.journal.get() {
            journal.failure().map_or(Ok(()), Err)?;
        }
        let mut stale = None;
        loop {
            let mut trees = shared.trees.write();
            let mut batch = self.batch(TreeId::VOLUME);
            let hindered = match make(&trees, &mut batch) {
                Ok(()) if batch.is_empty() => return Ok(trees.lsn),
                Ok(()) => trees.check_volume(&batch, pinned),
                Err(hindered) => Err(hindered),
            };
            let missing = match hindered {
                Ok(()) => {
                    assert!(batch.bytes() <= estimate.bytes && batch.items <= estimate.items, "as admitted");
                    if batch.frees {
                        shared.space.lock().check_frees(&batch)?;
                        if class == Class::Deletion {
                            trees.given_back_by = trees.frozen.next();
                        }
                    }
                    return Ok(self.enter(&mut trees, &mut permit, batch, None, pinned).0);
                }
                Err(Hindered::Missing(missing)) => missing,
                Err(Hindered::For(error)) => return Err(error),
            };
            drop(trees);
            pinned.load(&*shared.device, &missing, &mut stale)?;
        }
    }
}

/// Why a batch cannot be made now.
enum Hindered {
    Missing(Missing),
    For(StoreError),
}

impl From<Missing> for Hindered {
    fn from(missing: Missing) -> Hindered {
        Hindered::Missing(missing)
    }
}

impl From<StoreError> for Hindered {
    fn from(error: StoreError) -> Hindered {
        Hindered::For(error)
    }
}

impl Trees {
    /// Whether a batch of the volume tree can be applied.
    fn check_volume(&self, batch: &Batch, resident: &dyn Resident) -> Result<(), Hindered> {
        match crate::store::check_resident(self.tree(TreeId::VOLUME)?, batch, resident) {
            Ok(()) => Ok(()),
            Err(Obstacle::Missing(missing)) => Err(Hindered::Missing(missing)),
            Err(Obstacle::Misplaced(block)) => Err(Hindered::For(crate::store::misplaced(block))),
        }
    }
}

pub(crate) fn item_of(trees: &Trees, tree: TreeId) -> Result<&TreeItem, StoreError> {
    let item = trees.branches.as_ref().and_then(|branches| branches.items.get(&tree));
    item.ok_or(StoreError::NoTree { tree })
}

/// Takes the name of a tree away, and begins to take it apart if nobody needs it.
pub(crate) fn delete(trees: &Trees, tree: TreeId, item: &TreeItem, batch: &mut Batch) {
    let item = TreeItem { name: String::new(), stay: Stay::default(), ..item.clone() };
    match is_needed(trees, tree) {
        true => batch.put(Key::tree_info(tree), &TreeItem { is_hidden: true, ..item }.encode()),
        false => begin(trees, tree, item, batch),
    }
}

/// Whether a tree has to stay, although it has no name any more (R27).
pub(crate) fn is_needed(trees: &Trees, tree: TreeId) -> bool {
    let Some(branches) = &trees.branches else { return true };
    branches.readers.contains_key(&tree) || branches.children(tree).nth(1).is_some()
}

/// From here on the tree goes away.
pub(crate) fn begin(trees: &Trees, tree: TreeId, item: TreeItem, batch: &mut Batch) {
    // Nobody reads its images any more, and they would hold the ring's tail (R26).
    let mut images = trees.images.of(tree).map(|(object, page, _)| (object, page)).peekable();
    while let Some((object, first)) = images.next() {
        let mut end = first + 1;
        while images.next_if_eq(&(object, end)).is_some() {
            end += 1;
        }
        batch.ops.push(Op::Drop { tree, object, first, end });
    }
    let state = TreeState::Deleting { cursor: Key::MIN };
    batch.put(Key::tree_info(tree), &TreeItem { state, is_hidden: false, ..item }.encode());
}

fn put_cursor(trees: &Trees, tree: TreeId, cursor: Key, batch: &mut Batch) -> Result<(), StoreError> {
    let item = TreeItem { state: TreeState::Deleting { cursor }, ..item_of(trees, tree)?.clone() };
    batch.put(Key::tree_info(tree), &item.encode());
    Ok(())
}

/// The overlay has been given back, and nothing of the data: no item lies before this key.
const BEGUN: Key = Key { offset: 1, ..Key::MIN };

/// One tree at a time goes away: the one with which something was begun, and then the lowest number.
pub(crate) fn next_task(trees: &Trees) -> Option<Task> {
    let branches = trees.branches.as_ref()?;
    let going = || {
        branches.items.iter().filter_map(|(number, item)| match item.state {
            TreeState::Deleting { cursor } => Some((*number, cursor, item)),
            TreeState::Live => None,
        })
    };
    let begun = going().find(|(_, cursor, _)| *cursor > Key::MIN);
    let Some((tree, cursor, item)) = begun.or_else(|| going().next()) else {
        let hidden = branches.items.iter().filter(|(_, item)| item.is_hidden).map(|(number, _)| *number);
        return hidden.into_iter().find(|tree| !is_needed(trees, *tree)).map(Task::Begin);
    };
    if trees.is_emptied(tree) {
        return Some(Task::End(tree));
    }
    // Of a head, what was dirty when it was deleted has to be written as well.
    let is_clean = trees.tree(tree).is_ok_and(|tree| matches!(tree.root, Root::Clean(_)));
    debug_assert!(item.role == Role::Snapshot || !trees.changing().contains(&tree), "it changes no more");
    Some(match cursor {
        _ if branches.inherited.contains_key(&tree) => Task::Settle,
        _ if !is_clean && !trees.is_as_its_child(tree) => Task::Checkpoint,
        Key::MIN => Task::Overlay(tree),
        Key::MAX => Task::Nodes(tree),
        _ => Task::Data(tree),
    })
}

/// Whether a deleted tree that nobody needs may still have blocks. The end of one, which waits for two checkpoints,
/// gives nothing back; but others may wait for it.
fn has_space_to_give(trees: &Trees) -> bool {
    let Some(branches) = &trees.branches else { return false };
    match next_task(trees) {
        None => false,
        Some(Task::End(tree)) => {
            let waits = |item: &TreeItem| item.is_hidden || item.state != TreeState::Live;
            branches.items.iter().any(|(number, item)| *number != tree && waits(item))
        }
        Some(_) => true,
    }
}

/// Bytes of the batch that one step through the data makes.
const DATA_BATCH_BYTES: usize = BATCH_HEADER_BYTES + PUT_TREE_BYTES + REAPED_BYTES;
