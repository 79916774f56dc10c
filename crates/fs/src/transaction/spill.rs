//! Staged pages on their way to free blocks and back.
//!
//! A transaction keeps few pages in memory. What is more goes *home*: to blocks that are allocated from its
//! reservation, in nobody's bitmap until the commit names them (R15 leaves them out of every checkpoint, so after a
//! crash they are free). At most one spill is in flight at a time, so that a transaction of any length never has more
//! than its memory's worth of writes under way beside the syncs of others. It goes through the lane: nobody waits for
//! what is staged, and everybody for a sync.
//!
//! A home is written again only when the write before is complete (R8). Checksums are those of the very buffers that
//! are written; what is read back is compared with them (C7).

use crate::limits::{READ_PAGES_MAX, STAGED_PAGES_MIN, STAGED_SHARE};
use crate::transaction::staged::{Home, StagedPage, Staging, count};
use crate::{Error, Fs, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Block, Buffer, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo, ObjectNo, checksum};
use syncline_store::Run;

/// Pages that are newer than what is at home, or have none. They are counted for all transactions together.
pub(crate) struct NewerPages {
    pages: BTreeSet<(ObjectNo, u64)>,
    of_all: Arc<AtomicU64>,
}

impl NewerPages {
    pub(crate) fn new(of_all: &Arc<AtomicU64>) -> NewerPages {
        NewerPages { pages: BTreeSet::new(), of_all: of_all.clone() }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(crate) fn insert(&mut self, page: (ObjectNo, u64)) {
        self.of_all.fetch_add(u64::from(self.pages.insert(page)), Ordering::Relaxed);
    }

    pub(crate) fn remove(&mut self, page: (ObjectNo, u64)) {
        self.of_all.fetch_sub(u64::from(self.pages.remove(&page)), Ordering::Relaxed);
    }

    pub(crate) fn take(&mut self) -> BTreeSet<(ObjectNo, u64)> {
        self.of_all.fetch_sub(self.pages.len() as u64, Ordering::Relaxed);
        std::mem::take(&mut self.pages)
    }

    /// Takes over those of another transaction of the same volume; they are of other pages.
    pub(crate) fn append(&mut self, other: &mut NewerPages) {
        self.pages.append(&mut other.pages);
    }
}

impl Drop for NewerPages {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A page on its way home.
struct Going {
    number: ObjectNo,
    page: u64,
    home: Option<BlockNo>,
    buffer: Arc<Buffer>,
}

/// A page whose write has been started.
struct Written {
    number: ObjectNo,
    page: u64,
    home: Home,
    ticket: Ticket,
}

impl Staging {
    /// Whether memory is to be given up: this transaction has as much as one may have, or all together have too much.
    pub(crate) fn must_spill(&self, fs: &Fs) -> bool {
        let few = self.newer.len() < STAGED_PAGES_MIN;
        let many = self.newer.len() >= self.newer_max;
        let staged = fs.content.staged.load(Ordering::Relaxed);
        many || !few && staged > fs.content.pages_max / STAGED_SHARE
    }

    /// Starts writing everything home that is in memory only, and forgets the memory. Waits for the spill before.
    ///
    /// Errors: a failed write, after which the volume has stopped (C8).
    pub(crate) fn spill(&mut self, fs: &Fs) -> Result<()> {
        let written = self.write_home(fs)?;
        self.each_written(written, |staged, _| {
            staged.buffer = None;
            staged.ticket = None;
        });
        Ok(())
    }

    /// Starts writing everything home that is newer than what is there; memory keeps it too. Returns what it was.
    pub(crate) fn bring_home(&mut self, fs: &Fs) -> Result<BTreeSet<(ObjectNo, u64)>> {
        let written = self.write_home(fs)?;
        let pages = written.iter().map(|written| (written.number, written.page)).collect();
        self.each_written(written, |staged, ticket| staged.ticket = Some(ticket));
        Ok(pages)
    }

    /// Starts writing everything home that is newer than what is there. Waits for the spill before.
    fn write_home(&mut self, fs: &Fs) -> Result<Vec<Written>> {
        self.finish_flights(fs)?;
        let mut going = self.take_newer();
        self.allocate_homes(fs, &mut going);
        going.sort_unstable_by_key(|going| going.home);
        let home = |going: &Going| going.home.expect("every page has been given a home");
        let lane = &fs.core.lane;
        let mut written = Vec::with_capacity(going.len());
        let mut left = going.as_slice();
        while let Some(run) = left.chunk_by(|a, b| home(a).plus(1) == home(b)).next() {
            let (write, rest) = left.split_at(run.len().min(lane.write_pages_max()));
            left = rest;
            let checksums: Vec<u64> = write.iter().map(|going| checksum(&going.buffer)).collect();
            let buffers = write.iter().map(|going| going.buffer.clone()).collect();
            let ticket = lane.submit(&fs.core.store, home(&write[0]), buffers);
            for (going, checksum) in write.iter().zip(checksums) {
                let &Going { number, page, .. } = going;
                let home = Home { block: home(going), checksum };
                written.push(Written { number, page, home, ticket: ticket.clone() });
            }
            self.flights.push((ticket, (write.len() * BLOCK_BYTES) as u64));
        }
        // In the order of the pages again.
        written.sort_unstable_by_key(|written| (written.number, written.page));
        Ok(written)
    }

