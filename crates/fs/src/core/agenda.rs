//! [`Agenda`]: where following the schedule of snapshots stands. In memory only: whoever opens the volume again finds
//! out by looking at the snapshots that there are.

use super::levels::Lock;
use std::sync::{Arc, OnceLock};
use syncline_format::item::Timestamp;
use syncline_format::schedule::Schedule;
use syncline_store::lock_order::Mutex;

/// See the module. One caller at a time follows the schedule: whoever has the lock.
pub(crate) struct Agenda {
    pub(crate) progress: Mutex<Progress>,
    /// Called when a snapshot was deleted.
    pub(crate) on_deletion: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// What is known of the schedule that is followed.
#[derive(Default)]
pub(crate) struct Progress {
    /// The schedule that this is about.
    pub(crate) schedule: Option<Arc<Schedule>>,
    /// The hour (or day, week, month) of which the snapshot is made, or was not needed.
    pub(crate) decided: Option<i64>,
    /// When it was looked what has to go, and nothing had.
    pub(crate) looked: Option<Timestamp>,
    /// When making a snapshot failed last.
    pub(crate) failed: Option<Timestamp>,
    /// Too little is free, and that was told.
    pub(crate) is_low: bool,
    /// Snapshots were deleted, and nobody was told of it so far.
    pub(crate) has_deleted: bool,
}

impl Agenda {
    pub(crate) fn new() -> Agenda {
        Agenda { progress: Mutex::new(Lock::Agenda, Progress::default()), on_deletion: OnceLock::new() }
    }
}
