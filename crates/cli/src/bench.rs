//! `syncline bench`; everything is in the crate of that name.

use crate::error::Failure;
use std::process::ExitCode;

pub(crate) fn run(arguments: &syncline_bench::Arguments) -> Result<ExitCode, Failure> {
    syncline_bench::run(arguments, &mut std::io::stdout())?;
    Ok(ExitCode::SUCCESS)
}
