//! The history of one file's content, and what of it may be there after a crash.
//!
//! The file is followed page by page. For each page there is a set of allowed contents: at first the durable one; every
//! write adds what the page is then; a sync, or a rename over another file (C3), leaves only what it is then;
//! truncation changes every member, because it is a metadata operation that applies to whatever is stored. The
//! size is an interval in the same way. A size that an un-synced write has grown into needs the pages of that write.
//!
//! Pages are written whole from one moment's memory, so half a write in a page is not allowed.

use crate::content::{Content, Page};
use crate::oracle::PAGE;

/// What happened to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEvent {
    /// Data at an offset.
    Write(u64, Vec<u8>),
    Truncate(u64),
    /// Preallocation up to an end beyond the size.
    Grow(u64),
    /// The content from this page on is replaced by a metadata operation before which everything there was logged.
    /// What lies in front of it stays as it is, un-synced writes too: others may have made them meanwhile.
    Replace(u64, Vec<u8>),
    /// A range is zeroed: a change of data, not of metadata, so each page of it may be as before until the next sync.
    Zero(u64, u64),
    /// Everything is in the log, in order: a rename over another file (C3).
    Barrier,
    /// Everything is durable once the sync of this number is acknowledged.
    Synced(usize),
    /// A moment of this number. Everything is durable once the sync is acknowledged, if there is one: it is
    /// background work that came when this was long enough ago (C9).
    Moment(usize, Option<usize>),
    /// A range is on its way to the log: a size that reaches to its end says nothing about the pages in front of it.
    Reaching(u64, u64),
    /// The same at any time from now on, also of what is written there later: a hint waits in a queue.
    Hinted(u64, u64),
    /// A transaction: everything in it is in the log together, in order (C4).
    Together(Vec<FileEvent>),
    /// A range is durable, and a size that covers it, once the sync of this number is acknowledged.
    RangeSynced {
        sync: usize,
        offset: u64,
        len: u64,
    },
}

/// How content is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    Size {
        got: u64,
        least: u64,
        most: u64,
    },
    /// The first byte that differs from the newest allowed content, and how many contents are allowed.
    Page {
        page: u64,
        at: usize,
        got: u8,
        want: u8,
        allowed: usize,
    },
}

/// Events, each with the number of metadata operations that had returned by then.
#[derive(Debug, Clone)]
pub struct History {
    start: Content,
    events: Vec<(usize, FileEvent)>,
    current: Content,
}

impl History {
    pub fn new(start: Content) -> History {
        History { current: start.clone(), start, events: Vec::new() }
    }

    /// Content of the running volume.
    pub fn current(&self) -> &Content {
        &self.current
    }

    pub fn record(&mut self, metas: usize, event: FileEvent) {
        apply(&mut self.current, &event);
        self.events.push((metas, event));
    }

    /// What there was at a moment is durable once a sync is acknowledged.
    pub fn age(&mut self, moment: usize, id: usize) {
        for (_, event) in self.events.iter_mut().rev() {
            if let FileEvent::Moment(number, sync) = event
                && *number == moment
            {
                *sync = Some(id);
            }
        }
    }

    /// Whether `got` is allowed when the first `prefix` metadata operations survived and `acknowledged` syncs had
    /// returned.
    pub fn judge(&self, got: &Content, prefix: usize, acknowledged: usize) -> Result<(), Wrong> {
        let mut follow = Follow::new(&self.start);
        let events = self.events.iter().filter(|(metas, _)| *metas <= prefix);
        for (tag, (_, event)) in (1..).zip(events) {
            match event {
                FileEvent::Moment(_, None) => {}
                FileEvent::Synced(id)
                | FileEvent::Moment(_, Some(id))
                | FileEvent::RangeSynced { sync: id, .. }
                    if *id > acknowledged => {}
                event => follow.step(tag, event),
            }
        }
        follow.judge(got)
    }
}

