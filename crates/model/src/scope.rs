//! How large a world is explored: the volume, the operations, and how often each thing may happen.

use crate::rules::Rules;

/// Operations of callers, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ops(pub u32);

impl Ops {
    pub const WRITE: Ops = Ops(1);
    pub const SYNC_IMAGES: Ops = Ops(2);
    pub const SYNC_EXTENTS: Ops = Ops(4);
    pub const TRUNCATE: Ops = Ops(8);
    pub const CREATE: Ops = Ops(16);
    pub const UNLINK: Ops = Ops(32);
    pub const RENAME: Ops = Ops(64);
    pub const LINK: Ops = Ops(128);
    pub const PREALLOCATE: Ops = Ops(256);
    pub const SHARE: Ops = Ops(512);
    pub const TRANSACTION: Ops = Ops(1024);
    pub const WRITEBACK: Ops = Ops(2048);
    /// Faults are rot instead of I/O errors.
    pub const ROT: Ops = Ops(4096);

    pub const SNAPSHOT: Ops = Ops(8192);
    pub const DELETE: Ops = Ops(1 << 14);
    pub const CLONE: Ops = Ops(1 << 15);
    pub const ROLL_BACK: Ops = Ops(1 << 16);
    pub const READ: Ops = Ops(1 << 17);
    /// Callers work on all heads.
    pub const HEADS: Ops = Ops(1 << 18);

    pub const fn and(self, other: Ops) -> Ops {
        Ops(self.0 | other.0)
    }

    pub fn has(self, other: Ops) -> bool {
        self.0 & other.0 != 0
    }
}

/// How often things may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    /// Writes and metadata operations.
    pub ops: u8,
    pub syncs: u8,
    pub writebacks: u8,
    pub checkpoints: u8,
    /// Power cuts.
    pub cuts: u8,
    /// Deaths of the process alone.
    pub kills: u8,
    /// Checkpoints given up before their superblock.
    pub aborts: u8,
    /// I/O errors.
    pub faults: u8,
    /// Operations on trees.
    pub trees: u8,
}

#[derive(Debug, Clone, Copy)]
pub struct Scope {
    pub name: &'static str,
    pub rules: Rules,
    pub cells: u8,
    pub blocks: u8,
    /// Files that exist at first, each with a name; the first page of each is written if `filled`.
    pub files: u8,
    pub filled: bool,
    /// Their first page is preallocated instead.
    pub preallocated: bool,
    /// Version 2 of the format.
    pub trees: bool,
    /// It begins as version 1.
    pub upgrade: bool,
    pub names: u8,
    pub pages: u8,
    /// Ring blocks of a record, at most.
    pub record_cells: u8,
    pub ops: Ops,
    pub budget: Budget,
    /// A recovery after a crash of recovery has to show the same volume.
    pub repeatable: bool,
}

impl Scope {
    pub fn on(&self, rule: crate::rules::Rule) -> bool {
        self.rules.on(rule)
    }

    pub fn all_blocks(&self) -> crate::volume::Blocks {
        ((1u32 << self.blocks) - 1) as u16
    }

    /// The group of a block.
    pub fn group(&self, block: u8) -> u8 {
        u8::from(block >= self.blocks.div_ceil(2))
    }

    pub fn without(mut self, rule: crate::rules::Rule) -> Scope {
        self.rules = self.rules.without(rule);
        self
    }
}
