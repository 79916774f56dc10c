//! Repair of a volume with trees: its heads, in one new checkpoint.
//!
//! What the log has changed, and what repair changes, is written beside the nodes that stay; snapshots that a
//! checkpoint has written keep their roots. Pages that are in the journal only get blocks of their own: those of heads
//! in their trees, those of snapshots in their overlays. So the log is empty behind it.
//!
//! Trees are written behind those that they descend from. Where a snapshot was mended, some of its nodes are others
//! now: whoever descends from it, and has nodes from there that it has no more, gets copies of its own.
//!
//! Before the superblock counts, the new trees are looked at as a whole: if anything is wrong with them that forbids a
//! repair, nothing was changed.

use super::Repair;
use super::allocator::Allocator;
use super::builder::{NodeMaker, TreeBuilder};
use super::rewrite::Rewriter;
use crate::CheckError;
use crate::analysis::{Analysis, Subject};
use crate::forest::Branch;
use crate::forest::Forest;
use crate::overlay::Overlay;
use crate::parent::Parent;
use crate::replay::Replay;
use crate::report::{Findings, Totals};
use crate::walk::{Source, Trees, Visitor};
use std::cell::RefCell;
use std::collections::BTreeMap;
use syncline_format::node::NodePointer;
use syncline_format::superblock::{JournalTail, Superblock, VolumeState};
use syncline_format::tree_item::Role;
use syncline_format::{Key, ObjectNo, Sequence, TreeId};

impl Repair<'_> {
    /// Writes a checkpoint in which all heads are corrected.
    pub(super) fn trees(self, mut replay: Replay) -> Result<(), CheckError> {
        let old = &self.chosen.superblock;
        let mut allocator = Allocator::new(self.device, old, &self.analysis, &replay);
        let mut next_object = self.next_object(&replay);
        self.correct(&mut replay, &mut next_object, &mut allocator)?;
        let root = self.write_forest(&replay, &mut allocator)?;
        let mut superblock = old.clone();
        superblock.generation = old.generation.next();
        superblock.state = VolumeState::Clean;
        superblock.checkpoint_lsn = replay.last_lsn;
        superblock.epoch = syncline_device::random_number();
        superblock.tail = JournalTail { block: 0, sequence: Sequence(1), predecessor: superblock.epoch };
        superblock.root = root;
        superblock.cut = None;
        superblock.next_object = next_object;
        superblock.trees = replay.forest.state;
        let found = self.look_again(&superblock)?;
        self.write_bitmaps([&found.nodes, &found.data], superblock.generation)?;
        self.device.flush()?;
        let used = found.nodes.len() + found.data.len();
        superblock.free_blocks = old.layout.data_blocks().saturating_sub(used);
        self.write_superblock(&superblock)
    }

    /// Makes all edits: in the overlays of the trees.
    fn correct(
        &self,
        replay: &mut Replay,
        next_object: &mut ObjectNo,
        allocator: &mut Allocator<'_>,
    ) -> Result<(), CheckError> {
        let default = replay.forest.default_head();
        let of_default = (&self.analysis.facts, &self.analysis.name_faults);
        let others = self.analysis.others.iter().map(|(tree, (facts, faults))| (*tree, (facts, faults)));
        let changed: Vec<_> = others.chain([(default, of_default)]).collect();
        let root = |replay: &Replay, tree: TreeId| replay.forest.branches[&tree].root;
        for (tree, (facts, faults)) in &changed {
            let mut editor = self.editor((*tree, root(replay, *tree)), replay);
            editor.structure(facts, faults, next_object);
            // Pages that a snapshot has inherited are settled.
            if !editor.keeps_extents() {
                editor.destage(facts, allocator)?;
            }
        }
        self.editor((TreeId::VOLUME, root(replay, TreeId::VOLUME)), replay).settle(allocator)?;
        let mut found = self.look_at(&self.chosen.superblock, replay, &mut Findings::default());
        found.others.insert(default, (found.facts, found.name_faults));
        for (tree, (facts, _)) in &found.others {
            self.editor((*tree, root(replay, *tree)), replay).counts(facts);
        }
        Ok(())
    }

    fn look_at(&self, superblock: &Superblock, replay: &Replay, findings: &mut Findings) -> Analysis {
        let subject =
            Subject { device: self.device, superblock, replay, data: false, only: None, all: false };
        let mut progress = crate::progress::Reporter::new(None);
        subject.look(findings, &mut Totals::default(), &mut progress)
    }

    /// Writes the trees that have changed, and the root tree above all of them; returns the root tree's pointer.
    fn write_forest(
        &self,
        replay: &Replay,
        allocator: &mut Allocator<'_>,
    ) -> Result<NodePointer, CheckError> {
        let (device, superblock) = (self.device, &self.chosen.superblock);
        let generation = superblock.generation.next();
        let trees = Trees::new(device, superblock, &replay.given_up);
        let maker = NodeMaker { device, superblock, generation };
        let now = replay.forest.era();
        let mut written: BTreeMap<TreeId, Branch> = BTreeMap::new();
        for tree in replay.forest.order() {
            let branch = &replay.forest.branches[&tree];
            let item = replay.forest.items.get(&tree);
            // A snapshot ends an era: nothing of it is born later.
            let birth = match item.filter(|item| item.role == Role::Snapshot) {
                Some(item) => item.era,
                None => now,
            };
            // Snapshots change where nodes were lost, and nowhere else.
            let parent = replay.forest.parent(tree).filter(|_| !replay.lost.is_empty());
            let parent = parent.map(|(number, item)| {
                (item.era, RefCell::new(Parent::new(trees, number, &written[&number])))
            });
            let (overlay, lost) = (&branch.overlay, replay.lost.get(&tree));
            let rewriter = Rewriter { trees, maker, tree, birth, overlay, lost, parent };
            let root = rewriter.root(branch.root, allocator)?;
            written.insert(tree, Branch { root, overlay: Overlay::default() });
        }
        let mut builder = TreeBuilder::new(device, superblock, TreeId::ROOT, (generation, now), allocator);
        for (tree, branch) in written {
            builder.item(Key::tree(tree), &branch.root.encode(), Source::Log);
        }
        builder.finish()
    }

    /// Looks at the new checkpoint as whoever opens it will. Errors: it is not what it was to be.
    fn look_again(&self, superblock: &Superblock) -> Result<Analysis, CheckError> {
        let mut findings = Findings::default();
        findings.of_volume(true);
        let forest = Forest::read(self.device, superblock, &mut findings);
        let replay = Replay::new(superblock.layout, superblock.checkpoint_lsn, forest);
        let found = self.look_at(superblock, &replay, &mut findings);
        match findings.fatal() {
            Some(code) => Err(CheckError::RepairFailed { code: code.id(), what: code.title() }),
            None => Ok(found),
        }
    }
}
