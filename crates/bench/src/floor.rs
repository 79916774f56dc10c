//! The physical floor: what the device needs for one write and one flush, nothing else in between.

use crate::report::Latencies;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::path::Path;
use std::time::Instant;
use syncline_device::Buffer;

/// Latencies of `count` times one 4 KiB write at ascending places and one flush, straight to the device.
pub(crate) fn measure(device: &Path, count: u64) -> io::Result<Latencies> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(device, flags, Mode::empty())?;
    let mut buffer = Buffer::zeroed(1);
    let mut latencies = Latencies::default();
    for index in 0..count {
        buffer[..8].copy_from_slice(&index.to_le_bytes());
        let start = Instant::now();
        rustix::io::pwrite(&file, &buffer, (1 << 20) + index * 4096)?;
        rustix::fs::fdatasync(&file)?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}
