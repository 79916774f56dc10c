//! SQLite on the VFS, as programs use it: the same results as on SQLite's own VFS in every mode, what a commit costs,
//! what is left after power cuts, journals that lie in the volume, several connections, and the extension in the
//! stock shell.

mod common;
mod connections;
mod cost;
mod crash;
mod images;
mod journals;
mod panics;
mod power;
mod processes;
mod shell;
mod snapshots;
mod sql;
