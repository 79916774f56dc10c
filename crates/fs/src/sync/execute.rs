//! Committing what a [`SyncPlan`] says: at once where that needs no wait, else piece by piece.
//!
//! A sync makes one pass over the pages that exist at the look, ascending: whatever is dirty when the pass comes to it
//! is written, so a writer that goes on dirtying pages behind or beyond it cannot keep it from ending. Pages that
//! somebody else is writing are waited for by taking the file's turn (R6).

use crate::content::estimate::image_estimate;
use crate::content::inode::{Inode, InodeState};
use crate::content::select::{Select, gauge};
use crate::limits::STREAM_PAGES_MIN;
use crate::sync::plan::{Way, lacks_size};
use crate::writeback::choice::{Pages, Purpose, covered_by};
use crate::writeback::stream::Pace;
use crate::{Error, Lsn, Reach, Result, SyncPlan, Syncs};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::batch::IMAGE_OVERHEAD_BYTES;
use syncline_store::{Class, Permit, Pressure, StoreError};

/// Room in the journal for images.
pub(crate) enum Room {
    Granted(Permit),
    /// The commit is to find some, and does not wait for it.
    AtCommit,
}

/// What of a file was logged as images.
pub(crate) struct Logged {
    /// Holds it.
    pub(crate) lsn: Lsn,
    /// Of the batch; none if there was nothing to log.
    pub(crate) bytes: usize,
}

impl Syncs {
    /// Commits the plan if that needs no wait: what has to be forced then. `None` if it has to wait for room, or for
    /// somebody else who writes the file, or has data to write out.
    pub fn try_commit(&self, plan: &SyncPlan) -> Result<Option<Lsn>> {
        match plan.way {
            Way::Clean(lsn) => Ok(Some(lsn)),
            Way::Images => match self.log_images(plan, Room::AtCommit, false) {
                Err(error) if is_refusal(&error) => Ok(None),
                logged => logged,
            },
            _ => Ok(None),
        }
    }

    /// Commits the plan; what has to be forced then. What others commit behind that is no concern of this sync: to wait
    /// for it could mean to wait for one more group.
    pub fn commit(&self, plan: &mut SyncPlan) -> Result<Lsn> {
        loop {
            if let Some(lsn) = self.commit_some(plan, Pace::FULL)? {
                return Ok(lsn);
            }
        }
    }

    /// Commits a piece of at most 16 MiB of the plan; what has to be forced once all is committed.
    pub fn commit_piece(&self, plan: &mut SyncPlan) -> Result<Option<Lsn>> {
        self.core.check_failure()?;
        self.commit_some(plan, Pace::PIECE)
    }

    fn commit_some(&self, plan: &mut SyncPlan, pace: Pace) -> Result<Option<Lsn>> {
        let inode = match (plan.way, &plan.inode) {
            (Way::Clean(lsn), _) => return Ok(Some(lsn)),
            (_, None) => return Ok(Some(self.core.store.last_lsn())),
            (_, Some(inode)) => inode.clone(),
        };
        if plan.way == Way::Images {
            if let Some(permit) = self.admit_images(plan.dirty)?
                && let Some(lsn) = self.log_images(plan, Room::Granted(permit), true)?
            {
                return Ok(Some(lsn));
            }
            plan.way = Way::Rounds;
            return Ok(None);
        }
        let select = Select { pages: plan.rest.clone(), whole: plan.whole, logged: false };
        let large = gauge(&inode.state.read().data, &select).pages >= STREAM_PAGES_MIN;
        let (rest, lsn) = if large {
            (self.writeback.stream_out(Class::Normal, &inode, select, pace)?, None)
        } else {
            let outcome =
                self.writeback.write_out(Class::Normal, &[(inode.clone(), select)], Purpose::Sync)?;
            (outcome.rest[0], outcome.lsn)
        };
        if let Some(rest) = rest {
            plan.rest.start = rest;
            return Ok(None);
        }
        self.commit_size(&inode, plan)?;
        Ok(Some(lsn.filter(|_| plan.reach.is_whole()).unwrap_or_else(|| self.core.store.last_lsn())))
    }

    /// Logs the inode if the range ends in a hole, behind what its pages cover.
    fn commit_size(&self, inode: &Arc<Inode>, plan: &SyncPlan) -> Result<()> {
        let lacks = || {
            let state = inode.state.read();
            !state.gone && lacks_size(&state, plan.end)
        };
        // A whole file has pages dirty beyond what is covered only if they were written to since the call.
        if plan.reach.is_whole() || !lacks() {
            return Ok(());
        }
        let permit = self.writeback.admit_necessary(Class::Normal, |_| image_estimate(0), 1)?.0;
        let _turn = inode.lock_turn();
        let mut state = inode.state.write();
        if !state.gone {
            self.commit_images(inode, &mut state, Room::Granted(permit), 0..0, plan.end)?;
        }
        Ok(())
    }

