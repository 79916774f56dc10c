//! [`Restore`]: from a replica to an image.
//!
//! Where packs end is known from the manifest; behind the last pack in front of the target, units are looked at from
//! the newest one backwards, until one is found that a restore may end with. From there on outlines (header and index)
//! are read down to a base. Then each block's newest content is known, and only frames that hold some of it are
//! fetched. What comes is handed out as writes, for a device of zeros.

use crate::chain::{Contents, Key, Link, Position, search_of};
use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::names::{Names, newest};
use crate::newest::{Fetch, Newest};
use crate::opening::{decode, unexpected};
use crate::outlines::{Outlines, Piece};
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use crate::search::EndSearch;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::BlockNo;
use syncline_format::replica::{FOOTER_BYTES, Flags, Manifest, UnitHeader};

/// Requests for frames under way, at most: each brings up to a unit's content.
const FRAMES_IN_FLIGHT_MAX: usize = 16;
/// Requests for outlines under way, at most. They are small, so what they cost is how long the store takes to answer,
/// and there are two for each unit.
const OUTLINES_IN_FLIGHT_MAX: usize = 128;

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
    /// Units and packs that it is made of.
    pub units: usize,
    /// Blocks that are written.
    pub blocks: u64,
    /// Bytes that are fetched for them.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    /// The newest manifest's number is wanted; one before it, if told, is not there any more.
    Manifests(Option<u64>),
    Manifest(u64),
    /// Is this unit there?
    Exists(u64),
    /// So many units were found: is there a newer manifest by now?
    Still(u64),
    Outline(Piece),
    Frames(usize),
    /// An object is missing: is there a newer manifest?
    Again,
}

/// What is known of the end.
enum Stage {
    /// Neither manifest nor end are known.
    Looking,
    /// Units that a restore may end with, from the newest on; behind them the position of a pack.
    Seeking(Option<Position>),
    /// The chain of the end.
    Chained(Vec<Link>),
    /// Frames are fetched.
    Fetching,
}

/// Objects whose outlines are wanted, in this order.
#[derive(Default)]
struct Wanted {
    keys: Vec<Key>,
    /// Those in front of it were asked for.
    asked: usize,
    /// Those in front of it were looked at.
    looked: usize,
}

impl Wanted {
    fn new(keys: Vec<Key>) -> Wanted {
        Wanted { keys, ..Wanted::default() }
    }
}

/// A restore under way.
pub struct Restore {
    uuid: [u8; 16],
    names: Names,
    target: Target,
    exchange: Exchange<Purpose>,
    manifest: Option<Manifest>,
    search: EndSearch,
    contents: Option<Contents>,
    stage: Stage,
    wanted: Wanted,
    outlines: Outlines,
    newest: Newest,
    fetches: Vec<Fetch>,
    next_fetch: usize,
    /// So many units of the manifest's own claim were known to be there when outlines were asked for ahead.
    foreseen: Option<u64>,
    /// What was found missing.
    missing: String,
    /// Only the plan is wanted, and where everything is.
    plans_only: bool,
    /// The end that is found here is held against one that was found behind a claim.
    is_confirmed_elsewhere: bool,
    plan: Option<Plan>,
    writes: Vec<(BlockNo, Arc<Buffer>)>,
    outcome: Option<Result<(), ReplicaError>>,
}

impl Restore {
    pub fn new(uuid: [u8; 16], target: Target) -> Restore {
        let names = Names::new(uuid);
        let mut exchange = Exchange::default();
        exchange.ask(Purpose::Manifests(None), Operation::List { prefix: names.manifests() });
        Restore {
            uuid,
            names,
            target,
            exchange,
            manifest: None,
            search: EndSearch::default(),
            contents: None,
            stage: Stage::Looking,
            wanted: Wanted::default(),
            outlines: Outlines::new(uuid),
            newest: Newest::default(),
            fetches: Vec::new(),
            next_fetch: 0,
            foreseen: None,
            missing: String::new(),
            plans_only: false,
            is_confirmed_elsewhere: false,
            plan: None,
            writes: Vec::new(),
            outcome: None,
        }
    }

