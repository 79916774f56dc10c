//! Directory entries in the tree: one item per entry, keyed by the name's hash.
//!
//! A hash has a row of slots, 65,536 in version 2 of the format and 8 in version 1 ([`NameHash`]). Names whose hashes
//! collide take the first free one. A lookup reads the whole row and compares names, so removing an entry never hides
//! another, entries never move, and a slot can serve as a directory cookie. In version 2 no two rows overlap, and who
//! does not know the volume's key finds no names that fill one; in version 1 eight names can block a ninth.
//!
//! [`NameHash`]: syncline_format::NameHash

use crate::content::change::Locked;
use crate::content::inode::Inode;
use crate::content::steps::{self, Step};
use crate::core::free_slot::FreeSlot;
use crate::{Error, Names, Result};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::item::{DIRENT_BYTES_MAX, DirentView, NAME_BYTES_MAX};
use syncline_format::{FormatError, Key, ObjectNo};
use syncline_store::Batch;

/// An entry that was found, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundEntry {
    pub(crate) slot: u64,
    pub(crate) inode: ObjectNo,
    pub(crate) file_type: u8,
}

/// What a directory holds under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    Taken(FoundEntry),
    /// No such name; it would go here.
    Free(u64),
    /// No such name, and no room for it: names with the same hash have all of its slots.
    Full,
}

impl Slot {
    pub(crate) fn found(self) -> Option<FoundEntry> {
        match self {
            Slot::Taken(found) => Some(found),
            Slot::Free(_) | Slot::Full => None,
        }
    }
}

/// Whether a name may be given to something. Errors: `NotFound` when empty, `NameTooLong`, `Invalid`.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::NotFound);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::NameTooLong);
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Error::Invalid("a name contains neither '/' nor NUL"));
    }
    if name == b"." || name == b".." {
        return Err(Error::Invalid("'.' and '..' always name directories and cannot be changed"));
    }
    Ok(())
}

impl Names {
    /// Looks a name up in the tree.
    pub(crate) fn find_name(&self, directory: ObjectNo, name: &[u8]) -> Result<Slot> {
        steps::passed(Step::NameLookedUp);
        let slots = self.core.name_hash.slots(name);
        let mut free = FreeSlot::of(&slots, |_| false);
        let mut found: std::result::Result<Option<FoundEntry>, FormatError> = Ok(None);
        let (from, end) = (Key::dirent(directory, slots.start), Key::dirent(directory, slots.end));
        self.core.store.scan(self.content.tree, from, end, &mut |key, value| {
            free.passes(key.offset);
            match DirentView::decode(value) {
                Ok(dirent) if dirent.name == name => {
                    let (inode, file_type) = (dirent.inode, dirent.file_type);
                    found = Ok(Some(FoundEntry { slot: key.offset, inode, file_type }));
                    ControlFlow::Break(())
                }
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => {
                    found = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(found) = found? {
            return Ok(Slot::Taken(found));
        }
        Ok(free.found().map_or(Slot::Full, Slot::Free))
    }

    /// A slot for a name that the directory does not have, other than those that the same batch fills. Errors:
    /// `NoSpace`.
    pub(crate) fn free_slot(
        &self,
        directory: ObjectNo,
        name: &[u8],
        filled: &BTreeSet<(ObjectNo, u64)>,
    ) -> Result<u64> {
        let slots = self.core.name_hash.slots(name);
        let mut free = FreeSlot::of(&slots, |slot| filled.contains(&(directory, slot)));
        let (from, end) = (Key::dirent(directory, slots.start), Key::dirent(directory, slots.end));
        self.core.store.scan(self.content.tree, from, end, &mut |key, _| {
            free.passes(key.offset);
            ControlFlow::Continue(())
        })?;
        free.found().ok_or(Error::NoSpace)
    }

    /// Whether a directory has this name alone, as far as its inode tells: it is that of its parent, and the one by
    /// which it was found before. Anything else has no parent, and always fits.
    pub(crate) fn is_only_name(&self, parent: ObjectNo, slot: u64, inode: &Inode) -> bool {
        if !inode.is_directory {
            return true;
        }
        let is_root = inode.number == ObjectNo::ROOT_DIR;
        if is_root || inode.number == parent || inode.state.read().item.parent != parent {
            return false;
        }
        match inode.found_at.compare_exchange(0, slot, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(known) => known == slot,
        }
    }

    /// Refuses a second name of a directory: on a damaged volume each of them would double the paths to what is
    /// below, and a name of an ancestor would make them endless. A name that was moved since it was looked up is
    /// none.
    ///
    /// Errors: `Inconsistent`.
    pub(crate) fn check_only_name(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        slot: u64,
        inode: &Arc<Inode>,
    ) -> Result<()> {
        if self.is_only_name(directory.number, slot, inode) {
            return Ok(());
        }
        let locked = Locked::new(&[directory, inode]);
        let now = self.find_name(directory.number, name)?.found();
        if now.is_none_or(|now| (now.slot, now.inode) != (slot, inode.number)) {
            return Ok(());
        }
        let object = inode.number;
        if locked.state(object).item.parent != directory.number
            || object == directory.number
            || object == ObjectNo::ROOT_DIR
        {
            let what = "a directory has a name where its parent is not";
            return Err(Error::Inconsistent { object, what });
        }
        let known = inode.found_at.load(Ordering::Relaxed);
        if known != slot && self.entry_at(directory.number, known)? == Some(object) {
            return Err(Error::Inconsistent { object, what: "a directory has two names" });
        }
        inode.found_at.store(slot, Ordering::Relaxed);
        Ok(())
    }

    /// The inode that the entry in a slot leads to.
    fn entry_at(&self, directory: ObjectNo, slot: u64) -> Result<Option<ObjectNo>> {
        let Some(value) = self.core.store.get(self.content.tree, Key::dirent(directory, slot))? else {
            return Ok(None);
        };
        Ok(Some(DirentView::decode(&value)?.inode))
    }

    /// The entry of that name. Errors: `NotFound`.
    pub(crate) fn find_entry(&self, directory: ObjectNo, name: &[u8]) -> Result<FoundEntry> {
        self.find_name(directory, name)?.found().ok_or(Error::NotFound)
    }
}

/// Puts a directory entry.
pub(crate) fn put_dirent(batch: &mut Batch, at: Key, inode: ObjectNo, mode: u32, name: &[u8]) {
    let mut room = [0; DIRENT_BYTES_MAX];
    let dirent = DirentView { inode, file_type: (mode >> 12) as u8, name };
    batch.put(at, dirent.encode_into(&mut room));
}
