//! The store's public face: lookups, space, commit, force.

use crate::journal::{Encoded, Filling, latched};
use crate::lock_order::may_wait;
use crate::locks::Lock;
use crate::primitives::{Ordering, yield_now};
use crate::shared::Shared;
use crate::tree::cache::Pinned;
use crate::tree::{Change, Found, Missing, Obstacle, Reached, Resident, Tree};
use crate::trees::Trees;
use crate::{Batch, Class, Estimate, Permit, Reservation, StoreError};
use std::sync::{Arc, Weak};
use syncline_device::{Device, DeviceError};
use syncline_format::batch::Op;
use syncline_format::{BlockNo, Era, Generation, Key, Lsn, NODE_BYTES, NameHash, ObjectNo, TreeId};

/// Contiguous blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: BlockNo,
    pub len: u32,
}

/// Space of the volume, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Space {
    /// Allocatable blocks in all.
    pub total: u64,
    /// Blocks not in use by any committed batch (pinned and reserved ones included).
    pub free: u64,
    /// Of these, what a new reservation could get now.
    pub available: u64,
    /// Freed, but not to be reused before the next durable checkpoint.
    pub pinned: u64,
}

/// How full the bounded things are; what maintenance decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Load {
    /// Bytes of the ring in use, and its capacity.
    pub ring_bytes: u64,
    pub ring_bytes_max: u64,
    pub dirty_node_bytes: u64,
    pub dirty_node_bytes_max: u64,
    pub pinned_blocks: u64,
    /// Live page images.
    pub images: u64,
    /// Bytes of the ring that no checkpoint frees before they are destaged: those from the oldest of them on.
    pub image_bytes: u64,
    /// Batches since the last checkpoint's LSN.
    pub batches: u64,
}

/// What happened since the volume was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Groups made durable: one flush each.
    pub groups: u64,
    /// Batches in them.
    pub grouped_batches: u64,
    pub checkpoints: u64,
    pub node_cache_hits: u64,
    pub node_cache_misses: u64,
}

/// Facts of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VolumeInfo {
    pub uuid: [u8; 16],
    pub label: String,
    /// How names become keys.
    pub name_hash: NameHash,
    pub blocks: u64,
    pub journal_blocks: u64,
    pub generation: Generation,
}

/// An item's value, and the key behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueAndNext {
    pub value: Vec<u8>,
    /// `None`: it would have to be looked for.
    pub next: Option<Key>,
}

/// Lets a force fill its record with what is about to be synced anyway.
pub trait Piggyback: Send + Sync {
    /// Whether `fill` has anything to look at. Called under a lock of the store: takes none, and is asked for each
    /// group.
    fn has_any(&self) -> bool;

    /// Called by the leader of a force just before it seals its record, without any store lock held. May commit
    /// batches of about `room` bytes in all; must not wait for anything.
    fn fill(&self, room: usize);
}

/// The item store of one volume.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

impl Store {
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    pub fn info(&self) -> VolumeInfo {
        let generation = Generation(self.shared.generation.load(Ordering::Relaxed));
        VolumeInfo { generation, ..self.shared.info.clone() }
    }

    /// Whether these are allocatable blocks of one group: what an item names may be anywhere.
    pub fn holds_run(&self, start: BlockNo, len: u32) -> bool {
        self.shared.layout().holds_run(start, len)
    }

    pub fn is_read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Why the journal could not be followed to its end; only with [`StoreOptions::salvage`]. What is shown is then
    /// the volume as of the last checkpoint or a later moment, but for page images older than the checkpoint that the
    /// rest of the journal held: their pages are what they were before, or holes.
    pub fn broken_journal(&self) -> Option<StoreError> {
        self.shared.broken_journal.get().cloned()
    }

    /// The value of an item.
    pub fn get(&self, tree: TreeId, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.look(tree, |tree, resident| tree.find(key, resident))?;
        check_place(&found)?;
        Ok(found.leaf.page.search(key).ok().map(|index| found.leaf.page.value(index).to_vec()))
    }

    /// The value of an item, and the key of the item behind it where that takes no further look.
    pub fn get_and_next(&self, tree: TreeId, key: Key) -> Result<Option<ValueAndNext>, StoreError> {
        let found = self.look(tree, |tree, resident| tree.find(key, resident))?;
        check_place(&found)?;
        let page = &found.leaf.page;
        let next = |index: usize| (index + 1 < page.count()).then(|| page.key(index + 1));
        let of = |index: usize| ValueAndNext { value: page.value(index).to_vec(), next: next(index) };
        Ok(page.search(key).ok().map(of))
    }

