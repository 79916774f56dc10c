//! Syncing files: choosing image or extents for their dirty pages, committing, forcing.
//!
//! A sync makes one pass over the pages that exist at the call, ascending: whatever is dirty when the pass comes to
//! it is written, so a writer that goes on dirtying pages behind or beyond it cannot keep it from ending. Pages that
//! somebody else is writing are waited for by taking the file's turn (R6).

use super::SyncScope;
use super::choice::{Pages, Purpose, covered_by};
use super::pages::pages_of;
use super::round::{Select, gauge};
use super::stream::{Pace, STREAM_PAGES_MIN};
use crate::inode::{Inode, InodeState};
use crate::{Fs, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::Key;
use syncline_format::batch::{BATCH_HEADER_BYTES, IMAGE_OVERHEAD_BYTES, PUT_OVERHEAD_BYTES};
use syncline_format::item::INODE_BYTES;
use syncline_format::{BLOCK_BYTES, Lsn};
use syncline_store::{Batch, Class, Estimate, Permit, Pressure, StoreError};

/// A sync with at most this many dirty pages (16 KiB) logs them as images. Larger data would cost its bytes twice, and
/// data and record in parallel are as fast.
pub(super) const IMAGE_PAGES_MAX: u64 = 4;

/// What of a file was logged as images.
pub(super) struct Logged {
    /// Holds it.
    pub(super) lsn: Lsn,
    /// Of the batch; none if there was nothing to log.
    pub(super) bytes: usize,
}

impl Fs {
    /// Makes everything durable that the file is at the call, and every batch of the volume that was committed before
    /// (C1, R19). Without anything new since the last force there is no I/O (C8a).
    pub(crate) fn file_sync(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()> {
        let lsn = self.sync_point(inode, scope)?;
        if self.options.ablation.checkpoint_per_sync {
            self.checkpoint()?;
        }
        self.store.force(lsn)?;
        Ok(())
    }

    /// A sync with at most this many dirty pages logs them as images.
    pub(super) fn image_pages_max(&self) -> u64 {
        if self.options.ablation.no_images { 0 } else { IMAGE_PAGES_MAX }
    }

    /// Like [`Fs::file_sync`], but does not wait for the flush: `done` is called when it is over, on the thread that
    /// drives the force.
    pub(crate) fn start_file_sync(
        &self,
        inode: &Arc<Inode>,
        scope: SyncScope,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        match self.sync_point(inode, scope) {
            Ok(lsn) => self.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into)))),
            Err(error) => done(Err(error)),
        }
    }

    /// Makes all data of all files durable (`sync(2)`).
    ///
    /// Errors: `SetAside` if damaged files could not be committed; all others are durable then.
    pub fn sync_all(&self) -> Result<()> {
        self.check_failure()?;
        if !self.store.is_read_only() {
            self.retry_set_aside(None)?;
            self.write_back_everything()?;
        }
        self.store.force(self.store.last_lsn())?;
        self.check_all_committed()
    }

    /// Commits what is dirty of the file without forcing it: a rename over an existing name, logged behind this, never
    /// shows a file without its data (C3, R20).
    pub(crate) fn write_back_file(&self, inode: &Arc<Inode>) -> Result<()> {
        self.commit_file(inode, SyncScope::All).map(drop)
    }

    /// Commits the file; what has to be forced then. What others commit behind that is no concern of this sync: to
    /// wait for it could mean to wait for one more group.
    pub(super) fn sync_point(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<Lsn> {
        // Later syncs keep failing, also of files that were not touched since (C8).
        self.check_failure()?;
        self.writeback.syncs.fetch_add(1, Ordering::Relaxed);
        self.commit_file(inode, scope)
    }

    pub(crate) fn check_failure(&self) -> Result<()> {
        match self.store.failure() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Commits what the file is; the LSN that holds it, and everything that had been committed at the call.
    ///
    /// Its own batch is such a one: it is committed with the file locked, or with its turn, so behind whatever others
    /// have logged of the file. Without one, others may have logged it just now, so it is the last of all.
    fn commit_file(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<Lsn> {
        let (dirty, pages, aside) = {
            let mut state = inode.state.write();
            let works = has_work(&state, scope);
            self.writeback.along.note_sync(&mut state.data, works);
            if state.gone || !works {
                return Ok(self.store.last_lsn());
            }
            (state.data.dirty_pages(), pages_of(state.item.size), state.data.aside.is_some())
        };
        if dirty < STREAM_PAGES_MIN {
            self.writeback.note_small_request();
        }
        // What could not be destaged would keep the journal's tail.
        if dirty <= self.image_pages_max()
            && (dirty == 0 || !aside)
            && let Some(lsn) = self.log_images(inode, dirty)?
        {
            return Ok(lsn);
        }
        let began = Some(self.clock.now());
        let mut cursor = 0;
        loop {
            let select = Select { pages: cursor..pages, whole: began, logged: false };
            let (rest, lsn) = if dirty >= STREAM_PAGES_MIN {
                (self.stream_out(Class::Normal, inode, select, Pace::FULL)?, None)
            } else {
                let outcome = self.write_out(Class::Normal, &[(inode.clone(), select)], Purpose::Sync)?;
                (outcome.rest[0], outcome.lsn)
            };
            match rest {
                Some(rest) => cursor = rest,
                None => return Ok(lsn.unwrap_or_else(|| self.store.last_lsn())),
            }
        }
    }

    /// Logs all dirty pages of the file as images; `None` if they are too many by now, or the journal has no room for
    /// images.
    fn log_images(&self, inode: &Arc<Inode>, pages: u64) -> Result<Option<Lsn>> {
        let permit = match self.store.admit(Class::Normal, image_estimate(pages)) {
            Ok(permit) => permit,
            // Extents need less of the ring.
            Err(StoreError::Pressure(Pressure::Journal)) if pages > 0 => return Ok(None),
            Err(StoreError::Pressure(_) | StoreError::NoSpace) => {
                self.admit_necessary(Class::Normal, |_| image_estimate(pages), 1)?.0
            }
            Err(error) => return Err(error.into()),
        };
        let mut turn = None;
        loop {
            let mut state = inode.state.write();
            if state.gone {
                return Ok(Some(self.store.last_lsn()));
            }
            if state.data.dirty_pages() > pages {
                return Ok(None);
            }
            // A sync does not wait until older pages of the file are destaged.
            if turn.is_some() || state.data.is_apart_from_destaging() {
                let logged = self.commit_images(inode, &mut state, permit, 0..u64::MAX, u64::MAX)?;
                return Ok(Some(logged.lsn));
            }
            drop(state);
            turn = Some(inode.lock_turn());
        }
    }

    /// Logs the dirty pages of a range as images, within the permit's estimate, with a size that covers them, and the
    /// file up to `end`. The caller has the turn, or the pages are apart from what whoever has it destages.
    pub(super) fn commit_images(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        permit: Permit,
        pages: Range<u64>,
        end: u64,
    ) -> Result<Logged> {
        let logged: Pages =
            state.data.dirty_range(pages).map(|(page, slot)| (page, slot.page.clone())).collect();
        let covered = covered_by(state, &logged).max(state.item.size.min(end));
        let mut item = state.item.clone();
        if item.is_regular() {
            item.size = item.size.min(covered);
        }
        if logged.is_empty() && !state.item_dirty && item.size == state.loggable().size {
            // Others have logged it, this moment at the latest.
            return Ok(Logged { lsn: self.store.last_lsn(), bytes: 0 });
        }
        let mut batch = Batch::with_capacity(image_estimate(logged.len() as u64).bytes);
        for (page, buffer) in &logged {
            batch.image(inode.number, *page, buffer);
        }
        batch.put(Key::inode(inode.number), &item.encode());
        let bytes = batch.bytes();
        let lsn = self.store.commit(permit, batch)?;
        for (page, _) in logged {
            state.data.update(page, |slot| {
                slot.dirty = false;
                slot.logged = true;
            });
        }
        state.data.covered = covered;
        state.data.recent_at = None;
        state.item_dirty = state.item != item;
        self.writeback.relist(inode, state, self.clock.now());
        Ok(Logged { lsn, bytes })
    }

    /// Writes back everything that is dirty at the call, several small files to a batch. Not forced.
    pub(super) fn write_back_everything(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> = {
            let lists = self.writeback.lists.lock();
            lists.dirty.values().cloned().collect()
        };
        self.write_out_all(Class::Normal, files, false)
    }

    /// Writes all pages out whose image is in the journal at the call, so that the journal's tail can move.
    pub(crate) fn destage_everything(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> = {
            let lists = self.writeback.lists.lock();
            lists.logged.values().cloned().collect()
        };
        self.write_out_all(Class::Destage, files, true)
    }

    /// One pass over each of the files. One that is damaged is set aside.
    pub(super) fn write_out_all(&self, class: Class, files: Vec<Arc<Inode>>, logged: bool) -> Result<()> {
        let whole = Some(self.clock.now());
        let mut queue: std::collections::VecDeque<(Arc<Inode>, Select)> = files
            .into_iter()
            .map(|inode| {
                let end = pages_of(inode.state.read().item.size);
                (inode, Select { pages: 0..end, whole, logged })
            })
            .collect();
        while !queue.is_empty() {
            let count = pack(queue.iter());
            let group: Vec<_> = queue.drain(..count).collect();
            let rests = self.write_group_apart(class, &group, Pace::FULL)?;
            for ((inode, select), rest) in group.into_iter().zip(rests).rev() {
                if let Some(rest) = rest {
                    queue.push_front((inode, Select { pages: rest..select.pages.end, ..select }));
                }
            }
        }
        Ok(())
    }
}

impl Fs {
    /// Writes out a group of files that was packed, or as much of it as the pace allows; returns what is left of each.
    pub(super) fn write_group(
        &self,
        class: Class,
        group: &[(Arc<Inode>, Select)],
        pace: Pace,
    ) -> Result<Vec<Option<u64>>> {
        match group {
            [(inode, select)] if gauge(&inode.state.read().data, select).pages >= STREAM_PAGES_MIN => {
                Ok(vec![self.stream_out(class, inode, select.clone(), pace)?])
            }
            group => {
                let result = self.write_out(class, group, Purpose::Background);
                self.writeback.note_progress();
                Ok(result?.rest)
            }
        }
    }
}

/// How many of the files, from the first on, make a round together: enough small ones to share a batch and a data
/// write.
pub(super) fn pack<'a>(files: impl Iterator<Item = &'a (Arc<Inode>, Select)>) -> usize {
    /// Files of a round: their batch stays below 32 KiB.
    const FILES_MAX: usize = 64;
    /// A round with this many pages is worth a batch of its own.
    const PAGES: u64 = 256;
    let mut pages = 0;
    let mut count = 0;
    for (inode, select) in files.take(FILES_MAX) {
        let gauge = gauge(&inode.state.read().data, select);
        if count > 0 && pages + gauge.pages > PAGES {
            break;
        }
        pages += gauge.pages;
        count += 1;
    }
    count
}

/// Whether a sync of the file has anything to commit.
pub(super) fn has_work(state: &InodeState, scope: SyncScope) -> bool {
    state.data.has_dirty()
        || match scope {
            SyncScope::All => state.item_dirty,
            // Times are not needed to read the data back.
            SyncScope::Data => state.item.size != state.loggable().size,
        }
}

/// Bounds of a batch with `pages` images and an inode.
pub(super) fn image_estimate(pages: u64) -> Estimate {
    let images = pages as usize;
    let bytes =
        BATCH_HEADER_BYTES + PUT_OVERHEAD_BYTES + INODE_BYTES + images * (IMAGE_OVERHEAD_BYTES + BLOCK_BYTES);
    Estimate { bytes, items: 1, images }
}