    /// One that ends when it knows where everything is, and fetches nothing ([`Restore::into_newest`]).
    pub fn planning(uuid: [u8; 16], target: Target) -> Restore {
        Restore { plans_only: true, ..Restore::new(uuid, target) }
    }

    /// The same for whoever claims the replica meanwhile, and takes the plan only if its end is the last unit that was
    /// found behind the claim. So it need not be asked whether there is a newer manifest by then: the claim's own would
    /// be one.
    pub fn planning_beside_claim(uuid: [u8; 16]) -> Restore {
        Restore { is_confirmed_elsewhere: true, ..Restore::planning(uuid, Target::Newest) }
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

    /// Claim of the manifest that it goes by, once that is known.
    pub fn owner(&self) -> Option<u64> {
        self.manifest.as_ref().map(|manifest| manifest.claim)
    }

    /// Number of the manifest that it goes by, once that is known.
    pub fn manifest(&self) -> Option<u64> {
        self.manifest.as_ref().map(|manifest| manifest.number)
    }

    /// Where the content of each block is.
    pub fn into_newest(self) -> Newest {
        self.newest
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
        let Some(manifest) = &self.manifest else { return };
        let under_way = self.exchange.purposes().count();
        if let Stage::Fetching = self.stage {
            let mut room = FRAMES_IN_FLIGHT_MAX.saturating_sub(under_way);
            while let Some(fetch) = self.fetches.get(self.next_fetch).filter(|_| room > 0) {
                self.exchange.ask(Purpose::Frames(self.next_fetch), self.newest.request(fetch));
                self.next_fetch += 1;
                room -= 1;
            }
            return;
        }
        let mut room = OUTLINES_IN_FLIGHT_MAX.saturating_sub(under_way);
        while let Some(key) = self.wanted.keys.get(self.wanted.asked).filter(|_| room > 0) {
            self.wanted.asked += 1;
            if let Some((piece, operation)) = self.outlines.ask(*key, manifest) {
                self.exchange.ask(Purpose::Outline(piece), operation);
                room -= 1;
            }
        }
    }

    fn advance(
        &mut self,
        purpose: Purpose,
        operation: &Operation,
        result: Result<Answer, StoreError>,
    ) -> Result<(), ReplicaError> {
        match (purpose, result) {
            (Purpose::Manifests(gone), Ok(Answer::Names(names))) => {
                let number = newest(&names);
                match gone {
                    None if number == 0 => return Err(ReplicaError::Empty),
                    Some(gone) if number <= gone => {
                        return Err(ReplicaError::Missing { name: self.names.manifest(gone) });
                    }
                    _ => self.ask_for_manifest(number),
                }
                Ok(())
            }
            // Whoever stands still between the list and this for longer than the time of grace finds it deleted.
            // Nothing was read by then, so a newer one does as well.
            (Purpose::Manifest(number), Err(StoreError::Missing)) => {
                let list = Operation::List { prefix: self.names.manifests() };
                self.exchange.ask(Purpose::Manifests(Some(number)), list);
                Ok(())
            }
            (Purpose::Manifest(_), Ok(Answer::Bytes { bytes, .. })) => {
                let manifest = decode(operation, Manifest::decode(&bytes))?;
                if manifest.uuid != self.uuid {
                    return Err(ReplicaError::ForeignVolume { name: operation.name().to_owned() });
                }
                self.foreseen = None;
                self.search = search_of(&manifest);
                self.manifest = Some(manifest);
                self.look_for_end()
            }
            (Purpose::Exists(unit), Ok(_)) => self.looked(unit, true),
            (Purpose::Exists(unit), Err(StoreError::Missing)) => self.looked(unit, false),
            (Purpose::Still(end), Ok(Answer::Names(names))) => {
                let Some(manifest) = self.manifest.clone() else { return Ok(()) };
                let number = newest(&names);
                if number <= manifest.number {
                    return self.end_known(manifest, end);
                }
                // Packs have other numbers there. Units are what they were.
                let is_unit = |purpose: &Purpose| {
                    matches!(purpose, Purpose::Outline(Piece::Tail(Key::Unit(_)) | Piece::Head(Key::Unit(_))))
                };
                self.exchange.keep(is_unit);
                self.outlines.forget_packs();
                self.wanted = Wanted::default();
                self.ask_for_manifest(number);
                Ok(())
            }
            (Purpose::Outline(piece), Err(StoreError::Missing)) if !self.is_wanted(piece) => {
                // What is there is not known yet. It is asked for again if it is wanted then.
                self.outlines.forget(piece);
                Ok(())
            }
            (Purpose::Outline(piece), Ok(Answer::Bytes { bytes, length })) => {
                let Some(manifest) = &self.manifest else { return Ok(()) };
                match self.outlines.answer(piece, bytes, length, manifest)? {
                    Some((piece, next)) => self.exchange.ask(Purpose::Outline(piece), next),
                    None => self.seek()?,
                }
                Ok(())
            }
            (Purpose::Frames(fetch), Ok(Answer::Bytes { bytes, .. })) => self.frames(fetch, &bytes),
            (Purpose::Again, Ok(Answer::Names(names))) => {
                let name = self.missing.clone();
                let pruned = self.manifest.as_ref().is_some_and(|known| known.number < newest(&names));
                Err(if pruned { ReplicaError::Pruned { name } } else { ReplicaError::Missing { name } })
            }
            (Purpose::Outline(_) | Purpose::Frames(_), Err(StoreError::Missing)) => {
                self.missing = operation.name().to_owned();
                self.exchange.clear();
                self.exchange.ask(Purpose::Again, Operation::List { prefix: self.names.manifests() });
                Ok(())
            }
            (_, Err(StoreError::Missing)) => Err(ReplicaError::Missing { name: operation.name().to_owned() }),
            (_, Err(error)) => Err(error.into()),
            (_, Ok(_)) => Err(unexpected(operation)),
        }
    }

    fn ask_for_manifest(&mut self, number: u64) {
        let (name, part) = (self.names.manifest(number), Part::All);
        self.exchange.ask(Purpose::Manifest(number), Operation::Get { name, part });
    }

    fn looked(&mut self, unit: u64, is_there: bool) -> Result<(), ReplicaError> {
        self.search.answer(unit, is_there);
        self.look_for_end()
    }

    /// Looks for the end of the manifest's claim.
    fn look_for_end(&mut self) -> Result<(), ReplicaError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        for unit in self.search.looks() {
            let (name, part) = (self.names.unit(manifest.claim, unit), Part::Last(FOOTER_BYTES as u64));
            self.exchange.ask(Purpose::Exists(unit), Operation::Get { name, part });
        }
        self.foresee();
        if let Some(end) = self.search.end() {
            if self.is_confirmed_elsewhere {
                let Some(manifest) = self.manifest.clone() else { return Ok(()) };
                return self.end_known(manifest, end);
            }
            // While this stood still, what the manifest keeps may have been pruned in front of it. Then the end that
            // was found is none.
            self.exchange.ask(Purpose::Still(end), Operation::List { prefix: self.names.manifests() });
        }
        Ok(())
    }

