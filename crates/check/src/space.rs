//! Compares the allocation bitmaps with what trees and extents really use, group by group.

use crate::Code;
use crate::block_map::BlockMap;
use crate::progress::{Phase, Reporter};
use crate::replay::{Replay, SpaceOp};
use crate::report::Findings;
use syncline_device::{Buffer, Device};
use syncline_format::bitmap::{self, BITMAP_WORDS, Bits};
use syncline_format::layout::GROUP_HEAD_BLOCKS;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError, Generation, GroupNo};

/// A group's bitmap as of the checkpoint.
pub(crate) struct GroupBitmap {
    /// The slot that counts and its bits.
    pub(crate) current: Option<(u8, Box<Bits>)>,
    /// A slot that nobody has ever written. It counts where no other does, if nothing is missing on the volume.
    pub(crate) unwritten: Option<u8>,
    /// A checkpoint that came to no superblock left a slot of a newer generation, or a torn one that says so.
    pub(crate) has_newer: bool,
    /// Slots that are neither valid nor empty.
    damaged: Vec<(BlockNo, String)>,
    /// One of these may be the one that counts.
    pub(crate) doubtful: bool,
}

impl GroupBitmap {
    /// Reads both slots of a group and chooses as a mount would.
    pub(crate) fn read(device: &dyn Device, superblock: &Superblock, group: GroupNo) -> GroupBitmap {
        let mut found = GroupBitmap {
            current: None,
            unwritten: None,
            has_newer: false,
            damaged: Vec::new(),
            doubtful: false,
        };
        let mut unverified = None;
        let mut newest: Option<Generation> = None;
        for slot in 0..2u8 {
            let at = superblock.layout.bitmap_slot(group, slot);
            let mut bytes = Buffer::zeroed(1);
            if let Err(error) = device.read(at, &mut bytes) {
                found.damaged.push((at, error.to_string()));
                bytes.fill(0xff);
                unverified = Some((at, bytes));
                continue;
            }
            match bitmap::decode(&bytes, group, at, superblock.volume_id()) {
                Ok((generation, bits)) => {
                    let counts = generation <= superblock.generation;
                    found.has_newer |= !counts;
                    if counts && newest.is_none_or(|newest| generation > newest) {
                        newest = Some(generation);
                        found.current = Some((slot, bits));
                    }
                }
                Err(FormatError::Magic { .. }) if bitmap::is_unwritten(&bytes) => {
                    let counts = superblock.unwritten_bitmaps;
                    found.unwritten = found.unwritten.or(Some(slot).filter(|_| counts));
                }
                Err(error) => {
                    found.damaged.push((at, error.to_string()));
                    unverified = Some((at, bytes));
                }
            }
        }
        if let (Some(other), Some((at, bytes))) = (newest, unverified) {
            found.doubtful =
                bitmap::may_count(&bytes, at, superblock.volume_id(), superblock.generation, other);
            found.has_newer |= !found.doubtful;
        }
        found
    }
}

/// Whether a block of a group is in use according to its bits.
pub(crate) fn bit(bits: &Bits, index: u32) -> bool {
    bits[index as usize / 64] >> (index % 64) & 1 != 0
}

pub(crate) fn set_bits(bits: &mut Bits, from: u32, len: u32, used: bool) {
    for index in from..from + len {
        let mask = 1u64 << (index % 64);
        if used {
            bits[index as usize / 64] |= mask;
        } else {
            bits[index as usize / 64] &= !mask;
        }
    }
}

/// Compares every group.
pub(crate) struct SpaceCheck<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) superblock: &'a Superblock,
    pub(crate) replay: &'a Replay,
    pub(crate) nodes: &'a BlockMap,
    pub(crate) data: &'a BlockMap,
    /// Something could not be read, so a block that belongs to nothing proves nothing.
    pub(crate) incomplete: bool,
}

