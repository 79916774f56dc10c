//! `syncline stats --watch`: one line for each interval, in the manner of vmstat(8).

use super::interval::Interval;
use super::{Between, Sample};
use crate::error::Failure;
use crate::output;
use crate::size::{Size, duration, grouped};
use std::path::Path;

/// After so many lines the titles come again.
const LINES_PER_TITLE: u64 = 20;

const COLUMNS: [(&str, usize); 9] = [
    ("syncs/s", 9),
    ("p50", 8),
    ("p99", 8),
    ("writes/sync", 11),
    ("flushes/sync", 12),
    ("batches/group", 13),
    ("written/s", 11),
    ("journal", 7),
    ("checkpoints", 11),
];

/// Prints until nobody reads any more, or the mount is gone.
pub(crate) fn run(directory: &Path, interval: Interval, json: bool) -> Result<(), Failure> {
    let mut before = Sample::take(directory)?;
    if json {
        output::line(&before.figures.to_string())?;
    }
    for number in 0.. {
        std::thread::sleep(interval.0);
        let after = Sample::take(directory)?;
        if json {
            output::line(&after.figures.to_string())?;
        } else {
            if number % LINES_PER_TITLE == 0 {
                output::line(&row(COLUMNS.map(|(title, _)| title.to_owned())))?;
            }
            output::line(&row(cells(Between { before: &before, after: &after })))?;
        }
        before = after;
    }
    Ok(())
}

fn cells(between: Between<'_>) -> [String; COLUMNS.len()] {
    let latency = |share| between.quantile("fsync_us", share).map_or_else(nothing, duration);
    let ratio =
        |part, whole| between.for_each(part, whole).map_or_else(nothing, |ratio| format!("{ratio:.2}"));
    let (used, size) = ("/store/journal_bytes", "/store/journal_bytes_max");
    let journal = 100.0 * between.after.number(used) / between.after.number(size).max(1.0);
    [
        grouped(between.per_second("/fsync_us/count").round() as u64),
        latency(0.5),
        latency(0.99),
        ratio("/device/writes", "/fsync_us/count"),
        ratio("/device/flushes", "/fsync_us/count"),
        ratio("/store/grouped_batches", "/store/groups"),
        Size(between.per_second("/device/written_bytes") as u64).to_string(),
        format!("{journal:.0} %"),
        grouped(between.growth("/store/checkpoints") as u64),
    ]
}

fn nothing() -> String {
    "-".to_owned()
}

fn row(cells: [String; COLUMNS.len()]) -> String {
    let padded = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    padded.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::tests::samples;
    use serde_json::json;

    #[test]
    fn a_line_tells_of_its_interval_alone_and_stands_below_the_titles() {
        let figures = |syncs: u64| {
            json!({
                "fsync_us": {"count": syncs, "buckets": [{"up_to": 255.0, "count": syncs}]},
                "device": {"writes": 2 * syncs, "flushes": syncs, "written_bytes": syncs << 20},
                "store": {
                    "groups": syncs / 2, "grouped_batches": syncs, "checkpoints": 1, "journal_bytes": 1 << 20,
                    "journal_bytes_max": 4 << 20,
                },
            })
        };
        let (before, after) = samples(figures(1000), figures(5000));
        let told = cells(Between { before: &before, after: &after });
        let expected = ["2,000", "191 us", "254 us", "2.00", "1.00", "2.00", "1.9 GiB", "25 %", "0"];
        assert_eq!(told, expected.map(str::to_owned));
        let (titles, line) = (row(COLUMNS.map(|(title, _)| title.to_owned())), row(told));
        assert_eq!(titles.len(), line.len());
        let (before, after) = samples(figures(1000), figures(1000));
        let quiet = cells(Between { before: &before, after: &after });
        assert_eq!(quiet[..4], ["0", "-", "-", "-"].map(str::to_owned));
    }
}
