//! Statistics as JSON: the names and units that every adapter shows.

use crate::{FsStats, LatencyHistogram};
use serde_json::{Value, json};
use std::time::Duration;

impl FsStats {
    /// The counters as an object. `block_bytes` are those of a page of the volume; latencies are in microseconds.
    pub fn to_json(&self, block_bytes: u32) -> Value {
        let (device, store, load, pages) = (&self.device, &self.store, &self.load, &self.pages);
        json!({
            "device": {
                "reads": device.reads,
                "read_bytes": device.read_bytes,
                "writes": device.writes,
                "written_bytes": device.written_bytes,
                "flushes": device.flushes,
                "discards": device.discards,
            },
            "store": {
                "groups": store.groups,
                "grouped_batches": store.grouped_batches,
                "checkpoints": store.checkpoints,
                "node_cache_hits": store.node_cache_hits,
                "node_cache_misses": store.node_cache_misses,
                "dirty_node_bytes": load.dirty_node_bytes,
                "dirty_node_bytes_max": load.dirty_node_bytes_max,
                "journal_bytes": load.ring_bytes,
                "journal_bytes_max": load.ring_bytes_max,
                "images": load.images,
            },
            "page_cache": {
                "pages": pages.cached,
                "pages_max": pages.cached_max,
                "bytes": pages.cached * u64::from(block_bytes),
                "dirty": pages.dirty,
                "logged": pages.logged,
                "hits": pages.hits,
                "misses": pages.misses,
                "evictions": pages.evictions,
            },
            "set_aside": {
                "files": self.set_aside.files,
                "pages": self.set_aside.pages,
                "orphans": self.set_aside.orphans,
            },
            "checkpoint_us": self.checkpoint_latency.to_json(),
            "inodes_cached": self.inodes_cached,
            "memory_bytes_max": self.memory_bytes_max,
        })
    }
}

impl LatencyHistogram {
    /// In microseconds; the buckets are by powers of two of nanoseconds.
    pub fn to_json(&self) -> Value {
        let at = |share| microseconds(self.quantile(share));
        let bucket = |(up_to, count)| json!({"up_to": microseconds(up_to), "count": count});
        json!({
            "count": self.count(),
            "total": microseconds(self.total()),
            "mean": microseconds(self.mean()),
            "p50": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "p999": at(0.999),
            "max": microseconds(self.max()),
            "last": microseconds(self.last()),
            "buckets": self.buckets().into_iter().map(bucket).collect::<Vec<_>>(),
        })
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1000.0
}
