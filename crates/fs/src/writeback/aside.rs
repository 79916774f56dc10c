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

use crate::clock::since;
use crate::content::aside::Aside;
use crate::content::inode::Inode;
use crate::content::pages::PAGE_BYTES;
use crate::content::select::Select;
use crate::limits::{ASIDE_RETRY_INTERVAL, CARRIED_PAGES_MAX, CARRY_TRIES_MAX};
use crate::writeback::Writeback;
use crate::writeback::stream::Pace;
use crate::{Error, Result};
use std::sync::Arc;
use syncline_format::batch::{BATCH_HEADER_BYTES, IMAGE_OVERHEAD_BYTES};
use syncline_format::item::Timestamp;
use syncline_format::{BLOCK_BYTES, ObjectNo};
use syncline_store::{Class, Estimate, Permit, StoreError};

impl Writeback {
    /// Takes a file out of what the background writes.
    pub(crate) fn set_aside(&self, inode: &Arc<Inode>, error: Error) {
        let now = self.core.clock.now();
        let mut state = inode.state.write();
        if state.data.aside.is_none() {
            tracing::error!(
                inode = %inode.number, %error,
                "a damaged file cannot be written back; it is set aside, and all others are written"
            );
        }
        state.data.aside = Some(Box::new(error));
        {
            let mut files = self.content.aside.files.lock();
            let fresh = || Aside { inode: inode.clone(), pages: 0, tried: now };
            files.entry(inode.number).or_insert_with(fresh).tried = now;
        }
        self.content.relist(inode, &mut state, now);
    }

    /// As `write_group`, but a file of which something cannot be read is set aside, and the others are written
    /// without it.
    pub(crate) fn write_group_apart(
        &self,
        class: Class,
        group: &[(Arc<Inode>, Select)],
        pace: Pace,
    ) -> Result<Vec<Option<u64>>> {
        let error = match self.write_group(class, group, pace) {
            Err(error) if self.core.is_damage(&error) => error,
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
    pub(crate) fn retry_set_aside(&self, now: Option<Timestamp>) -> Result<()> {
        let due: Vec<Arc<Inode>> = {
            let files = self.content.aside.files.lock();
            let is_due =
                |aside: &&Aside| now.is_none_or(|now| since(now, aside.tried) >= ASIDE_RETRY_INTERVAL);
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
    pub(crate) fn check_not_aside(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.state.read().data.aside.is_some() {
            self.write_out_all(Class::Destage, vec![inode.clone()], true)?;
        }
        inode.state.read().data.check_not_aside()
    }

    /// Errors: `SetAside` if a file has changes that could not be committed.
    pub(crate) fn check_all_committed(&self) -> Result<()> {
        let files: Vec<Arc<Inode>> =
            self.content.aside.files.lock().values().map(|aside| aside.inode.clone()).collect();
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
    pub(crate) fn carry_images(&self) -> Result<()> {
        let aside = &self.content.aside;
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
        let mut batch = self.content.batch();
        for page in pages {
            let slot = state.data.get(page).expect("logged pages are cached");
            // What is stored beyond the stored size is zero; newer content may have grown the file.
            let stored = size.saturating_sub(page * PAGE_BYTES).min(PAGE_BYTES) as usize;
            let stored = if stored == 0 { BLOCK_BYTES } else { stored };
            batch.image(inode.number, page, &slot.page[..stored]);
        }
        self.core.store.commit(permit, batch)?;
        Ok(Some(last + 1))
    }

    fn carry_unclaimed(&self, number: ObjectNo, first: u64) -> Result<Option<u64>> {
        let (permit, count) = self.admit_carried()?;
        let unclaimed = self.content.aside.unclaimed.lock();
        let Some(file) = unclaimed.get(&number) else { return Ok(None) };
        let mut batch = self.content.batch();
        let mut last = None;
        for (&page, content) in file.images.range(first..).take(count) {
            batch.image(number, page, content);
            last = Some(page + 1);
        }
        if last.is_some() {
            self.core.store.commit(permit, batch)?;
        }
        Ok(last)
    }

    /// Room for a batch of images that take the place of others, and how many.
    fn admit_carried(&self) -> Result<(Permit, usize)> {
        let one = IMAGE_OVERHEAD_BYTES + BLOCK_BYTES;
        let fit = self.core.store.batch_bytes_max().saturating_sub(BATCH_HEADER_BYTES) / one;
        let mut count = fit.clamp(1, CARRIED_PAGES_MAX);
        let mut tries = 0;
        loop {
            let estimate = Estimate { bytes: BATCH_HEADER_BYTES + count * one, items: 0, images: count };
            match self.core.store.admit(Class::Destage, estimate) {
                Ok(permit) => return Ok((permit, count)),
                Err(StoreError::Pressure(_)) if tries < CARRY_TRIES_MAX => {
                    self.core.checkpoint()?;
                    tries += 1;
                    count = (count / 2).max(1);
                }
                Err(StoreError::Pressure(_)) => return Err(Error::NoSpace),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
