//! `syncline bench --aims`: bulk work and busy machines, judged against ext4 over each transport.
//!
//! A factor is how many times as long as on ext4 it takes, or how many times the latency is. So 1 is ext4's own, and
//! less is better, whichever way the figure itself is better.

use crate::output::{add, say};
use crate::record::Record;
use crate::report::{Group, groups, shown};
use crate::workload::Workload;

/// What `--aims` runs: what is judged, and what is only told beside it.
pub(crate) const WORKLOADS: &[&str] = &[
    "untar",
    "remove-tree",
    "copy-tree",
    "find",
    "grep-cold",
    "grep-warm",
    "dpkg",
    "pgbench-init",
    "pgbench",
    "beside-bulk",
    "beside-hogs",
    "beside-hogs-nice",
    "beside-hogs-fifo",
];
pub(crate) const SYSTEMS: &[&str] = &["syncline", "syncline-dev", "ext4", "xfs", "btrfs"];
/// What it promises.
pub(crate) const MINUTES: u64 = 12;
const MEASURE: &str = "ext4";

/// How a figure becomes a factor.
#[derive(Clone, Copy)]
enum Figure {
    /// More is better.
    Rate(&'static str),
    /// Less is better.
    Latency(&'static str),
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Figure::Rate(name) | Figure::Latency(name) => name,
        }
    }

    /// Of a system's figure and ext4's.
    fn factor(self, own: f64, measure: f64) -> f64 {
        match self {
            Figure::Rate(_) => measure / own,
            Figure::Latency(_) => own / measure,
        }
    }
}

/// Most that the factor may be, over io_uring and over /dev/fuse; `None`: it is only told.
struct Aim {
    workload: &'static str,
    figure: Figure,
    uring: Option<f64>,
    dev: Option<f64>,
}

const fn aim(workload: &'static str, figure: Figure, uring: f64, dev: f64) -> Aim {
    Aim { workload, figure, uring: Some(uring), dev: Some(dev) }
}

const fn told(workload: &'static str, figure: Figure) -> Aim {
    Aim { workload, figure, uring: None, dev: None }
}

const AIMS: &[Aim] = &{
    const RATE: Figure = Figure::Rate("ops_per_s");
    const P50: Figure = Figure::Latency("p50_us");
    const P99: Figure = Figure::Latency("p99_us");
    [
        aim("untar", RATE, 2.2, 2.8),
        aim("remove-tree", RATE, 1.5, 1.5),
        aim("copy-tree", RATE, 2.0, 2.0),
        aim("find", RATE, 2.0, 2.0),
        told("grep-cold", RATE),
        aim("grep-warm", RATE, 1.5, 1.5),
        aim("dpkg", RATE, 1.2, 1.2),
        aim("pgbench-init", RATE, 1.8, 1.8),
        aim("pgbench", RATE, 1.0, 1.0),
        aim("pgbench", P99, 1.0, 1.0),
        aim("beside-bulk", P50, 1.2, 1.2),
        aim("beside-hogs", P50, 1.0, 1.0),
        aim("beside-hogs", P99, 1.5, 1.5),
        told("beside-hogs-nice", P50),
        told("beside-hogs-nice", P99),
        told("beside-hogs-fifo", P50),
        told("beside-hogs-fifo", P99),
    ]
};

/// A line for each figure of each aim that was measured; empty if none was.
pub(crate) fn text(record: &Record, workloads: &[Workload]) -> String {
    let groups = groups(record, workloads);
    let mut text = String::new();
    for aim in AIMS {
        let Some(group) = groups.iter().find(|group| group.workload.name == aim.workload) else { continue };
        if !group.figures().contains(&aim.figure.name()) {
            continue;
        }
        if text.is_empty() {
            say!(
                text,
                "\nagainst {MEASURE} (1: as long as there; the median, and the least and most of the rounds)"
            );
            say!(
                text,
                "  {:<18} {:<10} {:>10} {:>26} {:>26} {:>8} {:>8}",
                "",
                "figure",
                MEASURE,
                "io_uring",
                "/dev/fuse",
                "xfs",
                "btrfs"
            );
        }
        text.push_str(&aim.line(group));
    }
    text
}

impl Aim {
    fn line(&self, group: &Group<'_>) -> String {
        let mut text = String::new();
        let figure = self.figure.name();
        let measure = group.median(MEASURE, figure);
        let factor = |system: &str| Some(self.figure.factor(group.median(system, figure)?, measure?));
        add!(text, "  {:<18} {figure:<10} {:>10}", self.workload, shown(measure, 0));
        for (system, most) in [("syncline", self.uring), ("syncline-dev", self.dev)] {
            add!(text, " {:>26}", self.judged(group, system, factor(system), most));
        }
        say!(text, " {:>8} {:>8}", shown(factor("xfs"), 2), shown(factor("btrfs"), 2));
        text
    }

    /// A factor, how far it moves with the rounds of the system, and whether it is what it should be.
    fn judged(&self, group: &Group<'_>, system: &str, factor: Option<f64>, most: Option<f64>) -> String {
        let Some(factor) = factor else { return shown(None, 0) };
        let figure = self.figure.name();
        let measure = group.median(MEASURE, figure).unwrap_or(f64::NAN);
        let each = group.values(system, figure).into_iter().map(|own| self.figure.factor(own, measure));
        let (least, greatest) =
            each.fold((f64::MAX, f64::MIN), |(least, greatest), one| (least.min(one), greatest.max(one)));
        let verdict = match most {
            None => String::new(),
            Some(most) if factor <= most => format!(" <= {most}"),
            Some(most) => format!(" > {most} missed"),
        };
        format!("{factor:.2} ({least:.1}-{greatest:.1}){verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Row;
    use crate::workload;

    #[test]
    fn a_rate_is_judged_by_the_time_it_means_and_a_latency_by_itself() {
        let rows = vec![
            Row::of("syncline", "untar", &[("ops_per_s", 500.0)]),
            Row::of("syncline-dev", "untar", &[("ops_per_s", 300.0)]),
            Row::of("ext4", "untar", &[("ops_per_s", 1000.0)]),
            Row::of("syncline", "beside-hogs", &[("p50_us", 150.0)]),
            Row::of("ext4", "beside-hogs", &[("p50_us", 300.0)]),
        ];
        let text = text(&Record::of_rows(rows), &workload::all());
        assert!(text.contains("2.00 (2.0-2.0) <= 2.2"), "{text}");
        assert!(text.contains("3.33 (3.3-3.3) > 2.8 missed"), "{text}");
        assert!(text.contains("0.50 (0.5-0.5) <= 1"), "{text}");
    }

    #[test]
    fn what_is_judged_or_told_is_run_and_exists() {
        let all = workload::all();
        for name in WORKLOADS {
            assert!(all.iter().any(|workload| workload.name == *name), "{name}");
            assert!(AIMS.iter().any(|aim| aim.workload == *name), "{name}");
        }
        assert!(AIMS.iter().all(|aim| WORKLOADS.contains(&aim.workload)));
    }

    #[test]
    fn nothing_is_said_of_what_was_not_measured() {
        assert!(text(&Record::of_rows(Vec::new()), &workload::all()).is_empty());
    }
}
