//! The store's public face.

use crate::{Batch, Class, DataSlot, Estimate, FormatOptions, Permit, StoreError, StoreOptions};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use syncline_device::Device;
use syncline_format::{BlockNo, Generation, Key, Lsn, ObjectNo, TreeId};

#[derive(Debug)]
pub(crate) struct Shared;

/// Contiguous blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: BlockNo,
    pub len: u32,
}

/// Blocks set aside for data that is not allocated yet (R18). Dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    blocks: u64,
}

impl Reservation {
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Splits off `blocks` of the reservation (at most all of it).
    pub fn split(&mut self, blocks: u64) -> Reservation {
        let _ = blocks;
        panic!("under construction")
    }

    /// Takes over another reservation of the same store.
    pub fn merge(&mut self, other: Reservation) {
        let _ = (other, &self.shared);
        panic!("under construction")
    }
}

/// Space of the volume, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
pub struct Load {
    /// Bytes of the ring in use, and its capacity.
    pub ring_bytes: u64,
    pub ring_bytes_max: u64,
    pub dirty_node_bytes: u64,
    pub dirty_node_bytes_max: u64,
    pub pinned_blocks: u64,
    /// Live page images.
    pub images: u64,
    /// Batches since the last checkpoint's LSN.
    pub batches: u64,
}

/// Facts of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    pub uuid: [u8; 16],
    pub label: String,
    pub hash_seed: u64,
    pub blocks: u64,
    pub journal_blocks: u64,
    pub generation: Generation,
}

/// A page image that recovery found live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    pub tree: TreeId,
    pub object: ObjectNo,
    pub page: u64,
    /// The whole page, 4096 bytes.
    pub bytes: Vec<u8>,
}

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoverySummary {
    pub records: u64,
    pub batches: u64,
    pub images: u64,
    /// Chained records beyond the end of the log that proved incomplete.
    pub records_cut: u64,
}

/// A volume being opened: the journal is replayed in memory, nothing is written yet. Batches committed to
/// [`Recovery::store`] are applied without being logged; [`Recovery::finish`] makes them durable by a checkpoint.
pub struct Recovery {
    store: Arc<Store>,
    images: Vec<PageImage>,
    summary: RecoverySummary,
}

impl Recovery {
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Takes the live page images. A writable volume has to destage them all before `finish` (R10); a read-only one
    /// serves them from memory.
    pub fn take_images(&mut self) -> Vec<PageImage> {
        std::mem::take(&mut self.images)
    }

    pub fn summary(&self) -> RecoverySummary {
        self.summary
    }

    /// Ends recovery: the checkpoint that starts the new epoch (nothing is written when read-only).
    pub fn finish(self) -> Result<Arc<Store>, StoreError> {
        panic!("under construction")
    }
}

/// Lets a force fill its record with what is about to be synced anyway.
pub trait Piggyback: Send + Sync {
    /// Called by the leader of a force just before it seals its record, without any store lock held. May commit
    /// batches of about `room` bytes in all; must not wait for anything.
    fn fill(&self, room: usize);
}

/// The item store of one volume.
pub struct Store {
    shared: Arc<Shared>,
}

#[allow(unused_variables)]
impl Store {
    /// Formats the device. `progress` is told (done, of) bytes.
    pub fn format(
        device: &dyn Device,
        options: &FormatOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), StoreError> {
        panic!("under construction")
    }

    /// Opens a volume: chooses the superblock, loads the bitmaps, replays the journal in memory. Writes nothing.
    pub fn open(device: Arc<dyn Device>, options: StoreOptions) -> Result<Recovery, StoreError> {
        panic!("under construction")
    }

    pub fn device(&self) -> &Arc<dyn Device> {
        panic!("under construction")
    }

    pub fn info(&self) -> VolumeInfo {
        panic!("under construction")
    }

    pub fn is_read_only(&self) -> bool {
        panic!("under construction")
    }

    /// The value of an item of the main tree.
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>, StoreError> {
        panic!("under construction")
    }

    /// Visits the items of the main tree in `from..end`, ascending, until the visitor breaks. No lock is held during a
    /// visit; each leaf is seen at one moment, the whole scan is not.
    pub fn scan(
        &self,
        from: Key,
        end: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        panic!("under construction")
    }

