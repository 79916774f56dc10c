//! [`LazyDevice`]: a volume that is used while it is fetched from its replica.
//!
//! Over a local device that is empty at first. A read of what is absent fetches the frames that hold it, and writes
//! them to the local device; a write goes to the local device alone; whoever drives this has the rest fetched
//! ([`LazyDevice::fetch_more`]). Behind the volume the local device has a map of what is absent ([`Absence`]), which
//! has to survive a crash together with what was acknowledged.
//!
//! Invariants:
//! - a bit of the map is cleared durably only when the block's content is durable: the device is flushed in between.
//!   So no crash shows a block as present whose content is torn or lost;
//! - a flush that covers a write to a block whose bit is set ends when the bit is cleared durably: the block would
//!   otherwise be fetched again, as it was before the write. What was only fetched needs no such flush;
//! - what is not absent when the device is made reads as zeros, since the local device has a hole there;
//! - a block is written to the local device by one thread at a time: fetched content waits for writers and writers for
//!   fetched content (`busy`), and what was written meanwhile is not replaced by what was fetched;
//! - a write to an absent block ends before it returns, so that nobody reads there what is neither the old content nor
//!   the new one;
//! - superblocks lie aside, behind the volume, until everything is here: nobody takes half of an image for a volume.
//!
//! Locks, outermost first: `flushing`, `aside`, then `state`; nothing below is called under `state`.

mod device;

use crate::absence::{Absence, Bits};
use crate::newest::{Newest, Place};
use crate::source::{Fetching, Source};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceError, Operation, ReadRequest, Ticket};
use syncline_format::replica::Partial;
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError};

/// Blocks that are written to the map at a time, at most.
const MAP_WRITE_BLOCKS: u64 = 256;

/// Content of blocks that are still absent in the map that was written last.
struct Unsettled {
    run: Range<u64>,
    ticket: Ticket,
    /// Somebody wrote it, so that whoever flushes waits for the map as well.
    written: bool,
}

struct State {
    absence: Absence,
    /// Blocks that somebody writes to the local device right now, and that were absent.
    busy: BTreeSet<u64>,
    unsettled: Vec<Unsettled>,
}

