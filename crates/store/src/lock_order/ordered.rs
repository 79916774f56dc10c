//! Locks that know their place in the order.

#[cfg(not(any(shuttle, loom)))]
use super::take_tried;
use super::{Held, Level, Rank, take};
use crate::primitives as raw;
use std::ops::{Deref, DerefMut};

/// A lock's level, which takes no memory where nothing is checked.
#[derive(Clone, Copy)]
struct Place {
    #[cfg(debug_assertions)]
    rank: Rank,
    #[cfg(debug_assertions)]
    name: &'static str,
}

impl Place {
    fn of(level: impl Level) -> Place {
        #[cfg(not(debug_assertions))]
        let _ = level;
        Place {
            #[cfg(debug_assertions)]
            rank: level.rank(),
            #[cfg(debug_assertions)]
            name: level.name(),
        }
    }
}

impl Level for Place {
    fn rank(self) -> Rank {
        #[cfg(debug_assertions)]
        return self.rank;
        // Nothing is compared.
        #[cfg(not(debug_assertions))]
        Rank::outer(0, 0)
    }

    fn name(self) -> &'static str {
        #[cfg(debug_assertions)]
        return self.name;
        #[cfg(not(debug_assertions))]
        ""
    }
}

/// A mutex with its place in the order.
pub struct Mutex<T> {
    place: Place,
    inner: raw::Mutex<T>,
}

/// The guard first, so that the lock is free when it counts as given back.
pub struct MutexGuard<'a, T> {
    guard: raw::MutexGuard<'a, T>,
    place: Place,
    held: Held,
}

impl<T> Mutex<T> {
    pub fn new(level: impl Level, value: T) -> Mutex<T> {
        Mutex { place: Place::of(level), inner: raw::Mutex::new(value) }
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = take(self.place);
        MutexGuard { guard: self.inner.lock(), place: self.place, held }
    }

    /// The guard if nobody has the lock. Waits for nobody, so it may be asked for in any order.
    #[cfg(not(any(shuttle, loom)))]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.inner.try_lock()?;
        Some(MutexGuard { guard, place: self.place, held: take_tried(self.place) })
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `f` with the mutex unlocked.
    pub fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        let MutexGuard { guard, place, held } = guard;
        held.opened(*place, || raw::MutexGuard::unlocked(guard, f))
    }

    /// Gives the lock back to whoever waits for it, and not to this thread should it want it again at once.
    pub fn hand_on(guard: Self) {
        #[cfg(not(any(shuttle, loom)))]
        raw::MutexGuard::unlock_fair(guard.guard);
        // The model checkers try every order.
        #[cfg(any(shuttle, loom))]
        drop(guard.guard);
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

/// To wait for what another thread changes under a mutex.
pub struct Condvar(raw::Condvar);

impl Default for Condvar {
    fn default() -> Condvar {
        Condvar::new()
    }
}

impl Condvar {
    /// Nobody waits yet.
    pub fn new() -> Condvar {
        Condvar(raw::Condvar::new())
    }

    /// Who waits takes nothing meanwhile: the mutex goes on counting as held.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.0.wait(&mut guard.guard);
    }

    /// As [`Condvar::wait`], at most so long; whether that time was up.
    #[cfg(not(any(shuttle, loom)))]
    #[expect(
        clippy::disallowed_methods,
        reason = "clippy.toml names this method as well: each caller has its reason"
    )]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: std::time::Duration) -> bool {
        self.0.wait_for(&mut guard.guard, timeout).timed_out()
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A readers-writer lock with its place in the order. No thread reads twice at a time: a writer that waits in between
/// would end both.
pub struct RwLock<T> {
    place: Place,
    inner: raw::RwLock<T>,
}

/// Reads what a lock guards.
pub struct ReadGuard<'a, T> {
    guard: raw::RwLockReadGuard<'a, T>,
    _held: Held,
}

/// Changes what a lock guards.
pub struct WriteGuard<'a, T> {
    guard: raw::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> RwLock<T> {
    pub fn new(level: impl Level, value: T) -> RwLock<T> {
        RwLock { place: Place::of(level), inner: raw::RwLock::new(value) }
    }

    pub fn read(&self) -> ReadGuard<'_, T> {
        let _held = take(self.place);
        ReadGuard { guard: self.inner.read(), _held }
    }

    pub fn write(&self) -> WriteGuard<'_, T> {
        let _held = take(self.place);
        WriteGuard { guard: self.inner.write(), _held }
    }
}

#[cfg(not(any(shuttle, loom)))]
impl<T> RwLock<T> {
    /// As [`Mutex::try_lock`].
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let guard = self.inner.try_read()?;
        Some(ReadGuard { guard, _held: take_tried(self.place) })
    }

    /// As [`Mutex::try_lock`].
    pub fn try_write(&self) -> Option<WriteGuard<'_, T>> {
        let guard = self.inner.try_write()?;
        Some(WriteGuard { guard, _held: take_tried(self.place) })
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
    use crate::locks::Lock;

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
