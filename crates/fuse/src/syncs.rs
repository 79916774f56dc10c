//! Syncs that were started: their replies are kept, and one thread at a time drives the device for everybody who waits.
//!
//! A waiting sync holds no thread of the transport. What one group commit completes is answered as one batch, which
//! wakes each queue of the transport once, however many callers wait there.
//!
//! Over io_uring what a queue's thread starts is driven on its CPU (`drivers`), unless the last group had several
//! waiters, who are on several CPUs. The sync of a caller that is alone is forced by the thread that it came to, if
//! others can take requests meanwhile: over /dev/fuse they can, over io_uring if it came to a queue's deputy.

use crate::account::{Account, Began};
use crate::convert::errno;
use crate::drivers::{Drivers, this_cpu, tie_to};
use crate::ledger::Ledger;
use crate::tickets::Tickets;
use crate::writers::Joining;
use fusering::{Entry, Errno, Reply, ReplyBatch, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyWrite};
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use syncline_fs::{Fs, HandleId, Lsn, Reach, SyncPlan, SyncScope, SyncStart};

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
    /// What was made.
    Made(ReplyEntry, Box<Entry>),
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
            (Some(batch), Owed::Made(reply, made), Ok(())) => batch.entry(reply, &made),
            (Some(batch), Owed::Made(reply, _), Err(errno)) => batch.error(reply, errno),
            (None, Owed::Done(reply), Ok(())) => reply.ok(),
            (None, Owed::Written(reply, bytes), Ok(())) => reply.written(bytes),
            (None, Owed::Controlled(reply), Ok(())) => reply.output(0, &[]),
            (None, Owed::Made(reply, made), Ok(())) => reply.entry(&made),
            (None, owed, Err(errno)) => owed.error(errno),
        });
    }

    pub(crate) fn error(self, errno: Errno) {
        match self {
            Owed::Done(reply) => Reply::error(reply, errno),
            Owed::Written(reply, _) => Reply::error(reply, errno),
            Owed::Controlled(reply) => Reply::error(reply, errno),
            Owed::Made(reply, _) => Reply::error(reply, errno),
        }
    }
}

/// An answer that is given when its sync is over and whoever has started it is ready for the caller's next request,
/// whichever comes last.
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
    /// The driver of this thread's CPU, if nobody else syncs.
    DriverHere,
    /// A driver, wherever there is time.
    Driver,
}

/// Starts syncs and drives them.
pub(crate) struct Syncs {
    // Constant.
    fs: Arc<Fs>,
    account: Arc<Account>,
    tickets: Arc<Tickets>,
    drivers: Drivers,
    // The others change.
    /// What drivers answered, and in how many batches. Relaxed: they are statistics.
    answered: AtomicU64,
    batches: AtomicU64,
    /// How many the last of them answered. Relaxed: a wrong guess costs some microseconds.
    last_batch: AtomicUsize,
}

impl Syncs {
    pub(crate) fn new(fs: Arc<Fs>, ledger: Arc<Ledger>) -> Syncs {
        Syncs {
            fs,
            account: Arc::default(),
            tickets: Arc::new(Tickets::new(ledger)),
            drivers: Drivers::new(),
            answered: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            last_batch: AtomicUsize::new(0),
        }
    }

    /// How long syncs took, and for whom.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// Syncs that were started by ioctl.
    pub(crate) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// Syncs that drivers answered, and in how many batches.
    pub(crate) fn answered(&self) -> (u64, u64) {
        (self.answered.load(Relaxed), self.batches.load(Relaxed))
    }

    /// Makes an open file durable and answers then.
    pub(crate) fn sync(&self, handle: HandleId, scope: SyncScope, by: By, began: Began, owed: Owed) {
        match self.fs.syncs().plan(handle, scope, Reach::Whole) {
            Ok(plan) => self.commit(plan, by, began, owed),
            Err(error) => owed.answer(Err(errno(error))),
        }
    }

    /// Commits on this thread what a sync has to commit, has it forced, and answers then.
    pub(crate) fn commit(&self, mut plan: SyncPlan, by: By, began: Began, owed: Owed) {
        match self.fs.syncs().commit(&mut plan) {
            Ok(lsn) => self.force(lsn, by, began, owed),
            Err(error) => self.answering(began, owed)(Err(error)),
        }
    }

    /// Ends a sync that is committed, and answers then.
    pub(crate) fn force(&self, lsn: Lsn, by: By, began: Began, owed: Owed) {
        self.force_then(lsn, by, self.answering(began, owed));
    }

