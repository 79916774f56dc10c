//! [`Removal`]: the end of inodes that have lost their last name.
//!
//! An inode without a name lives on while it has handles: its orphan item is in the batch that removed the name. The
//! last close, or the next mount, reaps it: extended attributes first, content piecewise, the inode itself with the
//! last piece. A small file that nobody has open goes in the batch that removes its last name ([`parting`]).

use crate::content::Content;
use crate::content::change::estimate;
use crate::content::inode::{Inode, InodeState};
use crate::core::Core;
use crate::limits::REAP_ITEMS_MAX;
use crate::shape::Shape;
use crate::writeback::Writeback;
use crate::{Error, ObjectNo, Result};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::batch::{BATCH_HEADER_BYTES, DELETE_BYTES};
use syncline_format::item::OrphanReason;
use syncline_format::{Key, Kind};
use syncline_store::{Batch, Class, Estimate, Permit};

mod parting;

pub(crate) use parting::Parting;

/// Keeps an inode's content like an open handle does, for the length of one operation.
pub(crate) struct Held<'a> {
    removal: &'a Removal,
    inode: Option<Arc<Inode>>,
}

impl Held<'_> {
    /// Lets go; removes the inode if that was the last thing that kept it.
    pub(crate) fn release(mut self) -> Result<()> {
        match self.inode.take() {
            Some(inode) => self.removal.let_go(&inode),
            None => Ok(()),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take()
            && let Err(error) = self.removal.let_go(&inode)
        {
            // The orphan item stays, so the next mount removes the inode.
            tracing::warn!(inode = %inode.number, %error, "removing an unlinked inode failed");
        }
    }
}

/// Removes inodes.
pub(crate) struct Removal {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) shape: Arc<Shape>,
}

impl Removal {
    pub(crate) fn new(shape: &Arc<Shape>) -> Removal {
        Removal {
            core: shape.core.clone(),
            content: shape.content.clone(),
            writeback: shape.writeback.clone(),
            shape: shape.clone(),
        }
    }

