//! [`Replicator`]: what is shipped when.
//!
//! While the tap keeps contents, cuts are merged into a unit when the unit before began an interval ago, or when they
//! are many. A cut behind quiet waits for its neighbours only, for a part of the interval. So there is at most one unit
//! each interval, and no cut waits for longer than that.
//! Where contents are missing (nothing was shipped yet, or the memory was full) blocks are read from the device: first
//! in units that are not consistent, until few are left. Then the tap keeps contents again, the rest is read, and is
//! shipped under the cuts up to the first one whose flush was issued behind the reading. That unit is consistent: what
//! was read too new is what a crash could have left.

use crate::error::ReplicaError;
use crate::looks::Looks;
use crate::merge::{Content, Merge};
use crate::newest::{Newest, Place};
use crate::opened::Opened;
use crate::request::{Answer, Request, RequestId, StoreError};
use crate::runs::RunSet;
use crate::shipping::{Shipping, Unit};
use crate::tap::{TapDevice, TapState};
use crate::unit::encode;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::DeviceError;
use syncline_format::BlockNo;
use syncline_format::layout::JOURNAL_START;
use syncline_format::record;
use syncline_format::replica::{Flags, MARK_BLOCK, UnitHeader};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};

/// Pause between two looks at writes that have to complete before their blocks are read, in nanoseconds.
const DRAIN_PAUSE: u64 = 10_000_000;
/// Parts of the volume that are read for one unit, at most: each is a look for holes at least.
const WINDOWS_MAX: usize = 1024;

/// The part of the interval that a cut behind quiet waits for others that come with it: one program's work is often a
/// few syncs.
const GATHERING: u64 = 10;

/// How it ships.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Oldest age of a cut before it is shipped, and least time between the beginnings of two units, in nanoseconds.
    pub interval: u64,
    /// Bytes of cuts that are shipped without waiting for that.
    pub unit_bytes: usize,
    /// Blocks that are read from the device at a time.
    pub read_blocks: u64,
    /// Blocks that are read while contents are kept, at most.
    pub rest_blocks: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { interval: 1_000_000_000, unit_bytes: 8 << 20, read_blocks: 2048, rest_blocks: 4096 }
    }
}

/// What it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Cuts are shipped.
    Streaming,
    /// Blocks are read from the device.
    CatchingUp,
    /// Everything counts, and the volume is closed.
    Closed,
    Failed(ReplicaError),
}

/// Figures for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub phase: Phase,
    pub claim: u64,
    /// Units that count.
    pub units: u64,
    /// The newest flush of which everything counts, among those of this session; 0 for none.
    pub flush: u64,
    /// Age of the oldest cut that does not count, in nanoseconds.
    pub lag: u64,
    /// Time since the oldest change that is not shipped, or does not count, was seen by whoever ships, in nanoseconds.
    pub late: u64,
    /// Bytes of units that count.
    pub bytes: u64,
    pub requests: u64,
    /// Blocks to be read from the device.
    pub dirty: u64,
    pub trouble: Option<StoreError>,
}

/// How far reading from the device has come.
enum CatchUp {
    /// Many blocks are left; they are shipped as they are read.
    Reading,
    /// Contents are kept again; writes without theirs have to complete before the rest is read.
    Draining,
    /// The rest is read; the first flush that was issued behind this one ends it.
    Ending { rest: Merge, behind: u64, since: u64 },
}

/// What the replica held when the volume was gone on with.
struct Known {
    newest: Newest,
    /// Blocks that were shipped since: of these it tells nothing any more.
    replaced: RunSet,
}

impl Known {
    fn is_content(&self, block: u64, content: &[u8]) -> bool {
        !self.replaced.missing(block..block + 1).is_empty() && self.newest.is_content(block, content)
    }

    /// Blocks that would not be restored as zeros, or of which that is not known.
    fn other_than_zeros(&self, run: Range<u64>) -> Vec<u64> {
        let content =
            self.newest.places(run.clone()).filter(|(_, place)| matches!(place, Place::Data { .. }));
        let content = content.flat_map(|(run, _)| run);
        let replaced = run.filter(|block| self.replaced.missing(*block..*block + 1).is_empty());
        content.chain(replaced).collect()
    }
}

