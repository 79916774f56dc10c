//! Who reads /dev/fuse: one thread at a time, replaced when it gets stuck.
//!
//! Several threads that all wait on /dev/fuse are woken in turn, mostly on another CPU than the caller's, which makes
//! an empty round trip several times as long. So only one of the threads is *free* (reading, or working on a request
//! that needs no waiting); the others are parked. A parked thread is let out
//! - by a thread that is about to wait while further requests are queued ([`Readers::begin_wait`]);
//! - by the watch, which sees that requests are queued and none was begun or ended since its last look: whatever the
//!   reader is stuck in, others go on.
//!
//! The watch looks every few milliseconds. Where the reader is tied to the CPU of its caller ([`super::beside`]), the
//! watch runs there too: on another CPU it would wake that one each time, and the scheduler moves a caller to a CPU
//! that is awake. It has the reader's class ([`super::class`]), without which the CPU would be busy with the watch when
//! the caller is woken, 500 times a second.
//!
//! When requests come over io_uring, only what nobody waits for arrives here: nodes that are to be forgotten. To wake
//! a thread for each would cost the caller that let go of it more than the message does. So the reader reads them
//! together, every 10 ms, and the watch looks seldom. (What was queued before the rings were ready comes this way
//! too, and an interruption, which is late by as much.)
//!
//! A thread that is done with its request while another one is free parks itself. With `spread` nobody parks.
//!
//! Invariants: `free` counts the threads that are neither parked nor known to wait; while the connection lives and a
//! thread is parked, either `free > 0`, or the watch will raise it.
//!
//! Locks: `state` is innermost; nothing is called under it.

use super::class::{Class, Classes};
use super::connection::{Connection, ConnectionState};
use super::cpus;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often the watch looks while requests come in.
const WATCH_INTERVAL: Duration = Duration::from_millis(2);
/// The same when requests come by another transport.
const WATCH_INTERVAL_BEHIND: Duration = Duration::from_millis(100);
/// How long a reader that has stepped back lets nodes that are to be forgotten come together.
const REST: Duration = Duration::from_millis(10);
/// Looks without any request after which the watch goes to sleep.
const WATCH_IDLE_LOOKS: u32 = 50;

/// The threads of one connection.
pub(super) struct Readers {
    // Constant.
    connection: Arc<Connection>,
    spread: bool,
    /// Requests come by another transport. Relaxed: it is seen soon enough.
    behind: AtomicBool,
    /// Requests begun plus requests ended.
    steps: AtomicU64,
    /// Threads in `read`.
    reading: AtomicU32,
    watch_sleeps: AtomicBool,
    state: Mutex<State>,
    unpark: Condvar,
    wake_watch: Condvar,
}

struct State {
    /// May be negative for a moment while waiting threads are being replaced.
    free: i32,
    parked: usize,
    /// Parked threads that have been let out but did not run yet.
    let_out: usize,
    /// The connection has ended: nobody parks any more.
    ended: bool,
    /// The watch's thread, while it runs.
    watch: Option<libc::pid_t>,
}

impl Readers {
    /// For `threads` threads, which all read at first.
    pub(super) fn new(connection: Arc<Connection>, threads: usize, spread: bool) -> Readers {
        Readers {
            connection,
            spread,
            behind: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            reading: AtomicU32::new(0),
            watch_sleeps: AtomicBool::new(false),
            state: Mutex::new(State {
                free: threads as i32,
                parked: 0,
                let_out: 0,
                ended: false,
                watch: None,
            }),
            unpark: Condvar::new(),
            wake_watch: Condvar::new(),
        }
    }

    pub(super) fn others_wait(&self) -> bool {
        self.connection.state() == ConnectionState::Waiting
    }

    /// The calling thread is about to read.
    pub(super) fn begin_reading(&self) {
        self.reading.fetch_add(1, Ordering::Relaxed);
    }

    /// The read is over; `got`: with a request.
    pub(super) fn end_reading(&self, got: bool) {
        self.reading.fetch_sub(1, Ordering::Relaxed);
        if got {
            // Together with `sleep`: either this thread sees the flag, or the watch sees the step.
            self.steps.fetch_add(1, Ordering::SeqCst);
            if self.watch_sleeps.load(Ordering::SeqCst) && self.watch_sleeps.swap(false, Ordering::Relaxed) {
                // Under the lock, so that the watch is either asleep or has not looked at the flag yet.
                let _state = self.state.lock();
                self.wake_watch.notify_one();
            }
        }
    }

