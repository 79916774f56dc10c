//! Arguments of `syncline snapshot`.

use super::age::{Age, Space};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SnapshotArguments {
    #[command(subcommand)]
    pub(crate) action: SnapshotAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotAction {
    /// Make a snapshot of the volume as it is now.
    Create {
        /// Print the snapshot as JSON.
        #[arg(long)]
        json: bool,
        /// Hold it: it is not deleted before it is released.
        #[arg(long)]
        hold: bool,
        /// Delete it in the background when it is so old, such as 90s, 30m, 12h, 7d or 4w.
        #[arg(long, value_name = "AGE")]
        expires: Option<Age>,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// 1 to 255 bytes, without "/".
        name: String,
    },
    /// List the snapshots in the order in which they were made.
    List {
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// List the heads instead.
        #[arg(long)]
        heads: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
    },
    /// Delete snapshots, and heads that are not mounted. What only they had becomes free, in the background.
    Delete {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Return when the space is free; for a volume that is not mounted.
        #[arg(long)]
        wait: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Snapshots or heads.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Tell which paths differ between a snapshot and a later one: "+" added, "-" removed, "M" modified, "R" renamed.
    Diff {
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// Compare checksums: what was written with the content that it had does not count.
        #[arg(long)]
        content: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// The older snapshot.
        older: String,
        /// The newer snapshot, or a head; the volume as it is now if none is given.
        newer: Option<String>,
    },
    /// Hold snapshots: they are not deleted before they are released.
    Hold {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Snapshots.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Let snapshots that were held be deleted again.
    Release {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Snapshots.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Tell how many bytes deleting each of some snapshots would give back, and deleting all of these together.
    ///
    /// What several of them have and nobody else comes back only if all of these go: it counts in the last row alone.
    Usage {
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Snapshots; all of them if none is given.
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Give a snapshot another name.
    Rename {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Its name.
        name: String,
        /// Its new name.
        to: String,
    },
    /// Make a head of a snapshot: a writable branch, which begins as the snapshot is.
    Clone {
        /// Print the head as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// The snapshot.
        name: String,
        /// Name of the head.
        head: String,
    },
    /// Take the volume back to a snapshot. The snapshot stays, and so do all others.
    Rollback {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Keep what the volume shows now as a snapshot of this name; otherwise it is gone.
        #[arg(long, value_name = "NAME")]
        keep: Option<String>,
        /// Image file or block device; not mounted.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// The snapshot.
        name: String,
    },
    /// Have snapshots made each hour, day, week or month, and deleted when no class keeps them any more.
    ///
    /// Whoever has the volume open for writing does it, in the background: the daemon of a mount, or a program. A
    /// snapshot is made if something has changed. One that is held or renamed stays, and so does one from which heads
    /// descend.
    Schedule {
        #[command(subcommand)]
        action: ScheduleAction,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleAction {
    /// Set the schedule. Without a class it is 24 hours, 7 days, 4 weeks and 12 months.
    Set {
        /// Print the schedule as JSON.
        #[arg(long)]
        json: bool,
        /// Keep the last snapshot of each of so many hours.
        #[arg(long, value_name = "N")]
        hourly: Option<u16>,
        /// Keep the last snapshot of each of so many days (of UTC).
        #[arg(long, value_name = "N")]
        daily: Option<u16>,
        /// Keep the last snapshot of each of so many weeks (from Monday on).
        #[arg(long, value_name = "N")]
        weekly: Option<u16>,
        /// Keep the last snapshot of each of so many months.
        #[arg(long, value_name = "N")]
        monthly: Option<u16>,
        /// While less is free delete the oldest of its snapshots and make none: a percentage, a size, or 0.
        #[arg(long, value_name = "SPACE", default_value = "10%")]
        keep_free: Space,
        /// Begin the names of snapshots with this.
        #[arg(long, value_name = "NAME", default_value = "auto")]
        prefix: String,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
    },
    /// Show the schedule.
    Show {
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
    },
    /// End the schedule. The snapshots that it has made stay.
    Off {
        /// Print what was done as JSON.
        #[arg(long)]
        json: bool,
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
    },
}
