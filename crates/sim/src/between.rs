//! Operations between the device's operations: others change files while a checkpoint or background writeback is on its
//! way, deterministically and on one thread.
//!
//! The device calls back at each write of nodes, bitmaps, superblocks and data and at each flush of a checkpoint or of
//! background work. No lock that an operation needs is held then, except where the journal writes (there nobody is
//! called) and except a file's turn (so what takes turns is done during checkpoints only). The journal must have room
//! for what comes in between: who meets pressure would wait for the very checkpoint that it interrupts.
//!
//! [`run_trims`] interrupts trims, at each discard too: what is written meanwhile must not be discarded.

use crate::crash::{Effort, Lie};
use crate::device::SimDevice;
use crate::driver::{self, Aging, SimClock, Told};
use crate::lab::{Depth, Recorded, Start, Tally, guarded, judge_states, prepare};
use crate::operation::{Op, WriteKind, from_text};
use crate::oracle::{Model, PAGE, View};
use crate::random::{Random, derive};
use crate::shapes;
use parking_lot::Mutex;
use std::sync::Arc;
use syncline_device::{Device, Operation};
use syncline_fs::Fs;

const BLOCKS: [u64; 2] = [1024, 3000];
const JOURNAL_BLOCKS: u64 = 64;
/// Operations between two background works.
const OPERATIONS: u64 = 24;
/// Background works of a run.
const ROUNDS: u64 = 6;
/// Room of the journal that has to be left for an operation in between, and for what it interrupts.
const ROOM_BYTES: u64 = 100 << 10;
/// The same for an operation that is admitted several times. A rename over a file writes its source back first (C3),
/// which leaves images behind, and frees the content that it has replaced afterwards.
const ROOM_BYTES_OF_SEVERAL: u64 = 160 << 10;

/// Free blocks that have to be left for the same reason.
const SPARE_BLOCKS: u64 = 400;
/// Operations that fill the journal up to more than half at most.
const STUFFING_MAX: u32 = 80;

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 2, torn: 1 }, states_max: 150, check_every: 6, recovery_every: 200 };

/// What runs in between.
struct Others {
    fs: Arc<Fs>,
    clock: Arc<SimClock>,
    model: Arc<Mutex<Model>>,
    random: Random,
    device: Arc<SimDevice>,
    /// No file's turn is taken: it is not writeback that is interrupted.
    turns: bool,
    /// Only what fills the journal.
    stuffs: bool,
    /// At most so many operations per call.
    most: u64,
    wrong: Arc<Mutex<Option<String>>>,
}

impl Others {
    fn act(&mut self, interrupted: Operation) {
        for _ in 0..self.random.below(self.most + 1) {
            let mut model = self.model.lock();
            let op = match (interrupted, self.stuffs) {
                // No lock is held at a discard that a sync or a checkpoint needs.
                (Operation::Discard, _) => any(&model, &mut self.random),
                (_, true) => large_attribute(&model, &mut self.random),
                (_, false) => small(&model, self.turns, &mut self.random),
            };
            if !self.has_room(&op) {
                return;
            }
            match driver::step(&self.fs, &self.clock, &mut model, &op) {
                Ok(Told::Done | Told::Refused(_)) => {}
                told => *self.wrong.lock() = Some(format!("{op}, in between, answers {told:?}")),
            }
            if interrupted == Operation::Discard {
                self.device.acknowledge(model.syncs());
            }
        }
    }

    /// Whether the operation meets no pressure. Its relief would wait for the checkpoint that this very thread is in;
    /// a checkpoint of another thread would end, because it has its own room in the journal (R17).
    fn has_room(&self, op: &Op) -> bool {
        let load = self.fs.stats().load;
        let room = match op {
            Op::Rename(..) | Op::Remove(_) | Op::Truncate { .. } => ROOM_BYTES_OF_SEVERAL,
            _ => ROOM_BYTES,
        };
        // Each live image has a block of the journal set aside.
        load.ring_bytes + load.images * PAGE + room <= load.ring_bytes_max
            && self.fs.statfs().blocks_available >= SPARE_BLOCKS
    }
}

