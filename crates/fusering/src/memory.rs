//! Memory that answers are put together in.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment of all buffers: what O_DIRECT asks for everywhere.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Zeroed memory on page boundaries.
pub(crate) struct PageBuffer {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is owned and plain bytes.
unsafe impl Send for PageBuffer {}
// SAFETY: shared references only read it.
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// At least `bytes` bytes, rounded up to whole pages.
    pub(crate) fn new(bytes: usize) -> PageBuffer {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let layout = PageBuffer::layout(bytes);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        PageBuffer { start, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, PAGE_BYTES).expect("a buffer is far smaller than the address space")
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is owned, initialised and `bytes` long.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is owned, initialised and `bytes` long; the exclusive reference guards it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), PageBuffer::layout(self.bytes)) }
    }
}

/// Where the data of one answer is put: on page boundaries.
pub(crate) enum ReplyMemory {
    /// Memory of its own; it is copied or written from there.
    Own(PageBuffer),
    /// Memory that the transport shares with the kernel and that belongs to the holder of the request's reply.
    Shared(SharedMemory),
}

/// Part of a transport's memory that nobody else touches until the request is answered.
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: whoever made it guarantees (see `new`) that the memory is used through this value only, on whatever thread.
unsafe impl Send for SharedMemory {}
// SAFETY: shared references only read it.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// # Safety
    /// Until the request is answered (and, for the whole life of this value, if it never is) the memory must stay
    /// mapped and initialised, and neither the kernel nor anybody else may touch it.
    pub(crate) unsafe fn new(start: NonNull<u8>, bytes: usize) -> SharedMemory {
        SharedMemory { start, bytes }
    }
}

impl ReplyMemory {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            ReplyMemory::Own(buffer) => buffer.as_slice(),
            // SAFETY: see `SharedMemory::new`.
            ReplyMemory::Shared(memory) => unsafe {
                std::slice::from_raw_parts(memory.start.as_ptr(), memory.bytes)
            },
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            ReplyMemory::Own(buffer) => buffer.as_mut_slice(),
            // SAFETY: see `SharedMemory::new`; the exclusive reference guards it.
            ReplyMemory::Shared(memory) => unsafe {
                std::slice::from_raw_parts_mut(memory.start.as_ptr(), memory.bytes)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_lie_on_page_boundaries_and_are_whole_pages() {
        for bytes in [0, 1, 4096, 4097, 1 << 20] {
            let mut buffer = PageBuffer::new(bytes);
            assert_eq!(buffer.as_slice().as_ptr() as usize % PAGE_BYTES, 0);
            assert!(buffer.len() >= bytes && buffer.len().is_multiple_of(PAGE_BYTES));
            buffer.as_mut_slice().fill(7);
            assert!(buffer.as_slice().iter().all(|byte| *byte == 7));
        }
    }
}
