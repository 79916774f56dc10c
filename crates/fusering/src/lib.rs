//! FUSE filesystems in Rust, over /dev/fuse and over io_uring.

pub mod abi;
mod errno;
mod memory;
mod reply;
mod session;
mod transport;

pub use errno::Errno;
pub use session::UringSettings;
pub use transport::{TransportKind, UringUnavailable};
