//! Which files have something to write, and which have pages in memory.
//!
//! Files with dirty pages or a dirty inode item are in `Lists::dirty`, files with logged pages in `Lists::logged`, both
//! those first that are there longest; the lists hold the inodes, so that those stay in memory. `Lists::cached` is the
//! cache's clock: every file with cached pages once. Files that are set aside are in none of the first two (module
//! `aside`). Its entries are weak, so a clean inode may go with its pages.
//!
//! Locks: `lists` is taken with or without one `Inode::state`, and nothing but the store is taken inside it.

use crate::Timestamp;
use crate::content::Content;
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::FileData;
use crate::limits::{AHEAD_NOTES_MAX, RECENT_FILES_MAX};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use syncline_device::Ticket;

/// A file's place in a list: since when it is there, and a number of its own.
pub(crate) type Place = (Timestamp, u64);

/// What `Writeback::lists` guards.
#[derive(Default)]
pub(crate) struct Lists {
    /// Number of the next place in the lists.
    pub(crate) next: u64,
    pub(crate) dirty: BTreeMap<Place, Arc<Inode>>,
    pub(crate) logged: BTreeMap<Place, Arc<Inode>>,
    /// Since when that is not durable which has left `dirty`: it is in the log, which may not have been forced since
    /// (C9).
    pub(crate) unforced_since: Option<Timestamp>,
    /// Small files in the order in which they were dirtied. Some are clean by now.
    pub(crate) recent: BTreeMap<u64, Weak<Inode>>,
    /// Of `recent`, the places of files that were synced and had something to log since the last force.
    pub(crate) synced: Vec<u64>,
    pub(crate) cached: VecDeque<Weak<Inode>>,
    /// Files that were read ahead, oldest first, and when.
    pub(crate) ahead: VecDeque<(Timestamp, Weak<Inode>)>,
    /// Committed data writes in flight: their files stay in memory, so that nobody reads the blocks too early.
    pub(crate) in_flight: Vec<(Ticket, Arc<Inode>)>,
    /// When maintenance last forced the log.
    pub(crate) forced: Timestamp,
    pub(crate) checkpointed: Timestamp,
}

impl Lists {
    /// Takes out the small file that was dirtied next behind the one at `place`.
    pub(crate) fn take_recent_behind(&mut self, place: u64) -> Option<(u64, Weak<Inode>)> {
        let (&next, _) = self.recent.range(place + 1..).next()?;
        self.recent.remove_entry(&next)
    }

    /// Since when something is not durable that was changed in memory, if it is known of anything.
    pub(crate) fn oldest_change(&self) -> Option<Timestamp> {
        let oldest_dirty = self.dirty.keys().next().map(|(since, _)| *since);
        [oldest_dirty, self.unforced_since].into_iter().flatten().min()
    }

    fn remove_dirty(&mut self, place: Place) {
        self.dirty.remove(&place);
        let (since, _) = place;
        self.unforced_since = Some(self.unforced_since.map_or(since, |unforced| unforced.min(since)));
    }
}

impl Content {
    /// Whether something of the files is in memory only, or open.
    pub(crate) fn has_to_stay(&self) -> bool {
        let lists = self.lists.lock();
        let is_written = lists.dirty.is_empty() && lists.logged.is_empty() && lists.in_flight.is_empty();
        drop(lists);
        let aside = self.set_aside_stats();
        !is_written || aside.files > 0 || !self.handles.is_empty()
    }

    /// Pages that cannot be dropped, but for those that nobody can write.
    pub(crate) fn pinned(&self) -> u64 {
        self.core.account.pinned().saturating_sub(self.aside.pages())
    }

