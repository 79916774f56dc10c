//! The bounded cache of clean nodes, and loading them from the device.
//!
//! Entries are found by address and count only if their pointer matches in full: a block that was freed and reused
//! never yields the old node. Replacement is second chance.
//!
//! Clean and dirty nodes share one bound: the cache takes what the dirty ones leave of it, at least its own part.
//! However large the bound is, no more than [`DIRTY_NODE_BYTES_MAX`] are dirty: recovery of the journal has to hold as
//! many.

use super::page::Page;
use super::{Missing, Node, Resident};
use crate::StoreError;
use crate::limits::{CACHED_NODES_MIN, DIRTY_NODE_BYTES_MAX, LEAVES_AHEAD};
use crate::locks::{Lock, Mutex};
use crate::primitives::{AtomicU64, Ordering};
use foldhash::HashMap;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use syncline_device::{Block, Buffer, Device, ReadRequest, Reading};
use syncline_format::item::EXTENT_BIRTH_AT;
use syncline_format::layout::Layout;
use syncline_format::node::{self, NODE_POINTER_BIRTH_AT, NodePointer};
use syncline_format::tree_item::OVERLAY_HEAD_BYTES;
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError, Kind, NODE_BLOCKS, NODE_BYTES, TreeId, VolumeId};

pub(crate) struct NodeCache {
    // Constant.
    volume: VolumeId,
    layout: Layout,
    has_births: bool,
    /// Nodes that may be cached however many are dirty, and nodes that may be dirty.
    clean_max: AtomicU64,
    dirty_max: AtomicU64,
    /// Nodes that are dirty, those of a running checkpoint included.
    dirty: AtomicU64,
    entries: Mutex<Entries>,
    /// Nodes that count as unreadable until the session ends.
    given_up: Mutex<BTreeSet<BlockNo>>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
}

#[derive(Default)]
struct Entries {
    map: HashMap<BlockNo, Entry>,
    order: VecDeque<BlockNo>,
}

impl Entries {
    /// Takes out of the order what is not in the map, or twice in the order, when that is more than half of it.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.map.len() + FORGOTTEN_AT_ONCE {
            let mut seen = HashSet::with_capacity(self.map.len());
            let map = &self.map;
            self.order.retain(|block| map.contains_key(block) && seen.insert(*block));
        }
    }
}

/// Nodes that were asked for and are on their way: those of each read lie one behind the other.
pub(crate) struct Coming(Vec<(Vec<Missing>, Reading)>);

/// Nodes that are forgotten under one hold of the lock: less than 100 us.
const FORGOTTEN_AT_ONCE: usize = 256;

struct Entry {
    node: Arc<Node>,
    used: bool,
}

/// Blocks of nodes that lie one behind the other.
fn blocks_of(run: &[Missing]) -> usize {
    run.len() * NODE_BLOCKS as usize
}

fn nodes_of(bytes: usize) -> u64 {
    (bytes / NODE_BYTES).max(CACHED_NODES_MIN) as u64
}

/// Nodes that may be clean and dirty: what may not be dirty is left to the clean ones.
fn split_bounds(clean_bytes: usize, dirty_bytes: usize) -> (u64, u64) {
    let dirty = dirty_bytes.min(DIRTY_NODE_BYTES_MAX);
    (nodes_of(clean_bytes.saturating_add(dirty_bytes - dirty)), nodes_of(dirty))
}

