//! What is known of a file's readers: pages on their way into memory ([`Flight`]), and how far ahead of a reader they
//! are ([`ReadAhead`]). The module `read` starts and lands them.

use crate::Timestamp;
use crate::content::pages::FileData;
use crate::limits::{AHEAD_PAGES_MAX, AHEAD_PAGES_MIN, DISORDER_PAGES, FLIGHT_PAGES_MAX};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::Reading;
use syncline_format::BlockNo;
use syncline_store::lock_order::Mutex;

/// Pages under way.
pub(crate) struct Flight {
    pub(crate) pages: Range<u64>,
    /// `Stored::changes` when it began.
    pub(crate) changes: u64,
    pub(crate) state: Mutex<State>,
    /// Counts the pages of all flights.
    pub(crate) under_way: Arc<AtomicU64>,
}

pub(crate) enum State {
    Starting,
    Reading(Reads),
    Over,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.under_way.fetch_sub(self.pages.end - self.pages.start, Ordering::Relaxed);
    }
}

/// Reads under way.
pub(crate) struct Reads(pub(crate) Vec<(Wanted, Reading)>);

/// What one device read is to bring.
pub(crate) struct Wanted {
    pub(crate) page: u64,
    pub(crate) block: BlockNo,
    pub(crate) checksums: Vec<u64>,
}

/// Sequential reading, as seen by cache misses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadAhead {
    /// The page after the last one that was wanted.
    pub(crate) next: u64,
    /// Pages to have under way ahead of it.
    pub(crate) window: u64,
    /// Everything before this page was asked for.
    pub(crate) until: u64,
    /// When that was done last.
    pub(crate) since: Timestamp,
}

impl ReadAhead {
    /// Takes note of a reader that came to a page which is not cached; what is to be started ahead of it now, or
    /// `None` if the file is not read in order. `end` is the file's.
    ///
    /// Readers come here once per flight, so that others are under way while one is being used.
    pub(crate) fn advance(&mut self, wanted: Range<u64>, end: u64) -> Option<Range<u64>> {
        let in_order =
            wanted.start <= self.next + DISORDER_PAGES && wanted.start + DISORDER_PAGES >= self.next;
        let begins = wanted.start == 0;
        if !in_order || begins && self.next > DISORDER_PAGES {
            *self = ReadAhead { next: wanted.end, window: 0, until: wanted.end, ..*self };
            if !begins {
                return None;
            }
        }
        let least = (wanted.end - wanted.start).max(AHEAD_PAGES_MIN);
        self.window = (self.window * 2).max(least).min(AHEAD_PAGES_MAX);
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
    pub(crate) fn forget(&mut self, flight: &Arc<Flight>) {
        self.readers.flights.retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// The beginning of the range up to the first page that is cached or under way.
    pub(crate) fn uncached(&self, pages: Range<u64>) -> Range<u64> {
        let cached = self.range(pages.clone()).next().map(|(page, _)| page);
        let under_way = self.readers.flights.iter().map(|flight| flight.pages.start);
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
