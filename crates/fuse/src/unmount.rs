//! Unmounting, so that it returns when the volume is clean on its device.

use crate::MountError;
use crate::mount_point::{Detach, abort_file, detach, is_ours, mounted_at, with_directory};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use syncline_device::OpenError;

/// How long to wait for the last checkpoint.
const PATIENCE: Duration = Duration::from_secs(120);
/// A mount that is in use for a moment only (a scanner, a shell prompt) is tried again for so long.
const BUSY_PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(5);

/// Unmounts the volume at `directory`, and returns when its daemon has written the last checkpoint and let go of
/// the image or device. `lazily` takes a mount that is in use out of the tree; then there is nothing to wait for.
///
/// Errors: `NotMounted`, `Busy`, `StillWriting`.
pub fn unmount(directory: &Path, lazily: bool) -> Result<(), MountError> {
    let failed = |source| MountError::Unmount { path: directory.to_owned(), source };
    let entry = mounted_at(directory).map_err(failed)?;
    let entry = entry.filter(is_ours);
    let entry = entry.ok_or_else(|| MountError::NotMounted(directory.to_owned()))?;
    let how = if lazily { Detach::Lazily } else { Detach::IfIdle };
    let deadline = Instant::now() + BUSY_PATIENCE;
    loop {
        match detach(&entry.path, how) {
            Ok(()) => break,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if Instant::now() > deadline {
                    return Err(MountError::Busy { path: directory.to_owned() });
                }
                std::thread::sleep(PAUSE);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    if lazily { Ok(()) } else { wait_until_released(&entry.source) }
}

/// Waits until nobody holds the image or device, the kernel included, or somebody has mounted it again.
fn wait_until_released(source: &Path) -> Result<(), MountError> {
    let Ok(file) = File::open(source) else { return Ok(()) };
    let deadline = Instant::now() + PATIENCE;
    loop {
        // SAFETY: the descriptor is open; flock has no memory effects. The lock is dropped with the file.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
        let held = if locked == 0 {
            // The kernel gives its claim of a block device back behind the daemon's lock, and behind this process's
            // umount(2) where somebody else was the last to hold on to the mount.
            matches!(syncline_device::in_use_by_kernel(source), Err(OpenError::Claimed { .. }))
        } else {
            io::Error::last_os_error().raw_os_error() == Some(libc::EWOULDBLOCK)
        };
        if !held || syncline_device::is_mounted(source).is_some() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(MountError::StillWriting { path: source.to_owned(), seconds: PATIENCE.as_secs() });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a call failed because the mount's daemon has died, or did so while the call was under way.
fn is_of_dead_daemon(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Removes what a dead daemon left in the tree of mounts at `directory`, if that is what is there: a directory on which
/// every call fails with ENOTCONN.
pub(crate) fn clear_dead_mount(directory: &Path) -> io::Result<()> {
    let dead = std::fs::metadata(directory).is_err_and(|error| is_of_dead_daemon(&error));
    if !dead {
        return Ok(());
    }
    match mounted_at(directory)? {
        Some(entry) if is_ours(&entry) => {
            tracing::warn!(path = %directory.display(), "removing the mount that a dead daemon left behind");
            detach(&entry.path, Detach::Lazily)
        }
        _ => Ok(()),
    }
}

/// The image or device that is mounted at `directory`.
pub fn source_of(directory: &Path) -> Result<PathBuf, MountError> {
    let entry =
        mounted_at(directory).map_err(|source| MountError::System { what: "reading mountinfo", source })?;
    match entry {
        Some(entry) if is_ours(&entry) => Ok(entry.source),
        _ => Err(MountError::NotMounted(directory.to_owned())),
    }
}

/// Ends a mount whose daemon does not answer any more: every call on it fails from then on.
pub fn abort(directory: &Path) -> Result<(), MountError> {
    let failed = |source| MountError::Unmount { path: directory.to_owned(), source };
    let entry = mounted_at(directory).map_err(failed)?.filter(is_ours);
    let file =
        entry.as_ref().and_then(abort_file).ok_or_else(|| MountError::NotMounted(directory.to_owned()))?;
    std::fs::write(file, b"1").map_err(failed)
}

/// Runs an ioctl with an output buffer on the root directory of a mounted volume.
pub(crate) fn ioctl_on(directory: &Path, command: u32, output: &mut [u8]) -> Result<(), MountError> {
    let not_mounted = || MountError::NotMounted(directory.to_owned());
    let result = with_directory(directory, |fd| {
        // SAFETY: the commands this is called with write at most the size encoded in them, which the callers'
        // buffers have.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), output.as_mut_ptr()) }
    });
    match result {
        Ok(0) => Ok(()),
        Ok(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOTTY) => Err(not_mounted()),
            source => Err(MountError::System { what: "asking the daemon", source }),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(not_mounted())
        }
        Err(error) if is_of_dead_daemon(&error) => Err(MountError::Dead(directory.to_owned())),
        Err(source) => Err(MountError::Look { path: directory.to_owned(), source }),
    }
}
