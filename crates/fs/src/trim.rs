//! Trim: what is free is told to the device, byte ranges in, bytes out.

use crate::{Error, Fs, Result};
use std::ops::Range;
use syncline_format::bitmap::GROUP_BLOCKS_MAX;
use syncline_format::{BLOCK_BYTES, BlockNo};

const BYTES: u64 = BLOCK_BYTES as u64;

impl Fs {
    /// Has the device discard what is free in a range of the volume's bytes, in runs of at least `length_min` bytes,
    /// content that was removed before the call included; returns how many bytes that were (contract C7a). The range
    /// may go beyond the volume's end. Others go on meanwhile. The end of the session ends it too.
    ///
    /// Errors: `ReadOnly`; `NotSupported` if the device cannot; `Invalid` for a range that begins behind the volume's
    /// end or is shorter than a block, and a least length that no run can have; I/O errors.
    pub fn trim(&self, range: Range<u64>, length_min: u64) -> Result<u64> {
        self.core.check_writable()?;
        if self.core.store.device().discard_blocks_min().is_none() {
            return Err(Error::NotSupported);
        }
        if range.start >= self.core.store.info().blocks * BYTES
            || range.end.saturating_sub(range.start) < BYTES
        {
            return Err(Error::Invalid("a trim begins inside of the volume and covers a block at least"));
        }
        if length_min > GROUP_BLOCKS_MAX * BYTES {
            return Err(Error::Invalid("no run of free blocks is longer than 128 MiB"));
        }
        // Freed blocks are pinned until a checkpoint that holds their free is durable (R11).
        self.core.checkpoint()?;
        // Only blocks that lie in the range as a whole.
        let blocks = BlockNo(range.start.div_ceil(BYTES))..BlockNo(range.end / BYTES);
        Ok(self.core.store.trim(blocks, length_min.div_ceil(BYTES))? * BYTES)
    }

    /// Ends trims that are under way, which return what they have discarded by then, and those that come later at
    /// once: for whoever is about to end the session and does not want to wait for them. A snapshot's view has no
    /// session of its own, and ends nothing.
    pub fn end_trims(&self) {
        if !self.core.is_view() {
            self.core.store.end_trims();
        }
    }
}
