//! Offline check and repair of a Syncline volume.
//!
//! [`check`] reads a volume that nobody has open and reports every inconsistency with a stable [`Code`], the block and
//! the object concerned. It replays the journal in memory, so a volume that was not closed is judged as it would
//! be after recovery; that alone is no error. It shares no code with the engine on purpose: each is the other's test.
//!
//! Repair corrects what follows from the rest of the volume without guessing (orphans, leaked blocks, link counts,
//! nameless inodes, lost redundancy). It never changes anything in place: it writes a complete new checkpoint into
//! blocks that nothing names, and the new superblock last. It does nothing while an item, a durable journal record or
//! a node of the root tree or the volume tree is unreadable, because what is missing might be what the rest is
//! missing. Nodes of the filesystem's tree that are unreadable it gives up: what was in them is told inode by inode,
//! by a check without repair too, and what is left around them is kept.
//!
//! A volume of version 2 has several trees, which share nodes and blocks. Each block is accounted to one tree, the
//! first of its line, and every other that has it from there is held against that one, so that only differences are
//! read. Names are judged in all heads, and in snapshots if asked for. Of such a volume repair corrects heads, bitmaps
//! and superblocks. A snapshot changes only if nodes of it are unreadable: it is then repaired as a head is.
//!
//! Invariants:
//! - without `repair` nothing is written;
//! - whatever the device holds, the outcome is an error or findings: no panic, no endless loop, memory bounded by the
//!   number of inodes of one tree, the number of trees, the length of the journal and a few bits per used block.
#![forbid(unsafe_code)]

mod acl;
mod analysis;
mod block_map;
mod code;
mod data;
mod error;
mod facts;
mod forest;
mod items;
mod journal;
mod lost;
mod marks;
mod names;
mod object;
mod overlay;
mod owner;
mod parent;
mod paths;
mod progress;
mod repair;
mod replay;
mod report;
mod space;
mod superblocks;
mod volume_tree;
mod walk;

pub use code::{Code, Severity};
pub use error::CheckError;
pub use progress::{Phase, Progress, ProgressCallback};
pub use report::{
    EXIT_CLEAN, EXIT_CORRECTED, EXIT_OPERATIONAL, EXIT_UNCORRECTED, FINDINGS_PER_CODE_MAX, Finding, Report,
    Totals, exit_code,
};

use analysis::{Analysis, Subject};
use forest::Forest;
use journal::Journal;
use progress::Reporter;
use repair::loss;
use replay::Replay;
use report::Findings;
use std::collections::BTreeSet;
use syncline_device::Device;
use syncline_format::ObjectNo;
use syncline_format::superblock::Superblock;

/// How to check.
#[derive(Default)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Correct what can be corrected. Without it nothing is written.
    pub repair: bool,
    /// Read all file data and verify its checksums.
    pub data: bool,
    /// With [`CheckOptions::data`]: of these objects alone. The structure is judged as a whole.
    pub only: Option<BTreeSet<ObjectNo>>,
    /// Judge names, links and sizes in all snapshots too, not only in the heads.
    pub all: bool,
    /// Is told now and then how far the check is.
    pub progress: Option<ProgressCallback>,
}

impl CheckOptions {
    /// Correct what can be corrected. Without it nothing is written.
    #[must_use]
    pub fn repair(mut self, repair: bool) -> CheckOptions {
        self.repair = repair;
        self
    }

    /// Read all file data and verify its checksums.
    #[must_use]
    pub fn data(mut self, data: bool) -> CheckOptions {
        self.data = data;
        self
    }

    /// With [`CheckOptions::data`]: read the data of these objects alone. The structure is judged as a whole.
    #[must_use]
    pub fn only(mut self, only: impl Into<Option<BTreeSet<ObjectNo>>>) -> CheckOptions {
        self.only = only.into();
        self
    }

    /// Judge names, links and sizes in all snapshots too, not only in the heads.
    #[must_use]
    pub fn all(mut self, all: bool) -> CheckOptions {
        self.all = all;
        self
    }

    /// Is told now and then how far the check is.
    #[must_use]
    pub fn progress(mut self, progress: impl FnMut(Progress) + Send + 'static) -> CheckOptions {
        self.progress = Some(Box::new(progress));
        self
    }
}

