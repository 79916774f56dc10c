//! [`FileData`]: the cached pages of one file, and what is known about their way to the device.
//!
//! What is known of a page is its [`PageState`]. Everything here is guarded by `Inode::state`; a change of the state
//! updates the counters here and in the global [`PageAccount`] together.

use crate::Error;
use crate::content::flights::{Flight, ReadAhead};
use crate::content::lists::Place;
use crate::content::page_state::PageState;
use crate::content::turn::TurnLock;
use crate::content::watch::Watch;
use crate::core::account::{PageAccount, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{Buffer, Ticket};
use syncline_format::BLOCK_BYTES;
use syncline_format::item::{InodeItem, Shift};
use syncline_store::Reservation;

/// Bytes per page, as a file offset.
pub(crate) const PAGE_BYTES: u64 = BLOCK_BYTES as u64;

/// Pages that `len` bytes from `offset` on touch.
pub(crate) fn pages_touched(offset: u64, len: usize) -> u64 {
    match len {
        0 => 0,
        _ => pages_of(offset + len as u64) - offset / PAGE_BYTES,
    }
}

/// Pages that `bytes` bytes from offset 0 on touch.
pub(crate) fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES)
}

/// One cached page.
pub(crate) struct PageSlot {
    pub(crate) page: Arc<Buffer>,
    pub(crate) state: PageState,
    /// One block of `FileData::reservation` belongs to this page.
    pub(crate) reserved: bool,
    /// Second chance of the cache's clock.
    pub(crate) used: AtomicBool,
    /// The data write of a batch that is committed already; the page must not be read back before it completed.
    pub(crate) in_flight: Option<Ticket>,
}

impl PageSlot {
    pub(crate) fn clean(page: Arc<Buffer>) -> PageSlot {
        PageSlot {
            page,
            state: PageState::Clean,
            reserved: false,
            used: AtomicBool::new(true),
            in_flight: None,
        }
    }

    /// Whether the device has the content, and nothing else of the page is on its way.
    pub(crate) fn is_settled(&self) -> bool {
        let written = self.in_flight.as_ref().is_none_or(|ticket| matches!(ticket.result(), Some(Ok(()))));
        self.state == PageState::Clean && written
    }
}

/// How the file is stored, and what is being done to its extents.
#[derive(Default)]
pub(crate) struct Stored {
    /// Size that is covered by logged data.
    pub(crate) covered: u64,
    /// Each of the first so many pages has a block, or is in memory and gets one: no hole is among them.
    pub(crate) whole_to: u64,
    /// Some blocks may lie behind the end of the file. Of a file that was loaded it is known only if it has more blocks
    /// than pages.
    pub(crate) is_beyond: bool,
    /// Counts changes of the stored extents: what was read before a change may not be cached after it.
    pub(crate) changes: u64,
    /// A truncation that is not finished: stored extents from this page on are to be freed before any new data goes
    /// there. While `shifting`, they are to be moved before.
    pub(crate) truncating_from: Option<u64>,
    /// A range is being taken out or put in; `truncating_from` is where it begins. Nothing from there on is dirty or
    /// logged.
    pub(crate) shifting: Option<Shift>,
    /// Rounds under way that destage pages of this file; one of them has the turn then.
    pub(crate) destaging: u32,
}

/// Who reads the file in order, and what is on its way for readers.
#[derive(Default)]
pub(crate) struct Readers {
    pub(crate) ahead: ReadAhead,
    /// Pages on their way into memory.
    pub(crate) flights: Vec<Arc<Flight>>,
}

/// Where the file is in the lists (module `lists`).
#[derive(Default)]
pub(crate) struct Listed {
    /// Place in `Lists::dirty`.
    pub(crate) dirty_since: Option<Place>,
    /// Place in `Lists::logged`.
    pub(crate) logged_since: Option<Place>,
    /// Is in `Lists::cached`.
    pub(crate) in_clock: bool,
    /// Where it is in `Lists::recent`, if forces may take it along.
    pub(crate) recent_at: Option<u64>,
    /// Was piggybacked and never synced since: not worth doing again.
    pub(crate) piggybacked: bool,
}

