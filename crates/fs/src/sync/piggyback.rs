//! Filling the record of a force with small files that were just written.
//!
//! A program that syncs many small files one after another finds most of them durable already. Candidates are files
//! of at most four pages, so that a database's main file never travels with every sync of its log; a file that was
//! taken along and not synced since is not taken along again.
//!
//! Who syncs files that were written a while ago mostly goes on with those that were written behind them. So each
//! force takes along what was dirtied next behind the files whose syncs it serves, then what was dirtied last. While
//! syncs find at least half of what was taken along to be done already, twice as much is taken along the next time,
//! up to four times the usual; when they find less than a quarter, half as much: those bytes are not free then.

use crate::Syncs;
use crate::content::Content;
use crate::content::estimate::image_estimate;
use crate::content::inode::Inode;
use crate::content::pages::{FileData, PAGE_BYTES};
use crate::limits::{
    ALONG_DOUBLINGS_MAX, ALONG_FILES_MAX, ALONG_LATER_MAX, ALONG_LOOKS_MAX, ALONG_PLACES_MAX,
};
use crate::sync::execute::Room;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use syncline_store::Piggyback;

/// What came of one candidate.
enum Taken {
    Bytes(usize),
    /// Clean, removed or grown meanwhile.
    Skipped,
    /// In use, or too large for what room is left.
    Later,
    /// The journal has no room for anything that need not be logged now.
    Stop,
}

/// How much is worth being taken along, and from where.
#[derive(Default)]
pub(crate) struct Along {
    /// Files that the last force took along, and syncs since that found their file among those. Relaxed: they decide
    /// how much, not what.
    taken: AtomicU64,
    found: AtomicU64,
    doublings: AtomicUsize,
}

impl Along {
    /// A sync comes to a file; `works`: there is something to log for it.
    pub(crate) fn note_sync(&self, content: &Content, data: &mut FileData, works: bool) {
        let was_taken = std::mem::take(&mut data.listed.piggybacked);
        if was_taken && !works {
            self.found.fetch_add(1, Ordering::Relaxed);
        }
        if works && let Some(place) = data.listed.recent_at {
            let mut lists = content.lists.lock();
            if lists.synced.len() < ALONG_PLACES_MAX {
                lists.synced.push(place);
                content.has_recent.store(true, Ordering::Relaxed);
            }
        }
    }

    /// How often the next force is to double what it usually takes along.
    fn settle(&self) -> usize {
        let taken = self.taken.swap(0, Ordering::Relaxed);
        let mut doublings = self.doublings.load(Ordering::Relaxed);
        if taken > 0 {
            let found = self.found.swap(0, Ordering::Relaxed);
            if found * 2 >= taken {
                doublings = (doublings + 1).min(ALONG_DOUBLINGS_MAX);
            } else if found * 4 < taken {
                doublings = doublings.saturating_sub(1);
            }
            self.doublings.store(doublings, Ordering::Relaxed);
        }
        doublings
    }
}

/// A force that takes files along.
struct Filling<'a> {
    syncs: &'a Syncs,
    room: usize,
    files: usize,
    looks: usize,
    taken: u64,
    later: Vec<(u64, Weak<Inode>)>,
}

impl Filling<'_> {
    /// Looks at one candidate, if there is one; false if nothing more is to be taken along.
    fn look(&mut self, candidate: Option<(u64, Weak<Inode>)>) -> bool {
        let Some((place, candidate)) = candidate else { return true };
        self.looks += 1;
        let Some(inode) = candidate.upgrade() else { return true };
        match self.syncs.take_along(&inode, self.room) {
            Taken::Bytes(bytes) => {
                self.room = self.room.saturating_sub(bytes);
                self.taken += 1;
                self.files -= 1;
                true
            }
            Taken::Skipped => true,
            Taken::Later => {
                self.later.push((place, candidate));
                self.later.len() < ALONG_LATER_MAX
            }
            Taken::Stop => {
                self.later.push((place, candidate));
                false
            }
        }
    }

    /// Takes along what was dirtied next behind each of the places, in turn.
    fn behind(&mut self, mut places: Vec<u64>) -> bool {
        places.sort_unstable();
        places.dedup();
        while !places.is_empty() {
            let mut ended = Vec::new();
            for (index, place) in places.iter_mut().enumerate() {
                let next = self.syncs.content.lists.lock().take_recent_behind(*place);
                match &next {
                    Some((at, _)) => *place = *at,
                    None => ended.push(index),
                }
                if !self.goes_on(next) {
                    return false;
                }
            }
            for index in ended.into_iter().rev() {
                places.remove(index);
            }
        }
        true
    }

    fn newest(&mut self) {
        loop {
            let Some(next) = self.syncs.content.lists.lock().recent.pop_last() else { return };
            if !self.goes_on(Some(next)) {
                return;
            }
        }
    }

    fn goes_on(&mut self, candidate: Option<(u64, Weak<Inode>)>) -> bool {
        self.look(candidate)
            && self.looks < ALONG_LOOKS_MAX
            && self.files > 0
            && self.room >= image_estimate(1).bytes
    }
}

impl Piggyback for Syncs {
    fn has_any(&self) -> bool {
        self.content.has_recent.load(Ordering::Relaxed)
    }

    fn fill(&self, room: usize) {
        let along = &self.along;
        let (places, any) = {
            let mut lists = self.content.lists.lock();
            let any = !lists.recent.is_empty();
            self.content.has_recent.store(any, Ordering::Relaxed);
            (std::mem::take(&mut lists.synced), any)
        };
        let doublings = along.settle();
        let (room, files) = (room << doublings, ALONG_FILES_MAX << doublings);
        let mut filling = Filling { syncs: self, room, files, looks: 0, taken: 0, later: Vec::new() };
        if any && filling.behind(places) {
            filling.newest();
        }
        along.taken.store(filling.taken, Ordering::Relaxed);
        if !filling.later.is_empty() {
            let mut lists = self.content.lists.lock();
            lists.recent.extend(filling.later);
            self.content.has_recent.store(true, Ordering::Relaxed);
        }
    }
}

impl Syncs {
    /// Logs a file's dirty pages as images, if that is possible without waiting and fits into `room`.
    fn take_along(&self, inode: &Arc<Inode>, room: usize) -> Taken {
        let Some(_turn) = inode.turn.try_lock() else { return Taken::Later };
        let Some(mut state) = inode.state.try_write() else { return Taken::Later };
        let dirty = state.data.dirty_pages();
        let small = state.item.size <= self.image_pages_max() * PAGE_BYTES;
        if state.gone || dirty == 0 || !small || state.data.listed.piggybacked || state.data.aside.is_some() {
            state.data.listed.recent_at = None;
            return Taken::Skipped;
        }
        let bytes: usize = image_estimate(dirty).bytes;
        if bytes > room {
            return Taken::Later;
        }
        match self.commit_images(inode, &mut state, Room::AtCommit, 0..u64::MAX, u64::MAX) {
            Ok(logged) => {
                state.data.listed.piggybacked = true;
                Taken::Bytes(logged.bytes)
            }
            // There is no room, or the file stays dirty and whoever syncs it meets the error.
            Err(_) => Taken::Stop,
        }
    }
}
