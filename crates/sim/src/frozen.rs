//! What others commit while a checkpoint is under way: between its freeze, its bitmaps and its superblock (R15, R16,
//! R1).
//!
//! Directed, where `between.rs` is random: on a volume in fragments every node of a checkpoint is a write of its own,
//! so the device is called at least once between the freeze and the bitmaps. At each of its writes in turn the same
//! batches come in between: blocks are put to use or freed, and a sync makes it durable. Bitmaps of any other moment
//! than the freeze then contradict the log behind the superblock.

use crate::crash::{Effort, Lie};
use crate::device::SimDevice;
use crate::driver::{self, SimClock, Told};
use crate::lab::{Depth, Recorded, Start, Tally, guarded, judge_states};
use crate::operation::{Op, from_text};
use crate::oracle::Model;
use crate::random::derive;
use crate::shapes;
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_device::{Device, Operation};
use syncline_fs::Fs;

/// Before the checkpoint: a file with extents of its own, and changes for the checkpoint to write.
const BEFORE: &str = "creat:large;write:large:0:60000:1;fsync:large;checkpoint;creat:d/x;setxattr:b:user.x:100:2;chmod:large:384";

/// What comes in between.
const BATCHES: &[&str] = &[
    "dsyncwrite:b:0:50000:3",
    "remove:large;fsync:",
    "truncate:large:5000;fsync:b",
    "dwrite:large:0:30000:4;fdatasync:large",
    "punch:large:0:40000;falloc:b:0:50000;fsync:b",
    "dwrite:large:8192:30000:5;sync",
    "creat:d/y;write:d/y:0:40000:6",
];

/// Writes of one checkpoint: its nodes, bitmaps and superblock.
const CALLS: u64 = 6;

/// How many runs there are.
pub const RUNS: u64 = BATCHES.len() as u64 * CALLS;

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 2, torn: 0 }, states_max: 400, check_every: 4, recovery_every: 50 };

/// Runs one of [`RUNS`]: some batches before some write.
pub fn run(number: u64, seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let batches = from_text(BATCHES[(number / CALLS) as usize % BATCHES.len()]).expect("operations");
        match Run::begin(shapes::in_fragments(), seed) {
            Ok(mut run) => {
                if let Err(what) = run.play(number % CALLS, batches) {
                    return tally.violation(what);
                }
                match run.recorded() {
                    Ok(recorded) => drop(judge_states(&recorded, seed, DEPTH, Lie::None, tally)),
                    Err(what) => tally.violation(what),
                }
            }
            Err(what) => tally.violation(what),
        }
    })
}

/// The volume while it runs.
struct Run {
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    model: Arc<Mutex<Model>>,
    opened: usize,
}

impl Run {
    fn begin(start: &Start, seed: u64) -> Result<Run, String> {
        let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
        let clock = SimClock::new();
        let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 2))
            .map_err(|error| format!("the volume does not open: {error}"))?;
        let opened = device.position();
        Ok(Run { fs, device, clock, model: Arc::new(Mutex::new(Model::new(&start.view))), opened })
    }

    fn play(&mut self, call: u64, batches: Vec<Op>) -> Result<(), String> {
        for op in from_text(BEFORE).expect("operations") {
            self.actor().step(&op)?;
        }
        let actor = self.actor();
        let wrong = Arc::new(Mutex::new(None));
        let told = Arc::clone(&wrong);
        let mut calls = 0;
        self.device.between(Some(Box::new(move |operation| {
            if operation != Operation::Write {
                return;
            }
            if calls == call {
                let result = batches.iter().try_for_each(|op| actor.step(op));
                *told.lock() = result.err().map(|what| format!("{what} at write {call} of a checkpoint"));
            }
            calls += 1;
        })));
        let done = self.fs.checkpoint();
        self.device.between(None);
        done.map_err(|error| format!("a checkpoint fails on a sound device: {error}"))?;
        let wrong = wrong.lock().take();
        wrong.map_or(Ok(()), Err)?;
        let actor = self.actor();
        from_text("setxattr:b:user.z:50:9;fsync:b")
            .expect("operations")
            .iter()
            .try_for_each(|op| actor.step(op))
    }

    fn actor(&self) -> Actor {
        Actor {
            fs: Arc::clone(&self.fs),
            device: Arc::clone(&self.device),
            clock: Arc::clone(&self.clock),
            model: Arc::clone(&self.model),
        }
    }

    fn recorded(self) -> Result<Recorded, String> {
        match crate::view::view(&self.fs) {
            Ok(view) if self.model.lock().shows(&view) => {}
            Ok(_) => return Err("the running volume does not show what was done".to_owned()),
            Err(error) => return Err(format!("the running volume cannot be read: {error}")),
        }
        let (base, trace) = self.device.recorded();
        drop(self.fs);
        let model = Arc::try_unwrap(self.model).map_err(|_| "somebody still acts".to_owned())?.into_inner();
        Ok(Recorded { base, trace, model, opened: self.opened })
    }
}

struct Actor {
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    model: Arc<Mutex<Model>>,
}

impl Actor {
    fn step(&self, op: &Op) -> Result<(), String> {
        let mut model = self.model.lock();
        match driver::step(&self.fs, &self.clock, &mut model, op) {
            Ok(Told::Done) => {
                self.device.acknowledge(model.syncs());
                Ok(())
            }
            told => Err(format!("{op} answers {told:?} on a sound device")),
        }
    }
}
