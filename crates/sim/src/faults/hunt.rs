//! The hunt: all parts of the laboratory in turn, until something is found.
//!
//! Everything is determined by the seed; the time only ends what does not end.

use crate::controls;
use crate::device::Failure;
use crate::errors::{self, FREE_BLOCKS, When};
use crate::lab::{Depth, Start, Tally, examine, guarded};
use crate::operation::{Op, from_text};
use crate::random::{Random, derive};
use crate::{
    ace, actors, beside, between, bitmaps, campaign, carried, damage, emptied, fencing, frozen, killed, lazy,
    leaks, mkfs, pieces, polled, pressure, replicas, resumed, retention, reuse, shapes, snapshots, storm,
    trims, upgrade, vast, volatile, watchdog, workload,
};
use std::time::{Duration, Instant};

/// What a hunt came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunt {
    /// Crash states recovered, to the first violation if there was one.
    pub states: u64,
    pub caught: Option<Catch>,
    /// Time was up before the end.
    pub cut_short: bool,
}

/// Where a fault showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catch {
    pub part: &'static str,
    pub what: String,
}

/// Storms: what they find shows when two threads meet, so many are tried.
const STORMS: u64 = 1500;
/// Workloads of each part.
const RANDOM_SEEDS: u64 = 120;
const ACTORS_RUNS: u64 = 100;
const PAIRS: u64 = 1500;
const FULL_EVERY: usize = 11;
const LEAKS_EVERY: usize = 9;
const BETWEEN_RUNS: u64 = 150;
const KILLED_RUNS: u64 = 40;
const PRESSURE_RUNS: u64 = 30;
const GROUPS_RUNS: u64 = 40;
const NEWER_SLOTS_RUNS: u64 = 12;
const EXTENTS_RUNS: u64 = 10;
const PIECES_RUNS: u64 = 200;
/// One of so many of its workloads.
const PIECES_EVERY: u64 = 41;
const REUSE_RUNS: u64 = 160;
const REUSE_EVERY: u64 = 77;
const TRIMS_RUNS: u64 = 120;
const REPLICAS_RUNS: u64 = 90;
const RESUMED_RUNS: u64 = 90;
const FENCING_RUNS: u64 = 400;
const LAZY_RUNS: u64 = 60;
/// Hours of a replica that is packed and pruned.
const RETENTION_RUNS: u64 = 24;
const MET_ROT_EVERY: u64 = 1;
const CARRIED_RUNS: u64 = 16;
const EMPTIED_EVERY: u64 = 3;
const BESIDE_RUNS: u64 = 250;
const VAST_RUNS: u64 = 1500;
const SNAPSHOTS_RUNS: u64 = 300;
const NARROW_RUNS: u64 = 120;
const NARROW_STRIDE: u64 = 37;
/// One of so many workloads with trees around one operation.
const OF_TREES_EVERY: usize = 17;

/// A part: its name, and its workloads until one finds something or there are no more.
struct Part {
    name: &'static str,
    workloads: Box<dyn FnMut(u64) -> Option<Tally>>,
}

/// The names of the parts, in their order.
const NAMES: &[&str] = &[
    "mkfs",
    "upgrade",
    "polled",
    "snapshots",
    "seq-1 of trees",
    "narrow trees",
    "seq-1",
    "replicas",
    "resumed",
    "lazy",
    "fencing",
    "retention",
    "unforced",
    "volatile",
    "errors",
    "rot",
    "bitmaps",
    "carried",
    "met rot",
    "killed",
    "between",
    "frozen",
    "pressure",
    "groups",
    "newer slots",
    "extents",
    "reuse",
    "trims",
    "pieces",
    "emptied",
    "beside",
    "vast",
    "storm",
    "actors",
    "random",
    "seq-2",
    "full",
    "leaks",
];

fn part(name: &'static str, workloads: impl FnMut(u64) -> Option<Tally> + 'static) -> Part {
    Part { name, workloads: Box::new(workloads) }
}

/// The part that a hunt begins with is given many more workloads: what is hunted there may be rare.
const MORE_OF_THE_FIRST: u64 = 10;

