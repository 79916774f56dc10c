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
use crate::objects::{Client, Network, SimStore};
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
use syncline_replica::newest::Newest;
use syncline_replica::runs::RunSet;
use syncline_replica::{
    Opened, Opener, Opening, Phase, Replicator, Restore, Settings, TapDevice, Target, Unit,
};

/// The uuid under which everything is shipped.
pub(crate) const UUID: [u8; 16] = [7; 16];
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
        match number % 4 {
            3 => examine_resumed(&start, &ops, seed, &mut random, tally)
                .unwrap_or_else(|what| tally.violation(what)),
            _ => examine(&start, &ops, seed, &mut random, tally),
        }
    })
}

/// Notes what was acknowledged when each flush was issued.
pub(crate) struct Marks {
    below: Arc<SimDevice>,
    acknowledged: AtomicUsize,
    at_flush: Mutex<Vec<usize>>,
}

impl Marks {
    pub(crate) fn new(below: &Arc<SimDevice>) -> Marks {
        let (acknowledged, at_flush) = (AtomicUsize::new(0), Mutex::default());
        Marks { below: Arc::clone(below), acknowledged, at_flush }
    }

    pub(crate) fn acknowledge(&self, syncs: usize) {
        self.acknowledged.store(syncs, Ordering::Relaxed);
    }

    pub(crate) fn at_flush(&self) -> Vec<usize> {
        self.at_flush.lock().clone()
    }
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
pub(crate) struct Replica {
    tap: Arc<TapDevice>,
    store: SimStore,
    client: Client,
    replicator: Replicator,
    now: u64,
    /// What counts, by number of the unit.
    counted: BTreeMap<u64, Unit>,
}

impl Replica {
    /// Opens for writing, without anybody else.
    pub(crate) fn open(
        marks: &Arc<Marks>,
        blocks: u64,
        network: Network,
        seed: u64,
        random: &mut Random,
    ) -> Result<Replica, String> {
        let mut store = SimStore::new(network, derive(seed, 3));
        let opened = open(&mut store, blocks, 0)?;
        Ok(Replica::over(store, &opened, marks, None, RunSet::from(0..blocks), random))
    }

    /// Ships to a store; `before` is what it holds of the volume, which may be otherwise in the blocks `unknown`.
    pub(crate) fn over(
        store: SimStore,
        opened: &Opened,
        marks: &Arc<Marks>,
        before: Option<Newest>,
        unknown: RunSet,
        random: &mut Random,
    ) -> Replica {
        let held = if random.one_in(3) { 64 << 10 } else { 32 << 20 };
        let tap = TapDevice::new(Arc::clone(marks) as Arc<dyn Device>, held, unknown);
        let settings = Settings {
            interval: random.below(2) * 1_000_000,
            unit_bytes: 1 << (12 + random.below(10)),
            read_blocks: 256,
            rest_blocks: 1 << random.below(12),
        };
        let replicator = match before {
            Some(before) => Replicator::resuming(Arc::clone(&tap), opened, settings, 0, before),
            None => Replicator::new(Arc::clone(&tap), opened, settings, 0),
        };
        let client = opened.claim as Client;
        Replica { tap, store, client, replicator, now: 1, counted: BTreeMap::new() }
    }

    pub(crate) fn tap(&self) -> Arc<TapDevice> {
        Arc::clone(&self.tap)
    }

    /// Behind the close of the volume: until everything counts.
    pub(crate) fn close(&mut self) -> Result<(), String> {
        self.replicator.close();
        self.until(|replicator| *replicator.phase() == Phase::Closed)
    }

    /// Identity of the last unit that was made.
    pub(crate) fn tail(&self) -> u64 {
        self.replicator.tail()
    }

    /// What is left when the machine is lost.
    pub(crate) fn into_store(self) -> SimStore {
        self.store
    }

