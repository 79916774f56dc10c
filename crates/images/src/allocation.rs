//! Counting the memory of a process, to find inputs that make it grow without bound.
//!
//! A program that wants it counted declares [`Counting`] as its global allocator; otherwise all counts stay zero. Above
//! [`LIVE_BYTES_MAX`] an allocation fails, so that a hostile input ends the process and not the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// No allocation is granted beyond this.
pub const LIVE_BYTES_MAX: usize = 2 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub struct Counting;

fn grow(bytes: usize) -> bool {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if live > LIVE_BYTES_MAX {
        LIVE.fetch_sub(bytes, Ordering::Relaxed);
        return false;
    }
    PEAK.fetch_max(live, Ordering::Relaxed);
    true
}

// SAFETY: every request is handed to the system's allocator unchanged, or refused with a null pointer; the counters
// allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !grow(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer comes from `System` with this layout, since all allocations above do.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes allocated now.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Most bytes allocated at a time since [`forget_peak`].
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Starts a new measurement.
pub fn forget_peak() {
    PEAK.store(live_bytes(), Ordering::Relaxed);
}
