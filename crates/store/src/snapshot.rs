//! Making snapshots, and settling the images that they inherit.
//!
//! A snapshot is one batch: it shares the root of its head, and from then on nothing of what both have changes. Its
//! *inherited images* are pages whose newest content was in the journal only. The head goes on and drops its own; those
//! of the snapshot live on, and keep the journal's tail, until they are *settled*: written to blocks that were reserved
//! when the snapshot was made, and entered in the volume tree as the snapshot's overlay. The snapshot's own tree stays
//! as it is (R28): the head shares it.

use crate::journal::Journal;
use crate::limits::{
    AVAILABLE_BEHIND_SNAPSHOT, AVAILABLE_SHARE, INHERITED_SLACK, SETTLED_TOGETHER, TREES_MAX,
};
use crate::store::{check_place, misplaced};
use crate::tree::Obstacle;
use crate::tree::cache::Pinned;
use crate::trees::{Inherited, Trees};
use crate::{
    Batch, Birth, Class, Estimate, PageImage, Permit, Pressure, Reservation, Store, StoreError, TreeReader,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Buffer;
use syncline_format::batch::{
    BATCH_HEADER_BYTES, DROP_BYTES, MAKE_TREE_BYTES, Op, PUT_OVERHEAD_BYTES, SPACE_OP_BYTES, decode_batches,
};
use syncline_format::item::{EXTENT_BIRTH_AT, EXTENT_HEADER_BYTES, ExtentItem, NAME_BYTES_MAX, Timestamp};
use syncline_format::range::OVERLAY_ITEMS_MAX;
use syncline_format::record;
use syncline_format::tree_item::{
    OVERLAY_HEAD_BYTES, OverlayItem, Role, Stay, TREE_ITEM_BYTES, TreeItem, TreeState, is_tree_name,
};
use syncline_format::{BLOCK_BYTES, Era, Key, Lsn, ObjectNo, TreeId, checksum};

/// What a snapshot is called by people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotLabel {
    /// 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`; no other tree of the volume has it.
    pub name: String,
    pub uuid: [u8; 16],
    pub made: Timestamp,
    pub stay: Stay,
}

/// A page whose content a snapshot inherited as an image.
pub(crate) struct InheritedPage {
    tree: TreeId,
    object: ObjectNo,
    page: u64,
    content: Buffer,
}

impl From<(&PageImage, Buffer)> for InheritedPage {
    fn from((image, content): (&PageImage, Buffer)) -> InheritedPage {
        InheritedPage { tree: image.tree, object: image.object, page: image.page, content }
    }
}

/// Bytes of a batch that makes a snapshot.
const SNAPSHOT_BATCH_BYTES: usize =
    BATCH_HEADER_BYTES + MAKE_TREE_BYTES + 2 * (PUT_OVERHEAD_BYTES + TREE_ITEM_BYTES + NAME_BYTES_MAX);
/// Bytes that settling one page adds to a batch.
const SETTLED_BYTES: usize =
    SPACE_OP_BYTES + PUT_OVERHEAD_BYTES + OVERLAY_HEAD_BYTES + EXTENT_HEADER_BYTES + 8 + DROP_BYTES;

impl Store {
    /// Whether the volume is of version 2 of the format, which has several trees.
    pub fn has_trees(&self) -> bool {
        self.shared.has_trees
    }

    /// Makes a snapshot of a head: what all batches before have left, with the images that live. Visible at once, and
    /// durable once `force` has returned for its LSN.
    ///
    /// Errors: among others `NeedsUpgrade`, `BadTreeName`, `TreeExists`, `NotAHead`, `NoSpace` if so little would be
    /// left behind it that the first changes fail (R35), and `Pressure`: images have to be destaged first.
    pub fn snapshot(&self, of: TreeId, label: &SnapshotLabel) -> Result<(TreeId, Lsn), StoreError> {
        self.snapshot_as(of, label, false)
    }

    /// A snapshot of a head that nobody sees: it goes away with its reader, and after a crash whoever opens the volume
    /// takes it apart. Nothing has to be forced for it. Call it without locks. Errors: as [`Store::snapshot`].
    pub fn passing_snapshot(&self, of: TreeId, label: &SnapshotLabel) -> Result<TreeReader, StoreError> {
        // No step of a deletion may find it before somebody reads it.
        let _turn = self.shared.settling.lock();
        let (tree, _) = self.snapshot_as(of, label, true)?;
        if let Some(branches) = &mut self.shared.trees.write().branches {
            *branches.readers.entry(tree).or_default() += 1;
        }
        Ok(TreeReader { shared: Arc::clone(&self.shared), tree })
    }

