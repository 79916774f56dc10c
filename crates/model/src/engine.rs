//! The state of the model, and how a batch is committed (design 3.1): applied to the tree in memory and appended to the
//! journal's buffer, as one step that writes nothing.

use crate::checkpoint::Checkpoint;
use crate::contract::{Contract, Promise};
use crate::device::{Device, GROUPS, Place};
use crate::journal::Journal;
use crate::rules::Rule;
use crate::scope::{Budget, Scope};
use crate::volume::{
    Batch, Block, Blocks, Content, Lsn, Op, PerPage, Spot, Stamp, Superblock, Tail, Tree, bit, each, spots_of,
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
}

/// What the process holds in memory; a crash takes it away.
#[derive(Debug, Clone, Hash)]
pub struct Engine {
    pub mode: Mode,
    pub tree: Tree,
    pub lsn: Lsn,
    pub pages: PerPage<Option<Page>>,
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
}

/// A page being written to its block, not logged yet (design 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Writeback {
    pub spot: Spot,
    pub content: Stamp,
    pub block: Block,
    pub in_place: bool,
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
            let spot = Spot { file, page: 0 };
            if scope.preallocated {
                *tree.extents.at_mut(spot) = crate::volume::Extent::Unwritten(file);
            } else if scope.filled {
                stamp += 1;
                device.write(Place::Block(file), Content::Data(stamp));
                device.wait(Place::Block(file));
                *tree.extents.at_mut(spot) = crate::volume::Extent::Written { block: file, sum: stamp };
            }
        }
        let root = scope.blocks - 1;
        let durable = Superblock {
            generation: 1,
            lsn: 0,
            epoch: 1,
            tail: Tail::first(1),
            root,
            root_sum: tree.checksum(),
            cut: None,
        };
        let committed = tree.blocks() | bit(root);
        let first = [
            (Place::Block(root), Content::Node(Arc::new(tree))),
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
            tree,
            lsn: 0,
            pages: PerPage::default(),
            writebacks: Vec::new(),
            journal: Journal::new(1, 0),
            space: Space { committed, ..Space::default() },
            checkpoint: None,
            durable,
            slot: 0,
            latched: false,
            waiters: Vec::new(),
        };
        let contract = Contract::new(&engine.view_of(&device), stamp);
        State { device, engine, contract, left: scope.budget, epochs: 1, born: scope.files, rotted: false }
    }
}

impl Engine {
    /// One batch: its items into the tree, its blocks into the space, the same bytes into the buffer. `data` are the
    /// blocks whose writes belong to it; the record's flush waits for them (R7).
    pub fn commit(&mut self, scope: &Scope, ops: Vec<Op>, data: Blocks) {
        self.lsn += 1;
        for op in &ops {
            self.apply(scope, op);
        }
        self.journal.buffer.push((Arc::new(Batch { ops }), data));
    }

    pub fn apply(&mut self, scope: &Scope, op: &Op) {
        self.tree.apply(op);
        match *op {
            Op::Allocate(block) => self.space.allocate(scope, block),
            Op::Free(block) => self.space.free(scope, block),
            Op::Image { spot, content } => {
                *self.pages.at_mut(spot) = Some(Page { content, dirty: false, image: Some(self.lsn) });
            }
            Op::Drop(spot) => {
                if let Some(page) = self.pages.at_mut(spot) {
                    page.image = None;
                }
            }
            Op::Name { .. } | Op::File { .. } | Op::Extent { .. } | Op::Shared { .. } => {}
        }
    }

    /// What a drop of a page's image adds to a batch (R5).
    pub fn void_image(&self, scope: &Scope, spot: Spot, ops: &mut Vec<Op>) {
        if scope.on(Rule::R5) {
            ops.push(Op::Drop(spot));
        }
    }

    /// What removing a reference to a block adds to a batch: the free, if it was the last one.
    pub fn release(&self, scope: &Scope, block: Option<Block>, ops: &mut Vec<Op>) {
        let Some(block) = block else { return };
        // The batch may have removed another reference already.
        let counted = ops.iter().rev().find_map(|op| match *op {
            Op::Shared { block: counted, others } if counted == block => Some(others),
            _ => None,
        });
        match counted.unwrap_or(self.tree.shared[usize::from(block)]) {
            others if others > 0 && scope.on(Rule::LastReference) => {
                ops.push(Op::Shared { block, others: others - 1 });
            }
            _ => ops.push(Op::Free(block)),
        }
    }

    /// LSN of the oldest live image.
    pub fn oldest_image(&self) -> Option<Lsn> {
        self.pages.0.iter().flatten().filter_map(|page| page.and_then(|page| page.image)).min()
    }

    pub fn live_images(&self) -> u8 {
        self.pages.0.iter().flatten().filter(|page| page.is_some_and(|page| page.image.is_some())).count()
            as u8
    }

    pub fn is_dirty(&self, spot: Spot) -> bool {
        self.pages.at(spot).is_some_and(|page| page.dirty)
    }

    pub fn writeback_of(&self, spot: Spot) -> Option<&Writeback> {
        self.writebacks.iter().find(|writeback| writeback.spot == spot)
    }

    /// Blocks promised to pages that are dirty or logged and not on their way to a block (R18).
    pub fn reserved(&self) -> u32 {
        let spots = (0..self.pages.0.len() as u8).flat_map(spots_of);
        let waiting = |spot: &Spot| match (self.pages.at(*spot), self.writeback_of(*spot)) {
            (Some(page), Some(writeback)) => page.content != writeback.content,
            (Some(_), None) => true,
            (None, _) => false,
        };
        spots.filter(waiting).count() as u32
    }

    /// What a reader of the volume sees. Content that fails its checksum cannot happen here; [`crate::recovery`]
    /// looks for it.
    pub fn view_of(&self, device: &Device) -> crate::contract::View {
        let mut view = crate::contract::View { names: self.tree.names, pages: PerPage::default() };
        for spot in self.tree.names.iter().flatten().flat_map(|file| spots_of(*file)) {
            let stored = match self.tree.extents.at(spot) {
                crate::volume::Extent::Written { block, .. } => match device.read(Place::Block(*block)) {
                    Content::Data(stamp) => *stamp,
                    _ => 0,
                },
                _ => 0,
            };
            *view.pages.at_mut(spot) = self.pages.at(spot).map_or(stored, |page| page.content);
        }
        view
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
