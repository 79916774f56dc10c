//! Real threads beside snapshots: one moves extents, one writes and truncates, one makes, reads, clones and deletes
//! snapshots, and one tends the volume, which takes deleted ones apart and follows a schedule.
//!
//! What is judged: a snapshot shows each file as it was at some moment of the call that made it, a file whose extents
//! move before a move or behind it, and of others no page that nobody wrote into them. When it is read again it is what
//! it was, to the last byte, up to its deletion, and in every crash state. A snapshot from which a clone descends that
//! is not deleted stays, whatever the schedule says. In the end the offline check finds nothing wrong, and nothing is
//! left of what was deleted.
//!
//! Threads are real, so a seed does not determine a run: it determines who does what, and how often it is tried.

use crate::crash::{Builder, Effort, Lie, states};
use crate::device::SimDevice;
use crate::driver::{self, SimClock, SimEntropy};
use crate::lab::{Start, Tally, complaints, guarded};
use crate::operation::{AllocateKind, Op, WriteKind, pattern};
use crate::oracle::{Model, PAGE, View, difference};
use crate::random::{Random, derive};
use crate::snapshots::{self, prepare};
use crate::{view, watchdog};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use syncline_device::Device;
use syncline_format::TreeId;
use syncline_format::item::Timestamp;
use syncline_format::schedule::Schedule;
use syncline_format::tree_item::Stay;
use syncline_fs::{Clock, Error, Fs, SnapshotData};
use syncline_store::{Recovery, SnapshotLabel, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 6000;
const JOURNAL_BLOCKS: u64 = 96;
/// Extents of the file that is moved, each with a hole behind it: a move takes several batches.
const EXTENTS: u64 = 80;
const SHIFTED: &str = "shifted";
const WRITTEN: &str = "written";
/// Acts of the threads.
const SHIFTS: usize = 12;
const WRITES: u64 = 60;
const SNAPSHOTS: u64 = 24;
/// Snapshots at a time.
const KEPT_MAX: usize = 5;
/// Crash states that are judged.
const STATES_MAX: usize = 8;
const ENOSPC: i32 = 28;
const EBUSY: i32 = 16;
const MILLISECONDS_OF_AN_HOUR: u64 = 3_600_000;

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = vec![Op::Creat(SHIFTED.to_owned())];
        setup.extend((0..EXTENTS).map(|number| write(SHIFTED, 2 * number * PAGE, PAGE, number as u8)));
        setup.push(Op::Creat(WRITTEN.to_owned()));
        setup.push(write(WRITTEN, 0, 12 * PAGE, 7));
        setup.extend([Op::Sync, Op::Maintain { milliseconds: 6000 }, Op::Checkpoint]);
        prepare(BLOCKS, JOURNAL_BLOCKS, &setup, 95)
    })
}

fn write(path: &str, offset: u64, len: u64, fill: u8) -> Op {
    Op::Write { path: path.to_owned(), kind: WriteKind::Buffered, offset, len, fill }
}

/// One run.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- beside --seed {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        let result = branch_point(seed).and_then(|()| Beside::new(seed)).and_then(|beside| {
            beside.play(tally)?;
            beside.end(tally)
        });
        if let Err(what) = result {
            tally.violation(what);
        }
    })
}

/// Between the schedule's look at a snapshot and its deletion somebody may make a clone. No thread meets that moment
/// often, so the store is asked as if it had come: it keeps the snapshot, and deletes it when the clone has gone.
fn branch_point(seed: u64) -> Result<(), String> {
    let told = |error: StoreError| format!("a branch point and the schedule: {error}");
    let options = StoreOptions::new(derive(seed, 102)).trees();
    let device = SimDevice::new(start().disk.clone(), derive(seed, 103));
    let store = Store::open(device, options).and_then(Recovery::finish).map_err(told)?;
    let label = |name: &str, is_scheduled| SnapshotLabel {
        name: name.to_owned(),
        uuid: [7; 16],
        made: Timestamp::default(),
        stay: Stay { is_scheduled, ..Stay::default() },
    };
    let (tree, _) = store.snapshot(TreeId::MAIN, &label("due", true)).map_err(told)?;
    let (clone, _) = store.clone_tree(tree, &label("clone", false), false).map_err(told)?;
    store.delete_due(tree, true, 0).map_err(told)?;
    if store.trees()[&tree].name != "due" {
        return Err("the schedule deletes a snapshot from which a clone descends".to_owned());
    }
    store.delete_tree(clone.tree()).map_err(told)?;
    drop(clone);
    while store.reap(usize::MAX).map_err(told)? {}
    store.delete_due(tree, true, 0).map_err(told)?;
    match store.trees().get(&tree) {
        Some(item) if item.name == "due" => Err("the schedule deletes nothing that is due".to_owned()),
        _ => Ok(()),
    }
}

