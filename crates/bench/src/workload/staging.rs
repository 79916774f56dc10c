//! Small syncs of others while a transaction of a gigabyte is being staged.
//!
//! One thread overwrites and syncs 4 KiB of a file of its own, at a fixed pace; first alone, then while another
//! thread stages a transaction over another file, a few times over. What a transaction stages waits in free blocks
//! until its commit, so the small syncs have nothing to do with it: still one record and one flush each, which is
//! counted while it stages, and the slowest hundredth as fast as before. The commits are told apart: they are syncs
//! of somebody else, of a gigabyte.

use super::pacing::{Timed, paced};
use super::{Context, PAGE, page};
use crate::measure::{Latencies, Outcome};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What one transaction stages.
const STAGED_BYTES: u64 = 1 << 30;
/// How long it is measured without a neighbour, and at least with one.
const IDLE: Duration = Duration::from_secs(3);
/// Transactions at most.
const ROUNDS_MAX: usize = 8;

/// When a transaction was staged, and when it was committed.
struct Round {
    began: Duration,
    staged: Duration,
    committed: Duration,
}

pub(super) fn beside_staging(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    if !context.backend.has_atomic_writes()? {
        return Ok(Outcome::skipped("the file system has no transactions"));
    }
    // The file, what is staged over it, and what the transaction before has freed but not given back yet.
    let bytes = STAGED_BYTES.min((context.arguments.device_mib << 20) / 4);
    let small = context.backend.create("small")?;
    small.sync()?;
    context.backend.create("large")?.sync()?;
    let ended = AtomicBool::new(false);
    let ended = &ended;
    let start = Instant::now();
    let (syncs, rounds) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            paced(start, ended, |index| {
                small.write_at(index % 1024 * PAGE as u64, &page(index))?;
                small.sync()
            })
        });
        std::thread::sleep(IDLE);
        let rounds = stage(context, start, bytes);
        ended.store(true, Ordering::Relaxed);
        let syncs = syncing.join().expect("a thread of the workload panicked")?;
        Ok::<_, io::Error>((syncs, rounds?))
    })?;
    Ok(outcome(&syncs, &rounds, bytes))
}

/// Stages and commits until there is enough to tell a hundredth from. The meter runs while the first one stages.
fn stage(context: &Context<'_>, start: Instant, bytes: u64) -> io::Result<Vec<Round>> {
    let mut rounds: Vec<Round> = Vec::new();
    while rounds.len() < ROUNDS_MAX && staging(&rounds) < IDLE {
        let is_first = rounds.is_empty();
        if is_first {
            context.meter.begin()?;
        }
        let began = start.elapsed();
        let mut staged = began;
        context.backend.write_staged("large", bytes, &mut || {
            staged = start.elapsed();
            if is_first { context.meter.end() } else { Ok(()) }
        })?;
        rounds.push(Round { began, staged, committed: start.elapsed() });
    }
    Ok(rounds)
}

fn staging(rounds: &[Round]) -> Duration {
    rounds.iter().map(|round| round.staged - round.began).sum()
}

fn outcome(syncs: &Timed, rounds: &[Round], bytes: u64) -> Outcome {
    let mut busy = Latencies::default();
    let mut committing = Latencies::default();
    for round in rounds {
        busy.extend(syncs.between(round.began, round.staged));
        committing.extend(syncs.between(round.staged, round.committed));
    }
    let counted = rounds.first().map_or(0, |round| syncs.between(round.began, round.staged).count());
    let idle = syncs.between(Duration::ZERO, IDLE).quantile_us(0.99);
    let busy_p99 = busy.quantile_us(0.99);
    let until = rounds.last().map_or(IDLE, |round| round.committed);
    let mut outcome = Outcome {
        // What the device counted was while the first transaction was staged.
        operations: counted,
        elapsed: rounds.first().map_or(Duration::ZERO, |round| round.staged - round.began),
        latencies: busy,
        series: BTreeMap::from([("p99_ms".to_owned(), syncs.over_time(until))]),
        ..Outcome::default()
    };
    let staged_mb = (bytes * rounds.len() as u64) as f64 / 1e6;
    let figures = [
        ("sync_idle_p99_us", idle),
        ("sync_busy_p99_us", busy_p99),
        ("sync_p99_ratio", busy_p99.zip(idle).map(|(busy, idle)| busy / idle)),
        ("sync_commit_p99_us", committing.quantile_us(0.99)),
        ("staged_mb_per_s", Some(staged_mb / staging(rounds).as_secs_f64())),
    ];
    let told = figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    outcome.figures.extend(told);
    outcome
}
