//! The state of the model, and how a batch is committed (design 3.1): applied to the tree in memory and appended to the
//! journal's buffer, as one step that writes nothing.

use crate::checkpoint::Checkpoint;
use crate::contract::{Contract, Promise, Shot, View, Violation};
use crate::device::{Device, GROUPS, Place};
use crate::forest::Forest;
use crate::journal::Journal;
use crate::rules::Rule;
use crate::scope::{Budget, Scope};
use crate::volume::{
    Batch, Block, Blocks, Content, Era, Extent, Lsn, Op, PerTree, Role, Spot, Stamp, Superblock, TREES, Tail,
    Tree, bit, each, spots_in,
};
use std::sync::Arc;

/// Everything there is.
#[derive(Debug, Clone, Hash)]
pub struct State {
    pub device: Device,
    pub engine: Engine,
    pub contract: Contract,
    pub left: Budget,
    /// Epochs drawn so far. They are random on a real volume: none comes twice, not even if it was never stored.
    pub epochs: u8,
    /// Files made so far.
    pub born: u8,
    /// A block has rotted that recovery has to tell about.
    pub rotted: bool,
    /// A promise that the last step has broken.
    pub complaint: Option<Violation>,
}

/// What the process holds in memory; a crash takes it away.
#[derive(Debug, Clone, Hash)]
pub struct Engine {
    pub mode: Mode,
    pub forest: Forest,
    /// The head that callers work on now.
    pub head: u8,
    pub lsn: Lsn,
    /// Of heads what is newer than their blocks, of snapshots the images that they have inherited.
    pub pages: PerTree<Option<Page>>,
    pub writebacks: Vec<Writeback>,
    pub journal: Journal,
    pub space: Space,
    pub checkpoint: Option<Checkpoint>,
    /// The last durable superblock, and its slot.
    pub durable: Superblock,
    pub slot: u8,
    /// C8: an error was told, nothing is acknowledged from here on.
    pub latched: bool,
    pub waiters: Vec<Waiter>,
    /// Homes of nodes that left their trees, to be freed by the next checkpoint.
    pub superseded: Blocks,
    /// The same of nodes that get their homes by the checkpoint under way.
    pub superseded_ids: Vec<u8>,
    /// A snapshot that somebody reads, and what it has shown.
    pub reading: Option<(u8, crate::contract::Shot)>,
    /// Trees that have no root any more by a durable superblock, one bit each.
    pub gone: u8,
    /// Without R29: the frees of a step of a deletion are logged, its cursor is not.
    pub unmoved: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    Running,
    /// The log is replayed in memory; nothing is written yet.
    Replayed {
        cut: Option<Lsn>,
    },
    /// The mark of the cut is on its way.
    Marking,
    /// Nothing has to be marked, or the mark is durable.
    Marked,
    /// Images are destaged, tree and bitmaps written, none of it flushed.
    Written,
    /// The superblock of the new epoch is on its way.
    Ending,
}

/// A page that is newer in memory than in its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Page {
    pub content: Stamp,
    /// Newer than what is logged.
    pub dirty: bool,
    /// The live image, if there is one.
    pub image: Option<Lsn>,
    /// Its content.
    pub logged: Stamp,
}

/// A page being written to its block, not logged yet (design 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Writeback {
    pub spot: Spot,
    pub content: Stamp,
    pub block: Block,
    pub in_place: bool,
    /// The era in which it was started.
    pub era: Era,
    /// Whether what the page had then was the head's own.
    pub owned: bool,
}

/// A sync that has not returned yet.
#[derive(Debug, Clone, Hash)]
pub struct Waiter {
    pub lsn: Lsn,
    pub promise: Promise,
}

