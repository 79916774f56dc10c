//! Several actors whose operations interleave, as the seed decides: a sync is started and stays pending while the
//! others go on, until somebody's force carries it, or the driver is run.
//!
//! A transaction is staged in one turn of its actor and committed in the next, so that the others' changes conflict
//! with it. An actor that has started a sync or a commit does nothing before it is answered, as a process that called
//! `fsync`. What it had done before the call must be durable at the answer (C1); what the others did between call and
//! answer may or may not be. All on one thread, so each run follows from its seed. Interleavings within an engine
//! call are the part of `between` and of `crates/threads`.

use crate::campaign::replay_command;
use crate::crash::{Effort, Lie};
use crate::device::SimDevice;
use crate::driver::{self, SimClock, Told};
use crate::lab::{Depth, Recorded, Start, Tally, guarded, judge_states};
use crate::operation::Op;
use crate::oracle::Model;
use crate::random::{Random, derive};
use crate::shrink::shrink;
use crate::transact::{self, Staged, Staging, Started};
use crate::{view, watchdog, workload};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use syncline_device::Device;
use syncline_fs::{Context, Fs, ObjectNo, OpenFlags, Reach, SyncScope};

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 2, torn: 2 }, states_max: 80, check_every: 8, recovery_every: 60 };
/// A workload that is being shrunk is run at most so often.
const SHRINK_RUNS_MAX: u32 = 200;

const PENDING: u8 = 0;
const DURABLE: u8 = 1;
const FAILED: u8 = 2;

/// One run from a seed; a violation comes with the command that shows it again, shrunk.
pub fn run(seed: u64) -> Tally {
    let Some((start, ops)) = workload::round(seed, 0) else { return Tally::default() };
    let replay = |ops: &[Op]| replay_command(&format!("actors:{seed}"), seed, "", ops);
    watchdog::replayed_by(replay(&ops));
    let mut tally = examine(&start, &ops, seed);
    if !tally.violations.is_empty() {
        let mut runs = 0;
        let small = shrink(&ops, &mut |ops| {
            runs += 1;
            runs <= SHRINK_RUNS_MAX && !examine(&start, ops, seed).violations.is_empty()
        });
        for found in &mut tally.violations {
            found.replay = replay(&small);
        }
    }
    tally
}

/// Where the workload of a seed starts.
pub fn start(seed: u64) -> Option<Start> {
    workload::round(seed, 0).map(|(start, _)| start)
}

/// Deals the operations out to two to four actors, runs them interleaved, and judges the crash states.
pub fn examine(start: &Start, ops: &[Op], seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let mut stage = match Stage::new(start, ops, seed) {
            Ok(stage) => stage,
            Err(what) => return tally.violation(what),
        };
        if let Err(what) = stage.play(tally) {
            return tally.violation(what);
        }
        let run = stage.recorded();
        tally.writes += run.trace.writes.len() as u64;
        tally.flushes += run.trace.flushes as u64;
        judge_states(&run, seed, DEPTH, Lie::None, tally);
    })
}

/// A sync that was called and is not answered.
struct Called {
    /// Its number in the model.
    number: usize,
    state: Arc<AtomicU8>,
}

#[derive(Default)]
struct Actor {
    ops: VecDeque<Op>,
    sync: Option<Called>,
    /// A transaction that has everything staged; the others act before it is committed.
    staged: Option<Box<Staged>>,
}

type Done = Box<dyn FnOnce(Result<(), syncline_fs::Error>) + Send>;

/// Where a started sync leaves its answer.
fn answer_into() -> (Arc<AtomicU8>, Done) {
    let state = Arc::new(AtomicU8::new(PENDING));
    let tell = Arc::clone(&state);
    let done = move |result: Result<(), syncline_fs::Error>| {
        let before = tell.swap(if result.is_ok() { DURABLE } else { FAILED }, Ordering::SeqCst);
        assert!(before == PENDING, "a sync is answered once");
    };
    (state, Box::new(done))
}

struct Stage {
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    model: Model,
    actors: Vec<Actor>,
    /// Which of the model's syncs are answered.
    answered: Vec<bool>,
    opened: usize,
    random: Random,
}

