//! [`ExtentMap`]: a file's extents around a range, with the changes that a batch is going to make to them.
//!
//! A batch holds absolute values, so the map is edited first and then emitted as the difference to what is stored.
//! Whoever edits holds the file's turn; whoever only looks has to expect that the extents change meanwhile.

use crate::content::Content;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use syncline_format::batch::{DELETE_BYTES, DROP_BYTES, PUT_OVERHEAD_BYTES, RELEASE_BYTES};
use syncline_format::item::{EXTENT_HEADER_BYTES, EXTENT_PAGES_MAX, ExtentContent, ExtentItem};
use syncline_format::range::FILE_PAGES_MAX;
use syncline_format::{BlockNo, Era, Key, ObjectNo};
use syncline_store::{Batch, Birth, Run};

/// An upper bound of what a change adds to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cost {
    pub(crate) bytes: usize,
    pub(crate) items: usize,
}

impl Cost {
    pub(crate) fn plus(self, other: Cost) -> Cost {
        Cost { bytes: self.bytes + other.bytes, items: self.items + other.items }
    }

    pub(crate) fn fits(self, within: Cost) -> bool {
        self.bytes <= within.bytes && self.items <= within.items
    }
}

/// Cost of putting one extent item.
pub(crate) fn put_cost(pages: u64) -> Cost {
    Cost { bytes: PUT_OVERHEAD_BYTES + EXTENT_HEADER_BYTES + 8 * pages as usize, items: 1 }
}

#[derive(Debug, Clone)]
struct Entry {
    item: ExtentItem,
    changed: bool,
    fresh: bool,
    birth: Birth,
}

/// Blocks that edits have taken out of an extent: the page that they were of, and since when they were.
#[derive(Debug)]
struct Cut {
    page: u64,
    run: Run,
    birth: Era,
}

impl Entry {
    fn stored(item: ExtentItem) -> Entry {
        Entry { item, changed: false, fresh: false, birth: Birth::Kept }
    }
}

/// Extents by first page.
#[derive(Debug)]
pub(crate) struct ExtentMap {
    object: ObjectNo,
    entries: BTreeMap<u64, Entry>,
    /// Keys that are stored.
    stored: BTreeSet<u64>,
    /// Blocks that the file gives up.
    freed: Vec<Cut>,
    /// Extents that begin before this page were read, or left out for good.
    scanned: u64,
    /// The page behind the last stored extent that was read.
    stored_end: u64,
    /// Nobody changes the extents meanwhile: whoever reads them has the file's turn.
    settled: bool,
}

impl ExtentMap {
    /// Nothing read yet.
    pub(crate) fn empty(object: ObjectNo) -> ExtentMap {
        ExtentMap {
            object,
            entries: BTreeMap::new(),
            stored: BTreeSet::new(),
            freed: Vec::new(),
            scanned: 0,
            stored_end: 0,
            settled: false,
        }
    }

    /// Reads the extents that touch `pages`, and some before them (for their place on the device), but no more than
    /// `limit` that start behind the first page; the second value is the first that was not read, `None` if all were.
    pub(crate) fn load_some(
        content: &Content,
        object: ObjectNo,
        pages: Range<u64>,
        limit: usize,
    ) -> Result<(ExtentMap, Option<u64>)> {
        let mut map = ExtentMap::empty(object);
        let cut = map.read(content, pages, limit)?;
        Ok((map, cut))
    }

    /// Reads the extents that touch `pages` as well, which lie behind all that was read so far. What is between is
    /// left out, so that a few changes far apart in a file of many extents do not read them all.
    pub(crate) fn load_more(&mut self, content: &Content, pages: Range<u64>) -> Result<()> {
        if pages.end > self.scanned {
            self.read(content, pages, usize::MAX)?;
        }
        Ok(())
    }

    /// As [`ExtentMap::load_more`], but reads no more than `limit` that start behind the first page; returns the
    /// first that was not read.
    pub(crate) fn load_rest(&mut self, content: &Content, from: u64, limit: usize) -> Result<Option<u64>> {
        self.read(content, from..u64::MAX, limit)
    }

