//! Arguments of `syncline snapshot`.

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
        /// Image file or block device; not mounted.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// The older snapshot.
        older: String,
        /// The newer snapshot, or a head; the volume as it is now if none is given.
        newer: Option<String>,
    },
    /// Hold snapshots: they are not deleted before they are released.
    Hold {
        /// Image file, block device, or a directory of a mounted volume.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// Snapshots.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Let snapshots that were held be deleted again.
    Release {
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
        /// Keep what the volume shows now as a snapshot of this name; otherwise it is gone.
        #[arg(long, value_name = "NAME")]
        keep: Option<String>,
        /// Image file or block device; not mounted.
        #[arg(value_name = "VOLUME")]
        target: PathBuf,
        /// The snapshot.
        name: String,
    },
}