    fn snapshot_as(
        &self,
        of: TreeId,
        label: &SnapshotLabel,
        is_hidden: bool,
    ) -> Result<(TreeId, Lsn), StoreError> {
        loop {
            let images = self.shared.trees.read().images.of(of).count() as u64 + INHERITED_SLACK;
            if images > OVERLAY_ITEMS_MAX {
                return Err(StoreError::Pressure(Pressure::Journal));
            }
            self.check_snapshot(&self.shared.trees.read(), of, label)?;
            let blocks = self.reserve(images)?;
            self.check_available()?;
            let estimate = Estimate { bytes: SNAPSHOT_BATCH_BYTES, items: 2, images: images as usize };
            let permit = self.admit(Class::Normal, estimate)?;
            if let Some(made) = self.make_snapshot(of, label, is_hidden, permit, blocks)? {
                return Ok(made);
            }
        }
    }

    /// Whether a snapshot of the head may be called that. Errors: as [`Store::snapshot`].
    pub fn check_label(&self, of: TreeId, label: &SnapshotLabel) -> Result<(), StoreError> {
        self.check_snapshot(&self.shared.trees.read(), of, label)
    }

    /// R35: what is available behind a snapshot suffices for its head to go on.
    pub(crate) fn check_available(&self) -> Result<(), StoreError> {
        let space = self.space();
        let least = AVAILABLE_BEHIND_SNAPSHOT.min(space.total / AVAILABLE_SHARE);
        if space.available < least { Err(StoreError::NoSpace) } else { Ok(()) }
    }

    pub(crate) fn check_snapshot(
        &self,
        trees: &Trees,
        of: TreeId,
        label: &SnapshotLabel,
    ) -> Result<(), StoreError> {
        let name = || label.name.clone();
        let Some(branches) = &trees.branches else { return Err(StoreError::NeedsUpgrade) };
        trees.changing_tree(of)?;
        match () {
            () if !of.is_filesystem() => Err(StoreError::NotAHead { tree: of }),
            () if !is_tree_name(&label.name) => Err(StoreError::BadTreeName { name: name() }),
            () if branches.named(&label.name).is_some() => Err(StoreError::TreeExists { name: name() }),
            () if branches.items.len() >= TREES_MAX || branches.is_worn() => {
                Err(StoreError::TooManyTrees { most: TREES_MAX })
            }
            () => Ok(()),
        }
    }

    /// `None`: more images have come than were reckoned with.
    fn make_snapshot(
        &self,
        of: TreeId,
        label: &SnapshotLabel,
        is_hidden: bool,
        mut permit: Permit,
        blocks: Reservation,
    ) -> Result<Option<(TreeId, Lsn)>, StoreError> {
        let shared = &self.shared;
        if let Some(journal) = shared.journal.get() {
            journal.failure().map_or(Ok(()), Err)?;
        }
        let pinned = Pinned::new(&shared.cache);
        let mut stale = None;
        let (mut trees, batch, tree) = loop {
            let trees = shared.trees.write();
            self.check_snapshot(&trees, of, label)?;
            if trees.images.of(of).count() as u64 > blocks.blocks {
                return Ok(None);
            }
            let (batch, tree) = self.snapshot_batch(&trees, of, label, is_hidden);
            let volume = trees.tree(TreeId::VOLUME)?;
            let keys = [Key::tree_info(of), Key::tree_info(tree)];
            match keys.iter().try_for_each(|key| volume.check_resident(*key, &pinned).map(drop)) {
                Ok(()) => break (trees, batch, tree),
                Err(Obstacle::Missing(missing)) => {
                    drop(trees);
                    pinned.load(&*shared.device, &missing, &mut stale)?;
                }
                Err(Obstacle::Misplaced(block)) => return Err(misplaced(block)),
            }
        };
        let (lsn, _) = self.enter(&mut trees, &mut permit, batch, None, &pinned);
        // Kept for settling; without images nothing has to be.
        let inherits = trees.images.of(tree).next().is_some();
        if let Some(branches) = trees.branches.as_mut().filter(|_| inherits) {
            let mut blocks = blocks;
            let reserved = std::mem::take(&mut blocks.blocks);
            branches.inherited.insert(tree, Inherited { source: of, reserved });
        }
        Ok(Some((tree, lsn)))
    }

