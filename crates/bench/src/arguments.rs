//! The command line of `syncline-bench`.

use crate::aims;
use clap::Parser;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Workloads of the short form.
const SHORT_WORKLOADS: &[&str] = &[
    "overwrite",
    "append",
    "create",
    "replace",
    "link",
    "beside-creates",
    "threads-4",
    "threads-16",
    "threads-64",
    "async-pass-8",
    "fio-sequential",
    "fio-random",
    "fs-mark-each-4",
    "fs-mark-pass-4",
    "dbench-16",
    "sqlite-delete",
    "sqlite-wal",
    "sqlite-atomic",
    "sqlite-vfs-delete",
    "pgbench",
    "untar",
    "remove-tree",
    "pacing",
    "mobile",
];
/// Systems of a run that names none: `syncline-dev` is the same file system by the slower way, which the short form
/// leaves out.
const SYSTEMS: &[&str] = &["engine", "syncline", "syncline-dev", "ext4", "xfs", "btrfs"];
const SHORT_SYSTEMS: &[&str] = &["engine", "syncline", "ext4", "xfs", "btrfs"];
/// What the short form promises.
const SHORT_MINUTES: u64 = 10;

/// Measure what a sync costs, beside ext4, xfs and btrfs.
#[derive(Debug, Clone, Parser)]
#[command(name = "syncline-bench", version)]
pub struct Arguments {
    /// The `syncline` command to format and mount with. Default: the one beside this program, else that in PATH.
    #[arg(long, value_name = "FILE")]
    pub(crate) syncline: Option<PathBuf>,
    /// Directory for the device's backing file (kept for the next run) and mount points.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp/syncline-bench")]
    pub(crate) work: PathBuf,
    /// Size of the device in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 8192)]
    pub(crate) device_mib: u64,
    /// Systems to measure: engine (in process), syncline (mount, over io_uring where the kernel has it), syncline-dev
    /// (mount over /dev/fuse), ext4, xfs, btrfs, dir:PATH; engine:NAME does without a mechanism. All but the last two
    /// if none is given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) systems: Vec<String>,
    /// Workloads to run, by name or by the beginning of it (fio); all if none is given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) workloads: Vec<String>,
    /// Show the workloads.
    #[arg(long)]
    pub(crate) list: bool,
    /// Only say what is still to be run, and how long that takes as far as the results tell.
    #[arg(long)]
    pub(crate) plan: bool,
    /// The ten-minute form: one round, fewer workloads, smaller sizes, without syncline-dev.
    #[arg(long)]
    pub(crate) short: bool,
    /// The twelve-minute form for bulk work and busy machines: five rounds of what has an aim against ext4, over each
    /// transport, judged.
    #[arg(long, conflicts_with_all = ["short", "ablation"])]
    pub(crate) aims: bool,
    /// Interleaved rounds.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    pub(crate) rounds: usize,
    /// Begin nothing new after so many minutes; what was measured by then is shown, and --resume goes on.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) minutes: Option<u64>,
    /// Operations of each small-sync workload, files of fs_mark, rows of sqlite3.
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000)]
    pub(crate) operations: u64,
    /// Bytes of the sequential workloads, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) sequential_mib: u64,
    /// Bytes that all jobs of one run of fio write together, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) fio_mib: u64,
    /// Seconds of one run of dbench.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) seconds: u64,
    /// Seconds of one run of pgbench; its checkpoints are 30 seconds apart.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(crate) pgbench_seconds: u64,
    /// Scale factor of pgbench's tables (16 MiB each).
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    pub(crate) pgbench_scale: u64,
    /// Files of the tree that is unpacked, copied, searched and removed (13 KiB each on average).
    #[arg(long, value_name = "FILES", default_value_t = 16_000)]
    pub(crate) tree_files: u64,
    /// Bytes that the neighbour of the workload pacing writes and syncs, in MiB; its device is twice as large.
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    pub(crate) pacing_mib: u64,
    /// Run the engine without one mechanism at a time, beside the engine as it is, on the workloads that show it.
    #[arg(long)]
    pub(crate) ablation: bool,
    /// Only print the tables of the results in these files, as they stand in docs/measurements/full-run.md.
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub(crate) table: Vec<PathBuf>,
    /// With --table: write them into this document, between its two marks, instead.
    #[arg(long, value_name = "FILE", requires = "table")]
    pub(crate) into: Option<PathBuf>,
    /// The extension for the workloads sqlite-vfs. Default: libsyncline_sqlite.so beside this program.
    #[arg(long, value_name = "FILE")]
    pub(crate) sqlite_vfs: Option<PathBuf>,
    /// A sqlite3 built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE, for the workload sqlite-atomic. Default: one is compiled.
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) sqlite_atomic: Option<PathBuf>,
    /// Pin the caller and the mount's daemon to this CPU.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) cpu: Option<usize>,
    /// Bound on the memory of the engine in this process, in MiB. Default: the library's, 256.
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<usize>,
    /// Keep the results in this JSON file, each as soon as it is there.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Go on with the results in the file given by --json.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Write one page with plots to this file; with --json and --resume of a finished run, nothing is measured again.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Measure mounting a clean 1 TiB volume and recovering a full journal instead.
    #[arg(long)]
    pub(crate) open: bool,
    /// Size of the journal that is filled, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub(crate) journal_mib: u64,
    /// Keep the volume with the full journal of creations as `full-journal.img` instead of measuring its recovery.
    #[arg(long)]
    pub(crate) fill_only: bool,
    /// Create so many empty files in one directory of a fresh image without a sync instead.
    #[arg(long, value_name = "FILES")]
    pub(crate) creates: Option<u64>,
    /// Measure instead what an operation costs as a directory, a tree, a volume, open files and callers grow by
    /// decades.
    #[arg(long)]
    pub(crate) growth: bool,
    /// Entries of the largest directory of --growth; its tree has ten times as many files, and a tenth are opened.
    #[arg(long, value_name = "ENTRIES", default_value_t = 100_000)]
    pub(crate) largest: u64,
    /// Only open the volume at this path and tell what that took.
    #[arg(long, value_name = "PATH")]
    pub(crate) recover: Option<PathBuf>,
}

