//! [`VolumeStats`].

use crate::{FsStats, LatencyHistogram, VolumeSpace};
use serde_json::{Value, json};

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
    /// assert!(volume.stats().to_json().starts_with("{"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn to_json(&self) -> String {
        let space = &self.space;
        let mut all = json!({
            "space": {
                "block_bytes": space.block_bytes,
                "blocks": space.blocks,
                "blocks_free": space.blocks_free,
                "blocks_available": space.blocks_available,
            },
            "fsync_us": self.sync_latency.to_json(),
        });
        if let (Value::Object(all), Value::Object(engine)) =
            (&mut all, self.engine.to_json(space.block_bytes))
        {
            all.extend(engine);
        }
        all.to_string()
    }
}