fn pick(paths: &[String], random: &mut Random) -> String {
    if paths.is_empty() { "missing".to_owned() } else { random.pick(paths).clone() }
}

fn place(directories: &[String], random: &mut Random) -> String {
    let (directory, name) = (pick(directories, random), random.below(8));
    if directory.is_empty() { format!("n{name}") } else { format!("{directory}/n{name}") }
}

/// An operation that neither syncs nor checkpoints. `turns`: it may take the turn of a file.
fn small(model: &Model, turns: bool, random: &mut Random) -> Op {
    let [directories, files, _] = model.paths();
    let fill = random.below(250) as u8;
    // To free hundreds of extents takes more room than is looked for.
    let files: Vec<String> = files.into_iter().filter(|file| file != shapes::FILLER).collect();
    let file = pick(&files, random);
    match random.below(if turns { 16 } else { 11 }) {
        0..=1 => Op::Creat(place(&directories, random)),
        2 => Op::Mkdir(place(&directories, random)),
        3 => Op::Chmod { path: file, mode: random.below(0o1000) as u32 },
        4 => Op::Link(file, place(&directories, random)),
        5..=6 => {
            let len = *random.pick(&[10, 60, 150]);
            Op::SetXattr { path: file, name: format!("user.x{}", random.below(3)), len, fill }
        }
        7..=10 => {
            let (offset, len) = (random.below(5) * 4096, 1 + random.below(5000));
            Op::Write { path: file, kind: WriteKind::Buffered, offset, len, fill }
        }
        11..=12 => Op::Remove(file),
        13 => Op::Truncate { path: file, size: random.below(20_000) },
        14 => Op::SetXattr { path: file, name: "user.large".to_owned(), len: 3500, fill },
        _ => Op::Rename(file, place(&directories, random)),
    }
}

/// An operation that may use blocks at once, or bring some back.
fn any(model: &Model, random: &mut Random) -> Op {
    let file = pick(&model.paths()[1], random);
    match random.below(6) {
        0..=1 => {
            let (offset, fill) = (random.below(3) * 4096, random.below(250) as u8);
            Op::Write { path: file, kind: WriteKind::Dsync, offset, len: 40_000, fill }
        }
        2 => Op::Fsync(file),
        3 => Op::Checkpoint,
        _ => small(model, true, random),
    }
}

/// What takes most of the journal.
fn large_attribute(model: &Model, random: &mut Random) -> Op {
    let path = pick(&model.paths()[1], random);
    Op::SetXattr { path, name: "user.large".to_owned(), len: 3500, fill: random.below(250) as u8 }
}

/// What is done by nobody in between.
fn ordinary(model: &Model, random: &mut Random) -> Op {
    let [_, files, _] = model.paths();
    match random.below(10) {
        0..=1 => Op::Fsync(pick(&files, random)),
        2 => {
            let (offset, fill) = (random.below(3) * 4096, random.below(250) as u8);
            Op::Write { path: pick(&files, random), kind: WriteKind::Buffered, offset, len: 30_000, fill }
        }
        _ => small(model, true, random),
    }
}

/// One volume of three has its free space in fragments, so that checkpoints are interrupted between freeze and
/// bitmaps too.
fn start(seed: u64) -> Start {
    let Some(blocks) = BLOCKS.get((derive(seed, 5) % 3) as usize) else {
        return shapes::in_fragments().clone();
    };
    let setup = from_text("mkdir:d;creat:d/a;creat:b;write:b:0:9000:7;sync").expect("operations");
    prepare(*blocks, JOURNAL_BLOCKS, &setup, derive(seed, 1))
}

/// One run from a seed.
pub fn run(seed: u64) -> Tally {
    interrupting(seed, false)
}

/// One that interrupts trims instead of checkpoints and writeback.
pub fn run_trims(seed: u64) -> Tally {
    interrupting(seed, true)
}

