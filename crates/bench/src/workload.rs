//! The workloads, each defined once.

use crate::arguments::Arguments;
use crate::backend::{Backend, Open};
use crate::floor::Floor;
use crate::measure::{Latencies, Meter, Outcome};
use crate::tools;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

mod bulk;
mod commits;
mod hogs;
pub(crate) mod jobs;
mod many;
mod pacing;
mod snapshots;
mod snapshots_large;
mod staging;
mod threads;

/// What a workload works with.
pub(crate) struct Context<'a> {
    pub(crate) backend: &'a dyn Backend,
    /// Where other programs find it; `None` for the engine in this process.
    pub(crate) directory: Option<&'a Path>,
    /// The device with a volume that the engine has given up.
    pub(crate) released: Option<&'a Path>,
    /// The name under which SQLite in this process finds the volume of the engine.
    pub(crate) lent: Option<&'a str>,
    pub(crate) arguments: &'a Arguments,
    /// Measured between the operations.
    pub(crate) floor: &'a Floor,
    pub(crate) meter: &'a Meter<'a>,
}

/// Which figure of a workload is plotted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Headline {
    /// In microseconds; less is better.
    P50,
    OperationsPerSecond,
    MegabytesPerSecond,
    /// How many times longer the p99 of small syncs is beside a large writer; less is better.
    PacingRatio,
}

impl Headline {
    /// The figure's name.
    pub(crate) fn figure(self) -> &'static str {
        match self {
            Headline::P50 => "p50_us",
            Headline::OperationsPerSecond => "ops_per_s",
            Headline::MegabytesPerSecond => "mb_per_s",
            Headline::PacingRatio => "sync_p99_ratio",
        }
    }
}

type Run = fn(&Context<'_>, usize) -> io::Result<Outcome>;

/// What a workload has the engine do with its volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Use {
    /// Work with it.
    Engine,
    /// Give it up, so that another program can open it.
    Release,
    /// Lend it to SQLite in this process.
    Lend,
}

/// A named workload.
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) about: &'static str,
    pub(crate) headline: Headline,
    /// Threads, jobs or clients; the workloads of a family differ in it.
    pub(crate) width: Option<usize>,
    pub(crate) volume: Use,
    /// It fills half of a device that is as large as it needs.
    large: bool,
    run: Run,
}

impl Workload {
    /// Size of the device it is run on.
    pub(crate) fn device_mib(&self, arguments: &Arguments) -> u64 {
        match self.large {
            true => arguments.large_device_mib(),
            false => arguments.device_mib,
        }
    }

    pub(crate) fn run(&self, context: &Context<'_>) -> io::Result<Outcome> {
        (self.run)(context, self.width.unwrap_or(1))
    }

    /// The name without the width.
    pub(crate) fn family(&self) -> &str {
        match self.width {
            Some(_) => self.name.rsplit_once('-').map_or(&self.name, |(family, _)| family),
            None => &self.name,
        }
    }
}

const PAGE: usize = 4096;
const STREAM: usize = 1 << 20;
/// Dirty data of the neighbour in `small-beside-large`.
const NEIGHBOUR_BYTES: u64 = 256 << 20;
/// Clients, threads and jobs of W1.
const FIO_JOBS: &[usize] = &[1, 2, 4, 8, 16, 32, 64];

