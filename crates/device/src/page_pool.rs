//! Memory for buffers of one block and of a tree node, of which the caches hold most of a volume's memory.
//!
//! A general allocator spends up to a block of padding on each buffer that must be aligned to one, and under random
//! changes to a tree two thirds of its heap ended as gaps between nodes. Here each of the two sizes has slabs of 2
//! MiB, cut into *pages* of that size without padding; a slab's bookkeeping lies in its own first page, found from a
//! page's address by masking. Full slabs are known to nobody but their pages. Freed pages go back to their slab. Slabs
//! that are wholly free are returned to the system beyond a small reserve, and what of the reserve nobody has needed
//! for a while is returned when [`give_back_unused_buffers`] is called.
//!
//! A slab is backed by small pages, all at once where the kernel can do that: a fault each costs more than all else.
//! Not by a huge page: a guest whose host takes back free memory (free page reporting) gives it back in such blocks,
//! so that the host has to find and clear each of their small pages again. On such a machine 128 MiB took 320 to 400
//! ms like this and 35 to 45 ms as small pages, of which the kernel has used ones at hand. Nor is the kernel to join
//! them later: it would find the memory in the same way, and hold up whoever touches the slab meanwhile.
//!
//! A forked child has pools of its own: the parent's may be in any state, and what a child gives back of it is left
//! where it is.
//!
//! Invariants:
//! - every page's memory is initialised at all times: fresh pages are the system's zeros, others hold what
//!   their last owner left, and are zeroed on request when they are handed out;
//! - `available` holds exactly the slabs with a free page and one on loan, each at its own `position`; `empty` those
//!   without one on loan, which are used last, so that they stay so;
//! - a page is handed out once until it is given back (`give_back` asserts it), to the pool it came from.
//!
//! Locks: `growing`, held by whoever maps a slab; `slabs` is a leaf. Zeroing, and giving memory back to the system,
//! happen outside of it.
#![allow(unsafe_code)]

use crate::{PerProcess, Process};
use parking_lot::Mutex;
use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;
use syncline_format::{BLOCK_BYTES, NODE_BLOCKS};

/// Rarely to be asked for, and little to be left unused.
const SLAB_BYTES: usize = 2 << 20;
/// Most pages of a slab, the first one (bookkeeping) included.
const SLAB_PAGES_MAX: usize = SLAB_BYTES / BLOCK_BYTES;

/// Places for the bookkeeping within the first page. Slabs use them in turn, since the same place in every
/// slab would fall into the same few sets of the processor's cache.
const HEADER_PLACES: usize = 32;
const HEADER_BYTES: usize = BLOCK_BYTES / HEADER_PLACES;

const _: () = assert!(SLAB_PAGES_MAX.is_multiple_of(64));
const _: () = assert!(size_of::<Slab>() <= HEADER_BYTES);
const _: () = assert!((SLAB_PAGES_MAX / NODE_BLOCKS as usize).is_multiple_of(64));

static BLOCKS: PerProcess<Pool> = PerProcess::new(|| Pool::new(1, 8));
static NODES: PerProcess<Pool> = PerProcess::new(|| Pool::new(NODE_BLOCKS as usize, 4));

/// Memory for the buffers of caches, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferMemory {
    /// Got from the system.
    pub mapped: usize,
    /// Of these in buffers.
    pub used: usize,
}

/// What this process has for buffers.
pub fn buffer_memory() -> BufferMemory {
    let [blocks, nodes] = [BLOCKS.get(), NODES.get()].map(|pool| pool.slabs.lock().memory());
    BufferMemory { mapped: blocks.mapped + nodes.mapped, used: blocks.used + nodes.used }
}

/// Returns to the system what no buffer has needed since the last call, but for 4 MiB. Takes a fraction of a
/// millisecond for each 2 MiB, and holds up nobody meanwhile.
pub fn give_back_unused_buffers() {
    BLOCKS.get().give_back_unused();
    NODES.get().give_back_unused();
}

/// Pages of one size.
pub(crate) struct Pool {
    slabs: Mutex<Slabs>,
    growing: Mutex<()>,
}

