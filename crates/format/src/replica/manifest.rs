//! Manifests: where claims end, what was packed, what is kept.

use super::{CLAIM_MAX, MANIFEST_VERSION, NUMBER_END, field, seal, verify_upto};
use crate::FormatError;
use crate::layout::VOLUME_BLOCKS_MAX;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Claims before a manifest's own, at most.
pub const ENDS_MAX: usize = 1 << 16;
/// Packs that a manifest names, at most.
pub const PACKS_MAX: usize = 1 << 20;
/// Earlier manifests that a manifest names, at most.
const RECENT_MAX: usize = 1 << 20;
/// Steps of retention, at most.
const KEEP_MAX: usize = 16;
/// Seconds of retention and of grace, at most: over a thousand years.
const SECONDS_MAX: u64 = 1 << 35;
/// Time of grace where a manifest of version 1 says nothing, in seconds: a day.
const GRACE: u64 = 86_400;

const MAGIC: [u8; 4] = *b"SLRM";
const WHAT: &str = "manifest";
const HEADER_BYTES: usize = 128;

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ManifestRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    uuid: [u8; 16],
    number: U64,
    claim: U64,
    nonce: U64,
    time: U64,
    blocks: U64,
    ends: U32,
    // From here on zeros in version 1.
    packs: U32,
    recent: U32,
    keep: U32,
    first: U64,
    known: U64,
    from_claim: U64,
    from_unit: U64,
    grace: U64,
}

const _: () = assert!(size_of::<ManifestRaw>() == HEADER_BYTES);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct EndRaw {
    units: U64,
    identity: U64,
    manifest: U64,
}

const _: () = assert!(size_of::<EndRaw>() == 24);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct PackRaw {
    number: U64,
    id: U64,
    level: u8,
    base: u8,
    reserved: [u8; 6],
    first_claim: U64,
    first_unit: U64,
    last_claim: U64,
    last_unit: U64,
    predecessor: U64,
    tail: U64,
    identity: U64,
    time: U64,
    lsn: U64,
    bytes: U64,
    first_block: U64,
    end_block: U64,
}

const _: () = assert!(size_of::<PackRaw>() == 120);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct PairRaw {
    one: U64,
    other: U64,
}

/// Where a claim ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// How many of its units count.
    pub units: u64,
    /// Of the last of them, of those of earlier claims if there is none; 0 for none.
    pub identity: u64,
    /// Number of its first manifest; 0 if it has none, or nobody knows.
    pub manifest: u64,
}

/// An object that holds what several units together have made of some of the volume's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pack {
    /// Of the manifest that it was made for. With `id` that is its name.
    pub number: u64,
    /// A random number.
    pub id: u64,
    /// How often what is in it was packed, as far as retention tells it apart; at least 1.
    pub level: u8,
    /// Nothing in front of it is needed.
    pub base: bool,
    /// Claim and unit that it begins with.
    pub first: (u64, u64),
    /// Claim and unit that it ends with, a consistent one.
    pub last: (u64, u64),
    /// Identity of the unit in front of the first one; 0 for none.
    pub predecessor: u64,
    /// Identity of the last unit.
    pub tail: u64,
    /// Of the object.
    pub identity: u64,
    /// Of the last unit: nanoseconds since 1970.
    pub time: u64,
    /// Of the last unit.
    pub lsn: u64,
    /// Of the object.
    pub bytes: u64,
    /// Blocks of the volume that it is about, from this one on.
    pub first_block: u64,
    /// The block behind them.
    pub end_block: u64,
}

/// An earlier manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
}

/// For how long one position of each step is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Seconds.
    pub age: u64,
    /// Seconds; at most one: every unit.
    pub step: u64,
}

/// What a replica consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub uuid: [u8; 16],
    pub number: u64,
    pub claim: u64,
    /// Of whoever made it.
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Of the volume.
    pub blocks: u64,
    /// Of all claims before its own, from the first on.
    pub ends: Vec<End>,
    /// Number of the first manifest of its claim.
    pub first: u64,
    /// What is known of manifests from this number on is in `recent` and in `ends`; of those before it nothing is.
    pub known: u64,
    /// Units from this position on are part of the replica.
    pub from: (u64, u64),
    /// In order of their last units, then of their blocks.
    pub packs: Vec<Pack>,
    /// Earlier manifests that somebody may still read.
    pub recent: Vec<Recent>,
    /// By age; none: everything is kept.
    pub keep: Vec<Keep>,
    /// How long an object stays that no manifest names any more, in seconds.
    pub grace: u64,
}

/// A year of days, a month of hours, a week of minutes, a day of everything.
impl Keep {
    pub const DEFAULT: [Keep; 4] = [
        Keep { age: 86_400, step: 1 },
        Keep { age: 7 * 86_400, step: 60 },
        Keep { age: 30 * 86_400, step: 3_600 },
        Keep { age: 365 * 86_400, step: 86_400 },
    ];
}

