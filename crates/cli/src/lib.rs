//! The `syncline` command: makes, mounts, checks, fills and shows volumes.
//!
//! One program under several names. As `syncline` it takes subcommands; as `mkfs.syncline`, `fsck.syncline`,
//! `mount.syncline`, `umount.syncline` and their variants it speaks the conventions of the tools that call those
//! ([`names`]). Every failure is one sentence on standard error that says what to do ([`error::Failure`]); whatever has
//! output has it as JSON, too.
//!
//! The crate is a library so that the definitions of the command line can also generate manual pages and
//! completions. It knows no layout and no rule of the engine: it opens devices, calls the layers below and words
//! what they say.
#![forbid(unsafe_code)]

mod arguments;
mod check;
mod companion;
mod copy;
mod error;
mod inspect;
mod list;
mod mkfs;
mod mount;
mod names;
mod output;
mod pages;
mod probe;
mod program;
#[cfg(feature = "replica")]
mod replica;
mod size;
mod snapshot;
mod stats;
mod sync;
#[cfg(feature = "top")]
mod top;
mod umount;
mod upgrade;
mod volume;
mod watch;

pub use arguments::{MOUNT_OPTIONS, command};
pub use check::findings;
pub use companion::find;
pub use names::named_commands;
pub use pages::{Codes, PAGES, PLAIN, Page};
pub use program::{ProgramError, run_program};

use crate::error::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

/// Runs the program for a whole command line, its name included, and returns its exit code.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    let (name, request) = match names::parse(arguments) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    let tool = request.tool();
    match request.run() {
        Ok(code) => code,
        Err(failure) => fail(&name, tool, &failure),
    }
}

/// Tells what failed, in the one place where that is printed; returns the exit code.
pub(crate) fn fail(name: &str, tool: error::Tool, failure: &Failure) -> ExitCode {
    // Who pipes the output into `head` knows that it ends.
    if failure.is_of_a_reader_that_left() {
        return ExitCode::SUCCESS;
    }
    output::tell(&format!("{name}: {}", error::without_numbers(&failure.to_string())));
    failure.exit_code(tool)
}
