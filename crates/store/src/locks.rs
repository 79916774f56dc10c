//! The store's locks and their order, outermost first.
//!
//! None of them is held while a node is read from the device, only `Checkpointing` while anything is written, only
//! `Trimming` while anything is discarded. The journal's is opened while its driver works.

use crate::lock_order::{Held, Level, Rank, take};
use crate::primitives as raw;
use std::ops::{Deref, DerefMut};

/// A class of the store's locks, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Whoever holds free blocks to discard them (`Shared::trimming`).
    Trimming,
    /// The checkpoint under way (`Shared::checkpointing`).
    Checkpointing,
    /// Trees, images and the LSN (`Shared::trees`).
    Trees,
    /// Bitmaps, claims and reservations (`Shared::space`).
    Space,
    /// The clean nodes in memory (`NodeCache`).
    Nodes,
    /// Nodes that cannot be read and are not read again.
    GivenUp,
    /// The journal's state.
    Journal,
    /// Who fills records (`Shared::piggyback`): for a moment, and nothing within.
    Piggyback,
    /// What one thread that waits for a group is told.
    Word,
}

impl Level for Lock {
    fn rank(self) -> Rank {
        Rank::of_store(self as u8)
    }

    fn name(self) -> &'static str {
        match self {
            Lock::Trimming => "the turn to discard",
            Lock::Checkpointing => "the checkpoint",
            Lock::Trees => "the trees",
            Lock::Space => "the space",
            Lock::Nodes => "the node cache",
            Lock::GivenUp => "the nodes that are given up",
            Lock::Journal => "the journal",
            Lock::Piggyback => "the filler of records",
            Lock::Word => "a waiter's word",
        }
    }
}

/// A lock's class, which takes no memory where nothing is checked.
#[derive(Clone, Copy)]
struct Place {
    #[cfg(debug_assertions)]
    lock: Lock,
}

impl Place {
    fn of(lock: Lock) -> Place {
        #[cfg(not(debug_assertions))]
        let _ = lock;
        Place {
            #[cfg(debug_assertions)]
            lock,
        }
    }

    /// Any class where nothing is compared.
    fn lock(self) -> Lock {
        #[cfg(debug_assertions)]
        return self.lock;
        #[cfg(not(debug_assertions))]
        Lock::Word
    }
}

impl Level for Place {
    fn rank(self) -> Rank {
        self.lock().rank()
    }

    fn name(self) -> &'static str {
        self.lock().name()
    }
}

/// A mutex with its place in the order.
pub(crate) struct Mutex<T> {
    place: Place,
    inner: raw::Mutex<T>,
}

/// The guard first, so that the lock is free when it counts as given back.
pub(crate) struct MutexGuard<'a, T> {
    guard: raw::MutexGuard<'a, T>,
    place: Place,
    held: Held,
}

impl<T> Mutex<T> {
    pub(crate) fn new(lock: Lock, value: T) -> Mutex<T> {
        Mutex { place: Place::of(lock), inner: raw::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = take(self.place);
        MutexGuard { guard: self.inner.lock(), place: self.place, held }
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `f` with the mutex unlocked.
    pub(crate) fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        let MutexGuard { guard, place, held } = guard;
        held.opened(*place, || raw::MutexGuard::unlocked(guard, f))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

pub(crate) struct Condvar(raw::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(raw::Condvar::new())
    }

    /// Who waits takes nothing meanwhile: the mutex goes on counting as held.
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A readers-writer lock with its place in the order. No thread reads twice at a time: a writer that waits in between
/// would end both.
pub(crate) struct RwLock<T> {
    place: Place,
    inner: raw::RwLock<T>,
}

pub(crate) struct ReadGuard<'a, T> {
    guard: raw::RwLockReadGuard<'a, T>,
    _held: Held,
}

pub(crate) struct WriteGuard<'a, T> {
    guard: raw::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    pub(crate) fn new(lock: Lock, value: T) -> RwLock<T> {
        RwLock { place: Place::of(lock), inner: raw::RwLock::new(value) }
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let _held = take(self.place);
        ReadGuard { guard: self.inner.read(), _held }
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let _held = take(self.place);
        WriteGuard { guard: self.inner.write(), _held }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions, not(any(shuttle, loom))))]
mod tests {
    use super::*;

    #[test]
    fn an_opened_guard_holds_nothing_and_closes_in_its_place() {
        let (outer, inner) = (Mutex::new(Lock::Space, 1), Mutex::new(Lock::Journal, 2));
        let mut journal = inner.lock();
        let inverted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(outer.lock())));
        assert!(inverted.is_err());
        // Opened, it lets others lock what is further out.
        let seen = MutexGuard::unlocked(&mut journal, || *outer.lock());
        assert_eq!((seen, *journal), (1, 2));
    }

    #[test]
    fn a_thread_does_not_read_twice_at_a_time() {
        let lock = RwLock::new(Lock::Trees, ());
        let _first = lock.read();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lock.read()))).is_err());
    }
}