/// What became of a snapshot.
struct Kept {
    view: View,
    /// The number under which it was acknowledged, and one that was given before its deletion began.
    made: usize,
    gone: Option<usize>,
}

struct Beside {
    seed: u64,
    fs: Arc<Fs>,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    opened: usize,
    /// What the moved file is, from the start on: of each move before it begins.
    shifts: Mutex<Vec<Model>>,
    kept: Mutex<BTreeMap<String, Kept>>,
    acknowledged: AtomicUsize,
    /// The snapshots are made; who tends the volume comes to an end.
    over: AtomicBool,
    /// The schedule has a say: one run of two.
    is_scheduled: bool,
}

impl Beside {
    fn new(seed: u64) -> Result<Beside, String> {
        let device = SimDevice::new(start().disk.clone(), derive(seed, 91));
        let clock = SimClock::behind(&start().view);
        let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 92))
            .map_err(|error| format!("the volume does not open: {error}"))?;
        let is_scheduled = derive(seed, 93).is_multiple_of(2);
        if is_scheduled {
            let schedule = Schedule { hourly: 1, ..Schedule::default() };
            fs.schedules().set(Some(&schedule)).map_err(|error| format!("no schedule is taken: {error}"))?;
        }
        device.let_others_in();
        Ok(Beside {
            seed,
            fs,
            opened: device.position(),
            device,
            clock,
            shifts: Mutex::new(vec![Model::new(&start().view)]),
            kept: Mutex::default(),
            acknowledged: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            is_scheduled,
        })
    }

    fn play(&self, tally: &mut Tally) -> Result<(), String> {
        let results = std::thread::scope(|scope| {
            let shifting = scope.spawn(|| self.shift());
            let writing = scope.spawn(|| self.write());
            let tending = scope.spawn(|| self.tend());
            let making = scope.spawn(|| {
                let made = self.snapshots();
                self.over.store(true, Ordering::Relaxed);
                made
            });
            [making.join(), shifting.join(), writing.join(), tending.join()]
        });
        for result in results {
            match result {
                Ok(result) => tally.operations += result?,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    }

    /// Carries out an operation; false if there was no space, or others were in the way.
    fn carry_out(&self, fs: &Fs, op: &Op) -> Result<bool, String> {
        watchdog::progress();
        match driver::carry_out(fs, &self.clock, op) {
            Ok(effect) if effect.failed.is_none() => Ok(true),
            Ok(_) | Err(ENOSPC | EBUSY) => Ok(false),
            Err(errno) => Err(format!("{op} answers errno {errno}")),
        }
    }

    /// Moves the extents of a file up and down.
    fn shift(&self) -> Result<u64, String> {
        let mut random = Random::new(derive(self.seed, 94));
        for _ in 0..SHIFTS {
            let kind = if random.one_in(2) { AllocateKind::Collapse } else { AllocateKind::Insert };
            let op = Op::Falloc {
                path: SHIFTED.to_owned(),
                kind,
                offset: random.below(6) * PAGE,
                len: (1 + random.below(2)) * PAGE,
            };
            let mut model = self.shifts.lock().last().expect("the start at least").clone();
            if model.apply(&op, 0, 0).is_err() {
                continue;
            }
            self.shifts.lock().push(model);
            if !self.carry_out(&self.fs, &op)? {
                // Nothing was changed.
                self.shifts.lock().pop();
            }
        }
        Ok(SHIFTS as u64)
    }

    /// Writes into a file, cuts it, and syncs it.
    fn write(&self) -> Result<u64, String> {
        let mut random = Random::new(derive(self.seed, 95));
        for _ in 0..WRITES {
            let op = match random.below(10) {
                0..=4 => write(
                    WRITTEN,
                    random.below(20) * PAGE,
                    (1 + random.below(3)) * PAGE,
                    random.below(250) as u8,
                ),
                5 => Op::Truncate { path: WRITTEN.to_owned(), size: random.below(10) * PAGE },
                6 => Op::Sync,
                _ => Op::Fsync(WRITTEN.to_owned()),
            };
            self.carry_out(&self.fs, &op)?;
        }
        Ok(WRITES)
    }

    /// Background work, while the clock goes on by hours.
    fn tend(&self) -> Result<u64, String> {
        let mut random = Random::new(derive(self.seed, 96));
        let mut rounds = 0;
        while !self.over.load(Ordering::Relaxed) {
            watchdog::progress();
            let hours = u64::from(self.is_scheduled && random.one_in(4));
            self.clock.advance(50 + hours * MILLISECONDS_OF_AN_HOUR);
            self.fs
                .maintain(self.clock.now(), 4)
                .map_err(|error| format!("background work fails: {error}"))?;
            rounds += 1;
            std::thread::yield_now();
        }
        Ok(rounds)
    }

    fn acknowledge(&self) -> usize {
        let number = self.acknowledged.fetch_add(1, Ordering::Relaxed) + 1;
        self.device.acknowledge(number);
        number
    }

    /// Makes snapshots, reads them again, makes clones of them, and deletes them.
    fn snapshots(&self) -> Result<u64, String> {
        let mut random = Random::new(derive(self.seed, 97));
        let entropy = SimEntropy::new(derive(self.seed, 98));
        for number in 0..SNAPSHOTS {
            watchdog::progress();
            let data = if random.one_in(2) { SnapshotData::Written } else { SnapshotData::Committed };
            self.make(&format!("s{number}"), data, &entropy)?;
            if random.one_in(3) {
                self.clone(number, &mut random, &entropy)?;
            }
            let names: Vec<String> = self.names();
            if names.len() > KEPT_MAX || random.one_in(4) && !names.is_empty() {
                let name = random.pick(&names).clone();
                self.check(&name)?;
                let gone = self.acknowledge();
                self.kept.lock().entry(name.clone()).and_modify(|kept| kept.gone = Some(gone));
                self.fs.delete_snapshot(&name).map_err(|error| format!("{name} is not deleted: {error}"))?;
            }
        }
        Ok(SNAPSHOTS)
    }

    /// Those that are not deleted.
    fn names(&self) -> Vec<String> {
        let kept = self.kept.lock();
        kept.iter().filter(|(_, kept)| kept.gone.is_none()).map(|(name, _)| name.clone()).collect()
    }

    fn make(&self, name: &str, data: SnapshotData, entropy: &SimEntropy) -> Result<(), String> {
        let before = self.shifts.lock().len();
        match driver::make_snapshot(&self.fs, name, data, entropy) {
            Ok(()) => {}
            Err(Error::NoSpace) => return Ok(()),
            Err(error) => return Err(format!("no snapshot is made: {error}")),
        }
        let made = self.acknowledge();
        let view = self.seen(name)?;
        let shifts = self.shifts.lock();
        // The last move before may not have ended when it began.
        let possible = &shifts[before.saturating_sub(2)..];
        let [shifted, written] = [SHIFTED, WRITTEN].map(|path| possible[0].resolve(path).expect("it stays"));
        if !possible.iter().any(|model| *model.content_of(shifted) == view.contents[&shifted]) {
            return Err(format!("snapshot {name} shows a part of a move"));
        }
        check_written(&view.contents[&written].to_vec())
            .map_err(|what| format!("snapshot {name}: {what}"))?;
        drop(shifts);
        self.kept.lock().insert(name.to_owned(), Kept { view, made, gone: None });
        Ok(())
    }

    fn seen(&self, name: &str) -> Result<View, String> {
        let at = self.fs.at(name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))
    }

    /// A snapshot is what it was.
    fn check(&self, name: &str) -> Result<(), String> {
        let seen = self.seen(name)?;
        let kept = self.kept.lock();
        match kept[name].view == seen {
            true => Ok(()),
            false => Err(format!("snapshot {name} has changed: {}", difference(&kept[name].view, &seen))),
        }
    }

    /// A clone of some snapshot, the schedule's included. While it is there the snapshot has to stay.
    fn clone(&self, number: u64, random: &mut Random, entropy: &SimEntropy) -> Result<(), String> {
        let all: Vec<String> = self.fs.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        if all.is_empty() {
            return Ok(());
        }
        let (of, name) = (random.pick(&all).clone(), format!("h{number}"));
        let heads = self.fs.heads();
        match heads.make(&of, &name, entropy) {
            Ok(_) => {}
            // The schedule was faster.
            Err(Error::NoSpace | Error::NotFound) => return Ok(()),
            Err(error) => return Err(format!("no clone of {of} is made: {error}")),
        }
        let head = heads.open(&name).map_err(|error| format!("{name} does not open: {error}"))?;
        let fill = random.below(250) as u8;
        for op in
            [write(WRITTEN, 0, 5 * PAGE, fill), Op::Truncate { path: SHIFTED.to_owned(), size: 3 * PAGE }]
        {
            self.carry_out(&head, &op)?;
        }
        self.carry_out(&head, &Op::Fsync(WRITTEN.to_owned()))?;
        drop(head);
        // The head, or a later snapshot, descends from it as well: only who asks for it may delete it.
        if self.fs.snapshots().iter().all(|snapshot| snapshot.name != of) {
            return Err(format!(
                "snapshot {of} was deleted by the schedule although two trees descend from it"
            ));
        }
        heads.delete(&name).map_err(|error| format!("{name} is not deleted: {error}"))
    }

    /// All is quiet: what is there is looked at, and the power is cut at some moments before.
    fn end(self, tally: &mut Tally) -> Result<(), String> {
        for name in self.names() {
            self.check(&name)?;
        }
        let (base, trace) = self.device.recorded();
        let mut random = Random::new(derive(self.seed, 99));
        let mut all = states(&trace, self.opened, Effort { subsets: 1, torn: 1 }, Lie::None, &mut random);
        while all.len() > STATES_MAX {
            all.swap_remove(random.below(all.len() as u64) as usize);
        }
        all.sort_by_key(|state| state.event);
        let mut builder = Builder::new(base, &trace, Lie::None);
        for state in &all {
            tally.states += 1;
            let device = SimDevice::new(builder.build(state), derive(self.seed, 100));
            self.judge(&device, state.acknowledged)
                .map_err(|what| format!("{what} [crash behind event {}]", state.event))?;
        }
        for name in self.names() {
            self.fs.delete_snapshot(&name).map_err(|error| format!("{name} is not deleted: {error}"))?;
        }
        self.fs.reclaim().map_err(|error| format!("deleted snapshots are not taken apart: {error}"))?;
        self.fs.finish_deletions().map_err(|error| format!("deletions do not end: {error}"))?;
        self.fs.close().map_err(|error| format!("close: {error}"))?;
        sound(&self.device, tally)
    }

    fn judge(&self, device: &Arc<SimDevice>, acknowledged: usize) -> Result<(), String> {
        let clock = SimClock::new();
        let fs = driver::open(Arc::clone(device) as Arc<dyn Device>, &clock, derive(self.seed, 101))
            .map_err(|error| format!("recovery fails: {error}"))?;
        let shown = snapshots::snapshots(&fs)?;
        for (name, kept) in &*self.kept.lock() {
            let has_to = kept.made <= acknowledged && kept.gone.is_none_or(|gone| gone > acknowledged);
            match shown.get(name) {
                Some(view) if *view == kept.view => {}
                Some(view) => {
                    return Err(format!("snapshot {name} has changed: {}", difference(&kept.view, view)));
                }
                None if has_to => return Err(format!("snapshot {name} is lost")),
                None => {}
            }
        }
        drop(fs);
        sound(device, &mut Tally::default())
    }
}

/// The offline check has nothing against a volume.
fn sound(device: &Arc<SimDevice>, tally: &mut Tally) -> Result<(), String> {
    tally.checks += 1;
    match complaints(&*SimDevice::new(device.settled(), 0)).pop() {
        Some(what) => Err(format!("check: {what}")),
        None => Ok(()),
    }
}

/// Each page is one that was written into this place, or zeros.
fn check_written(bytes: &[u8]) -> Result<(), String> {
    for (at, page) in (0..).step_by(PAGE as usize).zip(bytes.chunks(PAGE as usize)) {
        let is_known = page.iter().all(|byte| *byte == 0)
            || (0..250).any(|fill| pattern(fill, at, page.len() as u64) == page);
        if !is_known {
            return Err(format!("{WRITTEN} holds at {at} what nobody wrote there"));
        }
    }
    Ok(())
}
