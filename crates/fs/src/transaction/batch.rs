//! What a transaction's names, links and extended attributes become in its batch, and the checks before that.
//!
//! Checks and batch are made under the locks of all inodes that take part, so that what was checked still holds when
//! the batch is committed.

use crate::attributes::flags::{forbid_change, forbid_removal_in, is_immutable};
use crate::attributes::xattr::{
    CAPABILITY_XATTR, FilledXattrs, check_list_bytes, list_bytes, replacement_estimate,
};
use crate::content::change::{Locked, estimate};
use crate::content::inode::Inode;
use crate::names::find::{Slot, put_dirent};
use crate::transaction::names::{Holder, Linked, Place, StagedNames, check_linkable};
use crate::{Error, Fs, ObjectNo, Result, Timestamp, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use syncline_format::Key;
use syncline_format::item::{InodeItem, OrphanReason};
use syncline_store::{Batch, Estimate};

/// The attributes of the inodes that take part, as the transaction leaves them.
pub(crate) type Items = BTreeMap<ObjectNo, InodeItem>;

/// A changed name, and the slot of whoever has it.
struct ChangedPlace<'a> {
    place: &'a Place,
    holder: Holder,
    slot: Option<u64>,
}

/// The names that the batch changes, checked.
pub(crate) struct Checked<'a>(Vec<ChangedPlace<'a>>);

/// The sum of two bounds.
pub(crate) fn plus(a: Estimate, b: Estimate) -> Estimate {
    Estimate { bytes: a.bytes + b.bytes, items: a.items + b.items, images: a.images + b.images }
}

impl StagedNames {
    /// Bound of what names, links and attributes add to the batch, all inodes included.
    pub(crate) fn bound(&self, fs: &Fs) -> Result<Estimate> {
        let inodes = self.inodes.len();
        let names = estimate(inodes + self.directories.len(), self.changes().count() + inodes, 0, 0);
        self.xattrs.iter().filter(|(_, value)| value.is_changed()).try_fold(names, |sum, (key, value)| {
            let (number, name) = key;
            let bytes = value.now.as_ref().map_or(0, Vec::len);
            Ok(plus(sum, replacement_estimate(fs.attributes.xattr_pieces(*number, name)?, bytes)))
        })
    }

