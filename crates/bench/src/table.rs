//! `syncline bench --table`: the tables of docs/measurements/full-run.md, made from the results, so that no figure is
//! copied by hand.
//!
//! With `--into`, what stands between the two marks of a document is replaced; everything else of it is left alone.

pub(crate) mod targets;

use crate::ablation::{TITLES, comparisons};
use crate::arguments::Arguments;
use crate::error::BenchError;
use crate::operations;
use crate::output::Output;
use crate::record::Record;
use crate::report::{Group, groups, shown, systems, transports};
use crate::waiting;
use crate::workload::{self, Headline, Workload};
use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

/// Prints the tables, or writes them into a document.
pub(crate) fn run(arguments: &Arguments, out: &mut Output<'_>) -> Result<(), BenchError> {
    let record = Record::merged(&arguments.table)?;
    let text = tables(&record, &workload::all());
    match &arguments.into {
        None => out.print(&text)?,
        Some(path) => {
            let document = std::fs::read_to_string(path).map_err(BenchError::of(path))?;
            std::fs::write(path, replaced(path, &document, &text)?).map_err(BenchError::of(path))?;
        }
    }
    Ok(())
}

/// The document with the text between its marks.
fn replaced(path: &Path, document: &str, text: &str) -> Result<String, BenchError> {
    let no = |line| BenchError::NoMark { path: path.to_owned(), line };
    let (before, rest) = document.split_once(BEGIN).ok_or_else(|| no(BEGIN))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| no(END))?;
    Ok(format!("{before}{BEGIN}\n\n{text}\n{END}{after}"))
}

fn tables(record: &Record, workloads: &[Workload]) -> String {
    let groups = groups(record, workloads);
    let systems = systems(&groups);
    let mut text = about(record);
    text.push_str(&targets::table(&groups));
    text.push_str(&by_system(
        "### Latency: p50 in microseconds (times the floor of the same seconds)",
        &groups,
        &systems,
        |group, system| {
            let p50 = shown_if(group.median(system, "p50_us"), 0)?;
            match shown_if(group.median(system, "x_floor"), 2) {
                Some(floor) => Some(format!("{p50} ({floor})")),
                None => Some(p50),
            }
        },
        |workload| workload.headline == Headline::P50,
    ));
    text.push_str(&by_system(
        "### Operations per second",
        &groups,
        &systems,
        |group, system| shown_if(group.median(system, "ops_per_s"), 0),
        |workload| workload.headline == Headline::OperationsPerSecond,
    ));
    text.push_str(&by_system(
        "### MB per second",
        &groups,
        &systems,
        |group, system| shown_if(group.median(system, "mb_per_s"), 0),
        |workload| workload.headline == Headline::MegabytesPerSecond && workload.name != "mobile",
    ));
    text.push_str(&by_system(
        "### Device writes + flushes per operation, background included",
        &groups,
        &systems,
        |group, system| {
            let writes = shown_if(group.median(system, "writes_per_op"), 2)?;
            Some(format!("{writes} + {}", shown(group.median(system, "flushes_per_op"), 2)))
        },
        |_| true,
    ));
    text.push_str(&by_operation(&groups, &systems));
    for special in SPECIAL {
        text.push_str(&figures(&groups, &systems, special));
    }
    text.push_str(&ablation(record, workloads));
    text.push_str(&waiting(record, workloads));
    text
}

