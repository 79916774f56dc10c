//! One round of writeback: pages of one file, or of several, written out and logged as one batch.
//!
//! choose (pages become *writing*, their blocks go to the round) -> plan (extents and blocks, as much as the batch's
//! bound allows; the rest is put back) -> submit (checksums of the very buffers that are written, R6) -> commit under
//! the inodes' locks. If the store grants slots for it, the batch is committed while its data is in flight (R7, R4
//! make that safe); otherwise the data is complete first. The files' turns are held throughout, their locks only for
//! choosing and committing.

use crate::Result;
use crate::content::extents::{Cost, ExtentMap};
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::PAGE_BYTES;
use crate::content::select::{Select, gauge};
use crate::content::turn::Turn;
use crate::limits::{ROUND_BYTES_MIN, ROUND_ITEMS_MAX, ROUND_PAGES_MAX};
use crate::writeback::Writeback;
use crate::writeback::choice::{InPlace, Purpose, covered_by, fit, select_pages, unchoose};
use crate::writeback::submit::Way;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use syncline_device::{Buffer, Ticket};
use syncline_format::batch::{BATCH_HEADER_BYTES, PUT_OVERHEAD_BYTES};
use syncline_format::item::{ExtentItem, INODE_BYTES, Timestamp};
use syncline_format::{BlockNo, Key, Lsn};
use syncline_store::lock_order::WriteGuard;
use syncline_store::{Batch, Class, Estimate, Permit, Reservation, Run};

/// Cost of a file's inode item.
const INODE_COST: Cost = Cost { bytes: PUT_OVERHEAD_BYTES + INODE_BYTES, items: 1 };

pub(crate) struct Chosen {
    pub(crate) page: u64,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) checksum: u64,
    pub(crate) ticket: Option<Ticket>,
}

/// Consecutive pages that go to consecutive blocks.
pub(crate) struct Piece {
    /// Indices in `Part::chosen`.
    pub(crate) chosen: Range<usize>,
    pub(crate) start: BlockNo,
    pub(crate) in_place: bool,
}

/// A file's share of a round.
pub(crate) struct Part {
    pub(crate) inode: Arc<Inode>,
    /// Counted in `FileData::destaging`.
    pub(crate) destages: bool,
    /// Ascending. Pages beyond those planned are put back.
    pub(crate) chosen: Vec<Chosen>,
    pub(crate) pieces: Vec<Piece>,
    /// What the size on record covers once this part is committed.
    pub(crate) covered: u64,
    pub(crate) pool: Option<Reservation>,
    /// After planning.
    pub(crate) map: Option<ExtentMap>,
    pub(crate) blocks_cut: u64,
    pub(crate) blocks_put: u64,
    /// First page that was selected, but left for another round.
    pub(crate) rest: Option<u64>,
    /// As [`Select::whole`].
    pub(crate) whole: Option<Timestamp>,
    /// Shared by the rounds of a stream.
    pub(crate) _turn: Rc<Turn>,
}

/// Parts whose data is being written, and the right to log them.
pub(crate) struct Round {
    pub(crate) parts: Vec<Part>,
    pub(crate) permit: Permit,
    pub(crate) tickets: Vec<(Ticket, u64)>,
}

/// What a round of a stream starts with.
pub(crate) struct Start<'a> {
    pub(crate) inode: &'a Arc<Inode>,
    pub(crate) select: &'a Select,
    pub(crate) pages_max: u64,
    pub(crate) turn: Rc<Turn>,
    /// The last of the rounds in flight.
    pub(crate) behind: Option<&'a Round>,
    /// No small sync waits for it.
    pub(crate) bulk: bool,
}

/// What came of starting a round: its data is being written, and the first page that is left.
pub(crate) enum Started {
    Round(Round, Option<u64>),
    /// Rounds in flight have to be settled before.
    Blocked,
    Nothing,
}

/// What a round did.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Of its batch, if there was anything to log.
    pub(crate) lsn: Option<Lsn>,
    /// For every file given: the first page that is left to do; `None`: all done.
    pub(crate) rest: Vec<Option<u64>>,
}

