//! The locks of this crate and their order, outermost first. The store's checkpoint stands between
//! [`Lock::Carrying`] and [`Lock::Turn`], its other locks are further in than all of them.

use syncline_format::ObjectNo;
use syncline_store::lock_order::{Level, Rank};

/// A class of locks, outermost first. What is numbered is taken in ascending order within its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Who follows the schedule of snapshots (`Core::agenda`).
    Agenda,
    /// The other heads that are open (`OpenHeads::by_tree`).
    Heads,
    /// Renames between directories (`Names::renames`).
    Renames,
    /// Snapshots, and moves of extents that begin (`Content::moving`).
    Moving,
    /// Who carries the images of damaged files on in the journal (`AsideFiles::carrying`).
    Carrying,
    /// A file's turn (`TurnLock`).
    Turn(ObjectNo),
    /// Pages on their way into memory (`Flight::state`).
    Flight,
    /// `Inode::state`.
    Inode(ObjectNo),
    /// Damaged files (`AsideFiles::files`).
    AsideFiles,
    /// Images of damaged files that nobody has claimed (`AsideFiles::unclaimed`).
    Unclaimed,
    /// `Content::lists`.
    Lists,
    /// `InodeTable::inner`.
    Table,
    /// What a transaction depends on (`Watch::watched`).
    Watched,
    /// `HandleTable::open`.
    Handles,
    /// Early writeback that was asked for (`Hints::queue`).
    Hints,
    /// Relief under way (`Writeback::relief`).
    Relief,
    /// Rounds that ended (`Writeback::progress`).
    Progress,
    /// Removed files that are closed (`Writeback::closing`).
    Closing,
    /// Bulk data in flight (`Lane::state`).
    Lane,
    /// The heads that are to be tended (`Core::heads`).
    Tended,
}

impl Level for Lock {
    fn rank(self) -> Rank {
        let (class, number) = match self {
            Lock::Agenda => return Rank::around_checkpoints(0),
            Lock::Heads => return Rank::around_checkpoints(1),
            Lock::Renames => return Rank::around_checkpoints(2),
            Lock::Moving => return Rank::around_checkpoints(3),
            Lock::Carrying => return Rank::around_checkpoints(4),
            Lock::Turn(number) => (0, number.0),
            Lock::Flight => (1, 0),
            Lock::Inode(number) => (2, number.0),
            Lock::AsideFiles => (3, 0),
            Lock::Unclaimed => (4, 0),
            Lock::Lists => (5, 0),
            Lock::Table => (6, 0),
            Lock::Watched => (7, 0),
            Lock::Handles => (8, 0),
            Lock::Hints => (9, 0),
            Lock::Relief => (10, 0),
            Lock::Progress => (11, 0),
            Lock::Closing => (12, 0),
            Lock::Lane => (13, 0),
            Lock::Tended => (14, 0),
        };
        Rank::outer(class, number)
    }

    fn name(self) -> &'static str {
        match self {
            Lock::Agenda => "the schedule",
            Lock::Heads => "the open heads",
            Lock::Renames => "the lock of renames",
            Lock::Moving => "the moves of extents",
            Lock::Carrying => "the carrying of images",
            Lock::Turn(_) => "a file's turn",
            Lock::Flight => "a flight",
            Lock::Inode(_) => "an inode",
            Lock::AsideFiles => "the damaged files",
            Lock::Unclaimed => "the unclaimed images",
            Lock::Lists => "the lists",
            Lock::Table => "the table of inodes",
            Lock::Watched => "what a transaction depends on",
            Lock::Handles => "the open files",
            Lock::Hints => "the hints",
            Lock::Relief => "the relief",
            Lock::Progress => "the progress",
            Lock::Closing => "the closes",
            Lock::Lane => "the lane",
            Lock::Tended => "the heads to be tended",
        }
    }
}