    /// The item with the greatest key not above `key`.
    pub fn last_at_or_before(&self, tree: TreeId, key: Key) -> Result<Option<(Key, Vec<u8>)>, StoreError> {
        let found = self.look(tree, |tree, resident| tree.last_at_or_before(key, resident))?;
        let Some((found, index)) = found else { return Ok(None) };
        check_place(&found)?;
        let page = &found.leaf.page;
        Ok(Some((page.key(index), page.value(index).to_vec())))
    }

    /// A number that was never used for an object of this volume. Durable with the first batch that names it.
    pub fn new_object(&self) -> ObjectNo {
        ObjectNo(self.shared.next_object.fetch_add(1, Ordering::Relaxed))
    }

    /// Sets blocks aside. Errors: `NoSpace` (a checkpoint may bring pinned blocks back: see [`Space::pinned`]).
    pub fn reserve(&self, blocks: u64) -> Result<Reservation, StoreError> {
        self.shared.reserve(blocks)?;
        Ok(Reservation::new(&self.shared, blocks, true))
    }

    /// As [`Store::reserve`], and never waits, not even for a discard: for whoever holds a lock of its own.
    pub fn try_reserve(&self, blocks: u64) -> Result<Reservation, StoreError> {
        self.shared.try_reserve(blocks).map_err(|(error, _)| error)?;
        Ok(Reservation::new(&self.shared, blocks, true))
    }

    /// Sets blocks aside for content that only replaces other, whose blocks are freed when it is written: on a full
    /// volume they come from what is kept for freeing space. Errors: `NoSpace`.
    pub fn reserve_for_freeing(&self, blocks: u64) -> Result<Reservation, StoreError> {
        self.shared.space.lock().reserve_for_freeing(blocks)?;
        Ok(Reservation::new(&self.shared, blocks, false))
    }

    /// As [`Store::reserve_for_freeing`], for what anybody may do as often as he likes: a smaller part of what is
    /// kept, so that freeing always finds some. Errors: `NoSpace`.
    pub fn reserve_to_overwrite(&self, blocks: u64) -> Result<Reservation, StoreError> {
        self.shared.space.lock().reserve_to_overwrite(blocks)?;
        Ok(Reservation::new(&self.shared, blocks, false))
    }

    /// Turns up to `blocks` reserved blocks into one contiguous run, at least one block long, in `near`'s vicinity if
    /// possible. The run is in nobody's bitmap until a batch names it; the reservation shrinks by its length.
    pub fn allocate(&self, from: &mut Reservation, blocks: u32, near: Option<BlockNo>) -> Run {
        let blocks = u64::from(blocks).min(from.blocks) as u32;
        let run = self.shared.space.lock().allocate(blocks, near);
        from.blocks -= u64::from(run.len);
        run
    }

    /// Gives back a run that no batch has named and to which no write is in flight (R8); the blocks return to `to`.
    pub fn abandon(&self, run: Run, to: &mut Reservation) {
        self.shared.space.lock().abandon(run);
        to.blocks += u64::from(run.len);
    }

    pub fn space(&self) -> Space {
        let total = self.shared.layout().data_blocks();
        let space = self.shared.space.lock();
        Space {
            total,
            free: space.free_blocks(),
            available: space.available() + space.held_blocks(),
            pinned: space.pinned_blocks(),
        }
    }

    /// Whether a new reservation could get so many blocks now, as [`Space::available`] says; mostly without the lock.
    pub fn has_available(&self, blocks: u64) -> bool {
        self.shared.credit.available() >= blocks || self.space().available >= blocks
    }

    pub fn load(&self) -> Load {
        let shared = &self.shared;
        let (dirty_nodes, images, oldest_image, lsn) = {
            let trees = shared.trees.read();
            (trees.current_nodes, trees.images.len(), trees.images.oldest(), trees.lsn)
        };
        let journal = shared.journal.get();
        let image_bytes =
            journal.zip(oldest_image).map_or(0, |(journal, oldest)| journal.used_bytes_from(oldest));
        Load {
            ring_bytes: journal.map_or(0, |journal| journal.used_bytes()),
            ring_bytes_max: journal.map_or(0, |journal| journal.ring_bytes()),
            dirty_node_bytes: dirty_nodes * NODE_BYTES as u64,
            dirty_node_bytes_max: shared.cache.dirty_max() * NODE_BYTES as u64,
            pinned_blocks: shared.space.lock().pinned_blocks(),
            images,
            image_bytes,
            // A checkpoint may have ended since the LSN was read.
            batches: lsn.0.saturating_sub(shared.checkpoint_lsn.load(Ordering::Relaxed)),
        }
    }

