//! A device that counts what it is asked for, so that work without end is found by its amount and not by the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Ticket};
use syncline_format::BlockNo;

/// Requests of one session or one check, at most: several for each block of the largest base.
const STEPS_MAX: u64 = 400_000;

/// Panics behind the last step.
pub struct Steps {
    inner: Arc<MemoryDevice>,
    steps: AtomicU64,
}

impl Steps {
    pub fn new(inner: Arc<MemoryDevice>) -> Steps {
        Steps { inner, steps: AtomicU64::new(0) }
    }

    pub fn over(inner: Arc<MemoryDevice>) -> Arc<dyn Device> {
        Arc::new(Steps::new(inner))
    }

    fn step(&self) {
        let steps = self.steps.fetch_add(1, Ordering::Relaxed);
        assert!(steps < STEPS_MAX, "{steps} requests and no end");
    }
}

impl Layer for Steps {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.step();
        self.inner.read(at, into)
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.step();
        self.inner.submit_write(at, data)
    }
}
