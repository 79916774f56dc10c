//! [`Writeback`]: which files have something to write, and how much memory their pages take.
//!
//! Files with dirty pages or a dirty inode item are in `Lists::dirty`, files with logged pages in `Lists::logged`, both
//! those first that are there longest; the lists hold the inodes, so that those stay in memory. `Lists::cached` is the
//! cache's clock: every file with cached pages once. Files that are set aside are in none of the first two (module
//! `aside`). Its entries are weak, so a clean inode may go with its pages.
//!
//! Locks: `lists` is taken with or without one `Inode::state`, and nothing but the store is taken inside it.

use super::aside::AsideFiles;
use super::hint::Hints;
use super::lane::Lane;
use super::pages::FileData;
use super::piggyback::Along;
use crate::FsOptions;
use crate::inode::{Inode, InodeState};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use syncline_device::Ticket;
use syncline_format::BLOCK_BYTES;
use syncline_format::item::Timestamp;

/// Most that pages take of the memory bound (see `balance` for how they share it with tree nodes). Measured with random
/// writes, which need most of all.
const PAGES_PERCENT: usize = 35;
/// Share of the page bound that pages may take which cannot be dropped.
const PINNED_PERCENT: u64 = 60;
/// Light writers are not slowed down before so much more than the bound cannot be dropped: an eighth of it, which
/// only they use.
const LIGHT_SHARE: u64 = 8;
/// The background writes while more than this share of the pages that cannot be dropped is dirty (7 MiB by default):
/// early, so that a sync finds little left.
const BACKGROUND_SHARE: u64 = 8;
/// Calls of the background without any sync between them after which it no longer gives way.
const QUIET_CALLS: u32 = 16;
/// How long a writer waits for others to write before it looks whether it can do so itself.
const PROGRESS_PATIENCE: Duration = Duration::from_millis(10);
/// The same for a writer that is slowed down and told when there is room: a bound for what nobody tells.
const ROOM_PATIENCE: Duration = Duration::from_millis(50);
/// Fewest pages, whatever the memory bound says: one batch must always fit.
const PAGES_MIN: u64 = 2048;
/// Small files that were dirtied last; older ones are left to the background. A program that writes many and then
/// syncs them all begins with the oldest, so they have to last for a pass over as many as are written within the
/// commit interval.
const RECENT_MAX: usize = 4096;

/// Flights that can be given up for others; older ones have mostly landed.
const AHEAD_NOTES_MAX: usize = 256;

/// What a page counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Standing {
    pub(super) dirty: bool,
    pub(super) logged: bool,
    /// Its newest content is not logged.
    pub(super) unlogged: bool,
    /// Cannot be dropped.
    pub(super) pinned: bool,
}

/// The page cache: what is in it, and what it was good for since the volume was opened. In pages of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageStats {
    /// Pages in memory.
    pub cached: u64,
    /// Bound on these; pages that cannot be dropped yet may go beyond it for a moment.
    pub cached_max: u64,
    /// Of these, newer than anything in the journal or its place.
    pub dirty: u64,
    /// Of these, durable in the journal only.
    pub logged: u64,
    /// Pages that a read found in memory.
    pub hits: u64,
    /// Pages that a read did not find in memory, holes included: these are not kept.
    pub misses: u64,
    /// Pages dropped to stay within the bound.
    pub evictions: u64,
}

