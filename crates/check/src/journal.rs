//! Walks the journal as recovery would, and applies it in memory.
//!
//! Independent of the engine's recovery on purpose: the two must agree on every volume. The walk is bounded: the chain
//! can be no longer than the ring, and the search behind a break verifies at most four times the ring.

use crate::replay::{ImageAt, Replay};
use crate::report::Findings;
use crate::{CheckError, Code};
use syncline_device::{Buffer, Device};
use syncline_format::batch::{Op, decode_batches};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::record::{self, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, Lsn, Sequence, checksum};

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
    pub(crate) fn replay(&self, findings: &mut Findings) -> Replay {
        let chain = self.chain(findings);
        self.check_end(&chain, findings);
        let mut replay = Replay::new(self.superblock.layout, self.superblock.checkpoint_lsn);
        let known = chain.last().map_or(Sequence(0), |link| link.info.known_flushed);
        let mut cut = false;
        for link in &chain {
            let Some(record) = self.read_record(link.position, |_| true) else {
                findings.at(
                    Code::JournalBroken,
                    self.block(link.position),
                    "a record changed while it was read",
                );
                break;
            };
            let batches = match decode_batches(record.payload(), link.info.batches) {
                Ok(batches) => batches,
                Err(error) => {
                    if !cut {
                        findings.at(Code::JournalBatch, self.block(link.position), error.to_string());
                    }
                    break;
                }
            };
            for op in batches.iter().flatten() {
                replay.note_blocks(op, &self.superblock.layout);
            }
            if cut {
                continue;
            }
            if !self.data_arrived(link, &batches) {
                if link.info.sequence > known {
                    cut = true;
                    let message =
                        format!("record {} was not completed and is not part of the log", link.info.sequence);
                    findings.at(Code::JournalUnproven, self.block(link.position), message);
                    continue;
                }
                let message = format!("data of record {} was durable and does not match", link.info.sequence);
                findings.at(Code::JournalData, self.block(link.position), message);
            }
            self.apply(link, &record, &batches, &mut replay, findings);
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
            if info.generation > self.superblock.generation {
                let message = format!(
                    "record {sequence} was written under superblock {}, the newest is {}",
                    info.generation, self.superblock.generation
                );
                findings.at(Code::JournalFuture, self.block(at), message);
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
        if let Some(last) = chain.last().map(|link| link.info.last_lsn())
            && last < self.superblock.checkpoint_lsn
        {
            let message = format!(
                "the log ends with batch {last} before the checkpoint's {}",
                self.superblock.checkpoint_lsn
            );
            findings.add(Code::JournalBroken, message);
        }
        if let Some((position, sequence)) = self.find_witness(missing) {
            let message =
                format!("record {missing} cannot be read, but record {sequence} knew that it was durable");
            findings.at(Code::JournalBroken, self.block(position), message);
        }
    }

    /// Searches the ring for a record beyond `missing` that knew `missing` to be durable.
    fn find_witness(&self, missing: Sequence) -> Option<(u64, Sequence)> {
        let mut budget = 4 * self.ring();
        let witness = |info: &RecordInfo| {
            info.epoch == self.superblock.epoch
                && info.sequence > missing
                && info.known_flushed >= missing
                && info.generation <= self.superblock.generation
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
                if !witness(&info) || info.blocks() > budget {
                    continue;
                }
                budget -= info.blocks();
                if self.read_record(position, witness).is_some() {
                    return Some((position, info.sequence));
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
        if !wanted(&info) || info.blocks() > self.ring() - position {
            return None;
        }
        let mut bytes = Buffer::zeroed(info.blocks() as usize);
        self.device.read(at, &mut bytes).ok()?;
        let (info, checksum, _) = record::verify(&bytes, at, volume).ok()?;
        wanted(&info).then_some(Record { info, checksum, bytes })
    }

    /// Whether the data of every fresh extent that the checkpoint does not hold is there.
    fn data_arrived(&self, link: &Link, batches: &[Vec<Op<'_>>]) -> bool {
        let newer = batches.iter().zip(link.info.first_lsn.0..);
        newer.filter(|(_, lsn)| *lsn > self.superblock.checkpoint_lsn.0).all(|(ops, _)| {
            ops.iter().all(|op| match *op {
                Op::Put { value, fresh: true, .. } => {
                    ExtentItem::decode(value).is_ok_and(|extent| self.extent_matches(&extent))
                }
                _ => true,
            })
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

    fn apply(
        &self,
        link: &Link,
        record: &Record,
        batches: &[Vec<Op<'_>>],
        replay: &mut Replay,
        findings: &mut Findings,
    ) {
        let checkpoint = self.superblock.checkpoint_lsn;
        replay.records += 1;
        for (ops, lsn) in batches.iter().zip(link.info.first_lsn.0..) {
            let newer = lsn > checkpoint.0;
            replay.batches += u64::from(newer);
            replay.last_lsn = replay.last_lsn.max(Lsn(lsn));
            for op in ops {
                let source = (record.payload(), link.position);
                replay.apply(op, newer, source, &self.superblock.layout, findings);
            }
        }
    }
}
