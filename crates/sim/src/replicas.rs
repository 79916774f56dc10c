//! Oracle A: everything that is shipped is a crash state that the judge accepts.
//!
//! A workload runs on the engine over the tap over the simulated device, while a replicator ships to a simulated
//! store. Then the volume is restored from every consistent unit, recovered, and judged like a crash with what was
//! acknowledged when the unit's last flush was issued (C13). Half of the runs have shipped their base before the
//! workload begins, so that each unit holds few cuts; in the others blocks are read from the device while it is written
//! to. Some have so little memory that contents are dropped again and again.

use crate::device::{Disk, Page, SimDevice};
use crate::driver::{self, SimClock, Told};
use crate::lab::{Start, Tally, guarded, recover};
use crate::objects::{Network, SimStore};
use crate::operation::Op;
use crate::oracle::Model;
use crate::random::{Random, derive};
use crate::{reuse, view, workload};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::{Device, Layer, Ticket};
use syncline_format::BLOCK_BYTES;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_replica::{
    Opened, Opener, Opening, Phase, Replicator, Restore, Settings, TapDevice, Target, Unit,
};

/// The uuid under which everything is shipped.
const UUID: [u8; 16] = [7; 16];
/// Units that are restored of one run, at most; the last one always is.
const RESTORES_MAX: usize = 24;
/// Steps until the end of something that has to end.
const STEPS_MAX: usize = 200_000;

/// One run from a seed.
pub fn run(number: u64, seed: u64) -> Tally {
    guarded(|tally| {
        let mut random = Random::new(derive(seed, 1));
        let (start, mut ops) = match number % 3 {
            0 => {
                let work = reuse::workload(number / 3 * 101 % reuse::COUNT, seed);
                let start = reuse::start(work.free).expect("the workloads name volumes that there are");
                (start.clone(), work.ops)
            }
            _ => workload::round(seed, 0).expect("a first round"),
        };
        let mut at = 0;
        while number.is_multiple_of(3) && at < ops.len() {
            at += 1 + random.below(4) as usize;
            ops.insert(at.min(ops.len()), Op::Trim);
        }
        examine(&start, &ops, seed, &mut random, tally);
    })
}

/// Notes what was acknowledged when each flush was issued.
struct Marks {
    below: Arc<SimDevice>,
    acknowledged: AtomicUsize,
    at_flush: Mutex<Vec<usize>>,
}

impl Layer for Marks {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    fn on_flush(&self) -> Ticket {
        self.at_flush.lock().push(self.acknowledged.load(Ordering::Relaxed));
        self.below.submit_flush()
    }
}

/// A replicator and its store.
struct Replica {
    store: SimStore,
    replicator: Replicator,
    now: u64,
    /// What counts, by number of the unit.
    counted: BTreeMap<u64, Unit>,
}

impl Replica {
    /// Lets a little happen.
    fn step(&mut self) {
        let requests = self.replicator.poll(self.now);
        self.store.send(0, self.now, requests);
        let due = self.store.next().into_iter().chain(self.replicator.next_due()).min();
        self.now = due.unwrap_or(self.now + 1).max(self.now + 1);
        for (_, id, result) in self.store.advance(self.now) {
            self.replicator.answer(id, self.now, result);
        }
        self.counted.extend(self.replicator.take_counted().into_iter().map(|unit| (unit.number, unit)));
    }

    fn until(&mut self, mut done: impl FnMut(&Replicator) -> bool) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if done(&self.replicator) {
                return Ok(());
            }
            self.step();
        }
        Err(format!("the replicator does not get on: {:?}", self.replicator.status(self.now)))
    }
}

/// Opens for writing, without anybody else.
fn open(store: &mut SimStore, blocks: u64) -> Result<Opened, String> {
    let opener = Opener {
        uuid: UUID,
        blocks,
        continued: 0,
        marked: 0,
        generation: None,
        take_over: false,
        nonce: 1,
        time: 1,
        process: 1,
        host: "laboratory".to_owned(),
    };
    let mut opening = Opening::new(opener);
    loop {
        if opening.to_mark().is_some() {
            opening.marked();
        }
        for request in opening.poll(u64::MAX) {
            let result = store.carry_out(&request.operation);
            opening.answer(request.id, 0, result);
        }
        if let Some(outcome) = opening.outcome() {
            return outcome.clone().map_err(|error| format!("the replica does not open: {error}"));
        }
    }
}

fn examine(start: &Start, ops: &[Op], seed: u64, random: &mut Random, tally: &mut Tally) {
    tally.workloads += 1;
    let sim = SimDevice::new(start.disk.clone(), derive(seed, 2));
    let marks = Arc::new(Marks {
        below: Arc::clone(&sim),
        acknowledged: AtomicUsize::new(0),
        at_flush: Mutex::new(Vec::new()),
    });
    let held = if random.one_in(3) { 64 << 10 } else { 32 << 20 };
    let tap = TapDevice::new(Arc::clone(&marks) as Arc<dyn Device>, held, sim.blocks());
    let network = if random.one_in(2) { Network::GOOD } else { Network::BAD };
    let mut store = SimStore::new(network, derive(seed, 3));
    let settings = Settings {
        interval: random.below(2) * 1_000_000,
        unit_bytes: 1 << (12 + random.below(10)),
        read_blocks: 256,
        rest_blocks: 1 << random.below(12),
    };
    let opened = match open(&mut store, sim.blocks()) {
        Ok(opened) => opened,
        Err(what) => return tally.violation(what),
    };
    let replicator = Replicator::new(Arc::clone(&tap), &opened, settings, 0);
    let mut replica = Replica { store, replicator, now: 1, counted: BTreeMap::new() };
    if random.one_in(2)
        && let Err(what) = replica.until(|replicator| *replicator.phase() == Phase::Streaming)
    {
        return tally.violation(what);
    }
    let Some(model) = work(start, ops, seed, &tap, &marks, &mut replica, random, tally) else { return };
    replica.replicator.close();
    if let Err(what) = replica.until(|replicator| *replicator.phase() == Phase::Closed) {
        return tally.violation(what);
    }
    if let Some(name) = replica.store.changed.first() {
        return tally.violation(format!("P4: {name} was put with other bytes"));
    }
    judge(&mut replica, &sim, &model, &marks.at_flush.lock(), seed, random, tally);
}

