//! Tells the caller how far the check is.

/// What the check is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Replaying the journal in memory.
    Journal,
    /// Walking the trees; counts items.
    Items,
    /// Reading file data; counts blocks.
    Data,
    /// Comparing the bitmaps; counts groups.
    Bitmaps,
    /// Following names; counts inodes.
    Names,
    /// Writing the repaired volume; counts items.
    Repair,
}

/// One report of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub done: u64,
    /// 0 when it is not known beforehand.
    pub total: u64,
}

/// A callback that is told now and then how far the check is.
pub type ProgressCallback = Box<dyn FnMut(Progress) + Send>;

/// Calls back every so many steps.
#[derive(Default)]
pub(crate) struct Reporter {
    callback: Option<ProgressCallback>,
    items: u64,
    data: u64,
}

/// Items between two calls.
const ITEMS_PER_CALL: u64 = 8192;
/// Blocks of data between two calls: 16 MiB.
const DATA_PER_CALL: u64 = 4096;

impl Reporter {
    pub(crate) fn new(callback: Option<ProgressCallback>) -> Reporter {
        Reporter { callback, items: 0, data: 0 }
    }

    pub(crate) fn report(&mut self, phase: Phase, done: u64, total: u64) {
        if let Some(callback) = &mut self.callback {
            callback(Progress { phase, done, total });
        }
    }

    /// Another item was looked at.
    pub(crate) fn item(&mut self) {
        self.items += 1;
        if self.items.is_multiple_of(ITEMS_PER_CALL) {
            self.report(Phase::Items, self.items, 0);
        }
    }

    /// `done` blocks of data were read so far.
    pub(crate) fn advance(&mut self, phase: Phase, done: u64) {
        if done / DATA_PER_CALL != self.data / DATA_PER_CALL {
            self.report(phase, done, 0);
        }
        self.data = done;
    }
}