struct Slabs {
    /// Size of a page: a power of two, at least a block.
    page_bytes: usize,
    /// Wholly free slabs kept for the next burst.
    empty_max: usize,
    available: Vec<NonNull<Slab>>,
    empty: Vec<NonNull<Slab>>,
    /// How few of the latter there were since somebody asked for what is not used.
    least_empty: usize,
    /// All slabs, the full ones included.
    mapped: usize,
    on_loan: usize,
}

// SAFETY: slabs are reached through `Slabs` only, under its lock.
unsafe impl Send for Slabs {}

/// The bookkeeping of a slab.
struct Slab {
    /// The slab's first byte.
    start: NonNull<u8>,
    /// Whose pool it is in. Constant.
    made_in: Process,
    /// One bit per page, set while it is free; never for page 0, nor beyond the last.
    free: [u64; SLAB_PAGES_MAX / 64],
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

impl Pool {
    const fn new(blocks: usize, empty_max: usize) -> Pool {
        Pool { slabs: Mutex::new(Slabs::new(blocks, empty_max)), growing: Mutex::new(()) }
    }

    /// The pool for buffers of so many blocks, if there is one.
    pub(crate) fn of(blocks: usize) -> Option<&'static Pool> {
        match blocks {
            1 => Some(BLOCKS.get()),
            _ if blocks == NODE_BLOCKS as usize => Some(NODES.get()),
            _ => None,
        }
    }

    /// Hands out a page of initialised bytes.
    pub(crate) fn take(&self) -> Loan {
        if let Some(loan) = self.slabs.lock().take() {
            return loan;
        }
        // Others that find the pool empty at the same time wait for this slab: it is enough for hundreds of them.
        let _growing = self.growing.lock();
        let mut slabs = self.slabs.lock();
        if let Some(loan) = slabs.take() {
            return loan;
        }
        let pages = slabs.slab_pages();
        drop(slabs);
        let slab = new_slab(pages);
        let mut slabs = self.slabs.lock();
        slabs.add(slab);
        slabs.take().expect("a slab was just added")
    }

    /// Takes a page back.
    ///
    /// # Safety
    /// The page came from [`Pool::take`] of this pool (or of the one that the parent of this process had), was not
    /// given back since, and is not used any more.
    pub(crate) unsafe fn give_back(&self, page: NonNull<u8>) {
        // SAFETY: the page lies in a mapped slab, whose bookkeeping says from its beginning on whose it is.
        let made_in = unsafe { (&raw const (*slab_of(page).as_ptr()).made_in).read() };
        if !made_in.is_current() {
            return;
        }
        // SAFETY: the caller's promise.
        let surplus = unsafe { self.slabs.lock().give_back(page) };
        if let Some(start) = surplus {
            // SAFETY: the pool has forgotten the slab and none of its pages is on loan.
            unsafe { unmap(start) };
        }
    }

    fn give_back_unused(&self) {
        let unused = self.slabs.lock().take_unused();
        for start in unused {
            // SAFETY: as above.
            unsafe { unmap(start) };
        }
    }
}

/// Returns a slab to the system.
///
/// # Safety
/// It is in no pool, and none of its pages is on loan.
unsafe fn unmap(start: NonNull<u8>) {
    // SAFETY: the caller's promise.
    let unmapped = unsafe { libc::munmap(start.as_ptr().cast(), SLAB_BYTES) };
    assert_eq!(unmapped, 0, "a slab is a mapping of its own");
}

impl Slabs {
    const fn new(blocks: usize, empty_max: usize) -> Slabs {
        Slabs {
            page_bytes: blocks * BLOCK_BYTES,
            empty_max,
            available: Vec::new(),
            empty: Vec::new(),
            least_empty: 0,
            mapped: 0,
            on_loan: 0,
        }
    }

    /// Pages of a slab, the first one included.
    fn slab_pages(&self) -> usize {
        SLAB_BYTES / self.page_bytes
    }

