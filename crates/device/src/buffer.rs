//! Page-aligned buffers, so that every write can go to O_DIRECT without a copy.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use syncline_format::BLOCK_BYTES;

/// An owned run of zero-initialised bytes, aligned to 4 KiB, a whole number of blocks long.
pub struct Buffer {
    bytes: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its allocation alone; access follows Rust's borrowing of the `Buffer`.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `blocks` zeroed blocks; at least one.
    pub fn zeroed(blocks: usize) -> Buffer {
        assert!(blocks > 0, "a buffer holds at least one block");
        let len = blocks * BLOCK_BYTES;
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let bytes = unsafe { alloc_zeroed(layout) };
        let Some(bytes) = NonNull::new(bytes) else { handle_alloc_error(layout) };
        Buffer { bytes, len }
    }

    /// Copies `bytes`, padded with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len().div_ceil(BLOCK_BYTES).max(1));
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Length in blocks.
    pub fn blocks(&self) -> u64 {
        (self.len / BLOCK_BYTES) as u64
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, BLOCK_BYTES).expect("block-sized layouts are valid")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is `len` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        Buffer::from_bytes(self)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with the same layout, freed once.
        unsafe { dealloc(self.bytes.as_ptr(), Self::layout(self.len)) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