/// Runs the workload, and closes the volume.
#[allow(clippy::too_many_arguments)]
fn work(
    start: &Start,
    ops: &[Op],
    seed: u64,
    tap: &Arc<TapDevice>,
    marks: &Marks,
    replica: &mut Replica,
    random: &mut Random,
    tally: &mut Tally,
) -> Option<Model> {
    let clock = SimClock::behind(&start.view);
    let device = Arc::clone(tap) as Arc<dyn Device>;
    let fs = match driver::open(device, &clock, derive(seed, 4)) {
        Ok(fs) => fs,
        Err(error) => {
            tally.violation(format!("the volume does not open: {error}"));
            return None;
        }
    };
    let mut model = Model::with_times(&start.view);
    for op in ops {
        let told = match driver::step(&fs, &clock, &mut model, op) {
            Ok(Told::Failed(errno)) => Err(format!("{op} fails with errno {errno} on a sound device")),
            Ok(told) => Ok(told),
            Err(wrong) => Err(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want)),
        };
        match told {
            Ok(told) => tally.count(op, told),
            Err(what) => {
                tally.violation(what);
                return None;
            }
        }
        if let Err(error) = view::note_times(&fs, &mut model, op) {
            tally.violation(format!("attributes cannot be read after {op}: {error}"));
            return None;
        }
        marks.acknowledged.store(model.syncs(), Ordering::Relaxed);
        (0..random.below(6)).for_each(|_| replica.step());
    }
    if let Err(error) = fs.close() {
        tally.violation(format!("the volume does not close: {error}"));
        return None;
    }
    Some(model)
}

/// Restores units and judges what is there.
fn judge(
    replica: &mut Replica,
    sim: &SimDevice,
    model: &Model,
    at_flush: &[usize],
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) {
    let mut ends: Vec<Unit> = replica.counted.values().filter(|unit| unit.flush.is_some()).copied().collect();
    let last = ends.pop();
    while ends.len() > RESTORES_MAX {
        ends.swap_remove(random.below(ends.len() as u64) as usize);
    }
    for unit in ends.into_iter().chain(last) {
        let position = (1, unit.number);
        let disk = match restore(&mut replica.store, Target::Position(1, unit.number)) {
            Ok(disk) => disk,
            Err(what) => return tally.violation(format!("unit {position:?} cannot be restored: {what}")),
        };
        tally.states += 1;
        let flush = unit.flush.expect("only consistent units are ends");
        let acknowledged = at_flush[flush as usize - 1];
        let device = SimDevice::new(disk, derive(seed, 100 + unit.number));
        let judged = recover(&device, derive(seed, 5)).and_then(|view| {
            let allowed = model.judge(&view, acknowledged);
            allowed.map_err(|violation| format!("C13: {acknowledged} syncs acknowledged: {violation:?}"))
        });
        if let Err(what) = judged {
            return tally.violation(format!("{what} [restored from unit {position:?}, flush {flush}]"));
        }
        if unit.closed
            && let Err(what) = compare(&replica.store, sim)
        {
            return tally.violation(what);
        }
    }
    if last.is_none_or(|unit| !unit.closed) {
        tally.violation("the last unit that counts does not say that the volume was closed".to_owned());
    }
}

/// What a closed volume's replica says about it is what its superblock says.
fn compare(store: &SimStore, sim: &SimDevice) -> Result<(), String> {
    let disk = sim.settled();
    let slots = SUPERBLOCK_SLOTS.iter().filter_map(|slot| {
        let page: &Page = disk.get(slot.0)?;
        Superblock::decode(page, *slot, disk.blocks()).ok()
    });
    let newest = slots.max_by_key(Superblock::rank).ok_or("the volume has no superblock")?;
    let unit = store.objects().iter().rev().find(|(name, _)| name.contains("/u/")).map(|(_, bytes)| bytes);
    let unit = unit.ok_or("the replica has no unit")?;
    let outline = syncline_replica::unit::Outline::of(unit).map_err(|error| error.to_string())?;
    let header = outline.header;
    if (header.epoch, header.generation) != (newest.epoch, newest.generation.0) {
        return Err(format!("the last unit names another session or generation: {header:?}"));
    }
    Ok(())
}

/// Restores at once.
pub fn restore(store: &mut SimStore, target: Target) -> Result<Disk, String> {
    let mut restore = Restore::new(UUID, target);
    let mut disk = None;
    loop {
        for request in restore.poll(u64::MAX) {
            let result = store.carry_out(&request.operation);
            restore.answer(request.id, 0, result);
        }
        if let Some(plan) = restore.plan() {
            let disk = disk.get_or_insert_with(|| Disk::new(plan.end.blocks));
            for (at, buffer) in restore.take_writes() {
                for (block, page) in (at.0..).zip(buffer.chunks_exact(BLOCK_BYTES)) {
                    disk.put(block, Arc::new(page.try_into().expect("a whole block")));
                }
            }
        }
        match restore.outcome() {
            Some(Ok(())) => return disk.ok_or_else(|| "it ended without a plan".to_owned()),
            Some(Err(error)) => return Err(error.to_string()),
            None => {}
        }
    }
}