impl Arguments {
    /// The short form spelled out.
    pub(crate) fn settled(&self) -> Arguments {
        let mut settled = self.clone();
        let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        if self.aims {
            settled.minutes = Some(self.minutes.unwrap_or(aims::MINUTES));
            settled.operations = self.operations.min(1000);
            settled.device_mib = self.device_mib.min(4096);
            settled.pgbench_seconds = self.pgbench_seconds.min(5);
            settled.pgbench_scale = self.pgbench_scale.min(5);
            settled.tree_files = self.tree_files.min(4000);
            if self.workloads.is_empty() {
                settled.workloads = named(aims::WORKLOADS);
            }
            if self.systems.is_empty() {
                settled.systems = named(aims::SYSTEMS);
            }
        }
        if settled.systems.is_empty() {
            settled.systems = named(if self.short { SHORT_SYSTEMS } else { SYSTEMS });
        }
        if self.short {
            settled.minutes = Some(self.minutes.unwrap_or(SHORT_MINUTES));
            settled.rounds = self.rounds.min(1);
            settled.operations = self.operations.min(1000);
            settled.sequential_mib = self.sequential_mib.min(256);
            settled.fio_mib = self.fio_mib.min(128);
            settled.device_mib = self.device_mib.min(4096);
            settled.seconds = self.seconds.min(4);
            settled.pgbench_seconds = self.pgbench_seconds.min(8);
            settled.pacing_mib = self.pacing_mib.min(512);
            settled.pgbench_scale = self.pgbench_scale.min(5);
            settled.tree_files = self.tree_files.min(2000);
            if self.workloads.is_empty() && !self.ablation {
                settled.workloads = named(SHORT_WORKLOADS);
            }
        }
        settled
    }

    /// Size of the device for what `pacing_mib` is written to: a copy-on-write system holds more than one version of
    /// it, and other files lie beside it.
    pub(crate) fn large_device_mib(&self) -> u64 {
        self.device_mib.max(2 * self.pacing_mib)
    }

    /// What decides over the figures; a run is only resumed with the same.
    pub(crate) fn settings(&self) -> Value {
        let mut settings = json!({
            "device_mib": self.device_mib,
            "operations": self.operations,
            "sequential_mib": self.sequential_mib,
            "fio_mib": self.fio_mib,
            "seconds": self.seconds,
            "pgbench_seconds": self.pgbench_seconds,
            "pgbench_scale": self.pgbench_scale,
            "pacing_mib": self.pacing_mib,
            "tree_files": self.tree_files,
            "cpu": self.cpu,
        });
        // Results from before there was a choice have the default, and can be gone on with.
        if let Some(memory_mib) = self.memory_mib {
            settings["memory_mib"] = memory_mib.into();
        }
        settings
    }
}
