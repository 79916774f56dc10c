//! The simulated device.
//!
//! # Fault model
//!
//! - A write becomes durable only by a flush that was *issued after the write had completed* and that ended well.
//! - At a crash any subset of the other writes survives, each whole or torn: any subset of its 512-byte sectors.
//!   Writes to the same block keep their order (a disk's cache is coherent), all others have none.
//! - Writes and flushes complete late and out of order, as the seed decides: some at once, the others when somebody
//!   waits or polls. A read sees completed writes only.
//! - An operation may fail with `EIO`, once or for good, chosen by its number among reads, writes and flushes. A failed
//!   write may have left any of its sectors. A failed flush makes nothing durable, and what it should have covered is
//!   *forsaken*: no later flush makes it durable (a kernel that marks pages clean after an error does just that).
//! - A discard takes effect at once, before whatever else is in flight. Until a flush each of its blocks may have
//!   what it had before, or what the device puts there: zeros, or garbage. So it is recorded as a write of that.
//! - Stored blocks rot when a test says so ([`Disk::flip`], [`SimDevice::rot`]): a bit changes, or they cannot be
//!   read until they are written. A full device is one whose volume was filled.
//!
//! # Recording
//!
//! Everything the device is asked to do goes into a [`Trace`], with marks of the simulator between, so that one run
//! of a workload yields every state that a crash during it could have left (`crash.rs`). The device does not know
//! what the blocks mean.
//!
//! Locks: one mutex; the engine never calls back.

use crate::random::Random;
use crate::watchdog;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use syncline_format::layout::JOURNAL_START;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_store::lock_order::elsewhere;

/// Unit of tearing.
pub const SECTOR_BYTES: usize = 512;
/// What a discarded block may read as.
const GARBAGE: u8 = 0xa5;
/// `EIO`.
const EIO: i32 = 5;

/// One stored block.
pub type Page = [u8; BLOCK_BYTES];

/// Durable content: block by block, `None` for zeros. Clones share pages.
#[derive(Clone)]
pub struct Disk(Arc<Vec<Option<Arc<Page>>>>);

impl Disk {
    /// A device of zeros.
    pub fn new(blocks: u64) -> Disk {
        Disk(Arc::new(vec![None; blocks as usize]))
    }

    pub fn blocks(&self) -> u64 {
        self.0.len() as u64
    }

    pub fn get(&self, block: u64) -> Option<&Arc<Page>> {
        self.0[block as usize].as_ref()
    }

    pub fn put(&mut self, block: u64, page: Arc<Page>) {
        Arc::make_mut(&mut self.0)[block as usize] = Some(page);
    }

    /// Rot: flips one bit.
    pub fn flip(&mut self, block: u64, bit: u64) {
        let mut page = self.get(block).map_or([0; BLOCK_BYTES], |page| **page);
        page[(bit / 8) as usize % BLOCK_BYTES] ^= 1 << (bit % 8);
        self.put(block, Arc::new(page));
    }
}

/// Number of a write in its trace.
pub type WriteId = usize;

/// A recorded write.
#[derive(Clone)]
pub struct Write {
    pub at: u64,
    pub pages: Vec<Arc<Page>>,
}

/// What happened, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Submitted(WriteId),
    /// Well or not: a failed write can be forsaken, and is never made durable.
    Completed(WriteId, bool),
    FlushIssued(usize),
    FlushDone(usize, bool),
    /// The simulator's: so many syncs are acknowledged.
    Acknowledged(usize),
}

/// A recorded run.
#[derive(Default, Clone)]
pub struct Trace {
    pub writes: Vec<Write>,
    pub events: Vec<Event>,
    pub flushes: usize,
}

/// Which operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Number of the operation among all that are counted, from 0.
    pub at: u64,
    /// For good, not once.
    pub for_good: bool,
    /// Counts and fails only these; `None` for all.
    pub only: Option<Operation>,
}

/// What becomes of a stored block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rot {
    /// Reads of it fail until it is written.
    Unreadable,
    /// This bit is another.
    Flipped(u64),
}

/// A block that has rotten, and what it holds since.
#[derive(Clone)]
struct Rotten {
    rot: Rot,
    content: Arc<Page>,
}

struct Waiting {
    id: WriteId,
    ticket: Ticket,
    result: Result<(), DeviceError>,
}

struct WaitingFlush {
    id: usize,
    ticket: Ticket,
    result: Result<(), DeviceError>,
}

