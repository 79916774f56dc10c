//! Reading: page cache, then extents from the device, every page verified (C7).
//!
//! A fetch holds no lock while it reads. What it read may be cached only if the file's extents did not change meanwhile;
//! if they did, a checksum mismatch may just mean that the blocks were freed and reused, and everything is looked up
//! again. After a few tries the fetch takes the file's turn, under which extents stay as they are.

use super::extents::ExtentMap;
use super::pages::{PAGE_BYTES, pages_of};
use super::round::Turn;
use crate::inode::Inode;
use crate::{Error, Fs, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_device::{Buffer, ReadRequest};
use syncline_format::item::ExtentContent;
use syncline_format::{BLOCK_BYTES, BlockNo, checksum};

/// Most pages fetched at once, and the largest read-ahead: 2 MiB.
const FETCH_PAGES_MAX: u64 = 512;
/// Pages that the first sequential miss fetches: 128 KiB.
const READ_AHEAD_PAGES_MIN: u64 = 32;
/// Pages of one device read: 512 KiB.
const READ_PAGES_MAX: u64 = 128;
/// Fetches without the turn before the turn is taken.
const TRIES: u32 = 3;

/// Pages as they were at one moment during a fetch.
pub(super) struct Fetched {
    pub(super) first: u64,
    /// `None` is a hole.
    pub(super) pages: Vec<Option<Arc<Buffer>>>,
    /// `FileData::extent_changes` at that moment.
    pub(super) changes: u64,
}

/// Verified pages of one device read, or what is to become them.
struct Wanted {
    page: u64,
    block: BlockNo,
    checksums: Vec<u64>,
}

impl Fs {
    /// Reads from `offset` on; returns less than asked for only at the end of the file.
    pub(crate) fn file_read(&self, inode: &Arc<Inode>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let position = offset.saturating_add(done as u64);
            let (copied, miss) = copy_cached(inode, position, &mut into[done..]);
            done += copied;
            let Some(miss) = miss else { break };
            let position = offset + done as u64;
            let end = pages_of(offset.saturating_add(into.len() as u64));
            let Some(pages) = self.plan_fetch(inode, miss..end.max(miss + 1)) else { continue };
            let fetched = self.fetch(inode, pages, None)?;
            done += copy_fetched(inode, &fetched, position, &mut into[done..]);
            self.shrink_cache();
        }
        Ok(done)
    }

    /// What to fetch for a miss at the start of `wanted`: more than that when reading is sequential, nothing that is
    /// cached. `None` if the page is cached by now.
    fn plan_fetch(&self, inode: &Arc<Inode>, wanted: Range<u64>) -> Option<Range<u64>> {
        let mut state = inode.state.write();
        let size_pages = pages_of(state.item.size);
        let data = &mut state.data;
        let window = if wanted.start == data.read_ahead.next && wanted.start > 0 || wanted.start == 0 {
            (data.read_ahead.window * 2).clamp(READ_AHEAD_PAGES_MIN, FETCH_PAGES_MAX)
        } else {
            0
        };
        let end = wanted.end.max(wanted.start + window).min(wanted.start + FETCH_PAGES_MAX);
        let end = end.min(size_pages.max(wanted.start + 1));
        let cached = data.range(wanted.start..end).next().map(|(page, _)| page);
        let end = cached.unwrap_or(end);
        data.read_ahead.window = window;
        data.read_ahead.next = end;
        (end > wanted.start).then_some(wanted.start..end)
    }

    /// Brings pages into the cache that are not there; holes are not cached. `turn`: the caller has the file's turn.
    ///
    /// Errors: `Checksum` if a page is not what was written.
    pub(super) fn fetch(
        &self,
        inode: &Arc<Inode>,
        pages: Range<u64>,
        turn: Option<&Turn>,
    ) -> Result<Fetched> {
        let mut own_turn = None;
        let mut tries = 0;
        loop {
            let (changes, held) = {
                let data = &inode.state.read().data;
                let held = data.range(pages.clone()).map(|(page, slot)| (page, slot.page.clone()));
                (data.extent_changes, held.collect::<BTreeMap<_, _>>())
            };
            let map = ExtentMap::load(self, inode.number, pages.clone())?;
            // What is cached is not read: its data may still be on its way to the device.
            let wanted = wanted(&map, pages.clone(), &held);
            let read = self.read_verified(inode, &wanted);
            let mut state = inode.state.write();
            if state.data.extent_changes != changes {
                drop(state);
                tries += 1;
                if tries == TRIES && turn.is_none() && own_turn.is_none() {
                    own_turn = Some(inode.lock_turn());
                }
                continue;
            }
            let read = read?;
            let data = &mut state.data;
            for (wanted, buffers) in wanted.iter().zip(read) {
                for (page, buffer) in (wanted.page..).zip(buffers) {
                    if data.get(page).is_none() {
                        data.insert_clean(&self.writeback.account, page, buffer);
                    }
                }
            }
            let cached = |page| data.get(page).map(|slot| &slot.page).or_else(|| held.get(&page)).cloned();
            let cached = pages.clone().map(cached).collect();
            self.writeback.relist(inode, &mut state, self.clock.now());
            return Ok(Fetched { first: pages.start, pages: cached, changes });
        }
    }

    fn read_verified(&self, inode: &Arc<Inode>, wanted: &[Wanted]) -> Result<Vec<Vec<Arc<Buffer>>>> {
        let mut buffers: Vec<Buffer> =
            wanted.iter().map(|wanted| Buffer::zeroed(wanted.checksums.len())).collect();
        let mut requests: Vec<ReadRequest<'_>> = wanted
            .iter()
            .zip(&mut buffers)
            .map(|(wanted, buffer)| ReadRequest { at: wanted.block, into: buffer })
            .collect();
        match &mut requests[..] {
            [] => {}
            [one] => self.store.device().read(one.at, one.into)?,
            many => self.store.device().read_many(many)?,
        }
        let mut read = Vec::with_capacity(wanted.len());
        for (wanted, buffer) in wanted.iter().zip(buffers) {
            for (index, bytes) in buffer.chunks_exact(BLOCK_BYTES).enumerate() {
                if checksum(bytes) != wanted.checksums[index] {
                    return Err(Error::Checksum {
                        object: inode.number,
                        page: wanted.page + index as u64,
                        block: wanted.block.plus(index as u64),
                    });
                }
            }
            read.push(if wanted.checksums.len() == 1 {
                vec![Arc::new(buffer)]
            } else {
                buffer.chunks_exact(BLOCK_BYTES).map(|bytes| Arc::new(Buffer::from_bytes(bytes))).collect()
            });
        }
        Ok(read)
    }
}

