//! The physical floor: what the disk needs for one write and one flush, nothing else in between.
//!
//! A disk's speed moves by a factor of two within seconds, so the floor is measured in slices between the slices of the
//! workload that is compared with it: on a device of its own, whose backing file lies beside the other's and is fully
//! written as well.

use crate::device::LoopDevice;
use crate::report::Latencies;
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_device::Buffer;

/// Size of the device.
const FLOOR_MIB: u64 = 256;
/// Where the writes are: ascending places, again from the start when the device ends.
const PLACES: u64 = (FLOOR_MIB - 1) << 8;
/// After this many operations of the workload
const EVERY: u64 = 100;
/// come this many of the floor.
const SLICE: u64 = 25;

/// One 4 KiB write and one flush, to a loop device with direct I/O.
pub(crate) struct Floor {
    _device: LoopDevice,
    file: OwnedFd,
    buffer: RefCell<Buffer>,
    place: Cell<u64>,
}

impl Floor {
    /// Attaches the device; its file in `work` is kept for the next run.
    pub(crate) fn attach(work: &Path) -> io::Result<Floor> {
        let device = LoopDevice::attach(&work.join("floor.img"), FLOOR_MIB)?;
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(&device.path, flags, Mode::empty())?;
        Ok(Floor { _device: device, file, buffer: RefCell::new(Buffer::zeroed(1)), place: Cell::new(0) })
    }

    /// Called behind each operation of a workload: from time to time a slice of the floor. Returns how long it took.
    pub(crate) fn slice(&self, operation: u64, latencies: &mut Latencies) -> io::Result<Duration> {
        let start = Instant::now();
        if operation % EVERY == EVERY - 1 {
            for _ in 0..SLICE {
                latencies.push(self.once()?);
            }
        }
        Ok(start.elapsed())
    }

    fn once(&self) -> io::Result<Duration> {
        let place = self.place.get();
        self.place.set((place + 1) % PLACES);
        let mut buffer = self.buffer.borrow_mut();
        buffer[..8].copy_from_slice(&place.to_le_bytes());
        let start = Instant::now();
        rustix::io::pwrite(&self.file, &buffer, (1 << 20) + place * 4096)?;
        rustix::fs::fdatasync(&self.file)?;
        Ok(start.elapsed())
    }
}
