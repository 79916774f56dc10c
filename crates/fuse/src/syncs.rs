//! Syncs that were started: their replies are kept, and one thread drives the device for everybody who waits.
//!
//! A waiting sync holds no thread of the transport. What one group commit completes is answered as one batch, which wakes
//! each queue of the transport once, however many callers wait there.
//!
//! A caller that is alone waits for nothing but the device, and what a hand-over costs him depends on where the driver wakes up:
//! a few microseconds on the CPU that is awake anyway, several times that on one that sleeps. So for him the driver is tied to
//! the CPU of the queue that hands over. Over /dev/fuse his sync is forced by the thread that read it, as others can read.
//!
//! Lock: `state` is innermost; nothing is called under it but the system's.

use crate::convert::errno;
use crate::tickets::Tickets;
use crate::writers::Joining;
use fusering::{Errno, Reply, ReplyBatch, ReplyEmpty, ReplyIoctl, ReplyWrite};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use syncline::{Context, Fs, HandleId, LatencyHistogram, OpenFlags, SyncScope, SyncStart, WrittenOut};

thread_local! {
    /// Answers that are collected while this thread drives.
    static GROUP: RefCell<Option<ReplyBatch>> = const { RefCell::new(None) };
}

/// What is answered when a sync is over.
pub(crate) enum Owed {
    Done(ReplyEmpty),
    /// A write whose handle demands a sync, and its bytes.
    Written(ReplyWrite, u32),
    /// An ioctl without output.
    Controlled(ReplyIoctl),
}

impl Owed {
    /// Answers at once, or together with the group that this thread completes.
    fn answer(self, result: Result<(), Errno>) {
        GROUP.with_borrow_mut(|group| match (group, self, result) {
            (Some(batch), Owed::Done(reply), Ok(())) => batch.ok(reply),
            (Some(batch), Owed::Written(reply, bytes), Ok(())) => batch.written(reply, bytes),
            (Some(batch), Owed::Controlled(reply), Ok(())) => batch.controlled(reply),
            (Some(batch), Owed::Done(reply), Err(errno)) => batch.error(reply, errno),
            (Some(batch), Owed::Written(reply, _), Err(errno)) => batch.error(reply, errno),
            (Some(batch), Owed::Controlled(reply), Err(errno)) => batch.error(reply, errno),
            (None, Owed::Done(reply), Ok(())) => reply.ok(),
            (None, Owed::Written(reply, bytes), Ok(())) => reply.written(bytes),
            (None, Owed::Controlled(reply), Ok(())) => reply.output(0, &[]),
            (None, owed, Err(errno)) => owed.error(errno),
        });
    }

    pub(crate) fn error(self, errno: Errno) {
        match self {
            Owed::Done(reply) => Reply::error(reply, errno),
            Owed::Written(reply, _) => Reply::error(reply, errno),
            Owed::Controlled(reply) => Reply::error(reply, errno),
        }
    }
}

/// An answer that is given when its sync is over and whoever has started it is ready for the caller's next request, whichever
/// comes last.
pub(crate) struct HeldBack(Mutex<Held>);

struct Held {
    owed: Option<Owed>,
    result: Option<Result<(), Errno>>,
    is_ready: bool,
}

impl HeldBack {
    pub(crate) fn new(owed: Owed) -> Arc<HeldBack> {
        Arc::new(HeldBack(Mutex::new(Held { owed: Some(owed), result: None, is_ready: false })))
    }

    fn complete(&self, result: Result<(), Errno>) {
        let mut held = self.0.lock();
        held.result = Some(result);
        HeldBack::answer(held);
    }

    /// From here on the caller may go on.
    pub(crate) fn ready(&self) {
        let mut held = self.0.lock();
        held.is_ready = true;
        HeldBack::answer(held);
    }

    /// There will be no sync.
    pub(crate) fn fail(&self, errno: Errno) {
        let owed = self.0.lock().owed.take();
        if let Some(owed) = owed {
            owed.error(errno);
        }
    }

    fn answer(mut held: MutexGuard<'_, Held>) {
        if let (Some(result), true) = (held.result, held.is_ready)
            && let Some(owed) = held.owed.take()
        {
            drop(held);
            owed.answer(result);
        }
    }
}

/// Who forces what a sync needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The calling thread: nobody waits for it.
    Here,
    /// The driver, on this thread's CPU.
    DriverHere,
    /// The driver, wherever there is time.
    Driver,
}

