//! A sync's data written out by a caller who must not wait: it is logged while its write is in flight.
//!
//! A database has often a few pages more of its log to sync than go into the record. Handed to another thread, such a
//! sync costs two switches more than one that is logged where it arrives, and the device has the same to do. Nothing
//! is waited for: no turn, no room, and the data only by whoever forces (R7).

use crate::content::extents::Cost;
use crate::content::pages::PAGE_BYTES;
use crate::content::select::Select;
use crate::sync::plan::Way;
use crate::writeback::round::{Part, Round, Start, Started};
use crate::{Result, SyncPlan, Syncs};
use std::rc::Rc;
use syncline_format::Lsn;
use syncline_format::batch::BATCH_HEADER_BYTES;
use syncline_store::{Class, DataSlot};

impl Syncs {
    /// Logs what the plan has to write out, and writes it without waiting; what has to be forced then.
    ///
    /// `None`: nothing was done, and the plan is to be committed otherwise. It might have to wait; or others are
    /// syncing, and it should go together with some of them ([`Syncs::start_together`]).
    pub fn write_at_once(&self, plan: &SyncPlan) -> Option<Lsn> {
        let (Way::InFlight, Some(inode)) = (plan.way, &plan.inode) else {
            return None;
        };
        if self.core.store.failure().is_some() || !self.core.is_forced() {
            return None;
        }
        let slot = self.core.store.data_slot(plan.dirty * PAGE_BYTES)?;
        let select = Select { pages: plan.rest.clone(), whole: plan.whole, logged: false };
        let files = [(inode.clone(), select)];
        let estimate = self.writeback.estimate(&files);
        let permit = self.core.store.try_admit(Class::Normal, estimate).ok()?;
        let turn = Rc::new(inode.turn.try_lock()?);
        let [(inode, select)] = &files;
        let start = Start { inode, select, pages_max: plan.dirty, turn, behind: None, bulk: false };
        let cost = Cost { bytes: estimate.bytes - BATCH_HEADER_BYTES, items: estimate.items };
        // An error is met again, and told, by whoever does it otherwise.
        let Ok(Started::Round(round, rest)) = self.writeback.start_round(start, permit, cost) else {
            return None;
        };
        let lsn = self.log_in_flight(round, slot).ok()?;
        if rest.is_some() {
            // Somebody went on writing; the rest is not for this call.
            return None;
        }
        // Others may have logged it without us, this moment at the latest.
        Some(lsn.unwrap_or_else(|| self.core.store.last_lsn()))
    }

    /// Logs a round whose data is in flight, as the slot for all of it grants.
    fn log_in_flight(&self, round: Round, slot: DataSlot) -> Result<Option<Lsn>> {
        let Round { mut parts, permit, tickets } = round;
        let mut batch = self.content.batch();
        let mut data = tickets.iter().map(|(ticket, _)| ticket.clone());
        if let Some(first) = data.next() {
            batch.depends_on(first, slot);
            data.for_each(|ticket| batch.depends_also_on(ticket));
        }
        let result = self.writeback.commit_parts(&mut parts, permit, batch, &tickets);
        if result.is_err() {
            // Blocks in flight must not be given back (R8).
            tickets.iter().for_each(|(ticket, _)| drop(self.core.store.device().wait(ticket)));
            parts.into_iter().for_each(|part: Part| self.writeback.undo(part));
        }
        result
    }
}
