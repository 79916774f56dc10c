//! Background work: writeback by age and amount, destaging, and checkpoints.
//!
//! The library's thread calls [`Fs::maintain`] about every 100 ms; a program without threads calls it when it likes. It
//! keeps C9: what is older than the commit interval is written and forced.

use crate::Result;
use crate::clock::{is_over, since};
use crate::limits::{
    CHECKPOINT_INTERVAL, DESTAGE_AGE, IMAGE_SHARE, LOGGED_PAGES_MAX, PINNED_BLOCKS_MIN, REAPED_BESIDE_SYNCS,
};
use crate::writeback::Writeback;
use crate::writeback::stream::Pace;
use std::sync::atomic::Ordering;
use syncline_format::BLOCK_BYTES;
use syncline_format::item::Timestamp;
use syncline_store::{Load, StoreError};

impl Writeback {
    /// See [`Fs::maintain`](crate::Fs::maintain).
    pub fn maintain(&self, now: Timestamp, budget: usize) -> Result<bool> {
        if self.core.options.read_only || self.core.store.failure().is_some() {
            return Ok(false);
        }
        self.begin_background();
        self.content.release_in_flight();
        // What fails for one reason does not keep what others have committed from becoming durable (C9).
        let wrote = self.write_due(now, budget);
        let forced = self.force_if_due(now);
        self.content.balance_memory();
        let checkpointed = self.checkpoint_if_due(now);
        let tended = self.tend_snapshots();
        self.content.shrink_cache();
        let more = wrote?;
        forced.and(checkpointed)?;
        Ok(more | tended?)
    }
}

impl Writeback {
    /// Writes what is due; true if there is more to do.
    fn write_due(&self, now: Timestamp, budget: usize) -> Result<bool> {
        self.retry_set_aside(Some(now))?;
        let mut more = true;
        let mut left = budget.max(1);
        let pace = if self.gives_way() { Pace::YIELDING } else { Pace::BACKGROUND };
        while left > 0 {
            // A piece at a time, so that the caller can pause.
            if self.gives_way() {
                left = 0;
                self.core.store.give_way();
            } else {
                left = left.saturating_sub(pace.rounds());
            }
            let hinted = self.write_hinted(pace)?;
            let due = self.has_aged(now) || self.has_many_dirty();
            more = due && self.write_oldest(false, pace)?;
            if !more {
                more = self.must_destage(now) && self.write_oldest(true, pace)?;
            }
            more |= hinted;
            if !more {
                break;
            }
        }
        Ok(more)
    }

    /// One step of what snapshots have left to be done: images that they inherited, and deleted ones; true if there may
    /// be more.
    fn tend_snapshots(&self) -> Result<bool> {
        let store = &self.core.store;
        let tended = match store.settle() {
            Ok(false) => store.reap(self.reaped_leaves()),
            settled => settled,
        };
        match tended {
            // The next call goes on.
            Err(StoreError::Pressure(pressure)) => self.relieve(pressure).map(|_| true),
            // What a deleted snapshot has stays in use; `check` tells of the damage.
            Err(error) if error.is_unreadable() && store.failure().is_none() => {
                if !self.has_told_of_snapshots.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "a snapshot is damaged; its space does not come back");
                }
                Ok(false)
            }
            Err(StoreError::NoSpace) => Ok(false),
            tended => Ok(tended?),
        }
    }

    /// Whether a file is dirty for longer than the commit interval (C9).
    fn has_aged(&self, now: Timestamp) -> bool {
        let lists = self.content.lists.lock();
        let oldest = lists.dirty.keys().next();
        oldest.is_some_and(|(oldest, _)| is_over(self.core.options.commit_interval, now, *oldest))
    }

    /// Whether background work should be done in small pieces with pauses between them: somebody synced a short while
    /// before the last call of [`Fs::maintain`], and no writer waited for memory then.
    pub fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Leaves that a step of a deletion looks at: while somebody syncs, the trees' lock is not held for long, and the
    /// sync goes first.
    pub(crate) fn reaped_leaves(&self) -> usize {
        let leaves_max = self.core.options.reaped_leaves_max;
        if !self.gives_way() {
            return leaves_max;
        }
        self.core.store.give_way();
        REAPED_BESIDE_SYNCS.min(leaves_max)
    }

    fn must_destage(&self, now: Timestamp) -> bool {
        let load = self.core.store.load();
        self.core.account.logged() > LOGGED_PAGES_MAX
            || load.image_bytes > load.ring_bytes_max / IMAGE_SHARE
            // Each keeps a block of the ring free for its destaging (R17), however little of a record it is.
            || load.images * BLOCK_BYTES as u64 > load.ring_bytes_max / 4
            || {
                let lists = self.content.lists.lock();
                lists.logged.keys().next().is_some_and(|(oldest, _)| since(now, *oldest) >= DESTAGE_AGE)
            }
    }

    /// Forces what was committed a commit interval ago, and what had been changed in memory by then (C9). Whoever
    /// wrote that out in the meantime, for a hint, for a sync of others or for lack of memory, it is not durable yet.
    fn force_if_due(&self, now: Timestamp) -> Result<()> {
        let is_due = |then| is_over(self.core.options.commit_interval, now, then);
        let due = {
            let mut lists = self.content.lists.lock();
            // Asked under the lock: what has left the list is committed by then.
            let last = self.core.store.last_lsn();
            let pending = last > self.core.store.durable_lsn();
            let due = pending && (is_due(lists.forced) || lists.oldest_change().is_some_and(is_due));
            if due || !pending {
                lists.forced = now;
                lists.unforced_since = None;
            }
            due.then_some(last)
        };
        if let Some(last) = due {
            self.core.store.force(last)?;
        }
        Ok(())
    }

    fn checkpoint_if_due(&self, now: Timestamp) -> Result<()> {
        let load = self.core.store.load();
        if load.ring_bytes > load.ring_bytes_max / 2 {
            // The tail cannot pass the oldest live image (R2). Beside syncs the oldest are destaged piece by piece,
            // and the tail follows, as long as there is room for that.
            if !self.gives_way() || load.ring_bytes > load.ring_bytes_max / 4 * 3 {
                self.core.destage_heads()?;
                self.core.carry_heads()?;
            } else if !self.may_checkpoint_again(now) {
                return Ok(());
            }
        } else if !self.checkpoint_is_due(now, &load) {
            return Ok(());
        }
        self.core.checkpoint()?;
        self.content.lists.lock().checkpointed = now;
        Ok(())
    }

    /// Whether the last checkpoint is long enough ago for one that may not get the tail far.
    fn may_checkpoint_again(&self, now: Timestamp) -> bool {
        since(now, self.content.lists.lock().checkpointed) >= self.core.options.commit_interval
    }

    fn checkpoint_is_due(&self, now: Timestamp, load: &Load) -> bool {
        let aged = {
            let mut lists = self.content.lists.lock();
            if load.batches == 0 {
                lists.checkpointed = now;
            }
            since(now, lists.checkpointed) >= CHECKPOINT_INTERVAL
        };
        let pinned = load.pinned_blocks;
        load.batches > 0
            && (aged
                || load.dirty_node_bytes > load.dirty_node_bytes_max / 4 * 3
                || pinned > PINNED_BLOCKS_MIN && pinned > self.core.store.space().available / 4)
    }
}
