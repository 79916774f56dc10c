//! [`Compaction`]: units become packs, packs become larger ones, and what is old leaves the manifest.
//!
//! One compaction reads the newest manifest, makes the packs that are due, and creates the next manifest, which names
//! them and leaves out what retention does not keep. Nothing is deleted here: see [`crate::prune`].
//!
//! Whoever compacts acts for the holder of that manifest's claim, as the holder may: the manifest is created over the
//! one that was read (P6). If its name is taken by then, nothing was changed. What was found of the claim's units
//! belongs to the replica: whoever takes over reads that manifest, and finds the same (P2). A pack's name tells the
//! manifest that it was made for, so what is left over of a compaction that died is known for what it is.

use crate::chain::{Contents, Key, Link, Position, search_of};
use crate::clock::Clock;
use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::keep::{BASE_LEVEL, inputs, kept, levels, part_of, weights};
use crate::names::{Names, newest};
use crate::newest::{Fetch, Newest, Place};
use crate::opening::{decode, unexpected};
use crate::outlines::{Outlines, Piece};
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use crate::search::EndSearch;
use crate::unit::Maker;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::BLOCK_BYTES;
use syncline_format::replica::{FOOTER_BYTES, Flags, Keep, Manifest, PACKS_MAX, Pack, RunKind, UnitHeader};

/// Requests under way, at most.
const IN_FLIGHT_MAX: usize = 16;
/// Packs over a base may weigh so many bytes, or half of the base, before another one is made.
const OVER_MIN: u64 = 4 << 20;

/// How it is done.
#[derive(Debug, Clone)]
pub struct How {
    pub uuid: [u8; 16],
    /// A random number.
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// What is kept from now on; nothing: as it was.
    pub keep: Option<Vec<Keep>>,
    /// Seconds that objects stay which no manifest names any more; nothing: as it was.
    pub grace: Option<u64>,
    /// Data blocks of a pack, at most.
    pub pack_blocks: u64,
    /// Units that one compaction looks at, at most.
    pub units_max: usize,
    /// Nothing is put.
    pub dry: bool,
}

impl How {
    pub fn new(uuid: [u8; 16], nonce: u64, time: u64) -> How {
        How { uuid, nonce, time, keep: None, grace: None, pack_blocks: 4096, units_max: 4096, dry: false }
    }
}

/// What a compaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compacted {
    /// The manifest that holds now, or that would.
    pub manifest: Manifest,
    /// It is a new one. Otherwise nothing was due.
    pub published: bool,
    /// Packs that were made, or that would be, and their bytes.
    pub packs: usize,
    pub bytes: u64,
    /// Packs that the manifest names no more.
    pub dropped: usize,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Manifests,
    Manifest,
    /// Is this unit there?
    Exists(u64),
    Outline(Piece),
    Frames(usize),
    Pack,
    Publish,
    /// Whose is the manifest that is there?
    Published,
    /// An object is missing: is there a newer manifest?
    Again,
}

/// Links that become one group, ascending.
#[derive(Debug, Clone)]
struct Job {
    level: u8,
    links: Vec<Link>,
}

/// A group in the making.
struct Making {
    job: Job,
    newest: Newest,
    header: UnitHeader,
    tail: u64,
    predecessor: u64,
    base: bool,
    /// Blocks of the pack that is made now.
    from: u64,
    to: u64,
    fetches: Vec<Fetch>,
    asked: usize,
    left: usize,
    found: BTreeMap<u64, Vec<u8>>,
}

/// A compaction under way.
pub struct Compaction {
    how: How,
    names: Names,
    exchange: Exchange<Purpose>,
    manifest: Option<Manifest>,
    search: EndSearch,
    contents: Option<Contents>,
    outlines: Outlines,
    /// Outlines that are needed next.
    wanted: Vec<Key>,
    /// None before it is known what is due.
    jobs: Option<Vec<Job>>,
    making: Option<Making>,
    made: Vec<Pack>,
    bytes: u64,
    next: Option<Manifest>,
    missing: String,
    clock: Clock,
    outcome: Option<Result<Compacted, ReplicaError>>,
}