/// Why an image cannot be gone on with.
#[derive(Debug, thiserror::Error)]
pub enum LazyError {
    #[error("the image is damaged behind its volume: {0}; restore the replica to a new one")]
    Damaged(#[from] FormatError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A device of which a part is in a replica still.
pub struct LazyDevice {
    local: Arc<dyn Device>,
    partial: Partial,
    fetching: Fetching,
    state: Mutex<State>,
    /// Somebody is not busy any more.
    changed: Condvar,
    /// Held while the map is written: whoever flushes meanwhile waits for that.
    flushing: Mutex<()>,
    /// Held while what lies aside is written.
    aside: Mutex<()>,
    /// Everything is here, and the local device is like any other.
    whole: AtomicBool,
    /// Blocks that were fetched, by whomever.
    fetched: AtomicU64,
    /// Threads that wait for what they have to read.
    waiting: AtomicU64,
}

impl LazyDevice {
    /// How long the local device has to be for a volume of so many blocks.
    pub fn local_blocks(blocks: u64) -> u64 {
        Partial { uuid: [0; 16], blocks, claim: 1, unit: 0 }.end().0 + 1
    }

    /// Begins one on an empty local device of [`LazyDevice::local_blocks`]. Durable when this returns.
    ///
    /// # Errors
    /// The local device fails, or what lies aside cannot be fetched.
    pub fn begin(
        local: Arc<dyn Device>,
        partial: Partial,
        newest: Newest,
        source: impl Source,
    ) -> Result<LazyDevice, LazyError> {
        let mut absent = Bits::new(partial.blocks);
        for (run, place) in newest.places(0..partial.blocks) {
            if matches!(place, Place::Data { .. }) {
                run.for_each(|block| absent.insert(block));
            }
        }
        let absence = Absence::new(partial, absent);
        let device = LazyDevice::over(local, partial, absence, newest, source);
        let aside: Vec<Range<u64>> = partial.aside().iter().map(|block| block.0..block.0 + 1).collect();
        loop {
            let absent: Vec<Range<u64>> = {
                let state = device.state.lock();
                aside.iter().filter(|run| state.absence.now.contains(run.start)).cloned().collect()
            };
            if absent.is_empty() {
                break;
            }
            device.fetching.fetch(&absent, |found| device.fill(found))?;
        }
        {
            let mut state = device.state.lock();
            // They are flushed before this becomes such an image.
            partial.aside().iter().for_each(|block| state.absence.stored.remove(block.0));
        }
        device.write_map(0..partial.map_blocks())?;
        device.local.flush()?;
        let end = Arc::new(Buffer::from_bytes(&partial.encode()));
        // Whoever takes the image for a volume is told what it is.
        for slot in SUPERBLOCK_SLOTS {
            device.local.write(slot, vec![Arc::clone(&end)])?;
        }
        device.local.write(partial.end(), vec![end])?;
        device.local.flush()?;
        Ok(device)
    }

    /// What a local device is to become; `None` if it is like any other.
    ///
    /// # Errors
    /// It cannot be read, or is damaged behind its volume.
    pub fn is_partial(local: &dyn Device) -> Result<Option<Partial>, LazyError> {
        let Some(last) = local.blocks().checked_sub(1) else { return Ok(None) };
        let mut bytes = vec![0; BLOCK_BYTES];
        local.read(BlockNo(last), &mut bytes)?;
        Ok(Partial::decode(&bytes, local.blocks())?)
    }

    /// Goes on with one that was begun. `newest` tells of the same unit as when it was.
    ///
    /// # Errors
    /// The local device fails, or is damaged behind its volume.
    pub fn go_on(
        local: Arc<dyn Device>,
        partial: Partial,
        newest: Newest,
        source: impl Source,
    ) -> Result<LazyDevice, LazyError> {
        let mut map = vec![0; partial.map_blocks() as usize * BLOCK_BYTES];
        local.read(partial.map_start(), &mut map)?;
        let absence = Absence::decode(partial, &map)?;
        Ok(LazyDevice::over(local, partial, absence, newest, source))
    }

    fn over(
        local: Arc<dyn Device>,
        partial: Partial,
        absence: Absence,
        newest: Newest,
        source: impl Source,
    ) -> LazyDevice {
        LazyDevice {
            local,
            partial,
            fetching: Fetching::new(newest, Box::new(source), 0),
            state: Mutex::new(State { absence, busy: BTreeSet::new(), unsettled: Vec::new() }),
            changed: Condvar::new(),
            flushing: Mutex::new(()),
            aside: Mutex::new(()),
            whole: AtomicBool::new(false),
            fetched: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        }
    }

    /// The same, that fetches so many bytes on each side of a few that somebody reads: nodes of a tree lie near each
    /// other, and each would be a request that waits for the one before it.
    #[must_use]
    pub fn reading_around(mut self, bytes: u64) -> LazyDevice {
        self.fetching.around = bytes;
        self
    }

    pub fn partial(&self) -> &Partial {
        &self.partial
    }

    /// Blocks that are not here.
    pub fn absent(&self) -> u64 {
        if self.is_whole() { 0 } else { self.state.lock().absence.now.count() }
    }

    /// Blocks that were fetched.
    pub fn fetched(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Whether everything is here, and the local device holds the volume and nothing else that counts.
    pub fn is_whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Threads that wait for what they read.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Fetches what is absent in these runs, all at the same time.
    ///
    /// # Errors
    /// It cannot be fetched, or not written.
    pub fn want(&self, runs: &[Range<u64>]) -> Result<(), DeviceError> {
        if self.is_whole() {
            return Ok(());
        }
        loop {
            let mut state = self.state.lock();
            self.until_idle(&mut state, runs);
            let absent: Vec<Range<u64>> =
                runs.iter().flat_map(|run| state.absence.now.runs_in(run.clone())).collect();
            drop(state);
            if absent.is_empty() {
                return Ok(());
            }
            self.fetching.fetch(&absent, |found| self.fill(found))?;
        }
    }

    /// Fetches about so many blocks more, the lowest first; `false`: nothing is absent any more. For whoever has
    /// nothing better to do.
    ///
    /// # Errors
    /// They cannot be fetched, or not written.
    pub fn fetch_more(&self, blocks: u64) -> Result<bool, DeviceError> {
        if self.is_whole() {
            return Ok(false);
        }
        let first = self.state.lock().absence.now.first_in(0..self.partial.blocks);
        let Some(first) = first else { return Ok(false) };
        let end = self.fetching.newest.end_of(first, blocks, self.partial.blocks).max(first + 1);
        self.want(std::slice::from_ref(&(first..end)))?;
        Ok(true)
    }

    /// Makes durable that what was fetched is here.
    ///
    /// # Errors
    /// The local device fails.
    pub fn settle(&self) -> Result<(), DeviceError> {
        let flushing = self.flushing.lock();
        if self.is_whole() {
            return Ok(());
        }
        self.flush_and_settle(&flushing)
    }

    /// Makes the local device one like any other, once nothing is absent; `false`: something is.
    ///
    /// # Errors
    /// The local device fails.
    pub fn complete(&self) -> Result<bool, DeviceError> {
        let flushing = self.flushing.lock();
        if self.is_whole() {
            return Ok(true);
        }
        if self.state.lock().absence.now.count() > 0 {
            return Ok(false);
        }
        self.flush_and_settle(&flushing)?;
        if self.state.lock().absence.stored.count() > 0 {
            // Something is being written.
            return Ok(false);
        }
        // Superblocks are written to their places from now on.
        let _aside = self.aside.lock();
        for block in self.partial.aside() {
            let mut content = Buffer::zeroed(1);
            self.local.read(self.routed(block), &mut content)?;
            self.local.write(block, vec![Arc::new(content)])?;
        }
        self.local.flush()?;
        self.local.write(self.partial.end(), vec![Arc::new(Buffer::zeroed(1))])?;
        self.local.flush()?;
        self.whole.store(true, Ordering::Release);
        Ok(true)
    }

    /// Waits until nobody writes blocks of these runs that were absent.
    fn until_idle(&self, state: &mut MutexGuard<'_, State>, runs: &[Range<u64>]) {
        let is_busy = |busy: &BTreeSet<u64>| runs.iter().any(|run| busy.range(run.clone()).next().is_some());
        while is_busy(&state.busy) {
            self.changed.wait(state);
        }
    }

    fn routed(&self, block: BlockNo) -> BlockNo {
        self.partial.place_aside(block).unwrap_or(block)
    }

    /// Whether something of these blocks lies aside.
    fn is_aside(&self, run: &Range<u64>) -> bool {
        self.partial.aside().iter().any(|block| run.contains(&block.0))
    }

    /// Writes what was fetched to the local device, where it is absent still.
    fn fill(&self, found: Vec<(u64, Vec<u8>)>) -> Result<(), DeviceError> {
        let mut tickets = Vec::new();
        for (first, bytes) in found {
            let blocks = first..first + (bytes.len() / BLOCK_BYTES) as u64;
            let mine = {
                let mut state = self.state.lock();
                let runs = state.absence.now.runs_in(blocks);
                // What somebody writes right now will be newer.
                let runs: Vec<Range<u64>> = runs
                    .into_iter()
                    .flat_map(|run| idle_parts(&state.busy, run))
                    .flat_map(|run| self.apart(run))
                    .collect();
                runs.iter().for_each(|run| state.busy.extend(run.clone()));
                runs
            };
            for run in mine {
                let at = (run.start - first) as usize * BLOCK_BYTES;
                let length = (run.end - run.start) as usize * BLOCK_BYTES;
                let data = vec![Arc::new(Buffer::from_bytes(&bytes[at..at + length]))];
                let ticket = self.local.submit_write(self.routed(BlockNo(run.start)), data);
                tickets.push((run, ticket));
            }
        }
        let mut outcome = Ok(());
        for (run, ticket) in tickets {
            let result = self.local.wait(&ticket);
            self.written(run, ticket, &result, false);
            outcome = outcome.and(result);
        }
        outcome
    }

    /// A run in pieces that lie together on the local device.
    fn apart(&self, run: Range<u64>) -> Vec<Range<u64>> {
        if !self.is_aside(&run) {
            return vec![run];
        }
        run.map(|block| block..block + 1).collect()
    }

    /// Blocks that were busy have their content now, or are absent still.
    fn written(&self, run: Range<u64>, ticket: Ticket, result: &Result<(), DeviceError>, by_user: bool) {
        let mut state = self.state.lock();
        if result.is_ok() {
            let absent: Vec<u64> = run.clone().filter(|block| state.absence.now.contains(*block)).collect();
            absent.iter().for_each(|block| state.absence.now.remove(*block));
            if !by_user {
                self.fetched.fetch_add(absent.len() as u64, Ordering::Relaxed);
            }
            state.unsettled.push(Unsettled { run: run.clone(), ticket, written: by_user });
        }
        run.for_each(|block| {
            state.busy.remove(&block);
        });
        drop(state);
        self.changed.notify_all();
    }

    /// Writes to blocks of which some are absent, or lie aside, and waits.
    fn write_here(&self, run: Range<u64>, data: &[Arc<Buffer>]) -> Result<(), DeviceError> {
        let _aside = self.is_aside(&run).then(|| self.aside.lock());
        if self.is_whole() {
            return self.local.write(BlockNo(run.start), data.to_vec());
        }
        {
            let mut state = self.state.lock();
            self.until_idle(&mut state, std::slice::from_ref(&run));
            state.busy.extend(run.clone());
        }
        let result = match self.is_aside(&run) {
            false => self.local.write(BlockNo(run.start), data.to_vec()),
            true => {
                let blocks = data.iter().flat_map(|buffer| buffer.chunks_exact(BLOCK_BYTES));
                run.clone().zip(blocks).try_for_each(|(block, content)| {
                    let content = vec![Arc::new(Buffer::from_bytes(content))];
                    self.local.write(self.routed(BlockNo(block)), content)
                })
            }
        };
        self.written(run, Ticket::completed(result.clone()), &result, true);
        result
    }

    /// With `flushing` held: flushes, then clears in the map what is durable by that, and flushes that.
    fn flush_and_settle(&self, _flushing: &MutexGuard<'_, ()>) -> Result<(), DeviceError> {
        let (done, rest): (Vec<Unsettled>, Vec<Unsettled>) = {
            let mut state = self.state.lock();
            std::mem::take(&mut state.unsettled).into_iter().partition(|one| one.ticket.is_complete())
        };
        // A write that failed has left anything.
        let done: Vec<Unsettled> =
            done.into_iter().filter(|one| matches!(one.ticket.result(), Some(Ok(())))).collect();
        self.state.lock().unsettled.extend(rest);
        if let Err(error) = self.local.flush() {
            self.state.lock().unsettled.extend(done);
            return Err(error);
        }
        let mut map_blocks: BTreeSet<u64> = BTreeSet::new();
        {
            let mut state = self.state.lock();
            let stored = &mut state.absence.stored;
            for block in done.iter().flat_map(|one| one.run.clone()) {
                if stored.contains(block) {
                    stored.remove(block);
                    map_blocks.insert(Absence::map_block(block));
                }
            }
        }
        if map_blocks.is_empty() {
            return Ok(());
        }
        let settled = map_blocks
            .iter()
            .try_for_each(|block| self.write_map(*block..*block + 1))
            .and_then(|()| self.local.flush());
        if settled.is_err() {
            // Nobody knows what the map says: a later flush writes it again.
            let mut state = self.state.lock();
            let State { absence, unsettled, .. } = &mut *state;
            done.iter().flat_map(|one| one.run.clone()).for_each(|block| absence.stored.insert(block));
            unsettled.extend(done);
        }
        settled
    }

    fn write_map(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        let start = self.partial.map_start();
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + MAP_WRITE_BLOCKS);
            let bytes: Vec<u8> = {
                let state = self.state.lock();
                (at..end).flat_map(|block| state.absence.encode(block)).collect()
            };
            self.local.write(start.plus(at), vec![Arc::new(Buffer::from_bytes(&bytes))])?;
            at = end;
        }
        Ok(())
    }

    /// Notes a write that is under way to blocks that are here, but not in the map.
    fn note(&self, run: Range<u64>, ticket: &Ticket) {
        let mut state = self.state.lock();
        if state.absence.stored.first_in(run.clone()).is_some() {
            state.unsettled.push(Unsettled { run, ticket: ticket.clone(), written: true });
        }
    }

    /// Whether a write has to end before it returns.
    fn writes_here(&self, run: &Range<u64>) -> bool {
        if self.is_aside(run) {
            return true;
        }
        let state = self.state.lock();
        state.absence.now.first_in(run.clone()).is_some() || state.busy.range(run.clone()).next().is_some()
    }

    /// Whether a flush has to wait for the map as well.
    fn has_to_settle(&self) -> bool {
        self.state.lock().unsettled.iter().any(|one| one.written && one.ticket.is_complete())
    }

    fn waits<T>(&self, act: impl FnOnce() -> T) -> T {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let done = act();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        done
    }
}

impl LazyDevice {
    /// The blocks of a request, which end inside of the volume.
    fn run(&self, operation: Operation, at: BlockNo, blocks: u64) -> Result<Range<u64>, DeviceError> {
        match at.0.checked_add(blocks) {
            Some(end) if end <= self.partial.blocks => Ok(at.0..end),
            _ => Err(DeviceError::OutOfRange { operation, block: at, blocks: self.partial.blocks }),
        }
    }

    fn read_run(&self, request: &ReadRequest<'_>) -> Result<Range<u64>, DeviceError> {
        self.run(Operation::Read, request.at, (request.into.len() / BLOCK_BYTES) as u64)
    }
}

/// The parts of a run that nobody is busy with.
fn idle_parts(busy: &BTreeSet<u64>, run: Range<u64>) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut at = run.start;
    for &block in busy.range(run.clone()) {
        if at < block {
            parts.push(at..block);
        }
        at = block + 1;
    }
    if at < run.end {
        parts.push(at..run.end);
    }
    parts
}

fn blocks_of(data: &[Arc<Buffer>]) -> u64 {
    data.iter().map(|buffer| buffer.blocks()).sum()
}