/// Counts pages of all files.
#[derive(Default)]
pub(super) struct PageAccount {
    cached: AtomicU64,
    dirty: AtomicU64,
    logged: AtomicU64,
    pinned: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

impl PageAccount {
    pub(super) fn added(&self) {
        self.cached.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn removed(&self, pages: u64) {
        self.cached.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Pages were dropped to stay within the bound.
    pub(super) fn evicted(&self, pages: u64) {
        self.removed(pages);
        self.evictions.fetch_add(pages, Ordering::Relaxed);
    }

    /// A read found pages in memory.
    pub(super) fn hit(&self, pages: u64) {
        self.hits.fetch_add(pages, Ordering::Relaxed);
    }

    /// A read did not find pages in memory.
    pub(super) fn missed(&self, pages: u64) {
        self.misses.fetch_add(pages, Ordering::Relaxed);
    }

    /// A page's standing changed.
    pub(super) fn moved(&self, before: Standing, after: Standing) {
        let count = |counter: &AtomicU64, before: bool, after: bool| match (before, after) {
            (false, true) => drop(counter.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        };
        count(&self.dirty, before.dirty, after.dirty);
        count(&self.logged, before.logged, after.logged);
        count(&self.pinned, before.pinned, after.pinned);
    }

    pub(super) fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    pub(super) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    pub(super) fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed)
    }

    /// Pages that cannot be dropped.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }
}

/// A file's place in a list: since when it is there, and a number of its own.
pub(super) type Place = (Timestamp, u64);

/// What `Writeback::lists` guards.
#[derive(Default)]
pub(super) struct Lists {
    /// Number of the next place in the lists.
    next: u64,
    pub(super) dirty: BTreeMap<Place, Arc<Inode>>,
    pub(super) logged: BTreeMap<Place, Arc<Inode>>,
    /// Since when that is not durable which has left `dirty`: it is in the log, which may not have been forced since
    /// (C9).
    pub(super) unforced_since: Option<Timestamp>,
    /// Small files in the order in which they were dirtied. Some are clean by now.
    pub(super) recent: BTreeMap<u64, Weak<Inode>>,
    pub(super) cached: VecDeque<Weak<Inode>>,
    /// Files that were read ahead, oldest first, and when.
    pub(super) ahead: VecDeque<(Timestamp, Weak<Inode>)>,
    /// Committed data writes in flight: their files stay in memory, so that nobody reads the blocks too early.
    pub(super) in_flight: Vec<(Ticket, Arc<Inode>)>,
    /// When maintenance last forced the log.
    pub(super) forced: Timestamp,
    pub(super) checkpointed: Timestamp,
}

impl Lists {
    /// Takes out the small file that was dirtied next behind the one at `place`.
    pub(super) fn take_recent_behind(&mut self, place: u64) -> Option<(u64, Weak<Inode>)> {
        let (&next, _) = self.recent.range(place + 1..).next()?;
        self.recent.remove_entry(&next)
    }

    /// Since when something is not durable that was changed in memory, if it is known of anything.
    pub(super) fn oldest_change(&self) -> Option<Timestamp> {
        let oldest_dirty = self.dirty.keys().next().map(|(since, _)| *since);
        [oldest_dirty, self.unforced_since].into_iter().flatten().min()
    }

    fn remove_dirty(&mut self, place: Place) {
        self.dirty.remove(&place);
        let (since, _) = place;
        self.unforced_since = Some(self.unforced_since.map_or(since, |unforced| unforced.min(since)));
    }
}

/// Relief of the journal or the node budget: one at a time.
#[derive(Default)]
pub(super) struct Relief {
    pub(super) running: bool,
    /// Reliefs that ended.
    pub(super) ended: u64,
}

/// Dirty and logged pages of all files, and the page cache's account.
pub(crate) struct Writeback {
    // Constant.
    pub(super) account: Arc<PageAccount>,
    pub(super) pages_max: u64,
    pub(super) pinned_max: u64,
    /// The same for light writers.
    light_max: u64,
    /// Bounds as they stand now: pages in memory, and bytes of dirty tree nodes.
    pub(super) pages_bound: AtomicU64,
    pub(super) dirty_nodes_bound: AtomicU64,
    /// Pages of all flights.
    pub(super) under_way: Arc<AtomicU64>,
    /// Staged pages that all transactions keep in memory.
    pub(super) staged: Arc<AtomicU64>,
    /// Bytes of all charges: what transactions keep beside their pages' content, and adapters.
    pub(super) charged: Arc<AtomicU64>,
    pub(super) lists: Mutex<Lists>,
    pub(super) along: Along,
    pub(super) hints: Hints,
    pub(super) aside: AsideFiles,
    pub(super) relief: Mutex<Relief>,
    pub(super) relieved: Condvar,
    /// Rounds of writeback that ended.
    progress: Mutex<u64>,
    progressed: Condvar,
    /// For writers that are slowed down: one is woken at a time, and passes it on when there is room for more.
    room: Condvar,
    /// Of these, how many write for others right now.
    pub(super) throttled_writers: AtomicU64,
    /// Asks for [`Fs::maintain`](crate::Fs::maintain) now.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// It was asked for, and did not begin yet.
    woken: AtomicBool,
    /// Syncs that began.
    pub(super) syncs: AtomicU64,
    /// Of these, how many the background has seen, and how often in a row it saw no new one.
    syncs_seen: AtomicU64,
    quiet_calls: AtomicU32,
    pub(super) gives_way: AtomicBool,
    /// Where bulk data goes to the device.
    pub(super) lane: Lane,
    /// Writers that were slowed down since the background last looked.
    pub(super) slowed: AtomicBool,
}

impl Writeback {
    /// `now`: when the session begins; what is due after a time is due so long after it.
    pub(crate) fn new(options: &FsOptions, now: Timestamp) -> Writeback {
        let lists = Lists { forced: now, checkpointed: now, ..Lists::default() };
        let bytes = options.memory_bytes_max / 100 * PAGES_PERCENT;
        let pages_max = Writeback::pages_at_least(bytes as u64);
        let pinned_max = pages_max * PINNED_PERCENT / 100;
        let light_max = pinned_max + pinned_max / LIGHT_SHARE;
        let account = Arc::default();
        let lane = Lane::new(&account, light_max);
        Writeback {
            account,
            pages_max,
            pinned_max,
            light_max,
            pages_bound: AtomicU64::new(pages_max),
            dirty_nodes_bound: AtomicU64::new(0),
            under_way: Arc::default(),
            staged: Arc::default(),
            charged: Arc::default(),
            lists: Mutex::new(lists),
            along: Along::default(),
            hints: Hints::default(),
            aside: AsideFiles::default(),
            relief: Mutex::default(),
            relieved: Condvar::new(),
            progress: Mutex::default(),
            progressed: Condvar::new(),
            room: Condvar::new(),
            throttled_writers: AtomicU64::new(0),
            wake: OnceLock::new(),
            woken: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            syncs_seen: AtomicU64::new(0),
            quiet_calls: AtomicU32::new(QUIET_CALLS),
            gives_way: AtomicBool::new(false),
            lane,
            slowed: AtomicBool::new(false),
        }
    }