impl Compaction {
    pub fn new(how: How) -> Compaction {
        let names = Names::new(how.uuid);
        let mut exchange = Exchange::default();
        exchange.ask(Purpose::Manifests, Operation::List { prefix: names.manifests() });
        Compaction {
            outlines: Outlines::new(how.uuid),
            clock: Clock::new(how.time),
            how,
            names,
            exchange,
            manifest: None,
            search: EndSearch::default(),
            contents: None,
            wanted: Vec::new(),
            jobs: None,
            making: None,
            made: Vec::new(),
            bytes: 0,
            next: None,
            missing: String::new(),
            outcome: None,
        }
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        self.clock.note(now);
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

    /// How it ended, once it has.
    pub fn outcome(&self) -> Option<&Result<Compacted, ReplicaError>> {
        self.outcome.as_ref()
    }

    pub fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer, StoreError>) {
        self.clock.note(now);
        let Some((purpose, operation, result)) = self.exchange.answer(id, now, result) else { return };
        let advanced = self.advance(purpose, &operation, result).and_then(|()| self.go_on());
        if let Err(error) = advanced {
            self.exchange.clear();
            self.outcome = Some(Err(error));
        }
    }

    fn ask_more(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        let mut room = IN_FLIGHT_MAX.saturating_sub(self.exchange.purposes().count());
        while let Some(key) = self.wanted.last().filter(|_| room > 0) {
            if let Some((piece, operation)) = self.outlines.ask(*key, manifest) {
                self.exchange.ask(Purpose::Outline(piece), operation);
                room -= 1;
            }
            self.wanted.pop();
        }
        let Some(making) = &mut self.making else { return };
        while let Some(fetch) = making.fetches.get(making.asked).filter(|_| room > 0) {
            self.exchange.ask(Purpose::Frames(making.asked), making.newest.request(fetch));
            making.asked += 1;
            room -= 1;
        }
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
            }
            (Purpose::Manifest, Ok(Answer::Bytes { bytes, .. })) => {
                let manifest = decode(operation, Manifest::decode(&bytes))?;
                if manifest.uuid != self.how.uuid {
                    return Err(ReplicaError::ForeignVolume { name: operation.name().to_owned() });
                }
                self.search = search_of(&manifest);
                self.manifest = Some(manifest);
                self.look_for_end()?;
            }
            (Purpose::Exists(unit), Ok(_)) => self.looked(unit, true)?,
            (Purpose::Exists(unit), Err(StoreError::Missing)) => self.looked(unit, false)?,
            (Purpose::Outline(piece), Ok(Answer::Bytes { bytes, length })) => {
                let Some(manifest) = &self.manifest else { return Ok(()) };
                if let Some((piece, next)) = self.outlines.answer(piece, bytes, length, manifest)? {
                    self.exchange.ask(Purpose::Outline(piece), next);
                }
            }
            (Purpose::Frames(fetch), Ok(Answer::Bytes { bytes, .. })) => self.frames(fetch, &bytes)?,
            (Purpose::Pack, Ok(_)) => self.put_next()?,
            (Purpose::Publish, Ok(_)) => self.published(),
            (Purpose::Publish, Err(StoreError::Exists)) => {
                let (name, part) = (operation.name().to_owned(), Part::All);
                self.exchange.ask(Purpose::Published, Operation::Get { name, part });
            }
            (Purpose::Published, Ok(Answer::Bytes { bytes, .. })) => {
                let there = decode(operation, Manifest::decode(&bytes))?;
                if self.next.as_ref() != Some(&there) {
                    return Err(ReplicaError::Disturbed);
                }
                self.published();
            }
            // It was followed by others, the time of grace ago.
            (Purpose::Published, Err(StoreError::Missing)) => return Err(ReplicaError::Disturbed),
            (Purpose::Again, Ok(Answer::Names(names))) => {
                let name = self.missing.clone();
                let known = self.manifest.as_ref().map(|known| known.number);
                let changed = known.or(Names::number_of(&name)).is_some_and(|known| known < newest(&names));
                return Err(if changed { ReplicaError::Disturbed } else { ReplicaError::Missing { name } });
            }
            (Purpose::Manifest | Purpose::Outline(_) | Purpose::Frames(_), Err(StoreError::Missing)) => {
                self.missing = operation.name().to_owned();
                self.exchange.clear();
                self.wanted.clear();
                self.making = None;
                self.exchange.ask(Purpose::Again, Operation::List { prefix: self.names.manifests() });
            }
            (_, Err(StoreError::Missing)) => {
                return Err(ReplicaError::Missing { name: operation.name().to_owned() });
            }
            (_, Err(error)) => return Err(error.into()),
            (_, Ok(_)) => return Err(unexpected(operation)),
        }
        Ok(())
    }

    fn looked(&mut self, unit: u64, is_there: bool) -> Result<(), ReplicaError> {
        self.search.answer(unit, is_there);
        self.look_for_end()
    }

    fn look_for_end(&mut self) -> Result<(), ReplicaError> {
        let Some(manifest) = &self.manifest else { return Ok(()) };
        for unit in self.search.looks() {
            let (name, part) = (self.names.unit(manifest.claim, unit), Part::Last(FOOTER_BYTES as u64));
            self.exchange.ask(Purpose::Exists(unit), Operation::Get { name, part });
        }
        let Some(end) = self.search.end() else { return Ok(()) };
        let manifest = Manifest {
            keep: self.how.keep.clone().unwrap_or_else(|| manifest.keep.clone()),
            grace: self.how.grace.unwrap_or(manifest.grace),
            ..manifest.clone()
        };
        let contents = Contents::of(manifest, &self.names, end)?;
        if let Some(last) = contents.last() {
            self.wanted = self.new_units(&contents);
            self.wanted.push(Key::Unit(last));
            self.wanted.reverse();
        }
        self.contents = Some(contents);
        Ok(())
    }

    /// Units of which the times have to be known.
    fn new_units(&self, contents: &Contents) -> Vec<Key> {
        if contents.manifest.keep.is_empty() {
            return Vec::new();
        }
        let units = inputs(contents, 1).into_iter().take(self.how.units_max);
        units.flat_map(|link| link.keys()).collect()
    }

    /// Goes on while everything is there that was asked for.
    fn go_on(&mut self) -> Result<(), ReplicaError> {
        // What was asked for twice is known already.
        let Compaction { wanted, outlines, .. } = self;
        wanted.retain(|key| outlines.get(*key).is_none());
        while self.contents.is_some()
            && self.exchange.is_idle()
            && self.wanted.is_empty()
            && self.making.is_none()
            && self.outcome.is_none()
            && self.next.is_none()
        {
            self.take_job()?;
        }
        Ok(())
    }

    fn take_job(&mut self) -> Result<(), ReplicaError> {
        let Some(contents) = &self.contents else { return Ok(()) };
        let jobs = match self.jobs.take() {
            Some(jobs) => jobs,
            None => self.due(contents)?,
        };
        let keys = jobs.last().map(|job| job.links.iter().flat_map(Link::keys));
        let missing = keys.map(|keys| keys.filter(|key| self.outlines.get(*key).is_none()).collect());
        self.jobs = Some(jobs);
        match missing {
            None => self.publish(),
            Some(missing) => {
                self.wanted = missing;
                if self.wanted.is_empty() { self.make() } else { Ok(()) }
            }
        }
    }

    /// What is to be packed, the first job last.
    fn due(&self, contents: &Contents) -> Result<Vec<Job>, ReplicaError> {
        let levels = levels(&contents.manifest.keep);
        let mut jobs = Vec::new();
        for (number, level) in (1..).zip(&levels) {
            let links = inputs(contents, number);
            let limit = if number == 1 { self.how.units_max } else { usize::MAX };
            let mut links = links.into_iter().take(limit).peekable();
            let mut job: Vec<Link> = Vec::new();
            while let Some(link) = links.next() {
                let (time, consistent) = self.time_of(&link)?;
                job.push(link);
                let Some(following) = links.peek() else { break };
                let (next, _) = self.time_of(following)?;
                if consistent && part_of(time, *level) != part_of(next, *level) {
                    jobs.push(Job { level: number, links: std::mem::take(&mut job) });
                }
            }
            // More units than are looked at, all of one step: what is there is packed all the same.
            if job.len() >= limit
                && let Some(last) =
                    job.iter().rposition(|link| self.time_of(link).is_ok_and(|(_, ends)| ends))
            {
                job.truncate(last + 1);
                jobs.push(Job { level: number, links: job });
            }
        }
        if jobs.is_empty() && !levels.is_empty() {
            jobs.extend(self.base_due(contents));
        }
        jobs.reverse();
        Ok(jobs)
    }

    fn base_due(&self, contents: &Contents) -> Option<Job> {
        let (last, base, over) = weights(contents)?;
        let mut links = contents.chain(last);
        links.reverse();
        (links.len() > 1 && over > OVER_MIN.max(base / 2)).then_some(Job { level: BASE_LEVEL, links })
    }

    /// When something was shipped, and whether a restore may end with it.
    fn time_of(&self, link: &Link) -> Result<(u64, bool), ReplicaError> {
        match link {
            Link::Group(group) => Ok((group.time, true)),
            Link::Unit(position) => match self.outlines.get(Key::Unit(*position)) {
                Some(Ok(outline)) => Ok((outline.header.time, outline.header.flags.has(Flags::CONSISTENT))),
                Some(Err(error)) => Err(error.clone()),
                None => Err(ReplicaError::Disturbed),
            },
        }
    }

    fn outline_of(&self, link: Option<&Link>) -> Result<(UnitHeader, u64, u64), ReplicaError> {
        let key = link.and_then(|link| link.keys().first().copied());
        let outline = key.and_then(|key| self.outlines.get(key)).ok_or(ReplicaError::Disturbed)?;
        let outline = outline.as_ref().map_err(Clone::clone)?;
        Ok(match link {
            Some(Link::Group(group)) => (outline.header, group.tail, group.predecessor),
            _ => (outline.header, outline.identity, outline.header.predecessor),
        })
    }

    /// Begins with the last job.
    fn make(&mut self) -> Result<(), ReplicaError> {
        let (Some(contents), Some(jobs)) = (&self.contents, &mut self.jobs) else { return Ok(()) };
        let Some(job) = jobs.pop() else { return Ok(()) };
        let chain: Vec<Link> = job.links.iter().rev().cloned().collect();
        let laid = self.outlines.lay(&chain, contents)?.ok_or(ReplicaError::Disturbed)?;
        let (header, tail, _) = self.outline_of(job.links.last())?;
        let (_, _, predecessor) = self.outline_of(job.links.first())?;
        let base = if laid.base { Flags::BASE } else { Flags::default() };
        let header = UnitHeader { flags: Flags::CONSISTENT.with(base), predecessor, ..header };
        self.making = Some(Making {
            job,
            newest: laid.newest,
            header,
            tail,
            predecessor,
            base: laid.base,
            from: 0,
            to: 0,
            fetches: Vec::new(),
            asked: 0,
            left: 0,
            found: BTreeMap::new(),
        });
        self.put_next()
    }

    /// Begins with the next pack of the group, or ends the group.
    fn put_next(&mut self) -> Result<(), ReplicaError> {
        while let Some(making) = &mut self.making {
            let end = making.header.blocks;
            making.from = making.to;
            making.found.clear();
            if making.from == end {
                self.making = None;
                break;
            }
            let to = making.newest.end_of(making.from, self.how.pack_blocks, end);
            making.to = making.newest.last_part(to, end);
            let (fetches, bytes) = making.newest.fetches(making.from..making.to);
            if self.how.dry {
                self.bytes += bytes;
                self.made.push(making.pack(0, 0, 0, bytes));
                continue;
            }
            making.left = fetches.len();
            (making.fetches, making.asked) = (fetches, 0);
            return if making.left == 0 { self.put_pack() } else { Ok(()) };
        }
        Ok(())
    }

    fn frames(&mut self, number: usize, bytes: &[u8]) -> Result<(), ReplicaError> {
        let Some(making) = &mut self.making else { return Ok(()) };
        making.found.extend(making.newest.open(&making.fetches[number], bytes)?);
        making.left -= 1;
        if making.left == 0 { self.put_pack() } else { Ok(()) }
    }

    fn put_pack(&mut self) -> Result<(), ReplicaError> {
        let (Some(making), Some(manifest)) = (&self.making, &self.manifest) else { return Ok(()) };
        let (bytes, identity) = making.encode()?;
        let number = manifest.number + 1;
        let id = self.how.nonce.wrapping_add(self.made.len() as u64);
        self.made.push(making.pack(number, id, identity, bytes.len() as u64));
        self.bytes += bytes.len() as u64;
        let (name, bytes) = (self.names.pack(number, id), Arc::new(bytes));
        self.exchange.ask(Purpose::Pack, Operation::Put { name, bytes });
        Ok(())
    }

    /// Creates the next manifest, if anything has changed.
    fn publish(&mut self) -> Result<(), ReplicaError> {
        let (Some(known), Some(contents)) = (&self.manifest, &self.contents) else { return Ok(()) };
        let mut packs = known.packs.clone();
        packs.extend(&self.made);
        packs.sort_by_key(|pack| (pack.last, pack.level, pack.first, pack.first_block));
        if packs.len() > PACKS_MAX {
            return Err(ReplicaError::TooManyPacks(packs.len()));
        }
        let whole = Manifest { packs, ..contents.manifest.clone() };
        let whole = Contents::of(whole, &self.names, contents.end)?;
        let now = contents.last().and_then(|last| self.outlines.get(Key::Unit(last)));
        let now = now.and_then(|outline| outline.as_ref().ok()).map(|outline| outline.header.time);
        let (keeps, from) = match now.filter(|_| !whole.manifest.keep.is_empty()) {
            Some(now) => kept(&whole, now),
            None => ((0..whole.manifest.packs.len()).collect(), whole.manifest.from),
        };
        let all = whole.manifest.packs.len();
        let packs = whole.manifest.packs.iter().enumerate();
        let packs: Vec<Pack> =
            packs.filter(|(number, _)| keeps.contains(number)).map(|(_, pack)| *pack).collect();
        let dropped = all - packs.len();
        let (keep, grace) = (whole.manifest.keep.clone(), whole.manifest.grace);
        let number = known.number + 1;
        let own = Manifest { number, nonce: self.how.nonce, time: self.clock.time(), ..known.clone() };
        let next = Manifest { packs, from, keep, grace, ..known.followed_by(own) };
        let same = self.made.is_empty()
            && dropped == 0
            && (next.from, &next.keep, next.grace) == (known.from, &known.keep, known.grace);
        let packs = self.made.len();
        let manifest = if same { known.clone() } else { next.clone() };
        if same || self.how.dry {
            let (published, bytes) = (!same, self.bytes);
            self.outcome = Some(Ok(Compacted { manifest, published, packs, bytes, dropped }));
            return Ok(());
        }
        let (name, bytes) = (self.names.manifest(number), Arc::new(next.encode()));
        self.next = Some(next);
        self.exchange.ask(Purpose::Publish, Operation::Create { name, bytes });
        Ok(())
    }

    fn published(&mut self) {
        let (Some(manifest), Some(known)) = (self.next.clone(), &self.manifest) else { return };
        let dropped = known.packs.len() + self.made.len() - manifest.packs.len();
        let (packs, bytes) = (self.made.len(), self.bytes);
        self.outcome = Some(Ok(Compacted { manifest, published: true, packs, bytes, dropped }));
    }
}

