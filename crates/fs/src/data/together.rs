//! Syncs of several files that are started together: what they have to write out goes to the device in few large
//! writes and is logged by few batches, where each by itself would be a write, a batch and a thread that waits for
//! both.
//!
//! Nobody waits for somebody else's turn: a file that is being written by others, and one that meets an error, is
//! given back to be synced by itself. What is written in one go is bounded by [`TOGETHER_PAGES_MAX`], which is what
//! may be in flight when it is logged; so no sync waits for more of others' data than the flush that it shares with
//! them carries anyway.

use super::choice::Purpose;
use super::pages::pages_of;
use super::round::{Select, gauge};
use super::stream::STREAM_PAGES_MIN;
use super::sync::has_work;
use super::{SyncScope, sync::IMAGE_PAGES_MAX};
use crate::inode::Inode;
use crate::{Fs, HandleId, Result};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::ObjectNo;
use syncline_format::item::Timestamp;
use syncline_store::Class;

/// Pages of syncs that are started together: 1 MiB.
pub const TOGETHER_PAGES_MAX: u64 = 256;

/// A file with more pieces to write is left to a batch of its own: a few like it fill one, and the others would wait
/// for several.
const PIECES_MAX: u64 = 4;

/// A sync to be started.
pub struct SyncStart {
    /// Of the open file.
    pub handle: HandleId,
    /// What of it.
    pub scope: SyncScope,
    /// Called when it is durable, on the thread that drives the force; or with the error.
    pub done: Box<dyn FnOnce(Result<()>) + Send>,
}

/// A file that is being written out, and what is left of it.
type Work = (Arc<Inode>, Select);

impl Fs {
    /// Pages that a sync of an open file would write out, if it can do so together with others ([`Fs::start_syncs`]):
    /// more than are logged as images, less than a stream, in few pieces, and nobody else writes the file.
    pub fn sync_joins_others(&self, handle: HandleId) -> Option<u64> {
        let open = self.open_file(handle).ok()?;
        let data = &open.inode.state.read().data;
        let pages = data.dirty_pages();
        let joins = pages > IMAGE_PAGES_MAX
            && pages < STREAM_PAGES_MIN
            && !data.turn().is_locked()
            && gauge(data, &Select::dirty(self.clock.now())).pieces <= PIECES_MAX;
        joins.then_some(pages)
    }

    /// Whether everything that was committed is durable: then no started sync is left for anybody to drive.
    pub fn is_forced(&self) -> bool {
        self.store.durable_lsn() >= self.store.last_lsn()
    }

    /// Starts several syncs, of at most [`TOGETHER_PAGES_MAX`] pages in all, and writes out what they need on this
    /// thread.
    ///
    /// Those that could not be started together come back and are to be started by themselves
    /// ([`Fs::start_sync_handle`]).
    pub fn start_syncs(&self, syncs: Vec<SyncStart>) -> Vec<SyncStart> {
        if self.store.failure().is_some() || self.store.is_read_only() {
            return syncs;
        }
        let began = self.clock.now();
        let mut works: Vec<Work> = Vec::with_capacity(syncs.len());
        let (mut started, mut alone) = (Vec::with_capacity(syncs.len()), Vec::new());
        for sync in syncs {
            match self.open_file(sync.handle) {
                Ok(open) => {
                    self.writeback.syncs.fetch_add(1, Ordering::Relaxed);
                    works.extend(work_of(&open.inode, sync.scope, began));
                    started.push((open.inode.number, sync));
                }
                Err(_) => alone.push(sync),
            }
        }
        self.writeback.note_small_request();
        works.sort_by_key(|(inode, _)| inode.number);
        works.dedup_by_key(|(inode, _)| inode.number);
        let left = self.write_together(works.into());
        let lsn = self.store.last_lsn();
        for (file, sync) in started {
            if left.contains(&file) {
                alone.push(sync);
            } else {
                let done = sync.done;
                self.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into))));
            }
        }
        alone
    }

    /// Writes files out and logs them; returns those of which something is left.
    fn write_together(&self, mut works: VecDeque<Work>) -> Vec<ObjectNo> {
        let mut left = Vec::new();
        while !works.is_empty() {
            let outcome = self.write_out(Class::Normal, works.make_contiguous(), Purpose::Syncs);
            let Ok(outcome) = outcome else {
                // Each meets the error by itself, if it is its own.
                left.extend(works.iter().map(|(inode, _)| inode.number));
                return left;
            };
            let given = std::mem::take(&mut works);
            for (index, ((inode, select), rest)) in given.into_iter().zip(outcome.rest).enumerate() {
                match rest {
                    None => {}
                    // All of the batch was there for the first one: it was the turn that was missing.
                    Some(page) if index == 0 && page == select.pages.start => left.push(inode.number),
                    Some(page) => {
                        let pages = page..select.pages.end;
                        works.push_back((inode, Select { pages, ..select }));
                    }
                }
            }
        }
        left
    }
}

/// What there is to write for a sync, if anything.
fn work_of(inode: &Arc<Inode>, scope: SyncScope, began: Timestamp) -> Option<Work> {
    let mut state = inode.state.write();
    if state.gone || !has_work(&state, scope) {
        return None;
    }
    state.data.piggybacked = false;
    let pages = 0..pages_of(state.item.size);
    Some((inode.clone(), Select { pages, whole: Some(began), logged: false }))
}
