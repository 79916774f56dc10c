//! One complete look at a volume as recovery would leave it.

use crate::Code;
use crate::block_map::BlockMap;
use crate::data::DataCheck;
use crate::facts::Facts;
use crate::items::ItemCheck;
use crate::lost::Lost;
use crate::names::{DirentCheck, NameCheck, NameFault};
use crate::paths;
use crate::progress::{Phase, Reporter};
use crate::replay::Replay;
use crate::report::{Findings, Totals};
use crate::space::SpaceCheck;
use crate::walk::{RootTree, Trees, Visitor};
use std::collections::BTreeMap;
use syncline_device::Device;
use syncline_format::item::DirentItem;
use syncline_format::node::NodePointer;
use syncline_format::superblock::Superblock;
use syncline_format::{Key, TreeId};

/// What the look is at, and how close.
pub(crate) struct Subject<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) superblock: &'a Superblock,
    pub(crate) replay: &'a Replay,
    /// Read and verify file data.
    pub(crate) data: bool,
}

/// What was learned beside the findings.
pub(crate) struct Analysis {
    pub(crate) main: Option<NodePointer>,
    pub(crate) facts: Facts,
    pub(crate) nodes: BlockMap,
    pub(crate) data: BlockMap,
    /// Leaves that could not be read.
    pub(crate) lost: Lost,
    pub(crate) name_faults: BTreeMap<Key, (DirentItem, NameFault)>,
}

impl Subject<'_> {
    /// Walks the trees and judges items and names, but not the bitmaps.
    pub(crate) fn look(
        &self,
        findings: &mut Findings,
        totals: &mut Totals,
        progress: &mut Reporter,
    ) -> Analysis {
        let trees = Trees::new(self.device, self.superblock, &self.replay.given_up);
        let root = RootTree::read(&trees, &self.superblock.root);
        for (code, block, message) in root.damage {
            findings.at(code, block, message);
        }
        let verify = DataCheck { device: self.device, wanted: self.data, progress: &mut *progress };
        let mut check = ItemCheck::new(self.superblock, findings, totals, verify);
        for node in &root.nodes {
            check.mark_node(node);
        }
        if let Some(main) = &root.main {
            trees.walk(TreeId::MAIN, main, &self.replay.overlay, &mut check as &mut dyn Visitor);
        }
        let mut analysis = check.finish(root.main);
        progress.report(Phase::Names, 0, analysis.facts.inodes.len() as u64);
        self.judge_names(&trees, &mut analysis, findings);
        analysis
    }

    fn judge_names(&self, trees: &Trees<'_>, analysis: &mut Analysis, findings: &mut Findings) {
        let incomplete = is_incomplete(findings) || !analysis.lost.is_empty();
        let mut names = NameCheck { facts: &analysis.facts, findings, incomplete };
        names.run(self.superblock, self.replay);
        if incomplete {
            return;
        }
        let (Some(main), Some(mut second)) = (&analysis.main, DirentCheck::needed(&analysis.facts)) else {
            return;
        };
        trees.walk(TreeId::MAIN, main, &self.replay.overlay, &mut second as &mut dyn Visitor);
        second.report(findings);
        analysis.name_faults = second.faults;
    }

    /// Adds to each finding where its inode is, as far as names lead to it.
    pub(crate) fn tell_paths(&self, analysis: &Analysis, findings: &mut Findings) {
        if let Some(main) = &analysis.main {
            let trees = Trees::new(self.device, self.superblock, &self.replay.given_up);
            paths::add(&trees, main, &self.replay.overlay, &analysis.facts, findings);
        }
    }

    /// Compares the bitmaps with what `look` found in use.
    pub(crate) fn compare_bitmaps(
        &self,
        analysis: &Analysis,
        findings: &mut Findings,
        progress: &mut Reporter,
    ) {
        // What was in a leaf that is given up may own the blocks that belong to nothing now.
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
