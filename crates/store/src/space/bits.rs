//! Bit arithmetic on one group's bitmap.

use syncline_format::NODE_BLOCKS;
use syncline_format::bitmap::Bits;

/// One bit per chunk of a word: the chunk's first block.
const CHUNK_FIRST: u64 = 0x1111_1111_1111_1111;

pub(super) fn bit(bits: &Bits, index: usize) -> bool {
    bits[index / 64] >> (index % 64) & 1 == 1
}

/// The words of a run of bits, each with the run's part of it.
fn words(index: usize, len: u32) -> impl Iterator<Item = (usize, u64)> {
    let end = index + len as usize;
    (index / 64..end.div_ceil(64)).map(move |word| {
        let behind = u64::MAX << index.saturating_sub(word * 64);
        let before = u64::MAX >> (64 - (end - word * 64).min(64));
        (word, behind & before)
    })
}

pub(super) fn set_bits(bits: &mut Bits, index: usize, len: u32, value: bool) {
    for (number, mask) in words(index, len) {
        let word = &mut bits[number];
        let wrong = if value { *word & mask } else { !*word & mask };
        assert!(
            wrong == 0,
            "block {} of its group changes hands once",
            number * 64 + wrong.trailing_zeros() as usize
        );
        *word ^= mask;
    }
}

/// Whether all bits of the run have the value.
pub(super) fn all_bits(bits: &Bits, index: usize, len: u32, value: bool) -> bool {
    words(index, len).all(|(word, mask)| bits[word] & mask == if value { mask } else { 0 })
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

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_format::bitmap::BITMAP_WORDS;

    #[test]
    fn runs_of_bits_are_what_single_bits_make() {
        for index in [0, 1, 63, 64, 65, 100, 127] {
            for len in [1, 2, 63, 64, 65, 128, 129, 200] {
                let mut bits: Bits = [0; BITMAP_WORDS];
                set_bits(&mut bits, index, len, true);
                let run = index..index + len as usize;
                assert!((0..512).all(|i| bit(&bits, i) == run.contains(&i)), "{len} from {index}");
                assert!(all_bits(&bits, index, len, true) && !all_bits(&bits, index, len + 1, true));
                assert!(index == 0 || !all_bits(&bits, index - 1, len, true));
                assert!(all_bits(&bits, run.end, 200, false) && !all_bits(&bits, run.end - 1, 200, false));
                set_bits(&mut bits, index, len, false);
                assert!(bits.iter().all(|&word| word == 0), "{len} from {index}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "block 130 of its group changes hands once")]
    fn a_bit_that_is_set_already_is_not_set_again() {
        let mut bits: Bits = [0; BITMAP_WORDS];
        set_bits(&mut bits, 130, 1, true);
        set_bits(&mut bits, 60, 100, true);
    }
}
