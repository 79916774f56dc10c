//! Atomic writes of one file by the ioctls that f2fs introduced.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IO(0xf5, 1)` and `_IO(0xf5, 2)`.
const START: libc::Ioctl = 0xf501;
const COMMIT: libc::Ioctl = 0xf502;

/// What is written through this file from now on is one change. Errors: `Unsupported` where the file system has no
/// such thing.
pub(super) fn start(file: &File) -> io::Result<()> {
    match request(file, START) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP)) =>
        {
            Err(io::ErrorKind::Unsupported.into())
        }
        other => other,
    }
}

/// Makes it durable.
pub(super) fn commit(file: &File) -> io::Result<()> {
    request(file, COMMIT)
}

fn request(file: &File, which: libc::Ioctl) -> io::Result<()> {
    // SAFETY: both requests take no argument and touch no memory of the caller.
    match unsafe { libc::ioctl(file.as_raw_fd(), which) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