impl Making {
    fn pack(&self, number: u64, id: u64, identity: u64, bytes: u64) -> Pack {
        let first = self.job.links.first().map_or((0, 0), Link::first);
        let last: Position = (self.header.claim, self.header.number);
        Pack {
            number,
            id,
            level: self.job.level,
            base: self.base,
            first,
            last,
            predecessor: self.predecessor,
            tail: self.tail,
            identity,
            time: self.header.time,
            lsn: self.header.lsn,
            bytes,
            first_block: self.from,
            end_block: self.to,
        }
    }

    /// The pack's bytes, and its identity. What a base does not hold is zeros.
    fn encode(&self) -> Result<(Vec<u8>, u64), ReplicaError> {
        let mut maker = Maker::new(&self.header);
        for (run, place) in self.newest.places(self.from..self.to) {
            match place {
                Place::Zeros | Place::Discarded if self.base => {}
                Place::Zeros => maker.run(run, RunKind::Zeros),
                Place::Discarded => maker.run(run, RunKind::Discarded),
                Place::Data { .. } => {
                    for block in run {
                        let (first, bytes) =
                            self.found.range(..=block).next_back().ok_or(ReplicaError::Disturbed)?;
                        let at = (block - first) as usize * BLOCK_BYTES;
                        let bytes = bytes.get(at..at + BLOCK_BYTES).ok_or(ReplicaError::Disturbed)?;
                        maker.data(block, bytes);
                    }
                }
            }
        }
        let encoded = maker.finish();
        Ok((encoded.bytes, encoded.identity))
    }
}
