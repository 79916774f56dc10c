//! [`Watch`]: what a transaction depends on in one file's content, and whether somebody else has changed it.
//!
//! A transaction notes the pages that it is going to read or stage, and whether it depends on the size, *before* it
//! looks at them; whoever changes the content tells the file's watches under `Inode::state`. So a change that came
//! between the look and the commit is always seen, and a commit that holds the state and finds its watch quiet has
//! seen the file as it is.
//!
//! Lock: `Watch::watched` is innermost.

use crate::content::pages::FileData;
use crate::core::levels::Lock;
use crate::limits::WATCHED_RANGES_MAX;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use syncline_store::lock_order::Mutex;

/// What one transaction depends on in one file.
pub(crate) struct Watch {
    watched: Mutex<Watched>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { watched: Mutex::new(Lock::Watched, Watched::default()) }
    }
}

#[derive(Debug, Default)]
struct Watched {
    /// Pages by the first of each range; the ranges are disjoint.
    ranges: BTreeMap<u64, u64>,
    /// Ranges closer than this were joined last time.
    grain: u64,
    size: bool,
    conflicted: bool,
}

impl Watch {
    /// The transaction depends on these pages from now on.
    pub(crate) fn depend_on(&self, pages: Range<u64>) {
        self.watched.lock().add(pages);
    }

    /// The transaction depends on the file's size from now on.
    pub(crate) fn depend_on_size(&self) {
        self.watched.lock().size = true;
    }

    /// Whether somebody else has changed what the transaction depends on.
    pub(crate) fn is_conflicted(&self) -> bool {
        self.watched.lock().conflicted
    }

    /// Takes over what another transaction depends on in the same file.
    pub(crate) fn absorb(&self, other: &Watch) {
        let other = std::mem::take(&mut *other.watched.lock());
        let mut watched = self.watched.lock();
        watched.size |= other.size;
        watched.conflicted |= other.conflicted;
        for (start, end) in other.ranges {
            watched.add(start..end);
        }
    }

    fn changed(&self, pages: &Range<u64>, resized: bool) {
        let mut watched = self.watched.lock();
        watched.conflicted |= resized && watched.size || watched.touches(pages);
    }
}

impl Watched {
    fn add(&mut self, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let (mut start, mut end) = (pages.start, pages.end);
        // Ranges that touch the new one become part of it.
        while let Some((&first, &last)) = self.ranges.range(..=end).next_back() {
            if last < start {
                break;
            }
            start = start.min(first);
            end = end.max(last);
            self.ranges.remove(&first);
        }
        self.ranges.insert(start, end);
        if self.ranges.len() > WATCHED_RANGES_MAX {
            self.coarsen();
        }
    }

    /// Joins ranges until there is room for as many again.
    fn coarsen(&mut self) {
        while self.ranges.len() > WATCHED_RANGES_MAX / 2 {
            self.grain = self.grain.saturating_mul(2).max(1);
            let mut joined: Vec<(u64, u64)> = Vec::new();
            for (start, end) in std::mem::take(&mut self.ranges) {
                match joined.last_mut() {
                    Some((_, last)) if start - *last <= self.grain => *last = end,
                    _ => joined.push((start, end)),
                }
            }
            self.ranges.extend(joined);
        }
    }

    fn touches(&self, pages: &Range<u64>) -> bool {
        let before = self.ranges.range(..pages.end).next_back();
        !pages.is_empty() && before.is_some_and(|(_, end)| *end > pages.start)
    }
}

impl FileData {
    /// The content of these pages changes, or the size. Called under `Inode::state` by whoever changes it.
    pub(crate) fn note_change(&self, pages: Range<u64>, resized: bool) {
        self.note_change_by(None, pages, resized);
    }

    /// As [`FileData::note_change`]; the one who made the change is not told.
    pub(crate) fn note_change_by(&self, own: Option<&Arc<Watch>>, pages: Range<u64>, resized: bool) {
        for watch in &self.watches {
            if own.is_none_or(|own| !Arc::ptr_eq(own, watch)) {
                watch.changed(&pages, resized);
            }
        }
    }

    /// Adds a watch.
    pub(crate) fn watch(&mut self) -> Arc<Watch> {
        let watch = Arc::new(Watch::default());
        self.watches.push(watch.clone());
        watch
    }

    /// Takes a watch away.
    pub(crate) fn unwatch(&mut self, watch: &Arc<Watch>) {
        self.watches.retain(|other| !Arc::ptr_eq(other, watch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_of_what_was_noted_conflict() {
        let watch = Watch::default();
        watch.depend_on(10..12);
        watch.depend_on(20..21);
        watch.changed(&(0..10), true);
        watch.changed(&(12..20), true);
        watch.changed(&(21..u64::MAX), false);
        watch.changed(&(11..11), false);
        assert!(!watch.is_conflicted());
        watch.changed(&(11..12), false);
        assert!(watch.is_conflicted());
    }

    #[test]
    fn a_size_counts_only_once_it_was_asked_for() {
        let watch = Watch::default();
        watch.changed(&(0..0), true);
        assert!(!watch.is_conflicted());
        watch.depend_on_size();
        watch.changed(&(0..0), true);
        assert!(watch.is_conflicted());
    }

    #[test]
    fn many_ranges_are_kept_within_the_bound_and_none_is_forgotten() {
        let watch = Watch::default();
        for range in 0..3 * WATCHED_RANGES_MAX as u64 {
            watch.depend_on(range * 10..range * 10 + 2);
        }
        assert!(watch.watched.lock().ranges.len() <= WATCHED_RANGES_MAX);
        for range in 0..3 * WATCHED_RANGES_MAX as u64 {
            assert!(watch.watched.lock().touches(&(range * 10 + 1..range * 10 + 2)));
        }
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut watched = Watched::default();
        watched.add(5..7);
        watched.add(9..11);
        watched.add(7..9);
        watched.add(0..1);
        assert_eq!(watched.ranges.into_iter().collect::<Vec<_>>(), [(0, 1), (5, 11)]);
    }
}
