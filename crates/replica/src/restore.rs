//! [`Restore`]: from a replica to an image.
//!
//! Outlines of units (header and index) are read from the newest one backwards, until a base is found in front of the
//! unit that the restore ends with. Then each block's newest content is known, and only frames that hold some of it are
//! fetched. What comes is handed out as writes, for a device of zeros.

use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::names::{Names, newest};
use crate::opening::{decode, unexpected};
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use crate::runs::RunSet;
use crate::search::{EndSearch, Next};
use crate::unit::{Outline, open_frame};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::replica::{FOOTER_BYTES, FRAME_BLOCKS, Flags, Manifest, UNIT_HEADER_BYTES, UnitHeader};
use syncline_format::{BLOCK_BYTES, BlockNo};

/// Requests under way, at most.
const IN_FLIGHT_MAX: usize = 16;
/// What is fetched of a unit's end at first: most indexes are shorter.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of frames that one request fetches, about.
const FETCH_BYTES: u64 = 4 << 20;

/// Where a restore ends: at the newest consistent unit that is not behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Newest,
    /// Claim and unit.
    Position(u64, u64),
    /// Nanoseconds since 1970, by the writer's clock.
    Time(u64),
    /// Log sequence number.
    Lsn(u64),
}

/// What is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// The unit that it ends with.
    pub end: UnitHeader,
    /// Units that it looks at.
    pub units: usize,
    /// Blocks that are written.
    pub blocks: u64,
    /// Bytes that are fetched for them.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Manifests,
    Manifest,
    Exists,
    Tail(usize),
    Head(usize),
    Frames(usize),
}

/// Data blocks of one unit that are newest: first block and count by the number of the first data block.
type Pieces = BTreeMap<usize, (u64, usize)>;

struct Fetch {
    unit: usize,
    frames: Range<usize>,
}

/// A restore under way.
pub struct Restore {
    uuid: [u8; 16],
    names: Names,
    target: Target,
    exchange: Exchange<Purpose>,
    manifest: Option<Manifest>,
    search: EndSearch,
    /// Positions of all units that may be needed, ascending.
    units: Vec<(u64, u64)>,
    outlines: BTreeMap<usize, Result<Outline, ReplicaError>>,
    /// Ends of units whose heads are on their way.
    tails: BTreeMap<usize, (Vec<u8>, u64)>,
    /// The next unit, downwards, whose outline is to be read.
    next_outline: usize,
    pieces: BTreeMap<usize, Pieces>,
    fetches: Vec<Fetch>,
    next_fetch: usize,
    plan: Option<Plan>,
    writes: Vec<(BlockNo, Arc<Buffer>)>,
    outcome: Option<Result<(), ReplicaError>>,
}

impl Restore {
    pub fn new(uuid: [u8; 16], target: Target) -> Restore {
        let names = Names::new(uuid);
        let mut exchange = Exchange::default();
        exchange.ask(Purpose::Manifests, Operation::List { prefix: names.manifests() });
        Restore {
            uuid,
            names,
            target,
            exchange,
            manifest: None,
            search: EndSearch::default(),
            units: Vec::new(),
            outlines: BTreeMap::new(),
            tails: BTreeMap::new(),
            next_outline: 0,
            pieces: BTreeMap::new(),
            fetches: Vec::new(),
            next_fetch: 0,
            plan: None,
            writes: Vec::new(),
            outcome: None,
        }
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        if self.outcome.is_none() {
            self.ask_more();
        }
        self.exchange.poll(now)
    }

    /// When to poll again although nothing is answered.
    pub fn next_due(&self) -> Option<u64> {
        self.exchange.next_due()
    }

    /// Why the last request has to be repeated.
    pub fn trouble(&self) -> Option<&StoreError> {
        self.exchange.trouble()
    }

    /// What will be restored, once that is known.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Blocks to be written, each once.
    pub fn take_writes(&mut self) -> Vec<(BlockNo, Arc<Buffer>)> {
        std::mem::take(&mut self.writes)
    }

