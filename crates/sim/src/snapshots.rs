//! Snapshots: the random workloads on a volume of version 2, with snapshots made and deleted between their operations,
//! and deletions that go on a step at a time.
//!
//! Each crash state has to show the volume as ever, and besides: the snapshots of some moment that is not before the
//! last acknowledged one, each as it was when it was made, names, content and times. What recovery makes of a state
//! has to stay so when recovery itself is cut. In the end all snapshots are deleted, and the offline check has to find
//! nothing wrong.

use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Disk, SimDevice, Trace};
use crate::driver::{self, SimClock, SimEntropy, Told};
use crate::lab::{Start, Tally, complaints, guarded};
use crate::operation::{AllocateKind, Op};
use crate::oracle::{Model, PAGE, View, difference};
use crate::random::{Random, derive};
use crate::{view, watchdog, workload};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Device;
use syncline_fs::{Error, Fs, MkfsOptions, ObjectNo, SnapshotData, SyncScope};

/// Blocks of the journal, and of the volumes.
const JOURNAL_BLOCKS: u64 = 96;
const BLOCKS: [u64; 3] = [1800, 2600, 5200];
/// Crash states of a workload that are judged.
const STATES_MAX: usize = 50;
/// One of so many recoveries is cut, and one of so many recovered volumes is emptied and checked.
const RECOVERY_EVERY: u64 = 25;
const EMPTIED_EVERY: u64 = 10;

/// The snapshots that people see, and what each shows.
type Shown = BTreeMap<String, View>;

/// What became of the snapshots, in order.
struct Step {
    /// The acknowledgement of the call.
    sync: usize,
    shown: Shown,
}

/// A recorded run.
struct Run {
    base: Disk,
    trace: Trace,
    opened: usize,
    model: Model,
    /// The first is the start.
    steps: Vec<Step>,
}

/// One workload of a seed.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- snapshots {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        let start = start(seed);
        let ops = workload::operations(&start, derive(seed, 50), 1);
        // They are refused where a snapshot has the blocks, of which the model knows nothing.
        let moves =
            |op: &Op| matches!(op, Op::Falloc { kind: AllocateKind::Collapse | AllocateKind::Insert, .. });
        let ops: Vec<Op> = ops.into_iter().filter(|op| !moves(op)).collect();
        if let Some(run) = record(&start, &ops, seed, tally) {
            judge(&run, seed, tally);
        }
    })
}

fn start(seed: u64) -> Start {
    let device = SimDevice::new(Disk::new(*Random::new(derive(seed, 51)).pick(&BLOCKS)), seed);
    let options = MkfsOptions::default().journal_bytes(JOURNAL_BLOCKS * PAGE).format(2);
    Fs::format(&*device, &options, &*SimClock::new(), &SimEntropy::new(seed), &mut |_, _| {})
        .expect("mkfs on a sound device");
    let fs = open(&device, &SimClock::new(), seed).expect("open after mkfs");
    let view = view::view(&fs).expect("view of an empty volume");
    fs.close().expect("close");
    Start { disk: device.settled(), view }
}

fn open(device: &Arc<SimDevice>, clock: &Arc<SimClock>, seed: u64) -> Result<Arc<Fs>, Error> {
    driver::open(Arc::clone(device) as Arc<dyn Device>, clock, derive(seed, 52))
}

