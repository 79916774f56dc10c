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
        /// What is kept: for each AGE one position of each STEP, as in 24h@1s,7d@1m,30d@1h,1y@1d, which is the default;
        /// or all.
        #[arg(long, value_name = "AGE@STEP,...")]
        keep: Option<String>,
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
    /// Pack what is old, and delete what is not kept. Whoever writes to the replica goes on, and does the same in the
    /// background.
    Prune {
        /// Change nothing, and tell what would be packed and deleted.
        #[arg(long)]
        dry_run: bool,
        /// What is kept from now on: for each AGE one position of each STEP, as in 24h@1s,7d@1m,30d@1h,1y@1d; or all.
        #[arg(long, value_name = "AGE@STEP,...")]
        keep: Option<String>,
        /// How long objects stay that are not needed any more: a restore that takes longer may have to begin again.
        /// Default: a day.
        #[arg(long, value_name = "TIME")]
        grace: Option<String>,
        #[command(flatten)]
        place: ReplicaPlace,
    },
    /// Claim a replica without writing to it: whoever writes to it is told and ships nothing more.
    ///
    /// Its volume takes no more syncs either. To go on, restore with --take-over.
    Fence(ReplicaPlace),
}
