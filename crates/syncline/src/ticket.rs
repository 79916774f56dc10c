//! [`SyncTicket`]: a sync that is on its way.
//!
//! A ticket and whoever works on its sync share a [`Progress`]. Its stage only moves forward: what is left to commit is
//! taken by one thread (`Committing`), then the force is known that it depends on (`Forcing`), then the result. The
//! volume's sync thread drives it when nobody waits; [`SyncTicket::wait`] does what is left on the caller's own thread.
//! The engine's closures and the sync thread hold the `Progress` only, never the volume, so that a volume ends with its
//! last handle or ticket.
//!
//! Lock: `Progress::inner` is innermost; no waker is called under it.

use crate::volume::Shared;
use crate::{LatencyHistogram, Result};
use parking_lot::Mutex;
use std::borrow::Borrow;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use syncline_device::ProcessBound;
use syncline_format::Lsn;
use syncline_fs::{Fs, SyncPlan};

/// How often a thread looks that waits for syncs of a volume without a thread of its own.
const LOOK: Duration = Duration::from_micros(50);

thread_local! {
    /// Ends this thread's parking. One per thread, so that a ticket knows that it has it already.
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

enum Stage {
    /// Somebody has to commit what is left.
    Pending(SyncPlan),
    /// Somebody does.
    Committing,
    /// Durable once everything up to here is.
    Forcing(Lsn),
    Done(Result<()>),
}

struct Inner {
    stage: Stage,
    /// Of the task that polled last.
    task: Option<Waker>,
    /// Of threads that wait, or did.
    threads: Vec<Waker>,
    /// What else is to be done.
    acts: Vec<Act>,
}

/// Called once, with the result.
type Act = Box<dyn FnOnce(io::Result<()>) + Send>;

/// How far a started sync is.
pub(crate) struct Progress {
    // Constant.
    began: Instant,
    latency: Arc<LatencyHistogram>,
    inner: Mutex<Inner>,
}

impl Progress {
    fn new(latency: Arc<LatencyHistogram>, stage: Stage) -> Arc<Progress> {
        let inner = Mutex::new(Inner { stage, task: None, threads: Vec::new(), acts: Vec::new() });
        Arc::new(Progress { began: Instant::now(), latency, inner })
    }

    fn result(&self) -> Option<Result<()>> {
        match &self.inner.lock().stage {
            Stage::Done(result) => Some(result.clone()),
            _ => None,
        }
    }

    /// The result comes from whoever is first: they all have the same.
    fn complete(&self, result: Result<()>) {
        let (task, threads, acts) = {
            let mut inner = self.inner.lock();
            if matches!(inner.stage, Stage::Done(_)) {
                return;
            }
            inner.stage = Stage::Done(result.clone());
            (inner.task.take(), std::mem::take(&mut inner.threads), std::mem::take(&mut inner.acts))
        };
        self.latency.record(self.began.elapsed());
        task.into_iter().chain(threads).for_each(Waker::wake);
        acts.into_iter().for_each(|act| act(result.clone().map_err(io::Error::from)));
    }

    /// Has `act` called at the end, at once if that was already.
    fn act_at_end(&self, act: Act) {
        let mut inner = self.inner.lock();
        let Stage::Done(result) = &inner.stage else { return inner.acts.push(act) };
        let result = result.clone();
        drop(inner);
        act(result.map_err(io::Error::from));
    }

    /// The calling thread is unparked at the end; false if that was already.
    fn unpark_at_end(&self) -> bool {
        let mut inner = self.inner.lock();
        if matches!(inner.stage, Stage::Done(_)) {
            return false;
        }
        UNPARK.with(|unpark| {
            if !inner.threads.iter().any(|known| known.will_wake(unpark)) {
                inner.threads.push(unpark.clone());
            }
        });
        true
    }

    fn take_pending(&self) -> Option<SyncPlan> {
        let mut inner = self.inner.lock();
        match std::mem::replace(&mut inner.stage, Stage::Committing) {
            Stage::Pending(pending) => Some(pending),
            other => {
                inner.stage = other;
                None
            }
        }
    }

    fn forcing(&self) -> Option<Lsn> {
        match &self.inner.lock().stage {
            Stage::Forcing(lsn) => Some(*lsn),
            _ => None,
        }
    }

    /// Commits the next piece; true if there is more to commit. What somebody else has taken is left to him.
    pub(crate) fn commit_piece(self: &Arc<Progress>, fs: &Fs) -> Work {
        let Some(mut pending) = self.take_pending() else { return Work::Nothing };
        match fs.syncs().commit_piece(&mut pending) {
            Ok(None) => {
                self.inner.lock().stage = Stage::Pending(pending);
                Work::More
            }
            Ok(Some(lsn)) => {
                self.start_force(fs, lsn);
                Work::Force(lsn)
            }
            Err(error) => {
                self.complete(Err(error));
                Work::Nothing
            }
        }
    }

    fn start_force(self: &Arc<Progress>, fs: &Fs, lsn: Lsn) {
        self.inner.lock().stage = Stage::Forcing(lsn);
        let progress = self.clone();
        fs.syncs().start_force(lsn, Box::new(move |result| progress.complete(result)));
    }
}

/// What is to be done for a started sync after a piece of it.
pub(crate) enum Work {
    /// Another piece.
    More,
    /// The force that it depends on.
    Force(Lsn),
    Nothing,
}

/// A sync that was started by [`File::sync_async`](crate::File::sync_async).
///
/// It is a [`Future`] that needs no runtime, and can be waited for and polled without one. It completes when the file
/// is durable (C5) and keeps its result, which may be asked for any number of times. Dropping it leaves the sync to
/// itself.
///
/// ```
/// use std::io::Write;
/// use syncline::{SyncScope, SyncTicket, Volume};
///
/// let volume = Volume::create_in_memory(64 << 20)?;
/// let mut tickets = Vec::new();
/// for name in ["one", "two", "three"] {
///     let mut file = volume.create_file(name)?;
///     file.write_all(b"content")?;
///     tickets.push(file.sync_async(SyncScope::All));
/// }
/// let ended = SyncTicket::wait_any(&tickets, None);
/// tickets[ended[0]].wait()?;
/// tickets.iter().try_for_each(SyncTicket::wait)?;
/// assert_eq!(SyncTicket::poll_many(&tickets), [0, 1, 2]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "whether the sync succeeded is told by its ticket"]
pub struct SyncTicket {
    shared: Arc<Shared>,
    progress: ProcessBound<Arc<Progress>>,
}

impl SyncTicket {
    /// Puts what was planned under way; what needs no wait is committed at once.
    pub(crate) fn start(shared: &Arc<Shared>, plan: Result<SyncPlan>) -> SyncTicket {
        let started = |stage| Progress::new(shared.sync_latency.clone(), stage);
        let begun = plan.and_then(|plan| {
            let fs = shared.fs()?;
            let committed = fs.syncs().try_commit(&plan)?;
            Ok((plan, committed, fs))
        });
        let progress = match begun {
            Err(error) => done(&started(Stage::Committing), Err(error)),
            Ok((_, Some(lsn), fs)) if lsn <= fs.syncs().durable_lsn() => {
                done(&started(Stage::Committing), Ok(()))
            }
            Ok((_, Some(lsn), fs)) => {
                let progress = started(Stage::Forcing(lsn));
                progress.start_force(fs, lsn);
                shared.drive_force(lsn);
                progress
            }
            Ok((plan, None, fs)) => {
                let progress = started(Stage::Pending(plan));
                if !shared.drive_commit(&progress) {
                    // Nobody else will.
                    while let Work::More = progress.commit_piece(fs) {}
                }
                progress
            }
        };
        SyncTicket { shared: shared.clone(), progress: ProcessBound::new(progress) }
    }

    /// Errors: this is a forked child, whose parent started the sync.
    fn progress(&self) -> Result<&Arc<Progress>> {
        Ok(self.progress.get()?)
    }

    fn result(&self) -> Option<Result<()>> {
        match self.progress() {
            Ok(progress) => progress.result(),
            Err(forked) => Some(Err(forked)),
        }
    }

    /// Whether the sync has ended, well or not. Waits for nothing.
    pub fn is_complete(&self) -> bool {
        self.look().is_some()
    }

    /// Waits until the sync has ended, and does on this thread what is left to do for it.
    pub fn wait(&self) -> io::Result<()> {
        let progress = self.progress()?;
        loop {
            if let Some(result) = progress.result() {
                return Ok(result?);
            }
            let fs = self.shared.fs()?;
            while let Work::More = progress.commit_piece(fs) {}
            match progress.forcing() {
                Some(lsn) => progress.complete(fs.syncs().force(lsn)),
                None if progress.unpark_at_end() => std::thread::park(),
                None => {}
            }
        }
    }

    /// Waits until the sync has ended, but no longer than `timeout`; `None` if it has not ended then. The sync goes on.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<io::Result<()>> {
        SyncTicket::wait_any(std::slice::from_ref(self), Some(timeout));
        self.result().map(|result| Ok(result?))
    }

    /// Has `act` called once with the result: on the thread that ends the sync, or at once if it has ended. That
    /// thread may be in the middle of others' syncs, so `act` must be short, and must not use the volume.
    ///
    /// On a volume without a thread for syncs ([`VolumeOptions::background`](crate::VolumeOptions::background)) the
    /// sync ends when somebody polls or waits.
    ///
    /// ```
    /// use syncline::{SyncScope, Volume};
    ///
    /// let volume = Volume::create_in_memory(64 << 20)?;
    /// let file = volume.create_file("file")?;
    /// file.write_at(b"content", 0)?;
    /// let (sender, receiver) = std::sync::mpsc::channel();
    /// file.sync_async(SyncScope::All).on_end(move |result| drop(sender.send(result)));
    /// receiver.recv().expect("it is called")?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn on_end(&self, act: impl FnOnce(io::Result<()>) + Send + 'static) {
        match self.progress() {
            Ok(progress) => progress.act_at_end(Box::new(act)),
            Err(forked) => act(Err(forked.into())),
        }
    }

    /// Indices of the tickets whose syncs have ended, ascending. Waits for nothing.
    pub fn poll_many<T: Borrow<SyncTicket>>(tickets: &[T]) -> Vec<usize> {
        let complete = tickets.iter().enumerate().filter(|(_, ticket)| (*ticket).borrow().is_complete());
        complete.map(|(index, _)| index).collect()
    }

    /// Waits until at least one of the syncs has ended, or `timeout` is over; returns what [`SyncTicket::poll_many`]
    /// does then. The tickets may belong to several volumes.
    pub fn wait_any<T: Borrow<SyncTicket>>(tickets: &[T], timeout: Option<Duration>) -> Vec<usize> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let is_pending =
            |ticket: &T| ticket.borrow().progress().is_ok_and(|progress| progress.unpark_at_end());
        loop {
            // Registered before looking, so that no end is missed.
            let all_pending = tickets.iter().all(is_pending);
            let complete = SyncTicket::poll_many(tickets);
            let now = Instant::now();
            let over = deadline.is_some_and(|deadline| deadline <= now);
            if !all_pending || !complete.is_empty() || over || tickets.is_empty() {
                return complete;
            }
            let undriven = tickets.iter().any(|ticket| !ticket.borrow().shared.drives_syncs());
            let pause = undriven.then_some(LOOK).into_iter();
            match pause.chain(deadline.map(|deadline| deadline - now)).min() {
                Some(pause) => std::thread::park_timeout(pause),
                None => std::thread::park(),
            }
        }
    }

    /// The result, if there is one. Without a sync thread this is what drives the sync.
    fn look(&self) -> Option<Result<()>> {
        let result = self.result();
        if result.is_none()
            && !self.shared.drives_syncs()
            && let Ok(fs) = self.shared.fs()
        {
            fs.syncs().drive();
            return self.result();
        }
        result
    }
}

/// Ends a sync that never had to be under way.
fn done(progress: &Arc<Progress>, result: Result<()>) -> Arc<Progress> {
    progress.complete(result);
    progress.clone()
}

impl Future for SyncTicket {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut SyncTicket>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(result) = self.look() {
            return Poll::Ready(Ok(result?));
        }
        let mut inner = self.progress()?.inner.lock();
        if let Stage::Done(result) = &inner.stage {
            return Poll::Ready(Ok(result.clone()?));
        }
        inner.task = Some(context.waker().clone());
        drop(inner);
        if !self.shared.drives_syncs() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl std::fmt::Debug for SyncTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncTicket").field("result", &self.result()).finish()
    }
}
