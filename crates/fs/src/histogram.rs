//! Latencies in logarithmic buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets: one per power of two of nanoseconds.
const BUCKETS: usize = 64;

/// Counts durations in buckets of powers of two nanoseconds. Recording takes no lock.
#[derive(Debug)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    total_nanoseconds: AtomicU64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            total_nanoseconds: AtomicU64::new(0),
        }
    }
}

impl LatencyHistogram {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = nanoseconds.max(1).ilog2() as usize;
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.total_nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Mean, zero when nothing was recorded.
    pub fn mean(&self) -> Duration {
        let total = self.total_nanoseconds.load(Ordering::Relaxed);
        Duration::from_nanos(total.checked_div(self.count()).unwrap_or(0))
    }

    /// Upper edge of the bucket that the given share (0.0 to 1.0) of all durations does not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share.clamp(0.0, 1.0)).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count.load(Ordering::Relaxed);
            if seen > 0 && seen >= wanted {
                return Duration::from_nanos(u64::MAX >> (BUCKETS - 1 - bucket));
            }
        }
        Duration::ZERO
    }

    /// The non-empty buckets: upper edge and count.
    pub fn buckets(&self) -> Vec<(Duration, u64)> {
        let edge = |bucket: usize| Duration::from_nanos(u64::MAX >> (BUCKETS - 1 - bucket));
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, count)| *count > 0).map(|(bucket, count)| (edge(bucket), count)).collect()
    }
}

impl Clone for LatencyHistogram {
    fn clone(&self) -> LatencyHistogram {
        let copy = LatencyHistogram::default();
        for (to, from) in copy.buckets.iter().zip(&self.buckets) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        copy.total_nanoseconds.store(self.total_nanoseconds.load(Ordering::Relaxed), Ordering::Relaxed);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_edges_of_power_of_two_buckets() {
        let histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for _ in 0..99 {
            histogram.record(Duration::from_nanos(1000));
        }
        histogram.record(Duration::from_millis(1));
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.quantile(0.5), Duration::from_nanos(1023));
        assert_eq!(histogram.quantile(0.99), Duration::from_nanos(1023));
        assert_eq!(histogram.quantile(1.0), Duration::from_nanos((1 << 20) - 1));
        assert_eq!(histogram.mean(), Duration::from_nanos(10_990));
        histogram.record(Duration::MAX);
        assert_eq!(histogram.buckets().last().map(|bucket| bucket.1), Some(1));
    }
}
