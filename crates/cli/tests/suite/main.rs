//! The program as its users meet it: command lines, exit codes, sentences, volumes on disk and mounted.

mod attacks;
mod bad_input;
mod commands;
mod common;
mod copying;
mod damaged;
mod mkfs;
mod mounted;
#[cfg(feature = "replica")]
mod replica;
mod snapshots;
