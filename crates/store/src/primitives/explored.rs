//! The model checkers' primitives under the names and signatures that the store uses.
//!
//! Both checkers imitate the standard library. The store is written for locks without poisoning, whose guards can be
//! opened for a while; this is the difference.

#[cfg(loom)]
use loom::sync as model;
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(shuttle)]
use shuttle::sync as model;
#[cfg(shuttle)]
pub(crate) use shuttle::thread::yield_now;

pub(crate) use model::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use model::{RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

pub(crate) struct Mutex<T>(model::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Absent only while the guard is opened.
    guard: Option<model::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(model::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, guard: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

impl<T> MutexGuard<'_, T> {
    /// Runs `f` with the mutex unlocked.
    pub(crate) fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        guard.guard = None;
        let result = f();
        guard.guard = guard.mutex.lock().guard;
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("the guard is closed")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("the guard is closed")
    }
}

pub(crate) struct Condvar(model::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar(model::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.guard.take().expect("the guard is closed");
        guard.guard = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub(crate) struct RwLock<T>(model::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> RwLock<T> {
        RwLock(model::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
