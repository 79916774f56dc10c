//! What of a volume may differ from an earlier moment of it, the one that its replica holds.
//!
//! [`since`] finds it without reading the volume. Of the trees only nodes are read that a checkpoint behind that moment
//! has written; of files nothing: the leaves' checksums are held against those of the replica's indexes.
//!
//! What makes it right, each told in `docs/design.md`:
//! - a node never changes where it lies, and none is newer than the node that leads to it. So one that is not newer
//!   than the replica's superblock lies in the replica, with everything that it leads to;
//! - a page never changes where it lies either, so it is as old as the item that names it, or is named by the log;
//! - all else that recovery reads is small, and is held to differ: superblocks, bitmaps, and the log from its tail to
//!   where it ends.
//!
//! Blocks that nobody names are left out. They may hold anything.

use crate::newest::Newest;
use crate::runs::RunSet;
use std::collections::BTreeSet;
use syncline_device::{Buffer, Device, DeviceError};
use syncline_format::batch::{Op, decode_batches, fresh_extent};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::layout::JOURNAL_START;
use syncline_format::node::{self, NodePointer};
use syncline_format::record::{self, RecordInfo};
use syncline_format::replica::UnitHeader;
use syncline_format::superblock::Superblock;
use syncline_format::{
    BLOCK_BYTES, BlockNo, FormatError, GroupNo, Key, Kind, NODE_BLOCKS, Sequence, TreeId, checksum,
};

/// Nodes that are read, at most: 512 MiB. Where more have changed reading all of the volume, behind its opening, holds
/// nobody up.
const NODES_MAX: u64 = 1 << 15;
/// A record takes at most this share of the ring.
const RECORD_RING_SHARE: u64 = 8;

/// What may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub blocks: RunSet,
    /// Blocks that were read to find it.
    pub read: u64,
}

/// Why it cannot be told what has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unclear {
    #[error("the volume cannot be read: {0}")]
    Device(#[from] DeviceError),
    #[error("block {} of the volume is damaged: {error}", .block.0)]
    Damaged { block: BlockNo, error: FormatError },
    #[error("block {} of the volume leads to where it cannot lead", .block.0)]
    Misplaced { block: BlockNo },
    #[error("more than {nodes} nodes of its trees have changed")]
    Much { nodes: u64 },
}

/// What may differ between the volume on a device, which nobody writes to, and `before`, what the replica holds of an
/// earlier moment of it ([`crate::Opened::is_earlier`]). `last` heads the unit that the replica ends with.
///
/// # Errors
/// It cannot be told; then all of the volume may differ.
pub fn since(
    device: &dyn Device,
    superblock: &Superblock,
    before: &Newest,
    last: &UnitHeader,
) -> Result<Changed, Unclear> {
    let zeros = checksum(&[0; BLOCK_BYTES]);
    let changed = Changed { blocks: RunSet::default(), read: 0 };
    let (nodes, waiting) = (BTreeSet::new(), Vec::new());
    let mut walk = Walk { device, superblock, before, last, zeros, changed, nodes, waiting };
    walk.fixed_places();
    walk.trees()?;
    walk.log()?;
    Ok(walk.changed)
}

struct Walk<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    before: &'a Newest,
    last: &'a UnitHeader,
    /// Checksum of a block of zeros.
    zeros: u64,
    changed: Changed,
    /// Where nodes were read: trees share them.
    nodes: BTreeSet<BlockNo>,
    /// Nodes that are to be read.
    waiting: Vec<(TreeId, NodePointer)>,
}

