//! Makes a damaged image pass for a sound one: every checksum, and every pointer's copy of it, is computed anew from
//! what is there now.
//!
//! Nothing is believed: fields are read wherever they lie, numbers are clamped, cycles end.

use crate::packed::SparseImage;
use std::collections::BTreeSet;
use syncline_format::header::{HEADER_BYTES, MAGIC_BITMAP, MAGIC_NODE, MAGIC_RECORD};
use syncline_format::layout::Layout;
use syncline_format::node::{NODE_HEADER_BYTES, NODE_POINTER_BYTES, SLOT_BYTES};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo};
use syncline_format::superblock::{SUPERBLOCK_MAGIC, SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, GroupNo, Lsn, NODE_BYTES, Sequence, VolumeId, header};

/// Where fields lie that are corrected (docs/format.md, sections 2, 3 and 5).
const SUPERBLOCK_ROOT_AT: usize = 224;
const SUPERBLOCK_UUID_AT: usize = 24;
const NODE_LEVEL_AT: usize = 40;
const NODE_COUNT_AT: usize = 42;
const NODES_MAX: usize = 4096;
const DEPTH_MAX: usize = 16;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

/// The value's place in each slot of a node, as far as it lies inside.
pub fn values(node: &[u8]) -> Vec<(usize, usize)> {
    let count = usize::from(u16_at(node, NODE_COUNT_AT)).min((NODE_BYTES - NODE_HEADER_BYTES) / SLOT_BYTES);
    let place = |index: usize| {
        let slot = NODE_HEADER_BYTES + index * SLOT_BYTES;
        let (at, len) = (usize::from(u16_at(node, slot + 16)), usize::from(u16_at(node, slot + 18)));
        if at + len <= NODE_BYTES { (at, len) } else { (NODE_BYTES, 0) }
    };
    (0..count).map(place).collect()
}

/// The newest superblock whose bytes decode once they are sealed.
pub fn superblock(image: &SparseImage) -> Option<Superblock> {
    let decode = |block: BlockNo| {
        let mut bytes = image.bytes(block.byte_offset(), BLOCK_BYTES);
        header::seal(&mut bytes);
        Superblock::decode(&bytes, block, image.blocks).ok()
    };
    SUPERBLOCK_SLOTS.into_iter().filter_map(decode).max_by_key(|superblock| superblock.generation)
}

/// A tree node as it was met on the way down.
pub struct Met {
    pub block: BlockNo,
    pub level: u16,
}

/// Nodes of both trees below the newest superblock's root, parents first.
pub fn nodes(image: &SparseImage) -> Vec<Met> {
    let mut met = Vec::new();
    let Some(superblock) = superblock(image) else { return met };
    let mut seen = BTreeSet::new();
    let mut pending = vec![(superblock.root.block, 0)];
    while let Some((block, depth)) = pending.pop() {
        if block.0 >= image.blocks || depth > DEPTH_MAX || met.len() == NODES_MAX || !seen.insert(block) {
            continue;
        }
        let node = image.bytes(block.byte_offset(), NODE_BYTES);
        let level = u16_at(&node, NODE_LEVEL_AT);
        met.push(Met { block, level });
        if level > 0 || depth == 0 {
            let pointers = values(&node).into_iter().filter(|&(_, len)| len == NODE_POINTER_BYTES);
            pending.extend(pointers.map(|(at, _)| (BlockNo(u64_at(&node, at)), depth + 1)));
        }
    }
    met
}

/// Levels of the main tree.
pub fn levels(image: &SparseImage) -> u16 {
    nodes(image).iter().skip(1).map(|met| met.level + 1).max().unwrap_or(0)
}

