//! The order of locks as a type, checked in debug builds.
//!
//! A thread takes locks outermost first. Each class of locks is a [`Level`] with a [`Rank`]; in debug builds a thread
//! knows the ranks that it holds, and taking one that is not further in than all of them is an assertion that names
//! both. So an order that would deadlock only in a rare interleaving fails in every test that takes both locks, in
//! whatever interleaving. In release builds a rank takes no memory and a check no time.
//!
//! [`Mutex`] and [`RwLock`] know their level. The store's own levels are in `locks.rs`; a crate that stands on the
//! store gives its levels ranks outside of those ([`Rank::outer`]), and keeps a [`Held`] beside a guard of another
//! kind.
//!
//! What the check does not see: a lock that one thread takes and another one gives back, and a thread that waits for
//! another one by other means than a lock. Under the model checkers it is off, because they run all threads on one.

mod ordered;

pub use ordered::{Condvar, Mutex, MutexGuard, ReadGuard, RwLock, WriteGuard};
use std::marker::PhantomData;

#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
use std::cell::RefCell;

/// A class of locks.
pub trait Level: Copy {
    /// Where it stands.
    fn rank(self) -> Rank;

    /// For the assertion's message.
    fn name(self) -> &'static str;
}

/// A place in the order; the smaller one is further out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    zone: Zone,
    class: u8,
    /// Orders the locks of one class that a thread takes together.
    number: u64,
}

/// Whose locks, and what is waited for with them. A checkpoint calls whoever fills its records, so the locks of a crate
/// that stands on the store are both outside and inside of the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Zone {
    /// Of a crate on the store; a checkpoint may be waited for.
    AroundCheckpoints,
    /// Of the store; a checkpoint or a discard is under way.
    Checkpoints,
    /// Of a crate on the store.
    Outer,
    /// Of the store.
    Store,
}

impl Rank {
    /// A class of a crate that stands on the store, and the lock's number among those of its class. No checkpoint is
    /// waited for with it.
    pub const fn outer(class: u8, number: u64) -> Rank {
        Rank { zone: Zone::Outer, class, number }
    }

    /// As [`Rank::outer`], of locks with which a checkpoint may be waited for.
    pub const fn around_checkpoints(class: u8) -> Rank {
        Rank { zone: Zone::AroundCheckpoints, class, number: 0 }
    }

    pub(crate) const fn of_checkpoints(class: u8) -> Rank {
        Rank { zone: Zone::Checkpoints, class, number: 0 }
    }

    pub(crate) const fn of_store(class: u8) -> Rank {
        Rank { zone: Zone::Store, class, number: 0 }
    }
}

/// The mark of a lock that the thread holds. Drop it with the guard, on the same thread.
#[derive(Debug)]
#[must_use = "the lock counts as given back when this is dropped"]
pub struct Held {
    #[cfg(all(debug_assertions, not(any(shuttle, loom))))]
    rank: Rank,
    /// Stays on its thread.
    _thread: PhantomData<*const ()>,
}

#[cfg(not(debug_assertions))]
const _: () = assert!(size_of::<Held>() == 0);

#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
thread_local! {
    /// What this thread holds, in the order in which it was taken, with the levels' names.
    static HELD: RefCell<Vec<(Rank, &'static str)>> = const { RefCell::new(Vec::new()) };
    /// What `trace` tells.
    static TAKEN: RefCell<Option<Vec<&'static str>>> = const { RefCell::new(None) };
}

/// Runs what another thread does, on this one: it holds none of this thread's locks. For tests that run threads' work
/// in an order of their own; a lock that both take ends in a deadlock.
pub fn elsewhere<U>(f: impl FnOnce() -> U) -> U {
    #[cfg(all(debug_assertions, not(any(shuttle, loom))))]
    let held = HELD.take();
    let result = f();
    #[cfg(all(debug_assertions, not(any(shuttle, loom))))]
    HELD.set(held);
    result
}

/// Runs `f` and names the locks that it takes on this thread, in their order. In debug builds only.
#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
pub fn trace<U>(f: impl FnOnce() -> U) -> (U, Vec<&'static str>) {
    TAKEN.set(Some(Vec::new()));
    let result = f();
    (result, TAKEN.take().unwrap_or_default())
}

/// Marks a lock that the thread is about to wait for. Panics in debug builds if the thread holds one of this rank or
/// further in: another thread may hold this one and wait for that one.
pub fn take(level: impl Level) -> Held {
    check(level);
    take_tried(level)
}

/// Says that the thread may wait here for what others do with locks of this rank and further in. Panics in debug builds
/// if the thread holds one of them.
pub fn may_wait(level: impl Level) {
    check(level);
}

/// Marks a lock that was tried and is held now: who does not wait deadlocks with nobody.
pub fn take_tried(level: impl Level) -> Held {
    enter(level);
    Held {
        #[cfg(all(debug_assertions, not(any(shuttle, loom))))]
        rank: level.rank(),
        _thread: PhantomData,
    }
}

impl Held {
    /// Runs `f` while the lock is given back for a while; the lock is taken again, in its place, before this returns.
    pub fn opened<U>(&mut self, level: impl Level, f: impl FnOnce() -> U) -> U {
        self.leave();
        let result = f();
        check(level);
        enter(level);
        result
    }

    fn leave(&self) {
        #[cfg(all(debug_assertions, not(any(shuttle, loom))))]
        // Not in a thread that ends, where nothing is left to check.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|(rank, _)| *rank == self.rank) {
                held.remove(at);
            }
        });
    }
}