impl Walk<'_> {
    /// Superblocks with what lies between them, backups, and all bitmaps.
    fn fixed_places(&mut self) {
        let layout = self.superblock.layout;
        let blocks = &mut self.changed.blocks;
        blocks.insert(0..JOURNAL_START.0);
        blocks.insert(layout.backup_start().0..layout.blocks);
        for group in (0..layout.group_count()).map(GroupNo) {
            let slots = [0, 1].map(|slot| layout.bitmap_slot(group, slot).0);
            slots.into_iter().for_each(|slot| blocks.insert(slot..slot + 1));
        }
    }

    fn trees(&mut self) -> Result<(), Unclear> {
        self.waiting.push((TreeId::ROOT, self.superblock.root));
        while let Some((tree, pointer)) = self.waiting.pop() {
            self.node(tree, &pointer)?;
        }
        Ok(())
    }

    /// A node, unless the replica has it, and what it leads to.
    fn node(&mut self, tree: TreeId, pointer: &NodePointer) -> Result<(), Unclear> {
        let block = pointer.block;
        if pointer.generation.0 <= self.last.generation {
            return Ok(());
        }
        if !self.superblock.layout.holds_node(block) {
            return Err(Unclear::Misplaced { block });
        }
        if !self.nodes.insert(block) {
            return Ok(());
        }
        if self.nodes.len() as u64 > NODES_MAX {
            return Err(Unclear::Much { nodes: NODES_MAX });
        }
        let bytes = self.read(block, u64::from(NODE_BLOCKS))?;
        let damaged = |error| Unclear::Damaged { block, error };
        node::verify(&bytes, pointer, tree, self.superblock.volume_id()).map_err(damaged)?;
        self.changed.blocks.insert(block.0..block.0 + u64::from(NODE_BLOCKS));
        for index in 0..usize::from(node::head(&bytes).count.get()) {
            let (key, value) = (node::slot_key(&bytes, index), node::slot_value(&bytes, index));
            let leads = |value| NodePointer::decode(value).map_err(damaged);
            match (pointer.level, tree, key.kind) {
                (0, TreeId::ROOT, Kind::Tree) => {
                    self.waiting.push((TreeId(key.object.0 as u32), leads(value)?));
                }
                (0, ..) => self.item(block, key, value)?,
                _ => {
                    let child = leads(value)?;
                    if child.generation > pointer.generation {
                        return Err(Unclear::Misplaced { block });
                    }
                    self.waiting.push((tree, child));
                }
            }
        }
        Ok(())
    }

    /// The pages that an item names, where the replica has others there.
    fn item(&mut self, of: BlockNo, key: Key, value: &[u8]) -> Result<(), Unclear> {
        if !matches!(key.kind, Kind::Extent | Kind::Overlay) {
            return Ok(());
        }
        let extent = fresh_extent(key, value).map_err(|error| Unclear::Damaged { block: of, error })?;
        self.pages(of, &extent)
    }

    fn pages(&mut self, of: BlockNo, extent: &ExtentItem) -> Result<(), Unclear> {
        // What was not written reads as zeros, whatever is there.
        let ExtentContent::Written(sums) = &extent.content else { return Ok(()) };
        if !self.superblock.layout.holds_run(extent.start, extent.pages()) {
            return Err(Unclear::Misplaced { block: of });
        }
        for (block, sum) in (extent.start.0..).zip(sums) {
            if self.before.sum(block).unwrap_or(self.zeros) != *sum {
                self.changed.blocks.insert(block..block + 1);
            }
        }
        Ok(())
    }

    /// The log: its records, the pages that they name, and the places where recovery looks for the record behind the
    /// last one. So it ends in the replica where it ends here. What else the ring holds in the replica says nothing:
    /// all of that was here once, and where this log ends, nothing that was here ever knew a record. That is not so
    /// where the image was set back behind its last checkpoint: then the replica's log is the longer one.
    fn log(&mut self) -> Result<(), Unclear> {
        let tail = self.superblock.tail;
        let ring = self.superblock.layout.journal_blocks;
        let mut end = self.superblock.checkpoint_lsn;
        let (mut position, mut sequence, mut predecessor) = (tail.block, tail.sequence, tail.predecessor);
        let mut walked = 0;
        loop {
            let mut found = None;
            for at in [position, 0] {
                if found.is_none() {
                    let place = self.place(at).0;
                    self.changed.blocks.insert(place..place + 1);
                    found = self.record(at, sequence, predecessor)?.map(|record| (at, record));
                }
            }
            let Some((at, (info, checksum))) = found else { break };
            walked += info.blocks();
            if walked > ring {
                return Err(Unclear::Misplaced { block: self.place(at) });
            }
            position = (at + info.blocks()) % ring;
            sequence = sequence.next();
            predecessor = checksum;
            end = end.max(info.last_lsn());
        }
        if end.0 < self.last.lsn {
            self.changed.blocks.insert(self.place(0).0..self.place(ring).0);
        }
        Ok(())
    }

    fn place(&self, position: u64) -> BlockNo {
        self.superblock.layout.journal_start.plus(position)
    }

    /// The record with this sequence and predecessor, if it lies at a position of the ring; notes it and its pages.
    fn record(
        &mut self,
        position: u64,
        sequence: Sequence,
        predecessor: u64,
    ) -> Result<Option<(RecordInfo, u64)>, Unclear> {
        let (at, volume) = (self.place(position), self.superblock.volume_id());
        let head = self.read(at, 1)?;
        let Ok(info) = record::peek(&head, at, volume) else { return Ok(None) };
        let ring = self.superblock.layout.journal_blocks;
        let longest = (ring / RECORD_RING_SHARE).min(ring - position);
        let is_next =
            (info.epoch, info.sequence, info.predecessor) == (self.superblock.epoch, sequence, predecessor);
        if !is_next || info.blocks() > longest {
            return Ok(None);
        }
        let bytes = self.read(at, info.blocks())?;
        let Ok((info, checksum, payload)) = record::verify(&bytes, at, volume) else { return Ok(None) };
        let damaged = |error| Unclear::Damaged { block: at, error };
        for op in decode_batches(payload, info.batches).map_err(damaged)?.into_iter().flatten() {
            if let Op::Put { key, value, .. } = op {
                self.item(at, key, value)?;
            }
        }
        self.changed.blocks.insert(at.0..at.0 + info.blocks());
        Ok(Some((info, checksum)))
    }

    fn read(&mut self, at: BlockNo, blocks: u64) -> Result<Buffer, Unclear> {
        let mut bytes = Buffer::zeroed(blocks as usize);
        self.device.read(at, &mut bytes)?;
        self.changed.read += blocks;
        Ok(bytes)
    }
}