/// Starts syncs and drives them.
pub(crate) struct Syncs {
    // Constant.
    fs: Arc<Fs>,
    latency: Arc<LatencyHistogram>,
    tickets: Arc<Tickets>,
    // The others change.
    state: Mutex<State>,
    changed: Condvar,
    /// What the driver answered, and in how many batches. Relaxed: they are statistics.
    answered: AtomicU64,
    batches: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Something was started since the driver last looked.
    started: bool,
    stopped: bool,
    /// Once it runs.
    driver: Option<Driver>,
}

/// The driver's thread, which exists until `stopped` is set and no longer than that is certain.
struct Driver {
    thread: libc::pid_t,
    /// Where it may run at all.
    allowed: libc::cpu_set_t,
    /// Where it was told to run.
    tied_to: Option<usize>,
}

impl Driver {
    /// The calling thread; `None` if the system does not say where it may run.
    fn of_this_thread() -> Option<Driver> {
        // SAFETY: all zeros is the empty set.
        let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `allowed` is a valid set of the size given; 0 is the calling thread.
        let known = unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) } == 0;
        // SAFETY: no preconditions.
        let thread = unsafe { libc::gettid() };
        known.then_some(Driver { thread, allowed, tied_to: None })
    }

    /// Ties the thread to a CPU, or to none. A thread that cannot be tied runs as it did.
    fn tie_to(&mut self, cpu: Option<usize>) {
        if self.tied_to == cpu {
            return;
        }
        self.tied_to = cpu;
        let mut set = self.allowed;
        if let Some(cpu) = cpu {
            // SAFETY: CPU_ISSET, CPU_ZERO and CPU_SET work within a set of the size that `cpu` is compared with.
            unsafe {
                if cpu >= libc::CPU_SETSIZE as usize || !libc::CPU_ISSET(cpu, &set) {
                    return;
                }
                libc::CPU_ZERO(&mut set);
                libc::CPU_SET(cpu, &mut set);
            }
        }
        // SAFETY: a valid set of the size given; the thread is this process's.
        let tied = unsafe { libc::sched_setaffinity(self.thread, size_of_val(&set), &raw const set) } == 0;
        if !tied {
            tracing::debug!(?cpu, "the driver of syncs stays where it is");
        }
    }
}

