//! What each mechanism is worth: the engine without it, doing what was done before it was published, beside the
//! engine as it is.
//!
//! Figures of one mechanism and one workload make a comparison: before (without), after (with), and how many times
//! better that is.

use crate::arguments::Arguments;
use crate::error::BenchError;
use crate::output::say;
use crate::record::Record;
use crate::report::{Group, shown};
use crate::row::Row;
use crate::system::System;
use crate::workload::{Headline, Workload};
use serde_json::{Value, json};
use syncline_fs::Ablation;

/// A mechanism that can be done without.
#[derive(Debug, PartialEq)]
pub(crate) struct Mechanism {
    pub(crate) name: &'static str,
    /// What is done without it.
    pub(crate) about: &'static str,
    pub(crate) ablation: Ablation,
    /// Workloads that show it.
    workloads: &'static [&'static str],
}

const NONE: Ablation = Ablation {
    blocked_logging: false,
    waiting_for_data: false,
    ordered_records: false,
    no_group_commit: false,
    no_piggyback: false,
    no_images: false,
    forced_names: false,
    checkpoint_per_sync: false,
};

/// The engine as it is, measured in turn with the others: its own rows of the full run are of other minutes.
pub(crate) static COMPLETE: Mechanism =
    Mechanism { name: "complete", about: "nothing is replaced", ablation: NONE, workloads: &[] };

/// All of them.
pub(crate) static MECHANISMS: &[Mechanism] = &[
    Mechanism {
        name: "blocked-logging",
        about: "a sync waits for the checkpoint that is being written",
        ablation: Ablation { blocked_logging: true, ..NONE },
        workloads: &["during-commits", "dbench-16"],
    },
    Mechanism {
        name: "forced-names",
        about: "a rename and a link force the journal",
        ablation: Ablation { forced_names: true, ..NONE },
        workloads: &["names", "replace", "dbench-16"],
    },
    Mechanism {
        name: "waiting-for-data",
        about: "a sync waits for its data, enters it into the tree, and only then writes its record",
        ablation: Ablation { waiting_for_data: true, ..NONE },
        workloads: &["fio-sequential-1", "fio-sequential-16"],
    },
    Mechanism {
        name: "checkpoint-per-sync",
        about: "a sync writes the tree",
        ablation: Ablation { checkpoint_per_sync: true, ..NONE },
        workloads: &["append", "create"],
    },
    Mechanism {
        name: "ordered-records",
        about: "every change is a record of its own, written when the one before it is",
        ablation: Ablation { ordered_records: true, ..NONE },
        workloads: &[
            "create",
            "rollback-journal",
            "atomic",
            "sqlite-engine-persist-1",
            "sqlite-engine-persist-4",
            "sqlite-engine-delete-1",
        ],
    },
    Mechanism {
        name: "no-group-commit",
        about: "every sync writes and flushes by itself",
        ablation: Ablation { no_group_commit: true, ..NONE },
        workloads: &["threads-4", "threads-16", "threads-64"],
    },
    Mechanism {
        name: "no-images",
        about: "small data goes to its own blocks, never into the record",
        ablation: Ablation { no_images: true, ..NONE },
        workloads: &["append", "overwrite", "rollback-journal", "threads-16"],
    },
    Mechanism {
        name: "no-piggyback",
        about: "a record carries nothing but what is synced",
        ablation: Ablation { no_piggyback: true, ..NONE },
        workloads: &["fs-mark-pass-1", "fs-mark-pass-4"],
    },
];

impl Mechanism {
    /// Of the system that does without it.
    pub(crate) fn system_name(&self) -> String {
        format!("engine:{}", self.name)
    }

    /// Whether a workload shows what it is worth.
    pub(crate) fn shows(&self, workload: &Workload) -> bool {
        self.workloads.contains(&workload.name.as_str())
    }
}

/// Whether a system belongs to the ablation; these are compared with one another only.
pub(crate) fn is_ablated(system: &str) -> bool {
    system.starts_with("engine:")
}

/// What an ablation runs: workloads, each on the engine and on the engines without what the workload shows.
pub(crate) fn plan<'a>(
    arguments: &Arguments,
    workloads: &'a [Workload],
) -> Result<Vec<(&'a Workload, Vec<System>)>, BenchError> {
    let mut plan = Vec::new();
    for workload in workloads {
        let showing = MECHANISMS.iter().filter(|known| known.shows(workload));
        let mut systems: Vec<System> = showing.map(System::Without).collect();
        if !systems.is_empty() {
            systems.insert(0, System::Without(&COMPLETE));
            plan.push((workload, systems));
        }
    }
    match plan.is_empty() {
        true => Err(BenchError::ShowsNoMechanism(arguments.workloads.join(", "))),
        false => Ok(plan),
    }
}

/// One mechanism on one workload; medians of the rounds.
pub(crate) struct Comparison<'a> {
    pub(crate) mechanism: &'static Mechanism,
    pub(crate) workload: &'a Workload,
    pub(crate) before: f64,
    pub(crate) after: f64,
    /// More than 1: the mechanism is worth that.
    pub(crate) ratio: f64,
    /// Device writes and flushes per operation without it, and with it.
    pub(crate) counts: [[Option<f64>; 2]; 2],
}

