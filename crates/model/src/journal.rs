//! The journal (design 3.2): the buffer, records in the ring, group commit.

use crate::contract::Violation;
use crate::device::Place;
use crate::engine::State;
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{Batch, Block, Blocks, Content, Generation, Lsn, Record, Sequence, Tail, bit, each};
use std::sync::Arc;

/// A record between tail and head. Positions grow for ever; the place is the remainder by the ring's length.
#[derive(Debug, Clone, Hash)]
pub struct Sealed {
    pub position: u8,
    pub cells: u8,
    pub sequence: Sequence,
    pub predecessor: u64,
    pub last_lsn: Lsn,
    /// Blocks whose writes belong to it.
    pub data: Blocks,
    pub known_flushed: Sequence,
    pub flushed: bool,
}

#[derive(Debug, Clone, Hash)]
pub struct Journal {
    pub epoch: u8,
    pub buffer: Vec<(Arc<Batch>, Blocks)>,
    pub records: Vec<Sealed>,
    pub tail: u8,
    pub head: u8,
    pub next_sequence: Sequence,
    pub last_sum: u64,
    pub known_flushed: Sequence,
    /// Everything up to here is durable.
    pub durable: Lsn,
}

impl Journal {
    /// Of a new epoch, whose superblock is durable.
    pub fn new(epoch: u8, lsn: Lsn) -> Journal {
        let tail = Tail::first(epoch);
        Journal {
            epoch,
            buffer: Vec::new(),
            records: Vec::new(),
            tail: 0,
            head: 0,
            next_sequence: tail.sequence,
            last_sum: tail.predecessor,
            known_flushed: 0,
            durable: lsn,
        }
    }

    /// Whether a batch may enter (R17): the buffer, this batch, one record for each live image and one record more
    /// fit below the durable tail. Destaging draws on what is kept for it.
    pub fn admits(&self, scope: &Scope, cells: u8, images: u8, destage: bool) -> bool {
        if !scope.on(Rule::R17) {
            return true;
        }
        let buffered: u8 = self.buffer.iter().map(|(batch, _)| batch.cells()).sum();
        let taken = self.head - self.tail + buffered + cells;
        // Records do not wrap: the end of a lap may stay unused.
        let lap = scope.record_cells - 1;
        let reserve = if destage { 0 } else { images + 1 };
        taken + lap + reserve <= scope.cells
    }

    /// Where a record of `cells` goes; `None` if the ring has no room below its tail (R3).
    fn place(&self, scope: &Scope, cells: u8) -> Option<u8> {
        let rest = scope.cells - self.head % scope.cells;
        let position = if rest < cells { self.head + rest } else { self.head };
        (position + cells - self.tail <= scope.cells).then_some(position)
    }

    /// The batches that the next record takes: as many as fit into one.
    fn next_record(&self, scope: &Scope) -> (usize, u8) {
        let (mut count, mut images) = (0, 0);
        for (batch, _) in &self.buffer {
            if count > 0 && images + batch.images() > scope.record_cells {
                break;
            }
            images += batch.images();
            count += 1;
        }
        (count, images.max(1))
    }

    pub fn can_seal(&self, scope: &Scope) -> bool {
        !self.buffer.is_empty() && self.place(scope, self.next_record(scope).1).is_some()
    }

    /// The tail of a checkpoint whose oldest needed LSN is `lsn`: the start of the record that holds it, or of the
    /// next one.
    pub fn tail_for(&self, scope: &Scope, lsn: Lsn) -> (Tail, u8) {
        let holder = self.records.iter().find(|record| record.last_lsn >= lsn);
        let (position, sequence, predecessor) = match holder {
            Some(record) => (record.position, record.sequence, record.predecessor),
            None => (self.head, self.next_sequence, self.last_sum),
        };
        (Tail { cell: position % scope.cells, sequence, predecessor }, position)
    }

    /// The superblock with this tail is durable: the ring below it may be reused (R3).
    pub fn release_to(&mut self, position: u8) {
        self.tail = self.tail.max(position);
        self.records.retain(|record| record.position >= position);
    }
}

