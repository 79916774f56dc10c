//! [`Fs`]: one opened volume, addressed by inode numbers. Adapters stand on it: the mount, and the library with its
//! paths.

use crate::content::Content;
use crate::core::Core;
use crate::core::levels::Lock;
use crate::read::Reader;
use crate::removal::Removal;
use crate::shape::Shape;
use crate::write::Writer;
use crate::writeback::{Writeback, pinned_max_of};
use crate::{
    Attributes, Clock, Error, Files, FsOptions, LatencyHistogram, MemoryCharge, Names, PageStats, Result,
    SetAside, Syncs, Timestamp, VolumeInfo,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use syncline_device::DeviceCounters;
use syncline_format::TreeId;
use syncline_format::item::NAME_BYTES_MAX;
use syncline_store::lock_order::{Mutex, MutexGuard};
use syncline_store::{Counters, Load, Store};

/// An opened volume.
///
/// Every method may be called from any thread. Nothing here checks permissions: a mount leaves that to the kernel.
pub struct Fs {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) shape: Arc<Shape>,
    pub(crate) removal: Arc<Removal>,
    pub(crate) syncs: Arc<Syncs>,
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) names: Arc<Names>,
    pub(crate) files: Files,
    /// Other heads that are open beside this one.
    pub(crate) open_heads: OpenHeads,
}

/// The heads that are open beside the one that the volume was opened with, which tends them. A head stays here until
/// nobody uses it and nothing of it is to be written: its images keep the journal's tail, and its pages hold blocks.
pub(crate) struct OpenHeads {
    by_tree: Mutex<BTreeMap<TreeId, OpenHead>>,
}

/// A head, and who uses it.
pub(crate) struct OpenHead {
    pub(crate) fs: Arc<Fs>,
    /// Each user has a clone.
    pub(crate) users: Arc<()>,
    /// Nobody has opened it: recovery has left something in memory.
    pub(crate) is_left: bool,
}

impl OpenHead {
    pub(crate) fn is_used(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }
}

