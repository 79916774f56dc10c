//! Allocation bitmaps: one block per slot, two slots per group, written in turn.

use crate::header::{self, BlockHeader, HEADER_BYTES, MAGIC_BITMAP, VolumeId};
use crate::layout::{GROUP_HEAD_BLOCKS, Layout};
use crate::{BLOCK_BYTES, BlockNo, FormatError, Generation, GroupNo};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A bitmap slot as stored. A set bit is a block in use; bits beyond the group's end are set.
#[repr(C)]
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct BitmapRaw {
    header: BlockHeader,
    group: U32,
    free: U32,
    reserved: [u8; 16],
    bits: [u8; BITMAP_BYTES],
}

const _: () = assert!(size_of::<BitmapRaw>() == BLOCK_BYTES);

/// Bytes of bits in a slot.
pub const BITMAP_BYTES: usize = 4032;
/// 64-bit words of bits in a slot.
pub const BITMAP_WORDS: usize = BITMAP_BYTES / 8;
/// Blocks per group, its two slots included.
pub const GROUP_BLOCKS_MAX: u64 = (BITMAP_BYTES * 8) as u64;

const _: () = assert!(GROUP_BLOCKS_MAX.is_multiple_of(crate::NODE_BLOCKS as u64));

/// Bits of one group, as 64-bit words; bit `i` of word `w` is block `64 * w + i` of the group.
pub type Bits = [u64; BITMAP_WORDS];

/// The slot's bytes for the given address.
pub fn encode(
    bits: &Bits,
    group: GroupNo,
    block: BlockNo,
    generation: Generation,
    volume: VolumeId,
) -> Vec<u8> {
    let mut raw = BitmapRaw::new_zeroed();
    raw.header = BlockHeader::new(MAGIC_BITMAP, block, generation, volume);
    raw.group = U32::new(group.0);
    raw.free = U32::new(bits.iter().map(|word| word.count_zeros()).sum());
    for (out, word) in raw.bits.chunks_exact_mut(8).zip(bits) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    let mut bytes = raw.as_bytes().to_vec();
    header::seal(&mut bytes);
    bytes
}

/// The generation of a slot of zeros, in which nothing is in use. No checkpoint has it.
pub const UNWRITTEN: Generation = Generation(0);

/// Whether nobody has ever written the slot.
pub fn is_unwritten(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Bits of a group in which nothing but its two slots is in use.
pub fn empty_bits(layout: &Layout, group: GroupNo) -> Bits {
    let mut bits = [0; BITMAP_WORDS];
    bits[0] = (1 << GROUP_HEAD_BLOCKS) - 1;
    let (whole, rest) = (layout.group_len(group) as usize / 64, layout.group_len(group) % 64);
    bits[whole..].fill(u64::MAX);
    if rest > 0 {
        bits[whole] <<= rest;
    }
    bits
}

/// Checks one slot and returns its generation and bits.
pub fn decode(
    bytes: &[u8],
    group: GroupNo,
    block: BlockNo,
    volume: VolumeId,
) -> Result<(Generation, Box<Bits>), FormatError> {
    const WHAT: &str = "bitmap";
    let Ok((raw, _)) = BitmapRaw::ref_from_prefix(bytes) else {
        return Err(FormatError::Truncated { what: WHAT, want: BLOCK_BYTES, got: bytes.len() });
    };
    let header = header::verify(WHAT, MAGIC_BITMAP, &bytes[..BLOCK_BYTES], block, volume)?;
    if raw.group.get() != group.0 {
        return Err(FormatError::Field { what: WHAT, field: "group", value: u64::from(raw.group.get()) });
    }
    let mut bits = Box::new([0; BITMAP_WORDS]);
    for (word, bytes) in bits.iter_mut().zip(raw.bits.chunks_exact(8)) {
        *word = u64::from_le_bytes(crate::key::array(bytes));
    }
    Ok((header.generation(), bits))
}

/// Whether a slot that does not verify may be the one that counts, so that the other one, which verifies and has the
/// generation `other`, may call blocks free that are in use.
///
/// A power cut tears the slot that does not count, and leaves its header whole: that of a checkpoint that came to no
/// superblock, one older than `other`, or zeros where nothing was written before. Any other damage tells nothing,
/// unless `other` is the superblock's generation.
pub fn may_count(
    bytes: &[u8],
    at: BlockNo,
    volume: VolumeId,
    superblock: Generation,
    other: Generation,
) -> bool {
    let is_unwritten = bytes[..HEADER_BYTES].iter().all(|&byte| byte == 0);
    if other == superblock || is_unwritten {
        return false;
    }
    match header::peek("bitmap", bytes) {
        Ok(found)
            if (found.magic.get(), found.block.get(), found.volume.get())
                == (MAGIC_BITMAP, at.0, volume.0) =>
        {
            found.generation() > other && found.generation() <= superblock
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_head_and_what_is_beyond_an_empty_group_is_in_use() {
        for blocks in [1024, 40_000, 2 * GROUP_BLOCKS_MAX + 16 + 64 + 2] {
            let layout = Layout::new(blocks, Some(64)).expect("valid");
            for group in (0..layout.group_count()).map(GroupNo) {
                let bits = empty_bits(&layout, group);
                for index in 0..BITMAP_BYTES * 8 {
                    let is_used = bits[index / 64] >> (index % 64) & 1 != 0;
                    let want =
                        index < GROUP_HEAD_BLOCKS as usize || index >= layout.group_len(group) as usize;
                    assert_eq!(is_used, want, "block {index} of group {group}");
                }
            }
        }
    }

    #[test]
    fn a_damaged_slot_counts_unless_a_cut_can_have_torn_it_or_the_other_one_is_as_new_as_the_superblock() {
        let (at, volume) = (BlockNo(81), VolumeId(7));
        let slot = |generation: u64| {
            let mut bytes = vec![0; BLOCK_BYTES];
            let header = BlockHeader::new(MAGIC_BITMAP, at, Generation(generation), volume);
            bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
            bytes
        };
        let may_count =
            |bytes: &[u8], other: u64| may_count(bytes, at, volume, Generation(9), Generation(other));
        assert!(may_count(&slot(8), 5) && may_count(&slot(9), 5), "newer than the other one, and completed");
        assert!(!may_count(&slot(10), 5), "of a checkpoint that was never completed");
        assert!(!may_count(&slot(4), 5), "older than the other one");
        assert!(
            !may_count(&slot(8), 9) && !may_count(&[0xff; BLOCK_BYTES], 9),
            "none is newer than the superblock"
        );
        assert!(may_count(&[0xff; BLOCK_BYTES], 5), "it tells nothing");
        let mut torn = [0; BLOCK_BYTES];
        torn[512..].fill(0xff);
        assert!(!may_count(&torn, 5), "the first write of this slot");
    }
}
