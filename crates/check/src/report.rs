//! What a check found, and what it says to `fsck`.

use crate::{CheckError, Code, Severity, repair};
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::{BlockNo, ObjectNo, TreeId};

/// Findings of one code that are kept; of more only the number is told, so that a hostile image cannot fill memory.
pub const FINDINGS_PER_CODE_MAX: u64 = 1000;

/// One inconsistency, or one thing worth knowing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    pub code: Code,
    pub severity: Severity,
    /// The block concerned, if there is one.
    pub block: Option<BlockNo>,
    /// The inode concerned, if there is one.
    pub object: Option<ObjectNo>,
    /// The tree concerned; `None` on a volume of version 1, and where all of them are.
    pub tree: Option<TreeId>,
    /// Where it is: a path to it from the tree's root, if names lead there.
    pub path: Option<Vec<u8>>,
    /// One sentence with the particulars.
    pub message: String,
    /// Repair has removed it.
    pub corrected: bool,
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Totals {
    pub inodes: u64,
    pub directories: u64,
    pub items: u64,
    pub nodes: u64,
    /// Heads and snapshots.
    pub trees: u64,
    /// Blocks in use, tree nodes included.
    pub blocks_used: u64,
    /// Blocks of file data that were read and match their checksums.
    pub data_blocks_verified: u64,
    /// Blocks of file data that do not match, or cannot be read.
    pub data_blocks_damaged: u64,
    pub records_replayed: u64,
    pub batches_replayed: u64,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Report {
    pub findings: Vec<Finding>,
    /// How often each code was found, those beyond [`FINDINGS_PER_CODE_MAX`] included.
    pub counts: BTreeMap<Code, u64>,
    /// After a repair: how often each code is found now. Equal to `counts` if nothing was changed.
    pub left: BTreeMap<Code, u64>,
    /// How many of the errors that are left a repair would correct.
    pub repairable: u64,
    /// Whether repair wrote to the volume.
    pub repaired: bool,
    /// Why repair left the volume as it is although it was asked for and there was something to repair.
    pub refused: Option<String>,
    /// The volume has trees (version 2), of which repair corrects less.
    pub has_trees: bool,
    pub totals: Totals,
}

/// Exit code of `fsck`: nothing to complain about.
pub const EXIT_CLEAN: i32 = 0;
/// Exit code of `fsck`: errors were corrected.
pub const EXIT_CORRECTED: i32 = 1;
/// Exit code of `fsck`: errors are left.
pub const EXIT_UNCORRECTED: i32 = 4;
/// Exit code of `fsck`: the check itself failed.
pub const EXIT_OPERATIONAL: i32 = 8;

impl Report {
    /// Errors still on the volume, warnings and information not counted.
    pub fn errors_left(&self) -> u64 {
        self.left.iter().filter(|(code, _)| code.severity() >= Severity::Error).map(|(_, n)| n).sum()
    }

    /// Codes of the errors left that a repair does not correct.
    pub fn beyond_repair(&self) -> impl Iterator<Item = Code> {
        let fatal = self.left.keys().any(|code| code.severity() == Severity::Fatal);
        let errors = self.left.keys().copied().filter(|code| code.severity() >= Severity::Error);
        errors.filter(move |&code| fatal || !repair::corrects(code))
    }

    /// Whether the volume has no errors (any more).
    pub fn is_sound(&self) -> bool {
        self.errors_left() == 0
    }

    /// The exit code by the conventions of `fsck(8)`, where 1 and 4 add up.
    pub fn exit_code(&self) -> i32 {
        let corrected = if self.repaired { EXIT_CORRECTED } else { EXIT_CLEAN };
        let left = if self.is_sound() { EXIT_CLEAN } else { EXIT_UNCORRECTED };
        corrected | left
    }

    /// Whether a code was found at least once.
    pub fn has(&self, code: Code) -> bool {
        self.counts.contains_key(&code)
    }

    /// Takes what a second look after the repair found.
    pub(crate) fn settle(&mut self, after: Report) {
        let identity = |f: &Finding| (f.code, f.block, f.object, f.tree);
        let still: BTreeSet<_> = after.findings.iter().map(identity).collect();
        let before: BTreeSet<_> = self.findings.iter().map(identity).collect();
        for finding in &mut self.findings {
            finding.corrected = !still.contains(&identity(finding));
        }
        self.findings.extend(after.findings.into_iter().filter(|f| !before.contains(&identity(f))));
        self.left = after.counts;
        self.repairable = after.repairable;
        self.totals.data_blocks_verified = after.totals.data_blocks_verified;
        self.totals.data_blocks_damaged = after.totals.data_blocks_damaged;
        self.repaired = true;
    }
}

/// The exit code for the outcome of a check: 8 when it could not be carried out.
pub fn exit_code(outcome: &Result<Report, CheckError>) -> i32 {
    outcome.as_ref().map_or(EXIT_OPERATIONAL, Report::exit_code)
}

/// Collects findings, bounded per code.
#[derive(Debug, Default, Clone)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    counts: BTreeMap<Code, u64>,
    /// Errors that repair leaves alone although it corrects others of their code.
    hopeless: u64,
    /// What is looked at.
    tree: Option<TreeId>,
    /// It never changes, so that repair corrects nothing of it.
    is_fixed: bool,
    /// What was found of trees that may change, and of the volume.
    changeable: BTreeSet<Code>,
    has_trees: bool,
}

