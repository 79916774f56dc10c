//! [`Opening`]: from nothing to an owner: a claim, the ends of the claims before, the first manifest.
//!
//! P1: the claim behind the newest is created. P2: everything that says where the claims before end is read behind
//! that, and written down before anything counts. P5: a volume that is behind the newest claim is not continued, nor is
//! one that is older than what it has shipped itself: that is looked at before the claim, and once more behind it.
//! P6: a manifest is created over the one that was read; if its name is taken by then, all of it is read again.

use crate::chain::search_of;
use crate::clock::Clock;
use crate::error::ReplicaError;
use crate::exchange::Exchange;
use crate::names::{Names, newest};
use crate::opened::Opened;
use crate::request::{Answer, Operation, Part, Request, RequestId, StoreError};
use crate::search::EndSearch;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_format::FormatError;
use syncline_format::replica::{
    Claim, ENDS_MAX, End, FOOTER_BYTES, Footer, Manifest, UNIT_HEADER_BYTES, UnitHeader,
};

/// Claims that are tried before somebody is told.
const TRIES_MAX: u32 = 5;

/// Who opens, and what.
#[derive(Debug, Clone)]
pub struct Opener {
    pub uuid: [u8; 16],
    /// Of the volume; 0 where whoever takes over takes it from the replica.
    pub blocks: u64,
    /// The claim that last wrote to the volume on this machine; 0 for none.
    pub continued: u64,
    /// Nonce of the session that last meant to claim for this volume ([`Opening::to_mark`]); 0 for none. Its claim may
    /// be there without the volume knowing.
    pub marked: u64,
    /// Of the volume's superblock, if what the replica holds may not be newer.
    pub generation: Option<u64>,
    /// Whoever has the newest claim is replaced, and the volume on this machine with what the replica holds.
    pub take_over: bool,
    /// A random number.
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    pub process: u32,
    pub host: String,
}

#[derive(Debug, Clone, Copy)]
enum Purpose {
    Claims,
    /// Whose claim is taken over from?
    Predecessor,
    /// Before the claim of whoever takes over: what is found is read again if it is not the newest behind the claim.
    Foreknown,
    ForeknownManifest,
    Claim,
    /// Whose is the claim that is there?
    Holder,
    Manifests,
    Manifest,
    /// Is this unit there?
    Exists(u64),
    Header,
    /// Of a claim before the newest manifest's.
    EarlierHeader,
    Footer,
    Record,
    /// Whose is the manifest that is there?
    Recorded,
}

/// The way to an owner.
pub struct Opening {
    opener: Opener,
    clock: Clock,
    /// The manifest's time. It stays the same, as all bytes that are put under one name do (P4).
    recorded_at: u64,
    names: Names,
    exchange: Exchange<Purpose>,
    tries: u32,
    /// Times that something was missing which the manifest names.
    missed: u32,
    newest: u64,
    /// The claim that is asked who holds it.
    asked: u64,
    claim: u64,
    /// The claim that the volume says it continues.
    own: u64,
    /// It is not claimed yet: what is read says only whether the volume was set back.
    looks: bool,
    /// Everything is ready for the claim but the mark on the volume.
    waits_for_mark: bool,
    /// The newest manifest that was read.
    known: Option<Manifest>,
    number: u64,
    /// What whoever takes over has to know before its claim, and does not.
    lacks: u8,
    /// What is wrong with the claim that is taken over from.
    doubt: Option<ReplicaError>,
    /// The manifest that was read before the claim.
    foreknown: Option<Manifest>,
    /// Behind the claim it is known which manifest is the newest.
    listed: bool,
    /// Footers of units that were looked at.
    footers: BTreeMap<u64, (Vec<u8>, u64)>,
    search: EndSearch,
    ends: Vec<End>,
    header: Option<UnitHeader>,
    outcome: Option<Result<Opened, ReplicaError>>,
}

impl Opening {
    pub fn new(opener: Opener) -> Opening {
        let (names, own) = (Names::new(opener.uuid), opener.continued);
        let mut opening = Opening {
            clock: Clock::new(opener.time),
            recorded_at: opener.time,
            opener,
            names,
            exchange: Exchange::default(),
            tries: 0,
            missed: 0,
            newest: 0,
            asked: 0,
            claim: 0,
            own,
            looks: false,
            waits_for_mark: false,
            known: None,
            number: 0,
            lacks: 0,
            doubt: None,
            foreknown: None,
            listed: false,
            footers: BTreeMap::new(),
            search: EndSearch::default(),
            ends: Vec::new(),
            header: None,
            outcome: None,
        };
        opening.begin();
        opening
    }

