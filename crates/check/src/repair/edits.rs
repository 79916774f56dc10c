//! The edits that repair makes to the items, all of them in the overlay.

use crate::analysis::NameFaults;
use crate::facts::{Facts, InodeFacts};
use crate::lost::keys_of;
use crate::names::{NameFault, expected_links, expected_parent};
use crate::replay::Replay;
use crate::walk::Trees;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline_device::Device;
use syncline_format::item::{DirentItem, InodeItem, MODE_DIRECTORY, OrphanReason, Timestamp};
use syncline_format::node::NodePointer;
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::Role;
use syncline_format::{BLOCK_BYTES, Key, ObjectNo, TreeId};

/// Where inodes without a name go.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// `mode >> 12` of a directory.
const TYPE_DIRECTORY: u8 = (MODE_DIRECTORY >> 12) as u8;

/// A head with its overlay, to be edited.
pub(crate) struct Editor<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) superblock: &'a Superblock,
    pub(crate) tree: TreeId,
    pub(crate) root: NodePointer,
    pub(crate) replay: &'a mut Replay,
}

impl Editor<'_> {
    /// One item as it is now.
    pub(crate) fn get(&self, key: Key) -> Option<Vec<u8>> {
        self.items((key, key)).pop().map(|(_, value)| value)
    }

    /// The items of a range as they are now.
    pub(crate) fn items(&self, range: (Key, Key)) -> Vec<(Key, Vec<u8>)> {
        self.trees().items(self.tree, &self.root, self.replay.overlay(self.tree), range)
    }

    /// An inode as it is now.
    pub(crate) fn inode(&self, object: ObjectNo) -> Option<InodeItem> {
        self.get(Key::inode(object)).and_then(|value| InodeItem::decode(&value).ok())
    }

    /// Whether the tree is a snapshot: other trees may have its extents from there.
    pub(crate) fn keeps_extents(&self) -> bool {
        self.replay.forest.items.get(&self.tree).is_some_and(|item| item.role == Role::Snapshot)
    }

    fn trees(&self) -> Trees<'_> {
        Trees::new(self.device, self.superblock, &self.replay.given_up)
    }

    pub(crate) fn put(&mut self, key: Key, value: Vec<u8>) {
        self.replay.overlay_mut(self.tree).insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Key) {
        self.replay.overlay_mut(self.tree).insert(key, None);
    }

    /// First round: finishes orphans, corrects names, gives the nameless a name.
    pub(crate) fn structure(&mut self, facts: &Facts, faults: &NameFaults, next_object: &mut ObjectNo) {
        let keeps_extents = self.keeps_extents();
        for (&object, &reason) in &facts.orphans {
            let inode = facts.inodes.get(&object.0).copied().unwrap_or_default();
            let is_known = inode.exists() || reason == OrphanReason::Unlinked;
            if keeps_extents {
                let is_unlinked = facts.is_removed(object.0) && inode.names == 0;
                if !inode.exists() || reason == OrphanReason::Unlinked && !is_unlinked {
                    self.delete(Key::orphan(object));
                }
            } else if is_known && facts.is_removed(object.0) && is_removable(&inode) {
                self.remove_orphan(object);
            } else {
                self.finish_orphan(object, reason, &inode);
            }
        }
        for (key, (dirent, fault)) in faults {
            match fault {
                NameFault::Nothing => self.delete(*key),
                NameFault::Type(file_type) => {
                    let dirent = DirentItem { file_type: *file_type, ..dirent.clone() };
                    self.put(*key, dirent.encode());
                }
                // Its content may be all that is left of a file; the name tells whose it was.
                NameFault::Remains => {}
            }
        }
        for key in &facts.unused_pieces {
            self.delete(*key);
        }
        self.name_the_nameless(facts, next_object);
    }

    fn remove_orphan(&mut self, object: ObjectNo) {
        self.delete(Key::orphan(object));
        for (key, _) in self.items(keys_of(object)) {
            self.delete(key);
        }
    }

    /// What still has a name, or entries of its own, is kept.
    fn finish_orphan(&mut self, object: ObjectNo, reason: OrphanReason, inode: &InodeFacts) {
        if matches!(reason, OrphanReason::Shifting(_)) && inode.exists() {
            // Left to the next writable open, which has all it needs to go on.
            return;
        }
        self.delete(Key::orphan(object));
        if let Some(inode) = self.inode(object).filter(|_| reason == OrphanReason::Truncated) {
            self.cut_tail(object, inode.size.div_ceil(BLOCK_BYTES as u64));
        }
    }

    /// Removes every extent page from `pages` on.
    pub(crate) fn cut_tail(&mut self, object: ObjectNo, pages: u64) {
        self.cut_extents(object, pages, u64::MAX);
    }

    fn name_the_nameless(&mut self, facts: &Facts, next_object: &mut ObjectNo) {
        let nameless = facts.inodes.iter().filter(|(object, inode)| {
            let removed = facts.is_removed(**object) && is_removable(inode);
            inode.exists() && inode.names == 0 && **object != ObjectNo::ROOT_DIR.0 && !removed
        });
        let mut directory = None;
        for (&object, inode) in nameless {
            if directory.is_none() {
                directory = self.lost_and_found(next_object);
            }
            // Without a place to put it, it stays nameless, and the report says so.
            let Some(directory) = directory else { return };
            let file_type = inode.file_type();
            self.add_name(directory, format!("#{object}").as_bytes(), ObjectNo(object), file_type);
        }
    }

    /// The directory for the nameless, made if it is missing.
    fn lost_and_found(&mut self, next_object: &mut ObjectNo) -> Option<ObjectNo> {
        for (_, value) in self.row(ObjectNo::ROOT_DIR, LOST_AND_FOUND) {
            let dirent = DirentItem::decode(&value).ok();
            if let Some(dirent) = dirent.filter(|dirent| dirent.name == LOST_AND_FOUND) {
                let inode = self.get(Key::inode(dirent.inode))?;
                let is_directory = InodeItem::decode(&inode).is_ok_and(|inode| inode.is_directory());
                return is_directory.then_some(dirent.inode);
            }
        }
        let object = *next_object;
        if !self.add_name(ObjectNo::ROOT_DIR, LOST_AND_FOUND, object, TYPE_DIRECTORY) {
            return None;
        }
        *next_object = ObjectNo(object.0.saturating_add(1));
        self.put(Key::inode(object), new_directory().encode().to_vec());
        Some(object)
    }

    /// Adds a name in a free slot of its probe sequence; `false` if there is none or the name is taken.
    fn add_name(&mut self, directory: ObjectNo, name: &[u8], inode: ObjectNo, file_type: u8) -> bool {
        let row = self.row(directory, name);
        let is_it = |value: &Vec<u8>| DirentItem::decode(value).is_ok_and(|dirent| dirent.name == name);
        if row.iter().any(|(_, value)| is_it(value)) {
            return false;
        }
        let taken: BTreeSet<Key> = row.into_iter().map(|(key, _)| key).collect();
        let mut slots = self.superblock.name_hash().slots(name).map(|slot| Key::dirent(directory, slot));
        let Some(key) = slots.find(|key| !taken.contains(key)) else { return false };
        self.put(key, DirentItem { inode, file_type, name: name.to_vec() }.encode());
        true
    }

    /// What lies where a name may lie.
    fn row(&self, directory: ObjectNo, name: &[u8]) -> Vec<(Key, Vec<u8>)> {
        let slots = self.superblock.name_hash().slots(name);
        let last = slots.end.saturating_sub(1);
        self.items((Key::dirent(directory, slots.start), Key::dirent(directory, last)))
    }

    /// Second round: makes every inode agree with what `facts` counted.
    pub(crate) fn counts(&mut self, facts: &Facts) {
        let subdirectories = facts.subdirectories();
        for (&object, found) in facts.inodes.iter().filter(|(_, inode)| inode.exists()) {
            let Some(Ok(old)) = self.inode_if_wrong(object, found, &subdirectories) else { continue };
            let mut inode = old.clone();
            inode.blocks = found.pages_found;
            if found.names > 0 || object == ObjectNo::ROOT_DIR.0 {
                let subdirectories = subdirectories.get(&object).copied().unwrap_or(0);
                inode.nlink = expected_links(found, subdirectories);
            }
            if found.is_directory() {
                inode.entries = found.entries_found;
                if found.names == u32::from(object != ObjectNo::ROOT_DIR.0) {
                    inode.parent = ObjectNo(expected_parent(object, found));
                }
            }
            if inode != old {
                self.put(Key::inode(ObjectNo(object)), inode.encode().to_vec());
            }
        }
    }

    /// The inode item, read only if some count of it differs.
    fn inode_if_wrong(
        &self,
        object: u64,
        found: &InodeFacts,
        subdirectories: &std::collections::BTreeMap<u64, u32>,
    ) -> Option<Result<InodeItem, syncline_format::FormatError>> {
        let links = expected_links(found, subdirectories.get(&object).copied().unwrap_or(0));
        let directory = found.is_directory()
            && (found.entries != found.entries_found || found.parent != expected_parent(object, found));
        let wrong = found.blocks != found.pages_found || found.nlink != links || directory;
        if !wrong {
            return None;
        }
        self.get(Key::inode(ObjectNo(object))).map(|value| InodeItem::decode(&value))
    }
}

/// Whether an inode of the orphan table may go away with all it has.
fn is_removable(inode: &InodeFacts) -> bool {
    inode.names == 0 && inode.nlink == 0 && inode.entries_found == 0
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() }
}

/// An empty directory below the root, made now.
fn new_directory() -> InodeItem {
    let now = now();
    InodeItem {
        mode: MODE_DIRECTORY | 0o700,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        rdev: 0,
        parent: ObjectNo::ROOT_DIR,
        entries: 0,
        flags: 0,
        project: 0,
    }
}
