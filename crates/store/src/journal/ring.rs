//! Positions in the ring and the records between tail and head.

use crate::carry::Carried;
use crate::limits::FRESH_RING_BLOCKS;
use std::collections::VecDeque;
use std::ops::Range;
use syncline_format::superblock::JournalTail;
use syncline_format::{Lsn, Sequence};

/// A record between tail and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordMeta {
    /// Virtual position of its first block.
    pub(crate) position: u64,
    pub(crate) sequence: Sequence,
    pub(crate) predecessor: u64,
    pub(crate) last_lsn: Lsn,
}

/// Where the next record goes.
pub(crate) struct Place {
    position: u64,
    /// Block within the ring.
    pub(crate) block: u64,
    pub(crate) sequence: Sequence,
    pub(crate) predecessor: u64,
    /// Blocks behind the record that nobody has written yet, and that are to be written now. Mostly none.
    pub(crate) fresh: Range<u64>,
}

pub(crate) struct Ring {
    blocks: u64,
    /// Blocks of the ring's beginning that were written once. No record has ever been behind them.
    written: u64,
    tail: u64,
    head: u64,
    next_sequence: Sequence,
    /// Of the last record; absent while that is being sealed.
    last_checksum: Option<u64>,
    records: VecDeque<RecordMeta>,
}

impl Ring {
    /// An empty ring whose next record is the one that `tail` describes.
    pub(crate) fn new(blocks: u64, written: u64, tail: JournalTail) -> Ring {
        Ring {
            blocks,
            written,
            tail: tail.block,
            head: tail.block,
            next_sequence: tail.sequence,
            last_checksum: Some(tail.predecessor),
            records: VecDeque::new(),
        }
    }

    /// Blocks between tail and head, laps' unused ends included.
    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Those of them from the record that holds `lsn` on, which are none if none does.
    pub(crate) fn used_from(&self, lsn: Lsn) -> u64 {
        self.record_of(lsn).map_or(0, |record| self.head - record.position)
    }

    fn record_of(&self, lsn: Lsn) -> Option<RecordMeta> {
        let index = self.records.partition_point(|record| record.last_lsn < lsn);
        self.records.get(index).copied()
    }

    /// The place of a record of `blocks` blocks.
    pub(crate) fn place(&self, blocks: u64) -> Place {
        let rest = self.blocks - self.head % self.blocks;
        let position = if rest < blocks { self.head + rest } else { self.head };
        assert!(
            position + blocks - self.tail <= self.blocks,
            "admission keeps the ring from overrunning its tail"
        );
        let block = position % self.blocks;
        Place {
            position,
            block,
            sequence: self.next_sequence,
            predecessor: self.predecessor(),
            fresh: self.fresh(block + blocks),
        }
    }

    /// What is to be written as well, because a record that ends at `end` is the first to get so far.
    fn fresh(&self, end: u64) -> Range<u64> {
        match end > self.written {
            true => end..end.next_multiple_of(FRESH_RING_BLOCKS).min(self.blocks),
            false => end..end,
        }
    }

    /// What the next record has to bear. Not to be asked for while one is being sealed.
    pub(crate) fn predecessor(&self) -> u64 {
        self.last_checksum.expect("records are sealed one after the other")
    }

    /// Enters the record that was placed. Its checksum follows by [`Ring::sealed`].
    pub(crate) fn push(&mut self, place: &Place, blocks: u64, last_lsn: Lsn) {
        self.records.push_back(RecordMeta {
            position: place.position,
            sequence: place.sequence,
            predecessor: place.predecessor,
            last_lsn,
        });
        self.head = place.position + blocks;
        self.written = self.written.max(place.fresh.end);
        self.next_sequence = place.sequence.next();
        self.last_checksum = None;
    }

    /// Enters a record that is in the ring already, behind those before it or at the start of the next lap.
    pub(crate) fn resume(&mut self, record: &Carried) {
        let lap = self.head - self.head % self.blocks;
        let position = if lap + record.block < self.head { lap + self.blocks } else { lap } + record.block;
        let (sequence, predecessor) = (self.next_sequence, self.predecessor());
        // What lies before it may be holes still. But zeros that are written behind a record must never get to it.
        let end = record.block + record.blocks;
        let place = Place { position, block: record.block, sequence, predecessor, fresh: end..end };
        self.push(&place, record.blocks, record.last_lsn);
        self.sealed(record.checksum);
        assert!(self.used() <= self.blocks, "records in the ring do not overlap");
    }

