//! The trees of a volume in memory: their roots, what they are, and who owns what they share.
//!
//! A volume of version 1 has one filesystem. From version 2 on there are snapshots too, which share nodes and blocks
//! with the head that they were made of. Nothing is counted. Each node and each extent bears the *era* of its birth,
//! and a snapshot ends an era. So a head owns what was born behind its newest snapshot, its parent, and may free that
//! and nothing else (R25): whatever is older, the parent has as well.
//!
//! Changes of tree items take effect here at once, in the order of the log: who owns what depends on them.

use crate::StoreError;
use crate::images::ImageIndex;
use crate::limits::NARROW_LEVELS;
use crate::tree::{Editor, Resident, Root, Superseded, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use syncline_format::batch::{BatchBuf, Mark, Op, Outcome};
use syncline_format::range::{ERA_MAX, TREES_MAX as NUMBERS_MAX};
use syncline_format::schedule::Schedule;
use syncline_format::superblock::TreesState;
use syncline_format::tree_item::{Role, TreeItem, TreeState};
use syncline_format::{BlockNo, Era, FormatError, Generation, Key, Kind, Lsn, TreeId};

/// What the trees' lock guards.
pub(crate) struct Trees {
    /// The filesystems and, of version 2, the volume tree.
    by_number: BTreeMap<TreeId, Tree>,
    /// Those that may change: the heads and the volume tree.
    changing: Vec<TreeId>,
    /// What the trees are; of version 2 only.
    pub(crate) branches: Option<Branches>,
    /// Number of the newest freeze or snapshot.
    freeze: u64,
    /// Nodes that left a tree and have (or will have) a home to be freed at the next freeze.
    pub(crate) superseded: Vec<Superseded>,
    /// The nodes of trees that were taken apart since the last freeze, to be freed at the next one. As they were found:
    /// they are many.
    pub(crate) emptied: Vec<BTreeSet<BlockNo>>,
    /// Generation of the newest freeze, and of the one that holds all that deletions have given back so far.
    pub(crate) frozen: Generation,
    pub(crate) given_back_by: Generation,
    pub(crate) current_nodes: u64,
    pub(crate) images: ImageIndex,
    /// LSN of the newest applied batch.
    pub(crate) lsn: Lsn,
    /// Chunks claimed for the root tree since the last freeze, because trees were made.
    pub(crate) root_claims: u64,
    /// Chunks that one more tree needs there.
    pub(crate) root_bound: u64,
    /// The nodes of a tree that goes away are being looked for.
    pub(crate) node_walk: Option<NodeWalk>,
    /// Nodes of few items are full: what splits may make a tree grow by more levels than one, and split more nodes of
    /// the upper ones.
    is_narrow: bool,
}

/// The last part of a deletion: the nodes of a tree that no other tree has.
pub(crate) struct NodeWalk {
    pub(crate) tree: TreeId,
    /// The tree that descends from it, and goes on changing if it is a head.
    pub(crate) child: Option<TreeId>,
    /// The era of its parent, which has all that is older.
    pub(crate) low: Option<Era>,
    /// Found so far; also what the child has let go of since the walk began.
    pub(crate) lost: BTreeSet<BlockNo>,
    /// What lies before this key has been looked at.
    pub(crate) at: Key,
}

/// What trees there are.
pub(crate) struct Branches {
    pub(crate) items: BTreeMap<TreeId, TreeItem>,
    /// Of these, those that have names.
    names: HashMap<String, TreeId>,
    pub(crate) state: TreesState,
    /// The schedule of snapshots, if there is one.
    pub(crate) schedule: Option<Arc<Schedule>>,
    /// Snapshots whose inherited images are not settled yet.
    pub(crate) inherited: BTreeMap<TreeId, Inherited>,
    /// How many read a tree, which is not taken apart meanwhile (R27).
    pub(crate) readers: BTreeMap<TreeId, usize>,
    /// Changes when a name comes, goes, or changes hands.
    pub(crate) naming: u64,
}

/// Images that a snapshot has from its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// The head, which the journal's records name.
    pub(crate) source: TreeId,
    /// Blocks that are reserved for them.
    pub(crate) reserved: u64,
}

impl Branches {
    pub(crate) fn new(state: TreesState) -> Branches {
        Branches {
            items: BTreeMap::new(),
            names: HashMap::new(),
            state,
            schedule: None,
            inherited: BTreeMap::new(),
            readers: BTreeMap::new(),
            naming: 0,
        }
    }

    /// The head or snapshot of a name.
    pub(crate) fn named(&self, name: &str) -> Option<TreeId> {
        self.names.get(name).copied()
    }

