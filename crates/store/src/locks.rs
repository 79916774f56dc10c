//! The store's locks and their order, outermost first.
//!
//! None of them is held while a node is read from the device, only `Checkpointing` while anything is written, only
//! `Trimming` while anything is discarded. The journal's is opened while its driver works.

use crate::lock_order::{Level, Rank};

pub(crate) use crate::lock_order::{Condvar, Mutex, MutexGuard, RwLock};

/// A class of the store's locks, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Whoever settles what snapshots inherited, or takes deleted trees apart (`Shared::settling`).
    Settling,
    /// Whoever holds free blocks to discard them (`Shared::trimming`).
    Trimming,
    /// The checkpoint under way (`Shared::checkpointing`).
    Checkpointing,
    /// Trees, images and the LSN (`Shared::trees`).
    Trees,
    /// Bitmaps, claims and reservations (`Shared::space`).
    Space,
    /// The clean nodes in memory (`NodeCache`).
    Nodes,
    /// Nodes that cannot be read and are not read again.
    GivenUp,
    /// The journal's state.
    Journal,
    /// What one thread that waits for a group is told.
    Word,
}

impl Level for Lock {
    fn rank(self) -> Rank {
        match self {
            Lock::Settling | Lock::Trimming | Lock::Checkpointing => Rank::of_checkpoints(self as u8),
            _ => Rank::of_store(self as u8),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Lock::Settling => "the turn to settle snapshots",
            Lock::Trimming => "the turn to discard",
            Lock::Checkpointing => "the checkpoint",
            Lock::Trees => "the trees",
            Lock::Space => "the space",
            Lock::Nodes => "the node cache",
            Lock::GivenUp => "the nodes that are given up",
            Lock::Journal => "the journal",
            Lock::Word => "a waiter's word",
        }
    }
}
