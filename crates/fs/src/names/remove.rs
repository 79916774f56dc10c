//! Removing names, and inodes that have lost their last one.
//!
//! An inode without a name lives on while it has handles: its orphan item is in the batch that removed the name. The
//! last close, or the next mount, reaps it: extended attributes first, content piecewise, the inode itself with the
//! last piece. What has neither content nor attributes nor handles goes in the batch that removes its name, and so does
//! a file with little content.

use crate::attributes::flags::{forbid_change, forbid_removal_in};
use crate::content::change::{Admission, Change, Locked, admitted_along};
use crate::content::inode::Inode;
use crate::names::find::{FoundEntry, check_name};
use crate::removal::Parting;
use crate::{Attr, Error, Names, Result};
use std::sync::Arc;
use syncline_format::item::OrphanReason;
use syncline_format::{Key, ObjectNo};

/// What is to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalKind {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// A name that is to be removed: looked up once, and once more when the inodes are locked.
pub struct RemovalPlan {
    parent: ObjectNo,
    name: Vec<u8>,
    directory: Arc<Inode>,
    found: FoundEntry,
    inode: Arc<Inode>,
}

/// What an attempt has done.
enum Removed {
    /// The name is another one's by now.
    Nothing,
    /// With the attributes of what has lost its last name.
    Name(Option<Attr>),
}

impl RemovalPlan {
    /// Whether removing the inode's content may take long.
    pub fn is_heavy(&self) -> bool {
        self.inode.state.read().is_heavy()
    }
}

impl Names {
    /// Removes a name of anything but a directory. Errors: `NotFound`, `IsDirectory`, `NotDirectory`, `NotPermitted`
    /// (immutable or append-only), name errors, `ReadOnly`.
    pub fn unlink(&self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        self.remove(self.plan_removal(parent, name)?, RemovalKind::File).map(drop)
    }

    /// Removes an empty directory. Errors: `NotFound`, `NotDirectory`, `NotEmpty`, `Invalid` for `.`, `NotPermitted`,
    /// `ReadOnly`.
    pub fn rmdir(&self, parent: ObjectNo, name: &[u8]) -> Result<()> {
        self.remove(self.plan_rmdir(parent, name)?, RemovalKind::Directory).map(drop)
    }

    /// As [`Names::plan_removal`], for [`RemovalKind::Directory`].
    pub fn plan_rmdir(&self, parent: ObjectNo, name: &[u8]) -> Result<RemovalPlan> {
        if name == b".." {
            return Err(Error::NotEmpty);
        }
        self.plan_removal(parent, name)
    }

    /// Looks up what is to be removed, without locks. Errors: as [`Names::unlink`].
    pub fn plan_removal(&self, parent: ObjectNo, name: &[u8]) -> Result<RemovalPlan> {
        check_name(name)?;
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
            return Ok(RemovalPlan { parent, name: name.to_vec(), directory, found, inode });
        }
    }

    /// Removes the name, or what has it by now. Returns the attributes of what has lost its last name with it.
    ///
    /// Errors: as [`Names::unlink`] and [`Names::rmdir`].
    pub fn remove(&self, plan: RemovalPlan, what: RemovalKind) -> Result<Option<Attr>> {
        let mut plan = plan;
        loop {
            let removed = admitted_along(
                || self.removal.admit_removal_of(2, 4),
                |admission| self.remove_as_planned(&plan, what, admission),
            )?;
            match removed {
                Removed::Nothing => plan = self.plan_removal(plan.parent, &plan.name)?,
                Removed::Name(last) => {
                    self.removal.reap_if_unused(&plan.inode)?;
                    return Ok(last);
                }
            }
        }
    }

    fn remove_as_planned(
        &self,
        plan: &RemovalPlan,
        what: RemovalKind,
        admission: Admission,
    ) -> Result<Removed> {
        let RemovalPlan { parent, name, directory, found, inode } = plan;
        let parent = *parent;
        let mut parting = match admission {
            Admission::Along => self.removal.part(inode),
            // Room was asked for that the name's removal needs.
            Admission::Before(_) => None,
        };
        let locked = Locked::new(&[directory, inode]);
        if locked.state(parent).is_dead() {
            return Err(Error::NotFound);
        }
        if self.find_name(parent, name)?.found().as_ref() != Some(found) {
            return Ok(Removed::Nothing);
        }
        check_removable(&locked, parent, inode.number, what)?;
        let mut change = Change::new(&self.content, locked);
        change.batch.delete(Key::dirent(parent, found.slot));
        let now = self.core.clock.now();
        let item = change.item(parent);
        item.entries = item.entries.saturating_sub(1);
        item.modified = now;
        item.changed = now;
        if what == RemovalKind::Directory {
            item.nlink = item.nlink.saturating_sub(1);
        }
        let parts = self.drop_link(&mut change, inode, parting.as_mut())?;
        let mut locked = change.commit(&self.content, admission)?;
        let state = locked.state(inode.number);
        let last = (state.item.nlink == 0).then(|| self.attributes.attr_of(inode.number, state));
        if parts {
            self.removal.note_parted(&mut locked, inode);
        }
        Ok(Removed::Name(last))
    }

    /// Takes one name off an inode inside an operation; a directory loses everything, since it was empty. Whether its
    /// content goes with it, which is then to be noted.
    pub(crate) fn drop_link(
        &self,
        change: &mut Change<'_>,
        inode: &Arc<Inode>,
        parting: Option<&mut Parting>,
    ) -> Result<bool> {
        let number = inode.number;
        let parts = match parting {
            Some(parting) => self.removal.leave_with_name(change, inode, parting)?,
            None => false,
        };
        let now = self.core.clock.now();
        let item = change.item(number);
        item.changed = now;
        item.nlink = if item.is_directory() { 0 } else { item.nlink.saturating_sub(1) };
        if item.nlink > 0 {
            return Ok(false);
        }
        let is_symlink = item.is_symlink();
        change.locked.state_mut(number).linkable = false;
        if parts {
            return Ok(true);
        }
        if self.removal.is_bare(change.state(number), inode)? {
            if is_symlink {
                change.batch.delete(Key::symlink(number));
            }
            change.remove_inode(number);
        } else {
            change.batch.put(Key::orphan(number), &OrphanReason::Unlinked.encode());
            self.removal.writeback.expect_close();
        }
        Ok(false)
    }
}

/// Whether the entry may be removed: its type, its emptiness, immutable and append-only flags.
fn check_removable(locked: &Locked<'_>, parent: ObjectNo, number: ObjectNo, what: RemovalKind) -> Result<()> {
    let item = &locked.state(number).item;
    forbid_removal_in(&locked.state(parent).item)?;
    match what {
        RemovalKind::File if item.is_directory() => return Err(Error::IsDirectory),
        RemovalKind::Directory if !item.is_directory() => return Err(Error::NotDirectory),
        RemovalKind::Directory if item.entries > 0 => return Err(Error::NotEmpty),
        RemovalKind::File | RemovalKind::Directory => {}
    }
    forbid_change(item)
}
