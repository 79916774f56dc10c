//! Under which class of the scheduler a thread answers.
//!
//! The kernel wakes a caller while the thread that answers it still runs. The scheduler then takes that CPU for busy
//! and moves the caller to an idle one (`select_idle_sibling`): its next message goes to another queue, and each costs
//! an interrupt to a CPU that sleeps. A CPU that runs nothing but threads of class SCHED_IDLE counts as idle for that
//! choice (`sched_idle_cpu`, Linux 5.4), and such a thread makes room for its caller at once. So threads that answer
//! belong to that class, as long as they get a CPU when they want one.
//!
//! Where others keep all CPUs busy such a thread may wait for milliseconds, and so may one of the usual class: which
//! one waits longer depends on who the others are. So each thread measures how long it waits for a CPU
//! (/proc/thread-self/schedstat). One that waits tries the usual class for a while and stays where it waits less.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A thread that waits for less than this on average each time it wants to run does not wait.
const WAIT_MAX: Duration = Duration::from_micros(50);
/// How long a thread stays in the usual class before it tries the other one again: at first, and at most.
const STAY_MIN: Duration = Duration::from_secs(1);
const STAY_MAX: Duration = Duration::from_secs(64);
/// How long it is known how much a thread waits in a class in which it is not.
const KNOWN: Duration = Duration::from_secs(10);
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
                let (idle, left) = (self.idle.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
                write!(f, "{idle} of {threads} threads in SCHED_IDLE, left {left} times for want of a CPU")
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
    usual: libc::sched_attr,
    schedstat: File,
    rounds: u32,
    /// At the last look.
    looked: Instant,
    seen: Waits,
}

