//! [`FileData`]: the cached pages of one file, and what is known about their way to the device.
//!
//! A page is *clean* (evictable), *dirty* (newer than anything logged), *logged* (an image in the journal is its only
//! durable copy), *writing* (its content is on its way to the device by whoever has the turn), or several of these: a
//! logged page that is written to is dirty and logged. Everything here is guarded by `Inode::state`; moving between
//! these states updates the counters here and in the global [`PageAccount`] together.

use super::account::{PageAccount, Place, Standing};
use super::flight::Flight;
use super::watch::Watch;
use crate::Error;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{Buffer, Ticket};
use syncline_format::BLOCK_BYTES;
use syncline_format::item::{InodeItem, Shift, Timestamp};
use syncline_store::Reservation;

/// Bytes per page, as a file offset.
pub(super) const PAGE_BYTES: u64 = BLOCK_BYTES as u64;

/// Pages that `len` bytes from `offset` on touch.
pub(super) fn pages_touched(offset: u64, len: usize) -> u64 {
    match len {
        0 => 0,
        _ => pages_of(offset + len as u64) - offset / PAGE_BYTES,
    }
}

/// Pages that `bytes` bytes from offset 0 on touch.
pub(super) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES)
}

/// One cached page.
pub(super) struct PageSlot {
    pub(super) page: Arc<Buffer>,
    /// Newer than anything logged.
    pub(super) dirty: bool,
    /// An image of this page (of this or an older content) is live in the journal.
    pub(super) logged: bool,
    /// Chosen by the holder of the turn for its next batch.
    pub(super) writing: bool,
    /// While `writing`: the chosen content is newer than anything logged.
    pub(super) unlogged: bool,
    /// One block of `FileData::reservation` belongs to this page.
    pub(super) reserved: bool,
    /// Second chance of the cache's clock.
    pub(super) used: AtomicBool,
    /// The data write of a batch that is committed already; the page must not be read back before it completed.
    pub(super) in_flight: Option<Ticket>,
}

impl PageSlot {
    pub(super) fn clean(page: Arc<Buffer>) -> PageSlot {
        PageSlot {
            page,
            dirty: false,
            logged: false,
            writing: false,
            unlogged: false,
            reserved: false,
            used: AtomicBool::new(true),
            in_flight: None,
        }
    }

    /// Whether the device has the content, and nothing else of the page is on its way.
    pub(super) fn is_settled(&self) -> bool {
        let written = self.in_flight.as_ref().is_none_or(|ticket| matches!(ticket.result(), Some(Ok(()))));
        !self.dirty && !self.logged && !self.writing && written
    }

    fn standing(&self) -> Standing {
        Standing {
            dirty: self.dirty,
            logged: self.logged,
            unlogged: self.dirty || self.unlogged,
            pinned: self.dirty || self.logged || self.writing,
        }
    }
}

/// Sequential reading, as seen by cache misses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReadAhead {
    /// The page after the last one that was wanted.
    pub(super) next: u64,
    /// Pages to have under way ahead of it.
    pub(super) window: u64,
    /// Everything before this page was asked for.
    pub(super) until: u64,
    /// When that was done last.
    pub(super) since: Timestamp,
}

/// Content of one file, as far as it is in memory.
pub(crate) struct FileData {
    /// See the module `data`.
    turn: Arc<Mutex<()>>,
    slots: BTreeMap<u64, PageSlot>,
    /// Dirty pages of `slots`, so that a sync does not look at all that are cached.
    dirty: BTreeSet<u64>,
    /// Logged pages of `slots`, so that destaging does not look at all that are cached either.
    logged: BTreeSet<u64>,
    /// Pages of `slots` whose newest content is not logged: dirty, or on the way.
    unlogged: u64,
    /// Blocks of the pages with `reserved`.
    pub(super) reservation: Option<Reservation>,
    /// Size that is covered by logged data.
    pub(super) covered: u64,
    /// Counts changes of the stored extents: what was read before a change may not be cached after it.
    pub(super) extent_changes: u64,
    /// A truncation that is not finished: stored extents from this page on are to be freed before any new data goes
    /// there. While `shifting`, they are to be moved before.
    pub(super) truncating_from: Option<u64>,
    /// A range is being taken out or put in; `truncating_from` is where it begins. Nothing from there on is dirty or
    /// logged.
    pub(super) shifting: Option<Shift>,
    pub(super) read_ahead: ReadAhead,
    /// Pages on their way into memory.
    pub(super) flights: Vec<Arc<Flight>>,
    /// Of transactions that depend on the content.
    pub(super) watches: Vec<Arc<Watch>>,
    /// Rounds under way that destage pages of this file; one of them has the turn then.
    pub(super) destaging: u32,
    /// Place in `Lists::dirty`.
    pub(super) dirty_since: Option<Place>,
    /// Place in `Lists::logged`.
    pub(super) logged_since: Option<Place>,
    /// Is in `Lists::cached`.
    pub(super) in_clock: bool,
    /// Where it is in `Lists::recent`, if forces may take it along.
    pub(super) recent_at: Option<u64>,
    /// Was piggybacked and never synced since: not worth doing again.
    pub(super) piggybacked: bool,
    /// Why the background does not write it: something of it cannot be read (module `aside`).
    pub(super) aside: Option<Box<Error>>,
    /// Where the cache's clock continues in this file.
    pub(super) hand: u64,
    account: Option<Arc<PageAccount>>,
}

