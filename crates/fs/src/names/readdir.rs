//! Reading directories.
//!
//! An entry's cookie is its key: the hash slot of its name. Entries never move, so whatever is removed or added
//! meanwhile makes no other entry be skipped or doubled. `.` has cookie 1, `..` has 2; real slots are above.

use crate::names::find::FoundEntry;
use crate::{Attr, Entry, Error, HandleId, Names, Result};
use std::ops::ControlFlow;
use syncline_format::item::{DirentItem, MODE_DIRECTORY};
use syncline_format::{Key, NAME_HASH_MIN, ObjectNo};

/// Cookie of `.`.
const COOKIE_DOT: u64 = 1;
/// Cookie of `..`.
const COOKIE_DOT_DOT: u64 = 2;
const _: () = assert!(COOKIE_DOT_DOT < NAME_HASH_MIN);

/// Nodes that one listing reads before it goes on without attributes, others' reads at the same time counted with them:
/// the entries' own node, and then no more than shows that attributes are not at hand. Whoever removes names from the
/// same directory waits for the kernel's lock on it while a listing waits for the device.
const NODE_READS_MAX: u64 = 4;
/// In a directory whose inodes are all kept in memory once they are read, so many entries with attributes pay for
/// another read: the inodes of some hundred names lie in few nodes, and all of those are read. In a larger one half
/// of the entries may be in memory by chance, which would pay for reads without end, and each of them would displace
/// another.
const ENTRIES_PER_READ: u64 = 2;
/// Of the bound on memory for each entry of a directory that counts as small: an eighth of it holds its names and
/// inodes.
const MEMORY_BYTES_PER_ENTRY: u64 = 2048;

/// `d_type` of a directory.
const DIRECTORY_TYPE: u8 = (MODE_DIRECTORY >> 12) as u8;

/// One entry as `Names::readdir` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Position of this entry; reading on from it continues with the next.
    pub cookie: u64,
    /// Inode number.
    pub inode: ObjectNo,
    /// `d_type`: the mode's type bits shifted right by 12.
    pub file_type: u8,
    /// 1 to 255 bytes.
    pub name: &'a [u8],
}

impl Names {
    /// Visits the entries behind `cookie` (0 starts with `.`) until the visitor breaks.
    ///
    /// Errors: `BadHandle`, `NotDirectory`, corruption.
    pub fn readdir(
        &self,
        handle: HandleId,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let open = self.content.open_file(handle)?;
        let number = open.inode.number;
        let (parent, dead) = {
            let state = open.inode.state.read();
            if !state.item.is_directory() {
                return Err(Error::NotDirectory);
            }
            (state.item.parent, state.is_dead())
        };
        if dead {
            return Ok(());
        }
        self.attributes.touch_accessed(&open.inode, open.flags.no_atime);
        let dots = [(COOKIE_DOT, number, b".".as_slice()), (COOKIE_DOT_DOT, parent, b"..".as_slice())];
        for (dot, inode, name) in dots {
            let entry = DirEntry { cookie: dot, inode, file_type: DIRECTORY_TYPE, name };
            if cookie < dot && visit(entry).is_break() {
                return Ok(());
            }
        }
        let mut damaged = Ok(());
        // From the very first key on, so that an entry where none may lie is an error and not left out.
        let from = if cookie <= COOKIE_DOT_DOT { 0 } else { cookie.saturating_add(1) };
        let (from, end) = (Key::dirent(number, from), Key::xattr(number, 0));
        self.core.store.scan(self.content.tree, from, end, &mut |key, value| match self
            .listed_entry(key, value)
        {
            Ok(Some(dirent)) => visit(DirEntry {
                cookie: key.offset,
                inode: dirent.inode,
                file_type: dirent.file_type,
                name: &dirent.name,
            }),
            Ok(None) => ControlFlow::Continue(()),
            Err(error) => {
                damaged = Err(error);
                ControlFlow::Break(())
            }
        })?;
        damaged
    }