    /// The batch, and the new tree's number.
    fn snapshot_batch(
        &self,
        trees: &Trees,
        of: TreeId,
        label: &SnapshotLabel,
        is_hidden: bool,
    ) -> (Batch, TreeId) {
        let branches = trees.branches.as_ref().expect("checked before");
        let (era, tree) = (branches.state.era, branches.state.next_tree);
        let head = &branches.items[&of];
        let item = TreeItem {
            role: Role::Snapshot,
            state: TreeState::Live,
            is_default: false,
            is_hidden,
            era,
            parent: head.parent,
            known: Era(0),
            lsn: trees.lsn.next(),
            made: label.made,
            uuid: label.uuid,
            stay: label.stay,
            name: if is_hidden { String::new() } else { label.name.clone() },
        };
        let head = TreeItem { parent: Some(tree), known: era, ..head.clone() };
        let mut batch = self.batch(TreeId::VOLUME);
        batch.ops.push(Op::MakeTree { tree, source: Some(of), role: Role::Snapshot, era: era.next() });
        batch.put(Key::tree_info(tree), &item.encode());
        batch.put(Key::tree_info(of), &head.encode());
        (batch, tree)
    }

    /// The heads and snapshots of the volume, and what they are; of version 1 none.
    pub fn trees(&self) -> BTreeMap<TreeId, TreeItem> {
        let trees = self.shared.trees.read();
        trees.branches.as_ref().map_or_else(BTreeMap::new, |branches| branches.items.clone())
    }

    /// The head or snapshot of a name, and what it is.
    pub fn tree_named(&self, name: &str) -> Option<(TreeId, TreeItem)> {
        let trees = self.shared.trees.read();
        let branches = trees.branches.as_ref()?;
        let tree = branches.named(name)?;
        branches.items.get(&tree).map(|item| (tree, item.clone()))
    }

    /// A number that changes, in this session, whenever a name of a head or snapshot comes, goes, or changes hands.
    pub fn naming(&self) -> u64 {
        self.shared.trees.read().branches.as_ref().map_or(0, |branches| branches.naming)
    }

    /// The head or snapshot that was made next behind a number, and what it is.
    pub fn tree_behind(&self, tree: TreeId) -> Option<(TreeId, TreeItem)> {
        let trees = self.shared.trees.read();
        let mut behind = trees.branches.as_ref()?.items.range(TreeId(tree.0.saturating_add(1))..);
        behind.next().map(|(number, item)| (*number, item.clone()))
    }

    /// Settles some of the images that snapshots have inherited; returns whether there were any. Call it without locks:
    /// one caller at a time does it, the others wait.
    ///
    /// Errors: `Pressure(Nodes)` before a checkpoint.
    pub fn settle(&self) -> Result<bool, StoreError> {
        let _turn = self.shared.settling.lock();
        self.settle_some()
    }

    /// Whether a snapshot has images that are not settled: its overlay is not all there.
    pub fn is_settling(&self, tree: TreeId) -> bool {
        let trees = self.shared.trees.read();
        trees.branches.as_ref().is_some_and(|branches| branches.inherited.contains_key(&tree))
    }

    pub(crate) fn settle_some(&self) -> Result<bool, StoreError> {
        let shared = &self.shared;
        let Some(journal) = shared.journal.get() else { return Ok(false) };
        let (tree, source, images) = {
            let trees = shared.trees.read();
            let inherited = trees.branches.as_ref().and_then(|branches| branches.inherited.iter().next());
            let Some((tree, Inherited { source, .. })) = inherited else { return Ok(false) };
            (*tree, *source, trees.images.of(*tree).take(SETTLED_TOGETHER).collect::<Vec<_>>())
        };
        // Of a tree that was deleted meanwhile there are none.
        if let Some(newest) = images.iter().map(|(.., lsn)| *lsn).max() {
            // A record that is still in memory cannot be read.
            self.force(newest)?;
            let pages = self.read_inherited(journal, tree, source, &images)?;
            self.settle_pages(pages)?;
        }
        let mut trees = shared.trees.write();
        let is_settled = trees.images.of(tree).next().is_none();
        if let Some(branches) = trees.branches.as_mut().filter(|_| is_settled)
            && let Some(inherited) = branches.inherited.remove(&tree)
        {
            shared.space.lock().unreserve(inherited.reserved);
        }
        Ok(true)
    }

