//! Opening a volume: superblock, bitmaps, replay, and the checkpoint that ends recovery.

use crate::carry::Carried;
use crate::journal::{Journal, JournalStart, first_tail};
use crate::limits::{GROUPS_PER_READ, SETTLED_TOGETHER};
use crate::locks::{Lock, Mutex, RwLock};
use crate::primitives::{AtomicBool, AtomicU64, Ordering};
use crate::replay::Replayed;
use crate::ring_scan::RingReader;
use crate::root_tree::RootTree;
use crate::shared::{Durable, Shared};
use crate::snapshot::InheritedPage;
use crate::space::SpaceMap;
use crate::store::misplaced;
use crate::tree::Root;
use crate::tree::cache::{NodeCache, Pinned};
use crate::trees::{Branches, Trees};
use crate::{Store, StoreError, StoreOptions, VolumeInfo, checkpoint, replay};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use syncline_device::{Buffer, Device, ReadRequest};
use syncline_format::bitmap::{self, Bits, UNWRITTEN};
use syncline_format::layout::{BACKUP_BLOCKS, Layout, VOLUME_BLOCKS_MIN};
use syncline_format::range::COUNTER_MAX;
use syncline_format::schedule::Schedule;
use syncline_format::superblock::{JournalTail, SUPERBLOCK_SLOTS, Superblock, TREES, VolumeState};
use syncline_format::tree_item::TreeItem;
use syncline_format::{
    BLOCK_BYTES, BlockNo, FormatError, Generation, GroupNo, Key, Kind, Lsn, TreeId, checksum,
};

/// A page image that recovery found live; its content is still in the ring ([`Recovery::read_images`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageImage {
    pub tree: TreeId,
    pub object: syncline_format::ObjectNo,
    pub page: u64,
    /// Where its first byte is.
    pub(crate) block: BlockNo,
    pub(crate) offset: u16,
    /// Bytes there; the rest of the page is zero.
    pub(crate) len: u16,
    pub(crate) sum: u64,
}

impl PageImage {
    /// Blocks that its bytes touch.
    fn blocks(&self) -> usize {
        (usize::from(self.offset) + usize::from(self.len)).div_ceil(BLOCK_BYTES).max(1)
    }

    /// The page, out of the blocks that hold its bytes.
    fn page_in(&self, blocks: &[u8]) -> Result<Buffer, StoreError> {
        let bytes = &blocks[usize::from(self.offset)..][..usize::from(self.len)];
        if checksum(bytes) != self.sum {
            let what = "a journal record changed while it was read";
            return Err(StoreError::Inconsistent { block: self.block, what });
        }
        Ok(Buffer::from_bytes(bytes))
    }
}

/// What recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RecoverySummary {
    /// Records of the chain.
    pub records: u64,
    /// Batches newer than the checkpoint that were applied.
    pub batches: u64,
    /// Page images that were live at the end.
    pub images: u64,
    /// 1 if the log was cut before its end because a batch's data was not whole.
    pub records_cut: u64,
}

/// A volume being opened: the journal is replayed in memory, nothing is written yet. Batches committed to
/// [`Recovery::store`] are applied without being logged; [`Recovery::finish`] makes them durable by a checkpoint.
pub struct Recovery {
    store: Arc<Store>,
    images: Vec<PageImage>,
    /// All of them, and the places within the ring of the log that holds them.
    found: Vec<PageImage>,
    log: Vec<Range<u64>>,
    summary: RecoverySummary,
    /// Groups have a slot newer than the superblock, or something was replayed: a whole checkpoint is needed.
    changed: bool,
}

