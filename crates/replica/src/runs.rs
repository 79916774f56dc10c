//! [`RunSet`]: a set of blocks, as runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks, as runs that neither touch nor overlap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunSet {
    /// End by start.
    runs: BTreeMap<u64, u64>,
    blocks: u64,
}

impl From<Range<u64>> for RunSet {
    fn from(run: Range<u64>) -> RunSet {
        let mut set = RunSet::default();
        set.insert(run);
        set
    }
}

impl RunSet {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many blocks are in it.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn insert(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        let (mut start, mut end) = (run.start, run.end);
        // From the last run that begins at or in front of the end, backwards, while they touch.
        while let Some((&other, &other_end)) = self.runs.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            self.runs.remove(&other);
            self.blocks -= other_end - other;
            start = start.min(other);
            end = end.max(other_end);
        }
        self.runs.insert(start, end);
        self.blocks += end - start;
    }

    /// The parts of a run that are not in it, ascending.
    pub fn missing(&self, run: Range<u64>) -> Vec<Range<u64>> {
        let before = self.runs.range(..=run.start).next_back().map_or(0, |(_, end)| *end);
        let mut at = run.start.max(before.min(run.end));
        let mut missing = Vec::new();
        for (&start, &end) in self.runs.range(run.start..run.end) {
            if at < start {
                missing.push(at..start);
            }
            at = at.max(end);
        }
        if at < run.end {
            missing.push(at..run.end);
        }
        missing
    }

    /// Takes up to `blocks` blocks out, from the lowest on.
    pub fn take(&mut self, blocks: u64) -> Vec<Range<u64>> {
        let mut left = blocks;
        let mut taken = Vec::new();
        while left > 0 {
            let Some((start, end)) = self.runs.pop_first() else { break };
            let upto = end.min(start.saturating_add(left));
            if upto < end {
                self.runs.insert(upto, end);
            }
            self.blocks -= upto - start;
            left -= upto - start;
            taken.push(start..upto);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_set_of_runs_is_the_set_of_their_blocks(
            runs in prop::collection::vec((0u64..200, 0u64..20), 0..40), take in 0u64..100,
        ) {
            let mut set = RunSet::default();
            let mut want = BTreeSet::new();
            for (start, length) in runs {
                set.insert(start..start + length);
                want.extend(start..start + length);
            }
            prop_assert_eq!(set.blocks(), want.len() as u64);
            let ends: Vec<(u64, u64)> = set.runs.iter().map(|(start, end)| (*start, *end)).collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            let missing: Vec<u64> = set.missing(take..take + 60).into_iter().flatten().collect();
            let absent: Vec<u64> = (take..take + 60).filter(|block| !want.contains(block)).collect();
            prop_assert_eq!(missing, absent);
            let taken: Vec<u64> = set.take(take).into_iter().flatten().collect();
            let first: Vec<u64> = want.iter().copied().take(take as usize).collect();
            prop_assert_eq!(&taken, &first);
            prop_assert_eq!(set.blocks(), (want.len() as u64).saturating_sub(take));
            prop_assert_eq!(set.take(u64::MAX).into_iter().flatten().count() + first.len(), want.len());
        }
    }
}
