//! The one place synchronisation primitives come from, so that a model checker can replace them.

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
