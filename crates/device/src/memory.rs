//! A device in memory: for volumes that need not survive the process, and for tests.
//!
//! Blocks never written cost nothing and read as zeros, so a device of a terabyte is as cheap as a small one.
//! Every write is complete when `submit_write` returns; a flush has nothing to do, since nothing survives the
//! process anyway. Wrap it in [`Volatile`](crate::Volatile) for a device that can lose its unflushed writes.
//!
//! Locks: the blocks are spread over shards by runs of [`SHARD_RUN_BLOCKS`]; a request holds one shard's lock
//! at a time, so requests that do not overlap are independent, and one that spans several runs is not atomic
//! (neither is it on a disk).

use crate::counters::Counters;
use crate::range::{check_range, check_read, check_write};
use crate::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Consecutive blocks that share a shard, so that a sequential request takes few locks.
const SHARD_RUN_BLOCKS: u64 = 64;
/// Shards; more than the threads that can run at once on a machine this is used on.
const SHARDS: usize = 64;
/// A longer discard walks the blocks that are held instead of the range.
const DISCARD_ONE_BY_ONE_BLOCKS_MAX: u64 = 1024;

type Shard = RwLock<HashMap<u64, Buffer>>;

/// A sparse device in memory.
pub struct MemoryDevice {
    blocks: u64,
    shards: Box<[Shard]>,
    counters: Counters,
}

impl MemoryDevice {
    /// A device of `blocks` zeroed blocks.
    pub fn new(blocks: u64) -> MemoryDevice {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        MemoryDevice { blocks, shards, counters: Counters::default() }
    }

    /// A device that holds a copy of the image `bytes`, the last block padded with zeros.
    pub fn from_bytes(bytes: Vec<u8>) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len().div_ceil(BLOCK_BYTES) as u64);
        for (block, content) in bytes.chunks(BLOCK_BYTES).enumerate() {
            if content.iter().any(|&byte| byte != 0) {
                device.put(block as u64, content);
            }
        }
        device
    }

    /// The whole device as an image. Meant for small devices: holes are written out as zeros.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.blocks as usize * BLOCK_BYTES];
        self.copy_out(BlockNo(0), &mut bytes);
        bytes
    }

    /// Blocks that hold memory.
    pub fn blocks_held(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    fn shard(&self, block: u64) -> &Shard {
        &self.shards[(block / SHARD_RUN_BLOCKS) as usize % SHARDS]
    }

    fn put(&self, block: u64, content: &[u8]) {
        let mut shard = self.shard(block).write();
        match shard.get_mut(&block) {
            Some(page) => page[..content.len()].copy_from_slice(content),
            None => {
                shard.insert(block, Buffer::from_bytes(content));
            }
        }
    }

    fn copy_out(&self, at: BlockNo, into: &mut [u8]) {
        for (block, part) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            match self.shard(block).read().get(&block) {
                Some(page) => part.copy_from_slice(page),
                None => part.fill(0),
            }
        }
    }
}