    pub(crate) fn hold(&self, inode: &Arc<Inode>) -> Result<Held<'_>> {
        self.content.count_handle(inode, &inode.state.read())?;
        Ok(Held { removal: self, inode: Some(inode.clone()) })
    }

    pub(crate) fn let_go(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.handles.fetch_sub(1, Ordering::SeqCst) == 1 && inode.state.read().item.nlink == 0 {
            return self.reap_if_unused(inode);
        }
        Ok(())
    }

    /// Whether nothing but the inode itself has to be removed, and nobody has it open.
    pub(crate) fn is_bare(&self, state: &InodeState, inode: &Inode) -> Result<bool> {
        if inode.handles.load(Ordering::SeqCst) > 0 {
            return Ok(false);
        }
        if has_content(state) {
            return Ok(false);
        }
        self.has_no_xattrs(state, inode.number)
    }

    fn has_no_xattrs(&self, state: &InodeState, number: ObjectNo) -> Result<bool> {
        Ok(state.lacks_xattrs() || self.xattr_keys(number, 1)?.is_empty())
    }

    /// Keys of up to `count` extended attribute items of an inode.
    fn xattr_keys(&self, number: ObjectNo, count: usize) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        self.core.store.scan(
            self.content.tree,
            Key::xattr(number, 0),
            Key::extent(number, 0),
            &mut |key, _| {
                keys.push(key);
                if keys.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
        )?;
        Ok(keys)
    }

    /// Removes an inode that has neither names nor handles any more; for any other one there is nothing to do.
    pub(crate) fn reap_if_unused(&self, inode: &Arc<Inode>) -> Result<()> {
        {
            let mut state = inode.state.write();
            if state.item.nlink > 0 || inode.handles.load(Ordering::SeqCst) > 0 {
                return Ok(());
            }
            if state.gone {
                drop(state);
                self.content.inodes.remove(inode.number);
                return Ok(());
            }
            // From here on nobody can open it, and exactly one thread reaps it.
            if std::mem::replace(&mut state.dying, true) {
                return Ok(());
            }
        }
        let result = self.reap(inode);
        self.content.inodes.remove(inode.number);
        self.writeback.note_close();
        result
    }

    fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        let number = inode.number;
        while !inode.state.read().lacks_xattrs() {
            let keys = self.xattr_keys(number, REAP_ITEMS_MAX)?;
            if keys.is_empty() {
                break;
            }
            let bytes = BATCH_HEADER_BYTES + keys.len() * DELETE_BYTES;
            let estimate = |items| Estimate { bytes, items, images: 0 };
            let (permit, items) = self.writeback.admit_necessary(Class::Reclaim, estimate, keys.len())?;
            let mut batch = self.content.batch();
            keys.iter().take(items).for_each(|key| batch.delete(*key));
            self.core.store.commit(permit, batch)?;
        }
        let is_symlink = inode.state.read().item.is_symlink();
        let mut last = |batch: &mut Batch| {
            if is_symlink {
                batch.delete(Key::symlink(number));
            }
            batch.delete(Key::inode(number));
            batch.delete(Key::orphan(number));
        };
        if inode.state.read().item.is_regular() {
            return self.shape.remove_file_content(inode, &mut last);
        }
        let permit = self.admit_removal_of(0, 3)?;
        let mut batch = self.content.batch();
        last(&mut batch);
        let mut state = inode.state.write();
        self.core.store.commit(permit, batch)?;
        state.gone = true;
        state.item_dirty = false;
        self.content.note_dirty(inode, &mut state);
        Ok(())
    }

    /// Finishes what the last session had to leave: removals of inodes that were open, and large truncations.
    pub(crate) fn finish_orphans(&self) -> Result<()> {
        let mut orphans = Vec::new();
        let from = Key::orphan(ObjectNo(0));
        let end = Key::new(ObjectNo::VOLUME, Kind::Tree, 0);
        let scanned = self.core.store.scan(self.content.tree, from, end, &mut |key, value| {
            let reason = key.check().and_then(|()| OrphanReason::decode(value));
            orphans.push((ObjectNo(key.offset), reason));
            ControlFlow::Continue(())
        });
        self.leave_damaged(ObjectNo::VOLUME, scanned.map_err(Error::from))?;
        for (number, reason) in orphans {
            let finished = reason.map_err(Error::from).and_then(|reason| self.finish_orphan(number, reason));
            self.leave_damaged(number, finished)?;
        }
        Ok(())
    }

    fn finish_orphan(&self, number: ObjectNo, reason: OrphanReason) -> Result<()> {
        match (self.content.inode(number), reason) {
            (Ok(inode), reason) if means_nothing(&inode, reason) => self.forget_orphan(number),
            // Whatever the reason says: a truncated file may have lost its last name afterwards.
            (Ok(inode), _) if inode.state.read().item.nlink == 0 => self.reap_if_unused(&inode),
            (Ok(inode), OrphanReason::Truncated) => {
                self.shape.note_truncation(&inode);
                self.shape.finish_truncation(&inode)
            }
            // It goes on when there is a journal again: this may be more than fits into memory.
            (Ok(_), OrphanReason::Shifting(_)) => Ok(()),
            (Ok(_), OrphanReason::Unlinked) | (Err(Error::NotFound), _) => self.forget_orphan(number),
            (Err(error), reason) => {
                // Should the inode be read after all, nobody may see what is to be freed or moved.
                self.content.keep_unclaimed_reason(number, reason);
                Err(error)
            }
        }
    }

    /// An orphan that is damaged keeps its item, for a later open or a repair, and nobody from opening the volume.
    fn leave_damaged(&self, number: ObjectNo, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if self.core.is_damage(&error) => {
                self.content.leave_orphan(number, &error);
                Ok(())
            }
            result => result,
        }
    }

    /// Notes for which files a range is still to be taken out or put in. Until then nobody may see what is behind it.
    pub(crate) fn note_shifts(&self) -> Result<Vec<Arc<Inode>>> {
        let mut shifts = Vec::new();
        let (from, end) = (Key::orphan(ObjectNo(0)), Key::new(ObjectNo::VOLUME, Kind::Tree, 0));
        let scanned = self.core.store.scan(self.content.tree, from, end, &mut |key, value| {
            let reason = key.check().and_then(|()| OrphanReason::decode(value));
            if let Ok(OrphanReason::Shifting(shift)) = reason {
                shifts.push((ObjectNo(key.offset), shift));
            }
            ControlFlow::Continue(())
        });
        self.leave_damaged(ObjectNo::VOLUME, scanned.map_err(Error::from))?;
        let mut inodes = Vec::with_capacity(shifts.len());
        for (number, shift) in shifts {
            match self.content.inode(number) {
                Ok(inode) if means_nothing(&inode, OrphanReason::Shifting(shift)) => {}
                Ok(inode) if inode.state.read().item.nlink > 0 => {
                    self.shape.note_shift(&inode, shift);
                    inodes.push(inode);
                }
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => {
                    self.content.keep_unclaimed_reason(number, OrphanReason::Shifting(shift));
                    self.leave_damaged(number, Err(error))?;
                }
            }
        }
        Ok(inodes)
    }

    /// Ends the moves that were noted. Where there is no space for that, whoever comes to the file tries again.
    pub(crate) fn finish_shifts(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        for inode in inodes {
            match self.shape.finish_truncation(inode) {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => self.leave_damaged(inode.number, Err(error))?,
            }
        }
        Ok(())
    }

    /// Admission for removing names and inodes. On a full volume others may hold for a moment all there is for it.
    pub(crate) fn admit_removal_of(&self, inodes: usize, entries: usize) -> Result<Permit> {
        Ok(self
            .writeback
            .admit_necessary(Class::Reclaim, |_| estimate(inodes, entries, 0, 0), inodes + entries)?
            .0)
    }

    /// Deletes an orphan item that means nothing.
    fn forget_orphan(&self, number: ObjectNo) -> Result<()> {
        let permit = self.admit_removal_of(0, 1)?;
        let mut batch = self.content.batch();
        batch.delete(Key::orphan(number));
        self.core.store.commit(permit, batch)?;
        Ok(())
    }
}

/// Whether it is a file that has, or is to have, extents or pages.
fn has_content(state: &InodeState) -> bool {
    let item = &state.item;
    item.is_regular() && (item.size > 0 || item.blocks > 0 || state.data.has_dirty())
}

/// Whether an orphan asks for what no volume has: the root stays, and what is no file has no content to be finished.
fn means_nothing(inode: &Inode, reason: OrphanReason) -> bool {
    let item = &inode.state.read().item;
    let of_content = reason != OrphanReason::Unlinked;
    inode.number == ObjectNo::ROOT_DIR || of_content && item.nlink > 0 && !item.is_regular()
}