fn apply(content: &mut Content, event: &FileEvent) {
    match event {
        FileEvent::Write(offset, bytes) => content.write(*offset, bytes),
        FileEvent::Truncate(size) => content.resize(*size),
        FileEvent::Replace(_, bytes) => *content = Content::new(bytes),
        FileEvent::Grow(end) if content.size() < *end => content.resize(*end),
        FileEvent::Zero(offset, len) => content.zero(*offset, *len),
        FileEvent::Together(events) => events.iter().for_each(|event| apply(content, event)),
        FileEvent::Grow(_) | FileEvent::Barrier | FileEvent::Synced(_) | FileEvent::Moment(..) => {}
        FileEvent::Reaching(..) | FileEvent::Hinted(..) | FileEvent::RangeSynced { .. } => {}
    }
}

/// A content that a page may have, and the event it came with.
struct Version {
    tag: usize,
    page: Page,
}

/// A write that grew the file: a size beyond `from` needs the pages `first..end` to be as new as `tag`.
struct Growth {
    from: u64,
    first: u64,
    end: u64,
    tag: usize,
}

/// What is allowed after the events so far.
struct Follow {
    content: Content,
    pages: Vec<Vec<Version>>,
    sizes: (u64, u64),
    growth: Vec<Growth>,
    /// Pages up to here lie in front of a hint's end.
    hinted: u64,
}

/// Zeroes what of the range lies in the page.
fn zero(bytes: &mut [u8], page: u64, offset: u64, len: u64) {
    let from = offset.saturating_sub(page * PAGE).min(PAGE);
    let end = (offset + len).saturating_sub(page * PAGE).min(PAGE);
    bytes[from as usize..end as usize].fill(0);
}

fn pages_of(size: u64) -> u64 {
    size.div_ceil(PAGE)
}

impl Follow {
    fn new(start: &Content) -> Follow {
        let mut follow = Follow {
            content: start.clone(),
            pages: Vec::new(),
            sizes: (start.size(), start.size()),
            growth: Vec::new(),
            hinted: 0,
        };
        follow.begin_anew(0);
        follow
    }

    /// Nothing but the present is allowed, whatever it is.
    fn begin_anew(&mut self, tag: usize) {
        let count = pages_of(self.content.size());
        self.pages = (0..count).map(|page| vec![Version { tag, page: self.content.page(page) }]).collect();
        self.settle(tag);
    }

    /// Nothing but the present is allowed: of each page what it came to last.
    fn settle(&mut self, tag: usize) {
        for page in 0..self.pages.len() {
            let newest = self.pages[page].last().expect("a page has a content");
            let current = self.content.page(page as u64);
            debug_assert!(newest.page.bytes() == current.bytes(), "the newest content of page {page}");
            let versions = &mut self.pages[page];
            versions.drain(..versions.len() - 1);
            versions[0].tag = tag;
        }
        self.sizes = (self.content.size(), self.content.size());
        self.growth.clear();
    }

    /// Pages up to the end of the content exist; those never written are zeros.
    fn extend(&mut self) {
        while (self.pages.len() as u64) < pages_of(self.content.size()) {
            self.pages.push(vec![Version { tag: 0, page: Page::default() }]);
        }
    }

    fn add_versions(&mut self, tag: usize, first: u64, end: u64) {
        for page in first..end.min(self.pages.len() as u64) {
            let current = self.content.page(page);
            self.pages[page as usize].push(Version { tag, page: current });
        }
    }

