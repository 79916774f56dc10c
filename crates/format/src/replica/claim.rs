//! Claims: who writes.

use super::{CLAIM_MAX, REPLICA_VERSION, field, seal, verify};
use crate::FormatError;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a claim.
pub const CLAIM_BYTES: usize = 192;
/// Longest name of a host that is kept, in bytes.
pub const HOST_BYTES_MAX: usize = 64;

const MAGIC: [u8; 4] = *b"SLRC";
const WHAT: &str = "claim";

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ClaimRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    uuid: [u8; 16],
    claim: U64,
    nonce: U64,
    time: U64,
    continued: U64,
    process: U32,
    host_bytes: u8,
    reserved_too: [u8; 3],
    host: [u8; HOST_BYTES_MAX],
    rest: [u8; 56],
}

const _: () = assert!(size_of::<ClaimRaw>() == CLAIM_BYTES);

/// Who writes from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub uuid: [u8; 16],
    pub claim: u64,
    /// Tells this session from any other.
    pub nonce: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// The claim that the volume was continued from; 0 for none.
    pub continued: u64,
    pub process: u32,
    /// The first 64 bytes of its name.
    pub host: String,
}

impl Claim {
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.host.len().min(HOST_BYTES_MAX);
        while !self.host.is_char_boundary(end) {
            end -= 1;
        }
        let mut host = [0; HOST_BYTES_MAX];
        host[..end].copy_from_slice(&self.host.as_bytes()[..end]);
        let raw = ClaimRaw {
            magic: MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            claim: U64::new(self.claim),
            nonce: U64::new(self.nonce),
            time: U64::new(self.time),
            continued: U64::new(self.continued),
            process: U32::new(self.process),
            host_bytes: end as u8,
            reserved_too: [0; 3],
            host,
            rest: [0; 56],
        };
        let mut bytes = raw.as_bytes().to_vec();
        seal(&mut bytes);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Claim, FormatError> {
        let Ok(raw) = ClaimRaw::ref_from_bytes(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: CLAIM_BYTES, got: bytes.len() });
        };
        verify(WHAT, MAGIC, bytes)?;
        let (claim, continued, host_bytes) = (raw.claim.get(), raw.continued.get(), raw.host_bytes);
        field(WHAT, "claim", claim, (1..=CLAIM_MAX).contains(&claim))?;
        field(WHAT, "continued", continued, continued < claim)?;
        field(WHAT, "length of the host", u64::from(host_bytes), host_bytes as usize <= HOST_BYTES_MAX)?;
        Ok(Claim {
            uuid: raw.uuid,
            claim,
            nonce: raw.nonce.get(),
            time: raw.time.get(),
            continued,
            process: raw.process.get(),
            host: String::from_utf8_lossy(&raw.host[..host_bytes as usize]).into_owned(),
        })
    }
}
