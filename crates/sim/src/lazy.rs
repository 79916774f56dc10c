//! Oracle C: a volume that is used while it is fetched from its replica loses nothing, whenever the machine crashes.
//!
//! A workload is shipped to a simulated store, and the machine is lost, with the volume closed or not. Then the volume
//! is begun anew from there on an empty device, and another workload runs on it while the rest is fetched, or is not.
//! Every crash state of that device is opened: as an image that is not all here, where it says so, else as any image.
//! It is recovered, and judged by what the second workload had acknowledged. Then the rest is fetched, and the image
//! has to be one like any other, which shows the same.

use crate::crash::{Builder, CrashState, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver::{self, SimClock, Told};
use crate::lab::{Start, Tally, complaints, guarded, recover, recover_on};
use crate::objects::{Network, SimStore};
use crate::operation::Op;
use crate::oracle::{Model, View, difference};
use crate::random::{Random, derive};
use crate::replicas::{self, Marks, Replica};
use crate::{view, workload};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::Device;
use syncline_format::replica::Partial;
use syncline_replica::newest::Newest;
use syncline_replica::{Answer, LazyDevice, Operation, Phase, Restore, Source, StoreError, Target};

/// Crash states of one run that are opened, at most.
const STATES_MAX: usize = 40;
const EFFORT: Effort = Effort { subsets: 1, torn: 2 };

/// The store, as the device asks it.
#[derive(Clone)]
struct Asked {
    store: Arc<Mutex<SimStore>>,
    /// It answers nothing.
    down: Arc<AtomicBool>,
}

impl Source for Asked {
    fn get(&self, operations: &[Operation]) -> Vec<Result<Answer, StoreError>> {
        let mut store = self.store.lock();
        let down = self.down.load(Ordering::Relaxed);
        let no_answer = || Err(StoreError::Unavailable("no answer".to_owned()));
        operations
            .iter()
            .map(|operation| if down { no_answer() } else { store.carry_out(operation) })
            .collect()
    }
}

/// One run from a seed.
pub fn run(seed: u64) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let (start, ops) = workload::round(seed, 0).expect("a first round");
        let (first, second) = ops.split_at(ops.len() / 2);
        if let Err(what) = examine(&start, first, second, seed, tally) {
            tally.violation(what);
        }
    })
}

/// Half of the runs fetch what lies around what is read.
fn around(seed: u64) -> u64 {
    (derive(seed, 49) % 2) * (16 << 10)
}

fn examine(start: &Start, first: &[Op], second: &[Op], seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(derive(seed, 40));
    let store = ship(start, first, seed, &mut random, tally)?;
    let asked = Asked { store: Arc::new(Mutex::new(store)), down: Arc::default() };
    let (end, newest) = plan(&asked, Target::Newest)?;
    let partial = Partial { uuid: replicas::UUID, blocks: end.2, claim: end.0, unit: end.1 };
    // What the volume shows there.
    let restored = replicas::restore(&mut asked.store.lock(), Target::Newest)?;
    let view = recover(&SimDevice::new(restored, derive(seed, 41)), derive(seed, 42))?;

    let device = SimDevice::new(Disk::new(LazyDevice::local_blocks(partial.blocks)), derive(seed, 43));
    let local = Arc::clone(&device) as Arc<dyn Device>;
    let lazy = LazyDevice::begin(local, partial, newest, asked.clone()).map_err(|error| error.to_string())?;
    let begun = device.position();
    let lazy = Arc::new(lazy.reading_around(around(seed)));
    let model = work(&lazy, &device, &view, second, &asked, seed, &mut random, tally)?;
    judge(&device, begun, &model, &asked, seed, &mut random, tally)
}

