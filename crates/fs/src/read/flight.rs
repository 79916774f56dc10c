//! [`Flight`]: pages of one file on their way into memory, for whoever needs them.
//!
//! A sequential reader starts reading ahead of itself and goes on with what it has; whoever comes to a page that is
//! under way waits for its flight instead of reading it again. The first one who needs a flight *lands* it: waits for
//! the device, verifies, and puts the pages into the cache. Flights have no errors: one that met a bad checksum or a
//! changed file is forgotten, and who needed it fetches the pages itself (`fetch` knows how to tell corruption
//! from change).
//!
//! Locks: a flight's `state` is taken before the inode's, never under it, except by its maker, whom nobody else can
//! know yet. It is held while the extents are looked up and while the device is waited for.

use crate::clock::since;
use crate::content::flights::{Flight, State};
use crate::content::inode::Inode;
use crate::content::pages::{FileData, pages_of};
use crate::core::levels::Lock;
use crate::limits::{AHEAD_AGE, AHEAD_RECLAIMS_MAX, AHEAD_SHARE, FLIGHT_PAGES_MAX, PASSING_PAGES_MIN};
use crate::read::Reader;
use crate::read::pages::{Fetched, Held};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::item::Timestamp;
use syncline_store::lock_order::{Mutex, MutexGuard};

/// What a reader that misses a page is to do.
pub(crate) enum Plan {
    /// Look again: the page is there by now.
    Cached,
    /// Fetch these pages itself.
    Fetch(Range<u64>),
    /// Wait for this flight.
    Land(Arc<Flight>),
}

impl Reader {
    /// Decides for a miss at the start of `wanted`, and starts reading ahead of it if the file is read sequentially.
    pub(crate) fn plan_read(&self, inode: &Arc<Inode>, wanted: Range<u64>) -> Plan {
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
        let Some(ahead) = data.readers.ahead.advance(wanted.clone(), end) else {
            data.readers.flights.clear();
            return Plan::Fetch(data.uncached(wanted));
        };
        let own = match data.readers.flights.iter().find(|flight| flight.pages.contains(&wanted.start)) {
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
            let now = self.core.clock.now();
            data.readers.ahead.since = now;
            self.content.note_ahead(inode, now);
        }
        let starting: Vec<(&Arc<Flight>, MutexGuard<'_, State>)> = starting
            .iter()
            .map(|flight| (flight, flight.state.try_lock().expect("nobody else sees the flights yet")))
            .collect();
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
        let under_way = self.content.under_way.clone();
        under_way.fetch_add(pages.end - pages.start, Ordering::Relaxed);
        let changes = data.stored.changes;
        let flight =
            Arc::new(Flight { pages, changes, state: Mutex::new(Lock::Flight, State::Starting), under_way });
        data.readers.flights.push(flight.clone());
        flight
    }

    /// Whether memory for it is left. What was read ahead for readers that did not go on is given up.
    fn may_read_ahead(&self) -> bool {
        let full = || self.content.under_way.load(Ordering::Relaxed) >= self.content.pages_max / AHEAD_SHARE;
        for _ in 0..AHEAD_RECLAIMS_MAX {
            if !full() {
                return true;
            }
            let Some((_, oldest)) = self.content.lists.lock().ahead.pop_front() else { return false };
            // Whoever is at it goes on.
            if let Some(inode) = oldest.upgrade()
                && let Some(mut state) = inode.state.try_write()
            {
                state.data.readers.flights.clear();
            }
        }
        !full()
    }

    /// Gives up what was read ahead a while ago for readers that did not go on: it holds memory that others could
    /// read into.
    pub(crate) fn give_up_ahead(&self, now: Timestamp) {
        loop {
            let stale = {
                let ahead = &mut self.content.lists.lock().ahead;
                match ahead.front() {
                    Some(&(noted, _)) if since(now, noted) >= AHEAD_AGE => ahead.pop_front(),
                    _ => return,
                }
            };
            if let Some(inode) = stale.and_then(|(_, inode)| inode.upgrade())
                && let Some(mut state) = inode.state.try_write()
                && since(now, state.data.readers.ahead.since) >= AHEAD_AGE
            {
                state.data.readers.flights.clear();
            }
        }
    }

    /// Waits for a flight and puts its pages into the cache, but for the `wanted` ones if there are many of them and
    /// their reader keeps what it reads. `None` if somebody else did that, or it came to nothing.
    pub(crate) fn land(
        &self,
        inode: &Arc<Inode>,
        flight: &Arc<Flight>,
        wanted: &Range<u64>,
    ) -> Option<Fetched> {
        let mut reading = flight.state.lock();
        let State::Reading(reads) = std::mem::replace(&mut *reading, State::Over) else { return None };
        let many = wanted.end - wanted.start >= PASSING_PAGES_MIN;
        let passing = if self.core.options.readers_keep && many { wanted.clone() } else { 0..0 };
        let read = self.finish_reads(inode, reads, &passing);
        let mut state = inode.state.write();
        state.data.forget(flight);
        let read = read.ok().filter(|_| state.data.stored.changes == flight.changes && !state.gone)?;
        let pages = flight.pages.clone();
        let fetched = self.keep_pages(inode, &mut state, pages, &passing, &Held::new(), read);
        Some(Fetched { changes: flight.changes, ..fetched })
    }
}