/// Figures that only some workloads have: a title, the workloads' family, and what is shown of each.
type Special = (&'static str, &'static str, &'static [(&'static str, &'static str, usize)]);

const SPECIAL: &[Special] = &[
    (
        "### Appending threads: syncs per second, and what as many threads reach without a file system",
        "threads",
        &[
            ("ops_per_s", "syncs", 0),
            ("group_floor_per_s", "group-commit floor", 0),
            ("of_group_floor", "of the floor", 2),
            ("whole_groups_per_s", "all in every flush", 0),
        ],
    ),
    ("### Syncs per flush, asynchronous pass", "async-pass", &[("syncs_per_flush", "syncs per flush", 0)]),
    (
        "### The asynchronous pass by the mount's own tickets",
        "ticket-pass",
        &[("ops_per_s", "syncs per second", 0), ("syncs_per_flush", "syncs per flush", 0)],
    ),
    (
        "### SQLite, one row a transaction, synchronous=FULL: transactions per second",
        "sqlite",
        &[("insert_per_s", "insert", 0), ("update_per_s", "update", 0), ("delete_per_s", "delete", 0)],
    ),
    (
        "### Mobile load",
        "mobile",
        &[
            ("sequential_read_mb_per_s", "sequential read, MB/s", 0),
            ("sequential_write_mb_per_s", "sequential write, MB/s", 0),
            ("random_read_per_s", "random read, 1/s", 0),
            ("random_write_per_s", "random write, 1/s", 0),
        ],
    ),
    (
        "### Pacing: p99 in microseconds, alone and beside a writer",
        "pacing",
        &[
            ("sync_idle_p99_us", "fsync alone", 0),
            ("sync_busy_p99_us", "fsync beside", 0),
            ("sync_p99_ratio", "ratio", 2),
            ("read_idle_p99_us", "read alone", 0),
            ("read_busy_p99_us", "read beside", 0),
            ("read_p99_ratio", "ratio", 2),
        ],
    ),
    (
        "### fsyncs of 4 KiB beside a transaction of 1 GiB: p99 in microseconds; what each took while it was staged",
        "beside-staging",
        &[
            ("sync_idle_p99_us", "alone", 0),
            ("sync_busy_p99_us", "while it is staged", 0),
            ("sync_p99_ratio", "ratio", 2),
            ("sync_commit_p99_us", "while it is committed", 0),
            ("records_per_op", "records", 2),
            ("flushes_per_op", "flushes", 2),
        ],
    ),
    (
        "### fsyncs of 4 KiB right behind 64 MiB written to another file",
        "beside-bulk",
        &[
            ("p50_us", "p50, us", 0),
            ("max_us", "longest, us", 0),
            ("writes_within_sync", "device writes within a sync", 1),
            ("kib_within_sync", "KiB of them", 0),
            ("bulk_mb_per_s", "the large write, MB/s", 0),
        ],
    ),
    (
        "### pgbench: latency in microseconds",
        "pgbench",
        &[("p50_us", "p50", 0), ("p99_us", "p99", 0), ("max_us", "max", 0)],
    ),
];

/// One row for each workload, one column for each system; nothing if there is no figure.
fn by_system(
    title: &str,
    groups: &[Group<'_>],
    systems: &[&str],
    cell: impl Fn(&Group<'_>, &str) -> Option<String>,
    belongs: impl Fn(&Workload) -> bool,
) -> String {
    let mut rows = String::new();
    for group in groups.iter().filter(|group| belongs(group.workload)) {
        let cells: Vec<Option<String>> = systems.iter().map(|system| cell(group, system)).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()));
            row(&mut rows, std::iter::once(group.workload.name.clone()).chain(cells));
        }
    }
    let heads = std::iter::once("").chain(systems.iter().copied().map(title_of));
    headed(title, heads.map(str::to_owned).collect(), rows)
}

