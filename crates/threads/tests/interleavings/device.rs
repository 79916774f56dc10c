//! A device whose requests complete late, in any order, as the scheduler and the seed decide.
//!
//! A write is in flight until the device's own thread completes it; a flush, once it completes, makes exactly those
//! writes durable that had completed when it was issued. So [`SlowDevice::crash`] knows at every moment what a power
//! cut would leave. A failed write is lost. A failed flush loses the writes that it covered, and every flush in
//! flight or issued later fails with it, as the file device has it.
//!
//! Writes that overlap are never in flight together: that is the engine's duty (R8) and asserted here.

use crate::image::{Image, Page};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::JoinHandle;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

const SECTOR: usize = 512;

/// Which request fails, counted from when it is planted.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Write(u64),
    Flush(u64),
}

struct Write {
    at: u64,
    pages: Vec<Page>,
}

struct Flying {
    write: Write,
    ticket: Ticket,
}

struct Flush {
    /// Covers the writes that completed before this many others.
    covers: u64,
    ticket: Ticket,
}

struct Inner {
    durable: Image,
    /// Completed and not durable, with the number of each completion.
    cached: Vec<(u64, Write)>,
    completions: u64,
    flying: Vec<Flying>,
    flushes: Vec<Flush>,
    /// Requests complete when they are submitted: for the set-up.
    instant: bool,
    fault: Option<Fault>,
    flush_failed: bool,
    stopping: bool,
    counters: DeviceCounters,
}

pub struct SlowDevice {
    blocks: u64,
    inner: Mutex<Inner>,
    submitted: Condvar,
    completed: Condvar,
}

impl SlowDevice {
    pub fn new(blocks: u64, image: Image) -> Arc<SlowDevice> {
        Arc::new(SlowDevice {
            blocks,
            inner: Mutex::new(Inner {
                durable: image,
                cached: Vec::new(),
                completions: 0,
                flying: Vec::new(),
                flushes: Vec::new(),
                instant: true,
                fault: None,
                flush_failed: false,
                stopping: false,
                counters: DeviceCounters::default(),
            }),
            submitted: Condvar::new(),
            completed: Condvar::new(),
        })
    }

    /// From now on requests are slow; the returned thread completes them until [`SlowDevice::stop`].
    pub fn start(self: &Arc<Self>) -> JoinHandle<()> {
        self.inner.lock().unwrap().instant = false;
        let device = Arc::clone(self);
        shuttle::thread::spawn(move || device.run())
    }

    pub fn stop(&self) {
        self.inner.lock().unwrap().stopping = true;
        self.submitted.notify_all();
    }

    pub fn plant(&self, fault: Fault) {
        self.inner.lock().unwrap().fault = Some(fault);
    }

    /// What a power cut now would leave: all that is durable, and of the rest nothing, everything, or any part, torn.
    pub fn crash(&self) -> Image {
        let inner = self.inner.lock().unwrap();
        let mut image = inner.durable.clone();
        let mut random = thread_rng();
        let mode = random.gen_range(0..4);
        let unflushed = inner.cached.iter().map(|(_, write)| write);
        for write in unflushed.chain(inner.flying.iter().map(|flying| &flying.write)) {
            let survives = match mode {
                0 | 1 => false,
                2 => true,
                _ => random.gen_bool(0.5),
            };
            if survives {
                let torn = mode == 3 && random.gen_bool(0.3);
                write.store(&mut image, &mut || !torn || thread_rng().gen_bool(0.5));
            }
        }
        image
    }

    fn run(&self) {
        let mut inner = self.inner.lock().unwrap();
        loop {
            while inner.flying.is_empty() && inner.flushes.is_empty() {
                if inner.stopping {
                    return;
                }
                inner = self.submitted.wait(inner).unwrap();
            }
            let choice = thread_rng().gen_range(0..inner.flying.len() + inner.flushes.len());
            inner.complete(choice);
            self.completed.notify_all();
            drop(inner);
            shuttle::thread::yield_now();
            inner = self.inner.lock().unwrap();
        }
    }
}

