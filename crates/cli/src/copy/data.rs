//! A file's data on its way: holes left out, what changes meanwhile noticed, what is damaged set aside.

use super::side::{Node, Reading, Xattrs};
use indicatif::ProgressBar;
use std::io;
use std::ops::Range;
use syncline_fuse::signals;

/// Bytes of a file copied at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Unit of what can be damaged.
const PAGE_BYTES: u64 = 4096;
/// Files that the kernel makes up as they are read have no size. One that has more than this has no end either.
const WITHOUT_SIZE_BYTES_MAX: u64 = 1 << 30;

/// What a copy took over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopiedData {
    /// Bytes, without holes.
    pub(crate) bytes: u64,
    /// The size that the copy is to have: the file's, unless it ended before.
    pub(crate) size: u64,
}

/// Copies a file's data, leaving holes out. A file that says it is empty is read to its end all the same.
pub(crate) fn copy_data(
    size: u64,
    from: &mut dyn Reading,
    write: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<CopiedData> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut copied = 0;
    let mut offset = 0;
    let without_size = size == 0;
    let limit = if without_size { WITHOUT_SIZE_BYTES_MAX } else { size };
    loop {
        let run = match without_size {
            true => Some(offset..limit),
            false => from.next_data(offset, size)?,
        };
        let Some(run) = run else { return Ok(CopiedData { bytes: copied, size }) };
        let mut at = run.start;
        while at < run.end {
            let want = usize::try_from(run.end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let count = from.read_at(&mut buffer[..want], at)?;
            if count == 0 {
                return Ok(CopiedData { bytes: copied, size: at });
            }
            write(&buffer[..count], at)?;
            at += count as u64;
            copied += count as u64;
        }
        if without_size {
            return Err(io::Error::other("it says that it is empty, and has no end"));
        }
        offset = run.end;
    }
}

/// A file being read: counts for the progress bar, remembers which side of a copy has failed, and ends when the
/// command is to.
pub(crate) struct Watched<'a> {
    content: Box<dyn Reading>,
    bar: &'a ProgressBar,
    pub(crate) failed: bool,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(content: Box<dyn Reading>, bar: &'a ProgressBar) -> Watched<'a> {
        Watched { content, bar, failed: false }
    }

    fn note<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        self.failed |= result.is_err();
        result
    }
}

impl Reading for Watched<'_> {
    fn node(&self) -> io::Result<Node> {
        self.content.node()
    }

    fn xattrs(&self) -> io::Result<Xattrs> {
        self.content.xattrs()
    }

    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        let result = self.content.next_data(offset, size);
        self.note(result)
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        if signals::received().is_some() {
            return self.note(Err(io::ErrorKind::Interrupted.into()));
        }
        let result = self.content.read_at(into, offset);
        self.bar.inc(*result.as_ref().unwrap_or(&0) as u64);
        self.note(result)
    }
}

/// Bytes of a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) bytes: Range<u64>,
    /// What the first read of them said.
    pub(crate) why: String,
}

/// A file of which everything is read that can be. What cannot is zeros, and is listed.
pub(crate) struct Salvaged<'a, 'b> {
    content: &'a mut Watched<'b>,
    size: u64,
    /// Up to here one page is read at a time: there is a bad one.
    careful_until: u64,
    pub(crate) lost: Vec<Lost>,
}

impl<'a, 'b> Salvaged<'a, 'b> {
    pub(crate) fn new(content: &'a mut Watched<'b>, size: u64) -> Salvaged<'a, 'b> {
        Salvaged { content, size, careful_until: 0, lost: Vec::new() }
    }

    fn lose(&mut self, bytes: Range<u64>, why: &io::Error) {
        match self.lost.last_mut() {
            Some(last) if last.bytes.end >= bytes.start => last.bytes.end = last.bytes.end.max(bytes.end),
            _ => self.lost.push(Lost { bytes, why: why.to_string() }),
        }
    }

    /// Where something can be read again, behind a place where nobody knows what is there: a whole node of extents is
    /// gone. The steps grow with the distance, so that few are needed, and the last one is halved until it is a page.
    fn readable_from(&mut self, start: u64) -> u64 {
        let (mut bad, mut step) = (start, PAGE_BYTES);
        let good = loop {
            let next = bad.saturating_add(step);
            if next >= self.size {
                break self.size;
            }
            if self.content.next_data(next, self.size).is_ok() {
                break next;
            }
            bad = next;
            step = ((next - start) / 64).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        };
        let mut good = good;
        while good - bad > PAGE_BYTES {
            let middle = bad + ((good - bad) / 2).next_multiple_of(PAGE_BYTES);
            if middle >= good {
                break;
            }
            match self.content.next_data(middle, self.size) {
                Ok(_) => good = middle,
                Err(_) => bad = middle,
            }
        }
        good
    }

    /// A failed read is this file's damage, and no failure of the copy, unless the command is to end.
    fn forgive(&mut self) {
        self.content.failed = signals::received().is_some();
    }

    pub(crate) fn failed(&self) -> bool {
        self.content.failed
    }
}

impl Reading for Salvaged<'_, '_> {
    fn node(&self) -> io::Result<Node> {
        self.content.node()
    }

    fn xattrs(&self) -> io::Result<Xattrs> {
        self.content.xattrs()
    }

    fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
        let mut offset = offset;
        loop {
            match self.content.next_data(offset, size) {
                Err(error) if signals::received().is_none() => {
                    let end = self.readable_from(offset);
                    self.lose(offset..end, &error);
                    self.forgive();
                    if end >= size {
                        return Ok(None);
                    }
                    offset = end;
                }
                result => return result,
            }
        }
    }

    fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let page = usize::try_from(PAGE_BYTES - offset % PAGE_BYTES).unwrap_or(into.len()).min(into.len());
        let want = if offset < self.careful_until { page } else { into.len() };
        let error = match self.content.read_at(&mut into[..want], offset) {
            Err(error) if signals::received().is_none() => error,
            result => return result,
        };
        self.forgive();
        if want > page {
            self.careful_until = offset + want as u64;
            return self.read_at(&mut into[..page], offset);
        }
        into[..page].fill(0);
        self.lose(offset..offset + page as u64, &error);
        Ok(page)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, some of one
mod tests {
    use super::*;

    /// A file whose data and map of data are damaged in places.
    struct Damaged {
        unmapped: Vec<Range<u64>>,
        unreadable: Vec<Range<u64>>,
    }

    fn holds(ranges: &[Range<u64>], at: u64) -> bool {
        ranges.iter().any(|range| range.contains(&at))
    }

    impl Reading for Damaged {
        fn node(&self) -> io::Result<Node> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn xattrs(&self) -> io::Result<Xattrs> {
            Ok(Xattrs::new())
        }

        fn next_data(&mut self, offset: u64, size: u64) -> io::Result<Option<Range<u64>>> {
            match holds(&self.unmapped, offset) {
                true => Err(io::Error::other("damaged")),
                false if offset >= size => Ok(None),
                false => {
                    let next = self.unmapped.iter().map(|range| range.start).filter(|&start| start > offset);
                    Ok(Some(offset..next.min().unwrap_or(size).min(size)))
                }
            }
        }

        fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            for (at, byte) in (offset..).zip(into.iter_mut()) {
                if holds(&self.unreadable, at) || holds(&self.unmapped, at) {
                    return Err(io::Error::other("damaged"));
                }
                *byte = 7;
            }
            Ok(into.len())
        }
    }

    /// What is lost of a file of `size` bytes, and whether all the rest was copied.
    fn salvage(size: u64, unmapped: Vec<Range<u64>>, unreadable: Vec<Range<u64>>) -> Vec<Range<u64>> {
        let bar = ProgressBar::hidden();
        let mut content = Watched::new(Box::new(Damaged { unmapped, unreadable }), &bar);
        let mut salvaged = Salvaged::new(&mut content, size);
        let mut copy = vec![0; size as usize];
        let copied = copy_data(size, &mut salvaged, &mut |data, at| {
            copy[at as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        });
        assert_eq!(copied.unwrap().size, size);
        let lost: Vec<_> = salvaged.lost.iter().map(|lost| lost.bytes.clone()).collect();
        for (at, &byte) in copy.iter().enumerate() {
            assert_eq!(byte == 0, holds(&lost, at as u64), "byte {at}");
        }
        assert!(!content.failed);
        lost
    }

    #[test]
    fn what_is_lost_is_told_to_the_page_and_the_rest_is_copied() {
        const PAGE: u64 = PAGE_BYTES;
        assert_eq!(salvage(10 * PAGE, vec![], vec![]), []);
        let lost = [PAGE..2 * PAGE, 5 * PAGE..7 * PAGE];
        assert_eq!(salvage(10 * PAGE + 5, vec![], lost.to_vec()), lost);
        let end = [300 * PAGE..600 * PAGE, 900 * PAGE..900 * PAGE + 5];
        assert_eq!(salvage(900 * PAGE + 5, vec![], end.to_vec()), end);
    }

    #[test]
    fn a_map_of_data_with_a_gap_is_taken_up_behind_it() {
        const PAGE: u64 = PAGE_BYTES;
        for gap in [PAGE..2 * PAGE, 0..63 * PAGE, 10 * PAGE..700 * PAGE, 999 * PAGE..1000 * PAGE] {
            let lost = salvage(1000 * PAGE, vec![gap.clone()], vec![]);
            assert_eq!(lost, [gap]);
        }
        assert_eq!(salvage(100 * PAGE + 7, vec![50 * PAGE..101 * PAGE], vec![]), [50 * PAGE..100 * PAGE + 7]);
        let lost = salvage(1000 * PAGE, vec![3 * PAGE..9 * PAGE], vec![20 * PAGE..21 * PAGE]);
        assert_eq!(lost, [3 * PAGE..9 * PAGE, 20 * PAGE..21 * PAGE]);
    }

    #[test]
    fn what_has_no_size_is_read_to_its_end_and_what_has_no_end_is_an_error() {
        struct Endless(u64);
        impl Reading for Endless {
            fn node(&self) -> io::Result<Node> {
                Err(io::ErrorKind::Unsupported.into())
            }
            fn xattrs(&self) -> io::Result<Xattrs> {
                Ok(Xattrs::new())
            }
            fn next_data(&mut self, _: u64, _: u64) -> io::Result<Option<Range<u64>>> {
                Ok(None)
            }
            fn read_at(&mut self, into: &mut [u8], offset: u64) -> io::Result<usize> {
                Ok(into.len().min(self.0.saturating_sub(offset) as usize))
            }
        }
        let copied = copy_data(0, &mut Endless(5000), &mut |_, _| Ok(())).unwrap();
        assert_eq!(copied, CopiedData { bytes: 5000, size: 5000 });
        let error = copy_data(0, &mut Endless(u64::MAX), &mut |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("has no end"), "{error}");
    }
}
