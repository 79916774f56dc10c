//! The trees of a volume: their roots, what they are, and which descends from which.
//!
//! A volume of version 1 has the main tree alone. From version 2 on snapshots and other heads share nodes and blocks
//! with the tree that they descend from; births say what. Who owns what follows from the items of the volume tree, so
//! none of it is judged where these contradict each other.

use crate::Code;
use crate::overlay::Overlay;
use crate::report::Findings;
use crate::walk::{GivenUp, Place, Source, Trees, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use syncline_device::Device;
use syncline_format::batch::Op;
use syncline_format::node::NodePointer;
use syncline_format::range::TREES_MAX;
use syncline_format::schedule::Schedule;
use syncline_format::superblock::{Superblock, TreesState};
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Era, Key, Kind, TreeId};

/// Heads and snapshots of a volume at a time.
const TREES_AT_A_TIME_MAX: usize = 1 << 16;
/// Nodes of a root tree beyond which it is nonsense: it has one item per tree.
const ROOT_TREE_NODES_MAX: usize = 4 * TREES_AT_A_TIME_MAX;

/// A tree: what the checkpoint has, and what the log changes.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub(crate) root: NodePointer,
    pub(crate) overlay: Overlay,
}

/// All trees but the root tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Forest {
    /// Those that have a root, the volume tree among them.
    pub(crate) branches: BTreeMap<TreeId, Branch>,
    /// What heads and snapshots are; of version 2.
    pub(crate) items: BTreeMap<TreeId, TreeItem>,
    /// `None`: version 1.
    pub(crate) state: Option<TreesState>,
    /// Nodes of the root tree.
    pub(crate) root_nodes: Vec<NodePointer>,
    /// Who owns what can be told.
    pub(crate) is_whole: bool,
    /// Items of the volume tree that cannot be read as the checkpoint has them, and why. Whoever opens the volume reads
    /// them, whatever the log says of them later.
    pub(crate) unreadable: Vec<(Key, String)>,
    /// Trees that the log makes, each with the one that it is made of.
    made: BTreeMap<TreeId, TreeId>,
    /// Parents of trees that the log ends.
    gone: BTreeMap<TreeId, Option<TreeId>>,
}

impl Forest {
    /// Reads the trees as the checkpoint has them.
    pub(crate) fn read(device: &dyn Device, superblock: &Superblock, findings: &mut Findings) -> Forest {
        let given_up = GivenUp::new();
        let trees = Trees::new(device, superblock, &given_up);
        let root = RootTree::read(&trees, superblock);
        let mut is_whole = root.damage.is_empty();
        for (code, block, message) in root.damage {
            findings.at(code, block, message);
        }
        let mut forest = Forest { state: superblock.trees, root_nodes: root.nodes, ..Forest::default() };
        for (tree, root) in root.roots {
            forest.branches.insert(tree, Branch { root, overlay: Overlay::default() });
        }
        if forest.state.is_some() && is_whole {
            is_whole = forest.read_items(&trees, findings);
        }
        forest.is_whole = is_whole && forest.judge(findings);
        forest
    }

    /// Reads what the trees are; `false` if some of it cannot be read, which is told when the volume tree is walked.
    fn read_items(&mut self, trees: &Trees<'_>, findings: &mut Findings) -> bool {
        let Some(branch) = self.branches.get(&TreeId::VOLUME) else { return false };
        let mut read = ReadItems { is_whole: true, ..ReadItems::default() };
        trees.walk(TreeId::VOLUME, &branch.root, &Overlay::default(), &mut read as &mut dyn Visitor);
        if read.items.len() > TREES_AT_A_TIME_MAX {
            let message = format!("more than {TREES_AT_A_TIME_MAX}");
            findings.at(Code::TreesTooMany, branch.root.block, message);
            return false;
        }
        self.items = read.items;
        self.unreadable = read.unreadable;
        read.is_whole
    }

