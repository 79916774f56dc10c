//! Memory for one-block buffers, of which a page cache holds millions.
//!
//! A general allocator spends up to a page of padding on each page that must be aligned to itself. Here slabs
//! of 2 MiB are cut into pages without any; a slab's bookkeeping lies in its own first page, found from a
//! page's address by masking. Slabs ask for a huge page: one fault then backs 511 buffers, where a fault each
//! costs more than all else. Full slabs are known to nobody but their pages. Freed pages go back to their
//! slab; slabs that are wholly free are returned to the system beyond a small reserve.
//!
//! Invariants:
//! - every page's memory is initialised at all times: fresh pages are the system's zeros, others hold what
//!   their last owner left, and are zeroed on request when they are handed out;
//! - `available` holds exactly the slabs with a free page, each at its own `position`;
//! - a page is handed out once until it is given back (`give_back` asserts it).
//!
//! Locks: `GROWING`, held by whoever maps a slab; `POOL` is a leaf. Zeroing, and giving memory back to the system, happen outside of it.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;
use syncline_format::BLOCK_BYTES;

/// The size of a huge page on the common machines, so that one fault may back a whole slab.
const SLAB_BYTES: usize = 2 << 20;
/// Pages of a slab, the first one (bookkeeping) included.
const SLAB_PAGES: usize = SLAB_BYTES / BLOCK_BYTES;
/// Wholly free slabs kept for the next burst.
const EMPTY_SLABS_MAX: usize = 8;

/// Places for the bookkeeping within the first page. Slabs use them in turn, since the same place in every
/// slab would fall into the same few sets of the processor's cache.
const HEADER_PLACES: usize = 32;
const HEADER_BYTES: usize = BLOCK_BYTES / HEADER_PLACES;

const _: () = assert!(SLAB_PAGES.is_multiple_of(64));
const _: () = assert!(size_of::<Slab>() <= HEADER_BYTES);

static POOL: Mutex<Pool> = Mutex::new(Pool { available: Vec::new(), empty: 0 });

static GROWING: Mutex<()> = Mutex::new(());

struct Pool {
    available: Vec<NonNull<Slab>>,
    /// Wholly free slabs among them.
    empty: usize,
}

// SAFETY: slabs are reached through the pool only, under its lock.
unsafe impl Send for Pool {}

/// The bookkeeping of a slab.
struct Slab {
    /// The slab's first byte.
    start: NonNull<u8>,
    /// One bit per page, set while it is free; never for page 0.
    free: [u64; SLAB_PAGES / 64],
    free_pages: usize,
    /// Pages from here on were never handed out and hold zeros.
    fresh_from: usize,
    /// Where the slab is in `Pool::available`, while it is there.
    position: usize,
}

/// A page on loan from the pool.
pub(crate) struct Loan {
    pub(crate) bytes: NonNull<u8>,
    /// Never used before, so it holds zeros.
    pub(crate) zeroed: bool,
}

/// Hands out a page of initialised bytes.
pub(crate) fn take() -> Loan {
    if let Some(loan) = POOL.lock().take() {
        return loan;
    }
    // Others that find the pool empty at the same time wait for this slab: it is enough for hundreds of them.
    let _growing = GROWING.lock();
    if let Some(loan) = POOL.lock().take() {
        return loan;
    }
    let slab = new_slab();
    let mut pool = POOL.lock();
    pool.add(slab);
    pool.take().expect("a slab was just added")
}

/// Takes a page back.
///
/// # Safety
/// The page came from [`take`], was not given back since, and is not used any more.
pub(crate) unsafe fn give_back(page: NonNull<u8>) {
    // SAFETY: the caller's promise.
    let surplus = unsafe { POOL.lock().give_back(page) };
    if let Some(start) = surplus {
        // SAFETY: the pool has forgotten the slab and none of its pages is on loan.
        let unmapped = unsafe { libc::munmap(start.as_ptr().cast(), SLAB_BYTES) };
        assert_eq!(unmapped, 0, "a slab is a mapping of its own");
    }
}

