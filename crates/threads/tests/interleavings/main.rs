//! The store's threads in every order that a scheduler can think of: group commit, checkpoints, destaging, a ring that
//! wraps, devices that fail.
//!
//! Each schedule follows from a scenario, a scheduler and a seed. A deadlock, which is how a lost wakeup shows, is
//! found by shuttle itself; what a crash would leave is judged in `judge.rs`. A schedule that fails is printed as one
//! command that runs it again. `SCHEDULES` says how many are tried of each scenario and scheduler, `SEED` where they
//! start.

mod device;
mod forest;
mod image;
mod judge;
mod scenarios;
mod tally;
mod trees;
mod workload;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Schedules of each scenario and scheduler, unless `SCHEDULES` says otherwise.
const SCHEDULES: u64 = 150;
/// A scheduler by priorities learns from its first schedules how long they are; so it gets several for each seed.
const SCHEDULES_PER_PCT_SEED: u64 = 10;
/// Preemptions that the scheduler by priorities makes, at random places.
const PCT_DEPTH: usize = 3;
/// More steps than any scenario takes: beyond, something spins for ever.
const STEPS_MAX: usize = 400_000;
const STACK_BYTES: usize = 1 << 20;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// Runs the scenario under both schedulers.
fn explore(name: &str, scenario: fn()) {
    let first = number("SEED").unwrap_or(1);
    let schedules = number("SCHEDULES").unwrap_or(SCHEDULES);
    let only = std::env::var("SCHEDULER").ok();
    for scheduler in ["random", "pct"] {
        if only.as_ref().is_some_and(|only| only != scheduler) {
            continue;
        }
        let seeds = if scheduler == "pct" { schedules.div_ceil(SCHEDULES_PER_PCT_SEED) } else { schedules };
        for seed in first..first + seeds {
            let run = || match scheduler {
                "pct" => {
                    let schedules = SCHEDULES_PER_PCT_SEED as usize;
                    run(PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules), scenario)
                }
                _ => run(RandomScheduler::new_from_seed(seed, 1), scenario),
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
                eprintln!(
                    "replay: SEED={seed} SCHEDULES=1 SCHEDULER={scheduler} cargo test -p syncline-threads \
                     --test interleavings {name}"
                );
                resume_unwind(panic);
            }
        }
    }
    eprintln!("{name}: {}", tally::take());
}

fn run(scheduler: impl Scheduler + 'static, scenario: fn()) {
    // Shuttle runs all threads of a schedule on this one.
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(scenario);
}
