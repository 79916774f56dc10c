//! fio: sequential and random writes with syncs in between, a file for each job. On the engine, the same in this
//! process.

use super::{place, run, strange};
use crate::measure::Outcome;
use crate::workload::{Context, jobs as in_process};
use serde_json::Value;
use std::io;
use std::process::Command;
use std::time::Duration;

pub(crate) fn sequential(context: &Context<'_>, jobs: usize) -> io::Result<Outcome> {
    if context.directory.is_none() {
        return in_process::sequential(context, jobs);
    }
    write(context, jobs, &["--rw=write", "--bs=64k", "--fsync=1"])
}

pub(crate) fn random(context: &Context<'_>, jobs: usize) -> io::Result<Outcome> {
    if context.directory.is_none() {
        return in_process::random(context, jobs);
    }
    write(context, jobs, &["--rw=randwrite", "--bs=4k", "--fsync=16"])
}

fn write(context: &Context<'_>, jobs: usize, what: &[&str]) -> io::Result<Outcome> {
    let directory = match place(context, "fio", "fio") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let kib = ((context.arguments.fio_mib << 10) / jobs as u64).max(64);
    let output = run(Command::new("fio")
        .args(["--name=job", "--ioengine=sync", "--direct=0", "--fallocate=none", "--group_reporting"])
        .args(["--output-format=json", "--randseed=1", "--percentile_list=50:99"])
        .args(what)
        .arg(format!("--directory={}", directory.display()))
        .arg(format!("--numjobs={jobs}"))
        .arg(format!("--size={kib}k"))
        // Its temporary files do not belong where the server's other files are.
        .current_dir(&context.arguments.work))?;
    context.meter.end()?;
    outcome(&output.stdout).ok_or_else(|| strange("fio", &output.stdout))
}

/// Latencies are those of the fsyncs.
fn outcome(output: &[u8]) -> Option<Outcome> {
    // Notes may come before it.
    let start = output.iter().position(|&byte| byte == b'{')?;
    let told: Value = serde_json::from_slice(&output[start..]).ok()?;
    let job = &told["jobs"][0];
    let (write, sync) = (&job["write"], &job["sync"]["lat_ns"]);
    let bytes = write["io_bytes"].as_u64()?;
    let speed = write["bw_bytes"].as_f64()?;
    let percentile = |name: &str| sync["percentile"][name].as_f64().map(|ns| ns / 1000.0);
    let mut outcome = Outcome {
        operations: write["total_ios"].as_u64()?,
        bytes,
        elapsed: Duration::from_secs_f64(bytes as f64 / speed.max(1.0)),
        ..Outcome::default()
    };
    for (name, value) in [
        ("p50_us", percentile("50.000000")),
        ("p99_us", percentile("99.000000")),
        ("max_us", sync["max"].as_f64().map(|ns| ns / 1000.0)),
    ] {
        outcome.figures.extend(value.map(|value| (name.to_owned(), value)));
    }
    Some(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_sync_latencies_are_read() {
        let text = br#"note: x
            {"jobs": [{"write": {"io_bytes": 2000000, "bw_bytes": 1000000, "total_ios": 32},
             "sync": {"lat_ns": {"max": 9000, "percentile": {"50.000000": 4000, "99.000000": 8000}}}}]}"#;
        let outcome = outcome(text).expect("read");
        assert_eq!(outcome.elapsed, Duration::from_secs(2));
        assert_eq!(outcome.figures["p99_us"], 8.0);
        assert_eq!(outcome.operations, 32);
    }

    #[test]
    fn output_without_a_job_is_not_understood() {
        assert!(super::outcome(b"{\"jobs\": []}").is_none());
        assert!(super::outcome(b"fio: failed").is_none());
    }
}
