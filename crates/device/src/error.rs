//! Errors of devices: one for requests, which every waiter may clone, and one for opening.

use std::io;
use std::path::PathBuf;
use syncline_format::BlockNo;

/// What a device was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Flush,
    Discard,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
        })
    }
}

/// An I/O error of a device. Cheap to clone, since every waiter of a failed request is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// `block` is the first block of the request; a flush has none, and names block 0.
    #[error("{}: {}", failed(*.operation, *.block), io::Error::from_raw_os_error(*.errno))]
    Io { operation: Operation, block: BlockNo, errno: i32 },
    #[error("{operation} of block {block} is beyond the end of the device ({blocks} blocks)")]
    OutOfRange { operation: Operation, block: BlockNo, blocks: u64 },
    #[error("the device was shut down")]
    ShutDown,
    /// Another machine writes to this volume from now on, or its replica cannot say that it does not.
    #[error("{0}")]
    Fenced(std::sync::Arc<str>),
    /// What is read is on another machine still; its own sentence.
    #[error("{0}")]
    Remote(std::sync::Arc<str>),
    #[error(transparent)]
    Forked(#[from] crate::Forked),
}

fn failed(operation: Operation, block: BlockNo) -> String {
    match operation {
        Operation::Flush => "flush failed".to_owned(),
        _ => format!("{operation} of block {block} failed"),
    }
}

/// Which step of opening a device failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenStep {
    Open,
    Create,
    Inspect,
    Lock,
    Resize,
    Read,
}

impl std::fmt::Display for OpenStep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OpenStep::Open => "open",
            OpenStep::Create => "create",
            OpenStep::Inspect => "inspect",
            OpenStep::Lock => "lock",
            OpenStep::Resize => "resize",
            OpenStep::Read => "read",
        })
    }
}

/// Why a device could not be opened. Each is one sentence that says what to do where something can be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{} is in use by another process (a mount?); unmount it first", .path.display())]
    Locked { path: PathBuf },
    #[error(
        "{} is locked by {} that reads it; wait until that has ended, and if it may be anybody's, let only its owner read the image \
         (chmod 600)",
        .path.display(), .process.map_or("another process".to_owned(), |process| format!("process {process}"))
    )]
    ReadLocked { path: PathBuf, process: Option<i32> },
    #[error("{} is mounted on {}; unmount it first", .path.display(), .on.display())]
    Mounted { path: PathBuf, on: PathBuf },
    #[error("{} is claimed by the kernel (swap, RAID, LVM, encryption?); release it first", .path.display())]
    Claimed { path: PathBuf },
    #[error("{} is the file behind {}, which is in use; unmount that first", .path.display(), .device.display())]
    BehindLoopDevice { path: PathBuf, device: PathBuf },
    #[error(
        "{} shows the same file as {}, which is in use; unmount that first",
        .path.display(), .device.display()
    )]
    SameFile { path: PathBuf, device: PathBuf },
    #[error(
        "{} cannot be opened for writing ({}); make it writable or use it read-only",
        .path.display(), io::Error::from_raw_os_error(*.errno)
    )]
    NotWritable { path: PathBuf, errno: i32 },
    #[error("{} is neither a regular file nor a block device; give the path of an image or a device", .path.display())]
    WrongType { path: PathBuf },
    #[error("{} is a block device, whose size cannot be changed; use it as it is", .path.display())]
    FixedSize { path: PathBuf },
    #[error(transparent)]
    Forked(#[from] crate::Forked),
    #[error(
        "{} leads over {}, a symbolic link of another user (number {owner}); give the path that it stands for",
        .path.display(), .link.display()
    )]
    ForeignLink { path: PathBuf, link: PathBuf, owner: u32 },
    /// A device that is reached by a network, or would be: what its crate says of it.
    #[error("{sentence}")]
    Remote { sentence: std::sync::Arc<str>, errno: i32 },
    #[error(
        "{} has no lock that could be taken over: leave \"take over\" away, or name an image of Ceph (rbd:POOL/IMAGE)",
        .path.display()
    )]
    NothingToTakeOver { path: PathBuf },
    #[error("cannot {step} {}: {}", .path.display(), io::Error::from_raw_os_error(*.errno))]
    Io { step: OpenStep, path: PathBuf, errno: i32 },
}

impl OpenError {
    /// The errno that a foreign interface reports for this error.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::Locked { .. }
            | OpenError::ReadLocked { .. }
            | OpenError::Mounted { .. }
            | OpenError::Claimed { .. }
            | OpenError::SameFile { .. }
            | OpenError::BehindLoopDevice { .. } => libc::EBUSY,
            OpenError::WrongType { .. } => libc::ENOTBLK,
            OpenError::Forked(_) => libc::ESTALE,
            OpenError::FixedSize { .. } | OpenError::NothingToTakeOver { .. } => libc::EINVAL,
            OpenError::ForeignLink { .. } => libc::ELOOP,
            OpenError::NotWritable { errno, .. }
            | OpenError::Remote { errno, .. }
            | OpenError::Io { errno, .. } => *errno,
        }
    }
}
