//! [`EndSearch`]: how many units of a claim are there, from the first on without a gap.
//!
//! A writer puts unit k when all units up to k - [`IN_FLIGHT_MAX`] were answered. So of the units in front of one that
//! is there only the last few can be missing, and the end is found by doubling and halving, with a look at those.

use crate::shipping::IN_FLIGHT_MAX;

/// What to look at next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Is this unit there?
    Unit(u64),
    /// So many are there.
    End(u64),
}

/// A search under way.
#[derive(Debug, Clone)]
pub struct EndSearch {
    /// Nobody looks in front of it.
    start: u64,
    /// The unit in front of it is there, or it is the start.
    low: u64,
    /// It is missing.
    high: Option<u64>,
    /// Units in front of `low` that are still to be looked at, ascending.
    behind: Option<Vec<u64>>,
    next: Next,
}

impl Default for EndSearch {
    fn default() -> EndSearch {
        EndSearch::from(0)
    }
}

impl EndSearch {
    /// One that begins at a unit; those in front of it may be gone.
    pub fn from(start: u64) -> EndSearch {
        EndSearch { start, low: start, high: None, behind: None, next: Next::Unit(start) }
    }

    pub fn next(&self) -> Next {
        self.next
    }

    /// Takes the answer to the last question.
    pub fn answer(&mut self, is_there: bool) {
        let Next::Unit(unit) = self.next else { return };
        if let Some(behind) = &mut self.behind {
            behind.remove(0);
            self.next = match (is_there, behind.first()) {
                (false, _) => Next::End(unit),
                (true, Some(next)) => Next::Unit(*next),
                (true, None) => Next::End(self.low),
            };
            return;
        }
        match is_there {
            true => self.low = unit + 1,
            false => self.high = Some(unit),
        }
        self.next = match self.high {
            None => Next::Unit(self.start + (self.low - self.start) * 2),
            Some(high) if self.low < high => Next::Unit(self.low + (high - self.low) / 2),
            Some(_) => self.look_behind(),
        };
    }

    /// Unit `low` is missing, the one in front of it is there.
    fn look_behind(&mut self) -> Next {
        let last = self.low.saturating_sub(1);
        let first = last.saturating_sub(IN_FLIGHT_MAX as u64 - 1).max(self.start);
        let behind: Vec<u64> = (first..last).collect();
        let next = behind.first().map_or(Next::End(self.low), |unit| Next::Unit(*unit));
        self.behind = Some(behind);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn search(start: u64, is_there: impl Fn(u64) -> bool) -> (u64, u32) {
        let mut search = EndSearch::from(start);
        let mut looks = 0;
        loop {
            match search.next() {
                Next::Unit(unit) => search.answer(is_there(unit)),
                Next::End(end) => return (end, looks),
            }
            looks += 1;
        }
    }

    proptest! {
        #[test]
        fn the_first_gap_is_found_wherever_it_is(end in 0u64..5000, gone in 0u64..5000, ahead: bool) {
            // The unit behind the gap may be there already, and those in front of the start are gone.
            let start = gone.min(end);
            let there = |unit| unit >= start && (unit < end || ahead && unit == end + 1);
            let (found, looks) = search(start, there);
            prop_assert_eq!(found, end);
            prop_assert!(looks <= 2 * 14 + 2, "{} looks", looks);
        }
    }
}
