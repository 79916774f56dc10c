//! Syncline: a copy-on-write, checksummed filesystem whose `fsync` is one write and one flush.
//!
//! [`Volume`], [`File`] and [`OpenOptions`] are shaped like `std::fs`. Threads and clocks are here: a volume owns the
//! threads that maintain it and drive its started syncs. The engine underneath is `syncline-fs`, which has neither.
//!
//! Paths are relative to the volume's root, with or without a leading slash. Symbolic links are followed within the
//! volume, at most 40 of them; `..` leads to a directory's parent.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod attributes;
mod difference;
mod errno;
mod file;
mod heads;
mod maintenance;
mod metadata;
mod open;
mod path;
mod read_dir;
#[cfg(feature = "replica")]
mod replicate;
mod schedule;
mod snapshot;
mod stats;
mod sync_thread;
mod ticket;
mod transaction;
mod upgrade;
mod volume;
mod volume_options;

pub use errno::errno;
pub use file::File;
pub use heads::HeadInfo;
pub use metadata::Metadata;
pub use open::OpenOptions;
pub use read_dir::{DirectoryEntry, ReadDir};
#[cfg(feature = "replica")]
pub use replicate::{ReplicaStatus, Replication};
pub use snapshot::{Snapshot, SnapshotOptions};
pub use stats::VolumeStats;
pub use syncline_device::{Forked, PerProcess};
pub use syncline_fs::{
    AccessTimes, Attr, Change, ChangeKind, Clock, Context, Entropy, Error, FallocateMode, FsStats, KeepFree,
    LatencyHistogram, MkfsOptions, RenameFlags, Result, Schedule, SetAttr, SetTime, SetXattr, Started,
    SyncScope, SystemClock, SystemEntropy, Timestamp, VolumeSpace,
};
pub use ticket::SyncTicket;
pub use transaction::{TransactionFile, VolumeTransaction};
pub use volume::Volume;
pub use volume_options::VolumeOptions;
