//! Campaigns: many workloads on all cores until they are done or time is up, and the command that replays a failure.
//!
//! Workloads are independent of each other and each is determined by its number and the seed, so the order in which
//! threads take them changes nothing.

use crate::device::Failure;
use crate::errors::{FREE_BLOCKS, When};
use crate::lab::{Depth, Start, Tally, examine, examine_reliable, guarded};
use crate::operation::{Op, from_text, to_text};
use crate::random::derive;
use crate::shrink::shrink;
use crate::usage::ThreadTime;
use crate::{
    ace, actors, beside, between, bitmaps, carried, controls, damage, emptied, errors, fencing, frozen,
    killed, lazy, leaks, mkfs, pieces, polled, pressure, replicas, resumed, retention, reuse, shapes,
    snapshots, storm, trims, vast, volatile, watchdog, workload,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

mod trees;

pub(crate) use trees::NARROW_DEPTH;
pub use trees::{narrow_trees, seq1_of_trees, seq2_of_trees};

/// A campaign that has found so many violations stops.
const VIOLATIONS_MAX: usize = 10;
/// A workload that is being shrunk is run at most so often, and for so long.
const SHRINK_RUNS_MAX: u32 = 400;
const SHRINK_TIME_MAX: Duration = Duration::from_secs(60);

/// How a campaign runs.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub threads: u64,
    pub time: Duration,
    /// At most so many workloads of each kind.
    pub workloads: u64,
}

/// What came of a campaign.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub name: &'static str,
    pub tally: Tally,
    pub elapsed: Duration,
    /// Processor time of all threads.
    pub spent: Duration,
    /// Of how many workloads this was; `None` where there is no end of them.
    pub of: Option<u64>,
    pub done: u64,
}

/// Runs `body` for 0, 1, 2, ... below `count` on all threads.
fn run(name: &'static str, plan: Plan, count: Option<u64>, body: &(dyn Fn(u64) -> Tally + Sync)) -> Outcome {
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let total = Mutex::new((Tally::default(), Duration::ZERO));
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| {
                let time = ThreadTime::begin();
                let mut mine = Tally::default();
                while began.elapsed() < plan.time {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= plan.workloads.min(count.unwrap_or(u64::MAX)) {
                        break;
                    }
                    let tally = body(number);
                    done.fetch_add(1, Ordering::Relaxed);
                    mine.add(tally);
                    if mine.violations.len() >= VIOLATIONS_MAX {
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                    }
                }
                let mut total = total.lock();
                total.0.add(mine);
                total.1 += time.spent();
            });
        }
    });
    let (tally, spent) = total.into_inner();
    Outcome { name, tally, elapsed: began.elapsed(), spent, of: count, done: done.into_inner() }
}

pub(crate) fn replay_command(start: &str, seed: u64, rest: &str, ops: &[Op]) -> String {
    format!(
        "cargo run --release -p syncline-sim -- replay --start {start} --seed {seed}{rest} '{}'",
        to_text(ops)
    )
}

/// Names the command that shows each violation again.
fn with_replay(mut tally: Tally, replay: impl Fn() -> String) -> Tally {
    for found in tally.violations.iter_mut().filter(|found| found.replay.is_empty()) {
        found.replay = replay();
    }
    tally
}

/// The smallest workload that fails from the same start with the same seed.
fn shrunk(start: &Start, ops: &[Op], seed: u64, depth: Depth) -> Vec<Op> {
    let (mut runs, began) = (0, Instant::now());
    shrink(ops, &mut |ops| {
        runs += 1;
        let goes_on = runs <= SHRINK_RUNS_MAX && began.elapsed() < SHRINK_TIME_MAX;
        goes_on && !examine(start, ops, seed, depth).violations.is_empty()
    })
}