    /// Pages in so many bytes, or the fewest that a cache has.
    pub(super) fn pages_at_least(bytes: u64) -> u64 {
        (bytes / BLOCK_BYTES as u64).max(PAGES_MIN)
    }

    pub(crate) fn page_stats(&self) -> PageStats {
        let account = &self.account;
        PageStats {
            cached: account.cached(),
            cached_max: self.pages_max,
            dirty: account.dirty(),
            logged: account.logged(),
            hits: account.hits.load(Ordering::Relaxed),
            misses: account.misses.load(Ordering::Relaxed),
            evictions: account.evictions.load(Ordering::Relaxed),
        }
    }

    /// Who is to be told that background work should begin.
    pub(crate) fn on_demand(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // The first one stays; there is one thread for the background.
        let _ = self.wake.set(wake);
    }

    /// Background work begins: demands from now on are new ones; decides whether it gives way.
    pub(super) fn begin_background(&self) {
        self.woken.store(false, Ordering::Relaxed);
        let syncs = self.syncs.load(Ordering::Relaxed);
        let quiet = match self.syncs_seen.swap(syncs, Ordering::Relaxed) == syncs {
            true => self.quiet_calls.load(Ordering::Relaxed).saturating_add(1),
            false => 0,
        };
        self.quiet_calls.store(quiet, Ordering::Relaxed);
        let slowed = self.slowed.swap(false, Ordering::Relaxed);
        self.gives_way.store(quiet < QUIET_CALLS && !slowed, Ordering::Relaxed);
    }

    /// Somebody syncs little, or reads little from the device: bulk data leaves room for it there.
    pub(super) fn note_small_request(&self) {
        self.lane.note_small_request();
    }

    /// Whether a writer has to slow down: so much cannot be dropped that it must write some of it, or wait.
    pub(super) fn must_slow_down(&self, is_light: impl FnOnce() -> bool) -> bool {
        let pinned = self.pinned();
        pinned > self.pinned_max / 4 * 3 && (pinned > self.light_max || !is_light())
    }

    /// Pages that cannot be dropped, but for those that nobody can write.
    pub(super) fn pinned(&self) -> u64 {
        self.account.pinned().saturating_sub(self.aside.pages())
    }

    /// Wakes the background once so many pages are dirty that it should write.
    pub(super) fn demand_if_many_dirty(&self) {
        if self.has_many_dirty() {
            self.wake_background();
        }
    }

    /// Wakes the background, once until it begins.
    pub(super) fn wake_background(&self) {
        if !self.woken.swap(true, Ordering::Relaxed)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }

    pub(super) fn has_many_dirty(&self) -> bool {
        self.account.dirty().saturating_sub(self.aside.pages()) > self.pinned_max / BACKGROUND_SHARE
    }

    /// Somebody makes something durable: the background gives way to that for a while.
    pub(crate) fn note_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// A round of writeback ended, or somebody who held a turn for one gave it up.
    pub(crate) fn note_progress(&self) {
        *self.progress.lock() += 1;
        self.progressed.notify_all();
        self.room.notify_one();
    }

