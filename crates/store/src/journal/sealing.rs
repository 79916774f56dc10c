//! [`Sealing`]: whose turn it is to seal, and the sum of the record that was sealed last.
//!
//! A turn begins under the journal's lock, which a record needs to be cut. It may end without: who has put a record
//! together goes on to write it, and the lock is asked for again only when the group has ended. So the sum of a record
//! waits here for whoever looks at the ring next.

use crate::primitives::{AtomicU64, Ordering};

/// Somebody seals.
const SEALING: u64 = 1;
/// Somebody waits for the end of that.
const AWAITED: u64 = 2;

pub(super) struct Sealing {
    word: AtomicU64,
    /// Of the record that was put together in the last turn; the end of the turn makes it visible.
    checksum: AtomicU64,
}

impl Sealing {
    /// Nobody seals; the last record has this sum.
    pub(super) fn new(checksum: u64) -> Sealing {
        Sealing { word: AtomicU64::new(0), checksum: AtomicU64::new(checksum) }
    }

    /// Begins a turn. Called under the journal's lock, while nobody has it.
    pub(super) fn begin(&self) {
        self.word.store(SEALING, Ordering::Relaxed);
    }

    /// Whether somebody seals.
    pub(super) fn is_under_way(&self) -> bool {
        self.word.load(Ordering::Acquire) & SEALING != 0
    }

    /// As [`Sealing::is_under_way`], for who is going to wait if so: the end of the turn says that it has to be told.
    /// Called under the journal's lock.
    pub(super) fn is_awaited(&self) -> bool {
        let await_it = |word: u64| (word & SEALING != 0).then_some(word | AWAITED);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, await_it).is_ok()
    }

    /// The sum of the record that was put together last; of a turn that has ended.
    pub(super) fn checksum(&self) -> u64 {
        self.checksum.load(Ordering::Relaxed)
    }

    /// A record was put together.
    pub(super) fn note(&self, checksum: u64) {
        self.checksum.store(checksum, Ordering::Relaxed);
    }

    /// Ends the turn; whether somebody waits for that.
    #[must_use = "who waits is told by nobody else"]
    pub(super) fn end(&self) -> bool {
        self.word.swap(0, Ordering::AcqRel) & AWAITED != 0
    }
}