#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
fn check(level: impl Level) {
    let rank = level.rank();
    HELD.with_borrow(|held| {
        let inner = held.iter().filter(|(other, _)| *other >= rank).max_by_key(|(other, _)| *other);
        if let Some((_, inner)) = inner {
            panic!("lock order: {} is taken while {inner} is held", level.name());
        }
    });
}

#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
fn enter(level: impl Level) {
    TAKEN.with_borrow_mut(|taken| taken.iter_mut().for_each(|taken| taken.push(level.name())));
    HELD.with_borrow_mut(|held| held.push((level.rank(), level.name())));
}

#[cfg(not(all(debug_assertions, not(any(shuttle, loom)))))]
fn check(_: impl Level) {}

#[cfg(not(all(debug_assertions, not(any(shuttle, loom)))))]
fn enter(_: impl Level) {}

#[cfg(all(debug_assertions, not(any(shuttle, loom))))]
impl Drop for Held {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, debug_assertions, not(any(shuttle, loom))))]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Lock {
        Outer,
        Inner,
        Numbered(u64),
    }

    impl Level for Lock {
        fn rank(self) -> Rank {
            match self {
                Lock::Outer => Rank::outer(1, 0),
                Lock::Numbered(number) => Rank::outer(2, number),
                Lock::Inner => Rank::of_store(0),
            }
        }

        fn name(self) -> &'static str {
            match self {
                Lock::Outer => "Outer",
                Lock::Numbered(_) => "Numbered",
                Lock::Inner => "Inner",
            }
        }
    }

    /// What the assertion says, if there is one.
    fn refused(take: impl FnOnce()) -> Option<String> {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(take)).err()?;
        caught.downcast::<String>().ok().map(|text| *text)
    }

    #[test]
    fn an_inversion_is_caught_whoever_holds_the_other_lock() {
        let inner = take(Lock::Inner);
        let told = refused(|| drop(take(Lock::Outer))).expect("an inversion");
        assert_eq!(told, "lock order: Outer is taken while Inner is held");
        assert!(refused(|| drop(take(Lock::Inner))).is_some(), "the same lock twice");
        // Not held by this other thread.
        std::thread::scope(|scope| scope.spawn(|| drop(take(Lock::Outer))).join().expect("allowed"));
        drop(inner);
        drop(take(Lock::Outer));
    }

    #[test]
    fn locks_are_taken_outermost_first_and_given_back_in_any_order() {
        let outer = take(Lock::Outer);
        let (low, high) = (take(Lock::Numbered(3)), take(Lock::Numbered(7)));
        assert!(refused(|| drop(take(Lock::Numbered(5)))).is_some(), "ascending within a class");
        drop(outer);
        drop(high);
        let inner = take(Lock::Inner);
        drop(low);
        drop(inner);
        drop(take(Lock::Outer));
    }

    #[test]
    fn what_is_only_tried_inverts_nothing_but_counts_as_held() {
        let inner = take(Lock::Inner);
        let tried = take_tried(Lock::Numbered(1));
        drop(inner);
        assert!(refused(|| drop(take(Lock::Outer))).is_some());
        drop(tried);
        drop(take(Lock::Outer));
    }
}
