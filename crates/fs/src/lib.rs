//! Syncline: a copy-on-write, checksummed filesystem whose `fsync` is one write and one flush.
//!
//! The crate has two faces. [`Volume`], [`File`] and [`OpenOptions`] are shaped like `std::fs` and are what a program
//! embeds. [`Fs`] underneath is addressed by inode numbers and handles; adapters such as the mount stand on it. `Fs`
//! starts no threads and reads no clock of its own: [`Volume`] owns the thread that maintains it.
//!
//! What a sync, a rename and a crash guarantee is written down in `docs/contract.md` (C1-C9); the comments of this
//! crate cite it by number.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod acl;
mod attr;
mod clock;
mod context;
mod data;
mod engine;
mod error;
mod facade;
mod flags;
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
    FallocateMode, Footprint, MemoryCharge, PageStats, SeekWhat, SetAside, Started, SyncScope, SyncStart,
    TOGETHER_PAGES_MAX, WrittenOut,
};
pub use engine::{AccessTimes, Fs, FsOptions, FsStats, VolumeSpace};
pub use error::{Error, Result};
pub use facade::{
    DirectoryEntry, File, Metadata, OpenOptions, ReadDir, SyncTicket, TransactionFile, Volume, VolumeOptions,
    VolumeStats, VolumeTransaction,
};
pub use flags::{ExtendedFlags, FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NO_ATIME, FLAG_NO_DUMP};
pub use handle::{HandleId, OpenFlags};
pub use histogram::LatencyHistogram;
pub use namespace::{DirEntry, RenameFlags};
pub use session::MkfsOptions;
pub use syncline_device::DeviceCounters;
pub use syncline_format::ObjectNo;
pub use syncline_format::item::Timestamp;
#[doc(hidden)]
pub use syncline_store::Ablation;
pub use syncline_store::{Counters, Load, RecoverySummary, VolumeInfo};
pub use transaction::Transaction;
pub use xattr::SetXattr;
