//! [`SyncPlan`]: what a sync of a file has to do, decided once, from one look at the file under one lock.
//!
//! Everybody who syncs executes the same plan: a blocked caller ([`Syncs::sync`]; a plan that needs no wait is executed
//! under the very lock of the look), one that must not wait
//! ([`Syncs::try_commit`], [`Syncs::write_at_once`]), several that go together ([`Syncs::start_together`]), one that
//! drives a ticket piece by piece ([`Syncs::commit_piece`]). Forcing comes after that and is the store's.
//!
//! A sync covers what the file is at the look: the pages that it will come to are fixed then. What is written to these
//! pages before their turn comes is committed with them.
//!
//! A sync of a range commits the pages that the range touches, and a size that covers its end. Pages in front of it
//! that were never logged then read as zeros after a crash, or as they were before: nothing else is ever stored in
//! their place (see the invariants of `content`). The file's other small pages do not travel with its forces either.

use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::content::select::{Select, gauge};
use crate::limits::{AT_ONCE_PAGES_MAX, IMAGE_PAGES_MAX, PIECES_MAX, STREAM_PAGES_MIN};
use crate::{Handle, HandleId, Lsn, Result, SyncScope, Syncs, Timestamp};
use std::ops::Range;
use std::sync::Arc;

/// What of a file a sync is to make durable.
#[derive(Debug, Clone)]
pub enum Reach {
    /// All of it.
    Whole,
    /// The pages that a range of bytes touches, and a size that covers its end.
    Range(Range<u64>),
}

impl Reach {
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self, Reach::Whole)
    }

    pub(crate) fn pages(&self) -> Range<u64> {
        match self {
            Reach::Whole => 0..u64::MAX,
            Reach::Range(bytes) if bytes.is_empty() => 0..0,
            Reach::Range(bytes) => bytes.start / PAGE_BYTES..pages_of(bytes.end),
        }
    }

    /// The size on record has to cover the file up to here.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Reach::Whole => u64::MAX,
            Reach::Range(bytes) if bytes.is_empty() => 0,
            Reach::Range(bytes) => bytes.end,
        }
    }

    /// Whether there is anything to commit.
    pub(crate) fn has_work(&self, state: &InodeState, scope: SyncScope) -> bool {
        if matches!(self, Reach::Whole) {
            return has_work(state, scope);
        }
        let data = &state.data;
        data.dirty_range(self.pages()).next().is_some()
            || data.has_dirty() && data.range(self.pages()).any(|(_, slot)| slot.state.writes_newer())
            || scope == SyncScope::All && state.item_dirty
            || self.lacks_size(state)
    }

    fn lacks_size(&self, state: &InodeState) -> bool {
        lacks_size(state, self.end())
    }
}

/// Whether the size on record does not cover the file up to there.
pub(crate) fn lacks_size(state: &InodeState, end: u64) -> bool {
    state.loggable().size < state.item.size.min(end)
}

/// How a sync is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sync has nothing to commit: what others committed has to be forced.
    Clean(Lsn),
    /// So few pages are dirty that they are logged as images: no data is written beside the record.
    Images,
    /// The pages, few and in few pieces, can be logged while their data is in flight, by a caller who must not wait;
    /// or together with other files'.
    InFlight,
    /// The pages, in few pieces, can be written out and logged together with other files'.
    Together,
    /// The pages are written out in rounds of their own.
    Rounds,
}

/// A sync of one file that is decided, and not yet committed.
pub struct SyncPlan {
    pub(crate) inode: Option<Arc<Inode>>,
    pub(crate) way: Way,
    /// Dirty pages at the look, no more of them counted than decide the way.
    pub(crate) dirty: u64,
    pub(crate) reach: Reach,
    /// Pages that were not looked at yet.
    pub(crate) rest: Range<u64>,
    /// Of a range: the size on record has to cover the file up to here, which is no more than it was at the look. What
    /// has grown beyond that has pages that the sync does not come to.
    pub(crate) end: u64,
    /// When the sync began, if it takes all of the file.
    pub(crate) whole: Option<Timestamp>,
}

impl SyncPlan {
    /// What is committed already.
    pub(crate) fn committed(lsn: Lsn) -> SyncPlan {
        let (way, reach) = (Way::Clean(lsn), Reach::Whole);
        SyncPlan { inode: None, way, dirty: 0, reach, rest: 0..0, end: 0, whole: None }
    }

