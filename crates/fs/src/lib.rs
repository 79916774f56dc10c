//! Syncline: a copy-on-write, checksummed filesystem whose `fsync` is one write and one flush.
//!
//! The crate has two faces. [`Volume`], [`File`] and [`OpenOptions`] are shaped like `std::fs` and are what a program
//! embeds. [`Fs`] underneath is addressed by inode numbers and handles; adapters such as the mount stand on it. `Fs`
//! starts no threads and reads no clock of its own: [`Volume`] owns the thread that maintains it.
//!
//! What a sync, a rename and a crash guarantee is written down in `docs/contract.md` (C1-C9); the comments of this
//! crate cite it by number.

#![forbid(unsafe_code)]

mod clock;
mod context;
mod data;
mod engine;
mod error;
mod inode;
mod namespace;

pub use clock::{Clock, SystemClock};
pub use context::Context;
pub use engine::{AccessTimes, Fs, FsOptions};
pub use error::{Error, Result};
pub use syncline_format::ObjectNo;
pub use syncline_format::item::Timestamp;
