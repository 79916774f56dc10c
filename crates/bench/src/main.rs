//! The `syncline-bench` program, which `syncline bench` starts; see the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use syncline_bench::{Arguments, BenchError};
use syncline_cli::{ProgramError, run_program};

fn main() -> ExitCode {
    run_program("syncline-bench", std::env::args_os().collect(), |arguments: Arguments| {
        match syncline_bench::run(&arguments, &mut std::io::stdout()) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(ref error @ BenchError::Print(ref source)) => Err(ProgramError::unprinted(error, source)),
            Err(error) if error.is_usage() => Err(ProgramError::usage(&error)),
            Err(error) => Err(ProgramError::failed(&error)),
        }
    })
}
