//! Reading the journal ring: following the chain from the tail, and searching beyond its end.
//!
//! The ring is read once, in large windows of several requests in flight. Only what no chained record covers is
//! looked at again by the search: inside of a chained record there is nothing but what that record says.

use crate::StoreError;
use crate::journal::record_blocks_max;
use crate::limits::{
    EPOCHS_MAX, SCAN_LOOK_BLOCKS, SCAN_REQUEST_BLOCKS, SCAN_WINDOW_BLOCKS, VERIFY_RINGS_MAX,
};
use std::collections::BTreeSet;
use std::ops::Range;
use syncline_device::{Buffer, Device, ReadRequest};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, Generation, Lsn, Sequence, VolumeId};

/// Distance between the epochs of consecutive generations: odd, so that none comes twice, and large, so that they do
/// not run into those that are moved on by one.
const EPOCH_STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// A record of the chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chained {
    /// Block within the ring.
    pub(crate) block: u64,
    pub(crate) info: RecordInfo,
}

/// Where a walk along the chain stands: what the next record has to be.
pub(crate) struct Walk {
    block: u64,
    pub(crate) sequence: Sequence,
    predecessor: u64,
    first_lsn: Option<Lsn>,
    /// Places of the records so far, in blocks within the ring.
    places: Vec<Range<u64>>,
    blocks: u64,
}

/// Reads the ring through a window.
pub(crate) struct RingReader<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    volume: VolumeId,
    /// Blocks `held` of the ring, from its first byte on.
    window: Buffer,
    held: Range<u64>,
    /// Epochs of what looked like a record so far.
    epochs: BTreeSet<u64>,
}

impl Walk {
    /// Places of the records so far, in blocks within the ring.
    pub(crate) fn places(&self) -> &[Range<u64>] {
        &self.places
    }
}

