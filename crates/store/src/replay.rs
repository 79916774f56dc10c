//! Replaying the chain in memory (R2, R4, R5, R12).

use crate::ring_scan::{Chained, RingReader};
use crate::shared::Shared;
use crate::tree::cache::Pinned;
use crate::{PageImage, RecoverySummary, Run, StoreError};
use std::collections::BTreeMap;
use syncline_device::Buffer;
use syncline_format::batch::{Op, decode_batches};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Lsn, ObjectNo, Sequence, TreeId, checksum};

type Images = BTreeMap<(TreeId, ObjectNo, u64), Vec<u8>>;

/// What replay leaves behind.
pub(crate) struct Replayed {
    pub(crate) images: Vec<PageImage>,
    pub(crate) summary: RecoverySummary,
    /// The first record that is not part of the log.
    pub(crate) end: Sequence,
    /// The first batch that was cut off.
    pub(crate) cut: Option<Lsn>,
}

/// Replays the chain into the shared trees and bitmaps.
pub(crate) fn replay(
    shared: &Shared,
    superblock: &Superblock,
    reader: &mut RingReader<'_>,
    chain: &[Chained],
) -> Result<Replayed, StoreError> {
    let known_flushed = chain.last().map_or(Sequence(0), |last| last.info.known_flushed);
    let mut images = Images::new();
    let mut summary = RecoverySummary::default();
    let mut cut = None;
    'chain: for chained in chain {
        let block = superblock.layout.journal_start.plus(chained.block);
        let Some((info, _, payload)) = reader.record(chained.block)? else {
            return Err(StoreError::Inconsistent {
                block,
                what: "a journal record changed while it was read",
            });
        };
        let batches =
            decode_batches(&payload, info.batches).map_err(|source| StoreError::Corrupt { block, source })?;
        summary.records += 1;
        for (index, ops) in batches.iter().enumerate() {
            let lsn = Lsn(info.first_lsn.0 + index as u64);
            let new = lsn > superblock.checkpoint_lsn;
            // R12: what an earlier recovery has decided counts, whatever the data look like by now.
            let whole = match superblock.cut {
                Some(cut) => lsn < cut,
                None => !new || info.sequence <= known_flushed || fresh_data_is_whole(shared, ops)?,
            };
            if !whole {
                cut = Some(lsn);
                summary.records_cut = 1;
                break 'chain;
            }
            summary.batches += u64::from(new);
            let at = Position { lsn, new, block };
            replay_batch(shared, superblock, ops, at, &mut images)?;
        }
    }
    // The next checkpoint writes these nodes: destaging must leave them their chunks (R18).
    let current = shared.trees.read().current_nodes;
    shared.space.lock().adjust_claims(0, current);
    summary.images = images.len() as u64;
    let images = images
        .into_iter()
        .map(|((tree, object, page), bytes)| PageImage { tree, object, page, bytes })
        .collect();
    let end = chain.last().map_or(superblock.tail.sequence, |last| last.info.sequence.next());
    Ok(Replayed { images, summary, end, cut })
}

/// Where a batch stands in the log.
#[derive(Clone, Copy)]
struct Position {
    lsn: Lsn,
    /// Newer than the checkpoint.
    new: bool,
    /// First block of its record.
    block: BlockNo,
}

