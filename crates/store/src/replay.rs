//! Replaying the chain in memory (R2, R4, R5, R12).
//!
//! The chain is read once. A record is applied as soon as a later one says that it was flushed; the rest, which nothing
//! confirms, is kept until the end of the chain and proven then, many reads of fresh data at a time.
//!
//! Values are absolute, so of the changes to an item only the last counts: they are gathered and entered in the order
//! of their keys, leaf by leaf. Allocations, frees, images and drops are applied in the order of the log. Of an image
//! only its place in the ring is kept: the ring stays as it is until recovery ends.

use crate::limits::REPLAY_KEPT_BYTES_MAX;
use crate::ring_scan::{Chained, RingReader, Walk};
use crate::shared::Shared;
use crate::trees::Trees;
use crate::{PageImage, RecoverySummary, Run, StoreError};
use gathered::Gathered;
use std::collections::{BTreeMap, VecDeque};
use syncline_format::batch::{Op, Outcome, decode_batches};
use syncline_format::range::COUNTER_MAX;
use syncline_format::record::RECORD_HEADER_BYTES;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, Kind, Lsn, ObjectNo, TreeId, checksum};

mod gathered;
mod proof;

/// What replay leaves behind.
pub(crate) struct Replayed {
    pub(crate) images: Vec<PageImage>,
    pub(crate) summary: RecoverySummary,
    /// The walk along the chain, at its end.
    pub(crate) walk: Walk,
    /// LSN of the last batch of the chain, if there is any.
    pub(crate) last_lsn: Option<Lsn>,
    /// The first batch that is not part of the log, if the chain holds any such.
    pub(crate) cut: Option<Lsn>,
    /// What ended the walk early, if that is to be borne.
    pub(crate) broken: Option<StoreError>,
}

/// Where the bytes of a live image are.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Block of the device that the first byte is in.
    block: BlockNo,
    offset: u16,
    len: u16,
    sum: u64,
}

/// A record that no later one has confirmed so far.
struct Unconfirmed {
    chained: Chained,
    /// `None`: to be read again.
    payload: Option<Vec<u8>>,
}

/// Replays the chain into the shared trees and bitmaps.
pub(crate) fn replay(
    shared: &Shared,
    superblock: &Superblock,
    reader: &mut RingReader<'_>,
) -> Result<Replayed, StoreError> {
    let mut replay = Replay {
        shared,
        superblock,
        images: BTreeMap::new(),
        items: Gathered::default(),
        summary: RecoverySummary::default(),
        cut: superblock.cut,
    };
    let mut walk = reader.walk();
    let mut unconfirmed: VecDeque<Unconfirmed> = VecDeque::new();
    let mut kept_bytes = 0;
    let mut last_lsn = None;
    let mut broken = None;
    while let Some(chained) =
        reader.next(&mut walk).or_else(|error| match shared.options.ends_at(&error) {
            true => {
                broken = Some(error);
                Ok(None)
            }
            false => Err(error),
        })?
    {
        last_lsn = Some(chained.info.last_lsn());
        let payload = reader.payload(&chained)?;
        let keep = kept_bytes + payload.len() <= REPLAY_KEPT_BYTES_MAX;
        let payload = keep.then(|| payload.to_vec());
        kept_bytes += payload.as_ref().map_or(0, Vec::len);
        unconfirmed.push_back(Unconfirmed { chained, payload });
        let flushed = chained.info.known_flushed;
        while unconfirmed.front().is_some_and(|first| first.chained.info.sequence <= flushed) {
            let Some(first) = unconfirmed.pop_front() else { break };
            kept_bytes -= first.payload.as_ref().map_or(0, Vec::len);
            replay.apply(&first, reader)?;
        }
    }
    // Where an earlier recovery has cut the log it stays cut, whatever the data look like now (R12).
    if replay.cut.is_none() {
        replay.cut = replay.find_cut(&unconfirmed, reader)?;
    }
    for record in &unconfirmed {
        replay.apply(record, reader)?;
    }
    Ok(Replayed { broken, ..replay.finish(walk, last_lsn)? })
}

struct Replay<'a> {
    shared: &'a Shared,
    superblock: &'a Superblock,
    images: BTreeMap<(TreeId, ObjectNo, u64), Place>,
    items: Gathered,
    summary: RecoverySummary,
    /// The first batch that is not part of the log.
    cut: Option<Lsn>,
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

impl Unconfirmed {
    fn payload<'p>(&'p self, reader: &'p mut RingReader<'_>) -> Result<&'p [u8], StoreError> {
        match &self.payload {
            Some(payload) => Ok(payload),
            None => reader.payload(&self.chained),
        }
    }
}