/// Which blocks are free. The sets are disjoint.
#[derive(Debug, Clone, Hash, Default)]
pub struct Space {
    /// In use as of the last batch.
    pub committed: Blocks,
    /// Taken for writes that are not logged (R15).
    pub writing: Blocks,
    /// Freed, but a durable state may still name them (R11).
    pub pinned: Blocks,
    /// Pinned, to be released by the running checkpoint (R16).
    pub frozen: Blocks,
    /// Groups changed since the last freeze.
    pub dirty: [bool; GROUPS],
    /// Current slots.
    pub slots: [u8; GROUPS],
}

impl State {
    /// A volume as mkfs and a first session leave it: `scope.files` files with their names.
    pub fn new(scope: &Scope) -> State {
        let mut device = Device::new(scope.cells, scope.blocks);
        let mut tree = Tree::default();
        let mut stamp = 0;
        for file in 0..scope.files {
            tree.names[usize::from(file)] = Some(file);
            tree.exists[usize::from(file)] = true;
            let spot = Spot { tree: 0, file, page: 0 };
            if scope.preallocated {
                *tree.extents.at_mut(spot) = Extent::Unwritten { block: file, birth: 1 };
            } else if scope.filled {
                stamp += 1;
                device.write(Place::Block(file), Content::Data(stamp));
                device.wait(Place::Block(file));
                *tree.extents.at_mut(spot) = Extent::Written { block: file, sum: stamp, birth: 1 };
            }
        }
        let root = scope.blocks - 1;
        let home = (scope.trees && !scope.upgrade).then_some(scope.blocks - 2);
        let forest = Forest::new(tree, home);
        let stored = forest.stored(&Scope { trees: home.is_some(), ..*scope }, &[]);
        let durable = Superblock {
            generation: 1,
            lsn: 0,
            epoch: 1,
            tail: Tail::first(1),
            root,
            root_sum: stored.checksum(),
            cut: None,
            trees: home.is_some(),
        };
        let committed = forest.blocks() | bit(root);
        if let Some(home) = home {
            device.write(Place::Block(home), Content::Node(Arc::new(tree)));
            device.wait(Place::Block(home));
        }
        let first = [
            (Place::Block(root), Content::Root(Arc::new(stored))),
            (Place::Super(0), Content::Super(durable)),
            (Place::Bitmap { group: 0, slot: 0 }, Content::Bitmap { generation: 1, used: committed }),
            (Place::Bitmap { group: 1, slot: 0 }, Content::Bitmap { generation: 1, used: committed }),
        ];
        for (place, content) in first {
            device.write(place, content);
            device.wait(place);
        }
        device.flush();
        let engine = Engine {
            mode: Mode::Running,
            forest,
            head: 0,
            lsn: 0,
            pages: PerTree::default(),
            writebacks: Vec::new(),
            journal: Journal::new(1, 0),
            space: Space { committed, ..Space::default() },
            checkpoint: None,
            durable,
            slot: 0,
            latched: false,
            waiters: Vec::new(),
            superseded: 0,
            superseded_ids: Vec::new(),
            reading: None,
            gone: 0,
            unmoved: false,
        };
        let view = View { main: engine.shot(0), kept: [None; TREES], heads: [None; TREES] };
        let contract = Contract::new(0, &view, stamp);
        State {
            device,
            engine,
            contract,
            left: scope.budget,
            epochs: 1,
            born: scope.files,
            rotted: false,
            complaint: None,
        }
    }
}

impl Engine {
    /// One batch: its items into the tree, its blocks into the space, the same bytes into the buffer. `data` are the
    /// blocks whose writes belong to it; the record's flush waits for them (R7).
    pub fn commit(&mut self, scope: &Scope, ops: Vec<Op>, data: Blocks) {
        self.lsn += 1;
        // R24: whose a block is that goes is decided here, and logged.
        let decided = |op: Op| match op {
            Op::Release { at, block, birth } if self.forest.frees(scope, at, birth) => Op::Free(block),
            Op::Release { block, .. } => Op::Left(block),
            other => other,
        };
        let ops: Vec<Op> = ops.into_iter().map(decided).collect();
        for op in &ops {
            self.apply(scope, op);
        }
        self.journal.buffer.push((Arc::new(Batch { ops }), data));
    }