/// The device reads that bring the written pages of the range, without those that are held: extents that follow one
/// another on the device are read together.
fn wanted(map: &ExtentMap, pages: Range<u64>, held: &BTreeMap<u64, Arc<Buffer>>) -> Vec<Wanted> {
    let mut reads: Vec<Wanted> = Vec::new();
    for (first, item) in map.overlapping(pages.clone()) {
        let ExtentContent::Written(checksums) = &item.content else { continue };
        let from = first.max(pages.start);
        let to = (first + checksums.len() as u64).min(pages.end);
        let mut page = from;
        while page < to {
            let next_held = held.range(page..to).next().map_or(to, |(&held, _)| held);
            if next_held == page {
                page += 1;
                continue;
            }
            let block = item.start.plus(page - first);
            let len = (next_held - page).min(READ_PAGES_MAX);
            let sums = &checksums[(page - first) as usize..(page - first + len) as usize];
            match reads.last_mut() {
                Some(last)
                    if last.page + last.checksums.len() as u64 == page
                        && last.block.plus(last.checksums.len() as u64) == block
                        && last.checksums.len() as u64 + len <= READ_PAGES_MAX =>
                {
                    last.checksums.extend_from_slice(sums);
                }
                _ => reads.push(Wanted { page, block, checksums: sums.to_vec() }),
            }
            page += len;
        }
    }
    reads
}

/// Copies cached pages; returns how much, and the first page that is missing before the end of the file.
fn copy_cached(inode: &Inode, offset: u64, into: &mut [u8]) -> (usize, Option<u64>) {
    let state = inode.state.read();
    let available = state.item.size.saturating_sub(offset);
    let len = into.len().min(usize::try_from(available).unwrap_or(usize::MAX));
    let mut done = 0;
    while done < len {
        let position = offset + done as u64;
        let Some(slot) = state.data.get(position / PAGE_BYTES) else {
            return (done, Some(position / PAGE_BYTES));
        };
        slot.used.store(true, Ordering::Relaxed);
        done += copy_page(Some(&slot.page), position, &mut into[done..len]);
    }
    (done, None)
}

/// Copies what was fetched from `offset` on, up to the end of the file.
fn copy_fetched(inode: &Inode, fetched: &Fetched, offset: u64, into: &mut [u8]) -> usize {
    let available = inode.state.read().item.size.saturating_sub(offset);
    let len = into.len().min(usize::try_from(available).unwrap_or(usize::MAX));
    let mut done = 0;
    while done < len {
        let position = offset + done as u64;
        let Some(page) = fetched.pages.get((position / PAGE_BYTES - fetched.first) as usize) else { break };
        done += copy_page(page.as_deref(), position, &mut into[done..len]);
    }
    done
}

/// Copies from one page, or zeros; returns how many bytes.
fn copy_page(page: Option<&Buffer>, offset: u64, into: &mut [u8]) -> usize {
    let skip = (offset % PAGE_BYTES) as usize;
    let len = into.len().min(BLOCK_BYTES - skip);
    match page {
        Some(page) => into[..len].copy_from_slice(&page[skip..skip + len]),
        None => into[..len].fill(0),
    }
    len
}
