//! The explorer: every state of a small scope, breadth first, so that the first violation has a shortest trace; and
//! random walks through larger ones.
//!
//! States are remembered by a 64-bit hash. Two of a million states share one with a probability of 3 in 10^8; a state
//! lost like that is one not looked at, never a false alarm, because a trace is what was really taken.
//!
//! A power cut for which no other can follow leads to no new state: the volume is opened, judged and recovered, and
//! that is all. Pairs of device and contract that were judged so are remembered as well: most steps change only
//! memory.

use crate::contract::Violation;
use crate::engine::State;
use crate::model::Action;
use crate::scope::Scope;
use crate::volume::{Mixer, checksum};
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The hashes are good already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Seen = HashSet<u64, BuildHasherDefault<Identity>>;

/// A broken promise and how it came to be.
#[derive(Debug, Clone)]
pub struct Trace {
    pub steps: Vec<String>,
    pub violation: Violation,
}

/// What an exploration found.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub states: usize,
    /// Volumes opened after a power cut.
    pub recoveries: u64,
    /// Longest of the shortest ways to a state.
    pub depth: usize,
    /// Nothing is left to explore.
    pub complete: bool,
    pub found: Option<Trace>,
}

struct Node {
    parent: u32,
    action: Action,
}

/// Breadth-first search.
struct Search<'a> {
    scope: &'a Scope,
    nodes: Vec<Node>,
    seen: Seen,
    judged: Seen,
    frontier: VecDeque<(u32, u32, State)>,
    recoveries: u64,
    /// How far from the start the states are that are found now.
    steps: u32,
}

/// The state before any action.
const START: u32 = u32::MAX;

/// Explores a scope exhaustively, or until `states_max`.
pub fn explore(scope: &Scope, states_max: usize) -> Outcome {
    let start = State::new(scope);
    let mut search = Search {
        scope,
        nodes: Vec::new(),
        seen: Seen::default(),
        judged: Seen::default(),
        frontier: VecDeque::new(),
        recoveries: 0,
        steps: 0,
    };
    search.seen.insert(checksum(&start));
    search.frontier.push_back((START, 0, start));
    let mut depth = 0;
    while let Some((at, steps, state)) = search.frontier.pop_front() {
        depth = steps as usize;
        search.steps = steps + 1;
        if let Err((last, violation)) = search.expand(at, &state) {
            let found = Some(search.trace(at, last, violation));
            return search.outcome(depth, false, found);
        }
        if search.nodes.len() > states_max {
            return search.outcome(depth, false, None);
        }
    }
    search.outcome(depth, true, None)
}

impl Search<'_> {
    fn expand(&mut self, at: u32, state: &State) -> Result<(), (Option<Action>, Violation)> {
        self.cut_power(at, state)?;
        let mut goes_on = false;
        for action in state.candidates(self.scope) {
            if let Some(next) = state.after(self.scope, action) {
                let next = next.map_err(|violation| (Some(action), violation))?;
                goes_on |= action.is_own_step();
                self.push(at, action, next);
            }
        }
        if goes_on { Ok(()) } else { state.stuck(self.scope).map_err(|violation| (None, violation)) }
    }

    /// All ways in which the power can fail now.
    fn cut_power(&mut self, at: u32, state: &State) -> Result<(), (Option<Action>, Violation)> {
        let last = state.left.cuts == 1;
        let contract = checksum(&state.contract);
        if state.left.cuts == 0 || (last && !self.judged.insert(checksum(&(&state.device, contract)))) {
            return Ok(());
        }
        let hashes = state.device.loss_hashes();
        for choice in 0..state.device.losses() {
            if last && !self.judged.insert(checksum(&(hashes.of(choice), contract))) {
                continue;
            }
            let action = Action::CutPower(choice);
            let device = state.device.after_loss(choice);
            self.recoveries += 1;
            let opened =
                state.open_after(self.scope, device).map_err(|violation| (Some(action), violation))?;
            if last {
                opened.recover(self.scope).map_err(|violation| (Some(action), violation))?;
            } else {
                self.push(at, action, opened);
            }
        }
        Ok(())
    }

    fn push(&mut self, parent: u32, action: Action, state: State) {
        if self.seen.insert(checksum(&state)) {
            self.frontier.push_back((self.nodes.len() as u32, self.steps, state));
            self.nodes.push(Node { parent, action });
        }
    }

    fn way_to(&self, mut at: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        while at != START {
            let node = &self.nodes[at as usize];
            actions.push(node.action);
            at = node.parent;
        }
        actions.reverse();
        actions
    }

    fn trace(&self, at: u32, last: Option<Action>, violation: Violation) -> Trace {
        let mut actions = self.way_to(at);
        actions.extend(last);
        replay(self.scope, &actions, violation)
    }

    fn outcome(self, depth: usize, complete: bool, found: Option<Trace>) -> Outcome {
        let states = self.nodes.len() + 1;
        Outcome { states, recoveries: self.recoveries, depth, complete, found }
    }
}

/// Takes the actions once more, for their words.
fn replay(scope: &Scope, actions: &[Action], violation: Violation) -> Trace {
    let mut state = State::new(scope);
    let mut steps = Vec::new();
    for action in actions {
        steps.push(state.describe(*action));
        if let Some(Ok(next)) = state.after(scope, *action) {
            state = next;
        }
    }
    Trace { steps, violation }
}

/// Random walks: each from the start until nothing is left to do, `steps` in all.
pub fn walk(scope: &Scope, seed: u64, steps: u64) -> Outcome {
    let mut random = Random(seed);
    let mut outcome = Outcome { states: 0, recoveries: 0, depth: 0, complete: false, found: None };
    let mut taken = 0;
    while taken < steps {
        let mut state = State::new(scope);
        let mut actions = Vec::new();
        loop {
            taken += 1;
            outcome.states += 1;
            outcome.depth = outcome.depth.max(actions.len());
            if let Err(violation) = state.stuck(scope) {
                outcome.found = Some(replay(scope, &actions, violation));
                return outcome;
            }
            let Some((action, next)) = random_step(scope, &state, &mut random) else { break };
            actions.push(action);
            match next {
                Ok(next) => {
                    outcome.recoveries += u64::from(matches!(action, Action::CutPower(_)));
                    state = next;
                }
                Err(violation) => {
                    outcome.found = Some(replay(scope, &actions, violation));
                    return outcome;
                }
            }
        }
    }
    outcome
}

fn random_step(
    scope: &Scope,
    state: &State,
    random: &mut Random,
) -> Option<(Action, Result<State, Violation>)> {
    let mut candidates = state.candidates(scope);
    if state.left.cuts > 0 && (candidates.is_empty() || random.below(24) == 0) {
        candidates = vec![Action::CutPower(random.below(state.device.losses()))];
    }
    while !candidates.is_empty() {
        let action = candidates.swap_remove(random.below(candidates.len() as u32) as usize);
        if action == Action::Kill && random.below(16) != 0 && !candidates.is_empty() {
            continue;
        }
        if let Some(next) = state.after(scope, action) {
            return Some((action, next));
        }
        if candidates.is_empty() && state.left.cuts > 0 && !matches!(action, Action::CutPower(_)) {
            candidates.push(Action::CutPower(random.below(state.device.losses())));
        }
    }
    None
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixer = Mixer::default();
        self.0.hash(&mut mixer);
        (mixer.finish() % u64::from(limit.max(1))) as u32
    }
}
