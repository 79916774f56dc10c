//! What a caller hands to `commit`: operations, and the data writes they depend on.

use crate::journal::Promise;
use crate::primitives::{AtomicU64, Ordering};
use crate::shared::Shared;
use std::sync::Arc;
use syncline_device::{Buffer, Ticket};
use syncline_format::batch::{BatchBuf, Mark, Op, Outcome, PUT_OVERHEAD_BYTES};
use syncline_format::item::{EXTENT_BIRTH_AT, ExtentItem};
use syncline_format::{BlockNo, Era, Key, ObjectNo, TreeId};

/// Who asks for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Everything but destaging.
    Normal,
    /// What frees space (unlink, truncate, punch): may use the headroom of nodes that is kept for a full volume.
    Reclaim,
    /// The deletion of trees: may use what is kept for it from everybody else as well (R33). Changes the volume tree
    /// only.
    Deletion,
    /// Destaging and what it needs: draws on the ring's reserve as well, so that it always gets through (R17).
    Destage,
}

/// Upper bounds of a batch to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Estimate {
    /// Encoded bytes (see `syncline_format::batch` for the sizes of operations).
    pub bytes: usize,
    /// Puts and deletes.
    pub items: usize,
    /// Page images.
    pub images: usize,
}

/// The right to commit one batch within its estimate; gives its share of the ring back when dropped.
#[derive(Debug)]
pub struct Permit {
    pub(crate) shared: Arc<Shared>,
    pub(crate) class: Class,
    pub(crate) estimate: Estimate,
    /// Room in the ring.
    pub(crate) ring: Promise,
    /// Chunks claimed for tree nodes.
    pub(crate) nodes: u64,
}

impl Permit {
    /// Leaves chunks that it has claimed to the next ones; false if they have to go back to the map. What was claimed
    /// out of a share that is kept for some must not be had by others.
    pub(crate) fn leave_chunks(&self, chunks: u64) -> bool {
        chunks == 0 || self.class == Class::Normal && self.shared.credit.keep_chunks(chunks)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.leave_chunks(self.nodes) {
            self.shared.space.lock().adjust_claims(self.nodes, 0);
        }
        if self.ring != Promise::default()
            && let Some(journal) = self.shared.journal.get()
        {
            journal.release(self.ring);
        }
    }
}

/// The right to have some data in flight when its batch is logged; at most 1 MiB together exists at a time.
#[derive(Debug)]
pub struct DataSlot {
    /// Not the whole store: records in flight hold slots, and the store holds the records.
    pub(crate) window: Arc<AtomicU64>,
    pub(crate) bytes: u64,
}

