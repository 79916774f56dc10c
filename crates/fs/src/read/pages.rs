//! Reading: page cache, then extents from the device, every page verified (C7).
//!
//! A fetch holds no lock while it reads. What it read may be cached only if the file's extents did not change
//! meanwhile; if they did, a checksum mismatch may just mean that the blocks were freed and reused, and everything is
//! looked up again. After a few tries the fetch takes the file's turn, under which extents stay as they are.

use crate::content::extents::ExtentMap;
use crate::content::flights::{Reads, Wanted};
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{PAGE_BYTES, pages_of, pages_touched};
use crate::content::steps;
use crate::content::steps::Step;
use crate::content::turn::Turn;
use crate::limits::{FETCH_TRIES, READ_PAGES_MAX};
use crate::read::Reader;
use crate::read::flight::Plan;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_device::{Block, Buffer};
use syncline_format::item::ExtentContent;
use syncline_format::{BLOCK_BYTES, checksum};

/// Pages as they were at one moment during a fetch.
pub(crate) struct Fetched {
    pub(crate) first: u64,
    /// `None` is a hole.
    pub(crate) pages: Vec<Option<Block>>,
    /// `Stored::changes` at that moment.
    pub(crate) changes: u64,
    /// Of the file at that moment.
    pub(crate) size: u64,
}

/// Pages that were cached when a fetch began.
pub(crate) type Held = BTreeMap<u64, Arc<Buffer>>;

/// Ends a move of a file's extents that somebody has begun.
pub(crate) type Settle<'a> = &'a dyn Fn(&Arc<Inode>) -> Result<()>;

