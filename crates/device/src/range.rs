//! The one range check of every device.

use crate::{Buffer, DeviceError, Operation};
use std::sync::Arc;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Checks that `count` blocks from `at` on lie within a device of `blocks` blocks.
pub fn check_range(operation: Operation, at: BlockNo, count: u64, blocks: u64) -> Result<(), DeviceError> {
    match at.0.checked_add(count) {
        Some(end) if end <= blocks => Ok(()),
        _ => Err(DeviceError::OutOfRange { operation, block: at, blocks }),
    }
}

/// Checks a read and returns its length in blocks. A length that is no multiple of the block is a caller's
/// bug.
pub fn check_read(at: BlockNo, into: &[u8], blocks: u64) -> Result<u64, DeviceError> {
    assert!(into.len().is_multiple_of(BLOCK_BYTES), "a read is a whole number of blocks");
    let count = (into.len() / BLOCK_BYTES) as u64;
    check_range(Operation::Read, at, count, blocks)?;
    Ok(count)
}

/// Checks a write and returns its length in blocks.
pub fn check_write(at: BlockNo, data: &[Arc<Buffer>], blocks: u64) -> Result<u64, DeviceError> {
    let count = data.iter().map(|buffer| buffer.blocks()).sum();
    check_range(Operation::Write, at, count, blocks)?;
    Ok(count)
}
