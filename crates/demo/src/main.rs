//! The `syncline-demo` program, which `syncline demo` starts; see the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    syncline_cli::run_program("syncline-demo", std::env::args_os().collect(), syncline_demo::run)
}
