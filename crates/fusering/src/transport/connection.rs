//! The descriptor of a FUSE connection.

use crate::abi::DEV_IOC_CLONE;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An open /dev/fuse that belongs to a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
}

/// Whether requests wait on a connection, or whether it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Quiet,
    Waiting,
    Ended,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd) -> Connection {
        Connection { fd }
    }

    /// A further descriptor of the same connection with a queue of its own for requests being worked on.
    pub(crate) fn clone_device(&self) -> io::Result<Connection> {
        let fd = open_device()?;
        let mut source = self.fd.as_raw_fd() as u32;
        // SAFETY: both descriptors are open; the argument points to a valid u32.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), DEV_IOC_CLONE as libc::c_ulong, &raw mut source) };
        if result == 0 { Ok(Connection { fd }) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads one request.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: `into` is valid for writes of its length.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
        if read >= 0 { Ok(read as usize) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes one answer or notification, which the kernel takes whole or not at all.
    pub(crate) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        // SAFETY: `IoSlice` is laid out as iovec, and the slices are valid for reads.
        let written =
            unsafe { libc::writev(self.fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as libc::c_int) };
        if written >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Looks without blocking.
    pub(crate) fn state(&self) -> ConnectionState {
        self.poll(0)
    }

    /// Waits until a request can be read or the connection has ended.
    pub(crate) fn wait_readable(&self) {
        self.poll(-1);
    }

    fn poll(&self, timeout_ms: i32) -> ConnectionState {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one valid pollfd.
        let ready = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
        if ready <= 0 {
            ConnectionState::Quiet
        } else if poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
            ConnectionState::Ended
        } else {
            ConnectionState::Waiting
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens /dev/fuse.
pub(crate) fn open_device() -> io::Result<OwnedFd> {
    // SAFETY: the path is a NUL-terminated constant.
    let fd = unsafe { libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
