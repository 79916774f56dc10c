//! [`InodeTable`]: the inodes in memory, at most one [`Inode`] per number.
//!
//! Invariants: an inode that differs from what the store holds is never evicted, because whoever made it differ keeps
//! an `Arc` (open handles, the writeback's lists), and only entries that nobody else holds are evicted. The table's
//! lock is innermost: nothing else is taken while it is held, and no I/O is done under it.

use crate::content::Content;
use crate::content::inode::{Inode, InodeState};
use crate::content::pages::FileData;
use crate::content::turn::TurnLock;
use crate::core::levels::Lock;
use crate::limits::{INODE_EVICTION_STEPS, INODE_MEMORY_BYTES, INODES_SHARE};
use crate::{Error, Result};
use foldhash::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_format::item::InodeItem;
use syncline_format::{Key, Kind, ObjectNo};
use syncline_store::ValueAndNext;
use syncline_store::lock_order::{Mutex, RwLock};

/// The inodes in memory.
pub(crate) struct InodeTable {
    capacity: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_number: HashMap<ObjectNo, Arc<Inode>>,
    /// Every number in `by_number` once (and some that were removed since), in the order of a clock's hand.
    order: VecDeque<ObjectNo>,
    /// Times that all of `order` was gone through.
    #[cfg(test)]
    passes: u64,
    /// Counts removals: what was read from the store before a removal may be older than what it removed.
    removals: u64,
}

/// Inodes of so many bytes of memory.
fn capacity_of(memory_bytes_max: usize) -> usize {
    (memory_bytes_max / INODES_SHARE / INODE_MEMORY_BYTES).max(64)
}

impl InodeTable {
    pub(crate) fn new(memory_bytes_max: usize) -> InodeTable {
        let capacity = AtomicUsize::new(capacity_of(memory_bytes_max));
        InodeTable { capacity, inner: Mutex::new(Lock::Table, Inner::default()) }
    }

    /// Has as many as belong to so many bytes of memory; what is beyond that goes, but for what somebody needs.
    pub(crate) fn follow(&self, memory_bytes_max: usize) {
        let capacity = capacity_of(memory_bytes_max);
        self.capacity.store(capacity, Ordering::Relaxed);
        // Each is visited twice, since the first visit only makes it old; a few at a time, because whoever looks one up
        // waits for the lock.
        for _ in 0..2 * self.len().div_ceil(INODE_EVICTION_STEPS) {
            let mut inner = self.inner.lock();
            if inner.by_number.len() < capacity {
                return;
            }
            inner.evict(capacity);
        }
    }

    fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// The inode if it is in memory.
    pub(crate) fn get(&self, number: ObjectNo) -> Option<Arc<Inode>> {
        let inner = self.inner.lock();
        let inode = inner.by_number.get(&number)?;
        inode.recently_used.store(true, Ordering::Relaxed);
        Some(inode.clone())
    }

    /// Those that extents are being moved of.
    pub(crate) fn shifting(&self) -> Vec<Arc<Inode>> {
        let all: Vec<_> = self.inner.lock().by_number.values().cloned().collect();
        all.into_iter().filter(|inode| inode.state.read().data.stored.shifting.is_some()).collect()
    }

    /// How many are in memory.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().by_number.len()
    }

    fn removals(&self) -> u64 {
        self.inner.lock().removals
    }

    /// Enters an inode just read from the store, unless there is one already. `None` if something was removed since
    /// `removals`: then what was read may be stale.
    pub(crate) fn insert_loaded(&self, inode: Inode, removals: u64) -> Option<Arc<Inode>> {
        let mut inner = self.inner.lock();
        if let Some(present) = inner.by_number.get(&inode.number) {
            return Some(present.clone());
        }
        if inner.removals != removals {
            return None;
        }
        let inode = Arc::new(inode);
        inner.insert(inode.clone(), self.capacity());
        Some(inode)
    }

    /// Enters an inode with a number that was never used before.
    pub(crate) fn insert_new(&self, inode: Inode) -> Arc<Inode> {
        let inode = Arc::new(inode);
        self.insert_own(&inode);
        inode
    }

    /// As [`InodeTable::insert_new`], for an inode that a transaction has kept to itself.
    pub(crate) fn insert_own(&self, inode: &Arc<Inode>) {
        self.inner.lock().insert(inode.clone(), self.capacity());
    }

    /// Forgets an inode that is gone.
    pub(crate) fn remove(&self, number: ObjectNo) {
        let mut inner = self.inner.lock();
        if inner.by_number.remove(&number).is_some() {
            inner.removals += 1;
        }
    }
}

