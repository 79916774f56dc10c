//! The one place synchronisation primitives come from, so that a model checker can replace them: `crates/threads`
//! compiles these sources once more with `--cfg shuttle`, and once with `--cfg loom`. Nothing that ships is built so.
//!
//! Locks are used through `locks.rs`, which gives each its place in the order.
//!
//! `Arc` and `OnceLock` stay the standard library's: nobody ever waits for either.

#[cfg(not(any(shuttle, loom)))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(any(shuttle, loom)))]
pub(crate) use std::thread::yield_now;

#[cfg(any(shuttle, loom))]
mod explored;
#[cfg(any(shuttle, loom))]
pub(crate) use explored::{
    AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard,
    yield_now,
};
