//! `syncline-sim`: runs the crash laboratory and prints what it found.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};
use syncline_sim::campaign::{self, Outcome, Plan};
use syncline_sim::controls::{Fault, Score};
use syncline_sim::operation::from_text;

const USAGE: &str = "usage: syncline-sim COMMAND [--seed N] [--minutes N] [--threads N] [--check-all]

commands:
  ace       all workloads of one and of two operations, then samples of three
  random    long random workloads
  errors    device errors at every operation, full volumes
  controls  planted faults, which have to be caught, and rot
  all       everything, within the minutes
  replay [--start ace|full:N|random:SEED:ROUND] [--fail ...] OPERATIONS";

struct Arguments {
    command: String,
    seed: u64,
    minutes: f64,
    threads: u64,
    check_all: bool,
    start: String,
    fail: Option<String>,
    operations: Option<String>,
}

fn arguments() -> Option<Arguments> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let mut words = std::env::args().skip(1);
    let mut arguments = Arguments {
        command: words.next()?,
        seed: 1,
        minutes: 20.0,
        threads: cores,
        check_all: false,
        start: "ace".to_owned(),
        fail: None,
        operations: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            "--minutes" => arguments.minutes = words.next()?.parse().ok()?,
            "--threads" => arguments.threads = words.next()?.parse().ok()?,
            "--check-all" => arguments.check_all = true,
            "--start" => arguments.start = words.next()?,
            "--fail" => arguments.fail = Some(words.next()?),
            _ if arguments.operations.is_none() => arguments.operations = Some(word),
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // A panic of the engine is a finding and is printed as one.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(arguments.minutes * 60.0);
    let plan = |share: f64| Plan {
        seed: arguments.seed,
        threads: arguments.threads,
        time: end.saturating_duration_since(Instant::now()).mul_f64(share),
        workloads: u64::MAX,
    };
    let check_all = arguments.check_all;
    let mut good = true;
    let mut outcomes = Vec::new();
    let mut keep = |outcome: Outcome| {
        print(&outcome);
        outcomes.push(outcome);
    };
    match arguments.command.as_str() {
        "ace" => {
            keep(campaign::seq1(plan(1.0)));
            keep(campaign::seq2(plan(1.0), check_all));
            keep(campaign::seq3(plan(1.0)));
        }
        "random" => keep(campaign::random(plan(1.0))),
        "errors" => {
            keep(campaign::device_errors(plan(0.5), 1));
            keep(campaign::full_volumes(plan(1.0), 1));
        }
        "controls" => good &= controls(plan(1.0), &mut keep),
        "all" => {
            keep(campaign::seq1(plan(1.0)));
            good &= controls(plan(0.1), &mut keep);
            keep(campaign::device_errors(plan(0.1), 1));
            keep(campaign::full_volumes(plan(0.2), 1));
            keep(campaign::seq2(plan(0.7), check_all));
            keep(campaign::seq3(plan(0.2)));
            keep(campaign::random(plan(1.0)));
        }
        "replay" => return replay(&arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    good &= summary(&outcomes, began.elapsed(), &arguments);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn replay(arguments: &Arguments) -> ExitCode {
    let Some(ops) = arguments.operations.as_deref().map(from_text) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let ops = match ops {
        Ok(ops) => ops,
        Err(error) => {
            eprintln!("syncline-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let failure = match arguments.fail.as_deref().map(campaign::parse_failure) {
        Some(None) => {
            eprintln!("syncline-sim: --fail wants opening|running:read|write|flush|any:NUMBER:once|for-good");
            return ExitCode::from(2);
        }
        other => other.flatten(),
    };
    let Some(tally) = campaign::replay(&arguments.start, arguments.seed, &ops, failure) else {
        eprintln!("syncline-sim: there is no start '{}'", arguments.start);
        return ExitCode::from(2);
    };
    println!("{} crash states recovered, {} violations", tally.states, tally.violations.len());
    tally.violations.iter().for_each(|found| println!("  {}", found.what));
    if tally.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(outcome: &Outcome) {
    let tally = &outcome.tally;
    let of = match outcome.of {
        Some(of) if of == outcome.done => " (complete)".to_owned(),
        Some(of) => format!(" of {of}"),
        None => String::new(),
    };
    let seconds = outcome.elapsed.as_secs_f64();
    println!(
        "{:14} {:>7} workloads{of}, {} operations, {} crash states recovered ({} of them in recovery), {} checks, {} violations, \
         {:.0} states/s, {seconds:.1} s",
        outcome.name,
        tally.workloads,
        tally.operations,
        tally.states,
        tally.recovery_states,
        tally.checks,
        tally.violations.len(),
        tally.states as f64 / seconds.max(0.001),
    );
    if tally.errors + tally.no_space > 0 {
        println!("{:14} {} device errors injected, {} times no space", "", tally.errors, tally.no_space);
    }
    for found in &tally.violations {
        println!("  VIOLATION {}\n    replay: {}", found.what, found.replay);
    }
}

/// Runs the negative controls; false if a kind of fault that must be caught was not.
fn controls(plan: Plan, keep: &mut dyn FnMut(Outcome)) -> bool {
    let (score, rot, told, harmless) = campaign::negative_controls(plan);
    let good = print_score(&score);
    keep(rot);
    println!("{:14} {told} flips led to an error, {harmless} made no difference", "");
    good
}

fn print_score(score: &Score) -> bool {
    let planted: u64 = score.values().map(|(planted, _)| planted).sum();
    let caught: u64 = score.values().map(|(_, caught)| caught).sum();
    println!("controls       {caught} of {planted} lies of the device caught; by kind:");
    let mut good = true;
    for (fault, (planted, caught)) in score {
        let missed = *caught == 0 && syncline_sim::controls::must_be_caught(*fault);
        println!("  {:32} {caught} / {planted}{}", name(*fault), if missed { "  NOT CAUGHT" } else { "" });
        good &= !missed;
    }
    good
}

fn name(fault: Fault) -> String {
    match fault {
        Fault::IgnoredFlushes => "all flushes ignored".to_owned(),
        Fault::IgnoredFlush(purpose) => format!("flush ignored after {purpose:?}").to_lowercase(),
        Fault::LostWrite(purpose) => format!("write lost of {purpose:?}").to_lowercase(),
    }
}

fn summary(outcomes: &[Outcome], elapsed: Duration, arguments: &Arguments) -> bool {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let states = sum(|outcome| outcome.tally.states);
    let violations = sum(|outcome| outcome.tally.violations.len() as u64);
    println!(
        "total: {} workloads, {states} crash states recovered, {violations} violations, {:.0} states/s on {} threads, {:.0} s, \
         seed {}",
        sum(|outcome| outcome.tally.workloads),
        states as f64 / elapsed.as_secs_f64(),
        arguments.threads,
        elapsed.as_secs_f64(),
        arguments.seed,
    );
    let operations = campaign::operations_of(outcomes);
    let words: Vec<String> = operations.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("operations: {}", words.join(", "));
    violations == 0
}
