//! [`Model`]: a volume taken apart into items, a log, and a superblock, and put together again with every checksum
//! right.

use super::log::{LogRecord, parse_log};
use super::tree::TreeChange;
use crate::hostile::seal;
use crate::packed::SparseImage;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::batch::Op;
use syncline_format::bitmap::{self, BITMAP_WORDS, Bits};
use syncline_format::item::{DirentItem, ExtentItem};
use syncline_format::layout::GROUP_HEAD_BLOCKS;
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::tree_item::{OverlayItem, TreeItem, TreeState};
use syncline_format::{
    BLOCK_BYTES, BlockNo, GroupNo, Key, Kind, NODE_BLOCKS, NODE_BYTES, ObjectNo, TreeId, header,
};

/// Nodes that are read of a base.
const NODES_MAX: usize = 4096;

/// A field of the superblock or of a bitmap to be overwritten behind all else.
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// Which slot: 0, 1, or both.
    pub slot: u8,
    pub at: usize,
    pub bytes: usize,
    pub value: u64,
}

/// Bits of group 0 to be set or cleared.
#[derive(Debug, Clone, Copy)]
pub struct BitRun {
    pub first: u32,
    pub len: u32,
    pub used: bool,
}

pub type Items = BTreeMap<Key, Vec<u8>>;

/// The other trees of a volume of version 2, each as if it shared nothing. Where two are alike they are written once.
#[derive(Clone, Default)]
pub struct Forest {
    /// Snapshots and other heads.
    pub others: BTreeMap<TreeId, Items>,
    /// The volume tree.
    pub volume: Items,
    /// What the trees were when the volume was taken apart: who shares nodes with whom follows from that.
    pub was: BTreeMap<TreeId, TreeItem>,
    /// Trees whose roots change places, or go to where nothing is known of them.
    pub roots: Vec<(TreeId, TreeId)>,
}

impl Forest {
    /// The items of the volume tree that tell what trees are.
    pub fn infos(&self) -> BTreeMap<TreeId, TreeItem> {
        let infos = self.volume.iter().filter(|(key, _)| key.kind == Kind::TreeInfo);
        infos
            .filter_map(|(key, value)| Some((TreeId(key.object.0 as u32), TreeItem::decode(value).ok()?)))
            .collect()
    }

    /// Of a tree that goes away, up to where its data is not its own any more.
    fn cursor(&self, tree: TreeId) -> Key {
        match self.was.get(&tree).map(|item| item.state) {
            Some(TreeState::Deleting { cursor }) => cursor,
            _ => Key::MIN,
        }
    }
}

/// A volume in pieces. Whatever is changed, [`Model::seal`] makes an image of it that no checksum gives away.
#[derive(Clone)]
pub struct Model {
    /// File data, and what else the pieces do not tell.
    pub image: SparseImage,
    pub superblock: Superblock,
    slot: usize,
    /// The other slot holds the same superblock without the mark of a cut.
    is_cut: bool,
    /// The main tree, or the default head, as of the checkpoint.
    pub items: Items,
    /// Its number.
    pub head: TreeId,
    /// Of version 2: all other trees.
    pub forest: Option<Forest>,
    pub log: Vec<LogRecord>,
    /// Changes of items go into a batch behind the log instead of into the tree.
    pub into_log: bool,
    /// Most bytes of a leaf's items.
    pub leaf_bytes: usize,
    pub tree_changes: Vec<TreeChange>,
    pub superblock_patches: Vec<Patch>,
    pub bitmap_patches: Vec<Patch>,
    pub bit_runs: Vec<BitRun>,
}

impl Model {
    /// Takes a sound volume apart.
    pub fn of(image: &SparseImage) -> Model {
        let superblock = seal::superblock(image).expect("a base has a superblock");
        let is_winner = |at: BlockNo| {
            let bytes = image.bytes(at.byte_offset(), BLOCK_BYTES);
            Superblock::decode(&bytes, at, image.blocks).as_ref() == Ok(&superblock)
        };
        let slot = usize::from(!is_winner(SUPERBLOCK_SLOTS[0]));
        let mut model = Model {
            image: image.clone(),
            slot,
            is_cut: superblock.cut.is_some(),
            items: Items::new(),
            head: TreeId::MAIN,
            forest: superblock.trees.map(|_| Forest::default()),
            log: parse_log(image, &superblock),
            into_log: false,
            leaf_bytes: node::NODE_SPACE_BYTES * 7 / 8,
            tree_changes: Vec::new(),
            superblock_patches: Vec::new(),
            bitmap_patches: Vec::new(),
            bit_runs: Vec::new(),
            superblock,
        };
        model.read_items();
        model
    }

