//! [`Change`]: one metadata operation, from locked inodes to a committed batch.
//!
//! New attributes are worked out on copies; they go into the batch and, once that is committed, into memory, all under
//! the same locks. So the order of batches is the order of operations (C2), and an error leaves nothing changed.

use crate::content::Content;
use crate::content::inode::{Inode, InodeState};
use crate::{Error, Result};
use std::sync::Arc;
use syncline_format::batch::{BATCH_HEADER_BYTES, PUT_OVERHEAD_BYTES};
use syncline_format::item::{INODE_BYTES, InodeItem, NAME_BYTES_MAX};
use syncline_format::{Key, ObjectNo};
use syncline_store::lock_order::WriteGuard;
use syncline_store::{Batch, Class, Estimate, Permit, StoreError};

/// Bytes of a put of a directory entry with the longest name, which is also more than any delete.
const ENTRY_BYTES_MAX: usize = PUT_OVERHEAD_BYTES + 9 + NAME_BYTES_MAX;

/// Room for a directory entry with a short name, or for what is freed.
const SMALL_ITEM_BYTES: usize = 64;

/// Bound of a batch that puts `inodes` inodes, puts or deletes `entries` directory entries or other small items, and
/// puts `others` items with values of `other_bytes` bytes together.
pub(crate) fn estimate(inodes: usize, entries: usize, others: usize, other_bytes: usize) -> Estimate {
    Estimate {
        bytes: BATCH_HEADER_BYTES
            + inodes * (PUT_OVERHEAD_BYTES + INODE_BYTES)
            + entries * ENTRY_BYTES_MAX
            + others * PUT_OVERHEAD_BYTES
            + other_bytes,
        items: inodes + entries + others,
        images: 0,
    }
}

/// Several inodes, locked for writing in ascending order of their numbers.
pub(crate) struct Locked<'a> {
    guards: Vec<(&'a Arc<Inode>, WriteGuard<'a, InodeState>)>,
}

impl<'a> Locked<'a> {
    /// Locks them; the same inode may be named twice.
    pub(crate) fn new(inodes: &[&'a Arc<Inode>]) -> Locked<'a> {
        let lock = |inode: &'a Arc<Inode>| (inode, inode.state.write());
        let guards = match *inodes {
            [one] => vec![lock(one)],
            [one, other] if one.number < other.number => vec![lock(one), lock(other)],
            _ => {
                let mut sorted = inodes.to_vec();
                sorted.sort_unstable_by_key(|inode| inode.number);
                sorted.dedup_by_key(|inode| inode.number);
                sorted.into_iter().map(lock).collect()
            }
        };
        Locked { guards }
    }

    fn position(&self, number: ObjectNo) -> usize {
        // A transaction may have thousands.
        let position = self.guards.binary_search_by_key(&number, |(inode, _)| inode.number);
        position.expect("an operation locks every inode it names")
    }

    /// State of one of the locked inodes.
    pub(crate) fn state(&self, number: ObjectNo) -> &InodeState {
        &self.guards[self.position(number)].1
    }

    /// State of one of the locked inodes.
    pub(crate) fn state_mut(&mut self, number: ObjectNo) -> &mut InodeState {
        let position = self.position(number);
        &mut self.guards[position].1
    }
}

/// How an operation is admitted to the journal.
pub(crate) enum Admission {
    /// It was, before anything was locked.
    Before(Permit),
    /// It is when it is committed, and fails where something would have to be waited for.
    Along,
}

impl From<Permit> for Admission {
    fn from(permit: Permit) -> Admission {
        Admission::Before(permit)
    }
}

impl Admission {
    /// Commits the batch, admitted like this.
    pub(crate) fn commit(self, content: &Content, batch: Batch) -> Result<()> {
        match self {
            Admission::Before(permit) => content.core.store.commit(permit, batch)?,
            Admission::Along => content.core.store.try_commit(Class::Normal, batch)?,
        };
        Ok(())
    }
}

/// Makes an operation that is admitted along with its commit. Where there is no room for that, it is admitted as
/// `admit` says, which may wait, and made once more.
pub(crate) fn admitted_along<T>(
    admit: impl FnOnce() -> Result<Permit>,
    mut make: impl FnMut(Admission) -> Result<T>,
) -> Result<T> {
    match make(Admission::Along) {
        Err(Error::NoSpace | Error::Store(StoreError::Pressure(_))) => make(admit()?.into()),
        made => made,
    }
}

/// A metadata operation in progress.
pub(crate) struct Change<'a> {
    pub(crate) locked: Locked<'a>,
    pub(crate) batch: Batch,
    items: Vec<(ObjectNo, InodeItem)>,
    removed: Vec<ObjectNo>,
}

impl<'a> Change<'a> {
    pub(crate) fn new(content: &Content, locked: Locked<'a>) -> Change<'a> {
        // For the attributes of each, and a little beside them.
        let bytes = locked.guards.len() * (PUT_OVERHEAD_BYTES + INODE_BYTES) + SMALL_ITEM_BYTES;
        let batch = content.core.store.batch_with_capacity(content.tree, bytes);
        Change { locked, batch, items: Vec::new(), removed: Vec::new() }
    }

    /// The inode's attributes as this operation leaves them.
    pub(crate) fn item(&mut self, number: ObjectNo) -> &mut InodeItem {
        let position = match self.items.iter().position(|(of, _)| *of == number) {
            Some(position) => position,
            None => {
                self.items.push((number, self.locked.state(number).item.clone()));
                self.items.len() - 1
            }
        };
        &mut self.items[position].1
    }

    /// State of one of the locked inodes, as it was before.
    pub(crate) fn state(&self, number: ObjectNo) -> &InodeState {
        self.locked.state(number)
    }

    /// The inode's item is deleted with this operation; it is gone afterwards.
    pub(crate) fn remove_inode(&mut self, number: ObjectNo) {
        self.removed.push(number);
    }

    /// Commits everything as one batch; then, and only then, memory changes too. The locks stay held.
    pub(crate) fn commit(mut self, content: &Content, admission: impl Into<Admission>) -> Result<Locked<'a>> {
        for (number, item) in &self.items {
            if self.removed.contains(number) {
                self.batch.delete(Key::inode(*number));
            } else {
                put_inode(&mut self.batch, *number, self.locked.state(*number), item);
            }
        }
        admission.into().commit(content, self.batch)?;
        for (number, item) in self.items {
            let gone = self.removed.contains(&number);
            let position = self.locked.position(number);
            let (inode, state) = &mut self.locked.guards[position];
            let was_dirty = state.item_dirty;
            state.item_dirty = !gone && item.is_regular() && state.data.logged_size(item.size) != item.size;
            state.item = item;
            state.gone |= gone;
            if was_dirty || state.item_dirty {
                content.note_dirty(inode, state);
            }
        }
        Ok(self.locked)
    }
}

/// Puts an inode with the attributes `item`, of which the size covers only data that was logged (see
/// [`InodeState::loggable`]).
pub(crate) fn put_inode(batch: &mut Batch, number: ObjectNo, state: &InodeState, item: &InodeItem) {
    let mut logged = item.clone();
    if logged.is_regular() {
        logged.size = state.data.logged_size(item.size);
    }
    batch.put(Key::inode(number), &logged.encode());
}
