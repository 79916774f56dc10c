//! Snapshots and heads: the random workloads on a volume of version 2. Between their operations snapshots are made and
//! deleted, heads are made of snapshots, written to with workloads of their own, and deleted, the head is rolled back,
//! and deletions go on a step at a time.
//!
//! Each crash state has to show the snapshots and the heads of some moment that is not before the last acknowledged
//! one: each snapshot as it was when it was made, names, content and times, and each head as its own judge allows.
//! Opened read-only, before anything recovers it, it has to show the same as afterwards. What recovery makes of a state
//! has to stay so when recovery itself is cut. In the end all snapshots and all other heads are deleted, and the
//! offline check has to find nothing wrong.

use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver::{self, SimClock, SimEntropy};
use crate::lab::{Start, Tally, complaints, guarded};
use crate::operation::{AllocateKind, Op};
use crate::oracle::{PAGE, View, difference};
use crate::random::{Random, derive};
use crate::{view, watchdog, workload};
use record::{MAIN, Run, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Device;
use syncline_fs::{Error, Fs, FsOptions, MkfsOptions};

mod record;

/// Blocks of the journal, and of the volumes.
const JOURNAL_BLOCKS: u64 = 96;
const BLOCKS: [u64; 3] = [1800, 2600, 5200];
/// Crash states of a workload that are judged.
const STATES_MAX: usize = 50;
/// One of so many recoveries is cut, and one of so many recovered volumes is emptied and checked.
const RECOVERY_EVERY: u64 = 25;
const EMPTIED_EVERY: u64 = 10;
/// Blocks of the tables in which a snapshot and its overlay are named, at most.
const TABLES_MAX: u64 = 16;

/// Snapshots or heads that people see, and what each shows.
type Shown = BTreeMap<String, View>;

/// One workload of a seed.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- snapshots {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        let start = start(seed);
        if let Some(run) = record::record(&start, seed, tally) {
            judge(&run, seed, tally);
        }
    })
}

/// A workload on what a tree shows.
fn operations(start: &Start, seed: u64) -> Vec<Op> {
    // They are refused where a snapshot has the blocks, of which the model knows nothing.
    let moves =
        |op: &Op| matches!(op, Op::Falloc { kind: AllocateKind::Collapse | AllocateKind::Insert, .. });
    let ops = workload::operations(start, derive(seed, 50), 1);
    ops.into_iter().filter(|op| !moves(op)).collect()
}

fn start(seed: u64) -> Start {
    let device = SimDevice::new(Disk::new(*Random::new(derive(seed, 51)).pick(&BLOCKS)), seed);
    let mut options = MkfsOptions::default().journal_bytes(JOURNAL_BLOCKS * PAGE).format(2);
    if derive(seed, 57).is_multiple_of(2) {
        // All names collide.
        options.name_bits = 1;
    }
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

/// What the snapshots of a volume show.
fn snapshots(fs: &Fs) -> Result<Shown, String> {
    let mut shown = Shown::new();
    for snapshot in fs.snapshots() {
        let name = snapshot.name;
        let at = fs.at(&name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        let view = view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))?;
        shown.insert(name, view);
    }
    Ok(shown)
}

/// What its heads show.
fn heads(fs: &Fs) -> Result<Shown, String> {
    let mut shown = Shown::new();
    for name in fs.heads().list().into_iter().map(|head| head.name) {
        let view = match name == MAIN {
            true => view::view(fs),
            false => fs.heads().open(&name).and_then(|head| view::view(&head)),
        };
        shown.insert(name.clone(), view.map_err(|error| format!("head {name} cannot be read: {error}"))?);
    }
    Ok(shown)
}

