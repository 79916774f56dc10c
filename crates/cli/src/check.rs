//! `syncline check` and `fsck.syncline`: an offline check, and repair of what can be repaired without guessing.

use crate::arguments::CheckArguments;
use crate::error::Failure;
use crate::output;
use crate::volume::{LOCK_PATIENCE, superblocks};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::VolumeOptions;
use syncline_check::{CheckOptions, Code, EXIT_CLEAN, Finding, Phase, Progress, Report, Severity};
use syncline_device::{Device, OpenOptions};
use syncline_format::superblock::VolumeState;
use syncline_format::{ObjectNo, TreeId};

/// Runs the check. With `skip_if_clean` a volume that was closed properly is not looked at (the manner of `fsck -a`).
pub(crate) fn run(arguments: &CheckArguments, skip_if_clean: bool) -> Result<ExitCode, Failure> {
    let path = &arguments.path;
    let only = objects(path, &arguments.only)?;
    let options = OpenOptions::default()
        .read_only(!arguments.repair)
        .take_over(arguments.take_over)
        .wait_for_lock(LOCK_PATIENCE);
    let opened = syncline_source::open(path, &options)?;
    let device = opened.device();
    if skip_if_clean && was_closed(device, path)? {
        output::line(&format!("{}: closed properly; give -f to check it all the same", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bar = output::counted("checking", arguments.json || arguments.quiet);
    let told = bar.clone();
    let mut phase = None;
    let blocks_used = blocks_used(device, path);
    let options = CheckOptions::default()
        .repair(arguments.repair)
        .data(!arguments.skip_data)
        .only(only)
        .all(arguments.all)
        .progress(move |progress| tell(&told, &mut phase, progress, blocks_used));
    let checked = syncline_check::check(device, options);
    bar.finish_and_clear();
    let report = checked.map_err(|source| Failure::Check { path: path.clone(), source })?;
    let printed = match arguments.json {
        true => output::object(output::Form::Json, &as_json(path, &report)),
        false => print(path, &report, arguments.repair),
    };
    printed.map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::from(report.exit_code() as u8))
}

/// The inodes of what is named, and of all below it, as the volume is behind its journal; none if nothing is named.
fn objects(image: &Path, named: &[PathBuf]) -> Result<Option<BTreeSet<ObjectNo>>, Failure> {
    if named.is_empty() {
        return Ok(None);
    }
    let of =
        |name: &Path| format!("cannot look at {}:{}", image.display(), Path::new("/").join(name).display());
    let volume = VolumeOptions::new()
        .read_only(true)
        .wait_for_lock(LOCK_PATIENCE)
        .open(image)
        .map_err(Failure::io(format!("cannot open {}", image.display())))?;
    let mut objects = BTreeSet::new();
    let mut pending = named.to_vec();
    while let Some(name) = pending.pop() {
        let metadata = volume.symlink_metadata(&name).map_err(Failure::io(of(&name)))?;
        if !objects.insert(metadata.attr().inode) || !metadata.is_dir() {
            continue;
        }
        for entry in volume.read_dir(&name).map_err(Failure::io(of(&name)))? {
            let entry = entry.map_err(Failure::io(of(&name)))?;
            pending.push(name.join(entry.file_name()));
        }
    }
    Ok(Some(objects))
}

fn was_closed(device: &dyn Device, path: &Path) -> Result<bool, Failure> {
    let superblocks = superblocks(device, path)?;
    Ok(superblocks.current().is_some_and(|superblock| superblock.state == VolumeState::Clean))
}

/// Blocks that the last checkpoint counts as used: about as many as there are data to verify. 0: nobody knows.
fn blocks_used(device: &dyn Device, path: &Path) -> u64 {
    let found = superblocks(device, path).ok();
    let used = found
        .as_ref()
        .and_then(|found| found.current())
        .map(|superblock| superblock.layout.data_blocks().saturating_sub(superblock.free_blocks));
    used.unwrap_or(0)
}

fn tell(bar: &ProgressBar, phase: &mut Option<Phase>, progress: Progress, blocks_used: u64) {
    // Data are verified while items are read; how many blocks are left is what tells the time.
    if *phase == Some(Phase::Data) && progress.phase == Phase::Items {
        return;
    }
    if *phase != Some(progress.phase) {
        *phase = Some(progress.phase);
        let (what, total) = match progress.phase {
            Phase::Journal => ("replaying the journal", progress.total),
            Phase::Items => ("items read:", progress.total),
            Phase::Data => ("blocks of data verified:", blocks_used),
            Phase::Bitmaps => ("groups compared:", progress.total),
            Phase::Names => ("names followed:", progress.total),
            Phase::Repair => ("items written:", progress.total),
            _ => ("working:", progress.total),
        };
        output::count_of(bar, what, total);
    }
    bar.set_position(progress.done);
}

/// Everything that the check can find: code, severity, and what it means. For the manual pages.
pub fn findings() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    Code::ALL.iter().map(|code| (code.id(), severity(code.severity()), code.title()))
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
        Severity::Fatal => "fatal",
    }
}

