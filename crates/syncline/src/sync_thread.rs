//! The thread that drives started syncs while nobody waits for them: one per volume, however many there are.
//!
//! It commits what a large sync has left, a piece at a time, and forces between the pieces, so that small syncs do
//! not wait for a large one. Small syncs that could not be committed when they were started are committed many to a
//! force. It is not the maintenance thread, which may be in a checkpoint. Whoever waits for a ticket does its work
//! himself; then there is nothing left here.
//!
//! Lock: `queue` is innermost.

use crate::ticket::{Progress, Work};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use syncline_format::Lsn;
use syncline_fs::Fs;

#[derive(Default)]
struct Queue {
    /// Syncs with something left to commit.
    commits: VecDeque<Arc<Progress>>,
    /// Furthest force that started syncs wait for.
    force: Option<Lsn>,
    stop: bool,
}

#[derive(Default)]
struct Control {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Syncs that are committed before the next force.
const COMMITS_PER_FORCE: usize = 256;

/// Drives started syncs until dropped, and those that are started by then to their end.
pub(crate) struct SyncThread {
    control: Arc<Control>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SyncThread {
    /// Starts the thread. Errors: the system's, when it gives no thread.
    pub(crate) fn start(fs: Arc<Fs>) -> std::io::Result<SyncThread> {
        let control = Arc::new(Control::default());
        let of_thread = control.clone();
        let thread = std::thread::Builder::new()
            .name("syncline-sync".to_owned())
            .spawn(move || run(&fs, &of_thread))?;
        Ok(SyncThread { control, thread: Mutex::new(Some(thread)) })
    }

    /// Somebody waits for everything up to here.
    pub(crate) fn force(&self, lsn: Lsn) {
        let mut queue = self.control.queue.lock();
        queue.force = queue.force.max(Some(lsn));
        self.control.changed.notify_one();
    }

    /// Takes over what is left to commit; false if the thread has been stopped.
    pub(crate) fn commit(&self, progress: &Arc<Progress>) -> bool {
        let mut queue = self.control.queue.lock();
        if queue.stop {
            return false;
        }
        queue.commits.push_back(progress.clone());
        self.control.changed.notify_one();
        true
    }

    /// Lets the thread end what was started, and waits for that.
    pub(crate) fn stop(&self) {
        self.control.queue.lock().stop = true;
        self.control.changed.notify_one();
        let Some(thread) = self.thread.lock().take() else { return };
        // A task that a sync woke may hold the last handle of the volume; then it is dropped on that very thread.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the sync thread panicked; waiting for tickets drives their syncs");
        }
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(fs: &Fs, control: &Control) {
    loop {
        let (commit, mut force) = {
            let mut queue = control.queue.lock();
            while queue.commits.is_empty() && queue.force.is_none() {
                if queue.stop {
                    return;
                }
                control.changed.wait(&mut queue);
            }
            (queue.commits.pop_front(), queue.force.take())
        };
        let mut next = commit;
        for _ in 0..COMMITS_PER_FORCE {
            let Some(progress) = next.take() else { break };
            match progress.commit_piece(fs) {
                Work::More => {
                    control.queue.lock().commits.push_back(progress);
                    break;
                }
                Work::Force(lsn) => force = force.max(Some(lsn)),
                Work::Nothing => {}
            }
            next = control.queue.lock().commits.pop_front();
        }
        if let Some(left) = next {
            control.queue.lock().commits.push_front(left);
        }
        if let Some(lsn) = force
            && let Err(error) = fs.syncs().force(lsn)
        {
            tracing::debug!(%error, "a group commit failed; its tickets tell");
        }
    }
}
