//! What is one process' alone: a value that stays behind at a fork, and one that every process has for itself.

use super::{Forked, Process};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// A value that only the process that made it may use or drop. In a forked child it stays as it was: what dropping
/// would do (join threads, take locks, close descriptors, unmap) is the parent's to do.
pub struct ProcessBound<T> {
    made_in: Process,
    value: ManuallyDrop<T>,
}

impl<T> ProcessBound<T> {
    /// Bound to this process.
    pub fn new(value: T) -> ProcessBound<T> {
        ProcessBound { made_in: Process::current(), value: ManuallyDrop::new(value) }
    }

    /// Errors: the value is another process'.
    #[inline]
    pub fn get(&self) -> Result<&T, Forked> {
        self.made_in.check()?;
        Ok(&self.value)
    }

    /// Errors: the value is another process'.
    #[inline]
    pub fn get_mut(&mut self) -> Result<&mut T, Forked> {
        self.made_in.check()?;
        Ok(&mut self.value)
    }

    /// Errors: the value is another process'; it is left alone then.
    pub fn take(mut self) -> Result<T, Forked> {
        self.made_in.check()?;
        // SAFETY: the value is taken once; forgetting the rest keeps `drop` from it.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        std::mem::forget(self);
        Ok(value)
    }

    /// The value, whosever it is: for what is constant since it was made and needs no lock to be read.
    #[inline]
    pub fn constant(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.made_in.is_current() {
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static of which every process has one of its own: a forked child begins with a new one, whatever state the
/// parent's was in.
pub struct PerProcess<T: 'static> {
    make: fn() -> T,
    /// Of the process that asked last; never freed.
    made: AtomicPtr<(Process, T)>,
    _shared: PhantomData<T>,
}

impl<T> PerProcess<T> {
    /// Made by `make` when it is first asked for.
    pub const fn new(make: fn() -> T) -> PerProcess<T> {
        PerProcess { make, made: AtomicPtr::new(null_mut()), _shared: PhantomData }
    }

    /// This process' value.
    #[inline]
    pub fn get(&'static self) -> &'static T {
        let made = self.made.load(Acquire);
        // SAFETY: null, or a box that was leaked below.
        match unsafe { made.as_ref() } {
            Some((process, value)) if process.is_current() => value,
            _ => self.make_for_this(made),
        }
    }

    #[cold]
    fn make_for_this(&'static self, old: *mut (Process, T)) -> &'static T {
        let new = Box::into_raw(Box::new((Process::current(), (self.make)())));
        match self.made.compare_exchange(old, new, SeqCst, SeqCst) {
            // SAFETY: leaked by the line above.
            Ok(_) => unsafe { &(*new).1 },
            Err(theirs) => {
                // SAFETY: nobody has seen the new one; another thread of this process has put its own there, which is
                // leaked.
                unsafe {
                    drop(Box::from_raw(new));
                    &(*theirs).1
                }
            }
        }
    }
}