    /// Room for the images; `None` if the journal has none: extents need less of the ring.
    fn admit_images(&self, pages: u64) -> Result<Option<Permit>> {
        match self.core.store.admit(Class::Normal, image_estimate(pages)) {
            Ok(permit) => Ok(Some(permit)),
            Err(StoreError::Pressure(Pressure::Journal)) if pages > 0 => Ok(None),
            Err(StoreError::Pressure(_) | StoreError::NoSpace) => {
                Ok(Some(self.writeback.admit_necessary(Class::Normal, |_| image_estimate(pages), 1)?.0))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Commits the plan under the lock of the look, if it is for images and there is nothing to wait for. An error is
    /// met again, and told, by whoever commits it otherwise.
    pub(crate) fn log_at_once(&self, plan: &SyncPlan, state: &mut InodeState) -> Option<Lsn> {
        let inode = plan.inode.as_ref().filter(|_| plan.way == Way::Images)?;
        let turn = inode.turn.try_lock();
        if turn.is_none() && !state.data.is_apart_from_destaging() {
            return None;
        }
        let (pages, end) = (plan.reach.pages(), plan.reach.end());
        self.commit_images(inode, state, Room::AtCommit, pages, end).ok().map(|logged| logged.lsn)
    }

    /// Logs the plan's pages as images; `None` if they are too many by now, or, unless the caller `waits`, somebody
    /// else writes the file.
    fn log_images(&self, plan: &SyncPlan, room: Room, waits: bool) -> Result<Option<Lsn>> {
        let Some(inode) = &plan.inode else { return Ok(None) };
        let pages = plan.reach.pages();
        let mut turn = inode.turn.try_lock();
        loop {
            let mut state = inode.state.write();
            if state.gone {
                return Ok(Some(self.core.store.last_lsn()));
            }
            let few = plan.dirty as usize + 1;
            let dirty = match &plan.reach {
                Reach::Whole => state.data.dirty_pages(),
                Reach::Range(_) => state.data.dirty_numbers(pages.clone()).take(few).count() as u64,
            };
            if dirty > plan.dirty || dirty > 0 && state.data.aside.is_some() {
                return Ok(None);
            }
            // A sync does not wait until older pages of the file are destaged.
            if turn.is_some() || state.data.is_apart_from_destaging() {
                let logged = self.commit_images(inode, &mut state, room, pages, plan.reach.end())?;
                return Ok(Some(logged.lsn));
            }
            drop(state);
            if !waits {
                return Ok(None);
            }
            turn = Some(inode.turn.lock());
        }
    }

    /// Logs the dirty pages of a range as images, within the estimate of what was granted, with a size that covers
    /// them, and the file up to `end`. The caller has the turn, or the pages are apart from what its holder destages.
    pub(crate) fn commit_images(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        room: Room,
        pages: Range<u64>,
        end: u64,
    ) -> Result<Logged> {
        let logged: Pages =
            state.data.dirty_range(pages).map(|(page, slot)| (page, slot.page.clone())).collect();
        let covered = covered_by(state, &logged).max(state.item.size.min(end));
        let mut item = state.item.clone();
        if item.is_regular() {
            item.size = item.size.min(covered);
        }
        if logged.is_empty() && !state.item_dirty && item.size == state.loggable().size {
            // Others have logged it, this moment at the latest.
            return Ok(Logged { lsn: self.core.store.last_lsn(), bytes: 0 });
        }
        let mut batch = self.core.store.batch_with_capacity(
            self.content.tree,
            image_estimate(0).bytes + logged.len() * IMAGE_OVERHEAD_BYTES,
        );
        for (page, buffer) in &logged {
            batch.page_image(inode.number, *page, buffer);
        }
        batch.put(Key::inode(inode.number), &item.encode());
        let bytes = batch.bytes();
        let lsn = match room {
            Room::Granted(permit) => self.core.store.commit(permit, batch)?,
            Room::AtCommit => self.core.store.try_commit(Class::Normal, batch)?,
        };
        for (page, _) in logged {
            state.data.update(page, |slot| slot.state.log());
        }
        state.data.stored.covered = covered;
        state.data.listed.recent_at = None;
        state.item_dirty = state.item != item;
        self.content.relist(inode, state, self.core.clock.now());
        Ok(Logged { lsn, bytes })
    }
}

/// Whether the store has no room at the moment.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::Store(StoreError::Pressure(_)))
}
