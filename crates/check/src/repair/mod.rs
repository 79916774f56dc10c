//! Repair: the volume as it should be, written as one fresh checkpoint.
//!
//! Edits are made to the in-memory overlay, in two rounds: first the structure (orphans, names, pieces), then, after
//! a second look, the counts that follow from it. Then data of page images, a complete new main tree, the root tree
//! and the bitmaps are written to places that neither the old checkpoint nor any journal record names, flushed, and
//! only then the superblock. A crash anywhere before leaves the old volume, journal and all.
//!
//! Only called when every item and durable record was readable, and every node but those that are given up: see
//! [`loss`]. Of a volume with trees heads are corrected, and snapshots that have lost nothing stay as they are: see
//! [`trees`]. Where only bitmaps are wrong, less is written: see [`bitmaps`].

mod allocator;
mod bitmaps;
mod builder;
mod destage;
mod edits;
pub(crate) mod loss;
mod rewrite;
mod salvage;
mod trees;

use crate::analysis::{Analysis, Subject};
use crate::block_map::BlockMap;
use crate::progress::{Phase, Reporter};
use crate::replay::Replay;
use crate::report::{Findings, Totals};
use crate::space::{GroupBitmap, encode_slot};
use crate::superblocks::Chosen;
use crate::walk::{Source, Trees, Visitor};
use crate::{CheckError, Code};
use allocator::Allocator;
use builder::TreeBuilder;
use edits::Editor;
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::layout::BACKUP_BLOCKS;
use syncline_format::node::NodePointer;
use syncline_format::superblock::{JournalTail, SUPERBLOCK_SLOTS, Superblock, VolumeState};
use syncline_format::{BlockNo, Era, Generation, GroupNo, Key, ObjectNo, Sequence, TreeId};

/// What rewriting the superblocks alone corrects.
const IN_SUPERBLOCKS: &[Code] =
    &[Code::SuperblockSlot, Code::SuperblockDisagrees, Code::SuperblockTwins, Code::BackupSuperblock];

/// What a new checkpoint corrects.
const IN_CHECKPOINT: &[Code] = &[
    Code::LeafUnreadable,
    Code::SubtreeLost,
    Code::TreeLost,
    Code::ItemLost,
    Code::NextObject,
    Code::JournalImage,
    Code::JournalDoubleSpace,
    Code::BitmapLost,
    Code::BlockLeaked,
    Code::BlockUnmarked,
    Code::BitmapEdge,
    Code::FreeBlocks,
    Code::InodeBlocks,
    Code::InodeUnnamed,
    Code::DirentDangling,
    Code::DirentType,
    Code::LinkCount,
    Code::EntryCount,
    Code::DirectoryParent,
    Code::XattrPieceUnused,
    Code::OrphanPending,
    Code::OrphanMissing,
    Code::OrphanNamed,
];

/// What rewriting the bitmaps corrects, on a volume with trees.
const IN_BITMAPS: &[Code] = &[
    Code::BitmapLost,
    Code::BlockLeaked,
    Code::BlockUnmarked,
    Code::BitmapEdge,
    Code::FreeBlocks,
    Code::JournalDoubleSpace,
];

/// What repair refuses to do, in a sentence for people.
pub(crate) const NOT_OF_TREES: &str = "what is left is in snapshots, which never change, or cannot be corrected in a \
     volume with snapshots; export what is needed, and delete the snapshots or files that are damaged";

/// Whether there is anything that repair can do.
pub(crate) fn is_wanted(findings: &Findings) -> bool {
    Code::ALL.iter().any(|&code| corrects(code) && findings.may_correct(code))
}

/// Whether repair corrects what has this code.
pub(crate) fn corrects(code: Code) -> bool {
    IN_SUPERBLOCKS.contains(&code) || IN_CHECKPOINT.contains(&code)
}

/// A repair about to be made.
pub(crate) struct Repair<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) chosen: &'a Chosen,
    pub(crate) analysis: Analysis,
    pub(crate) progress: &'a mut Reporter,
}

