//! `fallocate`: preallocation, and zeroing with it. What makes holes is in `clear`, what moves extents in `shift`.
//!
//! Preallocated blocks are *unwritten* extents: they read as zeros, and the first write goes into them in place, so
//! it needs no free block. Each piece of a long range is a batch of its own.

use crate::content::extents::{Cost, ExtentMap, put_cost};
use crate::content::inode::Inode;
use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::content::steps;
use crate::content::steps::Step;
use crate::limits::{ALLOCATE_PAGES, PIECES_PER_BATCH};
use crate::shape::Shape;
use crate::{Error, FallocateMode, Result};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::batch::{BATCH_HEADER_BYTES, PUT_OVERHEAD_BYTES, SPACE_OP_BYTES};
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem, FILE_BYTES_MAX, INODE_BYTES, InodeItem};
use syncline_store::{Class, Estimate, Reservation};

impl Shape {
    /// `fallocate(2)`. `adjust` sees the inode under its lock.
    ///
    /// Errors: `Invalid` for an empty or misaligned range, `FileTooLarge`, `NoSpace` (nothing is allocated then).
    pub(crate) fn file_allocate(
        &self,
        inode: &Arc<Inode>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        self.core.check_writable()?;
        if len == 0 {
            return Err(Error::Invalid("the length is zero"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        self.finish_truncation(inode)?;
        if matches!(
            mode,
            FallocateMode::Allocate { keep_size: true } | FallocateMode::ZeroRange { keep_size: true }
        ) {
            let mut state = inode.state.write();
            state.data.stored.is_beyond |= pages_of(end) > pages_of(state.item.size);
        }
        match mode {
            FallocateMode::Allocate { keep_size } => {
                self.fill_holes(inode, offset / PAGE_BYTES..pages_of(end))?;
                self.finish_allocation(inode, if keep_size { 0 } else { end }, adjust)
            }
            FallocateMode::PunchHole => self.clear(inode, offset..end, 0, adjust),
            FallocateMode::ZeroRange { keep_size } => {
                self.zero_range(inode, offset..end, if keep_size { 0 } else { end }, adjust)
            }
            FallocateMode::CollapseRange => self.shift(inode, offset, len, false, adjust),
            FallocateMode::InsertRange => self.shift(inode, offset, len, true, adjust),
        }
    }

    /// Zeroes the bytes, sets the size, and gives the range unwritten blocks. A lack of space is told before anything
    /// is zeroed (C8): the blocks that clearing frees cannot be used again before the next checkpoint, so others are
    /// reserved first.
    fn zero_range(
        &self,
        inode: &Arc<Inode>,
        bytes: Range<u64>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        let (from, end) = (bytes.start, bytes.end);
        let pages = from / PAGE_BYTES..pages_of(end);
        let whole = (end / PAGE_BYTES).saturating_sub(pages_of(from));
        if whole > self.core.store.space().total {
            return Err(Error::NoSpace);
        }
        let (first, last) =
            (pages.start..pages_of(from).min(pages.end), (end / PAGE_BYTES).max(pages_of(from))..pages.end);
        let need = whole + self.count_holes(inode, first)? + self.count_holes(inode, last)?;
        let reservation = self.writeback.reserve(need)?;
        // For the parts of pages at both ends, which are written over.
        drop(self.writeback.reserve(pages.end - pages.start - whole)?);
        self.clear(inode, bytes, size, adjust)?;
        self.fill_reserved(inode, pages, reservation)
    }

    /// Gives every hole of the range unwritten blocks.
    fn fill_holes(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<()> {
        let has = inode.state.read().item.blocks;
        if (pages.end - pages.start).saturating_sub(has) > self.core.store.space().total {
            return Err(Error::NoSpace);
        }
        match self.count_holes(inode, pages.clone())? {
            0 => Ok(()),
            need => self.fill_reserved(inode, pages, self.writeback.reserve(need)?),
        }
    }

    /// Pages of the range without blocks.
    fn count_holes(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<u64> {
        let mut count = 0;
        for window in windows(pages) {
            let map = ExtentMap::load(&self.content, inode.number, window.clone())?;
            count += holes(&map, window).iter().map(|hole| hole.end - hole.start).sum::<u64>();
        }
        Ok(count)
    }

    /// Fills holes from a reservation, which grows if somebody makes more of them.
    fn fill_reserved(
        &self,
        inode: &Arc<Inode>,
        pages: Range<u64>,
        mut reservation: Reservation,
    ) -> Result<()> {
        for window in windows(pages) {
            while self.fill_some(inode, window.clone(), &mut reservation)? {}
        }
        Ok(())
    }

    /// One batch; true if there may be more to do.
    fn fill_some(
        &self,
        inode: &Arc<Inode>,
        window: Range<u64>,
        reservation: &mut Reservation,
    ) -> Result<bool> {
        self.finish_truncation(inode)?;
        let map = ExtentMap::load(&self.content, inode.number, window.clone())?;
        let gaps = holes(&map, window.clone());
        if gaps.is_empty() {
            return Ok(false);
        }
        if reservation.blocks() == 0 {
            // Somebody made more holes.
            reservation.merge(self.writeback.reserve(1)?);
        }
        let full = |hole: &Range<u64>| (hole.end - hole.start).div_ceil(u64::from(EXTENT_PAGES_MAX)) as usize;
        let pieces_max = (gaps.iter().map(full).sum::<usize>() + 4).min(PIECES_PER_BATCH);
        let one = put_cost(0).plus(Cost { bytes: SPACE_OP_BYTES, items: 0 });
        // The blocks are reserved, and a range may have been zeroed already: this must get through on a full volume.
        let estimate = |items: usize| Estimate {
            bytes: BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + INODE_BYTES + (items - 1) * one.bytes,
            items,
            images: 0,
        };
        let (permit, items) = self.writeback.admit_necessary(Class::Normal, estimate, 1 + pieces_max)?;
        let pieces_max = items - 1;
        let turn = inode.lock_turn();
        if inode.state.read().data.is_truncating() {
            return Ok(true);
        }
        let mut map = ExtentMap::load(&self.content, inode.number, window.clone())?;
        let mut batch = self.content.batch();
        let mut runs = Vec::new();
        let mut near = map.near(window.start);
        'holes: for hole in holes(&map, window) {
            let mut page = hole.start;
            while page < hole.end {
                if runs.len() == pieces_max || reservation.blocks() == 0 {
                    break 'holes;
                }
                let want = (hole.end - page).min(u64::from(EXTENT_PAGES_MAX)).min(reservation.blocks());
                let run = self.core.store.allocate(reservation, want as u32, near);
                near = Some(run.start.plus(u64::from(run.len)));
                batch.allocate(run.start, run.len);
                map.put(page, ExtentItem::unwritten(run.start, run.len), false);
                page += u64::from(run.len);
                runs.push(run);
            }
        }
        let mut state = inode.state.write();
        map.emit(&mut batch);
        let mut item = state.loggable();
        let blocks = runs.iter().map(|run| u64::from(run.len)).sum::<u64>();
        item.blocks += blocks;
        batch.put(Key::inode(inode.number), &item.encode());
        let result = if state.gone { Err(Error::NotFound) } else { Ok(()) };
        if let Err(error) = result.and_then(|()| Ok(self.core.store.commit(permit, batch)?)) {
            runs.into_iter().for_each(|run| self.core.store.abandon(run, reservation));
            return Err(error);
        }
        state.item.blocks += blocks;
        state.data.stored.changes += 1;
        drop(state);
        drop(turn);
        Ok(true)
    }

    /// Logs the new size (0: as it is) and the times.
    fn finish_allocation(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        let bytes = BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + INODE_BYTES;
        let (permit, turn, mut state) = loop {
            self.finish_truncation(inode)?;
            let permit = self.writeback.admit(Class::Normal, Estimate { bytes, items: 1, images: 0 })?;
            steps::passed(Step::Admitted);
            let turn = inode.lock_turn();
            let state = inode.state.write();
            if state.gone {
                return Err(Error::NotFound);
            }
            // Growing would show what a truncation has left to be freed.
            if !state.data.is_truncating() {
                break (permit, turn, state);
            }
        };
        let now = self.core.clock.now();
        let mut item = state.item.clone();
        adjust(&mut item);
        item.changed = now;
        item.modified = now;
        let grows = size > item.size;
        if grows {
            item.size = size;
        }
        let mut logged = item.clone();
        if !grows {
            logged.size = state.data.logged_size(item.size);
        }
        let mut batch = self.content.batch();
        batch.put(Key::inode(inode.number), &logged.encode());
        self.core.store.commit(permit, batch)?;
        if grows {
            state.data.note_change(0..0, true);
            // A size that was asked for is logged in its order (C2), whatever is dirty below it.
            state.data.stored.covered = size;
        }
        state.item_dirty = item != logged;
        state.item = item;
        self.content.relist(inode, &mut state, now);
        drop(state);
        drop(turn);
        Ok(())
    }
}

fn windows(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = pages.end;
    pages.step_by(ALLOCATE_PAGES as usize).map(move |from| from..(from + ALLOCATE_PAGES).min(end))
}

/// The parts of the range that no extent covers.
fn holes(map: &ExtentMap, pages: Range<u64>) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let mut next = pages.start;
    for (first, item) in map.overlapping(pages.clone()) {
        if first > next {
            holes.push(next..first);
        }
        next = first + u64::from(item.pages());
    }
    if next < pages.end {
        holes.push(next..pages.end);
    }
    holes
}