struct State {
    disk: Disk,
    /// Completed writes on top of `disk`, newest content by block.
    cache: BTreeMap<u64, Arc<Page>>,
    trace: Trace,
    writes: VecDeque<Waiting>,
    flushes: VecDeque<WaitingFlush>,
    random: Random,
    counters: DeviceCounters,
    /// By block.
    rotten: BTreeMap<u64, Rotten>,
    failure: Option<Failure>,
    counted: u64,
    failed: bool,
    /// The simulator looks: nothing is counted, nothing fails.
    looking: bool,
}

/// Called between the device's operations, on the thread of whoever calls the device.
type Between = Box<dyn FnMut(Operation) + Send>;

/// A device in memory that records and fails.
pub struct SimDevice {
    blocks: u64,
    /// Blocks of the journal: its writes are submitted under the journal's lock, so nobody is called there.
    journal: Range<u64>,
    between: Mutex<Option<Between>>,
    /// Who calls the device lets others in now and then.
    lets_in: AtomicBool,
    state: Mutex<State>,
}

impl SimDevice {
    /// A device that holds `disk`; `seed` decides when requests complete.
    pub fn new(disk: Disk, seed: u64) -> Arc<SimDevice> {
        let state = State {
            cache: BTreeMap::new(),
            trace: Trace::default(),
            writes: VecDeque::new(),
            flushes: VecDeque::new(),
            random: Random::new(seed),
            counters: DeviceCounters::default(),
            rotten: BTreeMap::new(),
            failure: None,
            counted: 0,
            failed: false,
            looking: false,
            disk,
        };
        watchdog::progress();
        let journal = JOURNAL_START.0..journal_end(&state.disk);
        let between = Mutex::new(None);
        let (blocks, lets_in) = (state.disk.blocks(), AtomicBool::new(false));
        Arc::new(SimDevice { blocks, journal, between, lets_in, state: Mutex::new(state) })
    }

    /// Calls `act` before each write that is not the journal's, each flush and each discard, with which of them it
    /// is, until it is replaced. `act` may use the device; it is not called for what it does itself. A flush may be
    /// the journal's: who forces it then waits for himself.
    pub fn between(&self, act: Option<Between>) {
        *self.between.lock() = act;
    }

    /// From now on other threads are let in between the device's operations, at random.
    pub fn let_others_in(&self) {
        self.lets_in.store(true, Ordering::Relaxed);
    }

    fn let_in(&self) {
        if self.lets_in.load(Ordering::Relaxed) && self.state.lock().random.one_in(3) {
            std::thread::yield_now();
        }
    }

    fn call_between(&self, operation: Operation) {
        let Some(mut act) = self.between.lock().take() else { return };
        // What other threads do, though this one does it.
        elsewhere(|| act(operation));
        self.between.lock().get_or_insert(act);
    }

    /// Arms a failure; operations are counted from now on.
    pub fn fail(&self, failure: Failure) {
        let mut state = self.state.lock();
        (state.failure, state.counted) = (Some(failure), 0);
    }

    /// Runs `look`, which counts for nothing and to which nothing happens.
    pub fn undisturbed<T>(&self, look: impl FnOnce() -> T) -> T {
        self.state.lock().looking = true;
        let seen = look();
        self.state.lock().looking = false;
        seen
    }

    /// A block rots, durably.
    pub fn rot(&self, block: u64, rot: Rot) {
        let mut state = self.state.lock();
        if let Rot::Flipped(bit) = rot {
            state.flip(block, bit);
        }
        let content = state.stored(block);
        state.rotten.insert(block, Rotten { rot, content });
    }

    /// What has rotten on the other device is rotten here as well, where it was not overwritten since.
    pub fn rot_as(&self, other: &SimDevice) {
        let mut rotten = other.state.lock().rotten.clone();
        let mut state = self.state.lock();
        rotten.retain(|block, rotten| state.stored(*block) == rotten.content);
        state.rotten = rotten;
    }

