//! FUSE over io_uring: a pinned thread and a queue for each possible CPU.
//!
//! Two steps, because the kernel holds all requests back from the moment INIT's answer agrees on io_uring until every
//! queue has an entry: what can fail is done in [`prepare`], before INIT is answered.

use super::connection::Connection;
use super::{Handler, Transport, UringUnavailable};
use crate::errno::Errno;
use crate::session::UringSettings;
use std::sync::Arc;

/// Rings, buffers and threads that wait for a connection.
pub(crate) struct Prepared {
    connection_less: std::convert::Infallible,
}

/// Makes rings and buffers. `payload_bytes`: what one request or answer takes at most (a whole number of pages).
pub(crate) fn prepare(_settings: &UringSettings, _payload_bytes: usize) -> Result<Prepared, UringUnavailable> {
    Err(UringUnavailable::Ring { step: "making a ring", errno: Errno::ENOSYS })
}

impl Prepared {
    /// Registers all entries; INIT has been answered. On an error nothing of it runs any more, and the kernel sends
    /// everything to /dev/fuse.
    pub(crate) fn start(
        self,
        _connection: Arc<Connection>,
        _handler: Arc<dyn Handler>,
    ) -> Result<Box<dyn Transport>, UringUnavailable> {
        match self.connection_less {}
    }
}