    /// Whether names and attributes are as the transaction has found them. For one that changes nothing.
    pub(crate) fn check_unlocked(&self, fs: &Fs) -> Result<()> {
        for ((parent, name), holder) in &self.places {
            if self.directories[parent].state.read().is_dead()
                || fs.names.find_name(*parent, name)?.found().map(|found| found.inode) != holder.base
            {
                return Err(Error::Conflict);
            }
        }
        for ((number, name), value) in &self.xattrs {
            if fs.attributes.stored_xattr(*number, name)? != value.base {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    /// Whether everything is as the transaction has found it, and may be changed.
    ///
    /// Errors: `Conflict`, `NotPermitted`, `TooManyLinks`, `NoSpace` (too many attributes of one inode).
    pub(crate) fn check(&self, fs: &Fs, locked: &Locked<'_>) -> Result<Checked<'_>> {
        let mut changed = Vec::new();
        for (place, holder) in &self.places {
            let (parent, name) = place;
            let directory = locked.state(*parent);
            if directory.is_dead() {
                return Err(Error::Conflict);
            }
            let found = match fs.names.find_name(*parent, name)? {
                Slot::Taken(found) => Some(found),
                Slot::Free(_) | Slot::Full => None,
            };
            if found.as_ref().map(|found| found.inode) != holder.base {
                return Err(Error::Conflict);
            }
            if !holder.is_changed() {
                continue;
            }
            match holder.base {
                Some(_) => forbid_removal_in(&directory.item)?,
                None if is_immutable(&directory.item) => return Err(Error::NotPermitted),
                None => {}
            }
            changed.push(ChangedPlace { place, holder: *holder, slot: found.map(|found| found.slot) });
        }
        for (number, linked) in self.inodes.iter().filter(|(_, linked)| !linked.is_new) {
            if linked.links > 0 {
                let state = locked.state(*number);
                // It has lost its last name to others, however many the transaction gives it.
                if state.item.nlink == 0 && !state.linkable {
                    return Err(Error::Conflict);
                }
                match check_linkable(state, linked.links - 1) {
                    Err(Error::NotFound) => return Err(Error::Conflict),
                    result => result?,
                }
            }
        }
        let parties =
            changed.iter().flat_map(|change: &ChangedPlace<'_>| [change.holder.base, change.holder.now]);
        for number in parties.flatten() {
            forbid_change(&locked.state(number).item)?;
        }
        for ((number, name), value) in &self.xattrs {
            if fs.attributes.stored_xattr(*number, name)? != value.base {
                return Err(Error::Conflict);
            }
            if value.is_changed() {
                forbid_change(&locked.state(*number).item)?;
            }
        }
        self.check_xattr_lists(fs, locked)?;
        Ok(Checked(changed))
    }

    /// Whether what each inode has of attributes can still be listed. Errors: `NoSpace`.
    fn check_xattr_lists(&self, fs: &Fs, locked: &Locked<'_>) -> Result<()> {
        for (number, (more, less)) in self.xattr_list_changes() {
            if more > less {
                let before = fs.attributes.xattr_list_bytes(number, locked.state(number))?;
                check_list_bytes((before + more).saturating_sub(less))?;
            }
        }
        Ok(())
    }

    /// Bytes of names that the transaction adds to each inode's list of attributes, and takes away.
    fn xattr_list_changes(&self) -> BTreeMap<ObjectNo, (usize, usize)> {
        let mut changes: BTreeMap<ObjectNo, (usize, usize)> = BTreeMap::new();
        for ((number, name), value) in &self.xattrs {
            let (more, less) = changes.entry(*number).or_default();
            match (&value.base, &value.now) {
                (None, Some(_)) => *more += list_bytes(name),
                (Some(_), None) => *less += list_bytes(name),
                _ => {}
            }
        }
        changes
    }

    /// Whether directories hand down what new files have taken over from them: another ACL, or another group, would
    /// be disregarded.
    ///
    /// Errors: `Conflict`.
    pub(crate) fn check_legacies(&self, fs: &Fs, locked: &mut Locked<'_>) -> Result<()> {
        for (directory, legacy) in &self.legacies {
            if fs.names.legacy(*directory, locked.state_mut(*directory))? != *legacy {
                return Err(Error::Conflict);
            }
        }
        Ok(())
    }

    /// Writes names, links and attributes into the batch, and what that means for the inodes into their items.
    pub(crate) fn fill(
        &self,
        fs: &Fs,
        checked: Checked<'_>,
        locked: &Locked<'_>,
        now: Timestamp,
        items: &mut Items,
        batch: &mut Batch,
    ) -> Result<()> {
        let mut filled = BTreeSet::new();
        let mut touched = BTreeSet::new();
        for ChangedPlace { place, holder, slot } in checked.0 {
            let (parent, name) = place;
            let directory = item_of(items, locked, *parent);
            (directory.modified, directory.changed) = (now, now);
            let gone = u64::from(holder.base.is_some());
            directory.entries = (directory.entries + u64::from(holder.now.is_some())).saturating_sub(gone);
            touched.extend([holder.base, holder.now].into_iter().flatten());
            let slot = match slot {
                Some(slot) => slot,
                None => fs.names.free_slot(*parent, name, &filled)?,
            };
            filled.insert((*parent, slot));
            let key = Key::dirent(*parent, slot);
            match holder.now {
                Some(number) => {
                    let mode = locked.state(number).item.mode;
                    put_dirent(batch, key, number, mode, name);
                }
                None => batch.delete(key),
            }
        }
        let changed = self.xattrs.iter().filter(|(_, value)| value.is_changed());
        let mut filled = FilledXattrs::default();
        for ((number, name), value) in changed {
            fs.attributes.log_xattr(batch, *number, name, value.now.as_deref(), &mut filled)?;
            touched.insert(*number);
        }
        for number in touched {
            item_of(items, locked, number).changed = now;
        }
        for (number, linked) in self.inodes.iter().filter(|(_, linked)| linked.links != 0) {
            fill_links(*number, linked, locked, items, batch);
        }
        Ok(())
    }

    /// The batch is committed: what memory knows about the inodes follows.
    pub(crate) fn apply(&self, locked: &mut Locked<'_>) {
        for (number, name) in self.xattrs.keys() {
            if name == CAPABILITY_XATTR {
                locked.state_mut(*number).has_capabilities = None;
            }
        }
        for (number, (more, less)) in self.xattr_list_changes() {
            if let Some(listed) = &mut locked.state_mut(number).xattr_list_bytes {
                *listed = (*listed + more).saturating_sub(less);
            }
        }
        for number in self.inodes.keys() {
            let state = locked.state_mut(*number);
            state.linkable &= state.item.nlink == 0;
        }
    }
}

/// The number of an inode's links, and its entry in the table of orphans.
fn fill_links(number: ObjectNo, linked: &Linked, locked: &Locked<'_>, items: &mut Items, batch: &mut Batch) {
    let state = locked.state(number);
    let before = if linked.is_new { 0 } else { state.item.nlink };
    let item = item_of(items, locked, number);
    item.nlink = u32::try_from(i64::from(before) + linked.links).unwrap_or(0);
    match (before, item.nlink) {
        (1.., 0) => batch.put(Key::orphan(number), &OrphanReason::Unlinked.encode()),
        (0, 1..) if !linked.is_new => match state.data.orphan_reason() {
            Some(reason) => batch.put(Key::orphan(number), &reason.encode()),
            None => batch.delete(Key::orphan(number)),
        },
        _ => {}
    }
}

fn item_of<'a>(items: &'a mut Items, locked: &Locked<'_>, number: ObjectNo) -> &'a mut InodeItem {
    items.entry(number).or_insert_with(|| locked.state(number).item.clone())
}

impl Transaction {
    /// What cannot wait until the locks are held: new files without a name go, replaced names get their data (R20),
    /// and files whose content changes lose their capabilities.
    pub(crate) fn prepare_names(&mut self) -> Result<()> {
        let fs = self.fs.clone();
        let nameless = |linked: &Linked| linked.is_new && linked.links <= 0;
        let doomed: Vec<ObjectNo> = self
            .names
            .inodes
            .iter()
            .filter(|(_, linked)| nameless(linked))
            .map(|(number, _)| *number)
            .collect();
        for number in doomed {
            self.names.xattrs.retain(|(of, _), _| *of != number);
            let file = self.staging.forget(&fs, number)?;
            let linked = self.names.inodes.remove(&number).map(|linked| linked.inode);
            for inode in file.into_iter().chain(linked) {
                fs.removal.let_go(&inode)?;
            }
        }
        for (_, holder) in self.names.changes() {
            let (Some(_), Some(now)) = (holder.base, holder.now) else { continue };
            let linked = &self.names.inodes[&now];
            if !linked.is_new && linked.inode.state.read().item.is_regular() {
                fs.syncs.write_back_file(&linked.inode)?;
            }
        }
        for file in self.staging.files().filter(|file| file.is_changed()) {
            let inode = file.inode();
            let has_none = inode.state.read().has_capabilities == Some(false);
            if !has_none && self.names.new_inode(inode.number).is_none() {
                // In the batch, so that a commit that fails leaves them.
                self.names.drop_capabilities(&fs, inode)?;
            }
        }
        Ok(())
    }

    /// All inodes that take part, ascending.
    pub(crate) fn inodes(&self) -> Vec<Arc<Inode>> {
        let mut inodes: BTreeMap<ObjectNo, Arc<Inode>> = self.names.directories.clone();
        inodes.extend(self.names.inodes.iter().map(|(number, linked)| (*number, linked.inode.clone())));
        inodes.extend(self.staging.files().map(|file| (file.inode().number, file.inode().clone())));
        inodes.into_values().collect()
    }
}