    /// Pages that the sync would write out, if it can do so together with others ([`Syncs::start_together`]): more
    /// than are logged as images, less than a stream, in few pieces, and nobody else writes the file.
    pub fn joins_others(&self) -> Option<u64> {
        matches!(self.way, Way::InFlight | Way::Together).then_some(self.dirty)
    }
}

impl Syncs {
    /// Decides how a sync of a file is done. Waits for nothing but the file's lock.
    ///
    /// Errors: once the volume failed always its cause (C8): also for files that were not touched since.
    pub(crate) fn plan_for(&self, inode: &Arc<Inode>, scope: SyncScope, reach: Reach) -> Result<SyncPlan> {
        match self.begin()? {
            Some(plan) => Ok(plan),
            None => Ok(self.look(inode, scope, reach)),
        }
    }

    /// A sync begins: what it comes to where nothing can be committed.
    fn begin(&self) -> Result<Option<SyncPlan>> {
        self.core.check_failure()?;
        if self.core.options.read_only || self.core.store.is_read_only() {
            return Ok(Some(SyncPlan::committed(self.core.store.durable_lsn())));
        }
        self.writeback.note_sync();
        Ok(None)
    }

    /// Decides and commits: what is logged as images without any wait, as most small syncs are, under the lock of the
    /// look. What has to be forced then.
    fn log(&self, inode: &Arc<Inode>, scope: SyncScope, reach: Reach) -> Result<Lsn> {
        let mut plan = match self.begin()? {
            Some(plan) => plan,
            None => self.look_and_log(inode, scope, reach),
        };
        self.commit(&mut plan)
    }

    fn look_and_log(&self, inode: &Arc<Inode>, scope: SyncScope, reach: Reach) -> SyncPlan {
        let mut state = inode.state.write();
        let plan = self.decide(inode, &mut state, scope, reach);
        let lsn = self.log_at_once(&plan, &mut state);
        drop(state);
        self.note_small(&plan);
        lsn.map_or(plan, SyncPlan::committed)
    }

