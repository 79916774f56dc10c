//! dbench's own table: what each of its operations took, on average and at most, of each system.

use crate::report::{Group, shown};

const AVERAGE: &str = "_avg_ms";
const MOST: &str = "_max_ms";

/// What the cells are.
pub(crate) const ABOUT: &str = "milliseconds of each operation: average, slowest";

/// A row for each operation, in the order of the alphabet: its name, and a cell for each of the group's systems.
/// Empty for workloads that tell no such figures.
pub(crate) fn rows(group: &Group<'_>, systems: &[&str]) -> Vec<(String, Vec<String>)> {
    let operations = group.figures().into_iter().filter_map(|figure| figure.strip_suffix(AVERAGE));
    let cell = |operation: &str, system: &str| {
        let of = |suffix| group.median(system, &format!("{operation}{suffix}"));
        of(AVERAGE).map_or("-".to_owned(), |average| format!("{average:.3}, {}", shown(of(MOST), 1)))
    };
    operations
        .map(|operation| {
            (operation.to_owned(), systems.iter().map(|system| cell(operation, system)).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use crate::report::groups;
    use crate::row::Row;
    use crate::workload;

    #[test]
    fn each_operation_has_its_average_and_its_slowest_of_each_system() {
        let record = Record::of_rows(vec![
            Row::of(
                "syncline",
                "dbench-16",
                &[("rename_avg_ms", 0.5), ("rename_max_ms", 3.25), ("flush_avg_ms", 1.0)],
            ),
            Row::of("ext4", "dbench-16", &[("rename_avg_ms", 0.25), ("rename_max_ms", 9.0)]),
            Row::of("ext4", "append", &[("p50_us", 500.0)]),
        ]);
        let all = workload::all();
        let groups = groups(&record, &all);
        let of = |name: &str| groups.iter().find(|group| group.workload.name == name).expect("measured");
        let cells = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let expected = vec![
            ("flush".to_owned(), cells(["1.000, -", "-"])),
            ("rename".to_owned(), cells(["0.500, 3.2", "0.250, 9.0"])),
        ];
        assert_eq!(rows(of("dbench-16"), &["syncline", "ext4"]), expected);
        assert!(rows(of("append"), &["ext4"]).is_empty());
    }
}