    /// The numbers of eras or of trees have come to their end.
    pub(crate) fn is_worn(&self) -> bool {
        let state = self.state;
        u64::from(state.era.0) >= ERA_MAX || u64::from(state.next_tree.0) >= NUMBERS_MAX
    }

    /// The parent that still has something: one of which all is given back stands for its own parent.
    fn parent(&self, tree: TreeId, trees: &BTreeMap<TreeId, Tree>) -> Option<(TreeId, &TreeItem)> {
        let mut parent = self.items.get(&tree)?.parent?;
        // Bounded: this is asked before anybody has looked whether parents form a circle.
        for _ in 0..self.items.len() {
            let item = self.items.get(&parent)?;
            if trees.contains_key(&parent) {
                return Some((parent, item));
            }
            parent = item.parent?;
        }
        None
    }

    /// The era up to which the tree owns nothing. A parent that does not exist owns nothing, and whoever frees what it
    /// had is told by the bitmaps.
    fn low(&self, tree: TreeId, trees: &BTreeMap<TreeId, Tree>) -> Option<Era> {
        self.parent(tree, trees).map(|(_, parent)| parent.era)
    }

    /// The tree's parent goes away: what lies before this key, and was born behind that era, is the tree's already.
    fn passed(&self, tree: TreeId, trees: &BTreeMap<TreeId, Tree>) -> Option<(Key, Option<Era>)> {
        let (number, parent) = self.parent(tree, trees)?;
        match parent.state {
            TreeState::Deleting { cursor } => Some((cursor, self.low(number, trees))),
            TreeState::Live => None,
        }
    }

    /// The trees that descend from this one.
    pub(crate) fn children(&self, tree: TreeId) -> impl Iterator<Item = TreeId> {
        let descends = move |item: &TreeItem| item.parent == Some(tree);
        self.items.iter().filter(move |(_, item)| descends(item)).map(|(number, _)| *number)
    }

    /// What is wrong with the items, if anything: each filesystem has one, and parents are snapshots of lower eras.
    fn fault(&self, trees: &BTreeMap<TreeId, Tree>) -> Option<&'static str> {
        let state = self.state;
        // Of a tree that goes away the root goes first.
        let may_lack_root = |item: &TreeItem| item.state == TreeState::Deleting { cursor: Key::MAX };
        let has_root =
            |(number, item): &(&TreeId, &TreeItem)| trees.contains_key(number) || !may_lack_root(item);
        let filesystems = trees.keys().filter(|tree| tree.is_filesystem());
        if !filesystems.eq(self.items.iter().filter(has_root).map(|(number, _)| number)) {
            return Some("the volume tree and the root tree name other trees");
        }
        for (number, item) in &self.items {
            if *number >= state.next_tree || item.era >= state.era || item.known >= state.era {
                return Some("a tree is newer than the volume");
            }
            let Some(parent) = item.parent else { continue };
            match self.items.get(&parent) {
                Some(parent) if parent.role != Role::Snapshot => {
                    return Some("a tree descends from one that is no snapshot");
                }
                Some(parent) if item.role == Role::Snapshot && parent.era >= item.era => {
                    return Some("a snapshot descends from a newer one");
                }
                Some(parent) if item.role == Role::Head && parent.era > item.known => {
                    return Some("a head does not know of the era that its parent ended");
                }
                Some(_) => {}
                None => return Some("a tree descends from one that does not exist"),
            }
        }
        let mut names = BTreeSet::new();
        let mut named = self.items.values().map(|item| &item.name).filter(|name| !name.is_empty());
        if !named.all(|name| names.insert(name)) {
            return Some("two trees have the same name");
        }
        let is_branch = |tree: &TreeId| self.children(*tree).nth(1).is_some();
        let is_going = |item: &TreeItem| item.state != TreeState::Live;
        self.items
            .iter()
            .any(|(number, item)| is_going(item) && is_branch(number))
            .then_some("a tree is deleted although two descend from it")
    }
}

impl Trees {
    pub(crate) fn new(roots: BTreeMap<TreeId, Root>, branches: Option<Branches>, lsn: Lsn) -> Trees {
        let mut trees = Trees {
            by_number: BTreeMap::new(),
            changing: Vec::new(),
            branches,
            freeze: 1,
            superseded: Vec::new(),
            emptied: Vec::new(),
            frozen: Generation(0),
            given_back_by: Generation(0),
            current_nodes: 0,
            images: ImageIndex::default(),
            lsn,
            root_claims: 0,
            root_bound: 0,
            node_walk: None,
            is_narrow: false,
        };
        for (number, root) in roots {
            trees.by_number.insert(number, Tree::new(number, root, trees.freeze));
        }
        trees.changing = trees.by_number.keys().copied().collect();
        trees
    }

