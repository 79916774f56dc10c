//! `fallocate`: preallocation, holes, zeroing. What moves extents is in `shift`.
//!
//! Preallocated blocks are *unwritten* extents: they read as zeros, and the first write goes into them in place, so it needs
//! no free block. Each piece of a long range is a batch of its own.

use super::extents::{Cost, ExtentMap, put_cost};
use super::pages::{PAGE_BYTES, pages_of};
use super::truncate::Removal;
use super::{FallocateMode, WriteAt};
use crate::inode::Inode;
use crate::{Error, Fs, Result};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::batch::{BATCH_HEADER_BYTES, PUT_OVERHEAD_BYTES, SPACE_OP_BYTES};
use syncline_format::item::{EXTENT_PAGES_MAX, ExtentItem, FILE_BYTES_MAX, INODE_BYTES, InodeItem};
use syncline_store::{Batch, Class, Estimate, Reservation};

/// Pages looked at together: 128 MiB.
const WINDOW_PAGES: u64 = 1 << 15;
/// Extents that one batch puts.
const PIECES_PER_BATCH: usize = 128;

impl Fs {
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
        self.check_writable()?;
        if len == 0 {
            return Err(Error::Invalid("the length is zero"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::FileTooLarge)?;
        self.finish_truncation(inode)?;
        match mode {
            FallocateMode::Allocate { keep_size } => {
                self.fill_holes(inode, offset / PAGE_BYTES..pages_of(end))?;
                self.finish_allocation(inode, if keep_size { 0 } else { end }, adjust)
            }
            FallocateMode::PunchHole => {
                self.punch(inode, offset, end)?;
                self.finish_allocation(inode, 0, adjust)
            }
            FallocateMode::ZeroRange { keep_size } => {
                self.zero_range(inode, offset, end)?;
                self.finish_allocation(inode, if keep_size { 0 } else { end }, adjust)
            }
            FallocateMode::CollapseRange => self.shift(inode, offset, len, false, adjust),
            FallocateMode::InsertRange => self.shift(inode, offset, len, true, adjust),
        }
    }

    /// Zeroes `from..end` and gives it unwritten blocks. A lack of space is told before anything is zeroed (C8): the blocks that
    /// punching frees cannot be used again before the next checkpoint, so others are reserved first.
    fn zero_range(&self, inode: &Arc<Inode>, from: u64, end: u64) -> Result<()> {
        let pages = from / PAGE_BYTES..pages_of(end);
        let whole = (end / PAGE_BYTES).saturating_sub(pages_of(from));
        if whole > self.store.space().total {
            return Err(Error::NoSpace);
        }
        let (first, last) =
            (pages.start..pages_of(from).min(pages.end), (end / PAGE_BYTES).max(pages_of(from))..pages.end);
        let need = whole + self.count_holes(inode, first)? + self.count_holes(inode, last)?;
        let reservation = self.reserve(need)?;
        // For the parts of pages at both ends, which are written over.
        drop(self.reserve(pages.end - pages.start - whole)?);
        self.punch(inode, from, end)?;
        self.fill_reserved(inode, pages, reservation)
    }

    /// Gives every hole of the range unwritten blocks.
    fn fill_holes(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<()> {
        let has = inode.state.read().item.blocks;
        if (pages.end - pages.start).saturating_sub(has) > self.store.space().total {
            return Err(Error::NoSpace);
        }
        match self.count_holes(inode, pages.clone())? {
            0 => Ok(()),
            need => self.fill_reserved(inode, pages, self.reserve(need)?),
        }
    }

    /// Pages of the range without blocks.
    fn count_holes(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<u64> {
        let mut count = 0;
        for window in windows(pages) {
            let map = ExtentMap::load(self, inode.number, window.clone())?;
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
            while self.fill_some(inode, window.clone(), &mut reservation)? {
                if reservation.blocks() == 0 {
                    // Somebody made more holes.
                    reservation.merge(self.reserve(1)?);
                }
            }
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
        let map = ExtentMap::load(self, inode.number, window.clone())?;
        let gaps = holes(&map, window.clone());
        if gaps.is_empty() {
            return Ok(false);
        }
        let full = |hole: &Range<u64>| (hole.end - hole.start).div_ceil(u64::from(EXTENT_PAGES_MAX)) as usize;
        let pieces_max = (gaps.iter().map(full).sum::<usize>() + 4).min(PIECES_PER_BATCH);
        let one = put_cost(0).plus(Cost { bytes: SPACE_OP_BYTES, items: 0 });
        let permit = self.admit(
            Class::Normal,
            Estimate {
                bytes: BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + INODE_BYTES + pieces_max * one.bytes,
                items: 1 + pieces_max,
                images: 0,
            },
        )?;
        let turn = inode.lock_turn();
        if inode.state.read().data.is_shifting(&window) {
            return Ok(true);
        }
        let mut map = ExtentMap::load(self, inode.number, window.clone())?;
        let mut batch = Batch::new();
        let mut runs = Vec::new();
        let mut near = map.near(window.start);
        'holes: for hole in holes(&map, window) {
            let mut page = hole.start;
            while page < hole.end {
                if runs.len() == pieces_max || reservation.blocks() == 0 {
                    break 'holes;
                }
                let want = (hole.end - page).min(u64::from(EXTENT_PAGES_MAX)).min(reservation.blocks());
                let run = self.store.allocate(reservation, want as u32, near);
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
        if let Err(error) = result.and_then(|()| Ok(self.store.commit(permit, batch)?)) {
            runs.into_iter().for_each(|run| self.store.abandon(run, reservation));
            return Err(error);
        }
        state.item.blocks += blocks;
        state.data.extent_changes += 1;
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
        let permit = self.admit(Class::Normal, Estimate { bytes, items: 1, images: 0 })?;
        let turn = inode.lock_turn();
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        let now = self.clock.now();
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
        let mut batch = Batch::new();
        batch.put(Key::inode(inode.number), &logged.encode());
        self.store.commit(permit, batch)?;
        if grows {
            state.data.note_change(0..0, true);
            // A size that was asked for is logged in its order (C2), whatever is dirty below it.
            state.data.covered = size;
        }
        state.item_dirty = item != logged;
        state.item = item;
        self.writeback.relist(inode, &mut state, now);
        drop(state);
        drop(turn);
        Ok(())
    }

    /// Zeroes `from..end`: whole pages become holes, parts of pages are written over.
    fn punch(&self, inode: &Arc<Inode>, from: u64, end: u64) -> Result<()> {
        let (first, last) = (pages_of(from), end / PAGE_BYTES);
        if first > last {
            return self.zero_bytes(inode, from, end);
        }
        self.zero_bytes(inode, from, first * PAGE_BYTES)?;
        self.zero_bytes(inode, last * PAGE_BYTES, end)?;
        let mut next = first;
        while next < last {
            next = self.punch_some(inode, next..last)?;
        }
        Ok(())
    }

    fn punch_some(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<u64> {
        self.finish_truncation(inode)?;
        let Removal { permit, limit } = self.admit_removal(inode, pages.clone())?;
        let turn = inode.lock_turn();
        if inode.state.read().data.is_shifting(&pages) {
            return Ok(pages.start);
        }
        let (mut map, cut_off) = ExtentMap::load_some(self, inode.number, pages.clone(), limit)?;
        let end = cut_off.unwrap_or(pages.end);
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        let mut batch = Batch::new();
        let cut = map.cut(pages.start..end, true);
        map.emit(&mut batch);
        // Every removal of content voids its images (R5).
        batch.drop_images(inode.number, pages.start, end);
        let mut item = state.loggable();
        item.blocks = item.blocks.saturating_sub(cut);
        batch.put(Key::inode(inode.number), &item.encode());
        self.store.commit(permit, batch)?;
        state.item.blocks = item.blocks;
        state.data.note_change(pages.start..end, false);
        state.data.discard_range(pages.start..end);
        state.data.extent_changes += 1;
        self.writeback.relist(inode, &mut state, self.clock.now());
        drop(state);
        drop(turn);
        Ok(end)
    }

    /// Zeroes a part of one page, if there is anything but zeros.
    fn zero_bytes(&self, inode: &Arc<Inode>, from: u64, end: u64) -> Result<()> {
        let end = end.min(inode.state.read().item.size);
        if from >= end {
            return Ok(());
        }
        let page = from / PAGE_BYTES;
        let fetched = self.fetch(inode, page..page + 1, None)?;
        if fetched.pages[0].is_none() && inode.state.read().data.get(page).is_none() {
            return Ok(());
        }
        let zeros = [0; PAGE_BYTES as usize];
        // A truncation may come in between: what it cut off stays cut off.
        self.file_write(inode, WriteAt::Inside(from), &zeros[..(end - from) as usize], &mut |_| {})?;
        Ok(())
    }
}

fn windows(pages: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = pages.end;
    pages.step_by(WINDOW_PAGES as usize).map(move |from| from..(from + WINDOW_PAGES).min(end))
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