/// What the volume says about itself, as far as it was shipped.
#[derive(Debug, Clone, Copy, Default)]
struct Observed {
    epoch: u64,
    generation: u64,
    lsn: u64,
    volume: syncline_format::VolumeId,
    ring: (u64, u64),
}

/// Ships a volume to its replica.
pub struct Replicator {
    tap: Arc<TapDevice>,
    settings: Settings,
    uuid: [u8; 16],
    claim: u64,
    /// Of the volume; its device may be longer.
    blocks: u64,
    shipping: Shipping,
    observed: Observed,
    catch_up: Option<CatchUp>,
    /// The next unit begins a base.
    begins_base: bool,
    /// A base is being made.
    base: bool,
    /// What the replica holds already: what is read from the device and is the same is not shipped.
    known: Option<Known>,
    /// When the oldest cut in the tap was first seen.
    since: Option<u64>,
    /// When the last unit was made.
    shipped: Option<u64>,
    /// Nanoseconds between the driver's clock and 1970.
    epoch_offset: u64,
    closing: bool,
    phase: Phase,
    /// Newest flush of which everything is in units that were made, the last of them consistent; 0 for none.
    made: u64,
    flush: u64,
    bytes: u64,
    /// When it was polled last.
    polled: u64,
    looks: Looks,
    /// Units that count, for whoever wants to know of each.
    counted: Vec<Unit>,
}

impl Replicator {
    /// Ships what the tap sees. `wall_offset`: what to add to the driver's time for nanoseconds since 1970.
    pub fn new(tap: Arc<TapDevice>, opened: &Opened, settings: Settings, wall_offset: u64) -> Replicator {
        let state = tap.state();
        let shipping = Shipping::new(opened);
        Replicator {
            tap,
            settings,
            uuid: opened.uuid,
            claim: opened.claim,
            blocks: opened.manifest.blocks,
            shipping,
            observed: Observed::default(),
            catch_up: (!state.keeps).then_some(CatchUp::Reading),
            begins_base: !state.keeps,
            base: !state.keeps,
            known: None,
            since: None,
            shipped: None,
            epoch_offset: wall_offset,
            closing: false,
            phase: if state.keeps { Phase::Streaming } else { Phase::CatchingUp },
            made: 0,
            flush: 0,
            bytes: 0,
            polled: 0,
            looks: Looks::new(),
            counted: Vec::new(),
        }
    }

    /// The same for a volume that the replica holds as it was at the last unit, which is consistent: blocks that are
    /// read from the device are shipped where they differ.
    pub fn resuming(
        tap: Arc<TapDevice>,
        opened: &Opened,
        settings: Settings,
        wall_offset: u64,
        known: Newest,
    ) -> Replicator {
        let replicator = Replicator::new(tap, opened, settings, wall_offset);
        let known = Known { newest: known, replaced: RunSet::default() };
        Replicator { begins_base: false, base: false, known: Some(known), ..replicator }
    }

    /// Units that began to count since the last call.
    pub fn take_counted(&mut self) -> Vec<Unit> {
        std::mem::take(&mut self.counted)
    }

    /// Behind an answer, when whoever asks is told of it: flushes that count by now are answered (C14).
    pub fn acknowledge(&self) {
        self.tap.count(self.flush);
    }

    /// The volume is closed: what is left is shipped without waiting, and marked as the end.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Identity of the last unit that was made, of an earlier claim if this one has made none; 0 for none.
    pub fn tail(&self) -> u64 {
        self.shipping.tail()
    }

    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    pub fn status(&self, now: u64) -> Status {
        let oldest = self.shipping.oldest().into_iter().chain(self.since).min();
        let late = oldest.map_or(0, |oldest| now.saturating_sub(oldest));
        Status {
            phase: self.phase.clone(),
            claim: self.claim,
            units: self.shipping.counted(),
            flush: self.flush,
            lag: late.max(if self.tap.flushes() > self.flush { self.looks.age(now, self.flush) } else { 0 }),
            late,
            bytes: self.bytes,
            requests: self.shipping.requests(),
            dirty: self.tap.state().dirty,
            trouble: self.shipping.trouble().cloned(),
        }
    }

