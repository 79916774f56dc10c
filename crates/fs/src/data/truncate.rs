//! Changing a file's size, and removing content.
//!
//! A truncation is a metadata operation: it is logged at once, in order with the others (C2), in one batch with an image of
//! the zeroed last page, so that stored bytes beyond the stored size are always zero and growing the file again shows
//! no old data. When the extents to free do not fit one batch, the first batch holds the new size and an orphan item, and
//! `FileData::truncating_from` keeps new data away from the old extents until [`Fs::finish_truncation`] has freed them.

use super::extents::{DROP_COST, ExtentMap, put_cost};
use super::pages::{FileData, PAGE_BYTES, pages_of};
use super::round::Turn;
use super::sync::image_estimate;
use crate::inode::{Inode, InodeState};
use crate::{Error, Fs, Result};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Block, Buffer};
use syncline_format::Key;
use syncline_format::batch::{DELETE_BYTES, SPACE_OP_BYTES};
use syncline_format::item::{EXTENT_PAGES_MAX, FILE_BYTES_MAX, InodeItem, OrphanReason};
use syncline_store::{Batch, Class, Estimate, Permit};

/// Extents that one batch frees at most.
const EXTENTS_PER_BATCH: usize = 200;
/// Room for what the last batch of a removal deletes besides the content, and for an orphan item.
const LAST_BYTES: usize = 256;

/// The page that a new size cuts in two, as it is to be.
struct Tail {
    page: u64,
    zeroed: Arc<Buffer>,
}

