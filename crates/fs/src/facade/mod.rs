//! The embedding face of the crate: [`Volume`], [`File`], [`OpenOptions`], shaped like `std::fs`.
//!
//! Paths are relative to the volume's root, with or without a leading slash. Symbolic links are followed within the
//! volume, at most 40 of them; `..` leads to a directory's parent.

mod file;
mod maintenance;
mod metadata;
mod open;
mod path;
mod read_dir;
mod sync_thread;
mod ticket;
mod transaction;
mod volume;
mod volume_options;

pub use file::File;
pub use metadata::Metadata;
pub use open::OpenOptions;
pub use read_dir::{DirectoryEntry, ReadDir};
pub use ticket::SyncTicket;
pub use transaction::{TransactionFile, VolumeTransaction};
pub use volume::{Volume, VolumeStats};
pub use volume_options::VolumeOptions;
