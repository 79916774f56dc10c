//! Tells callers that their syncs have ended, on a thread of its own.
//!
//! Whoever ends a sync may be in the middle of others' syncs and must not wait. So it only notes the result here, and
//! the notifier's thread calls the callback, which may use the library as it likes, or adds to the eventfd. The thread
//! is started with the first that is to be told.
//!
//! Each target is told exactly once, and none after [`Notifier::stop`], which closing a volume ends with.
//!
//! Lock: `state` is innermost, and not held during a callback.

use crate::error::{Failure, Result};
use libc::c_int;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use syncline::SyncTicket;

/// A function of the caller's: its own pointer, and 0 or `-errno`.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void, c_int);

/// The caller's own pointer.
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: it is not followed here. The header says that it is handed to another thread.
unsafe impl Send for Context {}

/// Who is told.
pub(crate) enum Target {
    Call(Function, Context),
    Event(OwnedFd),
}

impl Target {
    fn tell(self, code: c_int) {
        match self {
            Target::Call(function, context) => {
                // SAFETY: the caller's promise, in the header: the function may be called with its context from any
                // thread until this has happened.
                unsafe { function(context.0, code) };
            }
            Target::Event(descriptor) => {
                // One that is full tells the same already; what is no eventfd was refused at the start.
                let _ = File::from(descriptor).write_all(&1_u64.to_ne_bytes());
            }
        }
    }
}

#[derive(Default)]
struct State {
    /// Of syncs that have not ended.
    waiting: HashMap<u64, Target>,
    ended: VecDeque<(Target, c_int)>,
    last: u64,
    stop: bool,
    thread: Option<JoinHandle<()>>,
    runs_as: Option<ThreadId>,
}

/// The thread of a volume that tells callers.
#[derive(Default)]
pub(crate) struct Notifier {
    state: Mutex<State>,
    changed: Condvar,
}

impl Notifier {
    pub(crate) fn new() -> Arc<Notifier> {
        Arc::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a target in, for [`Notifier::attach`] or [`Notifier::forget`]. Errors: no thread can be had, or the
    /// volume is being closed.
    pub(crate) fn expect(self: &Arc<Notifier>, target: Target) -> Result<u64> {
        let mut state = self.lock();
        if state.stop {
            return Err(Failure::new(libc::EBADF, "the volume is being closed"));
        }
        if state.thread.is_none() {
            let notifier = self.clone();
            let thread = std::thread::Builder::new().name("syncline-notify".to_owned());
            let thread = thread.spawn(move || notifier.run())?;
            state.runs_as = Some(thread.thread().id());
            state.thread = Some(thread);
        }
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, target);
        Ok(number)
    }

    /// The target is told when this sync has ended.
    pub(crate) fn attach(self: &Arc<Notifier>, number: u64, ticket: &SyncTicket) {
        let notifier = self.clone();
        ticket.on_end(move |result| {
            notifier.end(number, result.map_or_else(|error| Failure::from(error).code(), |()| 0));
        });
    }

    /// The target is told nothing.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().waiting.remove(&number);
    }

    fn end(&self, number: u64, code: c_int) {
        let mut state = self.lock();
        if let Some(target) = state.waiting.remove(&number) {
            state.ended.push_back((target, code));
            self.changed.notify_one();
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some((target, code)) = state.ended.pop_front() {
                drop(state);
                target.tell(code);
                state = self.lock();
            } else if state.stop {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whether this is a callback's thread.
    pub(crate) fn is_current(&self) -> bool {
        self.lock().runs_as == Some(std::thread::current().id())
    }

    /// Tells everybody who has not been told, and ends the thread.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stop = true;
        let left: Vec<Target> = state.waiting.drain().map(|(_, target)| target).collect();
        // Only a volume that has stopped leaves a sync without an end.
        state.ended.extend(left.into_iter().map(|target| (target, -libc::EIO)));
        let thread = state.thread.take();
        drop(state);
        self.changed.notify_one();
        if let Some(thread) = thread {
            // Nothing in it panics; a callback cannot unwind into it.
            let _ = thread.join();
        }
    }
}
