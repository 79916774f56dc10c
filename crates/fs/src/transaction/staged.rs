//! [`Staging`]: the content that a transaction has staged, file by file, for nobody else to see.
//!
//! A staged page is whole: what the transaction did not write of it is taken from what is committed when it is
//! staged. It is in memory, or at its *home*, a block that no batch has named yet (module `spill`), or both. Of a
//! file's committed content nothing from `base_end` on is part of the file any more, where the transaction truncated
//! it.
//!
//! Invariants:
//! - Every staged page without a home has one block in `Staging::pool`, so that a commit never lacks space (R18).
//! - Bytes of a staged page beyond the staged size are zero, as those of cached pages are.
//! - A file is watched from before the transaction first looks at it, and held as an open file is, so that losing its
//!   last name does not remove it underneath.

use crate::attributes::flags::forbid_change;
use crate::content::inode::Inode;
use crate::content::pages::{PAGE_BYTES, pages_of};
use crate::content::watch::Watch;
use crate::limits::{STAGED_MEMORY_BYTES_MAX, STAGED_MEMORY_SHARE, STAGED_PAGES_MIN};
use crate::transaction::spill::NewerPages;
use crate::transaction::staged_commit::Prepared;
use crate::{Error, Fs, MemoryCharge, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Block, Buffer, Ticket};
use syncline_format::item::FILE_BYTES_MAX;
use syncline_format::{BLOCK_BYTES, BlockNo, ObjectNo};
use syncline_store::Reservation;

/// Where a staged page is on the device; no batch names the block yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home {
    pub(crate) block: BlockNo,
    /// Of what was last written there.
    pub(crate) checksum: u64,
}

/// One staged page.
#[derive(Debug, Default)]
pub(crate) struct StagedPage {
    /// Always there while the page is newer than what is at home.
    pub(crate) buffer: Option<Arc<Buffer>>,
    pub(crate) home: Option<Home>,
    /// Newer than what is at home, or without a home.
    pub(crate) newer: bool,
    /// The write that brings it home.
    pub(crate) ticket: Option<Ticket>,
}

/// What a transaction does to a file's size.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StagedSize {
    /// It was set: whatever the file has at the commit is replaced by this.
    pub(crate) exact: Option<u64>,
    /// Writes reach up to here; `exact` has it included.
    pub(crate) grown_to: u64,
}

/// A file's part of a transaction.
pub(crate) struct StagedFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) pages: BTreeMap<u64, StagedPage>,
    /// What is committed from here on was cut off.
    pub(crate) base_end: u64,
    pub(crate) size: StagedSize,
    /// Of `pages`, while the transaction is being committed.
    pub(crate) prepared: Prepared,
}

/// All content that a transaction has looked at or staged.
pub(crate) struct Staging {
    pub(crate) files: BTreeMap<ObjectNo, StagedFile>,
    /// One block for every staged page without a home.
    pub(crate) pool: Option<Reservation>,
    /// Pages that are newer than what is at home, or have none.
    pub(crate) newer: NewerPages,
    /// Bound on these.
    pub(crate) newer_max: usize,
    /// Writes to homes that may not be complete.
    pub(crate) flights: Vec<(Ticket, u64)>,
    /// Where the last spilled run ended.
    pub(crate) near: Option<BlockNo>,
    /// Bound of the bytes that the content takes in the batch.
    pub(crate) bytes_bound: usize,
    /// Pages of all files.
    pub(crate) page_total: usize,
    /// What all this takes in memory, as it was when something was last staged.
    pub(crate) charge: MemoryCharge,
}

impl StagedFile {
    /// The size as the transaction sees it.
    fn size(&self) -> u64 {
        match self.size.exact {
            Some(size) => size,
            None => self.inode.state.read().item.size.max(self.size.grown_to),
        }
    }

    fn grow(&mut self, end: u64) {
        match &mut self.size.exact {
            Some(size) => *size = (*size).max(end),
            None => self.size.grown_to = self.size.grown_to.max(end),
        }
    }

