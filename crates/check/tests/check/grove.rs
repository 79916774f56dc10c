//! Volumes of version 2 for tests of the check: a few trees that share leaves, written byte by byte.

use crate::image::*;
use std::collections::{BTreeMap, BTreeSet};
use syncline_device::MemoryDevice;
use syncline_format::item::*;
use syncline_format::node::NodePointer;
use syncline_format::superblock::TreesState;
use syncline_format::tree_item::{OverlayItem, Role, TreeItem, TreeState};
use syncline_format::*;

pub const HEAD: u32 = 1;
pub const OLDER: u32 = 16;
pub const NEWER: u32 = 17;
/// Files.
pub const A: ObjectNo = ObjectNo(11);
pub const B: ObjectNo = ObjectNo(12);

pub struct Leaf {
    pub birth: u32,
    pub items: BTreeMap<Key, Vec<u8>>,
}

/// A root above some of the leaves.
pub struct Tree {
    pub birth: u32,
    pub leaves: Vec<usize>,
    pub item: TreeItem,
    pub has_root: bool,
}

type Pointers = Vec<(Key, NodePointer)>;
type PointersHook = Box<dyn Fn(u32, &mut Pointers)>;
type SlotsHook = Box<dyn Fn(&mut Slots)>;

pub struct Grove {
    pub image: Image,
    pub leaves: Vec<Leaf>,
    pub trees: BTreeMap<u32, Tree>,
    /// More items of the volume tree.
    pub volume_items: BTreeMap<Key, Vec<u8>>,
    pub state: TreesState,
    /// Blocks that are not in use, though items name them.
    pub free: BTreeSet<u64>,
    /// Changes the slots of a tree's root.
    pub pointer_hook: PointersHook,
    /// Changes the items of the root tree.
    pub root_hook: SlotsHook,
    /// Trees that have the very root of another one.
    pub same_root: BTreeMap<u32, u32>,
    next_node: u64,
}

/// Where its leaves are: the directory, file A as it was and as it is, file B as it was and as it is.
pub const DIRECTORY: usize = 0;
pub const A_OLD: usize = 1;
pub const A_NEW: usize = 2;
pub const B_OLD: usize = 3;
pub const B_NEW: usize = 4;

pub fn snapshot(era: u32, parent: Option<u32>) -> TreeItem {
    TreeItem {
        role: Role::Snapshot,
        is_default: false,
        era: Era(era),
        parent: parent.map(TreeId),
        stay: Default::default(),
        uuid: [era as u8; 16],
        name: format!("of era {era}"),
        ..TreeItem::first_head()
    }
}

fn file(object: ObjectNo, pages: u64) -> (Key, Vec<u8>) {
    let mut file = inode(MODE_REGULAR | 0o644);
    file.size = pages * BLOCK_BYTES as u64;
    file.blocks = pages;
    (Key::inode(object), file.encode().to_vec())
}

