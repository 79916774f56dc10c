//! How an event loop learns that syncs have ended: one eventfd per loop, and no thread.
//!
//! A thread of the library that ends a sync adds the sync's token and writes to the eventfd. The loop watches the
//! eventfd like a socket and takes all tokens at once. The library's thread never waits for the interpreter.

use crate::error;
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the library's threads see of it.
pub(crate) struct Shared {
    event: OwnedFd,
    ended: Mutex<Vec<u64>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sync of this token has ended.
    pub(crate) fn tell(&self, token: u64) {
        self.lock().push(token);
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes that live through the call. It fails only when the counter is full, and then the event
        // is set.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Ends of syncs for one event loop.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct Wakeups {
    shared: Arc<Shared>,
}

impl Wakeups {
    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

#[pymethods]
impl Wakeups {
    /// Errors: `OSError`, if the process has no descriptor left.
    #[new]
    fn new() -> PyResult<Wakeups> {
        // SAFETY: no memory is passed.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(error::of(io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor that nobody else knows.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Wakeups { shared: Arc::new(Shared { event, ended: Mutex::default() }) })
    }

    /// The descriptor that is readable when there is something to take.
    fn fileno(&self) -> i32 {
        self.shared.event.as_raw_fd()
    }

    /// Tokens of the syncs that have ended since the last call.
    fn take(&self, py: Python<'_>) -> Vec<u64> {
        let shared = self.shared.clone();
        py.detach(move || {
            let mut count = [0u8; 8];
            // Before the list is taken: what comes later sets the event again.
            // SAFETY: eight bytes that live through the call. It fails if the event is not set, which does no harm.
            unsafe { libc::read(shared.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
            std::mem::take(&mut *shared.lock())
        })
    }
}
