//! [`Writeback`]: how changed pages come to their places, when, and who does it: rounds and streams, the background,
//! admission and relief, recovery.

use crate::Result;
use crate::content::Content;
use crate::core::Core;
use crate::core::Tended;
use crate::core::levels::Lock;
use crate::limits::{
    BACKGROUND_SHARE, LIGHT_SHARE, PINNED_PERCENT, PROGRESS_PATIENCE, QUIET_CALLS, ROOM_PATIENCE,
};
use crate::writeback::closes::Closing;
use crate::writeback::hint::Hints;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use syncline_store::lock_order::{Condvar, Mutex};

pub(crate) mod admit;
pub(crate) mod aside;
pub(crate) mod choice;
pub(crate) mod closes;
pub(crate) mod files;
pub(crate) mod hint;
pub(crate) mod maintain;
pub(crate) mod recovery;
pub(crate) mod round;
pub(crate) mod stream;
pub(crate) mod submit;
pub(crate) mod throttle;

pub use hint::Started;

/// Relief of the journal or the node budget: one at a time.
#[derive(Default)]
pub(crate) struct Relief {
    pub(crate) running: bool,
    /// Reliefs that ended.
    pub(crate) ended: u64,
}

/// Writes changed pages to their places.
pub(crate) struct Writeback {
    // Constant.
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    /// Pages that may be in memory and cannot be dropped.
    pub(crate) pinned_max: u64,
    /// The same for light writers.
    light_max: u64,
    hints: Hints,
    relief: Mutex<Relief>,
    relieved: Condvar,
    /// Rounds of writeback that ended.
    progress: Mutex<u64>,
    progressed: Condvar,
    /// For writers that are slowed down: one is woken at a time, and passes it on when there is room for more.
    room: Condvar,
    /// Of these, how many write for others right now.
    throttled_writers: AtomicU64,
    /// Asks for [`Fs::maintain`](crate::Fs::maintain) now.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// It was asked for, and did not begin yet.
    woken: AtomicBool,
    /// Syncs that began.
    pub(crate) syncs: AtomicU64,
    /// Of these, how many the background has seen, and how often in a row it saw no new one.
    syncs_seen: AtomicU64,
    quiet_calls: AtomicU32,
    gives_way: AtomicBool,
    /// Writers that were slowed down since the background last looked.
    slowed: AtomicBool,
    pub(crate) closing: Mutex<Closing>,
    closed: Condvar,
    /// That a snapshot is damaged has been told once.
    pub(crate) has_told_of_snapshots: AtomicBool,
}

impl Tended for Writeback {
    fn write_back(&self) -> Result<()> {
        self.unless_gone(self.write_back_everything())
    }

    fn destage(&self) -> Result<()> {
        self.unless_gone(self.destage_everything())
    }

    fn carry(&self) -> Result<()> {
        self.unless_gone(self.carry_images())
    }
}

/// Pages that may be in memory and cannot be dropped, of so many bytes of memory: for all writers, and for light ones.
pub(crate) fn pinned_max_of(memory_bytes_max: usize) -> (u64, u64) {
    let pinned_max = Content::pages_max_of(memory_bytes_max) * PINNED_PERCENT / 100;
    (pinned_max, pinned_max + pinned_max / LIGHT_SHARE)
}

impl Writeback {
    pub(crate) fn new(content: &Arc<Content>) -> Writeback {
        let core = content.core.clone();
        let (pinned_max, light_max) = pinned_max_of(core.options.memory_bytes_max);
        Writeback {
            core,
            content: content.clone(),
            pinned_max,
            light_max,
            hints: Hints::default(),
            relief: Mutex::new(Lock::Relief, Relief::default()),
            relieved: Condvar::new(),
            progress: Mutex::new(Lock::Progress, 0),
            progressed: Condvar::new(),
            room: Condvar::new(),
            throttled_writers: AtomicU64::new(0),
            wake: OnceLock::new(),
            woken: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            closing: Mutex::new(Lock::Closing, Closing::default()),
            closed: Condvar::new(),
            syncs_seen: AtomicU64::new(0),
            quiet_calls: AtomicU32::new(QUIET_CALLS),
            gives_way: AtomicBool::new(false),
            slowed: AtomicBool::new(false),
            has_told_of_snapshots: AtomicBool::new(false),
        }
    }

    /// A head that was deleted meanwhile has nothing left to be written, and its errors are nobody's.
    pub(crate) fn unless_gone<T: Default>(&self, done: Result<T>) -> Result<T> {
        match done {
            Err(_) if !self.core.store.is_head(self.content.tree) => Ok(T::default()),
            done => done,
        }
    }

    /// Who is to be told that background work should begin.
    pub(crate) fn on_demand(&self, wake: Box<dyn Fn() + Send + Sync>) {
        // The first one stays; there is one thread for the background.
        let _ = self.wake.set(wake);
    }

    /// Background work begins: demands from now on are new ones; decides whether it gives way.
    pub(crate) fn begin_background(&self) {
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

    /// Whether a writer has to slow down: so much cannot be dropped that it must write some of it, or wait.
    pub(crate) fn is_short_of_memory(&self, is_light: impl FnOnce() -> bool) -> bool {
        let pinned = self.content.pinned();
        pinned > self.pinned_max / 4 * 3 && (pinned > self.light_max || !is_light())
    }

    /// Wakes the background once so many pages are dirty that it should write.
    pub(crate) fn demand_if_many_dirty(&self) {
        if self.has_many_dirty() {
            self.wake_background();
        }
    }

    /// Wakes the background, once until it begins.
    pub(crate) fn wake_background(&self) {
        if !self.woken.swap(true, Ordering::Relaxed)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }

    pub(crate) fn has_many_dirty(&self) -> bool {
        self.core.account.dirty().saturating_sub(self.content.aside.pages())
            > self.pinned_max / BACKGROUND_SHARE
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
    pub(crate) fn pass_room_on(&self) {
        self.room.notify_one();
    }

    /// Like [`Writeback::wait_for_progress`], for writers that are slowed down.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the wait for others, not a reading of the time"
    )]
    pub(crate) fn wait_for_room(&self, seen: u64) {
        let mut progress = self.progress.lock();
        if *progress == seen {
            self.room.wait_for(&mut progress, ROOM_PATIENCE);
        }
    }

    pub(crate) fn progress(&self) -> u64 {
        *self.progress.lock()
    }

    /// Waits until progress was made since `seen`; not for long, because a turn may be held for other reasons.
    #[expect(
        clippy::disallowed_methods,
        reason = "a bound on the wait for others, not a reading of the time"
    )]
    pub(crate) fn wait_for_progress(&self, seen: u64) {
        let mut progress = self.progress.lock();
        if *progress == seen {
            self.progressed.wait_for(&mut progress, PROGRESS_PATIENCE);
        }
    }
}
