//! A device whose requests complete when the test says so.

use parking_lot::Mutex;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Requests stay in flight until [`Slow::complete`].
pub struct Slow {
    pub inner: MemoryDevice,
    pub pending: Mutex<Vec<Ticket>>,
}

impl Slow {
    pub fn new() -> Arc<Slow> {
        Arc::new(Slow { inner: MemoryDevice::new(64), pending: Mutex::default() })
    }

    /// Completes the request with this number, counted from those that are in flight.
    pub fn complete(&self, number: usize, result: Result<(), DeviceError>) {
        self.pending.lock().remove(number).complete(result);
    }

    fn submit(&self) -> Ticket {
        let ticket = Ticket::pending();
        self.pending.lock().push(ticket.clone());
        ticket
    }
}

impl Device for Slow {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.inner.write(at, data).expect("memory");
        self.submit()
    }

    fn submit_flush(&self) -> Ticket {
        self.submit()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("these tests wait for what is complete only")
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.inner.discard(at, blocks)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

pub fn page(byte: u8) -> Vec<Arc<Buffer>> {
    vec![Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))]
}
