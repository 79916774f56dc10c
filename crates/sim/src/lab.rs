//! One workload under the lab: it is run once, and every crash state of the run is recovered and judged.

use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Disk, SimDevice, Trace};
use crate::driver::{self, SimClock, Told};
use crate::operation::Op;
use crate::oracle::{Model, PAGE, View, difference};
use crate::random::{Random, derive};
use crate::snapshots::{self, Shown};
use crate::view;
use crate::watchdog::Watch;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use syncline_check::{CheckOptions, check};
use syncline_device::Device;
use syncline_fs::{Context, Error, ObjectNo, SetAttr};

/// How thoroughly a workload is examined.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    pub effort: Effort,
    /// At most so many crash states, chosen at random from all.
    pub states_max: usize,
    /// The offline check looks at one of so many recovered volumes (1: at all).
    pub check_every: u64,
    /// One of so many recoveries is crashed at each of its own writes (1: all), and run twice.
    pub recovery_every: u64,
}

impl Depth {
    /// Everything, as for one-operation workloads and replays.
    pub const FULL: Depth = Depth {
        effort: Effort { subsets: 3, torn: 3 },
        states_max: usize::MAX,
        check_every: 1,
        recovery_every: 8,
    };
    /// Everything, and each recovery crashed: to see again what a sample has found.
    pub const REPLAY: Depth = Depth { recovery_every: 1, ..Depth::FULL };
    /// For two-operation workloads by the ten thousand.
    pub const SAMPLED: Depth = Depth {
        effort: Effort { subsets: 1, torn: 1 },
        states_max: usize::MAX,
        check_every: 64,
        recovery_every: 512,
    };
}

/// Where workloads start: a volume, and what it shows.
#[derive(Clone)]
pub struct Start {
    pub disk: Disk,
    pub view: View,
    /// What its snapshots show.
    pub snapshots: Shown,
    /// Nodes of its trees have so many items at most.
    pub node_items_max: usize,
}

impl Start {
    /// A volume without snapshots.
    pub fn new(disk: Disk, view: View) -> Start {
        Start { disk, view, snapshots: Shown::new(), node_items_max: usize::MAX }
    }
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub workloads: u64,
    pub operations: u64,
    pub states: u64,
    /// Of these, crashes during recovery.
    pub recovery_states: u64,
    pub checks: u64,
    pub refused: u64,
    pub no_space: u64,
    pub writes: u64,
    pub flushes: u64,
    /// Device errors that were injected.
    pub errors: u64,
    /// Page images that recovery carried, because it could not bring them home.
    pub carried: u64,
    pub by_operation: BTreeMap<&'static str, u64>,
    pub violations: Vec<Found>,
}

/// A violation, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub what: String,
    pub replay: String,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.workloads += other.workloads;
        self.operations += other.operations;
        self.states += other.states;
        self.recovery_states += other.recovery_states;
        self.checks += other.checks;
        self.refused += other.refused;
        self.no_space += other.no_space;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.errors += other.errors;
        self.carried += other.carried;
        for (name, count) in other.by_operation {
            *self.by_operation.entry(name).or_default() += count;
        }
        self.violations.extend(other.violations);
    }

    pub fn violation(&mut self, what: String) {
        self.violations.push(Found { what, replay: String::new() });
    }

    pub fn count(&mut self, op: &Op, told: Told) {
        self.operations += 1;
        let name = match (op, told) {
            (Op::Transaction { .. }, Told::Refused(_) | Told::NoSpace) => "txn refused",
            _ => op.name(),
        };
        *self.by_operation.entry(name).or_default() += 1;
        match told {
            Told::Refused(_) => self.refused += 1,
            Told::NoSpace => self.no_space += 1,
            Told::Done | Told::Failed(_) => {}
        }
    }
}

/// A recorded run.
pub struct Recorded {
    pub base: Disk,
    pub trace: Trace,
    pub model: Model,
    /// Events that belong to opening the volume.
    pub opened: usize,
}

/// Makes a volume of version 1, runs the setup on it, and closes it. [`snapshots::prepare`] makes one of version 2.
pub fn prepare(blocks: u64, journal_blocks: u64, setup: &[Op], seed: u64) -> Start {
    prepare_as(1, blocks, journal_blocks, setup, seed)
}

/// The same of another version, without a snapshot.
pub fn prepare_as(version: u32, blocks: u64, journal_blocks: u64, setup: &[Op], seed: u64) -> Start {
    let device = SimDevice::new(Disk::new(blocks), seed);
    driver::format(version, &*device, journal_blocks, seed).expect("mkfs on a sound device");
    let clock = SimClock::new();
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 8))
        .expect("open after mkfs");
    let mut model = Model::new(&view::view(&fs).expect("view of an empty volume"));
    for op in setup {
        let told = driver::step(&fs, &clock, &mut model, op).expect("the setup is carried out");
        assert_eq!(told, Told::Done, "setup: {op}");
    }
    let view = view::view(&fs).expect("view after the setup");
    let live = model.live();
    assert!(view.names == live.names && view.contents == live.contents, "the setup shows");
    fs.close().expect("close after the setup");
    drop(fs);
    Start::new(device.settled(), view)
}

