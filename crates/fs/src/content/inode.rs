//! In-memory inodes: attributes as the next batch would log them, and the file's data.
//!
//! Locks: `Inode::state` is taken after the namespace locks and before anything of the store. Two inodes are locked in
//! ascending order of their numbers. Admission to the journal ([`crate::Fs::admit`]) is asked for *before* any inode is
//! locked, because relieving the journal destages pages, which locks inodes.

use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR};
use crate::content::pages::FileData;
use crate::content::turn::TurnLock;
use crate::limits::LIGHT_BLOCKS_MAX;
use std::sync::atomic::{AtomicBool, AtomicU64};
use syncline_format::ObjectNo;
use syncline_format::item::InodeItem;
use syncline_store::lock_order::RwLock;

/// One inode that is in use.
pub(crate) struct Inode {
    // Constant.
    pub(crate) number: ObjectNo,
    pub(crate) is_directory: bool,
    pub(crate) turn: TurnLock,
    /// References that keep the inode from being removed when its last name goes: open handles.
    pub(crate) handles: AtomicU64,
    /// Those of them that are open for writing.
    pub(crate) writers: AtomicU64,
    /// Second chance of the inode table's clock.
    pub(crate) recently_used: AtomicBool,
    /// Truncated to zero since its last writeback at close: the next close starts one (C3).
    pub(crate) truncated_to_zero: AtomicBool,
    /// Of a directory: the slot of the name by which it was found last; 0 before that.
    pub(crate) found_at: AtomicU64,
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
    /// Without names and handles, and being removed: nobody may open it any more.
    pub(crate) dying: bool,
    /// Made without a name on purpose (O_TMPFILE): `link` may give it its first one.
    pub(crate) linkable: bool,
    /// A directory's default ACL (the inner option) once it was looked for.
    pub(crate) default_acl: Option<Option<Acl>>,
    /// Whether the file has capabilities, once that was looked for.
    pub(crate) has_capabilities: Option<bool>,
    /// Whether there is an access ACL beside the mode, once that was looked for.
    pub(crate) has_access_acl: Option<bool>,
    /// Bytes that its extended attributes' names take in a list, ACLs left out, once that was looked for.
    pub(crate) xattr_list_bytes: Option<usize>,
    /// Content of a regular file; empty for other types.
    pub(crate) data: FileData,
}

impl InodeState {
    /// Whether truncating or removing the content may take more than one small batch, or has to wait for somebody.
    pub(crate) fn is_heavy(&self) -> bool {
        let data = &self.data;
        self.item.is_regular()
            && (self.item.blocks > LIGHT_BLOCKS_MAX
                || data.reserved_blocks() > LIGHT_BLOCKS_MAX
                || data.is_taken())
    }

    /// It is known that no attribute of this name is stored, so nobody has to look.
    pub(crate) fn lacks_xattr(&self, name: &[u8]) -> bool {
        match name {
            ACCESS_XATTR => self.has_access_acl == Some(false),
            DEFAULT_XATTR => !self.item.is_directory() || self.default_acl == Some(None),
            _ => self.xattr_list_bytes == Some(0),
        }
    }

    /// It is known that no attribute is stored.
    pub(crate) fn lacks_xattrs(&self) -> bool {
        self.xattr_list_bytes == Some(0) && self.lacks_xattr(ACCESS_XATTR) && self.lacks_xattr(DEFAULT_XATTR)
    }

    /// Nobody has stored an attribute yet.
    pub(crate) fn note_no_xattrs(&mut self) {
        self.default_acl = Some(None);
        self.has_access_acl = Some(false);
        self.has_capabilities = Some(false);
        self.xattr_list_bytes = Some(0);
    }

    /// Removed, or a directory that is: nothing can be made in it any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.gone || self.item.nlink == 0
    }

    /// Removed, or about to be; it cannot be opened or changed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone || self.dying
    }

    /// Differs from what the store holds, or knows what the store's items do not tell: content that is still to be
    /// removed or moved, because there was no space for doing so.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.item_dirty || self.data.is_truncating()
    }

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
