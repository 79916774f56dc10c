//! The engine of Syncline: POSIX semantics over the items of a volume.
//!
//! [`Fs`] is addressed by inode numbers and handles. Adapters stand on it: the mount, and the `syncline` library that
//! programs embed. `Fs` starts no thread and reads no clock of its own: an adapter calls [`Fs::maintain`] and tells
//! the time.
//!
//! What a sync, a rename and a crash guarantee is written down in `docs/contract.md` (C1-C9); the comments of this
//! crate cite it by number.

#![forbid(unsafe_code)]
// No thread, no clock (clippy.toml).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(missing_docs)]

mod ablation;
mod acl;
mod attributes;
mod clock;
mod content;
mod context;
mod core;
mod difference;
mod engine;
mod error;
mod files;
mod heads;
mod histogram;
mod limits;
mod names;
mod options;
mod read;
mod removal;
mod schedule;
mod session;
mod shape;
mod snapshots;
mod statistics;
mod sync;
mod transaction;
mod trim;
mod write;
mod writeback;

#[cfg(test)]
mod tests;

pub use crate::core::{MemoryCharge, PageStats};
pub use attributes::{
    Attr, Attributes, Entry, ExtendedFlags, FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NO_ATIME, FLAG_NO_DUMP,
    SetAttr, SetTime, SetXattr,
};
pub use clock::{Clock, Entropy, SystemClock, SystemEntropy};
pub use content::{Handle, HandleId, OpenFlags, Opened, SetAside};
pub use context::Context;
pub use difference::{Change, ChangeKind};
pub use engine::{Fs, FsStats, VolumeSpace};
pub use error::{Error, Result};
pub use files::Files;
pub use heads::{Head, HeadInfo, Heads};
pub use histogram::LatencyHistogram;
pub use names::{DirEntry, Names, RemovalKind, RemovalPlan, RenameFlags, RenamePlan};
pub use options::{AccessTimes, FsOptions, MkfsOptions};
pub use schedule::Schedules;
pub use shape::{FallocateMode, SeekWhat};
pub use snapshots::{SnapshotData, SnapshotInfo, SnapshotKind, SnapshotNames};
pub use sync::{Reach, SyncPlan, SyncScope, SyncStart, Syncs, TOGETHER_PAGES_MAX};
pub use syncline_device::DeviceCounters;
pub use syncline_format::Lsn;
pub use syncline_format::ObjectNo;
pub use syncline_format::item::Timestamp;
pub use syncline_format::schedule::{KeepFree, Schedule};
#[cfg(feature = "ablation")]
pub use syncline_store::{Ablation, comparisons};
pub use syncline_store::{Counters, Load, RecoverySummary, VolumeInfo};
pub use transaction::{Footprint, Transaction};
pub use writeback::Started;
