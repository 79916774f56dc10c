//! Removing names, and inodes that have lost their last one.
//!
//! An inode without a name lives on while it has handles: its orphan item is in the batch that removed the name. The
//! last close, or the next mount, reaps it: extended attributes first, content piecewise, the inode itself with the
//! last piece. What has neither content nor attributes nor handles goes in the batch that removes its name.

use super::change::{Change, Locked, estimate};
use super::names::check_name;
use crate::flags::{forbid_change, forbid_removal_in};
use crate::inode::{Inode, InodeState};
use crate::{Error, Fs, Result};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::batch::{BATCH_HEADER_BYTES, DELETE_BYTES};
use syncline_format::item::OrphanReason;
use syncline_format::{Key, Kind, ObjectNo};
use syncline_store::{Batch, Class, Estimate, Permit};

/// Items of an inode that one batch of its removal deletes at most.
const REAP_ITEMS_MAX: usize = 256;

/// What `remove_name` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    File,
    Directory,
}

impl Fs {
    /// Removes a name of anything but a directory. Errors: `NotFound`, `IsDirectory`, `NotDirectory`, `NotPermitted`
    /// (immutable or append-only), name errors, `ReadOnly`.
    pub fn unlink(&self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.remove_name(parent, name, Removal::File)
    }

    /// Removes an empty directory. Errors: `NotFound`, `NotDirectory`, `NotEmpty`, `Invalid` for `.`, `NotPermitted`,
    /// `ReadOnly`.
    pub fn rmdir(&self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        check_name(name)?;
        self.remove_name(parent, name, Removal::Directory)
    }

    fn remove_name(&self, parent: ObjectNo, name: &[u8], what: Removal) -> Result<()> {
        self.check_writable()?;
        let directory = self.directory(parent)?;
        loop {
            let found = self.find_entry(parent, name)?;
            let inode = match self.inode(found.inode) {
                Ok(inode) => inode,
                Err(Error::NotFound) if self.find_name(parent, name)?.found().as_ref() != Some(&found) => {
                    continue;
                }
                Err(Error::NotFound) => {
                    let what = "a directory entry names an inode that does not exist";
                    return Err(Error::Inconsistent { object: parent, what });
                }
                Err(error) => return Err(error),
            };
            let permit = self.admit_removal_of(2, 4)?;
            let locked = Locked::new(&[&directory, &inode]);
            if locked.state(parent).is_dead() {
                return Err(Error::NotFound);
            }
            if self.find_name(parent, name)?.found().as_ref() != Some(&found) {
                continue;
            }
            check_removable(&locked, parent, inode.number, what)?;
            let mut change = Change::new(locked);
            change.batch.delete(Key::dirent(parent, found.slot));
            let now = self.clock.now();
            let item = change.item(parent);
            item.entries = item.entries.saturating_sub(1);
            item.modified = now;
            item.changed = now;
            if what == Removal::Directory {
                item.nlink = item.nlink.saturating_sub(1);
            }
            self.drop_link(&mut change, &inode)?;
            drop(change.commit(self, permit)?);
            drop(directory);
            return self.reap_if_unused(&inode);
        }
    }

    /// Takes one name off an inode inside an operation; a directory loses everything, since it was empty.
    pub(crate) fn drop_link(&self, change: &mut Change<'_>, inode: &Arc<Inode>) -> Result<()> {
        let number = inode.number;
        let now = self.clock.now();
        let item = change.item(number);
        item.changed = now;
        item.nlink = if item.is_directory() { 0 } else { item.nlink.saturating_sub(1) };
        if item.nlink > 0 {
            return Ok(());
        }
        let is_symlink = item.is_symlink();
        change.locked.state_mut(number).linkable = false;
        if self.is_bare(change.state(number), inode)? {
            if is_symlink {
                change.batch.delete(Key::symlink(number));
            }
            change.remove_inode(number);
        } else {
            change.batch.put(Key::orphan(number), &OrphanReason::Unlinked.encode());
        }
        Ok(())
    }

    /// Whether nothing but the inode itself has to be removed, and nobody has it open.
    fn is_bare(&self, state: &InodeState, inode: &Inode) -> Result<bool> {
        if inode.handles.load(Ordering::SeqCst) > 0 {
            return Ok(false);
        }
        let item = &state.item;
        if item.is_regular() && (item.size > 0 || item.blocks > 0 || state.data.has_dirty()) {
            return Ok(false);
        }
        Ok(self.xattr_keys(inode.number, 1)?.is_empty())
    }

