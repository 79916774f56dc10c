//! A set of blocks, kept per group and only for groups that have any.

use std::collections::BTreeMap;
use syncline_format::bitmap::{BITMAP_WORDS, Bits};
use syncline_format::layout::Layout;
use syncline_format::{BlockNo, GroupNo};

/// A set of blocks that lie in groups.
#[derive(Debug, Clone)]
pub(crate) struct BlockMap {
    layout: Layout,
    groups: BTreeMap<u32, Box<Bits>>,
    blocks: u64,
}

impl BlockMap {
    pub(crate) fn new(layout: Layout) -> BlockMap {
        BlockMap { layout, groups: BTreeMap::new(), blocks: 0 }
    }

    /// Number of blocks in the set.
    pub(crate) fn len(&self) -> u64 {
        self.blocks
    }

    /// Adds a run that [`Layout::holds_run`] accepts; returns the first block that was in the set already.
    pub(crate) fn insert(&mut self, start: BlockNo, len: u32) -> Option<BlockNo> {
        let (group, first) = self.layout.locate(start).expect("callers check that the run lies in a group");
        let bits = self.groups.entry(group.0).or_insert_with(|| Box::new([0; BITMAP_WORDS]));
        let mut twice = None;
        for index in first..first + len {
            let (word, mask) = (index as usize / 64, 1u64 << (index % 64));
            if bits[word] & mask != 0 {
                twice = twice.or(Some(start.plus(u64::from(index - first))));
            } else {
                bits[word] |= mask;
                self.blocks += 1;
            }
        }
        twice
    }

    /// The first block of the run that is in the set.
    pub(crate) fn first_of(&self, start: BlockNo, len: u32) -> Option<BlockNo> {
        let (group, first) = self.layout.locate(start)?;
        let bits = self.groups.get(&group.0)?;
        (first..first + len)
            .find(|&index| bits[index as usize / 64] >> (index % 64) & 1 != 0)
            .map(|index| start.plus(u64::from(index - first)))
    }

    /// Bits of a group; `None` stands for all clear.
    pub(crate) fn group(&self, group: GroupNo) -> Option<&Bits> {
        self.groups.get(&group.0).map(|bits| &**bits)
    }
}
