use std::io;
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
    #[error("{operation} of block {block} failed: {}", io::Error::from_raw_os_error(*.errno))]
    Io { operation: Operation, block: BlockNo, errno: i32 },
    #[error("{operation} of block {block} is beyond the end of the device ({blocks} blocks)")]
    OutOfRange { operation: Operation, block: BlockNo, blocks: u64 },
    #[error("the device was shut down")]
    ShutDown,
}