impl Store {
    /// Opens a volume: chooses the superblock, loads the bitmaps, replays the journal in memory. Unless the volume is
    /// opened read-only the device is flushed before (R13), and where the log had to be cut is written down (R12);
    /// nothing else is written.
    pub fn open(device: Arc<dyn Device>, options: StoreOptions) -> Result<Recovery, StoreError> {
        let (superblock, slot) = choose_superblock(&*device)?;
        if superblock.trees.is_some() && !options.trees {
            return Err(StoreError::NoSuperblock { source: FormatError::Features { unknown: TREES } });
        }
        if !options.read_only {
            device.flush()?;
        }
        let (bitmaps, newer) = load_bitmaps(&*device, &superblock)?;
        let mut space = SpaceMap::new(superblock.layout, bitmaps);
        if superblock.trees.is_some() {
            space.keep_for_deletions();
        }
        for group in &newer {
            // R9: a slot newer than the superblock must not survive to be taken for current one day.
            space.mark_dirty(*group);
        }
        let volume = superblock.volume_id();
        let cache = NodeCache::new(options.node_cache_bytes, volume, superblock.layout)
            .with_births(superblock.trees.is_some());
        let mut root_tree = RootTree::read(&*device, &cache, &superblock)?;
        let roots = root_tree.roots().map(|(tree, root)| (tree, Root::Clean(root))).collect();
        let mut trees = Trees::new(roots, superblock.trees.map(Branches::new), superblock.checkpoint_lsn);
        trees.narrow(options.node_items_max);
        let (items, schedule) = volume_items(&*device, &cache, &trees)?;
        trees.load(items, schedule);
        trees.root_bound = root_tree.bound_of_one_more();
        check_trees(&trees, &superblock)?;
        root_tree.claim(&mut space, trees.changing().len());
        let shared = Arc::new(Shared {
            volume,
            cache,
            journal: OnceLock::new(),
            checkpointing: Mutex::new(
                Lock::Checkpointing,
                Durable { superblock: superblock.clone(), slot, root_tree },
            ),
            unsettled: OnceLock::new(),
            ended: AtomicBool::new(false),
            settling: Mutex::new(Lock::Settling, None),
            trimming: Mutex::new(Lock::Trimming, ()),
            trims_end: AtomicBool::new(false),
            trees: RwLock::new(Lock::Trees, trees),
            credit: Arc::clone(space.credit()),
            room_until: AtomicU64::new(0),
            space: Mutex::new(Lock::Space, space),
            piggyback: OnceLock::new(),
            next_object: AtomicU64::new(superblock.next_object.0),
            data_in_flight: Arc::default(),
            checkpoints: AtomicU64::new(0),
            generation: AtomicU64::new(superblock.generation.0),
            checkpoint_lsn: AtomicU64::new(superblock.checkpoint_lsn.0),
            info: VolumeInfo {
                uuid: superblock.uuid,
                label: superblock.label.clone(),
                name_hash: superblock.name_hash(),
                blocks: superblock.layout.blocks,
                journal_blocks: superblock.layout.journal_blocks,
                generation: superblock.generation,
            },
            opened: AtomicBool::new(false),
            epoch: OnceLock::new(),
            broken_journal: OnceLock::new(),
            layout: superblock.layout,
            frozen_nodes: AtomicU64::new(0),
            has_trees: superblock.trees.is_some(),
            device,
            options,
        });
        let mut reader = RingReader::new(&*shared.device, &superblock);
        let replayed = replay::replay(&shared, &superblock, &mut reader)?;
        check_trees(&shared.trees.read(), &superblock)?;
        let log = replayed.walk.places().to_vec();
        let found_cut = superblock.cut.is_none().then_some(replayed.cut).flatten();
        let empty = replayed.last_lsn.is_none();
        let reached = check_reach(&superblock, &replayed);
        let whole = reached.and_then(|()| {
            reader.search_beyond(replayed.walk, superblock.state == VolumeState::Clean && empty)
        });
        match (replayed.broken, whole) {
            (None, Ok(())) => {}
            (Some(error), _) => drop(shared.broken_journal.set(error)),
            (None, Err(error)) if shared.options.ends_at(&error) => drop(shared.broken_journal.set(error)),
            (None, Err(error)) => return Err(error),
        }
        let epoch = reader.new_epoch(shared.options.epoch);
        assert!(shared.epoch.set(epoch).is_ok(), "a session begins once");
        if let Some(cut) = found_cut.filter(|_| !shared.options.read_only) {
            shared.write_cut(cut)?;
        }
        let changed = !newer.is_empty() || !empty;
        let store = Arc::new(Store { shared });
        let found = replayed.images.clone();
        Ok(Recovery { store, images: replayed.images, found, log, summary: replayed.summary, changed })
    }
}

