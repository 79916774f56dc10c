//! Checkpoints: the tree and the bitmaps as of one LSN, made durable while logging goes on.
//!
//! Freeze under the locks, in constant time: the roots' `Arc`s, the bitmaps, the frees, the journal's tail. Then,
//! without them: dirty nodes bottom-up, bitmaps, `force(X)` (R1), flush, superblock, flush; then the frees are handed
//! out (R11, R16) and the tail moves (R3). Forces and commits go on all the while and wait for none of it.

use crate::journal::{Journal, RecordMeta, latched};
use crate::limits::{
    BLOCKS_BESIDE_FORCES_MAX, CHECKPOINT_WRITE_BLOCKS_LEAST, CHECKPOINT_WRITE_BLOCKS_MAX,
    CHECKPOINT_WRITES_MAX, HEEDED_WRITES,
};
use crate::locks::MutexGuard;
use crate::primitives::Ordering;
use crate::shared::{Durable, Shared};
use crate::tree::page::Page;
use crate::tree::{Node, Root, Superseded, Tree};
use crate::{Store, StoreError};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use syncline_device::{Buffer, Device, Ticket};
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::{JournalTail, SUPERBLOCK_SLOTS, Superblock, TreesState, VolumeState};
use syncline_format::{BLOCK_BYTES, BlockNo, Era, Generation, Lsn, ObjectNo, TreeId, bitmap};

/// What was frozen.
struct Frozen {
    lsn: Lsn,
    /// The oldest LSN whose record replay still needs (R2).
    oldest: Lsn,
    /// Trees with another root than the durable superblock leads to.
    roots: Vec<(TreeId, Root)>,
    /// Whether the root tree is another one: some tree is gone, or has another root.
    root_changes: bool,
    /// Trees that change all the time.
    changing: usize,
    /// Of version 2.
    trees: Option<TreesState>,
    next_object: ObjectNo,
    /// The log is needed although the tree holds all of it: images are live that could not be destaged.
    has_images: bool,
    /// Nodes that no tree has any more.
    freed: Vec<BlockNo>,
    /// What told of them: its memory is given back without the locks.
    let_go: (Vec<Superseded>, Vec<BTreeSet<BlockNo>>),
}

/// What has been written of it, all but the superblock.
struct Written {
    superblock: Superblock,
    /// The record that the journal's tail moves to.
    record: Option<RecordMeta>,
    /// Trees of which the next checkpoint may name a new root.
    changing: usize,
}

/// Why a checkpoint is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Regular,
    /// As a regular one, but also if nothing has changed: the other slot is to name the state as it is as well.
    Again,
    /// The session ends: the superblock says clean.
    Close,
    /// Recovery ends: the superblock starts the session's epoch, whose log begins here.
    Recovery {
        tail: JournalTail,
    },
}

