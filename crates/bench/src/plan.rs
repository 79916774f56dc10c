//! `syncline bench --plan`: what is still to be run, and how long that takes by what was measured before.

use crate::output::say;
use crate::record::Record;
use crate::row::{Row, median};
use crate::runner::Missing;

/// A line for each workload, and the sum.
pub(crate) fn text(record: &Record, missing: &[Missing<'_>]) -> String {
    let mut text = String::new();
    let mut workloads: Vec<&str> = Vec::new();
    for (_, workload, _) in missing {
        if !workloads.contains(&workload.name.as_str()) {
            workloads.push(&workload.name);
        }
    }
    let (mut total_s, mut unknown) = (0.0, 0);
    for name in workloads {
        let mine: Vec<&Missing<'_>> =
            missing.iter().filter(|(_, workload, _)| workload.name == name).collect();
        let seconds: Vec<Option<f64>> =
            mine.iter().map(|(_, _, system)| expected_s(record, name, &system.name())).collect();
        let known_s: f64 = seconds.iter().flatten().sum();
        let without = seconds.iter().filter(|seconds| seconds.is_none()).count();
        total_s += known_s;
        unknown += without;
        match without == mine.len() {
            true => say!(text, "{name:<24} {:>4} runs   never run", mine.len()),
            false => say!(text, "{name:<24} {:>4} runs {known_s:>6.0} s", mine.len()),
        }
    }
    if !missing.is_empty() && unknown == missing.len() {
        say!(
            text,
            "{:<24} {:>4} runs, none of them ever made, so how long they take is not known",
            "all",
            unknown
        );
        return text;
    }
    say!(text, "{:<24} {:>4} runs {total_s:>6.0} s, {:.0} minutes", "all", missing.len(), total_s / 60.0);
    if unknown > 0 {
        say!(text, "{unknown} of the runs were never made, so their time is not known");
    }
    text
}

/// The median of the same, or of the same workload on any system.
fn expected_s(record: &Record, workload: &str, system: &str) -> Option<f64> {
    let of = |wanted: &dyn Fn(&Row) -> bool| {
        let rows = record.rows.iter().filter(|row| row.workload == workload && wanted(row));
        median(rows.filter_map(|row| row.took_s).collect())
    };
    of(&|row| row.system == system).or_else(|| of(&|_| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_time_is_that_of_the_same_system_and_else_of_any() {
        let row = |system: &str, took_s: f64| Row { took_s: Some(took_s), ..Row::of(system, "append", &[]) };
        let record =
            Record::of_rows(vec![row("ext4", 1.0), row("ext4", 3.0), row("ext4", 2.0), row("xfs", 9.0)]);
        assert_eq!(expected_s(&record, "append", "ext4"), Some(2.0));
        assert_eq!(expected_s(&record, "append", "btrfs"), Some(2.5));
        assert_eq!(expected_s(&record, "create", "ext4"), None);
    }
}