impl Stage {
    fn new(start: &Start, ops: &[Op], seed: u64) -> Result<Stage, String> {
        let mut random = Random::new(derive(seed, 50));
        let mut actors: Vec<Actor> = (0..2 + random.below(3)).map(|_| Actor::default()).collect();
        // Whose an operation is does not change when others are left out: shrinking keeps the cast.
        for op in ops {
            let hash = op.to_string().bytes().fold(seed, |hash, byte| derive(hash, u64::from(byte)));
            let actor = (hash % actors.len() as u64) as usize;
            actors[actor].ops.push_back(op.clone());
        }
        let device = SimDevice::new(start.disk.clone(), derive(seed, 51));
        let clock = SimClock::behind(&start.view);
        let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 52))
            .map_err(|error| format!("the volume does not open: {error}"))?;
        let opened = device.position();
        let model = Model::with_times(&start.view);
        Ok(Stage { fs, device, clock, model, actors, answered: Vec::new(), opened, random })
    }

    fn play(&mut self, tally: &mut Tally) -> Result<(), String> {
        loop {
            let ready = |actor: &Actor| actor.sync.is_none() && !actor.ops.is_empty();
            let ready: Vec<usize> =
                (0..self.actors.len()).filter(|index| ready(&self.actors[*index])).collect();
            let waiting = self.actors.iter().any(|actor| actor.sync.is_some());
            match (ready.is_empty(), waiting) {
                (true, false) => break,
                (true, true) => self.drive()?,
                (false, true) if self.random.one_in(4) => self.drive()?,
                (false, _) => {
                    let actor = *self.random.pick(&ready);
                    let op = self.actors[actor].ops.pop_front().expect("it has operations");
                    self.act(actor, &op, tally)?;
                }
            }
            self.answer()?;
        }
        match view::view(&self.fs) {
            Ok(view) if view == self.model.live() => Ok(()),
            Ok(_) => Err("the running volume does not show what was done".to_owned()),
            Err(error) => Err(format!("the running volume cannot be read: {error}")),
        }
    }

    /// What the mount's driver does for the syncs that were started.
    fn drive(&self) -> Result<(), String> {
        self.fs.sync_metadata().map_err(|error| format!("driving syncs fails: {error}"))
    }

    fn act(&mut self, actor: usize, op: &Op, tally: &mut Tally) -> Result<(), String> {
        if matches!(op, Op::Transaction { .. }) {
            return self.transact(actor, op, tally);
        }
        let told = match self.start_sync(op)? {
            Some(called) => {
                self.actors[actor].sync = Some(called);
                Told::Done
            }
            None => match driver::step(&self.fs, &self.clock, &mut self.model, op) {
                Ok(told) => told,
                // Out of its order an operation may be wrong in two ways; which is told is not judged here.
                Err(driver::Unexpected { got: Some(got), want: Some(_), .. }) => Told::Refused(got),
                Err(wrong) => {
                    return Err(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want));
                }
            },
        };
        self.note(actor, op, told, tally)
    }

    /// One turn stages a transaction, the actor's next one starts its commit.
    fn transact(&mut self, actor: usize, op: &Op, tally: &mut Tally) -> Result<(), String> {
        let Op::Transaction { ops, .. } = op else { unreachable!("only transactions come here") };
        let wrong = |wrong: driver::Unexpected| {
            format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want)
        };
        let told = match self.actors[actor].staged.take() {
            None => match transact::stage(&self.fs, &mut self.model, ops, op).map_err(wrong)? {
                Staging::Staged(staged) => {
                    self.actors[actor].staged = Some(staged);
                    self.actors[actor].ops.push_front(op.clone());
                    return Ok(());
                }
                Staging::Told(told) => told,
            },
            Some(staged) => {
                let (state, done) = answer_into();
                match transact::start(&self.fs, &mut self.model, op, *staged, done).map_err(wrong)? {
                    Started::Waiting(number) => {
                        self.actors[actor].sync = Some(Called { number, state });
                        Told::Done
                    }
                    Started::Told(told) => told,
                }
            }
        };
        self.note(actor, op, told, tally)
    }

    fn note(&mut self, actor: usize, op: &Op, told: Told, tally: &mut Tally) -> Result<(), String> {
        // Syncs of the step itself have returned.
        let started = self.actors[actor].sync.as_ref().map(|called| called.number);
        let answered = self.answered.len()..self.model.syncs();
        self.answered.extend(answered.map(|index| started != Some(index + 1)));
        tally.count(op, told);
        if let Told::Failed(errno) = told {
            return Err(format!("{op} fails with errno {errno} on a sound device"));
        }
        view::note_times(&self.fs, &mut self.model, op)
            .map_err(|error| format!("attributes cannot be read after {op}: {error}"))
    }

    /// Starts a sync of a file; `None` if the operation is another one, or has to be refused.
    fn start_sync(&mut self, op: &Op) -> Result<Option<Called>, String> {
        let (path, scope, range) = match op {
            Op::Fsync(path) => (path, SyncScope::All, None),
            Op::Fdatasync(path) => (path, SyncScope::Data, None),
            Op::SyncRange { path, offset, len } => (path, SyncScope::All, Some((*offset, *len))),
            _ => return Ok(None),
        };
        self.model.begin(op);
        let Ok(ino) = self.model.resolve(path) else { return Ok(None) };
        let Ok(handle) = self.fs.files().open_handle(&Context::root(), ObjectNo(ino), OpenFlags::READ) else {
            return Ok(None);
        };
        let (state, done) = answer_into();
        let failed = |error| format!("{op} cannot be started: {error}");
        let reach = range.map_or(Reach::Whole, |(offset, len)| Reach::Range(offset..offset + len));
        self.fs.syncs().start(handle, scope, reach, done).map_err(failed)?;
        self.fs.files().release(handle).map_err(failed)?;
        let number = match range {
            None => self.model.sync(Some(ino)),
            Some((offset, len)) => self.model.sync_range(ino, offset, len),
        };
        Ok(Some(Called { number, state }))
    }

    /// Takes the answers that have come, and records what is acknowledged: all syncs up to the first without an answer.
    fn answer(&mut self) -> Result<(), String> {
        for actor in &mut self.actors {
            let Some(called) = &actor.sync else { continue };
            match called.state.load(Ordering::SeqCst) {
                PENDING => continue,
                DURABLE => self.answered[called.number - 1] = true,
                _ => return Err("a sync fails on a sound device".to_owned()),
            }
            actor.sync = None;
        }
        self.device.acknowledge(self.answered.iter().take_while(|answered| **answered).count());
        Ok(())
    }

    fn recorded(self) -> Recorded {
        let (base, trace) = self.device.recorded();
        Recorded { base, trace, model: self.model, opened: self.opened }
    }
}