impl FileData {
    pub(crate) fn new(item: &InodeItem) -> FileData {
        FileData {
            turn: Arc::default(),
            slots: BTreeMap::new(),
            dirty: BTreeSet::new(),
            logged: BTreeSet::new(),
            unlogged: 0,
            reservation: None,
            covered: item.size,
            extent_changes: 0,
            truncating_from: None,
            shifting: None,
            read_ahead: ReadAhead::default(),
            flights: Vec::new(),
            watches: Vec::new(),
            destaging: 0,
            dirty_since: None,
            logged_since: None,
            in_clock: false,
            recent_at: None,
            piggybacked: false,
            aside: None,
            hand: 0,
            account: None,
        }
    }

    /// The size that a metadata batch may log while the file's size is `logical`: covers only logged data.
    pub(crate) fn logged_size(&self, logical: u64) -> u64 {
        logical.min(self.covered)
    }

    /// Whether any page is newer than what is logged, or on its way there.
    pub(crate) fn has_dirty(&self) -> bool {
        self.unlogged > 0
    }

    /// Blocks set aside for pages whose extents are not logged yet.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.reservation.as_ref().map_or(0, Reservation::blocks)
    }

    /// Whether the file has as many blocks as it seems to (`stored` and those set aside) until somebody changes it. A
    /// round under way holds some that neither counts, a truncation has some left to free, and in a file with holes
    /// it is not known yet whether a new page fills one or replaces a block.
    pub(crate) fn are_blocks_settled(&self, size: u64, stored: u64) -> bool {
        let replaces_all = stored >= self.logged_size(size).div_ceil(PAGE_BYTES);
        let is_known = self.reserved_blocks() == 0 || stored == 0 || replaces_all;
        is_known && !self.is_taken() && !self.is_truncating()
    }

    pub(super) fn turn(&self) -> Arc<Mutex<()>> {
        self.turn.clone()
    }

    /// Whether somebody has the turn.
    pub(super) fn is_taken(&self) -> bool {
        self.turn.is_locked()
    }

    pub(super) fn dirty_pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    pub(super) fn logged_pages(&self) -> u64 {
        self.logged.len() as u64
    }

    pub(super) fn cached_pages(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(super) fn get(&self, page: u64) -> Option<&PageSlot> {
        self.slots.get(&page)
    }

    /// Whether extents of the range are being moved: nobody may look at them before that has ended.
    pub(super) fn is_shifting(&self, pages: &std::ops::Range<u64>) -> bool {
        self.shifting.is_some_and(|shift| pages.end > shift.first)
    }

    /// Cached pages of the range, ascending.
    pub(super) fn range(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = (u64, &PageSlot)> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.slots.range(pages).map(|(&page, slot)| (page, slot))
    }

    /// Numbers of the dirty pages of the range, ascending.
    pub(super) fn dirty_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.dirty.range(pages).copied()
    }

    /// Numbers of the logged pages of the range, ascending.
    pub(super) fn logged_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.logged.range(pages).copied()
    }

    /// Numbers of the dirty and the logged pages of the range, ascending.
    pub(super) fn destage_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        let some = if pages.start < pages.end { pages.clone() } else { 0..0 };
        let mut logged = self.logged.range(some).copied().peekable();
        let mut dirty = self.dirty_numbers(pages).peekable();
        std::iter::from_fn(move || {
            let next = match (dirty.peek(), logged.peek()) {
                (Some(dirty), Some(logged)) => *dirty.min(logged),
                (dirty, logged) => *dirty.or(logged)?,
            };
            dirty.next_if_eq(&next);
            logged.next_if_eq(&next);
            Some(next)
        })
    }

    /// Dirty pages of the range, ascending.
    pub(super) fn dirty_range(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = (u64, &PageSlot)> {
        self.dirty_numbers(pages).map(|page| (page, self.slots.get(&page).expect("dirty pages are cached")))
    }

    /// Dirty and logged pages of the range, ascending.
    pub(super) fn destage_range(
        &self,
        pages: std::ops::Range<u64>,
    ) -> impl Iterator<Item = (u64, &PageSlot)> {
        let slot = |page: u64| self.slots.get(&page).expect("dirty and logged pages are cached");
        self.destage_numbers(pages).map(move |page| (page, slot(page)))
    }

    /// Whether all that is newer than what is logged can be logged as images while a round destages the file: the round
    /// takes none of it along, so it will not drop those images.
    pub(super) fn is_apart_from_destaging(&self) -> bool {
        self.destaging > 0
            && self.unlogged == self.dirty_pages()
            && self.dirty_range(0..u64::MAX).all(|(_, slot)| !slot.writing)
    }

    /// Changes a page's state; the counters follow. The page must be cached.
    pub(super) fn update<R>(&mut self, page: u64, change: impl FnOnce(&mut PageSlot) -> R) -> R {
        let slot = self.slots.get_mut(&page).expect("only cached pages are updated");
        let before = slot.standing();
        let result = change(slot);
        let after = slot.standing();
        match (before.dirty, after.dirty) {
            (false, true) => drop(self.dirty.insert(page)),
            (true, false) => drop(self.dirty.remove(&page)),
            _ => {}
        }
        match (before.logged, after.logged) {
            (false, true) => drop(self.logged.insert(page)),
            (true, false) => drop(self.logged.remove(&page)),
            _ => {}
        }
        self.unlogged = self.unlogged + u64::from(after.unlogged) - u64::from(before.unlogged);
        let account = self.account.as_ref().expect("a file with pages has an account");
        account.moved(before, after);
        result
    }

    /// Caches a page that is not cached yet.
    pub(super) fn insert_clean(&mut self, account: &Arc<PageAccount>, page: u64, buffer: Arc<Buffer>) {
        self.account.get_or_insert_with(|| account.clone()).added();
        let old = self.slots.insert(page, PageSlot::clean(buffer));
        assert!(old.is_none(), "page {page} was cached already");
    }

    /// Caches a page that is not cached yet and newer than anything logged, and gives it a block of `from`, if one is
    /// left.
    pub(super) fn insert_dirty(
        &mut self,
        account: &Arc<PageAccount>,
        page: u64,
        buffer: Arc<Buffer>,
        from: Option<&mut Reservation>,
    ) {
        let mut slot = PageSlot { dirty: true, ..PageSlot::clean(buffer) };
        if let Some(from) = from.filter(|from| from.blocks() > 0) {
            slot.reserved = true;
            self.keep_blocks(from, 1);
        }
        let account = self.account.get_or_insert_with(|| account.clone());
        account.added();
        account.moved(Standing::default(), slot.standing());
        self.unlogged += 1;
        self.dirty.insert(page);
        let old = self.slots.insert(page, slot);
        assert!(old.is_none(), "page {page} was cached already");
    }

    /// Forgets a page whatever its state is; its reservation goes back to the volume.
    pub(super) fn discard(&mut self, page: u64) {
        self.update(page, |slot| {
            slot.dirty = false;
            slot.logged = false;
            slot.writing = false;
            slot.unlogged = false;
        });
        self.release_block(page);
        self.slots.remove(&page);
        self.account.as_ref().expect("a file with pages has an account").removed(1);
    }

    /// Forgets all pages of the range.
    pub(super) fn discard_range(&mut self, pages: std::ops::Range<u64>) {
        let doomed: Vec<u64> = self.range(pages).map(|(page, _)| page).collect();
        for page in doomed {
            self.discard(page);
        }
    }

    /// Drops clean pages, starting at the clock's hand and looking at no more than `looks` pages; returns how many
    /// went.
    pub(super) fn evict(&mut self, looks: usize) -> u64 {
        let mut evicted = Vec::new();
        let mut last = None;
        for (&page, slot) in self.slots.range_mut(self.hand..).take(looks) {
            last = Some(page);
            if slot.is_settled() && !slot.used.swap(false, Ordering::Relaxed) {
                evicted.push(page);
            }
        }
        self.hand = match last {
            Some(page) if self.slots.range(page + 1..).next().is_some() => page + 1,
            _ => 0,
        };
        for page in &evicted {
            self.slots.remove(page);
        }
        if let Some(account) = &self.account {
            account.evicted(evicted.len() as u64);
        }
        evicted.len() as u64
    }

    /// Gives a page one block of `from`, unless it has one.
    pub(super) fn give_block(&mut self, page: u64, from: &mut Reservation) {
        if self.update(page, |slot| std::mem::replace(&mut slot.reserved, true)) {
            return;
        }
        self.keep_blocks(from, 1);
    }

    /// Takes blocks over into the file's reservation.
    fn keep_blocks(&mut self, from: &mut Reservation, blocks: u64) {
        match &mut self.reservation {
            Some(reservation) => drop(reservation.take(from, blocks)),
            None => self.reservation = Some(from.split(blocks)),
        }
    }

    /// Takes the blocks of pages away whose `reserved` was taken back.
    pub(super) fn take_blocks(&mut self, blocks: u64) -> Option<Reservation> {
        let reservation = self.reservation.as_mut().filter(|_| blocks > 0)?;
        Some(reservation.split(blocks))
    }

    /// Takes a page's block away, if it has one.
    pub(super) fn take_block(&mut self, page: u64) -> Option<Reservation> {
        if !self.update(page, |slot| std::mem::take(&mut slot.reserved)) {
            return None;
        }
        let reservation = self.reservation.as_mut().expect("reserved pages have a reservation");
        Some(reservation.split(1))
    }

    fn release_block(&mut self, page: u64) {
        drop(self.take_block(page));
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        let Some(account) = &self.account else { return };
        for slot in self.slots.values() {
            account.moved(slot.standing(), Standing::default());
        }
        account.removed(self.slots.len() as u64);
    }
}
