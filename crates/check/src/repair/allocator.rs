//! Finds blocks that repair may write to: free in the old checkpoint, and named by no item, node or journal record.

use crate::CheckError;
use crate::analysis::Analysis;
use crate::block_map::BlockMap;
use crate::replay::Replay;
use crate::space::{GroupBitmap, bit, set_bits};
use std::collections::BTreeMap;
use syncline_device::Device;
use syncline_format::bitmap::{BITMAP_WORDS, Bits};
use syncline_format::layout::GROUP_HEAD_BLOCKS;
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, GroupNo, NODE_BLOCKS};

/// Hands out free blocks, lowest first.
pub(crate) struct Allocator<'a> {
    device: &'a dyn Device,
    superblock: &'a Superblock,
    /// What must not be touched: nodes and data in use, and what the journal names.
    kept: Vec<BlockMap>,
    /// Groups looked at so far, with everything taken marked.
    groups: BTreeMap<u32, Box<Bits>>,
    nodes: BlockMap,
    /// First groups that may still have room for a node and for a block.
    hints: [u32; 2],
}

impl<'a> Allocator<'a> {
    pub(crate) fn new(
        device: &'a dyn Device,
        superblock: &'a Superblock,
        analysis: &Analysis,
        replay: &Replay,
    ) -> Allocator<'a> {
        let mut kept = vec![analysis.nodes.clone(), analysis.data.clone(), replay.named.clone()];
        kept.extend(analysis.kept.iter().cloned());
        let nodes = BlockMap::new(superblock.layout);
        Allocator { device, superblock, kept, groups: BTreeMap::new(), nodes, hints: [0; 2] }
    }

    /// Blocks handed out for nodes.
    pub(crate) fn nodes(&self) -> &BlockMap {
        &self.nodes
    }

    /// Four aligned blocks for a node.
    pub(crate) fn node(&mut self) -> Result<BlockNo, CheckError> {
        let Some(block) = self.find(NODE_BLOCKS, NODE_BLOCKS, 0) else {
            let found = self.nodes.len();
            return Err(CheckError::NoSpace { needed: found + u64::from(NODE_BLOCKS), found });
        };
        self.nodes.insert(block, NODE_BLOCKS);
        Ok(block)
    }

    /// A run of at most `len` blocks for data, as long as can be found by halving.
    pub(crate) fn data(&mut self, len: u32) -> Result<(BlockNo, u32), CheckError> {
        let mut len = len;
        loop {
            if let Some(block) = self.find(len, 1, 1) {
                return Ok((block, len));
            }
            if len == 1 {
                return Err(CheckError::NoSpace { needed: 1, found: 0 });
            }
            len /= 2;
        }
    }

    fn find(&mut self, len: u32, align: u32, hint: usize) -> Option<BlockNo> {
        let layout = self.superblock.layout;
        for group in self.hints[hint]..layout.group_count() {
            let end = layout.group_len(GroupNo(group));
            let bits = self.group(GroupNo(group));
            if let Some(index) = free_run(bits, end, len, align) {
                set_bits(bits, index, len, true);
                return Some(layout.group_start(GroupNo(group)).plus(u64::from(index)));
            }
            if len == align && group == self.hints[hint] {
                self.hints[hint] += 1;
            }
        }
        None
    }

    fn group(&mut self, group: GroupNo) -> &mut Bits {
        let (device, superblock, kept) = (self.device, self.superblock, &self.kept);
        self.groups.entry(group.0).or_insert_with(|| {
            let current = GroupBitmap::read(device, superblock, group).current;
            let mut bits = current.map_or_else(|| Box::new([0; BITMAP_WORDS]), |(_, bits)| bits);
            set_bits(&mut bits, 0, GROUP_HEAD_BLOCKS as u32, true);
            for set in kept.iter().filter_map(|set| set.group(group)) {
                bits.iter_mut().zip(set).for_each(|(word, more)| *word |= more);
            }
            bits
        })
    }
}

/// The first run of `len` clear bits below `end` that begins at a multiple of `align`.
fn free_run(bits: &Bits, end: u32, len: u32, align: u32) -> Option<u32> {
    let mut index = 0;
    while index + len <= end {
        if index.is_multiple_of(64) && bits[index as usize / 64] == u64::MAX {
            index += 64;
            continue;
        }
        match (index..index + len).rev().find(|&block| bit(bits, block)) {
            None => return Some(index),
            Some(taken) => index = (taken + 1).next_multiple_of(align),
        }
    }
    None
}
