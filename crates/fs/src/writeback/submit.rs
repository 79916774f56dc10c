//! The data writes of a round, as few and as large as the blocks' places allow.

use crate::content::pages::PAGE_BYTES;
use crate::limits::WRITE_PAGES_MAX;
use crate::writeback::Writeback;
use crate::writeback::round::Part;
use syncline_device::Ticket;
use syncline_format::BlockNo;

/// Where a page goes, and which it is: the part, and the index in its `chosen`.
type Place = (BlockNo, usize, usize);

/// How the writes get to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Bulk data: when the lane has room.
    Lane,
    Submitted,
    /// The caller waits for them all, so the last one is written on this thread: nobody has to be woken for it then,
    /// and threads that do so do not queue up to submit.
    Here,
}

impl Writeback {
    /// Starts the data writes.
    pub(crate) fn submit(&self, parts: &mut [Part], way: Way) -> Vec<(Ticket, u64)> {
        let mut order: Vec<Place> = Vec::with_capacity(parts.iter().map(|part| part.chosen.len()).sum());
        for (p, part) in parts.iter().enumerate() {
            for piece in &part.pieces {
                let blocks = (0..).zip(piece.chosen.clone());
                order.extend(blocks.map(|(offset, chosen)| (piece.start.plus(offset), p, chosen)));
            }
        }
        order.sort_unstable();
        let lane = &self.core.lane;
        let mut tickets = Vec::new();
        let consecutive = |a: &Place, b: &Place| a.0.plus(1) == b.0;
        let mut left = order.as_slice();
        while let Some(run) = left.chunk_by(consecutive).next() {
            let most = if way == Way::Lane { lane.write_pages_max() } else { WRITE_PAGES_MAX };
            let (write, rest) = left.split_at(run.len().min(most));
            left = rest;
            let buffers =
                write.iter().map(|&(_, p, chosen)| parts[p].chosen[chosen].buffer.clone()).collect();
            let ticket = match way {
                Way::Lane => lane.submit(&self.core.store, write[0].0, buffers),
                Way::Here if left.is_empty() => {
                    Ticket::completed(self.core.store.device().write(write[0].0, buffers))
                }
                Way::Here | Way::Submitted => self.core.store.device().submit_write(write[0].0, buffers),
            };
            for &(_, p, chosen) in write {
                parts[p].chosen[chosen].ticket = Some(ticket.clone());
            }
            tickets.push((ticket, write.len() as u64 * PAGE_BYTES));
        }
        tickets
    }
}
