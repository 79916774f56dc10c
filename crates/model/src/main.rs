//! Explores the model of the design and prints what was found: with all rules, with each switched off, and the
//! questions that were put to it.
//!
//!     syncline-model                  the small scopes, in seconds
//!     syncline-model large [STATES]   larger ones as well, and random walks; at most STATES states each
//!     syncline-model walk STEPS       random walks alone
//!     syncline-model scope NAME       one small scope
//!     syncline-model trace RULE       the shortest way to a broken promise without a rule

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;
use syncline_model::explore::{Outcome, Trace, explore, walk};
use syncline_model::replica::{self, protocol};
use syncline_model::rules::Rule;
use syncline_model::scope::Scope;
use syncline_model::scopes::{
    LARGE, SMALL, WIDE, WIDE_FAULTS, WIDE_TREES, WIDE_TREES_FAULTS, questions, scope_of,
};

/// Exhaustive exploration of a small scope ends by itself; this is for a mistake in it.
const SMALL_STATES_MAX: usize = 1_000_000;
/// Bounds memory to less than 2 GiB for the two that run together.
const LARGE_STATES_MAX: usize = 500_000;
const WALK_STEPS: u64 = 3_000_000;
const WALK_SEED: u64 = 1;

/// One line of the report.
struct Task {
    label: String,
    scope: &'static str,
    run: Box<dyn Fn() -> Outcome + Sync>,
    kept: bool,
}

impl Task {
    fn search(label: impl Into<String>, scope: Scope, states_max: usize, kept: bool) -> Task {
        let run = Box::new(move || explore(&scope, states_max));
        Task { label: label.into(), scope: scope.name, run, kept }
    }

    /// Random walks instead of a search.
    fn walk(scope: Scope, steps: u64) -> Task {
        let run = Box::new(move || walk(&scope, WALK_SEED, steps));
        Task { label: scope.name.into(), scope: scope.name, run, kept: true }
    }

