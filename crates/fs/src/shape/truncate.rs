//! Changing a file's size, and removing content.
//!
//! A truncation is a metadata operation: it is logged at once, in order with the others (C2), in one batch with an
//! image of the zeroed last page, so that stored bytes beyond the stored size are always zero and growing the file
//! again shows no old data. When the extents to free do not fit one batch, the first batch holds the new size and an
//! orphan item, and `Stored::truncating_from` keeps new data away from the old extents until
//! `Shape::finish_truncation` has freed them.

use crate::content::change::Admission;
use crate::content::estimate::image_estimate;
use crate::content::extents::{DROP_COST, ExtentMap, put_cost};
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{FileData, PAGE_BYTES, pages_of};
use crate::content::steps;
use crate::content::steps::Step;
use crate::content::turn::Turn;
use crate::limits::{EXTENTS_PER_BATCH, FEW_EXTENTS};
use crate::read::pages::Access;
use crate::shape::Shape;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Block, Buffer};
use syncline_format::Key;
use syncline_format::batch::{DELETE_BYTES, RELEASE_BYTES};
use syncline_format::item::{EXTENT_PAGES_MAX, FILE_BYTES_MAX, InodeItem, OrphanReason};
use syncline_store::{Batch, Class, Estimate, Permit, Reservation, StoreError};

/// Room for what the last batch of a removal deletes besides the content, and for an orphan item.
const LAST_BYTES: usize = 256;

/// Bytes of such a batch, mostly.
const SMALL_REMOVAL_BYTES: usize = 256;

/// What is stored of the page that a new size cuts in two, as far as it was looked up.
struct StoredTail {
    /// Of a hole, and of what does not matter, nothing.
    content: Option<Arc<Buffer>>,
    /// The page was cut by the size, and not cached, when this was looked up.
    is_known: bool,
}

impl Shape {
    /// Sets the file's size and logs it. Growing makes a hole. `adjust` sees the inode under its lock.
    ///
    /// Errors: `FileTooLarge`; `NoSpace` if the last page needs a block that there is not.
    pub(crate) fn file_truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<()> {
        self.core.check_writable()?;
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        // Once more if the file changed before its turn was taken.
        while !self.try_truncate(inode, size, adjust)? {}
        self.finish_truncation(inode)
    }