fn print(path: &Path, report: &Report, repair: bool) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let path = path.display();
    for finding in &report.findings {
        let done = if finding.corrected { " (corrected)" } else { "" };
        writeln!(
            out,
            "{path}: {} {}: {}: {}{done}",
            severity(finding.severity),
            finding.code,
            finding.code.title(),
            sentence(finding)
        )?;
    }
    for (code, count) in &report.counts {
        let shown = report.findings.iter().filter(|finding| finding.code == *code).count() as u64;
        if *count > shown {
            writeln!(out, "{path}: {code}: {}: {} more like this", code.title(), count - shown)?;
        }
    }
    if let Some(reason) = &report.refused {
        writeln!(out, "{path}: not repaired: {reason}")?;
    }
    let totals = &report.totals;
    writeln!(
        out,
        "{path}: {} inodes, {} directories, {} items in {} nodes, {} blocks used, {} blocks of data verified{}",
        totals.inodes,
        totals.directories,
        totals.items,
        totals.nodes,
        totals.blocks_used,
        totals.data_blocks_verified,
        match totals.data_blocks_damaged {
            0 => String::new(),
            damaged => format!(", {damaged} damaged"),
        }
    )?;
    writeln!(out, "{path}: {}", verdict(&path.to_string(), report, repair))
}

/// The last line: what is left, and what to do about it.
fn verdict(path: &str, report: &Report, repair: bool) -> String {
    let left = match report.errors_left() {
        1 => "1 error".to_owned(),
        errors => format!("{errors} errors"),
    };
    if report.is_sound() {
        let is_clean = report.exit_code() == EXIT_CLEAN;
        return if is_clean { "sound" } else { "repaired; sound now" }.to_owned();
    }
    let repairable = if repair { 0 } else { report.repairable };
    let command = format!("run \"syncline check --repair {path}\", after a copy if you can");
    match repairable {
        0 => format!("{left} that cannot be repaired{}", remedy(report)),
        all if all == report.errors_left() => format!("{left}; {command}"),
        some => format!(
            "{left}, of which repair can correct {some}: {command}; the others stay{}",
            remedy(report)
        ),
    }
}

/// What helps against errors that repair leaves.
fn remedy(report: &Report) -> &'static str {
    if report.totals.nodes == 0 {
        // Without a superblock or a root there is nothing to take out.
        return ", and nothing is readable; restore the volume from a copy";
    }
    let in_files = |code: Code| matches!(code, Code::DataChecksum | Code::DataUnreadable);
    if report.beyond_repair().all(in_files) {
        return "; replace or remove the files named above, all others can be read";
    }
    "; restore the volume from a copy, or take out what is readable with \"syncline export --partial\""
}

fn sentence(finding: &Finding) -> String {
    let mut text = finding.message.clone();
    if let Some(object) = finding.object {
        text = match &finding.path {
            Some(path) => format!("{} (inode {object}): {text}", shown(path)),
            None => format!("inode {object}: {text}"),
        };
    }
    if let Some(tree) = finding.tree.filter(|tree| *tree != TreeId::MAIN) {
        text = format!("tree {tree}: {text}");
    }
    if let Some(block) = finding.block {
        text = format!("{text} [block {block}]");
    }
    text
}

/// A path for people: control characters, which a terminal would obey, as escapes.
fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

fn as_json(path: &Path, report: &Report) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|finding| {
            json!({
                "code": finding.code.id(),
                "severity": severity(finding.severity),
                "title": finding.code.title(),
                "message": finding.message,
                "block": finding.block.map(|block| block.0),
                "inode": finding.object.map(|object| object.0),
                "tree": finding.tree.map(|tree| tree.0),
                "path": finding.path.as_ref().map(|path| String::from_utf8_lossy(path)),
                "corrected": finding.corrected,
            })
        })
        .collect();
    let counted = |counts: &std::collections::BTreeMap<syncline_check::Code, u64>| -> Value {
        counts.iter().map(|(code, count)| (code.id().to_owned(), Value::from(*count))).collect()
    };
    json!({
        "path": path.display().to_string(),
        "sound": report.is_sound(),
        "repaired": report.repaired,
        "refused": report.refused,
        "errors_left": report.errors_left(),
        "repairable": report.repairable,
        "findings": findings,
        "counts": counted(&report.counts),
        "left": counted(&report.left),
        "totals": {
            "inodes": report.totals.inodes,
            "directories": report.totals.directories,
            "items": report.totals.items,
            "nodes": report.totals.nodes,
            "trees": report.totals.trees,
            "blocks_used": report.totals.blocks_used,
            "data_blocks_verified": report.totals.data_blocks_verified,
            "data_blocks_damaged": report.totals.data_blocks_damaged,
            "records_replayed": report.totals.records_replayed,
            "batches_replayed": report.totals.batches_replayed,
        },
    })
}