/// Ships a workload; the store that is left when the machine is lost.
fn ship(
    start: &Start,
    ops: &[Op],
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<SimStore, String> {
    let sim = SimDevice::new(start.disk.clone(), derive(seed, 2));
    let marks = Arc::new(Marks::new(&sim));
    let mut replica = Replica::open(&marks, sim.blocks(), Network::GOOD, seed, random)?;
    replica.until(|replicator| *replicator.phase() == Phase::Streaming)?;
    let closes = random.one_in(2);
    let tap = replica.tap();
    replicas::work(start, ops, seed, &tap, &marks, &mut replica, random, tally, closes)
        .ok_or_else(|| tally.violations.pop().map_or_else(String::new, |found| found.what))?;
    if closes {
        replica.close()?;
    }
    Ok(replica.into_store())
}

/// Claim, unit and blocks of where a restore ends, and where everything is.
fn plan(asked: &Asked, target: Target) -> Result<((u64, u64, u64), Newest), String> {
    let mut restore = Restore::planning(replicas::UUID, target);
    loop {
        for request in restore.poll(u64::MAX) {
            let result = asked.store.lock().carry_out(&request.operation);
            restore.answer(request.id, 0, result);
        }
        match (restore.outcome(), restore.plan()) {
            (Some(Ok(())), Some(plan)) => {
                let end = plan.end;
                return Ok(((end.claim, end.number, end.blocks), restore.into_newest()));
            }
            (Some(Err(error)), _) => return Err(format!("the replica cannot be planned: {error}")),
            _ => {}
        }
    }
}

/// Runs the workload while the rest is fetched, or is not.
#[allow(clippy::too_many_arguments)]
fn work(
    lazy: &Arc<LazyDevice>,
    device: &SimDevice,
    start: &View,
    ops: &[Op],
    asked: &Asked,
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<Model, String> {
    let clock = SimClock::behind(start);
    let fs = driver::open(Arc::clone(lazy) as Arc<dyn Device>, &clock, derive(seed, 44))
        .map_err(|error| format!("the volume does not open: {error}"))?;
    let mut model = Model::with_times(start);
    // Some fetch nothing but what is touched, some everything at once.
    let eager = random.below(4);
    let failed = |error: &dyn std::fmt::Display| format!("what is absent cannot be brought here: {error}");
    for op in ops {
        match driver::step(&fs, &clock, &mut model, op) {
            Ok(Told::Failed(errno)) => {
                return Err(format!("{op} fails with errno {errno} on a sound device"));
            }
            Ok(told) => tally.count(op, told),
            Err(wrong) => return Err(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want)),
        }
        view::note_times(&fs, &mut model, op)
            .map_err(|error| format!("attributes cannot be read after {op}: {error}"))?;
        device.acknowledge(model.syncs());
        for _ in 0..random.below(1 + eager) {
            match random.below(8) {
                0 => lazy.settle().map_err(|error| failed(&error))?,
                1 => drop(lazy.complete().map_err(|error| failed(&error))?),
                2 => {
                    asked.down.store(true, Ordering::Relaxed);
                    let _ = lazy.fetch_more(16);
                    asked.down.store(false, Ordering::Relaxed);
                }
                _ => drop(lazy.fetch_more(1 + random.below(48 << eager)).map_err(|error| failed(&error))?),
            }
        }
    }
    if lazy.is_whole() {
        tally.checks += 1;
    }
    Ok(model)
}

/// Opens crash states, and judges them.
fn judge(
    device: &SimDevice,
    begun: usize,
    model: &Model,
    asked: &Asked,
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), String> {
    let (base, trace) = device.recorded();
    tally.writes += trace.writes.len() as u64;
    tally.flushes += trace.flushes as u64;
    let mut all = states(&trace, begun, EFFORT, Lie::None, random);
    while all.len() > STATES_MAX {
        all.swap_remove(random.below(all.len() as u64) as usize);
    }
    all.sort_by_key(|state| state.event);
    let mut builder = Builder::new(base, &trace, Lie::None);
    for (number, state) in all.iter().enumerate() {
        tally.states += 1;
        let disk = builder.build(state);
        judge_one(disk, state, model, asked, derive(seed, 1000 + number as u64), random).map_err(|what| {
            format!("{what} [crash behind event {} with survivors {:?}]", state.event, state.survivors)
        })?;
    }
    Ok(())
}

fn judge_one(
    disk: Disk,
    state: &CrashState,
    model: &Model,
    asked: &Asked,
    seed: u64,
    random: &mut Random,
) -> Result<(), String> {
    let device = SimDevice::new(disk, seed);
    let partial = LazyDevice::is_partial(&*device).map_err(|error| format!("behind the volume: {error}"))?;
    let (over, lazy): (Arc<dyn Device>, _) = match partial {
        None => (Arc::clone(&device) as Arc<dyn Device>, None),
        Some(partial) => {
            let (end, newest) = plan(asked, Target::Position(partial.claim, partial.unit))?;
            if (end.0, end.1) != (partial.claim, partial.unit) {
                return Err(format!("another unit is found: {end:?}"));
            }
            let local = Arc::clone(&device) as Arc<dyn Device>;
            let lazy = LazyDevice::go_on(local, partial, newest, asked.clone());
            let lazy = lazy.map_err(|error| format!("it does not go on: {error}"))?;
            let lazy = Arc::new(lazy.reading_around(around(seed)));
            (Arc::clone(&lazy) as Arc<dyn Device>, Some(lazy))
        }
    };
    let view = recover_on(over, seed)?;
    model
        .judge(&view, state.acknowledged)
        .map_err(|violation| format!("{} syncs acknowledged: {violation:?}", state.acknowledged))?;
    let Some(lazy) = lazy.filter(|_| random.one_in(3)) else { return Ok(()) };
    let failed = |error: &dyn std::fmt::Display| format!("the rest cannot be fetched: {error}");
    while lazy.fetch_more(1 << random.below(10)).map_err(|error| failed(&error))? {}
    if !lazy.complete().map_err(|error| failed(&error))? || !lazy.is_whole() {
        return Err(format!("everything was fetched, and {} blocks are absent", lazy.absent()));
    }
    drop(lazy);
    // What a power cut leaves of it, at least.
    let whole = SimDevice::new(crate::crash::durable(&device), derive(seed, 1));
    let again = recover(&whole, derive(seed, 2))?;
    if again != view {
        return Err(format!(
            "the image that is all here shows something else: {}",
            difference(&view, &again)
        ));
    }
    match complaints(&*SimDevice::new(whole.settled(), 0)).first() {
        None => Ok(()),
        Some(complaint) => Err(format!("check of the image that is all here: {complaint}")),
    }
}