    /// Bytes of tree nodes that are newer than the last checkpoint or being written by one.
    pub fn dirty_node_bytes(&self) -> u64 {
        let current = self.shared.trees.read().current_nodes;
        (current + self.shared.frozen_nodes.load(Ordering::Relaxed)) * NODE_BYTES as u64
    }

    /// Changes the bounds on tree nodes in memory: clean ones, and dirty ones, whose part the clean ones may use while
    /// there are fewer. More dirty nodes than that are relieved by the next admission.
    pub fn set_node_bounds(&self, clean_bytes: usize, dirty_bytes: usize) {
        self.shared.cache.set_bounds(clean_bytes, dirty_bytes);
    }

    pub fn counters(&self) -> Counters {
        let shared = &self.shared;
        let (groups, grouped_batches) = shared.journal.get().map_or((0, 0), |j| j.group_counters());
        Counters {
            groups,
            grouped_batches,
            checkpoints: shared.checkpoints.load(Ordering::Relaxed),
            node_cache_hits: shared.cache.hits.load(Ordering::Relaxed),
            node_cache_misses: shared.cache.misses.load(Ordering::Relaxed),
        }
    }

    /// Applies the batch and appends it to the journal buffer; it is then visible, ordered, and durable once
    /// `force` has returned for its LSN. Reads tree nodes from the device if they are not cached, before anything is
    /// changed: an error leaves no trace. Never waits for the journal.
    pub fn commit(&self, permit: Permit, batch: Batch) -> Result<Lsn, StoreError> {
        self.commit_with(permit, false, batch)
    }

    /// Admits the batch as it is, and commits it, with fewer locks than one after the other take. As
    /// [`Store::try_admit`] it never waits for room.
    ///
    /// Errors: those of both. Nothing is done then.
    pub fn try_commit(&self, class: Class, batch: Batch) -> Result<Lsn, StoreError> {
        let estimate = Estimate { bytes: batch.bytes(), items: batch.items, images: batch.images };
        self.commit_with(self.empty_permit(class, estimate)?, true, batch)
    }

    /// `admits`: the permit is empty, and the batch is to be admitted here.
    fn commit_with(&self, mut permit: Permit, admits: bool, mut batch: Batch) -> Result<Lsn, StoreError> {
        let shared = &self.shared;
        if batch.bytes() > permit.estimate.bytes {
            let (bytes, bytes_max) = (batch.bytes(), permit.estimate.bytes);
            return Err(StoreError::BatchTooLarge { bytes, bytes_max });
        }
        // More than was claimed would take nodes or ring blocks that others have been promised (R17, R18).
        assert!(batch.items <= permit.estimate.items, "a batch keeps to the items it was admitted with");
        assert!(batch.images <= permit.estimate.images, "a batch keeps to the images it was admitted with");
        match shared.journal.get() {
            Some(journal) => journal.failure().map_or(Ok(()), Err)?,
            // No force will look at the tickets: the data has to be there before recovery's checkpoint flushes (R10).
            None => batch.data.iter().try_for_each(|ticket| shared.device.wait(ticket))?,
        }
        assert_eq!(batch.has_trees, shared.has_trees, "a batch is made for the volume's version");
        let mut laid = shared.journal.get().and_then(|journal| journal.lay_out(&batch.ops));
        // Milliseconds of work: where processors are few, those who sync are let in between its parts.
        let is_large = laid.is_some();
        if is_large {
            yield_now();
        }
        let pinned = Pinned::new(&shared.cache);
        let mut stale = None;
        let mut trees = loop {
            let trees = shared.trees.write();
            match check_resident(trees.changing_tree(batch.tree)?, &batch, &pinned) {
                Ok(()) => break trees,
                Err(Obstacle::Missing(missing)) => {
                    drop(trees);
                    pinned.load(&*shared.device, &missing, &mut stale)?;
                }
                Err(Obstacle::Misplaced(block)) => return Err(misplaced(block)),
            }
        };
        trees.decide(&mut batch, laid.as_mut().and_then(Encoded::laid_bytes))?;
        if admits {
            self.grant_now(&trees, &mut permit)?;
        }
        if batch.frees {
            shared.space.lock().check_frees(&batch)?;
        }
        let (lsn, is_long) = self.enter(&mut trees, &mut permit, batch, laid, &pinned);
        drop(trees);
        if let Some(journal) = shared.journal.get() {
            if is_large {
                yield_now();
            }
            if is_long {
                journal.stream();
            }
        }
        Ok(lsn)
    }