impl Store {
    /// Writes a checkpoint; logging and forces go on meanwhile. One at a time: a second caller waits for the first and
    /// then writes its own. Does no I/O if nothing changed since the last one. Call it without locks.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.write_checkpoint(Purpose::Regular)
    }

    /// The last checkpoint of a session: everything is in it, and the superblock says clean.
    pub fn close(&self) -> Result<(), StoreError> {
        self.end_trims();
        // The device may be somebody else's when this has returned.
        self.shared.wait_for_discard();
        if self.shared.journal.get().is_none() {
            return Ok(());
        }
        self.write_checkpoint(Purpose::Close)?;
        self.shared.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn write_checkpoint(&self, purpose: Purpose) -> Result<(), StoreError> {
        let shared = &self.shared;
        if !matches!(purpose, Purpose::Recovery { .. }) {
            let Some(journal) = shared.journal.get() else { return Err(StoreError::ReadOnly) };
            if let Some(failed) = journal.failure() {
                return Err(failed);
            }
        }
        let mut durable = shared.checkpointing.lock();
        let mut frozen = match shared.freeze(&mut durable, purpose) {
            Ok(Some(frozen)) => frozen,
            Ok(None) => return Ok(()),
            Err(error) => return Err(self.stop(error)),
        };
        drop(std::mem::take(&mut frozen.let_go));
        shared.cache.forget(&frozen.freed);
        let mut writes = Writes::new(&*shared.device, shared.journal.get());
        let written = self.write_frozen(&frozen, &mut durable, purpose, &mut writes);
        // R8: whatever happened, no write of ours is in flight when we leave.
        let settled = writes.wait_all();
        let ended = written.and_then(|written| settled.map(|()| written)).and_then(|written| {
            shared.device.flush()?;
            shared.confirm_flush()?;
            self.write_superblock(written, &mut durable)
        });
        let ended = ended.map_err(|error| self.stop(error));
        // Who waits for this one is not to wait for the next one of a thread that writes several.
        MutexGuard::hand_on(durable);
        ended
    }

    /// The frozen state cannot be taken back: the volume stops here and recovers at the next open.
    fn stop(&self, error: StoreError) -> StoreError {
        if let Some(journal) = self.shared.journal.get() {
            journal.fail(match &error {
                StoreError::Device(cause) => latched(cause.clone()),
                other => other.clone(),
            });
        }
        error
    }

    fn write_frozen(
        &self,
        frozen: &Frozen,
        durable: &mut Durable,
        purpose: Purpose,
        writes: &mut Writes<'_>,
    ) -> Result<Written, StoreError> {
        let shared = &self.shared;
        let generation = durable.superblock.generation.next();
        for (tree, root) in &frozen.roots {
            let pointer = match root {
                Root::Clean(pointer) => *pointer,
                Root::Held(node) => shared.write_node(node, generation, writes)?,
            };
            durable.root_tree.set(*tree, pointer);
        }
        let root = match frozen.root_changes {
            false => durable.superblock.root,
            true => shared.write_node(durable.root_tree.root(), generation, writes)?,
        };
        durable.root_tree.written();
        // The lock is not held while anything is written.
        let groups = shared.space.lock().frozen_groups();
        for (group, slot, bits) in groups {
            let at = shared.layout().bitmap_slot(group, slot);
            let bytes = bitmap::encode(&bits, group, at, generation, shared.volume);
            writes.submit(at, Arc::new(Buffer::from_bytes(&bytes)))?;
        }
        let (tail, record) = match (shared.journal.get(), purpose) {
            (_, Purpose::Recovery { tail }) => (tail, None),
            (Some(journal), _) => {
                self.force_beside_checkpoint(frozen.lsn)?;
                let (tail, record) = journal.tail_for(frozen.oldest);
                (tail, Some(record))
            }
            (None, _) => return Err(StoreError::ReadOnly),
        };
        let free_blocks = shared.space.lock().frozen_free();
        let superblock =
            next_superblock(&durable.superblock, frozen, root, tail, free_blocks, purpose, shared);
        Ok(Written { superblock, record, changing: frozen.changing })
    }

    fn write_superblock(&self, written: Written, durable: &mut Durable) -> Result<(), StoreError> {
        let shared = &self.shared;
        let Written { superblock, record, changing } = written;
        let slot = 1 - durable.slot;
        let block = SUPERBLOCK_SLOTS[slot];
        shared.device.write(block, vec![Arc::new(Buffer::from_bytes(&superblock.encode(block)))])?;
        shared.device.flush()?;
        shared.confirm_flush()?;
        // Durable. Only now may anything that the previous state named be reused.
        let generation = superblock.generation;
        shared.checkpoint_lsn.store(superblock.checkpoint_lsn.0, Ordering::Relaxed);
        (durable.superblock, durable.slot) = (superblock, slot);
        shared.settle(durable.root_tree.bound_of_one_more());
        {
            // In one step: nobody may be promised what the root tree's next nodes come back from (R18).
            let mut space = shared.space.lock();
            space.thaw();
            durable.root_tree.claim(&mut space, changing);
        }
        // Behind that: who sees it takes what was freed for free.
        shared.generation.store(generation.0, Ordering::Release);
        shared.checkpoints.fetch_add(1, Ordering::Relaxed);
        if let (Some(journal), Some(record)) = (shared.journal.get(), record) {
            journal.checkpointed(&record, generation);
        }
        Ok(())
    }
}