fn this_cpu() -> Option<usize> {
    // SAFETY: no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

impl Syncs {
    pub(crate) fn new(fs: Arc<Fs>) -> Syncs {
        Syncs {
            fs,
            latency: Arc::default(),
            tickets: Arc::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            answered: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    /// How long syncs took, from the request to the answer.
    pub(crate) fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    /// Syncs that were started by ioctl.
    pub(crate) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// Syncs that the driver answered, and in how many batches.
    pub(crate) fn answered(&self) -> (u64, u64) {
        (self.answered.load(Relaxed), self.batches.load(Relaxed))
    }

    /// Makes an open file durable and answers then.
    pub(crate) fn sync(&self, handle: HandleId, scope: SyncScope, by: By, began: Instant, owed: Owed) {
        if by == By::Here {
            let result = self.fs.sync_handle(handle, scope);
            self.latency.record(began.elapsed());
            return owed.answer(result.map_err(errno));
        }
        if let Err(error) = self.fs.handle_inode(handle) {
            return owed.error(errno(error));
        }
        let done = self.answering(began, owed);
        self.started(self.fs.start_sync_handle(handle, scope, done), by);
    }

    /// The same for a range of the file. What there is to write out is written by this thread.
    pub(crate) fn sync_range(
        &self,
        handle: HandleId,
        range: Range<u64>,
        scope: SyncScope,
        by: By,
        began: Instant,
        owed: Owed,
    ) {
        if by == By::Here {
            let result = self.fs.sync_range_handle(handle, range, scope);
            self.latency.record(began.elapsed());
            return owed.answer(result.map_err(errno));
        }
        if let Err(error) = self.fs.handle_inode(handle) {
            return owed.error(errno(error));
        }
        let done = self.answering(began, owed);
        self.started(self.fs.start_sync_range_handle(handle, range, scope, done), by);
    }

    /// Ends a sync whose data is written out, and answers then.
    pub(crate) fn force(&self, written: WrittenOut, by: By, began: Instant, owed: Owed) {
        self.fs.start_force(written, self.answering(began, owed));
        self.kick(by);
    }

    /// Starts syncs with data to write out; returns those that have to be started alone.
    pub(crate) fn start_together(&self, syncs: Vec<Joining>) -> Vec<SyncStart> {
        let start = |sync: Joining| SyncStart {
            handle: sync.handle,
            scope: sync.scope,
            done: self.answering(sync.began, sync.owed),
        };
        let alone = self.fs.start_syncs(syncs.into_iter().map(start).collect());
        self.kick(By::Driver);
        alone
    }

    /// Starts one of them.
    pub(crate) fn start_alone(&self, sync: SyncStart) {
        self.started(self.fs.start_sync_handle(sync.handle, sync.scope, sync.done), By::Driver);
    }

    /// A handle of the same file that no close takes away.
    pub(crate) fn keep_open(&self, handle: HandleId) -> Result<HandleId, Errno> {
        let object = self.fs.handle_inode(handle).map_err(errno)?;
        self.fs.open_handle(&Context::root(), object, OpenFlags::READ).map_err(errno)
    }

    /// Lets go of what [`Syncs::keep_open`] has kept.
    pub(crate) fn release(&self, kept: HandleId) {
        if let Err(error) = self.fs.release(kept) {
            tracing::warn!(%error, "closing a file behind a started sync failed");
        }
    }

    /// Starts what a ticket of `handle` was issued for; `kept` is of the same file.
    pub(crate) fn start_ticket(
        &self,
        handle: HandleId,
        kept: HandleId,
        ticket: u64,
        range: Range<u64>,
        scope: SyncScope,
    ) {
        let (tickets, latency, began) = (self.tickets.clone(), self.latency.clone(), Instant::now());
        let done = Box::new(move |result: syncline::Result<()>| {
            latency.record(began.elapsed());
            tickets.complete(handle, ticket, result.map_err(errno));
        });
        let started = match range {
            Range { start: 0, end: u64::MAX } => self.fs.start_sync_handle(kept, scope, done),
            range => self.fs.start_sync_range_handle(kept, range, scope, done),
        };
        self.started(started, By::Driver);
    }

    /// The same for an answer that is held back.
    pub(crate) fn answering_held(
        &self,
        began: Instant,
        held: Arc<HeldBack>,
    ) -> Box<dyn FnOnce(syncline::Result<()>) + Send> {
        let latency = self.latency.clone();
        Box::new(move |result| {
            latency.record(began.elapsed());
            held.complete(result.map_err(errno));
        })
    }

    /// Records the time and answers.
    fn answering(&self, began: Instant, owed: Owed) -> Box<dyn FnOnce(syncline::Result<()>) + Send> {
        let latency = self.latency.clone();
        Box::new(move |result| {
            latency.record(began.elapsed());
            owed.answer(result.map_err(errno));
        })
    }

    fn started(&self, started: syncline::Result<()>, by: By) {
        if let Err(error) = started {
            // The handle was released in between, which the kernel does not do; the dropped reply says EIO.
            tracing::error!(%error, "a sync was not started");
        }
        // One with nothing to do has been answered.
        if !self.fs.is_forced() {
            self.kick(by);
        }
    }

    /// Has the driver force what was started.
    pub(crate) fn kick(&self, by: By) {
        let mut state = self.state.lock();
        if state.started {
            return;
        }
        state.started = true;
        let cpu = (by == By::DriverHere).then(this_cpu).flatten();
        // A driver that was told to stop may be gone, and its number another thread's.
        if !state.stopped
            && let Some(driver) = &mut state.driver
        {
            driver.tie_to(cpu);
        }
        self.changed.notify_one();
    }

    /// Drives started syncs until [`Syncs::stop`].
    pub(crate) fn drive(&self) {
        self.state.lock().driver = Driver::of_this_thread();
        loop {
            {
                let mut state = self.state.lock();
                while !state.started && !state.stopped {
                    self.changed.wait(&mut state);
                }
                if !state.started {
                    return;
                }
                state.started = false;
            }
            GROUP.set(Some(ReplyBatch::new()));
            // A blocking force completes what was started before it; every waiter gets its own result.
            if let Err(error) = self.fs.sync_metadata() {
                tracing::debug!(%error, "a group commit failed; its waiters were told");
            }
            let group = GROUP.take().unwrap_or_default();
            if !group.is_empty() {
                self.answered.fetch_add(group.len() as u64, Relaxed);
                self.batches.fetch_add(1, Relaxed);
            }
            // Dropped, the batch is sent.
            drop(group);
        }
    }

    /// The driver ends when it has driven what was started.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}
