//! Where things are on the device: superblocks, journal ring, allocation groups, backup superblocks.

use crate::bitmap::GROUP_BLOCKS_MAX;
use crate::{BlockNo, FormatError, GroupNo, NODE_BLOCKS, range};

/// Geometry of a volume; fixed at `mkfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Blocks of the whole volume, backup superblocks included.
    pub blocks: u64,
    pub journal_start: BlockNo,
    pub journal_blocks: u64,
    pub groups_start: BlockNo,
    /// Blocks per group, its two bitmap slots included; the last group may be shorter.
    pub group_blocks: u64,
}

/// Blocks before the journal: a zero block for boot code, two superblock slots, the rest reserved.
pub const JOURNAL_START: BlockNo = BlockNo(16);
/// Two backup superblocks at the end of the volume.
pub const BACKUP_BLOCKS: u64 = 2;
/// Blocks at the head of each group that hold the two slots of its bitmap.
pub const GROUP_HEAD_BLOCKS: u64 = 2;
/// A shorter rest behind the last group stays unused.
pub const GROUP_BLOCKS_MIN: u64 = 64;
/// Smallest journal: 256 KiB.
pub const JOURNAL_BLOCKS_MIN: u64 = 64;
/// Largest default journal: 1 GiB.
pub const JOURNAL_BLOCKS_DEFAULT_MAX: u64 = 1 << 18;
/// Smallest default journal: 16 MiB (less on volumes too small for it).
pub const JOURNAL_BLOCKS_DEFAULT_MIN: u64 = 1 << 12;
/// Largest journal that may be asked for: 16 GiB.
pub const JOURNAL_BLOCKS_MAX: u64 = 1 << 22;
/// Smallest volume: 4 MiB.
pub const VOLUME_BLOCKS_MIN: u64 = 1024;
/// Largest volume: 2^40 blocks (4 PiB).
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 40;

impl Layout {
    /// Geometry for a device of `blocks` blocks; `journal_blocks` of `None` takes the default: 1/64 of the device,
    /// 16 MiB to 1 GiB, but never more than an eighth of a small device.
    pub fn new(blocks: u64, journal_blocks: Option<u64>) -> Result<Layout, FormatError> {
        if !(VOLUME_BLOCKS_MIN..=VOLUME_BLOCKS_MAX).contains(&blocks) {
            return Err(FormatError::Field { what: "layout", field: "blocks", value: blocks });
        }
        let by_default = (blocks / 64)
            .clamp(JOURNAL_BLOCKS_DEFAULT_MIN, JOURNAL_BLOCKS_DEFAULT_MAX)
            .min(blocks / 8)
            .max(JOURNAL_BLOCKS_MIN);
        let journal_blocks = journal_blocks.unwrap_or(by_default);
        let layout = Layout {
            blocks,
            journal_start: JOURNAL_START,
            journal_blocks,
            groups_start: BlockNo(JOURNAL_START.0 + journal_blocks),
            group_blocks: GROUP_BLOCKS_MAX,
        };
        layout.validate(blocks)?;
        Ok(layout)
    }

    /// Refuses impossible geometry (hostile or damaged superblocks).
    pub fn validate(&self, device_blocks: u64) -> Result<(), FormatError> {
        let field = |field, value| Err(FormatError::Field { what: "layout", field, value });
        if self.blocks > device_blocks || !range::SUPERBLOCK_BLOCKS.holds(self.blocks) {
            return field("blocks", self.blocks);
        }
        if self.journal_start != JOURNAL_START {
            return field("journal_start", self.journal_start.0);
        }
        if !range::SUPERBLOCK_JOURNAL_BLOCKS.holds(self.journal_blocks)
            || self.journal_blocks > self.blocks / 2
        {
            return field("journal_blocks", self.journal_blocks);
        }
        if self.groups_start.0 != self.journal_start.0 + self.journal_blocks {
            return field("groups_start", self.groups_start.0);
        }
        if self.group_blocks != GROUP_BLOCKS_MAX {
            return field("group_blocks", self.group_blocks);
        }
        if self.group_count() == 0 {
            return field("group_count", 0);
        }
        Ok(())
    }