/// Runs the workload, with snapshots in between.
fn record(start: &Start, ops: &[Op], seed: u64, tally: &mut Tally) -> Option<Run> {
    let device = SimDevice::new(start.disk.clone(), derive(seed, 53));
    let clock = SimClock::behind(&start.view);
    let fs = match open(&device, &clock, seed) {
        Ok(fs) => fs,
        Err(error) => {
            tally.violation(format!("the volume does not open: {error}"));
            return None;
        }
    };
    let opened = device.position();
    let mut random = Random::new(derive(seed, 54));
    let entropy = SimEntropy::new(derive(seed, 55));
    let mut model = Model::with_times(&start.view);
    let mut steps = vec![Step { sync: 0, shown: Shown::new() }];
    // Somebody who reads a snapshot for long, and what it shows.
    let mut reader: Option<(String, Arc<Fs>, View)> = None;
    for (index, op) in ops.iter().enumerate() {
        match driver::step(&fs, &clock, &mut model, op) {
            Ok(Told::Failed(errno)) => {
                tally.violation(format!("{op} fails with errno {errno} on a sound device"));
                return None;
            }
            Ok(told) => tally.count(op, told),
            Err(wrong) => {
                tally.violation(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want));
                return None;
            }
        }
        if let Err(error) = view::note_times(&fs, &mut model, op) {
            tally.violation(format!("attributes cannot be read after {op}: {error}"));
            return None;
        }
        device.acknowledge(model.syncs());
        let done = match random.below(10) {
            0 => make(&fs, &format!("s{index}"), &entropy, &mut random, &mut model, &mut steps),
            1 => delete(&fs, &mut random, &mut model, &mut steps),
            2 | 3 => fs.maintain(syncline_fs::Clock::now(&*clock), 1).map(drop),
            4 if reader.is_none() => begin_reading(&fs, &mut random, &steps).map(|found| reader = found),
            _ => Ok(()),
        };
        if let Some((name, at, wanted)) = reader.take_if(|_| random.one_in(8))
            && view::view(&at).as_ref() != Ok(&wanted)
        {
            tally.violation(format!("behind {op}, snapshot {name} is not for its reader what it was"));
            return None;
        }
        match done {
            Ok(()) | Err(Error::NoSpace) => device.acknowledge(model.syncs()),
            Err(error) => {
                tally.violation(format!("a snapshot cannot be made or deleted behind {op}: {error}"));
                return None;
            }
        }
    }
    let (base, trace) = device.recorded();
    let last = steps.last().expect("the start at least");
    match shown(&fs) {
        Ok(shown) if shown == last.shown => {}
        Ok(shown) => tally.violation(format!("at the end, {}", differs(&last.shown, &shown))),
        Err(what) => tally.violation(format!("at the end, {what}")),
    }
    tally.writes += trace.writes.len() as u64;
    tally.flushes += trace.flushes as u64;
    Some(Run { base, trace, opened, model, steps })
}

fn make(
    fs: &Fs,
    name: &str,
    entropy: &SimEntropy,
    random: &mut Random,
    model: &mut Model,
    steps: &mut Vec<Step>,
) -> Result<(), Error> {
    let data = match random.one_in(2) {
        true => SnapshotData::Written,
        false => {
            // Synced one by one, small ones live in the journal: the snapshot inherits them.
            for ino in model.alive() {
                fs.files().sync_inode(ObjectNo(ino), SyncScope::All)?;
            }
            SnapshotData::Committed
        }
    };
    fs.snapshot(name, data, entropy)?;
    let mut shown = steps.last().expect("the start at least").shown.clone();
    shown.insert(name.to_owned(), view::view(fs)?);
    // All that was written before is in it, so it is durable (C10).
    let sync = model.sync(None);
    steps.push(Step { sync, shown });
    Ok(())
}

fn delete(fs: &Fs, random: &mut Random, model: &mut Model, steps: &mut Vec<Step>) -> Result<(), Error> {
    let mut shown = steps.last().expect("the start at least").shown.clone();
    let names: Vec<String> = shown.keys().cloned().collect();
    if names.is_empty() {
        return Ok(());
    }
    // The newest, beside whose deletion the head goes on, as often as all others together.
    let newest = fs.snapshots().pop().map(|snapshot| snapshot.name);
    let name = newest.filter(|_| random.one_in(2)).unwrap_or_else(|| random.pick(&names).clone());
    fs.delete_snapshot(&name)?;
    shown.remove(&name);
    // The order of metadata is durable up to here (C2), and no content.
    let sync = model.sync(Some(0));
    steps.push(Step { sync, shown });
    Ok(())
}

/// Opens some snapshot, to be read later.
fn begin_reading(
    fs: &Fs,
    random: &mut Random,
    steps: &[Step],
) -> Result<Option<(String, Arc<Fs>, View)>, Error> {
    let shown = &steps.last().expect("the start at least").shown;
    let Some(name) = shown.keys().nth(random.below(shown.len().max(1) as u64) as usize) else {
        return Ok(None);
    };
    Ok(Some((name.clone(), fs.at(name)?, shown[name].clone())))
}

/// What the snapshots of a volume show.
fn shown(fs: &Fs) -> Result<Shown, String> {
    let mut shown = Shown::new();
    for snapshot in fs.snapshots() {
        let name = snapshot.name;
        let at = fs.at(&name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        let view = view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))?;
        shown.insert(name, view);
    }
    Ok(shown)
}

fn differs(wanted: &Shown, got: &Shown) -> String {
    let names = |shown: &Shown| shown.keys().cloned().collect::<Vec<_>>();
    if names(wanted) != names(got) {
        return format!("the snapshots are {:?}, not {:?}", names(got), names(wanted));
    }
    let changed = wanted.iter().find(|(name, view)| got[*name] != **view);
    changed.map_or_else(
        || "nothing differs".to_owned(),
        |(name, view)| format!("snapshot {name} has changed: {}", difference(view, &got[name])),
    )
}

