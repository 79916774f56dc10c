//! `syncline umount` and `umount.syncline`: return when the last checkpoint is durable, so that an image can be
//! copied or a disk unplugged.
//!
//! A daemon whose volume has failed cannot write its last checkpoint, and nobody waits for its exit code. So what it
//! has left on the device is looked at here.

use crate::arguments::UmountArguments;
use crate::error::Failure;
use crate::output::tell;
use crate::volume::superblocks;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline_device::{Device, OpenOptions};
use syncline_format::replica::Partial;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock, VolumeState};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_fuse::{Mount, MountError, MountOptions};

/// Of somebody who has it again.
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();

/// How umount(8) wants it done.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// If it cannot be unmounted, end its connection: the daemon may be one that does not answer.
    pub(crate) by_force: bool,
    /// If it is in use, make it read-only.
    pub(crate) or_read_only: bool,
}

pub(crate) fn run(arguments: &UmountArguments, manner: Manner) -> Result<ExitCode, Failure> {
    let directory = &arguments.directory;
    if manner.by_force {
        return unmount_by_force(directory).map_err(Failure::Mount);
    }
    if !arguments.lazy {
        syncline_fuse::require_answer(directory).map_err(Failure::Mount)?;
    }
    let to_be_closed = if arguments.lazy { None } else { writable_source(directory) };
    match syncline_fuse::unmount(directory, arguments.lazy) {
        Err(MountError::Busy { .. }) if manner.or_read_only => {
            return make_read_only(directory).map_err(Failure::Mount);
        }
        result => {
            if let Some(on) = result.map_err(Failure::Mount)? {
                let (directory, on) = (directory.display(), on.display());
                tell(&format!("{directory} is unmounted; the volume stays open until {on} is unmounted too"));
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    match to_be_closed {
        Some(image) if is_left_open(&image) => Err(Failure::LeftOpen { directory: directory.clone(), image }),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A daemon that answers closes its volume as always. Otherwise everything that waits for the daemon is ended first;
/// what it had not written is lost, and nothing that was synced.
fn unmount_by_force(directory: &Path) -> Result<ExitCode, MountError> {
    match syncline_fuse::unmount(directory, false) {
        Ok(_) => {}
        Err(MountError::Busy { .. } | MountError::Standing { .. }) => {
            // Where the kernel's control files are not mounted it cannot be ended; it leaves the tree all the same.
            let _ = syncline_fuse::abort(directory);
            syncline_fuse::unmount(directory, true)?;
        }
        Err(error) => return Err(error),
    }
    Ok(ExitCode::SUCCESS)
}

fn make_read_only(directory: &Path) -> Result<ExitCode, MountError> {
    let source = syncline_fuse::source_of(directory)?;
    let options = MountOptions::parse("remount,ro")?;
    Mount { source, directory: directory.to_owned(), options }.serve_in_background()?;
    Ok(ExitCode::SUCCESS)
}

/// The image or device, if its daemon is alive and mounted it for writing. (A dead one has told its users.)
fn writable_source(directory: &Path) -> Option<PathBuf> {
    let is_read_only = statvfs(directory).ok()?.f_flag.contains(StatVfsMountFlags::RDONLY);
    if is_read_only { None } else { syncline_fuse::source_of(directory).ok() }
}

/// Whether it was not closed properly. If it is gone, or somebody has it again already, there is nothing to say; but a
/// device whose server is gone was not closed.
fn is_left_open(source: &Path) -> bool {
    let options = OpenOptions::default().read_only(true);
    let opened = match syncline_source::open(source, &options) {
        Ok(opened) => opened,
        Err(error) => return syncline_source::is_address(source) && error.errno() != EBUSY,
    };
    if let Some(state) = state_of_partial(opened.device()) {
        return state != VolumeState::Clean;
    }
    let found = superblocks(opened.device(), source).ok();
    found.is_some_and(|found| found.current().is_some_and(|current| current.state != VolumeState::Clean))
}

/// The state of a volume of which a part is in its replica still: its superblocks lie aside.
fn state_of_partial(device: &dyn Device) -> Option<VolumeState> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(BlockNo(device.blocks().checked_sub(1)?), &mut bytes).ok()?;
    let partial = Partial::decode(&bytes, device.blocks()).ok()??;
    let superblocks = SUPERBLOCK_SLOTS.iter().filter_map(|slot| {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(partial.place_aside(*slot)?, &mut bytes).ok()?;
        Superblock::decode(&bytes, *slot, partial.blocks).ok()
    });
    superblocks.max_by_key(Superblock::rank).map(|superblock| superblock.state)
}