    fn step(&mut self, tag: usize, event: &FileEvent) {
        let before = self.content.size();
        match event {
            FileEvent::Barrier | FileEvent::Synced(_) => self.settle(tag),
            FileEvent::Moment(..) => self.settle(tag),
            FileEvent::Replace(first, _) => {
                apply(&mut self.content, event);
                self.pages.truncate(*first as usize);
                let count = pages_of(self.content.size());
                let page = |page| vec![Version { tag, page: self.content.page(page) }];
                self.pages.extend((*first..count).map(page));
                self.sizes = (self.content.size(), self.content.size());
                self.growth.clear();
            }
            FileEvent::Write(offset, bytes) => {
                apply(&mut self.content, event);
                let end = offset + bytes.len() as u64;
                self.extend();
                self.add_versions(tag, offset / PAGE, pages_of(end));
                if end > before {
                    self.sizes.1 = self.sizes.1.max(end);
                    let first = (before.max(*offset) / PAGE).max(self.hinted);
                    self.growth.push(Growth { from: before, first, end: pages_of(end), tag });
                }
            }
            FileEvent::Truncate(size) => self.truncate(tag, *size),
            FileEvent::Grow(end) if *end > before => self.truncate(tag, *end),
            FileEvent::Grow(_) => {}
            FileEvent::Reaching(offset, len) => self.reach(offset + len),
            FileEvent::Hinted(offset, len) => {
                self.hinted = self.hinted.max(pages_of(offset + len));
                self.reach(offset + len);
            }
            FileEvent::RangeSynced { offset, len, .. } if *len > 0 => {
                for page in self.range(*offset, *len) {
                    self.pages[page as usize] = vec![Version { tag, page: self.content.page(page) }];
                }
                self.sizes.0 = self.sizes.0.max(before.min(offset + len));
                self.reach(offset + len);
            }
            FileEvent::RangeSynced { .. } => {}
            FileEvent::Together(events) => self.together(tag, events),
            FileEvent::Zero(offset, len) => {
                apply(&mut self.content, event);
                for page in self.range(*offset, *len) {
                    self.zero_versions(page, tag, *offset, *len);
                }
                self.add_versions(tag, offset / PAGE, pages_of(offset + len));
            }
        }
    }

    /// Pages that a transaction has staged, and what it has cut off, are as it left them; a size that it has set is
    /// there, and one that it has grown to says nothing about what others had not synced in front of it.
    fn together(&mut self, tag: usize, events: &[FileEvent]) {
        let mut exact = false;
        let mut kept = u64::MAX;
        let mut staged: Vec<(u64, u64)> = Vec::new();
        let mut reached = 0;
        for event in events {
            let before = self.content.size();
            apply(&mut self.content, event);
            match event {
                FileEvent::Truncate(size) => {
                    exact = true;
                    if *size < before {
                        kept = kept.min(size / PAGE);
                    }
                }
                FileEvent::Write(offset, bytes) => {
                    let end = offset + bytes.len() as u64;
                    staged.push((offset / PAGE, pages_of(end)));
                    reached = reached.max(end);
                }
                _ => {}
            }
        }
        let size = self.content.size();
        self.pages.truncate(pages_of(size) as usize);
        self.extend();
        for page in 0..self.pages.len() as u64 {
            if page >= kept || staged.iter().any(|(first, end)| (*first..*end).contains(&page)) {
                self.pages[page as usize] = vec![Version { tag, page: self.content.page(page) }];
            }
        }
        if exact {
            self.growth.clear();
            self.sizes = (size, size);
        } else if reached > 0 {
            self.sizes = (self.sizes.0.max(reached), self.sizes.1.max(size));
            self.reach(reached);
        }
        if events.contains(&FileEvent::Barrier) {
            self.settle(tag);
        }
    }

    /// A size up to `end`, or up to the end of its page, may be there without what was written in front of it.
    fn reach(&mut self, end: u64) {
        let reached = pages_of(end.min(self.content.size()));
        for growth in &mut self.growth {
            growth.first = growth.first.max(reached);
        }
    }

    fn range(&self, offset: u64, len: u64) -> std::ops::Range<u64> {
        let count = self.pages.len() as u64;
        (offset / PAGE).min(count)..pages_of(offset + len).min(count)
    }

