//! Attaching to and detaching from the tree of mounts: mount(2), umount(2), fusermount3, /proc/self/mountinfo.
//!
//! Root mounts directly, so that a block device becomes a `fuseblk` mount: the kernel then claims the device, shows it
//! as the source, and `umount` of a loop device works as usual. Everyone else goes through fusermount3.

use crate::{MountError, MountOptions};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const SUBTYPE: &str = "syncline";

/// One line of /proc/self/mountinfo, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor` of the mounted filesystem.
    pub(crate) device: String,
    pub(crate) path: PathBuf,
    pub(crate) fs_type: String,
    /// What is mounted: the image file or block device.
    pub(crate) source: PathBuf,
}

impl MountEntry {
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.fs_type.as_str(), "fuse.syncline" | "fuseblk.syncline")
    }
}

/// Whether this process may mount without a helper.
pub(crate) fn may_mount() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Mounts, and returns the connection on which the kernel's requests arrive.
pub(crate) fn attach(source: &Path, at: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let connection = open_fuse_device()?;
    let metadata = std::fs::metadata(source);
    let is_block_device = metadata.is_ok_and(|metadata| metadata.file_type().is_block_device());
    let kind = if is_block_device { "fuseblk" } else { "fuse" };
    let root_mode = std::fs::metadata(at).map_or(0o40000, |metadata| {
        use std::os::unix::fs::MetadataExt;
        metadata.mode() & libc::S_IFMT
    });
    let mut data = format!(
        "fd={},rootmode={root_mode:o},user_id=0,group_id=0,default_permissions",
        connection.as_raw_fd()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if is_block_device {
        data.push_str(",blksize=4096");
    }
    let refused = |source_error: io::Error| match source_error.raw_os_error() {
        Some(libc::EBUSY) if is_block_device => MountError::DeviceBusy { source_path: source.to_owned() },
        _ => {
            MountError::Refused { source_path: source.to_owned(), path: at.to_owned(), source: source_error }
        }
    };
    let source_c = c_string(source).map_err(refused)?;
    let at_c = c_string(at).map_err(refused)?;
    let kind_c = CString::new(format!("{kind}.{SUBTYPE}")).expect("no NUL in a constant");
    let data_c = CString::new(data).expect("no NUL in numbers and words");
    // SAFETY: all five pointers are NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(
            source_c.as_ptr(),
            at_c.as_ptr(),
            kind_c.as_ptr(),
            kernel_flags(options),
            data_c.as_ptr().cast(),
        )
    };
    if result != 0 {
        return Err(refused(io::Error::last_os_error()));
    }
    Ok(connection)
}

/// Lets the kernel read ahead as much as one message takes: by default a FUSE mount is limited to 128 KiB, eight messages
/// where one would do. Only root may, and nothing depends on it.
pub(crate) fn widen_read_ahead(at: &Path, bytes: u32) {
    let Ok(Some(entry)) = mounted_at(at) else { return };
    let name = match entry.fs_type.starts_with("fuseblk") {
        true => format!("{}-fuseblk", entry.device),
        false => entry.device,
    };
    let setting = Path::new("/sys/class/bdi").join(name).join("read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, (bytes / 1024).to_string()) {
        tracing::debug!(%error, setting = %setting.display(), "the kernel keeps its read-ahead");
    }
}

fn open_fuse_device() -> Result<OwnedFd, MountError> {
    // SAFETY: the path is a NUL-terminated constant.
    let fd = unsafe { libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(MountError::NoFuseDevice(io::Error::last_os_error()));
    }
    // SAFETY: open returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn kernel_flags(options: &MountOptions) -> libc::c_ulong {
    use syncline::AccessTimes;
    let mut flags = match options.access_times {
        AccessTimes::Never => libc::MS_NOATIME,
        AccessTimes::Relative => libc::MS_RELATIME,
        AccessTimes::Always => libc::MS_STRICTATIME,
    };
    for (wanted, flag) in [
        (options.read_only, libc::MS_RDONLY),
        (options.nosuid, libc::MS_NOSUID),
        (options.nodev, libc::MS_NODEV),
        (options.noexec, libc::MS_NOEXEC),
        (options.sync, libc::MS_SYNCHRONOUS),
        (options.dirsync, libc::MS_DIRSYNC),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    flags
}

/// The same options for fusermount3.
pub(crate) fn helper_options(source: &Path, options: &MountOptions) -> Vec<fuser::MountOption> {
    use fuser::MountOption;
    let mut list = vec![
        MountOption::FSName(source.to_string_lossy().replace(',', "\\,")),
        MountOption::Subtype(SUBTYPE.to_owned()),
        MountOption::DefaultPermissions,
    ];
    for (wanted, option) in [
        (options.read_only, MountOption::RO),
        (options.noexec, MountOption::NoExec),
        (options.sync, MountOption::Sync),
        (options.dirsync, MountOption::DirSync),
        (options.access_times == syncline::AccessTimes::Never, MountOption::NoAtime),
    ] {
        if wanted {
            list.push(option);
        }
    }
    list
}

/// The mount that covers `path`, if `path` is its root.
pub(crate) fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let path = absolute(path)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    // The last one listed is on top.
    Ok(parse_mountinfo(&table).into_iter().rfind(|entry| entry.path == path))
}

/// Like `canonicalize`, but the last component is not touched: a dead mount cannot be looked at.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    if let Ok(canonical) = path.canonicalize() {
        return Ok(canonical);
    }
    let whole = std::path::absolute(path)?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}

fn parse_mountinfo(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_mountinfo_line).collect()
}

fn parse_mountinfo_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let path = fields.nth(1)?;
    // Optional fields end with a lone dash.
    fields.find(|field| *field == b"-")?;
    let fs_type = fields.next()?;
    let source = fields.next()?;
    Some(MountEntry {
        device: String::from_utf8_lossy(device).into_owned(),
        path: unescape(path),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: unescape(source),
    })
}

/// Undoes the kernel's `\040` for blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal =
            tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                out.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
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

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Whether requests wait on the connection, or whether it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Quiet,
    Waiting,
    Ended,
}

/// Looks at a connection without blocking.
pub(crate) fn look_at(connection: &OwnedFd) -> ConnectionState {
    let mut poll = libc::pollfd { fd: connection.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one valid pollfd; a timeout of 0 does not block.
    let ready = unsafe { libc::poll(&mut poll, 1, 0) };
    if ready <= 0 {
        ConnectionState::Quiet
    } else if poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
        ConnectionState::Ended
    } else {
        ConnectionState::Waiting
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_their_escapes() {
        let table = b"36 35 98:0 / /mnt/with\\040blank rw,noatime master:1 - ext3 /dev/root rw\n\
                      41 35 0:52 / /mnt/a rw - fuse.syncline /var/img\\134x rw,user_id=0\n";
        let entries = parse_mountinfo(table);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].path, Path::new("/mnt/with blank"));
        assert!(!entries[0].is_ours());
        assert_eq!(entries[1].source, Path::new("/var/img\\x"));
        assert_eq!(entries[1].device, "0:52");
        assert!(entries[1].is_ours());
    }

    #[test]
    fn damaged_lines_are_skipped() {
        assert!(parse_mountinfo(b"\n1 2\n1 2 3:4 / /x rw\n").is_empty());
    }
}