/// Checks the volume on `device`, which nobody else may have open, and repairs it if asked to.
///
/// Errors: the device holds no volume, one of another version, or fails where the check cannot go on. Damage to the
/// volume is no error but a finding.
pub fn check(device: &dyn Device, options: CheckOptions) -> Result<Report, CheckError> {
    let mut progress = Reporter::new(options.progress);
    let CheckOptions { repair, data, all, ref only, .. } = options;
    let scope = Scope { repair, data, all, only: only.as_ref() };
    let mut report = check_once(device, scope, &mut progress)?;
    if report.repaired {
        let after = check_once(device, Scope { repair: false, ..scope }, &mut progress)?;
        report.settle(after);
    }
    Ok(report)
}

/// What one check does.
#[derive(Clone, Copy)]
struct Scope<'a> {
    repair: bool,
    data: bool,
    all: bool,
    /// Data of these objects alone.
    only: Option<&'a BTreeSet<ObjectNo>>,
}

/// One check, and if asked for and possible the repair behind it.
fn check_once(device: &dyn Device, scope: Scope<'_>, progress: &mut Reporter) -> Result<Report, CheckError> {
    let Scope { repair, data, all, only } = scope;
    let (mut findings, mut totals) = (Findings::default(), Totals::default());
    let Some(chosen) = superblocks::choose(device, &mut findings)? else {
        return Ok(refuse(findings, totals, repair));
    };
    let superblock = &chosen.superblock;
    progress.report(Phase::Journal, 0, 0);
    let has_trees = superblock.trees.is_some();
    findings.of_volume(has_trees);
    let forest = Forest::read(device, superblock, &mut findings);
    let mut replay = Journal::new(device, superblock).replay(forest, &mut findings);
    totals.records_replayed = replay.records;
    totals.batches_replayed = replay.batches;
    let analysis = look((device, superblock), scope, &mut replay, (&mut findings, &mut totals), progress);
    let subject = Subject { device, superblock, replay: &replay, data, only, all };
    subject.compare_bitmaps(&analysis, &mut findings, progress);
    subject.tell_paths(&analysis, &mut findings);
    if findings.fatal().is_some() {
        return Ok(refuse(findings, totals, repair));
    }
    if !repair || !repair::is_wanted(&findings) {
        let mut report = findings.into_report(totals);
        let is_refused = repair && has_trees && !report.is_sound();
        report.refused = is_refused.then(|| repair::NOT_OF_TREES.to_owned());
        return Ok(report);
    }
    repair::Repair { device, chosen: &chosen, analysis, progress }.run(&findings, replay)?;
    let mut report = findings.into_report(totals);
    report.repaired = true;
    Ok(report)
}

/// Looks at trees, items and names. Where nodes of heads and snapshots are lost, and nothing else is unreadable, what
/// is left is looked at once more, as a repair would leave it.
fn look(
    (device, superblock): (&dyn Device, &Superblock),
    scope: Scope<'_>,
    replay: &mut Replay,
    (findings, totals): (&mut Findings, &mut Totals),
    progress: &mut Reporter,
) -> Analysis {
    let Scope { data, all, only, .. } = scope;
    let before = (findings.clone(), *totals);
    let analysis = Subject { device, superblock, replay, data, only, all }.look(findings, totals, progress);
    let Some(losses) = loss::plan((device, superblock), &analysis, replay, findings) else { return analysis };
    (*findings, *totals) = before;
    loss::run((device, superblock), losses, replay, findings, progress);
    let kept = vec![analysis.nodes, analysis.data];
    let looked = Subject { device, superblock, replay, data, only, all }.look(findings, totals, progress);
    Analysis { kept, ..looked }
}

/// The report when nothing may be changed.
fn refuse(findings: Findings, totals: Totals, repair: bool) -> Report {
    let refused = findings.fatal().filter(|_| repair).map(|code| {
        format!("{code} ({}): nothing was changed, because what is unreadable may be meant", code.title())
    });
    let mut report = findings.into_report(totals);
    report.refused = refused;
    report
}