impl Replay<'_> {
    fn block_of(&self, chained: &Chained) -> BlockNo {
        self.superblock.layout.journal_start.plus(chained.block)
    }

    fn apply(&mut self, record: &Unconfirmed, reader: &mut RingReader<'_>) -> Result<(), StoreError> {
        let info = record.chained.info;
        let block = self.block_of(&record.chained);
        let payload = record.payload(reader)?;
        let batches =
            decode_batches(payload, info.batches).map_err(|source| StoreError::Corrupt { block, source })?;
        self.summary.records += 1;
        for (index, ops) in batches.iter().enumerate() {
            let lsn = Lsn(info.first_lsn.0 + index as u64);
            if self.cut.is_some_and(|cut| lsn >= cut) {
                return Ok(());
            }
            let at = Position { lsn, new: lsn > self.superblock.checkpoint_lsn, block };
            self.summary.batches += u64::from(at.new);
            self.apply_batch(ops, payload, at)?;
        }
        if self.items.is_full() {
            self.items.enter(self.shared)?;
        }
        Ok(())
    }

    fn apply_batch(&mut self, ops: &[Op<'_>], payload: &[u8], at: Position) -> Result<(), StoreError> {
        let Position { lsn, new, block } = at;
        let shared = self.shared;
        let mut next_object = 0;
        let mut trees = shared.trees.write();
        for op in ops {
            if op.needs_trees() && !shared.has_trees {
                let what = "the journal holds an operation of a later version than the volume's";
                return Err(StoreError::Inconsistent { block, what });
            }
            if new && changes_trees(op) {
                // Whose a node is that a change replaces is what it was then.
                drop(trees);
                self.items.enter(shared)?;
                trees = shared.trees.write();
            }
            if new || !shared.has_trees {
                check_tree(&trees, op, block)?;
            }
            if new {
                check_object(op, block)?;
            }
            match *op {
                Op::Image { tree, object, page, bytes } => {
                    self.images.insert((tree, object, page), place_of(payload, bytes, block));
                    // Each live image holds a reserved block of the ring (R17): more of them are a forgery.
                    if self.images.len() as u64 > self.superblock.layout.journal_blocks {
                        let what = "the journal holds more page images than blocks";
                        return Err(StoreError::Inconsistent { block, what });
                    }
                    trees.images.insert(tree, object, page, lsn);
                }
                Op::Drop { tree, object, first, end } => {
                    trees.images.drop_range(tree, object, first, end);
                    self.drop_range(tree, object, first, end);
                }
                Op::MakeTree { tree, source, role, era } => {
                    let Some(source) = source else {
                        let what = "the journal makes a tree of nothing";
                        return Err(StoreError::Inconsistent { block, what });
                    };
                    self.inherit(source, tree);
                    // The checkpoint has it otherwise, but for the images (R22).
                    match new {
                        true => trees.make(tree, source, role, era)?,
                        false => trees.images.inherit(source, tree),
                    }
                }
                Op::TreeGone { tree } => {
                    self.images.retain(|(of, ..), _| *of != tree);
                    trees.images.drop_tree(tree);
                }
                Op::Allocate { .. } | Op::Free { .. } | Op::Release { .. } if new => {
                    replay_space(shared, op, block)?;
                }
                Op::Put { tree, key, value, .. } if new => {
                    if tree == TreeId::VOLUME {
                        trees
                            .note(key, Some(value))
                            .map_err(|source| StoreError::Corrupt { block, source })?;
                    } else {
                        next_object = next_object.max(key.object.0.saturating_add(1));
                    }
                    self.items.put(tree, key, value);
                }
                Op::Delete { tree, key } if new => {
                    if tree == TreeId::VOLUME {
                        trees.note(key, None).map_err(|source| StoreError::Corrupt { block, source })?;
                    }
                    self.items.delete(tree, key);
                }
                _ => {}
            }
        }
        trees.lsn = trees.lsn.max(lsn);
        shared.next_object.fetch_max(next_object, crate::primitives::Ordering::Relaxed);
        Ok(())
    }

    /// The images of one tree are from here on another one's as well.
    fn inherit(&mut self, from: TreeId, to: TreeId) {
        let all = (from, ObjectNo(0), 0)..=(from, ObjectNo(u64::MAX), u64::MAX);
        let inherited: Vec<_> =
            self.images.range(all).map(|((_, object, page), place)| ((to, *object, *page), *place)).collect();
        self.images.extend(inherited);
    }

    fn drop_range(&mut self, tree: TreeId, object: ObjectNo, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let void = self.images.range((tree, object, first)..(tree, object, end));
        let void: Vec<_> = void.map(|(key, _)| *key).collect();
        for key in void {
            self.images.remove(&key);
        }
    }

    fn finish(mut self, walk: Walk, last_lsn: Option<Lsn>) -> Result<Replayed, StoreError> {
        self.items.enter(self.shared)?;
        // The next checkpoint writes these nodes: destaging must leave them their chunks (R18).
        let claims = {
            let trees = self.shared.trees.read();
            trees.current_nodes + trees.root_claims
        };
        self.shared.space.lock().adjust_claims(0, claims);
        self.summary.images = self.images.len() as u64;
        self.summary.records_cut = u64::from(self.cut.is_some());
        let images = self.images.into_iter().map(|((tree, object, page), place)| PageImage {
            tree,
            object,
            page,
            block: place.block,
            offset: place.offset,
            len: place.len,
            sum: place.sum,
        });
        let (images, cut) = (images.collect(), self.cut);
        Ok(Replayed { images, summary: self.summary, walk, last_lsn, cut, broken: None })
    }
}

