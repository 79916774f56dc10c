//! Trim: the device is told which blocks nobody needs.
//!
//! A block is discarded only while it is held: free for the allocator, and kept from it meanwhile. Free for the
//! allocator means that no state which recovery can reach refers to it (R11), and that no write to it is in flight
//! (R8); journal, superblocks and bitmaps are in no allocation. So a discard may come to the device before or after
//! whatever else is in flight, and may survive a crash or not. It needs no flush.
//!
//! Besides, nothing is discarded that only the newest superblock calls free. If that one is lost, the one before it
//! and the log lead to the same state, as long as nobody has written to what the newest has released. A trim would
//! end that at once. So it has both slots agree on what is free before it begins, and leaves alone what checkpoints
//! release meanwhile.
//!
//! One run is held at a time, and the device is told without the space's lock. Who finds too little space because of
//! it waits for that one discard, and has what was held: no space is lacking because of a trim.

use crate::checkpoint::Purpose;
use crate::primitives::Ordering;
use crate::shared::Shared;
use crate::space::Cursor;
use crate::{Store, StoreError};
use std::ops::Range;
use syncline_format::{BlockNo, GroupNo};

impl Store {
    /// Discards free blocks of the range, in runs of at least `blocks_min` (or what the device takes for the least,
    /// if that is more); returns how many. What was freed since the last checkpoint is not free yet. It ends early
    /// when the session does, or [`Store::end_trims`] is called. Call it without locks.
    ///
    /// Errors: `ReadOnly`, `NoDiscard`, the latched failure (C8), and what the device says: a discard that fails
    /// changes nothing that anybody reads, so the volume goes on.
    pub fn trim(&self, range: Range<BlockNo>, blocks_min: u64) -> Result<u64, StoreError> {
        let shared = &self.shared;
        if shared.journal.get().is_none() {
            return Err(StoreError::ReadOnly);
        }
        let least = shared.device.discard_blocks_min().ok_or(StoreError::NoDiscard)?;
        let blocks_min = blocks_min.max(least);
        // Or what was removed before the call would be left out.
        if shared.space.lock().has_released() {
            self.write_checkpoint(Purpose::Again)?;
        }
        let mut discarded = 0;
        for group in (0..shared.layout().group_count()).map(GroupNo) {
            let cursor = shared.space.lock().cursor(group, (range.start, range.end), blocks_min);
            let Some(mut cursor) = cursor else { continue };
            while let Some(blocks) = self.discard_next(&mut cursor)? {
                discarded += blocks;
            }
        }
        Ok(discarded)
    }

    /// Ends trims that are under way behind the run that each discards just now; those that come later do nothing.
    pub fn end_trims(&self) {
        self.shared.trims_end.store(true, Ordering::Relaxed);
    }

    /// Discards the next run; `None` behind the last.
    fn discard_next(&self, cursor: &mut Cursor) -> Result<Option<u64>, StoreError> {
        let shared = &self.shared;
        if let Some(failed) = self.failure() {
            return Err(failed);
        }
        self.give_way();
        let _turn = shared.trimming.lock();
        // Asked in turn: who ends trims and then waits for this one's turn knows that none comes any more.
        if shared.trims_end.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some(run) = shared.space.lock().hold(cursor) else { return Ok(None) };
        let discarded = shared.device.discard(run.start, u64::from(run.len));
        shared.space.lock().let_go(run);
        discarded?;
        // It may have learned that it cannot by trying.
        shared.device.discard_blocks_min().ok_or(StoreError::NoDiscard)?;
        Ok(Some(u64::from(run.len)))
    }
}

impl Shared {
    /// Sets blocks aside, without waiting for what a trim holds: whether it holds some is told with the error.
    pub(crate) fn try_reserve(&self, blocks: u64) -> Result<(), (StoreError, bool)> {
        if self.credit.draw_blocks(blocks) {
            return Ok(());
        }
        let mut space = self.space.lock();
        let reserved = space.reserve(blocks).map_err(|error| (error, space.held_blocks() > 0));
        if reserved.is_ok() {
            space.give_credit();
        }
        reserved
    }

    /// Sets blocks aside; what a trim holds is waited for if it is needed.
    pub(crate) fn reserve(&self, blocks: u64) -> Result<(), StoreError> {
        match self.try_reserve(blocks) {
            Err((StoreError::NoSpace, true)) => {}
            other => return other.map_err(|(error, _)| error),
        }
        // Nothing is held by anybody who does not have the turn.
        let _turn = self.trimming.lock();
        self.space.lock().reserve(blocks)
    }

    /// Waits for the discard that is under way.
    pub(crate) fn wait_for_discard(&self) {
        drop(self.trimming.lock());
    }
}
