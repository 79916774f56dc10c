//! The data writes of a round, as few and as large as the blocks' places allow.

use super::{PAGE_BYTES, Part, WRITE_PAGES_MAX};
use crate::Fs;
use syncline_device::Ticket;
use syncline_format::BlockNo;

/// Where a page goes, and which it is: the part, and the index in its `chosen`.
type Place = (BlockNo, usize, usize);

impl Fs {
    /// Starts the data writes. With `here`, for a caller who waits for them all, the last one is written on this thread: nobody has to
    /// be woken for it then, and threads that do so do not queue up to submit.
    pub(super) fn submit(&self, parts: &mut [Part], here: bool) -> Vec<(Ticket, u64)> {
        let mut order: Vec<Place> = Vec::with_capacity(parts.iter().map(|part| part.chosen.len()).sum());
        for (p, part) in parts.iter().enumerate() {
            for piece in &part.pieces {
                let blocks = (0..).zip(piece.chosen.clone());
                order.extend(blocks.map(|(offset, chosen)| (piece.start.plus(offset), p, chosen)));
            }
        }
        order.sort_unstable();
        let mut tickets = Vec::new();
        let consecutive = |a: &Place, b: &Place| a.0.plus(1) == b.0;
        let mut writes = order.chunk_by(consecutive).flat_map(|run| run.chunks(WRITE_PAGES_MAX)).peekable();
        while let Some(write) = writes.next() {
            let buffers =
                write.iter().map(|&(_, p, chosen)| parts[p].chosen[chosen].buffer.clone()).collect();
            let ticket = match here && writes.peek().is_none() {
                true => Ticket::completed(self.store.device().write(write[0].0, buffers)),
                false => self.store.device().submit_write(write[0].0, buffers),
            };
            for &(_, p, chosen) in write {
                parts[p].chosen[chosen].ticket = Some(ticket.clone());
            }
            tickets.push((ticket, write.len() as u64 * PAGE_BYTES));
        }
        tickets
    }
}