impl<'a> RingReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, superblock: &'a Superblock) -> RingReader<'a> {
        let volume = superblock.volume_id();
        RingReader {
            device,
            superblock,
            volume,
            window: Buffer::zeroed(1),
            held: 0..0,
            epochs: BTreeSet::new(),
        }
    }

    fn ring_blocks(&self) -> u64 {
        self.superblock.layout.journal_blocks
    }

    /// Blocks `block..block + blocks` of the ring; reads ahead.
    fn bytes(&mut self, block: u64, blocks: u64) -> Result<&[u8], StoreError> {
        if block < self.held.start || block + blocks > self.held.end {
            self.load(block, blocks)?;
        }
        let from = (block - self.held.start) as usize * BLOCK_BYTES;
        Ok(&self.window[from..from + blocks as usize * BLOCK_BYTES])
    }

    /// Moves the window to `block`; what it holds from there on is not read again.
    fn load(&mut self, block: u64, blocks: u64) -> Result<(), StoreError> {
        // A look elsewhere is not the beginning of a journey.
        let ahead = if (self.held.start..=self.held.end).contains(&block) {
            SCAN_WINDOW_BLOCKS
        } else {
            SCAN_LOOK_BLOCKS
        };
        let len = blocks.max(ahead).min(self.ring_blocks() - block);
        let kept = if self.held.contains(&block) { block..self.held.end } else { block..block };
        let kept_bytes = (kept.end - kept.start) as usize * BLOCK_BYTES;
        let kept_from = (kept.start.saturating_sub(self.held.start)) as usize * BLOCK_BYTES;
        if self.window.blocks() < len {
            let mut larger = Buffer::for_overwrite(len as usize);
            if kept_bytes > 0 {
                larger[..kept_bytes].copy_from_slice(&self.window[kept_from..kept_from + kept_bytes]);
            }
            self.window = larger;
        } else if kept_bytes > 0 {
            self.window.copy_within(kept_from..kept_from + kept_bytes, 0);
        }
        // Nothing is held while a read may fail.
        self.held = 0..0;
        let mut at = self.superblock.layout.journal_start.plus(kept.end);
        let fresh = &mut self.window[kept_bytes..len as usize * BLOCK_BYTES];
        let mut requests = Vec::new();
        for into in fresh.chunks_mut(SCAN_REQUEST_BLOCKS * BLOCK_BYTES) {
            let next = at.plus((into.len() / BLOCK_BYTES) as u64);
            requests.push(ReadRequest { at, into });
            at = next;
        }
        self.device.read_many(&mut requests)?;
        self.held = block..block + len;
        Ok(())
    }

    /// The verified record at a ring block, if there is one, and its checksum.
    fn verified(&mut self, block: u64) -> Result<Option<(RecordInfo, u64)>, StoreError> {
        let Some(info) = self.peek(block)? else { return Ok(None) };
        let at = self.superblock.layout.journal_start.plus(block);
        let volume = self.volume;
        let bytes = self.bytes(block, info.blocks())?;
        Ok(record::verify(bytes, at, volume).ok().map(|(info, sum, _)| (info, sum)))
    }

    /// The batches of a chained record; verifies it again unless the window still holds it.
    pub(crate) fn payload(&mut self, chained: &Chained) -> Result<&[u8], StoreError> {
        let Chained { block, info } = *chained;
        let held = self.held.contains(&block) && block + info.blocks() <= self.held.end;
        if !held && self.verified(block)?.is_none_or(|(now, _)| now != info) {
            let block = self.superblock.layout.journal_start.plus(block);
            let what = "a journal record changed while it was read";
            return Err(StoreError::Inconsistent { block, what });
        }
        let bytes = self.bytes(block, info.blocks())?;
        Ok(&bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + info.payload_bytes as usize])
    }

    fn peek(&mut self, block: u64) -> Result<Option<RecordInfo>, StoreError> {
        let at = self.superblock.layout.journal_start.plus(block);
        let (volume, ring_blocks) = (self.volume, self.ring_blocks());
        let info = record::peek(self.bytes(block, 1)?, at, volume).ok();
        if let Some(info) = &info
            && self.epochs.len() < EPOCHS_MAX
        {
            self.epochs.insert(info.epoch);
        }
        Ok(info.filter(|info| {
            info.blocks() <= record_blocks_max(ring_blocks) && block + info.blocks() <= ring_blocks
        }))
    }

    /// A walk that begins at the superblock's tail.
    pub(crate) fn walk(&self) -> Walk {
        let tail = self.superblock.tail;
        Walk {
            block: tail.block,
            sequence: tail.sequence,
            predecessor: tail.predecessor,
            first_lsn: None,
            places: Vec::new(),
            blocks: 0,
        }
    }

    /// The next record of the chain; `None` at its end.
    ///
    /// Errors: a chained record of a generation newer than the superblock's, or a first one beyond the checkpoint.
    pub(crate) fn next(&mut self, walk: &mut Walk) -> Result<Option<Chained>, StoreError> {
        // A record that did not fit the rest of the lap starts the next one.
        let mut found = None;
        for candidate in [walk.block, 0] {
            if candidate >= self.ring_blocks() {
                continue;
            }
            if let Some((info, sum)) = self.verified(candidate)?
                && info.epoch == self.superblock.epoch
                && info.sequence == walk.sequence
                && info.predecessor == walk.predecessor
                && walk.first_lsn.is_none_or(|lsn| lsn == info.first_lsn)
            {
                found = Some((candidate, info, sum));
                break;
            }
        }
        let Some((block, info, sum)) = found else { return Ok(None) };
        self.check_generation(info.generation)?;
        if walk.places.is_empty() && info.first_lsn > self.superblock.checkpoint_lsn.next() {
            return Err(StoreError::JournalBroken { sequence: walk.sequence });
        }
        if walk.blocks + info.blocks() > self.ring_blocks() {
            return Ok(None);
        }
        walk.blocks += info.blocks();
        walk.places.push(block..block + info.blocks());
        walk.block = block + info.blocks();
        walk.sequence = walk.sequence.next();
        walk.predecessor = sum;
        walk.first_lsn = Some(info.last_lsn().next());
        Ok(Some(Chained { block, info }))
    }

    /// An epoch for the session that is about to begin, from a random number; no other session's records bear it (R14).
    ///
    /// Should two sessions be given the same number (by a process and its copy, a generator that was set back), the
    /// generation tells their epochs apart, since it grows with every session. What was seen of the ring is asked as
    /// well.
    pub(crate) fn new_epoch(&self, random: u64) -> u64 {
        let mut epoch = random.wrapping_add(self.superblock.generation.0.wrapping_mul(EPOCH_STRIDE));
        while epoch == self.superblock.epoch || self.epochs.contains(&epoch) {
            epoch = epoch.wrapping_add(1);
        }
        epoch
    }

    fn check_generation(&self, record: Generation) -> Result<(), StoreError> {
        let superblock = self.superblock.generation;
        if record > superblock {
            return Err(StoreError::SuperblockLost { record, superblock });
        }
        Ok(())
    }

    /// Searches the ring outside of the chain for proof that the walk should have gone on: a record of this epoch
    /// beyond the end that knew the missing one to be flushed, or one that knew a newer superblock.
    ///
    /// Page images hold what users wrote, so a block amid the ring may look like a record without being one; only who
    /// can read the device knows the epoch. Block 0 alone is always the head of a record, of whatever epoch: after a
    /// clean close (`only_head`) it tells whether another session has begun.
    pub(crate) fn search_beyond(&mut self, walk: Walk, only_head: bool) -> Result<(), StoreError> {
        let end = walk.sequence;
        let search_end = if only_head { 1 } else { self.ring_blocks() };
        let mut places = walk.places;
        places.sort_unstable_by_key(|place| place.start);
        let mut places = places.into_iter().peekable();
        // Real records overlap only with what they overwrote: a ring full of long ones inside each other is a
        // forgery, and verifying them all would take for ever.
        let mut budget = VERIFY_RINGS_MAX * self.ring_blocks();
        let mut block = 0;
        while block < search_end {
            if let Some(place) = places.next_if(|place| place.start <= block) {
                block = block.max(place.end);
                continue;
            }
            let at = block;
            block += 1;
            let Some(info) = self.peek(at)? else { continue };
            let known_epoch = info.epoch == self.superblock.epoch;
            let newer = info.generation > self.superblock.generation && (known_epoch || at == 0);
            let knew = known_epoch && info.sequence > end && info.known_flushed >= end;
            if !newer && !knew {
                continue;
            }
            let Some(left) = budget.checked_sub(info.blocks()) else {
                return Err(StoreError::JournalBroken { sequence: end });
            };
            budget = left;
            if self.verified(at)?.is_some() {
                self.check_generation(info.generation)?;
                return Err(StoreError::JournalBroken { sequence: end });
            }
        }
        Ok(())
    }
}