    /// What is to be sent now. May read from the volume's device.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        self.polled = now;
        self.looks.note(now, self.tap.flushes());
        self.looks.count(self.flush);
        if self.has_ended() {
            return Vec::new();
        }
        while self.shipping.has_room() {
            match self.next_unit(now) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    self.fail(error);
                    return Vec::new();
                }
            }
        }
        self.shipping.poll(now)
    }

    /// When to poll again although nothing is answered.
    pub fn next_due(&self) -> Option<u64> {
        // Without room for a unit the next answer is what matters.
        let interval = self.settings.interval;
        let own = match &self.catch_up {
            Some(CatchUp::Ending { since, .. }) => Some(since.saturating_add(interval)),
            // Reading waits for the volume's writes, of which nobody tells.
            Some(_) => Some(self.polled.saturating_add(DRAIN_PAUSE)),
            None => self.since.map(|since| self.due(since)),
        };
        let own = own.filter(|_| self.shipping.has_room() && !self.has_ended());
        self.shipping.next_due().into_iter().chain(own).min()
    }

    pub fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer, StoreError>) {
        if self.has_ended() {
            return;
        }
        match self.shipping.answer(id, now, result) {
            Ok(units) => {
                units.into_iter().for_each(|unit| self.counts(unit));
            }
            Err(error) => self.fail(error),
        }
    }

    /// When the cuts are shipped of which the oldest was first seen then.
    fn due(&self, since: u64) -> u64 {
        let interval = self.settings.interval;
        let gathered = since.saturating_add(interval / GATHERING);
        gathered.max(self.shipped.map_or(0, |shipped| shipped.saturating_add(interval)))
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Failed(_))
    }

    fn fail(&mut self, error: ReplicaError) {
        let why = DeviceError::Fenced(error.to_string().into());
        match error {
            // Somebody else writes: nothing may be acknowledged here any more.
            ReplicaError::Fenced { .. } => self.tap.refuse(why),
            _ => self.tap.turn_off(&why),
        }
        self.shipping.abandon();
        self.phase = Phase::Failed(error);
    }

    fn counts(&mut self, unit: Unit) {
        self.bytes += unit.bytes;
        self.counted.push(unit);
        self.flush = self.flush.max(unit.flush.unwrap_or(0));
        if unit.closed {
            self.phase = Phase::Closed;
        }
    }

    /// Makes the next unit, if it is time for one.
    fn next_unit(&mut self, now: u64) -> Result<bool, ReplicaError> {
        let state = self.tap.state();
        // Cuts that ended well are shipped still, but not where blocks are missing that cannot be read any more.
        if state.failed && (state.cuts == 0 || self.catch_up.is_some()) {
            return if self.shipping.is_idle() { Err(ReplicaError::VolumeFailed) } else { Ok(false) };
        }
        if state.cuts > 0 {
            self.since.get_or_insert(now);
        }
        match self.catch_up.take() {
            None if !state.keeps && !state.failed => {
                self.phase = Phase::CatchingUp;
                self.catch_up = Some(CatchUp::Reading);
                Ok(true)
            }
            None => self.stream(now, state),
            Some(CatchUp::Reading) => self.read_on(now, state),
            Some(CatchUp::Draining) if !state.keeps => {
                self.catch_up = Some(CatchUp::Reading);
                Ok(true)
            }
            Some(CatchUp::Draining) => self.read_rest(now),
            Some(CatchUp::Ending { rest, behind, since }) => {
                self.end_catch_up(now, state, rest, behind, since)
            }
        }
    }

    fn stream(&mut self, now: u64, state: TapState) -> Result<bool, ReplicaError> {
        let ends = self.closing && !state.unflushed;
        if self.closing && state.unflushed && state.cuts == 0 && self.shipping.is_idle() {
            // Whoever closes a volume flushes last. Without that its close has failed, and nobody flushes any more.
            return Err(ReplicaError::VolumeFailed);
        }
        if state.cuts == 0 && !(ends && self.shipping.is_idle()) {
            return Ok(false);
        }
        let since = self.since.unwrap_or(now);
        let due = now >= self.due(since);
        if !due && state.queued < self.settings.unit_bytes && !self.closing && !state.failed {
            return Ok(false);
        }
        let merge = self.take_cuts(self.settings.unit_bytes);
        let rest = self.tap.state();
        self.since = (rest.cuts > 0).then_some(now);
        let closed = ends && rest.cuts == 0 && !rest.unflushed;
        if merge.blocks().is_empty() && !closed {
            // Flushes that covered nothing count with what was made before them.
            self.made = self.made.max(merge.flush.unwrap_or(0));
            match self.shipping.is_idle() {
                true => {
                    self.flush = self.made;
                    self.tap.count(self.flush);
                }
                false => self.shipping.covers(self.made),
            }
            return Ok(rest.cuts > 0);
        }
        let closed = if closed { Flags::CLOSED } else { Flags::default() };
        self.ship(now, since, merge, Flags::CONSISTENT.with(closed));
        Ok(closed == Flags::default())
    }

    fn take_cuts(&self, bytes: usize) -> Merge {
        let mut merge = Merge::default();
        self.tap.take_cuts(bytes).into_iter().for_each(|cut| merge.add(cut));
        merge
    }

    fn read_on(&mut self, now: u64, state: TapState) -> Result<bool, ReplicaError> {
        if state.dirty <= self.settings.rest_blocks {
            self.tap.keep();
            self.catch_up = Some(CatchUp::Draining);
            return Ok(true);
        }
        self.catch_up = Some(CatchUp::Reading);
        let (mut merge, mut read) = (Merge::default(), 0);
        for window in 0..WINDOWS_MAX {
            let room = self.settings.read_blocks - merge.blocks().len() as u64;
            let runs = self.tap.take_dirty(room);
            if runs.is_empty() && window == 0 {
                // All that is left is on its way. The engine waits for its writes, or this does.
                self.tap.below().poll();
                return Ok(self.tap.is_drained());
            }
            let is_last = runs.is_empty();
            for run in runs {
                // Somebody may have written what an earlier part has brought, and given it the content that is known.
                merge.forget(run.clone());
                read += self.read(run, &mut merge)?;
            }
            // Parts of the volume of which little has content share a unit: a restore asks for fewer objects.
            let parts = self.settings.read_blocks;
            let is_enough = read >= 4 * parts || merge.blocks().len() as u64 > parts / 2;
            if is_last || is_enough || self.tap.state().dirty <= self.settings.rest_blocks {
                break;
            }
        }
        if !merge.blocks().is_empty() {
            self.ship(now, now, merge, Flags::default());
        }
        Ok(true)
    }

    fn read_rest(&mut self, now: u64) -> Result<bool, ReplicaError> {
        if !self.tap.is_drained() {
            // The engine waits for its writes, or this does.
            self.tap.below().poll();
            self.catch_up = Some(CatchUp::Draining);
            return Ok(self.tap.is_drained());
        }
        let mut rest = Merge::default();
        for run in self.tap.take_dirty(u64::MAX) {
            self.read(run, &mut rest)?;
        }
        let behind = self.tap.flushes();
        self.catch_up = Some(CatchUp::Ending { rest, behind, since: now });
        Ok(true)
    }

    fn end_catch_up(
        &mut self,
        now: u64,
        state: TapState,
        rest: Merge,
        behind: u64,
        since: u64,
    ) -> Result<bool, ReplicaError> {
        if !state.keeps {
            // The memory was full once more. What was read is shipped as it is.
            self.catch_up = Some(CatchUp::Reading);
            if !rest.blocks().is_empty() {
                self.ship(now, since, rest, Flags::default());
            }
            return Ok(true);
        }
        if state.newest <= behind {
            // Nobody may flush for long.
            if self.closing || now.saturating_sub(since) >= self.settings.interval {
                self.tap.flush_below()?;
            }
            self.catch_up = Some(CatchUp::Ending { rest, behind, since });
            return Ok(self.tap.state().newest > behind);
        }
        let mut merge = self.take_cuts(usize::MAX);
        merge.underlay(rest);
        self.since = None;
        self.base = false;
        // What is shipped from now on it does not know.
        self.known = None;
        self.phase = Phase::Streaming;
        self.ship(now, since, merge, Flags::CONSISTENT);
        Ok(true)
    }

    /// Reads blocks of the device. In a base what nobody ever wrote is left out: it is restored as zeros. What was
    /// discarded since the base began may be a hole, too, and may be restored as anything. How many were no holes.
    fn read(&self, run: Range<u64>, merge: &mut Merge) -> Result<u64, ReplicaError> {
        let device = self.tap.below();
        if run.contains(&MARK_BLOCK.0) {
            // What the volume says about its replica is true on this machine only.
            let before = self.read(run.start..MARK_BLOCK.0, merge)?;
            return Ok(before + self.read(MARK_BLOCK.0 + 1..run.end, merge)?);
        }
        let (mut at, mut read) = (run.start, 0);
        while at < run.end {
            let hole = device.hole(BlockNo(at)).map_or(run.end..run.end, |hole| hole.start.0..hole.end.0);
            let data_end = hole.start.clamp(at, run.end);
            if at < data_end {
                let blocks = (data_end - at).min(self.settings.read_blocks);
                let reading = device.read_blocks(BlockNo(at), blocks as usize);
                for (block, content) in (at..).zip(reading.into_blocks()?) {
                    if !self.known.as_ref().is_some_and(|known| known.is_content(block, &content)) {
                        merge.read(block, Content::Read(content));
                    }
                }
                at += blocks;
                read += blocks;
                continue;
            }
            let end = hole.end.clamp(at + 1, run.end);
            match &self.known {
                Some(known) => known
                    .other_than_zeros(at..end)
                    .into_iter()
                    .for_each(|block| merge.read(block, Content::Zeros)),
                None if !self.base => (at..end).for_each(|block| merge.read(block, Content::Zeros)),
                None => {}
            }
            at = end;
        }
        Ok(read)
    }

    fn ship(&mut self, now: u64, since: u64, merge: Merge, flags: Flags) {
        self.shipped = Some(now);
        self.observed.note(&merge);
        if let Some(known) = &mut self.known {
            merge.blocks().keys().for_each(|block| known.replaced.insert(*block..*block + 1));
        }
        let flags = if std::mem::take(&mut self.begins_base) { flags.with(Flags::BASE) } else { flags };
        let Observed { epoch, generation, lsn, .. } = self.observed;
        let header = UnitHeader {
            flags,
            uuid: self.uuid,
            claim: self.claim,
            number: 0,
            predecessor: 0,
            epoch,
            generation,
            lsn,
            cuts: merge.cuts,
            time: now.saturating_add(self.epoch_offset),
            blocks: self.blocks,
        };
        let flush = flags.has(Flags::CONSISTENT).then(|| {
            self.made = self.made.max(merge.flush.unwrap_or(0));
            self.made
        });
        let unit = Unit { number: 0, flush, since, bytes: 0, closed: flags.has(Flags::CLOSED) };
        self.shipping.ship(unit, |number, predecessor| {
            encode(&UnitHeader { number, predecessor, ..header }, merge.blocks())
        });
    }
}

