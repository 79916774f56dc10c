//! Newtypes for every number that has a meaning, so that two of them never change places.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// A 4 KiB block's position on the device.
    BlockNo(u64)
}
id! {
    /// An allocation group's number.
    GroupNo(u32)
}
id! {
    /// Log sequence number: the position of a batch in the order of all batches. The first batch is 1; 0 is "none".
    Lsn(u64)
}
id! {
    /// Sequence number of a journal record within its epoch; the first record is 1.
    Sequence(u64)
}
id! {
    /// Number of a superblock; every checkpoint writes the next one.
    Generation(u64)
}
id! {
    /// An object (the filesystem's inode number). Object 0 holds the volume's own tables.
    ObjectNo(u64)
}
id! {
    /// A tree: 0 is the root tree that names the others, 1 the first head, 2 the volume tree. From 16 on: snapshots and
    /// other heads, each number used once.
    TreeId(u32)
}
id! {
    /// A part of the volume's life, which a snapshot ends: what a snapshot of era e shows was born in e or before. 0 on
    /// a volume of version 1.
    Era(u32)
}

impl Era {
    pub fn next(self) -> Era {
        Era(self.0 + 1)
    }
}

impl BlockNo {
    /// The block `count` further on.
    pub fn plus(self, count: u64) -> BlockNo {
        BlockNo(self.0 + count)
    }

    /// Byte offset of the block on the device.
    pub fn byte_offset(self) -> u64 {
        self.0 * crate::BLOCK_BYTES as u64
    }
}

impl Lsn {
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

impl Sequence {
    pub fn next(self) -> Sequence {
        Sequence(self.0 + 1)
    }
}

impl Generation {
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

impl TreeId {
    /// The root tree: its items point at the other trees.
    pub const ROOT: TreeId = TreeId(0);
    /// The first head: the filesystem itself, and the only one of a volume of version 1.
    pub const MAIN: TreeId = TreeId(1);
    /// The volume tree: the tables of the volume. It changes by batches, and no snapshot is ever made of it.
    pub const VOLUME: TreeId = TreeId(2);
    /// The first number that a snapshot or a further head may get.
    pub const FIRST_MADE: TreeId = TreeId(16);

    /// Whether the tree holds a filesystem: it is a head or a snapshot.
    pub fn is_filesystem(self) -> bool {
        self == TreeId::MAIN || self >= TreeId::FIRST_MADE
    }

    /// The tree that its nodes name. Filesystems share nodes, so those of all of them name the first head.
    pub fn of_nodes(self) -> TreeId {
        if self.is_filesystem() { TreeId::MAIN } else { self }
    }
}

impl ObjectNo {
    /// The object that holds the volume's own tables (orphans).
    pub const VOLUME: ObjectNo = ObjectNo(0);
    /// The root directory.
    pub const ROOT_DIR: ObjectNo = ObjectNo(1);
}
