//! What the newest superblock leads to, found by plain reading of the device: all nodes and blocks of all trees. It
//! is held against the bitmaps, births against those of the trees that they are shared with. Nothing of the engine is
//! used.

use std::collections::{BTreeMap, BTreeSet};
use syncline_device::Device;
use syncline_format::bitmap;
use syncline_format::item::ExtentItem;
use syncline_format::node::{self, NodePointer};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::tree_item::{OverlayItem, TreeItem, TreeState};
use syncline_format::{BLOCK_BYTES, BlockNo, Era, Key, Kind, NODE_BLOCKS, NODE_BYTES, TreeId};

/// What one tree has.
#[derive(Default)]
pub struct Reached {
    /// Nodes by their first block, with their births.
    pub nodes: BTreeMap<u64, Era>,
    /// Blocks of extents, with their births.
    pub blocks: BTreeMap<u64, Era>,
    pub items: BTreeMap<Key, Vec<u8>>,
}

pub struct Volume {
    pub superblock: Superblock,
    pub trees: BTreeMap<TreeId, Reached>,
    pub infos: BTreeMap<TreeId, TreeItem>,
}

fn newest(device: &dyn Device) -> Superblock {
    let slots = SUPERBLOCK_SLOTS.into_iter().filter_map(|at| {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(at, &mut bytes).expect("read");
        Superblock::decode(&bytes, at, device.blocks()).ok()
    });
    slots.max_by_key(Superblock::rank).expect("a superblock")
}

impl Volume {
    pub fn read(device: &dyn Device) -> Volume {
        let superblock = newest(device);
        let mut root = Reached::default();
        walk(device, &superblock, &superblock.root, TreeId::ROOT, &mut root);
        let mut trees = BTreeMap::new();
        for (key, value) in &root.items {
            let (tree, mut reached) = (TreeId(key.object.0 as u32), Reached::default());
            let pointer = NodePointer::decode(value).expect("a pointer");
            walk(device, &superblock, &pointer, tree, &mut reached);
            trees.insert(tree, reached);
        }
        let tree_items = trees.get(&TreeId::VOLUME).map(|volume| &volume.items).into_iter().flatten();
        let infos = tree_items
            .filter(|(key, _)| key.kind == Kind::TreeInfo)
            .map(|(key, value)| (TreeId(key.object.0 as u32), TreeItem::decode(value).expect("an item")))
            .collect();
        trees.insert(TreeId::ROOT, root);
        Volume { superblock, trees, infos }
    }

    /// Holds everything against everything.
    pub fn judge(&self, device: &dyn Device, what: &str) {
        self.judge_births(what);
        for key in self.trees.get(&TreeId::VOLUME).into_iter().flat_map(|volume| volume.items.keys()) {
            let of = TreeId(key.object.0 as u32);
            let is_there = *key == Key::policy() || self.infos.contains_key(&of);
            assert!(is_there, "{what}: {key:?} is of a tree that is gone");
        }
        let (mut reached, mut owners) = (BTreeSet::new(), BTreeMap::new());
        for (number, tree) in &self.trees {
            let nodes = tree.nodes.keys().flat_map(|block| *block..*block + u64::from(NODE_BLOCKS));
            let given_back = self.given_back(*number);
            let blocks = tree.blocks.keys().copied().filter(|block| !given_back.contains(block));
            reached.extend(nodes.chain(blocks));
            // Of each block one tree is the first of its line.
            let low = self.low(*number);
            for (block, birth) in tree.nodes.iter().chain(&tree.blocks) {
                if given_back.contains(block) {
                    continue;
                }
                if low.is_none_or(|low| *birth > low)
                    && let Some(other) = owners.insert(*block, *number)
                {
                    panic!("{what}: trees {other} and {number} both own block {block}");
                }
            }
        }
        let used = used_blocks(device, &self.superblock);
        let free: Vec<_> = reached.difference(&used).take(4).collect();
        assert!(free.is_empty(), "{what}: in use but free: {free:?}");
        let leaked: Vec<_> = used.difference(&reached).take(4).collect();
        assert!(leaked.is_empty(), "{what}: leaked: {leaked:?}");
    }

    /// Blocks that heads and snapshots have, those of overlays included; not the tables of the volume.
    pub fn held(&self) -> u64 {
        let mut held = BTreeSet::new();
        for (number, tree) in self.trees.iter().filter(|(number, _)| **number != TreeId::ROOT) {
            held.extend(tree.blocks.keys().copied());
            if number.is_filesystem() {
                held.extend(tree.nodes.keys().flat_map(|block| *block..*block + u64::from(NODE_BLOCKS)));
            }
        }
        held.len() as u64
    }

    /// The nearest ancestor that has something.
    fn parent(&self, tree: TreeId) -> Option<TreeId> {
        let mut parent = self.infos.get(&tree)?.parent?;
        while !self.trees.contains_key(&parent) {
            let item = self.infos.get(&parent).expect("a parent exists");
            assert_eq!(item.state, TreeState::Deleting { cursor: Key::MAX }, "a tree without a root");
            parent = item.parent?;
        }
        Some(parent)
    }

