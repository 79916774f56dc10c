//! What the schedules of one test came to, so that nobody takes a run that did nothing for a proof.

use std::cell::Cell;
use std::fmt;

#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub schedules: u64,
    pub crash_states: u64,
    pub groups: u64,
    pub checkpoints: u64,
    pub reliefs: u64,
    /// Schedules that ended with the store latched.
    pub failures: u64,
}

thread_local! {
    /// Shuttle runs all threads of a schedule on the one thread of its test.
    static TALLY: Cell<Tally> = const { Cell::new(Tally {
        schedules: 0, crash_states: 0, groups: 0, checkpoints: 0, reliefs: 0, failures: 0,
    }) };
}

pub fn count(change: impl FnOnce(&mut Tally)) {
    TALLY.with(|tally| {
        let mut now = tally.get();
        change(&mut now);
        tally.set(now);
    });
}

pub fn take() -> Tally {
    TALLY.take()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} schedules, {} crash states recovered, {} groups, {} checkpoints, {} reliefs of pressure, {} failed stores",
            self.schedules, self.crash_states, self.groups, self.checkpoints, self.reliefs, self.failures
        )
    }
}
