//! `syncline-sim`: runs the crash laboratory and prints what it found.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};
use syncline_sim::campaign::{self, Outcome, Plan};
use syncline_sim::carried;
use syncline_sim::controls::{Fault, Score};
use syncline_sim::faults::hunt::hunt;
use syncline_sim::faults::report::{self, Report, Verdict};
use syncline_sim::mounted;
use syncline_sim::operation::from_text;
use syncline_sim::usage::MemoryLog;
use syncline_sim::watchdog;

/// Processor time of the hunt for one planted fault.
const FAULT_TIME_MAX: Duration = Duration::from_secs(90);
/// A run of `all` that is shorter plants no faults: the copy of the engine has to be built.
const FAULTS_MINUTES_MIN: f64 = 10.0;
/// Part of the time that is left in which hunts are begun.
const FAULTS_SHARE: f64 = 0.5;

const USAGE: &str = "usage: syncline-sim COMMAND [--seed N] [--minutes N] [--threads N] [--check-all]

commands:
  ace       all workloads of one and of two operations, then samples of three
  trees     the same of one, and of two with an operation on trees, on a volume with snapshots
  random    long random workloads
  actors    several actors whose operations interleave
  around [NUMBER]  crashes of mkfs, killed processes, polled forces, operations between writes, lost space
  pieces    long files where free space is in small pieces
  reuse     blocks that are used again while the journal tells of their old content
  errors    device errors at every operation, full volumes, no space at each allocation
  damage [NUMBER]  each tree node and some blocks of data rot while others work
  carried [NUMBER]  files that cannot be read have page images in the journal, and recovery is cut
  snapshots [SEED]  snapshots are made and deleted between the operations of random workloads
  replicas [NUMBER]  what is shipped to an object store is restored and judged
  resumed [NUMBER]  a volume goes on with its replica behind closes, crashes and sessions without it
  lazy [NUMBER]  a volume is used while it is fetched from its replica, and the machine crashes
  fencing [NUMBER]  machines take a replica over from each other, over a bad network
  retention [NUMBER]  a replica is packed and pruned for hours, and restored to all that is kept; 0: a day, 1,000 positions
  bitmaps   allocation bitmaps are torn by a cut, or rot
  controls  planted faults, which have to be caught, and rot
  faults [NAME,...]  mistakes planted into a copy of the engine, which have to be caught (all, or those whose names begin so)
  emptied [FREE]  full volumes are emptied by deleting their snapshots, with each number of free blocks
  beside    real threads beside snapshots; vast: beside truncations of several batches
  storm     real threads at once on few files; a seed tells who does what, not who is first
  hunt [--first PART]  all parts in turn until something is found: what is run with each planted fault
  all       everything, within the minutes
  mount [--command PATH] [--cuts N] [--transport auto|dev|uring] [--scratch DIR]
            the workloads of ace on a mount whose daemon is killed
  replay [--start ace|trees|narrow|full:N|pieces:N|reuse:N|random:SEED:ROUND|actors:SEED] [--fail ...] OPERATIONS";

struct Arguments {
    command: String,
    seed: u64,
    minutes: f64,
    threads: u64,
    check_all: bool,
    start: String,
    fail: Option<String>,
    operations: Option<String>,
    /// The part that a hunt begins with.
    first: String,
    /// Seconds without progress that are a hang.
    patience: Option<f64>,
    mounted: mounted::Plan,
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
        first: String::new(),
        patience: None,
        mounted: mounted::Plan {
            command: "syncline-lab".into(),
            program: std::env::current_exe().ok()?,
            transport: "auto".to_owned(),
            scratch: std::env::temp_dir(),
            seed: 1,
            cuts: 100,
        },
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            "--minutes" => arguments.minutes = words.next()?.parse().ok()?,
            "--threads" => arguments.threads = words.next()?.parse().ok()?,
            "--first" => arguments.first = words.next()?,
            "--patience" => arguments.patience = Some(words.next()?.parse().ok()?),
            "--command" => arguments.mounted.command = words.next()?.into(),
            "--transport" => arguments.mounted.transport = words.next()?,
            "--scratch" => arguments.mounted.scratch = words.next()?.into(),
            "--cuts" => arguments.mounted.cuts = words.next()?.parse().ok()?,
            "--check-all" => arguments.check_all = true,
            "--start" => arguments.start = words.next()?,
            "--fail" => arguments.fail = Some(words.next()?),
            _ if !word.starts_with('-') && arguments.operations.is_none() => {
                arguments.operations = Some(word)
            }
            _ => return None,
        }
    }
    arguments.mounted.seed = arguments.seed;
    Some(arguments)
}