/// Where the bytes of an image are, which are a part of the payload of the record at `block`.
fn place_of(payload: &[u8], bytes: &[u8], block: BlockNo) -> Place {
    let at = RECORD_HEADER_BYTES + (bytes.as_ptr() as usize - payload.as_ptr() as usize);
    Place {
        block: block.plus((at / BLOCK_BYTES) as u64),
        offset: (at % BLOCK_BYTES) as u16,
        len: bytes.len() as u16,
        sum: checksum(bytes),
    }
}

fn replay_space(shared: &Shared, op: &Op<'_>, block: BlockNo) -> Result<(), StoreError> {
    let (start, done, what) = match *op {
        Op::Allocate { start, len } => {
            let run = run(shared, start, len, block)?;
            (start, shared.space.lock().replay_allocate(run), "the journal allocates a block that is in use")
        }
        Op::Free { start, len } | Op::Release { outcome: Outcome::Free, start, len, .. } => {
            let run = run(shared, start, len, block)?;
            (start, shared.space.lock().replay_free(run), "the journal frees a block that is free")
        }
        _ => return Ok(()),
    };
    if done { Ok(()) } else { Err(StoreError::Inconsistent { block: start, what }) }
}

/// Whether the operation changes which trees there are, or who owns what.
fn changes_trees(op: &Op<'_>) -> bool {
    match op {
        Op::MakeTree { .. } | Op::TreeGone { .. } => true,
        Op::Put { tree, key, .. } | Op::Delete { tree, key } => {
            *tree == TreeId::VOLUME && key.kind == Kind::TreeInfo
        }
        _ => false,
    }
}

/// Whether there are the trees that an operation behind the checkpoint names. (Those of one before it may be gone.)
fn check_tree(trees: &Trees, op: &Op<'_>, block: BlockNo) -> Result<(), StoreError> {
    let inconsistent = |what| Err(StoreError::Inconsistent { block, what });
    match op {
        Op::Put { tree, .. } | Op::Delete { tree, .. } if trees.changing_tree(*tree).is_err() => {
            inconsistent("the journal changes a tree that does not exist, or is a snapshot")
        }
        // Its nodes were given back by a checkpoint that both superblocks are behind.
        Op::TreeGone { tree } if !trees.is_emptied(*tree) => {
            inconsistent("the journal ends a tree that the checkpoint still has")
        }
        Op::Image { tree, .. } | Op::Drop { tree, .. }
            if trees.tree(*tree).is_err() || !tree.is_filesystem() =>
        {
            inconsistent("the journal names a tree that does not exist")
        }
        Op::MakeTree { tree, source, role, .. } => {
            match source.is_some_and(|source| trees.may_become(source, *role)) {
                true if trees.is_next(*tree) => Ok(()),
                _ => inconsistent("the journal makes a tree that exists, or of one that is none"),
            }
        }
        _ => Ok(()),
    }
}

/// No superblock could say which object comes next.
fn check_object(op: &Op<'_>, block: BlockNo) -> Result<(), StoreError> {
    match op {
        Op::Put { key, .. } if key.object.0 >= COUNTER_MAX => {
            let what = "the journal holds an object of an impossibly high number";
            Err(StoreError::Inconsistent { block, what })
        }
        _ => Ok(()),
    }
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
