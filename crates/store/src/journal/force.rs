//! Group commit: the state machine that turns pending batches into durable ones.

use super::{Done, Journal, Phase, Sealed, State, latched};
use crate::StoreError;
use crate::sync::MutexGuard;
use std::sync::Arc;
use syncline_device::{Buffer, DeviceError, Ticket};
use syncline_format::{Lsn, Sequence};

/// Largest record whose memory is kept for the next one: 64 KiB.
const SPARE_BLOCKS_MAX: u64 = 16;

/// What a driver has to do next, outside of the lock.
enum Step {
    /// Wait for (or poll) these writes.
    Writes(Vec<Ticket>),
    /// Flush.
    Flush,
    Nothing,
}

impl Journal {
    /// Makes everything up to `lsn` durable. `before_group` runs without the lock whenever this caller is about to
    /// begin a group (it may append batches).
    pub(crate) fn force(&self, lsn: Lsn, before_group: &dyn Fn(usize)) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        // Without group commit nobody is content with somebody else's flush.
        let mut flush_owed = self.ablation.no_group_commit && state.durable < lsn;
        loop {
            if state.durable >= lsn && !flush_owed {
                return Ok(());
            }
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.driven {
                self.progress.wait(&mut state);
                continue;
            }
            state.driven = true;
            if state.durable >= lsn {
                self.flush_again(&mut state);
                flush_owed = false;
            } else {
                if flush_owed {
                    state.seal_upto = lsn;
                }
                self.drive_blocking(&mut state, before_group);
                flush_owed &= state.durable < lsn;
            }
            state.driven = false;
            self.progress.notify_all();
            let done = take_done(&mut state);
            MutexGuard::unlocked(&mut state, || finish(done));
        }
    }

    /// What a sync does without group commit, even if another one has made its batches durable. The caller has set `driven`.
    fn flush_again(&self, state: &mut MutexGuard<'_, State>) {
        match MutexGuard::unlocked(state, || self.device.flush()) {
            Ok(()) => state.groups += 1,
            Err(cause) => {
                state.failed.get_or_insert(latched(cause));
            }
        }
    }

    /// Registers a waiter; whoever drives calls it.
    pub(crate) fn start_force(&self, lsn: Lsn, done: Done) {
        let mut state = self.state.lock();
        let result = match &state.failed {
            _ if state.durable >= lsn => Ok(()),
            Some(failed) => Err(failed.clone()),
            None => {
                state.waiters.push((lsn, done));
                return;
            }
        };
        drop(state);
        done(result);
    }

    /// Advances the group of started forces as far as it goes without blocking; true while waiters remain.
    pub(crate) fn drive(&self, before_group: &dyn Fn(usize)) -> bool {
        self.device.poll();
        let mut state = self.state.lock();
        while !state.driven && state.failed.is_none() && !state.waiters.is_empty() {
            if matches!(state.phase, Phase::Idle) {
                state.driven = true;
                let pending = state.pending_bytes;
                MutexGuard::unlocked(&mut state, || before_group(pending));
                state.driven = false;
                self.begin(&mut state);
                // Who came to block meanwhile may drive the group.
                self.progress.notify_all();
            }
            if !self.poll_group(&mut state) {
                break;
            }
            self.progress.notify_all();
            let done = take_done(&mut state);
            MutexGuard::unlocked(&mut state, || finish(done));
        }
        !state.waiters.is_empty()
    }

    /// Waits for the flush that is under way, if any; the error if this or an earlier one failed.
    pub(crate) fn confirm_flush(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let flushing = |state: &State| match &state.phase {
            Phase::Flushing { upto, .. } => Some(*upto),
            _ => None,
        };
        let group = flushing(&state);
        while group.is_some() && flushing(&state) == group && state.failed.is_none() {
            if state.driven {
                self.progress.wait(&mut state);
                continue;
            }
            state.driven = true;
            self.drive_blocking(&mut state, &|_| ());
            state.driven = false;
            self.progress.notify_all();
            let done = take_done(&mut state);
            MutexGuard::unlocked(&mut state, || finish(done));
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// One whole group, blocking. The caller has set `driven`.
    fn drive_blocking(&self, state: &mut MutexGuard<'_, State>, before_group: &dyn Fn(usize)) {
        if matches!(state.phase, Phase::Idle) {
            let pending = state.pending_bytes;
            MutexGuard::unlocked(state, || before_group(pending));
            if self.ablation.ordered_records {
                self.write_in_order(state);
            }
            let record = self.begin_but_last(state);
            state.seal_upto = Lsn(u64::MAX);
            if let Some(record) = record {
                let written = MutexGuard::unlocked(state, || self.write_here(record));
                state.spare = Arc::into_inner(written).filter(|buffer| buffer.blocks() <= SPARE_BLOCKS_MAX);
            }
        }
        loop {
            let step = self.next_step(state);
            let result = match step {
                Step::Nothing => return,
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
    fn begin(&self, state: &mut State) {
        if !matches!(state.phase, Phase::Idle) || state.failed.is_some() {
            return;
        }
        self.seal_pending(state);
        if let Some(last) = state.in_flight.back() {
            state.phase = Phase::Writing { upto: last.sequence, lsn: last.last_lsn };
        }
    }

    /// Like `begin`, but leaves the last record to the caller, who writes it at once.
    fn begin_but_last(&self, state: &mut State) -> Option<Sealed> {
        if !matches!(state.phase, Phase::Idle) || state.failed.is_some() {
            return None;
        }
        let record = self.seal_pending_but_last(state);
        if let Some(last) = state.in_flight.back() {
            state.phase = Phase::Writing { upto: last.sequence, lsn: last.last_lsn };
        }
        record
    }

    /// Writes all pending batches but the last, each when everything before it is written.
    fn write_in_order(&self, state: &mut MutexGuard<'_, State>) {
        let earlier = tickets_upto(state, Sequence(u64::MAX));
        // An error is found where the group waits for the same writes.
        drop(MutexGuard::unlocked(state, || self.wait_all(&earlier)));
        while state.pending.len() > 1 && state.failed.is_none() {
            let Some(record) = self.seal_record(state) else { return };
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
        }
    }

    /// Takes the result of the step; false when the group has ended.
    fn advance(&self, state: &mut State, result: Result<(), DeviceError>) -> bool {
        if let Err(cause) = result {
            // C8: told once per waiter and then for good. The group stays unflushed for ever.
            state.failed.get_or_insert(latched(cause));
            state.phase = Phase::Idle;
            return false;
        }
        match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Writing { upto, lsn } => {
                state.phase = Phase::Flushing { upto, lsn, flush: None };
                true
            }
            Phase::Flushing { upto, lsn, .. } => {
                if state.failed.is_none() {
                    state.known_flushed = upto;
                    state.durable = state.durable.max(lsn);
                    state.groups += 1;
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

/// Waiters that can be answered now.
fn take_done(state: &mut State) -> Vec<(Done, Result<(), StoreError>)> {
    let mut done = Vec::new();
    let mut rest = Vec::new();
    for (lsn, waiter) in std::mem::take(&mut state.waiters) {
        if state.durable >= lsn {
            done.push((waiter, Ok(())));
        } else if let Some(failed) = &state.failed {
            done.push((waiter, Err(failed.clone())));
        } else {
            rest.push((lsn, waiter));
        }
    }
    state.waiters = rest;
    done
}

fn finish(done: Vec<(Done, Result<(), StoreError>)>) {
    for (waiter, result) in done {
        waiter(result);
    }
}
