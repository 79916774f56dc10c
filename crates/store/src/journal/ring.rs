//! Positions in the ring and the records between tail and head.

use std::collections::VecDeque;
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
}

pub(crate) struct Ring {
    blocks: u64,
    tail: u64,
    head: u64,
    next_sequence: Sequence,
    /// Of the last record; absent while that is being sealed.
    last_checksum: Option<u64>,
    records: VecDeque<RecordMeta>,
}

impl Ring {
    /// An empty ring whose next record is the one that `tail` describes.
    pub(crate) fn new(blocks: u64, tail: JournalTail) -> Ring {
        Ring {
            blocks,
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
        Place {
            position,
            block: position % self.blocks,
            sequence: self.next_sequence,
            predecessor: self.predecessor(),
        }
    }

    /// What the next record has to bear. Not to be asked for while one is being sealed.
    fn predecessor(&self) -> u64 {
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
        self.next_sequence = place.sequence.next();
        self.last_checksum = None;
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
        let mut ring = Ring::new(10, JournalTail { block: 0, sequence: Sequence(1), predecessor: 7 });
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
}
