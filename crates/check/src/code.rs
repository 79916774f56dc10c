//! The stable codes of everything the check can find.
//!
//! A code is never reused for another meaning: scripts and tests match on it. The letter names the area: S superblock,
//! J journal, B bitmaps and blocks, T trees, V how trees belong together, I items, F files, D data, N names, X extended
//! attributes, O orphans.

use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Normal, worth knowing: what the next mount does anyway, or what a power cut leaves behind.
    Info,
    /// Redundancy is lost; the volume itself is whole.
    Warning,
    /// The volume contradicts itself.
    Error,
    /// The volume contradicts itself so that nothing may be repaired: something unreadable could be meant.
    Fatal,
}

macro_rules! codes {
    ($($name:ident = $id:literal, $severity:ident, $title:literal;)*) => {
        /// What is wrong, as a stable code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code, in order.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The stable identifier, like `SL-B003`.
            pub fn id(self) -> &'static str {
                match self { $(Code::$name => concat!("SL-", $id)),* }
            }

            /// How bad it is.
            pub fn severity(self) -> Severity {
                match self { $(Code::$name => Severity::$severity),* }
            }

            /// What the code means, in a few words.
            pub fn title(self) -> &'static str {
                match self { $(Code::$name => $title),* }
            }
        }
    };
}