impl Repair<'_> {
    /// Repairs what the findings name.
    ///
    /// Errors: the device failed, or there is no room; the volume is then as it was.
    pub(crate) fn run(self, findings: &Findings, replay: Replay) -> Result<(), CheckError> {
        // What was read may only be in the device's cache (R13).
        self.device.flush()?;
        let has_trees = self.chosen.superblock.trees.is_some();
        let mut wanted = IN_CHECKPOINT.iter().filter(|&&code| findings.may_correct(code)).peekable();
        match (wanted.peek().is_some(), has_trees) {
            (false, _) if !self.has_newer_bitmaps() => self.superblocks_only(),
            (_, false) => self.checkpoint(replay),
            (_, true) if wanted.all(|code| IN_BITMAPS.contains(code)) => self.bitmaps(),
            (_, true) => self.trees(replay),
        }
    }

    /// Whether a superblock of the next generation would make bitmaps count that belong to another tree.
    fn has_newer_bitmaps(&self) -> bool {
        let superblock = &self.chosen.superblock;
        let mut groups = (0..superblock.layout.group_count()).map(GroupNo);
        groups.any(|group| GroupBitmap::read(self.device, superblock, group).has_newer)
    }

    fn superblocks_only(self) -> Result<(), CheckError> {
        let mut superblock = self.chosen.superblock.clone();
        superblock.generation = superblock.generation.next();
        self.write_superblock(&superblock)
    }

    fn checkpoint(self, mut replay: Replay) -> Result<(), CheckError> {
        let old = &self.chosen.superblock;
        let main = self.analysis.main.expect("a volume without a main tree is not repaired");
        let generation = old.generation.next();
        let mut allocator = Allocator::new(self.device, old, &self.analysis, &replay);
        let mut next_object = self.next_object(&replay);
        {
            let mut editor = self.editor((TreeId::MAIN, main), &mut replay);
            editor.structure(&self.analysis.facts, &self.analysis.name_faults, &mut next_object);
            editor.destage(&self.analysis.facts, &mut allocator)?;
        }
        let facts = {
            let subject = Subject {
                device: self.device,
                superblock: old,
                replay: &replay,
                data: false,
                only: None,
                all: false,
            };
            subject.look(&mut Findings::default(), &mut Totals::default(), self.progress)
        };
        self.editor((TreeId::MAIN, main), &mut replay).counts(&facts.facts);
        let root = self.write_trees(&main, &replay, generation, &mut allocator)?;
        self.write_bitmaps([&facts.data, allocator.nodes()], generation)?;
        let used = facts.data.len() + allocator.nodes().len();
        self.device.flush()?;
        let mut superblock = old.clone();
        superblock.generation = generation;
        superblock.state = VolumeState::Clean;
        superblock.checkpoint_lsn = replay.last_lsn;
        superblock.epoch = syncline_device::random_number();
        superblock.tail = JournalTail { block: 0, sequence: Sequence(1), predecessor: superblock.epoch };
        superblock.root = root;
        superblock.cut = None;
        superblock.next_object = next_object;
        superblock.free_blocks = old.layout.data_blocks().saturating_sub(used);
        self.write_superblock(&superblock)
    }

    /// A head to be edited.
    fn editor<'e>(&self, (tree, root): (TreeId, NodePointer), replay: &'e mut Replay) -> Editor<'e>
    where
        Self: 'e,
    {
        let (device, superblock) = (self.device, &self.chosen.superblock);
        Editor { device, superblock, tree, root, replay }
    }

    /// Lowest number that no object has, by the superblock, the trees or the log.
    fn next_object(&self, replay: &Replay) -> ObjectNo {
        let all = self.analysis.others.values().map(|(facts, _)| facts).chain([&self.analysis.facts]);
        let highest = all.map(|facts| facts.stored_object_max.max(facts.object_max)).max().unwrap_or(0);
        let above = highest.max(replay.object_max.0).saturating_add(1);
        ObjectNo(above.max(self.chosen.superblock.next_object.0))
    }

    /// Writes the new main tree and the root tree above it; returns the root tree's pointer.
    fn write_trees(
        &self,
        main: &NodePointer,
        replay: &Replay,
        generation: Generation,
        allocator: &mut Allocator<'_>,
    ) -> Result<NodePointer, CheckError> {
        let superblock = &self.chosen.superblock;
        let trees = Trees::new(self.device, superblock, &replay.given_up);
        let born = (generation, Era(0));
        let mut builder = TreeBuilder::new(self.device, superblock, TreeId::MAIN, born, allocator);
        trees.walk(TreeId::MAIN, main, replay.overlay(TreeId::MAIN), &mut builder as &mut dyn Visitor);
        let main = builder.finish()?;
        let mut builder = TreeBuilder::new(self.device, superblock, TreeId::ROOT, born, allocator);
        builder.item(Key::tree(TreeId::MAIN), &main.encode(), Source::Log);
        builder.finish()
    }

    /// Writes the slot that does not count of every group, with these blocks in use.
    fn write_bitmaps(&self, used: [&BlockMap; 2], generation: Generation) -> Result<(), CheckError> {
        let superblock = &self.chosen.superblock;
        let groups = superblock.layout.group_count();
        for group in (0..groups).map(GroupNo) {
            let bitmap = GroupBitmap::read(self.device, superblock, group);
            let counts = bitmap.current.map(|(slot, _)| slot).or(bitmap.unwritten);
            let slot = counts.map_or(0, |slot| 1 - slot);
            let sets = used.map(|set| set.group(group));
            let bytes = encode_slot(superblock, group, slot, generation, sets);
            write(self.device, superblock.layout.bitmap_slot(group, slot), &bytes)?;
        }
        Ok(())
    }

    /// Writes the slot that does not hold the old superblock, then the backups; flushes after each.
    fn write_superblock(self, superblock: &Superblock) -> Result<(), CheckError> {
        let at = SUPERBLOCK_SLOTS[1 - self.chosen.slot];
        write(self.device, at, &superblock.encode(at))?;
        self.device.flush()?;
        for at in (0..BACKUP_BLOCKS).map(|index| superblock.layout.backup_start().plus(index)) {
            write(self.device, at, &superblock.encode(at))?;
        }
        self.device.flush()?;
        self.progress.report(Phase::Repair, 1, 1);
        Ok(())
    }
}

fn write(device: &dyn Device, at: BlockNo, bytes: &[u8]) -> Result<(), CheckError> {
    Ok(device.write(at, vec![Arc::new(Buffer::from_bytes(bytes))])?)
}
