//! Workloads of many files: threads, links, syncs beside creations, and a pass of syncs that are all under way at once.

use super::{Context, PAGE, page};
use crate::backend::BackendFile;
use crate::measure::{Latencies, Outcome};
use std::io;
use std::time::{Duration, Instant};

/// Creations that nobody has synced, before each sync of `beside_creates`.
const CREATES: u64 = 2000;
/// The threads work in so many bursts, with slices of the floor before each.
const BURSTS: u64 = 8;
const SLICE: u64 = 12;

pub(super) fn link(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("link")?;
    let file = context.backend.create("link/file")?;
    file.write_at(0, &page(0))?;
    file.sync()?;
    super::timed(context, context.arguments.operations, |index| {
        context.backend.link("link/file", &format!("link/{index}"))?;
        file.sync()
    })
}

/// Only the sync of A is timed; the creations before it are not.
pub(super) fn beside_creates(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    context.backend.make_directory("elsewhere")?;
    context.backend.make_directory("here")?;
    let file = context.backend.create("here/a")?;
    file.sync()?;
    let rounds = (context.arguments.operations / 200).clamp(3, 25);
    let (mut latencies, mut floor) = (Latencies::default(), Latencies::default());
    let mut elapsed = Duration::ZERO;
    context.meter.begin()?;
    for round in 0..rounds {
        context.floor.group(1, SLICE, &mut floor)?;
        for index in 0..CREATES {
            context.backend.create(&format!("elsewhere/{round}-{index}"))?;
        }
        file.write_at(round * PAGE as u64, &page(round))?;
        let begin = Instant::now();
        file.sync()?;
        latencies.push(begin.elapsed());
        elapsed += begin.elapsed();
    }
    context.meter.end()?;
    Ok(Outcome { operations: rounds, elapsed, latencies, floor, ..Outcome::default() })
}

/// The floor of a group is one write of a page for each thread and one flush for all.
pub(super) fn threads(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    let files = (0..width)
        .map(|thread| context.backend.create(&format!("thread-{thread}")))
        .collect::<io::Result<Vec<_>>>()?;
    for file in &files {
        file.sync()?;
    }
    let each = (context.arguments.operations * 2).div_ceil(width as u64 * BURSTS);
    let (mut latencies, mut floor) = (Latencies::default(), Latencies::default());
    let mut elapsed = Duration::ZERO;
    context.meter.begin()?;
    for burst in 0..BURSTS {
        context.floor.group(width, SLICE, &mut floor)?;
        let start = Instant::now();
        let done: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
            let threads: Vec<_> = files
                .iter()
                .map(|file| scope.spawn(move || appends(file.as_ref(), burst * each, each)))
                .collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|joined| joined.expect("a thread of the workload panicked")).collect()
        });
        elapsed += start.elapsed();
        for part in done {
            latencies.extend(part?);
        }
    }
    context.meter.end()?;
    let operations = BURSTS * each * width as u64;
    let group_us = floor.quantile_us(0.5).unwrap_or(f64::NAN);
    let floor_per_second = width as f64 * 1e6 / group_us;
    let per_second = operations as f64 / elapsed.as_secs_f64();
    Ok(Outcome { operations, elapsed, latencies, floor, ..Outcome::default() }
        .with("group_floor_per_s", floor_per_second)
        .with("of_group_floor", per_second / floor_per_second))
}

pub(super) fn appends(file: &dyn BackendFile, from: u64, count: u64) -> io::Result<Latencies> {
    let mut latencies = Latencies::default();
    for index in from..from + count {
        let begin = Instant::now();
        file.write_at(index * PAGE as u64, &page(index))?;
        file.sync()?;
        latencies.push(begin.elapsed());
    }
    Ok(latencies)
}
