//! What it costs to wait for every earlier record before a commit, as W4 was published: SQLite's insertions, updates
//! and deletions a second, and what is lost of them. There, not to wait was at the price of the last commit; here a
//! commit is one record, complete before its flush, so that there is nothing to wait for.
//!
//! Made of the rows of the ablation: a mechanism's own ([`crate::ablation`]) tell one figure of each workload only.

use crate::ablation::{COMPLETE, MECHANISMS, Mechanism};
use crate::output::say;
use crate::record::Record;
use crate::report::{Group, shown};
use crate::row::Row;
use crate::workload::Workload;

/// Figures, their titles, and the loss in percent that was published for them (f2fs, 2018, PERSIST).
const FIGURES: &[(&str, &str, u32)] =
    &[("insert_per_s", "insert", 16), ("update_per_s", "update", 20), ("delete_per_s", "delete", 13)];

pub(crate) const TITLE: &str =
    "Waiting for every earlier record, as W4 published it: SQLite, synchronous=FULL, transactions per second";

/// What stands between title and table.
pub(crate) const ABOUT: &str = "On the VFS in this process, threads with a database each. In both columns a commit returns behind the flush \
    that covers its record, so that no power cut takes the last one (contract C4; crates/sqlite/tests cut the power around \
    each). Not to wait, as f2fs was published (PERSIST), was at the price of the last commit.";

pub(crate) const HEADS: [&str; 8] =
    ["", "", "waiting", "as it is", "lost by waiting", "published", "writes + flushes, waiting", "as it is"];

/// The cells of all rows, in the order of [`HEADS`]; nothing where it was not measured.
pub(crate) fn rows(record: &Record, workloads: &[Workload]) -> Vec<[String; 8]> {
    let shows = |workload: &&Workload| waiting().shows(workload) && workload.name.starts_with("sqlite");
    let mut rows = Vec::new();
    for workload in workloads.iter().filter(shows) {
        let mine: Vec<&Row> = record.rows.iter().filter(|row| row.workload == workload.name).collect();
        let group = Group::of(workload, mine);
        let systems = [waiting().system_name(), COMPLETE.system_name()];
        let counts = systems.each_ref().map(|system| {
            let [writes, flushes] =
                ["writes_per_op", "flushes_per_op"].map(|figure| group.median(system, figure));
            format!("{} + {}", shown(writes, 2), shown(flushes, 2))
        });
        for (figure, title, published) in FIGURES {
            let [Some(before), Some(after)] = systems.each_ref().map(|system| group.median(system, figure))
            else {
                continue;
            };
            rows.push([
                workload.name.clone(),
                (*title).to_owned(),
                shown(Some(before), 0),
                shown(Some(after), 0),
                format!("{} %", shown(Some(lost_percent(before, after)), 0)),
                format!("{published} %"),
                counts[0].clone(),
                counts[1].clone(),
            ]);
        }
    }
    rows
}

/// Of the rate without waiting; negative where waiting was faster, which is what the figures then scatter by.
fn lost_percent(waiting: f64, as_it_is: f64) -> f64 {
    (1.0 - waiting / as_it_is) * 100.0
}

fn waiting() -> &'static Mechanism {
    let found = MECHANISMS.iter().find(|mechanism| mechanism.ablation.ordered_records);
    found.expect("one of the mechanisms is that no record waits for another")
}

/// All of it as text; empty where there are none.
pub(crate) fn text(record: &Record, workloads: &[Workload]) -> String {
    let mut text = String::new();
    let rows = rows(record, workloads);
    if rows.is_empty() {
        return text;
    }
    say!(text, "\n{TITLE}\n  {ABOUT}");
    for [workload, figure, waiting, as_it_is, lost, published, counts, counts_as_it_is] in
        std::iter::once(HEADS.map(str::to_owned)).chain(rows)
    {
        say!(
            text,
            "  {workload:<24} {figure:<8} {waiting:>8} {as_it_is:>8} {lost:>15} {published:>9} {counts:>26} {counts_as_it_is:>12}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload;

    #[test]
    fn loss_is_told_of_each_kind_of_transaction_beside_the_published_one() {
        let figures = |insert: f64, writes: f64| {
            [
                ("insert_per_s", insert),
                ("update_per_s", 1000.0),
                ("writes_per_op", writes),
                ("flushes_per_op", 0.25),
            ]
        };
        let record = Record::of_rows(vec![
            Row::of("engine:complete", "sqlite-engine-persist-4", &figures(1000.0, 0.25)),
            Row::of("engine:ordered-records", "sqlite-engine-persist-4", &figures(840.0, 1.0)),
            Row::of("engine:ordered-records", "atomic", &[("p50_us", 1.0)]),
            Row::of("engine:complete", "atomic", &[("p50_us", 1.0)]),
        ]);
        let rows = rows(&record, &workload::all());
        assert_eq!(rows.len(), 2, "no figure was measured of deletions: {rows:?}");
        assert_eq!(
            rows[0],
            [
                "sqlite-engine-persist-4",
                "insert",
                "840",
                "1000",
                "16 %",
                "16 %",
                "1.00 + 0.25",
                "0.25 + 0.25"
            ]
        );
        assert_eq!(rows[1][4], "0 %");
    }
}
