//! Discards of a file device: a hole punched into an image, `BLKDISCARD` on a block device.
//!
//! Whether the host can do it is asked when somebody wants to know, by requests that change nothing: a hole behind
//! the end of the image, a discard of no bytes. One that fails later as not supported ends all of them.

use super::{FileDevice, Kind, Opened};
use crate::range::check_range;
use crate::{DeviceError, Operation};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

impl FileDevice {
    pub(super) fn give_back(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, at, blocks, self.blocks)?;
        self.refuse_if_read_only(Operation::Discard, at)?;
        if blocks == 0 || !self.discards.load(Relaxed) {
            return Ok(());
        }
        let file = &self.opened.get()?.file;
        self.counters.count_discard();
        match self.punch(file, at.byte_offset(), blocks * BLOCK_BYTES as u64) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
                self.discards.store(false, Relaxed);
                Ok(())
            }
            Err(error) => {
                Err(DeviceError::Io { operation: Operation::Discard, block: at, errno: error.raw_os_error() })
            }
        }
    }

    /// What [`crate::Device::discard_blocks_min`] asks for.
    pub(super) fn least_discard(&self) -> Option<u64> {
        if self.read_only || !self.discards.load(Relaxed) {
            return None;
        }
        *self.least_discard.get_or_init(|| self.ask_least_discard())
    }

    fn ask_least_discard(&self) -> Option<u64> {
        let file = &self.opened.get().ok()?.file;
        let asked = match self.kind {
            Kind::Image => self.punch(file, self.blocks * BLOCK_BYTES as u64, BLOCK_BYTES as u64),
            Kind::BlockDevice => self.punch(file, 0, 0),
        };
        match (self.kind, asked) {
            (Kind::Image, Ok(())) => Some(1),
            // The kernel looks whether the device can before it looks at the length.
            (Kind::BlockDevice, Err(Errno::INVAL)) => Some(self.granularity()),
            _ => None,
        }
    }

    /// What the block device discards at least, in blocks; smaller discards it leaves out without a word.
    fn granularity(&self) -> u64 {
        let Ok(Opened { file, .. }) = self.opened.get() else { return 1 };
        let Ok(stat) = rustix::fs::fstat(&***file) else { return 1 };
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let at = format!("/sys/dev/block/{major}:{minor}");
        // A partition has its queue one level up.
        let read = |queue| std::fs::read_to_string(format!("{at}/{queue}/discard_granularity"));
        let text = read("queue").or_else(|_| read("../queue"));
        let bytes = text.ok().and_then(|text| text.trim().parse::<u64>().ok());
        bytes.map_or(1, |bytes| bytes.div_ceil(BLOCK_BYTES as u64).max(1))
    }

    fn punch(&self, file: &File, start: u64, len: u64) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| match self.kind {
            Kind::Image => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, start, len)
            }
            Kind::BlockDevice => {
                let range = [start, len];
                // SAFETY: BLKDISCARD reads two u64 from the pointer.
                match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
                    0 => Ok(()),
                    _ => {
                        let error = std::io::Error::last_os_error();
                        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
                    }
                }
            }
        })
    }
}
