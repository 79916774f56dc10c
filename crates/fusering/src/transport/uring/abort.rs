//! Ending a connection by force, for when a queue can no longer be served.
//!
//! The kernel does not notice that a queue's thread is gone while the process lives: requests of that CPU would wait for
//! ever. After an abort they fail with ECONNABORTED, later ones with ENOTCONN.

use crate::transport::connection::Connection;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Makes the kernel fail all requests of `connection`, open ones and later ones.
pub(super) fn abort_connection(connection: &Connection) -> io::Result<()> {
    let fd = connection.as_fd().as_raw_fd();
    let described = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let number = connection_number(&described).ok_or(io::ErrorKind::Unsupported)?;
    std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1")
}

/// The connection's number, which the kernel tells in the description of its descriptors since 6.16.
fn connection_number(described: &str) -> Option<u32> {
    let line = described.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
    line.trim().parse().ok()
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
