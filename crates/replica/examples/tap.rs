//! What the tap adds to a sync: one write of 4 KiB and one flush, with it and without it, over a device in memory.
//!
//! ```sh
//! cargo run --release -p syncline-replica --example tap
//! ```
//!
//! The two take turns in slices of as many syncs as a second may have. Between two slices the cuts are taken, as an
//! uploader does each second. Tells nanoseconds a sync: medians of the slices, with the least and the most.

use std::sync::Arc;
use std::time::Instant;
use syncline_device::{Buffer, Device, DeviceError, MemoryDevice};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_replica::TapDevice;
use syncline_replica::runs::RunSet;

const BLOCKS: u64 = 16 << 10;
const SYNCS: u64 = 4000;
const SLICES: usize = 201;
const HELD_BYTES: usize = 32 << 20;

/// Nanoseconds a sync.
fn slice(device: &dyn Device, buffer: &Arc<Buffer>) -> Result<f64, DeviceError> {
    let begun = Instant::now();
    for sync in 0..SYNCS {
        device.write(BlockNo(sync % BLOCKS), vec![Arc::clone(buffer)])?;
        device.flush()?;
    }
    Ok(begun.elapsed().as_nanos() as f64 / SYNCS as f64)
}

/// The median of figures, which are sorted by this, and the words for them.
fn told(figures: &mut [f64]) -> (f64, String) {
    figures.sort_by(f64::total_cmp);
    let (least, median, most) = (figures[0], figures[figures.len() / 2], figures[figures.len() - 1]);
    (median, format!("{median:.0} ns ({least:.0}-{most:.0})"))
}

fn main() -> Result<(), DeviceError> {
    let buffer = Arc::new(Buffer::from_bytes(&[7; BLOCK_BYTES]));
    let bare = MemoryDevice::new(BLOCKS);
    let tap = TapDevice::new(Arc::new(MemoryDevice::new(BLOCKS)), HELD_BYTES, RunSet::default());
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for turn in 0..SLICES {
        let mut kinds: [(&dyn Device, &mut Vec<f64>); 2] = [(&bare, &mut without), (&*tap, &mut with)];
        if turn % 2 == 1 {
            kinds.reverse();
        }
        for (device, figures) in kinds {
            figures.push(slice(device, &buffer)?);
        }
        drop(tap.take_cuts(usize::MAX));
    }
    let ((less, without), (more, with)) = (told(&mut without), told(&mut with));
    println!(
        "a write of 4 KiB and a flush in memory: {without}; with the tap {with}: {:.0} ns more",
        more - less
    );
    Ok(())
}