/// Runs a workload once. Operations from number `reliable` on have to succeed.
pub fn record(start: &Start, ops: &[Op], seed: u64, reliable: usize, tally: &mut Tally) -> Option<Recorded> {
    let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
    let clock = SimClock::behind(&start.view);
    let fs = match driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 2)) {
        Ok(fs) => fs,
        Err(error) => {
            tally.violation(format!("the volume does not open: {error}"));
            return None;
        }
    };
    let opened = device.position();
    let mut model = Model::with_times(&start.view);
    for (index, op) in ops.iter().enumerate() {
        match driver::step(&fs, &clock, &mut model, op) {
            Ok(told) => {
                tally.count(op, told);
                if index >= reliable && told != Told::Done {
                    tally.violation(format!("{op} has to succeed here, and answers {told:?}"));
                }
                if told == Told::NoSpace && op.needs_no_space() {
                    tally.violation(format!("C8: {op} needs no space, and finds none"));
                }
                if let Told::Failed(errno) = told {
                    tally.violation(format!("{op} fails with errno {errno} on a sound device"));
                    return None;
                }
            }
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
    }
    let (base, trace) = device.recorded();
    match view::view(&fs) {
        Ok(view) if view == model.live() => {}
        Ok(view) => {
            let difference = difference(&model.live(), &view);
            tally.violation(format!("the running volume does not show what was done: {difference}"));
        }
        Err(error) => tally.violation(format!("the running volume cannot be read: {error}")),
    }
    tally.writes += trace.writes.len() as u64;
    tally.flushes += trace.flushes as u64;
    Some(Recorded { base, trace, model, opened })
}

/// Runs a workload and judges its crash states. Panics of the engine are violations.
pub fn examine(start: &Start, ops: &[Op], seed: u64, depth: Depth) -> Tally {
    examine_reliable(start, ops, usize::MAX, seed, depth)
}

/// Like [`examine`]; operations from number `reliable` on have to succeed.
pub fn examine_reliable(start: &Start, ops: &[Op], reliable: usize, seed: u64, depth: Depth) -> Tally {
    if !start.snapshots.is_empty() || ops.iter().any(Op::is_of_trees) {
        return snapshots::examine(start, ops, seed, depth);
    }
    guarded(|tally| {
        tally.workloads += 1;
        if let Some(run) = record(start, ops, seed, reliable, tally) {
            judge_states(&run, seed, depth, Lie::None, tally);
        }
    })
}

/// Runs `body`; a panic in it is a violation.
pub fn guarded(body: impl FnOnce(&mut Tally)) -> Tally {
    let mut tally = Tally::default();
    let _watch = Watch::begin();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(&mut tally))) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        tally.violation(format!("panic: {}", text.unwrap_or_default()));
    }
    tally
}

/// Judges every crash state of a recorded run. Returns the last recovered volume of a random state, to go on from.
pub fn judge_states(run: &Recorded, seed: u64, depth: Depth, lie: Lie, tally: &mut Tally) -> Option<Start> {
    let mut random = Random::new(derive(seed, 3));
    let from = if lie == Lie::None { run.opened } else { 0 };
    let mut all = states(&run.trace, from, depth.effort, lie, &mut random);
    while all.len() > depth.states_max {
        let drop = random.below(all.len() as u64) as usize;
        all.swap_remove(drop);
    }
    all.sort_by_key(|state| state.event);
    let chosen = random.below(all.len().max(1) as u64) as usize;
    let mut continued = None;
    let mut builder = Builder::new(run.base.clone(), &run.trace, lie);
    for (index, state) in all.iter().enumerate() {
        let disk = builder.build(state);
        let recovered =
            judge_one(run, state, disk, derive(seed, 1000 + index as u64), depth, &mut random, tally);
        if index == chosen {
            continued = recovered;
        }
        if !tally.violations.is_empty() {
            break;
        }
    }
    continued
}