/// Seals everything.
pub fn seal(image: &mut SparseImage) {
    if let Some(superblock) = superblock(image) {
        let volume = superblock.volume_id();
        seal_records(image, &superblock, volume);
        seal_bitmaps(image, &superblock.layout, volume);
        let mut sealing = Sealing { image, volume, sealed: BTreeSet::new() };
        let root = sealing.node(superblock.root.block, 0);
        if let Some(root) = root {
            for at in SUPERBLOCK_SLOTS {
                let pointer = at.byte_offset() + SUPERBLOCK_ROOT_AT as u64;
                if u64_at(&image.bytes(pointer, 8), 0) == superblock.root.block.0 {
                    image.patch(pointer + 8, &root);
                }
            }
        }
    }
    for at in SUPERBLOCK_SLOTS {
        let mut bytes = image.bytes(at.byte_offset(), BLOCK_BYTES);
        if bytes.starts_with(&SUPERBLOCK_MAGIC) {
            header::seal(&mut bytes);
            image.patch(at.byte_offset(), &bytes);
        }
    }
}

struct Sealing<'a> {
    image: &'a mut SparseImage,
    volume: VolumeId,
    sealed: BTreeSet<BlockNo>,
}

impl Sealing<'_> {
    /// Seals a node after its children; returns what a pointer says behind the block: checksum, generation, level.
    fn node(&mut self, block: BlockNo, depth: usize) -> Option<[u8; 18]> {
        if block.0 >= self.image.blocks || depth > DEPTH_MAX || self.sealed.len() > NODES_MAX {
            return None;
        }
        let mut bytes = self.image.bytes(block.byte_offset(), NODE_BYTES);
        // A node met again is in a cycle or shared: what it was sealed to the first time holds.
        if self.sealed.insert(block) {
            if u16_at(&bytes, NODE_LEVEL_AT) > 0 || depth == 0 {
                for (at, len) in values(&bytes) {
                    if len == NODE_POINTER_BYTES
                        && let Some(child) = self.node(BlockNo(u64_at(&bytes, at)), depth + 1)
                    {
                        bytes[at + 8..at + 26].copy_from_slice(&child);
                    }
                }
            }
            common(&mut bytes, MAGIC_NODE, block, self.volume);
            header::seal(&mut bytes);
            self.image.patch(block.byte_offset(), &bytes);
        }
        let mut pointer = [0; 18];
        pointer[..8].copy_from_slice(&bytes[8..16]);
        pointer[8..16].copy_from_slice(&bytes[24..32]);
        pointer[16..].copy_from_slice(&bytes[NODE_LEVEL_AT..NODE_LEVEL_AT + 2]);
        Some(pointer)
    }
}

/// Rights the fields of the common header by which a structure is recognised; generation and the rest stay.
fn common(bytes: &mut [u8], magic: u32, block: BlockNo, volume: VolumeId) {
    bytes[..4].copy_from_slice(&magic.to_le_bytes());
    bytes[4..6].copy_from_slice(&syncline_format::FORMAT_VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&block.0.to_le_bytes());
    bytes[32..HEADER_BYTES].copy_from_slice(&volume.0.to_le_bytes());
}

fn seal_bitmaps(image: &mut SparseImage, layout: &Layout, volume: VolumeId) {
    for group in 0..layout.group_count().min(8) {
        for slot in 0..2 {
            let block = layout.bitmap_slot(GroupNo(group), slot);
            let mut bytes = image.bytes(block.byte_offset(), BLOCK_BYTES);
            if bytes.starts_with(&MAGIC_BITMAP.to_le_bytes()) {
                common(&mut bytes, MAGIC_BITMAP, block, volume);
                header::seal(&mut bytes);
                image.patch(block.byte_offset(), &bytes);
            }
        }
    }
}

/// The journal's end: where the next record goes and what it follows.
pub struct JournalEnd {
    /// Block within the ring.
    pub block: u64,
    pub sequence: Sequence,
    pub predecessor: u64,
    pub lsn: Lsn,
    /// Ring blocks of the records on the way, in order, each with its length.
    pub records: Vec<(u64, u64)>,
}