fn next_superblock(
    old: &Superblock,
    frozen: &Frozen,
    root: NodePointer,
    tail: JournalTail,
    free_blocks: u64,
    purpose: Purpose,
    shared: &Shared,
) -> Superblock {
    Superblock {
        generation: old.generation.next(),
        state: match purpose {
            Purpose::Close if !frozen.has_images => VolumeState::Clean,
            _ => VolumeState::InUse,
        },
        checkpoint_lsn: frozen.lsn,
        epoch: shared.epoch(),
        tail,
        root,
        next_object: frozen.next_object,
        free_blocks,
        cut: None,
        trees: frozen.trees,
        ..old.clone()
    }
}

impl Shared {
    /// Takes the state as of now. `None` if a regular checkpoint would change nothing.
    ///
    /// Errors: the bitmaps contradict the tree; the volume has to stop then.
    fn freeze(&self, durable: &mut Durable, purpose: Purpose) -> Result<Option<Frozen>, StoreError> {
        if purpose == Purpose::Again && self.trims_end.load(Ordering::Relaxed) {
            // The session may have ended; a superblock would say that it has not.
            return Ok(None);
        }
        let mut trees = self.trees.write();
        let mut space = self.space.lock();
        let old = &durable.superblock;
        let lsn = trees.lsn;
        let oldest = trees.images.oldest().map_or(lsn, |image| image.min(lsn));
        if purpose == Purpose::Regular && lsn == old.checkpoint_lsn && !self.tail_would_move(old, oldest) {
            return Ok(None);
        }
        let superseded = std::mem::take(&mut trees.superseded);
        let emptied = std::mem::take(&mut trees.emptied);
        let found = emptied.iter().flatten().copied();
        let mut freed: Vec<BlockNo> = superseded.iter().filter_map(Superseded::home).chain(found).collect();
        space.free_nodes(&mut freed)?;
        let roots: Vec<(TreeId, Root)> = trees
            .all()
            .filter_map(|(number, tree)| other_root(tree, durable.root_tree.root_of(number)))
            .collect();
        let changed: Vec<TreeId> = roots.iter().map(|(tree, _)| *tree).collect();
        let is_gone = |tree: &TreeId| trees.tree(*tree).is_err();
        let gone: Vec<TreeId> = durable.root_tree.trees().filter(is_gone).collect();
        let root_changes = !changed.is_empty() || !gone.is_empty();
        if root_changes {
            let (claimed, era) = (std::mem::take(&mut trees.root_claims), trees.era());
            durable.root_tree.freeze(&changed, &gone, claimed, era, &mut space)?;
        }
        space.freeze();
        trees.freeze();
        trees.frozen = old.generation.next();
        self.frozen_nodes.store(std::mem::take(&mut trees.current_nodes), Ordering::Relaxed);
        let next_object = ObjectNo(self.next_object.load(Ordering::Relaxed));
        let has_images = trees.images.len() > 0;
        let changing = trees.changing().len();
        let state = trees.branches.as_ref().map(|branches| branches.state);
        Ok(Some(Frozen {
            lsn,
            oldest,
            roots,
            root_changes,
            changing,
            trees: state,
            next_object,
            has_images,
            freed,
            let_go: (superseded, emptied),
        }))
    }

    fn tail_would_move(&self, old: &Superblock, oldest: Lsn) -> bool {
        self.journal.get().is_some_and(|journal| journal.tail_for(oldest).0 != old.tail)
    }

