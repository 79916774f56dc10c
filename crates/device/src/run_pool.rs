//! Memory for large reads: runs of 1 MiB that lie in one piece in the machine's memory as well.
//!
//! A read into blocks of the cache is a list of pages scattered over the machine's memory, each a segment of its own
//! for every driver down to the device; on a loop device over a virtual disk such reads reach 1.1 to 1.8 GB/s where
//! reads into huge pages reach 2.9 (fio, 1 MiB, two in flight). So large reads go into a run, and from there, while
//! they are verified, into blocks.
//!
//! A run is half of a huge page. They are few and used again: a huge page that was never used may be slow to come
//! (see [`crate::page_pool`]). When all are in use, reads go into blocks directly.
#![allow(unsafe_code)]

use crate::PerProcess;
use crate::page_pool::map_aligned;
use parking_lot::Mutex;
use std::ptr::NonNull;
use syncline_format::BLOCK_BYTES;

const RUN_BYTES: usize = HUGE_PAGE_BYTES / 2;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Most blocks of a run.
pub(crate) const RUN_BLOCKS_MAX: usize = RUN_BYTES / BLOCK_BYTES;
/// Runs of a process, 8 MiB: a file that is read in order has up to five in use, one for its reader and four ahead of
/// it.
const RUNS_MAX: usize = 8;

static RUNS: PerProcess<Mutex<Runs>> = PerProcess::new(|| Mutex::new(Runs { free: Vec::new(), mapped: 0 }));

struct Runs {
    free: Vec<NonNull<u8>>,
    /// In use or free.
    mapped: usize,
}

// SAFETY: a free run is nobody's memory but the pool's, and is reached under its lock only.
unsafe impl Send for Runs {}

/// Lends a run of initialised bytes (zeros, or what its last user left); `None` if all are in use.
pub(crate) fn take() -> Option<NonNull<u8>> {
    let mut runs = RUNS.get().lock();
    if runs.free.is_empty() && runs.mapped < RUNS_MAX {
        // Under the lock: it happens four times in a process.
        let page = map_aligned(HUGE_PAGE_BYTES, libc::MADV_HUGEPAGE)?;
        // SAFETY: the second half of the mapping.
        runs.free.extend([page, unsafe { page.add(RUN_BYTES) }]);
        runs.mapped += 2;
    }
    runs.free.pop()
}

/// Takes a run back.
///
/// # Safety
/// The run came from [`take`], was not given back since, and is not used any more. In a forked child it may be one of
/// the parent's time: the child's copy of it is as good as any.
pub(crate) unsafe fn give_back(run: NonNull<u8>) {
    RUNS.get().lock().free.push(run);
}
