//! Syncs that are on their way.

use crate::arguments;
use crate::error;
use crate::wakeups::{Shared, Wakeups};
use pyo3::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

/// Who is to be told of a sync's end.
#[derive(Default)]
struct Listeners {
    waiting: Mutex<Vec<(Arc<Shared>, u64)>>,
}

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<Shared>, u64)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Listeners {
    /// Runs on a thread of the library, which must not wait for the interpreter.
    fn wake(self: Arc<Listeners>) {
        let waiting = std::mem::take(&mut *self.lock());
        for (wakeups, token) in waiting {
            wakeups.tell(token);
        }
    }
}

/// A sync that was started; `syncline.SyncTicket` is what programs use.
#[pyclass(frozen, module = "syncline._native")]
pub(crate) struct SyncTicket {
    ticket: Arc<syncline::SyncTicket>,
    listeners: Arc<Listeners>,
}

impl SyncTicket {
    pub(crate) fn new(mut ticket: syncline::SyncTicket) -> SyncTicket {
        let listeners = Arc::new(Listeners::default());
        let waker = Waker::from(listeners.clone());
        // Once is enough: the end wakes whoever polled last, and nobody else polls.
        let _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
        SyncTicket { ticket: Arc::new(ticket), listeners }
    }
}

#[pymethods]
impl SyncTicket {
    fn done(&self, py: Python<'_>) -> bool {
        let ticket = self.ticket.clone();
        py.detach(move || ticket.is_complete())
    }

    /// Waits; false if `timeout` seconds are over first. Errors: the sync's.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let ticket = self.ticket.clone();
        let timeout = timeout.map(arguments::seconds).transpose()?;
        let result = py.detach(move || match timeout {
            Some(timeout) => ticket.wait_timeout(timeout),
            None => Some(ticket.wait()),
        });
        match result {
            Some(result) => result.map(|()| true).map_err(error::of),
            None => Ok(false),
        }
    }

    /// Has `wakeups` get `token` when the sync has ended, which may be now.
    fn tell(&self, py: Python<'_>, wakeups: &Bound<'_, Wakeups>, token: u64) {
        let shared = wakeups.get().shared();
        let (ticket, listeners) = (self.ticket.clone(), self.listeners.clone());
        // The listeners' mutex is also locked by threads that know no interpreter, for as long as it takes to swap a
        // list. A forked child has none of these tickets.
        py.detach(move || {
            listeners.lock().push((shared, token));
            if ticket.is_complete() {
                listeners.wake();
            }
        });
    }
}