impl Writeback {
    /// Writes out what is selected of the files, as much as one batch takes. Only the first one's turn is waited for,
    /// mostly.
    pub(crate) fn write_out(
        &self,
        class: Class,
        files: &[(Arc<Inode>, Select)],
        purpose: Purpose,
    ) -> Result<Outcome> {
        let estimate = self.estimate(files);
        let items = estimate.items;
        let (permit, items) = self.admit_necessary(class, |items| Estimate { items, ..estimate }, items)?;
        let mut outcome = Outcome { lsn: None, rest: Vec::with_capacity(files.len()) };
        let mut left = Cost { bytes: estimate.bytes - BATCH_HEADER_BYTES, items };
        let mut pages_left = match purpose {
            // Syncs of the same files wait for its end.
            Purpose::Background => ROUND_PAGES_MAX.min(self.core.lane.round_pages_max()),
            _ => ROUND_PAGES_MAX,
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut result = Ok(());
        for (index, (inode, select)) in files.iter().enumerate() {
            let waits = index == 0 && purpose != Purpose::Syncs;
            let turn = if waits { Some(inode.turn.lock()) } else { inode.turn.try_lock() };
            let Some(turn) = turn.filter(|_| result.is_ok() && INODE_COST.fits(left) && pages_left > 0)
            else {
                outcome.rest.push(Some(select.pages.start));
                continue;
            };
            let Some(mut part) = self.choose(inode, select, pages_left, Rc::new(turn)) else {
                outcome.rest.push(None);
                continue;
            };
            left = Cost { bytes: left.bytes - INODE_COST.bytes, items: left.items - INODE_COST.items };
            pages_left -= part.chosen.len() as u64;
            let near = parts.last().and_then(|part: &Part| part.next_block());
            result = self.plan(&mut part, &mut left, near, 0);
            outcome.rest.push(part.rest);
            parts.push(part);
        }
        parts.sort_by_key(|part| part.inode.number);
        let wait = purpose == Purpose::Background;
        let result = result.and_then(|()| self.write_and_commit(&mut parts, permit, wait));
        match result {
            Ok(lsn) => outcome.lsn = lsn,
            Err(error) => {
                parts.into_iter().for_each(|part| self.undo(part));
                return Err(error);
            }
        }
        Ok(outcome)
    }

    /// Takes the selected pages of a file, at most `pages_max`; `None` if there is nothing to log for it.
    fn choose(&self, inode: &Arc<Inode>, select: &Select, pages_max: u64, turn: Rc<Turn>) -> Option<Part> {
        let mut state = inode.state.write();
        if state.gone {
            // Its content is removed by whoever takes the turn next.
            self.content.relist(inode, &mut state, self.core.clock.now());
            return None;
        }
        let (pages, rest) = select_pages(&state.data, select, pages_max);
        if pages.is_empty() && !state.item_dirty {
            return None;
        }
        let covered = covered_by(&state, &pages);
        let mut blocks = 0;
        for &(page, _) in &pages {
            blocks += u64::from(state.data.update(page, |slot| {
                slot.state.choose();
                std::mem::take(&mut slot.reserved)
            }));
        }
        let pool = state.data.take_blocks(blocks);
        state.data.stored.destaging += u32::from(select.logged);
        drop(state);
        let chosen =
            pages.into_iter().map(|(page, buffer)| Chosen { page, buffer, checksum: 0, ticket: None });
        Some(Part {
            inode: inode.clone(),
            destages: select.logged,
            chosen: chosen.collect(),
            pieces: Vec::new(),
            covered,
            pool,
            map: None,
            blocks_cut: 0,
            blocks_put: 0,
            rest,
            whole: select.whole,
            _turn: turn,
        })
    }

    pub(crate) fn estimate(&self, files: &[(Arc<Inode>, Select)]) -> Estimate {
        let mut bytes = BATCH_HEADER_BYTES;
        let mut items = 4;
        for (inode, select) in files {
            let gauge = gauge(&inode.state.read().data, select);
            bytes += INODE_COST.bytes + 224 * gauge.pieces as usize + 24 * gauge.pages as usize;
            items += 1 + 3 * gauge.pieces as usize + gauge.pages as usize / 32;
        }
        let bytes = bytes.max(ROUND_BYTES_MIN).min(self.core.store.batch_bytes_max());
        Estimate { bytes, items: items.min(ROUND_ITEMS_MAX), images: 0 }
    }

    /// Finds blocks for the chosen pages, as far as the batch has room for what that changes: none if an extent reaches
    /// across `unsettled`, before which rounds in flight are going to change the extents.
    fn plan(&self, part: &mut Part, left: &mut Cost, near: Option<BlockNo>, unsettled: u64) -> Result<()> {
        let Some(first) = part.chosen.first().map(|first| first.page) else { return Ok(()) };
        let pages = first..first + consecutive(&part.chosen);
        let mut map = ExtentMap::load_settled(&self.content, part.inode.number, pages)?;
        if map.reaches_across(unsettled) {
            self.leave_out(part, 0);
            return Ok(());
        }
        let owns = |birth| self.content.owns(birth);
        let mut near = if unsettled > 0 { near.or(map.near(first)) } else { map.near(first).or(near) };
        let mut spare: Option<Run> = None;
        let mut index = 0;
        while index < part.chosen.len() {
            let page = part.chosen[index].page;
            let consecutive = consecutive(&part.chosen[index..]);
            map.load_more(&self.content, page..page + consecutive)?;
            let Some((mut len, mut cost, in_place)) = fit(&map, page, consecutive, *left, &owns) else {
                break;
            };
            let start = match &in_place {
                Some(InPlace { start, .. }) => *start,
                None => {
                    let run = match spare.take() {
                        Some(run) => run,
                        None => self.allocate_run(part, consecutive, near)?,
                    };
                    if u64::from(run.len) < len {
                        // Where free space is in pieces, an extent ends within another one, of which the rest is put
                        // as well.
                        let Some(shorter) = fit(&map, page, u64::from(run.len), *left, &owns) else {
                            spare = Some(run);
                            break;
                        };
                        (len, cost, _) = shorter;
                    }
                    near = Some(run.start.plus(len));
                    spare = (u64::from(run.len) > len)
                        .then(|| Run { start: run.start.plus(len), len: run.len - len as u32 });
                    run.start
                }
            };
            let cut = map.cut(page..page + len, in_place.is_none());
            part.blocks_cut += cut;
            part.blocks_put += len;
            let chosen = index..index + len as usize;
            let checksums = part.chosen[chosen.clone()].iter_mut().map(|chosen| {
                chosen.checksum = chosen.buffer.checksum();
                chosen.checksum
            });
            let written = ExtentItem::written(start, checksums.collect());
            match &in_place {
                Some(InPlace { birth, .. }) => map.put_in_place(page, written.born(*birth)),
                None => map.put(page, written, true),
            }
            part.pieces.push(Piece { chosen, start, in_place: in_place.is_some() });
            *left = Cost { bytes: left.bytes - cost.bytes, items: left.items - cost.items };
            index += len as usize;
        }
        if let (Some(run), Some(pool)) = (spare, &mut part.pool) {
            self.core.store.abandon(run, pool);
        }
        part.map = Some(map);
        self.leave_out(part, index);
        Ok(())
    }

    fn allocate_run(&self, part: &mut Part, pages: u64, near: Option<BlockNo>) -> Result<Run> {
        let pool = match &mut part.pool {
            Some(pool) if pool.blocks() > 0 => pool,
            // A page of a preallocated extent that is none any more.
            pool => {
                let block = self.core.store.reserve(1)?;
                match pool {
                    Some(pool) => {
                        pool.merge(block);
                        pool
                    }
                    None => pool.insert(block),
                }
            }
        };
        let blocks = pages.min(pool.blocks()) as u32;
        Ok(self.core.store.allocate(pool, blocks, near))
    }

    /// Puts the pages from `from` on back to where they were before they were chosen.
    fn leave_out(&self, part: &mut Part, from: usize) {
        let Some(first) = part.chosen.get(from) else { return };
        part.rest = Some(first.page);
        part.covered = part.covered.min(first.page * PAGE_BYTES);
        let mut state = part.inode.state.write();
        for chosen in part.chosen.drain(from..) {
            unchoose(&mut state.data, chosen.page, &mut part.pool);
        }
        self.content.relist(&part.inode, &mut state, self.core.clock.now());
    }

    fn write_and_commit(&self, parts: &mut [Part], permit: Permit, wait: bool) -> Result<Option<Lsn>> {
        let pages: usize = parts.iter().map(|part| part.chosen.len()).sum();
        let mut slot = if wait { None } else { self.core.store.data_slot(pages as u64 * PAGE_BYTES) };
        let in_flight = slot.is_some();
        let way = match (wait, in_flight) {
            (true, _) => Way::Lane,
            (false, true) => Way::Submitted,
            (false, false) => Way::Here,
        };
        let tickets = self.submit(parts, way);
        let mut batch = self.content.batch();
        for (ticket, _) in tickets.iter().take_while(|_| in_flight) {
            match slot.take() {
                Some(slot) => {
                    batch.depends_on(ticket.clone(), slot);
                }
                None => batch.depends_also_on(ticket.clone()),
            }
        }
        if !in_flight {
            self.complete(&tickets)?;
        }
        let result = self.commit_parts(parts, permit, batch, &tickets);
        if result.is_err() && in_flight {
            tickets.iter().for_each(|(ticket, _)| drop(self.core.store.device().wait(ticket)));
        }
        result
    }

    /// Waits for data writes: for all of them, also after an error, since blocks in flight must not be given back (R8).
    fn complete(&self, tickets: &[(Ticket, u64)]) -> Result<()> {
        let results: Vec<_> =
            tickets.iter().map(|(ticket, _)| self.core.store.device().wait(ticket)).collect();
        match results.into_iter().find_map(|result| result.err()) {
            None => Ok(()),
            Some(error) => {
                // The sync that needs this data fails, and all later ones (C8).
                self.core.store.fail(error.clone());
                Err(error.into())
            }
        }
    }

    /// Starts a round of one file's pages from `select.pages.start` on, within the permit for `cost`. Of its extents
    /// those before page `unsettled` are not settled yet. Gives the permit back if there is nothing to log now.
    pub(crate) fn start_round(&self, start: Start<'_>, permit: Permit, cost: Cost) -> Result<Started> {
        let Start { inode, select, pages_max, turn, behind, bulk } = start;
        let Some(mut part) = self.choose(inode, select, pages_max, turn) else { return Ok(Started::Nothing) };
        let mut left = Cost { bytes: cost.bytes - INODE_COST.bytes, items: cost.items - INODE_COST.items };
        let near = behind.and_then(|round| round.parts[0].next_block());
        let unsettled = behind.map_or(0, |round| round.parts[0].end());
        if let Err(error) = self.plan(&mut part, &mut left, near, unsettled) {
            self.undo(part);
            return Err(error);
        }
        if part.chosen.is_empty() && part.rest.is_some() {
            self.undo(part);
            return Ok(Started::Blocked);
        }
        let rest = part.rest;
        let mut parts = vec![part];
        let tickets = self.submit(&mut parts, if bulk { Way::Lane } else { Way::Submitted });
        Ok(Started::Round(Round { parts, permit, tickets }, rest))
    }

    /// Waits for a round's data and logs it.
    pub(crate) fn finish_round(&self, mut round: Round) -> Result<Option<Lsn>> {
        let complete = self.complete(&round.tickets);
        let result = complete.and_then(|()| {
            self.commit_parts(&mut round.parts, round.permit, self.content.batch(), &round.tickets)
        });
        if result.is_err() {
            round.parts.into_iter().for_each(|part| self.undo(part));
        }
        result
    }

    /// Waits for a round's data and takes the round back.
    pub(crate) fn undo_round(&self, round: Round) {
        // An error of its own latches the volume as well.
        let _ = self.complete(&round.tickets);
        round.parts.into_iter().for_each(|part| self.undo(part));
    }

    /// Logs the parts, which are in ascending order of inodes, as one batch, and makes their pages clean.
    pub(crate) fn commit_parts(
        &self,
        parts: &mut [Part],
        permit: Permit,
        mut batch: Batch,
        tickets: &[(Ticket, u64)],
    ) -> Result<Option<Lsn>> {
        let inodes: Vec<Arc<Inode>> = parts.iter().map(|part| part.inode.clone()).collect();
        let mut states: Vec<WriteGuard<'_, InodeState>> =
            inodes.iter().map(|inode| inode.state.write()).collect();
        let mut items = Vec::with_capacity(parts.len());
        for (part, state) in parts.iter().zip(&states) {
            if state.gone && part.chosen.is_empty() {
                // Its item is deleted already, or about to be.
                items.push(state.item.clone());
                continue;
            }
            let mut item = state.item.clone();
            item.blocks = (item.blocks + part.blocks_put).saturating_sub(part.blocks_cut);
            if item.is_regular() {
                item.size = item.size.min(part.covered.max(state.data.stored.covered));
            }
            part.emit(&mut batch);
            batch.put(Key::inode(part.inode.number), &item.encode());
            items.push(item);
        }
        if batch.is_empty() {
            for (part, state) in parts.iter().zip(&mut states) {
                state.data.stored.destaging -= u32::from(part.destages);
            }
            return Ok(None);
        }
        let lsn = self.core.store.commit(permit, batch)?;
        let now = self.core.clock.now();
        for ((part, state), item) in parts.iter_mut().zip(&mut states).zip(items) {
            part.apply(state, item);
            if state.data.aside.is_some() && (!part.chosen.is_empty() || state.data.logged_pages() == 0) {
                self.content.aside.end(part.inode.number, &mut state.data);
            }
            let whole = part.whole.filter(|_| part.rest.is_none());
            if whole.is_some() {
                // What is dirty was written to meanwhile.
                self.content.unlist_dirty(&mut state.data);
            }
            self.content.relist(&part.inode, state, whole.unwrap_or(now));
            let pending = tickets.iter().map(|(ticket, _)| ticket).filter(|ticket| !ticket.is_complete());
            self.content.hold_in_flight(pending.cloned(), &part.inode);
        }
        Ok(Some(lsn))
    }

    /// Takes a part back that was not committed. Its data writes are complete.
    pub(crate) fn undo(&self, mut part: Part) {
        for piece in part.pieces.drain(..).filter(|piece| !piece.in_place) {
            if let Some(pool) = &mut part.pool {
                self.core.store.abandon(Run { start: piece.start, len: piece.chosen.len() as u32 }, pool);
            }
        }
        let mut state = part.inode.state.write();
        for chosen in part.chosen.drain(..) {
            unchoose(&mut state.data, chosen.page, &mut part.pool);
        }
        state.data.stored.destaging -= u32::from(part.destages);
        self.content.relist(&part.inode, &mut state, self.core.clock.now());
    }
}

/// Pages at the head that follow one another.
fn consecutive(chosen: &[Chosen]) -> u64 {
    let breaks = chosen.windows(2).position(|pair| pair[0].page + 1 != pair[1].page);
    breaks.map_or(chosen.len(), |at| at + 1) as u64
}

impl Part {
    /// The page behind the last one chosen.
    fn end(&self) -> u64 {
        self.chosen.last().map_or(0, |chosen| chosen.page + 1)
    }