    /// Whether the commit changes anything of the file.
    pub(crate) fn is_changed(&self) -> bool {
        !self.pages.is_empty() || self.size.exact.is_some() || self.size.grown_to > 0
    }

    pub(crate) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Whether others have changed what the transaction depends on.
    pub(crate) fn is_conflicted(&self) -> bool {
        self.watch.is_conflicted()
    }

    /// The staged page's content, if memory has it.
    fn in_memory(&self, page: u64) -> Option<Arc<Buffer>> {
        self.pages.get(&page)?.buffer.clone()
    }

    /// The page's committed content as far as it is still part of the file; `None` is a hole.
    fn base_page(&self, fs: &Fs, page: u64) -> Result<Option<Arc<Buffer>>> {
        if page >= pages_of(self.base_end) {
            return Ok(None);
        }
        let fetched = fs.shape.fetch(&self.inode, page..page + 1)?.pages.swap_remove(0);
        Ok(fetched.map(Block::into_buffer))
    }
}

impl Staging {
    pub(crate) fn new(fs: &Fs) -> Staging {
        let bytes = (fs.core.memory_bytes_max() / STAGED_MEMORY_SHARE).min(STAGED_MEMORY_BYTES_MAX);
        Staging {
            files: BTreeMap::new(),
            pool: None,
            newer: NewerPages::new(&fs.content.staged),
            newer_max: (bytes / BLOCK_BYTES).max(STAGED_PAGES_MIN),
            flights: Vec::new(),
            near: None,
            bytes_bound: 0,
            page_total: 0,
            charge: fs.core.memory_charge(),
        }
    }

    /// Whether a commit would change any content.
    pub(crate) fn is_changed(&self) -> bool {
        self.files.values().any(StagedFile::is_changed)
    }

    /// The files, ascending.
    pub(crate) fn files(&self) -> impl Iterator<Item = &StagedFile> {
        self.files.values()
    }

    /// Whether the transaction has looked at the file's content.
    pub(crate) fn has(&self, number: ObjectNo) -> bool {
        self.files.contains_key(&number)
    }

    /// Takes a file in, watches it, and counts a handle of it. `Staging::release` gives both back.
    ///
    /// Errors: `Stale`, `IsDirectory`, `Invalid` for what is no regular file.
    pub(crate) fn join(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let Entry::Vacant(vacant) = self.files.entry(inode.number) else { return Ok(()) };
        let mut state = inode.state.write();
        if state.item.is_directory() {
            return Err(Error::IsDirectory);
        }
        if !state.item.is_regular() {
            return Err(Error::Invalid("only regular files have content that a transaction can change"));
        }
        if state.is_gone() {
            return Err(Error::Stale);
        }
        inode.handles.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let watch = state.data.watch();
        drop(state);
        vacant.insert(StagedFile {
            inode: inode.clone(),
            watch,
            pages: BTreeMap::new(),
            base_end: u64::MAX,
            size: StagedSize::default(),
            prepared: Prepared::default(),
        });
        self.recharge();
        Ok(())
    }

    /// Pages of a file that are staged.
    pub(crate) fn page_count(&self, number: ObjectNo) -> usize {
        self.files.get(&number).map_or(0, |file| file.pages.len())
    }

    fn file(&mut self, number: ObjectNo) -> &mut StagedFile {
        self.files.get_mut(&number).expect("the file was joined")
    }

    /// The size of a joined file as the transaction sees it.
    pub(crate) fn size(&mut self, number: ObjectNo) -> u64 {
        let file = self.file(number);
        file.watch.depend_on_size();
        file.size()
    }

    /// Reads from a joined file: what was staged over what is committed.
    pub(crate) fn read(&mut self, fs: &Fs, number: ObjectNo, offset: u64, into: &mut [u8]) -> Result<usize> {
        let file = self.file(number);
        let wanted = offset.saturating_add(into.len() as u64);
        file.watch.depend_on(offset / PAGE_BYTES..pages_of(wanted));
        let mut size = file.size();
        if wanted > size {
            file.watch.depend_on_size();
            size = file.size();
        }
        let len = into.len().min(usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let left = &mut into[done..len];
            done += if self.file(number).pages.contains_key(&(at / PAGE_BYTES)) {
                self.read_staged(fs, number, at, left)?
            } else {
                self.read_base(fs, number, at, left)?
            };
        }
        Ok(len)
    }

