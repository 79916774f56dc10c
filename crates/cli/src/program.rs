//! The manners of the project's other programs: the same exit codes and the same one sentence as `syncline`.

use crate::error::{self, Tool};
use crate::{names, output};
use clap::Parser;
use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Why a program stops: one sentence, and what kind of end it is.
#[derive(Debug)]
pub struct ProgramError {
    sentence: String,
    is_usage: bool,
    is_of_a_reader_that_left: bool,
}

impl ProgramError {
    /// Something failed.
    pub fn failed(error: &dyn Display) -> ProgramError {
        ProgramError { sentence: error.to_string(), is_usage: false, is_of_a_reader_that_left: false }
    }

    /// The command line was wrong.
    pub fn usage(error: &dyn Display) -> ProgramError {
        ProgramError { is_usage: true, ..ProgramError::failed(error) }
    }

    /// The output did not arrive. A reader that left knows that it ends.
    pub fn unprinted(error: &dyn Display, source: &io::Error) -> ProgramError {
        let is_of_a_reader_that_left = source.kind() == io::ErrorKind::BrokenPipe;
        ProgramError { is_of_a_reader_that_left, ..ProgramError::failed(error) }
    }
}

/// Parses a command line, its name included, runs what it asks for, and tells what failed.
pub fn run_program<Arguments: Parser>(
    name: &str,
    line: Vec<OsString>,
    run: impl FnOnce(Arguments) -> Result<ExitCode, ProgramError>,
) -> ExitCode {
    let arguments = match Arguments::try_parse_from(line) {
        Ok(arguments) => arguments,
        Err(error) => return names::usage(name, Tool::Plain, &error),
    };
    match run(arguments) {
        Ok(code) => code,
        Err(error) if error.is_of_a_reader_that_left => ExitCode::SUCCESS,
        Err(error) => {
            output::tell(&format!("{name}: {}", error::without_numbers(&error.sentence)));
            ExitCode::from(if error.is_usage { Tool::Plain.usage_code() } else { Tool::Plain.failure_code() })
        }
    }
}
