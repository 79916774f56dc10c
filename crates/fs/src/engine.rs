//! [`Fs`]: one opened volume, addressed by inode numbers. Adapters stand on it: the mount, and the library with its
//! paths.

use crate::clock::{Clock, since};
use crate::data::Writeback;
use crate::handle::HandleTable;
use crate::inode::Inode;
use crate::namespace::InodeTable;
use crate::{Error, LatencyHistogram, PageStats, Result, SetAside};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use syncline_device::DeviceCounters;
use syncline_format::ObjectNo;
use syncline_format::item::NAME_BYTES_MAX;
use syncline_store::{Ablation, Counters, Load, Store, StoreError, VolumeInfo};

/// How a volume behaves once it is open.
#[derive(Debug, Clone)]
pub struct FsOptions {
    /// Writes nothing, not even recovery.
    pub read_only: bool,
    /// Un-synced data is written and committed after at most this long (contract C9).
    pub commit_interval: Duration,
    /// Bound on all memory for cached pages and tree nodes, in bytes.
    pub memory_bytes_max: usize,
    /// Update access times: always, relative to modification (the default), or never.
    pub access_times: AccessTimes,
    /// Whoever reads keeps what was read, as the kernel does above a mount: files that are read in order and in large
    /// pieces are not cached a second time.
    pub readers_keep: bool,
    /// Mechanisms to do without, for a benchmark.
    #[doc(hidden)]
    pub ablation: Ablation,
}

/// When reading updates a file's access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// Not at all.
    Never,
    /// When the old one is not newer than modification or change, or older than a day.
    #[default]
    Relative,
    /// With every read.
    Always,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            read_only: false,
            commit_interval: Duration::from_secs(1),
            memory_bytes_max: 256 << 20,
            access_times: AccessTimes::default(),
            readers_keep: false,
            ablation: Ablation::default(),
        }
    }
}

/// An opened volume.
///
/// Every method may be called from any thread. Nothing here checks permissions: a mount leaves that to the kernel.
pub struct Fs {
    // Constant after open.
    pub(crate) store: Arc<Store>,
    pub(crate) options: FsOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// Seed of the hashes that names are found by.
    pub(crate) hash_seed: u64,
    /// Inodes in memory.
    pub(crate) inodes: InodeTable,
    /// Open file descriptions.
    pub(crate) handles: HandleTable,
    /// Renames of directories, one at a time: outermost lock.
    pub(crate) renames: Mutex<()>,
    /// Dirty and logged pages of all files, and the page cache's account.
    pub(crate) writeback: Writeback,
    /// What checkpoints took.
    pub(crate) checkpoint_latency: LatencyHistogram,
}

/// Space and limits of a volume, as `statfs` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeSpace {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Blocks that files and metadata can take in all.
    pub blocks: u64,
    /// Blocks not in use.
    pub blocks_free: u64,
    /// Blocks that a new file could take now.
    pub blocks_available: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
    /// Distinguishes volumes (`f_fsid`).
    pub id: u64,
}

/// What a volume has done since it was opened, and how full its bounded things are.
#[derive(Debug, Clone, Default)]
pub struct FsStats {
    /// Reads, writes and flushes of the device.
    pub device: DeviceCounters,
    /// Groups made durable and the batches in them, checkpoints, hits and misses of the node cache.
    pub store: Counters,
    /// How full journal and node cache are.
    pub load: Load,
    /// The page cache.
    pub pages: PageStats,
    /// What checkpoints took, from the request on: a wait for the one before is part of it.
    pub checkpoint_latency: LatencyHistogram,
    /// What is damaged and set aside.
    pub set_aside: SetAside,
    /// Inodes in memory.
    pub inodes_cached: u64,
    /// Bound on all memory for pages, tree nodes and inodes, in bytes.
    pub memory_bytes_max: u64,
}

impl Fs {
    /// Counters since the volume was opened.
    pub fn stats(&self) -> FsStats {
        FsStats {
            device: self.store.device().counters(),
            store: self.store.counters(),
            load: self.store.load(),
            pages: self.writeback.page_stats(),
            checkpoint_latency: self.checkpoint_latency.clone(),
            set_aside: self.set_aside_stats(),
            inodes_cached: self.inodes.len() as u64,
            memory_bytes_max: self.options.memory_bytes_max as u64,
        }
    }

    /// Space and limits.
    pub fn statfs(&self) -> VolumeSpace {
        let space = self.store.space();
        let mut id = [0; 8];
        id.copy_from_slice(&self.store.info().uuid[..8]);
        VolumeSpace {
            block_bytes: syncline_format::BLOCK_BYTES as u32,
            blocks: space.total,
            blocks_free: space.free,
            blocks_available: space.available,
            name_bytes_max: NAME_BYTES_MAX as u32,
            id: u64::from_le_bytes(id),
        }
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

    /// Stops at once, as a power cut would: nothing is written any more, every sync fails.
    pub fn shut_down(&self) {
        self.store.shut_down();
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

    /// A directory that is in use. Errors: `NotDirectory`, `NotFound`.
    pub(crate) fn directory(&self, number: ObjectNo) -> Result<Arc<Inode>> {
        let inode = self.inode(number)?;
        if !inode.state.read().item.is_directory() {
            return Err(Error::NotDirectory);
        }
        Ok(inode)
    }
}