    /// Reads committed content up to the next staged page.
    fn read_base(&mut self, fs: &Fs, number: ObjectNo, at: u64, into: &mut [u8]) -> Result<usize> {
        let file = self.file(number);
        let next = file.pages.range(at / PAGE_BYTES..).next().map_or(u64::MAX, |(page, _)| page * PAGE_BYTES);
        let len = into.len().min(usize::try_from(next - at).unwrap_or(usize::MAX));
        let kept = file.base_end.saturating_sub(at).min(len as u64) as usize;
        let count = fs.shape.file_read(&file.inode, at, &mut into[..kept])?;
        into[count..len].fill(0);
        Ok(len)
    }

    /// Reads staged content up to the next page that is not staged.
    fn read_staged(&mut self, fs: &Fs, number: ObjectNo, at: u64, into: &mut [u8]) -> Result<usize> {
        let pages = at / PAGE_BYTES..pages_of(at + into.len() as u64);
        let mut done = 0;
        for buffer in self.staged_run(fs, number, pages)? {
            let skip = ((at + done as u64) % PAGE_BYTES) as usize;
            let len = (into.len() - done).min(BLOCK_BYTES - skip);
            into[done..done + len].copy_from_slice(&buffer[skip..skip + len]);
            done += len;
        }
        Ok(done)
    }

