//! Writes trees from items, and changes their shape on the way.

use super::model::{Forest, Model, Places};
use crate::packed::SparseImage;
use std::collections::BTreeMap;
use syncline_format::header::{BlockHeader, MAGIC_NODE};
use syncline_format::node::{
    self, NODE_HEADER_BYTES, NODE_POINTER_BYTES, NODE_SPACE_BYTES, NodeHeader, NodePointer, SLOT_BYTES, Slot,
};
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::Role;
use syncline_format::{BlockNo, Era, Generation, Key, Kind, NODE_BYTES, ObjectNo, TreeId};
use zerocopy::IntoBytes;

/// Levels that may be put on top of a tree.
const LEVELS_MAX: u16 = 13;
/// Pointers of an interior node.
const POINTERS_MAX: usize = NODE_SPACE_BYTES / (SLOT_BYTES + NODE_POINTER_BYTES) / 2;

/// A change of a tree's shape. Places are taken modulo what there is.
#[derive(Debug, Clone)]
pub enum TreeChange {
    /// A field of a node, by its place in the node.
    Field { node: usize, at: usize, bytes: usize, value: u64 },
    /// A field of a pointer to a node.
    Pointer { node: usize, at: usize, bytes: usize, value: u64 },
    /// A node is pointed to twice.
    Shared { node: usize, key: Key },
    /// A node is left out.
    Missing { node: usize },
    /// Two neighbours change places, but not their keys.
    Swapped { node: usize },
    /// An empty leaf among the others.
    Empty { key: Key },
    /// More levels on top.
    Higher { levels: u16 },
    /// An item of the root tree.
    RootItem { key: Key, value: Vec<u8> },
    /// The main tree's pointer leads to a leaf of the root tree's number.
    RootAsMain,
}

type Entries = Vec<(Key, Vec<u8>)>;

struct Writer<'a> {
    image: &'a mut SparseImage,
    superblock: &'a Superblock,
    places: &'a mut Places,
    changes: &'a [TreeChange],
    /// Nodes written so far.
    count: usize,
    /// Of nodes that are made.
    birth: Era,
    /// Nodes of the tree that this one descends from, by what is in them, and of this one.
    parents: BTreeMap<Vec<u8>, NodePointer>,
    written: BTreeMap<Vec<u8>, NodePointer>,
}

/// Writes all trees; returns the root tree's pointer.
pub fn write(model: &mut Model, places: &mut Places) -> NodePointer {
    let (changes, superblock) = (std::mem::take(&mut model.tree_changes), model.superblock.clone());
    let items: Entries = std::mem::take(&mut model.items).into_iter().collect();
    model.items = items.iter().cloned().collect();
    let mut writer = Writer {
        image: &mut model.image,
        superblock: &superblock,
        places,
        changes: &changes,
        count: 0,
        birth: Era(0),
        parents: BTreeMap::new(),
        written: BTreeMap::new(),
    };
    if let Some(forest) = &model.forest {
        return forest_of(&mut writer, forest, model.head, items, model.leaf_bytes);
    }
    let tree = if changes.iter().any(|change| matches!(change, TreeChange::RootAsMain)) {
        TreeId::ROOT
    } else {
        TreeId::MAIN
    };
    let main = writer.tree(tree, items, model.leaf_bytes);
    let mut roots: Entries = vec![(Key::tree(TreeId::MAIN), main.encode().to_vec())];
    for change in &changes {
        if let TreeChange::RootItem { key, value } = change {
            roots.retain(|(present, _)| present != key);
            roots.push((*key, value.clone()));
        }
    }
    roots.sort();
    writer.node(TreeId::ROOT, 0, &roots)
}

