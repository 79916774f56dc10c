//! The engine from outside: what a user of the library or of a mount relies on.

#[path = "../common/mod.rs"]
mod common;
mod concurrency;
mod crash_names;
mod full_volume;
#[path = "../gate/mod.rs"]
mod gate;
mod handles;
mod held_checkpoint;
mod orphans;
mod posix_attributes;
mod posix_names;
mod posix_readdir;
mod posix_rename;
