//! Writeback hints (C6): ranges whose dirty pages the background is to write before anything else.
//!
//! A hint only queues its range and wakes the background, which writes it as it writes everything: in small pieces
//! while others sync. What is queued is bounded; a hint beyond that is taken in part, and its count says so.

use crate::Result;
use crate::content::inode::Inode;
use crate::content::select::Select;
use crate::core::levels::Lock;
use crate::limits::{HINTED_PAGES_MAX, HINTS_MAX};
use crate::writeback::Writeback;
use crate::writeback::stream::Pace;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};
use syncline_store::Class;
use syncline_store::lock_order::Mutex;

/// What a writeback hint has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Bytes of dirty pages, whole pages, that are now on their way to the device.
    pub bytes: u64,
}

struct Hint {
    inode: Weak<Inode>,
    pages: Range<u64>,
    /// Of these, how many were dirty.
    dirty: u64,
}

/// Hints that wait.
pub(crate) struct Hints {
    queue: Mutex<VecDeque<Hint>>,
}

impl Default for Hints {
    fn default() -> Hints {
        Hints { queue: Mutex::new(Lock::Hints, VecDeque::new()) }
    }
}

impl Writeback {
    /// Returns how many dirty pages were taken that no other hint has taken before.
    pub(crate) fn queue_hint(&self, inode: &Arc<Inode>, pages: Range<u64>) -> u64 {
        let state = inode.state.read();
        let mut queue = self.hints.queue.lock();
        if queue.len() >= HINTS_MAX {
            return 0;
        }
        let room = HINTED_PAGES_MAX.saturating_sub(queue.iter().map(|hint| hint.dirty).sum());
        let same = |hint: &&Hint| std::ptr::eq(hint.inode.as_ptr(), Arc::as_ptr(inode));
        let queued: Vec<Range<u64>> = queue.iter().filter(same).map(|hint| hint.pages.clone()).collect();
        let news = state.data.dirty_range(pages).map(|(page, _)| page);
        let mut news = news.filter(|page| !queued.iter().any(|range| range.contains(page)));
        let mut taken = None;
        let mut dirty = 0;
        for page in news.by_ref().take(room as usize) {
            dirty += 1;
            taken = Some(taken.map_or(page..page + 1, |range: Range<u64>| range.start..page + 1));
        }
        if let Some(pages) = taken {
            queue.push_back(Hint { inode: Arc::downgrade(inode), pages, dirty });
        }
        dirty
    }

    /// Writes what the oldest hint asks for, or a piece of it; true if there was one.
    pub(crate) fn write_hinted(&self, pace: Pace) -> Result<bool> {
        let Some(hint) = self.hints.queue.lock().pop_front() else { return Ok(false) };
        let Some(inode) = hint.inode.upgrade() else { return Ok(true) };
        let select = Select { pages: hint.pages.clone(), whole: None, logged: false };
        if select.of(&inode.state.read().data).next().is_none() {
            return Ok(true);
        }
        let rest = self.write_group_apart(Class::Normal, &[(inode, select)], pace)?[0];
        if let Some(rest) = rest.filter(|rest| *rest < hint.pages.end) {
            let pages = rest..hint.pages.end;
            let dirty = hint.dirty.min(pages.end - pages.start);
            self.hints.queue.lock().push_front(Hint { pages, dirty, ..hint });
        }
        Ok(true)
    }
}
