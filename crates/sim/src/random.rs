//! Chance from a seed: SplitMix64 (Steele, Lea, Flood 2014), small enough to be read and the same on every machine.

/// A deterministic generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// The output function of SplitMix64: a bijection that scrambles well.
pub fn mix(value: u64) -> u64 {
    let mut z = value;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number for another purpose than `seed` itself, told apart by `salt`.
pub fn derive(seed: u64, salt: u64) -> u64 {
    mix(mix(seed ^ 0xA076_1D64_78BD_642F).wrapping_add(mix(salt.wrapping_add(0xE703_7ED1_A0B4_28DB))))
}