    fn memory(&self) -> BufferMemory {
        BufferMemory { mapped: self.mapped * SLAB_BYTES, used: self.on_loan * self.page_bytes }
    }

    /// None if every slab is full.
    fn take(&mut self) -> Option<Loan> {
        let slab_at = match self.available.last() {
            Some(slab) => *slab,
            None => self.break_into_empty()?,
        };
        // SAFETY: slabs in `available` are mapped and reached only under the pool's lock, which `&mut self`
        // stands for.
        let slab = unsafe { &mut *slab_at.as_ptr() };
        let word = slab.free.iter().position(|&bits| bits != 0).expect("an available slab has a free page");
        let page = word * 64 + slab.free[word].trailing_zeros() as usize;
        slab.free[word] &= slab.free[word] - 1;
        slab.free_pages -= 1;
        self.on_loan += 1;
        let zeroed = page >= slab.fresh_from;
        slab.fresh_from = slab.fresh_from.max(page + 1);
        if slab.free_pages == 0 {
            self.available.pop();
        }
        // SAFETY: `page` is a page of the slab.
        Some(Loan { bytes: unsafe { slab.start.add(page * self.page_bytes) }, zeroed })
    }

    fn break_into_empty(&mut self) -> Option<NonNull<Slab>> {
        let slab_at = self.empty.pop()?;
        self.least_empty = self.least_empty.min(self.empty.len());
        // SAFETY: as in `take`.
        unsafe { (*slab_at.as_ptr()).position = self.available.len() };
        self.available.push(slab_at);
        Some(slab_at)
    }

    /// Takes the page back, and returns the start of its slab if that is to be unmapped.
    ///
    /// # Safety
    /// As for [`Pool::give_back`].
    unsafe fn give_back(&mut self, page: NonNull<u8>) -> Option<NonNull<u8>> {
        let slab_at = slab_of(page);
        // SAFETY: as in `take`; a slab with a page on loan is mapped.
        let slab = unsafe { &mut *slab_at.as_ptr() };
        let page = page.addr().get() % SLAB_BYTES / self.page_bytes;
        assert!(slab.free[page / 64] & 1 << (page % 64) == 0, "a page is given back once");
        slab.free[page / 64] |= 1 << (page % 64);
        slab.free_pages += 1;
        self.on_loan -= 1;
        if slab.free_pages == 1 {
            slab.position = self.available.len();
            self.available.push(slab_at);
        }
        if slab.free_pages < self.slab_pages() - 1 {
            return None;
        }
        let position = slab.position;
        self.available.swap_remove(position);
        if let Some(moved) = self.available.get(position) {
            // SAFETY: as above; `moved` is another slab than `slab`, which was removed.
            unsafe { (*moved.as_ptr()).position = position };
        }
        if self.empty.len() < self.empty_max {
            self.empty.push(slab_at);
            return None;
        }
        self.mapped -= 1;
        Some(slab.start)
    }

    /// Forgets the wholly free slabs that were not needed since the last call, but for one, and returns their starts.
    fn take_unused(&mut self) -> Vec<NonNull<u8>> {
        let unused = self.least_empty.saturating_sub(1);
        // SAFETY: as in `take`.
        let starts = self.empty.drain(..unused).map(|slab| unsafe { slab.as_ref() }.start).collect();
        self.mapped -= unused;
        self.least_empty = self.empty.len();
        starts
    }

    /// Adds a slab that is wholly free.
    fn add(&mut self, slab_at: NonNull<Slab>) {
        self.empty.push(slab_at);
        self.mapped += 1;
    }
}

/// Maps a slab of so many pages, all of it free. That takes long, so it happens outside of the pool's lock.
fn new_slab(pages: usize) -> NonNull<Slab> {
    let start = map_slab();
    let slab_at = header(start);
    let mut free = [0; SLAB_PAGES_MAX / 64];
    free[..pages / 64].fill(u64::MAX);
    free[0] &= !1;
    // SAFETY: a new mapping; the header lies in its first page and is aligned.
    unsafe {
        let made_in = Process::current();
        slab_at.write(Slab { start, made_in, free, free_pages: pages - 1, fresh_from: 1, position: 0 });
    }
    slab_at
}

