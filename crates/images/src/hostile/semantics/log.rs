//! The log in pieces: records of batches of operations, and the ring they are written to.

use crate::hostile::seal;
use crate::packed::SparseImage;
use syncline_format::batch::{BatchBuf, Op, decode_batches};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, Generation, ITEM_VALUE_BYTES_MAX, Key, Lsn, Sequence, TreeId};

/// A record takes at most this share of the ring.
const RECORD_RING_SHARE: u64 = 8;
/// Bytes of operations that edits put into one record.
const EDIT_BYTES_MAX: usize = 12_000;

/// What a record says that does not follow from its place in the log.
#[derive(Debug, Clone, Copy, Default)]
pub struct Odd {
    pub sequence: Option<u64>,
    pub predecessor: Option<u64>,
    pub known_flushed: Option<u64>,
    pub first_lsn: Option<u64>,
    pub generation: Option<u64>,
    pub epoch: Option<u64>,
    pub batches: Option<u32>,
}

/// One record.
#[derive(Clone)]
pub struct LogRecord {
    batches: Vec<BatchBuf>,
    pub odd: Odd,
    known_flushed: u64,
    first_lsn: Option<u64>,
    /// Made of edits.
    is_edits: bool,
}

impl LogRecord {
    pub fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        self.batches.iter().flat_map(BatchBuf::iter)
    }

    /// A record of one batch.
    pub fn of(batch: BatchBuf) -> LogRecord {
        LogRecord {
            batches: vec![batch],
            odd: Odd::default(),
            known_flushed: 0,
            first_lsn: None,
            is_edits: true,
        }
    }

    /// Adds an edit of a tree to the log's last record, or to a new one.
    pub fn append_edit(log: &mut Vec<LogRecord>, tree: TreeId, key: Key, value: Option<Vec<u8>>) {
        let op = match &value {
            Some(value) if value.len() > ITEM_VALUE_BYTES_MAX => return,
            Some(value) => Op::Put { tree, key, value, fresh: false },
            None => Op::Delete { tree, key },
        };
        let bytes = |record: &LogRecord| record.batches.iter().map(BatchBuf::len).sum::<usize>();
        if !log.last().is_some_and(|record| record.is_edits && bytes(record) < EDIT_BYTES_MAX) {
            log.push(LogRecord::of(BatchBuf::new()));
        }
        let last = log.last_mut().and_then(|record| record.batches.last_mut());
        last.expect("a record of edits has a batch").push(op);
    }
}

/// The records of a sound volume's log.
pub fn parse_log(image: &SparseImage, superblock: &Superblock) -> Vec<LogRecord> {
    let mut copy = image.clone();
    let records = seal::journal_end(&mut copy, superblock).records;
    let read = |&(position, blocks): &(u64, u64)| {
        let at = superblock.layout.journal_start.plus(position);
        let bytes = image.bytes(at.byte_offset(), blocks as usize * BLOCK_BYTES);
        let (info, _, payload) = record::verify(&bytes, at, superblock.volume_id()).ok()?;
        let batches = decode_batches(payload, info.batches).ok()?;
        let again = |ops: &Vec<Op<'_>>| {
            let mut batch = BatchBuf::new();
            ops.iter().for_each(|op| batch.push(*op));
            batch
        };
        Some(LogRecord {
            batches: batches.iter().map(again).collect(),
            odd: Odd::default(),
            known_flushed: info.known_flushed.0,
            first_lsn: Some(info.first_lsn.0),
            is_edits: false,
        })
    };
    records.iter().map_while(read).collect()
}

/// Writes the log into an empty ring.
pub fn write(image: &mut SparseImage, superblock: &Superblock, log: &[LogRecord]) {
    let layout = superblock.layout;
    let ring = layout.journal_start.0..layout.journal_start.0 + layout.journal_blocks;
    image.content.retain(|block, _| !ring.contains(block));
    let mut position = superblock.tail.block;
    let mut info = RecordInfo {
        epoch: superblock.epoch,
        sequence: superblock.tail.sequence,
        predecessor: superblock.tail.predecessor,
        known_flushed: Sequence(0),
        generation: superblock.generation,
        first_lsn: superblock.checkpoint_lsn.next(),
        batches: 1,
        payload_bytes: 0,
    };
    let mut left = layout.journal_blocks;
    for record in log {
        let payload: Vec<u8> = record.batches.iter().flat_map(|batch| batch.clone().into_encoded()).collect();
        let blocks = record::record_blocks(payload.len());
        if blocks > layout.journal_blocks / RECORD_RING_SHARE || blocks > left {
            return;
        }
        left -= blocks;
        if position + blocks > layout.journal_blocks {
            position = 0;
        }
        info.batches = record.batches.len() as u32;
        info.payload_bytes = payload.len() as u32;
        info.first_lsn = Lsn(record.first_lsn.unwrap_or(info.first_lsn.0));
        info.known_flushed = Sequence(record.known_flushed.min(info.sequence.0.saturating_sub(1)));
        let at = layout.journal_start.plus(position);
        let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
        bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
        let sum = record::seal(&mut bytes, at, &odd(&info, &record.odd), superblock.volume_id());
        image.patch(BlockNo(at.0).byte_offset(), &bytes);
        position += blocks;
        info.predecessor = sum;
        info.sequence = Sequence(info.sequence.0.saturating_add(1));
        info.first_lsn = Lsn(info.first_lsn.0.saturating_add(u64::from(info.batches)));
    }
}

fn odd(info: &RecordInfo, odd: &Odd) -> RecordInfo {
    RecordInfo {
        epoch: odd.epoch.unwrap_or(info.epoch),
        sequence: Sequence(odd.sequence.unwrap_or(info.sequence.0)),
        predecessor: odd.predecessor.unwrap_or(info.predecessor),
        known_flushed: Sequence(odd.known_flushed.unwrap_or(info.known_flushed.0)),
        generation: Generation(odd.generation.unwrap_or(info.generation.0)),
        first_lsn: Lsn(odd.first_lsn.unwrap_or(info.first_lsn.0)),
        batches: odd.batches.unwrap_or(info.batches),
        payload_bytes: info.payload_bytes,
    }
}
