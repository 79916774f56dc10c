//! What lies on the device: items, batches, records, superblocks.
//!
//! Small on purpose. A tree is one node, a file has [`PAGES`] pages, a page's content is one number: the [`Stamp`] of
//! the write it comes from, 0 for zeros. A stamp is its own checksum, so "the content matches its checksum" is an
//! equality. Checksums of records and nodes are hashes of what they hold.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Names in the only directory.
pub const NAMES: usize = 3;
/// Files (inodes) that ever exist.
pub const FILES: usize = 4;
/// Pages of a file.
pub const PAGES: usize = 2;
/// Heads and snapshots that ever exist; a number is given to one of them only.
pub const TREES: usize = 5;

/// When something happened; contents are named after the write that made them.
pub type Stamp = u8;
pub type Lsn = u8;
pub type Sequence = u8;
pub type Generation = u8;
/// When something was born: a snapshot ends an era.
pub type Era = u8;
/// A block for data or for a tree node.
pub type Block = u8;
/// A set of blocks, one bit each.
pub type Blocks = u16;

pub fn bit(block: Block) -> Blocks {
    1 << block
}

/// The blocks of a set, ascending.
pub fn each(blocks: Blocks) -> impl DoubleEndedIterator<Item = Block> {
    (0..16).filter(move |block| blocks & bit(*block) != 0)
}

/// A page of a file of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spot {
    pub tree: u8,
    pub file: u8,
    pub page: u8,
}

impl Spot {
    /// The same page of the same file of another tree.
    pub fn of(self, tree: u8) -> Spot {
        Spot { tree, ..self }
    }
}

/// All pages of a file.
pub fn spots_of(tree: u8, file: u8) -> impl Iterator<Item = Spot> {
    (0..PAGES as u8).map(move |page| Spot { tree, file, page })
}

/// All pages of all files of a tree.
pub fn spots_in(tree: u8) -> impl Iterator<Item = Spot> {
    (0..FILES as u8).flat_map(move |file| spots_of(tree, file))
}

/// One value for every page of every file of one tree, whichever that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PerPage<T>(pub [[T; PAGES]; FILES]);

impl<T> PerPage<T> {
    pub fn at(&self, spot: Spot) -> &T {
        &self.0[spot.file as usize][spot.page as usize]
    }

    pub fn at_mut(&mut self, spot: Spot) -> &mut T {
        &mut self.0[spot.file as usize][spot.page as usize]
    }
}

/// One value for every page of every tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PerTree<T>(pub [PerPage<T>; TREES]);

impl<T> PerTree<T> {
    pub fn at(&self, spot: Spot) -> &T {
        self.0[spot.tree as usize].at(spot)
    }

    pub fn at_mut(&mut self, spot: Spot) -> &mut T {
        self.0[spot.tree as usize].at_mut(spot)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Extent {
    #[default]
    Hole,
    /// Preallocated: reads as zeros, is written in place once.
    Unwritten {
        block: Block,
        birth: Era,
    },
    Written {
        block: Block,
        sum: Stamp,
        birth: Era,
    },
}

impl Extent {
    pub fn block(self) -> Option<Block> {
        match self {
            Extent::Hole => None,
            Extent::Unwritten { block, .. } | Extent::Written { block, .. } => Some(block),
        }
    }

    /// The block and when the reference to it was born.
    pub fn reference(self) -> Option<(Block, Era)> {
        match self {
            Extent::Hole => None,
            Extent::Unwritten { block, birth } | Extent::Written { block, birth, .. } => Some((block, birth)),
        }
    }
}

/// One filesystem as of one LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tree {
    pub names: [Option<u8>; NAMES],
    pub exists: [bool; FILES],
    pub extents: PerPage<Extent>,
    /// Files beyond the first that refer to a block (its count of references, less one).
    pub shared: [u8; 16],
}

impl Tree {
    /// Applies an item change; all values are absolute, so that applying one twice is applying it once.
    pub fn apply(&mut self, op: &Op) {
        match *op {
            Op::Name { name, file, .. } => self.names[name as usize] = file,
            Op::File { file, exists, .. } => self.exists[file as usize] = exists,
            Op::Extent { spot, extent, .. } => *self.extents.at_mut(spot) = extent,
            Op::Shared { block, others, .. } => self.shared[block as usize] = others,
            _ => {}
        }
    }

    pub fn links(&self, file: u8) -> usize {
        self.names.iter().filter(|name| **name == Some(file)).count()
    }

    /// Blocks that some extent names.
    pub fn blocks(&self) -> Blocks {
        let all = self.extents.0.iter().flatten();
        all.filter_map(|extent| extent.block()).fold(0, |set, block| set | bit(block))
    }

