//! Syncs of several files that are started together: what they have to write out goes to the device in few large
//! writes and is logged by few batches, where each by itself would be a write, a batch and a thread that waits for
//! both.
//!
//! Nobody waits for somebody else's turn: a file that is being written by others, and one that meets an error, is
//! given back to be synced by itself. What is written in one go is bounded by [`TOGETHER_PAGES_MAX`], which is what
//! may be in flight when it is logged; so no sync waits for more of others' data than the flush that it shares with
//! them carries anyway.

use crate::content::inode::Inode;
use crate::content::select::Select;
use crate::writeback::choice::Purpose;
use crate::{Result, SyncPlan, Syncs};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use syncline_format::ObjectNo;
use syncline_store::Class;

/// Pages of syncs that are started together: 1 MiB.
pub const TOGETHER_PAGES_MAX: u64 = 256;

/// A sync to be started.
pub struct SyncStart {
    /// What is to be done for it.
    pub plan: SyncPlan,
    /// Called when it is durable, on the thread that drives the force; or with the error.
    pub done: Box<dyn FnOnce(Result<()>) + Send>,
}

/// A file that is being written out, and what is left of it.
type Work = (Arc<Inode>, Select);

impl Syncs {
    /// Starts several syncs, of at most [`TOGETHER_PAGES_MAX`] pages in all, and writes out what they need on this
    /// thread.
    ///
    /// Those that could not be started together come back and are to be committed by themselves ([`Syncs::commit`]).
    pub fn start_together(&self, syncs: Vec<SyncStart>) -> Vec<SyncStart> {
        if self.core.store.failure().is_some() {
            return syncs;
        }
        // A file may be there twice: whoever came later may have seen more of it.
        let mut works: BTreeMap<ObjectNo, Work> = BTreeMap::new();
        for SyncPlan { inode, rest, whole, .. } in syncs.iter().map(|sync| &sync.plan) {
            let Some(inode) = inode else { continue };
            let fresh = || (inode.clone(), Select { pages: rest.clone(), whole: *whole, logged: false });
            let (_, select) = works.entry(inode.number).or_insert_with(fresh);
            select.pages.end = select.pages.end.max(rest.end);
            select.whole = select.whole.min(*whole);
        }
        self.core.note_small_request();
        let left = self.write_together(works.into_values().collect());
        let lsn = self.core.store.last_lsn();
        let mut alone = Vec::new();
        for sync in syncs {
            if sync.plan.inode.as_ref().is_some_and(|inode| left.contains(&inode.number)) {
                alone.push(sync);
            } else {
                self.start_force(lsn, sync.done);
            }
        }
        alone
    }

    /// Writes files out and logs them; returns those of which something is left.
    fn write_together(&self, mut works: VecDeque<Work>) -> Vec<ObjectNo> {
        let mut left = Vec::new();
        while !works.is_empty() {
            let outcome = self.writeback.write_out(Class::Normal, works.make_contiguous(), Purpose::Syncs);
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
