//! [`EndSearch`]: how many units of a claim are there, from the first on without a gap.
//!
//! A writer puts unit k when all units up to k - [`IN_FLIGHT_MAX`] were answered. So of the units in front of one that
//! is there only the last few can be missing. The end is found in rounds: units that lie ever further apart, then units
//! that divide what is left, then each of the last ones. The units of a round are looked at at the same time, because
//! what a look costs is how long the store takes to answer.
//!
//! The writer may go on meanwhile, so a unit may be missing although one behind it is there. What ends the search is
//! always a unit that was missing when it was looked at.

use crate::shipping::IN_FLIGHT_MAX;
use std::collections::BTreeMap;

/// Looks of a round, at most.
const LOOKS_MAX: u64 = 32;
/// Looks of a round in which nothing was missing yet.
const LOOKS_OUT: u64 = 16;

/// A search under way.
#[derive(Debug, Clone)]
pub struct EndSearch {
    /// Nobody looks in front of it.
    start: u64,
    /// The unit in front of it is there, or it is the start.
    low: u64,
    /// It is missing.
    high: Option<u64>,
    /// What is looked at, and what was seen.
    round: BTreeMap<u64, Option<bool>>,
    /// The round was handed out.
    asked: bool,
    /// The round has every unit that may be the end.
    is_last: bool,
    end: Option<u64>,
}

impl Default for EndSearch {
    fn default() -> EndSearch {
        EndSearch::from(0)
    }
}

impl EndSearch {
    /// One that begins at a unit; those in front of it may be gone.
    pub fn from(start: u64) -> EndSearch {
        let mut search = EndSearch {
            start,
            low: start,
            high: None,
            round: BTreeMap::new(),
            asked: false,
            is_last: false,
            end: None,
        };
        search.begin_round();
        search
    }

    /// Units to look at now, each of which is to be answered.
    pub fn looks(&mut self) -> Vec<u64> {
        match std::mem::replace(&mut self.asked, true) {
            false => self.round.keys().copied().collect(),
            true => Vec::new(),
        }
    }

    /// So many are there, once that is known.
    pub fn end(&self) -> Option<u64> {
        self.end
    }

    /// So many are there at least, or are gone in front of the start.
    pub fn found(&self) -> u64 {
        self.low
    }

    pub fn answer(&mut self, unit: u64, is_there: bool) {
        if let Some(seen) = self.round.get_mut(&unit) {
            *seen = Some(is_there);
        }
        if self.end.is_none() && self.round.values().all(Option::is_some) {
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let round = std::mem::take(&mut self.round);
        let mut missing = round.iter().filter(|(_, seen)| **seen == Some(false)).map(|(unit, _)| *unit);
        if self.is_last {
            self.end = missing.next().or(self.high);
            return;
        }
        let there = round.iter().rev().find(|(_, seen)| **seen == Some(true));
        let low = there.map_or(self.low, |(unit, _)| self.low.max(unit + 1));
        // What was missing in front of one that is there was looked at too early.
        let missing = missing.chain(self.high).filter(|unit| *unit >= low).min();
        (self.low, self.high) = (low, missing);
        self.begin_round();
    }

    fn begin_round(&mut self) {
        let (low, front) = (self.low, self.low.saturating_sub(IN_FLIGHT_MAX as u64).max(self.start));
        let units: Vec<u64> = match self.high {
            Some(high) if high - front <= LOOKS_MAX => {
                self.is_last = true;
                (front..high).collect()
            }
            Some(high) => (1..=LOOKS_MAX).map(|part| low + (high - low) * part / (LOOKS_MAX + 1)).collect(),
            None => {
                let width = (low - self.start).max(1);
                (0..LOOKS_OUT).map(|power| low.saturating_add(width.saturating_mul(1 << power) - 1)).collect()
            }
        };
        self.round = units.into_iter().map(|unit| (unit, None)).collect();
        self.asked = false;
        if self.round.is_empty() {
            self.end = self.high;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The end, and in how many rounds it was found. `is_there` is asked in the order that the numbers say.
    fn search(start: u64, order: &[u8], mut is_there: impl FnMut(u64) -> bool) -> (u64, u32) {
        let mut search = EndSearch::from(start);
        let mut rounds = 0;
        while search.end().is_none() {
            let mut looks = search.looks();
            assert!(!looks.is_empty() && looks.len() <= LOOKS_MAX as usize, "{looks:?}");
            assert!(search.looks().is_empty(), "the same units once more");
            for next in order.iter().cycle().take(looks.len()) {
                let unit = looks.remove(*next as usize % looks.len());
                search.answer(unit, is_there(unit));
            }
            rounds += 1;
        }
        (search.end().expect("it ended"), rounds)
    }

    proptest! {
        #[test]
        fn the_first_gap_is_found_wherever_it_is(
            end in 0u64..500_000,
            gone in 0u64..5000,
            ahead: bool,
            order in proptest::collection::vec(any::<u8>(), 1..20),
        ) {
            // The unit behind the gap may be there already, and those in front of the start are gone.
            let start = gone.min(end);
            let there = |unit| unit >= start && (unit < end || ahead && unit == end + 1);
            let (found, rounds) = search(start, &order, there);
            prop_assert_eq!(found, end);
            prop_assert!(rounds <= 7, "{} rounds", rounds);
        }

        #[test]
        fn a_writer_that_goes_on_meanwhile_is_overtaken_at_a_unit_that_was_missing(
            end in 0u64..5000,
            pace in 0u64..40,
            limit in 0u64..5000,
            order in proptest::collection::vec(any::<u8>(), 1..20),
        ) {
            // Behind each look so many units more are there, up to a limit.
            let (mut now, mut missed) = (end, Vec::new());
            let (found, _) = search(0, &order, |unit| {
                let is_there = unit < now;
                if !is_there {
                    missed.push(unit);
                }
                now = (now + pace).min(end.max(limit));
                is_there
            });
            prop_assert!(missed.contains(&found), "{} was never missing", found);
            prop_assert!(found >= end, "{} was there from the beginning", found);
        }
    }
}
