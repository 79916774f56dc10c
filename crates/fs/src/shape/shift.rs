//! Taking a range out of a file and putting one in (`fallocate`, collapse and insert): all extents behind it change
//! their keys.
//!
//! The batch that changes the size begins the move, and ends it if the extents are few. A file with more is listed in
//! the orphan table by that batch, with how far the move has come ([`Shift`]); `Shape::finish_truncation` goes on with
//! it, a batch at a time, and so does the next open after a crash. So a crash shows the file before or after (C2),
//! whatever the number of extents.
//!
//! Until the move has ended nobody else sees or changes what is behind the range's start: whoever comes there
//! (`truncating_from` and `shifting` of `Stored` say so) ends it first. Before it began
//! everything there was brought to extents, and it is not cached; so no page there is dirty or logged, and what is
//! below the start goes on as ever.

use crate::content::extents::{Cost, DROP_COST, ExtentMap, put_cost};
use crate::content::inode::Inode;
use crate::content::pages::PAGE_BYTES;
use crate::limits::{EXTENTS_PER_BATCH, SETTLE_TRIES};
use crate::shape::Shape;
use crate::{Error, Result};
use std::sync::Arc;
use syncline_format::batch::{BATCH_HEADER_BYTES, DELETE_BYTES, PUT_OVERHEAD_BYTES, RELEASE_BYTES};
use syncline_format::item::{
    EXTENT_PAGES_MAX, ExtentItem, FILE_BYTES_MAX, INODE_BYTES, InodeItem, ORPHAN_BYTES_MAX, OrphanReason,
    Shift,
};
use syncline_format::{Key, ObjectNo};
use syncline_store::{Class, Estimate, Permit};

#[cfg(test)]
mod tests;

/// What a batch may need besides: the extent that the range's start cuts in two, the one that its end does, and one
/// that begins where the batch does.
const EDGES: usize = 3;
/// The page behind the last one that a file can have.
const PAGES_END: u64 = FILE_BYTES_MAX.div_ceil(PAGE_BYTES);

/// What one batch does.
struct Step {
    map: ExtentMap,
    blocks_cut: u64,
    /// What is left to do.
    rest: Option<Shift>,
}

