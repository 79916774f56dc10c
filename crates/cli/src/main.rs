//! The `syncline` program; see the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    syncline_cli::run(std::env::args_os().collect())
}