/// Recovers one state and judges it.
fn judge_one(
    run: &Recorded,
    state: &CrashState,
    disk: Disk,
    seed: u64,
    depth: Depth,
    random: &mut Random,
    tally: &mut Tally,
) -> Option<Start> {
    tally.states += 1;
    let at = |what: String| {
        format!("{what} [crash behind event {} with survivors {:?}]", state.event, state.survivors)
    };
    let device = SimDevice::new(disk, seed);
    let view = match recover(&device, seed) {
        Ok(view) => view,
        Err(what) => {
            tally.violation(at(what));
            return None;
        }
    };
    if let Err(violation) = run.model.judge(&view, state.acknowledged) {
        tally.violation(at(format!("{} syncs acknowledged: {violation:?}", state.acknowledged)));
        return None;
    }
    if random.one_in(depth.check_every) {
        tally.checks += 1;
        for what in complaints(&*SimDevice::new(device.settled(), 0)) {
            tally.violation(at(format!("check after recovery: {what}")));
        }
        let (crashed, _) = device.recorded();
        for what in complaints(&*SimDevice::new(crashed, 0)) {
            tally.violation(at(format!("check before recovery: {what}")));
        }
    }
    if random.one_in(depth.check_every)
        && let Err(what) = grown(&device, &view, seed)
    {
        tally.violation(at(what));
    }
    if random.one_in(depth.recovery_every) {
        crash_recovery(&device, &view, seed, tally);
    }
    Some(Start::new(device.settled(), view))
}

/// Opens a volume and reads all of it.
pub fn recover(device: &Arc<SimDevice>, seed: u64) -> Result<View, String> {
    recover_on(Arc::clone(device) as Arc<dyn Device>, seed)
}

/// The same on any device.
pub fn recover_on(device: Arc<dyn Device>, seed: u64) -> Result<View, String> {
    let clock = SimClock::new();
    let fs =
        driver::open(device, &clock, derive(seed, 4)).map_err(|error| format!("recovery fails: {error}"))?;
    view::view(&fs).map_err(|error| format!("the recovered volume cannot be read: {error}"))
}

/// Files that grow have zeros behind what was their end: what a crash has cut off does not come back.
pub(crate) fn grown(device: &Arc<SimDevice>, view: &View, seed: u64) -> Result<(), String> {
    let device = SimDevice::new(device.settled(), derive(seed, 8));
    let clock = SimClock::behind(view);
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 9))
        .map_err(|error| format!("the recovered volume does not open again: {error}"))?;
    for (file, content) in &view.contents {
        let mut want = content.clone();
        want.resize(content.size().next_multiple_of(PAGE) + PAGE);
        let size = SetAttr { size: Some(want.size()), ..SetAttr::default() };
        match fs.attributes().setattr(&Context::root(), ObjectNo(*file), &size, None) {
            Ok(_) => {}
            Err(Error::NoSpace) => continue,
            Err(error) => return Err(format!("file {file} cannot grow: {error}")),
        }
        let got = view::content(&fs, ObjectNo(*file), want.size()).map_err(|error| error.to_string())?;
        if let Some(at) = want.difference(&got) {
            return Err(format!(
                "file {file} ended at {}, and has {:?} at {at} when it grows",
                content.size(),
                got.range(at, at + 1)
            ));
        }
    }
    Ok(())
}

/// What the offline check has against a volume.
pub fn complaints(device: &dyn Device) -> Vec<String> {
    match check(device, CheckOptions::default().data(true).all(true)) {
        Ok(report) if report.is_sound() => Vec::new(),
        Ok(report) => {
            let errors =
                report.findings.iter().filter(|found| found.severity >= syncline_check::Severity::Error);
            errors.map(|found| format!("{} {}", found.code, found.message)).collect()
        }
        Err(error) => vec![error.to_string()],
    }
}

/// Crashes the recovery that `device` has recorded at each of its writes: the next recovery has to show what the
/// first one would have shown (R12). Somebody may have seen it: a recovery that has ended may have answered reads
/// before its last flush, and an open that failed may have been looked at read-only.
fn crash_recovery(device: &Arc<SimDevice>, view: &View, seed: u64, tally: &mut Tally) {
    let (base, trace) = device.recorded();
    let mut random = Random::new(derive(seed, 5));
    let all = states(&trace, 0, Effort { subsets: 1, torn: 1 }, Lie::None, &mut random);
    let mut builder = Builder::new(base, &trace, Lie::None);
    let mut disks: Vec<(String, Disk)> = Vec::new();
    for state in &all {
        let name =
            format!("crash behind event {} of recovery with survivors {:?}", state.event, state.survivors);
        disks.push((name, builder.build(state)));
    }
    disks.push(("recovery was not disturbed".to_owned(), device.settled()));
    for (name, disk) in disks {
        tally.states += 1;
        tally.recovery_states += 1;
        match recover(&SimDevice::new(disk, derive(seed, 6)), derive(seed, 7)) {
            Ok(again) if again == *view => {}
            Ok(again) => {
                let difference = difference(view, &again);
                tally.violation(format!("a second recovery differs from the first: {difference} [{name}]"));
            }
            Err(what) => tally.violation(format!("after a crash of recovery: {what} [{name}]")),
        }
    }
}
