//! dbench: a file server's load, with its table of latencies for each operation. On the engine, its load played in
//! this process.

mod play;

use super::{place, run, strange};
use crate::measure::Outcome;
use crate::row::Figures;
use crate::workload::Context;
use std::io;
use std::process::Command;
use std::time::Duration;

const LOAD_FILE: &str = "/usr/share/dbench/client.txt";

pub(crate) fn run_load(context: &Context<'_>, clients: usize) -> io::Result<Outcome> {
    if context.directory.is_none() {
        return match std::fs::read_to_string(LOAD_FILE) {
            Ok(load) => play::play(context, &load, clients),
            Err(_) => Ok(Outcome::skipped(format!("{LOAD_FILE} is missing; install the package dbench"))),
        };
    }
    let directory = match place(context, "dbench", "dbench") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let output = run(Command::new("dbench")
        .args(["-c", LOAD_FILE, "-t", &context.arguments.seconds.to_string()])
        .arg("-D")
        .arg(directory)
        .arg(clients.to_string()))?;
    context.meter.end()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = figures(&text).ok_or_else(|| strange("dbench", &output.stdout))?;
    let elapsed = Duration::from_secs(context.arguments.seconds);
    let operations = figures.iter().filter(|(name, _)| name.ends_with("_count")).map(|(_, n)| n).sum::<f64>();
    Ok(Outcome { operations: operations as u64, elapsed, figures, ..Outcome::default() })
}

/// `rename_avg_ms`, `rename_max_ms` and `rename_count` for each operation, and the throughput.
fn figures(output: &str) -> Option<Figures> {
    let mut figures = Figures::new();
    let mut rows = output.lines().skip_while(|line| !line.trim_start().starts_with("Operation")).skip(2);
    for line in rows.by_ref().take_while(|line| !line.trim().is_empty()) {
        let words: Vec<_> = line.split_whitespace().collect();
        let [operation, numbers @ ..] = words.as_slice() else { return None };
        let operation = operation.to_lowercase();
        for (name, number) in ["count", "avg_ms", "max_ms"].iter().zip(numbers) {
            figures.insert(format!("{operation}_{name}"), number.parse().ok()?);
        }
    }
    let last = rows.find_map(|line| line.strip_prefix("Throughput "))?;
    figures.insert("mb_per_s".to_owned(), last.split_whitespace().next()?.parse().ok()?);
    let slowest = last.split_once("max_latency=")?.1.split_whitespace().next()?;
    figures.insert("max_us".to_owned(), slowest.parse::<f64>().ok()? * 1000.0);
    Some(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_throughput_are_read() {
        let text = "   2  cleanup   2 sec\n\n Operation      Count    AvgLat    MaxLat\n -----------\n NTCreateX  16831  0.015  9.713\n Rename  710  0.028  3.214\n\nThroughput 346.534 MB/sec  2 clients  2 procs  max_latency=24.190 ms\n";
        let figures = figures(text).expect("read");
        assert_eq!(figures["rename_avg_ms"], 0.028);
        assert_eq!(figures["ntcreatex_count"], 16831.0);
        assert_eq!(figures["mb_per_s"], 346.534);
        assert_eq!(figures["max_us"], 24190.0);
        assert!(super::figures("0 cleanup").is_none());
    }
}