    fn read_items(&mut self) {
        let (image, volume) = (&self.image, self.superblock.volume_id());
        let mut pending = vec![(self.superblock.root, TreeId::ROOT)];
        let mut nodes = Vec::new();
        let mut trees: BTreeMap<TreeId, Items> = BTreeMap::new();
        while let Some((pointer, tree)) = pending.pop() {
            let bytes = image.bytes(pointer.block.byte_offset(), NODE_BYTES);
            let told = if tree.is_filesystem() { TreeId::MAIN } else { tree };
            node::verify(&bytes, &pointer, told, volume).expect("a base is sound");
            nodes.push(pointer.block);
            assert!(nodes.len() <= NODES_MAX, "a base is small");
            let items = trees.entry(tree).or_default();
            for index in 0..usize::from(node::head(&bytes).count.get()) {
                let (key, value) = (node::slot_key(&bytes, index), node::slot_value(&bytes, index));
                match (tree, pointer.level) {
                    (TreeId::ROOT, 0) => {
                        let root = NodePointer::decode(value).expect("a base is sound");
                        pending.push((root, TreeId(key.object.0 as u32)));
                    }
                    (_, 0) => drop(items.insert(key, value.to_vec())),
                    _ => pending.push((NodePointer::decode(value).expect("a base is sound"), tree)),
                }
            }
        }
        trees.remove(&TreeId::ROOT);
        if let Some(forest) = &mut self.forest {
            forest.volume = trees.remove(&TreeId::VOLUME).expect("a base is sound");
            forest.was = forest.infos();
            let default = forest.was.iter().find(|(_, item)| item.is_default);
            self.head = *default.expect("a base is sound").0;
        }
        self.items = trees.remove(&self.head).expect("a base is sound");
        if let Some(forest) = &mut self.forest {
            forest.others = trees;
        }
        // Their places are free for the new nodes.
        for block in nodes.into_iter().flat_map(|block| block.0..block.0 + u64::from(NODE_BLOCKS)) {
            self.image.content.remove(&block);
        }
    }

    /// Sets or deletes an item, in the tree or by the log.
    pub fn edit(&mut self, key: Key, value: Option<Vec<u8>>) {
        if self.into_log {
            return LogRecord::append_edit(&mut self.log, self.head, key, value);
        }
        match value {
            Some(value) => drop(self.items.insert(key, value)),
            None => drop(self.items.remove(&key)),
        }
    }

    /// The same for the volume tree, if there is one.
    pub fn edit_volume(&mut self, key: Key, value: Option<Vec<u8>>) {
        let Some(forest) = &mut self.forest else { return };
        match value {
            value if self.into_log => LogRecord::append_edit(&mut self.log, TreeId::VOLUME, key, value),
            Some(value) => drop(forest.volume.insert(key, value)),
            None => drop(forest.volume.remove(&key)),
        }
    }

    /// Puts a name where its hash belongs, in the first free slot.
    pub fn name(&mut self, directory: ObjectNo, name: &[u8], inode: ObjectNo, file_type: u8) {
        let hash = self.superblock.name_hash().first(name);
        let free = |probe: &u64| !self.items.contains_key(&Key::dirent(directory, hash + probe));
        let probe = (0..8).find(free).unwrap_or(0);
        let dirent = DirentItem { inode, file_type, name: name.to_vec() };
        self.edit(Key::dirent(directory, hash + probe), Some(dirent.encode()));
    }

    /// Objects with an inode, ascending.
    pub fn objects(&self) -> Vec<ObjectNo> {
        self.items.keys().filter(|key| key.kind == Kind::Inode).map(|key| key.object).collect()
    }

    /// Blocks that hold something else than nodes: extents, also those of the log.
    fn data_blocks(&self, with_log: bool) -> BTreeSet<u64> {
        let mut blocks = BTreeSet::new();
        let layout = self.superblock.layout;
        let mut add = |start: BlockNo, len: u32| {
            if layout.holds_run(start, len) {
                blocks.extend(start.0..start.0 + u64::from(len));
            }
        };
        let others = self.forest.iter().flat_map(|forest| {
            let of = |(tree, items): (&TreeId, _)| (forest.cursor(*tree), items);
            forest.others.iter().map(of).chain([(Key::MIN, &forest.volume)])
        });
        for (from, items) in others.chain([(Key::MIN, &self.items)]) {
            for (key, value) in items.range(from..) {
                let extent = match key.kind {
                    Kind::Extent => ExtentItem::decode(value).ok(),
                    Kind::Overlay => OverlayItem::decode(value).ok().map(|item| item.extent),
                    _ => None,
                };
                if let Some(extent) = extent {
                    add(extent.start, extent.pages());
                }
            }
        }
        for op in self.log.iter().filter(|_| with_log).flat_map(LogRecord::ops) {
            match op {
                Op::Allocate { start, len } => add(start, len),
                Op::Put { key, value, .. } if key.kind == Kind::Extent => {
                    if let Ok(extent) = ExtentItem::decode(value) {
                        add(extent.start, extent.pages());
                    }
                }
                _ => {}
            }
        }
        blocks
    }