    pub fn checksum(&self) -> u64 {
        checksum(self)
    }
}

/// One change of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    Name {
        tree: u8,
        name: u8,
        file: Option<u8>,
    },
    File {
        tree: u8,
        file: u8,
        exists: bool,
    },
    /// `fresh`: the data were written by this very batch (R4).
    Extent {
        spot: Spot,
        extent: Extent,
        fresh: bool,
    },
    Shared {
        tree: u8,
        block: Block,
        others: u8,
    },
    Allocate(Block),
    Free(Block),
    /// A reference is gone; the commit makes of it [`Op::Free`] or [`Op::Left`] (R24).
    Release {
        at: Spot,
        block: Block,
        birth: Era,
    },
    /// A reference is gone, and snapshots have the block.
    Left(Block),
    Image {
        spot: Spot,
        content: Stamp,
    },
    Drop(Spot),
    /// A tree comes to be, as its source is here; the volume's era from here on.
    Make {
        tree: u8,
        of: u8,
        era: Era,
    },
    /// What a tree is; `None`: it is gone.
    Item {
        tree: u8,
        item: Option<Item>,
    },
    /// A page that stands for what a snapshot's tree has there. Always fresh.
    Overlay {
        spot: Spot,
        page: Option<(Block, Stamp)>,
    },
}

impl Op {
    /// The tree whose node the change needs.
    pub fn edits(&self) -> Option<u8> {
        match *self {
            Op::Name { tree, .. } | Op::File { tree, .. } | Op::Shared { tree, .. } => Some(tree),
            Op::Extent { spot, .. } => Some(spot.tree),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Head,
    Snapshot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Live,
    /// Without a name; it goes away when nobody needs it (R27).
    Hidden,
    /// Files below the cursor have been dealt with.
    Deleting {
        cursor: u8,
    },
}

/// What a tree is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Item {
    pub role: Role,
    pub phase: Phase,
    /// The head that is shown when nobody names one.
    pub default: bool,
    /// The era that a snapshot has ended.
    pub era: Era,
    /// The tree that it descends from: of a head its newest snapshot.
    pub parent: Option<u8>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub ops: Vec<Op>,
}

impl Batch {
    /// Ring cells that a record with only this batch takes: one for each image, at least one.
    pub fn cells(&self) -> u8 {
        self.images().max(1)
    }

    pub fn images(&self) -> u8 {
        self.ops.iter().filter(|op| matches!(op, Op::Image { .. })).count() as u8
    }
}

/// What a group commit writes.
#[derive(Debug)]
pub struct Record {
    pub epoch: u8,
    pub sequence: Sequence,
    /// Checksum of the record before; of the first one of an epoch, the epoch.
    pub predecessor: u64,
    pub known_flushed: Sequence,
    /// Generation of the superblock that was durable when the record was sealed.
    pub generation: Generation,
    pub first_lsn: Lsn,
    pub cells: u8,
    pub batches: Vec<Arc<Batch>>,
    /// Over all of the above.
    pub sum: u64,
}

impl Record {
    pub fn sealed(mut self) -> Record {
        let chain = (self.epoch, self.sequence, self.predecessor, self.known_flushed);
        self.sum = checksum(&(chain, self.generation, self.first_lsn, self.cells, &self.batches));
        self
    }

    pub fn last_lsn(&self) -> Lsn {
        self.first_lsn + self.batches.len() as u8 - 1
    }
}

impl Hash for Record {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sum.hash(state);
    }
}

/// Where the log begins (R14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tail {
    pub cell: u8,
    pub sequence: Sequence,
    pub predecessor: u64,
}

impl Tail {
    /// Of an epoch without records.
    pub fn first(epoch: u8) -> Tail {
        Tail { cell: 0, sequence: 1, predecessor: u64::from(epoch) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Superblock {
    pub generation: Generation,
    /// The checkpoint's LSN: what the tree holds.
    pub lsn: Lsn,
    pub epoch: u8,
    pub tail: Tail,
    pub root: Block,
    pub root_sum: u64,
    /// The first batch that a recovery has cut off (R12).
    pub cut: Option<Lsn>,
    /// Version 2 of the format.
    pub trees: bool,
}

impl Superblock {
    /// The highest one wins; a mark of a cut goes before the superblock that it repeats.
    pub fn rank(&self) -> (Generation, bool) {
        (self.generation, self.cut.is_some())
    }
}

/// What a block of the device holds.
#[derive(Debug, Clone, Hash)]
pub enum Content {
    Blank,
    /// Half of one content and half of another: fails every checksum.
    Torn,
    Super(Superblock),
    Bitmap {
        generation: Generation,
        used: Blocks,
    },
    /// One cell of a record.
    Record {
        record: Arc<Record>,
        part: u8,
    },
    /// What the superblock names.
    Root(Arc<crate::forest::Stored>),
    /// A tree.
    Node(Arc<Tree>),
    Data(Stamp),
}

/// A checksum: equal for equal things, and taken for different for different ones.
pub fn checksum(of: &impl Hash) -> u64 {
    let mut mixer = Mixer(0x9e37_79b9_7f4a_7c15);
    of.hash(&mut mixer);
    mixer.finish()
}

/// A fast hash with the same result in every run.
#[derive(Clone, Copy, Default)]
pub struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.0 ^= self.0 >> 32;
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mut last = *self;
        last.mix(0x5bd1_e995);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }
}
