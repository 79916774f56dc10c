//! Syncline's mount: a FUSE daemon over one volume.
//!
//! The kernel's requests come in through the crate fusering, over /dev/fuse or over io_uring, as calls of its trait,
//! which `filesystem` implements over the engine. `syncs` answers what waits for a group commit, `daemon` is the life
//! of the process around it, and `mount_point` and `unmount` deal with the tree of mounts.
//!
//! What does not reach a FUSE daemon, and therefore does not work through the mount: `sync(2)` and `syncfs(2)` on the
//! mount of an image file (a mounted block device gets them; an `fsync` of the root directory commits everything on
//! either), collapse and insert range of `fallocate`, `FICLONE`. Access times are updated when the daemon is asked
//! for data, not when the kernel's page cache has it. A mount of an image file learns of a close after `close` has
//! returned, so the space of a file that was removed while open is free a moment later.

mod account;
mod atomic;
mod beginning;
mod browse;
mod callers;
mod confinement;
pub mod control;
mod convert;
mod daemon;
pub mod differences;
mod drivers;
mod droppers;
mod error;
mod filesystem;
#[cfg(feature = "replica")]
mod follow;
mod ioctl;
mod join;
mod leave;
mod ledger;
mod log;
mod log_line;
mod makers;
mod memory;
mod messages;
mod metrics;
mod mount_point;
mod mounts;
mod options;
mod origin;
mod privilege;
mod remount;
mod removed;
mod replica;
pub mod schedule;
mod scheduling;
pub mod signals;
pub mod snapshots;
mod statistics;
mod syncs;
mod tickets;
mod unmount;
mod unused;
mod volume;
mod writers;

pub use daemon::Mount;
pub use error::MountError;
pub use fusering::TransportChoice;
pub use options::MountOptions;
pub use replica::{OnLag, Replication};
pub use unmount::{abort, require_answer, source_of, unmount};

use std::path::Path;

/// Counters of a mounted volume, as JSON.
pub fn statistics(directory: &Path) -> Result<String, MountError> {
    let mut buffer = vec![0; ioctl::STATISTICS_BYTES];
    unmount::ioctl_on(directory, ioctl::STATISTICS, &mut buffer)?;
    ioctl::decode_statistics(&buffer).ok_or_else(|| MountError::NotMounted(directory.to_owned()))
}

/// Stops a mounted volume at once, as a power cut would: nothing is written any more, and every sync fails. What was
/// synced is there after the next mount. Needs CAP_SYS_ADMIN, or to be the user who runs an unprivileged daemon.
pub fn shut_down(directory: &Path) -> Result<(), MountError> {
    unmount::ioctl_on(directory, ioctl::SHUT_DOWN, &mut [0; 4])
}