    /// The same for what is no sync, and is not counted as one.
    pub(crate) fn force_made(&self, lsn: Lsn, by: By, owed: Owed) {
        self.force_then(lsn, by, Box::new(move |result| owed.answer(result.map_err(errno))));
    }

    fn force_then(&self, lsn: Lsn, by: By, done: Box<dyn FnOnce(syncline_fs::Result<()>) + Send>) {
        if by == By::Here {
            return done(self.fs.syncs().force(lsn));
        }
        self.fs.syncs().start_force(lsn, done);
        self.kick_if_needed(by);
    }

    /// Starts syncs with data to write out; returns those that have to be committed alone.
    pub(crate) fn start_together(&self, syncs: Vec<Joining>) -> Vec<SyncStart> {
        let start =
            |sync: Joining| SyncStart { plan: sync.plan, done: self.answering(sync.began, sync.owed) };
        let alone = self.fs.syncs().start_together(syncs.into_iter().map(start).collect());
        self.kick(By::Driver);
        alone
    }

    /// Commits one of them, and has it forced.
    pub(crate) fn start_alone(&self, sync: SyncStart) {
        self.start(sync, Ok(None));
    }

    fn start(&self, sync: SyncStart, committed: syncline_fs::Result<Option<Lsn>>) {
        let SyncStart { mut plan, done } = sync;
        let syncs = self.fs.syncs();
        match committed.and_then(|lsn| lsn.map_or_else(|| syncs.commit(&mut plan), Ok)) {
            Ok(lsn) => syncs.start_force(lsn, done),
            Err(error) => return done(Err(error)),
        }
        self.kick_if_needed(By::Driver);
    }

    /// Starts what a ticket of `handle` was issued for; `committed`: what has to be forced, if that is known already.
    pub(crate) fn start_ticket(
        &self,
        handle: HandleId,
        plan: syncline_fs::Result<SyncPlan>,
        committed: syncline_fs::Result<Option<Lsn>>,
        ticket: u64,
        began: Began,
    ) {
        let (tickets, account) = (self.tickets.clone(), self.account.clone());
        let done = Box::new(move |result: syncline_fs::Result<()>| {
            account.record(began);
            tickets.complete(handle, ticket, result.map_err(errno));
        });
        match plan {
            Ok(plan) => self.start(SyncStart { plan, done }, committed),
            Err(error) => done(Err(error)),
        }
    }

    /// The same for an answer that is held back.
    pub(crate) fn answering_held(
        &self,
        began: Began,
        held: Arc<HeldBack>,
    ) -> Box<dyn FnOnce(syncline_fs::Result<()>) + Send> {
        let account = self.account.clone();
        Box::new(move |result| {
            account.record(began);
            held.complete(result.map_err(errno));
        })
    }

    /// Records the time and answers.
    fn answering(&self, began: Began, owed: Owed) -> Box<dyn FnOnce(syncline_fs::Result<()>) + Send> {
        let account = self.account.clone();
        Box::new(move |result| {
            account.record(began);
            owed.answer(result.map_err(errno));
        })
    }

    /// One with nothing to do has been answered.
    fn kick_if_needed(&self, by: By) {
        if !self.fs.is_forced() {
            self.kick(by);
        }
    }

    /// Has what was started forced.
    pub(crate) fn kick(&self, by: By) {
        if by == By::Here {
            return self.force_all();
        }
        let beside = by == By::DriverHere && self.last_batch.load(Relaxed) <= 1;
        self.drivers.kick(beside.then(this_cpu).flatten());
    }

    /// Drives started syncs until [`Syncs::stop`]; tied to a CPU, those above all that its queue starts.
    pub(crate) fn drive(&self, cpu: Option<usize>) {
        if let Some(cpu) = cpu {
            tie_to(cpu);
        }
        self.drivers.run(cpu, || self.drive_group());
    }

    fn drive_group(&self) {
        GROUP.set(Some(ReplyBatch::new()));
        self.force_all();
        let group = GROUP.take().unwrap_or_default();
        if !group.is_empty() {
            self.answered.fetch_add(group.len() as u64, Relaxed);
            self.batches.fetch_add(1, Relaxed);
            self.last_batch.store(group.len(), Relaxed);
        }
        // Dropped, the batch is sent.
        drop(group);
    }

    /// A blocking force completes what was started before it; every waiter gets its own result.
    fn force_all(&self) {
        if let Err(error) = self.fs.sync_metadata() {
            tracing::debug!(%error, "a group commit failed; its waiters were told");
        }
    }

    /// The drivers end when they have driven what was started.
    pub(crate) fn stop(&self) {
        self.drivers.stop();
    }
}
