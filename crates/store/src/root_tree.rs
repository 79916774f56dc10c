//! The root tree: which node each tree's root is, as the durable superblock has it.
//!
//! Only checkpoints change it, so it is no part of [`crate::trees::Trees`] but goes with the superblock. At the
//! freeze a checkpoint says which trees have another root from here on: the way to these items is copied, and what
//! that replaces is freed in the checkpoint's own bitmaps. The roots themselves are entered when they have been
//! written. All of its nodes stay in memory (56 bytes for each tree), so that no checkpoint has to read.

use crate::StoreError;
use crate::space::SpaceMap;
use crate::tree::cache::NodeCache;
use crate::tree::page::Page;
use crate::tree::{Editor, Node, Resident, Root, Superseded, Tree, nodes_bound};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::node::{NODE_POINTER_BYTES, NodePointer};
use syncline_format::superblock::Superblock;
use syncline_format::{BlockNo, Era, Key, TreeId};

pub(crate) struct RootTree {
    /// Every node of it is held.
    tree: Tree,
    roots: BTreeMap<TreeId, NodePointer>,
    /// Nodes that the running checkpoint writes of it.
    current_nodes: u64,
    /// Chunks that are claimed for such nodes.
    claims: u64,
}

/// Nothing has to be found: all nodes are held.
struct Nowhere;

impl Resident for Nowhere {
    fn resident(&self, _: &NodePointer) -> Option<Arc<Node>> {
        None
    }
}

impl RootTree {
    /// Reads all of it. Of a volume of version 1 only the main tree counts.
    ///
    /// Errors: damage, or trees that are missing.
    pub(crate) fn read(
        device: &dyn Device,
        cache: &NodeCache,
        superblock: &Superblock,
    ) -> Result<RootTree, StoreError> {
        let pointer = superblock.root;
        let inconsistent = |what| StoreError::Inconsistent { block: pointer.block, what };
        if superblock.trees.is_none() && pointer.level > 0 {
            return Err(inconsistent("the root tree has more than one leaf"));
        }
        let mut roots = BTreeMap::new();
        let mut root = read_node(device, cache, &pointer, None, &mut roots)?;
        if superblock.trees.is_none() {
            let main = roots.get(&TreeId::MAIN).copied();
            let main = main.ok_or(inconsistent("the root tree does not name the main tree"))?;
            roots.retain(|tree, _| *tree == TreeId::MAIN);
            let mut page = Page::empty(TreeId::ROOT, 0);
            page.put(Key::tree(TreeId::MAIN), &main.encode()).expect("an empty page has room");
            root = Arc::new(Node::clean(page, pointer));
        } else if !roots.contains_key(&TreeId::VOLUME) {
            return Err(inconsistent("the root tree does not name the volume tree"));
        }
        let tree = Tree::new(TreeId::ROOT, Root::Held(root), 1);
        Ok(RootTree { tree, roots, current_nodes: 0, claims: 0 })
    }

    pub(crate) fn roots(&self) -> impl Iterator<Item = (TreeId, NodePointer)> {
        self.roots.iter().map(|(tree, root)| (*tree, *root))
    }

    pub(crate) fn root_of(&self, tree: TreeId) -> Option<NodePointer> {
        self.roots.get(&tree).copied()
    }

    pub(crate) fn trees(&self) -> impl Iterator<Item = TreeId> {
        self.roots.keys().copied()
    }

    /// The lowest level above all leaves.
    fn level(&self) -> u16 {
        self.tree.root_level()
    }

    /// Nodes that entering one more tree can make.
    pub(crate) fn bound_of_one_more(&self) -> u64 {
        nodes_bound(self.level(), 1)
    }

    /// Claims what a checkpoint may need when so many trees change, before anything is frozen. It asks nobody, so it
    /// has to be there: at the beginning of a session, and with the chunks that a checkpoint has just released, which
    /// are those of the nodes that it has made anew.
    pub(crate) fn claim(&mut self, space: &mut SpaceMap, changing: usize) {
        let ways = if self.level() == 0 { 1 } else { changing as u64 * (u64::from(self.level()) + 1) };
        space.adjust_claims(self.claims, ways);
        self.claims = ways;
    }

