//! The header that every self-describing structure begins with.

use crate::{BlockNo, FORMAT_VERSION, FormatError, Generation, checksum};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of the volume's UUID: a block left by an earlier `mkfs` never passes for one of this volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VolumeId(pub u64);

/// Common header: magic, version, checksum, own address, generation, volume.
///
/// The checksum covers every byte of the structure behind the checksum field (offset 16 to its end).
#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BlockHeader {
    pub magic: U32,
    pub version: U16,
    pub reserved: U16,
    pub checksum: U64,
    pub block: U64,
    pub generation: U64,
    pub volume: U64,
}

const _: () = assert!(size_of::<BlockHeader>() == HEADER_BYTES);

/// Size of [`BlockHeader`].
pub const HEADER_BYTES: usize = 40;
/// The checksum covers bytes from here on.
pub const CHECKSUM_START: usize = 16;

/// Magic of a bitmap slot, "SLBM".
pub const MAGIC_BITMAP: u32 = u32::from_le_bytes(*b"SLBM");
/// Magic of a tree node, "SLND".
pub const MAGIC_NODE: u32 = u32::from_le_bytes(*b"SLND");
/// Magic of a journal record, "SLJR".
pub const MAGIC_RECORD: u32 = u32::from_le_bytes(*b"SLJR");

impl BlockHeader {
    /// Header of a structure about to be sealed.
    pub fn new(magic: u32, block: BlockNo, generation: Generation, volume: VolumeId) -> BlockHeader {
        BlockHeader {
            magic: U32::new(magic),
            version: U16::new(FORMAT_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            block: U64::new(block.0),
            generation: U64::new(generation.0),
            volume: U64::new(volume.0),
        }
    }

    pub fn generation(&self) -> Generation {
        Generation(self.generation.get())
    }
}

/// Computes the checksum of a complete structure and stores it in its header; returns it.
pub fn seal(bytes: &mut [u8]) -> u64 {
    let sum = checksum(&bytes[CHECKSUM_START..]);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Reads the header without verifying anything but the length.
pub fn peek(what: &'static str, bytes: &[u8]) -> Result<BlockHeader, FormatError> {
    match BlockHeader::read_from_prefix(bytes) {
        Ok((header, _)) => Ok(header),
        Err(_) => Err(FormatError::Truncated { what, want: HEADER_BYTES, got: bytes.len() }),
    }
}

/// Verifies magic, version, checksum, address and volume of a whole structure.
pub fn verify(
    what: &'static str,
    magic: u32,
    bytes: &[u8],
    at: BlockNo,
    volume: VolumeId,
) -> Result<BlockHeader, FormatError> {
    let header = peek(what, bytes)?;
    if header.magic.get() != magic {
        return Err(FormatError::Magic { what, got: u64::from(header.magic.get()) });
    }
    if header.version.get() != FORMAT_VERSION {
        return Err(FormatError::Version { what, got: header.version.get() });
    }
    let got = checksum(&bytes[CHECKSUM_START..]);
    if header.checksum.get() != got {
        return Err(FormatError::Checksum { what, want: header.checksum.get(), got });
    }
    if header.block.get() != at.0 {
        return Err(FormatError::Address { what, want: at, got: BlockNo(header.block.get()) });
    }
    if header.volume.get() != volume.0 {
        return Err(FormatError::ForeignVolume { what });
    }
    Ok(header)
}