/// All workloads, in the order in which they are run and shown.
pub(crate) fn all() -> Vec<Workload> {
    use Headline::{MegabytesPerSecond, OperationsPerSecond, P50};
    let one = |name: &str, about, headline, run: Run| {
        let name = name.to_owned();
        vec![Workload { name, about, headline, width: None, volume: Use::Engine, large: false, run }]
    };
    let large = |workloads: Vec<Workload>| -> Vec<Workload> {
        workloads.into_iter().map(|workload| Workload { large: true, ..workload }).collect()
    };
    let released = |name: &str, about, run: Run| {
        let workload = one(name, about, OperationsPerSecond, run);
        workload.into_iter().map(|workload| Workload { volume: Use::Release, ..workload }).collect()
    };
    let family = |name: &str, about, headline, widths: &[usize], run: Run| {
        let named = |&width: &usize| Workload {
            name: format!("{name}-{width}"),
            about,
            headline,
            width: Some(width),
            volume: Use::Engine,
            large: false,
            run,
        };
        widths.iter().map(named).collect::<Vec<_>>()
    };
    let lent = |name: &str, about, widths: &[usize], run: Run| {
        let workloads = family(name, about, OperationsPerSecond, widths, run);
        workloads.into_iter().map(|workload| Workload { volume: Use::Lend, ..workload }).collect()
    };
    [
        one("overwrite", "overwrite 4 KiB + fsync", P50, overwrite),
        one("append", "append 4 KiB + fsync", P50, append),
        one("create", "create + 4 KiB + fsync", P50, create),
        one("replace", "write temp, fsync, rename over, fsync directory", P50, replace),
        one("link", "link + fsync", P50, many::link),
        one(
            "beside-creates",
            "4 KiB fsync of A with 2000 uncommitted creates elsewhere",
            P50,
            many::beside_creates,
        ),
        one("small-beside-large", "4 KiB fsync while a neighbour has 256 MiB dirty", P50, small_beside_large),
        one("beside-bulk", "4 KiB fsync right behind 64 MiB written to another file", P50, bulk::beside_bulk),
        family(
            "threads",
            "appending threads, 4 KiB + fsync, a file each",
            OperationsPerSecond,
            &[4, 16, 64],
            threads::threads,
        ),
        family(
            "async-pass",
            "a pass of open, sync, close over 4 KiB files, syncs not waited for one by one, threads",
            OperationsPerSecond,
            &[1, 4, 8, 16, 32],
            jobs::asynchronous_pass,
        ),
        family(
            "ticket-pass",
            "a pass over 4 KiB files by the mount's own ioctls: start for each, then wait for each, threads",
            OperationsPerSecond,
            &[1, 4, 8, 16, 32],
            jobs::ticket_pass,
        ),
        one(
            "during-commits",
            "4 threads append 4 KiB + fsync while the file system commits",
            OperationsPerSecond,
            commits::during_commits,
        ),
        one("names", "renames and links, a 4 KiB fsync for 100 of them", OperationsPerSecond, commits::names),
        one(
            "rollback-journal",
            "16 KiB journal, fsync, 3 random pages, fsync, journal header",
            P50,
            commits::rollback_journal,
        ),
        one("atomic", "4 creates, then 3 random pages as one atomic write", P50, commits::atomic),
        large(one(
            "pacing",
            "4 KiB fsyncs and uncached reads, 3 s alone, then while another file writes and syncs gigabytes",
            Headline::PacingRatio,
            pacing::pacing,
        )),
        one(
            "beside-staging",
            "4 KiB fsyncs while a transaction of 1 GiB is being staged over another file",
            Headline::PacingRatio,
            staging::beside_staging,
        ),
        one(
            "mobile",
            "64 MiB files of 8 threads, 32 KiB sequential, 4 KiB random",
            MegabytesPerSecond,
            jobs::mobile,
        ),
        one("snapshot-create", "a snapshot while nothing is dirty", P50, snapshots::create),
        family(
            "snapshot-append",
            "append 4 KiB + fsync, snapshots that there are",
            P50,
            &[0, 1, 1000],
            snapshots::append,
        ),
        one(
            "snapshot-beside",
            "4 KiB fsyncs, 3 s alone, then while a snapshot is made every 100 ms",
            Headline::PacingRatio,
            snapshots::beside,
        ),
        family(
            "snapshot-overwrite",
            "each page of a file once, at random, and one fsync; snapshots of it before",
            MegabytesPerSecond,
            &[0, 1],
            snapshots::first_pass,
        ),
        family(
            "snapshot-delete",
            "deletion of a snapshot of many small files until its space is free; percent of them replaced since",
            OperationsPerSecond,
            &[0, 1, 100],
            snapshots::delete,
        ),
        one(
            "snapshot-tree",
            "snapshots of a tree of small files: deletions and differences, nothing, one percent and all of it changed",
            Headline::PacingRatio,
            snapshots_large::tree,
        ),
        one(
            "snapshot-database",
            "one of 24 snapshots of a file is deleted, with random overwrites of a fifth of its pages in between",
            OperationsPerSecond,
            snapshots_large::database,
        ),
        released(
            "snapshot-open",
            "a volume is opened and checked, without snapshots and with a thousand",
            snapshots_large::open,
        ),
        one("sequential-write", "sequential write, one fsync", MegabytesPerSecond, sequential_write),
        one("sequential-read-cold", "sequential read, cold", MegabytesPerSecond, sequential_read_cold),
        one("sequential-read-warm", "sequential read, warm", MegabytesPerSecond, sequential_read_warm),
        family(
            "fio-sequential",
            "fio 64 KiB sequential, fsync=1, jobs",
            MegabytesPerSecond,
            FIO_JOBS,
            tools::fio::sequential,
        ),
        family(
            "fio-random",
            "fio 4 KiB random, fsync=16, jobs",
            MegabytesPerSecond,
            FIO_JOBS,
            tools::fio::random,
        ),
        family(
            "fs-mark-each",
            "fs_mark, 4 KiB files, fsync each, threads",
            OperationsPerSecond,
            &[1, 4],
            tools::fs_mark::each,
        ),
        family(
            "fs-mark-pass",
            "fs_mark, 4 KiB files, fsyncs after all writes, threads",
            OperationsPerSecond,
            &[1, 4],
            tools::fs_mark::pass,
        ),
        family("dbench", "dbench, clients", MegabytesPerSecond, &[16, 64], tools::dbench::run_load),
        one(
            "sqlite-delete",
            "sqlite3 FULL, one row a transaction, journal DELETE",
            OperationsPerSecond,
            tools::sqlite::delete,
        ),
        one(
            "sqlite-truncate",
            "sqlite3 FULL, one row a transaction, journal TRUNCATE",
            OperationsPerSecond,
            tools::sqlite::truncate,
        ),
        one(
            "sqlite-persist",
            "sqlite3 FULL, one row a transaction, journal PERSIST",
            OperationsPerSecond,
            tools::sqlite::persist,
        ),
        one(
            "sqlite-wal",
            "sqlite3 FULL, one row a transaction, WAL",
            OperationsPerSecond,
            tools::sqlite::wal,
        ),
        one(
            "sqlite-atomic",
            "sqlite3 FULL with batch atomic writes, one row a transaction, journal DELETE",
            OperationsPerSecond,
            tools::sqlite::atomic,
        ),
        released(
            "sqlite-vfs-delete",
            "sqlite3 FULL on the VFS, one row a transaction, journal DELETE",
            tools::sqlite::vfs_delete,
        ),
        released(
            "sqlite-vfs-wal",
            "sqlite3 FULL on the VFS, one row a transaction, WAL",
            tools::sqlite::vfs_wal,
        ),
        lent(
            "sqlite-engine-persist",
            "SQLite FULL on the VFS in this process, one row a transaction, journal PERSIST, threads with a database each",
            &[1, 4],
            tools::sqlite::lent_persist,
        ),
        lent(
            "sqlite-engine-delete",
            "SQLite FULL on the VFS in this process, one row a transaction, journal DELETE",
            &[1],
            tools::sqlite::lent_delete,
        ),
        one(
            "pgbench",
            "pgbench, 4 clients, checkpoint_flush_after at its default",
            OperationsPerSecond,
            tools::pgbench::with_flush,
        ),
        one(
            "pgbench-unflushed",
            "pgbench, 4 clients, checkpoint_flush_after = 0",
            OperationsPerSecond,
            tools::pgbench::without_flush,
        ),
        one("pgbench-init", "pgbench --initialize, rows of its accounts", OperationsPerSecond, tools::pgbench::initialize),
        one("untar", "tar -x of a tree and syncfs, files", OperationsPerSecond, tools::tree::untar),
        one("copy-tree", "cp -a of the tree and syncfs, files", OperationsPerSecond, tools::tree::copy),
        one("find", "find -size over the tree, nothing cached, files", OperationsPerSecond, tools::tree::find),
        one("grep-cold", "grep -r over the tree, nothing cached, files", OperationsPerSecond, tools::tree::grep_cold),
        one("grep-warm", "grep -r over the tree behind cp -a, files", OperationsPerSecond, tools::tree::grep_warm),
        one("remove-tree", "rm -rf of the tree and syncfs, files", OperationsPerSecond, tools::tree::remove),
        one("dpkg", "dpkg --unpack of the tree, files", OperationsPerSecond, tools::tree::dpkg),
        one("beside-hogs", "append 4 KiB + fsync beside a busy loop for each CPU", P50, hogs::usual),
        one("beside-hogs-nice", "the same beside loops of nice value -20", P50, hogs::favoured),
        one("beside-hogs-fifo", "the same beside one loop of class SCHED_FIFO on one CPU", P50, hogs::first_come),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn page(index: u64) -> Vec<u8> {
    let mut page = vec![0x5A; PAGE];
    page[..8].copy_from_slice(&index.to_le_bytes());
    page
}

/// Times each call of `operation`, with slices of the floor in between.
fn timed(
    context: &Context<'_>,
    operations: u64,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Outcome> {
    let (mut latencies, mut floor) = (Latencies::default(), Latencies::default());
    context.meter.begin()?;
    let start = Instant::now();
    let mut apart = Duration::ZERO;
    for index in 0..operations {
        let begin = Instant::now();
        operation(index)?;
        latencies.push(begin.elapsed());
        apart += context.floor.slice(index, &mut floor)?;
    }
    let elapsed = start.elapsed() - apart;
    context.meter.end()?;
    Ok(Outcome { operations, elapsed, latencies, floor, ..Outcome::default() })
}

fn overwrite(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let file = context.backend.create("overwrite")?;
    file.write_at(0, &vec![1; 256 * PAGE])?;
    file.sync()?;
    timed(context, context.arguments.operations, |index| {
        file.write_at(index * 7919 % 256 * PAGE as u64, &page(index))?;
        file.sync()
    })
}

fn append(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let file = context.backend.create("append")?;
    file.sync()?;
    timed(context, context.arguments.operations, |index| {
        file.write_at(index * PAGE as u64, &page(index))?;
        file.sync()
    })
}

fn create(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("create")?;
    context.backend.sync_directory("create")?;
    timed(context, context.arguments.operations, |index| {
        let file = context.backend.create(&format!("create/{index}"))?;
        file.write_at(0, &page(index))?;
        file.sync()
    })
}

fn replace(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let directory = "replace";
    context.backend.make_directory(directory)?;
    context.backend.sync_directory(directory)?;
    let (temporary, name) = (format!("{directory}/temporary"), format!("{directory}/name"));
    timed(context, context.arguments.operations.div_ceil(2), |index| {
        let file = context.backend.create(&temporary)?;
        file.write_at(0, &page(index))?;
        file.sync()?;
        context.backend.rename(&temporary, &name)?;
        context.backend.sync_directory(directory)
    })
}

fn small_beside_large(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let large = context.backend.create("large")?;
    let small = context.backend.create("small")?;
    small.sync()?;
    let chunk = vec![7; STREAM];
    for offset in (0..NEIGHBOUR_BYTES).step_by(STREAM) {
        large.write_at(offset, &chunk)?;
    }
    let measured = timed(context, context.arguments.operations.min(200), |index| {
        small.write_at(index * PAGE as u64, &page(index))?;
        small.sync()
    })?;
    large.sync()?;
    Ok(measured)
}

/// Writes the file of the sequential workloads and syncs it.
fn write_all(context: &Context<'_>) -> io::Result<()> {
    let file = context.backend.create("sequential")?;
    let chunk = vec![9; STREAM];
    for offset in (0..context.arguments.sequential_mib << 20).step_by(STREAM) {
        file.write_at(offset, &chunk)?;
    }
    file.sync()
}

fn sequential_write(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let start = Instant::now();
    write_all(context)?;
    let bytes = context.arguments.sequential_mib << 20;
    Ok(Outcome { bytes, elapsed: start.elapsed(), ..Outcome::default() })
}

fn read_all(context: &Context<'_>) -> io::Result<Outcome> {
    let file = context.backend.open("sequential", Open::Existing)?;
    let bytes = context.arguments.sequential_mib << 20;
    let mut chunk = vec![0; STREAM];
    // Comparing slices costs little beside the copies of a read.
    let written = vec![9; STREAM];
    context.meter.begin()?;
    let start = Instant::now();
    for offset in (0..bytes).step_by(STREAM) {
        let mut done = 0;
        while done < STREAM {
            let read = file.read_at(offset + done as u64, &mut chunk[done..])?;
            if read == 0 {
                return Err(io::Error::other("the file is shorter than what was written"));
            }
            done += read;
        }
        if chunk != written {
            return Err(io::Error::other("the file does not hold what was written"));
        }
    }
    let elapsed = start.elapsed();
    context.meter.end()?;
    Ok(Outcome { bytes, elapsed, ..Outcome::default() })
}

fn sequential_read_cold(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    write_all(context)?;
    match context.backend.drop_caches() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Ok(Outcome::skipped("the kernel's caches are dropped by root only"))
        }
        Err(error) => Err(error),
        Ok(()) => read_all(context),
    }
}

fn sequential_read_warm(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    write_all(context)?;
    read_all(context)?;
    read_all(context)
}
