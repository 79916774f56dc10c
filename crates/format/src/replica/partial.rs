//! An image that is not all here yet: what lies behind its volume until all of it was fetched.

use super::{CLAIM_MAX, NUMBER_END, REPLICA_VERSION, field, seal, verify};
use crate::range::SUPERBLOCK_BLOCKS;
use crate::superblock::SUPERBLOCK_SLOTS;
use crate::{BLOCK_BYTES, BlockNo, FormatError, checksum};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the end of such an image begins with, and the places of its superblocks.
pub const PARTIAL_MAGIC: [u8; 4] = *b"SLRP";
const WHAT: &str = "partial image's end";

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct PartialRaw {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    checksum: U64,
    uuid: [u8; 16],
    blocks: U64,
    claim: U64,
    unit: U64,
    rest: [u8; 4040],
}

const _: () = assert!(size_of::<PartialRaw>() == BLOCK_BYTES);

/// Bytes of a part of the map of what is absent: what a device writes whole or not at all.
pub const PART_BYTES: usize = 512;
/// Blocks that one part tells of.
pub const PART_BLOCKS: u64 = (PART_BYTES as u64 - 16) * 8;
/// Parts in a block.
pub const BLOCK_PARTS: u64 = (BLOCK_BYTES / PART_BYTES) as u64;

/// What an image is to become: a volume as it was at one position of its replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    pub uuid: [u8; 16],
    /// Of the volume.
    pub blocks: u64,
    /// What is absent is fetched as it was behind this unit of this claim.
    pub claim: u64,
    pub unit: u64,
}

impl Partial {
    /// Blocks whose content lies aside until everything is here, so that nobody takes the image for a volume.
    pub fn aside(&self) -> [BlockNo; 4] {
        let [first, second] = SUPERBLOCK_SLOTS;
        [first, second, BlockNo(self.blocks - 2), BlockNo(self.blocks - 1)]
    }

    /// Where the content of a block lies that is aside, behind the volume.
    pub fn place_aside(&self, block: BlockNo) -> Option<BlockNo> {
        let number = self.aside().iter().position(|aside| *aside == block)?;
        Some(BlockNo(self.blocks + number as u64))
    }

    /// Parts of the map.
    pub fn parts(&self) -> u64 {
        self.blocks.div_ceil(PART_BLOCKS)
    }

    /// First block of the map.
    pub fn map_start(&self) -> BlockNo {
        BlockNo(self.blocks + self.aside().len() as u64)
    }

    /// Blocks of the map.
    pub fn map_blocks(&self) -> u64 {
        self.parts().div_ceil(BLOCK_PARTS)
    }

    /// Where this is written: the last block of the image.
    pub fn end(&self) -> BlockNo {
        BlockNo(self.map_start().0 + self.map_blocks())
    }

    pub fn encode(&self) -> Vec<u8> {
        let raw = PartialRaw {
            magic: PARTIAL_MAGIC,
            version: U16::new(REPLICA_VERSION),
            reserved: U16::ZERO,
            checksum: U64::ZERO,
            uuid: self.uuid,
            blocks: U64::new(self.blocks),
            claim: U64::new(self.claim),
            unit: U64::new(self.unit),
            rest: [0; 4040],
        };
        let mut bytes = raw.as_bytes().to_vec();
        seal(&mut bytes);
        bytes
    }

    /// From the last of the image's blocks. `None`: the image is none of these.
    ///
    /// # Errors
    /// It is one, and says what cannot be.
    pub fn decode(bytes: &[u8], image_blocks: u64) -> Result<Option<Partial>, FormatError> {
        let Ok(raw) = PartialRaw::ref_from_bytes(bytes) else {
            return Err(FormatError::Truncated { what: WHAT, want: BLOCK_BYTES, got: bytes.len() });
        };
        if raw.magic != PARTIAL_MAGIC {
            return Ok(None);
        }
        verify(WHAT, PARTIAL_MAGIC, bytes)?;
        let blocks = raw.blocks.get();
        field(WHAT, "blocks", blocks, SUPERBLOCK_BLOCKS.holds(blocks))?;
        let claim = field(WHAT, "claim", raw.claim.get(), (1..=CLAIM_MAX).contains(&raw.claim.get()))?;
        let unit = field(WHAT, "unit", raw.unit.get(), raw.unit.get() < NUMBER_END)?;
        let partial = Partial { uuid: raw.uuid, blocks, claim, unit };
        field(WHAT, "blocks", blocks, partial.end().0 + 1 == image_blocks)?;
        Ok(Some(partial))
    }
}

/// One part of the map: a bit for each block, set where it is absent.
pub fn encode_part(number: u64, bits: &[u64]) -> [u8; PART_BYTES] {
    let mut part = [0; PART_BYTES];
    for (word, into) in bits.iter().zip(part[16..].chunks_exact_mut(8)) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    part[8..16].copy_from_slice(&number.to_le_bytes());
    let sum = checksum(&part[8..]);
    part[..8].copy_from_slice(&sum.to_le_bytes());
    part
}

/// The bits of a part, as [`encode_part`] took them.
pub fn decode_part(number: u64, part: &[u8]) -> Result<Vec<u64>, FormatError> {
    const WHAT: &str = "map of a partial image";
    if part.len() != PART_BYTES {
        return Err(FormatError::Truncated { what: WHAT, want: PART_BYTES, got: part.len() });
    }
    let word = |at: usize| u64::from_le_bytes(part[at..at + 8].try_into().expect("eight bytes"));
    let (want, got) = (word(0), checksum(&part[8..]));
    if want != got {
        return Err(FormatError::Checksum { what: WHAT, want, got });
    }
    field(WHAT, "number of a part", word(8), word(8) == number)?;
    Ok((16..PART_BYTES).step_by(8).map(word).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_says_what_it_was_made_of_and_nothing_else_is_taken_for_one() {
        let partial = Partial { uuid: [3; 16], blocks: 40_000, claim: 7, unit: 9 };
        let bytes = partial.encode();
        let blocks = partial.end().0 + 1;
        assert_eq!(blocks, 40_000 + 4 + 2 + 1);
        assert_eq!(Partial::decode(&bytes, blocks), Ok(Some(partial)));
        assert!(Partial::decode(&bytes, blocks + 1).is_err(), "the image was lengthened");
        assert_eq!(Partial::decode(&[0; BLOCK_BYTES], blocks), Ok(None));
        for at in [4, 20, 33, 41, 49, 4095] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Partial::decode(&damaged, blocks).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_part_of_the_map_comes_back_or_is_refused() {
        let bits: Vec<u64> = (0..PART_BLOCKS / 64).map(|word| word.wrapping_mul(0x9e37_79b9)).collect();
        let part = encode_part(5, &bits);
        assert_eq!(decode_part(5, &part), Ok(bits));
        assert!(decode_part(4, &part).is_err(), "another part");
        for at in [0, 8, 16, 511] {
            let mut damaged = part;
            damaged[at] ^= 1;
            assert!(decode_part(5, &damaged).is_err(), "byte {at}");
        }
    }
}