impl Recovery {
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Takes the live page images. A writable volume has to destage them before `finish` (R10), but for those that
    /// cannot be; a read-only one serves them from memory.
    pub fn take_images(&mut self) -> Vec<PageImage> {
        let trees = self.store.shared.trees.read();
        let images = std::mem::take(&mut self.images);
        // Those of snapshots are the store's own matter.
        images.into_iter().filter(|image| trees.changing_tree(image.tree).is_ok()).collect()
    }

    /// The content of some images, each a whole page, with as many reads in flight as there are images.
    ///
    /// Errors: what was verified at open is not there any more.
    pub fn read_images(&self, images: &[PageImage]) -> Result<Vec<Buffer>, StoreError> {
        let mut parts: Vec<Buffer> =
            images.iter().map(|image| Buffer::for_overwrite(image.blocks())).collect();
        let requests = images.iter().zip(&mut parts);
        let mut requests: Vec<ReadRequest<'_>> =
            requests.map(|(image, into)| ReadRequest { at: image.block, into }).collect();
        self.store.shared.device.read_many(&mut requests)?;
        images.iter().zip(&parts).map(|(image, part)| image.page_in(part)).collect()
    }

    pub fn summary(&self) -> RecoverySummary {
        self.summary
    }

    /// Whether the volume had been closed cleanly and nothing had to be replayed.
    pub fn was_clean(&self) -> bool {
        !self.changed
    }

    /// Ends recovery: the checkpoint that starts the new epoch (nothing is written when read-only).
    ///
    /// Every writable session has an epoch of its own, even after a clean close: no record of it is written before the
    /// superblock that names it is durable (R10), but for those that hold what could not be destaged.
    ///
    /// Errors: among others `NoRoomForImages`.
    pub fn finish(self) -> Result<Arc<Store>, StoreError> {
        let shared = &self.store.shared;
        if !shared.options.read_only {
            self.settle_inherited()?;
            let (carried, tail) = self.carry_images()?;
            self.store.write_checkpoint(checkpoint::Purpose::Recovery { tail })?;
            let durable = shared.checkpointing.lock();
            let start = shared.layout.journal_start;
            let hole = shared.device.hole(start).map_or(u64::MAX, |hole| hole.start.0 - start.0);
            let journal = Journal::new(
                Arc::clone(&shared.device),
                JournalStart {
                    volume: shared.volume,
                    start,
                    ring_blocks: shared.layout.journal_blocks,
                    written_blocks: hole.min(shared.layout.journal_blocks),
                    epoch: shared.epoch(),
                    lsn: durable.superblock.checkpoint_lsn,
                    tail,
                    carried,
                    images: shared.trees.read().images.len(),
                    generation: durable.superblock.generation,
                    stream_bytes: shared.options.stream_bytes,
                    ablation: shared.options.ablation(),
                },
            );
            assert!(shared.journal.set(journal).is_ok(), "recovery ends once");
        }
        if shared.options.read_only {
            assert!(shared.unsettled.set(self.read_inherited()?).is_ok(), "recovery ends once");
        }
        shared.space.lock().end_recovery();
        shared.opened.store(true, Ordering::Release);
        Ok(self.store)
    }

    /// Live images of snapshots.
    fn inherited(&self) -> Vec<PageImage> {
        let trees = self.store.shared.trees.read();
        let is_live = |image: &&PageImage| {
            let is_snapshots = trees.changing_tree(image.tree).is_err();
            is_snapshots && trees.images.holds(image.tree, image.object, image.page)
        };
        self.found.iter().filter(is_live).cloned().collect()
    }

    /// What they hold: a volume opened read-only keeps it in memory.
    fn read_inherited(&self) -> Result<Vec<InheritedPage>, StoreError> {
        let images = self.inherited();
        let pages = self.read_images(&images)?;
        Ok(images.iter().zip(pages).map(InheritedPage::from).collect())
    }

    /// Pages that snapshots inherited as images get blocks (R10).
    fn settle_inherited(&self) -> Result<(), StoreError> {
        for images in self.inherited().chunks(SETTLED_TOGETHER) {
            let pages = self.read_images(images)?;
            let pages: Vec<InheritedPage> = images.iter().zip(pages).map(InheritedPage::from).collect();
            self.store.settle_pages(pages)?;
        }
        Ok(())
    }

