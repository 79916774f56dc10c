//! Group commit: the state machine that turns pending batches into durable ones.

use super::seal::{Cut, Sealed, Spare};
use super::waiters::{Told, Word};
use super::{Done, Journal, Phase, State, latched};
use crate::StoreError;
use crate::limits::SPARE_RECORD_BLOCKS_MAX;
use crate::locks::MutexGuard;
use crate::primitives::Ordering;
use std::sync::Arc;
use syncline_device::{Buffer, DeviceError, Ticket};
use syncline_format::{Lsn, Sequence};

/// What fills a record, just before it is sealed.
pub(crate) trait Filling {
    /// Whether there is anything to add to batches of so many bytes. Called under the journal's lock: takes no lock.
    fn is_worthwhile(&self, pending: usize) -> bool;

    /// May append batches. Called without the lock, after [`Filling::is_worthwhile`].
    fn fill(&self, pending: usize);
}

/// Nothing is added.
struct AsItIs;

impl Filling for AsItIs {
    fn is_worthwhile(&self, _: usize) -> bool {
        false
    }

    fn fill(&self, _: usize) {}
}

/// What a driver has to do next, outside of the lock.
enum Step {
    /// Wait for (or poll) these writes.
    Writes(Vec<Ticket>),
    /// Flush.
    Flush,
    Nothing,
}

