//! Zeroing a range: whole pages become holes, the pages that its ends cut in two are written over.
//!
//! The first step zeroes both ends, sets the size and the times, and cuts as many extents as one batch frees, under
//! one hold of the lock. So a write or an append comes before all of it or behind all of it. A range with more
//! extents takes further steps.
//!
//! To zero is a change of data: the ends are dirty pages, durable with the next sync.

use crate::content::extents::ExtentMap;
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{PAGE_BYTES, overwrite, pages_of};
use crate::content::steps;
use crate::content::steps::Step;
use crate::content::turn::Turn;
use crate::read::pages::{Access, Fetched};
use crate::shape::Shape;
use crate::shape::truncate::RemovalPermit;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::Block;
use syncline_format::item::InodeItem;
use syncline_format::{BLOCK_BYTES, Key};
use syncline_store::Reservation;

/// A part of a page that is to be zeroed.
struct End {
    page: u64,
    bytes: Range<usize>,
    /// What is stored of it, if it was not cached when that was looked up under the turn.
    stored: Option<Fetched>,
}

/// What one step clears.
struct Part<'a> {
    bytes: Range<u64>,
    /// The size is at least this afterwards; 0: it stays.
    size: u64,
    /// Sees the inode under its lock; only in the first step, which sets the times as well.
    adjust: Option<&'a mut dyn FnMut(&mut InodeItem)>,
}

/// What came of a step: the first page that is left.
enum Cleared {
    UpTo(u64),
    /// The file changed before it was locked.
    Again,
}

impl Shape {
    /// Zeroes the bytes. The size becomes `size` if it is less.
    pub(crate) fn clear(
        &self,
        inode: &Arc<Inode>,
        bytes: Range<u64>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        self.writeback.throttle(inode, 2 * BLOCK_BYTES)?;
        let last = bytes.end / PAGE_BYTES;
        let mut next = loop {
            let part = Part { bytes: bytes.clone(), size, adjust: Some(&mut *adjust) };
            if let Cleared::UpTo(next) = self.clear_some(inode, part)? {
                break next;
            }
        };
        while next < last {
            let part = Part { bytes: next * PAGE_BYTES..last * PAGE_BYTES, size: 0, adjust: None };
            if let Cleared::UpTo(page) = self.clear_some(inode, part)? {
                next = page;
            }
        }
        Ok(())
    }

    fn clear_some(&self, inode: &Arc<Inode>, part: Part<'_>) -> Result<Cleared> {
        let Part { bytes, size, adjust } = part;
        self.finish_truncation(inode)?;
        let whole = pages_of(bytes.start)..(bytes.end / PAGE_BYTES).max(pages_of(bytes.start));
        let mut blocks = self.reserve_ends(inode, &ends_of(&bytes))?;
        let RemovalPermit { permit, limit, .. } = self.admit_removal(inode, whole.clone())?;
        steps::passed(Step::Admitted);
        let turn = inode.lock_turn();
        if inode.state.read().data.is_truncating() {
            return Ok(Cleared::Again);
        }
        let (mut map, cut_off) = ExtentMap::load_some(&self.content, inode.number, whole.clone(), limit)?;
        let freed = whole.start..cut_off.unwrap_or(whole.end);
        let ends = self.find_ends(inode, &bytes, &turn)?;
        steps::passed(Step::LookedUp);
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        // Writers do not need the turn: an end that was cached may have been dropped, or one that was a hole be
        // written to.
        let are_known = ends.iter().all(|end| end.stored.is_some() || state.data.get(end.page).is_some());
        if !are_known || needed(&state, &ends) > blocks.as_ref().map_or(0, Reservation::blocks) {
            return Ok(Cleared::Again);
        }
        let now = self.core.clock.now();
        let mut item = state.item.clone();
        if let Some(adjust) = adjust {
            adjust(&mut item);
            (item.modified, item.changed) = (now, now);
        }
        let grows = size > item.size;
        item.size = item.size.max(size);
        let mut batch = self.content.batch();
        item.blocks = item.blocks.saturating_sub(map.cut(freed.clone(), true));
        map.emit(&mut batch);
        // Every removal of content voids its images (R5).
        batch.drop_images(inode.number, freed.start, freed.end);
        let mut logged = item.clone();
        if !grows {
            logged.size = state.data.logged_size(item.size);
        }
        batch.put(Key::inode(inode.number), &logged.encode());
        self.core.store.commit(permit, batch)?;
        let touched = bytes.start / PAGE_BYTES..pages_of(bytes.end);
        state.data.note_change(touched, grows);
        state.data.discard_range(freed.clone());
        state.data.stored.changes += 1;
        if grows {
            // A size that was asked for is logged in its order (C2), whatever is dirty below it.
            state.data.stored.covered = size;
        }
        for end in ends {
            self.zero_end(&mut state, end, blocks.as_mut());
        }
        state.item_dirty = item != logged;
        state.item = item;
        self.content.relist(inode, &mut state, now);
        Ok(Cleared::UpTo(freed.end))
    }

