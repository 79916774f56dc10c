use super::*;
use crate::{Layer, MemoryDevice};
use parking_lot::Condvar;

fn page(byte: u8) -> Arc<Buffer> {
    Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
}

fn first_byte(device: &dyn Device, block: u64) -> u8 {
    let mut bytes = [0; BLOCK_BYTES];
    device.read(BlockNo(block), &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == bytes[0]), "block {block} is torn");
    bytes[0]
}

#[test]
fn unflushed_write_is_read_back_but_lost_with_the_wrapper() {
    let inner = Arc::new(MemoryDevice::new(16));
    let device = Volatile::new(inner.clone());
    device.write(BlockNo(3), vec![page(1), page(2)]).unwrap();
    device.flush().unwrap();
    device.write(BlockNo(4), vec![page(3), page(4)]).unwrap();
    assert_eq!([first_byte(&device, 3), first_byte(&device, 4), first_byte(&device, 5)], [1, 3, 4]);
    assert_eq!(device.unflushed_blocks(), 2);
    drop(device);
    assert_eq!([first_byte(&*inner, 3), first_byte(&*inner, 4), first_byte(&*inner, 5)], [1, 2, 0]);
}

#[test]
fn flush_carries_consecutive_blocks_as_one_write() {
    let inner = Arc::new(MemoryDevice::new(1024));
    let device = Volatile::new(inner.clone());
    let triple =
        Arc::new(Buffer::from_bytes(&[[5; BLOCK_BYTES], [6; BLOCK_BYTES], [7; BLOCK_BYTES]].concat()));
    device.write(BlockNo(10), vec![triple]).unwrap();
    device.write(BlockNo(11), vec![page(9)]).unwrap();
    device.write(BlockNo(100), vec![page(1)]).unwrap();
    device.flush().unwrap();
    assert_eq!([10, 11, 12, 100].map(|block| first_byte(&*inner, block)), [5, 9, 7, 1]);
    assert_eq!(inner.counters().writes, 2);
    assert_eq!(inner.counters().flushes, 1);
    assert_eq!(device.unflushed_blocks(), 0);
}

/// An inner device whose flush waits until it is let go, and that can be told to fail.
struct Gate {
    inner: MemoryDevice,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: bool,
    fail_writes: bool,
}

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::new(Gate { inner: MemoryDevice::new(64), state: Mutex::default(), changed: Condvar::new() })
    }

    fn set(&self, change: impl FnOnce(&mut GateState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl Layer for Gate {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if self.state.lock().fail_writes {
            let error = DeviceError::Io { operation: Operation::Write, block: at, errno: libc::EIO };
            return Ticket::completed(Err(error));
        }
        self.inner.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        let mut state = self.state.lock();
        state.waiting = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.closed);
        state.waiting = false;
        self.inner.submit_flush()
    }
}

#[test]
fn write_issued_after_the_flush_started_is_not_covered() {
    let gate = Gate::new();
    gate.set(|state| state.closed = true);
    let device = Volatile::new(gate.clone());
    device.write(BlockNo(1), vec![page(1)]).unwrap();
    device.write(BlockNo(2), vec![page(1)]).unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| device.flush());
        gate.changed.wait_while(&mut gate.state.lock(), |state| !state.waiting);
        device.write(BlockNo(2), vec![page(2)]).unwrap();
        device.write(BlockNo(3), vec![page(2)]).unwrap();
        assert_eq!([1, 2, 3].map(|block| first_byte(&device, block)), [1, 2, 2]);
        gate.set(|state| state.closed = false);
        flush.join().unwrap().unwrap();
    });
    assert_eq!([1, 2, 3].map(|block| first_byte(&device, block)), [1, 2, 2]);
    assert_eq!(device.unflushed_blocks(), 2);
    drop(device);
    assert_eq!([1, 2, 3].map(|block| first_byte(&*gate, block)), [1, 1, 0]);
}

#[test]
fn failed_flush_reports_the_error_and_loses_nothing_that_was_written() {
    let gate = Gate::new();
    let device = Volatile::new(gate.clone());
    device.write(BlockNo(1), vec![page(1)]).unwrap();
    device.write(BlockNo(2), vec![page(1)]).unwrap();
    gate.set(|state| state.fail_writes = true);
    assert!(matches!(device.flush(), Err(DeviceError::Io { operation: Operation::Write, .. })));
    device.write(BlockNo(2), vec![page(2)]).unwrap();
    assert_eq!([1, 2].map(|block| first_byte(&device, block)), [1, 2]);
    assert_eq!(device.unflushed_blocks(), 2);
    gate.set(|state| state.fail_writes = false);
    device.flush().unwrap();
    assert_eq!([1, 2].map(|block| first_byte(&*gate, block)), [1, 2]);
}

#[test]
fn discard_forgets_unflushed_content() {
    let inner = Arc::new(MemoryDevice::new(16));
    let device = Volatile::new(inner.clone());
    device.write(BlockNo(3), vec![page(1), page(2), page(3)]).unwrap();
    device.discard(BlockNo(4), 1).unwrap();
    device.flush().unwrap();
    assert_eq!([3, 4, 5].map(|block| first_byte(&*inner, block)), [1, 0, 3]);
}

#[test]
fn reads_during_flushes_never_go_back_in_time() {
    let device = Arc::new(Volatile::new(Arc::new(MemoryDevice::new(8))));
    let flushed = Arc::downgrade(&device);
    // Ends with the test, also when that fails: then the device is gone.
    let flusher = std::thread::spawn(move || {
        while let Some(device) = flushed.upgrade() {
            device.flush().unwrap();
        }
    });
    for round in 0..20_000u32 {
        let byte = (round % 251) as u8;
        device.write(BlockNo(2), vec![page(byte)]).unwrap();
        assert_eq!(first_byte(&*device, 2), byte);
    }
    drop(device);
    flusher.join().unwrap();
}

#[test]
fn requests_beyond_the_end_are_refused() {
    let device = Volatile::new(Arc::new(MemoryDevice::new(4)));
    assert!(matches!(device.write(BlockNo(4), vec![page(1)]), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(device.read(BlockNo(4), &mut [0; BLOCK_BYTES]), Err(DeviceError::OutOfRange { .. })));
    assert_eq!(device.unflushed_blocks(), 0);
}