    /// Applies a batch that was checked and logs it. Returns its LSN and whether the journal's buffer has become long.
    pub(crate) fn enter(
        &self,
        trees: &mut Trees,
        permit: &mut Permit,
        batch: Batch,
        laid: Option<Encoded>,
        resident: &Pinned<'_>,
    ) -> (Lsn, bool) {
        let shared = &self.shared;
        let before = trees.current_nodes;
        let claims_before = trees.root_claims;
        let lsn = trees.lsn.next();
        trees.apply_items(&batch, resident, lsn);
        trees.lsn = lsn;
        let more = trees.current_nodes.saturating_sub(before);
        if more > 0 {
            let frozen = shared.frozen_nodes.load(Ordering::Relaxed);
            shared.cache.set_dirty(trees.current_nodes + frozen);
        }
        let less = before.saturating_sub(trees.current_nodes);
        let claimed = std::mem::take(&mut permit.nodes) + less;
        let needed = more + (trees.root_claims - claims_before);
        let touches_space = batch.allocates || batch.frees;
        let is_settled =
            !touches_space && claimed.checked_sub(needed).is_some_and(|beyond| permit.leave_chunks(beyond));
        if !is_settled {
            let mut space = shared.space.lock();
            space.commit_batch(&batch);
            space.adjust_claims(claimed, needed);
        }
        let Some(journal) = shared.journal.get() else { return (lsn, false) };
        let bytes = laid.unwrap_or(Encoded::Batch(batch.ops));
        let promised = std::mem::take(&mut permit.ring);
        let (logged, is_long) = journal.append(bytes, batch.data, batch.slots, trees.images.len(), promised);
        assert_eq!(logged, lsn, "batches are logged in the order in which they are applied");
        (lsn, is_long)
    }

    /// An empty change of a tree of this volume.
    pub fn batch(&self, tree: TreeId) -> Batch {
        Batch { has_trees: self.shared.has_trees, ..Batch::new(tree) }
    }

    /// A change that will take about so many encoded bytes, but for those of page images.
    pub fn batch_with_capacity(&self, tree: TreeId, bytes: usize) -> Batch {
        Batch { has_trees: self.shared.has_trees, ..Batch::with_capacity(tree, bytes) }
    }

    /// Whether the tree itself has the blocks that an extent of this birth names, so that it may write into them. A
    /// snapshot that is made later ends that: ask again under what keeps snapshots out.
    pub fn owns(&self, tree: TreeId, birth: Era) -> Result<bool, StoreError> {
        self.shared.trees.read().owns(tree, birth)
    }

    /// LSN of the newest batch.
    pub fn last_lsn(&self) -> Lsn {
        match self.shared.journal.get() {
            Some(journal) => journal.last_lsn(),
            None => self.shared.trees.read().lsn,
        }
    }

    /// Everything up to this LSN is durable.
    pub fn durable_lsn(&self) -> Lsn {
        match self.shared.journal.get() {
            Some(journal) => journal.durable_lsn(),
            None => Lsn(self.shared.checkpoint_lsn.load(Ordering::Relaxed)),
        }
    }

    /// Makes everything up to `lsn` durable; no I/O if it already is. Blocks; the first caller leads and drives the
    /// device on its own thread, the others wait for it.
    pub fn force(&self, lsn: Lsn) -> Result<(), StoreError> {
        if self.shared.options.ablation().blocked_logging() && lsn > self.durable_lsn() {
            drop(self.shared.checkpointing.lock());
        }
        may_wait(Lock::Checkpointing);
        self.force_beside_checkpoint(lsn)
    }

    /// [`Store::force`] as the checkpoint itself calls it.
    pub(crate) fn force_beside_checkpoint(&self, lsn: Lsn) -> Result<(), StoreError> {
        match self.shared.journal.get() {
            Some(journal) => journal.force(lsn, &self.filling()),
            None => Ok(()),
        }
    }

    /// For who writes much that nobody waits for: waits until the group commit that is under way has ended, which is
    /// not long, and returns at once if there is none. Not to be called by who forces, or holds what a force needs.
    pub fn give_way(&self) {
        if let Some(journal) = self.shared.journal.get() {
            journal.give_way();
        }
    }

    /// Starts making everything up to `lsn` durable and calls `done` when it is, on the thread that drives the force
    /// ([`Store::drive`], or any blocking caller of [`Store::force`]).
    pub fn start_force(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        match self.shared.journal.get() {
            Some(journal) => journal.start_force(lsn, done),
            None => done(Ok(())),
        }
    }

