//! What can go wrong with mounting and serving.

use crate::abi::{InitFlags, Opcode};
use crate::transport::UringUnavailable;
use std::io;
use std::path::PathBuf;

/// Why there is no session, or why it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("/dev/fuse cannot be opened: {0}; load the fuse module, or give access to the device")]
    NoDevice(#[source] io::Error),
    #[error("mount option {option} cannot have the value {value:?}: {reason}")]
    BadOption { option: &'static str, value: String, reason: &'static str },
    #[error("mounting on {} was refused: {source}", path.display())]
    Refused { path: PathBuf, source: io::Error },
    #[error("fusermount3 could not be started: {0}; install fuse3, or mount as root")]
    NoHelper(#[source] io::Error),
    #[error("fusermount3 did not mount on {}: {message}", path.display())]
    Helper { path: PathBuf, message: String },
    #[error("{} could not be unmounted: {source}", path.display())]
    Unmount { path: PathBuf, source: io::Error },
    #[error("the handshake with the kernel failed: {source}")]
    Handshake { source: io::Error },
    #[error("the connection does not begin with INIT but with {opcode:?}; it belongs to another session")]
    NotInit { opcode: Option<Opcode> },
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) is the oldest that is served")]
    KernelTooOld { major: u32, minor: u32 },
    #[error("the kernel lacks {missing:?}, which the filesystem needs")]
    Missing { missing: InitFlags },
    #[error("the filesystem refused to start: {0}")]
    Init(crate::Errno),
    #[error("io_uring was asked for but cannot be used: {0}")]
    NoUring(UringUnavailable),
    #[error("a thread could not be started: {0}")]
    Thread(#[source] io::Error),
    #[error("requests could not be received any longer: {0}")]
    Receive(#[source] io::Error),
}
