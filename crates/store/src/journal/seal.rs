//! Sealing: pending batches become records.
//!
//! Whoever seals has the turn ([`Sealing`](super::sealing::Sealing)) until the record is submitted, or its writer is
//! known: a group that is begun meanwhile waits for that, since it depends on the write. No other lock than the
//! journal's is needed for it, so waiting is short.

use super::encoded::Encoded;
use super::{InFlight, Journal, Pending, State};
use crate::limits::GROUP_BYTES_TARGET;
use crate::locks::MutexGuard;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Ticket};
use syncline_format::record::{self, RECORD_HEADER_BYTES, RecordInfo, record_blocks};
use syncline_format::{BLOCK_BYTES, BlockNo, Lsn, Sequence};

/// A record whose batches and place are settled, and that is still to be put together. It is in flight as far as others
/// can see.
pub(super) struct Cut {
    info: RecordInfo,
    at: BlockNo,
    blocks: u64,
    /// Blocks of the ring behind it that are to be written first.
    fresh: Range<u64>,
    batches: Vec<Encoded>,
    /// Memory of a record before it, if it has the right length.
    spare: Option<Spare>,
    write: Ticket,
}

/// Memory of a record that is written.
pub(super) struct Spare {
    pub(super) buffer: Buffer,
    /// Zeros are behind it.
    pub(super) used: usize,
}

/// A record that is put together, and is still to be written.
pub(super) struct Sealed {
    pub(super) sequence: Sequence,
    pub(super) at: BlockNo,
    pub(super) buffer: Arc<Buffer>,
    /// Bytes of the buffer in front of the zeros at its end.
    pub(super) used: usize,
    /// To be completed by whoever writes it on its own thread.
    pub(super) write: Ticket,
}

impl Journal {
    /// Most bytes of batches in a record, unless a single batch is larger.
    pub(super) fn record_bytes_target(&self) -> usize {
        self.batch_bytes_max().min(GROUP_BYTES_TARGET)
    }

    /// Waits until nobody seals. The ring knows the sum of its last record then.
    pub(super) fn wait_for_sealing(&self, state: &mut MutexGuard<'_, State>) {
        while self.sealing.is_awaited() {
            self.sealed.wait(state);
        }
        state.ring.sealed(self.sealing.checksum());
    }

    /// Ends the turn to seal, under the journal's lock.
    fn end_sealing(&self) {
        if self.sealing.end() {
            self.sealed.notify_all();
        }
    }

    /// Ends the turn to seal, without the journal's lock.
    fn end_sealing_outside(&self) {
        if self.sealing.end() {
            // Who has said under the lock that it waits is waiting once the lock is free.
            drop(self.state.lock());
            self.sealed.notify_all();
        }
    }

    /// Seals everything that is pending into records and submits them, without a flush. What is appended meanwhile is
    /// left.
    pub(super) fn seal_pending(&self, state: &mut MutexGuard<'_, State>) {
        self.wait_for_sealing(state);
        let upto = state.last_pending();
        self.sealing.begin();
        while let Some(record) = self.seal_record(state, upto) {
            self.submit(state, record);
        }
        self.end_sealing();
    }

    /// Like `seal_pending`, but leaves the last record to the caller, with the turn to seal: it is to be put together
    /// ([`Journal::put_together_alone`]) and written without the lock.
    pub(super) fn seal_pending_but_last(&self, state: &mut MutexGuard<'_, State>) -> Option<Cut> {
        self.wait_for_sealing(state);
        let upto = state.last_pending();
        self.sealing.begin();
        while let Some(cut) = self.cut_record(state, upto) {
            if state.pending.is_empty() || state.next_lsn > upto.min(state.seal_upto) {
                return Some(cut);
            }
            let record = self.complete(state, cut);
            self.submit(state, record);
        }
        self.end_sealing();
        None
    }

    /// Puts a record together whose cut has left the turn to seal to the caller, and ends that. Called without the
    /// lock.
    pub(super) fn put_together_alone(&self, cut: Cut) -> Sealed {
        let record = self.put_together(cut);
        self.end_sealing_outside();
        record
    }

    /// Seals the oldest pending batches for the caller to write.
    pub(super) fn seal_oldest(&self, state: &mut MutexGuard<'_, State>) -> Option<Sealed> {
        self.wait_for_sealing(state);
        self.sealing.begin();
        let record = self.seal_record(state, Lsn(u64::MAX));
        self.end_sealing();
        record
    }

    fn submit(&self, state: &mut MutexGuard<'_, State>, record: Sealed) {
        let Sealed { sequence, at, buffer, .. } = record;
        let write = MutexGuard::unlocked(state, || self.device.submit_write(at, vec![buffer]));
        if let Some(entry) = state.in_flight.iter_mut().rfind(|entry| entry.sequence == sequence) {
            entry.write = write;
        }
    }