    /// The block behind the last one planned.
    fn next_block(&self) -> Option<BlockNo> {
        let piece = self.pieces.iter().rev().find(|piece| !piece.in_place)?;
        Some(piece.start.plus(piece.chosen.len() as u64))
    }

    /// Writes allocations, extents and drops of images (R5) into the batch.
    fn emit(&self, batch: &mut Batch) {
        for piece in &self.pieces {
            if !piece.in_place {
                batch.allocate(piece.start, piece.chosen.len() as u32);
            }
        }
        if let Some(map) = &self.map {
            map.emit(batch);
        }
        for piece in &self.pieces {
            let first = self.chosen[piece.chosen.start].page;
            batch.drop_images(self.inode.number, first, first + piece.chosen.len() as u64);
        }
    }

    /// The batch is committed: the pages are clean, unless they were written to meanwhile.
    fn apply(&mut self, state: &mut InodeState, item: syncline_format::item::InodeItem) {
        let data = &mut state.data;
        for chosen in &self.chosen {
            data.update(chosen.page, |slot| {
                slot.state.store();
                slot.in_flight = chosen.ticket.clone().filter(|ticket| !ticket.is_complete());
            });
        }
        data.stored.destaging -= u32::from(self.destages);
        if !self.chosen.is_empty() {
            data.stored.changes += 1;
        }
        data.stored.covered = data.stored.covered.max(self.covered);
        if data.dirty_pages() == 0 {
            data.listed.recent_at = None;
        }
        state.item.blocks = item.blocks;
        state.item_dirty = state.item != item;
    }
}
