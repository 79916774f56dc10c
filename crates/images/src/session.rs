//! Opening volumes so that nothing depends on the time or on chance.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use syncline::{AccessTimes, Clock, Entropy, Error, MkfsOptions, Timestamp, Volume, VolumeOptions};
use syncline_device::Device;
use syncline_fs::{Fs, FsOptions};

const MICROSECONDS: i64 = 1_000_000;
/// Memory of an engine under test: little, so that evictions happen.
const MEMORY_BYTES_MAX: usize = 8 << 20;

/// A clock that moves a microsecond with every look.
pub struct CountingClock(AtomicI64);

impl CountingClock {
    pub fn new() -> Arc<CountingClock> {
        Arc::new(CountingClock(AtomicI64::new(1_700_000_000 * MICROSECONDS)))
    }
}

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        let now = self.0.fetch_add(1, Ordering::Relaxed);
        Timestamp { seconds: now / MICROSECONDS, nanoseconds: (now % MICROSECONDS) as u32 * 1000 }
    }
}

/// Numbers that follow from a seed.
pub struct SeededEntropy(AtomicU64);

impl SeededEntropy {
    pub fn new(seed: u64) -> SeededEntropy {
        SeededEntropy(AtomicU64::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn number(&self) -> u64 {
        let mut x = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(1);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// Formats a device with a journal of so many blocks, with this version of the format.
pub fn format(device: &dyn Device, journal_blocks: u64, label: &str, version: u32) -> Result<(), Error> {
    let journal_bytes = Some(journal_blocks * syncline_format::BLOCK_BYTES as u64);
    let options = MkfsOptions::default().journal_bytes(journal_bytes).label(label).format(version);
    Fs::format(device, &options, &*CountingClock::new(), &SeededEntropy::new(1), &mut |_, _| {})
}

/// Opens a volume; `session` makes its random numbers.
pub fn open(device: Arc<dyn Device>, read_only: bool, session: u64) -> Result<Arc<Fs>, Error> {
    let options = FsOptions::default()
        .read_only(read_only)
        .memory_bytes_max(MEMORY_BYTES_MAX)
        .access_times(AccessTimes::Never);
    Fs::open(device, options, CountingClock::new(), &SeededEntropy::new(session.wrapping_mul(0x5851_f42d)))
}

/// Opens a volume as a program that embeds it does, without a thread in the background.
pub fn open_volume(device: Arc<dyn Device>, read_only: bool, session: u64) -> std::io::Result<Volume> {
    VolumeOptions::new()
        .read_only(read_only)
        .memory_bytes_max(MEMORY_BYTES_MAX)
        .access_times(AccessTimes::Never)
        .background(false)
        .clock(CountingClock::new())
        .entropy(Arc::new(SeededEntropy::new(session.wrapping_mul(0x5851_f42d))))
        .open_device(device)
}