impl Drop for DataSlot {
    fn drop(&mut self) {
        self.window.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Since when a tree has blocks at a place of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Birth {
    /// Since the batch is committed: they are other blocks, or at another place, than before.
    Now,
    /// Since the item says: it is what is left of another one, or its blocks are written for the first time.
    Kept,
    /// Since the batch is committed: the blocks, which the tree has had elsewhere since the item says, are moved. The
    /// commit refuses it with `SharedBlocks` if a snapshot has them as well: nothing is named in two places.
    Moved,
}

/// A change of one tree: operations that become durable together or not at all.
#[derive(Debug)]
pub struct Batch {
    /// What its items, images and drops are of.
    pub(crate) tree: TreeId,
    pub(crate) ops: BatchBuf,
    /// Puts and deletes.
    pub(crate) items: usize,
    /// Deletes alone.
    pub(crate) deletes: usize,
    pub(crate) images: usize,
    /// Some blocks are put to use.
    pub(crate) allocates: bool,
    /// Some blocks are freed.
    pub(crate) frees: bool,
    /// The volume has version 2: births and releases are noted, and decided by the commit.
    pub(crate) has_trees: bool,
    /// Where births are written that are those of the commit.
    pub(crate) births: Vec<Mark>,
    /// Births of extents that are moved.
    pub(crate) moved: Vec<Era>,
    /// Where releases are, the key of the first page that they are of, and since when their blocks were named.
    pub(crate) releases: Vec<(Mark, Key, Era)>,
    pub(crate) data: Vec<Ticket>,
    pub(crate) slots: Vec<DataSlot>,
}

impl Batch {
    /// An empty change of a tree of a volume of version 1. For any volume: [`crate::Store::batch`].
    pub fn new(tree: TreeId) -> Batch {
        Batch {
            tree,
            ops: BatchBuf::default(),
            items: 0,
            deletes: 0,
            images: 0,
            allocates: false,
            frees: false,
            has_trees: false,
            births: Vec::new(),
            moved: Vec::new(),
            releases: Vec::new(),
            data: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// A batch that will take about so many encoded bytes, but for those of page images.
    pub fn with_capacity(tree: TreeId, bytes: usize) -> Batch {
        Batch { ops: BatchBuf::with_capacity(bytes), ..Batch::new(tree) }
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Encoded bytes so far.
    pub fn bytes(&self) -> usize {
        self.ops.len()
    }

    /// Operations so far.
    pub fn ops(&self) -> u32 {
        self.ops.ops()
    }

    pub fn put(&mut self, key: Key, value: &[u8]) {
        self.items += 1;
        self.ops.push(Op::Put { tree: self.tree, key, value, fresh: false });
    }

    pub fn delete(&mut self, key: Key) {
        self.items += 1;
        self.deletes += 1;
        self.ops.push(Op::Delete { tree: self.tree, key });
    }

    /// Puts an extent whose data this very batch brings: the data is complete, or in flight under a ticket given to
    /// [`Batch::depends_on`]. Recovery verifies it (R4).
    pub fn put_fresh_extent(&mut self, key: Key, extent: &ExtentItem) {
        self.put_extent(key, extent, Birth::Now, true);
    }

    /// Puts an extent. `fresh`: as [`Batch::put_fresh_extent`].
    pub fn put_extent(&mut self, key: Key, extent: &ExtentItem, birth: Birth, fresh: bool) {
        if birth == Birth::Moved && self.has_trees {
            self.moved.push(extent.birth);
        }
        self.put_born(key, &extent.encode(), EXTENT_BIRTH_AT, birth, fresh);
    }

    /// Puts an item with a birth at this byte of its value.
    pub(crate) fn put_born(&mut self, key: Key, value: &[u8], at: usize, birth: Birth, fresh: bool) {
        if birth != Birth::Kept && self.has_trees {
            self.births.push(self.ops.mark().plus(PUT_OVERHEAD_BYTES + at));
        }
        self.items += 1;
        self.ops.push(Op::Put { tree: self.tree, key, value, fresh });
    }

    /// Blocks from [`crate::Store::allocate`] that this batch puts to use.
    pub fn allocate(&mut self, start: BlockNo, len: u32) {
        self.allocates = true;
        self.ops.push(Op::Allocate { start, len });
    }

    /// Blocks of pages from `key`'s on, which an extent of this birth named there, and which no item of the tree names
    /// any more once this batch is applied. The commit decides whether they are free then, or a snapshot has them
    /// (R24).
    pub fn release(&mut self, key: Key, start: BlockNo, len: u32, birth: Era) {
        if !self.has_trees {
            return self.free(start, len);
        }
        self.releases.push((self.ops.mark(), key, birth));
        self.ops.push(Op::Release { outcome: Outcome::Free, start, len, birth });
    }

    /// Blocks that nothing names any more once this batch is applied, whatever the snapshots have.
    pub(crate) fn give_back(&mut self, start: BlockNo, len: u32, birth: Era) {
        self.frees = true;
        self.ops.push(Op::Release { outcome: Outcome::Free, start, len, birth });
    }

    /// Blocks that no item names any more once this batch is applied, on a volume of version 1.
    pub fn free(&mut self, start: BlockNo, len: u32) {
        assert!(!self.has_trees, "what a snapshot may have is released");
        self.frees = true;
        self.ops.push(Op::Free { start, len });
    }

    /// The content of a page (at most 4096 bytes; the rest is zero).
    pub fn image(&mut self, object: ObjectNo, page: u64, bytes: &[u8]) {
        self.images += 1;
        self.ops.push(Op::Image { tree: self.tree, object, page, bytes });
    }

    /// As [`Batch::image`], of a page in memory: it is not copied before the record is put together. A writer that
    /// changes the page meanwhile has to replace it.
    pub fn page_image(&mut self, object: ObjectNo, page: u64, content: &Arc<Buffer>) {
        self.images += 1;
        self.ops.push_image(self.tree, object, page, content);
    }

    /// Voids the images of pages `first..end` (R5).
    pub fn drop_images(&mut self, object: ObjectNo, first: u64, end: u64) {
        self.ops.push(Op::Drop { tree: self.tree, object, first, end });
    }

    /// The batch's data is still being written: no flush covers the batch before the ticket is complete (R7). The slot
    /// is from [`crate::Store::data_slot`].
    pub fn depends_on(&mut self, ticket: Ticket, slot: DataSlot) {
        self.data.push(ticket);
        self.slots.push(slot);
    }

    /// As [`Batch::depends_on`], for data that a slot given before stands for as well.
    pub fn depends_also_on(&mut self, ticket: Ticket) {
        self.data.push(ticket);
    }
}
