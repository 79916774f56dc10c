//! `memory=auto`: a bound on the daemon's memory that follows what the machine has.
//!
//! A kernel's file system keeps what was read and written for as long as nobody else wants the memory. The daemon's
//! bound does the same in steps: it grows while something is dropped for want of room and memory is available, and
//! shrinks as soon as somebody waits for memory (pressure stall information, Linux 4.20) or the daemon's control group
//! is at its limit. It stays between [`LEAST`] and a quarter of the machine's memory or of that group's limit.
//!
//! Hits do not decide: what is written once and read once has its first hit only where the bound is large enough.

use crate::unused::give_back_heap;
use parking_lot::Mutex;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use syncline_fs::Fs;

/// The bound never falls below this, unless the machine is so small that [`SHARE`] of it is less.
const LEAST: u64 = 64 << 20;
/// Where it begins.
const FIRST: u64 = 256 << 20;
/// Of the memory there is, the bound is this part at most.
const SHARE: u64 = 4;
/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the bound does not grow behind a shrinking.
const HOLD: Duration = Duration::from_secs(10);
/// Somebody waits for memory if it was so for one part in so many of the time.
const STALLED_SHARE: u32 = 100;
/// Of the machine's memory, this part is left available to others.
const LEFT_SHARE: u64 = 8;

/// What a machine tells about its memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    /// What could be had without swapping, in bytes.
    available: Option<u64>,
    /// How long somebody has waited for memory so far.
    stalled: Option<Duration>,
    /// How often the control group was at a limit so far.
    at_limit: u64,
}

/// Where it is told.
#[derive(Debug)]
struct Sources {
    meminfo: PathBuf,
    pressure: PathBuf,
    /// Of the daemon's control group: how often it was at its limits.
    events: Option<PathBuf>,
}

/// The bound, and what moved it.
#[derive(Debug)]
struct State {
    bound: u64,
    looked: Instant,
    seen: Seen,
    evictions: u64,
    held_until: Option<Instant>,
    grown: u64,
    shrunk: u64,
}

/// A bound that follows the machine.
#[derive(Debug)]
pub(crate) struct AutoMemory {
    sources: Sources,
    /// Of the machine, or of the control group if that may have less.
    total: u64,
    state: Mutex<State>,
}

impl AutoMemory {
    /// For the machine and control group of this process.
    pub(crate) fn new(now: Instant) -> AutoMemory {
        let group = group_directory();
        let pressure = group.as_ref().map(|group| group.join("memory.pressure")).filter(|path| path.exists());
        let sources = Sources {
            meminfo: "/proc/meminfo".into(),
            pressure: pressure.unwrap_or_else(|| "/proc/pressure/memory".into()),
            events: group.as_ref().map(|group| group.join("memory.events")),
        };
        let of_machine = kibibytes(&read(&sources.meminfo), "MemTotal:");
        let of_group = group.and_then(|group| group_limit(&group)).or_else(old_group_limit);
        // A machine that tells nothing is taken for a small one.
        let total = of_machine.unwrap_or(LEAST * SHARE).min(of_group.unwrap_or(u64::MAX));
        AutoMemory::over(sources, total, now)
    }

    fn over(sources: Sources, total: u64, now: Instant) -> AutoMemory {
        let seen = sources.look();
        let bound = FIRST.min(total / SHARE);
        let state = State { bound, looked: now, seen, evictions: 0, held_until: None, grown: 0, shrunk: 0 };
        AutoMemory { sources, total, state: Mutex::new(state) }
    }

    /// Has the engine keep to the bound, wherever the machine moves it.
    pub(crate) fn maintain(&self, fs: &Fs, now: Instant) {
        let before = self.bound();
        let Some(bound) = self.look(now, || fs.stats().pages.evictions) else { return };
        fs.set_memory_bytes_max(usize::try_from(bound).unwrap_or(usize::MAX));
        if bound < before {
            give_back_heap();
        }
        tracing::debug!(bound, before, "the bound on memory follows the machine");
    }

