//! Content of a file: pages, with holes where nothing was written.

use std::collections::BTreeMap;

const PAGE: u64 = 4096;

#[derive(Default)]
pub struct Content {
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Content {
    /// Bytes of memory.
    pub fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (at, piece) in pieces(offset, into.len()) {
            let part = &mut into[piece];
            match self.pages.get(&(at / PAGE)) {
                Some(page) => part.copy_from_slice(&page[(at % PAGE) as usize..][..part.len()]),
                None => part.fill(0),
            }
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, piece) in pieces(offset, data.len()) {
            let part = &data[piece];
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[(at % PAGE) as usize..][..part.len()].copy_from_slice(part);
        }
    }

    /// Makes a hole.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let (first, last) = (offset.div_ceil(PAGE), end / PAGE);
        // The whole pages go, the parts before and after them become zeros.
        if first < last {
            let mut inside = self.pages.split_off(&first);
            self.pages.append(&mut inside.split_off(&last));
        }
        self.zero(offset, end.min(first * PAGE));
        self.zero(offset.max(last * PAGE), end);
    }

    /// Zeros from `offset` to `end`, which lie in one page; holes stay holes.
    fn zero(&mut self, offset: u64, end: u64) {
        if offset < end
            && let Some(page) = self.pages.get_mut(&(offset / PAGE))
        {
            let start = (offset % PAGE) as usize;
            page[start..start + (end - offset) as usize].fill(0);
        }
    }

    pub fn truncate(&mut self, size: u64) {
        self.punch(size, u64::MAX - size);
    }

    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let (page, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(page * PAGE))
    }

    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut page = offset / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        offset.max(page * PAGE)
    }
}

/// Parts of `len` bytes at `offset` that lie in one page each: where in the file, and where in the buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let bytes = (len - done).min((PAGE - at % PAGE) as usize);
        let piece = done..done + bytes;
        done += bytes;
        Some((at, piece))
    })
}
