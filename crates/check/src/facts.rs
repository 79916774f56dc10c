//! What one walk over all items learned about each inode, kept small: memory grows by one of these per inode.

use std::collections::BTreeMap;
use syncline_format::ObjectNo;
use syncline_format::item::{MODE_DIRECTORY, MODE_TYPE_MASK, OrphanReason};

/// Stored values of an inode beside what was counted.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeFacts {
    /// 0: there is no inode item.
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    pub(crate) blocks: u64,
    pub(crate) entries: u64,
    /// Whether the object has any item, an inode or not.
    pub(crate) has_items: bool,

    /// Names that point here.
    pub(crate) names: u32,
    /// The directory of one of them.
    pub(crate) named_in: u64,
    /// A bit per type that its names tell.
    pub(crate) told_types: u16,
    pub(crate) pages_found: u64,
    pub(crate) entries_found: u64,
}

impl InodeFacts {
    pub(crate) fn exists(&self) -> bool {
        self.mode != 0
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.mode & MODE_TYPE_MASK == MODE_DIRECTORY
    }

    /// `mode >> 12`, as directory entries tell it.
    pub(crate) fn file_type(&self) -> u8 {
        ((self.mode & MODE_TYPE_MASK) >> 12) as u8
    }
}

/// What a walk learned about the volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) inodes: BTreeMap<u64, InodeFacts>,
    pub(crate) orphans: BTreeMap<ObjectNo, OrphanReason>,
    /// Keys of pieces that no extended attribute has.
    pub(crate) unused_pieces: Vec<syncline_format::Key>,
    /// Highest object with items, volume's own tables aside.
    pub(crate) object_max: u64,
    /// Highest object in the trees of the checkpoint.
    pub(crate) stored_object_max: u64,
}

impl Facts {
    pub(crate) fn of(&mut self, object: ObjectNo) -> &mut InodeFacts {
        self.inodes.entry(object.0).or_default()
    }

    /// Whether the inode is to be removed. The root never is, whatever its orphan says, nor is what counts links; what
    /// counts none has no content to be finished.
    pub(crate) fn is_removed(&self, object: u64) -> bool {
        let links = self.inodes.get(&object).map_or(0, |inode| inode.nlink);
        links == 0 && object != ObjectNo::ROOT_DIR.0 && self.orphans.contains_key(&ObjectNo(object))
    }

    /// Subdirectories of each directory that has any.
    pub(crate) fn subdirectories(&self) -> BTreeMap<u64, u32> {
        let mut counts = BTreeMap::new();
        for (&object, inode) in &self.inodes {
            if inode.is_directory() && inode.names > 0 && object != ObjectNo::ROOT_DIR.0 {
                *counts.entry(inode.named_in).or_insert(0u32) += 1;
            }
        }
        counts
    }
}