codes! {
    NoSuperblock = "S001", Fatal, "no superblock is valid";
    SuperblockSlot = "S002", Warning, "the other superblock slot is damaged";
    SuperblockDisagrees = "S003", Warning, "the other superblock slot describes another volume";
    SuperblockTwins = "S004", Error, "both superblock slots have the same generation";
    BackupSuperblock = "S005", Warning, "a backup superblock is damaged or missing";
    NextObject = "S006", Error, "the next object number was given out already";
    SuperblockExhausted = "S007", Fatal, "a counter of the superblock has reached its end";

    JournalReplay = "J001", Info, "the journal is to be replayed";
    JournalUnproven = "J002", Info, "the log ends at a record whose data did not arrive";
    JournalBroken = "J003", Fatal, "a journal record that was durable is missing";
    JournalFuture = "J004", Fatal, "a journal record is newer than the superblock";
    JournalBatch = "J005", Fatal, "a journal record holds no readable batches";
    JournalGap = "J006", Fatal, "batches are missing from the journal";
    JournalData = "J007", Fatal, "data of a durable journal record is damaged";
    JournalTree = "J008", Fatal, "a batch names a tree that does not exist";
    JournalImage = "J009", Error, "a page image belongs to no file content";
    JournalSpace = "J010", Fatal, "a batch names blocks that cannot be allocated";
    JournalDoubleSpace = "J011", Error, "a batch allocates a used block or frees a free one";

    BitmapLost = "B001", Error, "the bitmap of a group is lost, or what is left of it may be older";
    BitmapSlot = "B002", Info, "the bitmap slot not in use is damaged";
    BlockLeaked = "B003", Error, "blocks are marked used but belong to nothing";
    BlockUnmarked = "B004", Error, "blocks are in use but marked free";
    BlockShared = "B005", Error, "a block is used twice";
    BlockRange = "B006", Error, "an extent lies outside the blocks that can be allocated";
    BitmapEdge = "B007", Error, "a bitmap marks its own head or what is beyond the group as free";
    FreeBlocks = "B008", Error, "superblock and bitmaps count free blocks differently";

    NodeUnreadable = "T001", Fatal, "a tree node is damaged";
    NodeBounds = "T002", Fatal, "a tree node holds keys that its parent puts elsewhere";
    NodeNewer = "T003", Fatal, "a tree node is newer than what points to it";
    NodeShared = "T004", Fatal, "a tree node uses blocks that are used already";
    NodePlace = "T005", Fatal, "a tree node lies where none may lie";
    MainTreeMissing = "T006", Fatal, "the root tree does not name the main tree";
    RootTreeItem = "T007", Fatal, "the root tree holds an unknown item";
    LeafUnreadable = "T008", Error, "a leaf of the tree is damaged";
    SubtreeLost = "T009", Error, "a tree node above the leaves is damaged, and what is below it is lost";

    VolumeTreeMissing = "V001", Fatal, "the root tree does not name the volume tree";
    TreeItem = "V002", Fatal, "an item of the volume tree cannot be read";
    TreesDiffer = "V003", Fatal, "the root tree and the volume tree name different trees";
    TreesTooMany = "V004", Fatal, "the volume has more trees than a volume may have";
    TreeNewer = "V005", Fatal, "a tree is newer than the volume";
    TreeParent = "V006", Fatal, "a tree does not descend from a snapshot that is older";
    TreeBranch = "V007", Fatal, "a tree is being deleted although several descend from it";
    TreeCursor = "V008", Fatal, "an extent lies across the cursor of its tree's deletion";
    TreeName = "V009", Error, "two trees have the same name";
    DefaultHead = "V010", Error, "there is not exactly one default head";
    BirthBeyond = "V011", Fatal, "a node or extent was born later than it can have been";
    NodeNotInParent = "V012", Fatal, "a tree has an old node that the tree it descends from has not";
    ExtentNotInParent = "V013", Fatal, "a tree has old blocks that the tree it descends from has not";
    OverlayItem = "V014", Error, "pages are kept for a snapshot that cannot have them";
    TreeLost = "V015", Error, "a tree that cannot be kept without its damaged nodes";

    ItemUndecodable = "I001", Fatal, "an item cannot be decoded";
    ItemMisplaced = "I002", Error, "an item is where its kind does not belong";
    ItemWithoutInode = "I003", Error, "an object has items but no inode";
    ItemOfOtherType = "I004", Error, "an item does not fit the inode's type";
    ItemLost = "I005", Error, "items of an inode are lost with a damaged leaf";

    ExtentOverlap = "F001", Error, "extents of a file overlap";
    ExtentBeyondSize = "F002", Error, "a file has written data beyond its size";
    InodeBlocks = "F003", Error, "an inode counts its blocks wrong";
    SymlinkTarget = "F004", Error, "a symbolic link has no target of its size";

    DataChecksum = "D001", Error, "file data does not match its checksum";
    DataUnreadable = "D002", Error, "file data cannot be read";

    InodeUnnamed = "N001", Error, "an inode has no name";
    DirentDangling = "N002", Error, "a name points to no inode";
    DirentType = "N003", Error, "a name tells the wrong type";
    DirentHash = "N004", Error, "a name is stored under the wrong hash";
    LinkCount = "N005", Error, "an inode's link count is wrong";
    EntryCount = "N006", Error, "a directory counts its entries wrong";
    DirectoryParent = "N007", Error, "a directory's parent is not where it is named";
    DirectoryNames = "N008", Error, "a directory has more than one name";
    DirectoryUnreachable = "N009", Error, "a directory cannot be reached from the root";
    DirentDuplicate = "N010", Error, "a name occurs twice in a directory";
    RootDirectory = "N011", Fatal, "the root directory is missing";

    XattrHash = "X001", Error, "an extended attribute is stored under the wrong hash";
    XattrPieces = "X002", Error, "an extended attribute's value is incomplete";
    XattrPieceUnused = "X003", Error, "a piece of a value belongs to no extended attribute";
    XattrDuplicate = "X004", Error, "an extended attribute occurs twice";
    AclInvalid = "X005", Error, "an access control list is not valid";

    OrphanPending = "O001", Info, "an orphan is to be finished";
    OrphanMissing = "O002", Error, "an orphan entry names no inode";
    OrphanNamed = "O003", Error, "an orphan to be removed still has names or links";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_two_codes_share_an_identifier() {
        let ids: BTreeSet<_> = Code::ALL.iter().map(|code| code.id()).collect();
        assert_eq!(ids.len(), Code::ALL.len());
    }
}