/// `name`: the start's, for the replay.
fn examined(name: &str, start: &Start, ops: &[Op], seed: u64, depth: Depth) -> Tally {
    watchdog::replayed_by(replay_command(name, seed, "", ops));
    let tally = examine(start, ops, seed, depth);
    if tally.violations.is_empty() {
        return tally;
    }
    // Found with less depth than a replay has; only what a replay shows again is shrunk.
    let again = !examine(start, ops, seed, Depth::REPLAY).violations.is_empty();
    let small = if again { shrunk(start, ops, seed, Depth::REPLAY) } else { ops.to_vec() };
    with_replay(tally, || replay_command(name, seed, "", &small))
}

/// All workloads of one operation.
pub fn seq1(plan: Plan) -> Outcome {
    let (start, steps) = (ace::start(), ace::steps());
    run("seq-1", plan, Some(steps.len() as u64), &|number| {
        let ops = ace::workload(&[&steps[number as usize]]);
        examined("ace", &start, &ops, derive(plan.seed, number), Depth::FULL)
    })
}

/// All workloads of two operations, in an order that samples them evenly if time is up before the end. `check_all`: the
/// offline check looks at every recovered volume.
pub fn seq2(plan: Plan, check_all: bool) -> Outcome {
    let (start, steps) = (ace::start(), ace::steps());
    let count = steps.len() as u64;
    let depth =
        Depth { check_every: if check_all { 1 } else { Depth::SAMPLED.check_every }, ..Depth::SAMPLED };
    let total = count * count;
    let stride = (total * 2 / 3..).find(|stride| coprime(*stride, total)).expect("there is always one");
    run("seq-2", plan, Some(total), &|number| {
        let chosen = (number * stride + plan.seed) % total;
        let (first, second) = (&steps[(chosen / count) as usize], &steps[(chosen % count) as usize]);
        examined("ace", &start, &ace::workload(&[first, second]), derive(plan.seed, chosen), depth)
    })
}

