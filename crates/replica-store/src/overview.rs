//! [`Overview`]: what is in a place.

use crate::client::Client;
use crate::error::Error;
use syncline_format::FormatError;
use syncline_format::replica::{Claim, Flags, Manifest, Pack, UNIT_HEADER_BYTES, UnitHeader};
use syncline_replica::shipping::IN_FLIGHT_MAX;
use syncline_replica::{Answer, Names, Operation, Part, ReplicaError, StoreError};

/// One unit of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub claim: u64,
    pub number: u64,
    /// Of the object.
    pub bytes: u64,
}

/// Units that are part of the replica, and are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    pub claim: u64,
    /// The first of them.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
}

/// A volume's replica, as its store shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overview {
    pub uuid: [u8; 16],
    /// Of the volume.
    pub blocks: u64,
    /// The newest claim.
    pub owner: Claim,
    /// Units that are part of the replica, oldest first.
    pub units: Vec<Place>,
    /// What is missing among them.
    pub gaps: Vec<Gap>,
    /// Units that count for nothing because one in front of them is missing, oldest first.
    pub cut_off: Vec<Place>,
    /// Packs of units, oldest first.
    pub packs: Vec<Pack>,
    /// What is kept, as people write it.
    pub keep: String,
    /// Seconds that objects stay which nothing names any more.
    pub grace: u64,
    /// The newest unit that a restore may end with.
    pub newest: Option<UnitHeader>,
}

impl Overview {
    /// Looks at the replica of this volume.
    ///
    /// # Errors
    /// The store does not answer, or holds no replica of this volume; what is damaged in it is named.
    pub fn of(client: &Client, uuid: [u8; 16]) -> Result<Overview, Error> {
        let found = Overview::with_gaps(client, uuid)?;
        // Those of the newest manifest's claim end with the first gap.
        match found.gaps.iter().find(|_| found.cut_off.is_empty()) {
            Some(gap) => {
                Err(ReplicaError::Missing { name: Names::new(uuid).unit(gap.claim, gap.first) }.into())
            }
            None => Ok(found),
        }
    }

    /// The same where units may be missing.
    ///
    /// # Errors
    /// As [`Overview::of`].
    pub fn with_gaps(client: &Client, uuid: [u8; 16]) -> Result<Overview, Error> {
        let names = Names::new(uuid);
        let claims = list(client, &names.claims())?;
        if claims.is_empty() {
            return Err(Error::NoReplica { url: client.address().url.clone() });
        }
        let owner = get(client, &names.claim(newest(&claims)), Part::All, Claim::decode)?;
        // Without one its first owner has died between claim and manifest, or is about to write it.
        let manifest = manifest(client, uuid)?.ok_or(ReplicaError::Empty)?;
        if owner.uuid != uuid {
            return Err(ReplicaError::ForeignVolume { name: names.claims() }.into());
        }
        let Units { units, gaps, cut_off } = Units::of(client, &names, &manifest)?;
        let mut found = Overview {
            uuid,
            blocks: manifest.blocks,
            owner,
            units,
            gaps,
            cut_off,
            keep: syncline_replica::keep::tell(&manifest),
            grace: manifest.grace,
            packs: manifest.packs,
            newest: None,
        };
        for place in found.units.iter().rev() {
            let name = names.unit(place.claim, place.number);
            let header = get(client, &name, Part::Range(0, UNIT_HEADER_BYTES as u64), UnitHeader::decode)?;
            if header.flags.has(Flags::CONSISTENT) {
                found.newest = Some(header);
                break;
            }
        }
        Ok(found)
    }

    pub fn bytes(&self) -> u64 {
        let packs = self.packs.iter().map(|pack| pack.bytes);
        self.units.iter().map(|place| place.bytes).chain(packs).sum()
    }
}

