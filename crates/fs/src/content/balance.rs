//! Sharing the memory bound between pages and tree nodes.
//!
//! A program that makes a million files needs nodes and no pages, one that streams needs pages and no nodes. Random
//! changes to a tree make a leaf dirty each, so the dirty nodes that fit decide how many changes a checkpoint is good
//! for. Nodes take what pages leave, down to a part that each is sure of; pages that come later push the nodes back.
//!
//! Invariant: the bounds on clean nodes, dirty nodes and pages, with what is charged (`charge`), never make more than
//! [`SHARED_PERCENT`] of the memory bound together, where more dirty nodes than their bound has shrunk to count until
//! they are written.

use crate::content::Content;
use crate::limits::{CLEAN_PERCENT, DIRTY_PERCENT, GROWTH_PERCENT, PAGES_PERCENT, SHARED_PERCENT};
use std::sync::atomic::Ordering;
use syncline_format::BLOCK_BYTES;

const _: () = assert!(CLEAN_PERCENT + DIRTY_PERCENT.0 + PAGES_PERCENT <= SHARED_PERCENT);

/// Bounds in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    clean: u64,
    dirty: u64,
    pages: u64,
}

impl Bounds {
    /// For so many bytes of memory, of which others are charged for some, given what pages and dirty nodes take now.
    fn new(memory: u64, charged: u64, pages: u64, dirty: u64) -> Bounds {
        let percent = |share: u64| memory / 100 * share;
        let clean = percent(CLEAN_PERCENT);
        let both = (percent(SHARED_PERCENT) - clean).saturating_sub(charged);
        let dirty_max = both
            .saturating_sub(pages + percent(GROWTH_PERCENT))
            .clamp(percent(DIRTY_PERCENT.0), percent(DIRTY_PERCENT.1));
        let pages_max = both.saturating_sub(dirty_max.max(dirty)).min(percent(PAGES_PERCENT));
        Bounds { clean, dirty: dirty_max, pages: pages_max }
    }
}

impl Content {
    /// Sets the bounds by what is in memory now; true if more nodes may be dirty than before.
    pub(crate) fn balance_memory(&self) -> bool {
        if self.core.is_view() {
            // The nodes are the head's to bound.
            return false;
        }
        let pages = self.core.account.cached() * BLOCK_BYTES as u64;
        let memory = self.core.memory_bytes_max() as u64;
        let bounds =
            Bounds::new(memory, self.core.charged_bytes(), pages, self.core.store.dirty_node_bytes());
        self.pages_bound.store(Content::pages_at_least(bounds.pages), Ordering::Relaxed);
        let before = self.dirty_nodes_bound.swap(bounds.dirty, Ordering::Relaxed);
        if before != bounds.dirty {
            self.core.store.set_node_bounds(bounds.clean as usize, bounds.dirty as usize);
        }
        before < bounds.dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_nodes_share_what_there_is_and_never_exceed_it() {
        let memory = 256 << 20;
        for pages_percent in 0..=PAGES_PERCENT {
            for dirty_percent in 0..=DIRTY_PERCENT.1 {
                let (pages, dirty) = (memory / 100 * pages_percent, memory / 100 * dirty_percent);
                let bounds = Bounds::new(memory, 0, pages, dirty);
                let sum = bounds.clean + bounds.dirty.max(dirty) + bounds.pages;
                assert!(sum <= memory / 100 * SHARED_PERCENT, "{bounds:?} at {pages} and {dirty}");
            }
        }
        let (idle, busy) = (Bounds::new(memory, 0, 0, 0), Bounds::new(memory, 0, memory / 3, 0));
        assert!(idle.dirty > 2 * busy.dirty, "{idle:?} {busy:?}");
        // A cache that is full grows until it has its share.
        let mut pages = 0;
        for _ in 0..100 {
            pages = Bounds::new(memory, 0, pages, 0).pages;
        }
        assert_eq!(pages, memory / 100 * PAGES_PERCENT);
        for charged in [memory / 16, memory / 4] {
            let bounds = Bounds::new(memory, charged, pages, 0);
            let sum = bounds.clean + bounds.dirty + bounds.pages + charged;
            assert!(sum <= memory / 100 * SHARED_PERCENT, "{bounds:?} with {charged} charged");
        }
    }
}