    /// The checksum of the record that was entered last.
    pub(crate) fn sealed(&mut self, checksum: u64) {
        self.last_checksum = Some(checksum);
    }

    /// The record that holds `lsn`, or the place of the next record if none does.
    pub(crate) fn tail_for(&self, lsn: Lsn) -> (JournalTail, RecordMeta) {
        let next = RecordMeta {
            position: self.head,
            sequence: self.next_sequence,
            predecessor: self.predecessor(),
            last_lsn: lsn,
        };
        let record = self.record_of(lsn).unwrap_or(next);
        let tail = JournalTail {
            block: record.position % self.blocks,
            sequence: record.sequence,
            predecessor: record.predecessor,
        };
        (tail, record)
    }

    /// Everything before `tail` may be overwritten.
    pub(crate) fn release_to(&mut self, tail: &RecordMeta) {
        assert!(tail.position >= self.tail, "the tail only moves forward");
        self.tail = tail.position;
        while self.records.front().is_some_and(|record| record.position < tail.position) {
            self.records.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_does_not_fit_the_lap_starts_the_next_one() {
        let mut ring = Ring::new(10, 10, JournalTail { block: 0, sequence: Sequence(1), predecessor: 7 });
        let place = ring.place(8);
        assert_eq!((place.block, place.sequence, place.predecessor), (0, Sequence(1), 7));
        ring.push(&place, 8, Lsn(3));
        ring.sealed(11);
        let (_, tail) = ring.tail_for(Lsn(4));
        ring.release_to(&tail);
        let place = ring.place(4);
        assert_eq!((place.block, place.predecessor), (0, 11));
        ring.push(&place, 4, Lsn(5));
        ring.sealed(12);
        assert_eq!(ring.used(), 6, "the lap's unused end counts");
        assert_eq!((ring.used_from(Lsn(5)), ring.used_from(Lsn(6))), (4, 0));
        let (tail, _) = ring.tail_for(Lsn(4));
        assert_eq!((tail.block, tail.sequence, tail.predecessor), (0, Sequence(2), 11));
    }

    #[test]
    fn what_was_never_written_is_written_ahead_of_the_records_once() {
        let mut ring = Ring::new(600, 100, JournalTail { block: 0, sequence: Sequence(1), predecessor: 7 });
        let mut lsn = Lsn(1);
        let mut next = |ring: &mut Ring, blocks| {
            let place = ring.place(blocks);
            ring.push(&place, blocks, lsn);
            ring.sealed(lsn.0);
            lsn = lsn.next();
            let (_, tail) = ring.tail_for(lsn);
            ring.release_to(&tail);
            (place.block, place.fresh)
        };
        assert_eq!(next(&mut ring, 100), (0, 100..100));
        assert_eq!(next(&mut ring, 1), (100, 101..256), "up to the next MiB");
        assert_eq!(next(&mut ring, 155), (101, 256..256));
        assert_eq!(next(&mut ring, 300), (256, 556..600), "never beyond the ring");
        assert_eq!(next(&mut ring, 100), (0, 100..100), "the end of the lap is left out");
        assert_eq!(next(&mut ring, 500), (100, 600..600));
    }

    #[test]
    fn no_zeros_are_written_over_records_that_lie_behind_a_hole() {
        let mut ring = Ring::new(64, 4, JournalTail { block: 40, sequence: Sequence(1), predecessor: 7 });
        ring.resume(&Carried { block: 40, blocks: 10, last_lsn: Lsn(1), checksum: 8 });
        let place = ring.place(20);
        assert_eq!((place.block, place.fresh.clone()), (0, 20..20), "the next lap, up to what is carried");
        ring.push(&place, 20, Lsn(2));
        ring.sealed(9);
        ring.release_to(&ring.tail_for(Lsn(2)).1);
        let place = ring.place(31);
        assert_eq!((place.block, place.fresh), (20, 51..64), "behind it nothing was ever written");
    }
}