fn parts(seed: u64, first: &str) -> Vec<Part> {
    let times = |name: &str, runs: u64| if name == first { runs * MORE_OF_THE_FIRST } else { runs };
    let [replicas_runs, resumed_runs, lazy_runs, fencing_runs] = [
        ("replicas", REPLICAS_RUNS),
        ("resumed", RESUMED_RUNS),
        ("lazy", LAZY_RUNS),
        ("fencing", FENCING_RUNS),
    ]
    .map(|(name, runs)| times(name, runs));
    let steps = ace::steps();
    let count = steps.len() as u64;
    let start = ace::start();
    let for_unforced: Vec<Vec<Op>> = steps.iter().step_by(4).cloned().collect();
    let [for_seq1, for_unforced_start, for_volatile, for_rot, for_seq2] =
        std::array::from_fn(|_| start.clone());
    let single = steps.clone();
    let mut of_narrow: Option<(Start, Vec<Vec<Op>>)> = None;
    let mut of_trees: Option<(Start, Vec<Vec<Op>>)> = None;
    let pairs = steps.clone();
    vec![
        part("mkfs", move |number| (number < 4).then(|| mkfs::run(derive(seed, number)))),
        part("upgrade", move |number| (number < 2).then(|| upgrade::run(derive(seed, number)))),
        part("polled", move |number| (number < 4).then(|| polled::run(derive(seed, number)))),
        part("snapshots", move |number| {
            (number < SNAPSHOTS_RUNS).then(|| snapshots::run(derive(seed, 21 << 32 | number)))
        }),
        part("seq-1 of trees", move |number| {
            let (start, all) = of_trees.get_or_insert_with(|| {
                let around = ace::steps().into_iter().flat_map(|step| ace::around_trees(&step));
                let all = ace::of_trees_alone().into_iter().chain(around.step_by(OF_TREES_EVERY));
                (ace::start_of_trees(), all.collect::<Vec<_>>())
            });
            let step = all.get(number as usize)?;
            Some(examine(start, &ace::workload(&[step]), derive(seed, number), Depth::FULL))
        }),
        part("narrow trees", move |number| {
            let (start, all) =
                of_narrow.get_or_insert_with(|| (ace::start_of_narrow_trees(), ace::of_narrow_trees()));
            // Neighbours in the list are alike.
            let chosen = (number < NARROW_RUNS).then_some((number * NARROW_STRIDE) as usize % all.len());
            let ops = ace::workload(&[&all[chosen?]]);
            Some(examine(start, &ops, derive(seed, 28 << 32 | number), campaign::NARROW_DEPTH))
        }),
        part("seq-1", move |number| {
            let step = single.get(number as usize)?;
            Some(examine(&for_seq1, &ace::workload(&[step]), derive(seed, number), Depth::FULL))
        }),
        part("replicas", move |number| {
            (number < replicas_runs).then(|| replicas::run(number, derive(seed, 19 << 32 | number)))
        }),
        part("resumed", move |number| {
            (number < resumed_runs).then(|| resumed::run(derive(seed, 27 << 32 | number)))
        }),
        part("lazy", move |number| (number < lazy_runs).then(|| lazy::run(derive(seed, 23 << 32 | number)))),
        part("fencing", move |number| {
            (number < fencing_runs).then(|| fencing::run_number(number, derive(seed, 20 << 32 | number)))
        }),
        part("retention", move |number| {
            (number < RETENTION_RUNS).then(|| retention::hours(derive(seed, 21 << 32 | number)))
        }),
        part("unforced", move |number| {
            // The checkpoint writes bitmaps before anything of the operation was forced.
            let mut ops = for_unforced.get(number as usize)?.clone();
            ops.push(Op::Checkpoint);
            Some(examine(&for_unforced_start, &ops, derive(seed, number), Depth::FULL))
        }),
        part("volatile", move |number| {
            let ops =
                from_text(controls::WORKLOADS.get(number as usize)?).expect("the list holds operations");
            Some(volatile::run(&for_volatile, &ops, derive(seed, number)))
        }),
        part("errors", injections(seed)),
        part("rot", move |number| {
            let ops =
                from_text(controls::WORKLOADS.get(number as usize)?).expect("the list holds operations");
            Some(controls::rot(&for_rot, &ops, derive(seed, number)).0)
        }),
        part("bitmaps", move |number| {
            (number < bitmaps::COUNT).then(|| bitmaps::run(number, derive(seed, 19 << 32 | number)))
        }),
        part("carried", move |number| {
            let run = || carried::run(number, derive(seed, 20 << 32 | number), carried::Depth::SAMPLED);
            (number < CARRIED_RUNS).then(run)
        }),
        part("met rot", move |number| {
            let run = || damage::run(number * MET_ROT_EVERY, derive(seed, 18 << 32 | number));
            (number < damage::count() / MET_ROT_EVERY).then(run)
        }),
        part("killed", move |number| {
            (number < KILLED_RUNS).then(|| killed::run(derive(seed, 5 << 32 | number)))
        }),
        part("between", move |number| {
            (number < BETWEEN_RUNS).then(|| between::run(derive(seed, 4 << 32 | number)))
        }),
        part("frozen", move |number| {
            (number < frozen::RUNS).then(|| frozen::run(number, derive(seed, 12 << 32 | number)))
        }),
        part("pressure", move |number| {
            (number < PRESSURE_RUNS).then(|| pressure::run(derive(seed, 8 << 32 | number)))
        }),
        part("groups", move |number| {
            (number < GROUPS_RUNS).then(|| shapes::groups(derive(seed, 9 << 32 | number)))
        }),
        part("newer slots", move |number| {
            (number < NEWER_SLOTS_RUNS).then(|| shapes::newer_slots(derive(seed, 11 << 32 | number)))
        }),
        part("extents", move |number| {
            (number < EXTENTS_RUNS).then(|| shapes::extents(derive(seed, 10 << 32 | number)))
        }),
        part("reuse", move |number| {
            let seed = derive(seed, 16 << 32 | number);
            let work = reuse::workload(number * REUSE_EVERY, seed);
            let run = || {
                guarded(|tally| {
                    let start = reuse::start(work.free).expect("the workloads name volumes that there are");
                    tally.add(examine(start, &work.ops, seed, work.depth));
                })
            };
            (number < REUSE_RUNS).then(run)
        }),
        part("trims", move |number| {
            (number < TRIMS_RUNS).then(|| trims::run(number, derive(seed, 17 << 32 | number)))
        }),
        part("pieces", move |number| {
            let seed = derive(seed, 15 << 32 | number);
            let work = pieces::workload(number * PIECES_EVERY, seed);
            let run = || examine(pieces::start(work.pattern), &work.ops, seed, work.depth);
            (number < PIECES_RUNS).then(run)
        }),
        part("emptied", move |number| {
            let free = number * EMPTIED_EVERY;
            (free < emptied::FREE_MAX).then(|| emptied::run(free, derive(seed, 26 << 32 | number)))
        }),
        part("beside", move |number| {
            (number < BESIDE_RUNS).then(|| beside::run(derive(seed, 24 << 32 | number)))
        }),
        part("vast", move |number| (number < VAST_RUNS).then(|| vast::run(derive(seed, 25 << 32 | number)))),
        part("storm", move |number| (number < STORMS).then(|| storm::run(derive(seed, 18 << 32 | number)))),
        part("actors", move |number| {
            (number < ACTORS_RUNS).then(|| actors::run(derive(seed, 14 << 32 | number)))
        }),
        part("random", move |number| {
            (number < RANDOM_SEEDS).then(|| workload::run(derive(seed, 2 << 32 | number)))
        }),
        part("seq-2", move |number| {
            let mut random = Random::new(derive(seed, 6 << 32 | number));
            let ops =
                ace::workload(&[&pairs[random.below(count) as usize], &pairs[random.below(count) as usize]]);
            let depth = Depth { recovery_every: 64, check_every: 8, ..Depth::SAMPLED };
            (number < PAIRS).then(|| examine(&for_seq2, &ops, derive(seed, number), depth))
        }),
        part(
            "full",
            on_full(seed, steps.clone(), FULL_EVERY, |start, ops, seed| {
                let depth = Depth { states_max: 30, recovery_every: 64, check_every: 16, ..Depth::SAMPLED };
                errors::on_full_volume(start, ops, seed, depth)
            }),
        ),
        part("leaks", on_full(seed, steps, LEAKS_EVERY, leaks::run)),
    ]
}

