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

mod acl;
mod attr;
mod clock;
mod context;
mod data;
mod engine;
mod error;
mod flags;
mod force;
mod handle;
mod histogram;
mod inode;
mod namespace;
mod session;
mod transaction;
mod trim;
mod xattr;

pub use attr::{Attr, Entry, SetAttr, SetTime};
pub use clock::{Clock, Entropy, SystemClock, SystemEntropy};
pub use context::Context;
pub use data::{
    Begun, FallocateMode, Footprint, MemoryCharge, PageStats, PendingSync, Reach, SeekWhat, SetAside,
    Started, SyncScope, SyncStart, TOGETHER_PAGES_MAX, WrittenOut,
};
pub use engine::{AccessTimes, Fs, FsOptions, FsStats, VolumeSpace};
pub use error::{Error, Result};
pub use flags::{ExtendedFlags, FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NO_ATIME, FLAG_NO_DUMP};
pub use handle::{HandleId, OpenFlags};
pub use histogram::LatencyHistogram;
pub use namespace::{DirEntry, RenameFlags};
pub use session::MkfsOptions;
pub use syncline_device::DeviceCounters;
pub use syncline_format::item::Timestamp;
pub use syncline_format::{Lsn, ObjectNo};
#[doc(hidden)]
pub use syncline_store::Ablation;
pub use syncline_store::{Counters, Load, RecoverySummary, VolumeInfo};
pub use transaction::Transaction;
pub use xattr::SetXattr;