    /// Returns the first extent beyond the limit.
    fn read(&mut self, content: &Content, pages: Range<u64>, limit: usize) -> Result<Option<u64>> {
        let object = self.object;
        let mut cut = None;
        let mut bad = None;
        let mut count = 0;
        // An extent that begins earlier was read already, and may be changed by now.
        let first = self.first_to_read(content, pages.start)?.max(self.scanned);
        self.scanned = pages.end;
        content.core.store.scan(
            content.tree,
            Key::extent(object, first),
            Key::extent(object, pages.end),
            &mut |key, value| {
                if key.offset > pages.start && count >= limit {
                    cut = Some(key.offset);
                    return ControlFlow::Break(());
                }
                match ExtentItem::decode(value) {
                    Ok(item) if key.offset > FILE_PAGES_MAX - u64::from(item.pages()) => {
                        bad = Some(Error::Inconsistent {
                            object,
                            what: "an extent lies beyond the largest file",
                        });
                        ControlFlow::Break(())
                    }
                    Ok(item) if !content.core.store.holds_run(item.start, item.pages()) => {
                        let what = "an extent lies outside of the blocks that can be allocated";
                        bad = Some(Error::Inconsistent { object, what });
                        ControlFlow::Break(())
                    }
                    Ok(item) if key.offset >= self.stored_end => {
                        self.stored_end = key.offset.saturating_add(u64::from(item.pages()));
                        count += usize::from(key.offset > pages.start);
                        self.stored.insert(key.offset);
                        self.entries.insert(key.offset, Entry::stored(item));
                        ControlFlow::Continue(())
                    }
                    Ok(_) => {
                        bad = Some(Error::Inconsistent { object, what: "two extents overlap" });
                        ControlFlow::Break(())
                    }
                    Err(error) => {
                        bad = Some(error.into());
                        ControlFlow::Break(())
                    }
                }
            },
        )?;
        if let Some(error) = bad {
            return Err(error);
        }
        self.lay_over(content, pages.start..cut.unwrap_or(pages.end))?;
        Ok(cut)
    }

    /// Enters what a snapshot has beside its tree, in place of what the tree has there.
    fn lay_over(&mut self, content: &Content, pages: Range<u64>) -> Result<()> {
        let Some(overlay) = content.overlay.get() else { return Ok(()) };
        let object = self.object;
        let first = pages.start.saturating_sub(u64::from(EXTENT_PAGES_MAX));
        for (&(_, first), item) in overlay.range((object, first)..(object, pages.end)) {
            if !content.core.store.holds_run(item.start, item.pages()) {
                let what = "a page of a snapshot lies outside of the blocks that can be allocated";
                return Err(Error::Inconsistent { object, what });
            }
            self.cut(first..first.saturating_add(u64::from(item.pages())), false);
            self.entries.insert(first, Entry::stored(item.clone()));
        }
        Ok(())
    }

    /// A page before which no extent begins that has to be read for `page`. Who may be disturbed asks for all that
    /// could reach up to it, in one look; a file written at random has an extent for each page.
    fn first_to_read(&self, content: &Content, page: u64) -> Result<u64> {
        if !self.settled || page == 0 {
            return Ok(page.saturating_sub(u64::from(EXTENT_PAGES_MAX)));
        }
        let before =
            content.core.store.last_at_or_before(content.tree, Key::extent(self.object, page - 1))?;
        let first = Key::extent(self.object, 0);
        Ok(before.filter(|&(key, _)| key >= first).map_or(page, |(key, _)| key.offset))
    }

    /// As [`ExtentMap::load`], and reads no more than it needs now and later: the caller has the file's turn.
    pub(crate) fn load_settled(content: &Content, object: ObjectNo, pages: Range<u64>) -> Result<ExtentMap> {
        let mut map = ExtentMap { settled: true, ..ExtentMap::empty(object) };
        map.read(content, pages, usize::MAX)?;
        Ok(map)
    }

    /// Reads all extents that touch `pages`.
    pub(crate) fn load(content: &Content, object: ObjectNo, pages: Range<u64>) -> Result<ExtentMap> {
        Ok(ExtentMap::load_some(content, object, pages, usize::MAX)?.0)
    }

    /// The extent that covers the page: its first page, and itself.
    pub(crate) fn find(&self, page: u64) -> Option<(u64, &ExtentItem)> {
        let (&first, entry) = self.entries.range(..=page).next_back()?;
        (page - first < u64::from(entry.item.pages())).then_some((first, &entry.item))
    }

    /// The extents that touch the range, ascending.
    pub(crate) fn overlapping(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &ExtentItem)> {
        let from = self.find(pages.start).map_or(pages.start, |(first, _)| first);
        let range = if from < pages.end { from..pages.end } else { 0..0 };
        self.entries.range(range).map(|(&first, entry)| (first, &entry.item))
    }

    /// Whether one extent holds pages on both sides of the border before `page`.
    pub(crate) fn reaches_across(&self, page: u64) -> bool {
        self.find(page).is_some_and(|(first, _)| first < page)
    }

    /// The block after the extent that ends closest before `page`: where its data would be contiguous.
    pub(crate) fn near(&self, page: u64) -> Option<BlockNo> {
        let (_, entry) = self.entries.range(..page).next_back()?;
        Some(entry.item.block_of(u64::from(entry.item.pages())))
    }