fn coprime(a: u64, b: u64) -> bool {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

/// Workloads of three operations, sampled.
pub fn seq3(plan: Plan) -> Outcome {
    let (start, steps) = (ace::start(), ace::steps());
    run("seq-3", plan, None, &|number| {
        let seed = derive(plan.seed, 1 << 32 | number);
        let step = |salt| &steps[(derive(seed, salt) % steps.len() as u64) as usize];
        examined("ace", &start, &ace::workload(&[step(0), step(1), step(2)]), seed, Depth::SAMPLED)
    })
}

/// Long random workloads.
pub fn random(plan: Plan) -> Outcome {
    run("random", plan, None, &|number| {
        let seed = derive(plan.seed, 2 << 32 | number);
        let tally = workload::run(seed);
        if tally.violations.is_empty() {
            return tally;
        }
        let round = tally.workloads - 1;
        let small = workload::round(seed, round).map(|(start, ops)| {
            let seed = workload::round_seed(seed, round);
            let fails = !examine(&start, &ops, seed, Depth::REPLAY).violations.is_empty();
            if fails { shrunk(&start, &ops, seed, Depth::REPLAY) } else { ops }
        });
        let start = format!("random:{seed}:{round}");
        let seed = workload::round_seed(seed, round);
        with_replay(tally, || replay_command(&start, seed, "", small.as_deref().unwrap_or(&[])))
    })
}

/// Several actors whose operations interleave.
pub fn interleaved(plan: Plan) -> Outcome {
    run("actors", plan, None, &|number| actors::run(derive(plan.seed, 5 << 32 | number)))
}

/// A device error at every operation of the workloads; one of `every` failures (1: all).
pub fn device_errors(plan: Plan, every: u64) -> Outcome {
    let start = ace::start();
    let mut all: Vec<(Vec<Op>, When, Failure)> = Vec::new();
    for text in errors::WORKLOADS {
        let ops = from_text(text).expect("the list holds operations");
        let failures = errors::failures(&start, &ops, plan.seed);
        all.extend(failures.into_iter().map(|(when, failure)| (ops.clone(), when, failure)));
    }
    let all: Vec<_> = all.into_iter().step_by(every as usize).collect();
    run("device errors", plan, Some(all.len() as u64), &|number| {
        let (ops, when, failure) = &all[number as usize];
        let rest = format!(" --fail {}", failure_text(*when, *failure));
        watchdog::replayed_by(replay_command("ace", plan.seed, &rest, ops));
        let tally = errors::inject(&start, ops, plan.seed, *when, *failure);
        with_replay(tally, || replay_command("ace", plan.seed, &rest, ops))
    })
}

/// Every operation on volumes with so many free blocks; one of `every` (1: all).
pub fn full_volumes(plan: Plan, every: u64) -> Outcome {
    let steps = ace::steps();
    let starts: Vec<Option<Start>> = FREE_BLOCKS.iter().map(|free| errors::full_start(*free)).collect();
    let depth = Depth { states_max: 30, recovery_every: 64, check_every: 16, ..Depth::SAMPLED };
    let total = (starts.len() * steps.len()) as u64 / every;
    run("full volumes", plan, Some(total), &|number| {
        let number = number * every;
        let (index, step) = (number as usize % starts.len(), &steps[number as usize / starts.len()]);
        let Some(start) = &starts[index] else {
            return guarded(|tally| tally.violation("the volume cannot be filled".to_owned()));
        };
        let ops = ace::workload(&[step]);
        let seed = derive(plan.seed, 3 << 32 | number);
        let name = format!("full:{}", FREE_BLOCKS[index]);
        watchdog::replayed_by(replay_command(&name, seed, "", &ops));
        let tally = errors::on_full_volume(start, &ops, seed, depth);
        with_replay(tally, || replay_command(&name, seed, "", &ops))
    })
}

/// Workloads on volumes with each number of free blocks from none to enough, so that each allocation is the first to
/// fail once; one of `every` numbers (1: all).
pub fn allocations(plan: Plan, every: u64) -> Outcome {
    let count = errors::ALLOCATING.len() as u64;
    let total = count * errors::ALLOCATIONS_MAX.div_ceil(every);
    let depth = Depth { states_max: 12, recovery_every: 64, check_every: 4, ..Depth::SAMPLED };
    run("allocations", plan, Some(total), &|number| {
        let free = number / count * every;
        let ops =
            from_text(errors::ALLOCATING[(number % count) as usize]).expect("the list holds operations");
        let Some(start) = errors::full_start(free) else {
            return guarded(|tally| tally.violation("the volume cannot be filled".to_owned()));
        };
        let seed = derive(plan.seed, 7 << 32 | number);
        let name = format!("full:{free}");
        watchdog::replayed_by(replay_command(&name, seed, "", &ops));
        let mut tally = errors::on_full_volume(&start, &ops, seed, depth);
        if free + every >= errors::ALLOCATIONS_MAX && tally.no_space > 0 {
            tally.violation(format!(
                "{free} free blocks are not enough: allocations are left that did not fail"
            ));
        }
        with_replay(tally, || replay_command(&name, seed, "", &ops))
    })
}

/// Workloads that need something of their own around them, each kind in turn; with `only` no other than this number.
pub fn around(plan: Plan, only: Option<u64>) -> Outcome {
    let start = ace::start();
    let steps = ace::steps();
    let full: Vec<Option<Start>> = FREE_BLOCKS.iter().map(|free| errors::full_start(*free)).collect();
    let first = only.unwrap_or(0);
    let count = only.map(|_| 1);
    run("around", plan, count, &|number| {
        let number = first + number;
        let (kind, turn) = (number % 13, number / 13);
        let seed = derive(plan.seed, 7 << 32 | number);
        let again = || {
            let seed = plan.seed;
            format!("cargo run --release -p syncline-sim -- around --seed {seed} {number}")
        };
        watchdog::replayed_by(again());
        let tally = match (kind, &full[turn as usize % full.len()]) {
            (0, _) => mkfs::run(seed),
            (1, _) => polled::run(seed),
            (2, _) => {
                let text = controls::WORKLOADS[turn as usize % controls::WORKLOADS.len()];
                volatile::run(&start, &from_text(text).expect("the list holds operations"), seed)
            }
            (3, Some(full)) => {
                let step = &steps[(derive(seed, 1) % steps.len() as u64) as usize];
                leaks::run(full, &ace::workload(&[step]), seed)
            }
            (4, _) => killed::run(seed),
            (5, _) => pressure::run(seed),
            (6, _) => shapes::groups(seed),
            (7, _) => shapes::extents(seed),
            (8, _) => shapes::newer_slots(seed),
            (9, _) => frozen::run(turn % frozen::RUNS, seed),
            (10, _) => trims::run(turn, seed),
            _ => between::run(seed),
        };
        with_replay(tally, again)
    })
}

/// Trims beside and in between of everything that gives blocks back or takes them.
pub fn trimmed(plan: Plan) -> Outcome {
    run("trims", plan, None, &|number| trims::run(number, derive(plan.seed, 17 << 32 | number)))
}

/// Workloads on volumes that are shipped: what is restored is judged; with `only` no other than this number.
pub fn replicas(plan: Plan, only: Option<u64>) -> Outcome {
    run("replicas", plan, only.map(|_| 1), &|number| {
        let number = only.unwrap_or(0) + number;
        let again =
            || format!("cargo run --release -p syncline-sim -- replicas --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(replicas::run(number, derive(plan.seed, 19 << 32 | number)), again)
    })
}

/// Volumes that go on with their replicas, session after session; with `only` no other than this number.
pub fn resumed(plan: Plan, only: Option<u64>) -> Outcome {
    run("resumed", plan, only.map(|_| 1), &|number| {
        let number = only.unwrap_or(0) + number;
        let again =
            || format!("cargo run --release -p syncline-sim -- resumed --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(resumed::run(derive(plan.seed, 27 << 32 | number)), again)
    })
}

/// A volume that is used while it is fetched from its replica; with `only` no other than this number.
pub fn lazily(plan: Plan, only: Option<u64>) -> Outcome {
    run("lazy", plan, only.map(|_| 1), &|number| {
        let number = only.unwrap_or(0) + number;
        let again = || format!("cargo run --release -p syncline-sim -- lazy --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(lazy::run(derive(plan.seed, 23 << 32 | number)), again)
    })
}

/// Machines that take a replica over from each other; with `only` no other than this number.
pub fn fencing(plan: Plan, only: Option<u64>) -> Outcome {
    run("fencing", plan, only.map(|_| 1), &|number| {
        let number = only.unwrap_or(0) + number;
        let again =
            || format!("cargo run --release -p syncline-sim -- fencing --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(fencing::run_number(number, derive(plan.seed, 20 << 32 | number)), again)
    })
}

/// A day of a replica that is packed and pruned, and then some hours of others; with `only` no other than this number.
pub fn retention(plan: Plan, only: Option<u64>) -> Outcome {
    run("retention", plan, only.map(|_| 1), &|number| {
        let number = only.unwrap_or(0) + number;
        let again =
            || format!("cargo run --release -p syncline-sim -- retention --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        let body = if number == 0 { retention::day } else { retention::hours };
        with_replay(body(derive(plan.seed, 21 << 32 | number)), again)
    })
}

/// Long files where free space is in small pieces; one of `every` workloads (1: all).
pub fn in_pieces(plan: Plan, every: u64) -> Outcome {
    run("pieces", plan, Some(pieces::COUNT / every), &|number| {
        let number = number * every;
        let seed = derive(plan.seed, 15 << 32 | number);
        let pieces::Workload { pattern, ops, depth } = pieces::workload(number, seed);
        // A violation may show while the volume is prepared.
        guarded(|tally| {
            tally.add(examined(&format!("pieces:{pattern}"), pieces::start(pattern), &ops, seed, depth));
        })
    })
}

/// Storms: real threads at once, each storm from a seed of its own.
pub fn storms(plan: Plan) -> Outcome {
    run("storm", plan, None, &|number| {
        let seed = derive(plan.seed, 18 << 32 | number);
        let again = || {
            format!(
                "cargo run --release -p syncline-sim -- storm --seed {} (threads are real: try it for a while)",
                plan.seed
            )
        };
        with_replay(storm::run(seed), again)
    })
}

/// Blocks that are used again while the journal tells of their old content; one of `every` workloads (1: all).
pub fn reused(plan: Plan, every: u64) -> Outcome {
    run("reuse", plan, Some(reuse::COUNT / every), &|number| {
        let number = number * every;
        let seed = derive(plan.seed, 16 << 32 | number);
        let reuse::Workload { free, ops, depth } = reuse::workload(number, seed);
        // A violation may show while the volume is prepared.
        guarded(|tally| {
            let start = reuse::start(free).expect("the workloads name volumes that there are");
            tally.add(examined(&format!("reuse:{free}"), start, &ops, seed, depth));
        })
    })
}

/// Rot that is met while others work: each tree node and some data blocks, in turn; one of `every` workloads (1:
/// all).
pub fn met_rot(plan: Plan, every: u64) -> Outcome {
    run("met rot", plan, Some(damage::count().div_ceil(every)), &|number| {
        let number = number * every;
        let seed = derive(plan.seed, 18 << 32 | number);
        let again = || format!("cargo run --release -p syncline-sim -- damage --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(damage::run(number, seed), again)
    })
}

/// The rot of one block that a replay names.
pub fn met_rot_alone(plan: Plan, number: u64) -> Outcome {
    run("met rot", plan, Some(1), &|_| damage::run(number, derive(plan.seed, 18 << 32 | number)))
}

/// Page images that recovery carries because their files cannot be read; with `only` no other run than this number.
pub fn carried(plan: Plan, only: Option<u64>, depth: carried::Depth) -> Outcome {
    let count = if only.is_some() { 1 } else { carried::COUNT };
    run("carried", plan, Some(count), &|number| {
        let number = only.unwrap_or(number);
        let seed = derive(plan.seed, 20 << 32 | number);
        let again =
            || format!("cargo run --release -p syncline-sim -- carried --seed {} {number}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(carried::run(number, seed, depth), again)
    })
}

/// Random workloads with snapshots; `only`: the one of that seed.
pub fn snapshots(plan: Plan, only: Option<u64>) -> Outcome {
    let count = only.map_or(u64::from(u32::MAX), |_| 1);
    run("snapshots", plan, Some(count), &|number| {
        let seed = only.unwrap_or_else(|| derive(plan.seed, 7_000_000 + number));
        with_replay(snapshots::run(seed), || {
            format!("cargo run --release -p syncline-sim -- snapshots {seed}")
        })
    })
}

/// Real threads beside snapshots.
pub fn beside_snapshots(plan: Plan) -> Outcome {
    run("beside", plan, None, &|number| {
        let again = || {
            format!(
                "cargo run --release -p syncline-sim -- beside --seed {} (threads are real: try it for a while)",
                plan.seed
            )
        };
        with_replay(beside::run(derive(plan.seed, 24 << 32 | number)), again)
    })
}

/// Real threads beside truncations of several batches.
pub fn beside_truncations(plan: Plan) -> Outcome {
    run("vast", plan, None, &|number| {
        let again = || {
            format!(
                "cargo run --release -p syncline-sim -- vast --seed {} (threads are real: try it for a while)",
                plan.seed
            )
        };
        with_replay(vast::run(derive(plan.seed, 25 << 32 | number)), again)
    })
}

/// Full volumes that deletions of snapshots empty, with each number of free blocks, one of `every` (1: all); with
/// `only` no other than this number.
pub fn emptied(plan: Plan, every: u64, only: Option<u64>) -> Outcome {
    let total = only.map_or(emptied::FREE_MAX.div_ceil(every), |_| 1);
    run("emptied", plan, Some(total), &|number| {
        let free = only.unwrap_or(number * every);
        let again = || format!("cargo run --release -p syncline-sim -- emptied --seed {} {free}", plan.seed);
        with_replay(emptied::run(free, derive(plan.seed, 26 << 32 | free)), again)
    })
}

/// Bitmaps that a cut tears, and that rot.
pub fn bitmaps(plan: Plan) -> Outcome {
    run("bitmaps", plan, Some(bitmaps::COUNT), &|number| {
        let again = || format!("cargo run --release -p syncline-sim -- bitmaps --seed {}", plan.seed);
        watchdog::replayed_by(again());
        with_replay(bitmaps::run(number, derive(plan.seed, 19 << 32 | number)), again)
    })
}

/// The negative controls: planted and caught, and the campaign of rot.
pub fn negative_controls(plan: Plan) -> (controls::Score, Outcome, u64, u64) {
    let start = ace::start();
    let score = Mutex::new(controls::Score::new());
    let count = controls::WORKLOADS.len() as u64;
    let ops =
        |number: u64| from_text(controls::WORKLOADS[number as usize]).expect("the list holds operations");
    run("controls", plan, Some(count), &|number| {
        for (fault, (planted, caught)) in controls::plant(&start, &ops(number), derive(plan.seed, number)) {
            let mut score = score.lock();
            let entry = score.entry(fault).or_default();
            *entry = (entry.0 + planted, entry.1 + caught);
        }
        Tally::default()
    });
    let (told, harmless) = (AtomicU64::new(0), AtomicU64::new(0));
    let outcome = run("rot", plan, Some(count), &|number| {
        let (tally, found, same) = controls::rot(&start, &ops(number), derive(plan.seed, number));
        told.fetch_add(found, Ordering::Relaxed);
        harmless.fetch_add(same, Ordering::Relaxed);
        tally
    });
    (score.into_inner(), outcome, told.into_inner(), harmless.into_inner())
}

fn failure_text(when: When, failure: Failure) -> String {
    let when = if when == When::Opening { "opening" } else { "running" };
    let only = failure.only.map_or("any".to_owned(), |only| only.to_string());
    let length = if failure.for_good { "for-good" } else { "once" };
    format!("{when}:{only}:{}:{length}", failure.at)
}

/// Reads what `failure_text` wrote.
pub fn parse_failure(text: &str) -> Option<(When, Failure)> {
    use syncline_device::Operation;
    let words: Vec<&str> = text.split(':').collect();
    let [when, only, at, length] = words[..] else { return None };
    let when = match when {
        "opening" => When::Opening,
        "running" => When::Running,
        _ => return None,
    };
    let only = match only {
        "read" => Some(Operation::Read),
        "write" => Some(Operation::Write),
        "flush" => Some(Operation::Flush),
        "any" => None,
        _ => return None,
    };
    Some((when, Failure { at: at.parse().ok()?, for_good: length == "for-good", only }))
}

/// Runs one workload with everything that there is to be found in it.
pub fn replay(start: &str, seed: u64, ops: &[Op], failure: Option<(When, Failure)>) -> Option<Tally> {
    let words: Vec<&str> = start.split(':').collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    let (start, full) = match words[0] {
        "ace" => (ace::start(), false),
        "trees" => (ace::start_of_trees(), false),
        "narrow" => (ace::start_of_narrow_trees(), false),
        "full" => (errors::full_start(number(1)?)?, true),
        "random" => (workload::round(number(1)?, number(2)?)?.0, false),
        "pieces" if number(1)? < pieces::PATTERNS.len() as u64 => {
            (pieces::start(number(1)? as usize).clone(), false)
        }
        "reuse" => (reuse::start(number(1)?)?.clone(), false),
        "actors" => return Some(actors::examine(&actors::start(number(1)?)?, ops, seed)),
        _ => return None,
    };
    Some(match failure {
        Some((when, failure)) => errors::inject(&start, ops, seed, when, failure),
        None if full => errors::on_full_volume(&start, ops, seed, Depth::REPLAY),
        None => examine_reliable(&start, ops, usize::MAX, seed, Depth::REPLAY),
    })
}

/// Operations by name, over all outcomes.
pub fn operations_of(outcomes: &[Outcome]) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for (name, count) in outcomes.iter().flat_map(|outcome| &outcome.tally.by_operation) {
        *all.entry(*name).or_default() += count;
    }
    all
}