/// What the mount's workloads start a process of its own for.
fn write_mapped(words: &[String]) -> Option<ExitCode> {
    let [command, path, offset, len, fill] = words else { return None };
    if command != mounted::control::COMMAND {
        return None;
    }
    let (offset, len, fill) = (offset.parse().ok()?, len.parse().ok()?, fill.parse().ok()?);
    let written = mounted::control::write_mapped(path.as_ref(), offset, len, fill);
    Some(written.map_or_else(|errno| ExitCode::from(errno as u8), |()| ExitCode::SUCCESS))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = write_mapped(&words) {
        return code;
    }
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // A panic of the engine is a finding and is printed as one; behind a mount there is no engine in this process.
    if arguments.command != "mount" {
        std::panic::set_hook(Box::new(|_| {}));
    }
    if let Some(patience) = arguments.patience {
        watchdog::set_patience(Duration::from_secs_f64(patience));
    }
    let memory = MemoryLog::begin();
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
    let mut planted = None;
    let mut outcomes = Vec::new();
    let mut keep = |outcome: Outcome| {
        print(&outcome);
        if let Some(quarters) = memory.part() {
            println!("{:14} memory: {} MiB at most in each quarter of its time", "", mebibytes(quarters));
        }
        outcomes.push(outcome);
    };
    match arguments.command.as_str() {
        "ace" => {
            keep(campaign::seq1(plan(1.0)));
            keep(campaign::seq2(plan(1.0), check_all));
            keep(campaign::seq3(plan(1.0)));
        }
        "trees" => {
            keep(campaign::seq1_of_trees(plan(1.0), 1));
            keep(campaign::narrow_trees(plan(1.0), 1));
            keep(campaign::seq2_of_trees(plan(1.0), check_all));
        }
        "random" => keep(campaign::random(plan(1.0))),
        "actors" => keep(campaign::interleaved(plan(1.0))),
        "pieces" => keep(campaign::in_pieces(plan(1.0), 1)),
        "reuse" => keep(campaign::reused(plan(1.0), 1)),
        "storm" => keep(campaign::storms(plan(1.0))),
        "beside" => keep(campaign::beside_snapshots(plan(1.0))),
        "vast" => keep(campaign::beside_truncations(plan(1.0))),
        "emptied" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(only) => keep(campaign::emptied(plan(1.0), 1, only)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "errors" => {
            keep(campaign::device_errors(plan(0.5), 1));
            keep(campaign::allocations(plan(0.5), 1));
            keep(campaign::full_volumes(plan(1.0), 1));
        }
        "around" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(only) => keep(campaign::around(plan(1.0), only)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "damage" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(Some(only)) => keep(campaign::met_rot_alone(plan(1.0), only)),
                Ok(None) => keep(campaign::met_rot(plan(1.0), 1)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "replicas" | "resumed" | "lazy" | "fencing" | "retention" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(only) if arguments.command == "fencing" => keep(campaign::fencing(plan(1.0), only)),
                Ok(only) if arguments.command == "resumed" => keep(campaign::resumed(plan(1.0), only)),
                Ok(only) if arguments.command == "lazy" => keep(campaign::lazily(plan(1.0), only)),
                Ok(only) if arguments.command == "retention" => keep(campaign::retention(plan(1.0), only)),
                Ok(only) => keep(campaign::replicas(plan(1.0), only)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "bitmaps" => keep(campaign::bitmaps(plan(1.0))),
        "snapshots" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(only) => keep(campaign::snapshots(plan(1.0), only)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "carried" => {
            let only = arguments.operations.as_deref().map(str::parse);
            match only.transpose() {
                Ok(only) => keep(campaign::carried(plan(1.0), only, carried::Depth::FULL)),
                Err(_) => {
                    eprintln!("{USAGE}");
                    return ExitCode::from(2);
                }
            }
        }
        "controls" => good &= controls(plan(1.0), &mut keep),
        "all" => {
            keep(campaign::seq1(plan(1.0)));
            good &= controls(plan(0.1), &mut keep);
            if arguments.minutes >= FAULTS_MINUTES_MIN {
                planted = faults(&arguments, Some(Instant::now() + plan(FAULTS_SHARE).time));
                good &= planted.as_ref().is_some_and(Report::is_good);
            } else {
                println!(
                    "faults         not planted: that takes a run of at least {FAULTS_MINUTES_MIN} minutes"
                );
            }
            keep(campaign::met_rot(plan(0.1), 1));
            keep(campaign::bitmaps(plan(0.1)));
            keep(campaign::snapshots(plan(0.1), None));
            keep(campaign::carried(plan(0.1), None, carried::Depth::FULL));
            keep(campaign::replicas(plan(0.05), None));
            keep(campaign::resumed(plan(0.03), None));
            keep(campaign::lazily(plan(0.03), None));
            keep(campaign::fencing(plan(0.04), None));
            keep(campaign::retention(plan(0.01), None));
            keep(campaign::device_errors(plan(0.1), 1));
            keep(campaign::allocations(plan(0.1), 1));
            keep(campaign::full_volumes(plan(0.2), 1));
            keep(campaign::seq1_of_trees(plan(0.4), 1));
            keep(campaign::narrow_trees(plan(0.1), 1));
            keep(campaign::seq2_of_trees(plan(0.4), check_all));
            keep(campaign::seq2(plan(0.7), check_all));
            keep(campaign::seq3(plan(0.2)));
            keep(campaign::interleaved(plan(0.2)));
            keep(campaign::around(plan(0.4), None));
            keep(campaign::in_pieces(plan(0.3), 1));
            keep(campaign::reused(plan(0.2), 1));
            keep(campaign::emptied(plan(0.1), 1, None));
            keep(campaign::beside_snapshots(plan(0.1)));
            keep(campaign::beside_truncations(plan(0.05)));
            keep(campaign::storms(plan(0.3)));
            keep(campaign::random(plan(1.0)));
        }
        "faults" => {
            let good = faults(&arguments, None).is_some_and(|report| report.is_good());
            return if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        "hunt" => return hunted(arguments.seed, plan(1.0).time, &arguments.first),
        "mount" => return mount(&arguments.mounted),
        "replay" => return replay(&arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    if let Some(quarters) = memory.all() {
        println!("memory: {} MiB at most in each quarter of the time", mebibytes(quarters));
    }
    good &= summary(&outcomes, planted.as_ref(), began.elapsed(), &arguments);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn mebibytes(quarters: [u64; 4]) -> String {
    quarters.map(|bytes| (bytes >> 20).to_string()).join(", ")
}

/// Power cuts of a real mount.
fn mount(plan: &mounted::Plan) -> ExitCode {
    let began = Instant::now();
    let told = |score: &mounted::Score| {
        println!(
            "mount          {} cuts ({} in an operation, {} of them in a transaction, {} more in recovery), {} operations, {} syncs, \
             {} commits, {} volumes changed, {:.0} s",
            score.cuts,
            score.interrupted,
            score.transactions.1,
            score.in_recovery,
            score.operations,
            score.syncs - score.transactions.0,
            score.transactions.0,
            score.changed,
            began.elapsed().as_secs_f64(),
        );
    };
    match mounted::run(plan, &told) {
        Ok(score) => {
            told(&score);
            println!("mount          seed {}, transport {}: 0 violations", plan.seed, plan.transport);
            ExitCode::SUCCESS
        }
        Err(mounted::Failure::SetUp(what)) => {
            println!("skipped: mount: {what}");
            ExitCode::from(2)
        }
        Err(mounted::Failure::Violation(what)) => {
            println!("  VIOLATION {what}");
            ExitCode::FAILURE
        }
    }
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
         {:.0} states/s of processor time, {seconds:.1} s",
        outcome.name,
        tally.workloads,
        tally.operations,
        tally.states,
        tally.recovery_states,
        tally.checks,
        tally.violations.len(),
        tally.states as f64 / outcome.spent.as_secs_f64().max(0.001),
    );
    if tally.errors + tally.no_space > 0 {
        println!("{:14} {} device errors injected, {} times no space", "", tally.errors, tally.no_space);
    }
    if tally.carried > 0 {
        println!("{:14} {} page images carried, {} volumes refused", "", tally.carried, tally.refused);
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

fn summary(outcomes: &[Outcome], planted: Option<&Report>, elapsed: Duration, arguments: &Arguments) -> bool {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let spent: Duration = outcomes.iter().map(|outcome| outcome.spent).sum();
    let states = sum(|outcome| outcome.tally.states);
    let violations = sum(|outcome| outcome.tally.violations.len() as u64);
    let faults = planted.map_or_else(
        || "no faults planted".to_owned(),
        |report| format!("{} of {} planted faults caught", report.caught(), report.faults.len()),
    );
    println!(
        "total: {} workloads, {states} crash states recovered, {violations} violations, {faults}, {:.0} states/s of processor time, {} threads, \
         {:.0} s, seed {}",
        sum(|outcome| outcome.tally.workloads),
        states as f64 / spent.as_secs_f64().max(0.001),
        arguments.threads,
        elapsed.as_secs_f64(),
        arguments.seed,
    );
    let operations = campaign::operations_of(outcomes);
    let words: Vec<String> = operations.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("operations: {}", words.join(", "));
    violations == 0
}

/// What is run with each planted fault; its last line tells the verdict.
fn hunted(seed: u64, time: Duration, first: &str) -> ExitCode {
    let found = hunt(seed, time, first);
    match found.caught {
        Some(catch) => {
            println!("caught\t{}\t{}\t{}", catch.part, found.states, catch.what.replace('\n', " "));
            ExitCode::FAILURE
        }
        None => {
            println!("clean\t{}\t{}", found.states, if found.cut_short { "cut short" } else { "ended" });
            ExitCode::SUCCESS
        }
    }
}

/// Hunts the planted faults; `None` if they could not be planted.
fn faults(arguments: &Arguments, end: Option<Instant>) -> Option<Report> {
    let plan = report::Plan {
        seed: arguments.seed,
        threads: arguments.threads,
        time: FAULT_TIME_MAX,
        end,
        only: arguments.operations.iter().flat_map(|names| names.split(',').map(str::to_owned)).collect(),
    };
    let told = |name: &str, rule: &str, verdict: &Verdict| {
        let text = match verdict {
            Verdict::Caught { part, states, what } => {
                format!("caught by {part} after {states} states: {}", shortened(what))
            }
            Verdict::Hang { what } => format!("caught by watchdog: {}", shortened(what)),
            Verdict::Died { what } => format!("caught, the process died: {}", shortened(what)),
            Verdict::Clean { states, cut_short } => {
                let end = if *cut_short { "when time was up" } else { "at the end" };
                let verdict = if name.starts_with('(') { "clean" } else { "NOT CAUGHT" };
                format!("{verdict} {end}, {states} states")
            }
        };
        println!("  {name:30} {rule:7} {text}");
    };
    match report::run(&plan, &told) {
        Ok(report) => {
            println!(
                "faults         {} of {} planted faults caught, the engine without them {}; built in {:.0} s, hunted in {:.0} s",
                report.caught(),
                report.faults.len(),
                if matches!(report.unchanged, Verdict::Clean { .. }) { "is clean" } else { "IS NOT CLEAN" },
                report.build.as_secs_f64(),
                report.hunts.as_secs_f64(),
            );
            if report.not_hunted > 0 {
                println!("{:14} {} faults were not hunted: time was up", "", report.not_hunted);
            }
            Some(report)
        }
        Err(what) => {
            println!("faults         {what}");
            None
        }
    }
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(140) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