    /// Whatever is stored of the page may be zeroed.
    fn zero_versions(&mut self, page: u64, tag: usize, offset: u64, len: u64) {
        let versions = &mut self.pages[page as usize];
        let zeroed: Vec<Version> = versions
            .iter()
            .map(|version| {
                let mut zeroed = version.page.clone();
                zeroed.change(|bytes| zero(bytes, page, offset, len));
                // A page that is all zeros is as new as the operation.
                let tag = if zeroed.is_zero() { tag } else { version.tag };
                Version { tag, page: zeroed }
            })
            .collect();
        versions.extend(zeroed);
    }

    /// A size that was asked for: it is in the log whatever is dirty below it.
    fn truncate(&mut self, tag: usize, size: u64) {
        let shrinks = size < self.content.size();
        self.content.resize(size);
        self.pages.truncate(pages_of(size) as usize);
        self.extend();
        self.growth.clear();
        self.sizes = (size, size);
        if shrinks && !size.is_multiple_of(PAGE) {
            let page = size / PAGE;
            for version in &mut self.pages[page as usize] {
                version.page.change(|bytes| bytes[(size % PAGE) as usize..].fill(0));
            }
            self.add_versions(tag, page, page + 1);
        }
    }

    fn judge(&self, got: &Content) -> Result<(), Wrong> {
        let size = got.size();
        let (least, most) = self.sizes;
        if !(least..=most).contains(&size) {
            return Err(Wrong::Size { got: size, least, most });
        }
        for page in 0..pages_of(size) {
            let shown = got.page(page);
            let bytes = &shown.bytes()[..PAGE.min(size - page * PAGE) as usize];
            let grown = self.growth.iter().filter(|growth| size > growth.from);
            let needs = grown.filter(|growth| (growth.first..growth.end).contains(&page));
            let oldest = needs.map(|growth| growth.tag).max().unwrap_or(0);
            let allowed: Vec<&Version> =
                self.pages[page as usize].iter().filter(|version| version.tag >= oldest).collect();
            if allowed.iter().any(|version| &version.page.bytes()[..bytes.len()] == bytes) {
                continue;
            }
            let newest = allowed.last().expect("the newest content of a page is always allowed");
            let pairs = bytes.iter().zip(newest.page.bytes());
            let (at, got, want) = pairs
                .enumerate()
                .find(|(_, (got, want))| got != want)
                .map(|(at, (got, want))| (at, *got, *want))
                .expect("the page differs from the newest content");
            return Err(Wrong::Page { page, at, got, want, allowed: allowed.len() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(history: &History, got: &[u8], prefix: usize, acknowledged: usize) -> Result<(), Wrong> {
        history.judge(&Content::new(got), prefix, acknowledged)
    }

    fn written(history: &mut History, offset: u64, len: usize, fill: u8) {
        history.record(0, FileEvent::Write(offset, vec![fill; len]));
    }

    #[test]
    fn a_synced_write_must_be_there_and_an_unsynced_one_may_be() {
        let mut history = History::new(Content::new(&[1; 100]));
        written(&mut history, 0, 100, 2);
        assert_eq!(judge(&history, &[1; 100], 0, 0), Ok(()));
        assert_eq!(judge(&history, &[2; 100], 0, 0), Ok(()));
        history.record(0, FileEvent::Synced(1));
        assert_eq!(judge(&history, &[1; 100], 0, 0), Ok(()), "not acknowledged yet");
        assert!(judge(&history, &[1; 100], 0, 1).is_err());
        let mut mixed = vec![2; 100];
        mixed[50] = 1;
        assert!(judge(&history, &mixed, 0, 0).is_err(), "half a page");
    }

    #[test]
    fn what_lies_in_front_of_a_range_that_is_taken_out_may_be_as_before_and_nothing_behind_it() {
        let page = PAGE as usize;
        let pages = |fills: [u8; 3]| fills.map(|fill| vec![fill; page]).concat();
        let mut history = History::new(Content::new(&[pages([1, 1, 1]), vec![1; page]].concat()));
        written(&mut history, 0, page, 2);
        written(&mut history, 2 * PAGE, page, 3);
        // The second page is taken out.
        history.record(1, FileEvent::Replace(1, pages([2, 3, 1])));
        assert_eq!(judge(&history, &pages([2, 3, 1]), 1, 0), Ok(()));
        assert_eq!(judge(&history, &pages([1, 3, 1]), 1, 0), Ok(()));
        assert!(judge(&history, &pages([2, 1, 1]), 1, 0).is_err());
        history.record(1, FileEvent::Synced(1));
        assert!(judge(&history, &pages([1, 3, 1]), 1, 1).is_err());
    }

    #[test]
    fn a_size_beyond_data_is_wrong() {
        let mut history = History::new(Content::new(&[1; 100]));
        written(&mut history, 100, 5000, 2);
        let mut zeros = vec![1; 100];
        zeros.resize(5100, 0);
        assert!(judge(&history, &zeros, 0, 0).is_err());
        let mut partial = vec![1; 100];
        partial.resize(4096, 2);
        assert_eq!(judge(&history, &partial, 0, 0), Ok(()));
        partial.resize(5100, 2);
        assert_eq!(judge(&history, &partial, 0, 0), Ok(()));
        partial.push(2);
        assert!(judge(&history, &partial, 0, 0).is_err());
    }

    #[test]
    fn a_ranged_sync_holds_its_pages_and_a_size_and_nothing_else() {
        let mut history = History::new(Content::new(&[1; 100]));
        written(&mut history, 100, 4 * 4096, 2);
        let old = |mut page: Vec<u8>| {
            page.resize(4096, 0);
            page
        };
        let mut synced = old(vec![1; 100]);
        synced.extend([2; 4096]);
        assert!(judge(&history, &synced, 0, 0).is_err(), "nobody has synced the second page alone");
        history.record(0, FileEvent::Reaching(4096, 4096));
        assert_eq!(judge(&history, &synced, 0, 0), Ok(()));
        history.record(0, FileEvent::RangeSynced { sync: 1, offset: 4096, len: 4096 });
        assert_eq!(judge(&history, &[1; 100], 0, 0), Ok(()), "not acknowledged yet");
        assert!(judge(&history, &[1; 100], 0, 1).is_err(), "the size does not cover the range");
        assert_eq!(judge(&history, &synced, 0, 1), Ok(()));
        let mut zeros = old(vec![1; 100]);
        zeros.resize(2 * 4096, 0);
        assert!(judge(&history, &zeros, 0, 1).is_err(), "the range is not there");
        let mut lost = synced.clone();
        lost[5000] = 0;
        assert!(judge(&history, &lost, 0, 1).is_err(), "half of the range");
        synced.resize(3 * 4096, 0);
        assert!(judge(&history, &synced, 0, 1).is_err(), "a size beyond data behind the range");
    }

    #[test]
    fn bytes_from_before_a_truncation_never_come_back() {
        let mut history = History::new(Content::new(&[1; 5000]));
        history.record(1, FileEvent::Truncate(10));
        history.record(2, FileEvent::Truncate(5000));
        let mut want = vec![1; 10];
        want.resize(5000, 0);
        assert_eq!(judge(&history, &want, 2, 0), Ok(()));
        assert!(judge(&history, &[1; 5000], 2, 0).is_err());
        assert_eq!(judge(&history, &[1; 5000], 0, 0), Ok(()), "neither truncation survived");
        assert_eq!(judge(&history, &[1; 10], 1, 0), Ok(()));
    }

    #[test]
    fn a_barrier_holds_only_if_its_operation_survived() {
        let mut history = History::new(Content::default());
        written(&mut history, 0, 10, 3);
        history.record(1, FileEvent::Barrier);
        assert_eq!(judge(&history, &[], 0, 0), Ok(()));
        assert!(judge(&history, &[], 1, 0).is_err());
        assert_eq!(judge(&history, &[3; 10], 1, 0), Ok(()));
    }
}
