//! Removing names, and inodes that have lost their last one.
//!
//! An inode without a name lives on while it has handles: its orphan item is in the batch that removed the name. The
//! last close, or the next mount, reaps it: extended attributes first, content piecewise, the inode itself with the
//! last piece. What has neither content nor attributes nor handles goes in the batch that removes its name.

use crate::attributes::flags::{forbid_change, forbid_removal_in};
use crate::content::change::{Change, Locked};
use crate::content::inode::Inode;
use crate::names::find::check_name;
use crate::{Error, Names, Result};
use std::sync::Arc;
use syncline_format::item::OrphanReason;
use syncline_format::{Key, ObjectNo};

/// What `remove_name` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Removal {
    File,
    Directory,
}

impl Names {
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
        self.core.check_writable()?;
        let directory = self.content.directory(parent)?;
        loop {
            let found = self.find_entry(parent, name)?;
            let inode = match self.content.inode(found.inode) {
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
            let permit = self.removal.admit_removal_of(2, 4)?;
            let locked = Locked::new(&[&directory, &inode]);
            if locked.state(parent).is_dead() {
                return Err(Error::NotFound);
            }
            if self.find_name(parent, name)?.found().as_ref() != Some(&found) {
                continue;
            }
            check_removable(&locked, parent, inode.number, what)?;
            let mut change = Change::new(self.core.tree, locked);
            change.batch.delete(Key::dirent(parent, found.slot));
            let now = self.core.clock.now();
            let item = change.item(parent);
            item.entries = item.entries.saturating_sub(1);
            item.modified = now;
            item.changed = now;
            if what == Removal::Directory {
                item.nlink = item.nlink.saturating_sub(1);
            }
            self.drop_link(&mut change, &inode)?;
            drop(change.commit(&self.content, permit)?);
            drop(directory);
            return self.removal.reap_if_unused(&inode);
        }
    }

    /// Takes one name off an inode inside an operation; a directory loses everything, since it was empty.
    pub(crate) fn drop_link(&self, change: &mut Change<'_>, inode: &Arc<Inode>) -> Result<()> {
        let number = inode.number;
        let now = self.core.clock.now();
        let item = change.item(number);
        item.changed = now;
        item.nlink = if item.is_directory() { 0 } else { item.nlink.saturating_sub(1) };
        if item.nlink > 0 {
            return Ok(());
        }
        let is_symlink = item.is_symlink();
        change.locked.state_mut(number).linkable = false;
        if self.removal.is_bare(change.state(number), inode)? {
            if is_symlink {
                change.batch.delete(Key::symlink(number));
            }
            change.remove_inode(number);
        } else {
            change.batch.put(Key::orphan(number), &OrphanReason::Unlinked.encode());
        }
        Ok(())
    }
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
