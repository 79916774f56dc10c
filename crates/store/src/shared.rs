//! What every handle of one opened volume shares. The order of its locks is in `locks.rs`.

use crate::deletion::Ahead;
use crate::journal::Journal;
use crate::locks::{Mutex, RwLock};
use crate::primitives::{AtomicBool, AtomicU64, Ordering};
use crate::root_tree::RootTree;
use crate::snapshot::InheritedPage;
use crate::space::{Credit, SpaceMap};
use crate::store::{Piggyback, VolumeInfo};
use crate::tree::cache::NodeCache;
use crate::trees::Trees;
use crate::{StoreError, StoreOptions};
use std::sync::{Arc, OnceLock, Weak};
use syncline_device::Device;
use syncline_format::VolumeId;
use syncline_format::layout::Layout;
use syncline_format::superblock::Superblock;

pub(crate) struct Shared {
    // Constant after open.
    pub(crate) device: Arc<dyn Device>,
    pub(crate) volume: VolumeId,
    pub(crate) options: StoreOptions,
    /// Of this session's records; chosen when the ring has been read.
    pub(crate) epoch: OnceLock<u64>,
    /// What ended the log amid, if that is shown all the same.
    pub(crate) broken_journal: OnceLock<StoreError>,
    pub(crate) cache: NodeCache,
    /// Absent while the volume recovers and when it is read-only: batches are applied without being logged.
    pub(crate) journal: OnceLock<Journal>,
    /// The durable superblock and its slot. One checkpoint at a time holds this.
    pub(crate) checkpointing: Mutex<Durable>,
    /// Held by whoever settles what snapshots inherited, or takes deleted trees apart; with what the last step of a
    /// deletion has asked the device for.
    pub(crate) settling: Mutex<Option<Ahead>>,
    /// Held by who holds free blocks to discard them.
    pub(crate) trimming: Mutex<()>,
    /// Nothing more is to be discarded. Relaxed: one more discard does no harm.
    pub(crate) trims_end: AtomicBool,
    pub(crate) trees: RwLock<Trees>,
    pub(crate) space: Mutex<SpaceMap>,
    /// What is to be had of it without its lock.
    pub(crate) credit: Arc<Credit>,
    /// Up to this LSN there is room for small batches, as it was seen last. Relaxed: a guess.
    pub(crate) room_until: AtomicU64,
    pub(crate) piggyback: OnceLock<Weak<dyn Piggyback>>,
    pub(crate) next_object: AtomicU64,
    /// Bytes of data in flight whose batches are logged already.
    pub(crate) data_in_flight: Arc<AtomicU64>,
    pub(crate) checkpoints: AtomicU64,
    /// Generation of the durable superblock.
    pub(crate) generation: AtomicU64,
    /// LSN of the last durable checkpoint.
    pub(crate) checkpoint_lsn: AtomicU64,
    /// Of a volume opened read-only: pages of snapshots whose content only the journal holds.
    pub(crate) unsettled: OnceLock<Vec<InheritedPage>>,
    /// The session has ended: the device may be somebody else's. Relaxed: whoever reads beside the end verifies sums.
    pub(crate) ended: AtomicBool,
    /// Recovery is over (a read-only volume has no journal even then).
    pub(crate) opened: AtomicBool,
    pub(crate) layout: Layout,
    /// The volume has version 2.
    pub(crate) has_trees: bool,
    /// Facts of the superblock; its generation as of the open.
    pub(crate) info: VolumeInfo,
    /// Nodes of the running checkpoint that are still in memory because of it.
    pub(crate) frozen_nodes: AtomicU64,
}

/// The state that the last durable superblock describes.
pub(crate) struct Durable {
    pub(crate) superblock: Superblock,
    /// 0 or 1; the next superblock goes to the other one (R9).
    pub(crate) slot: usize,
    /// The root tree under it.
    pub(crate) root_tree: RootTree,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({:?})", self.volume)
    }
}

impl Shared {
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The session's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.get().expect("nothing is written before the ring has been read")
    }

    /// Whether recovery is over.
    pub(crate) fn open_for_use(&self) -> bool {
        self.opened.load(Ordering::Acquire)
    }
}
