//! What is kept of each sync: how long it took, and which program had asked for it.
//!
//! Programs are counted by thread, because that is the number that a request brings. A table of fixed size takes them
//! by their hash: a sync costs it a few relaxed additions and no lock. Where all places of a hash are taken, the thread
//! with the fewest syncs makes room, and its figures go to "others". Threads are put together to programs when somebody
//! asks, which is also when those that have ended make room. Their numbers may be used again: a thread that comes with
//! the number of an ended one before anybody has asked adds to its figures.
//!
//! Relaxed atomics: they are statistics and order nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use syncline_fs::LatencyHistogram;

/// Threads that are told apart.
const PLACES: usize = 256;
/// Places that a thread may have.
const PROBES: usize = 8;
/// Programs that the statistics name.
pub(crate) const PROGRAMS_MAX: usize = 8;
/// Characters of a program's name, as the kernel keeps it.
pub(crate) const NAME_CHARACTERS_MAX: usize = 16;

/// When a sync was asked for, and by which thread (0: one that the daemon cannot see).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began {
    at: Instant,
    thread: u32,
}

impl Began {
    pub(crate) fn now(thread: u32) -> Began {
        Began::since(Instant::now(), thread)
    }

    /// For a sync that is part of a longer request. Never inlined: a copy in a function that is dropped by the linker
    /// would leave a tracepoint without a place.
    #[inline(never)]
    pub(crate) fn since(at: Instant, thread: u32) -> Began {
        syncline_probes::sync_start(thread);
        Began { at, thread }
    }
}

/// Of all syncs since the volume was mounted.
#[derive(Debug)]
pub(crate) struct Account {
    latency: LatencyHistogram,
    places: [Place; PLACES],
    /// Threads that have made room, and those without a number.
    others: Sums,
}

#[derive(Debug, Default)]
struct Place {
    /// 0: free.
    thread: AtomicU32,
    sums: Sums,
}

#[derive(Debug, Default)]
struct Sums {
    syncs: AtomicU64,
    nanoseconds: AtomicU64,
}

/// What a program has asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// `None`: all those that are not told one by one.
    pub(crate) pid: Option<u32>,
    pub(crate) name: String,
    pub(crate) syncs: u64,
    /// Time that its syncs took, added up.
    pub(crate) waited: Duration,
}

impl Default for Account {
    fn default() -> Account {
        Account {
            latency: LatencyHistogram::default(),
            places: std::array::from_fn(|_| Place::default()),
            others: Sums::default(),
        }
    }
}

impl Account {
    /// How long syncs took, from the request to the answer.
    pub(crate) fn latency(&self) -> &LatencyHistogram {
        &self.latency
    }

    /// A sync has ended.
    #[inline(never)]
    pub(crate) fn record(&self, began: Began) {
        let took = began.at.elapsed();
        self.latency.record(took);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        syncline_probes::reply(began.thread, nanoseconds);
        self.sums_of(began.thread).add(1, nanoseconds);
    }

    fn sums_of(&self, thread: u32) -> &Sums {
        if thread == 0 {
            return &self.others;
        }
        let places = self.places_of(thread);
        for place in places.clone() {
            match place.thread.load(Relaxed) {
                found if found == thread => return &place.sums,
                0 => {
                    let taken = place.thread.compare_exchange(0, thread, Relaxed, Relaxed);
                    if taken.is_ok() || taken == Err(thread) {
                        return &place.sums;
                    }
                }
                _ => {}
            }
        }
        let fewest = places.min_by_key(|place| place.sums.syncs.load(Relaxed));
        let place = fewest.expect("a thread has places");
        self.give_up(place);
        place.thread.store(thread, Relaxed);
        &place.sums
    }

    /// The places that a thread may have, in the order in which it looks at them.
    fn places_of(&self, thread: u32) -> impl Iterator<Item = &Place> + Clone {
        // Fibonacci hashing: consecutive numbers, as threads mostly have, lie far apart.
        let first = thread.wrapping_mul(0x9e37_79b1) as usize >> 16;
        (first..first + PROBES).map(|place| &self.places[place % PLACES])
    }

    /// The figures of a place go to the others.
    fn give_up(&self, place: &Place) {
        let (syncs, nanoseconds) = place.sums.take();
        self.others.add(syncs, nanoseconds);
    }

    /// The programs that waited longest, and at the end all others together, if there are any.
    pub(crate) fn programs(&self) -> Vec<Program> {
        self.programs_by(program_of)
    }