    /// The trees that get another root, or none any more, in the checkpoint that is being frozen. Frees what they
    /// replace. `claimed` chunks more are for what this makes.
    pub(crate) fn freeze(
        &mut self,
        changed: &[TreeId],
        gone: &[TreeId],
        claimed: u64,
        era: Era,
        space: &mut SpaceMap,
    ) -> Result<(), StoreError> {
        self.claims += claimed;
        self.tree.freeze += 1;
        let mut superseded = Vec::new();
        let mut editor = Editor {
            resident: &Nowhere,
            freeze: self.tree.freeze,
            birth: era,
            low: None,
            items_max: usize::MAX,
            superseded: &mut superseded,
            current_nodes: &mut self.current_nodes,
            lost: None,
        };
        for tree in changed {
            self.tree.put(Key::tree(*tree), &[0; NODE_POINTER_BYTES], &mut editor);
        }
        for tree in gone {
            self.tree.delete(Key::tree(*tree), &mut editor);
            self.roots.remove(tree);
        }
        let homes: Vec<BlockNo> = superseded.iter().filter_map(Superseded::home).collect();
        homes.into_iter().try_for_each(|home| space.free_node(home))
    }

    /// Enters the root of a tree that the freeze has named.
    pub(crate) fn set(&mut self, tree: TreeId, root: NodePointer) {
        let mut superseded = Vec::new();
        let mut editor = Editor {
            resident: &Nowhere,
            freeze: self.tree.freeze,
            birth: root.birth,
            low: None,
            items_max: usize::MAX,
            superseded: &mut superseded,
            current_nodes: &mut self.current_nodes,
            lost: None,
        };
        self.tree.put(Key::tree(tree), &root.encode(), &mut editor);
        assert!(superseded.is_empty(), "the freeze has copied the way to the item");
        self.roots.insert(tree, root);
    }

    /// Its root, to be written with all that is not on the device yet.
    pub(crate) fn root(&self) -> &Arc<Node> {
        match &self.tree.root {
            Root::Held(node) => node,
            Root::Clean(_) => unreachable!("the root tree is held"),
        }
    }

    /// The nodes that were made are written, with chunks that were claimed for them.
    pub(crate) fn written(&mut self) {
        let written = std::mem::take(&mut self.current_nodes);
        self.claims = self.claims.checked_sub(written).expect("each way that changes is claimed");
    }
}

/// Reads a node and all below it.
fn read_node(
    device: &dyn Device,
    cache: &NodeCache,
    pointer: &NodePointer,
    before: Option<TreeId>,
    roots: &mut BTreeMap<TreeId, NodePointer>,
) -> Result<Arc<Node>, StoreError> {
    let block = pointer.block;
    let inconsistent = |what| StoreError::Inconsistent { block, what };
    let clean = cache.load(device, TreeId::ROOT, pointer)?;
    let mut last = before;
    if clean.is_leaf() {
        for index in 0..clean.page.count() {
            let key = clean.page.key(index);
            let tree = TreeId(u32::try_from(key.object.0).unwrap_or(u32::MAX));
            if key != Key::tree(tree) || last.is_some_and(|last| last >= tree) {
                return Err(inconsistent("the root tree holds something else than trees"));
            }
            let root = NodePointer::decode(clean.page.value(index))
                .map_err(|source| StoreError::Corrupt { block, source })?;
            last = Some(tree);
            roots.insert(tree, root);
        }
        return Ok(clean);
    }
    let mut node = (*clean).clone();
    for index in 0..clean.page.count() {
        let last = roots.keys().next_back().copied();
        node.children.push(Some(read_node(device, cache, &clean.pointer(index), last, roots)?));
    }
    Ok(Arc::new(node))
}
