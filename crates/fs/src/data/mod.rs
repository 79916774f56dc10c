//! Content of regular files: page cache, extents, writeback, sync, truncation, destaging, admission and relief.
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
//! makes a file grow asks there whether a truncation has left extents to be freed (`FileData::truncating_from`): they
//! would be seen again.
//!
//! # Locks, outermost first
//!
//! turn(s), ascending when several are blocked on (or tried) < `Inode::state`, ascending < `Writeback::lists` <
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

mod account;
mod admit;
mod allocate;
mod aside;
mod balance;
mod charge;
mod choice;
mod clear;
mod deferred;
mod evict;
mod extents;
mod flight;
mod hint;
mod lane;
mod maintain;
mod pages;
mod patience;
mod piggyback;
mod read;
mod recovery;
mod round;
mod seek;
mod shift;
mod spill;
mod staged;
mod staged_commit;
mod staged_size;
mod steps;
mod stream;
mod sync;
mod together;
mod truncate;
mod watch;
mod write;

#[cfg(test)]
mod tests;

pub use account::PageStats;
pub(crate) use account::Writeback;
pub use aside::SetAside;
pub use charge::MemoryCharge;
pub use deferred::{Begun, PendingSync, Reach};
pub use hint::Started;
pub(crate) use pages::FileData;
pub use round::at_once::WrittenOut;
pub(crate) use staged::Staging;
pub(crate) use staged_commit::FilePlan;
pub use staged_size::Footprint;
pub use together::{SyncStart, TOGETHER_PAGES_MAX};

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteAt {
    Offset(u64),
    /// At the end of the file, atomically with its growth (`O_APPEND`).
    End,
}

/// What `fallocate` is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate blocks where there are none; the size grows unless it is kept.
    Allocate {
        /// Leave the file's size alone.
        keep_size: bool,
    },
    /// The range becomes a hole and reads as zeros; the size stays.
    PunchHole,
    /// The range becomes zeros that have blocks.
    ZeroRange {
        /// Leave the file's size alone.
        keep_size: bool,
    },
    /// Takes the range out; what follows moves down. Whole pages only.
    CollapseRange,
    /// Puts a hole in; what follows moves up. Whole pages only.
    InsertRange,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhat {
    /// The next byte that is not in a hole.
    Data,
    /// The next byte that is in one; the end of the file is.
    Hole,
}

/// What a sync of a file has to cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncScope {
    /// `fdatasync`: content, and the metadata needed to read it back.
    Data,
    /// `fsync`.
    All,
}