    /// The content of images out of the records that hold them. The ring keeps these while the images live.
    fn read_inherited(
        &self,
        journal: &Journal,
        tree: TreeId,
        source: TreeId,
        images: &[(ObjectNo, u64, Lsn)],
    ) -> Result<Vec<InheritedPage>, StoreError> {
        let mut by_lsn: BTreeMap<Lsn, Vec<(ObjectNo, u64)>> = BTreeMap::new();
        for (object, page, lsn) in images {
            by_lsn.entry(*lsn).or_default().push((*object, *page));
        }
        let mut pages = Vec::with_capacity(images.len());
        for (lsn, wanted) in by_lsn {
            let block = journal.block_of(lsn);
            let corrupt = |source| StoreError::Corrupt { block, source };
            let mut head = Buffer::zeroed(1);
            self.shared.device.read(block, &mut head)?;
            let info = record::peek(&head, block, self.shared.volume).map_err(corrupt)?;
            let mut bytes = Buffer::zeroed(info.blocks() as usize);
            self.shared.device.read(block, &mut bytes)?;
            let (info, _, payload) = record::verify(&bytes, block, self.shared.volume).map_err(corrupt)?;
            let batches = decode_batches(payload, info.batches).map_err(corrupt)?;
            let batch = lsn.0.checked_sub(info.first_lsn.0).and_then(|index| batches.get(index as usize));
            for (object, page) in wanted {
                let found = batch.into_iter().flatten().rev().find_map(|op| match *op {
                    Op::Image { tree, object: of, page: at, bytes } => {
                        ((tree, of, at) == (source, object, page)).then_some(bytes)
                    }
                    _ => None,
                });
                let what = "a journal record does not hold an image that lives in it";
                let bytes = found.ok_or(StoreError::Inconsistent { block, what })?;
                pages.push(InheritedPage { tree, object, page, content: Buffer::from_bytes(bytes) });
            }
        }
        Ok(pages)
    }

    /// Writes pages of snapshots to blocks and enters these as overlays.
    pub(crate) fn settle_pages(&self, pages: Vec<InheritedPage>) -> Result<(), StoreError> {
        let shared = &self.shared;
        let count = pages.len();
        let bytes = BATCH_HEADER_BYTES + count * SETTLED_BYTES;
        let permit = self.admit(Class::Destage, Estimate { bytes, items: count, images: 0 })?;
        let mut batch = self.batch(TreeId::VOLUME);
        let mut tickets = Vec::with_capacity(count);
        let mut numbers: BTreeMap<TreeId, u64> = BTreeMap::new();
        for InheritedPage { tree, object, page, content } in pages {
            let mut blocks = self.reserved_for(tree)?;
            let run = self.allocate(&mut blocks, 1, None);
            let extent = ExtentItem::written(run.start, vec![checksum(&content)]);
            let item = OverlayItem { object, page, extent };
            let number = match numbers.get(&tree) {
                Some(number) => *number,
                None => self.overlay_len(tree)?,
            };
            numbers.insert(tree, number + 1);
            batch.allocate(run.start, run.len);
            let key = Key::overlay(tree, number);
            batch.put_born(key, &item.encode(), OVERLAY_HEAD_BYTES + EXTENT_BIRTH_AT, Birth::Now, true);
            batch.ops.push(Op::Drop { tree, object, first: page, end: page + 1 });
            assert_eq!(content.len(), BLOCK_BYTES, "an image is a page");
            tickets.push(shared.device.submit_write(run.start, vec![Arc::new(content)]));
        }
        // Written before it is logged: nobody waits for it, and it takes nothing of the window for data in flight.
        let written: Vec<_> = tickets.iter().map(|ticket| shared.device.wait(ticket)).collect();
        if let Some(error) = written.into_iter().find_map(Result::err) {
            self.fail(error.clone());
            return Err(error.into());
        }
        self.commit(permit, batch).map(drop)
    }

