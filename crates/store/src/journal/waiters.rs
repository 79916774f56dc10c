//! Who waits for a group: threads that block, and started forces.
//!
//! Each waiter is told once, by itself: that its force has ended, or that it is its turn to drive the next group.
//! Nobody is woken only to find that he has to go on waiting, and whoever is told that it is over needs no lock of
//! the journal's any more. A thread that is told to drive has `State::driven` already.
//!
//! Nobody is told while the journal's lock is held.

use super::Done;
use crate::StoreError;
use crate::locks::{Condvar, Lock, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_format::Lsn;

/// What a blocked thread is told.
pub(super) enum Word {
    Ended(Result<(), StoreError>),
    /// It drives the next group.
    Drive,
}

/// A thread that blocks.
pub(super) struct Blocked {
    word: Mutex<Option<Word>>,
    told: Condvar,
}

impl Blocked {
    /// Waits to be told. Called without the journal's lock.
    pub(super) fn wait(&self) -> Word {
        let mut word = self.word.lock();
        loop {
            match word.take() {
                Some(word) => return word,
                None => self.told.wait(&mut word),
            }
        }
    }

    fn tell(&self, word: Word) {
        *self.word.lock() = Some(word);
        self.told.notify_one();
    }
}

struct Waiting {
    lsn: Lsn,
    /// Not content with a flush of somebody else's (see `Ablation::no_group_commit`).
    drives_itself: bool,
    blocked: Arc<Blocked>,
}

/// Part of the journal's state.
#[derive(Default)]
pub(super) struct Waiters {
    /// In the order in which they came.
    blocked: VecDeque<Waiting>,
    started: Vec<(Lsn, Done)>,
}

impl Waiters {
    /// Enters a thread that is going to block.
    pub(super) fn block(&mut self, lsn: Lsn, drives_itself: bool) -> Arc<Blocked> {
        let blocked = Arc::new(Blocked { word: Mutex::new(Lock::Word, None), told: Condvar::new() });
        self.blocked.push_back(Waiting { lsn, drives_itself, blocked: Arc::clone(&blocked) });
        blocked
    }

    pub(super) fn start(&mut self, lsn: Lsn, done: Done) {
        self.started.push((lsn, done));
    }

    /// Whether started forces are pending.
    pub(super) fn any_started(&self) -> bool {
        !self.started.is_empty()
    }

    /// Removes everybody whose force has ended, well or not.
    pub(super) fn take_answered(&mut self, durable: Lsn, failed: Option<&StoreError>) -> Told {
        let answer = |lsn: Lsn, drives_itself: bool| match failed {
            _ if durable >= lsn && !drives_itself => Some(Ok(())),
            failed => failed.map(|failed| Err(failed.clone())),
        };
        let mut told = Told::default();
        for waiting in std::mem::take(&mut self.blocked) {
            match answer(waiting.lsn, waiting.drives_itself) {
                Some(result) => told.blocked.push((waiting.blocked, result)),
                None => self.blocked.push_back(waiting),
            }
        }
        for (lsn, done) in std::mem::take(&mut self.started) {
            match answer(lsn, false) {
                Some(result) => told.started.push((done, result)),
                None => self.started.push((lsn, done)),
            }
        }
        told
    }

    /// Removes whoever is to drive next: the thread that waits longest.
    pub(super) fn take_driver(&mut self) -> Option<Arc<Blocked>> {
        self.blocked.pop_front().map(|waiting| waiting.blocked)
    }
}

/// Who is to be told what.
#[derive(Default)]
#[must_use = "nobody wakes them otherwise"]
pub(super) struct Told {
    pub(super) driver: Option<Arc<Blocked>>,
    blocked: Vec<(Arc<Blocked>, Result<(), StoreError>)>,
    started: Vec<(Done, Result<(), StoreError>)>,
}

impl Told {
    /// Tells them. Called without the journal's lock.
    pub(super) fn tell(self) {
        for (blocked, result) in self.blocked {
            blocked.tell(Word::Ended(result));
        }
        if let Some(driver) = self.driver {
            driver.tell(Word::Drive);
        }
        for (done, result) in self.started {
            done(result);
        }
    }
}

#[cfg(all(test, not(any(shuttle, loom))))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn each_is_told_once_and_the_next_driver_is_who_waits_longest() {
        let mut waiters = Waiters::default();
        let blocked: Vec<_> = [3, 9, 5, 8].map(|lsn| waiters.block(Lsn(lsn), false)).into();
        let called = Arc::new(AtomicU64::new(0));
        for lsn in [4, 7] {
            let called = Arc::clone(&called);
            let done = move |_| {
                called.fetch_add(lsn, Ordering::Relaxed);
            };
            waiters.start(Lsn(lsn), Box::new(done));
        }
        let mut told = waiters.take_answered(Lsn(5), None);
        told.driver = waiters.take_driver();
        told.tell();
        assert!(matches!(blocked[0].wait(), Word::Ended(Ok(()))));
        assert!(matches!(blocked[1].wait(), Word::Drive));
        assert!(matches!(blocked[2].wait(), Word::Ended(Ok(()))));
        assert_eq!(called.load(Ordering::Relaxed), 4);
        assert!(blocked[3].word.lock().is_none() && waiters.any_started());
        waiters.take_answered(Lsn(5), Some(&StoreError::ShutDown)).tell();
        assert!(matches!(blocked[3].wait(), Word::Ended(Err(StoreError::ShutDown))));
        assert_eq!(called.load(Ordering::Relaxed), 11);
        assert!(waiters.take_driver().is_none() && !waiters.any_started());
    }

    #[test]
    fn who_owes_a_flush_of_its_own_is_not_answered_by_that_of_another() {
        let mut waiters = Waiters::default();
        let blocked = waiters.block(Lsn(3), true);
        waiters.take_answered(Lsn(5), None).tell();
        assert!(blocked.word.lock().is_none());
        assert!(waiters.take_driver().is_some());
    }
}