    /// The bound in bytes.
    pub(crate) fn bound(&self) -> u64 {
        self.state.lock().bound
    }

    fn most(&self) -> u64 {
        self.total / SHARE
    }

    /// Looks what has changed, once a period. `evictions`: pages that were dropped for want of room so far. Returns
    /// the bound if it is another one now.
    pub(crate) fn look(&self, now: Instant, evictions: impl FnOnce() -> u64) -> Option<u64> {
        let mut state = self.state.lock();
        let elapsed = now.duration_since(state.looked);
        if elapsed < PERIOD {
            return None;
        }
        let before = state.bound;
        let (seen, evictions) = (self.sources.look(), evictions());
        let dropped = evictions > state.evictions;
        let stalled = match (seen.stalled, state.seen.stalled) {
            (Some(now), Some(then)) => now.saturating_sub(then) > elapsed / STALLED_SHARE,
            _ => false,
        };
        let left = self.total / LEFT_SHARE;
        let scarce = seen.available.is_some_and(|available| available < left / 2);
        if stalled || scarce || seen.at_limit > state.seen.at_limit {
            state.bound = (before / 4 * 3).max(LEAST.min(self.most())).min(before);
            state.shrunk += u64::from(state.bound < before);
            state.held_until = Some(now + HOLD);
        } else if dropped && state.held_until.is_none_or(|until| now >= until) {
            let spare = seen.available.map_or(u64::MAX, |available| available.saturating_sub(left) / 2);
            state.bound = (before + (before / 4).min(spare)).min(self.most()).max(before);
            state.grown += u64::from(state.bound > before);
        }
        (state.looked, state.seen, state.evictions) = (now, seen, evictions);
        (state.bound != before).then_some(state.bound)
    }
}

impl fmt::Display for AutoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        let mib = |bytes: u64| bytes >> 20;
        let least = mib(LEAST.min(self.most()));
        write!(f, "auto, {} MiB of {least} to {} MiB", mib(state.bound), mib(self.most()))?;
        write!(f, "; grown {} times, shrunk {} times", state.grown, state.shrunk)
    }
}

impl Sources {
    fn look(&self) -> Seen {
        let events = self.events.as_deref().map_or_else(String::new, read);
        let count = |name: &str| number_behind(&events, name).unwrap_or(0);
        Seen {
            available: kibibytes(&read(&self.meminfo), "MemAvailable:"),
            stalled: stalled(&read(&self.pressure)),
            at_limit: count("high") + count("max"),
        }
    }
}

