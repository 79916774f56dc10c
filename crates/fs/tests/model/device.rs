//! A device that keeps unflushed writes apart and completes writes late, so that it can be crashed: any subset of what
//! was not flushed survives, torn at 512-byte granularity. Writes in flight are not visible to reads, so an engine that
//! reads a page back too early reads the wrong one.

use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

const SECTOR: usize = 512;

/// Small deterministic generator (SplitMix64, Steele et al. 2014).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

type Block = Arc<[u8]>;

#[derive(Clone)]
struct Write {
    at: u64,
    blocks: Vec<Block>,
}

/// What a crash works on.
#[derive(Clone)]
struct Medium {
    stable: Vec<Option<Block>>,
    /// Complete, not flushed, in order of completion.
    unflushed: Vec<Write>,
    in_flight: Vec<(Ticket, Write)>,
}

struct Inner {
    medium: Medium,
    /// What reads see: everything complete.
    seen: Vec<Option<Block>>,
    /// The medium at the moment when the power went.
    frozen: Option<Medium>,
    writes_left: Option<u64>,
    /// Writes and flushes that succeed before one fails.
    successes_left: Option<u64>,
    failed: bool,
    random: Random,
    counters: DeviceCounters,
}

pub struct CrashDevice {
    inner: Mutex<Inner>,
}

fn lay(onto: &mut [Option<Block>], write: &Write, keep: &mut dyn FnMut() -> bool) {
    for (index, block) in write.blocks.iter().enumerate() {
        let target = &mut onto[write.at as usize + index];
        let mut bytes = target.as_deref().map_or_else(|| vec![0; BLOCK_BYTES], <[u8]>::to_vec);
        for (sector, data) in block.chunks(SECTOR).enumerate() {
            if keep() {
                bytes[sector * SECTOR..][..SECTOR].copy_from_slice(data);
            }
        }
        *target = Some(bytes.into());
    }
}

fn put(onto: &mut [Option<Block>], write: &Write) {
    for (index, block) in write.blocks.iter().enumerate() {
        onto[write.at as usize + index] = Some(block.clone());
    }
}

impl CrashDevice {
    pub fn new(blocks: u64, seed: u64) -> Arc<CrashDevice> {
        CrashDevice::with(vec![None; blocks as usize], seed)
    }

    fn with(stable: Vec<Option<Block>>, seed: u64) -> Arc<CrashDevice> {
        let seen = stable.clone();
        let medium = Medium { stable, unflushed: Vec::new(), in_flight: Vec::new() };
        let random = Random(seed);
        let counters = DeviceCounters::default();
        let inner = Inner {
            medium,
            seen,
            frozen: None,
            writes_left: None,
            successes_left: None,
            failed: false,
            random,
            counters,
        };
        Arc::new(CrashDevice { inner: Mutex::new(inner) })
    }

    /// The device after the power cut (the one that `power_off_after` brought, or one now).
    pub fn crash(&self, random: &mut Random) -> Arc<CrashDevice> {
        let inner = self.inner.lock().unwrap();
        let medium = inner.frozen.as_ref().unwrap_or(&inner.medium);
        let mut stable = medium.stable.clone();
        let mode = random.below(5);
        let complete = medium.unflushed.len();
        let writes: Vec<&Write> =
            medium.unflushed.iter().chain(medium.in_flight.iter().map(|(_, write)| write)).collect();
        let cut = random.below(writes.len() as u64 + 1) as usize;
        for (index, write) in writes.into_iter().enumerate() {
            let survives = match mode {
                0 => false,
                1 => index < cut,
                2 => index != cut,
                3 => index < complete,
                _ => random.one_in(2),
            };
            let torn = mode == 4 && random.one_in(3);
            if survives && !torn {
                put(&mut stable, write);
            } else if survives {
                lay(&mut stable, write, &mut || random.one_in(2));
            }
        }
        CrashDevice::with(stable, random.next())
    }