impl Grove {
    /// A head with two snapshots: between them a page of file A was overwritten, behind them all of file B.
    pub fn new() -> Grove {
        let mut image = Image::new();
        let a_old = image.new_extent(3).born(Era(1));
        let a_page = image.new_extent(1).born(Era(2));
        let b_old = image.new_extent(2).born(Era(1));
        let b_new = image.new_extent(2).born(Era(3));
        let mut root = inode(MODE_DIRECTORY | 0o755);
        (root.parent, root.entries) = (ObjectNo::ROOT_DIR, 2);
        let name = |name: &str, inode: ObjectNo| {
            let item = DirentItem { inode, file_type: 8, name: name.into() };
            (image.name_key(ObjectNo::ROOT_DIR, name), item.encode())
        };
        let directory =
            [(Key::inode(ObjectNo::ROOT_DIR), root.encode().to_vec()), name("a", A), name("b", B)];
        let a_new = [
            file(A, 3),
            (Key::extent(A, 0), a_page.encode()),
            (Key::extent(A, 1), a_old.slice(1, 2).encode()),
        ];
        let leaf = |birth, items: &[(Key, Vec<u8>)]| Leaf { birth, items: items.iter().cloned().collect() };
        let leaves = vec![
            leaf(1, &directory),
            leaf(1, &[file(A, 3), (Key::extent(A, 0), a_old.encode())]),
            leaf(2, &a_new),
            leaf(1, &[file(B, 2), (Key::extent(B, 0), b_old.encode())]),
            leaf(3, &[file(B, 2), (Key::extent(B, 0), b_new.encode())]),
        ];
        let head = TreeItem { parent: Some(TreeId(NEWER)), known: Era(2), ..TreeItem::first_head() };
        let tree =
            |birth, leaves: [usize; 3], item| Tree { birth, leaves: leaves.into(), item, has_root: true };
        let trees = BTreeMap::from([
            (OLDER, tree(1, [DIRECTORY, A_OLD, B_OLD], snapshot(1, None))),
            (NEWER, tree(2, [DIRECTORY, A_NEW, B_OLD], snapshot(2, Some(OLDER)))),
            (HEAD, tree(3, [DIRECTORY, A_NEW, B_NEW], head)),
        ]);
        // Behind what files have.
        let next_node = image.superblock.layout.group_start(GroupNo(0)).0 + 8000;
        Grove {
            image,
            leaves,
            trees,
            volume_items: BTreeMap::new(),
            state: TreesState { era: Era(3), next_tree: TreeId(18), name_key: None },
            free: BTreeSet::new(),
            pointer_hook: Box::new(|_, _| {}),
            root_hook: Box::new(|_| {}),
            same_root: BTreeMap::new(),
            next_node,
        }
    }

    pub fn item(&mut self, tree: u32) -> &mut TreeItem {
        &mut self.trees.get_mut(&tree).expect("a tree").item
    }

    pub fn extent(&self, leaf: usize, key: Key) -> ExtentItem {
        ExtentItem::decode(&self.leaves[leaf].items[&key]).expect("an extent")
    }

    pub fn put_extent(&mut self, leaf: usize, key: Key, extent: &ExtentItem) {
        self.leaves[leaf].items.insert(key, extent.encode());
    }

    /// A page of a snapshot that it inherited as an image.
    pub fn add_overlay(&mut self, tree: u32, number: u64, object: ObjectNo, page: u64) -> OverlayItem {
        let item = OverlayItem { object, page, extent: self.image.new_extent(1).born(Era(3)) };
        self.volume_items.insert(Key::overlay(TreeId(tree), number), item.encode());
        item
    }

    /// The tree goes away, and what lies before the cursor has been dealt with.
    pub fn delete(&mut self, tree: u32, cursor: Key) {
        let item = self.item(tree);
        (item.state, item.name) = (TreeState::Deleting { cursor }, String::new());
    }

    fn node(
        &mut self,
        device: &MemoryDevice,
        (tree, level, birth): (TreeId, u16, u32),
        slots: &Slots,
        used: &mut BTreeSet<u64>,
    ) -> NodePointer {
        let block = BlockNo(self.next_node);
        self.next_node += 4;
        used.extend(block.0..block.0 + 4);
        let bytes = encode_node(block, GENERATION, &self.image.superblock, tree, level, slots);
        write(device, block, &bytes);
        let checksum = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
        NodePointer { block, checksum, generation: GENERATION, level, birth: Era(birth) }
    }

    /// Writes the volume.
    pub fn build(&mut self) -> MemoryDevice {
        self.image.superblock.trees = Some(self.state);
        let device = MemoryDevice::new(VOLUME_BLOCKS);
        let mut used: BTreeSet<u64> = BTreeSet::new();
        for (block, page) in &self.image.data {
            write(&device, BlockNo(*block), page);
        }
        let roots = self.write_trees(&device, &mut used);
        let mut slots: Slots =
            roots.iter().map(|(tree, root)| (Key::tree(TreeId(*tree)), root.encode().to_vec())).collect();
        (self.root_hook)(&mut slots);
        let root = self.items(&device, TreeId::ROOT, slots, &mut used);
        self.image.superblock.root = root;
        used.retain(|block| !self.free.contains(block));
        self.finish(&device, &used);
        device
    }

