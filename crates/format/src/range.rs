//! The legal range of every field, in one table: decoders refuse what lies outside, the check reports it, and the
//! laboratory aims at its edges.
//!
//! A range is as narrow as the format allows for every volume, and holds all that any engine of this version writes.
//! What depends on more than the field (the type of an inode, the geometry of a volume) has a row of its own or is
//! told in the last column. `docs/format.md` repeats the table for people; a test compares the two.

use crate::bitmap::GROUP_BLOCKS_MAX;
use crate::item::{
    EXTENT_PAGES_MAX, FILE_BYTES_MAX, LINKS_MAX, NAME_BYTES_MAX, SYMLINK_BYTES_MAX, XATTR_PIECE_BYTES,
    XATTR_PIECES_MAX, XATTR_VALUE_BYTES_MAX,
};
use crate::layout::{
    GROUP_HEAD_BLOCKS, JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, JOURNAL_START, VOLUME_BLOCKS_MAX,
    VOLUME_BLOCKS_MIN,
};
use crate::node::LEVEL_MAX;
use crate::record::RECORD_BYTES_MAX;
use crate::{
    BLOCK_BYTES, FormatError, NAME_BITS, NAME_HASH_MAX, NAME_HASH_MIN, NODE_BYTES, SEEDED_SLOTS, TreeId,
};

/// Counters that only grow end here, far from any overflow. Object numbers are below it.
pub const COUNTER_MAX: u64 = 1 << 62;
/// Pages of the largest file; its last page has the number before.
pub const FILE_PAGES_MAX: u64 = FILE_BYTES_MAX.div_ceil(BLOCK_BYTES as u64);
/// More names than the nodes of the largest volume can hold.
pub const ENTRIES_MAX: u64 = 1 << 47;
/// The last slot of the last name hash: a positive `i64`, since directory offsets are signed.
pub const NAME_SLOT_MAX: u64 = NAME_HASH_MAX + SEEDED_SLOTS - 1;

/// Tree numbers are below it, so that a tree's and an object's number fit into one of 63 bits.
pub const TREES_MAX: u64 = 1 << 24;
/// The last era: the one that no snapshot can end any more.
pub const ERA_MAX: u64 = u32::MAX as u64 - 1;
/// Overlay items of one snapshot: it inherits no more images.
pub const OVERLAY_ITEMS_MAX: u64 = 1024;
/// Bytes of the schedule's text.
pub const POLICY_BYTES_MAX: usize = 320;

/// The byte offset of an extent's end is a number.
const EXTENT_START_MAX: u64 = u64::MAX / BLOCK_BYTES as u64 - EXTENT_PAGES_MAX as u64;
const NANOSECONDS_MAX: u64 = 999_999_999;
const ANY: (u64, u64) = (0, u64::MAX);
const OBJECT: (u64, u64) = (1, COUNTER_MAX - 1);
/// Of a superblock that a session begins with: it has numbers enough left to count on.
const COUNTER: (u64, u64) = (0, COUNTER_MAX - (1 << 32));
const SLOT: (u64, u64) = (NAME_HASH_MIN, NAME_SLOT_MAX);
/// Allocatable blocks of a whole group.
const RUN_BLOCKS_MAX: u64 = GROUP_BLOCKS_MAX - GROUP_HEAD_BLOCKS;

/// What a field belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Structure {
    Superblock,
    Bitmap,
    Node,
    NodePointer,
    /// Of an item in a filesystem, unless it says otherwise.
    Key,
    Inode,
    Dirent,
    Xattr,
    Extent,
    Orphan,
    Overlay,
    TreeItem,
    Record,
    /// An operation of a batch; places count from its code.
    Operation,
}

impl Structure {
    /// Its name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Structure::Superblock => "superblock",
            Structure::Bitmap => "bitmap",
            Structure::Node => "tree node",
            Structure::NodePointer => "node pointer",
            Structure::Key => "key",
            Structure::Inode => "inode",
            Structure::Dirent => "directory entry",
            Structure::Xattr => "xattr",
            Structure::Extent => "extent",
            Structure::Orphan => "orphan",
            Structure::Overlay => "overlay item",
            Structure::TreeItem => "tree item",
            Structure::Record => "journal record",
            Structure::Operation => "batch",
        }
    }
}

