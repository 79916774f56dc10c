//! `libsyncline`: volumes for C. `include/syncline/syncline.h` says what each function does, who owns what, and which
//! threads may call; here is how that is kept.
//!
//! - `abi`: the types of the header, and reading a caller's arguments.
//! - `error`: from errors to `-errno` and the thread's last sentence. Every function is one [`error::call`]: no panic
//!   crosses the border.
//! - `handles`: what a caller's pointers stand for. They are numbers, never followed, so that a handle that is closed,
//!   of another kind or of another process is told from a good one.
//! - `opened`: a volume, and what stops it when a call on it has panicked. `notifier`: its thread for callbacks.
//! - `volume`, `file`, `ticket`, `names`, `attributes`, `directory`, `transaction`, `snapshot`, `schedule`: the
//!   functions.
//!
//! The crate stands on the facade `syncline` alone.
#![deny(missing_docs)]

pub mod abi;
mod attributes;
mod difference;
mod directory;
mod error;
mod file;
mod handles;
mod head;
mod names;
mod notifier;
mod opened;
mod schedule;
mod snapshot;
mod ticket;
mod transaction;
mod volume;

pub use attributes::*;
pub use directory::*;
pub use error::{syncline_last_error, syncline_version};
pub use file::*;
pub use names::*;
pub use schedule::*;
pub use snapshot::*;
pub use ticket::*;
pub use transaction::*;
pub use volume::*;