    fn write_trees(&mut self, device: &MemoryDevice, used: &mut BTreeSet<u64>) -> BTreeMap<u32, NodePointer> {
        let is_reached =
            |leaf: &usize| self.trees.values().any(|tree| tree.has_root && tree.leaves.contains(leaf));
        let reached: Vec<usize> = (0..self.leaves.len()).filter(is_reached).collect();
        let mut written = BTreeMap::new();
        for leaf in reached {
            let slots: Slots =
                self.leaves[leaf].items.iter().map(|(key, value)| (*key, value.clone())).collect();
            used.extend(slots.iter().flat_map(|(key, value)| blocks_of(*key, value)));
            let birth = self.leaves[leaf].birth;
            let pointer = self.node(device, (TreeId::MAIN, 0, birth), &slots, used);
            written.insert(leaf, (slots[0].0, pointer));
        }
        let mut roots: BTreeMap<u32, NodePointer> = BTreeMap::new();
        let mut volume: Slots = self.volume_items.clone().into_iter().collect();
        let with_root = self.trees.iter().filter(|(_, tree)| tree.has_root);
        let trees: Vec<(u32, u32, Vec<usize>)> =
            with_root.map(|(number, tree)| (*number, tree.birth, tree.leaves.clone())).collect();
        for (number, birth, leaves) in trees {
            if self.same_root.contains_key(&number) {
                continue;
            }
            let mut pointers: Pointers = leaves.iter().map(|leaf| written[leaf]).collect();
            (self.pointer_hook)(number, &mut pointers);
            let slots: Slots = pointers.iter().map(|(key, child)| (*key, child.encode().to_vec())).collect();
            let root = self.node(device, (TreeId::MAIN, 1, birth), &slots, used);
            roots.insert(number, root);
        }
        for (number, other) in &self.same_root {
            roots.insert(*number, roots[other]);
        }
        for (number, tree) in &self.trees {
            volume.push((Key::tree_info(TreeId(*number)), tree.item.encode()));
        }
        volume.sort_by_key(|(key, _)| *key);
        volume.dedup_by_key(|(key, _)| *key);
        used.extend(volume.iter().flat_map(|(key, value)| blocks_of(*key, value)));
        let root = self.items(device, TreeId::VOLUME, volume, used);
        roots.insert(TreeId::VOLUME.0, root);
        roots
    }

    /// Writes a tree that shares nothing; returns its root.
    fn items(
        &mut self,
        device: &MemoryDevice,
        tree: TreeId,
        items: Slots,
        used: &mut BTreeSet<u64>,
    ) -> NodePointer {
        let (era, mut level, mut slots) = (self.state.era.0, 0, items);
        loop {
            let together = if level == 0 && tree == TreeId::VOLUME { 60 } else { 250 };
            let mut above = Slots::new();
            for chunk in slots.chunks(together) {
                let pointer = self.node(device, (tree, level, era), &chunk.to_vec(), used);
                above.push((chunk[0].0, pointer.encode().to_vec()));
            }
            if let [(_, root)] = &above[..] {
                return NodePointer::decode(root).expect("a pointer");
            }
            (slots, level) = (above, level + 1);
        }
    }

    /// Bitmaps and superblocks.
    fn finish(&mut self, device: &MemoryDevice, used: &BTreeSet<u64>) {
        let superblock = &mut self.image.superblock;
        for group in (0..superblock.layout.group_count()).map(GroupNo) {
            write_bitmap(device, superblock, group, 0, GENERATION, used);
        }
        superblock.free_blocks = free_blocks(&superblock.layout, used);
        self.image.write_superblocks(device);
    }
}

fn blocks_of(key: Key, value: &[u8]) -> Vec<u64> {
    let extent = match key.kind {
        Kind::Extent => ExtentItem::decode(value).ok(),
        Kind::Overlay => OverlayItem::decode(value).ok().map(|item| item.extent),
        _ => None,
    };
    extent
        .iter()
        .flat_map(|extent| (0..u64::from(extent.pages())).map(|page| extent.start.0 + page))
        .collect()
}
