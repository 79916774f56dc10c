//! The physical floor: what the disk needs for one write and one flush, nothing else in between.
//!
//! A disk's speed moves by a factor of two within seconds, so the floor is measured in slices between the slices of the
//! workload that is compared with it: on a device of its own, whose backing file lies beside the other's and is fully
//! written as well.

mod group;

use crate::device::Medium;
use crate::measure::{Latencies, busy_seconds};
pub(crate) use group::GroupCommit;
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use syncline_device::Buffer;

/// Size of the device.
const FLOOR_MIB: u64 = 256;
/// Pages that the largest group writes at once.
pub(crate) const GROUP_PAGES_MAX: usize = 64;
/// Where the writes are: ascending places, again from the start when the device ends.
const PLACES: u64 = ((FLOOR_MIB - 1) << 8) - GROUP_PAGES_MAX as u64;
/// After this many operations of the workload
const EVERY: u64 = 100;
/// come this many of the floor.
const SLICE: u64 = 25;

/// Writes and flushes to a device of its own.
pub(crate) struct Floor {
    _device: Medium,
    file: OwnedFd,
    buffer: RefCell<Buffer>,
    place: Cell<u64>,
    /// Of the whole machine, spent in slices.
    busy_seconds: Cell<f64>,
}

impl Floor {
    /// Attaches the device; its file in `work` is kept for the next run.
    pub(crate) fn attach(work: &Path) -> io::Result<Floor> {
        let device = Medium::attach(&work.join("floor.img"), FLOOR_MIB)?;
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(&device.path, flags, Mode::empty())?;
        let buffer = RefCell::new(Buffer::zeroed(GROUP_PAGES_MAX));
        Ok(Floor { _device: device, file, buffer, place: Cell::new(0), busy_seconds: Cell::new(0.0) })
    }

    /// Called behind each operation of a workload: from time to time a slice of the floor. Returns how long it took.
    pub(crate) fn slice(&self, operation: u64, latencies: &mut Latencies) -> io::Result<Duration> {
        match operation % EVERY == EVERY / 2 {
            true => self.group(1, SLICE, latencies),
            false => Ok(Duration::ZERO),
        }
    }

    /// The same for threads that share writes and flushes.
    pub(crate) fn group_commit(&self) -> GroupCommit<'_> {
        GroupCommit::new(self.file.as_fd())
    }

    /// Takes what other threads spent on the floor off what is measured.
    pub(crate) fn spent_elsewhere(&self, busy_seconds: f64) {
        self.busy_seconds.set(self.busy_seconds.get() + busy_seconds);
    }

    /// `count` times one write of `pages` and one flush.
    pub(crate) fn group(&self, pages: usize, count: u64, latencies: &mut Latencies) -> io::Result<Duration> {
        let (start, busy) = (Instant::now(), busy_seconds()?);
        for _ in 0..count {
            latencies.push(self.once(pages)?);
        }
        self.busy_seconds.set(self.busy_seconds.get() + busy_seconds()? - busy);
        Ok(start.elapsed())
    }

    /// Processor time of the machine while slices ran.
    pub(crate) fn busy_seconds(&self) -> f64 {
        self.busy_seconds.get()
    }

    fn once(&self, pages: usize) -> io::Result<Duration> {
        let place = self.place.get();
        self.place.set((place + pages as u64) % PLACES);
        let mut buffer = self.buffer.borrow_mut();
        buffer[..8].copy_from_slice(&place.to_le_bytes());
        let start = Instant::now();
        write_and_flush(self.file.as_fd(), &buffer[..pages * 4096], place)?;
        Ok(start.elapsed())
    }
}

/// One write and one flush, all that is.
fn write_and_flush(file: BorrowedFd<'_>, pages: &[u8], place: u64) -> io::Result<()> {
    rustix::io::pwrite(file, pages, (1 << 20) + place * 4096)?;
    Ok(rustix::fs::fdatasync(file)?)
}
