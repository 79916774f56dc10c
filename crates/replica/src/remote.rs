//! [`RemoteDevice`]: a volume as its replica holds it at one position, for reading.
//!
//! Nothing is written, neither here nor there. Frames that were fetched are kept in memory, the newest of them, up to a
//! bound.

use crate::newest::{Newest, Place};
use crate::source::{Fetching, Source};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, ReadRequest, Ticket};
use syncline_format::replica::FRAME_BLOCKS;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// EROFS of errno.h.
const EROFS: i32 = 30;

/// At most so small a part of what is kept is fetched at a time: each block brings its frame with it, and none of them
/// may push another one out that is waited for.
const FRAME_PARTS: usize = 2 * FRAME_BLOCKS;

/// Blocks that were fetched, and when each was used last.
#[derive(Default)]
struct Kept {
    blocks: HashMap<u64, (u64, Arc<Vec<u8>>, usize)>,
    /// Block by use.
    uses: BTreeMap<u64, u64>,
    clock: u64,
}

impl Kept {
    fn keep(&mut self, block: u64, bytes: &Arc<Vec<u8>>, at: usize, blocks_max: usize) {
        self.clock += 1;
        if let Some((use_before, ..)) = self.blocks.insert(block, (self.clock, Arc::clone(bytes), at)) {
            self.uses.remove(&use_before);
        }
        self.uses.insert(self.clock, block);
        while self.blocks.len() > blocks_max {
            let Some((_, block)) = self.uses.pop_first() else { break };
            self.blocks.remove(&block);
        }
    }

    /// Copies a block out, if it is there.
    fn copy(&mut self, block: u64, into: &mut [u8]) -> bool {
        self.clock += 1;
        let now = self.clock;
        let Some((used, bytes, at)) = self.blocks.get_mut(&block) else { return false };
        self.uses.remove(used);
        *used = now;
        into.copy_from_slice(&bytes[*at..*at + BLOCK_BYTES]);
        self.uses.insert(now, block);
        true
    }
}

/// A device that reads from a replica.
pub struct RemoteDevice {
    blocks: u64,
    fetching: Fetching,
    kept: Mutex<Kept>,
    blocks_max: usize,
    reads: AtomicU64,
    read_blocks: AtomicU64,
}

impl RemoteDevice {
    /// A volume of so many blocks, of which about `memory` bytes are kept at most.
    pub fn new(blocks: u64, newest: Newest, source: impl Source, memory: usize) -> RemoteDevice {
        RemoteDevice {
            blocks,
            fetching: Fetching::new(newest, Box::new(source), 0),
            kept: Mutex::default(),
            blocks_max: (memory / BLOCK_BYTES).max(1024),
            reads: AtomicU64::new(0),
            read_blocks: AtomicU64::new(0),
        }
    }

    /// Fetches what is not kept of these runs, all at the same time.
    ///
    /// # Errors
    /// It cannot be fetched.
    pub fn want(&self, runs: &[Range<u64>]) -> Result<(), DeviceError> {
        loop {
            let missing: Vec<Range<u64>> = {
                let kept = self.kept.lock();
                let data = runs.iter().flat_map(|run| self.fetching.newest.places(run.clone()));
                let data = data.filter(|(_, place)| matches!(place, Place::Data { .. }));
                data.flat_map(|(run, _)| run)
                    .filter(|block| !kept.blocks.contains_key(block))
                    .map(|block| block..block + 1)
                    .collect()
            };
            if missing.is_empty() || self.fetching.fetch(&missing, |found| self.keep(found))? {
                return Ok(());
            }
        }
    }

    fn keep(&self, found: Vec<(u64, Vec<u8>)>) -> Result<(), DeviceError> {
        let mut kept = self.kept.lock();
        for (first, bytes) in found {
            let bytes = Arc::new(bytes);
            for (number, at) in (0..bytes.len()).step_by(BLOCK_BYTES).enumerate() {
                kept.keep(first + number as u64, &bytes, at, self.blocks_max);
            }
        }
        Ok(())
    }

    fn refuse(operation: Operation, block: BlockNo) -> DeviceError {
        DeviceError::Io { operation, block, errno: EROFS }
    }

    /// What it holds of a part of the volume that is not larger than what is kept.
    fn read_part(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let run = at.0..at.0 + (into.len() / BLOCK_BYTES) as u64;
        loop {
            self.want(std::slice::from_ref(&run))?;
            let mut kept = self.kept.lock();
            let mut is_complete = true;
            into.fill(0);
            for (part, place) in self.fetching.newest.places(run.clone()) {
                if !matches!(place, Place::Data { .. }) {
                    continue;
                }
                for block in part {
                    let from = (block - run.start) as usize * BLOCK_BYTES;
                    is_complete &= kept.copy(block, &mut into[from..from + BLOCK_BYTES]);
                }
            }
            // Others may have pushed it out meanwhile.
            if is_complete {
                return Ok(());
            }
        }
    }
}

impl Device for RemoteDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = (into.len() / BLOCK_BYTES) as u64;
        if at.0.checked_add(blocks).is_none_or(|end| end > self.blocks) {
            return Err(DeviceError::OutOfRange {
                operation: Operation::Read,
                block: at,
                blocks: self.blocks,
            });
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_blocks.fetch_add(blocks, Ordering::Relaxed);
        let part = self.blocks_max / FRAME_PARTS * BLOCK_BYTES;
        for (number, into) in into.chunks_mut(part).enumerate() {
            self.read_part(at.plus((number * part / BLOCK_BYTES) as u64), into)?;
        }
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        let runs: Vec<Range<u64>> = requests
            .iter()
            .map(|request| request.at.0..request.at.0 + (request.into.len() / BLOCK_BYTES) as u64)
            .collect();
        let blocks: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if blocks <= (self.blocks_max / FRAME_PARTS) as u64 {
            self.want(&runs)?;
        }
        requests.iter_mut().try_for_each(|request| self.read(request.at, request.into))
    }

    fn submit_write(&self, at: BlockNo, _data: Vec<Arc<Buffer>>) -> Ticket {
        Ticket::completed(Err(RemoteDevice::refuse(Operation::Write, at)))
    }

    fn submit_flush(&self) -> Ticket {
        Ticket::completed(Ok(()))
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().unwrap_or(Err(DeviceError::ShutDown))
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Err(RemoteDevice::refuse(Operation::Discard, at))
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        None
    }

    fn counters(&self) -> DeviceCounters {
        let mut counters = DeviceCounters::default();
        counters.reads = self.reads.load(Ordering::Relaxed);
        counters.read_bytes = self.read_blocks.load(Ordering::Relaxed) * BLOCK_BYTES as u64;
        counters
    }
}