    /// What is made now is born in this era.
    pub(crate) fn era(&self) -> Era {
        self.state.map_or(Era(0), |state| state.era)
    }

    /// The head that is shown when nobody names one.
    pub(crate) fn default_head(&self) -> TreeId {
        let is_default = |item: &TreeItem| item.is_default && is_head(item);
        let default =
            self.items.iter().find(|(tree, item)| is_default(item) && self.branches.contains_key(tree));
        default.map_or(TreeId::MAIN, |(tree, _)| *tree)
    }

    /// Whether batches may put items into the tree.
    pub(crate) fn may_change(&self, tree: TreeId) -> bool {
        let is_live_head = self.items.get(&tree).is_some_and(is_head);
        let changes = if self.state.is_none() { tree == TreeId::MAIN } else { is_live_head };
        self.branches.contains_key(&tree) && (changes || tree == TreeId::VOLUME)
    }

    /// Takes note of a tree item that the log changes. Errors: it cannot be one.
    pub(crate) fn note(&mut self, key: Key, value: Option<&[u8]>) -> Result<(), String> {
        key.check_volume().map_err(|error| error.to_string())?;
        if key.kind == Kind::Policy {
            value.map(Schedule::decode).transpose().map_err(|error| error.to_string())?;
        }
        if key.kind == Kind::TreeInfo {
            let tree = TreeId(key.object.0 as u32);
            match value.map(TreeItem::decode) {
                Some(item) => {
                    let item = item.map_err(|error| error.to_string())?;
                    if !self.may_descend(tree, &item) {
                        return Err(format!("tree {tree} gets a parent that it cannot have"));
                    }
                    self.items.insert(tree, item);
                }
                None => {
                    let gone = self.items.remove(&tree);
                    self.gone.extend(gone.map(|gone| (tree, gone.parent)));
                }
            }
        }
        Ok(())
    }

    /// Whether the log may say this of a tree's parent: it becomes a snapshot that was made of the tree, or the parent
    /// of one that is gone. Else who owned what before would be another question than who owns it now.
    fn may_descend(&self, tree: TreeId, item: &TreeItem) -> bool {
        let parent_of = |tree: &TreeId| {
            let known = self.items.get(tree).map(|item| item.parent);
            known.or_else(|| self.gone.get(tree).copied()).flatten()
        };
        match (self.items.get(&tree), self.made.get(&tree)) {
            (Some(old), _) => {
                let is_of_it = |parent: TreeId| self.made.get(&parent) == Some(&tree);
                let is_handed_on = || old.parent.is_some_and(|parent| parent_of(&parent) == item.parent);
                old.parent == item.parent || item.parent.is_some_and(is_of_it) || is_handed_on()
            }
            (None, Some(source)) if item.role == Role::Snapshot => item.parent == parent_of(source),
            (None, Some(source)) => item.parent == Some(*source),
            (None, None) => true,
        }
    }