/// What is not there is empty: an older kernel, a sandbox.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number in the line that begins with this word.
fn number_behind(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(word))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn kibibytes(text: &str, word: &str) -> Option<u64> {
    number_behind(text, word)?.checked_mul(1 << 10)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, in microseconds.
fn stalled(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_whitespace().find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

/// Of the process' control group in the unified hierarchy, if there is one.
fn group_directory() -> Option<PathBuf> {
    let text = read("/proc/self/cgroup".as_ref());
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let directory = Path::new("/sys/fs/cgroup").join(path);
    directory.join("memory.events").exists().then_some(directory)
}

/// The least limit of the group and of those that it is in.
fn group_limit(group: &Path) -> Option<u64> {
    let limits = |directory: &Path| {
        let limit = |name: &str| read(&directory.join(name)).trim().parse::<u64>().ok();
        [limit("memory.max"), limit("memory.high")].into_iter().flatten().min()
    };
    group.ancestors().take_while(|directory| directory.starts_with("/sys/fs/cgroup")).filter_map(limits).min()
}

/// The same of the first version of control groups.
fn old_group_limit() -> Option<u64> {
    let text = read("/proc/self/cgroup".as_ref());
    let path = text.lines().find_map(|line| line.split_once(":memory:/"))?.1;
    let group = Path::new("/sys/fs/cgroup/memory").join(path);
    read(&group.join("memory.limit_in_bytes")).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 16 << 30;

    /// A machine whose files a test writes.
    struct Machine {
        files: tempfile::TempDir,
        now: Instant,
        memory: AutoMemory,
    }

    impl Machine {
        fn new(total: u64) -> Machine {
            let files = tempfile::tempdir().unwrap();
            let at = |name: &str| files.path().join(name);
            let sources =
                Sources { meminfo: at("meminfo"), pressure: at("pressure"), events: Some(at("events")) };
            write(&files, total / 2, 0, 0);
            let now = Instant::now();
            let memory = AutoMemory::over(sources, total, now);
            Machine { files, now, memory }
        }

        fn after(
            &mut self,
            (available, stalled_us, at_limit): (u64, u64, u64),
            evictions: u64,
        ) -> Option<u64> {
            write(&self.files, available, stalled_us, at_limit);
            self.now += PERIOD;
            self.memory.look(self.now, || evictions)
        }
    }

    fn write(files: &tempfile::TempDir, available: u64, stalled_us: u64, at_limit: u64) {
        let at = |name: &str| files.path().join(name);
        fs::write(at("meminfo"), format!("MemFree: 1 kB\nMemAvailable:  {} kB\n", available >> 10)).unwrap();
        let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us}\nfull total=9\n");
        fs::write(at("pressure"), line).unwrap();
        fs::write(at("events"), format!("low 0\nhigh {at_limit}\nmax 0\noom 0\n")).unwrap();
    }

    #[test]
    fn a_full_cache_grows_to_a_quarter_and_one_with_room_does_not() {
        let mut machine = Machine::new(TOTAL);
        assert_eq!(machine.memory.bound(), FIRST);
        assert_eq!(machine.after((TOTAL / 2, 0, 0), 0), None, "nothing was dropped");
        let mut bound = FIRST;
        for evictions in 1..40 {
            let now = machine.after((TOTAL / 2, 0, 0), evictions);
            assert!(now.is_none_or(|now| now > bound && now <= bound / 4 * 5));
            bound = now.unwrap_or(bound);
        }
        assert_eq!(bound, TOTAL / 4);
        assert!(machine.memory.to_string().starts_with("auto, 4096 MiB of 64 to 4096 MiB; grown"));
    }

    #[test]
    fn who_waits_for_memory_gets_some_at_once_and_keeps_it_for_a_while() {
        let pressures = [(TOTAL / 2, 20_000, 0), (TOTAL / 32, 0, 0), (TOTAL / 2, 0, 1)];
        for pressure in pressures {
            let mut machine = Machine::new(TOTAL);
            assert!(machine.after((TOTAL / 2, 0, 0), 1).is_some());
            let before = machine.memory.bound();
            assert_eq!(machine.after(pressure, 2), Some(before / 4 * 3), "{pressure:?}");
            let calm = (TOTAL / 2, pressure.1, pressure.2);
            for evictions in 3..12 {
                assert_eq!(machine.after(calm, evictions), None, "{pressure:?}");
            }
            assert!(machine.after(calm, 13).is_some_and(|bound| bound > before / 4 * 3), "{pressure:?}");
        }
    }

    #[test]
    fn it_never_falls_below_its_least_and_a_small_machine_has_a_small_one() {
        for (total, least) in [(TOTAL, LEAST), (128 << 20, 32 << 20)] {
            let mut machine = Machine::new(total);
            for round in 1..20 {
                machine.after((total / 64, 0, round), round);
            }
            assert_eq!(machine.memory.bound(), least);
        }
    }

    #[test]
    fn little_that_is_available_lets_it_grow_little() {
        let mut machine = Machine::new(TOTAL);
        let spare = 8 << 20;
        assert_eq!(machine.after((TOTAL / 8 + spare, 0, 0), 1), Some(FIRST + spare / 2));
    }

    #[test]
    fn a_kernel_that_tells_nothing_leaves_it_to_the_cache() {
        let mut machine = Machine::new(TOTAL);
        for name in ["meminfo", "pressure", "events"] {
            fs::remove_file(machine.files.path().join(name)).unwrap();
        }
        machine.now += PERIOD;
        assert_eq!(machine.memory.look(machine.now, || 1), Some(FIRST / 4 * 5));
    }
}