impl Pool {
    /// None if every slab is full.
    fn take(&mut self) -> Option<Loan> {
        let slab_at = *self.available.last()?;
        // SAFETY: slabs in `available` are mapped and reached only under the pool's lock, which `&mut self`
        // stands for.
        let slab = unsafe { &mut *slab_at.as_ptr() };
        let word = slab.free.iter().position(|&bits| bits != 0).expect("an available slab has a free page");
        let page = word * 64 + slab.free[word].trailing_zeros() as usize;
        slab.free[word] &= slab.free[word] - 1;
        self.empty -= usize::from(slab.free_pages == SLAB_PAGES - 1);
        slab.free_pages -= 1;
        let zeroed = page >= slab.fresh_from;
        slab.fresh_from = slab.fresh_from.max(page + 1);
        if slab.free_pages == 0 {
            self.available.pop();
        }
        // SAFETY: `page` is a page of the slab.
        Some(Loan { bytes: unsafe { slab.start.add(page * BLOCK_BYTES) }, zeroed })
    }

    /// Takes the page back, and returns the start of its slab if that is to be unmapped.
    ///
    /// # Safety
    /// As for [`give_back`].
    unsafe fn give_back(&mut self, page: NonNull<u8>) -> Option<NonNull<u8>> {
        let offset = page.addr().get() % SLAB_BYTES;
        // SAFETY: the page lies in a mapped slab, which starts at the last multiple of its size.
        let slab_at = header(unsafe { page.sub(offset) });
        // SAFETY: as in `take`; a slab with a page on loan is mapped.
        let slab = unsafe { &mut *slab_at.as_ptr() };
        let page = offset / BLOCK_BYTES;
        assert!(slab.free[page / 64] & 1 << (page % 64) == 0, "a page is given back once");
        slab.free[page / 64] |= 1 << (page % 64);
        slab.free_pages += 1;
        if slab.free_pages == 1 {
            slab.position = self.available.len();
            self.available.push(slab_at);
        }
        if slab.free_pages < SLAB_PAGES - 1 {
            return None;
        }
        if self.empty < EMPTY_SLABS_MAX {
            self.empty += 1;
            return None;
        }
        let position = slab.position;
        self.available.swap_remove(position);
        if let Some(moved) = self.available.get(position) {
            // SAFETY: as above; `moved` is another slab than `slab`, which was removed.
            unsafe { (*moved.as_ptr()).position = position };
        }
        Some(slab.start)
    }

    /// Adds a slab that is wholly free.
    fn add(&mut self, slab_at: NonNull<Slab>) {
        // SAFETY: as in `take`; a new slab is reached by its maker alone.
        unsafe { (*slab_at.as_ptr()).position = self.available.len() };
        self.available.push(slab_at);
        self.empty += 1;
    }
}

/// Maps a slab, all of it free. Its first fault may zero a huge page, so this happens outside of the pool's
/// lock.
fn new_slab() -> NonNull<Slab> {
    let start = map_slab();
    let slab_at = header(start);
    let mut free = [u64::MAX; SLAB_PAGES / 64];
    free[0] &= !1;
    // SAFETY: a new mapping; the header lies in its first page and is aligned.
    unsafe { slab_at.write(Slab { start, free, free_pages: SLAB_PAGES - 1, fresh_from: 1, position: 0 }) };
    slab_at
}

/// Where the bookkeeping of the slab at `start` is.
fn header(start: NonNull<u8>) -> NonNull<Slab> {
    let place = start.addr().get() / SLAB_BYTES % HEADER_PLACES;
    // SAFETY: within the slab's first page.
    unsafe { start.add(place * HEADER_BYTES) }.cast()
}

