//! Under which class of the scheduler a thread answers.
//!
//! The kernel wakes a caller while the thread that answers it still runs. The scheduler then takes that CPU for busy
//! and moves the caller to an idle one (`select_idle_sibling`): its next message goes to another queue, and each costs
//! an interrupt to a CPU that sleeps. A CPU that runs nothing but threads of class SCHED_IDLE counts as idle for that
//! choice (`sched_idle_cpu`, Linux 5.4), and such a thread makes room for its caller at once. So threads that answer
//! belong to that class, as long as they get a CPU when they want one.
//!
//! Syncs are another matter. A caller that waits for the device leaves its CPU anyway, so little is won; and whatever
//! else becomes runnable meanwhile (the kernel's block threads, other callers that copy) delays the answer. A thread
//! of whose requests many are syncs stays in the usual class.
//!
//! Where others keep all CPUs busy such a thread may wait for milliseconds, and so may one of the usual class: which
//! one waits longer depends on who the others are. So each thread measures how long it waits for a CPU
//! (/proc/thread-self/schedstat). One that waits tries the usual class for a while and stays where it waits less.
//! While its only caller runs it is asked for nothing: that is no wait.
//!
//! What else the daemon runs on a caller's CPU all the time, the watch of the readers, has to be of that class as well,
//! and by the same rule: a single thread of the usual class makes the CPU busy.

use crate::abi::InHeader;
use crate::scheduling::Scheduling;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

mod caller;
mod choice;

use super::streams::is_sync;
use caller::Caller;
use choice::{Choice, Times, WAIT_MAX, WAIT_MAX_OF_WATCH};

/// A thread looks at its waits after so many rounds, or after fewer that took long.
const ROUNDS: u32 = 64;
const ROUNDS_FEW: u32 = 8;
const LONG: Duration = Duration::from_millis(50);
/// What RLIMIT_NICE has to allow a thread of nice value 0 that wants to leave SCHED_IDLE: 20 minus that value.
const RLIMIT_NICE_LEAST: libc::rlim_t = 20;

/// The classes of the threads that answer on one connection.
#[derive(Debug, Default)]
pub struct Classes {
    /// Threads of class SCHED_IDLE now.
    idle: AtomicU32,
    /// All that answer.
    threads: AtomicU32,
    /// How often one has left SCHED_IDLE because it waited for a CPU.
    left: AtomicU64,
    /// How often one has left it because many of its requests were syncs.
    syncs: AtomicU64,
    /// Why no thread enters it.
    unavailable: Option<Unavailable>,
}

/// Why no thread enters SCHED_IDLE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unavailable {
    NotAsked,
    /// It could not leave it again.
    NoReturn,
}

impl Classes {
    pub(crate) fn new(asked: bool) -> Classes {
        let unavailable = match asked {
            false => Some(Unavailable::NotAsked),
            true if !may_leave() => Some(Unavailable::NoReturn),
            true => None,
        };
        Classes { unavailable, ..Classes::default() }
    }
}

impl std::fmt::Display for Classes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let threads = self.threads.load(Ordering::Relaxed);
        match self.unavailable {
            Some(Unavailable::NotAsked) => write!(f, "the usual class, as asked for"),
            Some(Unavailable::NoReturn) => {
                write!(
                    f,
                    "the usual class: RLIMIT_NICE is below {RLIMIT_NICE_LEAST}, so SCHED_IDLE could not be left"
                )
            }
            None => {
                let [left, syncs] = [&self.left, &self.syncs].map(|count| count.load(Ordering::Relaxed));
                let idle = self.idle.load(Ordering::Relaxed);
                write!(
                    f,
                    "{idle} of {threads} threads in SCHED_IDLE, left {syncs} times for syncs and {left} times for want \
                     of a CPU"
                )
            }
        }
    }
}

/// The class of one thread. It stays on that thread.
pub(super) struct Class {
    classes: Arc<Classes>,
    /// None where the class stays the usual one.
    chosen: Option<Chosen>,
}

struct Chosen {
    choice: Choice,
    /// What the thread had before.
    usual: Scheduling,
    schedstat: File,
    rounds: u32,
    caller: Caller,
    /// At the last look.
    looked: Instant,
    seen: Times,
}

impl Class {
    /// The calling thread's, which enters SCHED_IDLE if it may.
    pub(super) fn of_this_thread(classes: Arc<Classes>) -> Class {
        classes.threads.fetch_add(1, Ordering::Relaxed);
        Class::begin(classes, WAIT_MAX)
    }

    /// That of a watch, which is told of nowhere.
    pub(super) fn of_watch(classes: &Classes) -> Class {
        let untold = Classes { unavailable: classes.unavailable, ..Classes::default() };
        Class::begin(Arc::new(untold), WAIT_MAX_OF_WATCH)
    }

    fn begin(classes: Arc<Classes>, wait_max: Duration) -> Class {
        let mut class = Class { classes, chosen: None };
        if class.classes.unavailable.is_none() {
            match Chosen::new(wait_max) {
                Ok(chosen) => class.chosen = Some(chosen),
                Err(error) => tracing::debug!(%error, "a thread that answers keeps its class"),
            }
        }
        class.classes.idle.fetch_add(u32::from(class.chosen.is_some()), Ordering::Relaxed);
        class
    }

