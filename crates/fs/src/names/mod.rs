//! Names and inodes: everything that changes which name leads to which inode.
//!
//! Every operation is exactly one batch and does no I/O of its own (but R20: a rename that replaces a file waits for
//! the writes of the source's data). The order within each: locks in ascending order of inode numbers, then checks,
//! then [`Change::commit`](change::Change::commit), under which memory and journal change alike. Admission comes before
//! the locks where it may have to wait; most operations are admitted along with their commit, and are made once more
//! behind an admission if that is refused.

use crate::content::Content;
use crate::core::Core;
use crate::core::levels::Lock;
use crate::removal::Removal;
use crate::writeback::Writeback;
use crate::{Attributes, Syncs};
use std::sync::Arc;
use syncline_store::lock_order::Mutex;

pub(crate) mod create;
pub(crate) mod find;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;

pub use readdir::DirEntry;
pub use remove::{RemovalKind, RemovalPlan};
pub use rename::{RenameFlags, RenamePlan};

/// Names and inodes.
pub struct Names {
    pub(crate) core: Arc<Core>,
    pub(crate) content: Arc<Content>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) removal: Arc<Removal>,
    pub(crate) syncs: Arc<Syncs>,
    pub(crate) attributes: Arc<Attributes>,
    /// Renames of directories, one at a time: outermost lock.
    pub(crate) renames: Mutex<()>,
}

impl Names {
    pub(crate) fn new(attributes: &Arc<Attributes>, syncs: &Arc<Syncs>) -> Names {
        Names {
            core: attributes.core.clone(),
            content: attributes.content.clone(),
            writeback: attributes.writeback.clone(),
            removal: attributes.removal.clone(),
            syncs: syncs.clone(),
            attributes: attributes.clone(),
            renames: Mutex::new(Lock::Renames, ()),
        }
    }
}