/// Maps a slab aligned to its size: maps twice as much and gives the edges back.
fn map_slab() -> NonNull<u8> {
    let out_of_memory = || -> ! {
        let layout = Layout::from_size_align(SLAB_BYTES, SLAB_BYTES).expect("the slab's layout is valid");
        handle_alloc_error(layout)
    };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no existing memory.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 2 * SLAB_BYTES, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        out_of_memory();
    }
    let before = mapped.addr().next_multiple_of(SLAB_BYTES) - mapped.addr();
    // SAFETY: `before` is less than a slab, so the slab and the edges lie within the mapping; nobody uses the
    // edges.
    unsafe {
        let slab = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped, before);
        }
        libc::munmap(slab.add(SLAB_BYTES), SLAB_BYTES - before);
        // Only advice; without huge pages the slab works as well.
        libc::madvise(slab, SLAB_BYTES, libc::MADV_HUGEPAGE);
        NonNull::new(slab.cast()).unwrap_or_else(|| out_of_memory())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(pool: &mut Pool) -> Loan {
        if pool.available.is_empty() {
            pool.add(new_slab());
        }
        pool.take().unwrap()
    }

    /// Gives the pages back and returns how many slabs were unmapped.
    fn give_back(pool: &mut Pool, pages: Vec<NonNull<u8>>) -> usize {
        let mut unmapped = 0;
        for page in pages {
            // SAFETY: the page was taken from this pool and is forgotten here.
            if let Some(start) = unsafe { pool.give_back(page) } {
                unmapped += 1;
                // SAFETY: the pool has forgotten the slab.
                assert_eq!(unsafe { libc::munmap(start.as_ptr().cast(), SLAB_BYTES) }, 0);
            }
        }
        unmapped
    }

    #[test]
    fn pages_are_distinct_aligned_and_densely_packed() {
        let mut pool = Pool { available: Vec::new(), empty: 0 };
        let count = 3 * (SLAB_PAGES - 1);
        let mut pages: Vec<_> = (0..count).map(|_| take(&mut pool).bytes).collect();
        let mut addresses: Vec<usize> = pages.iter().map(|page| page.addr().get()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), count);
        assert!(addresses.iter().all(|address| address.is_multiple_of(BLOCK_BYTES)));
        addresses.iter_mut().for_each(|address| *address /= SLAB_BYTES);
        addresses.dedup();
        assert_eq!(addresses.len(), 3);
        assert!(pool.available.is_empty());
        let again = pages.split_off(count - 700);
        assert_eq!(give_back(&mut pool, again), 0);
        pages.extend((0..700).map(|_| take(&mut pool)).map(|loan| {
            assert!(!loan.zeroed);
            loan.bytes
        }));
        assert!(pool.available.is_empty());
        give_back(&mut pool, pages);
        assert_eq!((pool.empty, pool.available.len()), (3, 3));
    }

    #[test]
    fn free_slabs_beyond_the_reserve_go_back_to_the_system() {
        let mut pool = Pool { available: Vec::new(), empty: 0 };
        let slabs = EMPTY_SLABS_MAX + 20;
        let mut pages: Vec<_> = (0..slabs * (SLAB_PAGES - 1)).map(|_| take(&mut pool).bytes).collect();
        // Page by page across all slabs, so that they become free in one go at the end, in mixed order.
        pages.sort_unstable_by_key(|page| {
            (page.addr().get() % SLAB_BYTES, page.addr().get() / SLAB_BYTES % 7)
        });
        assert_eq!(give_back(&mut pool, pages), 20);
        assert_eq!((pool.empty, pool.available.len()), (EMPTY_SLABS_MAX, EMPTY_SLABS_MAX));
        for (position, slab) in pool.available.iter().enumerate() {
            // SAFETY: available slabs are mapped.
            assert_eq!(unsafe { slab.as_ref() }.position, position);
        }
        let page = take(&mut pool);
        assert_eq!(pool.empty, EMPTY_SLABS_MAX - 1);
        give_back(&mut pool, vec![page.bytes]);
    }
}