    /// False if what was found out without the turn and the lock does not hold any more; nothing is changed then.
    pub(crate) fn try_truncate(
        &self,
        inode: &Arc<Inode>,
        size: u64,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<bool> {
        self.finish_truncation(inode)?;
        let mut block = self.reserve_tail(inode, size)?;
        let RemovalPermit { permit, limit, .. } = self.admit_removal(inode, pages_of(size)..u64::MAX)?;
        steps::passed(Step::Admitted);
        let turn = inode.lock_turn();
        if inode.state.read().data.is_truncating() {
            return Ok(false);
        }
        let grows = size > inode.state.read().item.size;
        // Growing keeps what was allocated beyond the end.
        let first = if grows { u64::MAX } else { pages_of(size) };
        let (mut map, cut_off) = match grows {
            true => ExtentMap::load_some(&self.content, inode.number, first..first, 0)?,
            false => ExtentMap::load_some(&self.content, inode.number, first..u64::MAX, limit)?,
        };
        let stored = self.stored_tail(inode, size, &turn)?;
        steps::passed(Step::LookedUp);
        let mut state = inode.state.write();
        if state.gone {
            return Err(Error::NotFound);
        }
        // Writers do not need the turn: a page that was a hole may be cached by now, and the file may have grown.
        let Some(tail) = cut_tail(&state, &stored, size) else { return Ok(false) };
        let page = size / PAGE_BYTES;
        let has_block = state.data.get(page).is_some_and(|slot| slot.reserved);
        let blockless = tail.is_some() && block.is_none() && !has_block;
        if blockless || grows != (size > state.item.size) {
            return Ok(false);
        }
        let now = self.core.clock.now();
        let mut item = state.item.clone();
        adjust(&mut item);
        (item.modified, item.changed) = (now, now);
        let mut batch = self.content.batch();
        item.size = size;
        item.blocks = item.blocks.saturating_sub(map.cut(first..u64::MAX, true));
        map.emit(&mut batch);
        batch.drop_images(inode.number, first, u64::MAX);
        if let Some(zeroed) = &tail {
            batch.page_image(inode.number, page, zeroed);
        }
        // One without a name is an orphan already, and loses everything at the next mount.
        if cut_off.is_some() && item.nlink > 0 {
            batch.put(Key::orphan(inode.number), &OrphanReason::Truncated.encode());
        }
        batch.put(Key::inode(inode.number), &item.encode());
        self.core.store.commit(permit, batch)?;
        let cut = if grows { 0..0 } else { size / PAGE_BYTES..u64::MAX };
        state.data.note_change(cut, size != state.item.size);
        state.data.discard_range(first..u64::MAX);
        if let Some(zeroed) = tail {
            self.keep_tail(&mut state, page, zeroed, block.as_mut());
        }
        let data = &mut state.data;
        data.stored.changes += 1;
        data.stored.covered = size;
        data.stored.truncating_from = cut_off.map(|_| first);
        state.item = item;
        // What is dirty below the new size keeps the file in the list; its item is logged.
        state.item_dirty = false;
        self.content.relist(inode, &mut state, now);
        Ok(true)
    }

    /// A block for the page that the size cuts in two, which takes the place of one that is freed; none if it has one.
    fn reserve_tail(&self, inode: &Inode, size: u64) -> Result<Option<Reservation>> {
        let needs_block = {
            let state = inode.state.read();
            let reserved = state.data.get(size / PAGE_BYTES).is_some_and(|slot| slot.reserved);
            !size.is_multiple_of(PAGE_BYTES) && size < state.item.size && !reserved
        };
        if !needs_block {
            return Ok(None);
        }
        match self.writeback.reserve_now(1) {
            Err(Error::NoSpace) => Ok(Some(self.core.store.reserve_for_freeing(1)?)),
            reserved => reserved.map(Some),
        }
    }

    /// Looks up the page that the size cuts in two, unless it is cached or the file ends before it. What is stored
    /// stays so while the caller has the turn; what is cached does not.
    fn stored_tail(&self, inode: &Arc<Inode>, size: u64, turn: &Turn) -> Result<StoredTail> {
        let page = size / PAGE_BYTES;
        let is_cut = {
            let state = inode.state.read();
            !size.is_multiple_of(PAGE_BYTES) && size < state.item.size && state.data.get(page).is_none()
        };
        if !is_cut {
            return Ok(StoredTail { content: None, is_known: false });
        }
        let fetched = self.reader.fetch(inode, page..page + 1, Access::Turn(turn))?.pages.swap_remove(0);
        Ok(StoredTail { content: fetched.map(Block::into_buffer), is_known: true })
    }

    /// The batch with an image of the cut page is committed.
    fn keep_tail(
        &self,
        state: &mut InodeState,
        page: u64,
        zeroed: Arc<Buffer>,
        block: Option<&mut Reservation>,
    ) {
        let data = &mut state.data;
        if data.get(page).is_none() {
            data.insert_clean(&self.core.account, page, zeroed.clone());
        }
        data.update(page, |slot| {
            slot.page = zeroed;
            slot.state.log();
            slot.in_flight = None;
        });
        if let Some(block) = block {
            data.give_block(page, block);
        }
    }

    /// Frees what a truncation left to be freed, or moves what a shift left to be moved, and deletes the orphan item.
    /// The caller holds no turn and no inode.
    pub(crate) fn finish_truncation(&self, inode: &Arc<Inode>) -> Result<()> {
        while inode.state.read().data.stored.truncating_from.is_some() {
            let (first, shifting) = {
                let data = &inode.state.read().data;
                (data.stored.truncating_from, data.stored.shifting.is_some())
            };
            let Some(first) = first else { break };
            if shifting {
                self.shift_some(inode)?;
                continue;
            }
            let RemovalPermit { permit, limit, .. } = self.admit_removal(inode, first..u64::MAX)?;
            let turn = inode.lock_turn();
            let Some(first) = inode.state.read().data.stored.truncating_from else { break };
            if inode.state.read().data.stored.shifting.is_some() {
                continue;
            }
            let (mut map, cut_off) =
                ExtentMap::load_some(&self.content, inode.number, first..u64::MAX, limit)?;
            let mut state = inode.state.write();
            if state.gone {
                // Its removal frees everything.
                break;
            }
            let mut batch = self.content.batch();
            let cut = map.cut(first..u64::MAX, true);
            map.emit(&mut batch);
            batch.drop_images(inode.number, first, u64::MAX);
            // One that lost its last name meanwhile stays an orphan.
            if cut_off.is_none() && state.item.nlink > 0 {
                batch.delete(Key::orphan(inode.number));
            }
            state.item.blocks = state.item.blocks.saturating_sub(cut);
            batch.put(Key::inode(inode.number), &state.loggable().encode());
            self.core.store.commit(permit, batch)?;
            state.data.stored.changes += 1;
            if cut_off.is_none() {
                state.data.stored.truncating_from = None;
            }
            drop(state);
            drop(turn);
        }
        Ok(())
    }

    /// Takes up a truncation that a crash interrupted (an orphan item of reason `Truncated`): extents beyond the
    /// inode's size are to be freed by `Shape::finish_truncation`.
    pub(crate) fn note_truncation(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.write();
        let first = pages_of(state.item.size);
        state.data.stored.truncating_from = Some(first);
    }

    /// Removes the content of an inode that nobody uses any more, in pieces. `last` adds the deletes of everything
    /// else to the last batch (at most 256 bytes and 3 items); the inode is gone then.
    pub(crate) fn remove_file_content(
        &self,
        inode: &Arc<Inode>,
        last: &mut dyn FnMut(&mut Batch),
    ) -> Result<()> {
        // Most files have few extents, and there is room for their removal.
        match self.remove_some(inode, Admission::Along, FEW_EXTENTS, true, last) {
            Ok(true) => return Ok(()),
            Ok(false) | Err(Error::NoSpace | Error::Store(StoreError::Pressure(_))) => {}
            Err(error) => return Err(error),
        }
        loop {
            let RemovalPermit { permit, limit, is_whole } = self.admit_removal(inode, 0..u64::MAX)?;
            if self.remove_some(inode, permit.into(), limit, is_whole, last)? {
                return Ok(());
            }
        }
    }

    /// Removes up to `limit` extents; true if nothing is left of the inode. `is_together`: there is room for what
    /// `last` deletes in the same batch.
    fn remove_some(
        &self,
        inode: &Arc<Inode>,
        admission: Admission,
        limit: usize,
        is_together: bool,
        last: &mut dyn FnMut(&mut Batch),
    ) -> Result<bool> {
        let turn = inode.lock_turn();
        let (mut map, cut_off) = ExtentMap::load_some(&self.content, inode.number, 0..u64::MAX, limit)?;
        let mut state = inode.state.write();
        let mut batch = self.core.store.batch_with_capacity(self.content.tree, SMALL_REMOVAL_BYTES);
        let cut = map.cut(0..u64::MAX, true);
        map.emit(&mut batch);
        batch.drop_images(inode.number, 0, u64::MAX);
        // Together only if they are few, so that the nodes of a full volume suffice.
        let ends = cut_off.is_none() && (cut == 0 || limit > 1 || is_together);
        if ends {
            last(&mut batch);
        }
        admission.commit(&self.content, batch)?;
        let now = self.core.clock.now();
        state.item.blocks = state.item.blocks.saturating_sub(cut);
        state.item_dirty = false;
        state.gone |= ends;
        state.data.discard_range(0..u64::MAX);
        state.data.stored.changes += 1;
        state.data.stored.truncating_from = (!ends).then_some(0);
        state.data.stored.shifting = None;
        self.content.relist(inode, &mut state, now);
        drop(state);
        drop(turn);
        Ok(ends)
    }
}

impl FileData {
    /// Whether a truncation has left extents that are to be freed, or a shift some that are to be moved.
    pub(crate) fn is_truncating(&self) -> bool {
        self.stored.truncating_from.is_some()
    }

