//! Writing into the page cache.
//!
//! A write is cut into chunks. For each chunk, without any lock: the old content of pages that it covers in part is
//! brought in, and blocks are reserved for all pages that have none (ENOSPC is decided here, before anything is
//! changed); then, under the inode's lock, it is checked that both still suffice, and the chunk is copied. A write that
//! needs nothing brought in, as an append, and finds its blocks without waiting does all of it under one hold of the
//! inode's lock.

use crate::content::extents::{ExtentMap, is_unwritten};
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{FileData, PAGE_BYTES, overwrite, pages_of};
use crate::content::steps;
use crate::content::steps::Step;
use crate::content::turn::Turn;
use crate::limits::{IMAGE_PAGES_MAX, STREAMING_BYTES_MIN, WRITE_CHUNK_BYTES_MAX};
use crate::read::pages::{Access, Fetched};
use crate::write::{WriteAt, Writer};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_device::{Block, Buffer};
use syncline_format::BLOCK_BYTES;
use syncline_format::item::{ExtentItem, FILE_BYTES_MAX, InodeItem};
use syncline_store::{Reservation, StoreError};

impl Writer {
    /// Writes into the cache; returns where, and how much (less than asked for only if space or the largest file size
    /// ends the write). `adjust` sees the inode under its lock before the write is visible.
    ///
    /// Errors: `NoSpace` or `FileTooLarge` if not even the first byte could be written.
    pub(crate) fn file_write(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[u8],
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<(u64, usize)> {
        self.core.check_writable()?;
        let mut at = at;
        let mut start = None;
        let mut done = 0;
        while done < data.len() {
            let mut len = (data.len() - done).min(WRITE_CHUNK_BYTES_MAX);
            let result = loop {
                let result = self.write_chunk(inode, at, &data[done..done + len], adjust);
                if !matches!(result, Err(Error::NoSpace)) {
                    break result;
                }
                // What does fit is written.
                let Some(shorter) = self.shorter(inode, at, len) else { break result };
                len = shorter;
            };
            match result {
                Ok((offset, written)) => {
                    start.get_or_insert(offset);
                    done += written;
                    if let WriteAt::Offset(offset) = &mut at {
                        *offset += written as u64;
                    }
                    if written == 0 {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        let start = start.unwrap_or_else(|| match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => inode.state.read().item.size,
        });
        Ok((start, done))
    }

    /// Writes like [`Writer::file_write`], if one look at the file says that the caller `may` and that nothing is to be
    /// waited for: where. Else nothing is done.
    pub(crate) fn write_at_once(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[u8],
        may: &dyn Fn(&InodeState) -> bool,
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Option<u64> {
        let is_small = !data.is_empty() && data.len() <= WRITE_CHUNK_BYTES_MAX;
        if !is_small || self.core.check_writable().is_err() || self.writeback.is_full(inode, data.len()) {
            return None;
        }
        let mut state = inode.state.write();
        if !may(&state) || state.data.aside.is_some() {
            return None;
        }
        let span = Span::of(&state, at, data.len()).ok()?;
        let is_cut = span.len < data.len();
        let is_truncating = state.data.stored.truncating_from.is_some_and(|from| span.pages().end > from);
        if is_cut || is_truncating || span.partial_pages().any(|page| state.data.get(page).is_none()) {
            return None;
        }
        let mut reservation = match span.need(&state.data) {
            0 => None,
            need => Some(self.core.store.try_reserve(need).ok()?),
        };
        adjust(&mut state.item);
        self.copy_in(inode, &mut state, &span, data, &[], reservation.as_mut());
        drop(state);
        self.writeback.demand_if_many_dirty();
        self.content.shrink_cache();
        Some(span.offset)
    }

    /// A length that may fit where `len` did not: what there is space for, at least the first page.
    fn shorter(&self, inode: &Inode, at: WriteAt, len: usize) -> Option<usize> {
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => inode.state.read().item.size,
        };
        let pages = usize::try_from(self.core.store.space().available).unwrap_or(usize::MAX).max(1);
        let fits = pages.saturating_mul(BLOCK_BYTES) - (offset % PAGE_BYTES) as usize;
        let shorter = fits.min(len / 2).max(fits.min(BLOCK_BYTES - (offset % PAGE_BYTES) as usize));
        let shorter = up_to_a_page(offset, shorter);
        (shorter < len).then_some(shorter)
    }

    fn write_chunk(
        &self,
        inode: &Arc<Inode>,
        at: WriteAt,
        data: &[u8],
        adjust: &mut dyn FnMut(&mut InodeItem),
    ) -> Result<(u64, usize)> {
        self.writeback.throttle(inode, data.len())?;
        let mut reservation: Option<Reservation> = None;
        let mut turn: Option<Turn> = None;
        loop {
            let (span, need, truncating) = {
                let state = inode.state.read();
                if state.data.aside.is_some() {
                    drop(state);
                    drop(turn.take());
                    self.writeback.check_not_aside(inode)?;
                    continue;
                }
                let span = Span::of(&state, at, data.len())?;
                (span, span.need(&state.data), state.data.stored.truncating_from)
            };
            if span.len == 0 {
                return Ok((span.offset, 0));
            }
            if truncating.is_some_and(|from| span.pages().end > from) {
                drop(turn.take());
                self.shape.finish_truncation(inode)?;
                continue;
            }
            steps::passed(Step::Looked);
            let partial = self.fetch_partial(inode, &span, turn.as_ref())?;
            steps::passed(Step::LookedUp);
            let have = reservation.as_ref().map_or(0, Reservation::blocks);
            if have < need && turn.is_none() {
                drop(reservation.take());
                match self.reserve_to_write(inode, &span, need) {
                    Ok(blocks) => reservation = Some(blocks),
                    Err(Error::NoSpace) if span.pages().end - span.pages().start == 1 => {
                        // No block is needed for a page that has one already, allocated and never written. Only under
                        // the turn it is sure to stay so until the page is dirty.
                        turn = Some(inode.lock_turn());
                        let map = ExtentMap::load(&self.content, inode.number, span.pages())?;
                        let has_block =
                            |item: &ExtentItem| is_unwritten(item) && self.content.owns(item.birth);
                        if !map.find(span.pages().start).is_some_and(|(_, item)| has_block(item)) {
                            return Err(Error::NoSpace);
                        }
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            let mut state = inode.state.write();
            let now_span = Span::of(&state, at, data.len())?;
            let have = reservation.as_ref().map_or(0, Reservation::blocks);
            let ready = now_span == span
                && (span.need(&state.data) <= have || turn.is_some())
                && state.data.stored.truncating_from.is_none_or(|from| span.pages().end <= from)
                && span.partial_pages().all(|page| is_known(&state.data, page, &partial));
            if !ready {
                continue;
            }
            adjust(&mut state.item);
            self.copy_in(inode, &mut state, &span, &data[..span.len], &partial, reservation.as_mut());
            drop(state);
            self.writeback.demand_if_many_dirty();
            self.content.shrink_cache();
            return Ok((span.offset, span.len));
        }
    }

    /// Blocks for a piece of a write. One stored page may be written over on a full volume too, since its old block
    /// is freed for it: otherwise a log that has filled the volume could never be brought home.
    fn reserve_to_write(&self, inode: &Inode, span: &Span, need: u64) -> Result<Reservation> {
        let pages = span.pages();
        if pages.end - pages.start > 1 {
            return self.writeback.reserve(need);
        }
        match self.core.store.reserve(need) {
            Err(StoreError::NoSpace) => {}
            reserved => return Ok(reserved?),
        }
        let map = ExtentMap::load(&self.content, inode.number, pages.clone())?;
        if map.find(pages.start).is_none_or(|(_, item)| is_unwritten(item)) {
            return self.writeback.reserve(need);
        }
        match self.core.store.reserve_to_overwrite(need) {
            // What others have overwritten like this gives blocks back once it is written.
            Err(StoreError::NoSpace) => match self.writeback.reserve(need) {
                Err(Error::NoSpace) => Ok(self.core.store.reserve_to_overwrite(need)?),
                reserved => reserved,
            },
            reserved => Ok(reserved?),
        }
    }

    /// Old content of the first and the last page, where the write leaves some of it.
    fn fetch_partial(&self, inode: &Arc<Inode>, span: &Span, turn: Option<&Turn>) -> Result<Vec<Fetched>> {
        let mut partial = Vec::new();
        for page in span.partial_pages() {
            if inode.state.read().data.get(page).is_none() {
                let pages = page..page + 1;
                partial.push(match turn {
                    Some(turn) => self.reader.fetch(inode, pages, Access::Turn(turn))?,
                    None => self.shape.fetch(inode, pages)?,
                });
            }
        }
        Ok(partial)
    }

    fn copy_in(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        span: &Span,
        bytes: &[u8],
        partial: &[Fetched],
        mut reservation: Option<&mut Reservation>,
    ) {
        let now = self.core.clock.now();
        let streams = bytes.len() >= STREAMING_BYTES_MIN;
        let mut done = 0;
        for page in span.pages() {
            let skip = ((span.offset + done as u64) % PAGE_BYTES) as usize;
            let len = (bytes.len() - done).min(BLOCK_BYTES - skip);
            let data = &mut state.data;
            let new = &bytes[done..done + len];
            done += len;
            if data.get(page).is_none() {
                let old = partial.iter().find(|fetched| fetched.first == page);
                let old = old.and_then(|fetched| fetched.pages[0].clone()).map(Block::into_buffer);
                let buffer = new_page(old, skip, new, streams);
                data.insert_dirty(&self.core.account, page, buffer, reservation.as_deref_mut());
                continue;
            }
            data.update(page, |slot| {
                overwrite(&mut slot.page, skip, new);
                slot.state.write();
                slot.used.store(true, Ordering::Relaxed);
            });
            if let Some(reservation) = reservation.as_deref_mut().filter(|blocks| blocks.blocks() > 0) {
                data.give_block(page, reservation);
            }
        }
        let end = span.offset + bytes.len() as u64;
        state.data.fill(&span.pages());
        state.data.note_change(span.pages(), end > state.item.size);
        state.item.size = state.item.size.max(end);
        state.item.modified = now;
        state.item.changed = now;
        state.item_dirty = true;
        self.content.relist(inode, state, now);
        if state.item.size <= IMAGE_PAGES_MAX * PAGE_BYTES && !state.data.listed.piggybacked {
            self.content.note_recent(inode, &mut state.data);
        }
    }
}

/// A page that was not cached, with its old content where the write leaves some. Of one that is part of a stream, the
/// checksum is taken while it is in the processor's cache: nobody is likely to change it before it is written out.
fn new_page(old: Option<Arc<Buffer>>, skip: usize, new: &[u8], streams: bool) -> Arc<Buffer> {
    if let Some(mut page) = old {
        overwrite(&mut page, skip, new);
        return page;
    }
    let whole = new.len() == BLOCK_BYTES;
    let mut page = if whole { Buffer::for_overwrite(1) } else { Buffer::zeroed(1) };
    page[skip..skip + new.len()].copy_from_slice(new);
    if whole && streams {
        page.keep_checksum();
    }
    Arc::new(page)
}

/// Whether the old content of a page is there: it is cached, or what was fetched without the lock is still what is
/// stored. One that was cached then may have been dropped since.
fn is_known(data: &FileData, page: u64, partial: &[Fetched]) -> bool {
    let current = |fetched: &Fetched| fetched.first == page && fetched.changes == data.stored.changes;
    data.get(page).is_some() || partial.iter().any(current)
}

/// Where a chunk goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    offset: u64,
    len: usize,
    /// Of the file before the write.
    size: u64,
}

impl Span {
    fn of(state: &InodeState, at: WriteAt, len: usize) -> Result<Span> {
        if state.gone {
            return Err(Error::NotFound);
        }
        let size = state.item.size;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => size,
        };
        let room = FILE_BYTES_MAX.saturating_sub(offset);
        if room == 0 {
            return Err(Error::FileTooLarge);
        }
        Ok(Span { offset, len: len.min(usize::try_from(room).unwrap_or(usize::MAX)), size })
    }

    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }

    fn pages(&self) -> Range<u64> {
        self.offset / PAGE_BYTES..pages_of(self.end())
    }

    /// Pages of which the write leaves some old bytes.
    fn partial_pages(&self) -> impl Iterator<Item = u64> + use<> {
        let Span { offset, size, .. } = *self;
        let end = self.end();
        let pages = self.pages();
        let last = (pages.end - 1 != pages.start).then_some(pages.end - 1);
        [Some(pages.start), last].into_iter().flatten().filter(move |&page| {
            let start = page * PAGE_BYTES;
            start < size && (offset > start || end < size.min(start + PAGE_BYTES))
        })
    }

    /// Blocks that have to be reserved for the write.
    fn need(&self, data: &FileData) -> u64 {
        let pages = self.pages();
        pages.end - pages.start - data.range(pages).filter(|(_, slot)| slot.reserved).count() as u64
    }
}

/// The length at which a piece of a write that begins at `offset` ends with a page, if it reaches the end of one:
/// between two pieces the first may become durable, and no page is to be found half written.
fn up_to_a_page(offset: u64, len: usize) -> usize {
    let beyond = ((offset % PAGE_BYTES) as usize + len) % BLOCK_BYTES;
    if beyond < len { len - beyond } else { len }
}