    /// What has rotten and was not overwritten is as it was before.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        for (block, rotten) in std::mem::take(&mut state.rotten) {
            if let Rot::Flipped(bit) = rotten.rot
                && state.stored(block) == rotten.content
            {
                state.flip(block, bit);
            }
        }
    }

    /// Whether an operation has failed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Reads, writes and flushes so far.
    pub fn operations(&self) -> [(Operation, u64); 3] {
        let DeviceCounters { reads, writes, flushes, .. } = self.state.lock().counters;
        [(Operation::Read, reads), (Operation::Write, writes), (Operation::Flush, flushes)]
    }

    /// Records that so many syncs are acknowledged.
    pub fn acknowledge(&self, syncs: usize) {
        self.state.lock().trace.events.push(Event::Acknowledged(syncs));
    }

    /// What was recorded, and the content before it. What is in flight stays in flight.
    pub fn recorded(&self) -> (Disk, Trace) {
        let state = self.state.lock();
        (state.disk.clone(), state.trace.clone())
    }

    /// Events recorded so far.
    pub fn position(&self) -> usize {
        self.state.lock().trace.events.len()
    }

    /// What has been completed, durable or not. What is in flight stays in flight.
    pub fn completed(&self) -> Disk {
        let state = self.state.lock();
        let mut disk = state.disk.clone();
        state.cache.iter().for_each(|(block, page)| disk.put(*block, Arc::clone(page)));
        disk
    }

    /// Everything that was written, as after a shutdown that lost nothing.
    pub fn settled(&self) -> Disk {
        let mut state = self.state.lock();
        while state.complete_some() {}
        let mut disk = state.disk.clone();
        state.cache.iter().for_each(|(block, page)| disk.put(*block, Arc::clone(page)));
        disk
    }
}

/// The block behind the journal, if a volume is there.
fn journal_end(disk: &Disk) -> u64 {
    let superblocks = SUPERBLOCK_SLOTS.iter().filter_map(|block| {
        let page = disk.get(block.0)?;
        Superblock::decode(&page[..], *block, disk.blocks()).ok()
    });
    superblocks.map(|superblock| superblock.layout.groups_start.0).next().unwrap_or(JOURNAL_START.0)
}

impl State {
    fn stored(&self, block: u64) -> Arc<Page> {
        let stored = self.cache.get(&block).or_else(|| self.disk.get(block));
        stored.cloned().unwrap_or_else(|| Arc::new([0; BLOCK_BYTES]))
    }

    fn flip(&mut self, block: u64, bit: u64) {
        self.disk.flip(block, bit);
        let flipped = self.disk.get(block).cloned();
        if let (Some(cached), Some(flipped)) = (self.cache.get_mut(&block), flipped) {
            *cached = flipped;
        }
    }

    /// The result of the next operation.
    fn count(&mut self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        if self.looking {
            return Ok(());
        }
        match operation {
            Operation::Read => self.counters.reads += 1,
            Operation::Write => self.counters.writes += 1,
            Operation::Flush => self.counters.flushes += 1,
            Operation::Discard => self.counters.discards += 1,
        }
        let Some(failure) = self.failure else { return Ok(()) };
        if operation == Operation::Discard || failure.only.is_some_and(|only| only != operation) {
            return Ok(());
        }
        let number = self.counted;
        self.counted += 1;
        if number == failure.at || failure.for_good && number > failure.at {
            self.failed = true;
            return Err(DeviceError::Io { operation, block, errno: EIO });
        }
        Ok(())
    }

    fn complete_write(&mut self, index: usize) {
        let Some(Waiting { id, ticket, result }) = self.writes.remove(index) else { return };
        let write = &self.trace.writes[id];
        if result.is_ok() {
            for (block, page) in (write.at..).zip(&write.pages) {
                self.cache.insert(block, Arc::clone(page));
                self.rotten.remove(&block);
            }
        }
        self.trace.events.push(Event::Completed(id, result.is_ok()));
        ticket.complete(result);
    }

    fn complete_flush(&mut self, index: usize) {
        let Some(WaitingFlush { id, ticket, result }) = self.flushes.remove(index) else { return };
        self.trace.events.push(Event::FlushDone(id, result.is_ok()));
        ticket.complete(result);
    }

    /// Completes one request of those in flight; false if there is none.
    fn complete_some(&mut self) -> bool {
        let count = self.writes.len() + self.flushes.len();
        if count == 0 {
            return false;
        }
        let index = self.random.below(count as u64) as usize;
        match index.checked_sub(self.writes.len()) {
            None => self.complete_write(index),
            Some(flush) => self.complete_flush(flush),
        }
        true
    }