    /// The log makes a tree of another one, as it is by now. Errors: it cannot.
    pub(crate) fn make(
        &mut self,
        tree: TreeId,
        (source, role): (Option<TreeId>, Role),
        era: Era,
    ) -> Result<(), &'static str> {
        let (Some(state), Some(source)) = (&mut self.state, source) else {
            return Err("a batch makes a tree of nothing");
        };
        if tree < state.next_tree || self.branches.contains_key(&tree) {
            return Err("a batch makes a tree of a number that was given out already");
        }
        state.era = state.era.max(era);
        state.next_tree = TreeId(tree.0 + 1);
        if !self.may_become(source, role) {
            return Err("a batch makes a tree of one that does not exist, or that it cannot be made of");
        }
        let branch = self.branches[&source].clone();
        self.branches.insert(tree, branch);
        self.made.insert(tree, source);
        Ok(())
    }

    /// Snapshots are made of heads, and heads of snapshots.
    fn may_become(&self, source: TreeId, role: Role) -> bool {
        let is_live_snapshot = |item: &TreeItem| item.role == Role::Snapshot && item.state == TreeState::Live;
        match role {
            Role::Snapshot => source != TreeId::VOLUME && self.may_change(source),
            Role::Head => {
                self.branches.contains_key(&source) && self.items.get(&source).is_some_and(is_live_snapshot)
            }
        }
    }

    /// What is wrong with an operation of a batch behind the checkpoint, if it names a tree that it may not.
    pub(crate) fn refuses(&self, op: &Op<'_>) -> Option<&'static str> {
        match *op {
            Op::Put { tree, .. } | Op::Delete { tree, .. } if !self.may_change(tree) => {
                Some("a batch changes a tree that does not exist, or is a snapshot")
            }
            Op::Image { tree, .. } | Op::Drop { tree, .. }
                if tree == TreeId::VOLUME || !self.branches.contains_key(&tree) =>
            {
                Some("a batch names a tree that does not exist")
            }
            Op::TreeGone { tree } if !self.is_emptied(tree) => {
                Some("a batch ends a tree that the checkpoint still has")
            }
            _ => None,
        }
    }

    /// Whether nothing is left of a tree that goes away but its item.
    fn is_emptied(&self, tree: TreeId) -> bool {
        let all = TreeState::Deleting { cursor: Key::MAX };
        self.items.get(&tree).is_some_and(|item| item.state == all) && !self.branches.contains_key(&tree)
    }

    /// The nearest ancestor that has something: one of which nothing is left stands for its own parent.
    pub(crate) fn parent(&self, tree: TreeId) -> Option<(TreeId, &TreeItem)> {
        let mut parent = self.items.get(&tree)?.parent?;
        // Bounded, though no circle is left where this is asked.
        for _ in 0..self.items.len() {
            let item = self.items.get(&parent)?;
            if self.branches.contains_key(&parent) {
                return Some((parent, item));
            }
            parent = item.parent?;
        }
        None
    }

    /// The trees in an order in which each comes behind the one that it descends from; the volume tree comes first.
    pub(crate) fn order(&self) -> Vec<TreeId> {
        if !self.is_whole {
            // Names can be judged all the same.
            let trees = [TreeId::VOLUME, self.default_head()];
            return trees.into_iter().filter(|tree| self.branches.contains_key(tree)).collect();
        }
        let mut order: Vec<TreeId> = self.branches.keys().copied().collect();
        order.sort_by_key(|tree| match self.items.get(tree) {
            Some(item) => (1 + u8::from(item.role == Role::Head), item.era, *tree),
            None => (0, Era(0), *tree),
        });
        order
    }

    /// Judges the trees as a whole; `false`: who owns what cannot be told.
    pub(crate) fn judge(&self, findings: &mut Findings) -> bool {
        let Some(state) = self.state else { return true };
        let before = findings.total();
        self.judge_roots(findings);
        let mut children: BTreeMap<TreeId, u64> = BTreeMap::new();
        for parent in self.items.values().filter_map(|item| item.parent) {
            *children.entry(parent).or_default() += 1;
        }
        for (tree, item) in &self.items {
            let mut told = |code, message: String| findings.add(code, format!("tree {tree}: {message}"));
            if *tree >= state.next_tree {
                told(Code::TreeNewer, format!("the next one is {}", state.next_tree));
            }
            if item.era >= state.era || item.known >= state.era {
                let newest = item.era.max(item.known);
                told(Code::TreeNewer, format!("era {newest}, but the volume's era is {}", state.era));
            }
            if let Some(message) = self.fault_of_parent(item) {
                told(Code::TreeParent, message);
            }
            let children = children.get(tree).copied().unwrap_or(0);
            if item.state != TreeState::Live && children > 1 {
                told(Code::TreeBranch, format!("{children} trees descend from it"));
            }
        }
        let is_whole = findings.total() == before;
        self.judge_names(findings);
        is_whole
    }

    /// Root tree and volume tree name the same trees. Of a tree that goes away the root goes first.
    fn judge_roots(&self, findings: &mut Findings) {
        for tree in self.branches.keys().filter(|tree| **tree != TreeId::VOLUME) {
            if !self.items.contains_key(tree) {
                findings.add(Code::TreesDiffer, format!("tree {tree} has a root and no item"));
            }
        }
        for tree in self.items.keys() {
            if !self.branches.contains_key(tree) && !self.is_emptied(*tree) {
                findings.add(Code::TreesDiffer, format!("tree {tree} has an item and no root"));
            }
        }
    }

    fn fault_of_parent(&self, item: &TreeItem) -> Option<String> {
        let number = item.parent?;
        match self.items.get(&number) {
            None => Some(format!("its parent {number} does not exist")),
            Some(parent) if parent.role != Role::Snapshot => {
                Some(format!("its parent {number} is no snapshot"))
            }
            Some(parent) if item.role == Role::Snapshot && parent.era >= item.era => {
                Some(format!("its parent {number} has era {}, it has {}", parent.era, item.era))
            }
            Some(parent) if item.role == Role::Head && parent.era > item.known => {
                Some(format!("it does not know of era {} of its parent {number}", parent.era))
            }
            Some(_) => None,
        }
    }

    fn judge_names(&self, findings: &mut Findings) {
        let mut names = BTreeMap::new();
        for (tree, item) in self.items.iter().filter(|(_, item)| !item.name.is_empty()) {
            if let Some(other) = names.insert(&item.name, tree) {
                let message = format!("trees {other} and {tree} are both named {:?}", item.name);
                findings.add(Code::TreeName, message);
            }
        }
        let defaults = self.items.values().filter(|item| item.is_default).count();
        // A hidden one is taken apart by whoever finds it.
        let is_right = |(_, item): (_, &TreeItem)| item.is_default && !item.is_hidden && is_head(item);
        if defaults != 1 || !self.items.iter().any(is_right) {
            let message = format!("{defaults} trees are said to be shown when nobody names one");
            findings.add(Code::DefaultHead, message);
        }
    }
}