    /// The thread has taken a request, and is about to handle it. `op` begins with its operation's header.
    ///
    /// A sync is never handled in SCHED_IDLE: what it starts, threads of the kernel among others, would be of that
    /// class, too.
    pub(super) fn takes(&mut self, header: &InHeader, op: &[u8]) {
        let Some(chosen) = &mut self.chosen else { return };
        let was_idle = chosen.choice.idle();
        chosen.caller.asks(header.pid);
        chosen.choice.takes(is_sync(header, op));
        if was_idle && !chosen.choice.idle() {
            chosen.apply();
            self.classes.idle.fetch_sub(1, Ordering::Relaxed);
            self.classes.syncs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The thread has answered, and is about to wait for more.
    pub(super) fn round(&mut self) {
        let Some(chosen) = &mut self.chosen else { return };
        chosen.rounds += 1;
        if chosen.rounds < ROUNDS_FEW {
            return;
        }
        let now = Instant::now();
        if chosen.rounds < ROUNDS && now.duration_since(chosen.looked) < LONG {
            return;
        }
        let was_idle = chosen.choice.idle();
        chosen.look(now);
        match (was_idle, chosen.choice.idle()) {
            (true, false) => {
                self.classes.idle.fetch_sub(1, Ordering::Relaxed);
                self.classes.left.fetch_add(1, Ordering::Relaxed);
            }
            (false, true) => drop(self.classes.idle.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        self.classes.threads.fetch_sub(1, Ordering::Relaxed);
        let was_idle = self.chosen.as_ref().is_some_and(|chosen| chosen.choice.idle());
        self.classes.idle.fetch_sub(u32::from(was_idle), Ordering::Relaxed);
    }
}

impl Chosen {
    fn new(wait_max: Duration) -> io::Result<Chosen> {
        let schedstat = File::open("/proc/thread-self/schedstat")?;
        let seen = Times::read(&schedstat)?;
        let usual = Scheduling::of_this_thread()?;
        if !usual.is_usual() {
            // Somebody has chosen a class for the daemon.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let chosen = Chosen {
            choice: Choice::new(wait_max),
            usual,
            schedstat,
            rounds: 0,
            caller: Caller::default(),
            looked: Instant::now(),
            seen,
        };
        chosen.usual.idle().apply()?;
        Ok(chosen)
    }

    fn look(&mut self, now: Instant) {
        let times = match Times::read(&self.schedstat) {
            Ok(times) => times,
            Err(error) => return tracing::debug!(%error, "how long a thread waits for a CPU is not known"),
        };
        let caller_ran = self.caller.ran(now.duration_since(self.looked));
        let average = times.average_wait(&self.seen, caller_ran);
        (self.rounds, self.looked, self.seen) = (0, now, times);
        if self.choice.changes(average, now) {
            self.apply();
        }
    }

    fn apply(&self) {
        let chosen = if self.choice.idle() { self.usual.idle() } else { self.usual };
        if let Err(error) = chosen.apply() {
            tracing::debug!(%error, "a thread that answers keeps its class");
        }
    }
}

/// Raises RLIMIT_NICE so far that threads may leave SCHED_IDLE again without privileges; false where it cannot be
/// raised. To be called before a process gives up CAP_SYS_RESOURCE. With CAP_SYS_NICE there is no need.
pub fn raise_nice_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one limit.
    if unsafe { libc::getrlimit(libc::RLIMIT_NICE, &raw mut limit) } != 0 {
        return false;
    }
    if limit.rlim_cur >= RLIMIT_NICE_LEAST {
        return true;
    }
    let raised =
        libc::rlimit { rlim_cur: RLIMIT_NICE_LEAST, rlim_max: limit.rlim_max.max(RLIMIT_NICE_LEAST) };
    // SAFETY: a valid limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NICE, &raw const raised) == 0 }
}

/// Whether threads that have entered SCHED_IDLE may leave it again. One of no other use tries.
fn may_leave() -> bool {
    raise_nice_limit();
    let enter_and_leave = || {
        let usual = Scheduling::of_this_thread()?;
        usual.idle().apply()?;
        usual.apply()
    };
    let tried = std::thread::Builder::new().name("fuse-class".to_owned()).spawn(enter_and_leave);
    tried.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_enters_the_class_and_is_not_counted() {
        std::thread::spawn(|| {
            let classes = Classes::new(true);
            let class = Class::of_watch(&classes);
            assert_eq!(Scheduling::of_this_thread().unwrap().is_idle(), class.chosen.is_some());
            assert_eq!((classes.idle.into_inner(), classes.threads.into_inner()), (0, 0));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_enters_the_class_and_leaves_it_again() {
        std::thread::spawn(|| {
            let classes = Arc::new(Classes::new(true));
            let mut class = Class::of_this_thread(classes.clone());
            let Some(chosen) = &mut class.chosen else {
                return println!("skipped: classes: {classes}");
            };
            assert!(Scheduling::of_this_thread().unwrap().is_idle());
            assert!(chosen.choice.changes(Duration::from_millis(10), Instant::now()));
            chosen.apply();
            assert!(Scheduling::of_this_thread().unwrap().is_usual());
        })
        .join()
        .unwrap();
    }
}