impl Fs {
    /// Sets the file's size and logs it. Growing makes a hole. `adjust` sees the inode under its lock.
    ///
    /// Errors: `FileTooLarge`; `NoSpace` if the last page needs a block that there is not.
    pub(crate) fn file_truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        self.check_writable()?;
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        self.finish_truncation(inode)?;
        let needs_block = {
            let state = inode.state.read();
            let reserved = state.data.get(size / PAGE_BYTES).is_some_and(|slot| slot.reserved);
            !size.is_multiple_of(PAGE_BYTES) && size < state.item.size && !reserved
        };
        // The page that is cut in two takes the place of one that is freed.
        let mut block = match needs_block.then(|| self.reserve(1)) {
            Some(Err(Error::NoSpace)) => Some(self.store.reserve_for_freeing(1)?),
            reserved => reserved.transpose()?,
        };
        let Removal { permit, limit } = self.admit_removal(inode, pages_of(size)..u64::MAX)?;
        let turn = inode.lock_turn();
        if inode.state.read().data.shifting.is_some() {
            drop(turn);
            drop(permit);
            return self.file_truncate(inode, size, adjust);
        }
        let grows = size > inode.state.read().item.size;
        // Growing keeps what was allocated beyond the end.
        let first = if grows { u64::MAX } else { pages_of(size) };
        let (mut map, cut_off) = match grows {
            true => ExtentMap::load_some(self, inode.number, first..first, 0)?,
            false => ExtentMap::load_some(self, inode.number, first..u64::MAX, limit)?,
        };
        let tail = self.prepare_tail(inode, size, &turn)?;
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        let has_block = |page| state.data.get(page).is_some_and(|slot| slot.reserved);
        let blockless = tail.as_ref().is_some_and(|tail| block.is_none() && !has_block(tail.page));
        if blockless || grows != (size > state.item.size) {
            // The file changed before its turn was taken.
            drop(state);
            drop(turn);
            drop(permit);
            return self.file_truncate(inode, size, adjust);
        }
        let now = self.clock.now();
        let tail = tail.map(|tail| zero_tail(&state, tail, size));
        let mut item = state.item.clone();
        adjust(&mut item);
        (item.modified, item.changed) = (now, now);
        let mut batch = Batch::new();
        item.size = size;
        item.blocks = item.blocks.saturating_sub(map.cut(first..u64::MAX, true));
        map.emit(&mut batch);
        batch.drop_images(inode.number, first, u64::MAX);
        if let Some(tail) = &tail {
            batch.image(inode.number, tail.page, &tail.zeroed);
        }
        // One without a name is an orphan already, and loses everything at the next mount.
        if cut_off.is_some() && item.nlink > 0 {
            batch.put(Key::orphan(inode.number), &OrphanReason::Truncated.encode());
        }
        batch.put(Key::inode(inode.number), &item.encode());
        self.store.commit(permit, batch)?;
        let cut = if grows { 0..0 } else { size / PAGE_BYTES..u64::MAX };
        state.data.note_change(cut, size != state.item.size);
        let data = &mut state.data;
        data.discard_range(first..u64::MAX);
        if let Some(tail) = tail {
            if data.get(tail.page).is_none() {
                data.insert_clean(&self.writeback.account, tail.page, tail.zeroed.clone());
            }
            data.update(tail.page, |slot| {
                slot.page = tail.zeroed;
                slot.dirty = false;
                slot.logged = true;
                slot.in_flight = None;
            });
            if let Some(block) = &mut block {
                data.give_block(tail.page, block);
            }
        }
        data.extent_changes += 1;
        data.covered = size;
        data.truncating_from = cut_off.map(|_| first);
        state.item = item;
        // What is dirty below the new size keeps the file in the list; its item is logged.
        state.item_dirty = false;
        self.writeback.relist(inode, &mut state, now);
        drop(state);
        drop(turn);
        if cut_off.is_some() { self.finish_truncation(inode) } else { Ok(()) }
    }

    /// Brings the page into the cache that the size cuts in two, if it has content.
    fn prepare_tail(&self, inode: &Arc<Inode>, size: u64, turn: &Turn) -> Result<Option<Tail>> {
        let page = size / PAGE_BYTES;
        let (cached, old_size) = {
            let state = inode.state.read();
            (state.data.get(page).map(|slot| slot.page.clone()), state.item.size)
        };
        if size.is_multiple_of(PAGE_BYTES) || size >= old_size {
            return Ok(None);
        }
        let content = match cached {
            Some(content) => Some(content),
            None => {
                let fetched = self.fetch(inode, page..page + 1, Some(turn))?.pages.swap_remove(0);
                fetched.map(Block::into_buffer)
            }
        };
        Ok(content.map(|zeroed| Tail { page, zeroed }))
    }

    /// Frees what a truncation left to be freed, or moves what a shift left to be moved, and deletes the orphan item. The caller
    /// holds no turn and no inode.
    pub(crate) fn finish_truncation(&self, inode: &Arc<Inode>) -> Result<()> {
        while inode.state.read().data.truncating_from.is_some() {
            let (first, shifting) = {
                let data = &inode.state.read().data;
                (data.truncating_from, data.shifting.is_some())
            };
            let Some(first) = first else { break };
            if shifting {
                self.shift_some(inode)?;
                continue;
            }
            let Removal { permit, limit } = self.admit_removal(inode, first..u64::MAX)?;
            let turn = inode.lock_turn();
            let Some(first) = inode.state.read().data.truncating_from else { break };
            if inode.state.read().data.shifting.is_some() {
                continue;
            }
            let (mut map, cut_off) = ExtentMap::load_some(self, inode.number, first..u64::MAX, limit)?;
            let mut state = inode.state.write();
            if state.gone {
                // Its removal frees everything.
                break;
            }
            let mut batch = Batch::new();
            let cut = map.cut(first..u64::MAX, true);
            map.emit(&mut batch);
            batch.drop_images(inode.number, first, u64::MAX);
            // One that lost its last name meanwhile stays an orphan.
            if cut_off.is_none() && state.item.nlink > 0 {
                batch.delete(Key::orphan(inode.number));
            }
            state.item.blocks = state.item.blocks.saturating_sub(cut);
            batch.put(Key::inode(inode.number), &state.loggable().encode());
            self.store.commit(permit, batch)?;
            state.data.extent_changes += 1;
            if cut_off.is_none() {
                state.data.truncating_from = None;
            }
            drop(state);
            drop(turn);
        }
        Ok(())
    }

    /// Takes up a truncation that a crash interrupted (an orphan item of reason `Truncated`): extents beyond the inode's size
    /// are to be freed by [`Fs::finish_truncation`].
    pub(crate) fn note_truncation(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        let first = pages_of(state.item.size);
        state.data.truncating_from = Some(first);
    }

    /// Removes the content of an inode that nobody uses any more, in pieces. `last` adds the deletes of everything else to
    /// the last batch (at most 256 bytes and 3 items); the inode is gone then.
    pub(crate) fn remove_file_content(
        &self,
        inode: &Arc<Inode>,
        last: &mut dyn FnMut(&mut Batch),
    ) -> Result<()> {
        loop {
            let Removal { permit, limit } = self.admit_removal(inode, 0..u64::MAX)?;
            let turn = inode.lock_turn();
            let (mut map, cut_off) = ExtentMap::load_some(self, inode.number, 0..u64::MAX, limit)?;
            let mut state = inode.state.write();
            let mut batch = Batch::new();
            let cut = map.cut(0..u64::MAX, true);
            map.emit(&mut batch);
            batch.drop_images(inode.number, 0, u64::MAX);
            // Together only if they are few, so that the nodes of a full volume suffice.
            let ends = cut_off.is_none() && (cut == 0 || limit > 1);
            if ends {
                last(&mut batch);
            }
            self.store.commit(permit, batch)?;
            let now = self.clock.now();
            state.item.blocks = state.item.blocks.saturating_sub(cut);
            state.item_dirty = false;
            state.gone |= ends;
            state.data.discard_range(0..u64::MAX);
            state.data.extent_changes += 1;
            state.data.truncating_from = (!ends).then_some(0);
            state.data.shifting = None;
            self.writeback.relist(inode, &mut state, now);
            drop(state);
            drop(turn);
            if ends {
                return Ok(());
            }
        }
    }
}