    fn low(&self, tree: TreeId) -> Option<Era> {
        self.parent(tree).map(|parent| self.infos[&parent].era)
    }

    /// Blocks that a tree which goes away still names, and has given back or left to the one that descends from it.
    fn given_back(&self, tree: TreeId) -> BTreeSet<u64> {
        let state = self.infos.get(&tree).map(|item| item.state);
        let Some(TreeState::Deleting { cursor }) = state else { return BTreeSet::new() };
        let (low, mut given_back) = (self.low(tree), BTreeSet::new());
        for (key, value) in self.trees[&tree].items.iter().filter(|(key, _)| key.kind == Kind::Extent) {
            let item = ExtentItem::decode(value).expect("an extent");
            let pages = 0..u64::from(item.pages());
            let is_before = *key < cursor;
            let end = Key::extent(key.object, key.offset + pages.end);
            assert!(!is_before || end <= cursor, "the cursor lies inside of an extent");
            if is_before && low.is_none_or(|low| item.birth > low) {
                given_back.extend(pages.map(|page| item.block_of(page).0));
            }
        }
        given_back
    }

    /// What was born up to the parent's era the parent has as well (P1); what was born behind the tree's own is not in
    /// it.
    fn judge_births(&self, what: &str) {
        let Some(state) = self.superblock.trees else { return };
        for (number, item) in &self.infos {
            let Some(tree) = self.trees.get(number) else { continue };
            let most = if item.era == Era(0) { state.era } else { item.era };
            let low = self.low(*number);
            let parent = self.parent(*number).map(|parent| &self.trees[&parent]);
            type Part = fn(&Reached) -> &BTreeMap<u64, Era>;
            for part in [(|tree| &tree.nodes) as Part, |tree| &tree.blocks] {
                for (block, birth) in part(tree) {
                    assert!(*birth <= most, "{what}: block {block} of tree {number} was born in {birth}");
                    let is_parents = parent.is_some_and(|parent| part(parent).contains_key(block));
                    assert!(
                        low.is_none_or(|low| *birth > low) || is_parents,
                        "{what}: block {block} of tree {number} was born in {birth} and is not in its parent"
                    );
                }
            }
        }
    }
}

fn walk(
    device: &dyn Device,
    superblock: &Superblock,
    pointer: &NodePointer,
    tree: TreeId,
    into: &mut Reached,
) {
    let mut bytes = vec![0; NODE_BYTES];
    device.read(pointer.block, &mut bytes).expect("read");
    node::verify(&bytes, pointer, tree, superblock.volume_id()).expect("a node that a tree names is whole");
    assert!(into.nodes.insert(pointer.block.0, pointer.birth).is_none(), "a tree names a node twice");
    for index in 0..usize::from(node::head(&bytes).count.get()) {
        let (key, value) = (node::slot_key(&bytes, index), node::slot_value(&bytes, index));
        if pointer.level > 0 {
            let child = NodePointer::decode(value).expect("verified");
            assert!(child.birth <= pointer.birth, "a child is not younger than its parent");
            walk(device, superblock, &child, tree, into);
            continue;
        }
        let extent = match key.kind {
            Kind::Extent => Some(ExtentItem::decode(value).expect("an extent")),
            Kind::Overlay => Some(OverlayItem::decode(value).expect("an overlay").extent),
            _ => None,
        };
        for (page, extent) in
            extent.iter().flat_map(|extent| (0..extent.pages()).map(move |page| (page, extent)))
        {
            let block = extent.block_of(u64::from(page)).0;
            assert!(extent.birth <= pointer.birth, "an extent is not younger than its leaf");
            assert!(into.blocks.insert(block, extent.birth).is_none(), "a tree names block {block} twice");
        }
        into.items.insert(key, value.to_vec());
    }
}

/// Set bits of the bitmaps that count, without the groups' heads.
fn used_blocks(device: &dyn Device, superblock: &Superblock) -> BTreeSet<u64> {
    let layout = superblock.layout;
    let mut used = BTreeSet::new();
    for group in (0..layout.group_count()).map(syncline_format::GroupNo) {
        let slots = (0..2).filter_map(|slot| {
            let at = layout.bitmap_slot(group, slot);
            let mut bytes = vec![0; BLOCK_BYTES];
            device.read(at, &mut bytes).expect("read");
            bitmap::decode(&bytes, group, at, superblock.volume_id()).ok()
        });
        let current = slots.filter(|(generation, _)| *generation <= superblock.generation);
        let (_, bits) = current.max_by_key(|(generation, _)| *generation).expect("a bitmap");
        let base: BlockNo = layout.group_start(group);
        for index in 2..u64::from(layout.group_len(group)) {
            if bits[index as usize / 64] & (1 << (index % 64)) != 0 {
                used.insert(base.0 + index);
            }
        }
    }
    used
}
