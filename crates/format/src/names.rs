//! How names become keys: the hash of a directory entry's or an extended attribute's name.

use crate::{FormatError, range};
use std::ops::Range;
use twox_hash::XxHash3_64;

/// Smallest key of a name: values below are the cookies of `.` and `..`.
pub const NAME_HASH_MIN: u64 = 16;
/// Largest hash of a [`NameHash::Seeded`] volume: what follows leaves its slots positive `i64`s (directory offsets are
/// signed).
pub const NAME_HASH_MAX: u64 = (i64::MAX as u64) - 16;
/// Slots of one name under [`NameHash::Seeded`].
pub const SEEDED_SLOTS: u64 = 8;
/// Slots of one name under [`NameHash::Keyed`].
pub const KEYED_SLOTS: u64 = 1 << 16;
/// Bits of the keyed hash that count in a volume that `mkfs` makes.
pub const NAME_BITS: u8 = 46;

/// What the hash of a volume's names is, and which slots it leaves them. A name lies in the first of its slots that was
/// free when it came. Entries never move, so a lookup reads all of them and compares names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameHash {
    /// Version 1, and what was upgraded from it: XXH3-64 under a seed. Who sees cookies can find names that collide.
    Seeded(u64),
    /// SipHash-2-4 under a secret key.
    Keyed(NameKey),
}

/// The key of a [`NameHash::Keyed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameKey {
    pub key: [u64; 2],
    /// Bits of the hash that count: [`NAME_BITS`]. Fewer make names collide, for tests.
    pub bits: u8,
}

impl NameKey {
    /// Errors: `Field`, bits out of range.
    pub(crate) fn checked(key: [u64; 2], bits: u8) -> Result<NameKey, FormatError> {
        Ok(NameKey { key, bits: range::SUPERBLOCK_NAME_BITS.check(u64::from(bits))? as u8 })
    }
}

impl NameHash {
    /// The first of a name's slots.
    pub fn first(&self, name: &[u8]) -> u64 {
        match self {
            NameHash::Seeded(seed) => {
                let hash = XxHash3_64::oneshot_with_seed(*seed, name) >> 1;
                hash.clamp(NAME_HASH_MIN, NAME_HASH_MAX)
            }
            NameHash::Keyed(NameKey { key, bits }) => {
                ((siphash(*key, name) >> (64 - bits)) + 1) * KEYED_SLOTS
            }
        }
    }

    /// The slots in which a name may lie.
    pub fn slots(&self, name: &[u8]) -> Range<u64> {
        let first = self.first(name);
        first..first + self.reach()
    }

    /// Slots of one name: two entries with the same name are less than that apart.
    pub fn reach(&self) -> u64 {
        match self {
            NameHash::Seeded(_) => SEEDED_SLOTS,
            NameHash::Keyed(_) => KEYED_SLOTS,
        }
    }
}

/// SipHash-2-4.
fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut take = |word: u64| {
        state[3] ^= word;
        rounds(&mut state, 2);
        state[0] ^= word;
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        take(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    take(u64::from_le_bytes(last));
    state[2] ^= 0xff;
    rounds(&mut state, 4);
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn rounds(v: &mut [u64; 4], count: usize) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keyed_hash_is_siphash_2_4() {
        // The first, the ninth and the last vector of the reference: bytes 0, 1, 2 ... under the key 0, 1 ... 15.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let bytes: Vec<u8> = (0..64).collect();
        let of = |length: usize| siphash(key, &bytes[..length]).to_le_bytes();
        assert_eq!(of(0), [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]);
        assert_eq!(of(8), [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
        assert_eq!(of(15), [0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1]);
    }

    #[test]
    fn version_1_keeps_its_hash() {
        let hash = NameHash::Seeded(7);
        let plain = XxHash3_64::oneshot_with_seed(7, b"name") >> 1;
        assert_eq!(hash.slots(b"name"), plain..plain + 8);
    }

    #[test]
    fn slots_of_different_hashes_lie_apart_and_within_their_range() {
        for bits in [1, 3, NAME_BITS] {
            let hash = NameHash::Keyed(NameKey { key: [1, 2], bits });
            for number in 0..1000_u32 {
                let slots = hash.slots(&number.to_le_bytes());
                assert!(slots.start.is_multiple_of(KEYED_SLOTS) && slots.end == slots.start + KEYED_SLOTS);
                let field = range::KEY_DIRENT_OFFSET;
                assert!(field.holds(slots.start) && field.holds(slots.end - 1));
            }
        }
        let most = ((u64::MAX >> (64 - NAME_BITS)) + 1) * KEYED_SLOTS + KEYED_SLOTS - 1;
        assert!(range::KEY_DIRENT_OFFSET.holds(most), "the last slot of the last hash");
        assert!(NameKey::checked([0; 2], 0).is_err() && NameKey::checked([0; 2], NAME_BITS + 1).is_err());
    }
}
