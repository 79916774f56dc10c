//! The schedule of a volume's snapshots.

use crate::{Schedule, Volume};
use std::io;

/// The schedule of snapshots: made each hour (or day, week, month) in which something was changed, and deleted when no
/// class keeps them any more. The volume's thread follows it while the volume is open for writing, whoever opened it,
/// so hours in which nobody has it open are made up for by one snapshot. A volume that was opened without threads
/// ([`VolumeOptions::background`](crate::VolumeOptions::background)) has none that does.
impl Volume {
    /// The schedule, if the volume has one.
    pub fn schedule(&self) -> io::Result<Option<Schedule>> {
        Ok(self.shared().fs()?.schedules().get())
    }

    /// Gives the volume a schedule, or takes it away, for good when this has returned. The snapshots that it has made
    /// stay then; the next schedule goes on with them. One that is held, renamed, or from which heads descend it does
    /// not delete, and none that it has not made.
    ///
    /// Errors: `InvalidInput` for what is none ([`Schedule::fault`]); `Unsupported` on a volume of version 1;
    /// `StorageFull`.
    ///
    /// ```
    /// use syncline::{KeepFree, MkfsOptions, Schedule, VolumeOptions};
    ///
    /// let options = MkfsOptions::default();
    /// let volume = VolumeOptions::new().create_in_memory(64 << 20, &options)?;
    /// let schedule = Schedule { hourly: 48, keep_free: KeepFree::Bytes(1 << 20), ..Schedule::default() };
    /// volume.set_schedule(Some(&schedule))?;
    /// assert_eq!(volume.schedule()?.unwrap().to_string(),
    ///     "hourly=48 daily=7 weekly=4 monthly=12 keep-free=1048576 prefix=auto");
    /// volume.set_schedule(None)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_schedule(&self, schedule: Option<&Schedule>) -> io::Result<()> {
        Ok(self.shared().fs()?.schedules().set(schedule)?)
    }

    /// Whether less is free than the schedule keeps free: then its oldest snapshots go, and none is made.
    pub fn is_schedule_paused(&self) -> io::Result<bool> {
        Ok(self.shared().fs()?.schedules().is_low())
    }
}
