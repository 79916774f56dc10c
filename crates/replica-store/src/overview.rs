//! [`Overview`]: what is in a place.

use crate::client::Client;
use crate::error::Error;
use syncline_format::FormatError;
use syncline_format::replica::{Claim, Flags, Manifest, Pack, UNIT_HEADER_BYTES, UnitHeader};
use syncline_replica::{Answer, Names, Operation, Part, ReplicaError, StoreError};

/// One unit of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub claim: u64,
    pub number: u64,
    /// Of the object.
    pub bytes: u64,
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
        let units = units(client, &names, &manifest)?;
        let mut found = Overview {
            uuid,
            blocks: manifest.blocks,
            owner,
            units,
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
fn units(client: &Client, names: &Names, manifest: &Manifest) -> Result<Vec<Place>, Error> {
    let mut units = Vec::new();
    let ends = (1..).zip(manifest.ends.iter().map(|end| Some(end.units)));
    for (claim, count) in ends.chain([(manifest.claim, None)]) {
        // Those in front of it are packed.
        let start = if claim == manifest.from.0 { manifest.from.1 } else { 0 };
        if count.is_some_and(|count| count <= start) || claim < manifest.from.0 {
            continue;
        }
        let url = || client.address().url.clone();
        let sizes = client.sizes(&names.units(claim));
        let mut sizes = sizes.map_err(|error| Error::Unreachable { url: url(), error })?;
        sizes.sort();
        let there = sizes.into_iter().filter_map(|(name, bytes)| Some((Names::number_of(&name)?, bytes)));
        let there = there.skip_while(|(number, _)| *number < start);
        let chain =
            (start..count.unwrap_or(u64::MAX)).zip(there).take_while(|(want, (number, _))| want == number);
        let before = units.len() as u64;
        units.extend(chain.map(|(number, (_, bytes))| Place { claim, number, bytes }));
        let found = units.len() as u64 - before;
        if let Some(count) = count.filter(|count| start + found < *count) {
            let name = names.unit(claim, (start + found).min(count - 1));
            return Err(ReplicaError::Missing { name }.into());
        }
    }
    Ok(units)
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
