//! The tables on the terminal: medians over the rounds.

use crate::ablation::{self, MECHANISMS, is_ablated};
use crate::aims;
use crate::operations;
use crate::output::{add, say};
use crate::record::Record;
use crate::row::{Row, median};
use crate::waiting;
use crate::workload::Workload;
use std::collections::BTreeMap;

/// Columns: the figure, its title, and how many places behind the point.
pub(crate) const COLUMNS: &[(&str, &str, usize)] = &[
    ("p50_us", "p50 us", 1),
    ("p99_us", "p99 us", 1),
    ("max_us", "max us", 0),
    ("ops_per_s", "ops/s", 0),
    ("mb_per_s", "MB/s", 1),
    ("floor_us", "floor us", 1),
    ("x_floor", "x floor", 2),
    ("of_group_floor", "of floor", 2),
    ("group_floor_per_s", "floor/s", 0),
    ("whole_groups_per_s", "bare/s", 0),
    ("cpu_us_per_op", "cpu us/op", 1),
    ("writes_per_op", "writes/op", 3),
    ("flushes_per_op", "flushes/op", 3),
    ("kib_per_op", "KiB/op", 1),
    ("records_per_op", "records/op", 3),
    ("syncs_per_flush", "syncs/flush", 1),
    ("writes_within_sync", "writes within", 1),
    ("kib_within_sync", "KiB within", 0),
    ("bulk_mb_per_s", "bulk MB/s", 0),
    ("sync_idle_p99_us", "idle p99", 1),
    ("sync_busy_p99_us", "busy p99", 1),
    ("sync_p99_ratio", "sync ratio", 2),
    ("read_p99_ratio", "read ratio", 2),
    ("sequential_read_mb_per_s", "seq. read", 0),
    ("sequential_write_mb_per_s", "seq. write", 0),
    ("random_read_per_s", "rnd. read/s", 0),
    ("random_write_per_s", "rnd. write/s", 0),
    ("insert_per_s", "insert/s", 0),
    ("update_per_s", "update/s", 0),
    ("delete_per_s", "delete/s", 0),
    ("all_shared_call_ms", "call, shared", 2),
    ("all_shared_delete_ms", "delete, shared", 1),
    ("percent_changed_delete_ms", "delete, 1 %", 1),
    ("percent_changed_delete_cpu_ms", "cpu, 1 %", 0),
    ("all_changed_delete_ms", "delete, all", 1),
    ("all_changed_delete_cpu_ms", "cpu, all", 0),
    ("all_changed_memory_mib", "MiB, all", 1),
    ("clustered_diff_ms", "diff, clustered", 1),
    ("random_diff_ms", "diff, random", 1),
    ("hourly_delete_ms", "delete, hourly", 1),
    ("hourly_delete_cpu_ms", "cpu, hourly", 0),
    ("hourly_memory_mib", "MiB, hourly", 1),
    ("open_ms", "open ms", 2),
    ("open_many_ms", "open, many", 2),
    ("open_more_ms", "open, more", 2),
    ("check_ms", "check ms", 0),
    ("check_many_ms", "check, many", 0),
    ("check_ratio", "check ratio", 2),
];

/// The rows of one workload, with the systems in their order.
pub(crate) struct Group<'a> {
    pub(crate) workload: &'a Workload,
    rows: Vec<&'a Row>,
    pub(crate) systems: Vec<&'a str>,
}

impl<'a> Group<'a> {
    /// Of a workload's rows.
    pub(crate) fn of(workload: &'a Workload, rows: Vec<&'a Row>) -> Group<'a> {
        let mut systems = Vec::new();
        for row in &rows {
            if !systems.contains(&row.system.as_str()) {
                systems.push(row.system.as_str());
            }
        }
        Group { workload, rows, systems }
    }

    /// The figure in every round of a system.
    pub(crate) fn values(&self, system: &str, figure: &str) -> Vec<f64> {
        let rows = self.rows.iter().filter(|row| row.system == system);
        rows.filter_map(|row| row.figure(figure)).collect()
    }

    pub(crate) fn median(&self, system: &str, figure: &str) -> Option<f64> {
        median(self.values(system, figure))
    }

    /// Names of figures that any system has, in the order of the alphabet.
    pub(crate) fn figures(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.rows.iter().flat_map(|row| row.figures.keys()).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Values over time of a system's first round that has some.
    pub(crate) fn series(&self, system: &str, name: &str) -> Option<&[f64]> {
        let mut rows = self.rows.iter().filter(|row| row.system == system);
        rows.find_map(|row| row.series.get(name)).map(Vec::as_slice)
    }

    pub(crate) fn skipped(&self, system: &str) -> Option<&str> {
        let row = self.rows.iter().find(|row| row.system == system)?;
        row.skipped.as_deref()
    }
}

