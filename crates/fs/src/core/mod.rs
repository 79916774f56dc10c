//! [`Core`]: what every tree of files on one volume shares: the store, the clock, the options, the account of pages in
//! memory, and the lane of bulk data.

use crate::clock::since;
use crate::{Clock, Error, FsOptions, LatencyHistogram, Result};
use levels::Lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use syncline_format::{NameHash, TreeId};
use syncline_store::lock_order::Mutex;
use syncline_store::{Store, StoreError, TreeReader, VolumeInfo};

pub(crate) mod account;
pub(crate) mod agenda;
pub(crate) mod charge;
pub(crate) mod free_slot;
pub(crate) mod lane;
pub(crate) mod levels;
pub(crate) mod tended;

pub(crate) use account::PageAccount;
pub use account::PageStats;
pub(crate) use agenda::Agenda;
pub use charge::MemoryCharge;
pub(crate) use lane::Lane;
pub(crate) use tended::Tended;

/// What the rooms of a filesystem stand on.
pub(crate) struct Core {
    // Constant after open.
    pub(crate) store: Arc<Store>,
    pub(crate) options: FsOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// How names become keys.
    pub(crate) name_hash: NameHash,
    /// What checkpoints took.
    pub(crate) checkpoint_latency: LatencyHistogram,
    /// Pages of all files.
    pub(crate) account: Arc<PageAccount>,
    /// Where bulk data goes to the device.
    pub(crate) lane: Lane,
    /// Bytes of all charges: what transactions keep beside their pages' content, and adapters.
    pub(crate) charged: Arc<AtomicU64>,
    /// Bound on all memory, in bytes, as it is now.
    memory_bytes_max: AtomicUsize,
    /// The tree is a snapshot, beside the volume's head: keeps it from being taken apart (R27).
    pub(crate) reader: Option<TreeReader>,
    /// The open heads.
    heads: Mutex<Vec<Weak<dyn Tended>>>,
    /// The head that the volume was opened with, which knows the others. Of a snapshot's view: none.
    pub(crate) opened: OnceLock<TreeId>,
    /// Where following the schedule of snapshots stands.
    pub(crate) agenda: Agenda,
}

impl Core {
    /// `light_max`: pages that cannot be dropped, with which light writers wait.
    pub(crate) fn new(store: Arc<Store>, options: FsOptions, clock: Arc<dyn Clock>, light_max: u64) -> Core {
        let (account, memory_bytes_max) = (Arc::default(), options.memory_bytes_max);
        let lane = Lane::new(&account, light_max, store.device().bulk_bytes_max());
        Core {
            name_hash: store.info().name_hash,
            store,
            options,
            clock,
            checkpoint_latency: LatencyHistogram::default(),
            lane,
            account,
            charged: Arc::default(),
            memory_bytes_max: AtomicUsize::new(memory_bytes_max),
            reader: None,
            heads: Mutex::new(Lock::Tended, Vec::new()),
            opened: OnceLock::new(),
            agenda: Agenda::new(),
        }
    }

    /// Somebody syncs little, or reads little from the device: bulk data leaves room for it there.
    pub(crate) fn note_small_request(&self) {
        self.lane.note_small_request();
    }

    /// Bound on all memory, in bytes, as it is now.
    pub fn memory_bytes_max(&self) -> usize {
        self.memory_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_memory_bytes_max(&self, bytes: usize) {
        self.memory_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Facts of the superblock.
    pub fn volume_info(&self) -> VolumeInfo {
        self.store.info()
    }

    /// The options it was opened with.
    pub fn options(&self) -> &FsOptions {
        &self.options
    }

    /// Whether changes are refused: opened read-only, or stopped after an error (C8).
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.store.is_read_only() || self.store.failure().is_some()
    }

    /// The error after which the volume stopped, if it did (C8).
    pub fn failure(&self) -> Option<Error> {
        self.store.failure().map(Error::from)
    }

    /// Stops at once, as a power cut would: nothing is written any more, every sync fails. A snapshot's view, which
    /// writes nothing, stops nothing.
    pub fn shut_down(&self) {
        if !self.is_view() {
            self.store.shut_down();
        }
    }

    /// The tree is a snapshot, beside the volume's heads: what it does must change nothing for them.
    pub(crate) fn is_view(&self) -> bool {
        self.reader.is_some()
    }

    /// Writes a checkpoint: metadata moves from the journal to its place. Files' data need not be part of it.
    pub fn checkpoint(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.timed_checkpoint(Store::checkpoint)
    }

    /// Has the store write a checkpoint and notes how long that took, if there was anything to write.
    pub(crate) fn timed_checkpoint(
        &self,
        write: fn(&Store) -> std::result::Result<(), StoreError>,
    ) -> Result<()> {
        let began = self.clock.now();
        let before = self.store.counters().checkpoints;
        write(&self.store)?;
        if self.store.counters().checkpoints > before {
            self.checkpoint_latency.record(since(self.clock.now(), began));
        }
        Ok(())
    }

    /// Makes every metadata operation up to now durable: what `fsync` of a directory promises (C1).
    pub fn sync_metadata(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // Also when nothing is left to force: a failure stays (C8).
        self.check_failure()?;
        Ok(self.store.force(self.store.last_lsn())?)
    }

    /// Errors: `ReadOnly`, or the latched failure.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only || self.store.is_read_only() {
            return Err(Error::ReadOnly);
        }
        match self.store.failure() {
            Some(_) => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.store.failure() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Whether an error says that something of one file cannot be read, and not that the volume has stopped or is
    /// full.
    pub(crate) fn is_damage(&self, error: &Error) -> bool {
        let unreadable = match error {
            Error::Device(_) | Error::Checksum { .. } | Error::Inconsistent { .. } | Error::Format(_) => true,
            Error::Store(error) => error.is_unreadable(),
            _ => false,
        };
        unreadable && self.store.failure().is_none()
    }

    /// Whether everything that was committed is durable: then no started sync is left for anybody to drive.
    pub fn is_forced(&self) -> bool {
        self.store.durable_lsn() >= self.store.last_lsn()
    }
}