/// Writes the trees of a volume of version 2, each behind the one that it descends from; it shares what both have.
fn forest_of(
    writer: &mut Writer<'_>,
    forest: &Forest,
    head: TreeId,
    items: Entries,
    leaf_bytes: usize,
) -> NodePointer {
    let now = writer.superblock.trees.map_or(Era(0), |trees| trees.era);
    let era = |tree: &TreeId| match forest.was.get(tree) {
        Some(item) if item.role == Role::Snapshot => item.era,
        _ => now,
    };
    let mut trees: BTreeMap<TreeId, Entries> =
        forest.others.iter().map(|(tree, items)| (*tree, items.clone().into_iter().collect())).collect();
    trees.insert(head, items);
    let mut order: Vec<TreeId> = trees.keys().copied().collect();
    order.sort_by_key(|tree| (era(tree), *tree));
    let mut of_trees: BTreeMap<TreeId, BTreeMap<Vec<u8>, NodePointer>> = BTreeMap::new();
    let mut roots: BTreeMap<TreeId, NodePointer> = BTreeMap::new();
    for tree in order {
        let parent = forest.was.get(&tree).and_then(|item| item.parent);
        writer.parents = parent.and_then(|parent| of_trees.get(&parent)).cloned().unwrap_or_default();
        writer.birth = era(&tree);
        writer.written = BTreeMap::new();
        let entries = trees.remove(&tree).unwrap_or_default();
        roots.insert(tree, writer.tree(TreeId::MAIN, entries, leaf_bytes));
        of_trees.insert(tree, std::mem::take(&mut writer.written));
    }
    (writer.birth, writer.parents) = (now, BTreeMap::new());
    let volume = forest.volume.clone().into_iter().collect();
    roots.insert(TreeId::VOLUME, writer.tree(TreeId::VOLUME, volume, leaf_bytes));
    for (one, other) in &forest.roots {
        match (roots.remove(one), roots.remove(other)) {
            (Some(first), Some(second)) => roots.extend([(*one, second), (*other, first)]),
            (Some(root), None) => drop(roots.insert(*other, root)),
            _ => {}
        }
    }
    let mut slots: Entries =
        roots.into_iter().map(|(tree, root)| (Key::tree(tree), root.encode().to_vec())).collect();
    for change in writer.changes {
        if let TreeChange::RootItem { key, value } = change {
            slots.retain(|(present, _)| present != key);
            slots.push((*key, value.clone()));
        }
    }
    slots.sort();
    writer.node(TreeId::ROOT, 0, &slots)
}

