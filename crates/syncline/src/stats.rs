//! [`VolumeStats`].

use crate::{FsStats, LatencyHistogram, VolumeSpace};

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
        self.engine.to_json(&self.space, &self.sync_latency)
    }
}
