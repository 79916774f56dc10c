//! Syncs with data to write out before their force: those that come while others are being written go together.
//!
//! A sync of more than a few pages has to wait for the device twice, which a thread that reads requests must not.
//! Each handed to a thread of its own costs two switches and a small write; so they queue up here, and at most
//! [`WRITERS_MAX`] threads of the pool take all that is there, up to a bound, and start it as one. The busier the
//! mount, the larger the pieces; a lone sync is taken at once. What cannot join the others (somebody else writes the
//! file) is started by itself, on another thread of the pool.
//!
//! Invariant: while somebody waits here, a writer is active that will look again.
//!
//! Lock: `state` is innermost; nothing is called under it.

use crate::account::Began;
use crate::syncs::Owed;
use parking_lot::Mutex;
use std::collections::VecDeque;
use syncline_fs::{SyncPlan, TOGETHER_PAGES_MAX};

/// While some wait for the device, because more is being written than may be in flight when it is logged, others go on.
const WRITERS_MAX: usize = 4;

/// A sync that waits to be written out.
pub(crate) struct Joining {
    pub(crate) plan: SyncPlan,
    pub(crate) began: Began,
    pub(crate) owed: Owed,
}

/// What waits to be written out, and how many threads do that.
pub(crate) struct Writers<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    /// With their pages.
    waiting: VecDeque<(u64, T)>,
    active: usize,
}

impl<T> Writers<T> {
    pub(crate) fn new() -> Writers<T> {
        Writers { state: Mutex::new(State { waiting: VecDeque::new(), active: 0 }) }
    }

    /// Queues a sync up; true if the caller is to have a further thread call [`Writers::take`] until there is nothing
    /// left.
    pub(crate) fn join(&self, pages: u64, sync: T) -> bool {
        let mut state = self.state.lock();
        state.waiting.push_back((pages, sync));
        let further = state.active < WRITERS_MAX;
        state.active += usize::from(further);
        further
    }

    /// For a writer: the syncs to start together, in the order in which they came; none: it has ended.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut state = self.state.lock();
        let mut pages = 0;
        let fits = |waiting: &&(u64, T)| {
            pages += waiting.0;
            pages <= TOGETHER_PAGES_MAX
        };
        let fitting = state.waiting.iter().take_while(fits).count();
        let count = fitting.max(1).min(state.waiting.len());
        state.active -= usize::from(count == 0);
        state.waiting.drain(..count).map(|(_, sync)| sync).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_sync_gets_a_writer_and_those_that_find_all_writers_busy_go_together() {
        let writers = Writers::new();
        for sync in 0..WRITERS_MAX {
            assert!(writers.join(16, sync));
            assert_eq!(writers.take(), [sync]);
        }
        for sync in 10..30 {
            assert!(!writers.join(16, sync), "there are enough writers");
        }
        let together = (TOGETHER_PAGES_MAX / 16) as usize;
        assert_eq!(writers.take(), (10..10 + together).collect::<Vec<_>>());
        assert_eq!(writers.take(), (10 + together..30).collect::<Vec<_>>());
        for _ in 0..WRITERS_MAX {
            assert_eq!(writers.take(), [0; 0], "a writer ends");
        }
        assert!(writers.join(16, 30), "the first one after a pause has a writer again");
    }

    #[test]
    fn a_sync_beyond_the_bound_is_taken_by_itself() {
        let writers = Writers::new();
        writers.join(TOGETHER_PAGES_MAX + 1, 'a');
        writers.join(1, 'b');
        assert_eq!((writers.take(), writers.take()), (vec!['a'], vec!['b']));
    }
}