    /// Advances started forces without blocking; true while some are still pending.
    pub fn drive(&self) -> bool {
        self.shared.journal.get().is_some_and(|journal| journal.drive(&self.filling()))
    }

    /// Registers who fills records (held weakly). The first one stays.
    pub fn set_piggyback(&self, hook: Weak<dyn Piggyback>) {
        let _ = self.shared.piggyback.set(hook);
    }

    fn filling(&self) -> FilledUp {
        let options = &self.shared.options;
        let hook = self.shared.piggyback.get().filter(|_| !options.ablation().no_piggyback());
        FilledUp { bytes_max: options.piggyback_bytes, hook: hook.and_then(Weak::upgrade) }
    }

    /// Latches the store after a failed data write (C8): nothing becomes durable any more.
    pub fn fail(&self, cause: DeviceError) {
        if let Some(journal) = self.shared.journal.get() {
            journal.fail(latched(cause));
        }
    }

    /// Stops at once, as a power cut would: nothing is written any more.
    pub fn shut_down(&self) {
        if let Some(journal) = self.shared.journal.get() {
            journal.fail(StoreError::ShutDown);
        }
    }

    /// The latched failure, if any.
    pub fn failure(&self) -> Option<StoreError> {
        self.shared.journal.get().and_then(|journal| journal.failure())
    }

    /// Runs a lookup in a tree under the read lock; loads what is missing without it and tries again.
    pub(crate) fn look<T>(
        &self,
        tree: TreeId,
        lookup: impl Fn(&Tree, &dyn Resident) -> Result<T, Missing>,
    ) -> Result<T, StoreError> {
        let shared = &self.shared;
        if shared.ended.load(Ordering::Relaxed) {
            return Err(StoreError::ShutDown);
        }
        let missing = match lookup(shared.trees.read().tree(tree)?, &shared.cache) {
            Ok(found) => return Ok(found),
            Err(missing) => missing,
        };
        let pinned = Pinned::new(&shared.cache);
        let (mut missing, mut stale) = (missing, None);
        loop {
            pinned.load(&*shared.device, &missing, &mut stale)?;
            match lookup(shared.trees.read().tree(tree)?, &pinned) {
                Ok(found) => return Ok(found),
                Err(next) => missing = next,
            }
        }
    }
}

/// A record is filled up by whoever is registered for that. Kept beyond the force, so that nobody is dropped under the
/// journal's lock.
struct FilledUp {
    bytes_max: usize,
    hook: Option<Arc<dyn Piggyback>>,
}

impl Filling for FilledUp {
    fn is_worthwhile(&self, pending: usize) -> bool {
        pending < self.bytes_max && self.hook.as_ref().is_some_and(|hook| hook.has_any())
    }

    fn fill(&self, pending: usize) {
        if let Some(hook) = &self.hook {
            hook.fill(self.bytes_max.saturating_sub(pending));
        }
    }
}

/// Errors: `Inconsistent` for a leaf with keys of another place: what is looked for here may lie there.
pub(crate) fn check_place(found: &Found) -> Result<(), StoreError> {
    if found.is_in_place() {
        return Ok(());
    }
    Err(misplaced(found.leaf.block()))
}

pub(crate) fn misplaced(block: BlockNo) -> StoreError {
    StoreError::Inconsistent { block, what: "a tree node holds keys that its parent puts elsewhere" }
}

/// Reports the first node that applying the batch to its tree will need and that is not in memory, or not in its
/// place.
pub(crate) fn check_resident(tree: &Tree, batch: &Batch, resident: &dyn Resident) -> Result<(), Obstacle> {
    // The leaf that was found last: a large batch has many keys that follow one another.
    let mut found: Option<(Key, Reached)> = None;
    let mut check = |key: Key| -> Result<Reached, Obstacle> {
        match found {
            Some((from, leaf)) if from <= key && leaf.end.is_none_or(|end| key < end) => Ok(leaf),
            _ => {
                let leaf = tree.check_resident(key, resident)?;
                found = Some((key, leaf));
                Ok(leaf)
            }
        }
    };
    let puts = batch.items - batch.deletes;
    let change = Change { puts, deletes: batch.deletes, bytes: batch.bytes() };
    for op in batch.ops.iter() {
        match op {
            Op::Put { key, .. } => drop(check(key)?),
            Op::Delete { key, .. } if check(key)?.may_be_emptied(change) => {
                tree.check_heirs(key, change, resident)?;
            }
            _ => {}
        }
    }
    Ok(())
}