impl Inner {
    fn insert(&mut self, inode: Arc<Inode>, capacity: usize) {
        self.evict(capacity);
        // Numbers of removed inodes have piled up. Behind a pass all are of inodes, of which more than the capacity may
        // be in use: a bound of the capacity alone would have each insertion go through all of them.
        if self.order.len() > 2 * capacity.max(self.by_number.len()) {
            let by_number = &self.by_number;
            self.order.retain(|number| by_number.contains_key(number));
            #[cfg(test)]
            {
                self.passes += 1;
            }
        }
        let number = inode.number;
        if self.by_number.insert(number, inode).is_none() {
            self.order.push_back(number);
        }
    }

    fn evict(&mut self, capacity: usize) {
        if self.by_number.len() < capacity {
            return;
        }
        for _ in 0..INODE_EVICTION_STEPS {
            let Some(number) = self.order.pop_front() else { return };
            let Some(inode) = self.by_number.get(&number) else { continue };
            let used = inode.recently_used.swap(false, Ordering::Relaxed);
            // Nobody can take a new reference while the table is locked.
            if used
                || Arc::strong_count(inode) > 1
                || inode.state.try_read().is_none_or(|state| state.is_unfinished())
            {
                self.order.push_back(number);
            } else {
                self.by_number.remove(&number);
                self.removals += 1;
            }
        }
    }
}

impl Inode {
    pub(crate) fn new(number: ObjectNo, item: InodeItem) -> Inode {
        let turn = TurnLock::new(number);
        let is_directory = item.is_directory();
        let data = FileData::new(&turn, &item);
        let state = InodeState {
            item,
            item_dirty: false,
            gone: false,
            dying: false,
            linkable: false,
            default_acl: None,
            has_capabilities: None,
            has_access_acl: None,
            xattr_list_bytes: None,
            data,
        };
        Inode {
            number,
            turn,
            handles: Default::default(),
            writers: Default::default(),
            is_directory,
            recently_used: Default::default(),
            truncated_to_zero: Default::default(),
            found_at: Default::default(),
            state: RwLock::new(Lock::Inode(number), state),
        }
    }
}

impl Content {
    /// The inode with this number, read from the store if need be. Errors: `NotFound`.
    pub(crate) fn inode(&self, number: ObjectNo) -> Result<Arc<Inode>> {
        loop {
            if let Some(inode) = self.inodes.get(number) {
                return Ok(inode);
            }
            let removals = self.inodes.removals();
            let found = self.core.store.get_and_next(self.tree, Key::inode(number))?;
            let ValueAndNext { value, next } = found.ok_or(Error::NotFound)?;
            let item = InodeItem::decode(&value)?;
            // The attributes of a file would lie between its inode and its extents.
            let lacks_xattrs = item.is_regular()
                && next.is_some_and(|next| next.object != number || next.kind == Kind::Extent);
            if let Some(inode) = self.claim(number, &item, removals) {
                return Ok(inode);
            }
            let inode = Inode::new(number, item);
            if lacks_xattrs {
                inode.state.try_write().expect("nobody else sees the inode yet").note_no_xattrs();
            }
            if let Some(inode) = self.inodes.insert_loaded(inode, removals) {
                return Ok(inode);
            }
        }
    }
}

impl Content {
    /// A directory that is in use. Errors: `NotDirectory`, `NotFound`.
    pub(crate) fn directory(&self, number: ObjectNo) -> Result<Arc<Inode>> {
        let inode = self.inode(number)?;
        if !inode.is_directory {
            return Err(Error::NotDirectory);
        }
        Ok(inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::MIB;
    use syncline_format::item::{MODE_REGULAR, Timestamp};

    fn inode(number: u64) -> Inode {
        let now = Timestamp::default();
        let item = InodeItem {
            mode: MODE_REGULAR | 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            rdev: 0,
            parent: ObjectNo(0),
            entries: 0,
            flags: 0,
            project: 0,
        };
        Inode::new(ObjectNo(number), item)
    }

    #[test]
    fn inodes_in_use_beyond_the_capacity_cost_an_insertion_no_more_than_those_within() {
        let table = InodeTable::new(MIB as usize);
        let used = 100 * table.capacity() as u64;
        let held: Vec<_> = (0..used).map(|number| table.insert_new(inode(number))).collect();
        assert_eq!(table.len() as u64, used);
        assert_eq!(table.inner.lock().passes, 0, "nobody was removed");
        drop(held);
        // Removed numbers pile up all the same, and go now and then.
        (0..used).for_each(|number| table.remove(ObjectNo(number)));
        (used..2 * used).for_each(|number| {
            drop(table.insert_new(inode(number)));
            table.remove(ObjectNo(number));
        });
        let inner = table.inner.lock();
        assert!(inner.order.len() <= 2 * table.capacity() + 1, "{}", inner.order.len());
        assert!((1..=used / table.capacity() as u64 + 1).contains(&inner.passes), "{}", inner.passes);
    }
}
