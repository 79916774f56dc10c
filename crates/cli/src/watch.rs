//! Watching a mount: its statistics taken again and again, and what has happened between two of them.

pub(crate) mod interval;
pub(crate) mod lines;

use crate::error::Failure;
use crate::stats;
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

/// The statistics of one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) figures: Value,
}

impl Sample {
    pub(crate) fn take(directory: &Path) -> Result<Sample, Failure> {
        let figures = stats::read(directory)?;
        Ok(Sample { at: Instant::now(), figures })
    }

    /// A figure by its path, like `/device/writes`; 0 if it is missing.
    pub(crate) fn number(&self, path: &str) -> f64 {
        self.figures.pointer(path).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

/// What lies between two samples of the same mount.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between<'a> {
    pub(crate) before: &'a Sample,
    pub(crate) after: &'a Sample,
}

impl Between<'_> {
    pub(crate) fn seconds(&self) -> f64 {
        self.after.at.saturating_duration_since(self.before.at).as_secs_f64()
    }

    /// By how much a counter has grown. One that has shrunk belongs to a new mount in the same place: what it has
    /// counted since is all there is.
    pub(crate) fn growth(&self, path: &str) -> f64 {
        let (before, after) = (self.before.number(path), self.after.number(path));
        if after < before { after } else { after - before }
    }

    pub(crate) fn per_second(&self, path: &str) -> f64 {
        let seconds = self.seconds();
        if seconds > 0.0 { self.growth(path) / seconds } else { 0.0 }
    }

    /// How much of one counter for each of another; `None` if there was nothing of the other.
    pub(crate) fn for_each(&self, part: &str, whole: &str) -> Option<f64> {
        let whole = self.growth(whole);
        (whole > 0.0).then(|| self.growth(part) / whole)
    }

    /// The share of hits among hits and misses.
    pub(crate) fn hit_share(&self, hits: &str, misses: &str) -> Option<f64> {
        let (hits, misses) = (self.growth(hits), self.growth(misses));
        (hits + misses > 0.0).then(|| hits / (hits + misses))
    }

    /// The time in microseconds that this share of what a histogram has counted meanwhile did not exceed. Within a
    /// bucket, which is a power of two, latencies are taken for evenly spread.
    pub(crate) fn quantile(&self, histogram: &str, share: f64) -> Option<f64> {
        let buckets = self.buckets(histogram);
        let total: f64 = buckets.iter().map(|(_, count)| count).sum();
        let wanted = total * share;
        let mut seen = 0.0;
        for (up_to, count) in buckets {
            if count > 0.0 && seen + count >= wanted {
                let from = up_to / 2.0;
                return Some(from + (up_to - from) * ((wanted - seen) / count).clamp(0.0, 1.0));
            }
            seen += count;
        }
        None
    }

    /// Upper edges in microseconds, and what was counted meanwhile.
    fn buckets(&self, histogram: &str) -> Vec<(f64, f64)> {
        let of = |sample: &Sample| -> Vec<(f64, f64)> {
            let list = sample.figures.pointer(&format!("/{histogram}/buckets")).and_then(Value::as_array);
            let number = |bucket: &Value, key: &str| bucket[key].as_f64().unwrap_or(0.0);
            list.into_iter()
                .flatten()
                .map(|bucket| (number(bucket, "up_to"), number(bucket, "count")))
                .collect()
        };
        let before = of(self.before);
        let counted_before =
            |up_to: f64| before.iter().find(|(edge, _)| *edge == up_to).map_or(0.0, |(_, count)| *count);
        let grown = |(up_to, count): (f64, f64)| {
            let before = counted_before(up_to);
            (up_to, if count < before { count } else { count - before })
        };
        of(self.after).into_iter().map(grown).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    /// Two samples, two seconds apart.
    pub(crate) fn samples(before: Value, after: Value) -> (Sample, Sample) {
        let at = Instant::now();
        let before = Sample { at, figures: before };
        (before, Sample { at: at + Duration::from_secs(2), figures: after })
    }

    #[test]
    fn rates_are_of_the_time_between_and_a_new_mount_begins_at_nothing() {
        let (before, after) = samples(
            json!({"device": {"writes": 100, "flushes": 50}, "fsync_us": {"count": 40}}),
            json!({"device": {"writes": 160, "flushes": 10}, "fsync_us": {"count": 40}}),
        );
        let between = Between { before: &before, after: &after };
        assert_eq!(between.per_second("/device/writes"), 30.0);
        assert_eq!(between.growth("/device/flushes"), 10.0);
        assert_eq!(between.growth("/device/nothing"), 0.0);
        assert_eq!(between.for_each("/device/writes", "/fsync_us/count"), None);
        assert_eq!(between.for_each("/device/writes", "/device/flushes"), Some(6.0));
    }

    #[test]
    fn quantiles_are_of_what_was_counted_meanwhile() {
        let bucket = |up_to: f64, count: u64| json!({"up_to": up_to, "count": count});
        let (before, after) = samples(
            json!({"fsync_us": {"buckets": [bucket(128.0, 1000)]}}),
            json!({"fsync_us": {"buckets": [bucket(128.0, 1000), bucket(256.0, 90), bucket(1024.0, 10)]}}),
        );
        let between = Between { before: &before, after: &after };
        assert_eq!(between.quantile("fsync_us", 0.45), Some(192.0));
        assert_eq!(between.quantile("fsync_us", 1.0), Some(1024.0));
        assert_eq!(Between { before: &after, after: &after }.quantile("fsync_us", 0.5), None);
    }
}
