//! What snapshots cost: to make one, to sync beside many, to overwrite what one shares, and to delete one.

use super::pacing::{Timed, paced};
use super::{Context, PAGE, page};
use crate::measure::Outcome;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long syncs are measured alone, and then beside snapshots.
const IDLE: Duration = Duration::from_secs(3);
const BUSY: Duration = Duration::from_secs(3);
/// Time from one snapshot to the next beside syncs.
const INTERVAL: Duration = Duration::from_millis(100);
/// Most snapshots that `create` makes.
const MADE_MAX: u64 = 1000;
/// Files of a directory of the tree whose snapshot is deleted.
const FILES_PER_DIRECTORY: u64 = 1000;

/// Where there are no snapshots, that is what it tells.
pub(super) fn unless_unsupported(outcome: io::Result<Outcome>) -> io::Result<Outcome> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Ok(Outcome::skipped("there are no snapshots, or nothing tells when a deletion has ended"))
        }
        other => other,
    }
}

/// Nothing is dirty when one is made.
pub(super) fn create(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let file = context.backend.create("file")?;
    file.write_at(0, &page(0))?;
    file.sync()?;
    unless_unsupported(super::timed(context, context.arguments.operations.min(MADE_MAX), |index| {
        context.backend.snapshot(&format!("s{index}"))
    }))
}

/// `width`: snapshots, each of another state.
pub(super) fn append(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    let file = context.backend.create("changing")?;
    let prepared = (0..width as u64).try_for_each(|index| {
        file.write_at(index % 256 * PAGE as u64, &page(index))?;
        file.sync()?;
        context.backend.snapshot(&format!("s{index}"))
    });
    match prepared {
        Ok(()) => super::append(context, 1),
        Err(error) => unless_unsupported(Err(error)),
    }
}

/// Each page of a file once, in no order, and a sync; `width`: snapshots of the file before that.
pub(super) fn first_pass(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    super::write_all(context)?;
    if let Err(error) = (0..width).try_for_each(|index| context.backend.snapshot(&format!("s{index}"))) {
        return unless_unsupported(Err(error));
    }
    let file = context.backend.open("sequential", crate::backend::Open::Existing)?;
    let pages = (context.arguments.sequential_mib << 20) / PAGE as u64;
    context.meter.begin()?;
    let start = Instant::now();
    for index in 0..pages {
        // A prime above any number of pages: each page once.
        let at = index.wrapping_mul(0x9E37_79B1) % pages;
        file.write_at(at * PAGE as u64, &page(index))?;
    }
    file.sync()?;
    let elapsed = start.elapsed();
    context.meter.end()?;
    Ok(Outcome { bytes: pages * PAGE as u64, elapsed, ..Outcome::default() })
}

/// 4 KiB syncs, first alone, then while another thread makes snapshots.
pub(super) fn beside(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let file = context.backend.create("small")?;
    file.sync()?;
    let ended = AtomicBool::new(false);
    let start = Instant::now();
    context.meter.begin()?;
    let (syncs, made) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            paced(start, &ended, |index| {
                file.write_at(index % 1024 * PAGE as u64, &page(index))?;
                file.sync()
            })
        });
        std::thread::sleep(IDLE);
        let made = make_until(context, start + IDLE + BUSY);
        ended.store(true, Ordering::Relaxed);
        let syncs: io::Result<Timed> = syncing.join().expect("a thread of the workload panicked");
        Ok::<_, io::Error>((syncs?, made))
    })?;
    context.meter.end()?;
    if let Err(error) = made {
        return unless_unsupported(Err(error));
    }
    let p99 = |from, to| syncs.between(from, to).quantile_us(0.99);
    let (idle, busy) = (p99(Duration::ZERO, IDLE), p99(IDLE, IDLE + BUSY));
    // The device's counters are those of both parts; the latencies are of the second.
    let operations = syncs.between(Duration::ZERO, IDLE + BUSY).count();
    let latencies = syncs.between(IDLE, IDLE + BUSY);
    let mut outcome = Outcome { operations, elapsed: IDLE + BUSY, latencies, ..Outcome::default() };
    let ratio = busy.zip(idle).map(|(busy, idle)| busy / idle);
    for (name, value) in [("sync_idle_p99_us", idle), ("sync_busy_p99_us", busy), ("sync_p99_ratio", ratio)] {
        outcome.figures.extend(value.map(|value| (name.to_owned(), value)));
    }
    Ok(outcome)
}

fn make_until(context: &Context<'_>, end: Instant) -> io::Result<()> {
    for index in 0.. {
        let begin = Instant::now();
        if begin >= end {
            break;
        }
        context.backend.snapshot(&format!("s{index}"))?;
        std::thread::sleep(INTERVAL.saturating_sub(begin.elapsed()));
    }
    Ok(())
}

/// Deletes a snapshot of a tree of small files of which `width` percent were replaced since, and waits until its space
/// is free.
pub(super) fn delete(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    let files = context.arguments.tree_files;
    let name = |index: u64| format!("{}/{index}", index / FILES_PER_DIRECTORY);
    for index in 0..files {
        if index.is_multiple_of(FILES_PER_DIRECTORY) {
            context.backend.make_directory(&(index / FILES_PER_DIRECTORY).to_string())?;
        }
        context.backend.create(&name(index))?.write_at(0, &page(index))?;
    }
    context.backend.commit()?;
    let deleted = || -> io::Result<Outcome> {
        context.backend.snapshot("then")?;
        // Of a hundred files in a row `width` are written anew: changes are everywhere.
        for index in (0..files).filter(|index| index % 100 < width as u64) {
            context.backend.create(&name(index))?.write_at(0, &page(index + 1))?;
        }
        context.backend.commit()?;
        context.meter.begin()?;
        let start = Instant::now();
        context.backend.delete_snapshot("then")?;
        context.backend.reclaim()?;
        let elapsed = start.elapsed();
        context.meter.end()?;
        Ok(Outcome { operations: files, elapsed, ..Outcome::default() })
    };
    unless_unsupported(deleted())
}