    /// What the orphan table has to say of a file with a name, so that this is finished.
    pub(crate) fn orphan_reason(&self) -> Option<OrphanReason> {
        match self.stored.shifting {
            Some(shift) => Some(OrphanReason::Shifting(shift)),
            None => self.stored.truncating_from.map(|_| OrphanReason::Truncated),
        }
    }
}

/// The page that the size cuts in two, zero behind it: the inner option is `None` if there is nothing to zero. The
/// outer one is if that is not known: neither is the page cached, nor was it looked up.
fn cut_tail(state: &InodeState, stored: &StoredTail, size: u64) -> Option<Option<Arc<Buffer>>> {
    if size.is_multiple_of(PAGE_BYTES) || size >= state.item.size {
        return Some(None);
    }
    let content = match state.data.get(size / PAGE_BYTES) {
        Some(slot) => Some(&slot.page),
        None if stored.is_known => stored.content.as_ref(),
        None => return None,
    };
    Some(content.map(|content| {
        let mut zeroed = Buffer::clone(content);
        zeroed[(size % PAGE_BYTES) as usize..].fill(0);
        Arc::new(zeroed)
    }))
}

/// A batch that is going to free extents.
pub(crate) struct RemovalPermit {
    pub(crate) permit: Permit,
    /// Extents behind the first page that it may free (besides the one that covers the first page).
    pub(crate) limit: usize,
    /// All that was asked for is granted: what ends with the extents may be in the same batch.
    pub(crate) is_whole: bool,
}

/// Items of a batch besides the extents: what is left of the last extent, the inode, an orphan item or deletes.
const REMOVAL_ITEMS: usize = 3;

impl Shape {
    /// Admission for freeing the extents of the range. Asks for what the extents there need now, which may be less than
    /// what is there when they are freed: `limit` then makes several batches of it.
    pub(crate) fn admit_removal(&self, inode: &Inode, pages: Range<u64>) -> Result<RemovalPermit> {
        let (map, _) = ExtentMap::load_some(&self.content, inode.number, pages.clone(), EXTENTS_PER_BATCH)?;
        let found = map.overlapping(pages).count().clamp(1, EXTENTS_PER_BATCH);
        let estimate = |items: usize| {
            let rest = put_cost(u64::from(EXTENT_PAGES_MAX)).bytes;
            let extents = items * (DELETE_BYTES + RELEASE_BYTES);
            let image = image_estimate(1);
            Estimate {
                bytes: image.bytes + 2 * rest + extents + LAST_BYTES + DROP_COST.bytes,
                items,
                images: 1,
            }
        };
        let whole = found + 1 + REMOVAL_ITEMS;
        let (permit, items) = self.writeback.admit_necessary(Class::Reclaim, estimate, whole)?;
        let limit = items.saturating_sub(1 + REMOVAL_ITEMS).max(1);
        Ok(RemovalPermit { permit, limit, is_whole: items == whole })
    }
}
