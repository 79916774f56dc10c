//! SQLite on the VFS, as programs use it: the same results as on SQLite's own VFS in every mode, what a commit costs,
//! what is left after power cuts, journals that lie in the volume, and several connections. The extension itself, in
//! programs that load it, is tested in `crates/extension`.

mod common;
mod connections;
mod cost;
mod crash;
mod images;
mod journals;
mod panics;
mod power;
mod processes;
mod snapshots;
mod sql;
