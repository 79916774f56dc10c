//! The threads that drive syncs for everybody who waits, one of them at a time.
//!
//! What a hand-over costs depends on where the driver wakes up: a few microseconds on the CPU that is awake anyway,
//! several times that on another one. So over io_uring each CPU has a driver that is tied to it, and what a queue's
//! thread starts is driven beside it, by whom it also wakes in the end. Whoever drives goes on with what others start
//! meanwhile. One more driver runs wherever there is time, for what no queue's thread has started.
//!
//! Lock: `state` is innermost; nothing is called under it but the system's.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;

pub(crate) struct Drivers {
    state: Mutex<State>,
    /// Of the driver that is tied to no CPU.
    anywhere: Arc<Condvar>,
}

#[derive(Default)]
struct State {
    /// Something was started since a driver last looked.
    started: bool,
    /// One of them is at it, and will look again.
    driving: bool,
    stopped: bool,
    /// What wakes the driver of a CPU, by its number, where there is one.
    beside: Vec<Option<Arc<Condvar>>>,
}

impl Drivers {
    pub(crate) fn new() -> Drivers {
        Drivers { state: Mutex::default(), anywhere: Arc::default() }
    }

    /// Has what was started driven, beside `cpu` if it has a driver.
    pub(crate) fn kick(&self, cpu: Option<usize>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.started, true) || state.driving {
            return;
        }
        let beside = cpu.and_then(|cpu| state.beside.get(cpu)?.clone());
        drop(state);
        beside.as_ref().unwrap_or(&self.anywhere).notify_one();
    }

    /// Is a driver, of a CPU or of none, until [`Drivers::stop`]. `drive` completes what was started before it.
    pub(crate) fn run(&self, cpu: Option<usize>, drive: impl Fn()) {
        let mut state = self.state.lock();
        let news = match cpu {
            None => Arc::clone(&self.anywhere),
            Some(cpu) => {
                let known = state.beside.len().max(cpu + 1);
                state.beside.resize(known, None);
                Arc::clone(state.beside[cpu].insert(Arc::default()))
            }
        };
        loop {
            while state.started && !state.driving {
                state.started = false;
                state.driving = true;
                MutexGuard::unlocked(&mut state, &drive);
                state.driving = false;
            }
            if state.stopped {
                return;
            }
            news.wait(&mut state);
        }
    }

    /// The drivers end when what was started is driven.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.anywhere.notify_all();
        for driver in state.beside.drain(..).flatten() {
            driver.notify_all();
        }
    }
}

/// The CPU that the calling thread runs on.
pub(crate) fn this_cpu() -> Option<usize> {
    // SAFETY: no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The CPUs that the calling thread may run on; none where there are more than can be told.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all zeros is the empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `allowed` is a valid set of the size given; 0 is the calling thread.
    let known = unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) } == 0;
    // SAFETY: the set is looked at within its size.
    let holds = |&cpu: &usize| unsafe { libc::CPU_ISSET(cpu, &allowed) };
    (0..libc::CPU_SETSIZE as usize).filter(|_| known).filter(holds).collect()
}

/// Ties the calling thread to one of the CPUs that it may run on. One that cannot be tied runs as it did.
pub(crate) fn tie_to(cpu: usize) {
    // SAFETY: all zeros is the empty set.
    let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is one of a set of this size.
    unsafe { libc::CPU_SET(cpu, &mut only) };
    // SAFETY: a valid set of the size given; 0 is the calling thread.
    let tied = unsafe { libc::sched_setaffinity(0, size_of_val(&only), &raw const only) } == 0;
    if !tied {
        tracing::debug!(cpu, "a driver of syncs is not tied to its CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A driver that tells when it drives, and does not end that before it is told to.
    struct Told {
        drives: std::sync::mpsc::Receiver<()>,
        go_on: std::sync::mpsc::Sender<()>,
        thread: std::thread::JoinHandle<()>,
    }

    fn driver(drivers: &Arc<Drivers>, cpu: Option<usize>) -> Told {
        let (tell, drives) = channel();
        let (go_on, may_go_on) = channel();
        let shared = Arc::clone(drivers);
        let thread = std::thread::spawn(move || {
            shared.run(cpu, || {
                tell.send(()).expect("the test waits");
                may_go_on.recv().expect("the test lets it go on");
            });
        });
        while cpu.is_some_and(|cpu| drivers.state.lock().beside.get(cpu).is_none_or(Option::is_none)) {
            std::thread::yield_now();
        }
        Told { drives, go_on, thread }
    }

    #[test]
    fn a_sync_is_driven_beside_its_queue_and_by_whoever_is_at_it_already() {
        let drivers = Arc::new(Drivers::new());
        let (anywhere, third) = (driver(&drivers, None), driver(&drivers, Some(3)));
        drivers.kick(Some(3));
        third.drives.recv().expect("the driver of the CPU");
        // While it is at it.
        drivers.kick(None);
        drivers.kick(Some(7));
        third.go_on.send(()).expect("it waits");
        third.drives.recv().expect("it looks again");
        third.go_on.send(()).expect("it waits");
        assert!(anywhere.drives.try_recv().is_err(), "one drives at a time");
        while drivers.state.lock().driving {
            std::thread::yield_now();
        }
        drivers.kick(Some(7));
        anywhere.drives.recv().expect("a CPU without a driver");
        drivers.kick(Some(3));
        drivers.stop();
        anywhere.go_on.send(()).expect("it waits");
        anywhere.drives.recv().expect("what was started before the end is driven");
        anywhere.go_on.send(()).expect("it waits");
        assert!(third.drives.recv().is_err(), "it has ended without driving again");
        for thread in [anywhere.thread, third.thread] {
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn a_driver_is_tied_to_its_cpu() {
        let allowed = std::thread::spawn(|| {
            let last = *allowed_cpus().last().expect("some CPU runs this");
            tie_to(last);
            (last, allowed_cpus(), this_cpu())
        });
        let (last, allowed, here) = allowed.join().expect("no panic");
        assert_eq!((allowed, here), (vec![last], Some(last)));
    }
}
