//! Reading all of a replica, to verify it.

use crate::client::Client;
use crate::error::Error;
use crate::overview::{Overview, Place};
use syncline_format::{BLOCK_BYTES, checksum};
use syncline_replica::unit::{Outline, open_frame};
use syncline_replica::{Answer, Names, Operation, Part, ReplicaError, StoreError};

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub overview: Overview,
    /// One sentence for each unit that is damaged or missing.
    pub damage: Vec<String>,
}

/// Reads every pack and every unit, and holds each block against its checksum and each unit against the one before it.
/// `told` is called with the bytes of each.
///
/// # Errors
/// The store does not answer, or there is no replica of this volume.
pub fn verify(client: &Client, uuid: [u8; 16], mut told: impl FnMut(u64)) -> Result<Verified, Error> {
    let overview = Overview::of(client, uuid)?;
    let names = Names::new(uuid);
    let mut damage = Vec::new();
    for pack in &overview.packs {
        let name = names.pack(pack.number, pack.id);
        match read(client, &name)?.and_then(|bytes| outline(&name, overview.uuid, &bytes)) {
            Ok(found) if found.identity == pack.identity => {}
            Ok(_) => {
                let what = "it is not the pack that the manifest names";
                damage.push(ReplicaError::Inconsistent { name, what }.to_string());
            }
            Err(error) => damage.push(error.to_string()),
        }
        told(pack.bytes);
    }
    let mut before = overview.units.first().filter(|first| (first.claim, first.number) == (1, 0)).map(|_| 0);
    for place in &overview.units {
        let name = names.unit(place.claim, place.number);
        match read(client, &name)?.and_then(|bytes| unit(&name, place, &overview, before, &bytes)) {
            Ok(identity) => before = Some(identity),
            Err(error) => {
                damage.push(error.to_string());
                before = None;
            }
        }
        told(place.bytes);
    }
    Ok(Verified { overview, damage })
}

/// A whole object, or why there is none.
fn read(client: &Client, name: &str) -> Result<Result<Vec<u8>, ReplicaError>, Error> {
    match client.ask(&Operation::Get { name: name.to_owned(), part: Part::All }) {
        Ok(Answer::Bytes { bytes, .. }) => Ok(Ok(bytes)),
        Err(error) if error != StoreError::Missing => {
            Err(Error::Unreachable { url: client.address().url.clone(), error })
        }
        _ => Ok(Err(ReplicaError::Missing { name: name.to_owned() })),
    }
}

/// Verifies one unit; its identity. `before`: that of the one before it, if it is known.
fn unit(
    name: &str,
    place: &Place,
    of: &Overview,
    before: Option<u64>,
    bytes: &[u8],
) -> Result<u64, ReplicaError> {
    let wrong = |what| Err(ReplicaError::Inconsistent { name: name.to_owned(), what });
    let outline = outline(name, of.uuid, bytes)?;
    let header = &outline.header;
    if (header.claim, header.number) != (place.claim, place.number) {
        return wrong("it says that it is another unit");
    }
    if before.is_some_and(|before| before != header.predecessor) {
        return wrong("it names another unit as its predecessor");
    }
    Ok(outline.identity)
}

/// Holds all of an object against its checksums.
fn outline(name: &str, uuid: [u8; 16], bytes: &[u8]) -> Result<Outline, ReplicaError> {
    let outline = Outline::of(bytes).map_err(|error| ReplicaError::undecodable(name.to_owned(), error))?;
    if outline.header.uuid != uuid {
        return Err(ReplicaError::ForeignVolume { name: name.to_owned() });
    }
    let mut sums = outline.index.sums.iter();
    for frame in &outline.index.frames {
        let (start, length) = (frame.offset as usize, frame.stored as usize);
        let stored = bytes.get(start..start + length).unwrap_or(&[]);
        let content = open_frame(name, frame, stored)?;
        for block in content.chunks_exact(BLOCK_BYTES) {
            if sums.next() != Some(&checksum(block)) {
                let what = "a block does not match its checksum";
                return Err(ReplicaError::Inconsistent { name: name.to_owned(), what });
            }
        }
    }
    Ok(outline)
}
