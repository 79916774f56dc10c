//! Files that are set aside: what is still to be written of them cannot be, because something of them cannot be read.
//!
//! A page goes to its place only when the extents around it have been read, and an inode is logged only into a leaf
//! that could be. Where that fails for one file, the file is *set aside*: it leaves the lists of what the background
//! writes, so that nothing of others waits for it. Its dirty pages stay in memory and its images live; whoever syncs
//! or changes it tries again and is told the error, and so does the background now and then: what could not be read
//! may be readable again.
//!
//! The journal's tail does not pass a live image (R2). So that the images of such files do not keep it where it is,
//! they are *carried* when it has to move: logged once more at the head, out of memory. They need no tree for that,
//! only room in the part of the ring that is kept for destaging them (R17), and no file that is set aside gets new
//! ones.
//!
//! Where not even the inode can be read, what the journal knows of the file is *unclaimed*: kept here, carried like
//! the others, and handed to the inode should it be read after all. Without it the file would show what it was
//! before.
//!
//! Locks: those here are taken under `Inode::state`, and only the store's inside of them.

use super::pages::{FileData, PAGE_BYTES, PageSlot, pages_of};
use super::round::Select;
use super::stream::Pace;
use crate::clock::since;
use crate::inode::{Inode, InodeState};
use crate::{Error, Fs, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use syncline_device::Buffer;
use syncline_format::batch::{BATCH_HEADER_BYTES, IMAGE_OVERHEAD_BYTES};
use syncline_format::item::{InodeItem, OrphanReason, Timestamp};
use syncline_format::{BLOCK_BYTES, ObjectNo};
use syncline_store::{Batch, Class, Estimate, Permit, StoreError};

/// How often the background tries what is set aside.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Images that are carried by one batch: 256 KiB.
const CARRIED_PAGES_MAX: usize = 64;
/// Checkpoints that make room for one such batch.
const ROOM_TRIES_MAX: u32 = 3;

/// What is set aside because it is damaged: it is told to whoever touches it, and holds up nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAside {
    /// Files that cannot be written back.
    pub files: u64,
    /// Their pages that wait for it in memory; those that are durable are so in the journal.
    pub pages: u64,
    /// Entries of the orphan table that were left for a later open or a repair.
    pub orphans: u64,
}

struct Aside {
    inode: Arc<Inode>,
    pages: u64,
    tried: Timestamp,
}

/// What is known of a file whose inode cannot be read.
#[derive(Default)]
struct Unclaimed {
    /// Content of its live images.
    images: BTreeMap<u64, Arc<Buffer>>,
    /// A truncation or a move that a crash has interrupted.
    unfinished: Option<OrphanReason>,
}

/// The files that are set aside.
#[derive(Default)]
pub(super) struct AsideFiles {
    files: Mutex<BTreeMap<ObjectNo, Aside>>,
    /// Of all of them.
    pages: AtomicU64,
    unclaimed: Mutex<BTreeMap<ObjectNo, Unclaimed>>,
    /// There may be some in `unclaimed`, for a look without the lock.
    has_unclaimed: AtomicBool,
    orphans: AtomicU64,
    /// Held by who carries.
    carrying: Mutex<()>,
}

impl AsideFiles {
    /// Pages that no writeback can free before the damage is gone.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// A file's state has changed. One that has nothing to write any more is no longer set aside.
    pub(super) fn update(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        let waits =
            !state.gone && (state.data.has_dirty() || state.item_dirty || state.data.logged_pages() > 0);
        if !waits {
            return self.end(inode.number, &mut state.data);
        }
        let pages = state.data.dirty_pages() + state.data.logged_pages();
        if let Some(aside) = self.files.lock().get_mut(&inode.number) {
            self.count(std::mem::replace(&mut aside.pages, pages), pages);
        }
    }

    /// The file is like others again.
    pub(super) fn end(&self, number: ObjectNo, data: &mut FileData) {
        data.aside = None;
        if let Some(aside) = self.files.lock().remove(&number) {
            self.count(aside.pages, 0);
        }
    }

    fn count(&self, before: u64, after: u64) {
        self.pages.fetch_add(after, Ordering::Relaxed);
        self.pages.fetch_sub(before, Ordering::Relaxed);
    }

    /// An orphan is left for later.
    pub(super) fn note_orphan(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }
}

impl Fs {
    /// Whether an error says that something of one file cannot be read, and not that the volume has stopped or is
    /// full.
    pub(crate) fn is_damage(&self, error: &Error) -> bool {
        let unreadable = match error {
            Error::Device(_) | Error::Checksum { .. } | Error::Inconsistent { .. } | Error::Format(_) => true,
            Error::Store(error) => error.is_unreadable(),
            _ => false,
        };
        unreadable && self.store.failure().is_none()
    }

    /// What is set aside now.
    pub(crate) fn set_aside_stats(&self) -> SetAside {
        let aside = &self.writeback.aside;
        let (mut files, mut pages) = (aside.files.lock().len() as u64, aside.pages());
        for unclaimed in aside.unclaimed.lock().values() {
            files += 1;
            pages += unclaimed.images.len() as u64;
        }
        SetAside { files, pages, orphans: aside.orphans.load(Ordering::Relaxed) }
    }

