//! [`Turn`]: the right to change a file's extents and images.
//!
//! The lock is outside of the inode's state: whoever has the turn locks the state several times in between.

use crate::content::inode::Inode;
use crate::core::levels::Lock;
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};
use std::sync::Arc;
use syncline_format::ObjectNo;
use syncline_store::lock_order::{Held, take, take_tried};

/// What a file's turn is taken of.
#[derive(Clone)]
pub(crate) struct TurnLock {
    of: ObjectNo,
    lock: Arc<Mutex<()>>,
}

/// A file's turn. The guard first, so that the turn is free when it counts as given back.
pub(crate) struct Turn {
    _guard: ArcMutexGuard<RawMutex, ()>,
    _held: Held,
}

impl TurnLock {
    pub(crate) fn new(of: ObjectNo) -> TurnLock {
        TurnLock { of, lock: Arc::default() }
    }

    /// Waits for the turn. Called without the state, which the holder needs to end its turn.
    pub(crate) fn lock(&self) -> Turn {
        let _held = take(Lock::Turn(self.of));
        Turn { _guard: self.lock.lock_arc(), _held }
    }

    /// The turn if nobody has it.
    pub(crate) fn try_lock(&self) -> Option<Turn> {
        let _guard = self.lock.try_lock_arc()?;
        Some(Turn { _guard, _held: take_tried(Lock::Turn(self.of)) })
    }

    /// Whether somebody has the turn.
    pub(crate) fn is_taken(&self) -> bool {
        self.lock.is_locked()
    }
}

impl Inode {
    /// Waits for the file's turn.
    pub(crate) fn lock_turn(&self) -> Turn {
        self.turn.lock()
    }
}
