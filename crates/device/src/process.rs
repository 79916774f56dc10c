//! Which process made something: the one place that knows what a fork is.
//!
//! A forked child has a copy of its parent's memory and descriptors, but of its threads only the one that forked. An
//! open volume is of no use to it: the copied engine knows nothing of what the parent writes from then on, locks that
//! other threads held are never given back, and the parent's ring and file locks are shared. So whatever belongs to
//! an open volume remembers the [`Process`] that made it, and is refused in any other one: [`ProcessBound`] neither
//! lends nor drops its value there. [`PerProcess`] gives a child a fresh one of what the whole process shares.
//! [`Private`] descriptors are closed in a child at once.
//!
//! Nor can a child open a volume itself that was forked while its parent had one open ([`Process::may_open`]). The
//! locks' library keeps its waiting threads in one table for the process, in memory that is theirs. A child has the
//! table and not the threads: their memory becomes that of its own threads, and the first of these that has to wait
//! walks over what is left. While no volume is open ([`InUse`]) nobody waits in the engine, and a fork leaves nothing
//! behind.
//!
//! How a fork is noticed. The process has a number, on a page that the kernel hands to a child as zeros
//! (`MADV_WIPEONFORK`); who finds zero there takes the next number. To ask costs two loads, and no fork escapes it,
//! be it `fork`, `_Fork` or a bare `clone`. The process id would cost a system call each time, and comes again in
//! other pid namespaces. Where the kernel does not wipe, the handler of `pthread_atfork` does, which is there for the
//! descriptors anyway.
//!
//! Nothing here takes a lock: the child of a fork in the midst of anything finds everything in order.
#![allow(unsafe_code)]

mod bound;
mod descriptors;

pub use bound::{PerProcess, ProcessBound};
pub use descriptors::Private;

use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Refused, because it belongs to the process that this one was forked from, or because that one had a volume open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a forked child can use neither its parent's volume nor open one itself; fork while no volume is open, or go on with exec"
)]
pub struct Forked;

/// A process, as told from those that it was forked from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u64);

/// Where this process' number is, zero while it has none; null before the first is asked for.
static NUMBER: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The highest number that this process or one before it has taken.
static LAST: AtomicU64 = AtomicU64::new(0);
/// For a machine that has no page to give.
static PLAIN: AtomicU64 = AtomicU64::new(0);
/// Volumes and devices that are open, or on the way.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// This process, or one before it, was forked while something was in use.
static SPOILED: AtomicBool = AtomicBool::new(false);
/// The handlers are there.
static HANDLED: AtomicBool = AtomicBool::new(false);

impl Process {
    /// This process.
    #[inline]
    pub fn current() -> Process {
        let place = NUMBER.load(Ordering::Acquire);
        if !place.is_null() {
            // SAFETY: what is stored there lives for ever.
            let number = unsafe { &*place }.load(Ordering::Relaxed);
            if number != 0 {
                return Process(number);
            }
        }
        Process::first_look()
    }

    /// Whether this is the process.
    #[inline]
    pub fn is_current(self) -> bool {
        self == Process::current()
    }

    /// Errors: this is a process that was forked from it.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_current() { Ok(()) } else { Err(Forked) }
    }

    /// Whether volumes can be opened here. Errors: this process was forked while its parent had one open.
    pub fn may_open() -> Result<(), Forked> {
        Process::current();
        if SPOILED.load(SeqCst) { Err(Forked) } else { Ok(()) }
    }

    #[cold]
    fn first_look() -> Process {
        handle_forks();
        let number = place();
        if number.load(SeqCst) == 0 {
            begin_child();
        }
        let next = LAST.fetch_add(1, SeqCst) + 1;
        match number.compare_exchange(0, next, SeqCst, SeqCst) {
            Ok(_) => Process(next),
            Err(theirs) => Process(theirs),
        }
    }
}

/// While it lives, a volume is open, or on the way: see [`Process::may_open`].
pub struct InUse(());

impl InUse {
    /// Errors: as [`Process::may_open`].
    pub fn begin() -> Result<InUse, Forked> {
        Process::may_open()?;
        IN_USE.fetch_add(1, SeqCst);
        Ok(InUse(()))
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        IN_USE.fetch_sub(1, SeqCst);
    }
}

/// In a child, before it has a number, and so before it has another thread or anything in use. Does nothing in the
/// first process.
fn begin_child() {
    if IN_USE.swap(0, SeqCst) > 0 {
        SPOILED.store(true, SeqCst);
    }
}

/// Where the number is, made if need be.
fn place() -> &'static AtomicU64 {
    let known = NUMBER.load(SeqCst);
    let place = if known.is_null() {
        let new = map_wiped().unwrap_or((&raw const PLAIN).cast_mut());
        match NUMBER.compare_exchange(null_mut(), new, SeqCst, SeqCst) {
            Ok(_) => new,
            // Another thread was faster; a page is lost, once.
            Err(theirs) => theirs,
        }
    } else {
        known
    };
    // SAFETY: a static, or a page that is never unmapped; a zeroed page holds a valid number.
    unsafe { &*place }
}

/// A page that a child finds zeroed. Kernels before 4.14 leave that to the handler.
fn map_wiped() -> Option<*mut AtomicU64> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches no existing memory, and the advice is about that alone.
    unsafe {
        let page = libc::mmap(null_mut(), size_of::<AtomicU64>(), protection, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(page, size_of::<AtomicU64>(), libc::MADV_WIPEONFORK);
        Some(page.cast())
    }
}

/// Sees to it that a child gives up what it must not have. Twice does no harm.
fn handle_forks() {
    if HANDLED.load(SeqCst) {
        return;
    }
    // SAFETY: the handlers store to atomics and close descriptors, all of which may be done between a fork and
    // anything else.
    let added = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    HANDLED.store(added == 0, SeqCst);
}

extern "C" fn before_fork() {
    descriptors::fork_begins();
}

extern "C" fn after_fork() {
    descriptors::fork_ends();
}

extern "C" fn in_child() {
    if !NUMBER.load(SeqCst).is_null() {
        place().store(0, SeqCst);
        begin_child();
    }
    descriptors::close_in_child();
}

#[cfg(test)]
pub(crate) mod tests;
