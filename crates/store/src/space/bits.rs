//! Bit arithmetic on one group's bitmap.

use syncline_format::NODE_BLOCKS;
use syncline_format::bitmap::Bits;

/// One bit per chunk of a word: the chunk's first block.
const CHUNK_FIRST: u64 = 0x1111_1111_1111_1111;

pub(super) fn bit(bits: &Bits, index: usize) -> bool {
    bits[index / 64] >> (index % 64) & 1 == 1
}

pub(super) fn set_bits(bits: &mut Bits, index: usize, len: u32, value: bool) {
    for i in index..index + len as usize {
        let mask = 1u64 << (i % 64);
        let word = &mut bits[i / 64];
        assert!((*word & mask != 0) != value, "block {i} of its group changes hands once");
        *word ^= mask;
    }
}

/// First bits of the chunks of a word that are wholly free.
pub(super) fn free_chunks(word: u64) -> u64 {
    let free = !word;
    free & (free >> 1) & (free >> 2) & (free >> 3) & CHUNK_FIRST
}

/// Blocks of a word's wholly free chunks.
fn free_chunk_blocks(word: u64) -> u64 {
    free_chunks(word) * 0xF
}

pub(super) fn chunk_count(bits: &Bits, index: usize, len: u32) -> u32 {
    let (first, last) = (index / 64, (index + len as usize - 1) / 64);
    bits[first..=last].iter().map(|w| free_chunks(*w).count_ones()).sum()
}

/// The next free block in `at..end`; `partial_only`: outside of wholly free chunks.
pub(super) fn next_free(bits: &Bits, at: usize, end: usize, partial_only: bool) -> Option<usize> {
    for (word, &used) in bits.iter().enumerate().skip(at / 64) {
        let mut free = !used;
        if partial_only {
            free &= !free_chunk_blocks(used);
        }
        if word == at / 64 {
            free &= u64::MAX << (at % 64);
        }
        if free != 0 {
            let index = word * 64 + free.trailing_zeros() as usize;
            return (index < end).then_some(index);
        }
    }
    None
}

/// End of the free run at `start`, at most `end`.
pub(super) fn free_end(bits: &Bits, start: usize, end: usize) -> usize {
    for (word, &used) in bits.iter().enumerate().skip(start / 64) {
        let used = if word == start / 64 { used & u64::MAX << (start % 64) } else { used };
        if used != 0 {
            return end.min(word * 64 + used.trailing_zeros() as usize);
        }
    }
    end
}

/// Length of the free run at `start`, at most `want`, breaking at most `spare_chunks` wholly free chunks.
pub(super) fn run_length(bits: &Bits, start: usize, end: usize, want: u32, spare_chunks: u64) -> u32 {
    let mut broken = 0;
    let mut last_chunk = usize::MAX;
    let mut len = 0;
    while len < want {
        let index = start + len as usize;
        if index >= end || bit(bits, index) {
            break;
        }
        let chunk = index / NODE_BLOCKS as usize;
        if chunk != last_chunk {
            let word = bits[index / 64];
            if free_chunks(word) >> (index % 64 / 4 * 4) & 1 == 1 {
                if broken == spare_chunks {
                    break;
                }
                broken += 1;
            }
            last_chunk = chunk;
        }
        len += 1;
    }
    len
}
