//! [`VolumeStats`].

use crate::{FsStats, LatencyHistogram, VolumeSpace};
use std::time::Duration;

/// What a volume has done and how full it is.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Latencies of file syncs made through this volume; their number is the histogram's count.
    pub sync_latency: LatencyHistogram,
    /// Counters of the engine, its store and its device.
    pub engine: FsStats,
    /// Space.
    pub space: VolumeSpace,
}

impl VolumeStats {
    /// One JSON object with the names and units of `syncline stats --json`, as far as they concern a library:
    /// latencies in microseconds, sizes in bytes unless the name says blocks or pages.
    ///
    /// ```
    /// let volume = syncline::Volume::create_in_memory(64 << 20)?;
    /// let text = volume.stats().to_json();
    /// assert!(text.starts_with("{\"space\":{\"block_bytes\":4096,"), "{text}");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let (space, engine) = (&self.space, &self.engine);
        let (device, store, load, pages) = (&engine.device, &engine.store, &engine.load, &engine.pages);
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
            ("fsync_us", latencies(&self.sync_latency)),
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
                    ("files", engine.set_aside.files),
                    ("pages", engine.set_aside.pages),
                    ("orphans", engine.set_aside.orphans),
                ]),
            ),
            ("checkpoint_us", latencies(&engine.checkpoint_latency)),
            ("inodes_cached", engine.inodes_cached.to_string()),
            ("memory_bytes_max", engine.memory_bytes_max.to_string()),
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