    /// Writes a frozen node after its children; returns where it lies.
    fn write_node(
        &self,
        node: &Arc<Node>,
        generation: Generation,
        writes: &mut Writes<'_>,
    ) -> Result<NodePointer, StoreError> {
        if let Some(home) = node.home.get() {
            return Ok(*home);
        }
        let mut page = node.page.clone();
        for (index, child) in node.children.iter().enumerate() {
            if let Some(child) = child {
                let pointer = self.write_node(child, generation, writes)?;
                page.set_value(index, &pointer.encode());
            }
        }
        let (home, bytes) = self.place_page(page, node.birth, generation)?;
        writes.submit(home.block, bytes)?;
        node.home.set(home).expect("a node is written by one checkpoint");
        Ok(home)
    }

    /// A flush of ours has succeeded. A device tells a lost write once: had a flush of the journal that ran meanwhile
    /// been told of it, ours would not have been (C8).
    fn confirm_flush(&self) -> Result<(), StoreError> {
        self.journal.get().map_or(Ok(()), |journal| journal.confirm_flush())
    }

    /// Gives a page its place and seals it.
    fn place_page(
        &self,
        page: Page,
        birth: Era,
        generation: Generation,
    ) -> Result<(NodePointer, Arc<Buffer>), StoreError> {
        let block = {
            let mut space = self.space.lock();
            let block = space.allocate_node().ok_or(StoreError::NoSpace)?;
            space.adjust_claims(1, 0);
            block
        };
        let mut bytes = (**page.bytes()).clone();
        let home = NodePointer { birth, ..node::seal(&mut bytes, block, generation, self.volume) };
        Ok((home, Arc::new(bytes)))
    }

    /// After a checkpoint: nodes that were written and not changed since become clean, so that the cache's bound holds
    /// again. They go to the cache as they are: what is changed next is most likely among them.
    fn settle(&self, root_bound: u64) {
        let mut trees = self.trees.write();
        trees.root_bound = root_bound;
        self.frozen_nodes.store(0, Ordering::Relaxed);
        self.cache.set_dirty(trees.current_nodes);
        trees.superseded.iter_mut().for_each(Superseded::settle);
        for tree in trees.all_mut() {
            let Root::Held(node) = &mut tree.root else { continue };
            match node.home.get().copied() {
                Some(home) => {
                    self.retire(node, home);
                    tree.root = Root::Clean(home);
                }
                None => self.settle_children(node, tree.freeze),
            }
        }
    }

    /// Of nodes that may be edited in place: others that are not written yet a snapshot holds as well, and of each of
    /// them there is one, whoever holds it.
    fn settle_children(&self, node: &mut Arc<Node>, freeze: u64) {
        if node.freeze != freeze || node.children.iter().all(Option::is_none) {
            return;
        }
        let node = Arc::make_mut(node);
        for index in 0..node.children.len() {
            let Some(child) = &mut node.children[index] else { continue };
            match child.home.get().copied() {
                Some(home) => {
                    self.retire(child, home);
                    node.children[index] = None;
                    node.page.set_value(index, &home.encode());
                }
                None => self.settle_children(child, freeze),
            }
        }
    }

    /// Hands a written node and everything below it that is held to the cache.
    fn retire(&self, node: &Arc<Node>, home: NodePointer) {
        let mut page = node.page.clone();
        for (index, child) in node.children.iter().enumerate() {
            if let Some(child) = child {
                let home = *child.home.get().expect("children are written before their parents");
                page.set_value(index, &home.encode());
                self.retire(child, home);
            }
        }
        self.cache.insert(Arc::new(Node::clean(page, home)));
    }
}

/// The tree with its root, if that is not the one of the durable superblock. A root that is clean may still be another
/// one: a tree whose root lost all children but one continues with that.
fn other_root(tree: &Tree, durable: Option<NodePointer>) -> Option<(TreeId, Root)> {
    let root = match &tree.root {
        Root::Held(node) => node.home.get().map_or(tree.root.clone(), |home| Root::Clean(*home)),
        Root::Clean(pointer) => Root::Clean(*pointer),
    };
    let is_same = matches!(root, Root::Clean(pointer) if Some(pointer) == durable);
    (!is_same).then_some((tree.id, root))
}

