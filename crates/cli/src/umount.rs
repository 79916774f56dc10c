//! `syncline umount`: returns when the last checkpoint is durable, so that an image can be copied or a disk unplugged.
//!
//! A daemon whose volume has failed cannot write its last checkpoint, and nobody waits for its exit code. So what it
//! has left on the device is looked at here.

use crate::arguments::UmountArguments;
use crate::error::Failure;
use crate::volume::superblocks;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_device::{FileDevice, OpenOptions};
use syncline_format::superblock::VolumeState;

pub(crate) fn run(arguments: &UmountArguments) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    let to_be_closed = if arguments.lazy { None } else { writable_source(directory) };
    syncline_fuse::unmount(directory, arguments.lazy).map_err(Failure::Mount)?;
    match to_be_closed {
        Some(image) if is_left_open(&image) => Err(Failure::LeftOpen { directory: directory.clone(), image }),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The image or device, if its daemon is alive and mounted it for writing. (A dead one has told its users.)
fn writable_source(directory: &Path) -> Option<PathBuf> {
    let is_read_only = statvfs(directory).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY);
    if is_read_only { None } else { syncline_fuse::source_of(directory).ok() }
}

/// Whether it was not closed properly. If it is gone, or somebody has it again already, there is nothing to say.
fn is_left_open(source: &Path) -> bool {
    let options = OpenOptions::default().read_only(true);
    let Ok(device) = FileDevice::open(source, &options) else { return false };
    let found = superblocks(&device, source).ok();
    found.is_some_and(|found| found.current().is_some_and(|current| current.state != VolumeState::Clean))
}