    /// Stages a write into a joined file.
    ///
    /// Errors: `NoSpace`, `TransactionTooLarge`, `FileTooLarge`, `NotPermitted`, I/O errors of content that is
    /// written in part; nothing is staged then.
    pub(crate) fn write(&mut self, fs: &Fs, number: ObjectNo, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Error::FileTooLarge)?;
        let file = self.file(number);
        forbid_change(&file.inode.state.read().item)?;
        if data.is_empty() {
            return Ok(());
        }
        fs.core.check_charged()?;
        // Commits leave pages that cannot be dropped before they are destaged.
        fs.writeback.throttle(&file.inode, data.len())?;
        let file = self.file(number);
        let pages = offset / PAGE_BYTES..pages_of(end);
        file.watch.depend_on(pages.clone());
        // What a truncation has left behind the end is not to be taken for content.
        fs.shape.finish_truncation(&file.inode)?;
        self.check_size(fs, number, &pages)?;
        let file = self.file(number);
        let staged = file.pages.range(pages.clone()).count() as u64;
        let need = pages.end - pages.start - staged;
        let mut blocks = if need > 0 { Some(fs.writeback.reserve(need)?) } else { None };
        let first = self.old_content(fs, number, pages.start, offset, end)?;
        let last = match pages.end - 1 {
            last if last == pages.start => None,
            // It may have gone home by the time that its turn comes.
            last if self.is_cut(last, offset, end) => match self.file(number).in_memory(last) {
                Some(buffer) => Some(buffer),
                None => self.old_content(fs, number, last, offset, end)?,
            },
            _ => None,
        };
        let mut olds = [(pages.start, first), (pages.end - 1, last)];
        let mut done = 0;
        for page in pages.clone() {
            let skip = ((offset + done as u64) % PAGE_BYTES) as usize;
            let len = (data.len() - done).min(BLOCK_BYTES - skip);
            let old = olds.iter_mut().find(|(of, old)| *of == page && old.is_some());
            let old = old.and_then(|(_, old)| old.take());
            self.stage(number, page, old, skip, &data[done..done + len], &mut blocks);
            done += len;
            if self.must_spill(fs) {
                self.file(number).grow(offset + done as u64);
                self.spill(fs)?;
            }
        }
        self.file(number).grow(end);
        self.recharge();
        Ok(())
    }

    /// Whether a write of `offset..end` leaves some of the page.
    fn is_cut(&self, page: u64, offset: u64, end: u64) -> bool {
        offset > page * PAGE_BYTES || end < (page + 1) * PAGE_BYTES
    }

    /// What is in a page that a write of `offset..end` covers in part; `None` if it covers the page, or nothing is
    /// there.
    fn old_content(
        &mut self,
        fs: &Fs,
        number: ObjectNo,
        page: u64,
        offset: u64,
        end: u64,
    ) -> Result<Option<Arc<Buffer>>> {
        if !self.is_cut(page, offset, end) {
            return Ok(None);
        }
        match self.file(number).pages.get(&page) {
            Some(StagedPage { buffer: Some(_), .. }) => Ok(None),
            Some(_) => Ok(Some(self.staged_run(fs, number, page..page + 1)?.swap_remove(0))),
            None => self.file(number).base_page(fs, page),
        }
    }

    /// Changes a part of a page in memory. `old`: its content, unless it is staged in memory or blank.
    fn stage(
        &mut self,
        number: ObjectNo,
        page: u64,
        old: Option<Arc<Buffer>>,
        skip: usize,
        new: &[u8],
        blocks: &mut Option<Reservation>,
    ) {
        let file = self.files.get_mut(&number).expect("the file was joined");
        let staged = match file.pages.entry(page) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => {
                let block = blocks.as_mut().expect("blocks for new pages are reserved").split(1);
                match &mut self.pool {
                    Some(pool) => pool.merge(block),
                    None => self.pool = Some(block),
                }
                self.page_total += 1;
                vacant.insert(StagedPage::default())
            }
        };
        // A whole page needs no zeros underneath.
        let blank = || if new.len() == BLOCK_BYTES { Buffer::for_overwrite(1) } else { Buffer::zeroed(1) };
        let mut buffer = staged.buffer.take().or(old).unwrap_or_else(|| Arc::new(blank()));
        // What is cached or on its way to the device is left alone.
        Arc::make_mut(&mut buffer)[skip..skip + new.len()].copy_from_slice(new);
        staged.buffer = Some(buffer);
        if !std::mem::replace(&mut staged.newer, true) {
            self.newer.insert((number, page));
        }
    }

    /// Stages a new size of a joined file.
    ///
    /// Errors: `NoSpace`, `FileTooLarge`, `NotPermitted`, I/O errors of the page that is cut in two; nothing is
    /// staged then.
    pub(crate) fn truncate(&mut self, fs: &Fs, number: ObjectNo, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        let file = self.file(number);
        forbid_change(&file.inode.state.read().item)?;
        file.watch.depend_on_size();
        if size < file.size() {
            file.watch.depend_on(size / PAGE_BYTES..u64::MAX);
            self.cut_in_two(fs, number, size)?;
            let file = self.file(number);
            let doomed: Vec<u64> = file.pages.range(pages_of(size)..).map(|(page, _)| *page).collect();
            // Blocks to which a write is in flight cannot be given back (R8).
            self.finish_flights(fs)?;
            for page in doomed {
                self.unstage(fs, number, page);
            }
            let file = self.file(number);
            file.base_end = file.base_end.min(size);
            file.size.grown_to = 0;
        }
        self.file(number).size.exact = Some(size);
        self.recharge();
        Ok(())
    }

    /// Zeroes what a new end cuts off the last page, if there is anything.
    fn cut_in_two(&mut self, fs: &Fs, number: ObjectNo, size: u64) -> Result<()> {
        let (page, skip) = (size / PAGE_BYTES, (size % PAGE_BYTES) as usize);
        if skip == 0 {
            return Ok(());
        }
        let is_staged = self.file(number).pages.contains_key(&page);
        let old = self.old_content(fs, number, page, 0, size)?;
        if old.is_none() && !is_staged {
            return Ok(());
        }
        let mut blocks = if is_staged { None } else { Some(fs.writeback.reserve(1)?) };
        self.stage(number, page, old, skip, &[0; BLOCK_BYTES][skip..], &mut blocks);
        Ok(())
    }

    /// Forgets a staged page, and gives its block back. No write to it is in flight.
    pub(crate) fn unstage(&mut self, fs: &Fs, number: ObjectNo, page: u64) {
        let Some(staged) = self.file(number).pages.remove(&page) else { return };
        self.page_total -= 1;
        self.newer.remove((number, page));
        if let Some(home) = staged.home {
            self.abandon(fs, home);
        }
        drop(self.pool.as_mut().map(|pool| pool.split(1)));
    }

    /// Forgets all of a file that nobody is going to see; returns its inode, whose handle is still to be let go of.
    pub(crate) fn forget(&mut self, fs: &Fs, number: ObjectNo) -> Result<Option<Arc<Inode>>> {
        if !self.has(number) {
            return Ok(None);
        }
        self.finish_flights(fs)?;
        let pages: Vec<u64> = self.file(number).pages.keys().copied().collect();
        for page in pages {
            self.unstage(fs, number, page);
        }
        let file = self.files.remove(&number).expect("the file was joined");
        file.inode.state.write().data.unwatch(&file.watch);
        Ok(Some(file.inode))
    }

    /// Whether what `other` has staged of a file's content cannot be put together with what this one has.
    pub(crate) fn collides(&self, other: &Staging) -> bool {
        other.files.iter().any(|(number, theirs)| {
            let Some(ours) = self.files.get(number) else { return false };
            let cuts = |a: &StagedFile, b: &StagedFile| a.size.exact.is_some() && b.is_changed();
            cuts(ours, theirs)
                || cuts(theirs, ours)
                || theirs.pages.keys().any(|page| ours.pages.contains_key(page))
        })
    }

    /// Takes over what `other` has staged; they do not collide.
    pub(crate) fn absorb(&mut self, fs: &Fs, other: &mut Staging) -> Result<()> {
        for (number, mut theirs) in std::mem::take(&mut other.files) {
            match self.files.entry(number) {
                Entry::Vacant(vacant) => drop(vacant.insert(theirs)),
                Entry::Occupied(mut occupied) => {
                    let ours = occupied.get_mut();
                    // Nobody tells one of the watches of a change while the other one has its ranges.
                    let mut state = theirs.inode.state.write();
                    ours.watch.absorb(&theirs.watch);
                    state.data.unwatch(&theirs.watch);
                    drop(state);
                    ours.pages.append(&mut theirs.pages);
                    ours.base_end = ours.base_end.min(theirs.base_end);
                    ours.size.exact = ours.size.exact.or(theirs.size.exact);
                    ours.size.grown_to = ours.size.grown_to.max(theirs.size.grown_to);
                    fs.removal.let_go(&theirs.inode)?;
                }
            }
        }
        match (&mut self.pool, other.pool.take()) {
            (Some(pool), Some(theirs)) => pool.merge(theirs),
            (None, theirs) => self.pool = theirs,
            (Some(_), None) => {}
        }
        self.newer.append(&mut other.newer);
        self.bytes_bound += other.bytes_bound;
        self.page_total += std::mem::take(&mut other.page_total);
        self.recharge();
        self.flights.append(&mut other.flights);
        if self.must_spill(fs) {
            self.spill(fs)?;
        }
        Ok(())
    }

    /// Ends the transaction's hold on everything that was not committed: blocks, watches, handles. Returns the inodes
    /// whose handles are still to be let go of.
    pub(crate) fn release(&mut self, fs: &Fs) -> Vec<Arc<Inode>> {
        // An error has stopped the volume; the writes are over all the same.
        let _ = self.finish_flights(fs);
        let mut inodes = Vec::with_capacity(self.files.len());
        for (_, file) in std::mem::take(&mut self.files) {
            for home in file.pages.values().filter_map(|page| page.home) {
                self.abandon(fs, home);
            }
            file.inode.state.write().data.unwatch(&file.watch);
            inodes.push(file.inode);
        }
        self.pool = None;
        drop(self.newer.take());
        self.page_total = 0;
        self.recharge();
        inodes
    }
}

/// Pages of a range, as many as the range has.
pub(crate) fn count(pages: &Range<u64>) -> usize {
    usize::try_from(pages.end.saturating_sub(pages.start)).unwrap_or(usize::MAX)
}
