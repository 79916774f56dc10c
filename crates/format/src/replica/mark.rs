//! The mark: what a volume says about its replica, in a block of its own that the engine does not use.

use super::{CLAIM_MAX, REPLICA_VERSION, field, seal, verify};
use crate::{BLOCK_BYTES, BlockNo, FormatError};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the mark lies: a reserved block in front of the journal.
pub const MARK_BLOCK: BlockNo = BlockNo(3);

const MAGIC: [u8; 4] = *b"SLRL";
const WHAT: &str = "replica's mark";

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct MarkRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    uuid: [u8; 16],
    claim: U64,
    nonce: U64,
    holds: U64,
    rest: [u8; 4040],
}

const _: () = assert!(size_of::<MarkRaw>() == BLOCK_BYTES);

/// Which claim a volume belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Of the volume: that of a volume made here earlier means nothing.
    pub uuid: [u8; 16],
    /// The last claim that is known to have written to it; 0 for none.
    pub claim: u64,
    /// Of the session that last meant to claim.
    pub nonce: u64,
    /// Identity of a unit: the volume was once what this unit has left, and has gone on from there; 0 for none.
    pub holds: u64,
}

impl Mark {
    pub fn encode(&self) -> Vec<u8> {
        let raw = MarkRaw {
            magic: MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            claim: U64::new(self.claim),
            nonce: U64::new(self.nonce),
            holds: U64::new(self.holds),
            rest: [0; 4040],
        };
        let mut bytes = raw.as_bytes().to_vec();
        seal(&mut bytes);
        bytes
    }

    /// The mark of the volume with this uuid; `None` if it has none.
    pub fn decode(bytes: &[u8], uuid: [u8; 16]) -> Result<Option<Mark>, FormatError> {
        let Ok(raw) = MarkRaw::ref_from_bytes(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: BLOCK_BYTES, got: bytes.len() });
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        verify(WHAT, MAGIC, bytes)?;
        let claim = field(WHAT, "claim", raw.claim.get(), raw.claim.get() <= CLAIM_MAX)?;
        let (nonce, holds) = (raw.nonce.get(), raw.holds.get());
        Ok((raw.uuid == uuid).then_some(Mark { uuid, claim, nonce, holds }))
    }
}
