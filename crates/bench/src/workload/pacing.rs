//! Small syncs and reads of others while one file writes and syncs gigabytes.
//!
//! One thread overwrites and syncs 4 KiB, another reads 4 KiB from the device, at random places of a file; both at a
//! fixed pace, so that they measure waiting and not each other. First alone, then while a third thread writes and
//! syncs. What is told is how much longer the slowest hundredth takes. What the kernel has cached of the file is
//! forgotten before each read; the engine caches a part of a file that is larger than its memory bound, so that its
//! p99 is the device's as well.

use super::{Context, PAGE, STREAM, page};
use crate::backend::Open;
use crate::measure::{Latencies, Outcome};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time between two small operations of a thread.
const PAUSE: Duration = Duration::from_millis(2);
/// How long it is measured without a neighbour.
const IDLE: Duration = Duration::from_secs(3);
/// An eighth of the device is the file that is read: more than the engine caches.
const READ_SHARE: u32 = 3;
/// Largest size of the file that is read.
const READ_BYTES_MAX: u64 = 1 << 30;
/// The neighbour syncs after every so many bytes.
const SYNC_BYTES: u64 = 512 << 20;

/// Latencies with the moment at which each operation began.
#[derive(Default)]
pub(super) struct Timed(Vec<(Duration, Duration)>);

impl Timed {
    pub(super) fn between(&self, from: Duration, to: Duration) -> Latencies {
        let mut latencies = Latencies::default();
        let inside = self.0.iter().filter(|(at, _)| (from..to).contains(at));
        inside.for_each(|&(_, latency)| latencies.push(latency));
        latencies
    }

    /// p99 of each second in milliseconds.
    pub(super) fn over_time(&self, until: Duration) -> Vec<f64> {
        let second = Duration::from_secs(1);
        let seconds = until.as_secs().max(1) as u32;
        let quantile = |from| self.between(from, from + second).quantile_us(0.99);
        // A second in which nothing began was one of waiting.
        (0..seconds).map(|index| quantile(second * index).unwrap_or(1e6) / 1000.0).collect()
    }
}

pub(super) fn pacing(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let small = context.backend.create("small")?;
    small.sync()?;
    let read = context.backend.create("read")?;
    let chunk = vec![3; STREAM];
    let read_bytes = (context.arguments.large_device_mib() << 20 >> READ_SHARE).min(READ_BYTES_MAX);
    for offset in (0..read_bytes).step_by(STREAM) {
        read.write_at(offset, &chunk)?;
    }
    read.sync()?;
    let ended = AtomicBool::new(false);
    let ended = &ended;
    let start = Instant::now();
    context.meter.begin()?;
    let (syncs, reads, large) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            paced(start, ended, |index| {
                small.write_at(index % 1024 * PAGE as u64, &page(index))?;
                small.sync()
            })
        });
        let reading = scope.spawn(|| {
            let mut into = vec![0; PAGE];
            paced(start, ended, |index| {
                let place = index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
                let place = place % (read_bytes / PAGE as u64) * PAGE as u64;
                read.forget()?;
                read.read_at(place, &mut into).map(drop)
            })
        });
        std::thread::sleep(IDLE);
        let large = write_large(context);
        let until = start.elapsed();
        ended.store(true, Ordering::Relaxed);
        let joined = "a thread of the workload panicked";
        Ok::<_, io::Error>((
            syncing.join().expect(joined)?,
            reading.join().expect(joined)?,
            large.map(|()| until)?,
        ))
    })?;
    context.meter.end()?;
    Ok(outcome(context, &syncs, &reads, large))
}

/// The neighbour's part.
fn write_large(context: &Context<'_>) -> io::Result<()> {
    let large = context.backend.open("large", Open::Create)?;
    let chunk = vec![7; STREAM];
    for offset in (0..context.arguments.pacing_mib << 20).step_by(STREAM) {
        large.write_at(offset, &chunk)?;
        if (offset + STREAM as u64).is_multiple_of(SYNC_BYTES) {
            large.sync()?;
        }
    }
    large.sync()
}

/// Runs an operation every few milliseconds until the end.
pub(super) fn paced(
    start: Instant,
    ended: &AtomicBool,
    mut operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Timed> {
    let mut timed = Timed::default();
    for index in 0.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let begin = Instant::now();
        operation(index)?;
        timed.0.push((begin.duration_since(start), begin.elapsed()));
        std::thread::sleep(PAUSE.saturating_sub(begin.elapsed()));
    }
    Ok(timed)
}

fn outcome(context: &Context<'_>, syncs: &Timed, reads: &Timed, until: Duration) -> Outcome {
    let busy = syncs.between(IDLE, until);
    let mut outcome = Outcome {
        bytes: context.arguments.pacing_mib << 20,
        elapsed: until - IDLE,
        operations: busy.count(),
        latencies: busy,
        ..Outcome::default()
    };
    for (name, timed) in [("sync", syncs), ("read", reads)] {
        let quantile = |from, to| timed.between(from, to).quantile_us(0.99);
        let (idle, busy) = (quantile(Duration::ZERO, IDLE), quantile(IDLE, until));
        let mut put = |what: &str, value: Option<f64>| {
            outcome.figures.extend(value.map(|value| (format!("{name}_{what}"), value)));
        };
        put("idle_p99_us", idle);
        put("busy_p99_us", busy);
        put("p99_ratio", busy.zip(idle).map(|(busy, idle)| busy / idle));
    }
    outcome.series = BTreeMap::from([
        ("p99_ms".to_owned(), syncs.over_time(until)),
        ("read_p99_ms".to_owned(), reads.over_time(until)),
    ]);
    outcome
}
