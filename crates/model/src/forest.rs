//! Trees (docs/snapshots.md): which there are, whose a block is, and the nodes that they share.
//!
//! A tree is one node. Its *era of birth* is that of its last change; two trees have the same node until one of them
//! changes. A node in memory has no block before a checkpoint is done that writes it, once, whichever tree it belongs
//! to.
//!
//! On a volume without snapshots (version 1) the tree is a part of the node that the superblock names.

use crate::engine::Engine;
use crate::rules::Rule;
use crate::scope::Scope;
use crate::volume::{
    Block, Blocks, Era, FILES, Item, Op, PerPage, Phase, Role, Spot, Stamp, TREES, Tree, bit, spots_in,
};

/// The cursor of a deletion that has dealt with all data.
pub const END: u8 = FILES as u8;

/// A node in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Root {
    pub tree: Tree,
    pub birth: Era,
    /// Where it lies on the device, for good.
    pub home: Option<Block>,
    /// Tells nodes without a home apart; 0 with one.
    pub id: u8,
    /// A checkpoint or a snapshot has it: it is copied before it changes.
    pub frozen: bool,
}

/// Blocks and checksums of pages beside a tree.
pub type Overlay = PerPage<Option<(Block, Stamp)>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Branch {
    pub item: Item,
    /// `None`: all that it had has been given back, only its item is left.
    pub root: Option<Root>,
    /// Pages that stand for what the tree has there (R28).
    pub overlay: Overlay,
}

/// All metadata as of one LSN.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forest {
    pub era: Era,
    /// The lowest number that no tree has had.
    pub next: u8,
    pub branches: [Option<Branch>; TREES],
}

/// Where a tree is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum At {
    /// In the node that the superblock names.
    Here(Tree),
    Block {
        block: Block,
        sum: u64,
        birth: Era,
    },
    Nowhere,
}

/// The node that the superblock names.
#[derive(Debug, Clone, Hash)]
pub struct Stored {
    pub era: Era,
    pub next: u8,
    pub branches: [Option<(Item, At, Overlay)>; TREES],
}

impl Stored {
    pub fn checksum(&self) -> u64 {
        crate::volume::checksum(self)
    }
}

impl Forest {
    /// One head, whose node lies at `home`; without one it is a part of the superblock's node.
    pub fn new(tree: Tree, home: Option<Block>) -> Forest {
        let item = Item { role: Role::Head, phase: Phase::Live, default: true, era: 0, parent: None };
        let id = u8::from(home.is_none());
        let root = Root { tree, birth: 1, home, id, frozen: false };
        let mut branches = [None; TREES];
        branches[0] = Some(Branch { item, root: Some(root), overlay: PerPage::default() });
        Forest { era: 1, next: 1, branches }
    }

    pub fn branch(&self, tree: u8) -> Option<&Branch> {
        self.branches.get(usize::from(tree))?.as_ref()
    }

    pub fn branch_mut(&mut self, tree: u8) -> Option<&mut Branch> {
        self.branches.get_mut(usize::from(tree))?.as_mut()
    }

    pub fn each(&self) -> impl Iterator<Item = (u8, &Branch)> {
        let all = self.branches.iter().enumerate();
        all.filter_map(|(tree, branch)| Some((tree as u8, branch.as_ref()?)))
    }

    pub fn tree(&self, tree: u8) -> Option<&Tree> {
        Some(&self.branch(tree)?.root.as_ref()?.tree)
    }

    /// Trees that people see.
    pub fn shown(&self, role: Role) -> impl Iterator<Item = u8> {
        let shown = move |branch: &Branch| branch.item.role == role && branch.item.phase == Phase::Live;
        self.each().filter(move |(_, branch)| shown(branch)).map(|(tree, _)| tree)
    }

    pub fn default_head(&self) -> Option<u8> {
        self.each()
            .find(|(_, branch)| branch.item.default && branch.item.phase == Phase::Live)
            .map(|found| found.0)
    }

    /// The nearest ancestor that still has something.
    pub fn parent(&self, tree: u8) -> Option<u8> {
        let mut parent = self.branch(tree)?.item.parent?;
        while self.branch(parent)?.root.is_none() {
            parent = self.branch(parent)?.item.parent?;
        }
        Some(parent)
    }

    pub fn children(&self, tree: u8) -> impl Iterator<Item = u8> {
        self.each().filter(move |(_, branch)| branch.item.parent == Some(tree)).map(|(number, _)| number)
    }

    /// The era up to which a tree owns nothing: its parent has all of that.
    pub fn low(&self, tree: u8) -> Era {
        self.parent(tree).and_then(|parent| self.branch(parent)).map_or(0, |parent| parent.item.era)
    }

    /// R25: whether a head frees a block that it lets go of.
    pub fn frees(&self, scope: &Scope, at: Spot, birth: Era) -> bool {
        if birth > self.low(at.tree) || !scope.on(Rule::R25) {
            return true;
        }
        let Some(parent) = self.parent(at.tree) else { return true };
        let cursor = match self.branch(parent).map(|branch| branch.item.phase) {
            Some(Phase::Deleting { cursor }) if scope.on(Rule::Passed) => cursor,
            _ => return false,
        };
        let passed = at.file < cursor || !scope.on(Rule::PassedCursor);
        passed && (birth > self.low(parent) || !scope.on(Rule::PassedEra))
    }

