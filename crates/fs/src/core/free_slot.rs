//! A free slot for a name, of those that its hash has.

use std::ops::Range;

/// The first free slot of a row whose entries pass by in the order of their keys.
pub(crate) struct FreeSlot<Filled> {
    pub(crate) next: u64,
    end: u64,
    /// Of slots without an entry: whether a batch that is being made fills them.
    is_filled: Filled,
}

impl<Filled: Fn(u64) -> bool> FreeSlot<Filled> {
    pub(crate) fn of(slots: &Range<u64>, is_filled: Filled) -> FreeSlot<Filled> {
        FreeSlot { next: slots.start, end: slots.end, is_filled }
    }

    /// An entry lies at `slot`.
    pub(crate) fn passes(&mut self, slot: u64) {
        self.pass_filled();
        self.next += u64::from(self.next == slot);
    }

    /// All have passed.
    pub(crate) fn found(mut self) -> Option<u64> {
        self.pass_filled();
        (self.next < self.end).then_some(self.next)
    }

    fn pass_filled(&mut self) {
        while self.next < self.end && (self.is_filled)(self.next) {
            self.next += 1;
        }
    }
}
