//! Slowing writers down while too many pages wait to be written.

use crate::Result;
use crate::content::inode::Inode;
use crate::content::pages::PAGE_BYTES;
use crate::content::select::Select;
use crate::limits::{
    LIGHT_PAGES, PICK_FILES_MAX, THROTTLE_ROUNDS_MAX, THROTTLE_WAITS_MAX, THROTTLE_WRITERS_MAX,
};
use crate::writeback::Writeback;
use crate::writeback::files::pack;
use crate::writeback::stream::Pace;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_store::Class;

impl Writeback {
    /// Slows a writer down while too many pages wait to be written: it writes some itself, or, while others do that
    /// already, waits for them once the bound is reached. Light ones have some memory that others leave to them.
    pub(crate) fn throttle(&self, inode: &Inode, len: usize) -> Result<()> {
        let (mut rounds, mut waits) = (0, 0);
        let mut result = Ok(());
        while rounds < THROTTLE_ROUNDS_MAX && waits < THROTTLE_WAITS_MAX {
            let slow = self.must_slow_down(inode, len);
            if slow || self.content.pinned() > self.pinned_max {
                self.slowed.store(true, Ordering::Relaxed);
            }
            if !slow {
                break;
            }
            let seen = self.progress();
            let wrote = self.write_some();
            if wrote.is_err() || self.content.pinned() <= self.pinned_max {
                result = wrote.map(drop);
                break;
            }
            if matches!(wrote, Ok(true)) {
                rounds += 1;
            } else {
                waits += 1;
                self.wait_for_room(seen);
            }
        }
        if waits > 0 {
            // One was woken; there may be room for more.
            self.pass_room_on();
        }
        result
    }

    /// Whether [`Writeback::throttle`] has anything to do.
    pub(crate) fn is_full(&self, inode: &Inode, len: usize) -> bool {
        self.must_slow_down(inode, len) || self.content.pinned() > self.pinned_max
    }

    /// Whether a write of so many bytes is slowed down.
    pub(crate) fn must_slow_down(&self, inode: &Inode, len: usize) -> bool {
        let is_light =
            || len as u64 <= LIGHT_PAGES * PAGE_BYTES && inode.state.read().data.dirty_pages() <= LIGHT_PAGES;
        self.is_short_of_memory(is_light)
    }

    /// One round for the files that wait longest and that nobody else writes, of dirty or of logged pages, whichever
    /// there are more of. False if there was nothing to do, or enough others are at it.
    fn write_some(&self) -> Result<bool> {
        let writers = &self.throttled_writers;
        let one_more = |writers: u64| (writers < THROTTLE_WRITERS_MAX).then_some(writers + 1);
        if writers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Ok(false);
        }
        let logged = self.core.account.dirty() < self.core.account.logged();
        let mut files = self.listed(logged);
        files.retain(|(inode, _)| !inode.state.read().data.is_taken());
        files.truncate(pack(files.iter()));
        let wrote = match files.is_empty() {
            true => Ok(false),
            false => self.write_group_apart(class_of(logged), &files, Pace::ROUND).map(|_| true),
        };
        writers.fetch_sub(1, Ordering::Relaxed);
        wrote
    }

    /// A round or more, as the pace says, for the files that are dirty (or logged) for the longest time; false if there
    /// was none.
    pub(crate) fn write_oldest(&self, logged: bool, pace: Pace) -> Result<bool> {
        let files = self.oldest(logged);
        if files.is_empty() {
            return Ok(false);
        }
        self.write_group_apart(class_of(logged), &files, pace)?;
        Ok(true)
    }

    /// The files that are dirty (or logged) for the longest time, as many as make a round.
    fn oldest(&self, logged: bool) -> Vec<(Arc<Inode>, Select)> {
        let mut files = self.listed(logged);
        files.truncate(pack(files.iter()));
        files
    }

    fn listed(&self, logged: bool) -> Vec<(Arc<Inode>, Select)> {
        let now = self.core.clock.now();
        let lists = self.content.lists.lock();
        let list = if logged { &lists.logged } else { &lists.dirty };
        let select = if logged { Select::logged(now) } else { Select::dirty(now) };
        list.values().take(PICK_FILES_MAX).map(|inode| (inode.clone(), select.clone())).collect()
    }
}

fn class_of(logged: bool) -> Class {
    if logged { Class::Destage } else { Class::Normal }
}
