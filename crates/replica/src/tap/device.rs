//! The device that the engine sees.

use super::{Acknowledge, Change, TapDevice};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, ReadRequest, Reading, Ticket};
use syncline_format::BlockNo;

impl Device for TapDevice {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read(at, into)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        self.below.read_many(requests)
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        self.below.submit_read(at, blocks)
    }

    fn read_blocks(&self, at: BlockNo, blocks: usize) -> Reading {
        self.below.read_blocks(at, blocks)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if let Err(refusal) = self.refusal() {
            return Ticket::completed(Err(refusal));
        }
        let kept = data.clone();
        let ticket = self.below.submit_write(at, data);
        self.note(at, Change::Written(kept), ticket.clone());
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        self.hold_up();
        if let Err(refusal) = self.refusal() {
            return Ticket::completed(Err(refusal));
        }
        let flush = self.mark();
        let ticket = self.below.submit_flush();
        self.issued(flush, &ticket);
        match self.acknowledge {
            Acknowledge::Local => ticket,
            Acknowledge::Remote => self.answer_later(flush, &ticket),
        }
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        if self.acknowledge == Acknowledge::Local {
            return self.below.wait(ticket);
        }
        let below = self.state.lock().answers.below(ticket);
        let Some(below) = below else {
            return ticket.result().unwrap_or_else(|| self.below.wait(ticket));
        };
        // Its error is the answer's.
        let _ = self.below.wait(&below);
        self.tell();
        let mut state = self.state.lock();
        loop {
            match ticket.result() {
                Some(result) => return result,
                None => self.answered.wait(&mut state),
            }
        }
    }

    fn poll(&self) {
        self.below.poll();
        if self.acknowledge == Acknowledge::Remote {
            self.tell();
        }
    }

    fn write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        self.refusal()?;
        let kept = data.clone();
        let result = self.below.write(at, data);
        self.note(at, Change::Written(kept), Ticket::completed(result.clone()));
        result
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.acknowledge == Acknowledge::Remote {
            let ticket = self.submit_flush();
            return self.wait(&ticket);
        }
        self.hold_up();
        self.refusal()?;
        self.flush_below()
    }

    /// Noted behind its end: nobody writes to these blocks before it.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        let result = self.below.discard(at, blocks);
        if result.is_ok() {
            self.note(at, Change::Discarded(blocks), Ticket::completed(Ok(())));
        }
        result
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        self.below.discard_blocks_min()
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        self.below.hole(at)
    }

    fn bulk_bytes_max(&self) -> u64 {
        self.below.bulk_bytes_max()
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
}