impl Journal {
    /// Makes everything up to `lsn` durable. `filling` is asked whenever this caller is about to begin a group.
    pub(crate) fn force(&self, lsn: Lsn, filling: &dyn Filling) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        // Without group commit nobody is content with somebody else's flush.
        let mut flush_owed = self.ablation.no_group_commit() && state.durable < lsn;
        loop {
            if state.durable >= lsn && !flush_owed {
                return Ok(());
            }
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.driven {
                let blocked = state.waiters.block(lsn, flush_owed);
                drop(state);
                match blocked.wait() {
                    Word::Ended(result) => return result,
                    Word::Drive => state = self.state.lock(),
                }
            }
            state.driven = true;
            if state.durable >= lsn {
                self.flush_again(&mut state);
                flush_owed = false;
            } else {
                if flush_owed {
                    state.seal_upto = lsn;
                }
                self.drive_blocking(&mut state, filling);
                flush_owed &= state.durable < lsn;
            }
            let ended = state.durable >= lsn && !flush_owed;
            let told = self.pass_on(&mut state);
            drop(state);
            told.tell();
            if ended {
                return Ok(());
            }
            state = self.state.lock();
        }
    }

    /// The caller does not drive any more: takes out who is to be told that it is over, and who drives next, if
    /// anybody waits.
    fn pass_on(&self, state: &mut State) -> Told {
        let mut told = state.waiters.take_answered(state.durable, state.failed.as_ref());
        told.driver = state.waiters.take_driver();
        state.driven = told.driver.is_some();
        self.progress.notify_all();
        told
    }

    /// What a sync does without group commit, even if another one has made its batches durable. The caller has set
    /// `driven`.
    fn flush_again(&self, state: &mut MutexGuard<'_, State>) {
        match MutexGuard::unlocked(state, || self.device.flush()) {
            Ok(()) => state.groups += 1,
            Err(cause) => self.latch(state, latched(cause)),
        }
    }

    /// Registers a waiter; whoever drives calls it.
    pub(crate) fn start_force(&self, lsn: Lsn, done: Done) {
        let mut state = self.state.lock();
        let result = match &state.failed {
            _ if state.durable >= lsn => Ok(()),
            Some(failed) => Err(failed.clone()),
            None => {
                state.waiters.start(lsn, done);
                return;
            }
        };
        drop(state);
        done(result);
    }

    /// Advances the group of started forces as far as it goes without blocking; true while waiters remain.
    pub(crate) fn drive(&self, filling: &dyn Filling) -> bool {
        self.device.poll();
        let mut state = self.state.lock();
        while !state.driven && state.failed.is_none() && state.waiters.any_started() {
            if matches!(state.phase, Phase::Idle) {
                state.driven = true;
                self.fill(&mut state, filling);
                self.begin(&mut state);
                // Who came to block meanwhile drives the group.
                let told = self.pass_on(&mut state);
                MutexGuard::unlocked(&mut state, || told.tell());
                continue;
            }
            if !self.poll_group(&mut state) {
                break;
            }
            let told = self.pass_on(&mut state);
            MutexGuard::unlocked(&mut state, || told.tell());
        }
        state.waiters.any_started()
    }

    /// Waits for the flush that is under way, if any; the error if this or an earlier one failed.
    pub(crate) fn confirm_flush(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let flushing = |state: &State| match &state.phase {
            Phase::Flushing { upto, .. } | Phase::Alone { upto, .. } => Some(*upto),
            _ => None,
        };
        let group = flushing(&state);
        while group.is_some() && flushing(&state) == group && state.failed.is_none() {
            if state.driven {
                self.progress.wait(&mut state);
                continue;
            }
            state.driven = true;
            self.drive_blocking(&mut state, &AsItIs);
            let told = self.pass_on(&mut state);
            MutexGuard::unlocked(&mut state, || told.tell());
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// One whole group, blocking. The caller has set `driven`.
    fn drive_blocking(&self, state: &mut MutexGuard<'_, State>, filling: &dyn Filling) {
        if matches!(state.phase, Phase::Idle) {
            self.fill(state, filling);
            if self.ablation.ordered_records() {
                self.write_in_order(state);
            }
            let record = self.begin_but_last(state);
            state.seal_upto = Lsn(u64::MAX);
            if let Some((record, writes)) = record {
                let (result, spare) = MutexGuard::unlocked(state, || self.write_and_flush(record, &writes));
                state.spare = spare;
                self.advance(state, result);
                return;
            }
        }
        loop {
            let step = self.next_step(state);
            let result = match step {
                Step::Nothing => return,
                Step::Writes(tickets) if tickets.iter().all(Ticket::is_complete) => self.wait_all(&tickets),
                Step::Writes(tickets) => MutexGuard::unlocked(state, || self.wait_all(&tickets)),
                Step::Flush => {
                    let started = match &state.phase {
                        Phase::Flushing { flush: Some(ticket), .. } => Some(ticket.clone()),
                        _ => None,
                    };
                    MutexGuard::unlocked(state, || match started {
                        Some(ticket) => self.device.wait(&ticket),
                        None => self.device.flush(),
                    })
                }
            };
            if !self.advance(state, result) {
                return;
            }
        }
    }

    /// Polls the group; true when it has ended (well or not).
    fn poll_group(&self, state: &mut State) -> bool {
        loop {
            let result = match self.next_step(state) {
                Step::Nothing => return true,
                Step::Writes(tickets) => {
                    let mut result = Ok(());
                    for ticket in &tickets {
                        match ticket.result() {
                            None => return false,
                            Some(done) => result = result.and(done),
                        }
                    }
                    result
                }
                Step::Flush => {
                    let Phase::Flushing { flush, .. } = &mut state.phase else { return true };
                    let ticket = flush.get_or_insert_with(|| self.device.submit_flush());
                    match ticket.result() {
                        None => return false,
                        Some(result) => result,
                    }
                }
            };
            if !self.advance(state, result) {
                return true;
            }
        }
    }

    /// Seals what is pending; everything in flight is part of the group (R7).
    fn begin(&self, state: &mut MutexGuard<'_, State>) {
        if !matches!(state.phase, Phase::Idle) || state.failed.is_some() {
            return;
        }
        self.seal_pending(state);
        if let Some(last) = state.in_flight.back() {
            state.phase = Phase::Writing { upto: last.sequence, lsn: last.last_lsn };
        }
    }

    /// Like `begin`, but leaves the last record to the caller, who does the rest for the group. With it come the
    /// writes that the group's flush has to wait for, the record's own among them.
    fn begin_but_last(&self, state: &mut MutexGuard<'_, State>) -> Option<(Cut, Vec<Ticket>)> {
        if !matches!(state.phase, Phase::Idle) || state.failed.is_some() {
            return None;
        }
        let record = self.seal_pending_but_last(state);
        let last = state.in_flight.back()?;
        let (upto, lsn) = (last.sequence, last.last_lsn);
        let Some(record) = record else {
            state.phase = Phase::Writing { upto, lsn };
            return None;
        };
        state.phase = Phase::Alone { upto, lsn };
        Some((record, tickets_upto(state, upto)))
    }

    /// What is left of a group once its last record is cut (R7). Returns the record's memory as well.
    fn write_and_flush(&self, record: Cut, writes: &[Ticket]) -> (Result<(), DeviceError>, Option<Spare>) {
        let record = self.put_together_alone(record);
        let used = record.used;
        let spare = Arc::into_inner(self.write_here(record))
            .filter(|buffer| buffer.blocks() <= SPARE_RECORD_BLOCKS_MAX)
            .map(|buffer| Spare { buffer, used });
        let written = self.wait_all(writes);
        (written.and_then(|()| self.device.flush()), spare)
    }

    /// Lets others add to the record that is sealed next.
    fn fill(&self, state: &mut MutexGuard<'_, State>, filling: &dyn Filling) {
        let pending = state.pending_bytes;
        if filling.is_worthwhile(pending) {
            MutexGuard::unlocked(state, || filling.fill(pending));
        }
    }

    /// Writes all pending batches but the last, each when everything before it is written.
    fn write_in_order(&self, state: &mut MutexGuard<'_, State>) {
        let earlier = tickets_upto(state, Sequence(u64::MAX));
        // An error is found where the group waits for the same writes.
        drop(MutexGuard::unlocked(state, || self.wait_all(&earlier)));
        while state.pending.len() > 1 && state.failed.is_none() {
            let Some(record) = self.seal_oldest(state) else { return };
            MutexGuard::unlocked(state, || self.write_here(record));
        }
    }

    /// Returns the record's memory.
    fn write_here(&self, record: Sealed) -> Arc<Buffer> {
        let result = self.device.write(record.at, vec![Arc::clone(&record.buffer)]);
        record.write.complete(result);
        record.buffer
    }

    fn next_step(&self, state: &State) -> Step {
        match &state.phase {
            Phase::Idle => Step::Nothing,
            Phase::Writing { upto, .. } => Step::Writes(tickets_upto(state, *upto)),
            Phase::Flushing { .. } => Step::Flush,
            Phase::Alone { .. } => unreachable!("whoever drives alone comes back when the group has ended"),
        }
    }

    /// Takes the result of the step; false when the group has ended.
    fn advance(&self, state: &mut State, result: Result<(), DeviceError>) -> bool {
        if let Err(cause) = result {
            // C8: told once per waiter and then for good. The group stays unflushed for ever.
            self.latch(state, latched(cause));
            state.phase = Phase::Idle;
            return false;
        }
        match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Writing { upto, lsn } => {
                state.phase = Phase::Flushing { upto, lsn, flush: None };
                true
            }
            Phase::Flushing { upto, lsn, .. } | Phase::Alone { upto, lsn } => {
                if state.failed.is_none() {
                    state.known_flushed = upto;
                    state.durable = state.durable.max(lsn);
                    self.durable.store(state.durable.0, Ordering::Release);
                    state.groups += 1;
                    syncline_probes::flush_end(state.durable.0);
                    while state.in_flight.front().is_some_and(|record| record.sequence <= upto) {
                        state.in_flight.pop_front();
                    }
                }
                false
            }
            Phase::Idle => false,
        }
    }

    fn wait_all(&self, tickets: &[Ticket]) -> Result<(), DeviceError> {
        let mut result = Ok(());
        for ticket in tickets {
            result = result.and(ticket.result().unwrap_or_else(|| self.device.wait(ticket)));
        }
        result
    }
}

fn tickets_upto(state: &State, upto: Sequence) -> Vec<Ticket> {
    let records = state.in_flight.iter().take_while(|record| record.sequence <= upto);
    records.flat_map(|record| std::iter::once(&record.write).chain(&record.data)).cloned().collect()
}
