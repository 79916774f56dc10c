//! What a run takes of the machine: the processor time of threads, and memory over the time.
//!
//! Read from `/proc`; where there is none, the processor's time is the time that has passed, and memory is not told.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// Processor time of one thread, from its beginning on. A loaded machine does not change it much.
pub struct ThreadTime {
    began: Instant,
    before: Option<Duration>,
}

fn told() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split(' ').next()?.parse().ok()?))
}

impl ThreadTime {
    pub fn begin() -> ThreadTime {
        ThreadTime { began: Instant::now(), before: told() }
    }

    /// Of the same thread, since `begin`.
    pub fn spent(&self) -> Duration {
        match (self.before, told()) {
            (Some(before), Some(now)) => now.saturating_sub(before),
            _ => self.began.elapsed(),
        }
    }
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? * 1024)
}

/// Samples the process's memory until it is asked.
pub struct MemoryLog {
    shared: Arc<(Mutex<bool>, Condvar)>,
    sampler: JoinHandle<Vec<u64>>,
}

impl MemoryLog {
    pub fn begin() -> MemoryLog {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let watched = Arc::clone(&shared);
        let sampler = std::thread::spawn(move || {
            let mut samples = Vec::new();
            let mut ended = watched.0.lock();
            while !*ended {
                samples.extend(resident_bytes());
                watched.1.wait_for(&mut ended, SAMPLE_EVERY);
            }
            samples
        });
        MemoryLog { shared, sampler }
    }

    /// The most that each quarter of the time took, in bytes; `None` if the system does not tell.
    pub fn end(self) -> Option<[u64; 4]> {
        *self.shared.0.lock() = true;
        self.shared.1.notify_all();
        let samples = self.sampler.join().ok().filter(|samples| !samples.is_empty())?;
        let quarter = |index: usize| {
            let part = &samples[samples.len() * index / 4..(samples.len() * (index + 1)).div_ceil(4)];
            part.iter().copied().max().unwrap_or(0)
        };
        Some([quarter(0), quarter(1), quarter(2), quarter(3)])
    }
}
