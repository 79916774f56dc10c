//! Attributes of inodes that are gone, for as long as the kernel knows them.
//!
//! Who holds a descriptor of a removed file that was opened for nothing (`O_PATH`) may still ask for its attributes.
//! The daemon does not know of such descriptors, and the inode has been deleted with its last name; so what it was
//! then is kept until the kernel forgets it, which for nearly all files is a moment later.
//!
//! Lock: `table` is innermost.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use syncline_fs::{Attr, ObjectNo};

/// More are not kept: the kernel may be slow to forget, or hold them in its cache of inodes.
const KEPT_MAX: usize = 16384;

#[derive(Default)]
pub(crate) struct Removed {
    table: Mutex<HashMap<ObjectNo, Attr>>,
    /// Length of the table, so that without any nothing is locked.
    kept: AtomicUsize,
}

impl Removed {
    /// An inode has lost its last name.
    pub(crate) fn keep(&self, attr: Attr) {
        let mut table = self.table.lock();
        if table.len() < KEPT_MAX {
            table.insert(attr.inode, Attr { nlink: 0, ..attr });
        }
        self.kept.store(table.len(), Relaxed);
    }

    pub(crate) fn get(&self, object: ObjectNo) -> Option<Attr> {
        match self.kept.load(Relaxed) {
            0 => None,
            _ => self.table.lock().get(&object).cloned(),
        }
    }

    /// The kernel knows it no more.
    pub(crate) fn forget(&self, object: ObjectNo) {
        if self.kept.load(Relaxed) > 0 {
            let mut table = self.table.lock();
            table.remove(&object);
            self.kept.store(table.len(), Relaxed);
        }
    }
}
