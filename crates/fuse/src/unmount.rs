//! Unmounting, so that it returns when the volume is clean on its device.

use crate::MountError;
use crate::join;
use crate::mount_point::{Detach, abort_file, detach, is_ours, mounted_at, with_directory};
use fusering::{MountEntry, may_mount, mounted_as};
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
/// Returns where the same mount stands still, bound to another directory: until that is unmounted, nothing is closed.
///
/// Errors: `Missing`, `NotMounted`, `NotYours`, `Standing`, `NoUnmounter`, `Busy`, `StillWriting`, `NotClosed`.
pub fn unmount(directory: &Path, lazily: bool) -> Result<Option<PathBuf>, MountError> {
    let failed = |source| MountError::Unmount { path: directory.to_owned(), source };
    let entry = mounted_at(directory).or_else(none_if_missing).map_err(failed)?;
    let entry = entry.filter(is_ours).ok_or_else(|| not_mounted(directory))?;
    if let Some(owner) = entry.owner.filter(|owner| !may_unmount(*owner)) {
        return Err(MountError::NotYours { path: directory.to_owned(), owner });
    }
    if !lazily {
        require_answer(directory)?;
    }
    let how = if lazily { Detach::Lazily } else { Detach::IfIdle };
    let waiting = (!lazily).then(|| join::wait_for(&entry.source, &entry.path));
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
            // Somebody else was faster; the end is waited for all the same.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_gone(&entry) => break,
            Err(error) if !may_mount() && error.kind() == io::ErrorKind::NotFound => {
                return Err(MountError::NoUnmounter { path: directory.to_owned() });
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let Some(waiting) = waiting else { return Ok(None) };
    if let Some(on) = mounted_as(&entry).map_err(failed)? {
        return Ok(Some(on));
    }
    // A daemon that has more of the volume mounted goes on.
    let daemon = waiting.until_written(&entry.source, &entry.path)?;
    wait_until_released(&entry.source, daemon)?;
    Ok(None)
}

/// Whether another mount, or none, is where this one was.
fn is_gone(entry: &MountEntry) -> bool {
    mounted_at(&entry.path).is_ok_and(|found| found.is_none_or(|found| found.device != entry.device))
}

/// Whether the daemon of the volume that is mounted at `directory` can be waited for: a call on its mount, or its last
/// checkpoint, would otherwise take for as long as it stands still. What is no mount is told by whoever asks next.
///
/// Errors: `Standing`.
pub fn require_answer(directory: &Path) -> Result<(), MountError> {
    let entry = mounted_at(directory).ok().flatten().filter(is_ours);
    match entry.and_then(|entry| join::silent(&entry.source)) {
        Some(process) => Err(MountError::Standing { path: directory.to_owned(), process }),
        None => Ok(()),
    }
}

/// What is there instead of a mounted volume: something else, or nothing.
pub(crate) fn not_mounted(path: &Path) -> MountError {
    let missing = !syncline_source::is_address(path)
        && std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let is_one = |on: &PathBuf| mounted_at(on).is_ok_and(|entry| entry.as_ref().is_some_and(is_ours));
    match (missing, syncline_source::is_mounted(path).filter(is_one)) {
        (true, _) => MountError::Missing(path.to_owned()),
        (false, Some(on)) => MountError::Source { path: path.to_owned(), on },
        (false, None) => MountError::NotMounted(path.to_owned()),
    }
}

/// A path of which a part is missing is no mount.
pub(crate) fn none_if_missing(error: io::Error) -> io::Result<Option<MountEntry>> {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
        _ => Err(error),
    }
}

/// fusermount3 unmounts for the one who has mounted, and for nobody else.
fn may_unmount(owner: u32) -> bool {
    // SAFETY: getuid has no preconditions.
    may_mount() || unsafe { libc::getuid() } == owner
}

/// Waits until nobody holds the image or device, the kernel included, or somebody has mounted it again. What is reached
/// by an address is held by the daemon that had it: others who were taken over from are not waited for.
fn wait_until_released(source: &Path, daemon: Option<u32>) -> Result<(), MountError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The kernel gives its claim of a block device back behind the daemon's lock, and behind this process's
        // umount(2) where somebody else was the last to hold on to the mount.
        let held = match syncline_source::is_address(source) {
            // A daemon that has closed its volume ends, and nobody answers.
            true => daemon.is_some_and(|process| join::serves(source, process)),
            false => {
                syncline_device::is_held(source)
                    || matches!(syncline_device::in_use_by_kernel(source), Err(OpenError::Claimed { .. }))
            }
        };
        if !held || syncline_source::is_mounted(source).is_some() {
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

/// Whether a mount is there whose daemon has died.
pub(crate) fn is_dead(directory: &Path) -> bool {
    std::fs::metadata(directory).is_err_and(|error| is_of_dead_daemon(&error))
}

/// Removes what a dead daemon left in the tree of mounts at `directory`, if that is what is there: a directory on which
/// every call fails with ENOTCONN.
pub(crate) fn clear_dead_mount(directory: &Path) -> io::Result<()> {
    if !is_dead(directory) {
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
        _ => Err(not_mounted(directory)),
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
    require_answer(directory)?;
    let result = with_directory(directory, |fd| {
        // SAFETY: the commands this is called with write at most the size encoded in them, which the callers'
        // buffers have.
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(command), output.as_mut_ptr()) }
    });
    match result {
        Ok(0) => Ok(()),
        Ok(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOTTY) => Err(not_mounted(directory)),
            source => Err(MountError::System { what: "asking the daemon", source }),
        },
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(not_mounted(directory))
        }
        Err(error) if is_of_dead_daemon(&error) => Err(MountError::Dead(directory.to_owned())),
        Err(source) => Err(MountError::Look { path: directory.to_owned(), source }),
    }
}
