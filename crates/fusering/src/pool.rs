//! Threads for work that has to wait, so that the threads which take requests need not.
//!
//! Over io_uring the thread of a CPU's queue runs the filesystem's methods itself, and while one of them waits for a
//! disk all requests from that CPU wait too: nobody else can take its place. A method that may wait long hands the
//! rest of its work, with the reply, to a pool and returns. That costs a wake-up, so it is for the cases that do wait
//! (a read that misses every cache), not for all.
//!
//! Lock: `state`, held for a few instructions and never while work runs.

use crate::scheduling::leave_inherited_class;
use crate::transport::cpus;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

type Work = Box<dyn FnOnce() + Send>;

/// A bounded number of threads that do what they are given, first come, first served.
///
/// Threads are started when they are needed first, and stay. They run wherever the thread that made the pool could:
/// those that take requests, and start them, are tied to a CPU and may be of class SCHED_IDLE, and a new thread
/// inherits both. What waits is not bounded here but by the requests that the kernel lets be open. Dropping the pool
/// waits until all work is done.
pub struct WorkPool {
    shared: Arc<Shared>,
    threads_max: usize,
    /// CPUs of its threads; `None` where there are more than can be told.
    cpus: Option<libc::cpu_set_t>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Threads with nothing to do.
    idle: usize,
    ending: bool,
}

impl WorkPool {
    /// A pool of at most `threads_max` threads (at least one).
    pub fn new(threads_max: usize) -> WorkPool {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new() };
        WorkPool {
            shared: Arc::new(shared),
            threads_max: threads_max.max(1),
            cpus: cpus::allowed(),
            threads: Mutex::default(),
        }
    }

    /// Has `work` done by a thread of the pool, in time. If it panics, that is logged, and a reply that it holds
    /// answers EIO.
    ///
    /// Without any thread, because the system gives none, it is done here.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let starved = {
            let mut state = self.shared.state.lock();
            state.waiting.push_back(Box::new(work));
            state.waiting.len() > state.idle
        };
        self.shared.changed.notify_one();
        if starved && let Err(error) = self.add_thread() {
            tracing::warn!(%error, "a thread for blocking work could not be started");
            if let Some(work) = self.take_if_nobody_will() {
                do_work(work);
            }
        }
    }

    /// Starts a thread unless all are there.
    fn add_thread(&self) -> io::Result<()> {
        let mut threads = self.threads.lock();
        if threads.len() < self.threads_max {
            let (shared, cpus) = (Arc::clone(&self.shared), self.cpus);
            let work = move || {
                leave_inherited_class();
                if cpus.is_some_and(|cpus| !cpus::confine(&cpus)) {
                    tracing::debug!("a thread for blocking work stays where it was started");
                }
                work_until_end(&shared);
            };
            let name = format!("fuse-work-{}", threads.len());
            threads.push(std::thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(())
    }

    fn take_if_nobody_will(&self) -> Option<Work> {
        let nobody = self.threads.lock().is_empty();
        nobody.then(|| self.shared.state.lock().waiting.pop_front()).flatten()
    }
}

impl Drop for WorkPool {
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for blocking work panicked");
            }
        }
    }
}

fn work_until_end(shared: &Shared) {
    loop {
        let work = {
            let mut state = shared.state.lock();
            loop {
                if let Some(work) = state.waiting.pop_front() {
                    break work;
                }
                if state.ending {
                    return;
                }
                state.idle += 1;
                shared.changed.wait(&mut state);
                state.idle -= 1;
            }
        };
        do_work(work);
    }
}

fn do_work(work: Work) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!("work for a request panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling::Scheduling;

    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn as_much_runs_at_once_as_there_may_be_threads_and_all_is_done_at_the_end() {
        let (running, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts = Arc::new((running, most, done));
        let pool = WorkPool::new(3);
        // Passes only if three pieces of work run at once.
        let together = Arc::new(Barrier::new(3));
        for _ in 0..30 {
            let (counts, together) = (Arc::clone(&counts), Arc::clone(&together));
            pool.run(move || {
                let now = counts.0.fetch_add(1, Ordering::SeqCst) + 1;
                counts.1.fetch_max(now, Ordering::SeqCst);
                together.wait();
                counts.0.fetch_sub(1, Ordering::SeqCst);
                counts.2.fetch_add(1, Ordering::SeqCst);
            });
        }
        drop(pool);
        assert_eq!(counts.2.load(Ordering::SeqCst), 30);
        assert_eq!(counts.1.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn threads_are_not_tied_to_the_cpu_of_whoever_needs_them_first() {
        let everywhere = cpus::allowed().expect("the set has room for this machine");
        let pool = WorkPool::new(1);
        let (tell, told) = std::sync::mpsc::channel();
        let queue = std::thread::spawn(move || {
            // SAFETY: no preconditions.
            assert!(cpus::confine(&cpus::only(unsafe { libc::sched_getcpu() } as usize)));
            pool.run(move || {
                tell.send(cpus::allowed().map(|mask| cpus::count(&mask))).expect("is waited for")
            });
            drop(pool);
        });
        queue.join().expect("no panic");
        assert_eq!(told.recv().expect("is told"), Some(cpus::count(&everywhere)));
    }

    #[test]
    fn a_panic_ends_neither_the_pool_nor_its_thread() {
        let pool = WorkPool::new(1);
        let done = Arc::new(AtomicUsize::new(0));
        for turn in 0..4 {
            let done = Arc::clone(&done);
            pool.run(move || {
                assert!(turn % 2 == 1, "every other piece of work panics");
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn its_threads_are_not_of_the_class_of_a_thread_that_answers() {
        let started_by = std::thread::spawn(|| {
            crate::raise_nice_limit();
            let usual = Scheduling::of_this_thread().unwrap();
            usual.idle().apply().unwrap();
            if usual.apply().is_err() || !usual.is_usual() {
                return println!("skipped: classes: this one cannot be left");
            }
            usual.idle().apply().unwrap();
            let (tell, told) = std::sync::mpsc::channel();
            let pool = WorkPool::new(1);
            pool.run(move || tell.send(Scheduling::of_this_thread().unwrap().is_usual()).unwrap());
            assert!(told.recv().unwrap());
        });
        started_by.join().unwrap();
    }
}
