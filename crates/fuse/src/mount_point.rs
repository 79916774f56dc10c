//! How a volume stands in the tree of mounts, and how it is taken out of it.
//!
//! Where root mounts a block device it becomes a `fuseblk` mount: the kernel then claims the device, shows it as the
//! source, hands on `sync(2)`, and `umount` returns when the last checkpoint is written. Everyone else mounts through
//! fusermount3.

use crate::MountOptions;
use fusering::{AccessTimes, MountEntry, may_mount};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const SUBTYPE: &str = "syncline";
const BLOCK_BYTES: u32 = 4096;

/// Whether it is a volume of ours.
pub(crate) fn is_ours(entry: &MountEntry) -> bool {
    matches!(entry.kind.as_str(), "fuse.syncline" | "fuseblk.syncline")
}

/// How to mount `source`: a block device becomes a `fuseblk` mount, if root mounts it.
pub(crate) fn options_for(source: &Path, options: &MountOptions) -> fusering::MountOptions {
    let metadata = std::fs::metadata(source);
    let is_block_device = metadata.is_ok_and(|metadata| metadata.file_type().is_block_device());
    let access_times = match options.access_times {
        syncline_fs::AccessTimes::Never => AccessTimes::Never,
        syncline_fs::AccessTimes::Relative => AccessTimes::Relative,
        syncline_fs::AccessTimes::Always => AccessTimes::Always,
    };
    fusering::MountOptions::default()
        .source(source)
        .subtype(SUBTYPE)
        .block_device((is_block_device && may_mount()).then_some(BLOCK_BYTES))
        .read_only(options.is_read_only())
        .nosuid(options.nosuid)
        .nodev(options.nodev)
        .noexec(options.noexec)
        .sync(options.sync)
        .dirsync(options.dirsync)
        .access_times(access_times)
        // A user who mounts without root needs leave in /etc/fuse.conf for others than themselves.
        .allow_other(options.allow_other)
        .default_permissions(true)
}

/// Lets the kernel read ahead as much as one message takes: by default a FUSE mount is limited to 128 KiB, eight
/// messages where one would do. Only root may, and nothing depends on it.
pub(crate) fn widen_read_ahead(at: &Path, bytes: u32) {
    let Ok(Some(entry)) = mounted_at(at) else { return };
    let name = match entry.kind.starts_with("fuseblk") {
        true => format!("{}-fuseblk", entry.device),
        false => entry.device,
    };
    let setting = Path::new("/sys/class/bdi").join(name).join("read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, (bytes / 1024).to_string()) {
        tracing::debug!(%error, setting = %setting.display(), "the kernel keeps its read-ahead");
    }
}

/// The mount whose root `path` is, or leads to.
pub(crate) fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    // A dead mount cannot be looked at; then the path is taken as it is.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    fusering::mounted_at(&path)
}

/// How insistently to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detach {
    /// Fails while the mount is in use.
    IfIdle,
    /// Takes the mount out of the tree; it ends when its last user does.
    Lazily,
}

pub(crate) fn detach(path: &Path, how: Detach) -> io::Result<()> {
    if !may_mount() {
        return detach_by_helper(path, how);
    }
    let flags = match how {
        Detach::IfIdle => libc::UMOUNT_NOFOLLOW,
        Detach::Lazily => libc::UMOUNT_NOFOLLOW | libc::MNT_DETACH,
    };
    let path = c_string(path)?;
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn detach_by_helper(path: &Path, how: Detach) -> io::Result<()> {
    let mut command = std::process::Command::new("fusermount3");
    command.arg("-u");
    if how == Detach::Lazily {
        command.arg("-z");
    }
    let output = command.arg("--").arg(path).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(message))
}

pub(crate) fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Path of the control directory that lets an unresponsive connection be aborted.
pub(crate) fn abort_file(entry: &MountEntry) -> Option<PathBuf> {
    let minor = entry.device.split_once(':')?.1;
    Some(Path::new("/sys/fs/fuse/connections").join(minor).join("abort"))
}

/// Runs `action` on a directory opened for reading.
pub(crate) fn with_directory<T>(path: &Path, action: impl FnOnce(&OwnedFd) -> T) -> io::Result<T> {
    let path = c_string(path)?;
    let fd = open_directory(&path)?;
    Ok(action(&fd))
}

fn open_directory(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the path is a NUL-terminated string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