    /// Lets a little happen.
    pub(crate) fn step(&mut self) {
        let requests = self.replicator.poll(self.now);
        self.store.send(self.client, self.now, requests);
        let due = self.store.next().into_iter().chain(self.replicator.next_due()).min();
        self.now = due.unwrap_or(self.now + 1).max(self.now + 1);
        for (client, id, result) in self.store.advance(self.now) {
            // What an earlier session had asked is answered to nobody.
            if client == self.client {
                self.replicator.answer(id, self.now, result);
            }
        }
        self.counted.extend(self.replicator.take_counted().into_iter().map(|unit| (unit.number, unit)));
    }

    pub(crate) fn until(&mut self, mut done: impl FnMut(&Replicator) -> bool) -> Result<(), String> {
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
fn open(store: &mut SimStore, blocks: u64, continued: u64) -> Result<Opened, String> {
    let opener = Opener {
        uuid: UUID,
        blocks,
        continued,
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
    let marks = Arc::new(Marks::new(&sim));
    let network = if random.one_in(2) { Network::GOOD } else { Network::BAD };
    let opened = Replica::open(&marks, sim.blocks(), network, seed, random);
    let mut replica = match opened {
        Ok(replica) => replica,
        Err(what) => return tally.violation(what),
    };
    let tap = replica.tap();
    if random.one_in(2)
        && let Err(what) = replica.until(|replicator| *replicator.phase() == Phase::Streaming)
    {
        return tally.violation(what);
    }
    let Some(model) = work(start, ops, seed, &tap, &marks, &mut replica, random, tally, true) else {
        return;
    };
    if let Err(what) = replica.close() {
        return tally.violation(what);
    }
    if let Some(name) = replica.store.changed.first() {
        return tally.violation(format!("P4: {name} was put with other bytes"));
    }
    let at_flush = marks.at_flush();
    let judged = Judged {
        claim: 1,
        sim: &sim,
        model: &model,
        at_flush: &at_flush,
        is_closed: true,
        also: &|_, _| Ok(()),
    };
    judge(&mut replica, &judged, seed, random, tally);
}

/// A session ends, by a close or a crash, with a part of it shipped or all; and another one goes on with the volume and
/// with its replica, to which it ships what differs.
fn examine_resumed(
    start: &Start,
    ops: &[Op],
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) -> Result<(), String> {
    tally.workloads += 1;
    let (first, second) = ops.split_at(ops.len() / 2);
    let found = |tally: &mut Tally| tally.violations.pop().map_or_else(String::new, |found| found.what);
    let sim = SimDevice::new(start.disk.clone(), derive(seed, 2));
    let marks = Arc::new(Marks::new(&sim));
    let network = if random.one_in(2) { Network::GOOD } else { Network::BAD };
    let mut replica = Replica::open(&marks, sim.blocks(), network, seed, random)?;
    if random.one_in(3) {
        replica.until(|replicator| *replicator.phase() == Phase::Streaming)?;
    }
    let (tap, closes) = (replica.tap(), random.one_in(3));
    let model = work(start, first, seed, &tap, &marks, &mut replica, random, tally, closes);
    drop((model.ok_or_else(|| found(tally))?, tap));
    let mut store = replica.into_store();
    let disk = if closes { sim.settled() } else { crate::crash::durable(&sim) };
    let view = recover(&SimDevice::new(disk.clone(), derive(seed, 6)), derive(seed, 7))?;

    let opened = open(&mut store, disk.blocks(), 1)?;
    let before = match opened.may_stream() && opened.last.is_some() {
        true => Some(planned(&mut store)?),
        false => None,
    };
    tally.checks += u64::from(before.is_some());
    let sim = SimDevice::new(disk.clone(), derive(seed, 8));
    let marks = Arc::new(Marks::new(&sim));
    let mut replica = Replica::over(store, &opened, &marks, before, RunSet::from(0..sim.blocks()), random);
    if random.one_in(2) {
        replica.until(|replicator| *replicator.phase() == Phase::Streaming)?;
    }
    let tap = replica.tap();
    let again = Start::new(disk, view);
    let model = work(&again, second, derive(seed, 9), &tap, &marks, &mut replica, random, tally, true);
    let model = model.ok_or_else(|| found(tally))?;
    replica.close()?;
    let (claim, at_flush) = (opened.claim, marks.at_flush());
    let judged = Judged {
        claim,
        sim: &sim,
        model: &model,
        at_flush: &at_flush,
        is_closed: true,
        also: &|_, _| Ok(()),
    };
    judge(&mut replica, &judged, seed, random, tally);
    Ok(())
}

/// Where everything is.
pub(crate) fn planned(store: &mut SimStore) -> Result<Newest, String> {
    let mut restore = Restore::planning(UUID, Target::Newest);
    loop {
        for request in restore.poll(u64::MAX) {
            let result = store.carry_out(&request.operation);
            restore.answer(request.id, 0, result);
        }
        match restore.outcome() {
            Some(Ok(())) => return Ok(restore.into_newest()),
            Some(Err(error)) => return Err(error.to_string()),
            None => {}
        }
    }
}

/// Runs the workload, and closes the volume, if it is to be closed.
#[allow(clippy::too_many_arguments)]
pub(crate) fn work(
    start: &Start,
    ops: &[Op],
    seed: u64,
    tap: &Arc<TapDevice>,
    marks: &Marks,
    replica: &mut Replica,
    random: &mut Random,
    tally: &mut Tally,
    closes: bool,
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
        marks.acknowledge(model.syncs());
        (0..random.below(6)).for_each(|_| replica.step());
    }
    if closes && let Err(error) = fs.close() {
        tally.violation(format!("the volume does not close: {error}"));
        return None;
    }
    Some(model)
}

/// Judges a volume that was restored and recovered, with what was acknowledged.
pub(crate) type Also<'a> = dyn Fn(&Arc<SimDevice>, usize) -> Result<(), String> + 'a;

/// What a session has done, by which its units are judged.
pub(crate) struct Judged<'a> {
    pub(crate) claim: u64,
    pub(crate) sim: &'a SimDevice,
    pub(crate) model: &'a Model,
    /// What was acknowledged when each flush was issued.
    pub(crate) at_flush: &'a [usize],
    /// The volume was closed, and all of it shipped.
    pub(crate) is_closed: bool,
    /// What else has to hold.
    pub(crate) also: &'a Also<'a>,
}

/// Restores units and judges what is there.
pub(crate) fn judge(
    replica: &mut Replica,
    judged: &Judged<'_>,
    seed: u64,
    random: &mut Random,
    tally: &mut Tally,
) {
    let Judged { claim, sim, model, at_flush, is_closed, also } = *judged;
    let mut ends: Vec<Unit> = replica.counted.values().filter(|unit| unit.flush.is_some()).copied().collect();
    let last = ends.pop();
    while ends.len() > RESTORES_MAX {
        ends.swap_remove(random.below(ends.len() as u64) as usize);
    }
    for unit in ends.into_iter().chain(last) {
        let position = (claim, unit.number);
        let disk = match restore(&mut replica.store, Target::Position(claim, unit.number)) {
            Ok(disk) => disk,
            Err(what) => return tally.violation(format!("unit {position:?} cannot be restored: {what}")),
        };
        tally.states += 1;
        let flush = unit.flush.expect("only consistent units are ends");
        let issued = flush.checked_sub(1).and_then(|index| at_flush.get(index as usize));
        let Some(&acknowledged) = issued else {
            let what =
                format!("C13: unit {position:?} says that it is consistent, and there is no flush {flush}");
            return tally.violation(what);
        };
        let device = SimDevice::new(disk, derive(seed, 100 + unit.number));
        let judged = recover(&device, derive(seed, 5)).and_then(|view| {
            let allowed = model.judge(&view, acknowledged);
            allowed.map_err(|violation| format!("C13: {acknowledged} syncs acknowledged: {violation:?}"))?;
            also(&device, acknowledged)
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
    if is_closed && last.is_none_or(|unit| !unit.closed) {
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
