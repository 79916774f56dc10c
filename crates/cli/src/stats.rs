//! `syncline stats`: counters and latencies of a mounted volume, asked of its daemon.

use crate::arguments::StatsArguments;
use crate::error::Failure;
use crate::output::{self, Form};
use serde_json::Value;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &StatsArguments) -> Result<ExitCode, Failure> {
    let statistics = read(&arguments.directory)?;
    output::object(Form::json_if(arguments.json), &statistics).map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// The daemon's figures.
pub(crate) fn read(directory: &Path) -> Result<Value, Failure> {
    let text = syncline_fuse::statistics(directory).map_err(Failure::Mount)?;
    serde_json::from_str(&text).map_err(|error| Failure::Io {
        doing: format!("the daemon of {} sent statistics that cannot be read", directory.display()),
        source: error.into(),
    })
}