    /// A stored entry, if a lookup of its name leads to it as well; `None` if it was removed meanwhile.
    ///
    /// Errors: `Inconsistent` where damage hides a name, or shows one twice: each would double the paths to what is
    /// below.
    fn listed_entry(&self, key: Key, value: &[u8]) -> Result<Option<DirentItem>> {
        key.check()?;
        let dirent = DirentItem::decode(value)?;
        // Nearly always: names rarely have equal hashes.
        if key.offset == self.core.name_hash.first(&dirent.name) {
            return Ok(Some(dirent));
        }
        let may_lie_here = self.core.name_hash.slots(&dirent.name).contains(&key.offset);
        let found = if may_lie_here { self.find_name(key.object, &dirent.name)?.found() } else { None };
        if found.is_some_and(|found| found.slot == key.offset) {
            return Ok(Some(dirent));
        }
        match self.core.store.get(self.content.tree, key)? {
            Some(now) if now == value => {
                let what = "a name lies where its hash does not lead, or twice";
                Err(Error::Inconsistent { object: key.object, what })
            }
            _ => Ok(None),
        }
    }

    /// Like `Names::readdir`, with the attributes of each entry as long as they cost little: names are kept in the
    /// order of their hashes and inodes in that of their creation, so in a directory larger than the node cache each
    /// would be a read of the device. After a few such reads, more in a directory that fits in memory, the rest is
    /// visited without. What is removed during the call is left out.
    pub fn readdir_plus(
        &self,
        handle: HandleId,
        cookie: u64,
        visit: &mut dyn FnMut(DirEntry<'_>, Option<Attr>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut failed = Ok(());
        let directory = self.content.open_file(handle)?.inode.clone();
        let (number, entries) = (directory.number, directory.state.read().item.entries);
        let is_small = entries <= self.core.memory_bytes_max() as u64 / MEMORY_BYTES_PER_ENTRY;
        let mut misses_max = self.core.store.counters().node_cache_misses + NODE_READS_MAX;
        let mut found = 0_u64;
        self.readdir(handle, cookie, &mut |entry| {
            if self.core.store.counters().node_cache_misses >= misses_max {
                return visit(entry, None);
            }
            match self.content.inode(entry.inode) {
                Ok(inode) => {
                    found += 1;
                    misses_max += u64::from(is_small && found.is_multiple_of(ENTRIES_PER_READ));
                    // With attributes the kernel asks no more: what may be a second name has to be looked up.
                    let is_dot = entry.cookie <= COOKIE_DOT_DOT;
                    let known = is_dot || self.is_only_name(number, entry.cookie, &inode);
                    visit(entry, known.then(|| self.attributes.attr(&inode)))
                }
                Err(Error::NotFound) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed
    }

    /// The inode that a name leads to. `.` and `..` are understood.
    ///
    /// Errors: `NotFound`, `NotDirectory`, `NameTooLong`, corruption.
    pub fn lookup(&self, parent: ObjectNo, name: &[u8]) -> Result<Entry> {
        let directory = self.content.directory(parent)?;
        let (slot, inode) = {
            // Held until the inode is in hand, so that a name that is replaced meanwhile never seems to be missing.
            let state = directory.state.read();
            match name {
                b"." => (None, directory.clone()),
                b".." => (None, self.content.inode(state.item.parent)?),
                _ if name.len() > syncline_format::item::NAME_BYTES_MAX => return Err(Error::NameTooLong),
                _ if state.is_dead() => return Err(Error::NotFound),
                _ => {
                    let FoundEntry { inode, slot, .. } = self.find_entry(parent, name)?;
                    let inode = self.content.inode(inode).map_err(|error| match error {
                        Error::NotFound => {
                            let what = "a directory entry names an inode that does not exist";
                            Error::Inconsistent { object: parent, what }
                        }
                        other => other,
                    })?;
                    (Some(slot), inode)
                }
            }
        };
        // Without the lock: of two inodes the one with the lower number is locked first.
        if let Some(slot) = slot {
            self.check_only_name(&directory, name, slot, &inode)?;
        }
        Ok(self.attributes.entry(&inode))
    }
}