    /// An entry of the orphan table cannot be followed; it stays for a later open or a repair.
    pub(crate) fn leave_orphan(&self, number: ObjectNo, error: &Error) {
        self.writeback.aside.note_orphan();
        tracing::error!(inode = %number, %error, "a removed or truncated file is damaged; it is left as it is");
    }

    /// Takes a file out of what the background writes.
    pub(super) fn set_aside(&self, inode: &Arc<Inode>, error: Error) {
        let now = self.clock.now();
        let mut state = inode.state.write();
        if state.data.aside.is_none() {
            tracing::error!(
                inode = %inode.number, %error,
                "a damaged file cannot be written back; it is set aside, and all others are written"
            );
        }
        state.data.aside = Some(Box::new(error));
        {
            let mut files = self.writeback.aside.files.lock();
            let fresh = || Aside { inode: inode.clone(), pages: 0, tried: now };
            files.entry(inode.number).or_insert_with(fresh).tried = now;
        }
        self.writeback.relist(inode, &mut state, now);
    }

    /// As [`Fs::write_group`], but a file of which something cannot be read is set aside, and the others are written
    /// without it.
    pub(super) fn write_group_apart(
        &self,
        class: Class,
        group: &[(Arc<Inode>, Select)],
        pace: Pace,
    ) -> Result<Vec<Option<u64>>> {
        let error = match self.write_group(class, group, pace) {
            Err(error) if self.is_damage(&error) => error,
            result => return result,
        };
        if let [(inode, _)] = group {
            self.set_aside(inode, error);
            return Ok(vec![None]);
        }
        let alone = group.iter().map(|one| self.write_group_apart(class, std::slice::from_ref(one), pace));
        alone.map(|rests| rests.map(|rests| rests[0])).collect()
    }

    /// Tries what is set aside: all of it, or what was not tried for a while at `now`.
    pub(super) fn retry_set_aside(&self, now: Option<Timestamp>) -> Result<()> {
        let due: Vec<Arc<Inode>> = {
            let files = self.writeback.aside.files.lock();
            let is_due = |aside: &&Aside| now.is_none_or(|now| since(now, aside.tried) >= RETRY_INTERVAL);
            files.values().filter(is_due).map(|aside| aside.inode.clone()).collect()
        };
        if due.is_empty() {
            return Ok(());
        }
        self.write_out_all(Class::Destage, due, true)
    }

    /// A file is about to be changed. What could not be written of it is tried once more.
    ///
    /// Errors: what of it cannot be read.
    pub(super) fn check_not_aside(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.state.read().data.aside.is_some() {
            self.write_out_all(Class::Destage, vec![inode.clone()], true)?;
        }
        inode.state.read().data.check_not_aside()
    }

    /// Errors: `SetAside` if a file has changes that could not be committed.
    pub(super) fn check_all_committed(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> =
            self.writeback.aside.files.lock().values().map(|aside| aside.inode.clone()).collect();
        let mut result = Ok(());
        for inode in files {
            let state = inode.state.read();
            let Some(cause) = state.data.aside.as_ref().filter(|_| state.is_uncommitted()) else { continue };
            result = match result {
                Err(Error::SetAside { files, object, cause }) => {
                    Err(Error::SetAside { files: files + 1, object, cause })
                }
                _ => Err(Error::SetAside { files: 1, object: inode.number, cause: cause.clone() }),
            };
        }
        result
    }

    /// Logs the images of files that are set aside once more, so that the journal's tail can pass where they are.
    pub(super) fn carry_images(&self) -> Result<()> {
        let aside = &self.writeback.aside;
        // Whoever is at it already carries all.
        let Some(_carrying) = aside.carrying.try_lock() else { return Ok(()) };
        let files: Vec<Arc<Inode>> = aside.files.lock().values().map(|aside| aside.inode.clone()).collect();
        for inode in files {
            let mut from = Some(0);
            while let Some(first) = from {
                from = self.carry_some(&inode, first)?;
            }
        }
        let unclaimed: Vec<ObjectNo> = aside.unclaimed.lock().keys().copied().collect();
        for number in unclaimed {
            let mut from = Some(0);
            while let Some(first) = from {
                from = self.carry_unclaimed(number, first)?;
            }
        }
        Ok(())
    }

    /// Carries some images of a file from page `first` on; returns where to go on.
    fn carry_some(&self, inode: &Arc<Inode>, first: u64) -> Result<Option<u64>> {
        if inode.state.read().data.logged_numbers(first..u64::MAX).next().is_none() {
            return Ok(None);
        }
        let (permit, count) = self.admit_carried()?;
        let _turn = inode.lock_turn();
        let state = inode.state.read();
        if state.gone || state.data.aside.is_none() {
            return Ok(None);
        }
        let pages: Vec<u64> = state.data.logged_numbers(first..u64::MAX).take(count).collect();
        let Some(&last) = pages.last() else { return Ok(None) };
        let size = state.loggable().size;
        let mut batch = Batch::new();
        for page in pages {
            let slot = state.data.get(page).expect("logged pages are cached");
            // What is stored beyond the stored size is zero; newer content may have grown the file.
            let stored = size.saturating_sub(page * PAGE_BYTES).min(PAGE_BYTES) as usize;
            let stored = if stored == 0 { BLOCK_BYTES } else { stored };
            batch.image(inode.number, page, &slot.page[..stored]);
        }
        self.store.commit(permit, batch)?;
        Ok(Some(last + 1))
    }