    /// Another writer may look whether there is room for it.
    pub(super) fn pass_room_on(&self) {
        self.room.notify_one();
    }

    /// Like [`Writeback::wait_for_progress`], for writers that are slowed down.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the wait for others, not a reading of the time"
    )]
    pub(super) fn wait_for_room(&self, seen: u64) {
        let mut progress = self.progress.lock();
        if *progress == seen {
            self.room.wait_for(&mut progress, ROOM_PATIENCE);
        }
    }

    pub(super) fn progress(&self) -> u64 {
        *self.progress.lock()
    }

    /// Waits until progress was made since `seen`; not for long, because a turn may be held for other reasons.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the wait for others, not a reading of the time"
    )]
    pub(super) fn wait_for_progress(&self, seen: u64) {
        let mut progress = self.progress.lock();
        if *progress == seen {
            self.progressed.wait_for(&mut progress, PROGRESS_PATIENCE);
        }
    }

    /// Enters or removes a file as its state now demands; one that is entered counts as changed at `since`. Called
    /// with the state locked after every change to it. What is on its way to the log stays listed until it is there:
    /// who looks for what is old, or for everything, must not overlook it.
    pub(super) fn relist(&self, inode: &Arc<Inode>, state: &mut InodeState, since: Timestamp) {
        if state.data.aside.is_some() {
            self.aside.update(inode, state);
        }
        let listed = !state.gone && state.data.aside.is_none();
        let want_dirty = listed && (state.data.has_dirty() || state.item_dirty);
        let want_logged = listed && state.data.logged_pages() > 0;
        let want_clock = state.data.cached_pages() > 0 && !state.data.in_clock;
        let data = &mut state.data;
        let unchanged =
            want_dirty == data.dirty_since.is_some() && want_logged == data.logged_since.is_some();
        if unchanged && !want_clock {
            return;
        }
        let lists = &mut *self.lists.lock();
        let place = (since, lists.next);
        lists.next += 1;
        match (data.dirty_since, want_dirty) {
            (None, true) => {
                lists.dirty.insert(place, inode.clone());
                data.dirty_since = Some(place);
            }
            (Some(place), false) => {
                lists.remove_dirty(place);
                data.dirty_since = None;
            }
            _ => {}
        }
        match (data.logged_since, want_logged) {
            (None, true) => {
                lists.logged.insert(place, inode.clone());
                data.logged_since = Some(place);
            }
            (Some(place), false) => {
                lists.logged.remove(&place);
                data.logged_since = None;
            }
            _ => {}
        }
        if want_clock {
            data.in_clock = true;
            lists.cached.push_back(Arc::downgrade(inode));
        }
    }

    /// Takes a file out of the list of dirty files; `relist` enters it as a new one if it still is dirty.
    pub(super) fn unlist_dirty(&self, data: &mut FileData) {
        if let Some(place) = data.dirty_since.take() {
            self.lists.lock().remove_dirty(place);
        }
    }

    /// Notes a small dirty file that a force may take along.
    pub(super) fn note_recent(&self, inode: &Arc<Inode>, data: &mut FileData) {
        if data.recent_at.is_some() {
            return;
        }
        let mut lists = self.lists.lock();
        let at = lists.next;
        lists.next += 1;
        data.recent_at = Some(at);
        lists.recent.insert(at, Arc::downgrade(inode));
        if lists.recent.len() > RECENT_MAX {
            // Its `recent_at` stays set until it is committed; it was not synced for so many files.
            lists.recent.pop_first();
        }
    }

    /// Notes that something is under way ahead of the file's reader since now.
    pub(super) fn note_ahead(&self, inode: &Arc<Inode>, now: Timestamp) {
        let mut lists = self.lists.lock();
        lists.ahead.push_back((now, Arc::downgrade(inode)));
        if lists.ahead.len() > AHEAD_NOTES_MAX {
            lists.ahead.pop_front();
        }
    }

    /// Keeps a file in memory while its committed data is in flight.
    pub(super) fn hold_in_flight(&self, tickets: impl IntoIterator<Item = Ticket>, inode: &Arc<Inode>) {
        let mut tickets = tickets.into_iter().peekable();
        if tickets.peek().is_none() {
            return;
        }
        let mut lists = self.lists.lock();
        lists.in_flight.retain(|(ticket, _)| !ticket.is_complete());
        lists.in_flight.extend(tickets.map(|ticket| (ticket, inode.clone())));
    }

    /// Forgets data writes that are complete.
    pub(super) fn release_in_flight(&self) {
        self.lists.lock().in_flight.retain(|(ticket, _)| !ticket.is_complete());
    }
}
