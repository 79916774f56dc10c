//! Kinds of requests that decide where a transport serves them.
//!
//! A *stream* is the large reads that the kernel reads ahead with, while its caller goes on. Both transports serve
//! them on another CPU than their caller's if they can: what is copied there is not copied in the caller's time.
//!
//! A *sync* is whatever is answered once the device has it.

use crate::abi::{InHeader, Opcode, ReadIn, WriteIn};
use zerocopy::FromBytes;

/// A read of so many bytes is part of a stream.
pub(super) const STREAMING_BYTES_MIN: usize = 128 << 10;

/// Whether a request is one of those that the kernel reads ahead with. `op` begins with its operation's header.
pub(super) fn is_streaming(header: &InHeader, op: &[u8]) -> bool {
    header.opcode == Opcode::READ
        && ReadIn::read_from_prefix(op).is_ok_and(|(read, _)| read.size as usize >= STREAMING_BYTES_MIN)
}

/// Whether its caller waits for the device. `op` begins with its operation's header.
pub(super) fn is_sync(header: &InHeader, op: &[u8]) -> bool {
    match header.opcode {
        Opcode::FSYNC | Opcode::FSYNCDIR | Opcode::SYNCFS => true,
        Opcode::WRITE => WriteIn::read_from_prefix(op)
            .is_ok_and(|(write, _)| write.flags & (libc::O_SYNC | libc::O_DSYNC) as u32 != 0),
        _ => false,
    }
}