/// Where the bookkeeping of a page's slab is. The slab starts at the last multiple of its size.
fn slab_of(page: NonNull<u8>) -> NonNull<Slab> {
    // SAFETY: the start of the mapping that the page lies in.
    header(unsafe { page.sub(page.addr().get() % SLAB_BYTES) })
}

/// Where the bookkeeping of the slab at `start` is.
fn header(start: NonNull<u8>) -> NonNull<Slab> {
    let place = start.addr().get() / SLAB_BYTES % HEADER_PLACES;
    // SAFETY: within the slab's first page.
    unsafe { start.add(place * HEADER_BYTES) }.cast()
}

/// Maps a slab, and has the kernel back it.
fn map_slab() -> NonNull<u8> {
    map_aligned(SLAB_BYTES, libc::MADV_NOHUGEPAGE).unwrap_or_else(|| {
        let layout = Layout::from_size_align(SLAB_BYTES, SLAB_BYTES).expect("the slab's layout is valid");
        handle_alloc_error(layout)
    })
}

/// Maps `bytes` bytes (a power of two) aligned to that, by mapping twice as much and giving the edges back, and has the
/// kernel back them at once with pages of the advised kind. `None` if there is no memory.
pub(crate) fn map_aligned(bytes: usize, advice: libc::c_int) -> Option<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no existing memory.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 2 * bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let before = mapped.addr().next_multiple_of(bytes) - mapped.addr();
    // SAFETY: `before` is less than `bytes`, so what is kept and the edges lie within the mapping; nobody uses the
    // edges.
    unsafe {
        let start = mapped.add(before);
        if before > 0 {
            libc::munmap(mapped, before);
        }
        libc::munmap(start.add(bytes), bytes - before);
        // Only advice; a kernel that takes none of it backs each page when it is touched.
        for advice in [advice, libc::MADV_POPULATE_WRITE] {
            libc::madvise(start, bytes, advice);
        }
        NonNull::new(start.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One for each size of a page, with the number of pages that a slab has for others.
    fn both() -> [(Slabs, usize); 2] {
        [1, NODE_BLOCKS as usize].map(|blocks| (Slabs::new(blocks, 8), SLAB_PAGES_MAX / blocks - 1))
    }

    fn take(slabs: &mut Slabs) -> Loan {
        if slabs.available.is_empty() && slabs.empty.is_empty() {
            slabs.add(new_slab(slabs.slab_pages()));
        }
        slabs.take().unwrap()
    }

    /// Gives the pages back and returns how many slabs were unmapped.
    fn give_back(slabs: &mut Slabs, pages: Vec<NonNull<u8>>) -> usize {
        let mut unmapped = 0;
        for page in pages {
            // SAFETY: the page was taken from these slabs and is forgotten here.
            if let Some(start) = unsafe { slabs.give_back(page) } {
                unmapped += 1;
                // SAFETY: the slab is forgotten.
                assert_eq!(unsafe { libc::munmap(start.as_ptr().cast(), SLAB_BYTES) }, 0);
            }
        }
        unmapped
    }

    #[test]
    fn pages_are_distinct_aligned_and_densely_packed() {
        for (mut slabs, usable) in both() {
            let count = 3 * usable;
            let mut pages: Vec<_> = (0..count).map(|_| take(&mut slabs).bytes).collect();
            let mut addresses: Vec<usize> = pages.iter().map(|page| page.addr().get()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len(), count);
            assert!(addresses.iter().all(|address| address.is_multiple_of(slabs.page_bytes)));
            assert!(
                addresses.iter().all(|address| address % SLAB_BYTES != 0),
                "the bookkeeping is handed out"
            );
            addresses.iter_mut().for_each(|address| *address /= SLAB_BYTES);
            addresses.dedup();
            assert_eq!(addresses.len(), 3);
            assert!(slabs.available.is_empty());
            let some = usable + usable / 3;
            let again = pages.split_off(count - some);
            assert_eq!(give_back(&mut slabs, again), 0);
            pages.extend((0..some).map(|_| take(&mut slabs)).map(|loan| {
                assert!(!loan.zeroed);
                loan.bytes
            }));
            assert!(slabs.available.is_empty());
            give_back(&mut slabs, pages);
            assert_eq!((slabs.empty.len(), slabs.available.len()), (3, 0));
        }
    }

    #[test]
    fn free_slabs_beyond_the_reserve_go_back_to_the_system() {
        for (mut slabs, usable) in both() {
            let count = slabs.empty_max + 20;
            let mut pages: Vec<_> = (0..count * usable).map(|_| take(&mut slabs).bytes).collect();
            // Page by page across all slabs, so that they become free in one go at the end, in mixed order.
            pages.sort_unstable_by_key(|page| {
                (page.addr().get() % SLAB_BYTES, page.addr().get() / SLAB_BYTES % 7)
            });
            assert_eq!(give_back(&mut slabs, pages), 20);
            assert_eq!((slabs.empty.len(), slabs.available.len()), (slabs.empty_max, 0));
            assert_eq!(slabs.memory(), BufferMemory { mapped: slabs.empty_max * SLAB_BYTES, used: 0 });
            let page = take(&mut slabs);
            assert_eq!((slabs.empty.len(), slabs.available.len()), (slabs.empty_max - 1, 1));
            give_back(&mut slabs, vec![page.bytes]);
        }
    }

    #[test]
    fn slabs_that_are_partly_used_know_their_places() {
        for (mut slabs, usable) in both() {
            let pages: Vec<_> = (0..7 * usable).map(|_| take(&mut slabs).bytes).collect();
            // One page of each slab stays on loan, but for every other slab, which becomes free.
            let (rest, given): (Vec<_>, Vec<_>) =
                pages.into_iter().enumerate().partition(|(at, _)| at % usable == 5 && at / usable % 2 == 0);
            let pages = |them: Vec<(usize, NonNull<u8>)>| them.into_iter().map(|(_, page)| page).collect();
            give_back(&mut slabs, pages(given));
            assert_eq!((slabs.available.len(), slabs.empty.len()), (4, 3));
            for (position, slab) in slabs.available.iter().enumerate() {
                // SAFETY: available slabs are mapped.
                assert_eq!(unsafe { slab.as_ref() }.position, position);
            }
            // What is partly used is used up first.
            let more: Vec<_> = (0..4 * (usable - 1)).map(|_| take(&mut slabs).bytes).collect();
            assert_eq!((slabs.available.len(), slabs.empty.len()), (0, 3));
            give_back(&mut slabs, more);
            give_back(&mut slabs, pages(rest));
            assert_eq!(
                (slabs.available.len(), slabs.empty.len(), slabs.on_loan),
                (0, 7.min(slabs.empty_max), 0)
            );
        }
    }

    #[test]
    fn what_nobody_needs_for_a_while_goes_back_to_the_system() {
        for (mut slabs, usable) in both() {
            let burst = |slabs: &mut Slabs, of: usize| {
                let pages: Vec<_> = (0..of * usable).map(|_| take(slabs).bytes).collect();
                give_back(slabs, pages);
            };
            let unused = |slabs: &mut Slabs| {
                let starts = slabs.take_unused();
                // SAFETY: the slabs are forgotten.
                starts.iter().for_each(|start| unsafe { unmap(*start) });
                starts.len()
            };
            burst(&mut slabs, 6);
            assert_eq!(unused(&mut slabs), 0, "all were needed");
            burst(&mut slabs, 2);
            assert_eq!(unused(&mut slabs), 3, "two were, and one is kept");
            assert_eq!(slabs.mapped, 3);
            assert_eq!([unused(&mut slabs), unused(&mut slabs), unused(&mut slabs)], [2, 0, 0]);
            assert_eq!((slabs.mapped, slabs.empty.len()), (1, 1));
            burst(&mut slabs, 2);
            assert_eq!(slabs.mapped, 2);
        }
    }
}
