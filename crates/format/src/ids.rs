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
    /// A tree: 0 is the root tree that names the others, 1 the main subvolume.
    TreeId(u32)
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
    /// The main subvolume.
    pub const MAIN: TreeId = TreeId(1);
}

impl ObjectNo {
    /// The object that holds the volume's own tables (orphans).
    pub const VOLUME: ObjectNo = ObjectNo(0);
    /// The root directory.
    pub const ROOT_DIR: ObjectNo = ObjectNo(1);
}
