//! [`Looks`]: since when the oldest flush that does not count may have been there.
//!
//! Nobody notes the time of a flush: whoever ships looks how many there are, again and again. A flush that was not
//! there at one look was issued behind it. So the age that is told is never too small, and too large by the time
//! between two looks at most, unless there were very many of them.

use std::collections::VecDeque;

/// Looks that are kept, at most. Of more, each second one is forgotten, which makes ages larger.
const LOOKS_MAX: usize = 1024;

/// When somebody looked, and how many flushes there were.
pub(crate) struct Looks(VecDeque<(u64, u64)>);

impl Looks {
    /// From time 0 on, when there was none.
    pub(crate) fn new() -> Looks {
        Looks(VecDeque::from([(0, 0)]))
    }

    /// So many flushes were issued at a time that is not later than the look.
    pub(crate) fn note(&mut self, now: u64, flushes: u64) {
        match self.0.back_mut() {
            Some((time, known)) if *known == flushes => *time = now,
            _ => self.0.push_back((now, flushes)),
        }
        if self.0.len() > LOOKS_MAX {
            let mut number = 0;
            self.0.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
    }

    /// These count: looks that found no more are needed no more, but for the last.
    pub(crate) fn count(&mut self, counted: u64) {
        while self.0.get(1).is_some_and(|(_, flushes)| *flushes <= counted) {
            self.0.pop_front();
        }
    }

    /// Time since the last look that found none behind those that count.
    pub(crate) fn age(&self, now: u64, counted: u64) -> u64 {
        let fresh = self.0.iter().take_while(|(_, flushes)| *flushes <= counted).last();
        fresh.or(self.0.front()).map_or(0, |(time, _)| now.saturating_sub(*time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_age_is_smaller_than_the_truth(
            steps in proptest::collection::vec((1u64..1000, 0u64..3, any::<bool>(), 0u64..4), 1..4000),
        ) {
            let (mut looks, mut now, mut counted) = (Looks::new(), 0, 0);
            // When each flush was issued.
            let mut issued: Vec<u64> = Vec::new();
            for (pause, flushes, looked, counts) in steps {
                now += pause;
                if looked {
                    looks.note(now, issued.len() as u64);
                    counted = (counted + counts).min(issued.len() as u64);
                    looks.count(counted);
                }
                (0..flushes).for_each(|_| issued.push(now));
                let truth = issued.get(counted as usize).map_or(0, |issued| now - issued);
                prop_assert!(looks.age(now, counted) >= truth);
            }
        }
    }

    #[test]
    fn an_age_is_too_large_by_one_look_at_most() {
        let mut looks = Looks::new();
        for second in 0..2000 {
            looks.note(second * 10, second);
            looks.count(second.saturating_sub(3));
        }
        // Flush 1997 was issued between the looks at 19,960 and at 19,970.
        assert_eq!(looks.age(20_000, 1996), 40);
    }
}