pub(crate) fn is_head(item: &TreeItem) -> bool {
    item.role == Role::Head && item.state == TreeState::Live
}

/// What is wrong with the birth of a node that a pointer leads to.
pub(crate) fn fault_of_birth(birth: Era, above: Option<Era>, most: Era) -> Option<String> {
    match above {
        _ if birth > most => Some(format!("born in era {birth}, but its tree ends with {most}")),
        Some(above) if birth > above => Some(format!("born in era {birth}, what names it in {above}")),
        _ => None,
    }
}

/// Reads the root tree: the pointers to the trees.
struct RootTree {
    roots: BTreeMap<TreeId, NodePointer>,
    /// Code, block and message of what is wrong with the root tree.
    damage: Vec<(Code, BlockNo, String)>,
    nodes: Vec<NodePointer>,
    seen: BTreeSet<BlockNo>,
    root: BlockNo,
    /// `None`: version 1.
    era: Option<Era>,
}

impl RootTree {
    fn read(trees: &Trees<'_>, superblock: &Superblock) -> RootTree {
        let mut found = RootTree {
            roots: BTreeMap::new(),
            damage: Vec::new(),
            nodes: Vec::new(),
            seen: BTreeSet::new(),
            root: superblock.root.block,
            era: superblock.trees.map(|state| state.era),
        };
        trees.walk(TreeId::ROOT, &superblock.root, &Overlay::default(), &mut found as &mut dyn Visitor);
        if found.damage.is_empty() {
            for (tree, code) in
                [(TreeId::MAIN, Code::MainTreeMissing), (TreeId::VOLUME, Code::VolumeTreeMissing)]
            {
                // Of version 2 any head may be the one that is shown.
                let is_needed = (tree == TreeId::VOLUME) == superblock.trees.is_some();
                if is_needed && !found.roots.contains_key(&tree) {
                    found.damage.push((code, found.root, format!("no pointer to tree {tree}")));
                }
            }
        }
        found
    }

