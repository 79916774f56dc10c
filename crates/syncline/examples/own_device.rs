//! A volume on a device of one's own: any storage that reads, writes and flushes blocks can carry one. This one stands
//! over memory, and tells what an append and its sync ask of it.
//!
//! ```sh
//! cargo run -p syncline --example own_device
//! ```

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline::{MkfsOptions, OpenOptions, VolumeOptions};
use syncline_device::{Buffer, Device, Layer, MemoryDevice, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

const VOLUME_BYTES: u64 = 64 << 20;

/// Counts, and passes on to the device below. A [`Layer`] says only what it does differently; a [`Device`] that stands
/// alone says all of it, and keeps the contract of its documentation.
struct Counting {
    below: MemoryDevice,
    writes: AtomicU64,
    flushes: AtomicU64,
}

impl Layer for Counting {
    fn below(&self) -> &dyn Device {
        &self.below
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.below.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.below.submit_flush()
    }
}

fn main() -> io::Result<()> {
    let below = MemoryDevice::new(VOLUME_BYTES / BLOCK_BYTES as u64);
    let device = Arc::new(Counting { below, writes: AtomicU64::new(0), flushes: AtomicU64::new(0) });
    let asked = || (device.writes.load(Ordering::Relaxed), device.flushes.load(Ordering::Relaxed));

    // Nothing is written in the background, so that the counts are those of the sync.
    let options = VolumeOptions::new().background(false);
    let volume = options.create_device(device.clone(), &MkfsOptions::default())?;
    let mut log = OpenOptions::new().append(true).create(true).open(&volume, "/log")?;
    log.write_all(b"42 coins\n")?;
    let before = asked();
    log.sync_all()?;
    let after = asked();
    drop(log);
    volume.close()?;
    writeln!(io::stdout(), "writes: {}, flushes: {}", after.0 - before.0, after.1 - before.1)
}
