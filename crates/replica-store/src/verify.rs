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

/// Reads every unit, and holds each block against its checksum and each unit against the one before it. `told` is
/// called with the bytes of each.
///
/// # Errors
/// The store does not answer, or there is no replica of this volume.
pub fn verify(client: &Client, uuid: [u8; 16], mut told: impl FnMut(u64)) -> Result<Verified, Error> {
    let overview = Overview::of(client, uuid)?;
    let names = Names::new(uuid);
    let mut damage = Vec::new();
    let mut before = Some(0);
    for place in &overview.units {
        let name = names.unit(place.claim, place.number);
        let bytes = match client.ask(&Operation::Get { name: name.clone(), part: Part::All }) {
            Ok(Answer::Bytes { bytes, .. }) => bytes,
            Err(error) if error != StoreError::Missing => {
                return Err(Error::Unreachable { url: client.address().url.clone(), error });
            }
            _ => {
                damage.push(ReplicaError::Missing { name }.to_string());
                before = None;
                continue;
            }
        };
        match unit(&name, place, &overview, before, &bytes) {
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

/// Verifies one unit; its identity. `before`: that of the one before it, if it is known.
fn unit(
    name: &str,
    place: &Place,
    of: &Overview,
    before: Option<u64>,
    bytes: &[u8],
) -> Result<u64, ReplicaError> {
    let wrong = |what| Err(ReplicaError::Inconsistent { name: name.to_owned(), what });
    let outline =
        Outline::of(bytes).map_err(|error| ReplicaError::Damaged { name: name.to_owned(), error })?;
    let header = &outline.header;
    if header.uuid != of.uuid {
        return Err(ReplicaError::ForeignVolume { name: name.to_owned() });
    }
    if (header.claim, header.number) != (place.claim, place.number) {
        return wrong("it says that it is another unit");
    }
    if before.is_some_and(|before| before != header.predecessor) {
        return wrong("it names another unit as its predecessor");
    }
    let mut sums = outline.index.sums.iter();
    for frame in &outline.index.frames {
        let (start, length) = (frame.offset as usize, frame.stored as usize);
        let stored = bytes.get(start..start + length).unwrap_or(&[]);
        let content = open_frame(name, frame, stored)?;
        for block in content.chunks_exact(BLOCK_BYTES) {
            if sums.next() != Some(&checksum(block)) {
                return wrong("a block does not match its checksum");
            }
        }
    }
    Ok(outline.identity)
}
