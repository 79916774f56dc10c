//! Snapshots of many files, and of a large file that changes hour by hour: what differs, and what a deletion takes.

use super::pacing::paced;
use super::snapshots::unless_unsupported;
use super::{Context, PAGE, STREAM, page};
use crate::backend::Open;
use crate::measure::{Latencies, Outcome, busy_seconds};
use crate::memory::Peak;
use crate::row::Figures;
use crate::system::command;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline::Volume;

/// Files of a directory of the tree.
const FILES_PER_DIRECTORY: u64 = 1000;
/// How long syncs are measured alone, before a snapshot is deleted beside them.
const IDLE: Duration = Duration::from_secs(3);
/// Snapshots of the database.
const HOURS: u64 = 24;
/// One in so many of the database's pages is written between two snapshots, at random, one more than once.
const PAGES_PER_OVERWRITE: u64 = 5;
/// Files of the volume that is opened and checked, and snapshots of it: all together have one file in a hundred
/// changed.
const CHECKED_FILES_MAX: u64 = 200_000;
const CHECKED_SNAPSHOTS: u64 = 1000;
const OPENED: usize = 7;
/// A prime above any number of files or pages: its multiples meet each of them once.
const STRIDE: u64 = 0x9E37_79B1;

/// A tree of small files, changed in one place, everywhere, and as a whole; beside the last deletion others sync.
pub(super) fn tree(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let files = context.arguments.tree_files;
    make_files(context, files)?;
    let few = (files / 100).max(1);
    let mut told = Told { context, outcome: Outcome { operations: files, ..Outcome::default() } };
    let measured = told.measure(|told| {
        context.backend.snapshot("first")?;
        told.delete("all_shared", "first")?;

        context.backend.snapshot("a")?;
        (0..few).try_for_each(|index| write_file(context, index, 1))?;
        context.backend.commit()?;
        context.backend.snapshot("b")?;
        told.diff("clustered", "a", "b")?;
        context.backend.delete_snapshot("a")?;
        context.backend.reclaim()?;

        (0..few).try_for_each(|index| write_file(context, index.wrapping_mul(STRIDE) % files, 2))?;
        context.backend.commit()?;
        context.backend.snapshot("c")?;
        told.diff("random", "b", "c")?;
        told.delete("percent_changed", "b")?;

        (0..files).try_for_each(|index| write_file(context, index, 3))?;
        context.backend.commit()?;
        told.delete_beside_syncs("c")
    });
    let outcome = told.outcome;
    unless_unsupported(measured.map(|()| outcome))
}

fn name_of(index: u64) -> String {
    format!("{}/{index}", index / FILES_PER_DIRECTORY)
}

fn make_files(context: &Context<'_>, files: u64) -> io::Result<()> {
    for index in 0..files {
        if index.is_multiple_of(FILES_PER_DIRECTORY) {
            context.backend.make_directory(&(index / FILES_PER_DIRECTORY).to_string())?;
        }
        write_file(context, index, 0)?;
    }
    context.backend.commit()
}

fn write_file(context: &Context<'_>, index: u64, version: u64) -> io::Result<()> {
    context.backend.create(&name_of(index))?.write_at(0, &page(index << 8 | version))
}

/// What a workload of several parts has found so far.
struct Told<'a> {
    context: &'a Context<'a>,
    outcome: Outcome,
}

impl Told<'_> {
    fn measure(&mut self, parts: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.context.meter.begin()?;
        parts(self)?;
        self.context.meter.end()
    }

    fn put(&mut self, part: &str, what: &str, value: f64) {
        self.outcome.figures.insert(format!("{part}_{what}"), value);
    }

    /// Deletes a snapshot and waits until its space is free: the time of the call, that of all of it, the machine's
    /// processor time, and by how much this process, in which the engine is, has grown at most.
    fn delete(&mut self, part: &str, name: &str) -> io::Result<()> {
        let (busy, memory) = (busy_seconds()?, Peak::begin()?);
        let start = Instant::now();
        self.context.backend.delete_snapshot(name)?;
        self.put(part, "call_ms", start.elapsed().as_secs_f64() * 1e3);
        self.context.backend.reclaim()?;
        let elapsed = start.elapsed();
        self.outcome.elapsed += elapsed;
        self.put(part, "delete_ms", elapsed.as_secs_f64() * 1e3);
        self.put(part, "delete_cpu_ms", (busy_seconds()? - busy) * 1e3);
        if let Some(bytes) = memory.grown()?.filter(|_| self.context.directory.is_none()) {
            self.put(part, "memory_mib", bytes as f64 / f64::from(1 << 20));
        }
        Ok(())
    }

    fn diff(&mut self, part: &str, older: &str, newer: &str) -> io::Result<()> {
        let start = Instant::now();
        let changes = self.context.backend.diff(older, newer)?;
        self.put(part, "diff_ms", start.elapsed().as_secs_f64() * 1e3);
        if let Some(changes) = changes {
            self.put(part, "changes", changes as f64);
        }
        Ok(())
    }

    /// 4 KiB syncs, first alone, then while the snapshot goes.
    fn delete_beside_syncs(&mut self, name: &str) -> io::Result<()> {
        let file = self.context.backend.create("small")?;
        file.sync()?;
        let ended = AtomicBool::new(false);
        let start = Instant::now();
        let (syncs, until) = std::thread::scope(|scope| {
            let syncing = scope.spawn(|| {
                paced(start, &ended, |index| {
                    file.write_at(index % 1024 * PAGE as u64, &page(index))?;
                    file.sync()
                })
            });
            std::thread::sleep(IDLE);
            let deleted = self.delete("all_changed", name);
            let until = start.elapsed();
            ended.store(true, Ordering::Relaxed);
            let syncs = syncing.join().expect("a thread of the workload panicked")?;
            deleted.map(|()| (syncs, until))
        })?;
        let p99 = |latencies: &Latencies| latencies.quantile_us(0.99);
        let busy = syncs.between(IDLE, until);
        let (alone, beside) = (p99(&syncs.between(Duration::ZERO, IDLE)), p99(&busy));
        let figures: &mut Figures = &mut self.outcome.figures;
        let ratio = beside.zip(alone).map(|(beside, alone)| beside / alone);
        for (name, value) in
            [("sync_idle_p99_us", alone), ("sync_busy_p99_us", beside), ("sync_p99_ratio", ratio)]
        {
            figures.extend(value.map(|value| (name.to_owned(), value)));
        }
        self.outcome.latencies = busy;
        Ok(())
    }
}

