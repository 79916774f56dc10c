//! A [`Device`](syncline_device::Device) on an export of an NBD server, by TCP or a Unix socket.
//!
//! What is spoken is the fixed newstyle handshake and simple replies of
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>, on one connection. No TLS: a tunnel has that.
//!
//! Rules:
//! - a connection that breaks, or a server that breaks the protocol, fails the device for good (contract C8): nobody
//!   knows whether the server has lost what was not flushed, so nothing is sent again;
//! - a server without `FLUSH` keeps no promise, so a volume is written to none;
//! - what a server says is never believed further than memory for one request of our own: lengths are compared
//!   before anything is allocated, and cookies are looked up;
//! - NBD keeps no second machine from an export (C9). On one machine one process writes to it ([`lock`]).
//!
//! There is one thread, which receives. It starts with the first request, so that a daemon gives up its rights before.
#![forbid(unsafe_code)]

mod address;
mod device;
mod error;
mod handshake;
mod link;
mod lock;
mod stream;
mod wire;

pub use address::{Address, Place};
pub use device::NbdDevice;
pub use error::NbdError;

#[cfg(test)]
mod tests;
