//! Holes of an image file: blocks for which its host has no space yet.
//!
//! A host that does not tell them apart says that all of the file is data. What is only allocated and was never
//! written counts as a hole, since it reads as zeros, and since the first write to it changes what the host has to
//! remember.

use super::{FileDevice, Kind};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ops::Range;
use syncline_format::{BLOCK_BYTES, BlockNo};

impl FileDevice {
    /// What [`crate::Device::hole`] asks for. The position of the open file moves; nobody else uses it.
    pub(super) fn first_hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        if self.kind != Kind::Image || at.0 >= self.blocks {
            return None;
        }
        let block = BLOCK_BYTES as u64;
        let file = &self.opened.get().ok()?.file;
        let mut from = at.byte_offset();
        loop {
            let hole = seek(&***file, SeekFrom::Hole(from)).ok()?;
            let data = match seek(&***file, SeekFrom::Data(hole)) {
                Ok(data) => data,
                // Nothing but the hole up to the end.
                Err(Errno::NXIO) => self.blocks * block,
                Err(_) => return None,
            };
            let (start, end) = (hole.div_ceil(block), (data / block).min(self.blocks));
            if start < end {
                return Some(BlockNo(start)..BlockNo(end));
            }
            if data >= self.blocks * block || data <= from {
                return None;
            }
            // The host's blocks are smaller: go on behind what is no whole block.
            from = data;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Buffer, Device, FileDevice, OpenOptions};
    use std::sync::Arc;
    use syncline_format::BlockNo;

    #[test]
    fn holes_are_what_was_never_written() {
        let image = tempfile::NamedTempFile::new().expect("a file");
        image.as_file().set_len(64 * 4096 + 100).expect("its size");
        let device = FileDevice::open(image.path(), &OpenOptions::default()).expect("opened");
        if device.hole(BlockNo(0)).is_none() {
            return println!("skipped: holes: this file system does not tell them");
        }
        assert_eq!(device.hole(BlockNo(0)), Some(BlockNo(0)..BlockNo(64)));
        device.write(BlockNo(16), vec![Arc::new(Buffer::zeroed(16))]).expect("written");
        device.flush().expect("flushed");
        assert_eq!(
            device.hole(BlockNo(0)),
            Some(BlockNo(0)..BlockNo(16)),
            "zeros that were written are none"
        );
        assert_eq!(device.hole(BlockNo(16)), Some(BlockNo(32)..BlockNo(64)));
        assert_eq!(device.hole(BlockNo(40)), Some(BlockNo(40)..BlockNo(64)));
        assert_eq!(device.hole(BlockNo(64)), None);
        device.write(BlockNo(32), vec![Arc::new(Buffer::zeroed(32))]).expect("written");
        device.flush().expect("flushed");
        assert_eq!(device.hole(BlockNo(16)), None);
    }
}
