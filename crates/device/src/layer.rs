//! [`Layer`]: a device over another one that passes on what it has nothing to say about.
//!
//! Wrappers that observe, hold back or fail some kind of request differ in that kind only; the rest is the same for
//! all of them.

use crate::{Buffer, Device, DeviceCounters, DeviceError, Ticket};
use std::ops::Range;
use std::sync::Arc;
use syncline_format::BlockNo;

/// What a wrapper does with each kind of request: passes it on, unless it says otherwise.
pub trait Layer: Send + Sync + 'static {
    fn below(&self) -> &dyn Device;

    fn on_read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.below().read(at, into)
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.below().submit_write(at, data)
    }

    /// A write that its caller waits for.
    fn on_blocking_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        let ticket = self.on_write(at, data);
        self.on_wait(&ticket)
    }

    /// Every flush, waited for or not.
    fn on_flush(&self) -> Ticket {
        self.below().submit_flush()
    }

    fn on_wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.below().wait(ticket)
    }

    fn on_discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.below().discard(at, blocks)
    }

    /// What it knows to be a hole.
    fn first_hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        self.below().hole(at)
    }

    /// What it says to who asks for the shortest discard.
    fn least_discard(&self) -> Option<u64> {
        self.below().discard_blocks_min()
    }
}

impl<L: Layer> Device for L {
    fn blocks(&self) -> u64 {
        self.below().blocks()
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        self.first_hole(at)
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.on_read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.on_write(at, data)
    }

    fn submit_flush(&self) -> Ticket {
        self.on_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.on_wait(ticket)
    }

    fn poll(&self) {
        self.below().poll();
    }

    fn write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        self.on_blocking_write(at, data)
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.on_discard(at, blocks)
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        self.least_discard()
    }

    fn bulk_bytes_max(&self) -> u64 {
        self.below().bulk_bytes_max()
    }

    fn counters(&self) -> DeviceCounters {
        self.below().counters()
    }
}
