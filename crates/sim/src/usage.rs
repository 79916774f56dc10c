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

/// What is sampled so far.
#[derive(Default)]
struct Samples {
    bytes: Vec<u64>,
    /// Where those of the present part begin.
    part: usize,
    ended: bool,
}

/// Samples the process's memory until it is dropped.
pub struct MemoryLog {
    shared: Arc<(Mutex<Samples>, Condvar)>,
    sampler: Option<JoinHandle<()>>,
}

impl MemoryLog {
    pub fn begin() -> MemoryLog {
        let shared = Arc::new((Mutex::new(Samples::default()), Condvar::new()));
        let watched = Arc::clone(&shared);
        let sampler = std::thread::spawn(move || {
            let mut samples = watched.0.lock();
            while !samples.ended {
                samples.bytes.extend(resident_bytes());
                watched.1.wait_for(&mut samples, SAMPLE_EVERY);
            }
        });
        MemoryLog { shared, sampler: Some(sampler) }
    }

    /// The most that each quarter took of the time since this was asked last, in bytes; `None` if the system does not
    /// tell.
    pub fn part(&self) -> Option<[u64; 4]> {
        let mut samples = self.shared.0.lock();
        samples.bytes.extend(resident_bytes());
        let quarters = quarters(&samples.bytes[samples.part..]);
        samples.part = samples.bytes.len();
        quarters
    }

    /// The same of the whole time.
    pub fn all(&self) -> Option<[u64; 4]> {
        quarters(&self.shared.0.lock().bytes)
    }
}

impl Drop for MemoryLog {
    fn drop(&mut self) {
        self.shared.0.lock().ended = true;
        self.shared.1.notify_all();
        let ended = self.sampler.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the sampler does not panic");
    }
}

fn quarters(samples: &[u64]) -> Option<[u64; 4]> {
    let quarter = |index: usize| {
        let part = &samples[samples.len() * index / 4..(samples.len() * (index + 1)).div_ceil(4)];
        part.iter().copied().max().unwrap_or(0)
    };
    (!samples.is_empty()).then(|| [0, 1, 2, 3].map(quarter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_where_the_one_before_ended() {
        let log = MemoryLog::begin();
        if log.part().is_none() {
            return;
        }
        // Hidden from the optimiser, which would leave it out.
        let kept = std::hint::black_box(vec![1_u8; 32 << 20]);
        let during = log.part().expect("it was told before");
        assert!(during[3] > kept.len() as u64, "{during:?}");
        assert_eq!(log.all().expect("it was told before").iter().max(), during.iter().max());
        assert_eq!(quarters(&[1, 2, 3, 4, 5]), Some([2, 3, 4, 5]));
    }
}
