//! Content of a file, page by page. Clones share their pages, and pages of zeros take no memory: the laboratory keeps
//! many moments of one file, which differ in few of them.

use crate::oracle::PAGE;
use std::sync::Arc;

type Bytes = [u8; PAGE as usize];

static ZEROS: Bytes = [0; PAGE as usize];

/// A page: zeros, or what is in it. It is whole; behind the end of the file there are zeros.
#[derive(Debug, Clone, Default)]
pub struct Page(Option<Arc<Bytes>>);

impl PartialEq for Page {
    fn eq(&self, other: &Page) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Page {}

impl Page {
    /// What begins with `bytes`, and has zeros behind them.
    fn new(bytes: &[u8]) -> Page {
        if bytes == &ZEROS[..bytes.len()] {
            return Page(None);
        }
        let mut page = [0; PAGE as usize];
        page[..bytes.len()].copy_from_slice(bytes);
        Page(Some(Arc::new(page)))
    }

    pub fn bytes(&self) -> &Bytes {
        self.0.as_deref().unwrap_or(&ZEROS)
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    /// Changes it; what has become all zeros is known as that.
    pub fn change(&mut self, change: impl FnOnce(&mut Bytes)) {
        let mut bytes = *self.bytes();
        change(&mut bytes);
        *self = Page::new(&bytes);
    }
}

/// What a file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: Vec<Page>,
}

impl Content {
    pub fn new(bytes: &[u8]) -> Content {
        Content { size: bytes.len() as u64, pages: bytes.chunks(PAGE as usize).map(Page::new).collect() }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// Zeros behind the end.
    pub fn page(&self, page: u64) -> Page {
        self.pages.get(page as usize).cloned().unwrap_or_default()
    }

    pub fn to_vec(&self) -> Vec<u8> {
        self.range(0, self.size)
    }

    pub fn range(&self, from: u64, end: u64) -> Vec<u8> {
        let (from, end) = (from.min(self.size), end.min(self.size));
        let mut bytes = Vec::with_capacity((end - from) as usize);
        let mut at = from;
        while at < end {
            let (first, until) = ((at % PAGE) as usize, end.min((at / PAGE + 1) * PAGE));
            let page = self.page(at / PAGE);
            bytes.extend_from_slice(&page.bytes()[first..first + (until - at) as usize]);
            at = until;
        }
        bytes
    }

    /// The first byte that is not the same in both, or that only one of them has.
    pub fn difference(&self, other: &Content) -> Option<u64> {
        let ends = (self.size != other.size).then(|| self.size.min(other.size));
        let pages =
            (0..self.pages.len().min(other.pages.len())).find(|at| self.pages[*at] != other.pages[*at]);
        let bytes = pages.and_then(|page| {
            let pairs = self.pages[page].bytes().iter().zip(other.pages[page].bytes());
            Some(page as u64 * PAGE + pairs.into_iter().position(|(one, other)| one != other)? as u64)
        });
        [ends, bytes].into_iter().flatten().min()
    }

    /// Cuts it off, or has zeros follow.
    pub fn resize(&mut self, len: u64) {
        self.pages.resize_with(len.div_ceil(PAGE) as usize, Page::default);
        if len < self.size && !len.is_multiple_of(PAGE) {
            self.pages[(len / PAGE) as usize].change(|page| page[(len % PAGE) as usize..].fill(0));
        }
        self.size = len;
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if self.size < end {
            self.resize(end);
        }
        let mut at = offset;
        while at < end {
            let until = end.min((at / PAGE + 1) * PAGE);
            let new = &bytes[(at - offset) as usize..(until - offset) as usize];
            let first = (at % PAGE) as usize;
            let page = &mut self.pages[(at / PAGE) as usize];
            match new.len() as u64 == PAGE {
                true => *page = Page::new(new),
                false => page.change(|page| page[first..first + new.len()].copy_from_slice(new)),
            }
            at = until;
        }
    }

    /// Zeroes what of the range there is.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = self.size.min(offset + len);
        let mut at = offset;
        while at < end {
            let until = end.min((at / PAGE + 1) * PAGE);
            let first = (at % PAGE) as usize;
            self.pages[(at / PAGE) as usize]
                .change(|page| page[first..first + (until - at) as usize].fill(0));
            at = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn content_is_what_a_vector_of_bytes_is() {
        let mut random = Random::new(5);
        let (mut content, mut bytes) = (Content::default(), Vec::new());
        for fill in 0..2000u64 {
            let (at, len) = (random.below(30_000), random.below(9000));
            match random.below(3) {
                0 => {
                    let new = vec![fill as u8; len as usize];
                    bytes.resize(bytes.len().max((at + len) as usize), 0);
                    bytes[at as usize..(at + len) as usize].copy_from_slice(&new);
                    content.write(at, &new);
                }
                1 => {
                    let end = bytes.len().min((at + len) as usize);
                    bytes[end.min(at as usize)..end].fill(0);
                    content.zero(at, len);
                }
                _ => {
                    bytes.resize(at as usize, 0);
                    content.resize(at);
                }
            }
            assert_eq!((content.size(), content.to_vec()), (bytes.len() as u64, bytes.clone()));
            let (from, end) = (at.min(content.size()), (at + len).min(content.size()));
            assert_eq!(content.range(at, at + len), bytes[from as usize..end as usize]);
            assert_eq!(content, Content::new(&bytes));
            let mut longer = content.clone();
            longer.write(content.size() + 5, &[1]);
            assert_eq!(
                (content.difference(&content), content.difference(&longer)),
                (None, Some(content.size()))
            );
            if let Some(last) = bytes.len().checked_sub(1) {
                bytes[last] ^= 1;
                assert_eq!(content.difference(&Content::new(&bytes)), Some(content.size() - 1));
                bytes[last] ^= 1;
            }
            assert_eq!(content.pages.len() as u64, content.size().div_ceil(PAGE));
        }
    }
}