    /// The tree that an item of this key points to, if there may be such a tree.
    fn tree_of(&self, key: Key) -> Option<TreeId> {
        let tree = TreeId(u32::try_from(key.object.0).ok().filter(|tree| u64::from(*tree) < TREES_MAX)?);
        let is_possible = tree == TreeId::MAIN
            || self.era.is_some() && (tree == TreeId::VOLUME || tree >= TreeId::FIRST_MADE);
        (key == Key::tree(tree) && is_possible).then_some(tree)
    }
}

impl Visitor for RootTree {
    fn node(&mut self, pointer: &NodePointer, place: &Place) -> bool {
        if self.nodes.len() >= ROOT_TREE_NODES_MAX || !self.seen.insert(pointer.block) {
            self.damaged(Code::NodeShared, pointer.block, "the root tree is no tree".into());
            return false;
        }
        let fault = self.era.and_then(|era| fault_of_birth(pointer.birth, place.above, era));
        if let Some(message) = fault {
            self.damaged(Code::BirthBeyond, pointer.block, message);
        }
        self.nodes.push(*pointer);
        true
    }

    fn damaged(&mut self, code: Code, block: BlockNo, message: String) {
        self.damage.push((code, block, message));
    }

    fn item(&mut self, key: Key, value: &[u8], _source: Source) {
        let Some(tree) = self.tree_of(key) else {
            let what = if key.kind == Kind::Tree { "a tree" } else { "an item" };
            let message = format!("{what} with object {} that this version does not know", key.object);
            return self.damaged(Code::RootTreeItem, self.root, message);
        };
        match NodePointer::decode(value) {
            // One more than there are heads and snapshots: the volume tree.
            Ok(pointer) if self.roots.len() <= TREES_AT_A_TIME_MAX => drop(self.roots.insert(tree, pointer)),
            Ok(_) => {
                if self.damage.is_empty() {
                    let message = format!("more than {TREES_AT_A_TIME_MAX}");
                    self.damaged(Code::TreesTooMany, self.root, message);
                }
            }
            Err(error) => {
                let code = if tree == TreeId::MAIN { Code::MainTreeMissing } else { Code::RootTreeItem };
                self.damaged(code, self.root, format!("tree {tree}: {error}"));
            }
        }
    }
}

/// Collects tree items; what is wrong with the volume tree is told by another walk.
#[derive(Default)]
struct ReadItems {
    items: BTreeMap<TreeId, TreeItem>,
    nodes: BTreeSet<BlockNo>,
    is_whole: bool,
    unreadable: Vec<(Key, String)>,
}

impl Visitor for ReadItems {
    fn node(&mut self, pointer: &NodePointer, _place: &Place) -> bool {
        let is_new = self.nodes.insert(pointer.block);
        self.is_whole &= is_new;
        is_new && self.items.len() <= TREES_AT_A_TIME_MAX
    }

    fn damaged(&mut self, _code: Code, _block: BlockNo, _message: String) {
        self.is_whole = false;
    }

    fn item(&mut self, key: Key, value: &[u8], _source: Source) {
        let decoded = key.check_volume().and_then(|()| match key.kind {
            Kind::TreeInfo => TreeItem::decode(value).map(Some),
            Kind::Policy => Schedule::decode(value).map(|_| None),
            _ => Ok(None),
        });
        match decoded {
            Ok(item) => self.items.extend(item.map(|item| (TreeId(key.object.0 as u32), item))),
            Err(error) => {
                self.is_whole = false;
                self.unreadable.push((key, error.to_string()));
            }
        }
    }
}
