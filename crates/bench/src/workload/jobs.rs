//! The loads of fio and fs_mark in this process, for the engine, which other programs cannot reach: the same sizes,
//! the same syncs, a file for each job.

use super::{Context, PAGE, page};
use crate::backend::{BackendFile, Open};
use crate::measure::{Latencies, Outcome};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a sequential write.
const SEQUENTIAL: usize = 64 << 10;
/// Random writes of a page for each sync.
const RANDOM_PER_SYNC: u64 = 16;
/// Threads of the mobile load, each with a file.
const MOBILE_THREADS: usize = 8;
/// Bytes of its sequential reads and writes.
const MOBILE_CHUNK: usize = 32 << 10;
/// How long it reads. From memory a pass over all files is done in a few hundredths of a second, which would be
/// mostly the starting of threads.
const READING: Duration = Duration::from_secs(1);
/// Reads between two looks at the clock.
const READS_AT_A_TIME: usize = 256;

/// Runs `job` on so many threads at once; latencies are whatever it timed.
pub(crate) fn together(
    context: &Context<'_>,
    threads: usize,
    job: impl Fn(usize) -> io::Result<Latencies> + Sync,
) -> io::Result<Outcome> {
    context.meter.begin()?;
    let outcome = at_once(threads, job)?;
    context.meter.end()?;
    Ok(outcome)
}

/// The same, and the device's counters are left to another part.
fn at_once(threads: usize, job: impl Fn(usize) -> io::Result<Latencies> + Sync) -> io::Result<Outcome> {
    let start = Instant::now();
    let done: Vec<io::Result<Latencies>> = std::thread::scope(|scope| {
        let job = &job;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || job(thread))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|joined| joined.expect("a thread of the workload panicked")).collect()
    });
    let elapsed = start.elapsed();
    let mut latencies = Latencies::default();
    for part in done {
        latencies.extend(part?);
    }
    Ok(Outcome { elapsed, latencies, ..Outcome::default() })
}

/// Bytes of each job's file: all jobs together write what was asked for.
fn job_bytes(context: &Context<'_>, jobs: usize) -> u64 {
    ((context.arguments.fio_mib << 20) / jobs as u64).max(SEQUENTIAL as u64)
}

fn timed_sync(file: &dyn BackendFile, latencies: &mut Latencies) -> io::Result<()> {
    let begin = Instant::now();
    file.sync()?;
    latencies.push(begin.elapsed());
    Ok(())
}

/// 64 KiB at a time, synced after each.
pub(crate) fn sequential(context: &Context<'_>, jobs: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let writes = job_bytes(context, jobs) / SEQUENTIAL as u64;
    let outcome = together(context, jobs, |job| {
        let file = backend.create(&format!("job-{job}"))?;
        let mut latencies = Latencies::default();
        let mut chunk = vec![0x5A; SEQUENTIAL];
        for index in 0..writes {
            chunk[..8].copy_from_slice(&index.to_le_bytes());
            file.write_at(index * SEQUENTIAL as u64, &chunk)?;
            timed_sync(file.as_ref(), &mut latencies)?;
        }
        Ok(latencies)
    })?;
    let operations = writes * jobs as u64;
    Ok(Outcome { operations, bytes: operations * SEQUENTIAL as u64, ..outcome })
}

/// Every page of the file once, in random order, a sync for every 16.
pub(crate) fn random(context: &Context<'_>, jobs: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let pages = (job_bytes(context, jobs) / PAGE as u64).next_power_of_two();
    let writes = job_bytes(context, jobs) / PAGE as u64;
    let outcome = together(context, jobs, |job| {
        let file = backend.create(&format!("job-{job}"))?;
        let mut latencies = Latencies::default();
        let mut place = job as u64;
        for index in 0..writes {
            // An odd increment and a factor of the form 4n + 1 visit every place of a power of two.
            place = (place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
                % pages;
            file.write_at(place * PAGE as u64, &page(index))?;
            if index % RANDOM_PER_SYNC == RANDOM_PER_SYNC - 1 {
                timed_sync(file.as_ref(), &mut latencies)?;
            }
        }
        Ok(latencies)
    })?;
    let operations = writes * jobs as u64;
    Ok(Outcome { operations, bytes: operations * PAGE as u64, ..outcome })
}

/// New files of 4 KiB, synced one by one.
pub(crate) fn new_files(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let each = context.arguments.operations.div_ceil(threads as u64);
    backend.make_directory("files")?;
    let outcome = together(context, threads, |thread| {
        let mut latencies = Latencies::default();
        for index in 0..each {
            let file = backend.create(&format!("files/{thread}-{index}"))?;
            file.write_at(0, &page(index))?;
            timed_sync(file.as_ref(), &mut latencies)?;
        }
        Ok(latencies)
    })?;
    Ok(Outcome { operations: each * threads as u64, ..outcome })
}

/// New files of 4 KiB, then a pass over them: open, fsync, close. The writes count as fs_mark counts them.
pub(crate) fn files_then_pass(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let each = context.arguments.operations.div_ceil(threads as u64);
    backend.make_directory("files")?;
    let outcome = together(context, threads, |thread| {
        for index in 0..each {
            let file = backend.create(&format!("files/{thread}-{index}"))?;
            file.write_at(0, &page(index))?;
        }
        let mut latencies = Latencies::default();
        for index in 0..each {
            let file = backend.open(&format!("files/{thread}-{index}"), Open::Existing)?;
            timed_sync(file.as_ref(), &mut latencies)?;
        }
        Ok(latencies)
    })?;
    Ok(Outcome { operations: each * threads as u64, ..outcome })
}

/// New files of 4 KiB; only the pass of syncs over them is measured, all of them begun before the first is waited for.
pub(crate) fn asynchronous_pass(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    pass_over(context, threads, |names| context.backend.sync_pass(names))
}

/// The same with tickets, where the file system has them. The engine's own asynchronous pass is one already.
pub(crate) fn ticket_pass(context: &Context<'_>, threads: usize) -> io::Result<Outcome> {
    match pass_over(context, threads, |names| context.backend.ticket_pass(names)) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            Ok(Outcome::skipped("it has no ioctls for syncs; its asynchronous pass is async-pass"))
        }
        other => other,
    }
}