/// dbench's own table.
fn by_operation(groups: &[Group<'_>], systems: &[&str]) -> String {
    let mut rows = String::new();
    for group in groups {
        for (operation, cells) in operations::rows(group, systems) {
            let names = [group.workload.name.clone(), operation];
            row(&mut rows, names.into_iter().chain(cells));
        }
    }
    let heads = ["", ""].into_iter().chain(systems.iter().copied().map(title_of));
    let title = format!("### dbench: {}", operations::ABOUT);
    headed(&title, heads.map(str::to_owned).collect(), rows)
}

/// One row for each workload, system and nothing else; the figures are the columns.
fn figures(groups: &[Group<'_>], systems: &[&str], special: &Special) -> String {
    let (title, family, figures) = special;
    let mut rows = String::new();
    for group in groups.iter().filter(|group| group.workload.name.starts_with(family)) {
        for system in systems {
            let cells: Vec<Option<f64>> =
                figures.iter().map(|(figure, ..)| group.median(system, figure)).collect();
            if cells.iter().any(Option::is_some) {
                let shown = cells.iter().zip(*figures).map(|(cell, (_, _, places))| shown(*cell, *places));
                let names = [group.workload.name.clone(), title_of(system).to_owned()];
                row(&mut rows, names.into_iter().chain(shown));
            }
        }
    }
    let heads = ["", ""].into_iter().chain(figures.iter().map(|(_, title, _)| *title));
    headed(title, heads.map(str::to_owned).collect(), rows)
}

fn ablation(record: &Record, workloads: &[Workload]) -> String {
    let mut rows = String::new();
    for comparison in comparisons(record, workloads) {
        let cells = comparison.cells();
        row(&mut rows, std::iter::once(comparison.mechanism.about.to_owned()).chain(cells));
    }
    let heads = std::iter::once("instead").chain(TITLES).map(str::to_owned).collect();
    headed(
        "### What each mechanism is worth: the engine with one of them replaced, and as it is",
        heads,
        rows,
    )
}

fn waiting(record: &Record, workloads: &[Workload]) -> String {
    let mut rows = String::new();
    waiting::rows(record, workloads).into_iter().for_each(|cells| row(&mut rows, cells.into_iter()));
    let title = format!("### {}\n\n{}", waiting::TITLE, waiting::ABOUT);
    headed(&title, waiting::HEADS.map(str::to_owned).to_vec(), rows)
}

/// A title, a table's head, and its rows; nothing without rows.
fn headed(title: &str, heads: Vec<String>, rows: String) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = format!("{title}\n\n");
    let columns = heads.len();
    row(&mut text, heads.into_iter());
    row(&mut text, (0..columns).map(|_| "---".to_owned()));
    text + &rows + "\n"
}

fn row(text: &mut String, cells: impl Iterator<Item = String>) {
    for cell in cells {
        // Writing to a string cannot fail.
        let _ = write!(text, "| {cell} ");
    }
    text.push_str("|\n");
}

fn shown_if(value: Option<f64>, places: usize) -> Option<String> {
    value.map(|value| format!("{value:.places$}"))
}

/// A system as readers know it.
fn title_of(system: &str) -> &str {
    match system {
        "syncline" => "mount",
        "syncline-dev" => "mount, /dev/fuse",
        "btrfs" => "btrfs `-o ssd`",
        other => other,
    }
}

fn about(record: &Record) -> String {
    let text = |name: &str| match &record.about[name] {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "not known".to_owned(),
        other => other.to_string(),
    };
    let rounds = record.rows.iter().map(|row| row.round + 1).max().unwrap_or(0);
    let mut settings = String::new();
    for (name, value) in record.about["settings"].as_object().into_iter().flatten() {
        let _ = write!(settings, "{}{name} {value}", if settings.is_empty() { "" } else { ", " });
    }
    format!(
        "Medians of up to {rounds} rounds. Syncline {}, commit {}; Linux {}; {} CPUs ({}); memory {}; load {} when it began. Settings: {settings}. {}\n\n",
        text("version"),
        text("commit"),
        text("kernel"),
        text("cpus"),
        text("processor"),
        text("memory"),
        text("load"),
        transports(record),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Row;

    #[test]
    fn tables_hold_the_figures_and_leave_out_what_was_not_measured() {
        let record = Record::of_rows(vec![
            Row::of("engine", "append", &[("p50_us", 110.0), ("x_floor", 1.1)]),
            Row::of(
                "syncline",
                "append",
                &[("p50_us", 200.0), ("writes_per_op", 1.0), ("flushes_per_op", 1.0)],
            ),
            Row::of("ext4", "append", &[("p50_us", 500.0)]),
            Row::of("engine:complete", "append", &[("p50_us", 110.0)]),
            Row::of("engine:no-images", "append", &[("p50_us", 165.0)]),
        ]);
        let text = tables(&record, &workload::all());
        assert!(text.contains("| append | 110 (1.10) | 200 | 500 |"), "{text}");
        assert!(text.contains("| append | - | 1.00 + 1.00 | - |"), "{text}");
        assert!(text.contains("| append | us | 165 | 110 | 1.50 |"), "{text}");
        assert!(!text.contains("dbench") && !text.contains("MB per second"), "{text}");
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let path = Path::new("a.md");
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replaced(path, &document, "new\n").expect("marks");
        assert_eq!(new, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(replaced(path, &new, "new\n").expect("marks"), new);
        assert!(matches!(replaced(path, "before", "new"), Err(BenchError::NoMark { line: BEGIN, .. })));
    }
}
