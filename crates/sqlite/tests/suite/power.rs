//! A device whose power can be cut after a number of operations, and what is on it then.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Bytes that a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// Pseudo-random numbers (splitmix64): what a cut keeps follows from its seed.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Default)]
struct State {
    durable: HashMap<u64, Vec<u8>>,
    /// Writes of blocks since the last flush, oldest first.
    pending: Vec<(u64, Vec<u8>)>,
    current: HashMap<u64, Vec<u8>>,
    operations: u64,
    counters: DeviceCounters,
}

/// What survives a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Only what was flushed.
    Flushed,
    /// Of what was not, some sectors, by chance.
    Some(u64),
}

pub struct PowerDevice {
    blocks: u64,
    /// The operation at which the power goes.
    cut_at: u64,
    state: Mutex<State>,
}

impl PowerDevice {
    pub fn new(blocks: u64, cut_at: u64) -> PowerDevice {
        PowerDevice { blocks, cut_at, state: Mutex::default() }
    }

    /// A device with the content of another one.
    pub fn with(image: &HashMap<u64, Vec<u8>>, blocks: u64, cut_at: u64) -> PowerDevice {
        let device = PowerDevice::new(blocks, cut_at);
        {
            let mut state = device.state.lock();
            state.durable = image.clone();
            state.current = image.clone();
        }
        device
    }

    /// Writes and flushes so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    pub fn is_cut(&self) -> bool {
        self.state.lock().operations >= self.cut_at
    }

    /// Everything that is durable now.
    pub fn durable(&self) -> HashMap<u64, Vec<u8>> {
        self.state.lock().durable.clone()
    }

    /// What is on the device when the power is back.
    pub fn after(&self, keep: Keep) -> Arc<MemoryDevice> {
        let state = self.state.lock();
        let mut blocks = state.durable.clone();
        if let Keep::Some(seed) = keep {
            let mut chance = Chance(seed);
            for (block, content) in &state.pending {
                let old = blocks.entry(*block).or_insert_with(|| vec![0; BLOCK_BYTES]);
                // All of it, nothing, or some sectors.
                let fate = chance.below(3);
                for sector in 0..BLOCK_BYTES / SECTOR_BYTES {
                    if fate == 0 || fate == 1 && chance.below(2) == 0 {
                        let part = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                        old[part.clone()].copy_from_slice(&content[part]);
                    }
                }
            }
        }
        let device = MemoryDevice::new(self.blocks);
        for (block, content) in blocks {
            device.write(BlockNo(block), vec![Arc::new(Buffer::from_bytes(&content))]).expect("memory");
        }
        Arc::new(device)
    }

    fn step(&self, state: &mut State) -> Result<(), DeviceError> {
        if state.operations >= self.cut_at {
            return Err(DeviceError::ShutDown);
        }
        state.operations += 1;
        // The last operation before the cut is in the cache, and its caller never hears of it.
        if state.operations >= self.cut_at { Err(DeviceError::ShutDown) } else { Ok(()) }
    }
}

impl Device for PowerDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let state = self.state.lock();
        for (block, part) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            match state.current.get(&block) {
                Some(content) => part.copy_from_slice(content),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let mut state = self.state.lock();
        if state.operations >= self.cut_at {
            return Ticket::completed(Err(DeviceError::ShutDown));
        }
        let result = self.step(&mut state);
        state.counters.writes += 1;
        let parts = data.iter().flat_map(|buffer| buffer.chunks(BLOCK_BYTES));
        for (block, part) in (at.0..).zip(parts) {
            state.pending.push((block, part.to_vec()));
            state.current.insert(block, part.to_vec());
        }
        Ticket::completed(result)
    }

    fn submit_flush(&self) -> Ticket {
        let mut state = self.state.lock();
        // A flush that the cut interrupts has maybe written something: that is Keep::Some.
        let result = self.step(&mut state);
        if result.is_ok() {
            state.counters.flushes += 1;
            let pending = std::mem::take(&mut state.pending);
            state.durable.extend(pending);
        }
        Ticket::completed(result)
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("every ticket is complete when it is returned")
    }

    fn poll(&self) {}

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.state.lock().counters
    }
}
