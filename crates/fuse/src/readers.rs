//! Who reads requests: one thread at a time, replaced when it gets stuck.
//!
//! Several threads that all wait on /dev/fuse are woken in turn, mostly on another CPU than the caller's; an empty
//! round trip then takes six times as long. So of the transport's threads only one is *free* (reading, or working on
//! a request that needs no waiting); the others are parked. A caller that is alone is always served by the same
//! thread, and its syncs drive the device on that thread, without any hand-over.
//!
//! A parked thread is let out
//! - by a thread that is about to wait while further requests are queued ([`Readers::about_to_wait`]);
//! - by the watch, which sees every few milliseconds that requests are queued and none was begun or ended since the
//!   last look: whatever the reader is stuck in (a cold read, a large sync, a full journal), others go on.
//!
//! A thread that has answered its request while another one is free parks itself.
//!
//! Invariants: `free` counts the threads that are neither parked nor known to wait; while the connection lives and a
//! thread is parked, either `free > 0`, or the watch will raise it.
//!
//! Locks: `state` is innermost; no I/O and no engine call is made under it.

use crate::mount_point::{ConnectionState, look_at};
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often the watch looks while requests come in.
const WATCH_INTERVAL: Duration = Duration::from_millis(2);
/// Looks without any request after which the watch goes to sleep.
const WATCH_IDLE_LOOKS: u32 = 50;
/// Sleep of the watch; it still has to notice the end of the connection.
const WATCH_SLEEP: Duration = Duration::from_millis(200);

/// The transport's threads.
pub(crate) struct Readers {
    // Constant once the connection is there.
    connection: OnceLock<OwnedFd>,
    /// Requests begun plus requests ended.
    steps: AtomicU64,
    watch_sleeps: AtomicBool,
    /// Who synced last, and whether anybody else made a request since.
    last_syncer: AtomicU32,
    others_since: AtomicBool,
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
}

/// A thread that waits; on drop it counts as free again.
pub(crate) struct Waiting<'a>(&'a Readers);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().free += 1;
    }
}

impl Readers {
    /// For `threads` threads, which all read at first.
    pub(crate) fn new(threads: usize) -> Readers {
        Readers {
            connection: OnceLock::new(),
            steps: AtomicU64::new(0),
            watch_sleeps: AtomicBool::new(false),
            last_syncer: AtomicU32::new(0),
            others_since: AtomicBool::new(true),
            state: Mutex::new(State { free: threads as i32, parked: 0, let_out: 0, ended: false }),
            unpark: Condvar::new(),
            wake_watch: Condvar::new(),
        }
    }

    /// A duplicate of the descriptor that the threads read from, to look at.
    pub(crate) fn set_connection(&self, connection: OwnedFd) {
        assert!(self.connection.set(connection).is_ok(), "a session has one connection");
    }

    fn connection_state(&self) -> ConnectionState {
        self.connection.get().map_or(ConnectionState::Quiet, look_at)
    }

    /// A request was taken from the connection, on behalf of thread `pid`.
    pub(crate) fn begin(&self, pid: u32) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        if pid != 0 && pid != self.last_syncer.load(Ordering::Relaxed) {
            self.others_since.store(true, Ordering::Relaxed);
        }
        if self.watch_sleeps.load(Ordering::Relaxed) && self.watch_sleeps.swap(false, Ordering::Relaxed) {
            self.wake_watch.notify_one();
        }
    }

    /// The request was answered (or its reply is kept); the thread would read the next one now. Parks it instead
    /// while another thread is free.
    pub(crate) fn end(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
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

    /// The calling thread may have to wait for I/O. If other requests are queued, a parked thread takes its place.
    pub(crate) fn about_to_wait(&self) -> Option<Waiting<'_>> {
        if self.connection_state() != ConnectionState::Waiting {
            return None;
        }
        let mut state = self.state.lock();
        state.free -= 1;
        if state.free <= 0 {
            self.let_one_out(&mut state);
        }
        Some(Waiting(self))
    }

    /// Whether a sync by thread `pid` should be driven by the thread that read it: nobody else asked for anything since
    /// this caller's last sync, and nothing is queued.
    pub(crate) fn is_lone_sync(&self, pid: u32) -> bool {
        let same = self.last_syncer.swap(pid, Ordering::Relaxed) == pid;
        let alone = !self.others_since.swap(false, Ordering::Relaxed);
        same && alone && self.connection_state() == ConnectionState::Quiet
    }

    fn let_one_out(&self, state: &mut State) {
        if state.parked > state.let_out {
            state.let_out += 1;
            state.free += 1;
            self.unpark.notify_one();
        }
    }

    /// The connection has ended: lets everyone out, for good.
    pub(crate) fn end_all(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        self.unpark.notify_all();
        self.wake_watch.notify_all();
    }

    /// The watch; returns when the connection has ended.
    pub(crate) fn watch(&self) {
        let mut steps_seen = 0;
        let mut idle_looks = 0;
        loop {
            self.pause_watch(idle_looks >= WATCH_IDLE_LOOKS);
            let steps = self.steps.load(Ordering::Relaxed);
            let moved = steps != steps_seen;
            steps_seen = steps;
            idle_looks = if moved { 0 } else { idle_looks.saturating_add(1) };
            match self.connection_state() {
                ConnectionState::Ended => break,
                ConnectionState::Waiting if !moved => {
                    idle_looks = 0;
                    self.let_one_out(&mut self.state.lock());
                }
                _ => {}
            }
            if self.state.lock().ended {
                break;
            }
        }
        self.end_all();
    }

    fn pause_watch(&self, idle: bool) {
        if !idle {
            std::thread::sleep(WATCH_INTERVAL);
            return;
        }
        self.watch_sleeps.store(true, Ordering::Relaxed);
        let mut state = self.state.lock();
        if !state.ended {
            // A wake-up that is missed here costs one sleep, and only of the watch.
            self.wake_watch.wait_for(&mut state, WATCH_SLEEP);
        }
        drop(state);
        self.watch_sleeps.store(false, Ordering::Relaxed);
    }
}
