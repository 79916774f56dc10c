//! A small sync right behind a large write of another file, which nobody has synced.
//!
//! Each try begins behind a pause: nobody has synced for so long that a file system that gives way to syncs has stopped
//! doing so, and what the try before has left is written. The large file is made anew each time, as a program makes
//! its output. What the device did within a sync is counted from the sync's call to its return, whoever caused it.

use super::{Context, PAGE, STREAM, page};
use crate::measure::{Latencies, Outcome};
use std::io;
use std::time::{Duration, Instant};

const BULK_BYTES: u64 = 64 << 20;
/// Before each try.
const PAUSE: Duration = Duration::from_millis(1800);
/// Most tries, because of the pauses.
const TRIES_MAX: u64 = 8;

pub(super) fn beside_bulk(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let small = context.backend.create("small")?;
    small.sync()?;
    let chunk = vec![7; STREAM];
    let tries = context.arguments.operations.min(TRIES_MAX);
    let mut latencies = Latencies::default();
    let (mut elapsed, mut writing) = (Duration::ZERO, Duration::ZERO);
    let (mut writes, mut kib) = (0.0, 0.0);
    context.meter.begin()?;
    for index in 0..tries {
        let bulk = context.backend.create("bulk")?;
        std::thread::sleep(PAUSE);
        let begin = Instant::now();
        (0..BULK_BYTES).step_by(STREAM).try_for_each(|offset| bulk.write_at(offset, &chunk))?;
        writing += begin.elapsed();
        small.write_at(index * PAGE as u64, &page(index))?;
        let before = context.meter.device()?;
        let begin = Instant::now();
        small.sync()?;
        let latency = begin.elapsed();
        let after = context.meter.device()?;
        latencies.push(latency);
        elapsed += latency;
        if let Some((before, after)) = before.zip(after) {
            let within = after.since(before);
            writes += context.meter.writes(within);
            kib += within.sectors_written as f64 / 2.0;
        }
        bulk.sync()?;
    }
    context.meter.end()?;
    let outcome = Outcome { operations: tries, elapsed, latencies, ..Outcome::default() }
        .with("bulk_mb_per_s", (tries * BULK_BYTES) as f64 / 1e6 / writing.as_secs_f64());
    Ok(match context.meter.device()? {
        None => outcome,
        Some(_) => outcome
            .with("writes_within_sync", writes / tries as f64)
            .with("kib_within_sync", kib / tries as f64),
    })
}