    /// One of the blocks that were reserved for a snapshot's images; while the volume recovers, any.
    fn reserved_for(&self, tree: TreeId) -> Result<Reservation, StoreError> {
        let mut trees = self.shared.trees.write();
        let inherited = trees.branches.as_mut().and_then(|branches| branches.inherited.get_mut(&tree));
        match inherited {
            Some(inherited) => {
                inherited.reserved -= 1;
                Ok(Reservation::new(&self.shared, 1, false))
            }
            None => {
                drop(trees);
                self.reserve(1)
            }
        }
    }

    /// Overlay items of a snapshot, which are numbered from 0.
    fn overlay_len(&self, tree: TreeId) -> Result<u64, StoreError> {
        let last = self.last_at_or_before(TreeId::VOLUME, Key::overlay(tree, u64::MAX))?;
        Ok(match last {
            Some((key, _)) if key.object.0 == u64::from(tree.0) && key.kind == Key::overlay(tree, 0).kind => {
                key.offset + 1
            }
            _ => 0,
        })
    }

    /// Further pages that stand for what its tree has there, of a volume opened read-only: nobody settles them.
    pub fn unsettled(&self, tree: TreeId) -> impl Iterator<Item = (ObjectNo, u64, &Buffer)> {
        let pages = self.shared.unsettled.get().into_iter().flatten();
        pages.filter(move |page| page.tree == tree).map(|page| (page.object, page.page, &page.content))
    }

    /// The pages of a snapshot that stand for what its tree has there. All of them once nothing is to be settled.
    pub fn overlay(&self, tree: TreeId) -> Result<Vec<OverlayItem>, StoreError> {
        Ok(self.overlay_items(tree)?.into_iter().map(|(_, item)| item).collect())
    }

    pub(crate) fn overlay_items(&self, tree: TreeId) -> Result<Vec<(Key, OverlayItem)>, StoreError> {
        let mut items = Vec::new();
        let (mut from, end) = (Key::overlay(tree, 0), Key::overlay(tree, u64::MAX));
        loop {
            let found = self.look(TreeId::VOLUME, |tree, resident| tree.find(from, resident))?;
            check_place(&found)?;
            let page = &found.leaf.page;
            let first = page.search(from).unwrap_or_else(|index| index);
            for index in (first..page.count()).take_while(|index| page.key(*index) < end) {
                let block = found.leaf.block();
                let item = OverlayItem::decode(page.value(index));
                let item = item.map_err(|source| StoreError::Corrupt { block, source })?;
                items.push((page.key(index), item));
            }
            match found.place.end {
                Some(next) if next < end => from = from.max(next),
                _ => return Ok(items),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FormatOptions, StoreOptions};
    use syncline_device::MemoryDevice;

    #[test]
    fn a_volume_with_as_many_trees_as_it_may_have_gets_no_more_until_one_is_deleted() {
        let device = Arc::new(MemoryDevice::new(4096));
        let format = FormatOptions {
            uuid: [7; 16],
            label: String::new(),
            journal_blocks: Some(256),
            blocks: None,
            hash_seed: 1,
            name_key: None,
            epoch: 99,
            created_seconds: 0,
            created_nanoseconds: 0,
            items: Vec::new(),
        };
        Store::format_with_trees(&*device, &format, &mut |_, _| {}).expect("format");
        let store =
            Store::open(device, StoreOptions::new(1).trees()).expect("open").finish().expect("finish");
        let label = |number: usize| SnapshotLabel {
            name: number.to_string(),
            uuid: [number as u8; 16],
            made: Timestamp::default(),
            stay: Stay::default(),
        };
        // The first head is one of them.
        let made: Vec<TreeId> = (1..TREES_MAX)
            .map(|number| store.snapshot(TreeId::MAIN, &label(number)).expect("there is room").0)
            .collect();
        let full = StoreError::TooManyTrees { most: TREES_MAX };
        assert_eq!(store.snapshot(TreeId::MAIN, &label(99)).unwrap_err(), full);
        assert_eq!(store.passing_snapshot(TreeId::MAIN, &label(99)).unwrap_err(), full);
        assert_eq!(store.clone_tree(made[0], &label(99), false).unwrap_err(), full);
        assert_eq!(store.trees().len(), TREES_MAX, "nothing is lost");
        store.delete_tree(made[3]).expect("delete");
        while store.reap(usize::MAX).expect("reap") {}
        assert_eq!(store.trees().len(), TREES_MAX - 1);
        store.snapshot(TreeId::MAIN, &label(99)).expect("there is room again");
    }
}