    pub fn apply(&mut self, scope: &Scope, op: &Op) {
        if let Some(tree) = op.edits() {
            self.edit(scope, tree, |tree| tree.apply(op));
        }
        self.apply_trees(scope, op);
        match *op {
            Op::Allocate(block) => self.space.allocate(scope, block),
            Op::Free(block) => self.space.free(scope, block),
            Op::Image { spot, content } => {
                let image = Some(self.lsn);
                *self.pages.at_mut(spot) = Some(Page { content, dirty: false, image, logged: content });
            }
            Op::Drop(spot) if self.is_snapshot(spot.tree) => *self.pages.at_mut(spot) = None,
            Op::Drop(spot) => {
                if let Some(page) = self.pages.at_mut(spot) {
                    (page.image, page.logged) = (None, 0);
                }
            }
            Op::Make { tree, of, .. } if scope.on(Rule::R22) => self.inherit(of, tree),
            _ => {}
        }
    }

    pub fn is_snapshot(&self, tree: u8) -> bool {
        self.forest.branch(tree).is_some_and(|branch| branch.item.role == Role::Snapshot)
    }

    /// What a drop of a page's image adds to a batch (R5).
    pub fn void_image(&self, scope: &Scope, spot: Spot, ops: &mut Vec<Op>) {
        if scope.on(Rule::R5) {
            ops.push(Op::Drop(spot));
        }
    }

    /// What removing a reference to a block adds to a batch: the free, if it was the last one.
    pub fn release(&self, scope: &Scope, at: Spot, extent: Extent, ops: &mut Vec<Op>) {
        let Some((block, birth)) = extent.reference() else { return };
        // The batch may have removed another reference already.
        let counted = ops.iter().rev().find_map(|op| match *op {
            Op::Shared { block: counted, others, .. } if counted == block => Some(others),
            _ => None,
        });
        let shared = self.forest.tree(at.tree).map_or(0, |tree| tree.shared[usize::from(block)]);
        match counted.unwrap_or(shared) {
            others if others > 0 && scope.on(Rule::LastReference) => {
                ops.push(Op::Shared { tree: at.tree, block, others: others - 1 });
            }
            _ => ops.push(Op::Release { at, block, birth }),
        }
    }

    /// LSN of the oldest live image, of whichever tree (R26).
    pub fn oldest_image(&self, scope: &Scope) -> Option<Lsn> {
        self.images(scope.on(Rule::R26)).min()
    }

    /// How many records the images may yet need (R17, R26).
    pub fn live_images(&self, scope: &Scope) -> u8 {
        self.images(scope.on(Rule::InheritedRing)).count() as u8
    }

    fn images(&self, inherited: bool) -> impl Iterator<Item = Lsn> {
        let trees = (0..TREES as u8).filter(move |tree| inherited || !self.is_snapshot(*tree));
        trees.flat_map(spots_in).filter_map(|spot| self.pages.at(spot).and_then(|page| page.image))
    }

    pub fn is_dirty(&self, spot: Spot) -> bool {
        self.pages.at(spot).is_some_and(|page| page.dirty)
    }

    pub fn writeback_of(&self, spot: Spot) -> Option<&Writeback> {
        self.writebacks.iter().find(|writeback| writeback.spot == spot)
    }

    /// Blocks promised to pages that are dirty or logged and not on their way to a block (R18).
    pub fn reserved(&self, scope: &Scope) -> u32 {
        let inherited = scope.on(Rule::InheritedBlocks);
        let trees = (0..TREES as u8).filter(|tree| inherited || !self.is_snapshot(*tree));
        let spots = trees.flat_map(spots_in);
        let waiting = |spot: &Spot| match (self.pages.at(*spot), self.writeback_of(*spot)) {
            (Some(page), Some(writeback)) => page.content != writeback.content,
            (Some(_), None) => true,
            (None, _) => false,
        };
        spots.filter(waiting).count() as u32
    }

