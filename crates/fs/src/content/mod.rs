//! [`Content`]: the files of one tree in memory: inodes, cached pages, extents, and what waits to be written.
//!
//! A file's content is, page by page, the newest of: its cached page, its image in the journal (whose page is always
//! cached, *logged*), its extent, nothing (a hole, zeros).
//!
//! # The turn
//!
//! Every file has a *turn*, a mutex outside of its `Inode::state`. Whoever changes the file's extents or images holds
//! it: writeback and destaging (from the choice of pages until their batch is committed, data I/O included),
//! truncation, punching, removal, shifting. So while one holds the turn no page of the file is under writeback by
//! anybody else, the extents found stay as they are, and the file's identity and truncation count cannot change
//! between the choice of pages and the commit: that is how rule R6 is kept, and a sync that has the turn knows that
//! what others were writing is logged. A page that is written to while its content is in flight is copied
//! (`Arc::make_mut`), keeps its older content in the batch, and stays dirty: no image of the newer content can exist,
//! because logging one takes the turn as well. The one exception: while a round destages a file, a sync logs images
//! of other pages than the round's without the turn.
//!
//! Writers do not take the turn. So what is stored of a file may be looked up under the turn, but which pages are
//! cached, and how large the file is, is asked for under the lock under which it is acted upon. Likewise whoever
//! makes a file grow asks there whether a truncation has left extents to be freed (`Stored::truncating_from`): they
//! would be seen again.
//!
//! # Locks, outermost first
//!
//! turn(s), ascending when several are blocked on (or tried) < `Inode::state`, ascending < `Content::lists` <
//! store. Admission and reservation are asked for before any of them, because relief destages, which takes turns. A
//! turn may be held during data I/O, never during a force, a checkpoint or a relief. `Inode::state` is not held
//! during data I/O.
//!
//! # Invariants
//!
//! - Bytes of a cached page beyond the file's size are zero, and so are stored bytes (extent or image) beyond the
//!   stored size: truncation logs an image of the zeroed last page in its own batch. So growing a file never shows
//!   old bytes.
//! - A page that is dirty or logged holds a block reservation until its extent is logged (R18); the exception are pages
//!   of extents that were allocated by `fallocate` and never written, which are written in place.
//! - A page whose data write is still in flight after its batch was committed stays cached until the write completed.

use crate::PageStats;
use crate::content::aside::AsideFiles;
use crate::content::handles::HandleTable;
use crate::content::lists::Lists;
use crate::content::table::InodeTable;
use crate::core::Core;
use crate::core::levels::Lock;
use crate::limits::{PAGES_MIN, PAGES_PERCENT};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use syncline_format::item::ExtentItem;
use syncline_format::{BLOCK_BYTES, Era, ObjectNo, TreeId};
use syncline_store::Batch;
use syncline_store::lock_order::{Mutex, RwLock};

pub(crate) mod aside;
pub(crate) mod balance;
pub(crate) mod change;
pub(crate) mod estimate;
pub(crate) mod evict;
pub(crate) mod extents;
pub(crate) mod flights;
pub(crate) mod handles;
pub(crate) mod inode;
pub(crate) mod lists;
pub(crate) mod page_state;
pub(crate) mod pages;
pub(crate) mod select;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod turn;
pub(crate) mod watch;

pub use aside::SetAside;
pub use handles::{Handle, HandleId, OpenFlags, Opened};

/// The files of one tree, as far as they are in memory.
pub(crate) struct Content {
    // Constant.
    pub(crate) core: Arc<Core>,
    /// Where the store keeps the files' items.
    pub(crate) tree: TreeId,
    /// Most pages in memory by the bound at opening.
    pub(crate) pages_max: u64,
    /// Inodes in memory.
    pub(crate) inodes: InodeTable,
    /// Open file descriptions.
    pub(crate) handles: HandleTable,
    /// Bounds as they stand now: pages in memory, and bytes of dirty tree nodes.
    pub(crate) pages_bound: AtomicU64,
    pub(crate) dirty_nodes_bound: AtomicU64,
    /// Pages of all flights.
    pub(crate) under_way: Arc<AtomicU64>,
    /// Staged pages that all transactions keep in memory.
    pub(crate) staged: Arc<AtomicU64>,
    pub(crate) lists: Mutex<Lists>,
    /// Held to write while a snapshot is made, to read while a move of extents begins: no snapshot shows half of one.
    pub(crate) moving: RwLock<()>,
    /// `Lists::recent` or `Lists::synced` may hold something. Written with `lists` locked, and read without: forces,
    /// most of which find nothing there, ask here first.
    pub(crate) has_recent: AtomicBool,
    pub(crate) aside: AsideFiles,
    /// Of a snapshot: extents that stand for what its tree has there, by file and first page.
    pub(crate) overlay: OnceLock<BTreeMap<(ObjectNo, u64), ExtentItem>>,
}

impl Content {
    /// What is due after a time is due so long after now: the session begins.
    pub(crate) fn new(core: &Arc<Core>, tree: TreeId) -> Content {
        let now = core.clock.now();
        let memory_bytes_max = core.options.memory_bytes_max;
        let pages_max = Content::pages_max_of(memory_bytes_max);
        Content {
            core: core.clone(),
            tree,
            pages_max,
            inodes: InodeTable::new(memory_bytes_max),
            handles: HandleTable::default(),
            pages_bound: AtomicU64::new(pages_max),
            dirty_nodes_bound: AtomicU64::new(0),
            under_way: Arc::default(),
            staged: Arc::default(),
            lists: Mutex::new(Lock::Lists, Lists { forced: now, checkpointed: now, ..Lists::default() }),
            moving: RwLock::new(Lock::Moving, ()),
            has_recent: AtomicBool::new(false),
            aside: AsideFiles::default(),
            overlay: OnceLock::new(),
        }
    }

    /// Whether the tree may write into blocks that it has since this era: no snapshot has them.
    pub(crate) fn owns(&self, birth: Era) -> bool {
        self.core.store.owns(self.tree, birth).unwrap_or(false)
    }

    /// An empty change of the tree.
    pub(crate) fn batch(&self) -> Batch {
        self.core.store.batch(self.tree)
    }

    /// Most pages in memory, of so many bytes of memory.
    pub(crate) fn pages_max_of(memory_bytes_max: usize) -> u64 {
        Content::pages_at_least(memory_bytes_max as u64 / 100 * PAGES_PERCENT)
    }

    /// Pages in so many bytes, or the fewest that a cache has.
    pub(crate) fn pages_at_least(bytes: u64) -> u64 {
        (bytes / BLOCK_BYTES as u64).max(PAGES_MIN)
    }

    pub(crate) fn page_stats(&self) -> PageStats {
        let account = &self.core.account;
        PageStats {
            cached: account.cached(),
            cached_max: Content::pages_max_of(self.core.memory_bytes_max()),
            dirty: account.dirty(),
            logged: account.logged(),
            hits: account.hits.load(Ordering::Relaxed),
            misses: account.misses.load(Ordering::Relaxed),
            evictions: account.evictions.load(Ordering::Relaxed),
        }
    }
}
