//! Names and inodes: everything that changes which name leads to which inode.
//!
//! Every operation is exactly one batch and does no I/O of its own (but R20: a rename that replaces a file waits for
//! the writes of the source's data). The order within each: admission, then locks in ascending order of inode
//! numbers, then checks, then [`Change::commit`](change::Change::commit), under which memory and journal change alike.

pub(crate) mod change;
pub(crate) mod create;
pub(crate) mod names;
mod readdir;
mod remove;
mod rename;
mod table;

pub use readdir::DirEntry;
pub use rename::RenameFlags;

pub(crate) use create::{MODE_GROUP_EXECUTE, MODE_SETGID, MODE_SETUID};
pub(crate) use table::InodeTable;
