//! Reading all of a replica, to verify it.

use crate::client::Client;
use crate::error::Error;
use crate::overview::{Gap, Overview, Place};
use std::collections::BTreeMap;
use syncline_format::replica::{FOOTER_BYTES, Flags, UnitHeader};
use syncline_format::{BLOCK_BYTES, checksum};
use syncline_replica::unit::{Outline, open_frame};
use syncline_replica::{Answer, Names, Operation, Part, ReplicaError, StoreError};

/// What was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub overview: Overview,
    /// One sentence for each unit that is damaged.
    pub damage: Vec<String>,
    pub lost: Vec<Lost>,
}

/// History that units which are missing have taken with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    pub gap: Gap,
    /// Nanoseconds since 1970: of the last unit in front, and of the last one behind that is of no use.
    pub from: Option<u64>,
    pub to: Option<u64>,
    /// Units behind it that cannot be used: up to one that needs none in front of it, or is in a pack with what is
    /// missing.
    pub cut_off: usize,
}

impl Lost {
    fn of(gap: Gap, overview: &Overview, headers: &BTreeMap<(u64, u64), UnitHeader>) -> Lost {
        let first = (gap.claim, gap.first);
        let is_packed = |position: &(u64, u64)| {
            overview.packs.iter().any(|pack| pack.last == *position && (pack.base || pack.first <= first))
        };
        let is_of_use =
            |position: &(u64, u64), header: &UnitHeader| header.flags.has(Flags::BASE) || is_packed(position);
        let behind = headers.range(first..).take_while(|(position, header)| !is_of_use(position, header));
        let behind: Vec<u64> = behind.map(|(_, header)| header.time).collect();
        let from = headers.range(..first).next_back().map(|(_, header)| header.time);
        Lost { gap, from, to: behind.last().copied(), cut_off: behind.len() }
    }
}

/// Reads every pack and every unit, and holds each block against its checksum and each unit against the one before it.
/// `told` is called with the bytes of each.
///
/// # Errors
/// The store does not answer, or there is no replica of this volume.
pub fn verify(client: &Client, uuid: [u8; 16], mut told: impl FnMut(u64)) -> Result<Verified, Error> {
    let overview = Overview::with_gaps(client, uuid)?;
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
    let mut last: Option<&Place> = None;
    let mut headers = BTreeMap::new();
    for place in overview.units.iter().chain(&overview.cut_off) {
        // What is in front of it is not there.
        let is_behind_gap = |gap: &Gap| (gap.claim, gap.end) == (place.claim, place.number);
        let is_first = last.is_some_and(|last| last.claim != place.claim) && place.number > 0;
        if overview.gaps.iter().any(is_behind_gap) || is_first {
            before = None;
        }
        last = Some(place);
        let name = names.unit(place.claim, place.number);
        match read(client, &name)?.and_then(|bytes| unit(&name, place, &overview, before, &bytes)) {
            Ok((identity, header)) => {
                before = Some(identity);
                headers.insert((place.claim, place.number), header);
            }
            Err(error) => {
                damage.push(error.to_string());
                before = None;
            }
        }
        told(place.bytes);
    }
    let mut lost = Vec::new();
    for gap in &overview.gaps {
        let name = names.unit(gap.claim, gap.first);
        // It may have come meanwhile.
        let part = Part::Last(FOOTER_BYTES as u64);
        match client.ask(&Operation::Get { name, part }) {
            Err(StoreError::Missing) => {}
            Ok(_) => continue,
            Err(error) => return Err(Error::Unreachable { url: client.address().url.clone(), error }),
        }
        lost.push(Lost::of(*gap, &overview, &headers));
    }
    Ok(Verified { overview, damage, lost })
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

/// Verifies one unit; its identity and its header. `before`: that of the one before it, if it is known.
fn unit(
    name: &str,
    place: &Place,
    of: &Overview,
    before: Option<u64>,
    bytes: &[u8],
) -> Result<(u64, UnitHeader), ReplicaError> {
    let wrong = |what| Err(ReplicaError::Inconsistent { name: name.to_owned(), what });
    let outline = outline(name, of.uuid, bytes)?;
    let header = &outline.header;
    if (header.claim, header.number) != (place.claim, place.number) {
        return wrong("it says that it is another unit");
    }
    if before.is_some_and(|before| before != header.predecessor) {
        return wrong("it names another unit as its predecessor");
    }
    Ok((outline.identity, outline.header))
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