    /// Blocks that the next checkpoint needs for nodes of trees, also for those that pages in memory will change.
    pub fn nodes_needed(&self, scope: &Scope) -> u32 {
        if !scope.trees {
            return 0;
        }
        let running = self.checkpoint.as_ref();
        let placed = |id: u8| running.is_some_and(|running| running.homes.iter().any(|(of, _)| *of == id));
        let mut ids: Vec<u8> = Vec::new();
        for forest in [Some(&self.forest), running.map(|running| &running.forest)].into_iter().flatten() {
            ids.extend(forest.homeless().iter().map(|(id, _)| *id).filter(|id| !placed(*id)));
        }
        ids.sort_unstable();
        ids.dedup();
        let waits = |tree: u8| spots_in(tree).any(|spot| self.pages.at(spot).is_some());
        // A checkpoint may freeze a node before these pages change it.
        ids.len() as u32 + self.forest.shown(Role::Head).filter(|tree| waits(*tree)).count() as u32
    }

    /// What a tree shows. Content that fails its checksum cannot happen here; [`crate::recovery`] looks for it.
    pub fn shot(&self, tree: u8) -> Shot {
        self.shot_of(tree, |page| Some(page.content))
    }

    /// What of a head is logged.
    pub fn committed_shot(&self, tree: u8) -> Shot {
        self.shot_of(tree, |page| page.image.map(|_| page.logged))
    }

    fn shot_of(&self, tree: u8, newer: impl Fn(&Page) -> Option<Stamp>) -> Shot {
        let mut shot = Shot::default();
        let Some(of) = self.forest.tree(tree) else { return shot };
        shot.names = of.names;
        for spot in of.names.iter().flatten().flat_map(|file| crate::volume::spots_of(tree, *file)) {
            let newer = self.pages.at(spot).as_ref().and_then(&newer);
            *shot.pages.at_mut(spot) =
                newer.unwrap_or_else(|| self.stored_page(spot).map_or(0, |(_, sum)| sum));
        }
        shot
    }

    /// The block that a page is read from, and its checksum: a snapshot's overlay goes before its tree.
    pub fn stored_page(&self, spot: Spot) -> Option<(Block, Stamp)> {
        let branch = self.forest.branch(spot.tree)?;
        branch.overlay.at(spot).or_else(|| match *branch.root.as_ref()?.tree.extents.at(spot) {
            Extent::Written { block, sum, .. } => Some((block, sum)),
            _ => None,
        })
    }
}

impl Space {
    /// Blocks that may be handed out.
    pub fn available(&self, scope: &Scope) -> Blocks {
        let mut taken = self.committed | self.writing;
        if scope.on(Rule::R11) {
            taken |= self.pinned | self.frozen;
        }
        scope.all_blocks() & !taken
    }

    /// The first free block, for data.
    pub fn first(&self, scope: &Scope) -> Option<Block> {
        each(self.available(scope)).next()
    }

    /// The last free block, for nodes.
    pub fn last(&self, scope: &Scope) -> Option<Block> {
        each(self.available(scope)).next_back()
    }

    pub fn allocate(&mut self, scope: &Scope, block: Block) {
        self.committed |= bit(block);
        self.writing &= !bit(block);
        self.pinned &= !bit(block);
        self.frozen &= !bit(block);
        self.dirty[usize::from(scope.group(block))] = true;
    }

    /// R11: a freed block stays pinned until a checkpoint that contains the free is durable.
    pub fn free(&mut self, scope: &Scope, block: Block) {
        self.committed &= !bit(block);
        self.pinned |= bit(block);
        self.dirty[usize::from(scope.group(block))] = true;
    }
}