    /// Begins the new epoch's log with the images that were not destaged; returns its records, and its tail.
    fn carry_images(&self) -> Result<(Vec<Carried>, JournalTail), StoreError> {
        let shared = &self.store.shared;
        let left: Vec<PageImage> = {
            let images = &shared.trees.read().images;
            let is_live = |image: &&PageImage| images.holds(image.tree, image.object, image.page);
            self.found.iter().filter(is_live).cloned().collect()
        };
        assert_eq!(shared.trees.read().images.len(), left.len() as u64, "recovery logs no images of its own");
        if left.is_empty() {
            return Ok((Vec::new(), first_tail(shared.epoch())));
        }
        let pages = self.read_images(&left)?;
        let pages: Vec<_> = left.into_iter().zip(pages).collect();
        let generation = shared.checkpointing.lock().superblock.generation;
        shared.carry(&pages, &self.log, generation)
    }
}

impl Shared {
    /// R12: makes durable where the log is cut, before recovery writes anything else. Recovery's own writes can
    /// complete what was cut off, content of a page that a lost write should have brought to the same place; after a
    /// crash of this recovery the next one would find a longer log than this one has shown.
    ///
    /// The superblock is written once more into the other slot, of the same generation so that the bitmaps of a
    /// checkpoint that was not completed do not come to count.
    fn write_cut(&self, cut: Lsn) -> Result<(), StoreError> {
        let mut durable = self.checkpointing.lock();
        let superblock = Superblock { cut: Some(cut), ..durable.superblock.clone() };
        let slot = 1 - durable.slot;
        let block = SUPERBLOCK_SLOTS[slot];
        self.device.write(block, vec![Arc::new(Buffer::from_bytes(&superblock.encode(block)))])?;
        self.device.flush()?;
        (durable.superblock, durable.slot) = (superblock, slot);
        Ok(())
    }
}

/// A checkpoint is written only after its records are durable (R1), and its tail never passes the last of them: a
/// chain that ends before the checkpoint has lost a record, perhaps with live images in it.
fn check_reach(superblock: &Superblock, replayed: &Replayed) -> Result<(), StoreError> {
    let reached = match replayed.last_lsn {
        Some(last) => last >= superblock.checkpoint_lsn,
        None => superblock.tail == first_tail(superblock.epoch),
    };
    if reached { Ok(()) } else { Err(StoreError::JournalBroken { sequence: replayed.walk.sequence }) }
}

/// A session may begin with counters at the end of their range, and leaves them a little beyond it: it goes on as
/// long as they are counters at all.
fn check_counters(superblock: &Superblock) -> Result<(), FormatError> {
    match superblock.counters().into_iter().find(|(_, value)| *value > COUNTER_MAX) {
        Some((field, value)) => field.check(value).map(drop),
        None => Ok(()),
    }
}