    /// Makes a record of the oldest pending batches up to an LSN; it is in flight from then on, but nobody writes it
    /// yet. The caller has the turn to seal.
    fn seal_record(&self, state: &mut MutexGuard<'_, State>, upto: Lsn) -> Option<Sealed> {
        let cut = self.cut_record(state, upto)?;
        Some(self.complete(state, cut))
    }

    fn complete(&self, state: &mut MutexGuard<'_, State>, cut: Cut) -> Sealed {
        let record = MutexGuard::unlocked(state, || self.put_together(cut));
        state.ring.sealed(self.sealing.checksum());
        record
    }

    fn cut_record(&self, state: &mut State, upto: Lsn) -> Option<Cut> {
        let upto = upto.min(state.seal_upto);
        if state.pending.is_empty() || state.next_lsn > upto || state.failed.is_some() {
            return None;
        }
        let bytes_max = self.record_bytes_target();
        let mut count = 0;
        let mut payload = 0;
        for pending in &state.pending {
            let alone = self.ablation.ordered_records() || state.next_lsn.0 + count as u64 > upto.0;
            if count > 0 && (alone || payload + pending.bytes.len() > bytes_max) {
                break;
            }
            payload += pending.bytes.len();
            count += 1;
        }
        let blocks = record_blocks(payload);
        let place = state.ring.place(blocks);
        let (mut batches, mut data, mut slots) = (Vec::with_capacity(count), Vec::new(), Vec::new());
        for pending in state.pending.drain(..count) {
            let Pending { bytes, data: tickets, slots: held } = pending;
            batches.push(bytes);
            data.extend(tickets);
            slots.extend(held);
        }
        state.pending_bytes -= payload;
        let info = RecordInfo {
            epoch: self.epoch,
            sequence: place.sequence,
            predecessor: place.predecessor,
            known_flushed: state.known_flushed,
            generation: state.generation,
            first_lsn: state.next_lsn,
            batches: count as u32,
            payload_bytes: payload as u32,
        };
        state.ring.push(&place, blocks, info.last_lsn());
        state.next_lsn = info.last_lsn().next();
        state.grouped_batches += count as u64;
        let write = Ticket::pending();
        state.in_flight.push_back(InFlight {
            sequence: place.sequence,
            last_lsn: info.last_lsn(),
            write: write.clone(),
            data,
            _slots: slots,
        });
        let spare = state.spare.take().filter(|spare| spare.buffer.blocks() == blocks);
        let at = self.start.plus(place.block);
        Some(Cut { info, at, blocks, fresh: place.fresh, batches, spare, write })
    }

    /// Writes zeros behind a record, where the ring was never written. On a host file each flush behind a first write
    /// makes the host commit what it has allocated; so one record in a MiB costs that, and not each. It is waited for
    /// because the next record goes there; all records so far lie before it.
    fn write_fresh(&self, fresh: &Range<u64>) {
        if !fresh.is_empty() {
            let zeros = Arc::new(Buffer::zeroed((fresh.end - fresh.start) as usize));
            // The record does not depend on it; if the device fails, the record's own write says so.
            let _ = self.device.write(self.start.plus(fresh.start), vec![zeros]);
        }
    }

    /// The record's bytes; its checksum is noted. Called without the lock.
    fn put_together(&self, cut: Cut) -> Sealed {
        self.write_fresh(&cut.fresh);
        // The header is written by sealing.
        let used = RECORD_HEADER_BYTES + cut.info.payload_bytes as usize;
        let mut batches = cut.batches;
        let mut buffer = match batches.pop_if(|batch| matches!(batch, Encoded::Laid(_))) {
            // It is larger than what several batches may have together, so it is alone.
            Some(Encoded::Laid(laid)) => {
                assert!(batches.is_empty(), "a batch laid out as a record has it to itself");
                laid.record
            }
            _ => {
                let (mut buffer, zeros_from) = match cut.spare {
                    Some(Spare { buffer, used }) => (buffer, used),
                    None => (Buffer::for_overwrite(cut.blocks as usize), cut.blocks as usize * BLOCK_BYTES),
                };
                let mut offset = RECORD_HEADER_BYTES;
                for batch in &batches {
                    let end = offset + batch.len();
                    batch.copy_into(&mut buffer[offset..end]);
                    offset = end;
                }
                buffer[offset..zeros_from.max(offset)].fill(0);
                buffer
            }
        };
        self.sealing.note(record::seal(&mut buffer, cut.at, &cut.info, self.volume));
        let (sequence, buffer) = (cut.info.sequence, Arc::new(buffer));
        syncline_probes::seal(sequence.0, used as u64);
        Sealed { sequence, at: cut.at, buffer, used, write: cut.write }
    }
}

impl State {
    /// LSN of the newest batch that is applied.
    pub(super) fn last_pending(&self) -> Lsn {
        Lsn(self.next_lsn.0 + self.pending.len() as u64 - 1)
    }
}
