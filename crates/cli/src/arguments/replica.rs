//! What `syncline replica` takes.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ReplicaArguments {
    #[command(subcommand)]
    pub(crate) action: ReplicaAction,
}

#[derive(Debug, Args)]
pub(crate) struct ReplicaPlace {
    /// UUID of the volume, where the place holds several.
    #[arg(long, value_name = "UUID")]
    pub(crate) volume: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the replica is.
    pub(crate) url: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ReplicaAction {
    /// Begin a replica: try the store out, and ship a volume that is not mounted.
    Init {
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
        /// Where the replica is to be.
        url: String,
        /// Image file or block device.
        #[arg(value_name = "IMAGE")]
        path: PathBuf,
    },
    /// Show what is in the store: who writes, how much there is, and what would be restored.
    Status(ReplicaPlace),
    /// Bring a volume back into a new image file.
    Restore {
        /// The last state not behind this: a time like 2026-11-23T20:15:00Z, a position CLAIM/UNIT, or lsn:NUMBER.
        /// Default: the newest.
        #[arg(long, value_name = "WHEN")]
        at: Option<String>,
        /// Claim the replica first: the machine that wrote to it until now is told and ships nothing more, and the
        /// new image is the one that continues.
        #[arg(long)]
        take_over: bool,
        #[command(flatten)]
        place: ReplicaPlace,
        /// Image file, which must not exist.
        #[arg(value_name = "IMAGE")]
        path: PathBuf,
    },
    /// Read all of a replica, and hold it against its checksums.
    Verify(ReplicaPlace),
    /// Claim a replica without writing to it: whoever writes to it is told and ships nothing more.
    ///
    /// Its volume takes no more syncs either. To go on, restore with --take-over.
    Fence(ReplicaPlace),
}
