//! Streaming: writing out a large file with several rounds in flight.
//!
//! The rounds are those of `round`, but the next ones are chosen, planned and submitted while the data of earlier
//! ones is still being written, so that the device does not wait for the processor. Each is logged when its own data
//! is complete, in order; the file's turn is held from the first choice to the last commit of a stretch, and given up
//! in between, so that truncation and others get theirs.
//!
//! A round in flight has changed nothing of the stored extents yet, and the next one plans on what is stored. Their
//! pages are disjoint and ascend, so this goes wrong only where one stored extent reaches across the border between
//! two rounds: then the later one waits until the earlier ones are logged. After an error the rounds behind it are
//! taken back.
//!
//! Admission of the first round may wait, before the turn is taken; later ones are only asked for, and a refusal ends
//! the stretch.

use crate::Result;
use crate::content::extents::Cost;
use crate::content::inode::Inode;
use crate::content::select::Select;
use crate::content::turn::Turn;
use crate::limits::{CAREFUL_IN_FLIGHT, PIECEMEAL_PAGES, ROUND_PAGES_MAX};
use crate::writeback::Writeback;
use crate::writeback::round::{Round, Start, Started};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::batch::BATCH_HEADER_BYTES;
use syncline_store::{Class, Estimate, Permit};

/// How much a stream does under one hold of the turn, and how fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    rounds: usize,
    pages: u64,
    in_flight: usize,
    /// Stops when somebody syncs.
    background: bool,
}

impl Pace {
    /// As fast as the device takes it, 16 MiB in flight, 64 MiB per turn: what a sync does.
    pub(crate) const FULL: Pace =
        Pace { rounds: 16, pages: ROUND_PAGES_MAX, in_flight: 4, background: false };
    /// As fast, 16 MiB per turn: a piece of what others are waiting for as well.
    pub(crate) const PIECE: Pace = Pace { rounds: 4, ..Pace::FULL };
    /// As fast, in small rounds, so that it stops soon when somebody syncs.
    pub(crate) const BACKGROUND: Pace =
        Pace { pages: PIECEMEAL_PAGES, in_flight: 2, background: true, ..Pace::FULL };
    /// One round: what a writer does that has to slow down.
    pub(crate) const ROUND: Pace =
        Pace { rounds: 1, pages: ROUND_PAGES_MAX, in_flight: 1, background: false };
    /// What the background does while others sync.
    pub(crate) const YIELDING: Pace =
        Pace { rounds: 1, pages: PIECEMEAL_PAGES, in_flight: 1, background: true };

    /// The same in small rounds, for a narrow lane.
    fn careful(self) -> Pace {
        let (pages, in_flight) = (self.pages.min(PIECEMEAL_PAGES), self.in_flight.min(CAREFUL_IN_FLIGHT));
        Pace { pages, in_flight, ..self }
    }

    pub(crate) fn rounds(self) -> usize {
        self.rounds
    }
}

/// A stretch of rounds.
struct Stretch<'a> {
    inode: &'a Arc<Inode>,
    select: Select,
    class: Class,
    estimate: Estimate,
    pace: Pace,
    turn: Rc<Turn>,
    in_flight: VecDeque<Round>,
    /// Where the next round starts; `None`: all is under way.
    cursor: Option<u64>,
}

impl Writeback {
    /// Writes out what is selected of a file, as much as the pace allows; returns the first page that is left.
    pub(crate) fn stream_out(
        &self,
        class: Class,
        inode: &Arc<Inode>,
        select: Select,
        pace: Pace,
    ) -> Result<Option<u64>> {
        let estimate = self.estimate(&[(inode.clone(), select.clone())]);
        let sized = |items| Estimate { items, ..estimate };
        let (permit, items) = self.admit_necessary(class, sized, estimate.items)?;
        let cursor = Some(select.pages.start);
        let turn = Rc::new(inode.lock_turn());
        let in_flight = VecDeque::new();
        let mut stretch =
            Stretch { inode, select, class, estimate: sized(items), pace, turn, in_flight, cursor };
        let result = self.run_stretch(&mut stretch, permit);
        while let Some(round) = stretch.in_flight.pop_back() {
            self.undo_round(round);
        }
        let cursor = stretch.cursor;
        drop(stretch);
        self.note_progress();
        result.map(|()| cursor)
    }

    fn run_stretch(&self, stretch: &mut Stretch<'_>, permit: Permit) -> Result<()> {
        let mut permit = Some(permit);
        let mut rounds = 0;
        let syncs = self.syncs.load(Ordering::Relaxed);
        loop {
            if stretch.pace.background && self.syncs.load(Ordering::Relaxed) != syncs && rounds > 0 {
                rounds = stretch.pace.rounds;
            }
            while rounds < stretch.pace.rounds {
                let pace = if self.core.lane.is_narrow() { stretch.pace.careful() } else { stretch.pace };
                if stretch.in_flight.len() >= pace.in_flight {
                    break;
                }
                let admitted =
                    permit.take().or_else(|| self.core.store.try_admit(stretch.class, stretch.estimate).ok());
                let Some(admitted) = admitted else {
                    rounds = stretch.pace.rounds;
                    break;
                };
                if !self.extend(stretch, admitted, pace.pages)? {
                    break;
                }
                rounds += 1;
            }
            let Some(oldest) = stretch.in_flight.pop_front() else { return Ok(()) };
            self.finish_round(oldest)?;
            self.note_progress();
        }
    }

    /// Starts another round; false if there is nothing to start now.
    fn extend(&self, stretch: &mut Stretch<'_>, permit: Permit, pages_max: u64) -> Result<bool> {
        let Some(cursor) = stretch.cursor else { return Ok(false) };
        stretch.select.pages.start = cursor;
        let start = Start {
            inode: stretch.inode,
            select: &stretch.select,
            pages_max,
            turn: stretch.turn.clone(),
            behind: stretch.in_flight.back(),
            bulk: true,
        };
        let estimate = stretch.estimate;
        let cost = Cost { bytes: estimate.bytes - BATCH_HEADER_BYTES, items: estimate.items };
        match self.start_round(start, permit, cost)? {
            Started::Round(round, rest) => {
                stretch.cursor = rest;
                stretch.in_flight.push_back(round);
                Ok(true)
            }
            Started::Blocked => Ok(false),
            Started::Nothing => {
                stretch.cursor = None;
                Ok(false)
            }
        }
    }
}
