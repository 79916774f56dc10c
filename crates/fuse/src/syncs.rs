//! Syncs that were started: their replies are kept, and one thread drives the device for everybody who waits.
//!
//! A waiting sync holds no thread of the transport. What one group commit completes is answered as one batch, which wakes
//! each queue of the transport once, however many callers wait there.
//!
//! Lock: `state` is innermost; nothing is called under it.

use crate::convert::errno;
use fusering::{Errno, Reply, ReplyBatch, ReplyEmpty, ReplyWrite};
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;
use syncline::{Fs, HandleId, LatencyHistogram, SyncScope};

thread_local! {
    /// Answers that are collected while this thread drives.
    static GROUP: RefCell<Option<ReplyBatch>> = const { RefCell::new(None) };
}

/// What is answered when a sync is over.
pub(crate) enum Owed {
    Done(ReplyEmpty),
    /// A write whose handle demands a sync, and its bytes.
    Written(ReplyWrite, u32),
}

impl Owed {
    /// Answers at once, or together with the group that this thread completes.
    fn answer(self, result: Result<(), Errno>) {
        GROUP.with_borrow_mut(|group| match (group, self, result) {
            (Some(batch), Owed::Done(reply), Ok(())) => batch.ok(reply),
            (Some(batch), Owed::Written(reply, bytes), Ok(())) => batch.written(reply, bytes),
            (Some(batch), Owed::Done(reply), Err(errno)) => batch.error(reply, errno),
            (Some(batch), Owed::Written(reply, _), Err(errno)) => batch.error(reply, errno),
            (None, Owed::Done(reply), Ok(())) => reply.ok(),
            (None, Owed::Written(reply, bytes), Ok(())) => reply.written(bytes),
            (None, owed, Err(errno)) => owed.error(errno),
        });
    }

    pub(crate) fn error(self, errno: Errno) {
        match self {
            Owed::Done(reply) => Reply::error(reply, errno),
            Owed::Written(reply, _) => Reply::error(reply, errno),
        }
    }
}

/// Starts syncs and drives them.
pub(crate) struct Syncs {
    // Constant.
    fs: Arc<Fs>,
    latency: Arc<LatencyHistogram>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Something was started since the driver last looked.
    started: bool,
    stopped: bool,
}

impl Syncs {
    pub(crate) fn new(fs: Arc<Fs>) -> Syncs {
        Syncs { fs, latency: Arc::default(), state: Mutex::default(), changed: Condvar::new() }
    }

    /// How long syncs took, from the request to the answer.
    pub(crate) fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    /// Syncs on this thread. For a caller that is alone.
    pub(crate) fn complete(&self, handle: HandleId, scope: SyncScope, began: Instant, owed: Owed) {
        let result = self.fs.sync_handle(handle, scope);
        self.latency.record(began.elapsed());
        owed.answer(result.map_err(errno));
    }

    /// Starts a sync; the driver answers it.
    pub(crate) fn start(&self, handle: HandleId, scope: SyncScope, began: Instant, owed: Owed) {
        if let Err(error) = self.fs.handle_inode(handle) {
            return owed.error(errno(error));
        }
        let latency = self.latency.clone();
        let done = Box::new(move |result: syncline::Result<()>| {
            latency.record(began.elapsed());
            owed.answer(result.map_err(errno));
        });
        if let Err(error) = self.fs.start_sync_handle(handle, scope, done) {
            // The handle was released in between, which the kernel does not do; the dropped reply says EIO.
            tracing::error!(%error, "a sync was not started");
        }
        self.kick();
    }

    fn kick(&self) {
        let mut state = self.state.lock();
        if !state.started {
            state.started = true;
            self.changed.notify_one();
        }
    }

    /// Drives started syncs until [`Syncs::stop`].
    pub(crate) fn drive(&self) {
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
            // Dropped, the batch is sent.
            drop(GROUP.take());
        }
    }

    /// The driver ends when it has driven what was started.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}
