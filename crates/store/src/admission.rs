//! Admission: the right to commit a batch, asked for before any lock is taken (R17, R18).
//!
//! A permit is a promise of three bounded things: room in the ring, free chunks for the nodes that the changes may copy
//! or split, and one reserved block of the ring for each image. What lacks is told as pressure, and whoever meets it
//! relieves it. One thing can only be waited for: a discard that holds the last free blocks. [`Store::admit`] waits for
//! it, [`Store::try_admit`] never does.
//!
//! A small batch need not be admitted before it is made: [`Store::try_commit`] admits and commits it in one hold of the
//! trees' lock, out of what is promised ahead (`space/credit.rs`, `journal/credit.rs`) while there is plenty.
//!
//! Locks: `trees` (to read), then `space`, then the journal's, one after the other; the latter two under `trees` where
//! the commit admits; `trimming` with none of them.

use crate::journal::Promise;
use crate::limits::{DATA_WINDOW_BYTES, HEADROOM_ITEMS, ROOM_AHEAD_BATCHES};
use crate::lock_order::may_wait;
use crate::locks::Lock;
use crate::primitives::Ordering;
use crate::trees::Trees;
use crate::{Class, DataSlot, Estimate, Permit, Pressure, Store, StoreError};
use std::sync::Arc;

/// Why a batch is not admitted.
enum Refused {
    For(StoreError),
    /// A discard holds the last free blocks.
    Discarding,
}

impl Refused {
    /// What it is for who does not wait.
    fn without_waiting(self) -> StoreError {
        match self {
            Refused::For(error) => error,
            Refused::Discarding => StoreError::Pressure(Pressure::Nodes),
        }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        Refused::For(error)
    }
}

/// What the trees say about a batch to come.
struct Outlook {
    /// Most nodes that its changes may copy or split, and those of an unlink.
    bound: u64,
    unlink: u64,
    /// Nodes that are newer than the last freeze.
    current: u64,
    /// Live images, and those that the batch adds.
    live: u64,
    new_images: u64,
}

impl Outlook {
    fn new(trees: &Trees, class: Class, estimate: Estimate) -> Outlook {
        Outlook {
            bound: match class {
                // Of the volume tree alone, which is small.
                Class::Deletion => trees.volume_nodes_bound(estimate.items),
                _ => trees.nodes_bound(estimate.items),
            },
            unlink: trees.nodes_bound(HEADROOM_ITEMS),
            current: trees.current_nodes,
            live: trees.images.len(),
            // What destaging logs takes the place of images that there are.
            new_images: if class == Class::Destage { 0 } else { estimate.images as u64 },
        }
    }
}

impl Store {
    /// Asks for room for a batch. Under pressure it says which ([`StoreError::Pressure`]) at once. It blocks only while
    /// a discard holds the last free blocks, so call it without locks.
    pub fn admit(&self, class: Class, estimate: Estimate) -> Result<Permit, StoreError> {
        may_wait(Lock::Trimming);
        self.grant(class, estimate).map_err(|refused| match refused {
            Refused::For(error) => error,
            Refused::Discarding => {
                self.shared.wait_for_discard();
                StoreError::Pressure(Pressure::Nodes)
            }
        })
    }

    /// As [`Store::admit`], and never waits, not even for a discard: for whoever holds a lock of its own or must answer
    /// at once. What [`Store::admit`] waits for is pressure here.
    pub fn try_admit(&self, class: Class, estimate: Estimate) -> Result<Permit, StoreError> {
        self.grant(class, estimate).map_err(Refused::without_waiting)
    }

    /// Whether [`Store::try_admit`] would admit such a batch of class [`Class::Normal`] now. Claims nothing: the answer
    /// may be another one a moment later. Where there is room for many of them, nobody looks again before as many
    /// batches were logged.
    pub fn has_room(&self, estimate: Estimate) -> bool {
        let ahead = &self.shared.room_until;
        if self.last_lsn().0 < ahead.load(Ordering::Relaxed) {
            return true;
        }
        let last = self.last_lsn().0;
        if !self.has_room_now(estimate) {
            return false;
        }
        let many = |one: usize| one * ROOM_AHEAD_BATCHES as usize;
        let Estimate { bytes, items, images } = estimate;
        if self.has_room_now(Estimate { bytes: many(bytes), items: many(items), images: many(images) }) {
            ahead.store(last + ROOM_AHEAD_BATCHES, Ordering::Relaxed);
        }
        true
    }

