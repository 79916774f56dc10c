//! [`PageAccount`]: how many pages of all files are in memory, and what they wait for.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a page counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    pub(crate) dirty: bool,
    pub(crate) logged: bool,
    /// Its newest content is not logged.
    pub(crate) unlogged: bool,
    /// Cannot be dropped.
    pub(crate) pinned: bool,
}

/// The page cache: what is in it, and what it was good for since the volume was opened. In pages of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PageStats {
    /// Pages in memory.
    pub cached: u64,
    /// Bound on these; pages that cannot be dropped yet may go beyond it for a moment.
    pub cached_max: u64,
    /// Of these, newer than anything in the journal or its place.
    pub dirty: u64,
    /// Of these, durable in the journal only.
    pub logged: u64,
    /// Pages that a read found in memory.
    pub hits: u64,
    /// Pages that a read did not find in memory, holes included: these are not kept.
    pub misses: u64,
    /// Pages dropped to stay within the bound.
    pub evictions: u64,
}

/// Counts pages of all files.
#[derive(Default)]
pub(crate) struct PageAccount {
    cached: AtomicU64,
    dirty: AtomicU64,
    logged: AtomicU64,
    pinned: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) evictions: AtomicU64,
}

impl PageAccount {
    pub(crate) fn added(&self) {
        self.cached.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn removed(&self, pages: u64) {
        self.cached.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Pages were dropped to stay within the bound.
    pub(crate) fn evicted(&self, pages: u64) {
        self.removed(pages);
        self.evictions.fetch_add(pages, Ordering::Relaxed);
    }

    /// A read found pages in memory.
    pub(crate) fn hit(&self, pages: u64) {
        self.hits.fetch_add(pages, Ordering::Relaxed);
    }

    /// A read did not find pages in memory.
    pub(crate) fn missed(&self, pages: u64) {
        self.misses.fetch_add(pages, Ordering::Relaxed);
    }

    /// A page's standing changed.
    pub(crate) fn moved(&self, before: Standing, after: Standing) {
        let count = |counter: &AtomicU64, before: bool, after: bool| match (before, after) {
            (false, true) => drop(counter.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        };
        count(&self.dirty, before.dirty, after.dirty);
        count(&self.logged, before.logged, after.logged);
        count(&self.pinned, before.pinned, after.pinned);
    }

    pub(crate) fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    pub(crate) fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed)
    }

    /// Pages that cannot be dropped.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }
}