/// Why the extents of a file stay as they are while they are read.
#[derive(Clone, Copy)]
pub(crate) enum Access<'a> {
    /// The caller has the file's turn.
    Turn(#[expect(dead_code, reason = "whoever has it shows that it does")] &'a Turn),
    /// They do not: changes are noticed, and a move that was begun is ended before.
    Settling(Settle<'a>),
}

impl Reader {
    /// Reads from `offset` on; returns less than asked for only at the end of the file.
    pub(crate) fn file_read(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        into: &mut [u8],
        settle: Settle<'_>,
    ) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let position = offset.saturating_add(done as u64);
            let (copied, miss) = copy_cached(inode, position, &mut into[done..]);
            self.core.account.hit(pages_touched(position, copied));
            done += copied;
            let Some(miss) = miss else { break };
            let position = offset + done as u64;
            let end = pages_of(offset.saturating_add(into.len() as u64));
            let wanted = miss..end.max(miss + 1);
            let fetched = match self.plan_read(inode, wanted.clone()) {
                Plan::Cached => continue,
                Plan::Fetch(pages) => {
                    self.core.note_small_request();
                    self.fetch(inode, pages, Access::Settling(settle))?
                }
                Plan::Land(flight) => match self.land(inode, &flight, &wanted) {
                    Some(fetched) => fetched,
                    None if inode.state.read().data.get(miss).is_some() => continue,
                    None => {
                        self.fetch(inode, miss..wanted.end.min(flight.pages.end), Access::Settling(settle))?
                    }
                },
            };
            steps::passed(Step::Fetched);
            let copied = copy_fetched(&fetched, position, &mut into[done..]);
            self.core.account.missed(pages_touched(position, copied));
            done += copied;
            self.content.shrink_cache();
            // The file ended there when it was looked at, whatever was appended since: a part of a page is of one
            // moment.
            if position + copied as u64 >= fetched.size {
                break;
            }
        }
        Ok(done)
    }

    /// Brings pages into the cache that are not there; holes are not cached. A caller without the turn
    /// settles what is being moved first.
    ///
    /// Errors: `Checksum` if a page is not what was written.
    pub(crate) fn fetch(&self, inode: &Arc<Inode>, pages: Range<u64>, access: Access<'_>) -> Result<Fetched> {
        let mut own_turn = None;
        let mut tries = 0;
        loop {
            if let Access::Settling(settle) = access
                && inode.state.read().data.is_shifting(&pages)
            {
                drop(own_turn.take());
                settle(inode)?;
            }
            let (changes, held) = {
                let data = &inode.state.read().data;
                if data.is_shifting(&pages) {
                    continue;
                }
                let held = data.range(pages.clone()).map(|(page, slot)| (page, slot.page.clone()));
                (data.stored.changes, held.collect::<Held>())
            };
            // What is cached is not read: its data may still be on its way to the device.
            let reads = self.start_reads(inode, pages.clone(), &held, true)?;
            let read = self.finish_reads(inode, reads, &(0..0));
            let mut state = inode.state.write();
            if state.data.stored.changes != changes {
                drop(state);
                tries += 1;
                if tries == FETCH_TRIES && matches!(access, Access::Settling(_)) && own_turn.is_none() {
                    own_turn = Some(inode.lock_turn());
                }
                continue;
            }
            let fetched = self.keep_pages(inode, &mut state, pages, &(0..0), &held, read?);
            return Ok(Fetched { changes, ..fetched });
        }
    }

    /// Puts pages that were read into the cache, but for those that are there and those that are only `passing`;
    /// holes are not cached. Returns what is there then. What a truncation has cut off and not freed yet is a hole: in
    /// the cache, a write into its page would find it there.
    pub(crate) fn keep_pages(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        pages: Range<u64>,
        passing: &Range<u64>,
        held: &Held,
        read: Vec<(u64, Vec<Block>)>,
    ) -> Fetched {
        let data = &mut state.data;
        let mut there = vec![None; (pages.end - pages.start) as usize];
        let mut place = |page: u64, block: Block| there[(page - pages.start) as usize] = Some(block);
        let cut_off = data.stored.truncating_from.unwrap_or(u64::MAX);
        for (first, blocks) in read {
            for (page, block) in (first..cut_off).zip(blocks) {
                if passing.contains(&page) {
                    place(page, block);
                } else if data.get(page).is_none() {
                    data.insert_clean(&self.core.account, page, block.into_buffer());
                }
            }
        }
        let cached = data.range(pages.clone()).map(|(page, slot)| (page, &slot.page));
        for (page, buffer) in held.iter().map(|(&page, buffer)| (page, buffer)).chain(cached) {
            place(page, buffer.clone().into());
        }
        let changes = data.stored.changes;
        self.content.relist(inode, state, self.core.clock.now());
        let size = state.item.size;
        Fetched { first: pages.start, pages: there, changes, size }
    }

    /// Looks up where the pages are stored, but for those held, and starts reading them. If the caller `waits` and
    /// there is nothing to read beside it, a read is done at once: submitted, its end would reach the caller through
    /// other threads.
    pub(crate) fn start_reads(
        &self,
        inode: &Inode,
        pages: Range<u64>,
        held: &Held,
        waits: bool,
    ) -> Result<Reads> {
        let map = ExtentMap::load(&self.content, inode.number, pages.clone())?;
        let device = self.core.store.device();
        let wanted = wanted(&map, pages, held);
        let at_once = waits && wanted.len() == 1;
        let start = |wanted: Wanted| {
            let (block, count) = (wanted.block, wanted.checksums.len());
            let reading = match at_once {
                true => device.read_blocks(block, count),
                false => device.submit_read(block, count),
            };
            (wanted, reading)
        };
        Ok(Reads(wanted.into_iter().map(start).collect()))
    }

    /// Waits for reads, and verifies what they brought: the first page of each, and its pages, in memory of their own
    /// but for those that are only `passing`.
    pub(crate) fn finish_reads(
        &self,
        inode: &Inode,
        reads: Reads,
        passing: &Range<u64>,
    ) -> Result<Vec<(u64, Vec<Block>)>> {
        let mut read = Vec::with_capacity(reads.0.len());
        for (wanted, reading) in reads.0 {
            self.core.store.device().wait(reading.ticket())?;
            let blocks = (wanted.page..).zip(reading.into_blocks()?).zip(&wanted.checksums);
            let verified = blocks.map(|((page, block), &sum)| {
                if checksum(&block) != sum {
                    let at = wanted.block.plus(page - wanted.page);
                    return Err(Error::Checksum { object: inode.number, page, block: at });
                }
                // Copied while the processor's cache has it.
                Ok(if passing.contains(&page) { block } else { block.into_buffer().into() })
            });
            let verified = verified.collect::<Result<_>>()?;
            read.push((wanted.page, verified));
        }
        Ok(read)
    }
}

/// The device reads that bring the written pages of the range, without those that are held: extents that follow one
/// another on the device are read together.
fn wanted(map: &ExtentMap, pages: Range<u64>, held: &Held) -> Vec<Wanted> {
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
            let block = item.block_of(page - first);
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
pub(crate) fn copy_cached(inode: &Inode, offset: u64, into: &mut [u8]) -> (usize, Option<u64>) {
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
        done += copy_page(Some(&slot.page[..]), position, &mut into[done..len]);
    }
    (done, None)
}

/// Copies what was fetched from `offset` on, up to the end that the file had then.
fn copy_fetched(fetched: &Fetched, offset: u64, into: &mut [u8]) -> usize {
    let available = fetched.size.saturating_sub(offset);
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
fn copy_page(page: Option<&[u8]>, offset: u64, into: &mut [u8]) -> usize {
    let skip = (offset % PAGE_BYTES) as usize;
    let len = into.len().min(BLOCK_BYTES - skip);
    match page {
        Some(page) => into[..len].copy_from_slice(&page[skip..skip + len]),
        None => into[..len].fill(0),
    }
    len
}
