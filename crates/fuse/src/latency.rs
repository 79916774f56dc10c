//! Histogram of how long something took: four buckets per power of two, so that a percentile is within 25 %.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two, as bits.
const SPLIT_BITS: u32 = 2;
const SPLIT: u64 = 1 << SPLIT_BITS;
/// Covers all of 64-bit nanoseconds.
const BUCKETS: usize = (64 * SPLIT) as usize;

#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(), max: AtomicU64::new(0) }
    }
}

/// A look at a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    /// Upper bounds of the buckets that the percentiles fall into, in nanoseconds.
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Histogram {
    pub(crate) fn record(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanoseconds)].fetch_add(1, Relaxed);
        self.max.fetch_max(nanoseconds, Relaxed);
    }

    pub(crate) fn percentiles(&self) -> Percentiles {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max = self.max.load(Relaxed);
        let at = |per_mille: u64| {
            let rank = (count * per_mille).div_ceil(1000);
            let mut seen = 0;
            let index = counts.iter().position(|in_bucket| {
                seen += in_bucket;
                seen >= rank && seen > 0
            });
            index.map_or(0, |index| upper_bound(index).min(max))
        };
        Percentiles { count, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max }
    }
}

fn bucket(value: u64) -> usize {
    if value < SPLIT {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros();
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
    let within = index % SPLIT;
    let width = 1_u64 << (octave - u64::from(SPLIT_BITS));
    (1_u64 << octave) + within * width + (width - 1)
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
    fn percentiles_are_within_a_quarter() {
        let histogram = Histogram::default();
        assert_eq!(histogram.percentiles(), Percentiles::default());
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        let seen = histogram.percentiles();
        assert_eq!((seen.count, seen.max), (1000, 1_000_000));
        assert!((500_000..625_000).contains(&seen.p50), "{}", seen.p50);
        assert!((990_000..=1_000_000).contains(&seen.p99), "{}", seen.p99);
    }
}
