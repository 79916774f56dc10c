//! A device in memory that forgets what was not flushed, holds its writes and flushes back while it is closed, fails
//! flushes or writes on demand, and counts flushes.
#![allow(dead_code)] // Each test program uses a part of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use syncline_device::{Buffer, Device, DeviceError, Layer, MemoryDevice, Operation, Ticket, Volatile};
use syncline_format::BlockNo;
use syncline_fs::{Fs, MkfsOptions, SystemClock, SystemEntropy};

enum Request {
    Write(BlockNo, Vec<Arc<Buffer>>),
    Flush,
}

#[derive(Default)]
struct State {
    closed: bool,
    held: Vec<(Request, Ticket)>,
}

pub struct Gate {
    memory: Arc<MemoryDevice>,
    inner: Volatile,
    state: Mutex<State>,
    opened: Condvar,
    flushes: AtomicU64,
    fails: AtomicBool,
    fails_writes: AtomicBool,
}

/// Keeps a gate closed.
pub struct Closed(Arc<Gate>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.open();
    }
}

impl Gate {
    /// With an empty volume on it.
    pub fn new(bytes: u64) -> Arc<Gate> {
        let memory = MemoryDevice::new(bytes / 4096);
        let entropy = SystemEntropy::default();
        Fs::format(&memory, &MkfsOptions::default(), &SystemClock, &entropy, &mut |_, _| {}).expect("mkfs");
        Gate::over(memory)
    }

    fn over(memory: MemoryDevice) -> Arc<Gate> {
        let memory = Arc::new(memory);
        Arc::new(Gate {
            inner: Volatile::new(memory.clone()),
            memory,
            state: Mutex::default(),
            opened: Condvar::new(),
            flushes: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            fails_writes: AtomicBool::new(false),
        })
    }

    /// From now on nothing completes, until what is returned is dropped.
    #[must_use]
    pub fn close(self: &Arc<Gate>) -> Closed {
        self.state.lock().expect("no panic").closed = true;
        Closed(self.clone())
    }

    /// Carries out what was held back.
    fn open(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.closed = false;
        for (request, ticket) in std::mem::take(&mut state.held) {
            ticket.complete(self.carry_out(request));
        }
        self.opened.notify_all();
    }

    /// Requests that wait for it to be opened.
    pub fn held(&self) -> usize {
        self.state.lock().expect("no panic").held.len()
    }

    pub fn fail_flushes(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    pub fn fail_writes(&self) {
        self.fails_writes.store(true, Ordering::SeqCst);
    }

    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// Whether these bytes, which begin with `<`, are anywhere on the device, durable or not: flushes first.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.inner.flush().expect("a sound device");
        let all = self.memory.to_bytes();
        all.split(|byte| *byte == b'<').skip(1).any(|part| part.starts_with(&bytes[1..]))
    }

    /// What a power cut now would leave.
    pub fn after_power_cut(&self) -> Arc<Gate> {
        Gate::over(MemoryDevice::from_bytes(self.memory.to_bytes()))
    }

    fn carry_out(&self, request: Request) -> Result<(), DeviceError> {
        match request {
            Request::Write(at, _) if self.fails_writes.load(Ordering::SeqCst) => {
                Err(DeviceError::Io { operation: Operation::Write, block: at, errno: 5 })
            }
            Request::Write(at, data) => self.inner.write(at, data),
            Request::Flush if self.fails.load(Ordering::SeqCst) => {
                Err(DeviceError::Io { operation: Operation::Flush, block: BlockNo(0), errno: 5 })
            }
            Request::Flush => self.inner.flush(),
        }
    }

    fn submit(&self, request: Request) -> Ticket {
        let mut state = self.state.lock().expect("no panic");
        if let Request::Flush = request {
            self.flushes.fetch_add(1, Ordering::SeqCst);
        }
        if state.closed {
            let ticket = Ticket::pending();
            state.held.push((request, ticket.clone()));
            return ticket;
        }
        Ticket::completed(self.carry_out(request))
    }
}

impl Layer for Gate {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.submit(Request::Write(at, data))
    }

    fn on_flush(&self) -> Ticket {
        self.submit(Request::Flush)
    }

    fn on_wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        let mut state = self.state.lock().expect("no panic");
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            state = self.opened.wait(state).expect("no panic");
        }
    }
}
