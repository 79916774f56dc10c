//! The tests of `main.rs` over io_uring: turned on for each mount and put back after it. Where the kernel has none
//! every test says that it is skipped.

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
const TRANSPORT: (&str, &str) = ("uring", "io_uring");