/// Content of one file, as far as it is in memory.
pub(crate) struct FileData {
    /// The inode's own.
    turn: TurnLock,
    slots: BTreeMap<u64, PageSlot>,
    /// Dirty pages of `slots`, so that a sync does not look at all that are cached.
    dirty: BTreeSet<u64>,
    /// Logged pages of `slots`, so that destaging does not look at all that are cached either.
    logged: BTreeSet<u64>,
    /// Pages of `slots` whose newest content is not logged: dirty, or on the way.
    unlogged: u64,
    /// Blocks of the pages with `reserved`.
    pub(crate) reservation: Option<Reservation>,
    /// Changed by whoever has the turn.
    pub(crate) stored: Stored,
    /// Changed by readers.
    pub(crate) readers: Readers,
    /// Changed with the lists.
    pub(crate) listed: Listed,
    /// Of transactions that depend on the content.
    pub(crate) watches: Vec<Arc<Watch>>,
    /// Why the background does not write it: something of it cannot be read (module `aside`).
    pub(crate) aside: Option<Box<Error>>,
    /// Where the cache's clock continues in this file.
    pub(crate) hand: u64,
    account: Option<Arc<PageAccount>>,
}

impl FileData {
    pub(crate) fn new(turn: &TurnLock, item: &InodeItem) -> FileData {
        let pages = pages_of(item.size);
        let (whole_to, is_beyond) = (if item.blocks >= pages { pages } else { 0 }, item.blocks > pages);
        FileData {
            turn: turn.clone(),
            slots: BTreeMap::new(),
            dirty: BTreeSet::new(),
            logged: BTreeSet::new(),
            unlogged: 0,
            reservation: None,
            stored: Stored { covered: item.size, whole_to, is_beyond, ..Stored::default() },
            readers: Readers::default(),
            listed: Listed::default(),
            watches: Vec::new(),
            aside: None,
            hand: 0,
            account: None,
        }
    }

    /// The size that a metadata batch may log while the file's size is `logical`: covers only logged data.
    pub(crate) fn logged_size(&self, logical: u64) -> u64 {
        logical.min(self.stored.covered)
    }

    /// Whether any page is newer than what is logged, or on its way there.
    pub(crate) fn has_dirty(&self) -> bool {
        self.unlogged > 0
    }