    /// Enters or removes a file as its state now demands; one that is entered counts as changed at `since`. Called
    /// with the state locked after every change to it. What is on its way to the log stays listed until it is there:
    /// who looks for what is old, or for everything, must not overlook it.
    pub(crate) fn relist(&self, inode: &Arc<Inode>, state: &mut InodeState, since: Timestamp) {
        if state.data.aside.is_some() {
            self.aside.update(inode, state);
        }
        let listed = !state.gone && state.data.aside.is_none();
        let want_dirty = listed && (state.data.has_dirty() || state.item_dirty);
        let want_logged = listed && state.data.logged_pages() > 0;
        let want_clock = state.data.cached_pages() > 0 && !state.data.listed.in_clock;
        let data = &mut state.data;
        let unchanged = want_dirty == data.listed.dirty_since.is_some()
            && want_logged == data.listed.logged_since.is_some();
        if unchanged && !want_clock {
            return;
        }
        let lists = &mut *self.lists.lock();
        let place = (since, lists.next);
        lists.next += 1;
        match (data.listed.dirty_since, want_dirty) {
            (None, true) => {
                lists.dirty.insert(place, inode.clone());
                data.listed.dirty_since = Some(place);
            }
            (Some(place), false) => {
                lists.remove_dirty(place);
                data.listed.dirty_since = None;
            }
            _ => {}
        }
        match (data.listed.logged_since, want_logged) {
            (None, true) => {
                lists.logged.insert(place, inode.clone());
                data.listed.logged_since = Some(place);
            }
            (Some(place), false) => {
                lists.logged.remove(&place);
                data.listed.logged_since = None;
            }
            _ => {}
        }
        if want_clock {
            data.listed.in_clock = true;
            lists.cached.push_back(Arc::downgrade(inode));
        }
    }

    /// Takes a file out of the list of dirty files; `relist` enters it as a new one if it still is dirty.
    pub(crate) fn unlist_dirty(&self, data: &mut FileData) {
        if let Some(place) = data.listed.dirty_since.take() {
            self.lists.lock().remove_dirty(place);
        }
    }

    /// Notes a small dirty file that a force may take along.
    pub(crate) fn note_recent(&self, inode: &Arc<Inode>, data: &mut FileData) {
        if data.listed.recent_at.is_some() {
            return;
        }
        let mut lists = self.lists.lock();
        let at = lists.next;
        lists.next += 1;
        data.listed.recent_at = Some(at);
        self.has_recent.store(true, Ordering::Relaxed);
        lists.recent.insert(at, Arc::downgrade(inode));
        if lists.recent.len() > RECENT_FILES_MAX {
            // Its `recent_at` stays set until it is committed; it was not synced for so many files.
            lists.recent.pop_first();
        }
    }

    /// Notes that something is under way ahead of the file's reader since now.
    pub(crate) fn note_ahead(&self, inode: &Arc<Inode>, now: Timestamp) {
        let mut lists = self.lists.lock();
        lists.ahead.push_back((now, Arc::downgrade(inode)));
        if lists.ahead.len() > AHEAD_NOTES_MAX {
            lists.ahead.pop_front();
        }
    }

    /// Keeps a file in memory while its committed data is in flight.
    pub(crate) fn hold_in_flight(&self, tickets: impl IntoIterator<Item = Ticket>, inode: &Arc<Inode>) {
        let mut tickets = tickets.into_iter().peekable();
        if tickets.peek().is_none() {
            return;
        }
        let mut lists = self.lists.lock();
        lists.in_flight.retain(|(ticket, _)| !ticket.is_complete());
        lists.in_flight.extend(tickets.map(|ticket| (ticket, inode.clone())));
    }

    /// Forgets data writes that are complete.
    pub(crate) fn release_in_flight(&self) {
        self.lists.lock().in_flight.retain(|(ticket, _)| !ticket.is_complete());
    }

    /// Notes that the inode's item differs from what is logged, so that it is committed within the commit interval.
    /// To be called, with the lock held, after `item_dirty` was set.
    pub(crate) fn note_dirty(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        self.relist(inode, state, self.core.clock.now());
    }
}
