//! Manifests: where claims end.

use super::{CLAIM_MAX, NUMBER_END, REPLICA_VERSION, field, seal, verify};
use crate::FormatError;
use crate::layout::VOLUME_BLOCKS_MAX;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Claims before a manifest's own, at most.
pub const ENDS_MAX: usize = 1 << 16;

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
    rest: [u8; 52],
}

const _: () = assert!(size_of::<ManifestRaw>() == HEADER_BYTES);

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct EndRaw {
    units: U64,
    identity: U64,
    reserved: U64,
}

const _: () = assert!(size_of::<EndRaw>() == 24);

/// Where a claim ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// How many of its units count.
    pub units: u64,
    /// Of the last of them, of those of earlier claims if there is none; 0 for none.
    pub identity: u64,
}

/// What an owner found when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub uuid: [u8; 16],
    pub number: u64,
    pub claim: u64,
    /// Of its claim.
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Of the volume.
    pub blocks: u64,
    /// Of all claims before its own, from the first on.
    pub ends: Vec<End>,
}

impl Manifest {
    pub fn encode(&self) -> Vec<u8> {
        let raw = ManifestRaw {
            magic: MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            number: U64::new(self.number),
            claim: U64::new(self.claim),
            nonce: U64::new(self.nonce),
            time: U64::new(self.time),
            blocks: U64::new(self.blocks),
            ends: U32::new(self.ends.len() as u32),
            rest: [0; 52],
        };
        let mut bytes = raw.as_bytes().to_vec();
        for end in &self.ends {
            let (units, identity) = (U64::new(end.units), U64::new(end.identity));
            bytes.extend_from_slice(EndRaw { units, identity, reserved: U64::ZERO }.as_bytes());
        }
        seal(&mut bytes);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Manifest, FormatError> {
        let Ok((raw, rest)) = ManifestRaw::ref_from_prefix(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: HEADER_BYTES, got: bytes.len() });
        };
        verify(WHAT, MAGIC, bytes)?;
        let (number, claim, ends) = (raw.number.get(), raw.claim.get(), raw.ends.get());
        let blocks = raw.blocks.get();
        field(WHAT, "number", number, (1..NUMBER_END).contains(&number))?;
        field(WHAT, "claim", claim, (1..=CLAIM_MAX).contains(&claim))?;
        field(WHAT, "blocks", blocks, (1..=VOLUME_BLOCKS_MAX).contains(&blocks))?;
        let all = ends as usize <= ENDS_MAX && u64::from(ends) + 1 == claim;
        field(WHAT, "ends", u64::from(ends), all)?;
        let want = HEADER_BYTES + ends as usize * size_of::<EndRaw>();
        if bytes.len() != want {
            return Err(FormatError::Truncated { what: WHAT, want, got: bytes.len() });
        }
        let ends = rest.chunks_exact(size_of::<EndRaw>()).map(|piece| {
            let raw = EndRaw::ref_from_bytes(piece).expect("a piece is an end");
            let units = field(WHAT, "units", raw.units.get(), raw.units.get() <= NUMBER_END)?;
            Ok(End { units, identity: raw.identity.get() })
        });
        Ok(Manifest {
            uuid: raw.uuid,
            number,
            claim,
            nonce: raw.nonce.get(),
            time: raw.time.get(),
            blocks,
            ends: ends.collect::<Result<_, FormatError>>()?,
        })
    }
}
