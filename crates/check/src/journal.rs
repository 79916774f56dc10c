//! Walks the journal as recovery would, and applies it in memory.
//!
//! Independent of the engine's recovery on purpose: the two must agree on every volume. The walk is bounded: the chain
//! can be no longer than the ring, and the search behind a break verifies at most four times the ring.

use crate::forest::Forest;
use crate::replay::{ImageAt, Replay};
use crate::report::Findings;
use crate::{CheckError, Code};
use syncline_device::{Buffer, Device};
use syncline_format::batch::{Op, decode_batches, fresh_extent};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::record::{self, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, Lsn, Sequence, TreeId, checksum};

/// A record takes at most this share of the ring.
const RECORD_RING_SHARE: u64 = 8;
/// Blocks read at once while the ring is searched.
const SCAN_BLOCKS: u64 = 256;

/// The ring of one volume.
pub(crate) struct Journal<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
}

/// One record of the chain.
struct Link {
    position: u64,
    info: RecordInfo,
}

/// A record read in full.
struct Record {
    info: RecordInfo,
    checksum: u64,
    bytes: Buffer,
}

impl Record {
    fn payload(&self) -> &[u8] {
        &self.bytes[record::RECORD_HEADER_BYTES..][..self.info.payload_bytes as usize]
    }
}

