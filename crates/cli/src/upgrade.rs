//! `syncline upgrade`: a volume of version 1 of the format becomes one of version 2.

use crate::arguments::UpgradeArguments;
use crate::error::Failure;
use crate::output;
use std::process::ExitCode;
use syncline::Volume;

pub(crate) fn run(arguments: &UpgradeArguments) -> Result<ExitCode, Failure> {
    let path = &arguments.target;
    let upgraded = Volume::upgrade(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::StorageFull => Failure::NoRoomToUpgrade { path: path.clone() },
        _ => Failure::of_volume(path, source),
    })?;
    if !arguments.quiet {
        let what = match upgraded {
            true => "has version 2 of the format now",
            false => "already has version 2 of the format; nothing was changed",
        };
        output::line(&format!("{} {what}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
