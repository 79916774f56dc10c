//! Takes values from the bytes of an input; what is missing at its end reads as zero.

pub struct Input<'a> {
    rest: &'a [u8],
}

/// Numbers at which arithmetic tends to break.
const EDGES: [u64; 14] = [
    u64::MAX,
    u64::MAX - 1,
    u64::MAX / 4096,
    i64::MAX as u64,
    i64::MAX as u64 - 15,
    1 << 62,
    (1 << 62) + 1,
    1 << 52,
    1 << 51,
    1 << 40,
    1 << 32,
    u32::MAX as u64,
    1 << 31,
    u16::MAX as u64,
];

impl<'a> Input<'a> {
    pub fn new(rest: &'a [u8]) -> Input<'a> {
        Input { rest }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((&byte, rest)) => {
                self.rest = rest;
                byte
            }
            None => 0,
        }
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Up to `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// A small number in one byte, one of the edges, or all eight bytes.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..0xe0 => u64::from(small),
            edge @ 0xe0..0xf0 => EDGES[usize::from(edge - 0xe0) % EDGES.len()],
            0xf0..0xf8 => u64::from(self.u16()),
            _ => {
                let mut bytes = [0; 8];
                bytes.iter_mut().for_each(|byte| *byte = self.byte());
                u64::from_le_bytes(bytes)
            }
        }
    }
}
