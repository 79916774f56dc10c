//! Block-aligned buffers, so that every write can go to O_DIRECT without a copy.
//!
//! Buffers of one block and of a tree node come from pools, as do those for large reads; others from the general
//! allocator.
//!
//! A buffer can keep the checksum of its content, for whoever needs it later and would have to bring the content into
//! the processor's cache again. Every mutable access forgets it.
#![allow(unsafe_code)]

use crate::page_pool::Pool;
use crate::run_pool;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use syncline_format::{BLOCK_BYTES, checksum};

/// An owned run of bytes, aligned to 4 KiB, a whole number of blocks long.
pub struct Buffer {
    bytes: NonNull<u8>,
    len: usize,
    /// Of the content, if it was taken since the last mutable access.
    checksum: Option<u64>,
    /// Of the run pool.
    run: bool,
}

// SAFETY: the buffer owns its allocation alone; access follows Rust's borrowing of the `Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `blocks` zeroed blocks; at least one.
    pub fn zeroed(blocks: usize) -> Buffer {
        let (mut buffer, zeroed) = Buffer::new(blocks);
        if !zeroed {
            buffer.fill(0);
        }
        buffer
    }

    /// `blocks` blocks whose content is arbitrary, possibly that of an earlier buffer: for a caller that
    /// overwrites all of it and hands out nothing of it before. Saves zeroing what comes from a pool.
    pub fn for_overwrite(blocks: usize) -> Buffer {
        Buffer::new(blocks).0
    }

    /// Memory for a large read, as [`Buffer::for_overwrite`]: in one piece also for the device. `None` if there is no
    /// such memory of this size, or none left.
    pub(crate) fn run(blocks: usize) -> Option<Buffer> {
        assert!(blocks > 0, "a buffer holds at least one block");
        let bytes = (blocks <= run_pool::RUN_BLOCKS_MAX).then(run_pool::take)??;
        Some(Buffer { bytes, len: blocks * BLOCK_BYTES, checksum: None, run: true })
    }

    /// Copies `bytes`, padded with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::for_overwrite(bytes.len().div_ceil(BLOCK_BYTES).max(1));
        let (content, padding) = buffer.split_at_mut(bytes.len());
        content.copy_from_slice(bytes);
        padding.fill(0);
        buffer
    }

    /// Length in blocks.
    pub fn blocks(&self) -> u64 {
        (self.len / BLOCK_BYTES) as u64
    }

    /// Checksum of the content: the one that is kept, if there is one.
    pub fn checksum(&self) -> u64 {
        self.checksum.unwrap_or_else(|| checksum(self))
    }

    /// Takes the checksum now, and keeps it until the next mutable access.
    pub fn keep_checksum(&mut self) {
        self.checksum = Some(checksum(self));
    }

    /// Initialised memory, and whether it is known to hold zeros.
    fn new(blocks: usize) -> (Buffer, bool) {
        assert!(blocks > 0, "a buffer holds at least one block");
        let len = blocks * BLOCK_BYTES;
        if let Some(pool) = Pool::of(blocks) {
            let loan = pool.take();
            return (Buffer { bytes: loan.bytes, len, checksum: None, run: false }, loan.zeroed);
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let bytes = unsafe { alloc_zeroed(layout) };
        let Some(bytes) = NonNull::new(bytes) else { handle_alloc_error(layout) };
        (Buffer { bytes, len, checksum: None, run: false }, true)
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("block-sized layouts are valid")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is `len` initialised bytes (the pool's pages always are) and lives as long
        // as `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.checksum = None;
        // SAFETY: as for `deref`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::from_bytes(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.run {
            // SAFETY: taken from there in `run`, given back once, not used after.
            return unsafe { run_pool::give_back(self.bytes) };
        }
        match Pool::of(self.len / BLOCK_BYTES) {
            // SAFETY: taken from this pool in `new`, given back once, not used after.
            Some(pool) => unsafe { pool.give_back(self.bytes) },
            // SAFETY: allocated in `new` with the same layout, freed once.
            None => unsafe { dealloc(self.bytes.as_ptr(), Self::layout(self.len)) },
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::NODE_BLOCKS;

    #[test]
    fn zeroed_pages_hold_zeros_after_they_were_used() {
        for blocks in [1, 2, NODE_BLOCKS as usize] {
            let held: Vec<Buffer> = (0..2000)
                .map(|_| {
                    let mut buffer = Buffer::zeroed(blocks);
                    assert!(buffer.len() == blocks * BLOCK_BYTES && buffer.iter().all(|&byte| byte == 0));
                    buffer.fill(0xff);
                    buffer
                })
                .collect();
            drop(held);
            let held: Vec<Buffer> = (0..3000).map(|_| Buffer::zeroed(blocks)).collect();
            assert!(held.iter().all(|buffer| buffer.iter().all(|&byte| byte == 0)));
        }
    }

    #[test]
    fn memory_for_large_reads_is_lent_to_one_at_a_time_and_runs_out() {
        assert!(Buffer::run(run_pool::RUN_BLOCKS_MAX + 1).is_none());
        // Other tests read at the same time, so there may be fewer.
        let mut runs: Vec<Buffer> =
            std::iter::from_fn(|| Buffer::run(run_pool::RUN_BLOCKS_MAX)).take(64).collect();
        assert!(runs.len() < 64, "they are few");
        for (number, run) in runs.iter_mut().enumerate() {
            assert!((run.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
            run.fill(number as u8);
        }
        assert!(runs.iter().enumerate().all(|(number, run)| run.iter().all(|&byte| byte == number as u8)));
        drop(runs);
        assert!((0..100).all(|_| Buffer::run(1).is_some_and(|run| run.len() == BLOCK_BYTES)));
    }

    #[test]
    fn copies_are_padded_with_zeros_and_aligned() {
        drop(Buffer::from_bytes(&[0xff; BLOCK_BYTES]));
        for len in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES - 7] {
            let bytes = vec![0xab; len];
            let buffer = Buffer::from_bytes(&bytes).clone();
            assert_eq!(buffer.len(), len.div_ceil(BLOCK_BYTES).max(1) * BLOCK_BYTES);
            assert!((buffer.as_ptr() as usize).is_multiple_of(BLOCK_BYTES));
            assert_eq!(buffer[..len], bytes);
            assert!(buffer[len..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn a_kept_checksum_is_forgotten_by_every_mutable_access() {
        let mut buffer = Buffer::from_bytes(b"content");
        let before = checksum(&buffer);
        assert_eq!(buffer.checksum(), before);
        buffer.keep_checksum();
        assert_eq!((buffer.checksum(), buffer.clone().checksum()), (before, before));
        buffer[BLOCK_BYTES - 1] = 1;
        assert_eq!(buffer.checksum(), checksum(&buffer));
        assert_ne!(buffer.checksum(), before);
        buffer.keep_checksum();
        buffer.fill(7);
        assert_eq!(buffer.checksum(), checksum(&[7; BLOCK_BYTES]));
    }

    #[test]
    fn pages_freed_by_other_threads_are_used_again_without_being_shared() {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<(u64, Buffer)>(1000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (number, buffer) in receiver {
                    assert_eq!(*buffer, number.to_le_bytes().repeat(BLOCK_BYTES / 8));
                }
            });
            for thread in 0..3 {
                let sender = sender.clone();
                scope.spawn(move || {
                    for round in 0..10_000 {
                        let number: u64 = thread << 32 | round;
                        let bytes = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
                        sender.send((number, Buffer::from_bytes(&bytes))).unwrap();
                    }
                });
            }
            drop(sender);
        });
    }
}