/// A field: where it lies, and which values it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    pub structure: Structure,
    pub name: &'static str,
    /// Offset in the structure.
    pub at: usize,
    /// Length.
    pub bytes: usize,
    pub least: u64,
    pub most: u64,
    /// For whom the row holds, or what else bounds it.
    pub note: &'static str,
}

impl Field {
    /// Whether the field may have this value.
    pub fn holds(&self, value: u64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// The value, if the field may have it.
    pub fn check(&self, value: u64) -> Result<u64, FormatError> {
        match self.holds(value) {
            true => Ok(value),
            false => Err(FormatError::Field { what: self.structure.name(), field: self.name, value }),
        }
    }

    /// The nearest value that the field may have.
    pub fn clamp(&self, value: u64) -> u64 {
        value.clamp(self.least, self.most)
    }
}

macro_rules! fields {
    ($($id:ident = $structure:ident, $name:literal, $at:expr, $bytes:expr, $range:expr, $note:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $note)]
            pub const $id: Field = Field {
                structure: Structure::$structure,
                name: $name,
                at: $at,
                bytes: $bytes,
                least: $range.0,
                most: $range.1,
                note: $note,
            };
        )*

        /// Every field.
        pub const ALL: &[Field] = &[$($id),*];
    };
}

fields! {
    SUPERBLOCK_STATE = Superblock, "state", 20, 4, (1, 2), "";
    SUPERBLOCK_GENERATION = Superblock, "generation", 112, 8, COUNTER, "of the newest superblock";
    SUPERBLOCK_BLOCKS = Superblock, "blocks", 144, 8, (VOLUME_BLOCKS_MIN, VOLUME_BLOCKS_MAX),
        "at most those of the device";
    SUPERBLOCK_JOURNAL_START = Superblock, "journal_start", 152, 8, (JOURNAL_START.0, JOURNAL_START.0), "";
    SUPERBLOCK_JOURNAL_BLOCKS = Superblock, "journal_blocks", 160, 8, (JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX),
        "at most half of the volume's blocks";
    SUPERBLOCK_GROUPS_START = Superblock, "groups_start", 168, 8, (JOURNAL_START.0 + JOURNAL_BLOCKS_MIN, JOURNAL_START.0 + JOURNAL_BLOCKS_MAX),
        "the journal's end";
    SUPERBLOCK_GROUP_BLOCKS = Superblock, "group_blocks", 176, 8, (GROUP_BLOCKS_MAX, GROUP_BLOCKS_MAX), "";
    SUPERBLOCK_CHECKPOINT_LSN = Superblock, "checkpoint_lsn", 184, 8, COUNTER, "of the newest superblock";
    SUPERBLOCK_EPOCH = Superblock, "epoch", 192, 8, ANY, "";
    SUPERBLOCK_TAIL_BLOCK = Superblock, "tail_block", 200, 8, (0, JOURNAL_BLOCKS_MAX - 1),
        "below journal_blocks";
    SUPERBLOCK_TAIL_SEQUENCE = Superblock, "tail_sequence", 208, 8, COUNTER, "of the newest superblock";
    SUPERBLOCK_TAIL_PREDECESSOR = Superblock, "tail_predecessor", 216, 8, ANY, "";
    SUPERBLOCK_HASH_SEED = Superblock, "hash_seed", 256, 8, ANY, "";
    SUPERBLOCK_NEXT_OBJECT = Superblock, "next_object", 264, 8, COUNTER,
        "of the newest superblock; above every object";
    SUPERBLOCK_FREE_BLOCKS = Superblock, "free_blocks", 272, 8, ANY, "clear bits of all bitmaps";
    SUPERBLOCK_CREATED_SECONDS = Superblock, "created_seconds", 280, 8, ANY, "signed";
    SUPERBLOCK_CREATED_NANOSECONDS = Superblock, "created_nanoseconds", 288, 4, ANY, "informational";
    SUPERBLOCK_CUT_LSN = Superblock, "cut_lsn", 292, 8, ANY, "";
    SUPERBLOCK_ERA = Superblock, "era", 300, 4, (1, ERA_MAX), "of version 2";
    SUPERBLOCK_NEXT_TREE = Superblock, "next_tree", 304, 4, (TreeId::FIRST_MADE.0 as u64, TREES_MAX), "of version 2; above every tree";
    SUPERBLOCK_NAME_BITS = Superblock, "name_bits", 316, 1, (1, NAME_BITS as u64), "with bit 6 of the features; mkfs writes 46";
    SUPERBLOCK_NAME_KEY = Superblock, "name_key", 320, 8, ANY, "first half; with bit 6 of the features";
    SUPERBLOCK_NAME_KEY_REST = Superblock, "name_key", 328, 8, ANY, "second half; with bit 6 of the features";

    BITMAP_GENERATION = Bitmap, "generation", 24, 8, ANY, "above the superblock's: the slot does not count";
    BITMAP_GROUP = Bitmap, "group", 40, 4, (0, VOLUME_BLOCKS_MAX / GROUP_BLOCKS_MAX), "the group's number";

    NODE_GENERATION = Node, "generation", 24, 8, ANY, "at most the parent's";
    NODE_LEVEL = Node, "level", 40, 2, (0, LEVEL_MAX as u64), "one below the parent's";
    NODE_COUNT = Node, "count", 42, 2, (0, 680), "at least 1 in an interior node; slots end at or below heap";
    NODE_HEAP = Node, "heap", 44, 2, (64, NODE_BYTES as u64), "";
    NODE_TREE = Node, "tree", 48, 4, (0, 2), "2 from version 2 on";

    POINTER_BLOCK = NodePointer, "block", 0, 8, ANY, "a whole chunk inside of a group";
    POINTER_CHECKSUM = NodePointer, "checksum", 8, 8, ANY, "the node's";
    POINTER_GENERATION = NodePointer, "generation", 16, 8, ANY, "the node's, at most the parent's";
    POINTER_LEVEL = NodePointer, "level", 24, 2, (0, LEVEL_MAX as u64), "the node's";
    POINTER_BIRTH = NodePointer, "birth", 28, 4, (0, u32::MAX as u64), "at most the parent's and the tree's era";

    KEY_OBJECT = Key, "object", 0, 8, OBJECT, "0 for orphans";
    KEY_KIND = Key, "kind", 20, 1, (1, 7), "of an item in a filesystem";
    KEY_INODE_OFFSET = Key, "offset of an inode", 8, 8, (0, 0), "";
    KEY_SYMLINK_OFFSET = Key, "offset of a symlink", 8, 8, (0, 0), "";
    KEY_DIRENT_OFFSET = Key, "offset of a dirent", 8, 8, SLOT, "one of the name's slots";
    KEY_XATTR_OFFSET = Key, "offset of an xattr", 8, 8, SLOT, "one of the name's slots";
    KEY_PIECE_OFFSET = Key, "offset of an xattr piece", 8, 8, ANY, "";
    KEY_EXTENT_OFFSET = Key, "offset of an extent", 8, 8, (0, FILE_PAGES_MAX - 1), "the last page too";
    KEY_ORPHAN_OFFSET = Key, "offset of an orphan", 8, 8, OBJECT, "";
    VOLUME_KEY_TREE = Key, "object in the volume tree", 0, 8, (1, TREES_MAX - 1), "a head's or snapshot's number";
    KEY_TREE_INFO_OFFSET = Key, "offset of a tree item", 8, 8, (0, 0), "";
    KEY_OVERLAY_OFFSET = Key, "offset of an overlay item", 8, 8, (0, OVERLAY_ITEMS_MAX - 1), "";
    POLICY_KEY_TREE = Key, "object of a policy item", 0, 8, (2, 2), "the volume tree's number";
    KEY_POLICY_OFFSET = Key, "offset of a policy item", 8, 8, (0, 0), "";

    INODE_MODE = Inode, "mode", 0, 4, (0o010000, 0o147777), "one of the seven types";
    INODE_NLINK = Inode, "nlink", 4, 4, (0, LINKS_MAX as u64), "";
    INODE_UID = Inode, "uid", 8, 4, (0, u32::MAX as u64), "";
    INODE_GID = Inode, "gid", 12, 4, (0, u32::MAX as u64), "";
    INODE_SIZE = Inode, "size", 16, 8, (0, FILE_BYTES_MAX), "of a symlink the next row";
    INODE_TARGET_SIZE = Inode, "size of a symlink", 16, 8, (1, SYMLINK_BYTES_MAX as u64),
        "the target's length";
    INODE_BLOCKS = Inode, "blocks", 24, 8, (0, VOLUME_BLOCKS_MAX), "";
    INODE_ACCESSED = Inode, "accessed", 32, 8, ANY, "signed";
    INODE_ACCESSED_NANOSECONDS = Inode, "nanoseconds", 40, 4, (0, NANOSECONDS_MAX), "accessed";
    INODE_MODIFIED = Inode, "modified", 48, 8, ANY, "signed";
    INODE_MODIFIED_NANOSECONDS = Inode, "nanoseconds", 56, 4, (0, NANOSECONDS_MAX), "modified";
    INODE_CHANGED = Inode, "changed", 64, 8, ANY, "signed";
    INODE_CHANGED_NANOSECONDS = Inode, "nanoseconds", 72, 4, (0, NANOSECONDS_MAX), "changed";
    INODE_CREATED = Inode, "created", 80, 8, ANY, "signed";
    INODE_CREATED_NANOSECONDS = Inode, "nanoseconds", 88, 4, (0, NANOSECONDS_MAX), "created";
    INODE_RDEV = Inode, "rdev", 96, 8, ANY, "";
    INODE_PARENT = Inode, "parent", 104, 8, OBJECT, "of a directory; of another type 0";
    INODE_ENTRIES = Inode, "entries", 112, 8, (0, ENTRIES_MAX), "of a directory; of another type 0";
    INODE_FLAGS = Inode, "flags", 120, 4, (0, u32::MAX as u64), "unknown bits mean nothing";
    INODE_PROJECT = Inode, "project", 124, 4, (0, 0), "";

    DIRENT_INODE = Dirent, "inode", 0, 8, OBJECT, "";
    DIRENT_TYPE = Dirent, "type", 8, 1, (1, 12), "1, 2, 4, 6, 8, 10 or 12";

    XATTR_NAME_LENGTH = Xattr, "name length", 0, 1, (1, NAME_BYTES_MAX as u64), "a name without NUL";
    XATTR_VALUE_LENGTH = Xattr, "value length", 1, 4, (0, XATTR_VALUE_BYTES_MAX as u64), "";
    XATTR_VALUE_NUMBER = Xattr, "value number", 5, 8, (0, u64::MAX / XATTR_PIECES_MAX - 1), "";

    EXTENT_START = Extent, "start", 0, 8, (0, EXTENT_START_MAX), "the whole run inside of a group";
    EXTENT_PAGES = Extent, "pages", 8, 2, (1, EXTENT_PAGES_MAX as u64), "";
    EXTENT_FLAGS = Extent, "flags", 10, 2, (0, 1), "";
    EXTENT_BIRTH = Extent, "birth", 12, 4, (0, u32::MAX as u64), "at most the era of a node that holds it";

    OVERLAY_OBJECT = Overlay, "object", 0, 8, OBJECT, "";
    OVERLAY_PAGE = Overlay, "page", 8, 8, (0, FILE_PAGES_MAX - 1), "the last page too";

    TREE_ROLE = TreeItem, "role", 0, 1, (1, 2), "";
    TREE_STATE = TreeItem, "state", 1, 1, (1, 2), "";
    TREE_FLAGS = TreeItem, "flags", 2, 2, (0, 15), "4 and 8 of a snapshot only";
    TREE_ERA = TreeItem, "era", 4, 4, (0, ERA_MAX), "of a head 0, of a snapshot at least 1";
    TREE_PARENT = TreeItem, "parent", 8, 4, (0, TREES_MAX - 1), "a snapshot of a lower era";
    TREE_KNOWN = TreeItem, "known", 12, 4, (0, ERA_MAX), "of a head at least its parent's era; of a snapshot 0";
    TREE_LSN = TreeItem, "lsn", 16, 8, (0, COUNTER_MAX), "";
    TREE_MADE_SECONDS = TreeItem, "made", 24, 8, ANY, "signed";
    TREE_MADE_NANOSECONDS = TreeItem, "nanoseconds", 32, 4, (0, NANOSECONDS_MAX), "made";
    TREE_CURSOR_OBJECT = TreeItem, "cursor object", 104, 8, ANY, "of state 2; else 0";
    TREE_CURSOR_KIND = TreeItem, "cursor kind", 112, 1, (0, 13), "of state 2 a kind; else 0";
    TREE_CURSOR_OFFSET = TreeItem, "cursor offset", 113, 8, ANY, "of state 2; else 0";
    TREE_EXPIRES = TreeItem, "expires", 128, 8, (0, i64::MAX as u64), "of a head 0";
    TREE_NAME_LENGTH = TreeItem, "name length", 136, 2, (0, NAME_BYTES_MAX as u64), "a name without / and NUL";

    ORPHAN_REASON = Orphan, "reason", 0, 1, (1, 3), "";
    ORPHAN_FLAGS = Orphan, "flags", 1, 1, (0, 1), "of reason 3";
    ORPHAN_FIRST = Orphan, "first", 8, 8, (0, FILE_PAGES_MAX - 1), "of reason 3";
    ORPHAN_COUNT = Orphan, "count", 16, 8, (1, FILE_PAGES_MAX), "of reason 3; first + count at most 2^51";
    ORPHAN_NEXT = Orphan, "next", 24, 8, (0, FILE_PAGES_MAX), "of reason 3; at least first";

    RECORD_GENERATION = Record, "generation", 24, 8, ANY, "above the superblock's: a superblock was lost";
    RECORD_EPOCH = Record, "epoch", 40, 8, ANY, "";
    RECORD_SEQUENCE = Record, "sequence", 48, 8, ANY, "the predecessor's and 1";
    RECORD_PREDECESSOR = Record, "predecessor", 56, 8, ANY, "";
    RECORD_KNOWN_FLUSHED = Record, "known_flushed", 64, 8, ANY, "";
    RECORD_FIRST_LSN = Record, "first_lsn", 72, 8, ANY, "behind the predecessor's batches";
    RECORD_BATCHES = Record, "batches", 80, 4, (1, u32::MAX as u64), "as many as the payload holds";
    RECORD_PAYLOAD_BYTES = Record, "payload_bytes", 84, 4, (0, RECORD_BYTES_MAX as u64), "";

    OPERATION_TREE = Operation, "tree", 1, 4, (1, TREES_MAX - 1), "1 in version 1";
    OPERATION_SOURCE = Operation, "source", 5, 4, (0, TREES_MAX - 1), "of a tree that is made";
    OPERATION_ROLE = Operation, "role", 9, 1, (1, 2), "of a tree that is made";
    OPERATION_ERA = Operation, "era", 13, 4, (1, ERA_MAX), "of a tree that is made";
    OPERATION_IMAGE_OBJECT = Operation, "image object", 5, 8, ANY, "of a file";
    OPERATION_IMAGE_PAGE = Operation, "image page", 13, 8, (0, FILE_PAGES_MAX - 1), "";
    OPERATION_IMAGE_LENGTH = Operation, "image length", 21, 2, (0, BLOCK_BYTES as u64), "";
    OPERATION_DROP_OBJECT = Operation, "drop object", 5, 8, ANY, "";
    OPERATION_START = Operation, "start", 1, 8, ANY, "the whole run inside of a group";
    OPERATION_LENGTH = Operation, "length", 9, 4, (1, RUN_BLOCKS_MAX), "";
}

/// Length of a piece of an extended attribute's value.
pub const PIECE_BYTES: std::ops::RangeInclusive<usize> = 1..=XATTR_PIECE_BYTES;
