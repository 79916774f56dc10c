//! Breadth-first search of a scope.

use super::bystander;
use super::judge::judge;
use super::protocol::Scope;
use super::world::World;
use super::writer;
use crate::contract::Violation;
use crate::explore::{Outcome, Trace};
use crate::volume::checksum;
use std::collections::{HashSet, VecDeque};

/// One step of anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Machine(u8, writer::Step),
    Bystander(bystander::Step),
}

/// State and step before it; the first state has none.
type Way = Vec<(usize, Option<Action>)>;

/// Explores a scope exhaustively, or until `states_max`.
pub fn explore(scope: &Scope, states_max: usize) -> Outcome {
    let start = World::new(scope);
    let mut way: Way = vec![(0, None)];
    let mut seen = HashSet::from([checksum(&start)]);
    let mut frontier = VecDeque::from([(0, 0, start)]);
    let mut outcome = Outcome { states: 1, recoveries: 0, depth: 0, complete: true, found: None };
    while let Some((at, depth, world)) = frontier.pop_front() {
        outcome.depth = depth;
        for action in candidates(&world, scope) {
            let mut next = world.clone();
            if let Err(what) = next.act(action, scope).and_then(|()| judge(&next, scope)) {
                outcome.complete = false;
                outcome.found = Some(trace(&way, at, action, what, scope));
                return outcome;
            }
            if seen.insert(checksum(&next)) {
                way.push((at, Some(action)));
                frontier.push_back((way.len() - 1, depth + 1, next));
            }
        }
        outcome.states = way.len();
        // Each state is one in which somebody may restore.
        outcome.recoveries += 1;
        if way.len() > states_max {
            outcome.complete = false;
            return outcome;
        }
    }
    outcome
}

fn candidates(world: &World, scope: &Scope) -> Vec<Action> {
    let machines = (0..world.machines.len()).flat_map(|machine| {
        let steps = world.steps(machine, scope).into_iter();
        steps.map(move |step| Action::Machine(machine as u8, step))
    });
    machines.chain(world.bystander_steps().into_iter().map(Action::Bystander)).collect()
}

impl World {
    fn act(&mut self, action: Action, scope: &Scope) -> Result<(), String> {
        match action {
            Action::Machine(machine, step) => self.take(usize::from(machine), step, scope),
            Action::Bystander(step) => self.pass(step, scope)?,
        }
        Ok(())
    }
}

fn trace(way: &Way, mut at: usize, last: Action, what: String, scope: &Scope) -> Trace {
    let mut actions = vec![last];
    while let (before, Some(action)) = way[at] {
        actions.push(action);
        at = before;
    }
    let mut world = World::new(scope);
    let mut steps = Vec::new();
    for action in actions.into_iter().rev() {
        steps.push(describe(&world, action));
        // The last one may be the one that breaks the promise; it was told already.
        let _ = world.act(action, scope);
    }
    Trace { steps, violation: Violation::new(what) }
}

/// A step in words, as taken in this world.
fn describe(world: &World, action: Action) -> String {
    let (machine, step) = match action {
        Action::Machine(machine, step) => (["A", "B"][usize::from(machine)], step),
        Action::Bystander(step) => return describe_bystander(step),
    };
    let claim = world.store.newest_claim();
    let manifest = world.store.newest_number();
    let what = match step {
        writer::Step::Open { resume: true } => format!("opens its own volume; the newest claim is {claim}"),
        writer::Step::Open { resume: false } => format!("opens to restore; the newest claim is {claim}"),
        writer::Step::Claim => "puts its claim".to_owned(),
        writer::Step::ReadManifest => format!("reads the newest manifest, {manifest}"),
        writer::Step::Probe => "probes for the ends of the claims before".to_owned(),
        writer::Step::Record => "puts its first manifest, and begins".to_owned(),
        writer::Step::Write => format!("writes {}", world.parents.len() + 1),
        writer::Step::Put => "puts what it wrote as a unit, and is answered".to_owned(),
        writer::Step::PutLate => "puts what it wrote as a unit; there is no answer".to_owned(),
        writer::Step::Retry => "puts a unit again, and is answered".to_owned(),
        writer::Step::Look => format!("looks for the next claim; the newest is {claim}"),
        writer::Step::Count(number) => format!("counts its unit {number}"),
        writer::Step::Pack => format!("puts pack {}", world.packs + 1),
        writer::Step::Publish => "puts a manifest that names its pack".to_owned(),
        writer::Step::List => "lists what nobody needs".to_owned(),
        writer::Step::LookBeforeDelete => format!("looks for the next claim; the newest is {claim}"),
        writer::Step::Delete => "deletes what it listed".to_owned(),
        writer::Step::Crash => "dies; its disk stays".to_owned(),
    };
    format!("{machine} {what}")
}

fn describe_bystander(step: bystander::Step) -> String {
    match step {
        bystander::Step::Arrive(index) => format!("late PUT {index} arrives"),
        bystander::Step::Age(number) => format!("the time of grace of manifest {number} has passed"),
        bystander::Step::ReadManifest => "a restore begins: it reads the newest manifest".to_owned(),
        bystander::Step::Restore => "the restore reads units and packs".to_owned(),
        bystander::Step::CopyManifest => "a branch begins: the newest manifest is read".to_owned(),
        bystander::Step::PutBranch => "the branch is put".to_owned(),
        bystander::Step::ReadAgain => "the newest manifest is read again".to_owned(),
    }
}
