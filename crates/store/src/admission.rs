//! Admission: the right to commit a batch, asked for before any lock is taken (R17, R18).
//!
//! A permit is a promise of three bounded things: room in the ring, free chunks for the nodes that the changes may copy
//! or split, and one reserved block of the ring for each image. What lacks is told as pressure, and whoever meets it
//! relieves it. One thing can only be waited for: a discard that holds the last free blocks. [`Store::admit`] waits for
//! it, [`Store::try_admit`] never does.
//!
//! Locks: `trees` (to read), then `space`, then the journal's, one after the other; `trimming` with none of them.

use crate::journal::Promise;
use crate::limits::{DATA_WINDOW_BYTES, HEADROOM_ITEMS};
use crate::lock_order::may_wait;
use crate::locks::Lock;
use crate::primitives::Ordering;
use crate::{Class, DataSlot, Estimate, Permit, Pressure, Store, StoreError};
use std::sync::Arc;

/// Why a batch is not admitted.
enum Refused {
    For(StoreError),
    /// A discard holds the last free blocks.
    Discarding,
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        Refused::For(error)
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
        self.grant(class, estimate).map_err(|refused| match refused {
            Refused::For(error) => error,
            Refused::Discarding => StoreError::Pressure(Pressure::Nodes),
        })
    }

    /// Whether [`Store::try_admit`] would admit such a batch of class [`Class::Normal`] now. Claims nothing: the answer
    /// may be another one a moment later.
    pub fn has_room(&self, estimate: Estimate) -> bool {
        let shared = &self.shared;
        let Some(journal) = shared.journal.get() else { return !shared.options.read_only };
        let (bound, current, live) = {
            let trees = shared.trees.read();
            (trees.nodes_bound(estimate.items), trees.current_nodes, trees.images.len())
        };
        let dirty = current + shared.frozen_nodes.load(Ordering::Relaxed);
        let (may_claim, spare) = {
            let space = shared.space.lock();
            (space.may_claim_nodes(bound, Class::Normal), space.spare_chunks())
        };
        (dirty <= shared.cache.dirty_max() || current == 0)
            && may_claim
            && spare >= live + estimate.images as u64
            && journal.has_room(journal.promise(estimate.bytes, estimate.images))
    }

    fn grant(&self, class: Class, estimate: Estimate) -> Result<Permit, Refused> {
        let shared = &self.shared;
        if shared.options.read_only && shared.open_for_use() {
            return Err(StoreError::ReadOnly.into());
        }
        let Some(journal) = shared.journal.get() else {
            return Ok(Permit { shared: Arc::clone(shared), estimate, ring: Promise::default(), nodes: 0 });
        };
        let bytes_max = journal.batch_bytes_max();
        if estimate.bytes > bytes_max {
            return Err(StoreError::BatchTooLarge { bytes: estimate.bytes, bytes_max }.into());
        }
        let nodes = self.admit_nodes(class, estimate)?;
        let mut permit = Permit { shared: Arc::clone(shared), estimate, ring: Promise::default(), nodes };
        // What destaging logs takes the place of images that there are.
        let images = if class == Class::Destage { 0 } else { estimate.images };
        let promise = journal.promise(estimate.bytes, images);
        journal.admit(promise, class)?;
        permit.ring = promise;
        Ok(permit)
    }

    /// Claims free chunks for the nodes that the changes may copy or split.
    ///
    /// Besides, recovery may have to copy a leaf for each image it destages, with nothing but free chunks to put it:
    /// without that many to spare, pages have to go to extents (R18).
    fn admit_nodes(&self, class: Class, estimate: Estimate) -> Result<u64, Refused> {
        let shared = &self.shared;
        let (bound, unlink, current, live) = {
            let trees = shared.trees.read();
            let bound = match class {
                // Of the volume tree alone, which is small.
                Class::Deletion => trees.volume_nodes_bound(estimate.items),
                _ => trees.nodes_bound(estimate.items),
            };
            (bound, trees.nodes_bound(HEADROOM_ITEMS), trees.current_nodes, trees.images.len())
        };
        let dirty = current + shared.frozen_nodes.load(Ordering::Relaxed);
        let mut space = shared.space.lock();
        let new_images = if class == Class::Destage { 0 } else { estimate.images as u64 };
        if new_images > 0 && space.spare_chunks() < live + new_images {
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
