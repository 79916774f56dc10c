//! Syncs that are started: what is to be committed is committed at once where that needs no wait, otherwise piece by piece
//! by whoever drives the sync. Forcing comes after that and is the store's.
//!
//! A started sync covers what the file is at the call: the pages it will look at are fixed then. What is written to these
//! pages before its turn comes is committed with them.

use super::SyncScope;
use super::pages::pages_of;
use super::round::{Select, gauge};
use super::stream::{Pace, STREAM_PAGES_MIN};
use super::sync::{IMAGE_PAGES_MAX, has_work, image_estimate};
use crate::inode::Inode;
use crate::{Fs, HandleId, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::Lsn;
use syncline_store::{Class, StoreError};

/// What a started sync still has to commit.
pub(crate) struct PendingSync {
    inode: Arc<Inode>,
    /// Pages that were not looked at yet.
    rest: std::ops::Range<u64>,
}

/// How far a sync got without waiting.
pub(crate) enum Begun {
    /// Durable once everything up to here is.
    Committed(Lsn),
    /// [`Fs::continue_sync`] commits the rest.
    Pending(PendingSync),
}

impl Fs {
    /// Starts a sync of an open file; waits for nothing.
    ///
    /// Errors: `BadHandle`, and once the volume failed always its cause (C8).
    pub(crate) fn begin_sync(&self, handle: HandleId, scope: SyncScope) -> Result<Begun> {
        let inode = self.open_file(handle)?.inode.clone();
        self.check_failure()?;
        if self.store.is_read_only() {
            return Ok(Begun::Committed(self.store.durable_lsn()));
        }
        self.writeback.syncs.fetch_add(1, Ordering::Relaxed);
        if self.commit_without_waiting(&inode, scope)? {
            return Ok(Begun::Committed(self.store.last_lsn()));
        }
        let rest = 0..pages_of(inode.state.read().item.size);
        Ok(Begun::Pending(PendingSync { inode, rest }))
    }

    /// Commits a piece of at most 16 MiB of a started sync; what has to be forced once all is committed.
    pub(crate) fn continue_sync(&self, pending: &mut PendingSync) -> Result<Option<Lsn>> {
        self.check_failure()?;
        let select = Select { pages: pending.rest.clone(), logged: false };
        let large = gauge(&pending.inode.state.read().data, &select).pages >= STREAM_PAGES_MIN;
        let rest = if large {
            self.stream_out(Class::Normal, &pending.inode, select, Pace::PIECE)?
        } else {
            self.write_out(Class::Normal, &[(pending.inode.clone(), select)], false)?.rest[0]
        };
        match rest {
            Some(rest) => {
                pending.rest.start = rest;
                Ok(None)
            }
            None => Ok(Some(self.store.last_lsn())),
        }
    }

    /// Makes several open files durable with one force.
    ///
    /// Errors: as for each alone. All are tried; the first error is returned.
    pub fn sync_handles(&self, handles: &[HandleId], scope: SyncScope) -> Result<()> {
        let mut result = Ok(());
        for &handle in handles {
            let begun = self.begin_sync(handle, scope).and_then(|begun| self.finish_committing(begun));
            result = result.and(begun.map(drop));
        }
        result?;
        if !self.store.is_read_only() {
            self.store.force(self.store.last_lsn())?;
        }
        Ok(())
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

    /// Commits the file if its dirty pages are few, the journal has room, and nobody else is writing them; false
    /// otherwise.
    fn commit_without_waiting(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<bool> {
        let (dirty, turn) = {
            let mut state = inode.state.write();
            if state.gone || !has_work(&state, scope) {
                return Ok(true);
            }
            state.data.piggybacked = false;
            (state.data.dirty_pages(), state.data.turn())
        };
        if dirty > IMAGE_PAGES_MAX {
            return Ok(false);
        }
        let permit = match self.store.admit(Class::Normal, image_estimate(dirty)) {
            Ok(permit) => permit,
            Err(StoreError::Pressure(_) | StoreError::NoSpace) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let turn = turn.try_lock_arc();
        let mut state = inode.state.write();
        if state.gone {
            return Ok(true);
        }
        if state.data.dirty_pages() > dirty || turn.is_none() && !state.data.is_apart_from_destaging() {
            return Ok(false);
        }
        self.commit_images(inode, &mut state, permit)?;
        Ok(true)
    }
}