    /// Whether it is known that an object has to be there.
    fn is_wanted(&self, piece: Piece) -> bool {
        let (Piece::Tail(key) | Piece::Head(key)) = piece;
        self.contents.is_some() && self.wanted.keys.contains(&key)
    }

    /// Asks for outlines ahead of the search: what ends with a unit that is there is needed by whatever ends behind it,
    /// unless a base lies in between.
    fn foresee(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        let there = self.search.end().unwrap_or(self.search.found());
        if self.foreseen.replace(there) == Some(there) {
            return;
        }
        // What is wrong with it is told when the end is known.
        let Ok(contents) = Contents::of(manifest.clone(), &self.names, there) else { return };
        let end = match (contents.last(), self.target) {
            (Some(last), Target::Newest) => last,
            (Some(last), Target::Position(claim, unit)) => last.min((claim, unit)),
            _ => return,
        };
        self.wanted = Wanted::new(contents.chain(end).iter().flat_map(Link::keys).collect());
    }

    /// All that there is is known.
    fn end_known(&mut self, manifest: Manifest, end: u64) -> Result<(), ReplicaError> {
        let contents = Contents::of(manifest, &self.names, end)?;
        let last = contents.last().ok_or(ReplicaError::Empty)?;
        let (mut units, pack) = self.candidates(&contents, last);
        units.reverse();
        self.contents = Some(contents);
        self.wanted = Wanted::new(units.into_iter().map(Key::Unit).collect());
        self.stage = Stage::Seeking(pack);
        self.seek()
    }

