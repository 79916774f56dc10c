//! In-memory inodes: attributes as the next batch would log them, and the file's data.
//!
//! Locks: `Inode::state` is taken after the namespace locks and before anything of the store. Two inodes are locked in
//! ascending order of their numbers. Admission to the journal ([`crate::Fs::admit`]) is asked for *before* any inode is
//! locked, because relieving the journal destages pages, which locks inodes.

use crate::data::FileData;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use syncline_format::ObjectNo;
use syncline_format::item::InodeItem;

/// One inode that is in use.
pub(crate) struct Inode {
    // Constant.
    pub(crate) number: ObjectNo,
    /// References that keep the inode from being removed when its last name goes: open handles.
    pub(crate) handles: AtomicU64,
    /// Second chance of the inode table's clock.
    pub(crate) recently_used: AtomicBool,
    pub(crate) state: RwLock<InodeState>,
}

/// What `Inode::state` guards.
pub(crate) struct InodeState {
    /// The attributes as callers see them. `size` is the logical size; what a batch may log is
    /// [`InodeState::loggable`].
    pub(crate) item: InodeItem,
    /// `item` differs from what was last committed (times, sizes by writes).
    pub(crate) item_dirty: bool,
    /// The inode and its content were deleted; whoever still holds it sees `NotFound`.
    pub(crate) gone: bool,
    /// Made without a name on purpose (O_TMPFILE): `link` may give it its first one.
    pub(crate) linkable: bool,
    /// Content of a regular file; empty for other types.
    pub(crate) data: FileData,
}

impl InodeState {
    /// The inode item that a metadata batch may log now: like `item`, but with a size that covers only data that
    /// earlier batches (or this one) have logged, so that a crash never shows a size without its data.
    pub(crate) fn loggable(&self) -> InodeItem {
        let mut item = self.item.clone();
        if item.is_regular() {
            item.size = self.data.logged_size(item.size);
        }
        item
    }
}