    fn overlaps(&self, at: u64, blocks: u64) -> bool {
        self.writes.iter().any(|waiting| {
            let write = &self.trace.writes[waiting.id];
            write.at < at + blocks && at < write.at + write.pages.len() as u64
        })
    }
}

impl Device for SimDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    /// What nobody has written, as far as this device has lived.
    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        let state = self.state.lock();
        let is_hole = |block: u64| {
            state.disk.get(block).is_none() && !state.cache.contains_key(&block) && !state.overlaps(block, 1)
        };
        let start = (at.0..self.blocks).find(|&block| is_hole(block))?;
        let end = (start..self.blocks).find(|&block| !is_hole(block)).unwrap_or(self.blocks);
        Some(BlockNo(start)..BlockNo(end))
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.let_in();
        let mut state = self.state.lock();
        state.count(Operation::Read, at)?;
        if at.0 + (into.len() / BLOCK_BYTES) as u64 > self.blocks {
            return Err(DeviceError::OutOfRange {
                operation: Operation::Read,
                block: at,
                blocks: self.blocks,
            });
        }
        let blocks = at.0..at.0 + (into.len() / BLOCK_BYTES) as u64;
        let unreadable = |(_, rotten): &(&u64, &Rotten)| rotten.rot == Rot::Unreadable;
        if let Some((&block, _)) = state.rotten.range(blocks).find(unreadable) {
            return Err(DeviceError::Io { operation: Operation::Read, block: BlockNo(block), errno: EIO });
        }
        state.counters.read_bytes += into.len() as u64;
        for (block, bytes) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            match state.cache.get(&block).or_else(|| state.disk.get(block)) {
                Some(page) => bytes.copy_from_slice(&page[..]),
                None => bytes.fill(0),
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.let_in();
        if !self.journal.contains(&at.0) {
            self.call_between(Operation::Write);
        }
        let mut state = self.state.lock();
        let result = state.count(Operation::Write, at);
        let chunks = data.iter().flat_map(|buffer| buffer.chunks(BLOCK_BYTES));
        let pages: Vec<Arc<Page>> =
            chunks.map(|chunk| Arc::new(Page::try_from(chunk).expect("buffers are whole blocks"))).collect();
        let blocks = pages.len() as u64;
        assert!(at.0 + blocks <= self.blocks, "a write of block {at} goes beyond the end of the device");
        assert!(!state.overlaps(at.0, blocks), "writes that overlap are in flight together at block {at}");
        state.counters.written_bytes += blocks * BLOCK_BYTES as u64;
        let id = state.trace.writes.len();
        state.trace.writes.push(Write { at: at.0, pages });
        state.trace.events.push(Event::Submitted(id));
        let ticket = Ticket::pending();
        state.writes.push_back(Waiting { id, ticket: ticket.clone(), result });
        if state.random.one_in(2) {
            let last = state.writes.len() - 1;
            state.complete_write(last);
        }
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        self.call_between(Operation::Flush);
        let mut state = self.state.lock();
        let result = state.count(Operation::Flush, BlockNo(0));
        let id = state.trace.flushes;
        state.trace.flushes += 1;
        state.trace.events.push(Event::FlushIssued(id));
        let ticket = Ticket::pending();
        state.flushes.push_back(WaitingFlush { id, ticket: ticket.clone(), result });
        ticket
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.let_in();
        let mut state = self.state.lock();
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            assert!(state.complete_some(), "somebody waits for a request that this device never had");
        }
    }

    fn poll(&self) {
        let mut state = self.state.lock();
        for _ in 0..state.random.below(3) {
            state.complete_some();
        }
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.call_between(Operation::Discard);
        let mut state = self.state.lock();
        state.count(Operation::Discard, at)?;
        assert!(at.0 + blocks <= self.blocks, "a discard of block {at} goes beyond the end of the device");
        assert!(!state.overlaps(at.0, blocks), "block {at} is discarded while a write to it is in flight");
        let page = match state.random.one_in(2) {
            true => Arc::new([0; BLOCK_BYTES]),
            false => Arc::new([GARBAGE; BLOCK_BYTES]),
        };
        let id = state.trace.writes.len();
        state.trace.writes.push(Write { at: at.0, pages: vec![page; blocks as usize] });
        state.trace.events.push(Event::Submitted(id));
        state.writes.push_back(Waiting { id, ticket: Ticket::pending(), result: Ok(()) });
        let last = state.writes.len() - 1;
        state.complete_write(last);
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.state.lock().counters
    }
}
