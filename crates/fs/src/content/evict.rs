//! Keeping the page cache within its bound.
//!
//! The clock goes round the files that have cached pages, a stretch of each file at a time; a page goes if it is clean
//! and was not used since the last visit. Files whose lock is taken are passed over, so nobody waits here.

use crate::content::Content;
use crate::limits::{EVICTION_VISIT_PAGES, EVICTION_VISITS_MAX};
use std::sync::atomic::Ordering;

impl Content {
    /// Keeps to the bound on memory, which is another one now.
    pub(crate) fn follow_memory_bound(&self) {
        self.inodes.follow(self.core.memory_bytes_max());
        self.balance_memory();
        let mut left = u64::MAX;
        // Each call visits some files only; the second one meets what the first has made old.
        for _ in 0..2 {
            while self.core.account.cached() < left {
                left = self.core.account.cached();
                self.shrink_cache();
            }
            left = u64::MAX;
        }
    }

    /// Drops clean pages if there are too many. The caller holds no inode.
    pub(crate) fn shrink_cache(&self) {
        if self.core.account.cached() <= self.pages_bound.load(Ordering::Relaxed) {
            return;
        }
        self.balance_memory();
        let bound = self.pages_bound.load(Ordering::Relaxed);
        if self.core.account.cached() <= bound {
            return;
        }
        // A little more than needed, so that not every read has to come here.
        let goal = bound - bound / 16;
        for _ in 0..EVICTION_VISITS_MAX {
            if self.core.account.cached() <= goal {
                return;
            }
            let Some(next) = self.lists.lock().cached.pop_front() else { return };
            let Some(inode) = next.upgrade() else { continue };
            if let Some(mut state) = inode.state.try_write() {
                state.data.evict(EVICTION_VISIT_PAGES);
                if state.data.cached_pages() == 0 {
                    state.data.listed.in_clock = false;
                    continue;
                }
            }
            self.lists.lock().cached.push_back(next);
        }
    }
}