    /// The request was handled; the thread would read the next one now. Parks it while another thread is free.
    pub(super) fn end_request(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        if self.spread {
            return;
        }
        let mut state = self.state.lock();
        if state.free <= 1 || state.ended {
            return;
        }
        state.free -= 1;
        state.parked += 1;
        while state.let_out == 0 && !state.ended {
            self.unpark.wait(&mut state);
        }
        state.let_out = state.let_out.saturating_sub(1);
        state.parked -= 1;
    }

    /// The calling thread may have to wait. If other requests are queued, a parked thread takes its place and
    /// [`Readers::end_wait`] is to be called.
    pub(super) fn begin_wait(&self) -> bool {
        if self.spread || !self.others_wait() {
            return false;
        }
        let mut state = self.state.lock();
        state.free -= 1;
        if state.free <= 0 {
            self.let_one_out(&mut state);
        }
        true
    }

    pub(super) fn end_wait(&self) {
        self.state.lock().free += 1;
    }

    fn let_one_out(&self, state: &mut State) {
        if state.parked > state.let_out {
            state.let_out += 1;
            state.free += 1;
            self.unpark.notify_one();
        }
    }

    /// The connection has ended: lets everyone out, for good.
    pub(super) fn end_all(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.unpark.notify_all();
        self.wake_watch.notify_all();
    }

    /// Requests come by another transport from now on.
    pub(super) fn step_back(&self) {
        self.behind.store(true, Ordering::Relaxed);
    }

    /// The calling thread has read what nobody waits for, and more of it may come.
    pub(super) fn rest(&self) {
        if self.behind.load(Ordering::Relaxed) {
            std::thread::sleep(REST);
        }
    }

    /// The thread that reads runs on these CPUs from now on.
    pub(super) fn reads_on(&self, cpus: &libc::cpu_set_t) {
        // Under the lock, the thread of this number is the watch.
        let state = self.state.lock();
        if let Some(watch) = state.watch
            && !cpus::confine_thread(watch, cpus)
        {
            tracing::debug!("the watch of the reading threads stays where it is");
        }
    }

    /// The watch; returns when the connection has ended. Not needed with `spread`.
    pub(super) fn watch(&self, classes: &Classes) {
        // SAFETY: takes no arguments.
        self.state.lock().watch = Some(unsafe { libc::gettid() });
        self.look_until_end(Class::of_watch(classes));
        self.state.lock().watch = None;
        self.end_all();
    }

    fn look_until_end(&self, mut class: Class) {
        let mut steps_seen = 0;
        let mut idle_looks = 0;
        while !self.state.lock().ended {
            class.round();
            let steps = self.steps.load(Ordering::Relaxed);
            let moved = steps != steps_seen;
            steps_seen = steps;
            idle_looks = if moved { 0 } else { idle_looks + 1 };
            if idle_looks < WATCH_IDLE_LOOKS {
                let behind = self.behind.load(Ordering::Relaxed);
                self.pause(if behind { WATCH_INTERVAL_BEHIND } else { WATCH_INTERVAL });
            } else if self.reading.load(Ordering::Relaxed) > 0 {
                // Somebody takes the next request, and wakes the watch by it.
                idle_looks = 0;
                self.sleep(steps);
                continue;
            } else {
                // All free threads are stuck: the next request has to be noticed from here.
                self.connection.wait_readable();
            }
            match self.connection.state() {
                ConnectionState::Ended => break,
                ConnectionState::Waiting if self.steps.load(Ordering::Relaxed) == steps => {
                    self.let_one_out(&mut self.state.lock());
                    std::thread::sleep(WATCH_INTERVAL);
                }
                _ => {}
            }
        }
    }

    /// For so long, or until the connection ends.
    fn pause(&self, time: Duration) {
        let mut state = self.state.lock();
        if !state.ended {
            self.wake_watch.wait_for(&mut state, time);
        }
    }

    /// Until a request is taken or the connection ends.
    fn sleep(&self, steps_seen: u64) {
        let mut state = self.state.lock();
        self.watch_sleeps.store(true, Ordering::SeqCst);
        // A request that was taken before the flag could be seen is noticed here.
        if !state.ended && self.steps.load(Ordering::SeqCst) == steps_seen {
            self.wake_watch.wait(&mut state);
        }
        drop(state);
        self.watch_sleeps.store(false, Ordering::Relaxed);
    }
}