impl Device for MemoryDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let count = check_read(at, into, self.blocks)?;
        self.counters.count_read(count);
        self.copy_out(at, into);
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let count = match check_write(at, &data, self.blocks) {
            Ok(count) => count,
            Err(error) => return Ticket::completed(Err(error)),
        };
        self.counters.count_write(count);
        let contents = data.iter().flat_map(|buffer| buffer.chunks(BLOCK_BYTES));
        for (block, content) in (at.0..).zip(contents) {
            self.put(block, content);
        }
        Ticket::completed(Ok(()))
    }

    fn submit_flush(&self) -> Ticket {
        self.counters.count_flush();
        Ticket::completed(Ok(()))
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().expect("every ticket of a memory device is complete when it is returned")
    }

    fn poll(&self) {}

    /// Gives the memory back; the blocks read as zeros.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        check_range(Operation::Discard, at, blocks, self.blocks)?;
        self.counters.count_discard();
        let range = at.0..at.0 + blocks;
        if blocks <= DISCARD_ONE_BY_ONE_BLOCKS_MAX {
            range.for_each(|block| drop(self.shard(block).write().remove(&block)));
        } else {
            self.shards.iter().for_each(|shard| shard.write().retain(|block, _| !range.contains(block)));
        }
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.counters.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEBIBYTE_BLOCKS: u64 = (1 << 40) / BLOCK_BYTES as u64;

    fn page(byte: u8) -> Arc<Buffer> {
        Arc::new(Buffer::from_bytes(&[byte; BLOCK_BYTES]))
    }

    #[test]
    fn terabyte_device_holds_only_what_was_written() {
        let device = MemoryDevice::new(TEBIBYTE_BLOCKS);
        device.write(BlockNo(TEBIBYTE_BLOCKS - 1), vec![page(7)]).unwrap();
        let mut block = [1; BLOCK_BYTES];
        device.read(BlockNo(TEBIBYTE_BLOCKS - 1), &mut block).unwrap();
        assert_eq!(block, [7; BLOCK_BYTES]);
        device.read(BlockNo(TEBIBYTE_BLOCKS / 2), &mut block).unwrap();
        assert_eq!(block, [0; BLOCK_BYTES]);
        assert_eq!(device.blocks_held(), 1);
        device.discard(BlockNo(0), TEBIBYTE_BLOCKS).unwrap();
        assert_eq!(device.blocks_held(), 0);
    }

    #[test]
    fn write_lays_its_buffers_end_to_end() {
        let device = MemoryDevice::new(256);
        let double = Arc::new(Buffer::from_bytes(&[2; 2 * BLOCK_BYTES]));
        device.write(BlockNo(62), vec![page(1), double, page(3)]).unwrap();
        let bytes = device.to_bytes();
        let first_bytes: Vec<u8> = bytes.chunks(BLOCK_BYTES).skip(61).take(6).map(|b| b[4095]).collect();
        assert_eq!(first_bytes, [0, 1, 2, 2, 3, 0]);
        assert_eq!(device.counters().written_bytes, 4 * BLOCK_BYTES as u64);
        assert_eq!(device.counters().writes, 1);
    }

    #[test]
    fn image_round_trips_and_is_padded_to_a_block() {
        let mut image = vec![0; 2 * BLOCK_BYTES + 100];
        image[5] = 1;
        image[2 * BLOCK_BYTES + 99] = 9;
        let device = MemoryDevice::from_bytes(image.clone());
        assert_eq!(device.blocks(), 3);
        assert_eq!(device.blocks_held(), 2);
        image.resize(3 * BLOCK_BYTES, 0);
        assert_eq!(device.to_bytes(), image);
    }

    #[test]
    fn discard_of_a_part_leaves_the_rest() {
        let device = MemoryDevice::new(2048);
        for block in 0..200 {
            device.write(BlockNo(block), vec![page(block as u8 + 1)]).unwrap();
        }
        device.discard(BlockNo(10), 2).unwrap();
        assert_eq!(device.blocks_held(), 198);
        device.discard(BlockNo(100), DISCARD_ONE_BY_ONE_BLOCKS_MAX + 1).unwrap();
        assert_eq!(device.blocks_held(), 98);
        let mut block = [0; BLOCK_BYTES];
        device.read(BlockNo(99), &mut block).unwrap();
        assert_eq!(block[0], 100);
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let device = MemoryDevice::new(4);
        let refused = |operation| Err(DeviceError::OutOfRange { operation, block: BlockNo(3), blocks: 4 });
        assert_eq!(device.read(BlockNo(3), &mut [0; 2 * BLOCK_BYTES]), refused(Operation::Read));
        assert_eq!(device.write(BlockNo(3), vec![page(1), page(2)]), refused(Operation::Write));
        assert_eq!(device.discard(BlockNo(3), u64::MAX), refused(Operation::Discard));
        assert_eq!(device.blocks_held(), 0);
    }
}