    /// The image of the whole.
    pub fn seal(mut self) -> SparseImage {
        let mut places = Places { taken: self.data_blocks(true), used: Vec::new(), next: 0 };
        let root = super::tree::write(&mut self, &mut places);
        self.superblock.root = root;
        self.write_bitmaps(&places.used);
        self.write_superblock();
        super::log::write(&mut self.image, &self.superblock, &self.log);
        self.image
    }

    fn write_bitmaps(&mut self, nodes: &[BlockNo]) {
        let layout = self.superblock.layout;
        let data = self.data_blocks(false);
        let nodes = nodes.iter().flat_map(|node| node.0..node.0 + u64::from(NODE_BLOCKS));
        let used: BTreeSet<u64> = nodes.chain(data).collect();
        let mut free = layout.data_blocks();
        for group in (0..layout.group_count()).map(GroupNo) {
            let (start, len) = (layout.group_start(group).0, u64::from(layout.group_len(group)));
            let mut bits: Box<Bits> = Box::new([u64::MAX; BITMAP_WORDS]);
            for index in GROUP_HEAD_BLOCKS..len {
                if !used.contains(&(start + index)) {
                    bits[index as usize / 64] &= !(1 << (index % 64));
                }
            }
            free -= used.range(start..start + len).count() as u64;
            for run in self.bit_runs.iter().filter(|_| group.0 == 0) {
                for index in (run.first..run.first.saturating_add(run.len)).take(BITMAP_WORDS * 64) {
                    let (word, mask) = (index as usize / 64 % BITMAP_WORDS, 1 << (index % 64));
                    if run.used { bits[word] |= mask } else { bits[word] &= !mask }
                }
            }
            for slot in 0..2u8 {
                let block = layout.bitmap_slot(group, slot);
                let generation = self.superblock.generation;
                let mut bytes = bitmap::encode(&bits, group, block, generation, self.superblock.volume_id());
                let patches: Vec<_> = self.bitmap_patches.iter().filter(|patch| patch.slot == slot).collect();
                let is_wanted = slot == 0 || !patches.is_empty();
                for patch in patches {
                    overwrite(&mut bytes, patch);
                }
                header::seal(&mut bytes);
                let bytes = if is_wanted { bytes } else { vec![0; BLOCK_BYTES] };
                self.image.patch(block.byte_offset(), &bytes);
            }
        }
        self.superblock.free_blocks = free;
    }

    fn write_superblock(&mut self) {
        for (slot, at) in SUPERBLOCK_SLOTS.into_iter().enumerate() {
            let patches = self.superblock_patches.iter().filter(|patch| usize::from(patch.slot) != 1 - slot);
            let patches: Vec<_> = patches.copied().collect();
            if slot != self.slot && patches.is_empty() && !self.is_cut {
                continue;
            }
            let mut bytes = match slot == self.slot || !patches.is_empty() {
                true => self.superblock.encode(at),
                // The mark of a cut has the generation of the superblock that it is a copy of (R12).
                false => Superblock { cut: None, ..self.superblock.clone() }.encode(at),
            };
            for patch in &patches {
                overwrite(&mut bytes, patch);
            }
            header::seal(&mut bytes);
            self.image.patch(at.byte_offset(), &bytes);
        }
    }
}

fn overwrite(bytes: &mut [u8], patch: &Patch) {
    let len = patch.bytes.min(8);
    bytes[patch.at..patch.at + len].copy_from_slice(&patch.value.to_le_bytes()[..len]);
}

/// Hands out chunks for nodes.
pub struct Places {
    taken: BTreeSet<u64>,
    pub used: Vec<BlockNo>,
    next: u64,
}

impl Places {
    /// The next chunk that nothing else lies in; on a full volume one that something lies in.
    pub fn chunk(&mut self, superblock: &Superblock) -> BlockNo {
        let layout = superblock.layout;
        let first = layout.group_start(GroupNo(0)).0 + u64::from(NODE_BLOCKS);
        loop {
            let block = BlockNo(first + self.next * u64::from(NODE_BLOCKS));
            if block.0 >= layout.backup_start().0 {
                self.next = 0;
                return BlockNo(first);
            }
            self.next += 1;
            let end = block.0 + u64::from(NODE_BLOCKS);
            if layout.holds_node(block) && self.taken.range(block.0..end).next().is_none() {
                self.used.push(block);
                return block;
            }
        }
    }
}