    /// Bound of what [`ExtentMap::cut`] of the range adds to a batch.
    pub(crate) fn cut_cost(&self, pages: Range<u64>) -> Cost {
        let mut cost = Cost::default();
        for (first, item) in self.overlapping(pages.clone()) {
            let end = first + u64::from(item.pages());
            // What is left in front keeps its key, so that it is put or deleted.
            cost = cost.plus(match pages.start.checked_sub(first) {
                Some(left) if left > 0 => put_cost(left),
                _ => Cost { bytes: DELETE_BYTES, items: 1 },
            });
            cost.bytes += RELEASE_BYTES;
            if end > pages.end {
                cost = cost.plus(put_cost(end - pages.end));
            }
        }
        cost
    }

    /// Takes the range out of all extents; returns how many pages had one. `free`: their blocks are free then.
    pub(crate) fn cut(&mut self, pages: Range<u64>, free: bool) -> u64 {
        if pages.is_empty() {
            return 0;
        }
        let hit: Vec<u64> = self.overlapping(pages.clone()).map(|(first, _)| first).collect();
        let mut cut = 0;
        for first in hit {
            let Some(Entry { item, fresh, birth, .. }) = self.entries.remove(&first) else { continue };
            let end = first + u64::from(item.pages());
            let (from, to) = (first.max(pages.start), end.min(pages.end));
            if first < from {
                let left = item.slice(0, (from - first) as u32);
                self.entries.insert(first, Entry { item: left, changed: true, fresh, birth });
            }
            if to < end {
                let right = item.slice((to - first) as u32, (end - to) as u32);
                self.entries.insert(to, Entry { item: right, changed: true, fresh, birth });
            }
            cut += to - from;
            if free {
                let run = Run { start: item.block_of(from - first), len: (to - from) as u32 };
                self.freed.push(Cut { page: from, run, birth: item.birth });
            }
        }
        cut
    }

    /// Enters an extent of new blocks into a range that nothing covers. `fresh`: the batch brings its data (R4).
    pub(crate) fn put(&mut self, first: u64, item: ExtentItem, fresh: bool) {
        self.entries.insert(first, Entry { item, changed: true, fresh, birth: Birth::Now });
    }

    /// Enters an extent whose blocks the range had already, born as the item says; the batch brings their data.
    pub(crate) fn put_in_place(&mut self, first: u64, item: ExtentItem) {
        self.entries.insert(first, Entry { item, changed: true, fresh: true, birth: Birth::Kept });
    }

    /// Bound of what [`ExtentMap::emit`] adds to a batch, of which the items are exact.
    pub(crate) fn emit_cost(&self) -> Cost {
        let deletes = self.stored.iter().filter(|first| !self.entries.contains_key(first)).count();
        let puts = self.entries.values().filter(|entry| entry.changed);
        let edges = Cost { bytes: deletes * DELETE_BYTES + self.freed.len() * RELEASE_BYTES, items: deletes };
        puts.fold(edges, |cost, entry| cost.plus(put_cost(u64::from(entry.item.pages()))))
    }

    /// Writes the edits into a batch: deletes, puts, frees.
    pub(crate) fn emit(&self, batch: &mut Batch) {
        for &first in self.stored.iter().filter(|first| !self.entries.contains_key(first)) {
            batch.delete(Key::extent(self.object, first));
        }
        for (&first, entry) in self.entries.iter().filter(|(_, entry)| entry.changed) {
            let key = Key::extent(self.object, first);
            batch.put_extent(key, &entry.item, entry.birth, entry.fresh);
        }
        for Cut { page, run, birth } in &self.freed {
            batch.release(Key::extent(self.object, *page), run.start, run.len, *birth);
        }
    }

    /// Makes `page` the start of an extent, if one covers it.
    pub(crate) fn split(&mut self, page: u64) {
        let Some((first, item)) = self.find(page).filter(|&(first, _)| first < page) else { return };
        let left = (page - first) as u32;
        let right = item.pages() - left;
        let (left, right) = (item.slice(0, left), item.slice(left, right));
        self.entries.insert(first, Entry { changed: true, ..Entry::stored(left) });
        self.entries.insert(page, Entry { changed: true, ..Entry::stored(right) });
    }

    /// Moves every extent from page `from` on by `by` pages (collapse, insert); nothing else may be edited. There they
    /// are since now: a snapshot has them where they were.
    pub(crate) fn shift(&mut self, from: u64, by: i64) {
        let moved = self.entries.split_off(&from);
        for (first, entry) in moved {
            let first = first.checked_add_signed(by).expect("the caller checked the range");
            self.entries.insert(first, Entry { changed: true, birth: Birth::Moved, ..entry });
        }
    }
}

/// Cost of dropping the images of a range.
pub(crate) const DROP_COST: Cost = Cost { bytes: DROP_BYTES, items: 0 };

/// Whether the extent's blocks were allocated but never written.
pub(crate) fn is_unwritten(item: &ExtentItem) -> bool {
    matches!(item.content, ExtentContent::Unwritten { .. })
}
