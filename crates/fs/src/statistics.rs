//! Statistics as JSON: the one place where their names and units stand. The library and the mount tell this text, and
//! the mount adds what only it knows.
//!
//! It is written by hand. A JSON library below the library would make comparisons of numbers ambiguous for programs
//! that embed it.

use crate::{FsStats, LatencyHistogram, VolumeSpace};
use std::time::Duration;

impl FsStats {
    /// One JSON object: latencies in microseconds, sizes in bytes unless the name says blocks or pages.
    /// `sync_latency`: of the syncs that the adapter has answered.
    pub fn to_json(&self, space: &VolumeSpace, sync_latency: &LatencyHistogram) -> String {
        let (device, store, load, pages) = (&self.device, &self.store, &self.load, &self.pages);
        let parts = [
            (
                "space",
                object(&[
                    ("block_bytes", space.block_bytes.into()),
                    ("blocks", space.blocks),
                    ("blocks_free", space.blocks_free),
                    ("blocks_available", space.blocks_available),
                ]),
            ),
            ("fsync_us", latencies(sync_latency)),
            (
                "device",
                object(&[
                    ("reads", device.reads),
                    ("read_bytes", device.read_bytes),
                    ("writes", device.writes),
                    ("written_bytes", device.written_bytes),
                    ("flushes", device.flushes),
                    ("discards", device.discards),
                ]),
            ),
            (
                "store",
                object(&[
                    ("groups", store.groups),
                    ("grouped_batches", store.grouped_batches),
                    ("checkpoints", store.checkpoints),
                    ("node_cache_hits", store.node_cache_hits),
                    ("node_cache_misses", store.node_cache_misses),
                    ("dirty_node_bytes", load.dirty_node_bytes),
                    ("dirty_node_bytes_max", load.dirty_node_bytes_max),
                    ("journal_bytes", load.ring_bytes),
                    ("journal_bytes_max", load.ring_bytes_max),
                    ("images", load.images),
                ]),
            ),
            (
                "page_cache",
                object(&[
                    ("pages", pages.cached),
                    ("pages_max", pages.cached_max),
                    ("bytes", pages.cached * u64::from(space.block_bytes)),
                    ("dirty", pages.dirty),
                    ("logged", pages.logged),
                    ("hits", pages.hits),
                    ("misses", pages.misses),
                    ("evictions", pages.evictions),
                ]),
            ),
            (
                "set_aside",
                object(&[
                    ("files", self.set_aside.files),
                    ("pages", self.set_aside.pages),
                    ("orphans", self.set_aside.orphans),
                ]),
            ),
            ("checkpoint_us", latencies(&self.checkpoint_latency)),
            ("inodes_cached", self.inodes_cached.to_string()),
            ("memory_bytes_max", self.memory_bytes_max.to_string()),
        ];
        joined(parts.into_iter())
    }
}

/// Names are fixed and values are numbers or made here: nothing has to be escaped.
fn joined(parts: impl Iterator<Item = (&'static str, String)>) -> String {
    let parts: Vec<String> = parts.map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", parts.join(","))
}

fn object(figures: &[(&'static str, u64)]) -> String {
    joined(figures.iter().map(|(name, figure)| (*name, figure.to_string())))
}

fn latencies(histogram: &LatencyHistogram) -> String {
    let at = |share| microseconds(histogram.quantile(share));
    let buckets: Vec<String> = histogram
        .buckets()
        .into_iter()
        .map(|(up_to, count)| format!("{{\"up_to\":{},\"count\":{count}}}", microseconds(up_to)))
        .collect();
    let parts = [
        ("count", histogram.count().to_string()),
        ("total", microseconds(histogram.total())),
        ("mean", microseconds(histogram.mean())),
        ("p50", at(0.5)),
        ("p90", at(0.9)),
        ("p99", at(0.99)),
        ("p999", at(0.999)),
        ("max", microseconds(histogram.max())),
        ("last", microseconds(histogram.last())),
        ("buckets", format!("[{}]", buckets.join(","))),
    ];
    joined(parts.into_iter())
}

fn microseconds(duration: Duration) -> String {
    (duration.as_nanos() as f64 / 1000.0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_told_in_microseconds() {
        let histogram = LatencyHistogram::default();
        for nanoseconds in [1000, 1000, 3000] {
            histogram.record(Duration::from_nanos(nanoseconds));
        }
        let told = latencies(&histogram);
        assert!(told.starts_with("{\"count\":3,\"total\":5,\"mean\":1.666,"), "{told}");
        let end = "\"last\":3,\"buckets\":[{\"up_to\":1.023,\"count\":2},{\"up_to\":4.095,\"count\":1}]}";
        assert!(told.ends_with(end), "{told}");
    }
}