/// A database that is written to at random, with a snapshot an hour; the one in the middle goes.
pub(super) fn database(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let bytes = context.arguments.sequential_mib << 20;
    let file = context.backend.open("database", Open::Truncate)?;
    let chunk = vec![9; STREAM];
    (0..bytes).step_by(STREAM).try_for_each(|offset| file.write_at(offset, &chunk))?;
    file.sync()?;
    let pages = bytes / PAGE as u64;
    let mut told = Told { context, outcome: Outcome { operations: 1, ..Outcome::default() } };
    let measured = told.measure(|told| {
        let mut place = 1_u64;
        for hour in 0..HOURS {
            for index in 0..pages / PAGES_PER_OVERWRITE {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                file.write_at((place >> 20) % pages * PAGE as u64, &page(hour << 32 | index))?;
            }
            file.sync()?;
            context.backend.snapshot(&format!("hour-{hour}"))?;
        }
        context.backend.commit()?;
        told.put("database", "overwrites", (pages / PAGES_PER_OVERWRITE) as f64);
        told.delete("hourly", &format!("hour-{}", HOURS / 2))
    });
    let outcome = told.outcome;
    unless_unsupported(measured.map(|()| outcome))
}

/// A volume is opened and checked without snapshots, and with a thousand.
pub(super) fn open(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let Some(path) = context.released else {
        return Ok(Outcome::skipped("the engine in this process alone opens and checks a volume here"));
    };
    let files = context.arguments.tree_files.min(CHECKED_FILES_MAX);
    let volume = Volume::open(path)?;
    for index in 0..files {
        if index.is_multiple_of(FILES_PER_DIRECTORY) {
            volume.create_dir((index / FILES_PER_DIRECTORY).to_string())?;
        }
        volume.create_file(name_of(index))?.write_all_at(&page(index), 0)?;
    }
    volume.close()?;
    let mut outcome = Outcome { operations: 1, ..Outcome::default() };
    let (alone, checked) = (opened(path)?, checked(context, path)?);
    let volume = Volume::open(path)?;
    let changed = (files / 100 / CHECKED_SNAPSHOTS).max(1);
    for number in 0..CHECKED_SNAPSHOTS {
        for index in 0..changed {
            let index = (number * changed + index).wrapping_mul(STRIDE) % files;
            let mut options = syncline::OpenOptions::new();
            options
                .write(true)
                .open(&volume, name_of(index))?
                .write_all_at(&page(number << 32 | index), 0)?;
        }
        volume.snapshot(&format!("s{number}"))?;
    }
    volume.close()?;
    let (many, checked_many) = (opened(path)?, self::checked(context, path)?);
    let mut put = |name: &str, value: f64| {
        outcome.figures.insert(name.to_owned(), value);
    };
    put("open_ms", alone.as_secs_f64() * 1e3);
    put("open_many_ms", many.as_secs_f64() * 1e3);
    put("open_more_ms", many.as_secs_f64() * 1e3 - alone.as_secs_f64() * 1e3);
    put("check_ms", checked.as_secs_f64() * 1e3);
    put("check_many_ms", checked_many.as_secs_f64() * 1e3);
    put("check_ratio", checked_many.as_secs_f64() / checked.as_secs_f64());
    outcome.elapsed = many;
    Ok(outcome)
}

/// The median of several openings.
fn opened(path: &Path) -> io::Result<Duration> {
    let mut took = Vec::new();
    for _ in 0..OPENED {
        let start = Instant::now();
        let volume = Volume::open(path)?;
        took.push(start.elapsed());
        volume.close()?;
    }
    took.sort_unstable();
    Ok(took[OPENED / 2])
}

/// How long `syncline check` takes, with the start of its process.
fn checked(context: &Context<'_>, path: &Path) -> io::Result<Duration> {
    let syncline = crate::system::syncline(context.arguments)?;
    let start = Instant::now();
    command(&[syncline, "check".to_owned(), path.display().to_string()])?;
    Ok(start.elapsed())
}