    /// A search of the protocol of replication.
    fn replica(label: &str, scope: protocol::Scope, states_max: usize) -> Task {
        let run = Box::new(move || replica::search::explore(&scope, states_max));
        Task { label: label.into(), scope: scope.name, run, kept: scope.off.is_none() }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => report(false, 0),
        ["large"] => report(true, LARGE_STATES_MAX),
        ["walk", steps] => match steps.parse() {
            Ok(steps) => walks(steps),
            Err(_) => usage(),
        },
        ["large", states] => match states.parse() {
            Ok(states) => report(true, states),
            Err(_) => usage(),
        },
        ["scope", name] => scope(name).unwrap_or_else(usage),
        ["trace", rule] => trace(rule).unwrap_or_else(usage),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: syncline-model [large [STATES] | walk STEPS | scope NAME | trace RULE]");
    let names = Rule::ALL.iter().map(|rule| rule.name());
    let names: Vec<&str> = names.chain(protocol::Rule::ALL.iter().map(|rule| rule.name())).collect();
    eprintln!("rules: {}", names.join("; "));
    ExitCode::FAILURE
}

/// The random walks alone, so long.
fn walks(steps: u64) -> ExitCode {
    let scopes = [WIDE, WIDE_FAULTS, WIDE_TREES, WIDE_TREES_FAULTS];
    match section("All rules kept, random walks.", &scopes.map(|scope| Task::walk(scope, steps))) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// One small scope with all rules kept; `None` if none has this name.
fn scope(name: &str) -> Option<ExitCode> {
    let scope = SMALL.into_iter().find(|scope| scope.name == name)?;
    let task = Task::search(scope.name, scope, SMALL_STATES_MAX, true);
    let outcome = (task.run)();
    print_line(&task, &outcome);
    outcome.found.iter().for_each(print_trace);
    Some(if outcome.found.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `None` if no rule has this name.
fn trace(name: &str) -> Option<ExitCode> {
    let of_engine = Rule::ALL.into_iter().find(|rule| rule.name() == name);
    let of_replica = protocol::Rule::ALL.into_iter().find(|rule| rule.name() == name);
    let outcome = match (of_engine, of_replica) {
        (Some(rule), _) => explore(&scope_of(rule).without(rule), SMALL_STATES_MAX),
        (_, Some(rule)) => replica::search::explore(&rule.scope().without(rule), SMALL_STATES_MAX),
        _ => return None,
    };
    match outcome.found {
        Some(found) => print_trace(&found),
        None => println!("no violation in {} states", outcome.states),
    }
    Some(ExitCode::SUCCESS)
}

fn report(large: bool, states_max: usize) -> ExitCode {
    let mut wrong = 0;
    let small = SMALL.map(|scope| Task::search(scope.name, scope, SMALL_STATES_MAX, true));
    wrong += section("All rules kept: no promise may be broken.", &small);
    let off = Rule::ALL
        .map(|rule| Task::search(rule.name(), scope_of(rule).without(rule), SMALL_STATES_MAX, false));
    wrong += section("One rule switched off: a promise must be broken.", &off);
    let asked: Vec<Task> = questions()
        .into_iter()
        .map(|question| Task::search(question.asks, question.scope, SMALL_STATES_MAX, question.kept))
        .collect();
    wrong += section("Questions.", &asked);
    if large {
        let mut tasks: Vec<Task> =
            LARGE.map(|scope| Task::search(scope.name, scope, states_max, true)).into_iter().collect();
        for scope in [WIDE, WIDE_FAULTS, WIDE_TREES, WIDE_TREES_FAULTS] {
            tasks.push(Task::walk(scope, WALK_STEPS));
        }
        wrong += section("All rules kept, larger scopes and random walks.", &tasks);
    }
    wrong += report_replica(large, states_max);
    match wrong {
        0 => ExitCode::SUCCESS,
        _ => {
            println!("{wrong} lines are not as they should be");
            ExitCode::FAILURE
        }
    }
}

fn report_replica(large: bool, states_max: usize) -> usize {
    let small = protocol::SMALL.map(|scope| Task::replica(scope.name, scope, SMALL_STATES_MAX));
    let mut wrong = section("Replication, all rules kept: nothing that counts may be lost.", &small);
    let off = protocol::Rule::ALL
        .map(|rule| Task::replica(rule.name(), rule.scope().without(rule), SMALL_STATES_MAX));
    wrong += section("Replication, one rule switched off: something must be lost.", &off);
    if large {
        let tasks = protocol::LARGE.map(|scope| Task::replica(scope.name, scope, states_max));
        wrong += section("Replication, all rules kept, larger scopes.", &tasks);
    }
    wrong
}

/// Runs the tasks on two threads and prints each as soon as those before it are printed; how many ended otherwise
/// than they should.
fn section(title: &str, tasks: &[Task]) -> usize {
    println!("{title}\n\n| | scope | states | recoveries | steps | found |\n|---|---|---|---|---|---|");
    let start = Instant::now();
    let lines = Mutex::new(Lines { next: 0, printed: 0, ended: BTreeMap::new(), wrong: 0 });
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                loop {
                    let index = lines.lock().expect("no task panics").take();
                    let Some(task) = tasks.get(index) else { break };
                    let outcome = (task.run)();
                    lines.lock().expect("no task panics").end(index, outcome, tasks);
                }
            });
        }
    });
    println!("\n{:.1} s\n", start.elapsed().as_secs_f64());
    lines.into_inner().expect("no task panics").wrong
}

/// Which tasks have begun, ended and been printed.
struct Lines {
    next: usize,
    printed: usize,
    ended: BTreeMap<usize, Outcome>,
    wrong: usize,
}

impl Lines {
    fn take(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    fn end(&mut self, index: usize, outcome: Outcome, tasks: &[Task]) {
        self.ended.insert(index, outcome);
        while let Some(outcome) = self.ended.remove(&self.printed) {
            let task = &tasks[self.printed];
            print_line(task, &outcome);
            if task.kept == outcome.found.is_some() {
                self.wrong += 1;
                outcome.found.iter().for_each(print_trace);
            }
            self.printed += 1;
        }
    }
}

fn print_line(task: &Task, outcome: &Outcome) {
    let found = match &outcome.found {
        Some(found) => found.violation.what.clone(),
        None if outcome.complete => "nothing, complete".to_owned(),
        None => "nothing, as far as explored".to_owned(),
    };
    let steps = outcome.found.as_ref().map_or(outcome.depth, |found| found.steps.len());
    let (label, scope) = (&task.label, task.scope);
    println!("| {label} | {scope} | {} | {} | {steps} | {found} |", outcome.states, outcome.recoveries);
}

fn print_trace(trace: &Trace) {
    for (number, step) in trace.steps.iter().enumerate() {
        println!("{:4}. {step}", number + 1);
    }
    println!("      VIOLATION: {}", trace.violation.what);
}