    /// What is to be sent now.
    pub fn poll(&mut self, now: u64) -> Vec<Request> {
        self.clock.note(now);
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
    pub fn outcome(&self) -> Option<&Result<Opened, ReplicaError>> {
        self.outcome.as_ref()
    }

    pub fn answer(&mut self, id: RequestId, now: u64, result: Result<Answer, StoreError>) {
        self.clock.note(now);
        let Some((purpose, operation, result)) = self.exchange.answer(id, now, result) else { return };
        if let Err(error) = self.advance(purpose, &operation, result) {
            self.exchange.clear();
            self.outcome = Some(Err(error));
        }
    }

    fn begin(&mut self) {
        self.exchange.ask(Purpose::Claims, Operation::List { prefix: self.names.claims() });
        if self.opener.take_over {
            // Both are lists, and neither needs the other.
            (self.lacks, self.foreknown) = (2, None);
            self.exchange.ask(Purpose::Foreknown, Operation::List { prefix: self.names.manifests() });
        }
    }

    /// Something is known that whoever takes over has to know before its claim.
    fn foreknows(&mut self) {
        self.lacks -= 1;
        if self.lacks == 0 {
            self.look_back();
        }
    }

    fn foreknown_listed(&mut self, newest: u64) -> Result<(), ReplicaError> {
        if newest > 0 {
            self.get(Purpose::ForeknownManifest, self.names.manifest(newest), Part::All);
            return Ok(());
        }
        if self.opener.blocks == 0 {
            return Err(ReplicaError::Empty);
        }
        self.foreknows();
        Ok(())
    }

    fn foreknown_read(&mut self, operation: &Operation, manifest: Manifest) -> Result<(), ReplicaError> {
        if self.opener.blocks == 0 {
            self.opener.blocks = manifest.blocks;
        }
        // Nobody is told to stop for what cannot be taken over.
        self.require_own(operation, &manifest)?;
        self.foreknown = Some(manifest);
        self.foreknows();
        Ok(())
    }

    fn get(&mut self, purpose: Purpose, name: String, part: Part) {
        self.exchange.ask(purpose, Operation::Get { name, part });
    }

    fn advance(
        &mut self,
        purpose: Purpose,
        operation: &Operation,
        result: Result<Answer, StoreError>,
    ) -> Result<(), ReplicaError> {
        match (purpose, result) {
            (Purpose::Claims, Ok(Answer::Names(names))) => self.claims_listed(newest(&names))?,
            (Purpose::Predecessor, result) => self.predecessor_read(operation, result)?,
            (Purpose::Foreknown, Ok(Answer::Names(names))) => self.foreknown_listed(newest(&names))?,
            (Purpose::ForeknownManifest, Ok(Answer::Bytes { bytes, .. })) => {
                let manifest = decode(operation, Manifest::decode(&bytes))?;
                self.foreknown_read(operation, manifest)?;
            }
            (Purpose::ForeknownManifest, Err(StoreError::Missing)) if self.missed < TRIES_MAX => {
                self.missed += 1;
                self.exchange.ask(Purpose::Foreknown, Operation::List { prefix: self.names.manifests() });
            }
            (Purpose::Claim, Ok(_)) => self.claimed()?,
            // Somebody's, maybe ours: an answer may have been lost.
            (Purpose::Claim, Err(StoreError::Exists)) => self.ask_holder(self.claim),
            (Purpose::Holder, Ok(Answer::Bytes { bytes, .. })) => self.holder_known(operation, &bytes)?,
            (Purpose::Manifests, Ok(Answer::Names(names))) => self.manifests_listed(newest(&names))?,
            (Purpose::Manifest, Ok(Answer::Bytes { bytes, .. })) => {
                let manifest = decode(operation, Manifest::decode(&bytes))?;
                self.manifest_read(operation, manifest)?;
            }
            (Purpose::Exists(unit), Ok(answer)) => {
                if let Answer::Bytes { bytes, length } = answer {
                    self.footers.insert(unit, (bytes, length));
                }
                self.looked(unit, true)?;
            }
            (Purpose::Exists(unit), Err(StoreError::Missing)) => self.looked(unit, false)?,
            (Purpose::Header, Ok(Answer::Bytes { bytes, .. })) => {
                self.header_read(operation, decode(operation, UnitHeader::decode(&bytes))?)?;
            }
            (Purpose::EarlierHeader, Ok(Answer::Bytes { bytes, .. })) => {
                self.header = Some(decode(operation, UnitHeader::decode(&bytes))?);
                let identity = self.ends.last().map_or(0, |end| end.identity);
                self.end_known(0, identity)?;
            }
            (Purpose::Footer, Ok(Answer::Bytes { bytes, length })) => {
                self.footer_read(operation, &bytes, length)?;
            }
            (Purpose::Record, Ok(_)) => self.recorded(),
            (Purpose::Record, Err(StoreError::Exists)) => {
                self.get(Purpose::Recorded, self.names.manifest(self.number + 1), Part::All);
            }
            (Purpose::Recorded, Ok(Answer::Bytes { bytes, .. })) => {
                let there = decode(operation, Manifest::decode(&bytes))?;
                match there == self.manifest() {
                    true => self.recorded(),
                    // Somebody else was first: everything that was read is read again.
                    false => self.read_manifests(),
                }
            }
            // Whoever prunes is further than the manifest that was read.
            (
                Purpose::Manifest
                | Purpose::Header
                | Purpose::EarlierHeader
                | Purpose::Footer
                | Purpose::Recorded,
                Err(StoreError::Missing),
            ) if self.missed < TRIES_MAX => {
                self.missed += 1;
                self.read_manifests();
            }
            (_, Err(StoreError::Missing)) => {
                return Err(ReplicaError::Missing { name: operation.name().to_owned() });
            }
            (_, Err(error)) => return Err(error.into()),
            (_, Ok(_)) => return Err(unexpected(operation)),
        }
        Ok(())
    }

    fn claims_listed(&mut self, newest: u64) -> Result<(), ReplicaError> {
        self.newest = newest;
        if newest < self.opener.continued && !self.opener.take_over {
            return Err(ReplicaError::Older { own: self.opener.continued, newest });
        }
        if newest != self.opener.continued && !self.opener.take_over {
            self.ask_holder(newest);
            return Ok(());
        }
        match self.opener.take_over {
            true if newest > 0 => self.get(Purpose::Predecessor, self.names.claim(newest), Part::All),
            true => self.foreknows(),
            false => self.look_back(),
        }
        Ok(())
    }

    /// Whoever has the newest claim is taken over from whatever is left of it. One that newer software has made is not
    /// damaged, and left alone.
    fn predecessor_read(
        &mut self,
        operation: &Operation,
        result: Result<Answer, StoreError>,
    ) -> Result<(), ReplicaError> {
        let name = || operation.name().to_owned();
        self.doubt = match result {
            Ok(Answer::Bytes { bytes, .. }) => match Claim::decode(&bytes) {
                Ok(holder) if holder.uuid != self.opener.uuid => {
                    return Err(ReplicaError::ForeignVolume { name: name() });
                }
                Ok(_) => None,
                Err(error @ FormatError::Version { .. }) => {
                    return Err(ReplicaError::undecodable(name(), error));
                }
                Err(error) => Some(ReplicaError::undecodable(name(), error)),
            },
            Err(StoreError::Missing) => Some(ReplicaError::Missing { name: name() }),
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(unexpected(operation)),
        };
        self.foreknows();
        Ok(())
    }

    /// Before the claim: does the replica hold something newer than the volume?
    fn look_back(&mut self) {
        self.looks = self.newest > 0 && self.opener.generation.is_some() && !self.opener.take_over;
        match self.looks {
            true => self.read_manifests(),
            false => self.waits_for_mark = true,
        }
    }

    /// Behind a claim that has shipped nothing the volume is what its owner has made it, by a restore maybe.
    fn refuse_if_set_back(&self) -> Result<(), ReplicaError> {
        if let (Some(own), Some(last)) = (self.opener.generation, &self.header)
            && last.claim >= self.own
            && last.generation > own
        {
            return Err(ReplicaError::SetBack { own, replica: last.generation });
        }
        Ok(())
    }

    /// What the volume has to say about itself, durably, before it is claimed: the claim that it continues, and the
    /// nonce of the one that is about to be made. Should the claim be made and nobody learn of it, the nonce tells the
    /// next session that it is this volume's.
    pub fn to_mark(&self) -> Option<(u64, u64)> {
        self.waits_for_mark.then_some((self.opener.continued, self.opener.nonce))
    }

    /// The volume says so.
    pub fn marked(&mut self) {
        assert!(std::mem::take(&mut self.waits_for_mark), "a volume is marked when it is to be");
        self.claim = self.newest + 1;
        let claim = Claim {
            uuid: self.opener.uuid,
            claim: self.claim,
            nonce: self.opener.nonce,
            time: self.opener.time,
            continued: self.opener.continued.min(self.newest),
            process: self.opener.process,
            host: self.opener.host.clone(),
        };
        let (name, bytes) = (self.names.claim(self.claim), Arc::new(claim.encode()));
        self.exchange.ask(Purpose::Claim, Operation::Create { name, bytes });
    }

    fn ask_holder(&mut self, claim: u64) {
        self.asked = claim;
        self.get(Purpose::Holder, self.names.claim(claim), Part::All);
    }

    fn holder_known(&mut self, operation: &Operation, bytes: &[u8]) -> Result<(), ReplicaError> {
        let holder = decode(operation, Claim::decode(bytes))?;
        if holder.uuid != self.opener.uuid {
            return Err(ReplicaError::ForeignVolume { name: operation.name().to_owned() });
        }
        if self.asked != self.claim && self.opener.marked != 0 && holder.nonce == self.opener.marked {
            self.opener.continued = self.newest;
            self.look_back();
            return Ok(());
        }
        if self.asked != self.claim {
            let by = tell(&holder);
            return Err(ReplicaError::Behind { own: self.opener.continued, newest: self.newest, by });
        }
        if holder.nonce == self.opener.nonce {
            return self.claimed();
        }
        self.tries += 1;
        if self.tries == TRIES_MAX {
            return Err(ReplicaError::Contended { tries: self.tries });
        }
        self.claim = 0;
        self.begin();
        Ok(())
    }

    fn claimed(&mut self) -> Result<(), ReplicaError> {
        self.read_manifests();
        // What is looked at from here on is looked at behind the claim. It says the end if the manifest that was read
        // before is still the newest one.
        match self.foreknown.clone() {
            Some(manifest) => self.search_by(manifest),
            None => Ok(()),
        }
    }

    fn read_manifests(&mut self) {
        self.listed = false;
        self.exchange.ask(Purpose::Manifests, Operation::List { prefix: self.names.manifests() });
    }

    fn manifests_listed(&mut self, newest: u64) -> Result<(), ReplicaError> {
        self.listed = true;
        if let Some(foreknown) = self.foreknown.take().filter(|foreknown| foreknown.number == newest) {
            self.number = newest;
            self.refuse_if_fenced(&foreknown)?;
            return self.look_for_end();
        }
        // What is under way was asked for by a manifest that is none any more.
        self.exchange.clear();
        self.number = newest;
        self.header = None;
        self.ends.clear();
        self.known = None;
        if newest > 0 {
            self.get(Purpose::Manifest, self.names.manifest(newest), Part::All);
            return Ok(());
        }
        self.record()
    }

    fn require_own(&self, operation: &Operation, manifest: &Manifest) -> Result<(), ReplicaError> {
        if manifest.uuid != self.opener.uuid {
            return Err(ReplicaError::ForeignVolume { name: operation.name().to_owned() });
        }
        if manifest.blocks != self.opener.blocks {
            return Err(ReplicaError::OtherSize { replica: manifest.blocks, device: self.opener.blocks });
        }
        Ok(())
    }

    fn refuse_if_fenced(&self, manifest: &Manifest) -> Result<(), ReplicaError> {
        if manifest.claim > self.claim && !self.looks {
            let by = "another machine".to_owned();
            return Err(ReplicaError::Fenced { claim: manifest.claim, by });
        }
        Ok(())
    }

    fn manifest_read(&mut self, operation: &Operation, manifest: Manifest) -> Result<(), ReplicaError> {
        self.require_own(operation, &manifest)?;
        self.refuse_if_fenced(&manifest)?;
        self.search_by(manifest)
    }

    fn search_by(&mut self, manifest: Manifest) -> Result<(), ReplicaError> {
        self.footers.clear();
        self.ends = manifest.ends.clone();
        self.search = search_of(&manifest);
        self.known = Some(manifest);
        self.look_for_end()
    }

    fn look_for_end(&mut self) -> Result<(), ReplicaError> {
        let claim = self.known.as_ref().map_or(0, |manifest| manifest.claim);
        for unit in self.search.looks() {
            self.get(Purpose::Exists(unit), self.names.unit(claim, unit), Part::Last(FOOTER_BYTES as u64));
        }
        match self.search.end() {
            None => Ok(()),
            // It is one only if no newer manifest is there.
            Some(_) if !self.listed => Ok(()),
            Some(0) => match (1..).zip(&self.ends).filter(|(_, end)| end.units > 0).last() {
                None => self.end_known(0, 0),
                // The last unit that counts is one of an earlier claim.
                Some((claim, end)) => {
                    let name = self.names.unit(claim, end.units - 1);
                    self.get(Purpose::EarlierHeader, name, Part::Range(0, UNIT_HEADER_BYTES as u64));
                    Ok(())
                }
            },
            Some(end) => {
                let name = self.names.unit(claim, end - 1);
                self.get(Purpose::Header, name, Part::Range(0, UNIT_HEADER_BYTES as u64));
                Ok(())
            }
        }
    }

    fn looked(&mut self, unit: u64, is_there: bool) -> Result<(), ReplicaError> {
        self.search.answer(unit, is_there);
        self.look_for_end()
    }

    fn header_read(&mut self, operation: &Operation, header: UnitHeader) -> Result<(), ReplicaError> {
        let name = self.names.unit(header.claim, header.number);
        self.header = Some(header);
        match self.footers.remove(&header.number) {
            Some((bytes, length)) => self.footer_read(operation, &bytes, length),
            None => {
                self.get(Purpose::Footer, name, Part::Last(FOOTER_BYTES as u64));
                Ok(())
            }
        }
    }

    fn footer_read(&mut self, operation: &Operation, bytes: &[u8], length: u64) -> Result<(), ReplicaError> {
        let footer = decode(operation, Footer::decode(bytes, length))?;
        let units = self.header.as_ref().map_or(0, |header| header.number + 1);
        self.end_known(units, footer.identity)
    }

    /// The end of the claim of the newest manifest; those behind it have none, so nothing of them counts.
    fn end_known(&mut self, units: u64, identity: u64) -> Result<(), ReplicaError> {
        let manifest = self.known.as_ref().map_or(0, |known| known.first);
        self.ends.push(End { units, identity, manifest });
        self.record()
    }

    fn record(&mut self) -> Result<(), ReplicaError> {
        self.refuse_if_set_back()?;
        if std::mem::take(&mut self.looks) {
            self.waits_for_mark = true;
            return Ok(());
        }
        if self.claim > ENDS_MAX as u64 {
            return Err(ReplicaError::TooManyClaims(self.claim));
        }
        let identity = self.ends.last().map_or(0, |end| end.identity);
        self.ends.resize(self.claim as usize - 1, End { units: 0, identity, manifest: 0 });
        self.recorded_at = self.clock.time();
        let (name, bytes) = (self.names.manifest(self.number + 1), Arc::new(self.manifest().encode()));
        self.exchange.ask(Purpose::Record, Operation::Create { name, bytes });
        Ok(())
    }

    /// Over the one that was read: what is packed stays so.
    fn manifest(&self) -> Manifest {
        let (uuid, blocks, number) = (self.opener.uuid, self.opener.blocks, self.number + 1);
        let own = Manifest::unpacked(uuid, number, self.claim, blocks, self.ends.clone());
        let own = Manifest { nonce: self.opener.nonce, time: self.recorded_at, ..own };
        match &self.known {
            Some(known) => known.followed_by(own),
            None => own,
        }
    }

    fn recorded(&mut self) {
        let manifest = self.manifest();
        let tail = manifest.ends.last().map_or(0, |end| end.identity);
        let (uuid, claim) = (self.opener.uuid, self.claim);
        self.outcome =
            Some(Ok(Opened { uuid, claim, manifest, tail, last: self.header, doubt: self.doubt.take() }));
    }
}

pub(crate) fn decode<T>(operation: &Operation, decoded: Result<T, FormatError>) -> Result<T, ReplicaError> {
    decoded.map_err(|error| ReplicaError::undecodable(operation.name().to_owned(), error))
}

pub(crate) fn unexpected(operation: &Operation) -> ReplicaError {
    let what = "the store answered something else than it was asked";
    ReplicaError::Inconsistent { name: operation.name().to_owned(), what }
}

/// Who holds a claim, for people.
pub(crate) fn tell(claim: &Claim) -> String {
    match claim.host.is_empty() {
        true => format!("process {}", claim.process),
        false => format!("process {} on {}", claim.process, claim.host),
    }
}
