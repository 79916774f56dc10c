//! Ending a connection by force, for when a queue can no longer be served.
//!
//! The kernel does not notice that a queue's thread is gone while the process lives: requests of that CPU would wait
//! for ever. After an abort they fail with ECONNABORTED, later ones with ENOTCONN.

use crate::transport::connection::Connection;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Where the kernel's file system of connections is mounted on most systems.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Makes the kernel fail all requests of `connection`, open ones and later ones.
pub(super) fn abort_connection(connection: &Connection) -> io::Result<()> {
    let fd = connection.as_fd().as_raw_fd();
    let described = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let number = connection_number(&described).ok_or(io::ErrorKind::Unsupported)?;
    match std::fs::write(format!("{CONTROL}/{number}/abort"), "1") {
        // Not mounted there. Root can look at it without mounting it anywhere.
        Err(error) if error.kind() == io::ErrorKind::NotFound => abort_in(&unattached_control()?, number),
        written => written,
    }
}

/// The connection's number, which the kernel tells in the description of its descriptors (Linux 6.18 does).
fn connection_number(described: &str) -> Option<u32> {
    let line = described.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    line.trim().parse().ok()
}

fn abort_in(control: &OwnedFd, number: u32) -> io::Result<()> {
    let path = CString::new(format!("{number}/abort")).expect("digits hold no NUL");
    // SAFETY: the path is NUL-terminated, the descriptor open.
    let fd = unsafe { libc::openat(control.as_raw_fd(), path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
    File::from(new_descriptor(fd.into())?).write_all(b"1")
}

/// A mount of the kernel's file system of connections that is attached nowhere.
fn unattached_control() -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: libc::c_long = 1;
    const COMMAND_CREATE: libc::c_long = 6;
    const NOTHING: *const libc::c_char = std::ptr::null();
    let kind: &CStr = c"fusectl";
    // SAFETY: the name is NUL-terminated.
    let context = new_descriptor(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOSE_ON_EXEC) })?;
    let raw = context.as_raw_fd();
    // SAFETY: this command takes neither key nor value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, raw, COMMAND_CREATE, NOTHING, NOTHING, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes no pointers.
    new_descriptor(unsafe { libc::syscall(libc::SYS_fsmount, raw, CLOSE_ON_EXEC, 0) })
}

/// The descriptor that a system call returned, or its error.
fn new_descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the calls above return new descriptors that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_among_the_other_lines() {
        let described = "pos:\t0\nflags:\t02100002\nmnt_id:\t24\nino:\t90\nfuse_connection:\t39\n";
        assert_eq!(connection_number(described), Some(39));
        assert_eq!(connection_number("pos:\t0\n"), None);
        assert_eq!(connection_number("fuse_connection:\tx\n"), None);
    }
}
