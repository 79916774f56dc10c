//! POSIX behaviour and life of a real mount. Needs root and /dev/fuse; without them every test says that it is skipped.
//!
//! Each test mounts a volume of its own in a directory of its own, by the example program `serve`.

mod acl;
mod calls;
mod directory;
mod durability;
mod errors;
mod harness;
mod life;
mod mapping;
mod names;