    /// The tree of that number.
    pub(crate) fn tree(&self, tree: TreeId) -> Result<&Tree, StoreError> {
        self.by_number.get(&tree).ok_or(StoreError::NoTree { tree })
    }

    /// The same, if it may be changed.
    pub(crate) fn changing_tree(&self, tree: TreeId) -> Result<&Tree, StoreError> {
        match self.changing.contains(&tree) {
            true => self.tree(tree),
            false => Err(self.tree(tree).err().unwrap_or(StoreError::NotAHead { tree })),
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = (TreeId, &Tree)> {
        self.by_number.iter().map(|(number, tree)| (*number, tree))
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Tree> {
        self.by_number.values_mut()
    }

    /// The tree, to be changed.
    pub(crate) fn editor<'a>(
        &'a mut self,
        tree: TreeId,
        resident: &'a dyn Resident,
    ) -> Result<(&'a mut Tree, Editor<'a>), StoreError> {
        let birth = self.era();
        let Trees { by_number, superseded, current_nodes, node_walk, .. } = self;
        let lost = node_walk.as_mut().filter(|walk| walk.child == Some(tree));
        let lost = lost.map(|walk| (walk.low, &mut walk.lost));
        let tree = by_number.get_mut(&tree).ok_or(StoreError::NoTree { tree })?;
        let (freeze, low, items_max) = (tree.freeze, tree.low, tree.items_max);
        let editor = Editor { resident, freeze, birth, low, items_max, superseded, current_nodes, lost };
        Ok((tree, editor))
    }

    /// What is made now is born in this era.
    pub(crate) fn era(&self) -> Era {
        self.branches.as_ref().map_or(Era(0), |branches| branches.state.era)
    }

    /// Bound on the nodes that `items` puts and deletes of one tree can make current.
    pub(crate) fn nodes_bound(&self, items: usize) -> u64 {
        let levels = self.changing.iter().filter_map(|tree| self.by_number.get(tree)).map(Tree::root_level);
        let more = if self.is_narrow { NARROW_LEVELS } else { 0 };
        crate::tree::nodes_bound(levels.max().unwrap_or(0) + more, items)
    }

    /// Nodes of heads and snapshots take so many items and no more.
    pub(crate) fn narrow(&mut self, items_max: usize) {
        self.is_narrow = items_max < usize::MAX;
        let of_files = self.by_number.iter_mut().filter(|(number, _)| number.is_filesystem());
        of_files.for_each(|(_, tree)| tree.items_max = items_max);
    }

    /// The same of the volume tree.
    pub(crate) fn volume_nodes_bound(&self, items: usize) -> u64 {
        let level = self.by_number.get(&TreeId::VOLUME).map_or(0, Tree::root_level);
        crate::tree::nodes_bound(level, items)
    }

    /// Trees of which each checkpoint may name a new root.
    pub(crate) fn changing(&self) -> &[TreeId] {
        &self.changing
    }

    /// Everything in memory is part of a checkpoint or a snapshot from here on: the trees copy before they change.
    pub(crate) fn freeze(&mut self) {
        self.freeze += 1;
        for tree in self.by_number.values_mut() {
            tree.freeze = self.freeze;
        }
    }

    /// Writes into the batch, and its bytes as `laid` out, what depends on the snapshots that there are (R23, R24).
    pub(crate) fn decide(
        &self,
        batch: &mut crate::Batch,
        mut laid: Option<&mut [u8]>,
    ) -> Result<(), StoreError> {
        let Some(branches) = &self.branches else { return Ok(()) };
        let low = self.tree(batch.tree)?.low;
        let passed = branches.passed(batch.tree, &self.by_number);
        let mut write = |ops: &mut BatchBuf, at: Mark, bytes: &[u8]| {
            ops.overwrite(at, bytes);
            if let Some(laid) = &mut laid {
                laid[at.in_encoded()..at.in_encoded() + bytes.len()].copy_from_slice(bytes);
            }
        };
        if batch.moved.iter().any(|birth| low.is_some_and(|low| *birth <= low)) {
            return Err(StoreError::SharedBlocks);
        }
        let era = branches.state.era.0.to_le_bytes();
        for at in &batch.births {
            write(&mut batch.ops, *at, &era);
        }
        for (at, key, birth) in &batch.releases {
            let is_behind = |low: Option<Era>| low.is_none_or(|low| *birth > low);
            let is_passed = |(cursor, low): (Key, Option<Era>)| *key < cursor && is_behind(low);
            let is_owned = is_behind(low) || passed.is_some_and(is_passed);
            batch.frees |= is_owned;
            let outcome = if is_owned { Outcome::Free } else { Outcome::Left };
            write(&mut batch.ops, *at, &[outcome as u8]);
        }
        Ok(())
    }

    /// The tree's parent that still has something.
    pub(crate) fn parent_of(&self, tree: TreeId) -> Option<TreeId> {
        let branches = self.branches.as_ref()?;
        branches.parent(tree, &self.by_number).map(|(parent, _)| parent)
    }

    /// Whether the tree may write into blocks that an extent of this birth names (R25).
    pub(crate) fn owns(&self, tree: TreeId, birth: Era) -> Result<bool, StoreError> {
        Ok(self.tree(tree)?.low.is_none_or(|low| birth > low))
    }

    /// Whether a tree of this number may be made next.
    pub(crate) fn is_next(&self, tree: TreeId) -> bool {
        let next = self.branches.as_ref().map(|branches| branches.state.next_tree);
        next.is_some_and(|next| tree >= next) && !self.by_number.contains_key(&tree)
    }

    /// A tree comes to be, as its source is now, with the images that live there (R22); the source's nodes do not
    /// change any more (R23).
    pub(crate) fn make(
        &mut self,
        tree: TreeId,
        source: TreeId,
        role: Role,
        era: Era,
    ) -> Result<(), StoreError> {
        self.freeze += 1;
        let freeze = self.freeze;
        let of = self.by_number.get_mut(&source).ok_or(StoreError::NoTree { tree: source })?;
        of.freeze = freeze;
        let (root, items_max) = (of.root.clone(), of.items_max);
        self.root_claims += self.root_bound;
        self.by_number.insert(tree, Tree { items_max, ..Tree::new(tree, root, freeze) });
        self.images.inherit(source, tree);
        let takes_its_place = |walk: &&mut NodeWalk| role == Role::Snapshot && walk.child == Some(source);
        if let Some(walk) = self.node_walk.as_mut().filter(takes_its_place) {
            // It has what its source has, and keeps that; the source lets go of nothing any more. A clone's source
            // never did, and what the clone lets go of the source still has.
            walk.child = Some(tree);
        }
        if let Some(branches) = &mut self.branches {
            let state = &mut branches.state;
            state.era = state.era.max(era);
            state.next_tree = state.next_tree.max(TreeId(tree.0 + 1));
        }
        Ok(())
    }

    /// All nodes of a tree are given back that no other has: it has no root any more, and what its child shares with it
    /// is the child's. Returns the chunks that the root tree may need for that.
    pub(crate) fn empty(&mut self, walk: NodeWalk) -> u64 {
        if !walk.lost.is_empty() {
            self.emptied.push(walk.lost);
            self.given_back_by = self.frozen.next();
        }
        self.by_number.remove(&walk.tree);
        if let Some(branches) = &self.branches {
            for child in branches.children(walk.tree) {
                let low = branches.low(child, &self.by_number);
                if let Some(tree) = self.by_number.get_mut(&child) {
                    tree.low = low;
                }
            }
        }
        self.root_claims += self.root_bound;
        self.root_bound
    }

    /// Whether nothing is left of a tree that goes away but its item.
    pub(crate) fn is_emptied(&self, tree: TreeId) -> bool {
        let item = self.branches.as_ref().and_then(|branches| branches.items.get(&tree));
        item.is_some_and(|item| item.state == TreeState::Deleting { cursor: Key::MAX })
            && !self.by_number.contains_key(&tree)
    }

    /// Takes note of an item of the volume tree that changes; `None`: it is deleted.
    pub(crate) fn note(&mut self, key: Key, value: Option<&[u8]>) -> Result<(), FormatError> {
        let Some(branches) = self.branches.as_mut() else { return Ok(()) };
        key.check_volume()?;
        match key.kind {
            Kind::TreeInfo => {}
            Kind::Policy => {
                branches.schedule = value.map(Schedule::decode).transpose()?.map(Arc::new);
                return Ok(());
            }
            _ => return Ok(()),
        }
        let tree = TreeId(key.object.0 as u32);
        let before = match value {
            Some(value) => branches.items.insert(tree, TreeItem::decode(value)?),
            None => branches.items.remove(&tree),
        };
        let before = before.map(|item| item.name).unwrap_or_default();
        let name = branches.items.get(&tree).map(|item| item.name.as_str()).unwrap_or_default();
        if before != name {
            branches.naming += 1;
            // Two trees that have changed names have each other's by now.
            if branches.names.get(&before) == Some(&tree) {
                branches.names.remove(&before);
            }
            if !name.is_empty() {
                branches.names.insert(name.to_owned(), tree);
            }
        }
        // A parent's item comes before those of its children, and its era stays.
        let low = branches.low(tree, &self.by_number);
        let changes = branches.items.get(&tree).is_some_and(changes);
        if let Some(tree) = self.by_number.get_mut(&tree) {
            tree.low = low;
        }
        self.changing.retain(|changing| *changing != tree);
        self.changing.extend(Some(tree).filter(|_| changes));
        Ok(())
    }

    /// Takes over the items of the volume tree, as they are stored.
    pub(crate) fn load(&mut self, items: BTreeMap<TreeId, TreeItem>, schedule: Option<Schedule>) {
        let Some(branches) = &mut self.branches else { return };
        let named = items.iter().filter(|(_, item)| !item.name.is_empty());
        branches.names = named.map(|(number, item)| (item.name.clone(), *number)).collect();
        branches.items = items;
        branches.schedule = schedule.map(Arc::new);
        let numbers: Vec<TreeId> = self.by_number.keys().copied().collect();
        for number in numbers {
            let low = branches.low(number, &self.by_number);
            if let Some(tree) = self.by_number.get_mut(&number) {
                tree.low = low;
            }
        }
        let heads = branches.items.iter().filter(|(_, item)| changes(item));
        self.changing = heads.map(|(number, _)| *number).chain([TreeId::VOLUME]).collect();
    }

    /// The head that is shown when nobody names one.
    pub(crate) fn default_head(&self) -> Option<TreeId> {
        let Some(branches) = &self.branches else { return Some(TreeId::MAIN) };
        let is_default = |(number, item): &(&TreeId, &TreeItem)| {
            item.is_default && !item.is_hidden && changes(item) && self.by_number.contains_key(number)
        };
        branches.items.iter().find(is_default).map(|(number, _)| *number)
    }

    /// What is wrong with the trees as a whole.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_later = |tree: &Tree| match &tree.root {
            Root::Clean(root) => root.birth > self.era(),
            Root::Held(_) => false,
        };
        if self.branches.is_some() && self.by_number.values().any(is_later) {
            return Some("a tree was born later than the volume has come");
        }
        let fault = self.branches.as_ref().and_then(|branches| branches.fault(&self.by_number));
        let is_there = |tree: TreeId| self.by_number.contains_key(&tree);
        let none = self.default_head().is_none().then_some("no head is shown when nobody names one");
        fault.or(none).or_else(|| {
            self.images
                .trees()
                .any(|tree| !is_there(tree))
                .then_some("an image is of a tree that does not exist")
        })
    }
}