impl State {
    /// Seals what is buffered into one record and starts its write; whoever leads a group does, and so does a long
    /// buffer.
    pub fn seal(&mut self, scope: &Scope) -> Option<()> {
        let generation: Generation = self.engine.durable.generation;
        let journal = &mut self.engine.journal;
        let (count, cells) = journal.next_record(scope);
        if count == 0 {
            return None;
        }
        let position = journal.place(scope, cells)?;
        let first_lsn = self.engine.lsn + 1 - journal.buffer.len() as u8;
        let (batches, data): (Vec<_>, Vec<_>) = journal.buffer.drain(..count).unzip();
        let record = Arc::new(
            Record {
                epoch: journal.epoch,
                sequence: journal.next_sequence,
                predecessor: journal.last_sum,
                known_flushed: journal.known_flushed,
                generation,
                first_lsn,
                cells,
                batches,
                sum: 0,
            }
            .sealed(),
        );
        journal.records.push(Sealed {
            position,
            cells,
            sequence: record.sequence,
            predecessor: record.predecessor,
            last_lsn: record.last_lsn(),
            data: data.into_iter().fold(0, |all, blocks| all | blocks),
            known_flushed: record.known_flushed,
            flushed: false,
        });
        journal.head = position + cells;
        journal.next_sequence += 1;
        journal.last_sum = record.sum;
        for part in 0..cells {
            let cell = (position + part) % scope.cells;
            self.device.write(Place::Cell(cell), Content::Record { record: Arc::clone(&record), part });
        }
        Some(())
    }

    /// The group's flush, and the answer to its waiters. R7: it is issued when the writes of all records, and of all
    /// data their batches refer to, have completed.
    pub fn flush(&mut self, scope: &Scope) -> Option<()> {
        self.await_group(scope)?;
        self.device.flush();
        let journal = &mut self.engine.journal;
        if let Some(last) = journal.records.last() {
            journal.known_flushed = last.sequence;
            journal.durable = last.last_lsn;
        }
        journal.records.iter_mut().for_each(|record| record.flushed = true);
        self.acknowledge();
        Some(())
    }

    /// The flush fails: the volume latches before any waiter is told (C8). Nothing is known about what it should have
    /// covered.
    pub fn fail_flush(&mut self, scope: &Scope) -> Option<()> {
        self.left.faults = self.left.faults.checked_sub(1)?;
        self.await_group(scope)?;
        self.device.fail_flush();
        self.engine.waiters.clear();
        self.engine.latched = scope.on(Rule::LatchFlush);
        Some(())
    }

    /// A block of data rots, of a record that a later, durable one knows flushed: the only rot that can be told from
    /// a write that a power cut prevented (C9).
    pub fn rot(&mut self, block: Block) -> Option<()> {
        let records = &self.engine.journal.records;
        let known =
            records.iter().filter(|record| record.flushed).map(|record| record.known_flushed).max()?;
        let mut confirmed = records.iter().filter(|record| record.sequence <= known);
        confirmed.find(|record| record.data & bit(block) != 0)?;
        self.left.faults = self.left.faults.checked_sub(1)?;
        self.device.rot(block);
        self.rotted = true;
        Some(())
    }

    fn await_group(&mut self, scope: &Scope) -> Option<()> {
        let records = &self.engine.journal.records;
        if records.iter().all(|record| record.flushed) {
            return None;
        }
        if scope.on(Rule::R7) {
            for record in records.iter().filter(|record| !record.flushed) {
                for part in 0..record.cells {
                    self.device.wait(Place::Cell((record.position + part) % scope.cells));
                }
                each(record.data).for_each(|block| self.device.wait(Place::Block(block)));
            }
        }
        Some(())
    }

    /// Syncs whose LSN is durable return 0.
    pub fn acknowledge(&mut self) {
        let durable = self.engine.journal.durable;
        let (done, rest) = self.engine.waiters.drain(..).partition(|waiter| waiter.lsn <= durable);
        self.engine.waiters = rest;
        let done: Vec<crate::engine::Waiter> = done;
        done.iter().for_each(|waiter| self.contract.keep(&waiter.promise));
    }

    /// Liveness: something is still to be done, and the engine has no step left that it could take.
    pub fn stuck(&self, scope: &Scope) -> Result<(), Violation> {
        let engine = &self.engine;
        if engine.latched || !self.engine_steps(scope).is_empty() {
            return Ok(());
        }
        let wanted = if engine.mode != crate::engine::Mode::Running {
            "a recovery"
        } else if !engine.waiters.is_empty() {
            "a sync"
        } else if engine.checkpoint.is_some() {
            "a checkpoint"
        } else if engine.pages.0.iter().flat_map(|pages| pages.0.iter().flatten()).any(Option::is_some) {
            "data that was accepted"
        } else if self.deletes(scope) {
            "a deletion"
        } else if !engine.journal.admits(scope, 1, 1, false) {
            "the next write"
        } else {
            return Ok(());
        };
        Err(Violation::new(format!("stuck: {wanted} waits, and there is no step that the store could take")))
    }
}
