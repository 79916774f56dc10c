//! A sync's data written out by a caller who must not wait: it is logged while its write is in flight.
//!
//! A database has often a few pages more of its log to sync than go into the record. Handed to another thread, such a
//! sync costs two switches more than one that is logged where it arrives, and the device has the same to do. Nothing
//! is waited for: no turn, no room, and the data only by whoever forces (R7).

use super::{Part, Round, Select, Start, Started, gauge};
use crate::data::extents::Cost;
use crate::data::pages::PAGE_BYTES;
use crate::{Fs, HandleId, Result};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use syncline_format::Lsn;
use syncline_format::batch::BATCH_HEADER_BYTES;
use syncline_store::{Batch, Class, DataSlot};

/// Pages that are written out like this: 128 KiB, for which a caller on the same CPU is held up no longer than for a
/// large write.
const PAGES_MAX: u64 = 32;
/// Each of these is an extent and may be a write of its own.
const PIECES_MAX: u64 = 4;

/// What a sync had to write out is logged.
#[derive(Debug)]
pub struct WrittenOut(Lsn);

impl Fs {
    /// Logs what a sync of an open file has to write out, and writes it without waiting; then [`Fs::start_force`]
    /// ends the sync.
    ///
    /// `None`: nothing was done, and the sync is to be started otherwise. It might have to wait; or others are
    /// syncing, and it should go together with some of them ([`Fs::start_syncs`]).
    pub fn write_out_at_once(&self, handle: HandleId) -> Option<WrittenOut> {
        if self.store.failure().is_some() || self.store.is_read_only() || !self.is_forced() {
            return None;
        }
        let inode = self.open_file(handle).ok()?.inode.clone();
        let select = Select::dirty(self.clock.now());
        let (gauge, turn) = {
            let data = &inode.state.read().data;
            (gauge(data, &select), data.turn())
        };
        if gauge.pages == 0 || gauge.pages > PAGES_MAX || gauge.pieces > PIECES_MAX {
            return None;
        }
        let slot = self.store.data_slot(gauge.pages * PAGE_BYTES)?;
        let files = [(inode, select)];
        let estimate = self.estimate(&files);
        let permit = self.store.admit(Class::Normal, estimate).ok()?;
        let turn = Rc::new(turn.try_lock_arc()?);
        let [(inode, select)] = &files;
        let start = Start { inode, select, pages_max: gauge.pages, turn, behind: None, bulk: false };
        let cost = Cost { bytes: estimate.bytes - BATCH_HEADER_BYTES, items: estimate.items };
        // An error is met again, and told, by whoever does it otherwise.
        let Ok(Started::Round(round, rest)) = self.start_round(start, permit, cost) else { return None };
        let lsn = self.log_in_flight(round, slot).ok()?;
        if rest.is_some() {
            // Somebody went on writing; the rest is not for this call.
            return None;
        }
        self.writeback.syncs.fetch_add(1, Ordering::Relaxed);
        self.writeback.note_small_request();
        // Others may have logged it without us, this moment at the latest.
        Some(WrittenOut(lsn.unwrap_or_else(|| self.store.last_lsn())))
    }

    /// Starts making durable what was written out; `done` is called when it is, on the thread that drives the force.
    pub fn start_force(&self, written: WrittenOut, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.store.start_force(written.0, Box::new(|result| done(result.map_err(Into::into))));
    }

    /// Logs a round whose data is in flight, as the slot for all of it grants.
    fn log_in_flight(&self, round: Round, slot: DataSlot) -> Result<Option<Lsn>> {
        let Round { mut parts, permit, tickets } = round;
        let mut batch = Batch::new();
        let mut data = tickets.iter().map(|(ticket, _)| ticket.clone());
        if let Some(first) = data.next() {
            batch.depends_on(first, slot);
            data.for_each(|ticket| batch.depends_also_on(ticket));
        }
        let result = self.commit_parts(&mut parts, permit, batch, &tickets);
        if result.is_err() {
            // Blocks in flight must not be given back (R8).
            tickets.iter().for_each(|(ticket, _)| drop(self.store.device().wait(ticket)));
            parts.into_iter().for_each(|part: Part| self.undo(part));
        }
        result
    }
}