fn interrupting(seed: u64, trims: bool) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let start = start(seed);
        let device = SimDevice::new(start.disk.clone(), derive(seed, 2));
        let clock = SimClock::new();
        let fs = match driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 3)) {
            Ok(fs) => fs,
            Err(error) => return tally.violation(format!("the volume does not open: {error}")),
        };
        let opened = device.position();
        let model = Arc::new(Mutex::new(Model::new(&start.view)));
        let mut acts = Acts { fs, device, clock, model, trims, random: Random::new(derive(seed, 4)) };
        if let Err(what) = acts.all(tally) {
            return tally.violation(what);
        }
        let Acts { fs, device, model, .. } = acts;
        match crate::view::view(&fs) {
            Ok(view) if model.lock().shows(&view) => {}
            Ok(_) => return tally.violation("the running volume does not show what was done".to_owned()),
            Err(error) => return tally.violation(format!("the running volume cannot be read: {error}")),
        }
        let (base, trace) = device.recorded();
        drop(fs);
        let Ok(model) = Arc::try_unwrap(model).map(Mutex::into_inner) else { return };
        judge_states(&Recorded { base, trace, model, opened }, seed, DEPTH, Lie::None, tally);
    })
}

struct Acts {
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    model: Arc<Mutex<Model>>,
    /// Only trims are interrupted.
    trims: bool,
    random: Random,
}

impl Acts {
    fn all(&mut self, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..ROUNDS {
            for _ in 0..self.random.below(OPERATIONS) {
                let op = ordinary(&self.model.lock(), &mut self.random);
                self.alone(&op, tally)?;
            }
            let background = match self.random.below(3) {
                _ if self.trims => Op::Trim,
                0 => Op::Maintain { milliseconds: *self.random.pick(&[500, 1000, 2000, 6000]) },
                _ => Op::Checkpoint,
            };
            let stuffs = background == Op::Checkpoint && self.random.one_in(3);
            if stuffs {
                self.stuff(tally)?;
            }
            self.interrupted(&background, stuffs, tally)?;
            if self.random.one_in(2) {
                let path = pick(&self.model.lock().paths()[1], &mut self.random);
                self.alone(&Op::Fsync(path), tally)?;
            }
        }
        Ok(())
    }

    fn alone(&mut self, op: &Op, tally: &mut Tally) -> Result<(), String> {
        let mut model = self.model.lock();
        match driver::step(&self.fs, &self.clock, &mut model, op) {
            Ok(told @ (Told::Done | Told::Refused(_))) => tally.count(op, told),
            told => return Err(format!("{op} answers {told:?} on a sound device")),
        }
        self.device.acknowledge(model.syncs());
        Ok(())
    }

    /// Fills the journal so far that the others find room only once it has been released.
    fn stuff(&mut self, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..STUFFING_MAX {
            let load = self.fs.stats().load;
            if load.ring_bytes * 5 > load.ring_bytes_max * 3 {
                break;
            }
            let op = large_attribute(&self.model.lock(), &mut self.random);
            self.alone(&op, tally)?;
        }
        Ok(())
    }

    fn interrupted(&mut self, op: &Op, stuffs: bool, tally: &mut Tally) -> Result<(), String> {
        let wrong = Arc::new(Mutex::new(None));
        let mut others = Others {
            fs: Arc::clone(&self.fs),
            clock: Arc::clone(&self.clock),
            model: Arc::clone(&self.model),
            random: Random::new(self.random.number()),
            device: Arc::clone(&self.device),
            turns: matches!(op, Op::Checkpoint | Op::Trim),
            stuffs,
            most: if stuffs { 40 } else { *self.random.pick(&[1, 1, 2, 12]) },
            wrong: Arc::clone(&wrong),
        };
        self.device.between(Some(Box::new(move |operation| others.act(operation))));
        // Background work changes nothing that the model knows.
        let aging = Aging::begin(&self.clock, &mut self.model.lock(), op);
        let mut nobody = Model::new(&View::default());
        let told = driver::step(&self.fs, &self.clock, &mut nobody, op);
        self.device.between(None);
        aging.end(&self.fs, &mut self.model.lock());
        self.device.acknowledge(self.model.lock().syncs());
        if let Some(what) = wrong.lock().take() {
            return Err(what);
        }
        match told {
            Ok(Told::Done) => tally.count(op, Told::Done),
            told => return Err(format!("{op} answers {told:?} on a sound device")),
        }
        Ok(())
    }
}