    fn has_room_now(&self, estimate: Estimate) -> bool {
        let shared = &self.shared;
        let Some(journal) = shared.journal.get() else { return !shared.options.read_only };
        let (bound, current, live) = {
            let trees = shared.trees.read();
            (trees.nodes_bound(estimate.items), trees.current_nodes, trees.images.len())
        };
        let dirty = current + shared.frozen_nodes.load(Ordering::Relaxed);
        let (may_claim, has_spare) = {
            let mut space = shared.space.lock();
            (
                space.may_claim_nodes(bound, Class::Normal),
                space.has_spare_chunks(live + estimate.images as u64),
            )
        };
        (dirty <= shared.cache.dirty_max() || current == 0)
            && may_claim
            && has_spare
            && journal.has_room(journal.promise(estimate.bytes, estimate.images))
    }

    fn grant(&self, class: Class, estimate: Estimate) -> Result<Permit, Refused> {
        let shared = &self.shared;
        let mut permit = self.empty_permit(class, estimate)?;
        let Some(journal) = shared.journal.get() else { return Ok(permit) };
        let outlook = Outlook::new(&shared.trees.read(), class, estimate);
        permit.nodes = self.admit_nodes(class, &outlook)?;
        let promise = journal.promise(estimate.bytes, outlook.new_images as usize);
        journal.admit(promise, class)?;
        permit.ring = promise;
        Ok(permit)
    }

    /// A permit for a batch of this size, without anything that is promised.
    pub(crate) fn empty_permit(&self, class: Class, estimate: Estimate) -> Result<Permit, StoreError> {
        let shared = &self.shared;
        if shared.options.read_only && shared.open_for_use() {
            return Err(StoreError::ReadOnly);
        }
        let bytes_max = self.batch_bytes_max();
        if estimate.bytes > bytes_max {
            return Err(StoreError::BatchTooLarge { bytes: estimate.bytes, bytes_max });
        }
        Ok(Permit { shared: Arc::clone(shared), class, estimate, ring: Promise::default(), nodes: 0 })
    }

    /// Gives an empty permit what [`Store::try_admit`] would, for a commit at once: the trees are the caller's.
    pub(crate) fn grant_now(&self, trees: &Trees, permit: &mut Permit) -> Result<(), StoreError> {
        let (shared, class) = (&self.shared, permit.class);
        let Some(journal) = shared.journal.get() else { return Ok(()) };
        let outlook = Outlook::new(trees, class, permit.estimate);
        let Outlook { bound, unlink, current, live, new_images } = outlook;
        let dirty = current + shared.frozen_nodes.load(Ordering::Relaxed);
        let is_usual = class == Class::Normal && (dirty <= shared.cache.dirty_max() || current == 0);
        permit.nodes = match is_usual && shared.credit.draw_chunks(bound, live + new_images, unlink + 1) {
            true => bound,
            false => self.admit_nodes(class, &outlook).map_err(Refused::without_waiting)?,
        };
        let promise = journal.promise(permit.estimate.bytes, new_images as usize);
        journal.admit_now(promise, class)?;
        permit.ring = promise;
        Ok(())
    }

    /// Claims free chunks for the nodes that the changes may copy or split.
    ///
    /// Besides, recovery may have to copy a leaf for each image it destages, with nothing but free chunks to put it:
    /// without that many to spare, pages have to go to extents (R18).
    fn admit_nodes(&self, class: Class, outlook: &Outlook) -> Result<u64, Refused> {
        let shared = &self.shared;
        let Outlook { bound, unlink, current, live, new_images } = *outlook;
        let dirty = current + shared.frozen_nodes.load(Ordering::Relaxed);
        let mut space = shared.space.lock();
        if new_images > 0 && !space.has_spare_chunks(live + new_images) {
            return Err(StoreError::Pressure(Pressure::Journal).into());
        }
        if class == Class::Normal && dirty > shared.cache.dirty_max() && current > 0 {
            return Err(StoreError::Pressure(Pressure::Nodes).into());
        }
        space.widen_headroom(unlink);
        if space.claim_nodes(bound, class) {
            return Ok(bound);
        }
        // A checkpoint turns claims into nodes and brings back what they superseded.
        if current > 0 || space.pinned_blocks() > 0 {
            return Err(StoreError::Pressure(Pressure::Nodes).into());
        }
        match space.held_blocks() {
            0 => Err(StoreError::NoSpace.into()),
            _ => Err(Refused::Discarding),
        }
    }

    /// Largest encoded batch that `admit` can ever grant.
    pub fn batch_bytes_max(&self) -> usize {
        self.shared.journal.get().map_or(usize::MAX, |journal| journal.batch_bytes_max())
    }

    /// The right to have `bytes` of data in flight at commit; `None` when the window of 1 MiB is used up: then wait for
    /// the data first, and commit without a slot.
    pub fn data_slot(&self, bytes: u64) -> Option<DataSlot> {
        if self.shared.options.ablation().waiting_for_data() {
            return None;
        }
        let window = &self.shared.data_in_flight;
        window
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                (used + bytes <= DATA_WINDOW_BYTES).then_some(used + bytes)
            })
            .ok()?;
        Some(DataSlot { window: Arc::clone(window), bytes })
    }
}
