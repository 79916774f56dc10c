//! Measurements, medians over rounds, and how they are shown.

use crate::device::Statistics;
use serde_json::{Value, json};
use std::time::Duration;

/// Latencies of single operations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    /// The latency that `share` (0 to 1) of the operations did not exceed, in microseconds.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = (sorted.len().saturating_sub(1) as f64 * share) as usize;
        sorted.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    }
}

/// What one run of a workload gave.
#[derive(Debug, Clone)]
pub(crate) struct Measurement {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
    /// Of the floor, in slices between the operations.
    pub(crate) floor: Latencies,
}

impl Measurement {
    pub(crate) fn operations(
        operations: u64,
        elapsed: Duration,
        latencies: Latencies,
        floor: Latencies,
    ) -> Measurement {
        Measurement { operations, bytes: 0, elapsed, latencies, floor }
    }

    pub(crate) fn bytes(bytes: u64, elapsed: Duration) -> Measurement {
        let (latencies, floor) = (Latencies::default(), Latencies::default());
        Measurement { operations: 0, bytes, elapsed, latencies, floor }
    }
}

/// One run of one workload on one system.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) workload: &'static str,
    pub(crate) about: &'static str,
    pub(crate) round: usize,
    pub(crate) measurement: Measurement,
    pub(crate) device: Statistics,
    /// Journal records that the engine wrote: the writes that syncs waited for, where their data lies in the record.
    /// `None` for the kernel's file systems.
    pub(crate) records: Option<u64>,
}

impl Row {
    fn p50_us(&self) -> f64 {
        self.measurement.latencies.quantile_us(0.5)
    }

    fn floor_us(&self) -> f64 {
        self.measurement.floor.quantile_us(0.5)
    }

    fn p99_us(&self) -> f64 {
        self.measurement.latencies.quantile_us(0.99)
    }

    fn per_operation(&self, count: u64) -> f64 {
        count as f64 / self.measurement.operations.max(1) as f64
    }

    /// Device writes per operation. The block layer counts a stand-alone flush as one write more; Syncline issues only
    /// such flushes, so they are taken off. The kernel's file systems also flush as part of a write, which nothing in
    /// the statistics tells apart: their figure is left as it is, an upper bound.
    fn writes_per_operation(&self) -> f64 {
        let flushes = if self.records.is_some() { self.device.flushes } else { 0 };
        self.per_operation(self.device.writes - flushes)
    }

    /// Writes beside the records: destaging, checkpoints, writeback, and data too large for a record.
    fn beside_records(&self) -> Option<f64> {
        Some(self.writes_per_operation() - self.per_operation(self.records?))
    }

    fn megabytes_per_second(&self) -> f64 {
        self.measurement.bytes as f64 / 1e6 / self.measurement.elapsed.as_secs_f64()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "system": self.system,
            "workload": self.workload,
            "round": self.round,
            "operations": self.measurement.operations,
            "bytes": self.measurement.bytes,
            "seconds": self.measurement.elapsed.as_secs_f64(),
            "p50_us": self.p50_us(),
            "p99_us": self.p99_us(),
            "floor_p50_us": self.floor_us(),
            "journal_records": self.records,
            "device_reads": self.device.reads,
            "device_writes": self.device.writes,
            "device_sectors_written": self.device.sectors_written,
            "device_flushes": self.device.flushes,
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Prints one table per workload: medians over the rounds.
pub(crate) fn print(rows: &[Row]) {
    let mut workloads: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if !workloads.iter().any(|(name, _)| *name == row.workload) {
            workloads.push((row.workload, row.about));
        }
    }
    for (workload, about) in workloads {
        println!("\n{workload}: {about}");
        let here: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
        let mut systems: Vec<&str> = Vec::new();
        for row in &here {
            if !systems.contains(&row.system.as_str()) {
                systems.push(&row.system);
            }
        }
        let sequential = here.iter().all(|row| row.measurement.operations == 0);
        if sequential {
            println!("  {:<10} {:>10}", "system", "MB/s");
        } else {
            println!(
                "  {:<10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>10} {:>10} {:>9} {:>11} {:>11}",
                "system",
                "p50 us",
                "p99 us",
                "ops/s",
                "floor us",
                "x floor",
                "writes/op",
                "flushes/op",
                "KiB/op",
                "records/op",
                "others/op"
            );
        }
        for system in systems {
            let runs: Vec<&&Row> = here.iter().filter(|row| row.system == system).collect();
            let of = |value: &dyn Fn(&Row) -> f64| median(runs.iter().map(|row| value(row)).collect());
            if sequential {
                println!("  {:<10} {:>10.0}", system, of(&Row::megabytes_per_second));
                continue;
            }
            println!(
                "  {:<10} {:>9.1} {:>9.1} {:>9.0} {:>9.1} {:>8.2} {:>10.3} {:>10.3} {:>9.1} {:>11} {:>11}",
                system,
                of(&Row::p50_us),
                of(&Row::p99_us),
                of(&|row| row.measurement.operations as f64 / row.measurement.elapsed.as_secs_f64()),
                of(&Row::floor_us),
                of(&|row| row.p50_us() / row.floor_us()),
                of(&Row::writes_per_operation),
                of(&|row| row.per_operation(row.device.flushes)),
                of(&|row| row.per_operation(row.device.sectors_written) / 2.0),
                told(runs.iter().map(|row| Some(row.per_operation(row.records?))).collect()),
                told(runs.iter().map(|row| row.beside_records()).collect()),
            );
        }
    }
    println!(
        "\nfloor: one 4 KiB write + one flush, in slices between the operations; records: writes that a sync waits \
         for; others: background, and data beside the record"
    );
}

/// The median, or a dash where it is not known.
fn told(values: Vec<Option<f64>>) -> String {
    values
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .map_or("-".to_string(), |values| format!("{:.3}", median(values)))
}