impl Observed {
    /// Reads off the blocks which session they belong to, and how far its log has come. For people: a block that says
    /// something else than it should makes a wrong figure, and nothing else.
    fn note(&mut self, merge: &Merge) {
        for slot in SUPERBLOCK_SLOTS {
            let bytes = merge.blocks().get(&slot.0).and_then(Content::bytes);
            let Some(Ok(superblock)) = bytes.map(|bytes| Superblock::decode(bytes, slot, u64::MAX)) else {
                continue;
            };
            if superblock.generation.0 >= self.generation {
                self.epoch = superblock.epoch;
                self.generation = superblock.generation.0;
                self.volume = superblock.volume_id();
                let start = superblock.layout.journal_start.0;
                self.ring = (start, start + superblock.layout.journal_blocks);
                self.lsn = self.lsn.max(superblock.checkpoint_lsn.0);
            }
        }
        let (start, end) = self.ring;
        if start < JOURNAL_START.0 {
            return;
        }
        for (block, content) in merge.blocks().range(start..end) {
            let info = content.bytes().map(|bytes| record::peek(bytes, BlockNo(*block), self.volume));
            if let Some(Ok(info)) = info
                && info.epoch == self.epoch
            {
                self.lsn = self.lsn.max(info.last_lsn().0);
            }
        }
    }
}
