//! The memory of a queue's entries: an array of header areas and an array of page-aligned payloads.
//!
//! Address space is reserved for the full depth, pages come when they are first used: the kernel hands out the entry
//! that came back last, so a queue that never has more than three requests in flight uses the pages of three. After a
//! peak, [`Memory::release_pages`] gives pages of idle entries back.
//!
//! Access: an entry belongs to the kernel, to the queue's thread or to whoever owes its
//! request's answer;
//! nobody else calls [`header`](Memory::header) or [`payload`](Memory::payload) for it. That is what makes handing out
//! raw pointers from a shared reference sound, and it is the contract of both functions.

use crate::abi::uring::UringReqHeader;
use crate::memory::PAGE_BYTES;
use std::io;
use std::ptr::NonNull;

/// Header areas are this far apart, so that no two share a cache line.
const HEADER_STRIDE: usize = 320;
const _: () = assert!(HEADER_STRIDE >= size_of::<UringReqHeader>() && HEADER_STRIDE.is_multiple_of(64));

/// The index of an entry in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryIndex(pub u16);

/// The mapped memory of one queue.
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    payloads_at: usize,
    payload_bytes: usize,
    depth: u16,
}

// SAFETY: the mapping is this value's own; who may touch which part of it is the contract of `header` and `payload`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory for `depth` entries of `payload_bytes` (rounded up to pages) each.
    pub fn map(depth: u16, payload_bytes: usize) -> io::Result<Memory> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let payload_bytes = payload_bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_large)?;
        let payloads_at = (usize::from(depth) * HEADER_STRIDE).next_multiple_of(PAGE_BYTES);
        let bytes = payload_bytes
            .checked_mul(usize::from(depth))
            .and_then(|bytes| bytes.checked_add(payloads_at))
            .ok_or_else(too_large)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages would make one small request use two megabytes. Refused (EINVAL) where there are none: nothing
        // to do. A child of fork(2) that shared these pages would make the kernel copy requests into pages that are
        // not ours. SAFETY: advice about the mapping just made, which changes no contents.
        unsafe {
            libc::madvise(base, bytes, libc::MADV_NOHUGEPAGE);
            libc::madvise(base, bytes, libc::MADV_DONTFORK);
        }
        Ok(Memory {
            base: NonNull::new(base.cast())
                .expect("mmap reports failure by MAP_FAILED, never by address zero"),
            bytes,
            payloads_at,
            payload_bytes,
            depth,
        })
    }

    /// How many entries there are.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Bytes of each payload.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// The header area of an entry; to be used only by whom the entry belongs to.
    pub fn header(&self, entry: EntryIndex) -> NonNull<UringReqHeader> {
        assert!(entry.0 < self.depth, "entry {} of {}", entry.0, self.depth);
        // SAFETY: the array of `depth` header areas starts the mapping.
        unsafe { self.base.add(usize::from(entry.0) * HEADER_STRIDE) }.cast()
    }

    /// The payload of an entry; to be used only by whom the entry belongs to.
    pub fn payload(&self, entry: EntryIndex) -> NonNull<u8> {
        assert!(entry.0 < self.depth, "entry {} of {}", entry.0, self.depth);
        // SAFETY: the array of `depth` payloads starts at `payloads_at` and ends with the mapping.
        unsafe { self.base.add(self.payloads_at + usize::from(entry.0) * self.payload_bytes) }
    }

    /// The two areas of an entry as the kernel wants to be told of them.
    pub fn areas(&self, entry: EntryIndex) -> [libc::iovec; 2] {
        [
            libc::iovec {
                iov_base: self.header(entry).as_ptr().cast(),
                iov_len: size_of::<UringReqHeader>(),
            },
            libc::iovec { iov_base: self.payload(entry).as_ptr().cast(), iov_len: self.payload_bytes },
        ]
    }

    /// Gives the pages of an entry's payload back to the system; it reads as zeros afterwards.
    ///
    /// For the queue's thread, while the entry is lent to the kernel and the thread is not in a system call.
    pub fn release_pages(&self, entry: EntryIndex) {
        // SAFETY: the range is this entry's payload, which holds nothing that anybody still wants.
        unsafe {
            libc::madvise(self.payload(entry).as_ptr().cast(), self.payload_bytes, libc::MADV_DONTNEED);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nobody can hold a pointer into it who does not hold this value.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_aligned_to_pages_and_apart() {
        let memory = Memory::map(7, 10_000).expect("small mappings succeed");
        assert_eq!(memory.payload_bytes(), 12_288);
        let mut last = memory.header(EntryIndex(6)).as_ptr() as usize + size_of::<UringReqHeader>();
        for index in 0..7 {
            let at = memory.payload(EntryIndex(index)).as_ptr() as usize;
            assert_eq!(at % PAGE_BYTES, 0);
            assert!(at >= last, "payload {index} overlaps what is before it");
            last = at + memory.payload_bytes();
        }
        assert!(last <= memory.base.as_ptr() as usize + memory.bytes);
    }

    #[test]
    fn released_pages_read_as_zeros() {
        let memory = Memory::map(2, 8192).expect("small mappings succeed");
        let payload = memory.payload(EntryIndex(1));
        // SAFETY: the entry is this test's.
        unsafe { payload.write_bytes(7, 8192) };
        memory.release_pages(EntryIndex(1));
        // SAFETY: as above.
        assert_eq!(unsafe { payload.add(5000).read() }, 0);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert!(Memory::map(64, usize::MAX).is_err());
        assert!(Memory::map(64, usize::MAX / 16).is_err());
    }
}
