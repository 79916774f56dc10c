//! The kernel's interface, version 7.45 (Linux 6.18), as it lies in memory.
//!
//! Nothing here interprets: structures with their sizes checked at compile time, numbers and flags. Unknown flags and
//! operation codes are kept, so that a newer kernel is no reason to fail.

mod bits;
mod flags;
mod notifications;
mod opcode;
mod replies;
mod requests;
pub mod uring;

pub use flags::*;
pub use notifications::*;
pub use opcode::Opcode;
pub use replies::*;
pub use requests::*;

/// Major version; there is no other.
pub const MAJOR: u32 = 7;
/// Newest minor version that this crate knows (Linux 6.18).
pub const MINOR: u32 = 45;
/// Oldest minor version that it serves (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// Smallest buffer with which the kernel lets /dev/fuse be read.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;
/// Set in the number of a request that is sent again after [`NotifyCode::RESEND`].
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Most pieces of memory in an IOCTL retry.
pub const IOCTL_IOVECS_MAX: usize = 256;
/// `ioctl` on /dev/fuse: makes the descriptor a further one of the connection whose descriptor is the argument.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;