/// The valid superblock of the highest generation. The backups at the end are never chosen here.
///
/// Errors: among others, corruption if its counters cannot be true.
pub(crate) fn choose_superblock(device: &dyn Device) -> Result<(Superblock, usize), StoreError> {
    if device.blocks() < VOLUME_BLOCKS_MIN {
        return Err(StoreError::TooSmall { device_blocks: device.blocks() });
    }
    let mut best: Option<(Superblock, usize)> = None;
    let mut failure: Option<FormatError> = None;
    for (slot, block) in SUPERBLOCK_SLOTS.into_iter().enumerate() {
        let mut bytes = Buffer::zeroed(1);
        device.read(block, &mut bytes)?;
        let decoded = Superblock::decode(&bytes, block, device.blocks());
        match decoded {
            Ok(superblock) => {
                if best.as_ref().is_none_or(|(best, _)| best.rank() < superblock.rank()) {
                    best = Some((superblock, slot));
                }
            }
            // A slot that was never written says less than one that another version wrote.
            Err(error) if failure.is_none() || !matches!(error, FormatError::Magic { .. }) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    match (best, failure) {
        (_, Some(source @ (FormatError::Version { .. } | FormatError::Features { .. }))) => {
            Err(StoreError::NoSuperblock { source })
        }
        (Some((superblock, slot)), _) => {
            // Not passed over: what the one before names was reused under this one.
            check_counters(&superblock)
                .map_err(|source| StoreError::Corrupt { block: SUPERBLOCK_SLOTS[slot], source })?;
            Ok((superblock, slot))
        }
        (None, Some(FormatError::Field { what: "layout", field: "blocks", value }))
            if value > device.blocks() =>
        {
            Err(StoreError::TooShort { volume_blocks: value, device_blocks: device.blocks() })
        }
        (None, Some(FormatError::Magic { .. })) if has_backup(device) => Err(StoreError::SlotsLost),
        (None, Some(FormatError::Magic { .. })) => Err(StoreError::NotSyncline),
        (None, Some(source)) => Err(StoreError::NoSuperblock { source }),
        (None, None) => unreachable!("two slots were read"),
    }
}

/// Whether a backup superblock at the end tells that this was a volume. What cannot be read tells nothing.
fn has_backup(device: &dyn Device) -> bool {
    (1..=BACKUP_BLOCKS).map(|back| BlockNo(device.blocks() - back)).any(|block| {
        let mut bytes = Buffer::zeroed(1);
        device.read(block, &mut bytes).is_ok() && Superblock::decode(&bytes, block, device.blocks()).is_ok()
    })
}

pub(crate) type Bitmaps = Vec<(u8, Arc<Bits>)>;

/// The current bitmap of each group, and the groups that also have a slot newer than the superblock, or a damaged one.
pub(crate) fn load_bitmaps(
    device: &dyn Device,
    superblock: &Superblock,
) -> Result<(Bitmaps, Vec<u32>), StoreError> {
    let layout = &superblock.layout;
    let count = layout.group_count() as usize;
    let mut bitmaps = Bitmaps::with_capacity(count);
    let mut newer = Vec::new();
    let mut doubtful = None;
    // Groups that nothing uses share one copy of their bits.
    let empty = Arc::new(bitmap::empty_bits(layout, GroupNo(0)));
    let mut first = 0;
    while first < count {
        let groups = GROUPS_PER_READ.min(count - first);
        let mut buffers: Vec<Buffer> = (0..groups).map(|_| Buffer::zeroed(2)).collect();
        let mut requests: Vec<ReadRequest<'_>> = buffers
            .iter_mut()
            .enumerate()
            .map(|(i, into)| ReadRequest { at: layout.group_start(GroupNo((first + i) as u32)), into })
            .collect();
        if device.read_many(&mut requests).is_err() {
            let places = buffers.iter_mut().zip(first as u32..);
            places.for_each(|(into, group)| read_slots(device, layout, GroupNo(group), into));
        }
        for (index, bytes) in buffers.iter().enumerate() {
            let group = GroupNo((first + index) as u32);
            let (doubt, slot, bits) = current_slot(bytes, group, superblock, &mut newer)?;
            doubtful = doubtful.or(doubt);
            let head = bitmap::empty_bits(layout, group);
            if bits.iter().zip(&head).any(|(bits, head)| bits & head != *head) {
                let block = layout.bitmap_slot(group, slot);
                let what = "the bitmap offers blocks that are not the group's to give";
                return Err(StoreError::Inconsistent { block, what });
            }
            let bits = if *bits == *empty { Arc::clone(&empty) } else { Arc::from(bits) };
            bitmaps.push((slot, bits));
        }
        first += groups;
    }
    if let Some(block) = doubtful {
        require_all(&bitmaps, superblock, block)?;
    }
    Ok((bitmaps, newer))
}

/// Reads both slots of a group, each alone: one that cannot be read is one that does not verify.
fn read_slots(device: &dyn Device, layout: &Layout, group: GroupNo, into: &mut Buffer) {
    for (slot, bytes) in (0u8..).zip(into.chunks_exact_mut(BLOCK_BYTES)) {
        if device.read(layout.bitmap_slot(group, slot), bytes).is_err() {
            bytes.fill(0xff);
        }
    }
}

/// A slot that cannot be read may be the current one, and so may one of zeros. Then the bitmaps call other blocks free
/// than the superblock counts.
fn require_all(bitmaps: &Bitmaps, superblock: &Superblock, block: BlockNo) -> Result<(), StoreError> {
    let free =
        |(_, bits): &(u8, Arc<Bits>)| bits.iter().map(|word| u64::from(word.count_zeros())).sum::<u64>();
    if bitmaps.iter().map(free).sum::<u64>() == superblock.free_blocks {
        return Ok(());
    }
    let what = "a bitmap is missing: what is free is not as much as the superblock says";
    Err(StoreError::Inconsistent { block, what })
}

/// The slot that counts, its bits, and a slot that may have counted before it was lost.
fn current_slot(
    bytes: &[u8],
    group: GroupNo,
    superblock: &Superblock,
    newer: &mut Vec<u32>,
) -> Result<(Option<BlockNo>, u8, Box<Bits>), StoreError> {
    // Of two slots of the generation of zeros, one that somebody has written counts.
    let mut best: Option<((Generation, bool), u8, Box<Bits>)> = None;
    let mut failure = None;
    let mut doubt = None;
    let mut damaged = None;
    for slot in 0..2u8 {
        let at: BlockNo = superblock.layout.bitmap_slot(group, slot);
        let from = usize::from(slot) * BLOCK_BYTES;
        let bytes = &bytes[from..from + BLOCK_BYTES];
        let is_unwritten = bitmap::is_unwritten(bytes);
        if is_unwritten && !superblock.unwritten_bitmaps {
            doubt = Some(at);
            continue;
        }
        let decoded = match is_unwritten {
            true => Ok((UNWRITTEN, Box::new(bitmap::empty_bits(&superblock.layout, group)))),
            false => bitmap::decode(bytes, group, at, superblock.volume_id()),
        };
        if is_unwritten || decoded.is_err() {
            doubt = Some(at);
        }
        match decoded {
            Ok((generation, _)) if generation > superblock.generation => newer.push(group.0),
            Ok((generation, bits)) => {
                let rank = (generation, !is_unwritten);
                if best.as_ref().is_none_or(|(best, _, _)| *best < rank) {
                    best = Some((rank, slot, bits));
                }
            }
            Err(source) => {
                damaged = Some((at, bytes));
                failure = Some(StoreError::Corrupt { block: at, source });
            }
        }
    }
    if let (Some(((other, _), ..)), Some((at, bytes))) = (&best, damaged) {
        if bitmap::may_count(bytes, at, superblock.volume_id(), superblock.generation, *other) {
            return Err(StoreError::Inconsistent {
                block: at,
                what: "a bitmap is damaged, and the one before it may call blocks free that are in use",
            });
        }
        // Its header may tell of a generation that comes to be a superblock's.
        newer.push(group.0);
    }
    match (best, failure) {
        (Some((_, slot, bits)), _) => Ok((doubt, slot, bits)),
        (None, Some(error)) => Err(error),
        (None, None) => Err(StoreError::Inconsistent {
            block: superblock.layout.bitmap_slot(group, 0),
            what: "a bitmap is missing: neither slot of its group counts",
        }),
    }
}

/// The tree items of the volume tree and the schedule, as the checkpoint has them. Of version 1: none.
fn volume_items(
    device: &dyn Device,
    cache: &NodeCache,
    trees: &Trees,
) -> Result<(BTreeMap<TreeId, TreeItem>, Option<Schedule>), StoreError> {
    let (mut items, mut schedule) = (BTreeMap::new(), None);
    let Ok(tree) = trees.tree(TreeId::VOLUME) else { return Ok((items, schedule)) };
    let pinned = Pinned::new(cache);
    let mut from = Key::MIN;
    loop {
        let found = match tree.find(from, &pinned) {
            Ok(found) => found,
            Err(missing) => {
                pinned.load_many(device, &[missing])?;
                continue;
            }
        };
        let block = found.leaf.block();
        if !found.is_in_place() {
            return Err(misplaced(block));
        }
        let page = &found.leaf.page;
        for index in 0..page.count() {
            let key = page.key(index);
            let value = page.value(index);
            let taken = key.check_volume().and_then(|()| match key.kind {
                Kind::TreeInfo => {
                    TreeItem::decode(value).map(|item| drop(items.insert(TreeId(key.object.0 as u32), item)))
                }
                Kind::Policy => Schedule::decode(value).map(|found| schedule = Some(found)),
                _ => Ok(()),
            });
            taken.map_err(|source| StoreError::Corrupt { block, source })?;
        }
        match found.place.end {
            Some(next) if next > from => from = next,
            Some(_) => return Err(misplaced(block)),
            None => return Ok((items, schedule)),
        }
    }
}

fn check_trees(trees: &Trees, superblock: &Superblock) -> Result<(), StoreError> {
    let block = superblock.root.block;
    trees.fault().map_or(Ok(()), |what| Err(StoreError::Inconsistent { block, what }))
}
