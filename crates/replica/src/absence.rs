//! [`Absence`]: which blocks of an image are not here yet, in memory and behind the image.
//!
//! A bit is set where a block is absent. In memory it is cleared when the block's content is written; behind the image
//! when that content is durable. So a crash makes blocks absent again that were here, and never the other way round.

use std::ops::Range;
use syncline_format::replica::{BLOCK_PARTS, PART_BLOCKS, PART_BYTES, Partial, decode_part, encode_part};
use syncline_format::{BLOCK_BYTES, FormatError};

/// A set of blocks, as bits.
#[derive(Clone)]
pub(crate) struct Bits {
    words: Vec<u64>,
    count: u64,
}

impl Bits {
    pub(crate) fn new(blocks: u64) -> Bits {
        Bits { words: vec![0; blocks.div_ceil(64) as usize], count: 0 }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.words[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    pub(crate) fn insert(&mut self, block: u64) {
        let word = &mut self.words[(block / 64) as usize];
        self.count += u64::from(*word >> (block % 64) & 1 == 0);
        *word |= 1 << (block % 64);
    }

    pub(crate) fn remove(&mut self, block: u64) {
        let word = &mut self.words[(block / 64) as usize];
        self.count -= u64::from(*word >> (block % 64) & 1 == 1);
        *word &= !(1 << (block % 64));
    }

    /// The first block of it in a range.
    pub(crate) fn first_in(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let rest = self.words[(at / 64) as usize] >> (at % 64);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros())).filter(|block| *block < range.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// The first block in a range that is not in it.
    pub(crate) fn first_out(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let rest = !self.words[(at / 64) as usize] >> (at % 64);
            if rest != 0 {
                return Some(at + u64::from(rest.trailing_zeros())).filter(|block| *block < range.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Its runs in a range, ascending.
    pub(crate) fn runs_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        let mut at = range.start;
        while let Some(start) = self.first_in(at..range.end) {
            let end = self.first_out(start..range.end).unwrap_or(range.end);
            runs.push(start..end);
            at = end;
        }
        runs
    }
}

/// Which blocks are absent.
pub(crate) struct Absence {
    partial: Partial,
    /// Their content is not on the local device.
    pub(crate) now: Bits,
    /// They are absent after a crash.
    pub(crate) stored: Bits,
}

impl Absence {
    /// These blocks are absent.
    pub(crate) fn new(partial: Partial, absent: Bits) -> Absence {
        Absence { partial, stored: absent.clone(), now: absent }
    }

    /// From the blocks of the map.
    ///
    /// # Errors
    /// A part of it is damaged.
    pub(crate) fn decode(partial: Partial, map: &[u8]) -> Result<Absence, FormatError> {
        let mut absent = Bits::new(partial.blocks);
        for (number, part) in (0..partial.parts()).zip(map.chunks(PART_BYTES)) {
            let first = number * PART_BLOCKS / 64;
            for (at, word) in (first as usize..).zip(decode_part(number, part)?) {
                if let Some(into) = absent.words.get_mut(at) {
                    *into = word;
                    absent.count += u64::from(word.count_ones());
                }
            }
        }
        Ok(Absence::new(partial, absent))
    }

    /// Block of the map that tells of a block of the volume.
    pub(crate) fn map_block(block: u64) -> u64 {
        block / PART_BLOCKS / BLOCK_PARTS
    }

    /// What a block of the map holds when this is durable.
    pub(crate) fn encode(&self, map_block: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        for number in map_block * BLOCK_PARTS..(map_block + 1) * BLOCK_PARTS {
            let words = (PART_BLOCKS / 64) as usize;
            let from = (number as usize * words).min(self.stored.words.len());
            let to = (from + words).min(self.stored.words.len());
            match number < self.partial.parts() {
                true => bytes.extend_from_slice(&encode_part(number, &self.stored.words[from..to])),
                false => bytes.extend_from_slice(&[0; PART_BYTES]),
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bits_are_a_set_and_come_back_from_the_map(
            blocks in prop::collection::btree_set(0u64..40_000, 0..200), gone in 0u64..40_000,
        ) {
            let partial = Partial { uuid: [1; 16], blocks: 40_000, claim: 1, unit: 0 };
            let mut bits = Bits::new(40_000);
            blocks.iter().for_each(|block| bits.insert(*block));
            bits.remove(gone);
            let left: BTreeSet<u64> = blocks.into_iter().filter(|block| *block != gone).collect();
            prop_assert_eq!(bits.count(), left.len() as u64);
            prop_assert_eq!(bits.first_in(0..40_000), left.first().copied());
            let runs: Vec<u64> = bits.runs_in(100..39_000).into_iter().flatten().collect();
            let inside: Vec<u64> = left.range(100..39_000).copied().collect();
            prop_assert_eq!(runs, inside);
            let absence = Absence::new(partial, bits);
            let map: Vec<u8> = (0..partial.map_blocks()).flat_map(|block| absence.encode(block)).collect();
            let again = Absence::decode(partial, &map).expect("what was encoded");
            prop_assert!(again.now.words == absence.now.words && again.now.count() == absence.now.count());
        }
    }
}