/// A pass over the files of each thread.
fn pass_over(
    context: &Context<'_>,
    threads: usize,
    pass: impl Fn(&[String]) -> io::Result<()> + Sync,
) -> io::Result<Outcome> {
    let backend = context.backend;
    let each = context.arguments.operations.div_ceil(threads as u64);
    backend.make_directory("files")?;
    let name = |thread: usize, index: u64| format!("files/{thread}-{index}");
    for thread in 0..threads {
        for index in 0..each {
            backend.create(&name(thread, index))?.write_at(0, &page(index))?;
        }
    }
    let outcome = together(context, threads, |thread| {
        let names: Vec<String> = (0..each).map(|index| name(thread, index)).collect();
        pass(&names)?;
        Ok(Latencies::default())
    })?;
    let operations = each * threads as u64;
    Ok(Outcome { operations, syncs: operations, ..outcome })
}

/// 64 MiB files in the manner of W4's figures: 32 KiB sequential and 4 KiB random, written and read by 8 threads. The
/// device is counted while they are first written.
pub(crate) fn mobile(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let backend = context.backend;
    let bytes = (context.arguments.sequential_mib << 20).min(64 << 20);
    let (chunks, pages) = (bytes / MOBILE_CHUNK as u64, bytes / PAGE as u64);
    let pattern = vec![0x5A; MOBILE_CHUNK];
    let written = together(context, MOBILE_THREADS, |thread| {
        let file = backend.create(&format!("mobile-{thread}"))?;
        (0..chunks).try_for_each(|index| file.write_at(index * MOBILE_CHUNK as u64, &pattern))?;
        file.sync()?;
        Ok(Latencies::default())
    })?;
    let in_order = |_: usize| {
        let mut next = (0..chunks).cycle();
        move || next.next().unwrap_or_default() * MOBILE_CHUNK as u64
    };
    let read = reads_per_second(context, MOBILE_CHUNK, in_order)?;
    let places = |thread: usize| {
        let mut place = thread as u64;
        move || {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (place >> 20) % pages * PAGE as u64
        }
    };
    let random_written = at_once(MOBILE_THREADS, |thread| {
        let file = backend.open(&format!("mobile-{thread}"), Open::Existing)?;
        let mut place = places(thread);
        (0..pages / 4).try_for_each(|index| file.write_at(place(), &page(index)))?;
        file.sync()?;
        Ok(Latencies::default())
    })?;
    let random_read = reads_per_second(context, PAGE, places)?;
    let per_second =
        |count: u64, part: &Outcome| (count * MOBILE_THREADS as u64) as f64 / part.elapsed.as_secs_f64();
    let write_mb_per_s = per_second(bytes, &written) / 1e6;
    let outcome = Outcome { bytes: bytes * MOBILE_THREADS as u64, ..written }
        .with("sequential_write_mb_per_s", write_mb_per_s)
        .with("sequential_read_mb_per_s", read * MOBILE_CHUNK as f64 / 1e6)
        .with("random_write_per_s", per_second(pages / 4, &random_written))
        .with("random_read_per_s", random_read);
    Ok(outcome)
}

/// Reads of so many bytes that all threads make together, each in its own file at the offsets that `places` gives it.
fn reads_per_second<P: FnMut() -> u64>(
    context: &Context<'_>,
    bytes: usize,
    places: impl Fn(usize) -> P + Sync,
) -> io::Result<f64> {
    let reads = AtomicU64::new(0);
    let outcome = at_once(MOBILE_THREADS, |thread| {
        let file = context.backend.open(&format!("mobile-{thread}"), Open::Existing)?;
        let (mut place, mut into) = (places(thread), vec![0; bytes]);
        let begin = Instant::now();
        while begin.elapsed() < READING {
            for _ in 0..READS_AT_A_TIME {
                if file.read_at(place(), &mut into)? != bytes {
                    return Err(io::Error::other("the file is shorter than what was written"));
                }
            }
            reads.fetch_add(READS_AT_A_TIME as u64, Ordering::Relaxed);
        }
        Ok(Latencies::default())
    })?;
    Ok(reads.into_inner() as f64 / outcome.elapsed.as_secs_f64())
}