impl Findings {
    /// Whether the volume has trees.
    pub(crate) fn of_volume(&mut self, has_trees: bool) {
        self.has_trees = has_trees;
    }

    /// What is found from here on is of this tree.
    pub(crate) fn within(&mut self, tree: Option<TreeId>) {
        (self.tree, self.is_fixed) = (tree, false);
    }

    /// The same of one that never changes.
    pub(crate) fn within_fixed(&mut self, tree: Option<TreeId>) {
        (self.tree, self.is_fixed) = (tree, true);
    }

    /// Whether repair may do something about a code that it corrects.
    pub(crate) fn may_correct(&self, code: Code) -> bool {
        self.changeable.contains(&code)
    }

    /// How many of the code there are.
    pub(crate) fn count(&self, code: Code) -> u64 {
        self.counts.get(&code).copied().unwrap_or(0)
    }

    /// How many there are.
    pub(crate) fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(crate) fn add(&mut self, code: Code, message: impl Into<String>) {
        self.push(code, None, None, message.into());
    }

    pub(crate) fn at(&mut self, code: Code, block: BlockNo, message: impl Into<String>) {
        self.push(code, Some(block), None, message.into());
    }

    pub(crate) fn of(&mut self, code: Code, object: ObjectNo, message: impl Into<String>) {
        self.push(code, None, Some(object), message.into());
    }

    /// As [`Findings::of`], for what repair leaves alone although it corrects others of that code.
    pub(crate) fn hopeless(&mut self, code: Code, object: ObjectNo, message: impl Into<String>) {
        self.hopeless += u64::from(!self.is_fixed);
        self.of(code, object, message);
    }

    pub(crate) fn both(&mut self, code: Code, block: BlockNo, object: ObjectNo, message: impl Into<String>) {
        self.push(code, Some(block), Some(object), message.into());
    }

    fn push(&mut self, code: Code, block: Option<BlockNo>, object: Option<ObjectNo>, message: String) {
        if !self.is_fixed {
            self.changeable.insert(code);
        } else if code.severity() == Severity::Error && repair::corrects(code) {
            self.hopeless += 1;
        }
        let count = self.counts.entry(code).or_default();
        *count += 1;
        if *count <= FINDINGS_PER_CODE_MAX {
            let severity = code.severity();
            let (tree, path) = (self.tree, None);
            self.list.push(Finding { code, severity, block, object, tree, path, message, corrected: false });
        }
    }

    /// Whether something was found that forbids every repair.
    pub(crate) fn fatal(&self) -> Option<Code> {
        self.fatal_but(|_| false)
    }

    /// The same, where some may be left out.
    pub(crate) fn fatal_but(&self, but: impl Fn(Code) -> bool) -> Option<Code> {
        self.counts.keys().copied().find(|&code| code.severity() == Severity::Fatal && !but(code))
    }

    /// The inodes that findings of a code name.
    pub(crate) fn objects_with(&self, code: Code) -> BTreeSet<ObjectNo> {
        let findings = self.list.iter().filter(|finding| finding.code == code);
        findings.filter_map(|finding| finding.object).collect()
    }

    /// The inodes of a tree that findings name.
    pub(crate) fn objects(&self, tree: Option<TreeId>) -> BTreeSet<ObjectNo> {
        let of_tree = self.list.iter().filter(|finding| finding.tree == tree);
        of_tree.filter_map(|finding| finding.object).collect()
    }

    /// Tells every finding with an inode of a tree where that is.
    pub(crate) fn set_paths(&mut self, tree: Option<TreeId>, path: impl Fn(ObjectNo) -> Option<Vec<u8>>) {
        for finding in self.list.iter_mut().filter(|finding| finding.tree == tree) {
            finding.path = finding.object.and_then(&path);
        }
    }

    /// How many of the errors a repair would correct.
    fn repairable(&self) -> u64 {
        if self.fatal().is_some() {
            return 0;
        }
        let counts = self.counts.iter();
        let corrects = |code: &Code| repair::corrects(*code);
        let corrected = counts.filter(|(code, _)| code.severity() == Severity::Error && corrects(code));
        corrected.map(|(_, count)| count).sum::<u64>().saturating_sub(self.hopeless)
    }

    pub(crate) fn into_report(self, totals: Totals) -> Report {
        Report {
            repairable: self.repairable(),
            findings: self.list,
            left: self.counts.clone(),
            counts: self.counts,
            has_trees: self.has_trees,
            totals,
            ..Report::default()
        }
    }
}