/// Writes of a checkpoint: what goes to consecutive blocks becomes one write; those in flight are bounded.
struct Writes<'a> {
    device: &'a dyn Device,
    /// Tells whether somebody forces meanwhile; absent while the volume recovers.
    journal: Option<&'a Journal>,
    /// Groups that the journal had made durable when the last write was submitted.
    groups: u64,
    /// Writes that still heed the last force.
    heeded: u32,
    /// Blocks in flight while none is heeded.
    wide_blocks: u64,
    /// With the blocks that each counts.
    in_flight: VecDeque<(Ticket, u64)>,
    /// Not submitted yet: where it begins, how many blocks, and the content.
    run: (BlockNo, u64, Vec<Arc<Buffer>>),
}

impl<'a> Writes<'a> {
    fn new(device: &'a dyn Device, journal: Option<&'a Journal>) -> Writes<'a> {
        let groups = journal.map_or(0, |journal| journal.group_counters().0);
        Writes {
            device,
            journal,
            groups,
            heeded: 0,
            wide_blocks: (device.bulk_bytes_max() / BLOCK_BYTES as u64).max(BLOCKS_BESIDE_FORCES_MAX),
            in_flight: VecDeque::new(),
            run: (BlockNo(0), 0, Vec::new()),
        }
    }

    fn submit(&mut self, at: BlockNo, buffer: Arc<Buffer>) -> Result<(), StoreError> {
        let (start, blocks, _) = &self.run;
        let wide = (self.wide_blocks / 2).clamp(BLOCKS_BESIDE_FORCES_MAX, CHECKPOINT_WRITE_BLOCKS_MAX);
        let most = if self.heeded > 0 { BLOCKS_BESIDE_FORCES_MAX } else { wide };
        if start.plus(*blocks) != at || *blocks >= most {
            self.submit_run()?;
        }
        let (start, blocks, buffers) = &mut self.run;
        if buffers.is_empty() {
            *start = at;
        }
        *blocks += buffer.blocks();
        buffers.push(buffer);
        Ok(())
    }

    fn submit_run(&mut self) -> Result<(), StoreError> {
        let (start, blocks, buffers) = std::mem::replace(&mut self.run, (BlockNo(0), 0, Vec::new()));
        if buffers.is_empty() {
            return Ok(());
        }
        let groups = self.journal.map_or(0, |journal| journal.group_counters().0);
        let forced = std::mem::replace(&mut self.groups, groups) != groups;
        self.heeded = if forced { HEEDED_WRITES } else { self.heeded.saturating_sub(1) };
        let counts = blocks.max(CHECKPOINT_WRITE_BLOCKS_LEAST);
        while !self.has_room(counts)
            && let Some((oldest, _)) = self.in_flight.pop_front()
        {
            self.device.wait(&oldest)?;
        }
        // The first force is heeded as soon as it has begun, not once it has ended.
        if self.journal.is_some_and(Journal::give_way) {
            self.heeded = HEEDED_WRITES;
        }
        self.in_flight.push_back((self.device.submit_write(start, buffers), counts));
        Ok(())
    }

    fn has_room(&self, counts: u64) -> bool {
        let others = self.in_flight.iter().map(|(_, counts)| counts).sum::<u64>();
        self.in_flight.len() < CHECKPOINT_WRITES_MAX
            && others + counts <= if self.heeded > 0 { BLOCKS_BESIDE_FORCES_MAX } else { self.wide_blocks }
    }

    /// Submits what is left and waits for all of it, also after an error.
    fn wait_all(&mut self) -> Result<(), StoreError> {
        let mut result = self.submit_run();
        while let Some((ticket, _)) = self.in_flight.pop_front() {
            let done = self.device.wait(&ticket);
            if result.is_ok() {
                result = done.map_err(StoreError::from);
            }
        }
        result
    }
}
