//! Counters of what a device was asked to do. Relaxed atomics: they are statistics and order nothing.

use crate::DeviceCounters;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use syncline_format::BLOCK_BYTES;

/// What a device counts of itself, to be told by [`crate::Device::counters`].
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
}

impl Counters {
    /// One read of so many blocks. The others are alike.
    pub fn count_read(&self, blocks: u64) {
        self.reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(blocks * BLOCK_BYTES as u64, Relaxed);
    }

    pub fn count_write(&self, blocks: u64) {
        self.writes.fetch_add(1, Relaxed);
        self.written_bytes.fetch_add(blocks * BLOCK_BYTES as u64, Relaxed);
    }

    pub fn count_flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    pub fn count_discard(&self) {
        self.discards.fetch_add(1, Relaxed);
    }

    pub fn snapshot(&self) -> DeviceCounters {
        DeviceCounters {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
        }
    }
}