impl Class {
    /// The calling thread's, which enters SCHED_IDLE if it may.
    pub(super) fn of_this_thread(classes: Arc<Classes>) -> Class {
        classes.threads.fetch_add(1, Ordering::Relaxed);
        let mut class = Class { classes, chosen: None };
        if class.classes.unavailable.is_none() {
            match Chosen::new() {
                Ok(chosen) => class.chosen = Some(chosen),
                Err(error) => tracing::debug!(%error, "a thread that answers keeps its class"),
            }
        }
        class.classes.idle.fetch_add(u32::from(class.chosen.is_some()), Ordering::Relaxed);
        class
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
        let was_idle = chosen.choice.idle;
        if let Err(error) = chosen.look(now) {
            tracing::debug!(%error, "a thread that answers keeps its class");
        }
        match (was_idle, chosen.choice.idle) {
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
        let was_idle = self.chosen.as_ref().is_some_and(|chosen| chosen.choice.idle);
        self.classes.idle.fetch_sub(u32::from(was_idle), Ordering::Relaxed);
    }
}

impl Chosen {
    fn new() -> io::Result<Chosen> {
        let schedstat = File::open("/proc/thread-self/schedstat")?;
        let seen = Waits::read(&schedstat)?;
        let usual = attributes()?;
        if usual.sched_policy != libc::SCHED_OTHER as u32 {
            // Somebody has chosen a class for the daemon.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let chosen =
            Chosen { choice: Choice::new(), usual, schedstat, rounds: 0, looked: Instant::now(), seen };
        chosen.apply()?;
        Ok(chosen)
    }

    fn look(&mut self, now: Instant) -> io::Result<()> {
        let waits = Waits::read(&self.schedstat)?;
        let average = waits.since(&self.seen);
        (self.rounds, self.looked, self.seen) = (0, now, waits);
        if self.choice.changes(average, now) {
            self.apply()?;
        }
        Ok(())
    }

    fn apply(&self) -> io::Result<()> {
        set(&if self.choice.idle { idle(self.usual) } else { self.usual })
    }
}

fn attributes() -> io::Result<libc::sched_attr> {
    // SAFETY: all zeros are valid attributes.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes);
    // SAFETY: the kernel writes at most `size` bytes; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
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
        let usual = attributes()?;
        set(&idle(usual))?;
        set(&usual)
    };
    let tried = std::thread::Builder::new().name("fuse-class".to_owned()).spawn(enter_and_leave);
    tried.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
}

fn idle(usual: libc::sched_attr) -> libc::sched_attr {
    libc::sched_attr { sched_policy: libc::SCHED_IDLE as u32, ..usual }
}

/// Of the calling thread.
fn set(attributes: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the structure says its own size; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How long a thread has waited for a CPU so far, and how often it ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waits {
    total: Duration,
    runs: u64,
}

impl Waits {
    fn read(schedstat: &File) -> io::Result<Waits> {
        let mut text = [0; 96];
        let len = schedstat.read_at(&mut text, 0)?;
        Waits::parse(&text[..len]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Time on a CPU, time waiting for one, both in nanoseconds, and times it ran.
    fn parse(text: &[u8]) -> Option<Waits> {
        let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace().skip(1);
        let total = Duration::from_nanos(fields.next()?.parse().ok()?);
        Some(Waits { total, runs: fields.next()?.parse().ok()? })
    }

    /// The average wait since then.
    fn since(&self, earlier: &Waits) -> Duration {
        let runs = self.runs.saturating_sub(earlier.runs).max(1);
        self.total.saturating_sub(earlier.total) / u32::try_from(runs).unwrap_or(u32::MAX)
    }
}

/// Which class a thread should have, by how long it waits.
#[derive(Debug)]
struct Choice {
    idle: bool,
    /// Until when it is in the usual class, and how long the next time.
    until: Option<Instant>,
    stay: Duration,
    /// How long it waited in the class in which it is not, and when.
    other: Option<(Duration, Instant)>,
}

impl Choice {
    fn new() -> Choice {
        Choice { idle: true, until: None, stay: STAY_MIN, other: None }
    }

    /// Takes note of an average wait since the last time; whether the class is another one now.
    fn changes(&mut self, average: Duration, now: Instant) -> bool {
        let other =
            self.other.filter(|(_, then)| now.duration_since(*then) < KNOWN).map(|(waited, _)| waited);
        let waits_less_there = other.is_none_or(|waited| waited < average);
        let leaves = match (self.idle, self.until) {
            (true, _) => average > WAIT_MAX && waits_less_there,
            (false, Some(until)) if now >= until => true,
            (false, _) => other.is_some_and(|waited| waited < average),
        };
        if !leaves {
            if self.idle && average <= WAIT_MAX {
                self.stay = STAY_MIN;
            }
            return false;
        }
        self.other = Some((average, now));
        if self.idle {
            self.until = Some(now + self.stay);
            self.stay = (self.stay * 2).min(STAY_MAX);
        }
        self.idle = !self.idle;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: Duration = Duration::from_micros(5);
    const MUCH: Duration = Duration::from_millis(10);
    const MORE: Duration = Duration::from_millis(20);

    #[test]
    fn who_waits_for_a_cpu_tries_the_usual_class_and_comes_back_ever_later() {
        let (mut choice, mut now) = (Choice::new(), Instant::now());
        for _ in 0..100 {
            assert!(!choice.changes(LITTLE, now), "it gets a CPU when it wants one");
        }
        let mut stays = Vec::new();
        for _ in 0..9 {
            assert!(choice.changes(MUCH, now) && !choice.idle);
            let left = now;
            while !choice.changes(LITTLE, now) {
                now += Duration::from_millis(100);
            }
            assert!(choice.idle);
            stays.push(now.duration_since(left).as_secs());
        }
        assert_eq!(stays, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        // Once it waits no more it is as at the beginning.
        assert!(!choice.changes(LITTLE, now) && choice.changes(MUCH, now));
        assert_eq!(choice.until, Some(now + STAY_MIN));
    }

    #[test]
    fn who_waits_in_both_classes_stays_where_it_waits_less() {
        let (mut choice, mut now) = (Choice::new(), Instant::now());
        assert!(choice.changes(MUCH, now) && !choice.idle);
        assert!(choice.changes(MORE, now) && choice.idle, "the usual class is worse");
        for _ in 0..50 {
            now += Duration::from_millis(100);
            assert!(!choice.changes(MUCH, now), "that is known for a while");
        }
        now += KNOWN;
        assert!(choice.changes(MUCH, now) && !choice.idle, "and then tried again");
    }

    #[test]
    fn waits_are_read_as_the_kernel_writes_them() {
        let earlier = Waits::parse(b"500 1000000 10\n").unwrap();
        let later = Waits::parse(b"900 5000000 14\n").unwrap();
        assert_eq!(later.since(&earlier), Duration::from_millis(1));
        assert_eq!(earlier.since(&earlier), Duration::ZERO);
        assert_eq!(Waits::parse(b"500 x"), None);
    }

    #[test]
    fn a_thread_enters_the_class_and_leaves_it_again() {
        std::thread::spawn(|| {
            let classes = Arc::new(Classes::new(true));
            let mut class = Class::of_this_thread(classes.clone());
            let Some(chosen) = &mut class.chosen else {
                return println!("skipped: classes: {classes}");
            };
            assert_eq!(attributes().unwrap().sched_policy, libc::SCHED_IDLE as u32);
            assert!(chosen.choice.changes(MUCH, Instant::now()));
            chosen.apply().expect("it may return");
            assert_eq!(attributes().unwrap().sched_policy, libc::SCHED_OTHER as u32);
        })
        .join()
        .unwrap();
    }
}