impl Write {
    /// Stores the sectors that `keep` wants.
    fn store(&self, image: &mut Image, keep: &mut dyn FnMut() -> bool) {
        for (block, page) in (self.at..).zip(&self.pages) {
            let mut target = image.page(block).to_vec();
            for (sector, bytes) in page.chunks(SECTOR).enumerate() {
                if keep() {
                    target[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(bytes);
                }
            }
            image.put(block, target.into());
        }
    }

    fn end(&self) -> u64 {
        self.at + self.pages.len() as u64
    }
}

impl Inner {
    /// Completes a write in flight, or a flush.
    fn complete(&mut self, choice: usize) {
        if choice < self.flying.len() {
            let Flying { write, ticket } = self.flying.swap_remove(choice);
            if self.strikes(Operation::Write) {
                let block = BlockNo(write.at);
                return ticket.complete(Err(DeviceError::Io {
                    operation: Operation::Write,
                    block,
                    errno: 5,
                }));
            }
            self.cached.push((self.completions, write));
            self.completions += 1;
            return ticket.complete(Ok(()));
        }
        let flush = self.flushes.swap_remove(choice - self.flying.len());
        let (covered, rest) =
            std::mem::take(&mut self.cached).into_iter().partition(|(number, _)| *number < flush.covers);
        self.cached = rest;
        self.flush_failed |= self.strikes(Operation::Flush);
        if self.flush_failed {
            let operation = Operation::Flush;
            return flush.ticket.complete(Err(DeviceError::Io { operation, block: BlockNo(0), errno: 5 }));
        }
        let covered: Vec<(u64, Write)> = covered;
        for (_, write) in covered {
            write.store(&mut self.durable, &mut || true);
        }
        flush.ticket.complete(Ok(()));
    }

    /// Whether the planted fault is this operation's.
    fn strikes(&mut self, operation: Operation) -> bool {
        let left = match (&mut self.fault, operation) {
            (Some(Fault::Write(left)), Operation::Write) | (Some(Fault::Flush(left)), Operation::Flush) => {
                left
            }
            _ => return false,
        };
        if *left == 0 {
            self.fault = None;
            return true;
        }
        *left -= 1;
        false
    }
}

impl Device for SlowDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let inner = self.inner.lock().unwrap();
        for (block, page) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            let cached = inner.cached.iter().rev().map(|(_, write)| write);
            let newest = cached.clone().find(|write| (write.at..write.end()).contains(&block));
            match newest {
                Some(write) => page.copy_from_slice(&write.pages[(block - write.at) as usize]),
                None => page.copy_from_slice(inner.durable.page(block)),
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let bytes: Vec<u8> = data.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let pages = bytes.chunks(BLOCK_BYTES).map(|page| page.into()).collect();
        let write = Write { at: at.0, pages };
        assert!(write.end() <= self.blocks, "a write beyond the end");
        let mut inner = self.inner.lock().unwrap();
        let overlaps = |other: &Flying| other.write.at < write.end() && write.at < other.write.end();
        assert!(
            !inner.flying.iter().any(overlaps),
            "R8: two writes of block {} are in flight together",
            at.0
        );
        inner.counters.writes += 1;
        let ticket = Ticket::pending();
        inner.flying.push(Flying { write, ticket: ticket.clone() });
        if inner.instant {
            inner.complete(0);
        }
        self.submitted.notify_all();
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        let mut inner = self.inner.lock().unwrap();
        inner.counters.flushes += 1;
        let ticket = Ticket::pending();
        let covers = inner.completions;
        inner.flushes.push(Flush { covers, ticket: ticket.clone() });
        if inner.instant {
            inner.complete(0);
        }
        self.submitted.notify_all();
        ticket
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock().unwrap();
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            inner = self.completed.wait(inner).unwrap();
        }
    }

    fn poll(&self) {}

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.lock().unwrap().counters
    }
}