    /// How it ended, once it has; all writes have been handed out by then or are in the next
    /// [`Restore::take_writes`].
    pub fn outcome(&self) -> Option<&Result<(), ReplicaError>> {
        self.outcome.as_ref()
    }

    pub fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer, StoreError>) {
        let Some((purpose, operation, result)) = self.exchange.answer(id, now, result) else { return };
        if let Err(error) = self.advance(purpose, &operation, result) {
            self.exchange.clear();
            self.outcome = Some(Err(error));
        }
    }

    fn ask_more(&mut self) {
        while self.exchange.purposes().count() < IN_FLIGHT_MAX {
            if self.plan.is_some() {
                let Some(fetch) = self.fetches.get(self.next_fetch) else { break };
                let Some(Ok(outline)) = self.outlines.get(&fetch.unit) else { break };
                let frames = &outline.index.frames[fetch.frames.clone()];
                let start = frames[0].offset;
                let end = frames.last().map_or(start, |frame| frame.offset + u64::from(frame.stored));
                let part = Part::Range(start, end - start);
                let name = self.name_of(fetch.unit);
                self.exchange.ask(Purpose::Frames(self.next_fetch), Operation::Get { name, part });
                self.next_fetch += 1;
            } else if self.next_outline > 0 {
                self.next_outline -= 1;
                let name = self.name_of(self.next_outline);
                let part = Part::Last(TAIL_BYTES);
                self.exchange.ask(Purpose::Tail(self.next_outline), Operation::Get { name, part });
            } else {
                break;
            }
        }
    }

    fn name_of(&self, unit: usize) -> String {
        let (claim, number) = self.units[unit];
        self.names.unit(claim, number)
    }

    fn advance(
        &mut self,
        purpose: Purpose,
        operation: &Operation,
        result: Result<Answer, StoreError>,
    ) -> Result<(), ReplicaError> {
        match (purpose, result) {
            (Purpose::Manifests, Ok(Answer::Names(names))) => {
                let number = newest(&names);
                if number == 0 {
                    return Err(ReplicaError::Empty);
                }
                let (name, part) = (self.names.manifest(number), Part::All);
                self.exchange.ask(Purpose::Manifest, Operation::Get { name, part });
                Ok(())
            }
            (Purpose::Manifest, Ok(Answer::Bytes { bytes, .. })) => {
                let manifest = decode(operation, Manifest::decode(&bytes))?;
                if manifest.uuid != self.uuid {
                    return Err(ReplicaError::ForeignVolume { name: operation.name().to_owned() });
                }
                self.manifest = Some(manifest);
                self.look_for_end()
            }
            (Purpose::Exists, Ok(_)) => self.looked(true),
            (Purpose::Exists, Err(StoreError::Missing)) => self.looked(false),
            (Purpose::Tail(unit), Ok(Answer::Bytes { bytes, length })) => self.tail(unit, bytes, length),
            (Purpose::Head(unit), Ok(Answer::Bytes { bytes, .. })) => match self.tails.remove(&unit) {
                Some((tail, length)) => self.outline(unit, &bytes, &tail, length),
                None => Err(unexpected(operation)),
            },
            (Purpose::Frames(fetch), Ok(Answer::Bytes { bytes, .. })) => self.frames(fetch, &bytes),
            (_, Err(StoreError::Missing)) => Err(ReplicaError::Missing { name: operation.name().to_owned() }),
            (_, Err(error)) => Err(error.into()),
            (_, Ok(_)) => Err(unexpected(operation)),
        }
    }

    fn looked(&mut self, is_there: bool) -> Result<(), ReplicaError> {
        self.search.answer(is_there);
        self.look_for_end()
    }

    /// Looks for the end of the manifest's claim; then all units are known.
    fn look_for_end(&mut self) -> Result<(), ReplicaError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        let end = match self.search.next() {
            Next::Unit(unit) => {
                let (name, part) = (self.names.unit(manifest.claim, unit), Part::Last(FOOTER_BYTES as u64));
                self.exchange.ask(Purpose::Exists, Operation::Get { name, part });
                return Ok(());
            }
            Next::End(end) => end,
        };
        let ends = manifest.ends.iter().map(|end| end.units).chain([end]);
        let units = (1..).zip(ends).flat_map(|(claim, units)| (0..units).map(move |unit| (claim, unit)));
        self.units = match self.target {
            Target::Position(claim, unit) => units.take_while(|at| *at <= (claim, unit)).collect(),
            _ => units.collect(),
        };
        self.next_outline = self.units.len();
        if self.units.is_empty() { Err(ReplicaError::Empty) } else { Ok(()) }
    }

    fn tail(&mut self, unit: usize, bytes: Vec<u8>, length: u64) -> Result<(), ReplicaError> {
        if bytes.len() as u64 == length {
            let head = bytes.get(..UNIT_HEADER_BYTES).unwrap_or(&bytes).to_vec();
            return self.outline(unit, &head, &bytes, length);
        }
        self.tails.insert(unit, (bytes, length));
        let (name, part) = (self.name_of(unit), Part::Range(0, UNIT_HEADER_BYTES as u64));
        self.exchange.ask(Purpose::Head(unit), Operation::Get { name, part });
        Ok(())
    }

    fn outline(&mut self, unit: usize, head: &[u8], tail: &[u8], length: u64) -> Result<(), ReplicaError> {
        let name = self.name_of(unit);
        let outline = match Outline::decode(head, tail, length) {
            Ok(Ok(outline)) if outline.header.uuid != self.uuid => {
                return Err(ReplicaError::ForeignVolume { name });
            }
            Ok(Ok(outline)) if (outline.header.claim, outline.header.number) != self.units[unit] => {
                Err(ReplicaError::Inconsistent { name, what: "it says that it is another unit" })
            }
            Ok(Ok(outline)) => Ok(outline),
            Ok(Err(want)) => {
                let part = Part::Last(want);
                self.exchange.ask(Purpose::Tail(unit), Operation::Get { name, part });
                return Ok(());
            }
            Err(error) => Err(ReplicaError::Damaged { name, error }),
        };
        self.outlines.insert(unit, outline);
        self.make_plan()
    }

    /// Whether a restore may end with this unit.
    fn is_end(&self, header: &UnitHeader) -> bool {
        header.flags.has(Flags::CONSISTENT)
            && match self.target {
                Target::Newest | Target::Position(..) => true,
                Target::Time(time) => header.time <= time,
                Target::Lsn(lsn) => header.lsn <= lsn,
            }
    }

    /// Makes the plan if all outlines are there that it needs: from the end down to a base.
    fn make_plan(&mut self) -> Result<(), ReplicaError> {
        let mut end = None;
        for unit in (0..self.units.len()).rev() {
            let Some(outline) = self.outlines.get(&unit) else { return Ok(()) };
            let outline = match outline {
                Ok(outline) => outline,
                // What is damaged may be left out where a state in front of it was asked for.
                Err(_) if end.is_none() && matches!(self.target, Target::Time(_) | Target::Lsn(_)) => {
                    continue;
                }
                Err(error) => return Err(error.clone()),
            };
            if end.is_none() && self.is_end(&outline.header) {
                end = Some(unit);
            }
            if let (Some(end), true) = (end, outline.header.flags.has(Flags::BASE)) {
                return self.plan_from(unit, end);
            }
        }
        Err(ReplicaError::NothingBefore)
    }

    fn plan_from(&mut self, base: usize, end: usize) -> Result<(), ReplicaError> {
        let mut covered = RunSet::default();
        let mut newer: Option<&Outline> = None;
        let (mut blocks, mut pieces) = (0, BTreeMap::new());
        for unit in (base..=end).rev() {
            let Some(Ok(outline)) = self.outlines.get(&unit) else { return Ok(()) };
            if newer.is_some_and(|newer| newer.header.predecessor != outline.identity) {
                let what = "the unit behind it names another one as its predecessor";
                return Err(ReplicaError::Inconsistent { name: self.name_of(unit), what });
            }
            newer = Some(outline);
            let mut mine = Pieces::new();
            for (first, run) in outline.index.data_runs() {
                for missing in covered.missing(run.first.0..run.end()) {
                    let count = (missing.end - missing.start) as usize;
                    let at = first + (missing.start - run.first.0) as usize;
                    blocks += count as u64;
                    mine.insert(at, (missing.start, count));
                }
            }
            // Zeros need no write, but they hide what is older.
            outline.index.runs.iter().for_each(|run| covered.insert(run.first.0..run.end()));
            pieces.insert(unit, mine);
        }
        let Some(Ok(last)) = self.outlines.get(&end) else { return Ok(()) };
        let end_header = last.header;
        self.pieces = pieces;
        let bytes = self.plan_fetches();
        self.next_outline = 0;
        self.exchange.clear();
        self.plan = Some(Plan { end: end_header, units: end - base + 1, blocks, bytes });
        self.end_if_done();
        Ok(())
    }

    /// Frames that hold something, neighbours together; how many bytes they are.
    fn plan_fetches(&mut self) -> u64 {
        let mut bytes = 0;
        for (&unit, pieces) in &self.pieces {
            let Some(Ok(outline)) = self.outlines.get(&unit) else { continue };
            let frames = pieces
                .iter()
                .flat_map(|(at, (_, count))| at / FRAME_BLOCKS..=(at + count - 1) / FRAME_BLOCKS);
            let frames: BTreeSet<usize> = frames.collect();
            let mut length = 0;
            for frame in frames {
                let stored = u64::from(outline.index.frames[frame].stored);
                bytes += stored;
                length += stored;
                match self.fetches.last_mut() {
                    Some(fetch)
                        if fetch.unit == unit && fetch.frames.end == frame && length <= FETCH_BYTES =>
                    {
                        fetch.frames.end += 1;
                    }
                    _ => {
                        self.fetches.push(Fetch { unit, frames: frame..frame + 1 });
                        length = stored;
                    }
                }
            }
        }
        bytes
    }

    fn frames(&mut self, number: usize, bytes: &[u8]) -> Result<(), ReplicaError> {
        let Fetch { unit, frames } = &self.fetches[number];
        let name = self.name_of(*unit);
        let Some(Ok(outline)) = self.outlines.get(unit) else { return Ok(()) };
        let mut at = 0;
        for number in frames.clone() {
            let frame = &outline.index.frames[number];
            let stored = bytes.get(at..at + frame.stored as usize).unwrap_or(&[]);
            let content = open_frame(&name, frame, stored)?;
            at += frame.stored as usize;
            let first = number * FRAME_BLOCKS;
            let last = first + content.len() / BLOCK_BYTES;
            let pieces = &self.pieces[unit];
            let before = pieces.range(..first).next_back().map(|(at, piece)| (*at, *piece));
            let inside = pieces.range(first..last).map(|(at, piece)| (*at, *piece));
            for (piece_at, (block, count)) in before.into_iter().chain(inside) {
                let (from, to) = (piece_at.max(first), (piece_at + count).min(last));
                if from < to {
                    let data = &content[(from - first) * BLOCK_BYTES..(to - first) * BLOCK_BYTES];
                    let block = BlockNo(block + (from - piece_at) as u64);
                    self.writes.push((block, Arc::new(Buffer::from_bytes(data))));
                }
            }
        }
        self.end_if_done();
        Ok(())
    }

    fn end_if_done(&mut self) {
        if self.next_fetch == self.fetches.len() && self.exchange.is_idle() {
            self.outcome = Some(Ok(()));
        }
    }
}
