//! Descriptors that a forked child closes at once, in the handler that runs before `fork` returns to it.
//!
//! `flock` and locks of open file descriptions belong to the open file, which a child shares with its parent: they
//! end with an explicit unlock by any of the two, or when the last of them has closed it. So a child must not unlock,
//! and must not hold the descriptor either: if the parent were killed, the volume would stay locked for as long as
//! some forgotten child lives. The descriptors that hold a lock are in a list, and a child begins by closing them. A
//! child that is made without the handlers (a bare `clone`, `_Fork`) keeps them until it calls `exec` (they are
//! O_CLOEXEC) or ends; it is refused all the same.
//!
//! The list only grows, its places are used again. A descriptor that was opened while a fork was under way may be in
//! a child that does not know it from the list: it is closed, and opened again, before it is locked.

use super::{Process, handle_forks};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64};
use std::time::Duration;

/// No descriptor.
const FREE: RawFd = -1;
/// How often a descriptor is opened again because of forks. A program that forks without a pause may keep one in a
/// child.
const TRIES_MAX: u32 = 100;
/// Pause while a fork is under way.
const PAUSE: Duration = Duration::from_micros(100);

struct Place {
    descriptor: AtomicI32,
    next: *const Place,
}

static PLACES: AtomicPtr<Place> = AtomicPtr::new(null_mut());
/// Forks that have begun, and those that have returned to the parent.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// An open file that no forked child keeps.
pub struct Private<T: AsRawFd> {
    made_in: Process,
    file: ManuallyDrop<T>,
    place: &'static Place,
}

// SAFETY: the place is an atomic number and a constant pointer, in memory that is never freed.
unsafe impl Sync for Place {}

impl<T: AsRawFd> Private<T> {
    /// Opens a file, more than once if forks come between.
    pub fn open<E>(mut open: impl FnMut() -> Result<T, E>) -> Result<Private<T>, E> {
        handle_forks();
        let mut tries = 0;
        loop {
            let begun = between_forks();
            let private = Private::new(open()?);
            tries += 1;
            if BEGUN.load(SeqCst) == begun || tries == TRIES_MAX {
                return Ok(private);
            }
        }
    }

    fn new(file: T) -> Private<T> {
        let place = take_place(file.as_raw_fd());
        Private { made_in: Process::current(), file: ManuallyDrop::new(file), place }
    }

    /// Closes the file while it is still in the list, as the end of the process does, and gives back no lock.
    #[cfg(test)]
    pub(super) fn close_as_if_killed(mut self) {
        // SAFETY: taken once; what is forgotten drops nothing again.
        drop(unsafe { ManuallyDrop::take(&mut self.file) });
        self.place.descriptor.store(FREE, SeqCst);
        std::mem::forget(self);
    }

    /// The file itself, to be changed.
    pub fn file_mut(&mut self) -> &mut T {
        &mut self.file
    }
}

impl<T: AsRawFd> std::ops::Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.file
    }
}

impl<T: AsRawFd> Drop for Private<T> {
    fn drop(&mut self) {
        // In a child the descriptor is closed already, and its number may be another file's.
        if self.made_in.is_current() {
            self.place.descriptor.store(FREE, SeqCst);
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Waits until no fork is under way; the number of those that were. One that never ends is not waited for.
fn between_forks() -> u64 {
    for _ in 0..TRIES_MAX {
        let ended = ENDED.load(SeqCst);
        if BEGUN.load(SeqCst) == ended {
            return ended;
        }
        std::thread::sleep(PAUSE);
    }
    BEGUN.load(SeqCst)
}

fn take_place(descriptor: RawFd) -> &'static Place {
    let mut next: *const Place = PLACES.load(SeqCst);
    // SAFETY: places are never freed.
    while let Some(place) = unsafe { next.as_ref() } {
        if place.descriptor.compare_exchange(FREE, descriptor, SeqCst, SeqCst).is_ok() {
            return place;
        }
        next = place.next;
    }
    let new = Box::leak(Box::new(Place { descriptor: AtomicI32::new(descriptor), next: null() }));
    loop {
        let first = PLACES.load(SeqCst);
        new.next = first;
        if PLACES.compare_exchange(first, new, SeqCst, SeqCst).is_ok() {
            return new;
        }
    }
}

pub(super) fn fork_begins() {
    BEGUN.fetch_add(1, SeqCst);
}

pub(super) fn fork_ends() {
    ENDED.fetch_add(1, SeqCst);
}

/// Runs in a child, before anything else does.
pub(super) fn close_in_child() {
    // Other threads' forks are not this process'.
    ENDED.store(BEGUN.load(SeqCst), SeqCst);
    let mut next: *const Place = PLACES.load(SeqCst);
    // SAFETY: places are never freed.
    while let Some(place) = unsafe { next.as_ref() } {
        let descriptor = place.descriptor.swap(FREE, SeqCst);
        if descriptor != FREE {
            // SAFETY: the child's copy; nobody in the child uses it, since what belongs to the parent is refused.
            unsafe { libc::close(descriptor) };
        }
        next = place.next;
    }
}
