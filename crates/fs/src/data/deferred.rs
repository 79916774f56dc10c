//! Syncs that are started: what is to be committed is committed at once where that needs no wait, otherwise piece by
//! piece by whoever drives the sync. Forcing comes after that and is the store's.
//!
//! A started sync covers what the file is at the call: the pages it will look at are fixed then. What is written to
//! these pages before its turn comes is committed with them.
//!
//! A sync of a range commits the pages that the range touches, and a size that covers its end. Pages in front of it
//! that were never logged then read as zeros after a crash, or as they were before: nothing else is ever stored in
//! their place (see the invariants of `data`). The file's other small pages do not travel with its forces either.

use super::SyncScope;
use super::choice::Purpose;
use super::pages::{PAGE_BYTES, pages_of};
use super::round::{Select, gauge};
use super::stream::{Pace, STREAM_PAGES_MIN};
use super::sync::{IMAGE_PAGES_MAX, has_work, image_estimate};
use crate::inode::{Inode, InodeState};
use crate::{Fs, HandleId, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::Lsn;
use syncline_store::{Class, StoreError};

/// What of a file a sync is to make durable.
#[derive(Debug, Clone)]
pub enum Reach {
    /// All of it.
    Whole,
    /// Of bytes.
    Range(Range<u64>),
}

impl Reach {
    fn pages(&self) -> Range<u64> {
        match self {
            Reach::Whole => 0..u64::MAX,
            Reach::Range(bytes) if bytes.is_empty() => 0..0,
            Reach::Range(bytes) => bytes.start / PAGE_BYTES..pages_of(bytes.end),
        }
    }

    /// The size on record has to cover the file up to here.
    fn end(&self) -> u64 {
        match self {
            Reach::Whole => u64::MAX,
            Reach::Range(bytes) if bytes.is_empty() => 0,
            Reach::Range(bytes) => bytes.end,
        }
    }

    /// Whether there is anything to commit.
    fn has_work(&self, state: &InodeState, scope: SyncScope) -> bool {
        if matches!(self, Reach::Whole) {
            return has_work(state, scope);
        }
        let data = &state.data;
        data.dirty_range(self.pages()).next().is_some()
            || data.has_dirty() && data.range(self.pages()).any(|(_, slot)| slot.unlogged)
            || scope == SyncScope::All && state.item_dirty
            || self.lacks_size(state)
    }

    fn lacks_size(&self, state: &InodeState) -> bool {
        state.loggable().size < state.item.size.min(self.end())
    }
}

/// What a started sync still has to commit.
pub struct PendingSync {
    inode: Arc<Inode>,
    reach: Reach,
    /// Pages that were not looked at yet.
    rest: Range<u64>,
}

/// How far a sync got without waiting.
pub enum Begun {
    /// Durable once everything up to here is.
    Committed(Lsn),
    /// [`Fs::continue_sync`] commits the rest.
    Pending(PendingSync),
}

impl Fs {
    /// Starts a sync of an open file; waits for nothing.
    ///
    /// Errors: `BadHandle`, and once the volume failed always its cause (C8).
    pub fn begin_sync(&self, handle: HandleId, scope: SyncScope, reach: Reach) -> Result<Begun> {
        let inode = self.open_file(handle)?.inode.clone();
        self.check_failure()?;
        if self.store.is_read_only() {
            return Ok(Begun::Committed(self.store.durable_lsn()));
        }
        self.writeback.syncs.fetch_add(1, Ordering::Relaxed);
        if let Some(lsn) = self.commit_without_waiting(&inode, scope, &reach)? {
            return Ok(Begun::Committed(lsn));
        }
        let pages = reach.pages();
        let rest = pages.start..pages.end.min(pages_of(inode.state.read().item.size));
        Ok(Begun::Pending(PendingSync { inode, reach, rest }))
    }

    /// Commits a piece of at most 16 MiB of a started sync; what has to be forced once all is committed.
    pub fn continue_sync(&self, pending: &mut PendingSync) -> Result<Option<Lsn>> {
        self.check_failure()?;
        let select = Select { pages: pending.rest.clone(), whole: None, logged: false };
        let large = gauge(&pending.inode.state.read().data, &select).pages >= STREAM_PAGES_MIN;
        let rest = if large {
            self.stream_out(Class::Normal, &pending.inode, select, Pace::PIECE)?
        } else {
            self.write_out(Class::Normal, &[(pending.inode.clone(), select)], Purpose::Sync)?.rest[0]
        };
        match rest {
            Some(rest) => {
                pending.rest.start = rest;
                Ok(None)
            }
            None => {
                self.commit_size(pending)?;
                Ok(Some(self.store.last_lsn()))
            }
        }
    }

    /// Logs the inode if the range ends in a hole, behind what its pages cover.
    fn commit_size(&self, pending: &PendingSync) -> Result<()> {
        let PendingSync { inode, reach, .. } = pending;
        let lacks = || {
            let state = inode.state.read();
            !state.gone && reach.lacks_size(&state)
        };
        // A whole file has pages dirty beyond what is covered only if they were written to since the call.
        if matches!(reach, Reach::Whole) || !lacks() {
            return Ok(());
        }
        let permit = self.admit_necessary(Class::Normal, |_| image_estimate(0), 1)?.0;
        let _turn = inode.lock_turn();
        let mut state = inode.state.write();
        if !state.gone {
            self.commit_images(inode, &mut state, permit, 0..0, reach.end())?;
        }
        Ok(())
    }

    /// Makes a range of an open file durable, and every batch of the volume that was committed before (C5, C1).
    pub fn sync_range_handle(&self, handle: HandleId, range: Range<u64>, scope: SyncScope) -> Result<()> {
        let begun = self.begin_sync(handle, scope, Reach::Range(range))?;
        let lsn = self.finish_committing(begun)?;
        Ok(self.store.force(lsn)?)
    }

    /// Starts making a range of an open file durable; `done` is called when it is, maybe before this returns, on the
    /// thread that drives the force. Writes what there is to write on this thread.
    pub fn start_sync_range_handle(
        &self,
        handle: HandleId,
        range: Range<u64>,
        scope: SyncScope,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let begun = self.begin_sync(handle, scope, Reach::Range(range))?;
        match self.finish_committing(begun) {
            Ok(lsn) => self.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into)))),
            Err(error) => done(Err(error)),
        }
        Ok(())
    }

    /// Makes several open files durable with one force.
    ///
    /// Errors: as for each alone. All are tried; the first error is returned.
    pub fn sync_handles(&self, handles: &[HandleId], scope: SyncScope) -> Result<()> {
        let mut committed = Ok(self.store.last_lsn());
        for &handle in handles {
            let begun =
                self.begin_sync(handle, scope, Reach::Whole).and_then(|begun| self.finish_committing(begun));
            committed = committed.and_then(|lsn: Lsn| begun.map(|also| lsn.max(also)));
        }
        Ok(self.store.force(committed?)?)
    }

    /// Commits what is left; what has to be forced.
    pub(crate) fn finish_committing(&self, begun: Begun) -> Result<Lsn> {
        match begun {
            Begun::Committed(lsn) => Ok(lsn),
            Begun::Pending(mut pending) => loop {
                if let Some(lsn) = self.continue_sync(&mut pending)? {
                    return Ok(lsn);
                }
            },
        }
    }

    /// Commits what the sync reaches if these pages are few, the journal has room, and nobody else is writing them;
    /// what has to be forced then. `None` otherwise.
    fn commit_without_waiting(
        &self,
        inode: &Arc<Inode>,
        scope: SyncScope,
        reach: &Reach,
    ) -> Result<Option<Lsn>> {
        let pages = reach.pages();
        let few = |state: &InodeState| {
            state.data.dirty_range(pages.clone()).take(IMAGE_PAGES_MAX as usize + 1).count() as u64
        };
        let (dirty, turn) = {
            let mut state = inode.state.write();
            if state.gone {
                return Ok(Some(self.store.last_lsn()));
            }
            let work = reach.has_work(&state, scope);
            // Nothing but its range is written for a ranged sync.
            match reach {
                Reach::Range(_) => state.data.piggybacked = true,
                Reach::Whole => self.writeback.along.note_sync(&mut state.data, work),
            }
            if !work {
                return Ok(Some(self.store.last_lsn()));
            }
            (few(&state), state.data.turn())
        };
        if dirty <= IMAGE_PAGES_MAX {
            self.writeback.note_small_request();
        }
        if dirty > self.image_pages_max() {
            return Ok(None);
        }
        let permit = match self.store.admit(Class::Normal, image_estimate(dirty)) {
            Ok(permit) => permit,
            Err(StoreError::Pressure(_) | StoreError::NoSpace) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let turn = turn.try_lock_arc();
        let mut state = inode.state.write();
        if state.gone {
            return Ok(Some(self.store.last_lsn()));
        }
        if dirty > 0 && state.data.aside.is_some() {
            return Ok(None);
        }
        if few(&state) > dirty || turn.is_none() && !state.data.is_apart_from_destaging() {
            return Ok(None);
        }
        Ok(Some(self.commit_images(inode, &mut state, permit, pages, reach.end())?.lsn))
    }
}