    /// The pages that are newer than what is at home, ascending. They are looked up by runs: a transaction may have
    /// staged hundreds of thousands.
    fn take_newer(&mut self) -> Vec<Going> {
        let newer: Vec<(ObjectNo, u64)> = self.newer.take().into_iter().collect();
        let mut going = Vec::with_capacity(newer.len());
        for run in newer.chunk_by(follows) {
            let number = run[0].0;
            for (&page, staged) in self.files[&number].pages.range(run[0].1..).take(run.len()) {
                let buffer = staged.buffer.clone().expect("what is newer is in memory");
                going.push(Going { number, page, home: staged.home.map(|home| home.block), buffer });
            }
        }
        going
    }

    /// Takes note of what was written.
    fn each_written(&mut self, written: Vec<Written>, mut also: impl FnMut(&mut StagedPage, Ticket)) {
        let mut written = written.into_iter().peekable();
        while let Some(first) = written.peek() {
            let (number, start) = (first.number, first.page);
            let file = self.files.get_mut(&number).expect("the file was joined");
            for (&page, staged) in file.pages.range_mut(start..) {
                let Some(now) = written.next_if(|next| (next.number, next.page) == (number, page)) else {
                    break;
                };
                staged.home = Some(now.home);
                staged.newer = false;
                also(staged, now.ticket);
            }
        }
    }

    /// Gives every page without a home one, in few runs.
    fn allocate_homes(&mut self, fs: &Fs, going: &mut [Going]) {
        let mut homeless: Vec<&mut Going> = going.iter_mut().filter(|going| going.home.is_none()).collect();
        let mut rest = homeless.as_mut_slice();
        while !rest.is_empty() {
            let pool = self.pool.as_mut().expect("pages without a home have blocks reserved");
            let run = fs.core.store.allocate(pool, rest.len() as u32, self.near);
            self.near = Some(run.start.plus(u64::from(run.len)));
            let (now, later) = rest.split_at_mut(run.len as usize);
            for (offset, going) in (0..).zip(now) {
                going.home = Some(run.start.plus(offset));
            }
            rest = later;
        }
    }

    /// Waits for the writes in flight: for all, also after an error (R8).
    pub(crate) fn finish_flights(&mut self, fs: &Fs) -> Result<()> {
        let flights: Vec<Ticket> =
            std::mem::take(&mut self.flights).into_iter().map(|(ticket, _)| ticket).collect();
        let results: Vec<_> = flights.iter().map(|ticket| fs.core.store.device().wait(ticket)).collect();
        match results.into_iter().find_map(|result| result.err()) {
            None => Ok(()),
            Some(error) => {
                // The device may have lost more than this (C8).
                fs.core.store.fail(error.clone());
                Err(error.into())
            }
        }
    }

    /// Staged pages from the start of the range on, up to the first that is not staged. Those at home are read.
    pub(crate) fn staged_run(
        &mut self,
        fs: &Fs,
        number: ObjectNo,
        pages: Range<u64>,
    ) -> Result<Vec<Arc<Buffer>>> {
        let file = self.files.get(&number).expect("the file was joined");
        let mut buffers = Vec::with_capacity(count(&pages).min(READ_PAGES_MAX as usize));
        let mut homes: Vec<Home> = Vec::new();
        for (expected, (&page, staged)) in pages.clone().zip(file.pages.range(pages.clone())) {
            if page != expected {
                break;
            }
            match (&staged.buffer, staged.home) {
                (Some(buffer), _) if homes.is_empty() => buffers.push(buffer.clone()),
                (None, Some(home)) if buffers.is_empty() && homes.len() < READ_PAGES_MAX as usize => {
                    if homes.last().is_some_and(|last| last.block.plus(1) != home.block) {
                        break;
                    }
                    homes.push(home);
                }
                _ => break,
            }
        }
        if homes.is_empty() {
            return Ok(buffers);
        }
        self.finish_flights(fs)?;
        let device = fs.core.store.device();
        let reading = device.submit_read(homes[0].block, homes.len());
        device.wait(reading.ticket())?;
        let read: Vec<_> = reading.into_blocks()?.map(Block::into_buffer).collect();
        for ((buffer, home), page) in read.iter().zip(&homes).zip(pages.start..) {
            if checksum(buffer) != home.checksum {
                return Err(Error::Checksum { object: number, page, block: home.block });
            }
        }
        Ok(read)
    }

    /// Gives a home back to the reservation. No write to it is in flight.
    pub(crate) fn abandon(&mut self, fs: &Fs, home: Home) {
        let pool = self.pool.as_mut().expect("homes are allocated from a reservation");
        fs.core.store.abandon(Run { start: home.block, len: 1 }, pool);
    }
}

fn follows(a: &(ObjectNo, u64), b: &(ObjectNo, u64)) -> bool {
    a.0 == b.0 && a.1 + 1 == b.1
}