    /// Blocks set aside for pages whose extents are not logged yet.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.reservation.as_ref().map_or(0, Reservation::blocks)
    }

    /// Blocks of a file of `size` bytes that has `stored` of them, with those that what is in memory will take; and
    /// whether it stays at that until somebody changes the file. It does where no page is a hole and no block lies
    /// behind the end. In others it is not known whether a new page fills a hole or replaces a block; a round under way
    /// holds some blocks that neither counts, and a truncation has some left to free.
    pub(crate) fn blocks(&self, size: u64, stored: u64) -> (u64, bool) {
        let (pages, reserved) = (pages_of(size), self.reserved_blocks());
        let is_within = !self.stored.is_beyond && !self.is_truncating();
        if is_within && self.stored.whole_to >= pages && stored <= pages {
            return (pages, true);
        }
        let is_known = reserved == 0 || stored == 0 || is_within && stored == pages;
        // What only replaces other blocks must not count twice, as far as that can be told.
        let most = stored.max(pages);
        (stored.saturating_add(reserved).min(most), is_known && !self.is_taken() && !self.is_truncating())
    }

    /// A write has filled the pages of the range.
    pub(crate) fn fill(&mut self, pages: &std::ops::Range<u64>) {
        let whole_to = &mut self.stored.whole_to;
        if pages.start <= *whole_to {
            *whole_to = pages.end.max(*whole_to);
        }
    }

    /// Whether somebody has the turn.
    pub(crate) fn is_taken(&self) -> bool {
        self.turn.is_taken()
    }

    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty.len() as u64
    }

    pub(crate) fn logged_pages(&self) -> u64 {
        self.logged.len() as u64
    }

    pub(crate) fn cached_pages(&self) -> u64 {
        self.slots.len() as u64
    }

    pub(crate) fn get(&self, page: u64) -> Option<&PageSlot> {
        self.slots.get(&page)
    }

    /// Whether extents of the range are being moved: nobody may look at them before that has ended.
    pub(crate) fn is_shifting(&self, pages: &std::ops::Range<u64>) -> bool {
        self.stored.shifting.is_some_and(|shift| pages.end > shift.first)
    }

    /// Cached pages of the range, ascending.
    pub(crate) fn range(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = (u64, &PageSlot)> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.slots.range(pages).map(|(&page, slot)| (page, slot))
    }

    /// Numbers of the dirty pages of the range, ascending.
    pub(crate) fn dirty_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.dirty.range(pages).copied()
    }

    /// Numbers of the logged pages of the range, ascending.
    pub(crate) fn logged_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        let pages = if pages.start < pages.end { pages } else { 0..0 };
        self.logged.range(pages).copied()
    }

    /// Numbers of the dirty and the logged pages of the range, ascending.
    pub(crate) fn destage_numbers(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
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
    pub(crate) fn dirty_range(&self, pages: std::ops::Range<u64>) -> impl Iterator<Item = (u64, &PageSlot)> {
        self.dirty_numbers(pages).map(|page| (page, self.slots.get(&page).expect("dirty pages are cached")))
    }

    /// Dirty and logged pages of the range, ascending.
    pub(crate) fn destage_range(
        &self,
        pages: std::ops::Range<u64>,
    ) -> impl Iterator<Item = (u64, &PageSlot)> {
        let slot = |page: u64| self.slots.get(&page).expect("dirty and logged pages are cached");
        self.destage_numbers(pages).map(move |page| (page, slot(page)))
    }

    /// Whether all that is newer than what is logged can be logged as images while a round destages the file: the round
    /// takes none of it along, so it will not drop those images.
    pub(crate) fn is_apart_from_destaging(&self) -> bool {
        self.stored.destaging > 0
            && self.unlogged == self.dirty_pages()
            && self.dirty_range(0..u64::MAX).all(|(_, slot)| !slot.state.is_writing())
    }

    /// Changes a page's state; the counters follow. The page must be cached.
    pub(crate) fn update<R>(&mut self, page: u64, change: impl FnOnce(&mut PageSlot) -> R) -> R {
        let slot = self.slots.get_mut(&page).expect("only cached pages are updated");
        let before = slot.state.standing();
        let result = change(slot);
        let after = slot.state.standing();
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
    pub(crate) fn insert_clean(&mut self, account: &Arc<PageAccount>, page: u64, buffer: Arc<Buffer>) {
        self.account.get_or_insert_with(|| account.clone()).added();
        let old = self.slots.insert(page, PageSlot::clean(buffer));
        assert!(old.is_none(), "page {page} was cached already");
    }

    /// Caches a page that is not cached yet and newer than anything logged, and gives it a block of `from`, if one is
    /// left.
    pub(crate) fn insert_dirty(
        &mut self,
        account: &Arc<PageAccount>,
        page: u64,
        buffer: Arc<Buffer>,
        from: Option<&mut Reservation>,
    ) {
        let mut slot = PageSlot { state: PageState::Dirty, ..PageSlot::clean(buffer) };
        if let Some(from) = from.filter(|from| from.blocks() > 0) {
            slot.reserved = true;
            self.keep_blocks(from, 1);
        }
        let account = self.account.get_or_insert_with(|| account.clone());
        account.added();
        account.moved(Standing::default(), slot.state.standing());
        self.unlogged += 1;
        self.dirty.insert(page);
        let old = self.slots.insert(page, slot);
        assert!(old.is_none(), "page {page} was cached already");
    }

    /// Forgets a page whatever its state is; its reservation goes back to the volume.
    pub(crate) fn discard(&mut self, page: u64) {
        self.update(page, |slot| slot.state = PageState::Clean);
        self.release_block(page);
        self.slots.remove(&page);
        self.account.as_ref().expect("a file with pages has an account").removed(1);
    }

    /// Forgets all pages of the range: they may be holes from now on.
    pub(crate) fn discard_range(&mut self, pages: std::ops::Range<u64>) {
        self.stored.whole_to = self.stored.whole_to.min(pages.start);
        let doomed: Vec<u64> = self.range(pages).map(|(page, _)| page).collect();
        for page in doomed {
            self.discard(page);
        }
    }

    /// Drops clean pages, starting at the clock's hand and looking at no more than `looks` pages; returns how many
    /// went.
    pub(crate) fn evict(&mut self, looks: usize) -> u64 {
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
    pub(crate) fn give_block(&mut self, page: u64, from: &mut Reservation) {
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
    pub(crate) fn take_blocks(&mut self, blocks: u64) -> Option<Reservation> {
        let reservation = self.reservation.as_mut().filter(|_| blocks > 0)?;
        Some(reservation.split(blocks))
    }

    /// Takes a page's block away, if it has one.
    pub(crate) fn take_block(&mut self, page: u64) -> Option<Reservation> {
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
            account.moved(slot.state.standing(), Standing::default());
        }
        account.removed(self.slots.len() as u64);
    }
}

/// Changes a page; one that is being written stays as it is and is replaced.
pub(crate) fn overwrite(page: &mut Arc<Buffer>, skip: usize, new: &[u8]) {
    match Arc::get_mut(page) {
        Some(page) => page[skip..skip + new.len()].copy_from_slice(new),
        None if new.len() == BLOCK_BYTES => *page = Arc::new(Buffer::from_bytes(new)),
        None => Arc::make_mut(page)[skip..skip + new.len()].copy_from_slice(new),
    }
}