    /// Units that the restore may end with, ascending, and the last position of a pack in front of them.
    fn candidates(&self, contents: &Contents, last: Position) -> (Vec<Position>, Option<Position>) {
        let groups = &contents.groups;
        let fits = |group: &crate::chain::Group| match self.target {
            Target::Newest => true,
            Target::Position(claim, unit) => group.last <= (claim, unit),
            Target::Time(time) => group.time <= time,
            Target::Lsn(lsn) => group.lsn <= lsn,
        };
        let pack = groups.iter().rev().find(|group| fits(group)).map(|group| group.last);
        let upto = match self.target {
            Target::Newest => last,
            Target::Position(claim, unit) => last.min((claim, unit)),
            // The first pack behind that is too new already.
            Target::Time(_) | Target::Lsn(_) => {
                let next =
                    groups.iter().map(|group| group.last).find(|end| pack.is_none_or(|pack| *end > pack));
                next.unwrap_or(last)
            }
        };
        (contents.units(pack, upto), pack)
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

    /// Goes on with the outlines that are there.
    fn seek(&mut self) -> Result<(), ReplicaError> {
        let Some(contents) = &self.contents else { return Ok(()) };
        if let Stage::Seeking(pack) = self.stage {
            let mut end = None;
            while let (None, Some(key)) = (end, self.wanted.keys.get(self.wanted.looked)) {
                let Some(outline) = self.outlines.get(*key) else { return Ok(()) };
                match outline {
                    Ok(outline) if self.is_end(&outline.header) => {
                        end = Some((outline.header.claim, outline.header.number));
                    }
                    Ok(_) => {}
                    // What is damaged may be left out where a state in front of it was asked for.
                    Err(_) if matches!(self.target, Target::Time(_) | Target::Lsn(_)) => {}
                    Err(error) => return Err(error.clone()),
                }
                self.wanted.looked += 1;
            }
            let chain = contents.chain(end.or(pack).ok_or(ReplicaError::NothingBefore)?);
            self.wanted = Wanted::new(chain.iter().flat_map(Link::keys).collect());
            self.stage = Stage::Chained(chain);
        }
        if let Stage::Chained(chain) = &self.stage {
            while let Some(key) = self.wanted.keys.get(self.wanted.looked) {
                let Some(outline) = self.outlines.get(*key) else { return Ok(()) };
                // Behind a base nothing is needed.
                let base = outline.as_ref().is_ok_and(|outline| outline.header.flags.has(Flags::BASE));
                if base && matches!(key, Key::Unit(_)) {
                    break;
                }
                self.wanted.looked += 1;
            }
            let Some(laid) = self.outlines.lay(chain, contents)? else { return Ok(()) };
            if !laid.base {
                return Err(ReplicaError::NothingBefore);
            }
            let end = chain.first().and_then(|link| link.keys().first().copied());
            let Some(Ok(last)) = end.and_then(|end| self.outlines.get(end)) else { return Ok(()) };
            let end = last.header;
            let (fetches, bytes) = laid.newest.fetches(0..end.blocks);
            self.plan = Some(Plan { end, units: laid.links, blocks: laid.newest.data_blocks(), bytes });
            self.newest = laid.newest;
            self.fetches = if self.plans_only { Vec::new() } else { fetches };
            self.stage = Stage::Fetching;
            self.exchange.clear();
            self.end_if_done();
        }
        Ok(())
    }

    fn frames(&mut self, number: usize, bytes: &[u8]) -> Result<(), ReplicaError> {
        for (block, data) in self.newest.open(&self.fetches[number], bytes)? {
            self.writes.push((BlockNo(block), Arc::new(Buffer::from_bytes(&data))));
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