impl OpenHeads {
    fn new() -> OpenHeads {
        OpenHeads { by_tree: Mutex::new(Lock::Heads, BTreeMap::new()) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<TreeId, OpenHead>> {
        self.by_tree.lock()
    }

    /// Keeps a head open that nobody uses so far.
    pub(crate) fn keep(&self, fs: Arc<Fs>) {
        self.lock().insert(fs.content.tree, OpenHead { fs, users: Arc::new(()), is_left: true });
    }

    pub(crate) fn all(&self) -> Vec<Arc<Fs>> {
        self.lock().values().map(|head| head.fs.clone()).collect()
    }

    /// Lets go of what nobody uses.
    fn let_go(&self) {
        self.lock().retain(|_, head| head.is_used() || head.fs.content.has_to_stay());
    }
}

/// Space and limits of a volume, as `statfs` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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
#[non_exhaustive]
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
    /// The rooms over a store, each on those below it.
    pub(crate) fn over(
        store: Arc<Store>,
        tree: TreeId,
        options: FsOptions,
        clock: Arc<dyn Clock>,
    ) -> Arc<Fs> {
        let (_, light_max) = pinned_max_of(options.memory_bytes_max);
        Fs::of_tree(Arc::new(Core::new(store, options, clock, light_max)), tree)
    }

    /// The rooms of one tree.
    pub(crate) fn of_tree(core: Arc<Core>, tree: TreeId) -> Arc<Fs> {
        let content = Arc::new(Content::new(&core, tree));
        let reader = Arc::new(Reader::new(&content));
        let writeback = Arc::new(Writeback::new(&content));
        let shape = Arc::new(Shape::new(&reader, &writeback));
        let removal = Arc::new(Removal::new(&shape));
        let tended: Weak<Writeback> = Arc::downgrade(&writeback);
        core.tend(tended);
        let syncs = Arc::new(Syncs::new(&writeback));
        let writer = Arc::new(Writer::new(&shape));
        let attributes = Arc::new(Attributes::new(&removal));
        let names = Arc::new(Names::new(&attributes, &syncs));
        let files = Files::new(&names, &writer);
        let open_heads = OpenHeads::new();
        Arc::new(Fs {
            core,
            content,
            reader,
            writeback,
            shape,
            removal,
            syncs,
            attributes,
            names,
            files,
            open_heads,
        })
    }

    /// Names: lookup, creation, removal, renaming, listing.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Attributes of inodes.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Syncs of open files.
    pub fn syncs(&self) -> &Syncs {
        &self.syncs
    }

    /// Operations on open files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Facts of the superblock.
    pub fn volume_info(&self) -> VolumeInfo {
        self.core.volume_info()
    }

    /// The options it was opened with.
    pub fn options(&self) -> &FsOptions {
        self.core.options()
    }

    /// Whether changes are refused: opened read-only, or stopped after an error (C8).
    pub fn is_read_only(&self) -> bool {
        self.core.is_read_only()
    }

    /// The error after which the volume stopped, if it did (C8).
    pub fn failure(&self) -> Option<Error> {
        self.core.failure()
    }

    /// Whether the journal could not be followed to its end, with [`FsOptions::salvage`]: what was synced behind that
    /// is not shown, and of what is shown some pages may be older, or zeros.
    pub fn is_journal_broken(&self) -> bool {
        self.core.store.broken_journal().is_some()
    }

    /// Stops at once, as a power cut would: nothing is written any more, every sync fails. A snapshot's view, which
    /// writes nothing, stops nothing.
    pub fn shut_down(&self) {
        self.core.shut_down();
    }

    /// Writes a checkpoint: metadata moves from the journal to its place. Files' data need not be part of it.
    pub fn checkpoint(&self) -> Result<()> {
        self.core.checkpoint()
    }

    /// Makes every metadata operation up to now durable: what `fsync` of a directory promises (C1).
    pub fn sync_metadata(&self) -> Result<()> {
        self.core.sync_metadata()
    }

    /// Makes everything durable (`sync(2)`): what is dirty at the call, and every metadata operation up to now.
    pub fn sync_all(&self) -> Result<()> {
        self.syncs.sync_all()
    }

    /// For memory that an adapter keeps beside the engine's: nothing yet.
    pub fn memory_charge(&self) -> MemoryCharge {
        self.core.memory_charge()
    }

    /// Memory that is charged, in bytes.
    pub fn charged_bytes(&self) -> u64 {
        self.core.charged_bytes()
    }

    /// Whether background work should be done in small pieces with pauses between them: somebody synced a short while
    /// before the last call of [`Fs::maintain`], and no writer waited for memory then.
    pub fn gives_way(&self) -> bool {
        self.writeback.gives_way() || self.open_heads.all().iter().any(|head| head.writeback.gives_way())
    }

    /// `wake` is called, on the thread of a writer, when so much is dirty that [`Fs::maintain`] should be called
    /// without further delay. Only the first one given counts.
    pub fn on_demand(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.writeback.on_demand(wake);
    }

    /// Whether everything that was committed is durable: then no started sync is left for anybody to drive.
    pub fn is_forced(&self) -> bool {
        self.core.is_forced()
    }

    /// Does background work that is due at `now`, at most `budget` rounds of writeback of up to 4 MiB each; true if
    /// there is more to do. Other heads of the volume that are open are tended as well, each within the budget.
    /// Snapshots are made and deleted as the volume's schedule says ([`Fs::schedules`]).
    ///
    /// A file that is damaged is set aside, and all others are written. Errors: as for a sync; the volume has latched
    /// then (C8).
    pub fn maintain(&self, now: Timestamp, budget: usize) -> Result<bool> {
        self.reader.give_up_ahead(now);
        let mut more = self.writeback.maintain(now, budget)?;
        for head in self.open_heads.all() {
            head.reader.give_up_ahead(now);
            more |= head.writeback.unless_gone(head.writeback.maintain(now, budget))?;
        }
        more |= self.schedules().follow(now)?;
        self.open_heads.let_go();
        Ok(more)
    }

    /// Bound on memory as it is now, in bytes.
    pub fn memory_bytes_max(&self) -> usize {
        self.core.memory_bytes_max()
    }

    /// Changes the bound on memory, in bytes. Pages, tree nodes and inodes beyond it go at once as far as nobody needs
    /// them. How much may be dirty before writers wait stays as the bound at opening made it.
    pub fn set_memory_bytes_max(&self, bytes: usize) {
        self.core.set_memory_bytes_max(bytes);
        self.content.follow_memory_bound();
    }

    /// Counters since the volume was opened.
    pub fn stats(&self) -> FsStats {
        FsStats {
            device: self.core.store.device().counters(),
            store: self.core.store.counters(),
            load: self.core.store.load(),
            pages: self.content.page_stats(),
            checkpoint_latency: self.core.checkpoint_latency.clone(),
            set_aside: self.content.set_aside_stats(),
            inodes_cached: self.content.inodes.len() as u64,
            memory_bytes_max: self.core.memory_bytes_max() as u64,
        }
    }

    /// Space and limits.
    pub fn statfs(&self) -> VolumeSpace {
        let space = self.core.store.space();
        let mut id = [0; 8];
        id.copy_from_slice(&self.core.store.info().uuid[..8]);
        VolumeSpace {
            block_bytes: syncline_format::BLOCK_BYTES as u32,
            blocks: space.total,
            blocks_free: space.free,
            // A writer that finds no space has a checkpoint written, which gives back what has been removed.
            blocks_available: (space.available + space.pinned).min(space.free),
            name_bytes_max: NAME_BYTES_MAX as u32,
            id: u64::from_le_bytes(id),
        }
    }
}