/// Device errors at every operation of the workloads.
fn injections(seed: u64) -> impl FnMut(u64) -> Option<Tally> {
    let start = ace::start();
    let mut all: Option<Vec<(Vec<Op>, When, Failure)>> = None;
    move |number| {
        let all = all.get_or_insert_with(|| {
            let workloads = errors::WORKLOADS.iter().map(|text| from_text(text).expect("operations"));
            let with_failures = workloads.flat_map(|ops| {
                let failures = errors::failures(&start, &ops, seed);
                failures.into_iter().map(move |(when, failure)| (ops.clone(), when, failure))
            });
            with_failures.collect()
        });
        let (ops, when, failure) = all.get(number as usize)?;
        Some(errors::inject(&start, ops, seed, *when, *failure))
    }
}

/// Operations on volumes that are nearly full, one of `every`.
fn on_full(
    seed: u64,
    steps: Vec<Vec<Op>>,
    every: usize,
    body: fn(&Start, &[Op], u64) -> Tally,
) -> impl FnMut(u64) -> Option<Tally> {
    let mut starts: Option<Vec<Option<Start>>> = None;
    move |number| {
        let starts =
            starts.get_or_insert_with(|| FREE_BLOCKS.iter().map(|free| errors::full_start(*free)).collect());
        let number = number as usize * every;
        let (index, step) = (number % starts.len(), steps.get(number / starts.len())?);
        Some(match &starts[index] {
            Some(start) => body(start, &ace::workload(&[step]), derive(seed, number as u64)),
            None => {
                let mut tally = Tally::default();
                tally.violation("the volume cannot be filled".to_owned());
                tally
            }
        })
    }
}