    /// Blocks for the ends that have none and may have content. Each takes the place of one that is freed when it is
    /// written.
    fn reserve_ends(&self, inode: &Inode, ends: &[End]) -> Result<Option<Reservation>> {
        let need = {
            let data = &inode.state.read().data;
            let has_block = |end: &&End| !data.get(end.page).is_some_and(|slot| slot.reserved);
            ends.iter().filter(has_block).count() as u64
        };
        if need == 0 {
            return Ok(None);
        }
        match self.writeback.reserve_now(need) {
            Err(Error::NoSpace) => Ok(Some(self.core.store.reserve_for_freeing(need)?)),
            reserved => reserved.map(Some),
        }
    }

    /// The ends, with what is stored of those that are not cached; that stays so while the caller has the turn.
    fn find_ends(&self, inode: &Arc<Inode>, bytes: &Range<u64>, turn: &Turn) -> Result<Vec<End>> {
        let mut ends = ends_of(bytes);
        for end in &mut ends {
            if inode.state.read().data.get(end.page).is_none() {
                end.stored = Some(self.reader.fetch(inode, end.page..end.page + 1, Access::Turn(turn))?);
            }
        }
        Ok(ends)
    }

    fn zero_end(&self, state: &mut InodeState, end: End, blocks: Option<&mut Reservation>) {
        let End { page, bytes, stored } = end;
        let zeros = &[0; BLOCK_BYTES][..bytes.len()];
        let data = &mut state.data;
        if data.get(page).is_some() {
            data.update(page, |slot| {
                overwrite(&mut slot.page, bytes.start, zeros);
                slot.state.write();
            });
            if let Some(blocks) = blocks.filter(|blocks| blocks.blocks() > 0) {
                data.give_block(page, blocks);
            }
            return;
        }
        let stored = stored.and_then(|fetched| fetched.pages.into_iter().next()?);
        if let Some(mut buffer) = stored.map(Block::into_buffer) {
            overwrite(&mut buffer, bytes.start, zeros);
            data.insert_dirty(&self.core.account, page, buffer, blocks);
        }
    }
}

/// Parts of pages at both ends of a range, of which nothing is looked up yet.
fn ends_of(bytes: &Range<u64>) -> Vec<End> {
    let (first, last) = (bytes.start / PAGE_BYTES, bytes.end / PAGE_BYTES);
    let (from, to) = ((bytes.start % PAGE_BYTES) as usize, (bytes.end % PAGE_BYTES) as usize);
    let end = |page, bytes: Range<usize>| End { page, bytes, stored: None };
    match (from, to) {
        _ if first == last => vec![end(first, from..to)],
        (0, 0) => Vec::new(),
        (0, to) => vec![end(last, 0..to)],
        (from, 0) => vec![end(first, from..BLOCK_BYTES)],
        (from, to) => vec![end(first, from..BLOCK_BYTES), end(last, 0..to)],
    }
}

/// Blocks that the ends with content lack.
fn needed(state: &InodeState, ends: &[End]) -> u64 {
    let lacks = |end: &&End| match state.data.get(end.page) {
        Some(slot) => !slot.reserved,
        None => end.stored.as_ref().is_some_and(|fetched| fetched.pages[0].is_some()),
    };
    ends.iter().filter(lacks).count() as u64
}