    /// Keys of up to `count` extended attribute items of an inode.
    fn xattr_keys(&self, number: ObjectNo, count: usize) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        self.store.scan(Key::xattr(number, 0), Key::extent(number, 0), &mut |key, _| {
            keys.push(key);
            if keys.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
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
                self.inodes.remove(inode.number);
                return Ok(());
            }
            // From here on nobody can open it, and exactly one thread reaps it.
            if std::mem::replace(&mut state.dying, true) {
                return Ok(());
            }
        }
        let result = self.reap(inode);
        self.inodes.remove(inode.number);
        result
    }

    fn reap(&self, inode: &Arc<Inode>) -> Result<()> {
        let number = inode.number;
        loop {
            let keys = self.xattr_keys(number, REAP_ITEMS_MAX)?;
            if keys.is_empty() {
                break;
            }
            let bytes = BATCH_HEADER_BYTES + keys.len() * DELETE_BYTES;
            let estimate = |items| Estimate { bytes, items, images: 0 };
            let (permit, items) = self.admit_necessary(Class::Reclaim, estimate, keys.len())?;
            let mut batch = Batch::new();
            keys.iter().take(items).for_each(|key| batch.delete(*key));
            self.store.commit(permit, batch)?;
        }
        let mut last = |batch: &mut Batch| {
            batch.delete(Key::symlink(number));
            batch.delete(Key::inode(number));
            batch.delete(Key::orphan(number));
        };
        if inode.state.read().item.is_regular() {
            return self.remove_file_content(inode, &mut last);
        }
        let permit = self.admit_removal_of(0, 3)?;
        let mut batch = Batch::new();
        last(&mut batch);
        let mut state = inode.state.write();
        self.store.commit(permit, batch)?;
        state.gone = true;
        state.item_dirty = false;
        self.note_dirty(inode, &mut state);
        Ok(())
    }

    /// Finishes what the last session had to leave: removals of inodes that were open, and large truncations.
    pub(crate) fn finish_orphans(&self) -> Result<()> {
        let mut orphans = Vec::new();
        let from = Key::orphan(ObjectNo(0));
        let end = Key::new(ObjectNo::VOLUME, Kind::Tree, 0);
        let scanned = self.store.scan(from, end, &mut |key, value| {
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
        match (self.inode(number), reason) {
            (Ok(inode), reason) if means_nothing(&inode, reason) => self.forget_orphan(number),
            // Whatever the reason says: a truncated file may have lost its last name afterwards.
            (Ok(inode), _) if inode.state.read().item.nlink == 0 => self.reap_if_unused(&inode),
            (Ok(inode), OrphanReason::Truncated) => {
                self.note_truncation(&inode);
                self.finish_truncation(&inode)
            }
            // It goes on when there is a journal again: this may be more than fits into memory.
            (Ok(_), OrphanReason::Shifting(_)) => Ok(()),
            (Ok(_), OrphanReason::Unlinked) | (Err(Error::NotFound), _) => self.forget_orphan(number),
            (Err(error), reason) => {
                // Should the inode be read after all, nobody may see what is to be freed or moved.
                self.keep_unclaimed_reason(number, reason);
                Err(error)
            }
        }
    }

    /// An orphan that is damaged keeps its item, for a later open or a repair, and nobody from opening the volume.
    fn leave_damaged(&self, number: ObjectNo, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if self.is_damage(&error) => {
                self.leave_orphan(number, &error);
                Ok(())
            }
            result => result,
        }
    }

    /// Notes for which files a range is still to be taken out or put in. Until then nobody may see what is behind it.
    pub(crate) fn note_shifts(&self) -> Result<Vec<Arc<Inode>>> {
        let mut shifts = Vec::new();
        let (from, end) = (Key::orphan(ObjectNo(0)), Key::new(ObjectNo::VOLUME, Kind::Tree, 0));
        let scanned = self.store.scan(from, end, &mut |key, value| {
            let reason = key.check().and_then(|()| OrphanReason::decode(value));
            if let Ok(OrphanReason::Shifting(shift)) = reason {
                shifts.push((ObjectNo(key.offset), shift));
            }
            ControlFlow::Continue(())
        });
        self.leave_damaged(ObjectNo::VOLUME, scanned.map_err(Error::from))?;
        let mut inodes = Vec::with_capacity(shifts.len());
        for (number, shift) in shifts {
            match self.inode(number) {
                Ok(inode) if means_nothing(&inode, OrphanReason::Shifting(shift)) => {}
                Ok(inode) if inode.state.read().item.nlink > 0 => {
                    self.note_shift(&inode, shift);
                    inodes.push(inode);
                }
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => {
                    self.keep_unclaimed_reason(number, OrphanReason::Shifting(shift));
                    self.leave_damaged(number, Err(error))?;
                }
            }
        }
        Ok(inodes)
    }

    /// Ends the moves that were noted. Where there is no space for that, whoever comes to the file tries again.
    pub(crate) fn finish_shifts(&self, inodes: &[Arc<Inode>]) -> Result<()> {
        for inode in inodes {
            match self.finish_truncation(inode) {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => self.leave_damaged(inode.number, Err(error))?,
            }
        }
        Ok(())
    }

    /// Admission for removing names and inodes. On a full volume others may hold for a moment all there is for it.
    fn admit_removal_of(&self, inodes: usize, entries: usize) -> Result<Permit> {
        Ok(self.admit_necessary(Class::Reclaim, |_| estimate(inodes, entries, 0, 0), inodes + entries)?.0)
    }

    /// Deletes an orphan item that means nothing.
    fn forget_orphan(&self, number: ObjectNo) -> Result<()> {
        let permit = self.admit_removal_of(0, 1)?;
        let mut batch = Batch::new();
        batch.delete(Key::orphan(number));
        self.store.commit(permit, batch)?;
        Ok(())
    }
}

/// Whether an orphan asks for what no volume has: the root stays, and what is no file has no content to be finished.
fn means_nothing(inode: &Inode, reason: OrphanReason) -> bool {
    let item = &inode.state.read().item;
    let of_content = reason != OrphanReason::Unlinked;
    inode.number == ObjectNo::ROOT_DIR || of_content && item.nlink > 0 && !item.is_regular()
}

/// Whether the entry may be removed: its type, its emptiness, immutable and append-only flags.
fn check_removable(locked: &Locked<'_>, parent: ObjectNo, number: ObjectNo, what: Removal) -> Result<()> {
    let item = &locked.state(number).item;
    forbid_removal_in(&locked.state(parent).item)?;
    match what {
        Removal::File if item.is_directory() => return Err(Error::IsDirectory),
        Removal::Directory if !item.is_directory() => return Err(Error::NotDirectory),
        Removal::Directory if item.entries > 0 => return Err(Error::NotEmpty),
        Removal::File | Removal::Directory => {}
    }
    forbid_change(item)
}
