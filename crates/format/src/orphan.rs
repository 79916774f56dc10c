//! Values of the orphan table: what is to be finished for an inode, by whoever uses it next or by the next open.

use crate::FormatError;
use crate::range::{self, FILE_PAGES_MAX};
use std::ops::Range;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the longest value.
pub const ORPHAN_BYTES_MAX: usize = 32;

const UNLINKED: u8 = 1;
const TRUNCATED: u8 = 2;
const SHIFTING: u8 = 3;
/// Of a shift: pages are inserted, not taken out.
const SHIFT_INSERTS: u8 = 1;

/// Why an inode is listed in the orphan table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanReason {
    /// No name is left; to be removed with its content.
    Unlinked,
    /// Truncated; extents beyond its size are still to be freed.
    Truncated,
    /// Pages were taken out or put in; extents behind them are still to be moved.
    Shifting(Shift),
}

/// How far a range has been taken out of a file, or put into it; in pages.
///
/// When pages are taken out, extents are gone through upwards, else downwards, so that the pages that one is moved to
/// are always free. Extents are whole on either side of `next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    /// Where the range begins.
    pub first: u64,
    /// Its length; not zero.
    pub count: u64,
    /// The range is put in, not taken out.
    pub inserts: bool,
    /// What lay below it (taken out: from `first` on) or at and above it (put in) has been dealt with.
    pub next: u64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ShiftRaw {
    reason: u8,
    flags: u8,
    reserved: [u8; 6],
    first: U64,
    count: U64,
    next: U64,
}

const _: () = assert!(size_of::<ShiftRaw>() == ORPHAN_BYTES_MAX);

impl Shift {
    /// Pages that no extent touches meanwhile.
    pub fn gap(&self) -> Range<u64> {
        match self.inserts {
            true => self.next..self.next.saturating_add(self.count),
            false => self.next.saturating_sub(self.count).max(self.first)..self.next,
        }
    }
}

impl OrphanReason {
    pub fn encode(self) -> Vec<u8> {
        match self {
            OrphanReason::Unlinked => vec![UNLINKED],
            OrphanReason::Truncated => vec![TRUNCATED],
            OrphanReason::Shifting(shift) => {
                let raw = ShiftRaw {
                    reason: SHIFTING,
                    flags: if shift.inserts { SHIFT_INSERTS } else { 0 },
                    reserved: [0; 6],
                    first: U64::new(shift.first),
                    count: U64::new(shift.count),
                    next: U64::new(shift.next),
                };
                raw.as_bytes().to_vec()
            }
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<OrphanReason, FormatError> {
        let field = |field, value| Err(FormatError::Field { what: "orphan", field, value });
        match bytes {
            [UNLINKED] => return Ok(OrphanReason::Unlinked),
            [TRUNCATED] => return Ok(OrphanReason::Truncated),
            [SHIFTING, ..] => {}
            [other, ..] => return field("reason", u64::from(*other)),
            [] => return Err(FormatError::Truncated { what: "orphan", want: 1, got: 0 }),
        }
        let want = size_of::<ShiftRaw>();
        let Ok(raw) = ShiftRaw::read_from_bytes(bytes) else {
            return Err(FormatError::Truncated { what: "orphan", want, got: bytes.len() });
        };
        let shift = Shift {
            first: raw.first.get(),
            count: raw.count.get(),
            inserts: raw.flags & SHIFT_INSERTS != 0,
            next: raw.next.get(),
        };
        range::ORPHAN_FLAGS.check(u64::from(raw.flags))?;
        range::ORPHAN_FIRST.check(shift.first)?;
        range::ORPHAN_COUNT.check(shift.count)?;
        range::ORPHAN_NEXT.check(shift.next)?;
        match () {
            () if shift.count > FILE_PAGES_MAX - shift.first => field("count", shift.count),
            () if shift.next < shift.first => field("next", shift.next),
            () => Ok(OrphanReason::Shifting(shift)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back_and_nonsense_is_refused() {
        let shift = Shift { first: 3, count: 5, inserts: false, next: 90 };
        let inserts = Shift { inserts: true, next: FILE_PAGES_MAX, ..shift };
        for reason in [
            OrphanReason::Unlinked,
            OrphanReason::Truncated,
            OrphanReason::Shifting(shift),
            OrphanReason::Shifting(inserts),
        ] {
            assert_eq!(OrphanReason::decode(&reason.encode()), Ok(reason));
        }
        for nonsense in [
            Shift { count: 0, ..shift },
            Shift { next: 2, ..shift },
            Shift { first: FILE_PAGES_MAX, next: FILE_PAGES_MAX, ..shift },
            Shift { count: FILE_PAGES_MAX, ..shift },
            Shift { next: FILE_PAGES_MAX + 1, ..shift },
        ] {
            assert!(
                OrphanReason::decode(&OrphanReason::Shifting(nonsense).encode()).is_err(),
                "{nonsense:?}"
            );
        }
        let mut flags = OrphanReason::Shifting(shift).encode();
        flags[1] = 2;
        for bytes in [&[][..], &[0], &[1, 1], &[3], &[4; 32], &flags] {
            assert!(OrphanReason::decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn the_gap_lies_between_what_was_moved_and_what_was_not() {
        let shift = Shift { first: 10, count: 4, inserts: false, next: 10 };
        assert_eq!(shift.gap(), 10..10);
        assert_eq!(Shift { next: 12, ..shift }.gap(), 10..12);
        assert_eq!(Shift { next: 30, ..shift }.gap(), 26..30);
        assert_eq!(Shift { inserts: true, next: 30, ..shift }.gap(), 30..34);
    }
}