impl NodeCache {
    pub(crate) fn new(bytes: usize, volume: VolumeId, layout: Layout) -> NodeCache {
        let (clean, dirty) = split_bounds(bytes, bytes);
        NodeCache {
            volume,
            layout,
            has_births: false,
            clean_max: AtomicU64::new(clean),
            dirty_max: AtomicU64::new(dirty),
            dirty: AtomicU64::new(0),
            entries: Mutex::new(Lock::Nodes, Entries::default()),
            given_up: Mutex::new(Lock::GivenUp, BTreeSet::new()),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// The same for a volume whose nodes and extents tell when they were born.
    pub(crate) fn with_births(self, has_births: bool) -> NodeCache {
        NodeCache { has_births, ..self }
    }

    /// Changes the bounds, in bytes.
    pub(crate) fn set_bounds(&self, clean_bytes: usize, dirty_bytes: usize) {
        let (clean, dirty) = split_bounds(clean_bytes, dirty_bytes);
        self.clean_max.store(clean, Ordering::Relaxed);
        self.dirty_max.store(dirty, Ordering::Relaxed);
        self.shrink(&mut self.entries.lock());
    }

    /// Bound on dirty nodes.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.dirty_max.load(Ordering::Relaxed)
    }

    /// Takes note of how many nodes are dirty, and gives way if they have become more.
    pub(crate) fn set_dirty(&self, nodes: u64) {
        if self.dirty.swap(nodes, Ordering::Relaxed) < nodes {
            self.shrink(&mut self.entries.lock());
        }
    }

    /// Nodes, and places in their order.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        let entries = self.entries.lock();
        (entries.map.len(), entries.order.len())
    }

    fn capacity(&self) -> usize {
        let left = self.dirty_max().saturating_sub(self.dirty.load(Ordering::Relaxed));
        (self.clean_max.load(Ordering::Relaxed) + left) as usize
    }

    /// Enters a node that is on the device like this, but for the parts of its header that only writing and reading
    /// it need.
    pub(crate) fn insert(&self, node: Arc<Node>) {
        let home = node.home.get().expect("cached nodes have a home").block;
        let mut entries = self.entries.lock();
        if entries.map.insert(home, Entry { node, used: false }).is_none() {
            entries.order.push_back(home);
        }
        self.shrink(&mut entries);
    }

    fn shrink(&self, entries: &mut Entries) {
        let capacity = self.capacity();
        while entries.map.len() > capacity {
            let Some(oldest) = entries.order.pop_front() else { return };
            match entries.map.get_mut(&oldest) {
                Some(entry) if entry.used => {
                    entry.used = false;
                    entries.order.push_back(oldest);
                }
                Some(_) => {
                    entries.map.remove(&oldest);
                }
                None => {}
            }
        }
    }

    /// Reads and verifies a node and enters it.
    pub(crate) fn load(
        &self,
        device: &dyn Device,
        tree: TreeId,
        pointer: &NodePointer,
    ) -> Result<Arc<Node>, StoreError> {
        self.check_place(pointer)?;
        let mut buffer = Buffer::for_overwrite(NODE_BLOCKS as usize);
        device.read(pointer.block, &mut buffer)?;
        self.enter(buffer, tree, pointer)
    }

    /// Whether a node is in memory; that does not count as a use.
    pub(crate) fn holds(&self, pointer: &NodePointer) -> bool {
        let entries = self.entries.lock();
        entries.map.get(&pointer.block).is_some_and(|entry| entry.node.home.get() == Some(pointer))
    }

    /// Loads nodes together that will be asked for. What cannot be read or verified is left out: a node may have been
    /// superseded and overwritten meanwhile, and of the others whoever needs them tells the error.
    pub(crate) fn load_ahead(&self, device: &dyn Device, wanted: &[Missing]) {
        let runs = self.runs_of(wanted);
        let mut buffers: Vec<Buffer> = runs.iter().map(|run| Buffer::for_overwrite(blocks_of(run))).collect();
        let requests = runs.iter().zip(&mut buffers);
        let mut requests: Vec<ReadRequest<'_>> =
            requests.map(|(run, into)| ReadRequest { at: run[0].pointer.block, into }).collect();
        if requests.is_empty() || device.read_many(&mut requests).is_err() {
            return;
        }
        for (run, buffer) in runs.iter().zip(&buffers) {
            for (missing, bytes) in run.iter().zip(buffer.chunks_exact(NODE_BYTES)) {
                let _ = self.enter(Buffer::from_bytes(bytes), missing.tree, &missing.pointer);
            }
        }
    }