/// The newest manifest of this volume's replica, if there is one.
///
/// # Errors
/// As [`Overview::of`].
pub(crate) fn manifest(client: &Client, uuid: [u8; 16]) -> Result<Option<Manifest>, Error> {
    let names = Names::new(uuid);
    let manifests = list(client, &names.manifests())?;
    if manifests.is_empty() {
        return Ok(None);
    }
    let name = names.manifest(newest(&manifests));
    let manifest = get(client, &name, Part::All, Manifest::decode)?;
    if manifest.uuid != uuid {
        return Err(ReplicaError::ForeignVolume { name }.into());
    }
    Ok(Some(manifest))
}

/// The units that the manifest names, and those of its own claim without a gap.
#[derive(Default)]
struct Units {
    units: Vec<Place>,
    gaps: Vec<Gap>,
    cut_off: Vec<Place>,
}

impl Units {
    fn of(client: &Client, names: &Names, manifest: &Manifest) -> Result<Units, Error> {
        let mut found = Units::default();
        let ends = (1..).zip(manifest.ends.iter().map(|end| Some(end.units)));
        for (claim, count) in ends.chain([(manifest.claim, None)]) {
            // Those in front of it are packed.
            let start = if claim == manifest.from.0 { manifest.from.1 } else { 0 };
            if count.is_some_and(|count| count <= start) || claim < manifest.from.0 {
                continue;
            }
            let sizes = client.sizes(&names.units(claim));
            let sizes =
                sizes.map_err(|error| Error::Unreachable { url: client.address().url.clone(), error })?;
            let places = sizes
                .into_iter()
                .filter_map(|(name, bytes)| Some(Place { claim, number: Names::number_of(&name)?, bytes }));
            let is_meant = |place: &Place| (start..count.unwrap_or(u64::MAX)).contains(&place.number);
            let mut places: Vec<Place> = places.filter(is_meant).collect();
            places.sort_by_key(|place| place.number);
            match count {
                Some(count) => found.counted(claim, start, count, places),
                None => found.open(claim, start, places),
            }
        }
        Ok(found)
    }

    /// Units of a claim of which it is known how many it has.
    fn counted(&mut self, claim: u64, start: u64, count: u64, places: Vec<Place>) {
        let mut next = start;
        for end in places.iter().map(|place| place.number).chain([count]) {
            if next < end {
                self.gaps.push(Gap { claim, first: next, end });
            }
            next = end + 1;
        }
        self.units.extend(places);
    }

    /// Units of the claim that is written to. Of those that are put at the same time any may be there first.
    fn open(&mut self, claim: u64, start: u64, places: Vec<Place>) {
        let chain = (start..).zip(&places).take_while(|(want, place)| *want == place.number).count();
        let first = start + chain as u64;
        let behind = &places[chain..];
        if behind.last().is_some_and(|last| last.number >= first + IN_FLIGHT_MAX as u64) {
            self.gaps.push(Gap { claim, first, end: behind[0].number });
            self.cut_off = behind.to_vec();
        }
        self.units.extend(&places[..chain]);
    }
}

fn newest(names: &[String]) -> u64 {
    names.iter().filter_map(|name| Names::number_of(name)).max().unwrap_or(0)
}

fn list(client: &Client, prefix: &str) -> Result<Vec<String>, Error> {
    match client.ask(&Operation::List { prefix: prefix.to_owned() }) {
        Ok(Answer::Names(names)) => Ok(names),
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(Error::Unreachable { url: client.address().url.clone(), error }),
    }
}

/// An object, or a part of it.
pub(crate) fn get<T>(
    client: &Client,
    name: &str,
    part: Part,
    decode: impl FnOnce(&[u8]) -> Result<T, FormatError>,
) -> Result<T, Error> {
    let named = || name.to_owned();
    match client.ask(&Operation::Get { name: named(), part }) {
        Ok(Answer::Bytes { bytes, .. }) => {
            decode(&bytes).map_err(|error| ReplicaError::undecodable(named(), error).into())
        }
        Ok(_) | Err(StoreError::Missing) => Err(ReplicaError::Missing { name: named() }.into()),
        Err(error) => Err(Error::Unreachable { url: client.address().url.clone(), error }),
    }
}
