//! `syncline-bench`: what a sync costs, counted by the device itself, beside the floor of the same run.
//!
//! Workloads are defined once (`workload`) over a narrow backend (`backend`) and run on the embedded engine, on a
//! Syncline mount and on fresh file systems of the kernel, all on one loop device over a fully written file, in
//! interleaved rounds. Writes and flushes come from the device's own statistics.

mod backend;
mod device;
mod floor;
mod report;
mod scale;
mod system;
mod workload;

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures what a sync costs on Syncline and on the kernel's file systems.
#[derive(Parser)]
#[command(version, about)]
pub(crate) struct Arguments {
    /// The `syncline` command to format and mount with.
    #[arg(long, default_value = "target/release/syncline")]
    syncline: PathBuf,
    /// Directory for the device's backing file (kept for the next run) and mount points.
    #[arg(long, default_value = "/var/tmp/syncline-bench")]
    work: PathBuf,
    /// Size of the loop device in MiB.
    #[arg(long, default_value_t = 8192)]
    device_mib: u64,
    /// Systems to measure: engine, syncline, ext4, xfs, btrfs.
    #[arg(long, value_delimiter = ',', default_value = "engine,syncline,ext4,xfs,btrfs")]
    systems: Vec<String>,
    /// Workloads to run, by name; all if none is given.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Operations of each small-sync workload.
    #[arg(long, default_value_t = 10_000)]
    operations: u64,
    /// Bytes of the sequential workloads, in MiB.
    #[arg(long, default_value_t = 1024)]
    sequential_mib: u64,
    /// Pin the caller and the mount's daemon to this CPU.
    #[arg(long)]
    cpu: Option<usize>,
    /// Measure mounting a clean 1 TiB volume and recovering a full journal instead.
    #[arg(long)]
    scale: bool,
    /// Size of the journal that is filled, in MiB.
    #[arg(long, default_value_t = 1024)]
    journal_mib: u64,
    /// Keep the volume with the full journal of creations as `full-journal.img` instead of measuring its recovery.
    #[arg(long)]
    fill_only: bool,
    /// Create so many empty files in one directory of a fresh image without a sync instead.
    #[arg(long, value_name = "FILES")]
    creates: Option<u64>,
    /// Only open the volume at this path and tell what that took.
    #[arg(long, value_name = "PATH")]
    recover: Option<PathBuf>,
    /// Write the results as JSON to this file as well.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = match &arguments.recover {
        Some(path) => scale::recover(path),
        None if arguments.scale => scale::run(&arguments),
        None if arguments.creates.is_some() => scale::creates(&arguments),
        None => system::run(&arguments),
    };
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("syncline-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