    /// As [`Syncs::plan_for`], of an open file. Errors: `BadHandle`, and as there.
    pub fn plan<'a>(
        &self,
        handle: impl Into<Handle<'a>>,
        scope: SyncScope,
        reach: Reach,
    ) -> Result<SyncPlan> {
        let open = self.content.open_file(handle)?;
        self.plan_for(&open.inode, scope, reach)
    }

    fn look(&self, inode: &Arc<Inode>, scope: SyncScope, reach: Reach) -> SyncPlan {
        let plan = self.decide(inode, &mut inode.state.write(), scope, reach);
        self.note_small(&plan);
        plan
    }

    fn note_small(&self, plan: &SyncPlan) {
        if plan.inode.is_some() && plan.dirty < STREAM_PAGES_MIN {
            self.core.note_small_request();
        }
    }

    fn decide(&self, inode: &Arc<Inode>, state: &mut InodeState, scope: SyncScope, reach: Reach) -> SyncPlan {
        let works = !state.gone && reach.has_work(state, scope);
        match reach {
            // Nothing but its range is written for a ranged sync.
            Reach::Range(_) => state.data.listed.piggybacked = true,
            Reach::Whole => self.along.note_sync(&self.content, &mut state.data, works),
        }
        if !works {
            // Others may have logged the file just now, so it is the last of all.
            return SyncPlan::committed(self.core.store.last_lsn());
        }
        let data = &state.data;
        let pages = reach.pages();
        let end = pages_of(state.item.size);
        let rest = pages.start.min(end)..pages.end.min(end);
        let end = reach.end().min(state.item.size);
        let (dirty, pieces) = match (&reach, data.dirty_pages()) {
            (Reach::Whole, dirty) if dirty <= IMAGE_PAGES_MAX || dirty >= STREAM_PAGES_MIN => (dirty, 1),
            _ => {
                let gauge = gauge(data, &Select { pages, whole: None, logged: false });
                (gauge.pages, gauge.pieces)
            }
        };
        let is_whole = matches!(reach, Reach::Whole);
        let way = match dirty {
            // What could not be destaged would keep the journal's tail.
            _ if dirty <= self.image_pages_max() && (dirty == 0 || data.aside.is_none()) => Way::Images,
            _ if !is_whole || dirty <= IMAGE_PAGES_MAX || data.is_taken() => Way::Rounds,
            _ if dirty >= STREAM_PAGES_MIN || pieces > PIECES_MAX => Way::Rounds,
            _ if dirty <= AT_ONCE_PAGES_MAX => Way::InFlight,
            _ => Way::Together,
        };
        // Under the lock: what is written behind the look is younger (C9).
        let whole = (is_whole && way != Way::Images).then(|| self.core.clock.now());
        SyncPlan { inode: Some(inode.clone()), way, dirty, reach, rest, end, whole }
    }

    /// A sync with at most this many dirty pages logs them as images.
    pub(crate) fn image_pages_max(&self) -> u64 {
        if self.core.options.no_images() { 0 } else { IMAGE_PAGES_MAX }
    }

    /// Makes everything durable that an open file is at the call, and every batch of the volume that was committed
    /// before (C1, R19). Without anything new since the last force there is no I/O (C8a).
    ///
    /// Errors: as [`Syncs::plan`], I/O errors.
    pub fn sync<'a>(&self, handle: impl Into<Handle<'a>>, scope: SyncScope, reach: Reach) -> Result<()> {
        let open = self.content.open_file(handle)?;
        self.force(self.log(&open.inode, scope, reach)?)
    }

    /// As [`Syncs::sync`], of a whole file or directory.
    pub(crate) fn file_sync(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()> {
        self.force(self.log(inode, scope, Reach::Whole)?)
    }

    /// Makes what was committed durable, all up to `lsn`.
    pub fn force(&self, lsn: Lsn) -> Result<()> {
        if self.core.options.checkpoint_per_sync() {
            self.core.checkpoint()?;
        }
        Ok(self.core.store.force(lsn)?)
    }

    /// Starts making an open file durable: commits on this thread, which may wait; `done` is called when the file is
    /// durable, maybe before this returns, on the thread that drives the force; or with the error. Errors: `BadHandle`.
    pub fn start(
        &self,
        handle: HandleId,
        scope: SyncScope,
        reach: Reach,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let open = self.content.open_file(handle)?;
        match self.log(&open.inode, scope, reach) {
            Ok(lsn) => self.start_force(lsn, done),
            Err(error) => done(Err(error)),
        }
        Ok(())
    }

    /// Starts making what was committed durable; `done` is called when it is, maybe before this returns, on the thread
    /// that drives the force.
    pub fn start_force(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.core.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into))));
    }

    /// Everything up to here is durable.
    pub fn durable_lsn(&self) -> Lsn {
        self.core.store.durable_lsn()
    }

    /// Drives started forces as far as they go without waiting for the device; [`Syncs::force`] drives them to their
    /// end.
    pub fn drive(&self) {
        self.core.store.drive();
    }

    /// Makes several open files durable with one force.
    ///
    /// Errors: as for each alone. All are tried; the first error is returned.
    pub fn sync_handles(&self, handles: &[HandleId], scope: SyncScope) -> Result<()> {
        let mut committed = Ok(self.core.store.last_lsn());
        for &handle in handles {
            let open = self.content.open_file(handle);
            let one = open.and_then(|open| self.log(&open.inode, scope, Reach::Whole));
            committed = committed.and_then(|lsn: Lsn| one.map(|also| lsn.max(also)));
        }
        self.force(committed?)
    }

    /// Makes all data of all files durable (`sync(2)`).
    ///
    /// Errors: `SetAside` if damaged files could not be committed; all others are durable then.
    pub fn sync_all(&self) -> Result<()> {
        self.core.check_failure()?;
        if !self.core.store.is_read_only() {
            self.writeback.retry_set_aside(None)?;
            self.writeback.write_back_everything()?;
        }
        self.core.store.force(self.core.store.last_lsn())?;
        self.writeback.check_all_committed()
    }

    /// Commits what is dirty of the file without forcing it: a rename over an existing name, logged behind this, never
    /// shows a file without its data (C3, R20).
    pub(crate) fn write_back_file(&self, inode: &Arc<Inode>) -> Result<()> {
        self.commit(&mut self.look_and_log(inode, SyncScope::All, Reach::Whole)).map(drop)
    }
}

/// Whether a sync of the file has anything to commit.
pub(crate) fn has_work(state: &InodeState, scope: SyncScope) -> bool {
    state.data.has_dirty()
        || match scope {
            SyncScope::All => state.item_dirty,
            // Times are not needed to read the data back.
            SyncScope::Data => state.item.size != state.loggable().size,
        }
}