fn judge(run: &Run, seed: u64, tally: &mut Tally) {
    let mut random = Random::new(derive(seed, 56));
    let effort = Effort { subsets: 2, torn: 1 };
    let mut all = states(&run.trace, run.opened, effort, Lie::None, &mut random);
    while all.len() > STATES_MAX {
        all.swap_remove(random.below(all.len() as u64) as usize);
    }
    all.sort_by_key(|state| state.event);
    let mut builder = Builder::new(run.base.clone(), &run.trace, Lie::None);
    for (index, state) in all.iter().enumerate() {
        let disk = builder.build(state);
        let judged = judge_one(run, state, disk, derive(seed, 2000 + index as u64), &mut random, tally);
        if let Err(what) = judged {
            let (event, survivors) = (state.event, &state.survivors);
            return tally
                .violation(format!("{what} [crash behind event {event} with survivors {survivors:?}]"));
        }
    }
}

fn judge_one(
    run: &Run,
    state: &CrashState,
    disk: Disk,
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), String> {
    tally.states += 1;
    let device = SimDevice::new(disk, seed);
    let fs = recover(run, &device, state.acknowledged, seed)?;
    if random.one_in(RECOVERY_EVERY) {
        cut_recovery(run, &device, state.acknowledged, seed, tally)?;
    }
    if random.one_in(EMPTIED_EVERY) {
        tally.checks += 1;
        if let Some(what) = complaints(&*SimDevice::new(device.settled(), 0)).pop() {
            return Err(format!("check after recovery: {what}"));
        }
        empty(&fs, &device)?;
    }
    Ok(())
}

/// Opens a volume, and holds it and its snapshots against what may be there.
fn recover(run: &Run, device: &Arc<SimDevice>, acknowledged: usize, seed: u64) -> Result<Arc<Fs>, String> {
    let fs = open(device, &SimClock::new(), derive(seed, 57))
        .map_err(|error| format!("recovery fails: {error}"))?;
    let got = shown(&fs)?;
    let told = run.steps.iter().rposition(|step| step.sync <= acknowledged).expect("the start is");
    let found = run.steps[told..].iter().find(|step| step.shown == got);
    let Some(step) = found else { return Err(differs(&run.steps[told].shown, &got)) };
    let view = view::view(&fs).map_err(|error| format!("the recovered volume cannot be read: {error}"))?;
    // The log ends behind this step, so it holds everything before.
    let acknowledged = acknowledged.max(step.sync);
    let judged = run.model.judge(&view, acknowledged);
    judged.map_err(|violation| format!("{acknowledged} syncs acknowledged: {violation:?}"))?;
    Ok(fs)
}

/// Cuts the recovery that the device has recorded at each of its writes.
fn cut_recovery(
    run: &Run,
    device: &Arc<SimDevice>,
    acknowledged: usize,
    seed: u64,
    tally: &mut Tally,
) -> Result<(), String> {
    let (base, trace) = device.recorded();
    let mut random = Random::new(derive(seed, 58));
    let all = states(&trace, 0, Effort { subsets: 1, torn: 1 }, Lie::None, &mut random);
    let mut builder = Builder::new(base, &trace, Lie::None);
    for state in &all {
        tally.states += 1;
        tally.recovery_states += 1;
        let disk = builder.build(state);
        recover(run, &SimDevice::new(disk, derive(seed, 59)), acknowledged, derive(seed, 60))
            .map_err(|what| format!("{what} [recovery cut behind event {}]", state.event))?;
    }
    Ok(())
}

/// Deletes all snapshots: the rest is a volume that is sound, and has none.
fn empty(fs: &Fs, device: &Arc<SimDevice>) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Error| format!("{what}: {error}");
    for snapshot in fs.snapshots() {
        match fs.delete_snapshot(&snapshot.name) {
            // A deletion waits for nothing but the headroom of a full volume.
            Ok(()) => {}
            Err(error) => return Err(failed("a snapshot cannot be deleted")(error)),
        }
    }
    fs.reclaim().map_err(failed("deleted snapshots are not taken apart"))?;
    fs.close().map_err(failed("close"))?;
    match complaints(&*SimDevice::new(device.settled(), 0)).pop() {
        Some(what) => Err(format!("check behind the deletion of all snapshots: {what}")),
        None => Ok(()),
    }
}