impl Trees {
    /// Applies everything of a batch but its space operations. Its tree has been looked up before.
    pub(crate) fn apply_items(&mut self, batch: &crate::Batch, resident: &dyn Resident, lsn: Lsn) {
        for op in batch.ops.iter() {
            match op {
                Op::Put { key, value, .. } => {
                    let (tree, mut editor) = self.editor(batch.tree, resident).expect("the tree is there");
                    tree.put(key, value, &mut editor);
                    if batch.tree == TreeId::VOLUME {
                        self.note(key, Some(value)).expect("a tree item is encoded before it is put");
                    }
                }
                Op::Delete { key, .. } => {
                    let (tree, mut editor) = self.editor(batch.tree, resident).expect("the tree is there");
                    tree.delete(key, &mut editor);
                    if batch.tree == TreeId::VOLUME {
                        self.note(key, None).expect("nothing has to be decoded");
                    }
                }
                Op::Image { tree, object, page, .. } => self.images.insert(tree, object, page, lsn),
                Op::Drop { tree, object, first, end } => self.images.drop_range(tree, object, first, end),
                Op::Allocate { .. } | Op::Free { .. } | Op::Release { .. } => {}
                Op::MakeTree { tree, source, role, era } => {
                    let source = source.expect("no tree is made empty so far");
                    self.make(tree, source, role, era).expect("the source is there");
                }
                Op::TreeGone { tree } => self.images.drop_tree(tree),
            }
        }
    }
}

/// Whether a tree changes.
fn changes(item: &TreeItem) -> bool {
    item.role == Role::Head && item.state == TreeState::Live
}
