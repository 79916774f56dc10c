//! One complete look at a volume as recovery would leave it.

use crate::Code;
use crate::block_map::BlockMap;
use crate::data::DataCheck;
use crate::facts::Facts;
use crate::forest::{Branch, Forest, is_head};
use crate::items::ItemCheck;
use crate::lost::Lost;
use crate::marks::Marks;
use crate::names::{DirentCheck, NameCheck, NameFault};
use crate::owner::Owner;
use crate::paths;
use crate::progress::{Phase, Reporter};
use crate::replay::Replay;
use crate::report::{Findings, Totals};
use crate::space::SpaceCheck;
use crate::volume_tree::VolumeCheck;
use crate::walk::{Trees, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use syncline_device::Device;
use syncline_format::item::DirentItem;
use syncline_format::node::NodePointer;
use syncline_format::superblock::Superblock;
use syncline_format::tree_item::{TreeItem, TreeState};
use syncline_format::{Key, ObjectNo, TreeId};

/// What the look is at, and how close.
pub(crate) struct Subject<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) superblock: &'a Superblock,
    pub(crate) replay: &'a Replay,
    /// Read and verify file data.
    pub(crate) data: bool,
    /// Of these objects alone.
    pub(crate) only: Option<&'a BTreeSet<ObjectNo>>,
    /// Judge names, links and sizes in each snapshot too, and not only in the default head.
    pub(crate) all: bool,
}

/// What was learned beside the findings.
pub(crate) struct Analysis {
    /// The root of the default head; of version 1 the main tree's.
    pub(crate) main: Option<NodePointer>,
    /// Of the default head.
    pub(crate) facts: Facts,
    /// Of other heads, and of snapshots that are mended, with the faults of their names.
    pub(crate) others: BTreeMap<TreeId, (Facts, NameFaults)>,
    /// Of all trees.
    pub(crate) nodes: BlockMap,
    pub(crate) data: BlockMap,
    /// Nodes of heads and snapshots that could not be read.
    pub(crate) lost: BTreeMap<TreeId, Lost>,
    /// What else is in use on the volume as it is: that of what is given up.
    pub(crate) kept: Vec<BlockMap>,
    pub(crate) name_faults: NameFaults,
}

pub(crate) type NameFaults = BTreeMap<Key, (DirentItem, NameFault)>;

/// What a look at one tree goes on.
struct Look<'l> {
    findings: &'l mut Findings,
    totals: &'l mut Totals,
    progress: &'l mut Reporter,
    marks: Marks,
}

