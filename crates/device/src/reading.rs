//! [`Reading`]: a read in flight that owns the memory it fills.

use crate::{Buffer, DeviceError, Ticket};
use std::sync::Arc;

/// Consecutive blocks on their way into one-block buffers. Dropping it cancels nothing; the device keeps the memory for as
/// long as it needs it.
#[derive(Debug)]
pub struct Reading {
    ticket: Ticket,
    blocks: Vec<Arc<Buffer>>,
}

impl Reading {
    pub(crate) fn new(ticket: Ticket, blocks: Vec<Arc<Buffer>>) -> Reading {
        Reading { ticket, blocks }
    }

    /// A read that never began.
    pub(crate) fn failed(error: DeviceError) -> Reading {
        Reading { ticket: Ticket::completed(Err(error)), blocks: Vec::new() }
    }

    /// To wait for.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The blocks, one buffer each, or the error. The ticket must be complete: nobody sees memory that is being filled.
    pub fn into_blocks(self) -> Result<Vec<Arc<Buffer>>, DeviceError> {
        self.ticket.result().expect("a read is over before its blocks are taken")?;
        Ok(self.blocks)
    }
}