impl<'a> Journal<'a> {
    pub(crate) fn new(device: &'a dyn Device, superblock: &'a Superblock) -> Journal<'a> {
        Journal { device, superblock }
    }

    /// Follows the chain, decides where the log ends, and applies it.
    pub(crate) fn replay(&self, forest: Forest, findings: &mut Findings) -> Replay {
        let chain = self.chain(findings);
        self.check_end(&chain, findings);
        let mut replay = Replay::new(self.superblock.layout, self.superblock.checkpoint_lsn, forest);
        replay.known_flushed = chain.last().map_or(Sequence(0), |link| link.info.known_flushed);
        for link in &chain {
            let Some(record) = self.read_record(link.position, |_| true) else {
                findings.at(
                    Code::JournalBroken,
                    self.block(link.position),
                    "a record changed while it was read",
                );
                break;
            };
            match decode_batches(record.payload(), link.info.batches) {
                Ok(batches) => {
                    self.replay_record(link, &record, &batches, &mut replay, findings);
                }
                Err(error) => {
                    findings.at(Code::JournalBatch, self.block(link.position), error.to_string());
                    break;
                }
            }
        }
        if replay.forest.is_whole && replay.batches > 0 && replay.forest.state.is_some() {
            replay.forest.is_whole = replay.forest.judge(findings);
        }
        let is_there = |tree: &TreeId| replay.forest.branches.contains_key(tree);
        if replay.forest.state.is_some() && replay.images.keys().any(|(tree, ..)| !is_there(tree)) {
            findings.add(Code::JournalTree, "a page image is of a tree that does not exist");
        }
        if replay.batches > 0 || !replay.images.is_empty() {
            let message = format!(
                "{} batches newer than the checkpoint and {} page images in {} records",
                replay.batches,
                replay.images.len(),
                replay.records
            );
            findings.add(Code::JournalReplay, message);
        }
        replay
    }

    /// The bytes of an image that a replay found.
    pub(crate) fn image(&self, at: &ImageAt) -> Result<Vec<u8>, CheckError> {
        let first = (record::RECORD_HEADER_BYTES + at.offset) / BLOCK_BYTES;
        let skip = (record::RECORD_HEADER_BYTES + at.offset) % BLOCK_BYTES;
        let mut bytes = Buffer::zeroed((skip + at.len).div_ceil(BLOCK_BYTES).max(1));
        self.device.read(self.block(at.position).plus(first as u64), &mut bytes)?;
        Ok(bytes[skip..skip + at.len].to_vec())
    }

    fn block(&self, position: u64) -> BlockNo {
        self.superblock.layout.journal_start.plus(position)
    }

    fn ring(&self) -> u64 {
        self.superblock.layout.journal_blocks
    }

    /// No record is longer.
    fn record_blocks_max(&self) -> u64 {
        (self.ring() / RECORD_RING_SHARE).min((record::RECORD_BYTES_MAX / BLOCK_BYTES) as u64)
    }

    /// Every record from the tail on, in order.
    fn chain(&self, findings: &mut Findings) -> Vec<Link> {
        let tail = self.superblock.tail;
        let (mut position, mut sequence, mut predecessor) = (tail.block, tail.sequence, tail.predecessor);
        let mut walked = 0;
        let mut chain: Vec<Link> = Vec::new();
        loop {
            let wanted = |info: &RecordInfo| {
                info.epoch == self.superblock.epoch
                    && info.sequence == sequence
                    && info.predecessor == predecessor
            };
            if let Err(error) = self.device.read(self.block(position), &mut Buffer::zeroed(1)) {
                let message = format!("record {sequence} may have been here: {error}");
                findings.at(Code::JournalBroken, self.block(position), message);
            }
            let mut found = self.read_record(position, wanted).map(|record| (position, record));
            if found.is_none() && position != 0 {
                found = self.read_record(0, wanted).map(|record| (0, record));
            }
            let Some((at, record)) = found else { break };
            let info = record.info;
            walked += info.blocks();
            if walked > self.ring() {
                break;
            }
            // The search behind the chain's end reports it.
            if info.generation > self.superblock.generation {
                break;
            }
            let expected = match chain.last() {
                Some(link) => link.info.last_lsn().0 + 1,
                None => info.first_lsn.0.min(self.superblock.checkpoint_lsn.0 + 1),
            };
            if info.first_lsn.0 != expected || info.first_lsn.0 == 0 || info.first_lsn.0 > u64::MAX >> 1 {
                let message =
                    format!("record {sequence} begins with batch {}, not {expected}", info.first_lsn);
                findings.at(Code::JournalGap, self.block(at), message);
                break;
            }
            chain.push(Link { position: at, info });
            position = (at + info.blocks()) % self.ring();
            sequence = sequence.next();
            predecessor = record.checksum;
        }
        chain
    }

    /// Whether the chain's end can be the log's end (R4).
    fn check_end(&self, chain: &[Link], findings: &mut Findings) {
        let missing = chain.last().map_or(self.superblock.tail.sequence, |link| link.info.sequence.next());
        let tail = &self.superblock.tail;
        let new_epoch =
            (tail.block, tail.sequence, tail.predecessor) == (0, Sequence(1), self.superblock.epoch);
        if chain.is_empty() && !new_epoch {
            let message = format!("record {}, the first of the log, cannot be read", tail.sequence);
            findings.at(Code::JournalBroken, self.block(tail.block), message);
        }
        if let Some(last) = chain.last().map(|link| link.info.last_lsn())
            && last < self.superblock.checkpoint_lsn
        {
            let message = format!(
                "the log ends with batch {last} before the checkpoint's {}",
                self.superblock.checkpoint_lsn
            );
            findings.add(Code::JournalBroken, message);
        }
        if let Some((position, info)) = self.find_witness(missing) {
            let (code, message) = if info.generation > self.superblock.generation {
                let message = format!(
                    "a record was written under superblock {}, the newest is {}",
                    info.generation, self.superblock.generation
                );
                (Code::JournalFuture, message)
            } else {
                let knew = info.sequence;
                let message =
                    format!("record {missing} cannot be read, but record {knew} knew that it was durable");
                (Code::JournalBroken, message)
            };
            findings.at(code, self.block(position), message);
        }
    }

    /// Searches the ring for a record that shows that something is lost: one beyond `missing` that knew `missing` to
    /// be durable, or one written under a newer superblock. Only its epoch tells a record from a page image that
    /// users made look like one, but at the ring's first block, which is always the head of a record.
    fn find_witness(&self, missing: Sequence) -> Option<(u64, RecordInfo)> {
        let mut budget = 4 * self.ring();
        let witness = |position: u64, info: &RecordInfo| {
            let known_epoch = info.epoch == self.superblock.epoch;
            let knew = known_epoch && info.sequence > missing && info.known_flushed >= missing;
            let newer = info.generation > self.superblock.generation && (known_epoch || position == 0);
            knew || newer
        };
        let mut start = 0;
        while start < self.ring() {
            let blocks = SCAN_BLOCKS.min(self.ring() - start);
            let mut bytes = Buffer::zeroed(blocks as usize);
            // What cannot be read proves nothing.
            let readable = self.device.read(self.block(start), &mut bytes).is_ok();
            for (index, block) in bytes.chunks_exact(BLOCK_BYTES).enumerate().filter(|_| readable) {
                let position = start + index as u64;
                let Ok(info) = record::peek(block, self.block(position), self.superblock.volume_id()) else {
                    continue;
                };
                if !witness(position, &info) || info.blocks() > budget {
                    continue;
                }
                budget -= info.blocks();
                if self.read_record(position, |info| witness(position, info)).is_some() {
                    return Some((position, info));
                }
            }
            start += blocks;
        }
        None
    }

    /// The record at a position of the ring, if a valid one that is `wanted` lies there.
    fn read_record(&self, position: u64, wanted: impl Fn(&RecordInfo) -> bool) -> Option<Record> {
        let (at, volume) = (self.block(position), self.superblock.volume_id());
        let mut head = Buffer::zeroed(1);
        self.device.read(at, &mut head).ok()?;
        let info = record::peek(&head, at, volume).ok()?;
        let too_long = info.blocks() > self.record_blocks_max().min(self.ring() - position);
        if too_long || !wanted(&info) {
            return None;
        }
        let mut bytes = Buffer::zeroed(info.blocks() as usize);
        self.device.read(at, &mut bytes).ok()?;
        let (info, checksum, _) = record::verify(&bytes, at, volume).ok()?;
        wanted(&info).then_some(Record { info, checksum, bytes })
    }

    /// Whether the data of every fresh extent of a batch is there.
    fn data_arrived(&self, ops: &[Op<'_>]) -> bool {
        ops.iter().all(|op| match *op {
            Op::Put { key, value, fresh: true, .. } => {
                fresh_extent(key, value).is_ok_and(|extent| self.extent_matches(&extent))
            }
            _ => true,
        })
    }

    fn extent_matches(&self, extent: &ExtentItem) -> bool {
        let ExtentContent::Written(sums) = &extent.content else { return true };
        if !self.superblock.layout.holds_run(extent.start, extent.pages()) {
            return false;
        }
        let mut data = Buffer::zeroed(sums.len());
        self.device.read(extent.start, &mut data).is_ok()
            && data.chunks_exact(BLOCK_BYTES).zip(sums).all(|(page, &sum)| checksum(page) == sum)
    }

    /// Applies a record's batches up to the first one whose data did not arrive, which cuts the log.
    fn replay_record(
        &self,
        link: &Link,
        record: &Record,
        batches: &[Vec<Op<'_>>],
        replay: &mut Replay,
        findings: &mut Findings,
    ) {
        let layout = &self.superblock.layout;
        for op in batches.iter().flatten() {
            replay.note_blocks(op, layout);
        }
        let checkpoint = self.superblock.checkpoint_lsn;
        replay.records += u64::from(!replay.cut);
        let proven = link.info.sequence <= replay.known_flushed || self.superblock.cut.is_some();
        for (ops, lsn) in batches.iter().zip(link.info.first_lsn.0..) {
            let newer = lsn > checkpoint.0;
            // Where a recovery has decided so, the data may have come to be there since (R12).
            replay.cut |= self.superblock.cut.is_some_and(|cut| lsn >= cut.0);
            if !replay.cut && newer && !self.data_arrived(ops) {
                let block = self.block(link.position);
                if proven {
                    let message = format!("data of batch {lsn} was durable and does not match");
                    findings.at(Code::JournalData, block, message);
                } else {
                    let message = format!("batch {lsn} was not completed and is not part of the log");
                    findings.at(Code::JournalUnproven, block, message);
                    replay.cut = true;
                }
            }
            if replay.cut {
                self.check_cut_off(ops, link, findings);
                continue;
            }
            replay.batches += u64::from(newer);
            replay.last_lsn = replay.last_lsn.max(Lsn(lsn));
            for op in ops {
                replay.apply(op, newer, (record.payload(), link.position), layout, findings);
            }
        }
    }

    /// A batch that is not part of the log has to name blocks that exist all the same: recovery leaves them alone
    /// (R12).
    fn check_cut_off(&self, ops: &[Op<'_>], link: &Link, findings: &mut Findings) {
        for op in ops {
            if let Op::Allocate { start, len } = *op
                && !self.superblock.layout.holds_run(start, len)
            {
                let message = format!("a batch that was cut off names {len} blocks from {start}");
                findings.at(Code::JournalSpace, self.block(link.position), message);
            }
        }
    }
}