impl SpaceCheck<'_> {
    pub(crate) fn run(&self, findings: &mut Findings, progress: &mut Reporter) {
        let layout = &self.superblock.layout;
        let groups = layout.group_count();
        let mut free = 0;
        let (mut unwritten, mut any_lost) = (Vec::new(), false);
        for group in (0..groups).map(GroupNo) {
            let mut found = GroupBitmap::read(self.device, self.superblock, group);
            match found.current.take() {
                Some((_, bits)) => {
                    if found.doubtful {
                        self.lost(group, &found, findings);
                    }
                    free += bits.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
                    self.group(group, bits, found.damaged, findings);
                }
                None if found.unwritten.is_some() => {
                    free += u64::from(layout.group_len(group)) - GROUP_HEAD_BLOCKS;
                    unwritten.push((group, found));
                }
                None => {
                    any_lost = true;
                    self.lost(group, &found, findings);
                }
            }
            progress.report(Phase::Bitmaps, u64::from(group.0) + 1, u64::from(groups));
        }
        if free == self.superblock.free_blocks {
            for (group, found) in unwritten {
                let bits = Box::new(bitmap::empty_bits(layout, group));
                self.group(group, bits, found.damaged, findings);
            }
        } else if unwritten.is_empty() && !any_lost {
            let message = format!("the superblock says {}, the bitmaps {free}", self.superblock.free_blocks);
            findings.add(Code::FreeBlocks, message);
        } else {
            self.missing(&unwritten, findings);
        }
    }

    /// Slots of zeros stand for bitmaps that were lost, some of them: the superblock knows of less that is free.
    fn missing(&self, unwritten: &[(GroupNo, GroupBitmap)], findings: &mut Findings) {
        let is_used = |group: GroupNo| {
            let used = [self.nodes.group(group), self.data.group(group)];
            used.into_iter().flatten().any(|set| set.iter().any(|&word| word != 0))
        };
        let is_lost = |(group, found): &&(GroupNo, GroupBitmap)| {
            !found.damaged.is_empty() || found.has_newer || is_used(*group)
        };
        let lost: Vec<_> = unwritten.iter().filter(is_lost).collect();
        // Without any other sign, the first stands for all of them.
        for (group, found) in if lost.is_empty() { unwritten.iter().take(1).collect() } else { lost } {
            self.lost(*group, found, findings);
        }
    }

    fn lost(&self, group: GroupNo, found: &GroupBitmap, findings: &mut Findings) {
        let why = match found.damaged.first() {
            Some((_, why)) => why.clone(),
            None => "no slot is valid at the superblock's generation".into(),
        };
        let at = self.superblock.layout.group_start(group);
        findings.at(Code::BitmapLost, at, format!("group {group}: {why}"));
    }

    fn group(
        &self,
        group: GroupNo,
        mut bits: Box<Bits>,
        damaged: Vec<(BlockNo, String)>,
        findings: &mut Findings,
    ) {
        let layout = &self.superblock.layout;
        for (block, why) in damaged {
            findings.at(Code::BitmapSlot, block, format!("group {group}: {why}"));
        }
        let len = layout.group_len(group);
        let head = GROUP_HEAD_BLOCKS as u32;
        let edge_clear = (0..head).chain(len..(BITMAP_WORDS * 64) as u32).any(|index| !bit(&bits, index));
        if edge_clear {
            let message = format!("group {group} has {len} blocks");
            findings.at(Code::BitmapEdge, layout.group_start(group), message);
        }
        for op in self.replay.space.get(&group.0).map_or(&[][..], Vec::as_slice) {
            self.apply(group, *op, &mut bits, findings);
        }
        self.compare(group, &bits, findings);
    }

    fn apply(&self, group: GroupNo, op: SpaceOp, bits: &mut Bits, findings: &mut Findings) {
        if let Some(index) = (op.index..op.index + op.len).find(|&index| bit(bits, index) == op.used) {
            let block = self.superblock.layout.group_start(group).plus(u64::from(index));
            let message = if op.used { "allocated while in use" } else { "freed while free" };
            findings.at(Code::JournalDoubleSpace, block, message);
        }
        set_bits(bits, op.index, op.len, op.used);
    }

    /// Reports runs of blocks whose bit is not what it should be.
    fn compare(&self, group: GroupNo, bits: &Bits, findings: &mut Findings) {
        let layout = &self.superblock.layout;
        let (nodes, data) = (self.nodes.group(group), self.data.group(group));
        // Most of a large volume.
        if nodes.is_none() && data.is_none() && *bits == bitmap::empty_bits(layout, group) {
            return;
        }
        let really = |index: u32| [nodes, data].into_iter().flatten().any(|set| bit(set, index));
        let len = layout.group_len(group);
        let wrong = |index: u32| {
            let (marked, used) = (bit(bits, index), really(index));
            (marked != used).then_some(used)
        };
        let mut index = GROUP_HEAD_BLOCKS as u32;
        while index < len {
            let Some(used) = wrong(index) else {
                index += 1;
                continue;
            };
            let end = (index..len).find(|&next| wrong(next) != Some(used)).unwrap_or(len);
            let start = layout.group_start(group).plus(u64::from(index));
            let message = format!("{} blocks from {start} in group {group}", end - index);
            if used {
                findings.at(Code::BlockUnmarked, start, message);
            } else if !self.incomplete {
                findings.at(Code::BlockLeaked, start, message);
            }
            index = end;
        }
    }
}

/// Encodes a bitmap for a slot: the given bits, head and edge set.
pub(crate) fn encode_slot(
    superblock: &Superblock,
    group: GroupNo,
    slot: u8,
    generation: Generation,
    sets: [Option<&Bits>; 2],
) -> Vec<u8> {
    let layout = &superblock.layout;
    let mut bits: Box<Bits> = Box::new([0; BITMAP_WORDS]);
    for set in sets.into_iter().flatten() {
        for (word, more) in bits.iter_mut().zip(set) {
            *word |= more;
        }
    }
    let len = layout.group_len(group);
    set_bits(&mut bits, 0, GROUP_HEAD_BLOCKS as u32, true);
    set_bits(&mut bits, len, (BITMAP_WORDS * 64) as u32 - len, true);
    let block = layout.bitmap_slot(group, slot);
    let bytes = bitmap::encode(&bits, group, block, generation, superblock.volume_id());
    debug_assert_eq!(bytes.len(), BLOCK_BYTES);
    bytes
}
