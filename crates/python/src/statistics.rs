//! What a volume has done and how full it is, as a dictionary that `syncline.VolumeStats` is made of.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;
use syncline::{LatencyHistogram, VolumeStats};

/// Microseconds, as a person compares latencies.
fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn latency<'py>(py: Python<'py>, histogram: &LatencyHistogram) -> PyResult<Bound<'py, PyDict>> {
    let dictionary = PyDict::new(py);
    dictionary.set_item("count", histogram.count())?;
    dictionary.set_item("mean_us", microseconds(histogram.mean()))?;
    dictionary.set_item("p50_us", microseconds(histogram.quantile(0.5)))?;
    dictionary.set_item("p99_us", microseconds(histogram.quantile(0.99)))?;
    dictionary.set_item("max_us", microseconds(histogram.max()))?;
    Ok(dictionary)
}

pub(crate) fn of<'py>(py: Python<'py>, stats: &VolumeStats) -> PyResult<Bound<'py, PyDict>> {
    let (space, engine) = (&stats.space, &stats.engine);
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_bytes));
    let dictionary = PyDict::new(py);
    let figures = [
        ("size_bytes", bytes(space.blocks)),
        ("free_bytes", bytes(space.blocks_free)),
        ("available_bytes", bytes(space.blocks_available)),
        ("device_reads", engine.device.reads),
        ("device_read_bytes", engine.device.read_bytes),
        ("device_writes", engine.device.writes),
        ("device_written_bytes", engine.device.written_bytes),
        ("device_flushes", engine.device.flushes),
        ("records", engine.store.groups),
        ("batches", engine.store.grouped_batches),
        ("checkpoints", engine.store.checkpoints),
        ("journal_bytes", engine.load.ring_bytes),
        ("journal_bytes_max", engine.load.ring_bytes_max),
        ("pages_cached", engine.pages.cached),
        ("pages_dirty", engine.pages.dirty),
        ("page_hits", engine.pages.hits),
        ("page_misses", engine.pages.misses),
        ("memory_bytes_max", engine.memory_bytes_max),
    ];
    for (name, figure) in figures {
        dictionary.set_item(name, figure)?;
    }
    dictionary.set_item("sync", latency(py, &stats.sync_latency)?)?;
    Ok(dictionary)
}