    /// Blocks that somebody has. What a deletion has passed only the others have.
    pub fn blocks(&self) -> Blocks {
        let mut all = 0;
        for (tree, branch) in self.each() {
            all |= branch.overlay.0.iter().flatten().flatten().fold(0, |set, (block, _)| set | bit(*block));
            let Some(root) = &branch.root else { continue };
            all |= root.home.map_or(0, bit);
            let cursor = match branch.item.phase {
                Phase::Deleting { cursor } => cursor,
                _ => 0,
            };
            let left = spots_in(tree).filter(|spot| spot.file >= cursor);
            all |= left
                .filter_map(|spot| root.tree.extents.at(spot).block())
                .fold(0, |set, block| set | bit(block));
        }
        all
    }

    pub fn stored(&self, scope: &Scope, homes: &[(u8, Block)]) -> Stored {
        let place = |root: &Root| match root.home.or_else(|| home_of(homes, root.id)) {
            Some(block) if scope.trees => At::Block { block, sum: root.tree.checksum(), birth: root.birth },
            _ => At::Here(root.tree),
        };
        let branches = self.branches.map(|branch| {
            let branch = branch?;
            Some((branch.item, branch.root.as_ref().map_or(At::Nowhere, place), branch.overlay))
        });
        Stored { era: self.era, next: self.next, branches }
    }

    /// Nodes that have no home, each once.
    pub fn homeless(&self) -> Vec<(u8, Tree)> {
        let mut found: Vec<(u8, Tree)> = Vec::new();
        for root in self.each().filter_map(|(_, branch)| branch.root) {
            if root.home.is_none() && found.iter().all(|(id, _)| *id != root.id) {
                found.push((root.id, root.tree));
            }
        }
        found
    }

    /// From here on all nodes are copied before they change.
    pub fn freeze(&mut self) {
        self.branches
            .iter_mut()
            .flatten()
            .filter_map(|branch| branch.root.as_mut())
            .for_each(|root| root.frozen = true);
    }
}

pub fn home_of(homes: &[(u8, Block)], id: u8) -> Option<Block> {
    homes.iter().find(|(of, _)| *of == id && id != 0).map(|(_, block)| *block)
}

impl Engine {
    /// The filesystem on which callers work.
    pub fn tree(&self) -> &Tree {
        self.forest.tree(self.head).expect("the head is there")
    }

    /// Makes a tree's node one that may change: a copy, if somebody else has it (R23). The old one is freed with the
    /// next checkpoint, if the tree owns it (R25).
    pub fn edit(&mut self, scope: &Scope, tree: u8, change: impl Fn(&mut Tree)) {
        let (era, low, id) = (self.forest.era, self.forest.low(tree), self.unused_id());
        let Some(Branch { root: Some(root), .. }) = self.forest.branch_mut(tree) else { return };
        if !scope.trees {
            change(&mut root.tree);
            return;
        }
        if root.home.is_none() && !root.frozen {
            let id = root.id;
            // Whoever shares it sees the change.
            let sharing = self.forest.branches.iter_mut().flatten().filter_map(|branch| branch.root.as_mut());
            for root in sharing.filter(|root| root.home.is_none() && root.id == id) {
                root.birth = era;
                change(&mut root.tree);
            }
            return;
        }
        let owned = root.birth > low || !scope.on(Rule::OwnNodes);
        match root.home {
            Some(block) if owned => self.superseded |= bit(block),
            None if owned => self.superseded_ids.push(root.id),
            _ => {}
        }
        *root = Root { tree: root.tree, birth: era, home: None, id, frozen: false };
        change(&mut root.tree);
    }

    fn unused_id(&self) -> u8 {
        let running = self.checkpoint.as_ref().map(|running| &running.forest);
        let roots = [Some(&self.forest), running].into_iter().flatten().flat_map(|forest| forest.each());
        let taken: Vec<u8> = roots.filter_map(|(_, branch)| Some(branch.root.as_ref()?.id)).collect();
        (1..).find(|id| !taken.contains(id) && !self.superseded_ids.contains(id)).expect("nodes are few")
    }

    /// What a batch says of trees as such.
    pub fn apply_trees(&mut self, scope: &Scope, op: &Op) {
        match *op {
            Op::Make { tree, of, era } => {
                let Some(mut branch) = self.forest.branch(of).copied() else { return };
                if scope.on(Rule::Freeze)
                    && let Some(root) = self.forest.branch_mut(of).and_then(|of| of.root.as_mut())
                {
                    root.frozen = true;
                    branch.root = Some(*root);
                }
                branch.overlay = PerPage::default();
                branch.item.default = false;
                self.forest.branches[usize::from(tree)] = Some(branch);
                self.forest.era = self.forest.era.max(era);
                self.forest.next = self.forest.next.max(tree + 1);
            }
            Op::Item { tree, item: Some(item) } => {
                if let Some(branch) = self.forest.branch_mut(tree) {
                    branch.item = item;
                }
            }
            Op::Item { tree, item: None } => {
                self.forest.branches[usize::from(tree)] = None;
                self.pages.0[usize::from(tree)] = PerPage::default();
            }
            Op::Overlay { spot, page } => {
                if let Some(branch) = self.forest.branch_mut(spot.tree) {
                    *branch.overlay.at_mut(spot) = page;
                }
            }
            _ => {}
        }
    }

    /// R22: the images that live in one tree live in another one as well.
    pub fn inherit(&mut self, from: u8, to: u8) {
        for spot in spots_in(from) {
            let page = self.pages.at(spot).and_then(|page| {
                let image = page.image?;
                Some(crate::engine::Page {
                    content: page.logged,
                    logged: page.logged,
                    dirty: false,
                    image: Some(image),
                })
            });
            *self.pages.at_mut(spot.of(to)) = page;
        }
    }
}