    /// As [`NodeCache::load_ahead`], without waiting for the device: [`NodeCache::end_ahead`] does.
    pub(crate) fn begin_ahead(&self, device: &dyn Device, wanted: &[Missing]) -> Coming {
        let read = |run: Vec<Missing>| {
            let reading = device.submit_read(run[0].pointer.block, blocks_of(&run));
            (run, reading)
        };
        Coming(self.runs_of(wanted).into_iter().map(read).collect())
    }

    /// Enters what was asked for, as soon as it is there. What has failed is left out.
    pub(crate) fn end_ahead(&self, device: &dyn Device, Coming(reads): Coming) {
        for (run, reading) in reads {
            if device.wait(reading.ticket()).is_err() {
                continue;
            }
            let Ok(blocks) = reading.into_blocks() else { continue };
            let blocks: Vec<Block> = blocks.collect();
            for (missing, blocks) in run.iter().zip(blocks.chunks_exact(NODE_BLOCKS as usize)) {
                let mut node = Buffer::for_overwrite(NODE_BLOCKS as usize);
                for (into, block) in node.chunks_mut(BLOCK_BYTES).zip(blocks) {
                    into.copy_from_slice(block);
                }
                let _ = self.enter(node, missing.tree, &missing.pointer);
            }
        }
    }

    /// Those that are not in memory, in the order of their places: nodes that lie one behind the other are read as one.
    /// Most of them do, because a checkpoint writes them in the order of keys.
    fn runs_of(&self, wanted: &[Missing]) -> Vec<Vec<Missing>> {
        let is_wanted =
            |missing: &&Missing| !self.holds(&missing.pointer) && self.check_place(&missing.pointer).is_ok();
        let mut wanted: Vec<Missing> = wanted.iter().filter(is_wanted).copied().collect();
        wanted.sort_unstable_by_key(|missing| missing.pointer.block);
        let follows = |before: &Missing, next: &Missing| {
            before.pointer.block.plus(NODE_BLOCKS.into()) == next.pointer.block
        };
        let runs = wanted.chunk_by(follows).flat_map(|run| run.chunks(LEAVES_AHEAD));
        runs.map(<[Missing]>::to_vec).collect()
    }

    /// From here on the node at this block cannot be read.
    pub(crate) fn give_up(&self, block: BlockNo) {
        self.given_up.lock().insert(block);
        self.entries.lock().map.remove(&block);
    }

    /// These nodes are in no tree any more. Without this they would be kept until the cache is full: a tree that was
    /// filled and emptied would leave all its nodes behind.
    pub(crate) fn forget(&self, blocks: &[BlockNo]) {
        for some in blocks.chunks(FORGOTTEN_AT_ONCE) {
            let mut entries = self.entries.lock();
            let gone: Vec<Entry> = some.iter().filter_map(|block| entries.map.remove(block)).collect();
            entries.tidy();
            drop(entries);
            // Their memory is given back without the lock.
            drop(gone);
        }
    }

    fn check_place(&self, pointer: &NodePointer) -> Result<(), StoreError> {
        let block = pointer.block;
        if self.given_up.lock().contains(&block) {
            let what = "a tree node that the journal changes could not be read when the volume was opened";
            return Err(StoreError::Inconsistent { block, what });
        }
        if self.layout.holds_node(block) {
            return Ok(());
        }
        let source = FormatError::Field { what: "node pointer", field: "block", value: block.0 };
        Err(StoreError::Corrupt { block, source })
    }

    /// Verifies what was read and enters it.
    fn enter(&self, buffer: Buffer, tree: TreeId, pointer: &NodePointer) -> Result<Arc<Node>, StoreError> {
        node::verify(&buffer, pointer, tree, self.volume)
            .map_err(|source| StoreError::Corrupt { block: pointer.block, source })?;
        let page = Page::from_verified(Arc::new(buffer));
        if self.has_births {
            check_births(&page, pointer)?;
        }
        let node = Arc::new(Node::clean(page, *pointer));
        self.insert(Arc::clone(&node));
        Ok(node)
    }
}

