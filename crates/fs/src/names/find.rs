//! Directory entries in the tree: one item per entry, keyed by the name's hash.
//!
//! Names whose hashes collide take the next free slot of [`NAME_PROBES`] consecutive ones. A lookup reads the whole
//! probe range and compares names, so removing an entry never hides another, entries never move, and a slot can serve
//! as a directory cookie.

use crate::content::change::Locked;
use crate::content::inode::Inode;
use crate::content::steps::{self, Step};
use crate::{Error, Names, Result};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::item::{DirentItem, NAME_BYTES_MAX};
use syncline_format::{FormatError, Key, NAME_PROBES, ObjectNo, name_hash};

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
    /// No such name, and no room for it: its hash collides with that of eight others.
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
        let first = name_hash(self.core.hash_seed, name);
        let mut taken = 0u8;
        let mut found: std::result::Result<Option<FoundEntry>, FormatError> = Ok(None);
        let from = Key::dirent(directory, first);
        let end = Key::dirent(directory, first + NAME_PROBES);
        self.core.store.scan(self.content.tree, from, end, &mut |key, value| {
            taken |= 1 << (key.offset - first);
            match DirentItem::decode(value) {
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
        let free = u64::from(taken.trailing_ones());
        Ok(if free < NAME_PROBES { Slot::Free(first + free) } else { Slot::Full })
    }

    /// A slot for a name that the directory does not have, other than those that the same batch fills. Errors:
    /// `NoSpace`.
    pub(crate) fn free_slot(
        &self,
        directory: ObjectNo,
        name: &[u8],
        filled: &BTreeSet<(ObjectNo, u64)>,
    ) -> Result<u64> {
        let first = name_hash(self.core.hash_seed, name);
        let slots = first..first + NAME_PROBES;
        let mut taken: BTreeSet<u64> = BTreeSet::new();
        let (from, end) = (Key::dirent(directory, slots.start), Key::dirent(directory, slots.end));
        self.core.store.scan(self.content.tree, from, end, &mut |key, _| {
            taken.insert(key.offset);
            ControlFlow::Continue(())
        })?;
        let is_free = |slot: &u64| !taken.contains(slot) && !filled.contains(&(directory, *slot));
        slots.into_iter().find(is_free).ok_or(Error::NoSpace)
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
        Ok(Some(DirentItem::decode(&value)?.inode))
    }

    /// The entry of that name. Errors: `NotFound`.
    pub(crate) fn find_entry(&self, directory: ObjectNo, name: &[u8]) -> Result<FoundEntry> {
        self.find_name(directory, name)?.found().ok_or(Error::NotFound)
    }
}

const _: () = assert!(NAME_PROBES == 8, "find_name keeps the taken slots in a u8");

/// The value of a directory entry's item.
pub(crate) fn dirent_value(inode: ObjectNo, mode: u32, name: &[u8]) -> Vec<u8> {
    DirentItem { inode, file_type: (mode >> 12) as u8, name: name.to_vec() }.encode()
}