/// One group for each workload that has rows.
pub(crate) fn groups<'a>(record: &'a Record, workloads: &'a [Workload]) -> Vec<Group<'a>> {
    let of = |workload: &'a Workload| {
        let mine = |row: &&Row| row.workload == workload.name && !is_ablated(&row.system);
        Group::of(workload, record.rows.iter().filter(mine).collect())
    };
    workloads.iter().map(of).filter(|group| !group.rows.is_empty()).collect()
}

/// All systems of the groups, those that the tool knows in its own order.
pub(crate) fn systems<'a>(groups: &[Group<'a>]) -> Vec<&'a str> {
    let known = ["engine", "syncline", "syncline-dev", "ext4", "xfs", "btrfs"];
    let mut systems: Vec<&str> = Vec::new();
    for system in groups.iter().flat_map(|group| &group.systems) {
        if !systems.contains(system) {
            systems.push(system);
        }
    }
    systems.sort_by_key(|system| known.iter().position(|known| known == system).unwrap_or(known.len()));
    systems
}

/// One sentence: how the requests of each mount reached its daemon, as the mounts told. Empty without mounts.
pub(crate) fn transports(record: &Record) -> String {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for row in &record.rows {
        if let Some(transport) = &row.transport {
            *counts.entry((&row.system, transport)).or_default() += 1;
        }
    }
    if counts.is_empty() {
        return String::new();
    }
    let told = counts.iter().map(|((system, transport), runs)| format!("{system} {transport} ({runs} runs)"));
    format!("Transports, as each mount told: {}.", told.collect::<Vec<_>>().join(", "))
}

/// A table for each workload.
pub(crate) fn text(record: &Record, workloads: &[Workload]) -> String {
    let mut text = String::new();
    for group in groups(record, workloads) {
        say!(text, "\n{}: {}", group.workload.name, group.workload.about);
        let told: Vec<_> = COLUMNS
            .iter()
            .filter(|(figure, ..)| group.systems.iter().any(|system| group.median(system, figure).is_some()))
            .collect();
        let width = group.systems.iter().map(|system| system.len()).max().unwrap_or(0).max(8);
        if !told.is_empty() {
            add!(text, "  {:<width$}", "system");
            told.iter().for_each(|(_, title, _)| add!(text, " {title:>10}"));
            text.push('\n');
        }
        for system in &group.systems {
            match group.skipped(system) {
                Some(why) => add!(text, "  {system:<width$} skipped: {why}"),
                None => {
                    add!(text, "  {system:<width$}");
                    for (figure, _, places) in &told {
                        add!(text, " {:>10}", shown(group.median(system, figure), *places));
                    }
                }
            }
            text.push('\n');
        }
        text.push_str(&operations_of(&group));
    }
    text.push_str(&aims::text(record, workloads));
    text.push_str(&ablation::text(&ablation::comparisons(record, workloads)));
    text.push_str(&waiting::text(record, workloads));
    say!(text, "\n{LEGEND}\n{}", transports(record));
    text
}

/// Nothing for workloads that do not tell their operations apart.
fn operations_of(group: &Group<'_>) -> String {
    let mut text = String::new();
    let rows = operations::rows(group, &group.systems);
    if rows.is_empty() {
        return text;
    }
    say!(text, "  {}", operations::ABOUT);
    add!(text, "  {:<16}", "");
    group.systems.iter().for_each(|system| add!(text, " {system:>16}"));
    text.push('\n');
    for (operation, cells) in rows {
        add!(text, "  {operation:<16}");
        cells.iter().for_each(|cell| add!(text, " {cell:>16}"));
        text.push('\n');
    }
    text
}

/// What the columns mean.
pub(crate) const LEGEND: &str = "Medians of the rounds. floor: one 4 KiB write and one flush, in slices between the operations; of floor \
    (threads): of what as many threads reach that share writes and flushes and have no file system (floor/s); bare/s: if every flush \
    were shared by all of them and waking them took no time; cpu: of the whole machine; writes, flushes, KiB: the device's own count, \
    background writes included; records: journal records, the writes that a sync waits for; fio: latencies of its fsyncs, other \
    figures per write.";

/// A figure, or a dash where there is none.
pub(crate) fn shown(value: Option<f64>, places: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.places$}"))
}

/// The names of all workloads and of the engines without a mechanism.
pub(crate) fn list(workloads: &[Workload]) -> String {
    let mut text = String::new();
    for workload in workloads {
        say!(text, "{:<24} {}", workload.name, workload.about);
    }
    text.push('\n');
    for mechanism in MECHANISMS {
        say!(text, "{:<28} {}", mechanism.system_name(), mechanism.about);
    }
    text
}
