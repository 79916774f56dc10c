//! Threads that append and sync, a file each, beside the group-commit floor of as many threads.
//!
//! The threads live through all bursts and begin each together, so that starting them is in no figure. Before each
//! burst the same threads append to the floor (`floor::GroupCommit`). A burst lasts from the first thread's first
//! call to the last one's last return.

use super::{Context, PAGE, page};
use crate::backend::BackendFile;
use crate::floor::GroupCommit;
use crate::measure::{Latencies, Outcome, busy_seconds};
use std::io;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

/// The threads work in so many bursts.
const BURSTS: u64 = 8;
/// Operations of the floor alone, before each.
const SLICE: u64 = 12;
/// Appends of each thread in a burst: fewer would measure how a burst begins and ends.
const EACH_MIN: u64 = 32;
/// Of the floor.
const FLOOR_EACH: u64 = 32;

/// From the first beginning to the last end of what several threads do.
#[derive(Default)]
struct Span(Mutex<Option<(Instant, Instant)>>);

impl Span {
    fn add(&self, start: Instant) {
        let now = Instant::now();
        let mut span = self.0.lock().expect("nobody panics with it");
        *span = Some(match *span {
            Some((first, last)) => (first.min(start), last.max(now)),
            None => (start, now),
        });
    }

    /// Begins anew.
    fn take(&self) -> Duration {
        let span = self.0.lock().expect("nobody panics with it").take();
        span.map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

/// What the threads share. All of them and the one that measures meet before and after each part.
struct Burst<'a> {
    meeting: Barrier,
    floor: GroupCommit<'a>,
    floor_span: Span,
    span: Span,
    each: u64,
}

impl Burst<'_> {
    /// A thread's part. After a failure it only comes to the meetings, since the others would wait for it.
    fn appends(&self, file: &dyn BackendFile) -> io::Result<Latencies> {
        let mut result = Ok(Latencies::default());
        for burst in 0..BURSTS {
            self.meeting.wait();
            let start = Instant::now();
            let floor = (0..FLOOR_EACH).try_for_each(|index| self.floor.append(&page(index)));
            self.floor_span.add(start);
            self.meeting.wait();
            self.meeting.wait();
            if let Ok(latencies) = &mut result {
                let start = Instant::now();
                match floor.and_then(|()| appends(file, burst * self.each, self.each)) {
                    Ok(part) => latencies.extend(part),
                    Err(error) => result = Err(error),
                }
                self.span.add(start);
            }
            self.meeting.wait();
        }
        result
    }
}

pub(super) fn threads(context: &Context<'_>, width: usize) -> io::Result<Outcome> {
    let files = (0..width)
        .map(|thread| context.backend.create(&format!("thread-{thread}")))
        .collect::<io::Result<Vec<_>>>()?;
    for file in &files {
        file.sync()?;
    }
    let each = (context.arguments.operations * 2).div_ceil(width as u64 * BURSTS).max(EACH_MIN);
    let burst = Burst {
        meeting: Barrier::new(width + 1),
        floor: context.floor.group_commit(),
        floor_span: Span::default(),
        span: Span::default(),
        each,
    };
    let (mut latencies, mut bare) = (Latencies::default(), Latencies::default());
    let (mut elapsed, mut floor_elapsed) = (Duration::ZERO, Duration::ZERO);
    context.meter.begin()?;
    let done: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
        let burst = &burst;
        let threads: Vec<_> =
            files.iter().map(|file| scope.spawn(move || burst.appends(file.as_ref()))).collect();
        let mut measured = Ok(());
        for _ in 0..BURSTS {
            let alone = context.floor.group(width, SLICE, &mut bare).map(drop);
            let busy = busy_seconds();
            burst.meeting.wait();
            burst.meeting.wait();
            floor_elapsed += burst.floor_span.take();
            let spent = busy.and_then(|before| {
                context.floor.spent_elsewhere(busy_seconds()? - before);
                Ok(())
            });
            measured = measured.and(alone).and(spent);
            burst.meeting.wait();
            burst.meeting.wait();
            elapsed += burst.span.take();
        }
        let ended = threads.into_iter().map(|thread| thread.join());
        let ended = ended.map(|joined| joined.expect("a thread of the workload panicked"));
        ended.chain([measured.map(|()| Latencies::default())]).collect()
    });
    for part in done {
        latencies.extend(part?);
    }
    context.meter.end()?;
    let operations = BURSTS * each * width as u64;
    let per_second = operations as f64 / elapsed.as_secs_f64();
    let floor_per_second = (BURSTS * FLOOR_EACH * width as u64) as f64 / floor_elapsed.as_secs_f64();
    let bare_us = bare.quantile_us(0.5).unwrap_or(f64::NAN);
    Ok(Outcome { operations, elapsed, latencies, ..Outcome::default() }
        .with("group_floor_per_s", floor_per_second)
        .with("of_group_floor", per_second / floor_per_second)
        .with("whole_groups_per_s", width as f64 * 1e6 / bare_us))
}

/// Appends pages from this one on, each synced.
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