/// Time that this thread has had of a processor, so that a loaded machine does not end a hunt early; where the system
/// does not tell, the time that has passed.
fn spent(began: Instant) -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|told| told.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| began.elapsed(), Duration::from_nanos)
}

/// Whether a part of the laboratory has that name.
pub fn is_part(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Runs the parts in turn, the one named `first` before all others. `time` is the processor's.
pub fn hunt(seed: u64, time: Duration, first: &str) -> Hunt {
    let began = Instant::now();
    let mut states = 0;
    let mut all = Vec::new();
    // A fault may show while the volumes are prepared on which everything starts.
    let prepared = crate::lab::guarded(|_| all = parts(seed, first));
    if let Some(found) = prepared.violations.first() {
        let catch = Catch { part: "preparation", what: found.what.clone() };
        return Hunt { states, caught: Some(catch), cut_short: false };
    }
    all.sort_by_key(|part| part.name != first);
    for mut part in all {
        for number in 0.. {
            if number % 16 == 0 && spent(began) > time {
                return Hunt { states, caught: None, cut_short: true };
            }
            watchdog::replayed_by(format!("part {} of hunt --seed {seed}, workload {number}", part.name));
            let caught_panic = crate::lab::guarded(|tally| match (part.workloads)(number) {
                Some(found) => tally.add(found),
                None => tally.refused = u64::MAX,
            });
            if caught_panic.refused == u64::MAX {
                break;
            }
            states += caught_panic.states;
            if let Some(found) = caught_panic.violations.first() {
                let catch = Catch { part: part.name, what: found.what.clone() };
                return Hunt { states, caught: Some(catch), cut_short: false };
            }
        }
    }
    Hunt { states, caught: None, cut_short: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_name_in_the_list() {
        let all: Vec<&str> = parts(1, "").into_iter().map(|part| part.name).collect();
        assert_eq!(all, NAMES);
    }
}
