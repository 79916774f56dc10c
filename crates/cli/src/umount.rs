//! `syncline umount`: returns when the last checkpoint is durable, so that an image can be copied or a disk unplugged.

use crate::arguments::UmountArguments;
use crate::error::Failure;
use std::process::ExitCode;

pub(crate) fn run(arguments: &UmountArguments) -> Result<ExitCode, Failure> {
    syncline_fuse::unmount(&arguments.directory, arguments.lazy).map_err(Failure::Mount)?;
    Ok(ExitCode::SUCCESS)
}