impl FileData {
    /// Whether a truncation has left extents that are to be freed, or a shift some that are to be moved.
    pub(crate) fn is_truncating(&self) -> bool {
        self.truncating_from.is_some()
    }

    /// What the orphan table has to say of a file with a name, so that this is finished.
    pub(crate) fn orphan_reason(&self) -> Option<OrphanReason> {
        match self.shifting {
            Some(shift) => Some(OrphanReason::Shifting(shift)),
            None => self.truncating_from.map(|_| OrphanReason::Truncated),
        }
    }
}

/// The content of the cut page, zero beyond the new size.
fn zero_tail(state: &InodeState, tail: Tail, size: u64) -> Tail {
    let content = state.data.get(tail.page).map_or(&tail.zeroed, |slot| &slot.page);
    let mut zeroed = Buffer::clone(content);
    zeroed[(size % PAGE_BYTES) as usize..].fill(0);
    Tail { page: tail.page, zeroed: Arc::new(zeroed) }
}

/// A batch that is going to free extents.
pub(super) struct Removal {
    pub(super) permit: Permit,
    /// Extents behind the first page that it may free (besides the one that covers the first page).
    pub(super) limit: usize,
}

/// Items of a batch besides the extents: what is left of the last extent, the inode, an orphan item or deletes.
const REMOVAL_ITEMS: usize = 3;

impl Fs {
    /// Admission for freeing the extents of the range. Asks for what the extents there need now, which may be less than
    /// what is there when they are freed: `limit` then makes several batches of it.
    pub(super) fn admit_removal(&self, inode: &Inode, pages: Range<u64>) -> Result<Removal> {
        let (map, _) = ExtentMap::load_some(self, inode.number, pages.clone(), EXTENTS_PER_BATCH)?;
        let found = map.overlapping(pages).count().clamp(1, EXTENTS_PER_BATCH);
        let estimate = |items: usize| {
            let rest = put_cost(u64::from(EXTENT_PAGES_MAX)).bytes;
            let extents = items * (DELETE_BYTES + SPACE_OP_BYTES);
            let image = image_estimate(1);
            Estimate {
                bytes: image.bytes + 2 * rest + extents + LAST_BYTES + DROP_COST.bytes,
                items,
                images: 1,
            }
        };
        let (permit, items) = self.admit_necessary(Class::Reclaim, estimate, found + 1 + REMOVAL_ITEMS)?;
        Ok(Removal { permit, limit: items.saturating_sub(1 + REMOVAL_ITEMS).max(1) })
    }
}