    /// First block of the backup superblock pair.
    pub fn backup_start(&self) -> BlockNo {
        BlockNo(self.blocks - BACKUP_BLOCKS)
    }

    pub fn group_count(&self) -> u32 {
        let space = self.backup_start().0.saturating_sub(self.groups_start.0);
        let whole = space / self.group_blocks;
        let rest = space % self.group_blocks;
        (whole + u64::from(rest >= GROUP_BLOCKS_MIN)) as u32
    }

    /// First block of a group: its first bitmap slot.
    pub fn group_start(&self, group: GroupNo) -> BlockNo {
        BlockNo(self.groups_start.0 + u64::from(group.0) * self.group_blocks)
    }

    /// Blocks of a group, bitmap slots included.
    pub fn group_len(&self, group: GroupNo) -> u32 {
        let rest = self.backup_start().0 - self.group_start(group).0;
        rest.min(self.group_blocks) as u32
    }

    /// Block of one of a group's two bitmap slots (0 or 1).
    pub fn bitmap_slot(&self, group: GroupNo, slot: u8) -> BlockNo {
        self.group_start(group).plus(u64::from(slot & 1))
    }

    /// Group and index within the group of a block, if it lies in one.
    pub fn locate(&self, block: BlockNo) -> Option<(GroupNo, u32)> {
        let offset = block.0.checked_sub(self.groups_start.0)?;
        let group = offset / self.group_blocks;
        if group >= u64::from(self.group_count()) {
            return None;
        }
        let group = GroupNo(group as u32);
        let index = (offset % self.group_blocks) as u32;
        (index < self.group_len(group)).then_some((group, index))
    }

    /// Whether `len` blocks from `start` are allocatable blocks of one group.
    pub fn holds_run(&self, start: BlockNo, len: u32) -> bool {
        match self.locate(start) {
            Some((group, index)) => {
                u64::from(index) >= GROUP_HEAD_BLOCKS
                    && len > 0
                    && u64::from(index) + u64::from(len) <= u64::from(self.group_len(group))
            }
            None => false,
        }
    }

    /// Whether a tree node may lie at `block`: one aligned chunk inside a group.
    pub fn holds_node(&self, block: BlockNo) -> bool {
        self.holds_run(block, NODE_BLOCKS)
            && self.locate(block).is_some_and(|(_, index)| index.is_multiple_of(NODE_BLOCKS))
    }

    /// Allocatable blocks of the whole volume.
    pub fn data_blocks(&self) -> u64 {
        (0..self.group_count()).map(|g| u64::from(self.group_len(GroupNo(g))) - GROUP_HEAD_BLOCKS).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_volume_has_a_journal_and_one_group() {
        let layout = Layout::new(VOLUME_BLOCKS_MIN, None).expect("4 MiB is allowed");
        assert_eq!(layout.journal_blocks, 128);
        assert_eq!(layout.group_count(), 1);
        assert_eq!(layout.data_blocks(), 1024 - 16 - 128 - 2 - 2);
    }

    #[test]
    fn every_block_is_located_in_at_most_one_group() {
        let layout = Layout::new(3 * GROUP_BLOCKS_MAX, Some(64)).expect("valid");
        assert_eq!(layout.locate(layout.groups_start), Some((GroupNo(0), 0)));
        assert_eq!(layout.locate(BlockNo(layout.groups_start.0 - 1)), None);
        assert_eq!(layout.locate(layout.backup_start()), None);
        assert!(!layout.holds_run(layout.groups_start, 1), "a bitmap slot is not allocatable");
        assert!(layout.holds_node(layout.groups_start.plus(4)));
        assert!(!layout.holds_node(layout.groups_start.plus(5)));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(Layout::new(VOLUME_BLOCKS_MIN - 1, None).is_err());
        assert!(Layout::new(1024, Some(63)).is_err());
        assert!(Layout::new(1024, Some(600)).is_err());
    }
}