fn replay_batch(
    shared: &Shared,
    superblock: &Superblock,
    ops: &[Op<'_>],
    at: Position,
    images: &mut Images,
) -> Result<(), StoreError> {
    let Position { lsn, new, block } = at;
    let pinned = Pinned::new(&shared.cache);
    for op in ops {
        check_tree(op, block)?;
        match *op {
            Op::Image { tree, object, page, bytes } => {
                let mut whole = vec![0; BLOCK_BYTES];
                whole[..bytes.len()].copy_from_slice(bytes);
                images.insert((tree, object, page), whole);
                // Each live image holds a reserved block of the ring (R17): more of them are a forgery.
                if images.len() as u64 > superblock.layout.journal_blocks {
                    let what = "the journal holds more page images than blocks";
                    return Err(StoreError::Inconsistent { block, what });
                }
            }
            Op::Drop { tree, object, first, end } if first < end => {
                let void: Vec<_> =
                    images.range((tree, object, first)..(tree, object, end)).map(|(k, _)| *k).collect();
                for key in void {
                    images.remove(&key);
                }
            }
            Op::Allocate { .. } | Op::Free { .. } if new => replay_space(shared, op, block)?,
            Op::Put { key, .. } | Op::Delete { key, .. } if new => load_path(shared, key, &pinned)?,
            _ => {}
        }
        if new || matches!(op, Op::Image { .. } | Op::Drop { .. }) {
            let mut trees = shared.trees.write();
            trees.apply_op(op, &pinned, lsn);
            trees.lsn = trees.lsn.max(lsn);
        }
        if let (true, Op::Put { key, .. }) = (new, op) {
            let next = key.object.0.saturating_add(1);
            shared.next_object.fetch_max(next, crate::sync::Ordering::Relaxed);
        }
    }
    Ok(())
}

fn replay_space(shared: &Shared, op: &Op<'_>, block: BlockNo) -> Result<(), StoreError> {
    let (start, done, what) = match *op {
        Op::Allocate { start, len } => {
            let run = run(shared, start, len, block)?;
            (start, shared.space.lock().replay_allocate(run), "the journal allocates a block that is in use")
        }
        Op::Free { start, len } => {
            let run = run(shared, start, len, block)?;
            (start, shared.space.lock().replay_free(run), "the journal frees a block that is free")
        }
        _ => return Ok(()),
    };
    if done { Ok(()) } else { Err(StoreError::Inconsistent { block: start, what }) }
}

fn load_path(shared: &Shared, key: Key, pinned: &Pinned<'_>) -> Result<(), StoreError> {
    let mut stale = None;
    loop {
        let missing = match shared.trees.read().main.check_resident(key, pinned) {
            Ok(()) => return Ok(()),
            Err(missing) => missing,
        };
        pinned.load(&*shared.device, TreeId::MAIN, &missing, &mut stale)?;
    }
}

fn check_tree(op: &Op<'_>, block: BlockNo) -> Result<(), StoreError> {
    let tree = match op {
        Op::Put { tree, .. } | Op::Delete { tree, .. } | Op::Image { tree, .. } | Op::Drop { tree, .. } => {
            *tree
        }
        Op::Allocate { .. } | Op::Free { .. } => return Ok(()),
    };
    if tree != TreeId::MAIN {
        return Err(StoreError::Inconsistent { block, what: "the journal names a tree that does not exist" });
    }
    Ok(())
}

fn run(shared: &Shared, start: BlockNo, len: u32, block: BlockNo) -> Result<Run, StoreError> {
    if !shared.layout().holds_run(start, len) {
        return Err(StoreError::Inconsistent {
            block,
            what: "the journal names blocks outside of any group",
        });
    }
    Ok(Run { start, len })
}

/// R4: order is replaced by proof. True if all data that the batch itself wrote is on the device.
fn fresh_data_is_whole(shared: &Shared, ops: &[Op<'_>]) -> Result<bool, StoreError> {
    for op in ops {
        let Op::Put { value, fresh: true, .. } = op else { continue };
        let Ok(extent) = ExtentItem::decode(value) else { return Ok(false) };
        let ExtentContent::Written(sums) = &extent.content else { continue };
        if !shared.layout().holds_run(extent.start, extent.pages()) {
            return Ok(false);
        }
        let mut data = Buffer::zeroed(extent.pages() as usize);
        shared.device.read(extent.start, &mut data)?;
        let whole = data.chunks_exact(BLOCK_BYTES).zip(sums).all(|(page, sum)| checksum(page) == *sum);
        if !whole {
            return Ok(false);
        }
    }
    Ok(true)
}