/// Nothing is born later than what names it: who owns a block is told by births (R25).
fn check_births(page: &Page, pointer: &NodePointer) -> Result<(), StoreError> {
    let birth = |index: usize| {
        let value = page.value(index);
        let at = match (page.level(), page.key(index).kind) {
            (0, Kind::Extent) => EXTENT_BIRTH_AT,
            (0, Kind::Overlay) => OVERLAY_HEAD_BYTES + EXTENT_BIRTH_AT,
            (0, _) => return None,
            _ => NODE_POINTER_BIRTH_AT,
        };
        // What is too short is told by whoever decodes it.
        value.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
    };
    match (0..page.count()).filter_map(birth).find(|birth| *birth > pointer.birth.0) {
        Some(birth) => {
            let value = u64::from(birth);
            let source = FormatError::Field { what: "tree node", field: "birth of what it names", value };
            Err(StoreError::Corrupt { block: pointer.block, source })
        }
        None => Ok(()),
    }
}

impl Resident for NodeCache {
    fn resident(&self, pointer: &NodePointer) -> Option<Arc<Node>> {
        let mut entries = self.entries.lock();
        let found = match entries.map.get_mut(&pointer.block) {
            Some(entry) if entry.node.home.get() == Some(pointer) => {
                entry.used = true;
                Some(Arc::clone(&entry.node))
            }
            _ => None,
        };
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }
}

/// Nodes that an operation has loaded itself: it makes progress however small the cache is.
pub(crate) struct Pinned<'a> {
    pub(crate) cache: &'a NodeCache,
    pub(crate) nodes: RefCell<HashMap<BlockNo, Arc<Node>>>,
}

impl<'a> Pinned<'a> {
    pub(crate) fn new(cache: &'a NodeCache) -> Pinned<'a> {
        Pinned { cache, nodes: RefCell::default() }
    }

    /// Loads nodes together and keeps them, while nobody else changes the tree: one that cannot be verified is damaged.
    pub(crate) fn load_many(&self, device: &dyn Device, missing: &[Missing]) -> Result<(), StoreError> {
        missing.iter().try_for_each(|missing| self.cache.check_place(&missing.pointer))?;
        let mut buffers: Vec<Buffer> =
            missing.iter().map(|_| Buffer::for_overwrite(NODE_BLOCKS as usize)).collect();
        let requests = missing.iter().zip(&mut buffers);
        let mut requests: Vec<ReadRequest<'_>> =
            requests.map(|(missing, into)| ReadRequest { at: missing.pointer.block, into }).collect();
        device.read_many(&mut requests)?;
        for (missing, buffer) in missing.iter().zip(buffers) {
            let node = self.cache.enter(buffer, missing.tree, &missing.pointer)?;
            self.nodes.borrow_mut().insert(missing.pointer.block, node);
        }
        Ok(())
    }

    /// Loads what was missing and keeps it. `stale` is the operation's memory of a node that it could not verify: the
    /// first time the caller only looks again.
    pub(crate) fn load(
        &self,
        device: &dyn Device,
        missing: &Missing,
        stale: &mut Option<NodePointer>,
    ) -> Result<(), StoreError> {
        match self.cache.load(device, missing.tree, &missing.pointer) {
            Ok(node) => {
                self.nodes.borrow_mut().insert(missing.pointer.block, node);
                Ok(())
            }
            // Nothing is locked while a node is read: it may have been superseded, freed and overwritten meanwhile.
            // It is damaged only if the tree still names it afterwards.
            Err(StoreError::Corrupt { .. }) if *stale != Some(missing.pointer) => {
                *stale = Some(missing.pointer);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Resident for Pinned<'_> {
    /// Whatever was found once stays until the operation ends, so a path that was checked cannot be evicted.
    fn resident(&self, pointer: &NodePointer) -> Option<Arc<Node>> {
        if let Some(node) = self.nodes.borrow().get(&pointer.block)
            && node.home.get() == Some(pointer)
        {
            return Some(Arc::clone(node));
        }
        let node = self.cache.resident(pointer)?;
        self.nodes.borrow_mut().insert(pointer.block, Arc::clone(&node));
        Some(node)
    }
}