    /// The item with the greatest key not above `key`.
    pub fn last_at_or_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>, StoreError> {
        panic!("under construction")
    }

    /// A number that was never used for an object of this volume. Durable with the first batch that names it.
    pub fn new_object(&self) -> ObjectNo {
        panic!("under construction")
    }

    /// Sets blocks aside. Errors: `NoSpace` (a checkpoint may bring pinned blocks back: see [`Space::pinned`]).
    pub fn reserve(&self, blocks: u64) -> Result<Reservation, StoreError> {
        panic!("under construction")
    }

    /// Turns up to `blocks` reserved blocks into one contiguous run, at least one block long, in `near`'s vicinity if
    /// possible. The run is in nobody's bitmap until a batch names it; the reservation shrinks by its length.
    pub fn allocate(&self, from: &mut Reservation, blocks: u32, near: Option<BlockNo>) -> Run {
        panic!("under construction")
    }

    /// Gives back a run that no batch has named and to which no write is in flight (R8); the blocks return to `to`.
    pub fn abandon(&self, run: Run, to: &mut Reservation) {
        panic!("under construction")
    }

    pub fn space(&self) -> Space {
        panic!("under construction")
    }

    pub fn load(&self) -> Load {
        panic!("under construction")
    }

    /// Asks for room for a batch. Never waits: under pressure it says which ([`StoreError::Pressure`]).
    pub fn admit(&self, class: Class, estimate: Estimate) -> Result<Permit, StoreError> {
        panic!("under construction")
    }

    /// Largest encoded batch that `admit` can ever grant.
    pub fn batch_bytes_max(&self) -> usize {
        panic!("under construction")
    }

    /// The right to have `bytes` of data in flight at commit; `None` when the window of 1 MiB is used up: then wait for
    /// the data first, and commit without a slot.
    pub fn data_slot(&self, bytes: u64) -> Option<DataSlot> {
        panic!("under construction")
    }

    /// Applies the batch and appends it to the journal buffer; it is then visible, ordered, and durable once
    /// `force` has returned for its LSN. Reads tree nodes from the device if they are not cached, before anything is
    /// changed: an error leaves no trace. Never waits for the journal.
    pub fn commit(&self, permit: Permit, batch: Batch) -> Result<Lsn, StoreError> {
        panic!("under construction")
    }

    /// LSN of the newest batch.
    pub fn last_lsn(&self) -> Lsn {
        panic!("under construction")
    }

    /// Everything up to this LSN is durable.
    pub fn durable_lsn(&self) -> Lsn {
        panic!("under construction")
    }

    /// Makes everything up to `lsn` durable; no I/O if it already is. Blocks; the first caller leads and drives the
    /// device on its own thread, the others wait for it.
    pub fn force(&self, lsn: Lsn) -> Result<(), StoreError> {
        panic!("under construction")
    }

    /// Starts making everything up to `lsn` durable and calls `done` when it is, on the thread that drives the force
    /// ([`Store::drive`], or any blocking caller of [`Store::force`]).
    pub fn start_force(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<(), StoreError>) + Send>) {
        panic!("under construction")
    }

    /// Advances started forces without blocking; true while some are still pending.
    pub fn drive(&self) -> bool {
        panic!("under construction")
    }

    /// Registers who fills records (held weakly).
    pub fn set_piggyback(&self, hook: Weak<dyn Piggyback>) {
        panic!("under construction")
    }

    /// Writes a checkpoint; logging and forces go on meanwhile. One at a time: a second caller waits for the first and
    /// then writes its own. Call it without locks.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        panic!("under construction")
    }

    /// The last checkpoint of a session: everything is in it, and the superblock says clean.
    pub fn close(&self) -> Result<(), StoreError> {
        panic!("under construction")
    }

    /// Latches the store after a failed data write (C8): nothing becomes durable any more.
    pub fn fail(&self, cause: syncline_device::DeviceError) {
        panic!("under construction")
    }

    /// Stops at once, as a power cut would: nothing is written any more.
    pub fn shut_down(&self) {
        panic!("under construction")
    }

    /// The latched failure, if any.
    pub fn failure(&self) -> Option<StoreError> {
        panic!("under construction")
    }
}
