//! Latencies in logarithmic buckets: four per power of two, so that a percentile is within 25 %.
//!
//! Relaxed atomics: they are statistics and order nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Buckets per power of two, as bits.
const SPLIT_BITS: u32 = 2;
const SPLIT: u64 = 1 << SPLIT_BITS;
/// Covers all of 64-bit nanoseconds.
const BUCKETS: usize = (64 * SPLIT) as usize;
/// Powers of two in 64 bits.
const OCTAVES: usize = 64;

/// Counts durations in logarithmic buckets. Recording takes no lock.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    total_nanoseconds: AtomicU64,
    max_nanoseconds: AtomicU64,
    last_nanoseconds: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            total_nanoseconds: AtomicU64::new(0),
            max_nanoseconds: AtomicU64::new(0),
            last_nanoseconds: AtomicU64::new(0),
        }
    }
}

impl LatencyHistogram {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanoseconds)].fetch_add(1, Relaxed);
        self.total_nanoseconds.fetch_add(nanoseconds, Relaxed);
        self.max_nanoseconds.fetch_max(nanoseconds, Relaxed);
        self.last_nanoseconds.store(nanoseconds, Relaxed);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Sum of all durations.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_nanoseconds.load(Relaxed))
    }

    /// Mean, zero when nothing was recorded.
    pub fn mean(&self) -> Duration {
        let total = self.total_nanoseconds.load(Relaxed);
        Duration::from_nanos(total.checked_div(self.count()).unwrap_or(0))
    }

    /// The longest duration.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_nanoseconds.load(Relaxed))
    }

    /// The duration that was recorded last.
    pub fn last(&self) -> Duration {
        Duration::from_nanos(self.last_nanoseconds.load(Relaxed))
    }

    /// Bound, at most a quarter too large, that the given share (0.0 to 1.0) of all durations does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count.load(Relaxed);
            if seen > 0 && seen >= wanted {
                return Duration::from_nanos(upper_bound(index)).min(self.max());
            }
        }
        Duration::ZERO
    }

    /// The durations by powers of two of nanoseconds: upper edge and count, empty ones left out.
    pub fn buckets(&self) -> Vec<(Duration, u64)> {
        let mut counts = [0; OCTAVES];
        for (index, count) in self.buckets.iter().enumerate() {
            counts[upper_bound(index).max(1).ilog2() as usize] += count.load(Relaxed);
        }
        let edge = |octave: usize| Duration::from_nanos(u64::MAX >> (OCTAVES - 1 - octave));
        let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
        counts.map(|(octave, count)| (edge(octave), count)).collect()
    }
}

impl Clone for LatencyHistogram {
    fn clone(&self) -> LatencyHistogram {
        let copy = |from: &AtomicU64| AtomicU64::new(from.load(Relaxed));
        LatencyHistogram {
            buckets: std::array::from_fn(|index| copy(&self.buckets[index])),
            total_nanoseconds: copy(&self.total_nanoseconds),
            max_nanoseconds: copy(&self.max_nanoseconds),
            last_nanoseconds: copy(&self.last_nanoseconds),
        }
    }
}

fn bucket(value: u64) -> usize {
    if value < SPLIT {
        return value as usize;
    }
    let octave = value.ilog2();
    let within = (value >> (octave - SPLIT_BITS)) & (SPLIT - 1);
    (u64::from(octave - SPLIT_BITS + 1) * SPLIT + within) as usize
}

/// Largest value of a bucket.
fn upper_bound(index: usize) -> u64 {
    let index = index as u64;
    if index < SPLIT {
        return index;
    }
    let octave = index / SPLIT + u64::from(SPLIT_BITS) - 1;
    let Some(first) = 1_u64.checked_shl(octave as u32) else { return u64::MAX };
    let width = first >> SPLIT_BITS;
    first + index % SPLIT * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_below_its_buckets_bound_and_above_the_one_before() {
        for value in (0..10_000).chain([1 << 20, (1 << 40) + 12345, u64::MAX]) {
            let index = bucket(value);
            assert!(index < BUCKETS);
            assert!(value <= upper_bound(index), "{value}");
            assert!(index == 0 || value > upper_bound(index - 1), "{value}");
        }
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        let at = |share| histogram.quantile(share).as_nanos();
        assert!((500_000..625_000).contains(&at(0.5)), "{}", at(0.5));
        assert!((990_000..=1_000_000).contains(&at(0.99)), "{}", at(0.99));
        assert_eq!(at(1.0), 1_000_000);
    }

    #[test]
    fn totals_and_buckets_of_powers_of_two_hold_every_duration() {
        let histogram = LatencyHistogram::default();
        assert_eq!((histogram.mean(), histogram.buckets().len()), (Duration::ZERO, 0));
        histogram.record(Duration::from_millis(1));
        for _ in 0..99 {
            histogram.record(Duration::from_nanos(1000));
        }
        let histogram = histogram.clone();
        assert_eq!((histogram.count(), histogram.total()), (100, Duration::from_nanos(1_099_000)));
        assert_eq!(histogram.mean(), Duration::from_nanos(10_990));
        assert_eq!(
            (histogram.max(), histogram.last()),
            (Duration::from_millis(1), Duration::from_nanos(1000))
        );
        let edges = [(Duration::from_nanos(1023), 99), (Duration::from_nanos((1 << 20) - 1), 1)];
        assert_eq!(histogram.buckets(), edges);
        histogram.record(Duration::MAX);
        assert_eq!(histogram.buckets().last().copied(), Some((Duration::from_nanos(u64::MAX), 1)));
    }
}