impl Manifest {
    /// One of a replica in which nothing was packed.
    pub fn unpacked(uuid: [u8; 16], number: u64, claim: u64, blocks: u64, ends: Vec<End>) -> Manifest {
        Manifest {
            uuid,
            number,
            claim,
            nonce: 0,
            time: 0,
            blocks,
            ends,
            first: number,
            known: number,
            from: (1, 0),
            packs: Vec::new(),
            recent: Vec::new(),
            keep: Keep::DEFAULT.to_vec(),
            grace: GRACE,
        }
    }

    /// The next manifest: what is packed and kept is as here, and this one joins the recent ones.
    pub fn followed_by(&self, next: Manifest) -> Manifest {
        let mut recent = self.recent.clone();
        recent.push(Recent { number: self.number, time: self.time });
        // The newest of those that are old enough says what nobody reads any more; those before it say nothing else.
        let grace = self.grace.saturating_mul(1_000_000_000);
        let old = recent.iter().rposition(|one| one.time.saturating_add(grace) <= next.time);
        recent.drain(..old.unwrap_or(0));
        Manifest {
            known: self.known,
            from: self.from,
            packs: self.packs.clone(),
            recent,
            keep: self.keep.clone(),
            grace: self.grace,
            ..next
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let raw = ManifestRaw {
            magic: MAGIC,
            version: U16::new(MANIFEST_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            number: U64::new(self.number),
            claim: U64::new(self.claim),
            nonce: U64::new(self.nonce),
            time: U64::new(self.time),
            blocks: U64::new(self.blocks),
            ends: U32::new(self.ends.len() as u32),
            packs: U32::new(self.packs.len() as u32),
            recent: U32::new(self.recent.len() as u32),
            keep: U32::new(self.keep.len() as u32),
            first: U64::new(self.first),
            known: U64::new(self.known),
            from_claim: U64::new(self.from.0),
            from_unit: U64::new(self.from.1),
            grace: U64::new(self.grace),
        };
        let mut bytes = raw.as_bytes().to_vec();
        for End { units, identity, manifest } in self.ends.iter().copied() {
            let (units, identity, manifest) = (U64::new(units), U64::new(identity), U64::new(manifest));
            bytes.extend_from_slice(EndRaw { units, identity, manifest }.as_bytes());
        }
        self.packs.iter().for_each(|pack| bytes.extend_from_slice(pack.raw().as_bytes()));
        let recent = self.recent.iter().map(|recent| (recent.number, recent.time));
        let keep = self.keep.iter().map(|keep| (keep.age, keep.step));
        for (one, other) in recent.chain(keep) {
            bytes.extend_from_slice(PairRaw { one: U64::new(one), other: U64::new(other) }.as_bytes());
        }
        seal(&mut bytes);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Manifest, FormatError> {
        let Ok((raw, rest)) = ManifestRaw::ref_from_prefix(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: HEADER_BYTES, got: bytes.len() });
        };
        let version = verify_upto(WHAT, MAGIC, MANIFEST_VERSION, bytes)?;
        let count = |name, value: U32, most: usize| {
            let value = u64::from(value.get());
            field(WHAT, name, value, value <= most as u64).map(|value| value as usize)
        };
        let (number, claim, blocks) = (raw.number.get(), raw.claim.get(), raw.blocks.get());
        field(WHAT, "number", number, (1..NUMBER_END).contains(&number))?;
        field(WHAT, "claim", claim, (1..=CLAIM_MAX).contains(&claim))?;
        field(WHAT, "blocks", blocks, (1..=VOLUME_BLOCKS_MAX).contains(&blocks))?;
        let ends = count("ends", raw.ends, ENDS_MAX)?;
        field(WHAT, "ends", ends as u64, ends as u64 + 1 == claim)?;
        let (packs, recent, keep) = match version {
            1 => (0, 0, 0),
            _ => (
                count("packs", raw.packs, PACKS_MAX)?,
                count("recent manifests", raw.recent, RECENT_MAX)?,
                count("steps of retention", raw.keep, KEEP_MAX)?,
            ),
        };
        let sizes = [
            ends * size_of::<EndRaw>(),
            packs * size_of::<PackRaw>(),
            (recent + keep) * size_of::<PairRaw>(),
        ];
        let want = HEADER_BYTES + sizes.iter().sum::<usize>();
        if bytes.len() != want {
            return Err(FormatError::Truncated { what: WHAT, want, got: bytes.len() });
        }
        let (end_bytes, rest) = rest.split_at(sizes[0]);
        let (pack_bytes, pair_bytes) = rest.split_at(sizes[1]);
        let ends = decode_ends(end_bytes)?;
        let mut manifest = Manifest {
            nonce: raw.nonce.get(),
            time: raw.time.get(),
            ..Manifest::unpacked(raw.uuid, number, claim, blocks, ends)
        };
        if version == 1 {
            return Ok(manifest);
        }
        let mut pairs = decode_pairs(pair_bytes);
        let steps = pairs.split_off(recent);
        manifest.packs = decode_packs(pack_bytes, blocks)?;
        manifest.recent = pairs.into_iter().map(|(number, time)| Recent { number, time }).collect();
        manifest.keep = decode_keep(&steps)?;
        manifest.first = field(WHAT, "first", raw.first.get(), (1..=number).contains(&raw.first.get()))?;
        manifest.known = field(WHAT, "known", raw.known.get(), raw.known.get() <= number)?;
        manifest.from = position(raw.from_claim, raw.from_unit)?;
        manifest.grace = field(WHAT, "grace", raw.grace.get(), raw.grace.get() <= SECONDS_MAX)?;
        Ok(manifest)
    }
}

impl Pack {
    fn raw(&self) -> PackRaw {
        PackRaw {
            number: U64::new(self.number),
            id: U64::new(self.id),
            level: self.level,
            base: self.base.into(),
            reserved: [0; 6],
            first_claim: U64::new(self.first.0),
            first_unit: U64::new(self.first.1),
            last_claim: U64::new(self.last.0),
            last_unit: U64::new(self.last.1),
            predecessor: U64::new(self.predecessor),
            tail: U64::new(self.tail),
            identity: U64::new(self.identity),
            time: U64::new(self.time),
            lsn: U64::new(self.lsn),
            bytes: U64::new(self.bytes),
            first_block: U64::new(self.first_block),
            end_block: U64::new(self.end_block),
        }
    }
}

fn position(claim: U64, unit: U64) -> Result<(u64, u64), FormatError> {
    let claim = field(WHAT, "claim of a position", claim.get(), (1..=CLAIM_MAX).contains(&claim.get()))?;
    Ok((claim, field(WHAT, "unit of a position", unit.get(), unit.get() < NUMBER_END)?))
}

fn decode_ends(bytes: &[u8]) -> Result<Vec<End>, FormatError> {
    let pieces = bytes.chunks_exact(size_of::<EndRaw>());
    let ends = pieces.map(|piece| {
        let raw = EndRaw::ref_from_bytes(piece).expect("a piece is an end");
        let units = field(WHAT, "units", raw.units.get(), raw.units.get() <= NUMBER_END)?;
        Ok(End { units, identity: raw.identity.get(), manifest: raw.manifest.get() })
    });
    ends.collect()
}

fn decode_packs(bytes: &[u8], blocks: u64) -> Result<Vec<Pack>, FormatError> {
    let mut packs: Vec<Pack> = Vec::with_capacity(bytes.len() / size_of::<PackRaw>());
    for piece in bytes.chunks_exact(size_of::<PackRaw>()) {
        let raw = PackRaw::ref_from_bytes(piece).expect("a piece is a pack");
        let number = field(WHAT, "number of a pack", raw.number.get(), raw.number.get() < NUMBER_END)?;
        let (first, last) =
            (position(raw.first_claim, raw.first_unit)?, position(raw.last_claim, raw.last_unit)?);
        field(WHAT, "first unit of a pack", first.1, first <= last)?;
        field(WHAT, "level of a pack", raw.level.into(), raw.level > 0)?;
        let (first_block, end_block) = (raw.first_block.get(), raw.end_block.get());
        field(WHAT, "blocks of a pack", end_block, first_block < end_block && end_block <= blocks)?;
        let pack = Pack {
            number,
            id: raw.id.get(),
            level: raw.level,
            base: raw.base != 0,
            first,
            last,
            predecessor: raw.predecessor.get(),
            tail: raw.tail.get(),
            identity: raw.identity.get(),
            time: raw.time.get(),
            lsn: raw.lsn.get(),
            bytes: raw.bytes.get(),
            first_block,
            end_block,
        };
        let ordered = packs.last().is_none_or(|before| before.last <= last);
        field(WHAT, "order of packs", last.1, ordered)?;
        packs.push(pack);
    }
    Ok(packs)
}

fn decode_pairs(bytes: &[u8]) -> Vec<(u64, u64)> {
    let pieces = bytes.chunks_exact(size_of::<PairRaw>());
    let pairs = pieces.map(|piece| PairRaw::ref_from_bytes(piece).expect("a piece is a pair"));
    pairs.map(|pair| (pair.one.get(), pair.other.get())).collect()
}

fn decode_keep(pairs: &[(u64, u64)]) -> Result<Vec<Keep>, FormatError> {
    let mut keep: Vec<Keep> = Vec::new();
    for &(age, step) in pairs {
        field(WHAT, "age that is kept", age, (1..=SECONDS_MAX).contains(&age))?;
        field(WHAT, "step that is kept", step, (1..=SECONDS_MAX).contains(&step))?;
        let ascends = keep.last().is_none_or(|before| before.age < age && before.step < step);
        field(WHAT, "order of what is kept", step, ascends)?;
        keep.push(Keep { age, step });
    }
    Ok(keep)
}