fn differs(what: &str, wanted: &Shown, got: &Shown) -> String {
    let names = |shown: &Shown| shown.keys().cloned().collect::<Vec<_>>();
    if names(wanted) != names(got) {
        return format!("the {what}s are {:?}, not {:?}", names(got), names(wanted));
    }
    let changed = wanted.iter().find(|(name, view)| got[*name] != **view);
    changed.map_or_else(
        || "nothing differs".to_owned(),
        |(name, view)| format!("{what} {name} has changed: {}", difference(view, &got[name])),
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

/// What a state shows to who opens it read-only, which writes nothing: snapshots, and heads.
fn look(device: &Arc<SimDevice>, seed: u64) -> Result<(Shown, Shown), String> {
    let copy = SimDevice::new(device.settled(), derive(seed, 61));
    let options = FsOptions::default().memory_bytes_max(8 << 20).read_only(true);
    let fs = Fs::open(copy.clone(), options, SimClock::new(), &SimEntropy::new(derive(seed, 62)))
        .map_err(|error| format!("the volume does not open read-only: {error}"))?;
    let shown = (snapshots(&fs)?, heads(&fs)?);
    match copy.recorded().1.writes.len() {
        0 => Ok(shown),
        written => Err(format!("opened read-only, the volume is written to {written} times")),
    }
}

/// Opens a volume, and holds it, its heads and its snapshots against what may be there.
fn recover(run: &Run, device: &Arc<SimDevice>, acknowledged: usize, seed: u64) -> Result<Arc<Fs>, String> {
    let looked = look(device, seed)?;
    let fs = open(device, &SimClock::new(), derive(seed, 57))
        .map_err(|error| format!("recovery fails: {error}"))?;
    let got = (snapshots(&fs)?, heads(&fs)?);
    if looked != got {
        let (snapshots, heads) = (differs("snapshot", &got.0, &looked.0), differs("head", &got.1, &looked.1));
        return Err(format!("opened read-only the volume shows something else: {snapshots}; {heads}"));
    }
    let (got, heads) = got;
    let told = run.steps.iter().rposition(|step| step.ack <= acknowledged).expect("the start is");
    let is_alike = |step: &&Step| step.shown == got && step.heads.keys().eq(heads.keys());
    let mut wrong = Vec::new();
    for step in run.steps[told..].iter().filter(is_alike) {
        match judge_heads(run, step, &heads, acknowledged) {
            Ok(()) => return Ok(fs),
            Err(what) => wrong.push(what),
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("; or else "));
    }
    let step = &run.steps[told];
    let names = |names: Vec<&String>| format!("{names:?}");
    let (now, then) = (names(heads.keys().collect()), names(step.heads.keys().collect()));
    Err(format!("{}; heads {now}, not {then}", differs("snapshot", &step.shown, &got)))
}

/// Whether the heads may look like this if the log ends behind this step.
fn judge_heads(run: &Run, step: &Step, heads: &Shown, acknowledged: usize) -> Result<(), String> {
    // It holds everything before.
    let acknowledged = &run.acks[acknowledged.max(step.ack)];
    for (name, view) in heads {
        let model = step.heads[name];
        let syncs = acknowledged.get(model).copied().unwrap_or(0);
        let judged = run.models[model].judge(view, syncs);
        judged.map_err(|violation| format!("head {name}, {syncs} syncs acknowledged: {violation:?}"))?;
    }
    Ok(())
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

/// Deletes one snapshot: it is refused while the snapshot is held, and gives back what was told before.
fn usage(fs: &Fs) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Error| format!("{what}: {error}");
    let Some(name) = fs.snapshots().into_iter().rev().nth(1).map(|snapshot| snapshot.name) else {
        return Ok(());
    };
    fs.reclaim().map_err(failed("what was deleted before is not taken apart"))?;
    let told = fs.usage(&[&name]).map_err(failed("usage"))? / PAGE;
    fs.hold_snapshot(&name).map_err(failed("a snapshot cannot be held"))?;
    if fs.delete_snapshot(&name).is_ok() {
        return Err(format!("the snapshot {name} was deleted although it is held"));
    }
    fs.release_snapshot(&name).map_err(failed("a snapshot cannot be released"))?;
    let free = |fs: &Fs| {
        fs.reclaim().map_err(failed("a deleted snapshot is not taken apart"))?;
        Ok::<u64, String>(fs.statfs().blocks_free)
    };
    let before = free(fs)?;
    fs.delete_snapshot(&name).map_err(failed("a snapshot cannot be deleted"))?;
    let gained = free(fs)?.saturating_sub(before);
    // The tables of the volume become shorter.
    match (told..=told + TABLES_MAX).contains(&gained) {
        true => Ok(()),
        false => Err(format!("the deletion of {name} was to give back {told} blocks, and gave {gained}")),
    }
}

/// Deletes all snapshots and all heads but one: the rest is a volume that is sound, and has none.
fn empty(fs: &Fs, device: &Arc<SimDevice>) -> Result<(), String> {
    let failed = |what: &'static str| move |error: Error| format!("{what}: {error}");
    for head in fs.heads().list().into_iter().filter(|head| !head.is_default) {
        fs.heads().delete(&head.name).map_err(failed("a head cannot be deleted"))?;
    }
    usage(fs)?;
    for snapshot in fs.snapshots() {
        // What reads it ends as the session of a volume does, and ends nothing of the volume.
        let view = fs.at(&snapshot.name).map_err(failed("a snapshot does not open"))?;
        view.end_trims();
        view.shut_down();
        view.close().map_err(failed("a snapshot that was read cannot be closed"))?;
        drop(view);
        // A deletion waits for nothing but the headroom of a full volume.
        fs.delete_snapshot(&snapshot.name).map_err(failed("a snapshot cannot be deleted"))?;
    }
    fs.reclaim().map_err(failed("deleted snapshots are not taken apart"))?;
    if fs.is_reclaiming() {
        return Err("deleted snapshots keep their space".to_owned());
    }
    fs.close().map_err(failed("close"))?;
    match complaints(&*SimDevice::new(device.settled(), 0)).pop() {
        Some(what) => Err(format!("check behind the deletion of all snapshots: {what}")),
        None => Ok(()),
    }
}
