//! Repair of a volume with trees: its heads, in one new checkpoint.
//!
//! What the log has changed, and what repair changes, is written beside the nodes that stay; snapshots that a
//! checkpoint has written keep their roots. Pages that are in the journal only get blocks of their own: those of heads
//! in their trees, those of snapshots in their overlays. So the log is empty behind it.
//!
//! Before the superblock counts, the new trees are looked at as a whole: if anything is wrong with them that forbids a
//! repair, nothing was changed.

use super::Repair;
use super::allocator::Allocator;
use super::builder::{NodeMaker, TreeBuilder};
use super::rewrite::Rewriter;
use crate::CheckError;
use crate::analysis::{Analysis, Subject};
use crate::forest::Forest;
use crate::replay::Replay;
use crate::report::{Findings, Totals};
use crate::walk::{GivenUp, Source, Trees, Visitor};
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
        let heads: Vec<_> = others.chain([(default, of_default)]).collect();
        let root = |replay: &Replay, tree: TreeId| replay.forest.branches[&tree].root;
        for (tree, (facts, faults)) in &heads {
            let mut editor = self.editor((*tree, root(replay, *tree)), replay);
            editor.structure(facts, faults, next_object);
            editor.destage(facts, allocator)?;
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
        let given_up = GivenUp::new();
        let trees = Trees::new(device, superblock, &given_up);
        let maker = NodeMaker { device, superblock, generation };
        let now = replay.forest.era();
        let mut roots: BTreeMap<TreeId, NodePointer> = BTreeMap::new();
        for (tree, branch) in &replay.forest.branches {
            let item = replay.forest.items.get(tree);
            // A snapshot ends an era: nothing of it is born later.
            let birth = match item.filter(|item| item.role == Role::Snapshot) {
                Some(item) => item.era,
                None => now,
            };
            let rewriter = Rewriter { trees, maker, tree: *tree, birth, overlay: &branch.overlay };
            roots.insert(*tree, rewriter.root(branch.root, allocator)?);
        }
        let mut builder = TreeBuilder::new(device, superblock, TreeId::ROOT, (generation, now), allocator);
        for (tree, root) in roots {
            builder.item(Key::tree(tree), &root.encode(), Source::Log);
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