    /// The power goes off after this many more writes; callers are not told.
    pub fn power_off_after(&self, writes: u64) {
        self.inner.lock().unwrap().writes_left = Some(writes);
    }

    /// Writes and flushes fail when this many more have succeeded: one of them, or all from then on.
    pub fn fail_after(&self, successes: u64) {
        self.inner.lock().unwrap().successes_left = Some(successes);
    }

    pub fn has_failed(&self) -> bool {
        self.inner.lock().unwrap().failed
    }

    pub fn is_off(&self) -> bool {
        self.inner.lock().unwrap().frozen.is_some()
    }
}

impl Inner {
    fn fails(&mut self, operation: Operation, block: BlockNo) -> Result<(), DeviceError> {
        match &mut self.successes_left {
            None => Ok(()),
            Some(0) => {
                self.failed = true;
                if self.random.one_in(2) {
                    self.successes_left = None;
                }
                Err(DeviceError::Io { operation, block, errno: 5 })
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn complete(&mut self, position: usize) {
        let (ticket, write) = self.medium.in_flight.swap_remove(position);
        put(&mut self.seen, &write);
        self.medium.unflushed.push(write);
        ticket.complete(Ok(()));
    }
}

impl Device for CrashDevice {
    fn blocks(&self) -> u64 {
        self.inner.lock().unwrap().seen.len() as u64
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let inner = self.inner.lock().unwrap();
        for (index, page) in into.chunks_mut(BLOCK_BYTES).enumerate() {
            match &inner.seen[at.0 as usize + index] {
                Some(block) => page.copy_from_slice(block),
                None => page.fill(0),
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let mut inner = self.inner.lock().unwrap();
        let blocks: Vec<Block> =
            data.iter().flat_map(|buffer| buffer.chunks(BLOCK_BYTES)).map(Block::from).collect();
        assert!(at.0 as usize + blocks.len() <= inner.seen.len(), "a write beyond the end");
        match inner.writes_left {
            Some(0) if inner.frozen.is_none() => inner.frozen = Some(inner.medium.clone()),
            Some(0) | None => {}
            Some(left) => inner.writes_left = Some(left - 1),
        }
        inner.counters.writes += 1;
        if let Err(error) = inner.fails(Operation::Write, at) {
            if inner.random.one_in(2) {
                // Some of it may have got there.
                inner.medium.unflushed.push(Write { at: at.0, blocks });
            }
            return Ticket::completed(Err(error));
        }
        let ticket = Ticket::pending();
        inner.medium.in_flight.push((ticket.clone(), Write { at: at.0, blocks }));
        if inner.random.one_in(2) {
            let last = inner.medium.in_flight.len() - 1;
            inner.complete(last);
        }
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        let mut inner = self.inner.lock().unwrap();
        inner.counters.flushes += 1;
        if let Err(error) = inner.fails(Operation::Flush, BlockNo(0)) {
            // What the cache held is lost for good, and later flushes do not tell.
            if inner.random.one_in(2) {
                inner.medium.unflushed.clear();
            }
            return Ticket::completed(Err(error));
        }
        let medium = &mut inner.medium;
        for write in std::mem::take(&mut medium.unflushed) {
            put(&mut medium.stable, &write);
        }
        Ticket::completed(Ok(()))
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        let mut inner = self.inner.lock().unwrap();
        while !ticket.is_complete() {
            // Others may come first.
            let position = inner.random.next() as usize % inner.medium.in_flight.len();
            inner.complete(position);
        }
        ticket.result().expect("complete")
    }

    fn poll(&self) {
        let mut inner = self.inner.lock().unwrap();
        if !inner.medium.in_flight.is_empty() && inner.random.one_in(2) {
            let position = inner.random.next() as usize % inner.medium.in_flight.len();
            inner.complete(position);
        }
    }

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.lock().unwrap().counters
    }
}
