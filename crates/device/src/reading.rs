//! [`Reading`]: a read in flight that owns the memory it fills; [`Block`]: what it brought.

use crate::{Buffer, DeviceError, Ticket};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use syncline_format::BLOCK_BYTES;

/// Consecutive blocks on their way into memory. Dropping it cancels nothing; the device keeps the memory for as long
/// as it needs it.
#[derive(Debug)]
pub struct Reading {
    ticket: Ticket,
    blocks: usize,
    memory: Memory,
}

/// Buffers of one block or more each.
#[derive(Debug)]
enum Memory {
    /// The device fills it.
    Here(Vec<Arc<Buffer>>),
    /// The device hands it over before it completes the ticket.
    Later(Arc<OnceLock<Vec<Arc<Buffer>>>>),
}

/// One block that was read. It may lie in memory that it shares with others, which are kept as long as it is.
#[derive(Debug, Clone)]
pub struct Block {
    memory: Arc<Buffer>,
    start: usize,
}

impl Reading {
    /// For devices: `blocks` blocks, which lie in `memory` one after another when the ticket is complete.
    pub fn new(ticket: Ticket, blocks: usize, memory: Vec<Arc<Buffer>>) -> Reading {
        Reading { ticket, blocks, memory: Memory::Here(memory) }
    }

    /// For devices whose memory is there when it is filled, and not before: they set it, and then complete the ticket.
    pub fn later(ticket: Ticket, blocks: usize, memory: Arc<OnceLock<Vec<Arc<Buffer>>>>) -> Reading {
        Reading { ticket, blocks, memory: Memory::Later(memory) }
    }

    /// A read that has ended: of so many blocks, into the first of the memory.
    pub fn ended(result: Result<(), DeviceError>, blocks: usize, memory: Buffer) -> Reading {
        Reading::new(Ticket::completed(result), blocks, vec![Arc::new(memory)])
    }

    /// A read that never began.
    pub fn failed(error: DeviceError) -> Reading {
        Reading::new(Ticket::completed(Err(error)), 0, Vec::new())
    }

    /// To wait for.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The blocks, in order, or the error. The ticket must be complete: nobody sees memory that is being filled.
    pub fn into_blocks(self) -> Result<impl Iterator<Item = Block>, DeviceError> {
        self.ticket.result().expect("a read is over before its blocks are taken")?;
        let memory = match self.memory {
            Memory::Here(memory) => memory,
            Memory::Later(memory) => {
                memory.get().cloned().expect("what was read is there when the read is over")
            }
        };
        let blocks = memory.into_iter().flat_map(|memory| {
            let starts = (0..memory.len()).step_by(BLOCK_BYTES);
            starts.map(move |start| Block { memory: memory.clone(), start })
        });
        Ok(blocks.take(self.blocks))
    }
}

impl Block {
    /// The block in memory of its own; copied if others share it.
    pub fn into_buffer(self) -> Arc<Buffer> {
        match self.memory.len() {
            BLOCK_BYTES => self.memory,
            _ => Arc::new(Buffer::from_bytes(&self)),
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + BLOCK_BYTES]
    }
}

impl From<Arc<Buffer>> for Block {
    /// Of a buffer of one block.
    fn from(memory: Arc<Buffer>) -> Block {
        Block { memory, start: 0 }
    }
}
