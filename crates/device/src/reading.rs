//! [`Reading`]: a read in flight that owns the memory it fills.

use crate::{Buffer, DeviceError, Ticket};
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;

/// Consecutive blocks on their way into memory. Dropping it cancels nothing; the device keeps the memory for as long as it
/// needs it.
#[derive(Debug)]
pub struct Reading {
    ticket: Ticket,
    blocks: usize,
    /// Of one block or more each.
    memory: Vec<Arc<Buffer>>,
}

impl Reading {
    pub(crate) fn new(ticket: Ticket, blocks: usize, memory: Vec<Arc<Buffer>>) -> Reading {
        Reading { ticket, blocks, memory }
    }

    /// A read that never began.
    pub(crate) fn failed(error: DeviceError) -> Reading {
        Reading::new(Ticket::completed(Err(error)), 0, Vec::new())
    }

    /// To wait for.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The blocks, one buffer each, or the error. The ticket must be complete: nobody sees memory that is being filled.
    pub fn into_blocks(self) -> Result<Vec<Arc<Buffer>>, DeviceError> {
        self.into_verified_blocks(|_, _| Ok(()))
    }

    /// The same, after `verify` has seen each block (its place in the read, its content) and found nothing wrong.
    pub fn into_verified_blocks<E: From<DeviceError>>(
        self,
        mut verify: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<Vec<Arc<Buffer>>, E> {
        self.ticket.result().expect("a read is over before its blocks are taken")?;
        let mut blocks = Vec::with_capacity(self.blocks);
        for buffer in self.memory {
            if buffer.len() == BLOCK_BYTES {
                verify(blocks.len(), &buffer)?;
                blocks.push(buffer);
                continue;
            }
            // Copied while the check has it in the processor's cache.
            for bytes in buffer.chunks_exact(BLOCK_BYTES).take(self.blocks - blocks.len()) {
                verify(blocks.len(), bytes)?;
                blocks.push(Arc::new(Buffer::from_bytes(bytes)));
            }
        }
        Ok(blocks)
    }
}
