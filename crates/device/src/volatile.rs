//! A device that forgets what was not flushed, as a disk's write cache does at a power cut.
//!
//! Writes complete into an overlay in memory; only a flush carries them to the device below. So killing the
//! process (or dropping this wrapper) loses exactly the writes no flush has covered, and a crash test of a
//! mount needs nothing but `kill -9`. A kill in the middle of a flush leaves some of its writes, as a real
//! device may.
//!
//! Invariants:
//! - a block's newest content is in `pending`, else in `flushing`, else on the inner device;
//! - `flushing` is not empty only while a flush runs or after one failed; flushes run one at a time;
//! - a flush carries the writes that completed before it was issued; a later one waits for the next flush.
//!
//! Memory: everything written since the last flush is held, at the size of the buffers written, which are
//! shared and not copied. A user that never flushes fills the memory; the engine's commit interval bounds it
//! to what is written in that time.
//!
//! Locks: `flush_turn` before `overlay`. The overlay's lock is never held during I/O on the inner device.

use crate::counters::Counters;
use crate::range::{check_range, check_read, check_write};
use crate::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Writes of a flush that are in flight together on the inner device.
const FLUSH_WRITES_IN_FLIGHT_MAX: usize = 32;
/// Blocks per write of a flush.
const FLUSH_WRITE_BLOCKS_MAX: usize = 256;

/// One block's content: a block of a shared buffer.
#[derive(Clone)]
struct Page {
    buffer: Arc<Buffer>,
    /// Which block of the buffer.
    index: usize,
}

impl Page {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.index * BLOCK_BYTES..][..BLOCK_BYTES]
    }
}

#[derive(Default)]
struct Overlay {
    /// Written since the last flush started.
    pending: BTreeMap<u64, Page>,
    /// Being carried to the inner device by the running flush.
    flushing: Arc<BTreeMap<u64, Page>>,
}

/// A wrapper that keeps unflushed writes only in memory.
pub struct Volatile {
    // Constant after creation.
    inner: Arc<dyn Device>,
    counters: Counters,
    /// Held by the running flush.
    flush_turn: Mutex<()>,
    overlay: Mutex<Overlay>,
}

impl Volatile {
    pub fn new(inner: Arc<dyn Device>) -> Volatile {
        Volatile {
            inner,
            counters: Counters::default(),
            flush_turn: Mutex::default(),
            overlay: Mutex::default(),
        }
    }

    /// Blocks whose newest content a power cut would lose.
    pub fn unflushed_blocks(&self) -> u64 {
        let overlay = self.overlay.lock();
        let superseded = overlay.flushing.keys().filter(|block| overlay.pending.contains_key(block)).count();
        (overlay.pending.len() + overlay.flushing.len() - superseded) as u64
    }

    /// What the device below was asked to do.
    pub fn inner_counters(&self) -> DeviceCounters {
        self.inner.counters()
    }

    fn flush_overlay(&self) -> Result<(), DeviceError> {
        let _turn = self.flush_turn.lock();
        let flushing = {
            let mut overlay = self.overlay.lock();
            let mut pages = std::mem::take(&mut overlay.pending);
            // Left over by a flush that failed; what was written since is newer.
            for (&block, page) in overlay.flushing.iter() {
                pages.entry(block).or_insert_with(|| page.clone());
            }
            overlay.flushing = Arc::new(pages);
            Arc::clone(&overlay.flushing)
        };
        write_all(&*self.inner, &flushing)?;
        self.inner.flush()?;
        self.overlay.lock().flushing = Arc::default();
        Ok(())
    }
}

/// Writes the pages in runs of consecutive blocks and waits for all of them; the first error wins.
fn write_all(inner: &dyn Device, pages: &BTreeMap<u64, Page>) -> Result<(), DeviceError> {
    let mut result = Ok(());
    let mut tickets = Vec::new();
    let mut runs = runs(pages).into_iter().peekable();
    while let Some((at, run)) = runs.next() {
        tickets.push(inner.submit_write(BlockNo(at), run));
        if tickets.len() == FLUSH_WRITES_IN_FLIGHT_MAX || runs.peek().is_none() {
            for ticket in tickets.drain(..) {
                result = result.and(inner.wait(&ticket));
            }
        }
    }
    result
}

/// Groups the pages into runs of consecutive blocks.
fn runs(pages: &BTreeMap<u64, Page>) -> Vec<(u64, Vec<Arc<Buffer>>)> {
    let mut runs: Vec<(u64, Vec<Arc<Buffer>>)> = Vec::new();
    let mut end = None;
    for (&block, page) in pages {
        let data = match page.buffer.blocks() {
            1 => Arc::clone(&page.buffer),
            _ => Arc::new(Buffer::from_bytes(page.bytes())),
        };
        match runs.last_mut() {
            Some((_, run)) if end == Some(block) && run.len() < FLUSH_WRITE_BLOCKS_MAX => run.push(data),
            _ => runs.push((block, vec![data])),
        }
        end = Some(block + 1);
    }
    runs
}

impl Device for Volatile {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let count = check_read(at, into, self.blocks())?;
        self.counters.count_read(count);
        // The overlay is looked at first: a flush that ends between the two looks has moved its pages to the
        // inner device, where the second look would find them, but never the other way round.
        let range = at.0..at.0 + count;
        let held: Vec<(u64, Page)> = {
            let overlay = self.overlay.lock();
            let flushing = overlay.flushing.range(range.clone());
            let newest_last = flushing.chain(overlay.pending.range(range));
            newest_last.map(|(&block, page)| (block, page.clone())).collect()
        };
        self.inner.read(at, into)?;
        for (block, page) in held {
            let start = (block - at.0) as usize * BLOCK_BYTES;
            into[start..start + BLOCK_BYTES].copy_from_slice(page.bytes());
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let count = match check_write(at, &data, self.blocks()) {
            Ok(count) => count,
            Err(error) => return Ticket::completed(Err(error)),
        };
        self.counters.count_write(count);
        let pages = data.iter().flat_map(|buffer| {
            (0..buffer.blocks() as usize).map(|index| Page { buffer: Arc::clone(buffer), index })
        });
        self.overlay.lock().pending.extend((at.0..).zip(pages));
        Ticket::completed(Ok(()))
    }

    /// Flushes on the caller's thread: the ticket returned is complete.
    fn submit_flush(&self) -> Ticket {
        Ticket::completed(self.flush())
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("every ticket of a volatile device is complete when it is returned")
    }

    fn poll(&self) {}

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.count_flush();
        self.flush_overlay()
    }

    /// Forgets the blocks' unflushed content and passes the discard on at once: like a real device, it orders
    /// discards after nothing, so a user that discards too early is caught.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, at, blocks, self.blocks())?;
        self.counters.count_discard();
        self.overlay.lock().pending.extract_if(at.0..at.0 + blocks, |_, _| true).for_each(drop);
        self.inner.discard(at, blocks)
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        self.inner.discard_blocks_min()
    }

    /// What this device was asked to do; see [`Volatile::inner_counters`] for what reached the device below.
    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

#[cfg(test)]
mod tests;
