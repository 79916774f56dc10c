//! Reading the journal ring: following the chain from the tail, and searching beyond its end.

use crate::StoreError;
use crate::journal::record_blocks_max;
use syncline_device::Device;
use syncline_format::record::{self, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Generation, Lsn, Sequence, VolumeId};

/// Blocks read at a time.
const WINDOW_BLOCKS: u64 = 256;
/// The search for records beyond the end verifies at most this many times the ring.
const VERIFY_RINGS_MAX: u64 = 4;

/// A record of the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chained {
    /// Block within the ring.
    pub(crate) block: u64,
    pub(crate) info: RecordInfo,
}

/// Reads the ring through a window.
pub(crate) struct RingReader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    volume: VolumeId,
    window: Vec<u8>,
    window_start: u64,
}

impl<'a> RingReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, superblock: &'a Superblock) -> RingReader<'a> {
        let volume = superblock.volume_id();
        RingReader { device, superblock, volume, window: Vec::new(), window_start: 0 }
    }

    fn ring_blocks(&self) -> u64 {
        self.superblock.layout.journal_blocks
    }

    /// Blocks `block..block + blocks` of the ring; reads ahead.
    fn bytes(&mut self, block: u64, blocks: u64) -> Result<&[u8], StoreError> {
        let held = self.window_start..self.window_start + (self.window.len() / BLOCK_BYTES) as u64;
        if block < held.start || block + blocks > held.end {
            let len = blocks.max(WINDOW_BLOCKS).min(self.ring_blocks() - block);
            self.window.resize(len as usize * BLOCK_BYTES, 0);
            self.window_start = block;
            self.device.read(self.superblock.layout.journal_start.plus(block), &mut self.window)?;
        }
        let from = (block - self.window_start) as usize * BLOCK_BYTES;
        Ok(&self.window[from..from + blocks as usize * BLOCK_BYTES])
    }

    /// The verified record at a ring block, if there is one.
    pub(crate) fn record(&mut self, block: u64) -> Result<Option<(RecordInfo, u64, Vec<u8>)>, StoreError> {
        let Some(info) = self.peek(block)? else { return Ok(None) };
        let at = self.superblock.layout.journal_start.plus(block);
        let volume = self.volume;
        let bytes = self.bytes(block, info.blocks())?;
        Ok(record::verify(bytes, at, volume).ok().map(|(info, sum, payload)| (info, sum, payload.to_vec())))
    }

    fn peek(&mut self, block: u64) -> Result<Option<RecordInfo>, StoreError> {
        let at = self.superblock.layout.journal_start.plus(block);
        let (volume, ring_blocks) = (self.volume, self.ring_blocks());
        let info = record::peek(self.bytes(block, 1)?, at, volume).ok();
        Ok(info.filter(|info| {
            info.blocks() <= record_blocks_max(ring_blocks) && block + info.blocks() <= ring_blocks
        }))
    }

    /// Follows the chain from the superblock's tail to its end.
    ///
    /// Errors: a chained record of a generation newer than the superblock's.
    pub(crate) fn chain(&mut self) -> Result<Vec<Chained>, StoreError> {
        let tail = self.superblock.tail;
        let (mut block, mut sequence, mut predecessor) = (tail.block, tail.sequence, tail.predecessor);
        let mut chain: Vec<Chained> = Vec::new();
        let mut taken = 0;
        let mut expected_lsn: Option<Lsn> = None;
        loop {
            // A record that did not fit the rest of the lap starts the next one.
            let mut candidates = vec![block, 0];
            candidates.retain(|candidate| *candidate < self.ring_blocks());
            candidates.dedup();
            let mut next = None;
            for candidate in candidates {
                if let Some((info, sum, _)) = self.record(candidate)?
                    && info.epoch == self.superblock.epoch
                    && info.sequence == sequence
                    && info.predecessor == predecessor
                    && expected_lsn.is_none_or(|lsn| lsn == info.first_lsn)
                {
                    next = Some((candidate, info, sum));
                    break;
                }
            }
            let Some((at, info, sum)) = next else { return Ok(chain) };
            self.check_generation(info.generation)?;
            if chain.is_empty() && info.first_lsn > self.superblock.checkpoint_lsn.next() {
                return Err(StoreError::JournalBroken { sequence });
            }
            taken += info.blocks();
            if taken > self.ring_blocks() {
                return Ok(chain);
            }
            chain.push(Chained { block: at, info });
            block = at + info.blocks();
            sequence = sequence.next();
            predecessor = sum;
            expected_lsn = Some(info.last_lsn().next());
        }
    }

    fn check_generation(&self, record: Generation) -> Result<(), StoreError> {
        let superblock = self.superblock.generation;
        if record > superblock {
            return Err(StoreError::SuperblockLost { record, superblock });
        }
        Ok(())
    }

    /// Searches the whole ring for proof that the chain should have gone on: a record of this epoch beyond the end that
    /// knew the missing one (`end`, the sequence after the last chained record) to be flushed.
    pub(crate) fn search_beyond(&mut self, end: Sequence) -> Result<(), StoreError> {
        // Real records overlap only with what they overwrote: a ring full of long ones inside each other is a forgery, and
        // verifying them all would take for ever.
        let mut budget = VERIFY_RINGS_MAX * self.ring_blocks();
        for block in 0..self.ring_blocks() {
            let Some(info) = self.peek(block)? else { continue };
            let newer = info.generation > self.superblock.generation;
            let knew =
                info.epoch == self.superblock.epoch && info.sequence > end && info.known_flushed >= end;
            if !newer && !knew {
                continue;
            }
            let Some(left) = budget.checked_sub(info.blocks()) else {
                return Err(StoreError::JournalBroken { sequence: end });
            };
            budget = left;
            if self.record(block)?.is_some() {
                self.check_generation(info.generation)?;
                return Err(StoreError::JournalBroken { sequence: end });
            }
        }
        Ok(())
    }
}