/// Follows the log by its places and sequence numbers alone, sealing each record behind the one before it if asked to.
fn follow(image: &mut SparseImage, superblock: &Superblock, volume: VolumeId, write: bool) -> JournalEnd {
    let layout = superblock.layout;
    let mut end = JournalEnd {
        block: superblock.tail.block,
        sequence: superblock.tail.sequence,
        predecessor: superblock.tail.predecessor,
        lsn: superblock.checkpoint_lsn,
        records: Vec::new(),
    };
    while end.records.len() < layout.journal_blocks as usize {
        let candidates = [end.block, 0].into_iter().filter(|&block| block < layout.journal_blocks);
        let found = candidates.into_iter().find_map(|block| {
            let info = head(image, &layout, block, volume)?;
            let fits = block + info.blocks() <= layout.journal_blocks;
            (fits && info.epoch == superblock.epoch && info.sequence == end.sequence).then_some((block, info))
        });
        let Some((block, info)) = found else { break };
        let at = layout.journal_start.plus(block);
        let mut bytes = image.bytes(at.byte_offset(), info.blocks() as usize * BLOCK_BYTES);
        if write {
            let info = RecordInfo { predecessor: end.predecessor, ..info };
            end.predecessor = record::seal(&mut bytes, at, &info, volume);
            image.patch(at.byte_offset(), &bytes);
        } else {
            end.predecessor = u64_at(&bytes, 8);
        }
        end.records.push((block, info.blocks()));
        end.block = block + info.blocks();
        end.sequence = Sequence(end.sequence.0.saturating_add(1));
        end.lsn = info.last_lsn();
    }
    end
}

fn head(image: &SparseImage, layout: &Layout, block: u64, volume: VolumeId) -> Option<RecordInfo> {
    let at = layout.journal_start.plus(block);
    let mut bytes = image.bytes(at.byte_offset(), RECORD_HEADER_BYTES);
    if !bytes.starts_with(&MAGIC_RECORD.to_le_bytes()) {
        return None;
    }
    common(&mut bytes, MAGIC_RECORD, at, volume);
    record::peek(&bytes, at, volume).ok()
}

fn seal_records(image: &mut SparseImage, superblock: &Superblock, volume: VolumeId) {
    follow(image, superblock, volume, true);
}

/// Where the log ends.
pub fn journal_end(image: &mut SparseImage, superblock: &Superblock) -> JournalEnd {
    follow(image, superblock, superblock.volume_id(), false)
}

/// Appends a record with one batch to the log, if the ring has room for it.
pub fn append(image: &mut SparseImage, batch: &[u8], batches: u32) {
    let Some(superblock) = superblock(image) else { return };
    let end = journal_end(image, &superblock);
    let blocks = record::record_blocks(batch.len());
    let layout = superblock.layout;
    let block = if end.block + blocks > layout.journal_blocks { 0 } else { end.block };
    if blocks > layout.journal_blocks / 8 {
        return;
    }
    let info = RecordInfo {
        epoch: superblock.epoch,
        sequence: end.sequence,
        predecessor: end.predecessor,
        known_flushed: Sequence(end.sequence.0.saturating_sub(1)),
        generation: superblock.generation,
        first_lsn: Lsn(end.lsn.0.saturating_add(1).min(1 << 62)),
        batches,
        payload_bytes: batch.len() as u32,
    };
    let mut bytes = vec![0; blocks as usize * BLOCK_BYTES];
    bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + batch.len()].copy_from_slice(batch);
    let at = layout.journal_start.plus(block);
    record::seal(&mut bytes, at, &info, superblock.volume_id());
    image.patch(at.byte_offset(), &bytes);
}

/// The volume's number in common headers, wherever the superblock says it.
pub fn volume_of(superblock: &[u8]) -> VolumeId {
    VolumeId(u64_at(superblock, SUPERBLOCK_UUID_AT))
}
