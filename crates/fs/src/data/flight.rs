//! [`Flight`]: pages of one file on their way into memory, for whoever needs them.
//!
//! A sequential reader starts reading ahead of itself and goes on with what it has; whoever comes to a page that is
//! under way waits for its flight instead of reading it again. The first one who needs a flight *lands* it: waits for
//! the device, verifies, and puts the pages into the cache. Flights have no errors: one that met a bad checksum or a
//! changed file is forgotten, and who needed it fetches the pages itself ([`Fs::fetch`] knows how to tell corruption
//! from change).
//!
//! Locks: a flight's `state` is taken before the inode's, never under it, except by its maker, whom nobody else can
//! know yet. It is held while the extents are looked up and while the device is waited for.

use super::pages::{FileData, ReadAhead, pages_of};
use super::read::{Fetched, Held, Reads};
use crate::Fs;
use crate::clock::since;
use crate::inode::Inode;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline_format::item::Timestamp;

/// Most pages of one flight: 1 MiB, one read where the file lies in one piece.
const FLIGHT_PAGES_MAX: u64 = 256;
/// The furthest that is read ahead: 4 MiB.
const WINDOW_PAGES_MAX: u64 = 1024;
/// Pages that the first sequential miss reads ahead: 128 KiB.
const WINDOW_PAGES_MIN: u64 = 32;
/// Requests of one reader may come out of order by this much (4 MiB): a kernel sends several at once.
const DISORDER_PAGES: u64 = 1024;
/// Pages that a reader wants at once (256 KiB) and that need not be kept for it if it keeps them itself. Smaller
/// requests may come from a reader that changes parts of pages, which would have to be read again for that.
const PASSING_PAGES_MIN: u64 = 64;
/// Share of the page cache that may be under way ahead of readers.
const AHEAD_SHARE: u64 = 8;
/// What was read ahead is kept for so long for a reader that does not go on.
const AHEAD_AGE: Duration = Duration::from_secs(10);
/// Files whose flights are given up at most to make room for another one.
const RECLAIMS_MAX: usize = 8;

/// Pages under way.
pub(super) struct Flight {
    pub(super) pages: Range<u64>,
    /// `FileData::extent_changes` when it began.
    changes: u64,
    state: Mutex<State>,
    /// Counts the pages of all flights.
    under_way: Arc<AtomicU64>,
}

enum State {
    Starting,
    Reading(Reads),
    Over,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.pages.end - self.pages.start, Ordering::Relaxed);
    }
}

/// What a reader that misses a page is to do.
pub(super) enum Plan {
    /// Look again: the page is there by now.
    Cached,
    /// Fetch these pages itself.
    Fetch(Range<u64>),
    /// Wait for this flight.
    Land(Arc<Flight>),
}