impl Shape {
    /// Takes `len` bytes at `offset` out, or puts a hole of that length in. `adjust` sees the inode under its lock.
    ///
    /// Errors: `Invalid` for a range that is misaligned or reaches the end of the file; `FileTooLarge`; `Busy` if
    /// others never stop changing the file; `NoSpace` if blocks behind the range are a snapshot's as well and there is
    /// no room to write them once more.
    pub(crate) fn shift(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        len: u64,
        inserts: bool,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        if !offset.is_multiple_of(PAGE_BYTES) || !len.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Invalid("the range is not a whole number of 4096-byte pages"));
        }
        let first = offset / PAGE_BYTES;
        let next = if inserts { PAGES_END } else { first };
        let shift = Shift { first, count: len / PAGE_BYTES, inserts, next };
        for _ in 0..SETTLE_TRIES {
            self.finish_truncation(inode)?;
            check_range(inode.state.read().item.size, offset, len, inserts)?;
            self.settle(inode, first)?;
            if self.take_over(inode, first)? {
                self.settle(inode, first)?;
            }
            match self.begin_shift(inode, shift, adjust) {
                Ok(true) => return self.finish_truncation(inode),
                // Somebody has written, or made a snapshot, meanwhile.
                Ok(false) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy)
    }

    /// The first batch; false if the file has to be settled again. No snapshot is made from before it is known that the
    /// file owns all of what moves to after the move has begun, and who makes one later ends the move first.
    fn begin_shift(
        &self,
        inode: &Arc<Inode>,
        shift: Shift,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<bool> {
        let _moving = self.content.moving.read();
        let (permit, limit) = self.admit_shift(Class::Normal)?;
        let turn = inode.lock_turn();
        // All that is going to move, and not only what this batch moves: a move that has begun is ended.
        if self.has_shared(inode, shift.first)? {
            return Ok(false);
        }
        let step = self.plan_shift(inode.number, shift, limit)?;
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        let len = shift.count * PAGE_BYTES;
        check_range(state.item.size, shift.first * PAGE_BYTES, len, shift.inserts)?;
        let settled = state.data.range(shift.first..u64::MAX).all(|(_, slot)| slot.is_settled());
        if !settled || state.data.is_truncating() {
            return Ok(false);
        }
        let mut item = state.item.clone();
        adjust(&mut item);
        let now = self.core.clock.now();
        (item.modified, item.changed) = (now, now);
        item.size = if shift.inserts { item.size + len } else { item.size - len };
        item.blocks = item.blocks.saturating_sub(step.blocks_cut);
        let mut batch = self.content.batch();
        step.map.emit(&mut batch);
        batch.drop_images(inode.number, shift.first, u64::MAX);
        // One without a name is an orphan already, and loses everything at the next mount.
        if let Some(rest) = step.rest.filter(|_| item.nlink > 0) {
            batch.put(Key::orphan(inode.number), &OrphanReason::Shifting(rest).encode());
        }
        // Everything behind the range is in extents; the size that was asked for is logged in its order (C2).
        batch.put(Key::inode(inode.number), &item.encode());
        self.core.store.commit(permit, batch)?;
        let data = &mut state.data;
        data.note_change(shift.first..u64::MAX, true);
        data.discard_range(shift.first..u64::MAX);
        data.stored.changes += 1;
        data.stored.covered = item.size;
        data.stored.truncating_from = step.rest.map(|_| shift.first);
        data.stored.shifting = step.rest;
        state.item_dirty = false;
        state.item = item;
        self.content.relist(inode, &mut state, now);
        drop(state);
        drop(turn);
        Ok(true)
    }

    /// One more batch of a move that has begun.
    pub(crate) fn shift_some(&self, inode: &Arc<Inode>) -> Result<()> {
        let (permit, limit) = self.admit_shift(Class::Reclaim)?;
        let turn = inode.lock_turn();
        let Some(shift) = inode.state.read().data.stored.shifting else { return Ok(()) };
        let step = self.plan_shift(inode.number, shift, limit)?;
        let mut state = inode.state.write();
        if state.gone {
            (state.data.stored.truncating_from, state.data.stored.shifting) = (None, None);
            return Ok(());
        }
        let mut batch = self.content.batch();
        step.map.emit(&mut batch);
        // One that lost its last name meanwhile stays an orphan.
        match step.rest {
            _ if state.item.nlink == 0 => {}
            Some(rest) => batch.put(Key::orphan(inode.number), &OrphanReason::Shifting(rest).encode()),
            None => batch.delete(Key::orphan(inode.number)),
        }
        let mut item = state.loggable();
        item.blocks = item.blocks.saturating_sub(step.blocks_cut);
        batch.put(Key::inode(inode.number), &item.encode());
        self.core.store.commit(permit, batch)?;
        state.item.blocks = item.blocks;
        state.data.stored.changes += 1;
        state.data.stored.truncating_from = step.rest.map(|_| shift.first);
        state.data.stored.shifting = step.rest;
        drop(state);
        drop(turn);
        Ok(())
    }

    /// Takes up a move that a crash interrupted; `Shape::finish_truncation` ends it.
    pub(crate) fn note_shift(&self, inode: &Arc<Inode>, shift: Shift) {
        let data = &mut inode.state.write().data;
        (data.stored.truncating_from, data.stored.shifting) = (Some(shift.first), Some(shift));
    }

    /// Room for a batch that moves extents, and how many.
    fn admit_shift(&self, class: Class) -> Result<(Permit, usize)> {
        // An extent that is moved is deleted and put.
        let one = put_cost(u64::from(EXTENT_PAGES_MAX))
            .plus(Cost { bytes: DELETE_BYTES + RELEASE_BYTES, items: 1 });
        let inode = Cost { bytes: PUT_OVERHEAD_BYTES + INODE_BYTES, items: 1 };
        let orphan = Cost { bytes: PUT_OVERHEAD_BYTES + ORPHAN_BYTES_MAX, items: 1 };
        let edges = (0..EDGES).fold(inode.plus(orphan).plus(DROP_COST), |cost, _| cost.plus(one));
        let fixed = BATCH_HEADER_BYTES + edges.bytes;
        let fit = self.core.store.batch_bytes_max().saturating_sub(fixed) / one.bytes;
        let estimate = |extents: usize| Estimate {
            bytes: fixed + extents * one.bytes,
            items: edges.items + extents * one.items,
            images: 0,
        };
        self.writeback.admit_necessary(class, estimate, fit.clamp(1, EXTENTS_PER_BATCH))
    }

    /// What a batch of at most `limit` extents does. To last, it needs the file's turn.
    ///
    /// Errors: among others `Inconsistent` if extents are where none can be.
    fn plan_shift(&self, object: ObjectNo, shift: Shift, limit: usize) -> Result<Step> {
        if shift.inserts { self.plan_up(object, shift, limit) } else { self.plan_down(object, shift, limit) }
    }

    /// Frees what lies in the range and moves what lies behind it down, upwards from `next`.
    fn plan_down(&self, object: ObjectNo, shift: Shift, limit: usize) -> Result<Step> {
        let gap = shift.gap();
        let (mut map, cut_off) = ExtentMap::load_some(&self.content, object, gap.start..u64::MAX, limit)?;
        if !gap.is_empty() && map.overlapping(gap).next().is_some() {
            return Err(in_the_way(object));
        }
        let kept = shift.first + shift.count;
        let freed = shift.next..kept.min(cut_off.unwrap_or(u64::MAX));
        let blocks_cut = if freed.is_empty() { 0 } else { map.cut(freed, true) };
        map.shift(shift.next.max(kept), -(shift.count as i64));
        let rest = cut_off.map(|next| Shift { next, ..shift });
        Ok(Step { map, blocks_cut, rest })
    }

    /// Moves what lies behind the range's start up, downwards from `next`.
    fn plan_up(&self, object: ObjectNo, shift: Shift, limit: usize) -> Result<Step> {
        let gap = shift.gap();
        if shift.next < PAGES_END {
            let map = ExtentMap::load(&self.content, object, gap.clone())?;
            if map.overlapping(gap).next().is_some() {
                return Err(in_the_way(object));
            }
        }
        let mut from = shift.next;
        let mut rest = None;
        for moved in 0..=limit {
            let Some((page, item)) = self.extent_before(object, from)? else { break };
            let end = page + u64::from(item.pages());
            if end <= shift.first {
                break;
            }
            if end > from {
                return Err(in_the_way(object));
            }
            if end > PAGES_END - shift.count {
                return Err(Error::FileTooLarge);
            }
            if moved == limit {
                rest = Some(Shift { next: from, ..shift });
                break;
            }
            from = page;
        }
        let from = from.max(shift.first);
        let mut map = ExtentMap::load(&self.content, object, from..shift.next)?;
        map.split(from);
        map.shift(from, shift.count as i64);
        Ok(Step { map, blocks_cut: 0, rest })
    }

    /// The last extent that begins before `page`.
    fn extent_before(&self, object: ObjectNo, page: u64) -> Result<Option<(u64, ExtentItem)>> {
        let Some(last) = page.checked_sub(1) else { return Ok(None) };
        match self.core.store.last_at_or_before(self.content.tree, Key::extent(object, last))? {
            Some((key, value)) if key == Key::extent(object, key.offset) => {
                Ok(Some((key.offset, ExtentItem::decode(&value)?)))
            }
            _ => Ok(None),
        }
    }

    /// Writes everything from page `first` on to its extents, and waits until the device has it.
    fn settle(&self, inode: &Arc<Inode>, first: u64) -> Result<()> {
        self.writeback.write_out_all(Class::Normal, vec![inode.clone()], false)?;
        self.writeback.write_out_all(Class::Destage, vec![inode.clone()], true)?;
        inode.state.read().data.check_not_aside()?;
        let tickets: Vec<_> = {
            let state = inode.state.read();
            state.data.range(first..u64::MAX).filter_map(|(_, slot)| slot.in_flight.clone()).collect()
        };
        for ticket in tickets {
            self.core.store.device().wait(&ticket)?;
        }
        Ok(())
    }
}

/// Whether the range can be taken out of, or put into, a file of that size.
fn check_range(size: u64, offset: u64, len: u64, inserts: bool) -> Result<()> {
    if inserts && offset >= size || !inserts && offset + len >= size {
        return Err(Error::Invalid("the range reaches the end of the file"));
    }
    if inserts && size + len > FILE_BYTES_MAX {
        return Err(Error::FileTooLarge);
    }
    Ok(())
}

fn in_the_way(object: ObjectNo) -> Error {
    Error::Inconsistent { object, what: "an extent lies where an unfinished move of others goes" }
}
