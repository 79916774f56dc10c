//! Objects of a replica: units, claims, manifests (`docs/replication-format.md`, section 3).
//!
//! Decoders take what anybody may have put into a store: every count is held against its range and against the length
//! of what is there before memory is taken for it.

mod claim;
mod manifest;
mod mark;
mod partial;
mod unit;

pub use claim::{CLAIM_BYTES, Claim, HOST_BYTES_MAX};
pub use manifest::{ENDS_MAX, End, Keep, Manifest, PACKS_MAX, Pack, Recent};
pub use mark::{MARK_BLOCK, Mark};
pub use partial::{BLOCK_PARTS, PART_BLOCKS, PART_BYTES, PARTIAL_MAGIC, Partial, decode_part, encode_part};
pub use unit::{
    DATA_BLOCKS_MAX, FOOTER_BYTES, FRAME_BLOCKS, Flags, Footer, Frame, Index, Run, RunKind,
    UNIT_HEADER_BYTES, UnitHeader,
};

use crate::{FormatError, checksum};

/// Version of all objects that this crate writes but manifests.
pub const REPLICA_VERSION: u16 = 1;
/// Version of the manifests that this crate writes. Those of version 1 name no packs.
pub const MANIFEST_VERSION: u16 = 2;
/// Claims are numbered from 1 to this.
pub const CLAIM_MAX: u64 = u32::MAX as u64;
/// Units of a claim, and manifests, have numbers below this.
pub const NUMBER_END: u64 = 1 << 40;
/// Checksums of fixed parts cover the bytes from here on.
const COVERED_FROM: usize = 16;

fn field(what: &'static str, field: &'static str, value: u64, holds: bool) -> Result<u64, FormatError> {
    if holds { Ok(value) } else { Err(FormatError::Field { what, field, value }) }
}

/// Verifies the first 16 bytes of a fixed part: magic, version, and the checksum of the rest.
fn verify(what: &'static str, magic: [u8; 4], bytes: &[u8]) -> Result<(), FormatError> {
    verify_upto(what, magic, REPLICA_VERSION, bytes).map(drop)
}

/// The same where versions up to `newest` are known; the version.
fn verify_upto(what: &'static str, magic: [u8; 4], newest: u16, bytes: &[u8]) -> Result<u16, FormatError> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if bytes.len() < COVERED_FROM {
        return Err(FormatError::Truncated { what, want: COVERED_FROM, got: bytes.len() });
    }
    if bytes[..4] != magic {
        return Err(FormatError::Magic { what, got: number(0) & 0xffff_ffff });
    }
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    if !(1..=newest).contains(&version) {
        return Err(FormatError::Version { what, got: version });
    }
    let (want, got) = (number(8), checksum(&bytes[COVERED_FROM..]));
    if want != got {
        return Err(FormatError::Checksum { what, want, got });
    }
    Ok(version)
}

/// Writes the checksum of a fixed part into it, and returns it.
fn seal(bytes: &mut [u8]) -> u64 {
    let sum = checksum(&bytes[COVERED_FROM..]);
    bytes[8..COVERED_FROM].copy_from_slice(&sum.to_le_bytes());
    sum
}
