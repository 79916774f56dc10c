//! Mounting more of a volume that a daemon has mounted already: another head, or a snapshot.
//!
//! One process has a volume. So whoever mounts a second head of it mounts for the daemon that has the volume: makes the
//! mount, and hands the connection to the kernel over to the daemon, which serves it on threads of its own. The two
//! talk by a socket in the abstract namespace whose name says which file or device the volume is in.
//!
//! Anybody may take such a name. So each side looks who the other one is: the daemon lets root and its own user join,
//! and whoever joins trusts root's daemon and its own. A daemon in another network namespace is not found.
//!
//! A message is its length and its fields, with NUL between them. What is asked is one message, and each answer is one:
//!
//! | asked | answers |
//! |---|---|
//! | `here`, version | `here`, at once; any other answer says as much |
//! | `mount`, version, directory, options | `ready`; then the connection is sent; `live` and the transport |
//! | `wait`, version, directory | `gone`, when all that was mounted there is written |
//!
//! An answer `no` carries a sentence that says why. The daemon closes the socket when the mount has ended.
//!
//! A daemon that stands still has its name all the same. Who takes the volume over from it gets the next name, so of
//! the daemons that are found the last one is meant. Which of them the volume obeys is not decided here: that the
//! device's lock does.

mod client;
mod daemon;
mod wire;

pub(crate) use client::{Joined, join, serves, silent, wait_for};
pub(crate) use daemon::listen;

use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use syncline_format::checksum;

/// Of what is said here. Daemon and command of different versions do not understand each other.
const VERSION: &[u8] = b"1";
/// Names of a volume's daemons. Of several at a time each but the last was taken over from.
const DAEMONS_MAX: u32 = 8;

const HERE: &[u8] = b"here";
const MOUNT: &[u8] = b"mount";
const WAIT: &[u8] = b"wait";
const READY: &[u8] = b"ready";
const LIVE: &[u8] = b"live";
const GONE: &[u8] = b"gone";
/// The last mount has ended, and its volume could not be closed; why.
const FAILED: &[u8] = b"failed";
const NO: &[u8] = b"no";

/// Where a daemon of a volume listens: the one with this number, from 0 on.
fn address(source: &Path, number: u32) -> io::Result<SocketAddr> {
    let name = name(source)?;
    SocketAddr::from_abstract_name(if number == 0 { name } else { format!("{name}/{number}") })
}

fn name(source: &Path) -> io::Result<String> {
    if syncline_source::is_address(source) {
        // A name there has some hundred bytes at most.
        let text = source.as_os_str().as_bytes();
        let turned: Vec<u8> = text.iter().rev().copied().collect();
        return Ok(format!("syncline/address/{:016x}{:016x}", checksum(text), checksum(&turned)));
    }
    let metadata = std::fs::metadata(source)?;
    Ok(match metadata.file_type().is_block_device() {
        true => format!("syncline/device/{}", metadata.st_rdev()),
        false => format!("syncline/image/{}/{}", metadata.st_dev(), metadata.st_ino()),
    })
}

/// Whether a peer is root or has this process's user.
fn is_trusted(user: u32) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    user == 0 || user == unsafe { libc::geteuid() }
}
