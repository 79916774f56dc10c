//! POSIX behaviour and life of a real mount over /dev/fuse. Needs root and /dev/fuse; without them every test says
//! that it is skipped.
//!
//! Each test mounts a volume of its own in a directory of its own, by the example program `serve`. `uring.rs` is the
//! same over io_uring.

mod acl;
mod atomic;
mod calls;
mod control;
mod device;
mod directory;
mod durability;
mod durable;
mod errors;
mod files;
mod gate;
mod harness;
mod heads;
mod hostile;
mod life;
mod load;
mod mapping;
mod names;
mod remount;
mod snapshots;
mod sqlite;
mod syncs;
mod together;
mod trim;
mod unpacking;
mod unused;
mod users;
mod watching;

/// What the daemon is told to use, and what its statistics must say.
const TRANSPORT: (&str, &str) = ("dev", "/dev/fuse");