/// All comparisons that the rows allow.
pub(crate) fn comparisons<'a>(record: &Record, workloads: &'a [Workload]) -> Vec<Comparison<'a>> {
    let mut comparisons = Vec::new();
    for mechanism in MECHANISMS {
        for workload in workloads.iter().filter(|known| mechanism.shows(known)) {
            let rows: Vec<&Row> = record.rows.iter().filter(|row| row.workload == workload.name).collect();
            let group = Group::of(workload, rows);
            let (without, with) = (mechanism.system_name(), COMPLETE.system_name());
            let figure = workload.headline.figure();
            let (Some(before), Some(after)) = (group.median(&without, figure), group.median(&with, figure))
            else {
                continue;
            };
            let ratio = match workload.headline {
                Headline::P50 | Headline::PacingRatio => before / after,
                Headline::OperationsPerSecond | Headline::MegabytesPerSecond => after / before,
            };
            let counts =
                |system: &str| ["writes_per_op", "flushes_per_op"].map(|figure| group.median(system, figure));
            let counts = [counts(&without), counts(&with)];
            comparisons.push(Comparison { mechanism, workload, before, after, ratio, counts });
        }
    }
    comparisons
}

impl Comparison<'_> {
    /// Cells of a table: workload, unit, before, after, ratio, and the counts.
    pub(crate) fn cells(&self) -> [String; 7] {
        let unit = match self.workload.headline {
            Headline::P50 => "us",
            Headline::PacingRatio => "x",
            Headline::OperationsPerSecond => "ops/s",
            Headline::MegabytesPerSecond => "MB/s",
        };
        let count =
            |[writes, flushes]: [Option<f64>; 2]| format!("{} + {}", shown(writes, 2), shown(flushes, 2));
        let places = if self.before.max(self.after) < 100.0 { 1 } else { 0 };
        [
            self.workload.name.clone(),
            unit.to_owned(),
            shown(Some(self.before), places),
            shown(Some(self.after), places),
            format!("{:.2}", self.ratio),
            count(self.counts[0]),
            count(self.counts[1]),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "mechanism": self.mechanism.name,
            "workload": self.workload.name,
            "figure": self.workload.headline.figure(),
            "before": self.before,
            "after": self.after,
            "ratio": self.ratio,
        })
    }
}

/// Titles of [`Comparison::cells`].
pub(crate) const TITLES: [&str; 7] =
    ["workload", "unit", "before", "after", "ratio", "writes + flushes before", "after"];

/// For the JSON file.
pub(crate) fn json(record: &Record, workloads: &[Workload]) -> Value {
    comparisons(record, workloads).iter().map(Comparison::json).collect()
}

/// All comparisons; empty where there are none.
pub(crate) fn text(comparisons: &[Comparison<'_>]) -> String {
    let mut text = String::new();
    let mut of = "";
    for comparison in comparisons {
        if of != comparison.mechanism.name {
            of = comparison.mechanism.name;
            say!(text, "\n{of}: {}", comparison.mechanism.about);
            let [workload, unit, before, after, ratio, counts, counts_after] = TITLES;
            say!(
                text,
                "  {workload:<18} {unit:>6} {before:>9} {after:>9} {ratio:>6} {counts:>24} {counts_after:>14}"
            );
        }
        let [workload, unit, before, after, ratio, counts, counts_after] = comparison.cells();
        say!(
            text,
            "  {workload:<18} {unit:>6} {before:>9} {after:>9} {ratio:>6} {counts:>24} {counts_after:>14}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    fn row(system: &str, workload: &str, round: usize, figure: (&str, f64)) -> Row {
        Row { round, ..Row::of(system, workload, &[figure]) }
    }

    #[test]
    fn ratio_is_above_one_where_the_mechanism_helps_whatever_the_unit() {
        let rows = vec![
            row("engine:complete", "append", 0, ("p50_us", 100.0)),
            row("engine:no-images", "append", 0, ("p50_us", 150.0)),
            row("engine:complete", "threads-4", 0, ("ops_per_s", 9000.0)),
            row("engine:no-group-commit", "threads-4", 0, ("ops_per_s", 3000.0)),
            row("engine:no-images", "overwrite", 0, ("p50_us", 150.0)),
        ];
        let record = Record::of_rows(rows);
        let workloads = workload::all();
        let found = comparisons(&record, &workloads);
        let seen: Vec<_> =
            found.iter().map(|c| (c.mechanism.name, c.workload.name.as_str(), c.ratio)).collect();
        assert_eq!(seen, [("no-group-commit", "threads-4", 3.0), ("no-images", "append", 1.5)]);
    }

    #[test]
    fn every_workload_that_shows_a_mechanism_exists_and_every_switch_is_used_once() {
        let all = workload::all();
        for mechanism in MECHANISMS {
            for name in mechanism.workloads {
                assert!(all.iter().any(|workload| workload.name == *name), "{name}");
            }
            let used = MECHANISMS.iter().filter(|other| other.ablation == mechanism.ablation).count();
            assert!(used == 1 && mechanism.ablation != Ablation::default(), "{}", mechanism.name);
        }
    }
}
