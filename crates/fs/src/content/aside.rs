//! [`AsideFiles`]: the files that are set aside, and what the journal knows of those whose inode cannot be read. The
//! module `writeback::aside` tells what for.
//!
//! Locks: those here are taken under `Inode::state`, and only the store's inside of them.

use crate::content::Content;
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::{FileData, PageSlot, pages_of};
use crate::core::levels::Lock;
use crate::{Error, ObjectNo, Result, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_device::Buffer;
use syncline_format::item::{InodeItem, OrphanReason};
use syncline_store::lock_order::Mutex;

/// What is set aside because it is damaged: it is told to whoever touches it, and holds up nobody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SetAside {
    /// Files that cannot be written back.
    pub files: u64,
    /// Their pages that wait for it in memory; those that are durable are so in the journal.
    pub pages: u64,
    /// Entries of the orphan table that were left for a later open or a repair.
    pub orphans: u64,
}

pub(crate) struct Aside {
    pub(crate) inode: Arc<Inode>,
    pub(crate) pages: u64,
    pub(crate) tried: Timestamp,
}

/// What is known of a file whose inode cannot be read.
#[derive(Default)]
pub(crate) struct Unclaimed {
    /// Content of its live images.
    pub(crate) images: BTreeMap<u64, Arc<Buffer>>,
    /// A truncation or a move that a crash has interrupted.
    pub(crate) unfinished: Option<OrphanReason>,
}

/// The files that are set aside.
pub(crate) struct AsideFiles {
    pub(crate) files: Mutex<BTreeMap<ObjectNo, Aside>>,
    /// Of all of them.
    pub(crate) pages: AtomicU64,
    pub(crate) unclaimed: Mutex<BTreeMap<ObjectNo, Unclaimed>>,
    /// There may be some in `unclaimed`, for a look without the lock.
    pub(crate) has_unclaimed: AtomicBool,
    pub(crate) orphans: AtomicU64,
    /// Held by who carries.
    pub(crate) carrying: Mutex<()>,
}

impl Default for AsideFiles {
    fn default() -> AsideFiles {
        AsideFiles {
            files: Mutex::new(Lock::AsideFiles, BTreeMap::new()),
            pages: AtomicU64::new(0),
            unclaimed: Mutex::new(Lock::Unclaimed, BTreeMap::new()),
            has_unclaimed: AtomicBool::new(false),
            orphans: AtomicU64::new(0),
            carrying: Mutex::new(Lock::Carrying, ()),
        }
    }
}

impl AsideFiles {
    /// Pages that no writeback can free before the damage is gone.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// A file's state has changed. One that has nothing to write any more is no longer set aside.
    pub(crate) fn update(&self, inode: &Arc<Inode>, state: &mut InodeState) {
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
    pub(crate) fn end(&self, number: ObjectNo, data: &mut FileData) {
        data.aside = None;
        if let Some(aside) = self.files.lock().remove(&number) {
            self.count(aside.pages, 0);
        }
    }

    pub(crate) fn count(&self, before: u64, after: u64) {
        self.pages.fetch_add(after, Ordering::Relaxed);
        self.pages.fetch_sub(before, Ordering::Relaxed);
    }

    /// Why one of the files is set aside, if any is.
    pub(crate) fn first_error(&self) -> Option<Error> {
        let first = self.files.lock().values().next().map(|aside| aside.inode.clone())?;
        first.state.read().data.aside.clone().map(|error| *error)
    }

    /// An orphan is left for later.
    pub(crate) fn note_orphan(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }
}

impl Content {
    /// What is set aside now.
    pub(crate) fn set_aside_stats(&self) -> SetAside {
        let aside = &self.aside;
        let (mut files, mut pages) = (aside.files.lock().len() as u64, aside.pages());
        for unclaimed in aside.unclaimed.lock().values() {
            files += 1;
            pages += unclaimed.images.len() as u64;
        }
        SetAside { files, pages, orphans: aside.orphans.load(Ordering::Relaxed) }
    }

    /// An entry of the orphan table cannot be followed; it stays for a later open or a repair.
    pub(crate) fn leave_orphan(&self, number: ObjectNo, error: &Error) {
        self.aside.note_orphan();
        tracing::error!(inode = %number, %error, "a removed or truncated file is damaged; it is left as it is");
    }

    /// Keeps what recovery found of a file whose inode cannot be read: the content of an image.
    pub(crate) fn keep_unclaimed_image(&self, number: ObjectNo, page: u64, content: Buffer, error: &Error) {
        let mut unclaimed = self.aside.unclaimed.lock();
        let file = unclaimed.entry(number).or_insert_with(|| {
            tracing::error!(inode = %number, %error, "a damaged file's newest content stays in the journal");
            Unclaimed::default()
        });
        file.images.insert(page, Arc::new(content));
        self.aside.has_unclaimed.store(true, Ordering::Release);
    }

    /// As `keep_unclaimed_image`: that extents of it are still to be freed or moved.
    pub(crate) fn keep_unclaimed_reason(&self, number: ObjectNo, reason: OrphanReason) {
        let mut unclaimed = self.aside.unclaimed.lock();
        unclaimed.entry(number).or_default().unfinished = Some(reason);
        self.aside.has_unclaimed.store(true, Ordering::Release);
    }

    /// Enters an inode just read from the store, with what was kept for it; `None` if there is nothing to add. As
    /// long as something is kept, everybody who reads the inode comes here.
    pub(crate) fn claim(&self, number: ObjectNo, item: &InodeItem, removals: u64) -> Option<Arc<Inode>> {
        let aside = &self.aside;
        if !aside.has_unclaimed.load(Ordering::Acquire) {
            return None;
        }
        let mut all = aside.unclaimed.lock();
        let kept = all.get(&number)?;
        let inode = Inode::new(number, item.clone());
        {
            let mut state = inode.state.try_write().expect("nobody else sees the inode yet");
            self.hand_over(&mut state, kept);
        }
        let inode = self.inodes.insert_loaded(inode, removals)?;
        all.remove(&number);
        drop(all);
        self.relist(&inode, &mut inode.state.write(), self.core.clock.now());
        Some(inode)
    }

    pub(crate) fn hand_over(&self, state: &mut InodeState, kept: &Unclaimed) {
        let end = pages_of(state.item.size);
        for (&page, content) in kept.images.range(..end) {
            state.data.insert_clean(&self.core.account, page, content.clone());
            state.data.update(page, |slot: &mut PageSlot| slot.state.log());
            if let Some(mut block) =
                self.core.store.reserve(1).ok().filter(|_| !self.core.store.is_read_only())
            {
                state.data.give_block(page, &mut block);
            }
        }
        match kept.unfinished {
            Some(OrphanReason::Shifting(shift)) => {
                (state.data.stored.truncating_from, state.data.stored.shifting) =
                    (Some(shift.first), Some(shift));
            }
            Some(OrphanReason::Truncated) => state.data.stored.truncating_from = Some(end),
            _ => {}
        }
    }
}

impl FileData {
    /// Errors: why the file is set aside.
    pub(crate) fn check_not_aside(&self) -> Result<()> {
        self.aside.as_ref().map_or(Ok(()), |error| Err(Error::clone(error)))
    }
}

impl InodeState {
    /// Whether something of it is in memory only.
    pub(crate) fn is_uncommitted(&self) -> bool {
        !self.gone && (self.data.has_dirty() || self.item_dirty)
    }
}