impl Subject<'_> {
    fn forest(&self) -> &Forest {
        &self.replay.forest
    }

    fn trees(&self) -> Trees<'_> {
        Trees::new(self.device, self.superblock, &self.replay.given_up)
    }

    /// Walks the trees and judges items and names, but not the bitmaps.
    pub(crate) fn look(
        &self,
        findings: &mut Findings,
        totals: &mut Totals,
        progress: &mut Reporter,
    ) -> Analysis {
        let mut look = Look { findings, totals, progress, marks: Marks::new(self.superblock.layout) };
        for node in &self.forest().root_nodes {
            look.marks.node(node, look.findings, look.totals);
        }
        let default = self.forest().default_head();
        let (mut facts, mut name_faults) = Default::default();
        let (mut others, mut lost) = (BTreeMap::new(), BTreeMap::new());
        for tree in self.forest().order() {
            let branch = &self.forest().branches[&tree];
            let is_mended = self.replay.is_mended(tree);
            let may_change = tree == TreeId::VOLUME || self.forest().may_change(tree) || is_mended;
            match self.forest().state.is_none() || may_change {
                true => look.findings.within(self.name_of(tree)),
                false => look.findings.within_fixed(self.name_of(tree)),
            }
            if tree == TreeId::VOLUME {
                self.look_at_volume_tree(branch, &mut look);
                continue;
            }
            let in_full = tree == default || self.is_judged_in_full(tree);
            let (found, leaves) = self.look_at_tree(tree, branch, in_full, &mut look);
            let is_whole = leaves.is_empty();
            if !is_whole {
                lost.insert(tree, leaves);
            }
            if !in_full {
                crate::names::judge_next_object(self.superblock, &found, look.findings);
                continue;
            }
            look.progress.report(Phase::Names, 0, found.inodes.len() as u64);
            let faults = self.judge_names(tree, branch, (&found, is_whole), look.findings);
            if tree == default {
                (facts, name_faults) = (found, faults);
            } else {
                let what = (self.name_of(tree), tree);
                paths::add(&self.trees(), what, branch, &found, look.findings);
                if may_change {
                    others.insert(tree, (found, faults));
                }
            }
        }
        look.findings.within(None);
        if !self.forest().branches.contains_key(&default) {
            // Nothing of it is there, its root directory neither.
            self.judge_without_tree(look.findings);
        }
        let main = self.forest().branches.get(&default).map(|branch| branch.root);
        let Marks { nodes, data, .. } = look.marks;
        look.totals.blocks_used = nodes.len() + data.len();
        Analysis { main, facts, others, nodes, data, lost, kept: Vec::new(), name_faults }
    }

    fn data_check<'l>(&'l self, progress: &'l mut Reporter) -> DataCheck<'l> {
        DataCheck { device: self.device, wanted: self.data, only: self.only, progress }
    }

    /// How findings call a tree: of version 1 there is only one.
    fn name_of(&self, tree: TreeId) -> Option<TreeId> {
        self.forest().state.map(|_| tree)
    }

    fn is_judged_in_full(&self, tree: TreeId) -> bool {
        let item = self.forest().items.get(&tree);
        let is_shown = |item: &TreeItem| item.state == TreeState::Live && !item.is_hidden;
        item.is_some_and(|item| is_head(item) || (self.all || self.replay.is_mended(tree)) && is_shown(item))
    }

    fn look_at_volume_tree(&self, branch: &Branch, look: &mut Look<'_>) {
        let mut check = VolumeCheck {
            superblock: self.superblock,
            forest: self.forest(),
            findings: look.findings,
            totals: look.totals,
            marks: &mut look.marks,
            verify: self.data_check(look.progress),
            overlay: (TreeId::ROOT, Vec::new()),
        };
        self.trees().walk(TreeId::VOLUME, &branch.root, &branch.overlay, &mut check as &mut dyn Visitor);
        // All others the walk has met.
        for (key, why) in self.forest().unreadable.iter().filter(|(key, _)| branch.overlay.speaks_of(*key)) {
            check.unreadable(*key, why);
        }
    }

    fn look_at_tree(
        &self,
        tree: TreeId,
        branch: &Branch,
        in_full: bool,
        look: &mut Look<'_>,
    ) -> (Facts, Lost) {
        look.totals.trees += 1;
        let owner = Owner::new(tree, self.replay, self.trees());
        let verify = self.data_check(look.progress);
        let told = (&mut *look.findings, &mut *look.totals);
        let mut check = ItemCheck::new(self.superblock, (owner, in_full), told, &mut look.marks, verify);
        self.trees().walk(tree, &branch.root, &branch.overlay, &mut check as &mut dyn Visitor);
        check.finish()
    }

    /// What is left of a tree, and its files with content beyond their sizes.
    pub(crate) fn facts_of(&self, tree: TreeId, progress: &mut Reporter) -> (Facts, BTreeSet<ObjectNo>) {
        let (mut findings, mut totals) = (Findings::default(), Totals::default());
        let marks = Marks::new(self.superblock.layout);
        let mut look = Look { findings: &mut findings, totals: &mut totals, progress, marks };
        let (facts, _) = self.look_at_tree(tree, &self.forest().branches[&tree], true, &mut look);
        (facts, findings.objects_with(Code::ExtentBeyondSize))
    }

    fn judge_without_tree(&self, findings: &mut Findings) {
        let facts = Facts::default();
        let mut names = NameCheck { facts: &facts, findings, incomplete: true };
        names.run(self.superblock, self.replay, TreeId::MAIN);
    }

    fn judge_names(
        &self,
        tree: TreeId,
        branch: &Branch,
        (facts, is_whole): (&Facts, bool),
        findings: &mut Findings,
    ) -> NameFaults {
        let incomplete = is_incomplete(findings) || !is_whole;
        let mut names = NameCheck { facts, findings, incomplete };
        names.run(self.superblock, self.replay, tree);
        let Some(mut second) = DirentCheck::needed(facts).filter(|_| !incomplete) else {
            return BTreeMap::new();
        };
        self.trees().walk(tree, &branch.root, &branch.overlay, &mut second as &mut dyn Visitor);
        second.report(findings);
        second.faults
    }

    /// Adds to each finding of the default head where its inode is, as far as names lead to it.
    pub(crate) fn tell_paths(&self, analysis: &Analysis, findings: &mut Findings) {
        let tree = self.forest().default_head();
        if let Some(branch) = self.forest().branches.get(&tree) {
            let what = (self.name_of(tree), tree);
            paths::add(&self.trees(), what, branch, &analysis.facts, findings);
        }
    }

    /// Compares the bitmaps with what `look` found in use.
    pub(crate) fn compare_bitmaps(
        &self,
        analysis: &Analysis,
        findings: &mut Findings,
        progress: &mut Reporter,
    ) {
        // What was in a node that is given up may own the blocks that belong to nothing now.
        let any_lost = !analysis.lost.is_empty() || !self.replay.given_up.is_empty();
        let incomplete = is_incomplete(findings) || any_lost;
        let space = SpaceCheck {
            device: self.device,
            superblock: self.superblock,
            replay: self.replay,
            nodes: &analysis.nodes,
            data: &analysis.data,
            incomplete,
        };
        space.run(findings, progress);
    }
}

/// Whether something could not be read, so that what seems to be missing may be there.
fn is_incomplete(findings: &Findings) -> bool {
    findings.fatal().is_some_and(|code| code != Code::RootDirectory)
}