impl Fs {
    /// Decides for a miss at the start of `wanted`, and starts reading ahead of it if the file is read sequentially.
    pub(super) fn plan_read(&self, inode: &Arc<Inode>, wanted: Range<u64>) -> Plan {
        let mut state = inode.state.write();
        if state.data.get(wanted.start).is_some() {
            return Plan::Cached;
        }
        let end = pages_of(state.item.size).max(wanted.start + 1);
        let data = &mut state.data;
        if data.is_shifting(&wanted) {
            return Plan::Fetch(wanted.start..wanted.end.min(end).min(wanted.start + FLIGHT_PAGES_MAX));
        }
        let wanted = wanted.start..wanted.end.min(end).min(wanted.start + FLIGHT_PAGES_MAX);
        let Some(ahead) = data.read_ahead.advance(wanted.clone(), end) else {
            data.flights.clear();
            return Plan::Fetch(data.uncached(wanted));
        };
        let own = match data.flights.iter().find(|flight| flight.pages.contains(&wanted.start)) {
            Some(flight) => (flight.clone(), false),
            None => {
                let pages = data.uncached(wanted);
                (self.new_flight(data, pages), true)
            }
        };
        let mut starting = Vec::from_iter(own.1.then(|| own.0.clone()));
        let mut first = ahead.start.max(own.0.pages.end);
        while first < ahead.end && self.may_read_ahead() {
            let pages = data.uncached(first..ahead.end.min(first + FLIGHT_PAGES_MAX));
            if pages.is_empty() {
                break;
            }
            first = pages.end;
            starting.push(self.new_flight(data, pages));
        }
        if first > ahead.start.max(own.0.pages.end) {
            let now = self.clock.now();
            data.read_ahead.since = now;
            self.writeback.note_ahead(inode, now);
        }
        // Taken before anybody else can see the flights.
        let starting: Vec<(&Arc<Flight>, MutexGuard<'_, State>)> =
            starting.iter().map(|flight| (flight, flight.state.lock())).collect();
        drop(state);
        for (flight, mut state) in starting {
            match self.start_reads(inode, flight.pages.clone(), &Held::new(), false) {
                Ok(reads) => *state = State::Reading(reads),
                Err(_) => {
                    *state = State::Over;
                    inode.state.write().data.forget(flight);
                }
            }
        }
        Plan::Land(own.0)
    }

    fn new_flight(&self, data: &mut FileData, pages: Range<u64>) -> Arc<Flight> {
        let under_way = self.writeback.under_way.clone();
        under_way.fetch_add(pages.end - pages.start, Ordering::Relaxed);
        let changes = data.extent_changes;
        let flight = Arc::new(Flight { pages, changes, state: Mutex::new(State::Starting), under_way });
        data.flights.push(flight.clone());
        flight
    }

    /// Whether memory for it is left. What was read ahead for readers that did not go on is given up.
    fn may_read_ahead(&self) -> bool {
        let writeback = &self.writeback;
        let full = || writeback.under_way.load(Ordering::Relaxed) >= writeback.pages_max / AHEAD_SHARE;
        for _ in 0..RECLAIMS_MAX {
            if !full() {
                return true;
            }
            let Some((_, oldest)) = writeback.lists.lock().ahead.pop_front() else { return false };
            // Whoever is at it goes on.
            if let Some(inode) = oldest.upgrade()
                && let Some(mut state) = inode.state.try_write()
            {
                state.data.flights.clear();
            }
        }
        !full()
    }

    /// Gives up what was read ahead a while ago for readers that did not go on: it holds memory that others could
    /// read into.
    pub(super) fn give_up_ahead(&self, now: Timestamp) {
        loop {
            let stale = {
                let ahead = &mut self.writeback.lists.lock().ahead;
                match ahead.front() {
                    Some(&(noted, _)) if since(now, noted) >= AHEAD_AGE => ahead.pop_front(),
                    _ => return,
                }
            };
            if let Some(inode) = stale.and_then(|(_, inode)| inode.upgrade())
                && let Some(mut state) = inode.state.try_write()
                && since(now, state.data.read_ahead.since) >= AHEAD_AGE
            {
                state.data.flights.clear();
            }
        }
    }

    /// Waits for a flight and puts its pages into the cache, but for the `wanted` ones if there are many of them and
    /// their reader keeps what it reads. `None` if somebody else did that, or it came to nothing.
    pub(super) fn land(
        &self,
        inode: &Arc<Inode>,
        flight: &Arc<Flight>,
        wanted: &Range<u64>,
    ) -> Option<Fetched> {
        let mut reading = flight.state.lock();
        let State::Reading(reads) = std::mem::replace(&mut *reading, State::Over) else { return None };
        let many = wanted.end - wanted.start >= PASSING_PAGES_MIN;
        let passing = if self.options.readers_keep && many { wanted.clone() } else { 0..0 };
        let read = self.finish_reads(inode, reads, &passing);
        let mut state = inode.state.write();
        state.data.forget(flight);
        let read = read.ok().filter(|_| state.data.extent_changes == flight.changes && !state.gone)?;
        let pages = flight.pages.clone();
        let fetched = self.keep_pages(inode, &mut state, pages, &passing, &Held::new(), read);
        Some(Fetched { changes: flight.changes, ..fetched })
    }
}

impl ReadAhead {
    /// Takes note of a reader that came to a page which is not cached; what is to be started ahead of it now, or
    /// `None` if the file is not read in order. `end` is the file's.
    ///
    /// Readers come here once per flight, so that others are under way while one is being used.
    fn advance(&mut self, wanted: Range<u64>, end: u64) -> Option<Range<u64>> {
        let in_order =
            wanted.start <= self.next + DISORDER_PAGES && wanted.start + DISORDER_PAGES >= self.next;
        let begins = wanted.start == 0;
        if !in_order || begins && self.next > DISORDER_PAGES {
            *self = ReadAhead { next: wanted.end, window: 0, until: wanted.end, ..*self };
            if !begins {
                return None;
            }
        }
        let least = (wanted.end - wanted.start).max(WINDOW_PAGES_MIN);
        self.window = (self.window * 2).max(least).min(WINDOW_PAGES_MAX);
        self.next = self.next.max(wanted.end);
        let from = self.until.max(wanted.end);
        let room = (wanted.end + self.window).saturating_sub(from);
        // Once it is far enough ahead it goes on in whole flights, not in one short one for each that landed.
        let more = if room < self.window / 2 { room - room % FLIGHT_PAGES_MAX } else { room };
        self.until = (from + more).min(end).max(from);
        Some(from..self.until)
    }
}

impl FileData {
    fn forget(&mut self, flight: &Arc<Flight>) {
        self.flights.retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// The beginning of the range up to the first page that is cached or under way.
    fn uncached(&self, pages: Range<u64>) -> Range<u64> {
        let cached = self.range(pages.clone()).next().map(|(page, _)| page);
        let under_way = self.flights.iter().map(|flight| flight.pages.start);
        let under_way = under_way.filter(|start| pages.contains(start)).min();
        let end = [cached, under_way].into_iter().flatten().min();
        pages.start..end.unwrap_or(pages.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file from its beginning in requests of so many pages; the flights that are started.
    fn flights(request: u64, end: u64) -> Vec<Range<u64>> {
        let (mut read_ahead, mut flights) = (ReadAhead::default(), Vec::<Range<u64>>::new());
        let mut next = 0;
        while next < end {
            let wanted = next..(next + request).min(end);
            let ahead = read_ahead.advance(wanted.clone(), end).expect("the file is read in order");
            if flights.last().is_none_or(|last| last.end <= next) {
                flights.push(wanted);
            }
            let mut first = ahead.start.max(flights.last().unwrap().end);
            while first < ahead.end {
                flights.push(first..ahead.end.min(first + FLIGHT_PAGES_MAX));
                first = flights.last().unwrap().end;
            }
            // A flight brings all of its pages, so the next miss is behind it.
            next = flights.iter().find(|flight| flight.contains(&next)).unwrap().end;
        }
        flights
    }

    #[test]
    fn reading_ahead_covers_each_page_once_and_goes_on_in_whole_flights() {
        for request in [1, 2, 31, 32, 33, 100, 255, 256] {
            for end in [1, 5, 300, 20_000] {
                let flights = flights(request, end);
                let covered: Vec<u64> = flights.iter().cloned().flatten().collect();
                assert_eq!(covered, Vec::from_iter(0..end), "requests of {request}, {end} pages");
                let short = flights.iter().filter(|flight| flight.end - flight.start < FLIGHT_PAGES_MAX);
                assert!(short.count() <= 12, "requests of {request}: {flights:?}");
            }
        }
    }

    #[test]
    fn a_file_read_here_and_there_is_not_read_ahead() {
        let mut read_ahead = ReadAhead::default();
        let end = 1 << 30;
        for page in [5_000_000, 77_777, 900_000_000, 12_345_678] {
            assert_eq!(read_ahead.advance(page..page + 4, end), None);
        }
        // From there on it is read in order.
        assert_eq!(read_ahead.advance(12_345_682..12_345_686, end), Some(12_345_686..12_345_718));
    }
}