    fn carry_unclaimed(&self, number: ObjectNo, first: u64) -> Result<Option<u64>> {
        let (permit, count) = self.admit_carried()?;
        let unclaimed = self.writeback.aside.unclaimed.lock();
        let Some(file) = unclaimed.get(&number) else { return Ok(None) };
        let mut batch = Batch::new();
        let mut last = None;
        for (&page, content) in file.images.range(first..).take(count) {
            batch.image(number, page, content);
            last = Some(page + 1);
        }
        if last.is_some() {
            self.store.commit(permit, batch)?;
        }
        Ok(last)
    }

    /// Room for a batch of images that take the place of others, and how many.
    fn admit_carried(&self) -> Result<(Permit, usize)> {
        let one = IMAGE_OVERHEAD_BYTES + BLOCK_BYTES;
        let fit = self.store.batch_bytes_max().saturating_sub(BATCH_HEADER_BYTES) / one;
        let mut count = fit.clamp(1, CARRIED_PAGES_MAX);
        let mut tries = 0;
        loop {
            let estimate = Estimate { bytes: BATCH_HEADER_BYTES + count * one, items: 0, images: count };
            match self.store.admit(Class::Destage, estimate) {
                Ok(permit) => return Ok((permit, count)),
                Err(StoreError::Pressure(_)) if tries < ROOM_TRIES_MAX => {
                    self.checkpoint()?;
                    tries += 1;
                    count = (count / 2).max(1);
                }
                Err(StoreError::Pressure(_)) => return Err(Error::NoSpace),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Keeps what recovery found of a file whose inode cannot be read: the content of an image.
    pub(super) fn keep_unclaimed_image(&self, number: ObjectNo, page: u64, content: Buffer, error: &Error) {
        let mut unclaimed = self.writeback.aside.unclaimed.lock();
        let file = unclaimed.entry(number).or_insert_with(|| {
            tracing::error!(inode = %number, %error, "a damaged file's newest content stays in the journal");
            Unclaimed::default()
        });
        file.images.insert(page, Arc::new(content));
        self.writeback.aside.has_unclaimed.store(true, Ordering::Release);
    }

    /// As [`Fs::keep_unclaimed_image`]: that extents of it are still to be freed or moved.
    pub(crate) fn keep_unclaimed_reason(&self, number: ObjectNo, reason: OrphanReason) {
        let mut unclaimed = self.writeback.aside.unclaimed.lock();
        unclaimed.entry(number).or_default().unfinished = Some(reason);
        self.writeback.aside.has_unclaimed.store(true, Ordering::Release);
    }

    /// Enters an inode just read from the store, with what was kept for it; `None` if there is nothing to add. As
    /// long as something is kept, everybody who reads the inode comes here.
    pub(crate) fn claim(&self, number: ObjectNo, item: &InodeItem, removals: u64) -> Option<Arc<Inode>> {
        let aside = &self.writeback.aside;
        if !aside.has_unclaimed.load(Ordering::Acquire) {
            return None;
        }
        let mut all = aside.unclaimed.lock();
        let kept = all.get(&number)?;
        let inode = Inode::new(number, item.clone());
        {
            let mut state = inode.state.write();
            self.hand_over(&mut state, kept);
        }
        let inode = self.inodes.insert_loaded(inode, removals)?;
        all.remove(&number);
        drop(all);
        self.writeback.relist(&inode, &mut inode.state.write(), self.clock.now());
        Some(inode)
    }

    fn hand_over(&self, state: &mut InodeState, kept: &Unclaimed) {
        let end = pages_of(state.item.size);
        for (&page, content) in kept.images.range(..end) {
            state.data.insert_clean(&self.writeback.account, page, content.clone());
            state.data.update(page, |slot: &mut PageSlot| slot.logged = true);
            if let Some(mut block) = self.store.reserve(1).ok().filter(|_| !self.store.is_read_only()) {
                state.data.give_block(page, &mut block);
            }
        }
        match kept.unfinished {
            Some(OrphanReason::Shifting(shift)) => {
                (state.data.truncating_from, state.data.shifting) = (Some(shift.first), Some(shift));
            }
            Some(OrphanReason::Truncated) => state.data.truncating_from = Some(end),
            _ => {}
        }
    }
}

impl FileData {
    /// Errors: why the file is set aside.
    pub(super) fn check_not_aside(&self) -> Result<()> {
        self.aside.as_ref().map_or(Ok(()), |error| Err(Error::clone(error)))
    }
}

impl InodeState {
    /// Whether something of it is in memory only.
    fn is_uncommitted(&self) -> bool {
        !self.gone && (self.data.has_dirty() || self.item_dirty)
    }
}