    fn programs_by(&self, program_of: impl Fn(u32) -> Option<(u32, String)>) -> Vec<Program> {
        let mut programs: BTreeMap<u32, Program> = BTreeMap::new();
        for place in &self.places {
            let thread = place.thread.load(Relaxed);
            if thread == 0 {
                continue;
            }
            let Some((pid, name)) = program_of(thread) else {
                if place.thread.compare_exchange(thread, 0, Relaxed, Relaxed).is_ok() {
                    self.give_up(place);
                }
                continue;
            };
            let program = programs.entry(pid).or_insert(Program {
                pid: Some(pid),
                name,
                syncs: 0,
                waited: Duration::ZERO,
            });
            program.add(&place.sums);
        }
        let mut programs: Vec<Program> = programs.into_values().collect();
        programs.sort_by_key(|program| std::cmp::Reverse(program.waited));
        let mut others = Program { pid: None, name: "others".to_owned(), syncs: 0, waited: Duration::ZERO };
        others.add(&self.others);
        for program in programs.drain(PROGRAMS_MAX.min(programs.len())..) {
            others.syncs += program.syncs;
            others.waited += program.waited;
        }
        if others.syncs > 0 {
            programs.push(others);
        }
        programs
    }
}

impl Program {
    fn add(&mut self, sums: &Sums) {
        self.syncs += sums.syncs.load(Relaxed);
        self.waited += Duration::from_nanos(sums.nanoseconds.load(Relaxed));
    }
}

impl Sums {
    fn add(&self, syncs: u64, nanoseconds: u64) {
        self.syncs.fetch_add(syncs, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    fn take(&self) -> (u64, u64) {
        (self.syncs.swap(0, Relaxed), self.nanoseconds.swap(0, Relaxed))
    }
}

/// The process that a thread belongs to, and the process' name; `None` if the thread has ended.
fn program_of(thread: u32) -> Option<(u32, String)> {
    let at = Path::new("/proc").join(thread.to_string());
    let status = std::fs::read_to_string(at.join("status")).ok()?;
    let pid: u32 = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, plain(name.trim_ascii_end())))
}

/// A program may give itself any name, of any bytes. What would take more than one in JSON is a question mark.
fn plain(name: &[u8]) -> String {
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    let shown = name.iter().map(|byte| if plain(byte) { char::from(*byte) } else { '?' });
    shown.take(NAME_CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sync(account: &Account, thread: u32, times: u64) {
        for _ in 0..times {
            account.record(Began::since(Instant::now() - Duration::from_millis(1), thread));
        }
    }

    #[test]
    fn threads_are_told_as_the_programs_that_they_belong_to() {
        let account = Account::default();
        for (thread, times) in [(100, 3), (101, 4), (205, 1), (0, 2)] {
            sync(&account, thread, times);
        }
        let by_hundreds = |thread: u32| Some((thread / 100 * 100, format!("p{}", thread / 100)));
        let told = account.programs_by(by_hundreds);
        let short: Vec<_> = told.iter().map(|told| (told.pid, told.name.as_str(), told.syncs)).collect();
        assert_eq!(short, [(Some(100), "p1", 7), (Some(200), "p2", 1), (None, "others", 2)]);
        assert!(told[0].waited >= Duration::from_millis(7));
        assert_eq!(account.latency().count(), 10);
    }

    #[test]
    fn no_sync_is_lost_when_threads_end_or_make_room() {
        let account = Account::default();
        // Eight threads fill all places of their hash. One with fewer syncs than all of them makes room for a ninth.
        for thread in 1..=5000 {
            sync(&account, thread, 1);
        }
        let told = account.programs_by(|thread| Some((thread, "x".to_owned())));
        assert_eq!(told.len(), PROGRAMS_MAX + 1);
        assert_eq!(told.iter().map(|told| told.syncs).sum::<u64>(), 5000);
        let told = account.programs_by(|_| None);
        assert_eq!((told.len(), told[0].pid, told[0].syncs), (1, None, 5000));
        assert!(account.places.iter().all(|place| place.thread.load(Relaxed) == 0), "their places are free");
    }

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(plain(b"a \"b\\\x1b\xff"), "a ?b???");
        assert_eq!(plain(&[b'x'; 99]).len(), NAME_CHARACTERS_MAX);
    }

    #[test]
    fn this_very_thread_belongs_to_this_process() {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() } as u32;
        let (pid, name) = program_of(thread).expect("it runs");
        assert_eq!(pid, std::process::id());
        assert!(!name.is_empty() && name.len() <= NAME_CHARACTERS_MAX, "{name}");
        assert_eq!(program_of(u32::MAX), None);
    }
}