impl Writer<'_> {
    fn tree(&mut self, tree: TreeId, items: Entries, leaf_bytes: usize) -> NodePointer {
        let mut leaves: Vec<(Key, NodePointer)> = Vec::new();
        let mut open: Entries = Vec::new();
        let mut bytes = 0;
        for (key, value) in items {
            let takes = SLOT_BYTES + value.len();
            // Of volumes with trees a leaf ends where some objects begin, so that two that differ here are alike there.
            let is_boundary =
                self.superblock.trees.is_some() && key.kind == Kind::Inode && key.object.0 % 8 == 0;
            let is_full = bytes + takes > leaf_bytes.min(NODE_SPACE_BYTES) || is_boundary;
            if is_full && !open.is_empty() {
                let pointer = self.node(tree, 0, &open);
                leaves.push((open[0].0, pointer));
                open.clear();
                bytes = 0;
            }
            bytes += takes;
            open.push((key, value));
        }
        let first = open.first().map_or(Key::MIN, |(key, _)| *key);
        let pointer = self.node(tree, 0, &open);
        leaves.push((first, pointer));
        self.reshape(tree, &mut leaves);
        let mut level = 0;
        let higher = self.changes.iter().find_map(|change| match change {
            TreeChange::Higher { levels } => Some(levels % LEVELS_MAX),
            _ => None,
        });
        let least = higher.unwrap_or(0);
        while leaves.len() > 1 || level < least {
            level += 1;
            let nodes: Vec<_> = leaves
                .chunks(POINTERS_MAX)
                .map(|children| {
                    let entries: Entries =
                        children.iter().map(|(key, pointer)| (*key, pointer.encode().to_vec())).collect();
                    (children[0].0, self.node(tree, level, &entries))
                })
                .collect();
            leaves = nodes;
        }
        leaves.first().map_or(
            NodePointer {
                block: BlockNo(0),
                checksum: 0,
                generation: Generation(0),
                level: 0,
                birth: Era(0),
            },
            |leaf| leaf.1,
        )
    }

    /// What changes between the leaves and those that point to them.
    fn reshape(&mut self, tree: TreeId, leaves: &mut Vec<(Key, NodePointer)>) {
        for change in self.changes {
            if leaves.is_empty() {
                return;
            }
            let count = leaves.len();
            match change {
                TreeChange::Shared { node, key } => {
                    let shared = leaves[node % count].1;
                    leaves.push((*key, shared));
                    leaves.sort_by_key(|(key, _)| *key);
                    leaves.dedup_by_key(|(key, _)| *key);
                }
                TreeChange::Missing { node } if count > 1 => drop(leaves.remove(node % count)),
                TreeChange::Swapped { node } => {
                    let (one, other) = (node % count, (node + 1) % count);
                    let (first, second) = (leaves[one].1, leaves[other].1);
                    (leaves[one].1, leaves[other].1) = (second, first);
                }
                TreeChange::Empty { key } => {
                    let empty = self.node(tree, 0, &Vec::new());
                    leaves.push((*key, empty));
                    leaves.sort_by_key(|(key, _)| *key);
                    leaves.dedup_by_key(|(key, _)| *key);
                }
                TreeChange::Pointer { node, at, bytes, value } => {
                    let pointer = &mut leaves[node % count].1;
                    let mut raw = pointer.encode();
                    let len = (*bytes).min(8);
                    raw[*at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                    if let Ok(changed) = NodePointer::decode(&raw) {
                        *pointer = changed;
                    }
                }
                _ => {}
            }
        }
    }

    fn node(&mut self, tree: TreeId, level: u16, entries: &Entries) -> NodePointer {
        if !tree.is_filesystem() || self.superblock.trees.is_none() {
            return NodePointer { birth: self.birth, ..self.new_node(tree, level, entries) };
        }
        let mut content = vec![level as u8];
        for (key, value) in entries {
            content.extend_from_slice(Slot::new(*key, 0, value.len() as u16).as_bytes());
            content.extend_from_slice(value);
        }
        let pointer = match self.parents.get(&content) {
            Some(shared) => *shared,
            None => NodePointer { birth: self.birth, ..self.new_node(tree, level, entries) },
        };
        self.written.insert(content, pointer);
        pointer
    }

    fn new_node(&mut self, tree: TreeId, level: u16, entries: &Entries) -> NodePointer {
        let block = self.places.chunk(self.superblock);
        let (volume, generation) = (self.superblock.volume_id(), self.superblock.generation);
        let mut bytes = vec![0; NODE_BYTES];
        let mut heap = NODE_BYTES;
        let mut count = 0;
        for (key, value) in entries {
            let slot_at = NODE_HEADER_BYTES + count * SLOT_BYTES;
            if slot_at + SLOT_BYTES + value.len() > heap {
                break;
            }
            heap -= value.len();
            bytes[heap..heap + value.len()].copy_from_slice(value);
            let slot = Slot::new(*key, heap as u16, value.len() as u16);
            bytes[slot_at..slot_at + SLOT_BYTES].copy_from_slice(slot.as_bytes());
            count += 1;
        }
        let head = NodeHeader {
            header: BlockHeader::new(MAGIC_NODE, block, generation, volume),
            level: level.into(),
            count: (count as u16).into(),
            heap: (heap as u16).into(),
            reserved: 0.into(),
            tree: tree.0.into(),
            reserved2: 0.into(),
            reserved3: 0.into(),
        };
        bytes[..NODE_HEADER_BYTES].copy_from_slice(head.as_bytes());
        for change in self.changes {
            if let TreeChange::Field { node, at, bytes: len, value } = change
                && node % 16 == self.count
            {
                let len = (*len).min(8);
                bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
        }
        self.count += 1;
        let generation = node::head(&bytes).header.generation();
        let pointer = node::seal(&mut bytes, block, generation, volume);
        self.image.patch(block.byte_offset(), &bytes);
        pointer
    }
}

/// Any key, for changes of the shape.
pub fn key(object: u64, kind: u8, offset: u64) -> Key {
    let kind = syncline_format::Kind::try_from(kind % 10 + 1).expect("one of the known kinds");
    Key::new(ObjectNo(object), kind, offset)
}
