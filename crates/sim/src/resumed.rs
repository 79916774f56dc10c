//! Oracle A for a volume that goes on with its replica: what has changed since is found by generations.
//!
//! Sessions follow each other on one volume. Most ship it; some use it without its replica. They end by a close, with
//! everything shipped or not, or by a crash, which leaves any of its states; now and then an image is set back to a
//! moment before. Each session that ships goes on as the product does: by cuts alone behind a close, else by what may
//! have changed, else by all blocks. Every consistent unit is restored and judged like a crash (C13). Half of the
//! volumes have snapshots, and every snapshot that is restored has to show what it showed when it was made (C10).

use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Disk, SimDevice};
use crate::driver::{self, SimClock, SimEntropy, Told};
use crate::lab::{Start, Tally, guarded, recover};
use crate::objects::{Network, SimStore};
use crate::operation::{AllocateKind, Op};
use crate::oracle::{Model, View};
use crate::random::{Random, derive};
use crate::replicas::{self, Judged, Marks, Replica, UUID};
use crate::{view, workload};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_fs::{Fs, MkfsOptions, SnapshotData};
use syncline_replica::newest::Newest;
use syncline_replica::runs::RunSet;
use syncline_replica::{Opened, Opener, Opening, Phase, ReplicaError, changed};

const JOURNAL_BLOCKS: u64 = 96;
const BLOCKS: [u64; 2] = [1800, 5200];
const EFFORT: Effort = Effort { subsets: 2, torn: 2 };
/// Events in front of the last one to which an image is set back, at most.
const SET_BACK_MAX: usize = 400;

/// What came of the sessions that could go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// By cuts alone.
    pub exact: u64,
    /// By what may have changed.
    pub by_generations: u64,
    /// By all blocks, with the checksums of what is there.
    pub whole: u64,
    /// Refused, because the image was set back.
    pub set_back: u64,
    /// Blocks that may have changed, and those of the volumes, of sessions that went on by generations.
    pub changed: u64,
    pub of: u64,
    pub snapshots: u64,
}

/// A snapshot, and from which sync of its session on it has to be there, and up to which.
struct Made {
    shown: View,
    from: usize,
    upto: usize,
}

struct Line {
    seed: u64,
    random: Random,
    start: Start,
    /// Snapshots of the volume as it is.
    snapshots: BTreeMap<String, View>,
    has_trees: bool,
    store: SimStore,
    claim: u64,
    /// What the volume's mark says.
    holds: u64,
    names: u64,
    events: Events,
}

/// One run from a seed.
pub fn run(seed: u64) -> Tally {
    run_counting(seed).0
}

/// The same, and what came of its sessions.
pub fn run_counting(seed: u64) -> (Tally, Events) {
    let mut events = Events::default();
    let tally = guarded(|tally| {
        tally.workloads += 1;
        let mut line = Line::new(seed);
        if let Err(what) = line.run(tally) {
            tally.violation(what);
        }
        events = line.events;
    });
    (tally, events)
}

/// A volume, empty.
fn made(blocks: u64, has_trees: bool, seed: u64) -> Start {
    let device = SimDevice::new(Disk::new(blocks), seed);
    let bytes = JOURNAL_BLOCKS * syncline_format::BLOCK_BYTES as u64;
    let options = MkfsOptions::default().journal_bytes(bytes).format(if has_trees { 2 } else { 1 });
    Fs::format(&*device, &options, &*SimClock::new(), &SimEntropy::new(seed), &mut |_, _| {})
        .expect("mkfs on a sound device");
    let over = Arc::clone(&device) as Arc<dyn Device>;
    let fs = driver::open(over, &SimClock::new(), seed).expect("open after mkfs");
    let view = view::view(&fs).expect("view of an empty volume");
    fs.close().expect("close");
    Start::new(device.settled(), view)
}

/// The superblock that counts.
fn superblock(disk: &Disk) -> Result<Superblock, String> {
    let slots = SUPERBLOCK_SLOTS.iter().filter_map(|slot| {
        let page = disk.get(slot.0)?;
        Superblock::decode(&page[..], *slot, disk.blocks()).ok()
    });
    slots.max_by_key(Superblock::rank).ok_or_else(|| "the volume has no superblock".to_owned())
}

fn shown(fs: &Fs) -> Result<BTreeMap<String, View>, String> {
    let names = fs.snapshots().into_iter().map(|snapshot| snapshot.name);
    names
        .map(|name| {
            let at = fs.at(&name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
            let view = view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))?;
            Ok((name, view))
        })
        .collect()
}

fn shown_on(device: &Arc<SimDevice>, seed: u64) -> Result<BTreeMap<String, View>, String> {
    let fs = driver::open(Arc::clone(device) as Arc<dyn Device>, &SimClock::new(), seed)
        .map_err(|error| format!("the volume does not open once more: {error}"))?;
    shown(&fs)
}

impl Line {
    fn new(seed: u64) -> Line {
        let mut random = Random::new(derive(seed, 60));
        let has_trees = random.one_in(2);
        let start = made(*random.pick(&BLOCKS), has_trees, derive(seed, 61));
        let network = if random.one_in(2) { Network::GOOD } else { Network::BAD };
        Line {
            seed,
            random,
            start,
            snapshots: BTreeMap::new(),
            has_trees,
            store: SimStore::new(network, derive(seed, 62)),
            claim: 0,
            holds: 0,
            names: 0,
            events: Events::default(),
        }
    }

    fn run(&mut self, tally: &mut Tally) -> Result<(), String> {
        let sessions = 2 + self.random.below(4);
        for number in 0..sessions {
            let seed = derive(self.seed, 100 + number);
            let is_alone = number > 0 && self.random.one_in(4);
            if is_alone {
                self.alone(seed, tally)?;
            } else if !self.shipped(seed, tally)? {
                break;
            }
        }
        Ok(())
    }

    fn operations(&mut self, seed: u64) -> Vec<Op> {
        // They are refused where a snapshot has the blocks, of which the model knows nothing.
        let moves =
            |op: &Op| matches!(op, Op::Falloc { kind: AllocateKind::Collapse | AllocateKind::Insert, .. });
        let mut ops = workload::operations(&self.start, derive(seed, 3), 1);
        ops.retain(|op| !self.has_trees || !moves(op));
        let count = if self.random.one_in(4) { 0 } else { self.random.below(1 + ops.len() as u64) };
        ops.truncate(count as usize);
        ops
    }

    /// A session without the replica.
    fn alone(&mut self, seed: u64, tally: &mut Tally) -> Result<(), String> {
        let sim = SimDevice::new(self.start.disk.clone(), derive(seed, 2));
        let closes = self.random.one_in(2);
        self.work(Arc::clone(&sim) as Arc<dyn Device>, None, closes, seed, tally)?;
        let disk = if closes { sim.settled() } else { self.crashed(&sim, false) };
        self.go_on_from(disk, seed)
    }

    /// A session that ships; `false` if the volume is refused.
    fn shipped(&mut self, seed: u64, tally: &mut Tally) -> Result<bool, String> {
        let sim = SimDevice::new(self.start.disk.clone(), derive(seed, 2));
        let superblock = superblock(&self.start.disk)?;
        let opened = match self.open(&superblock, seed) {
            Err(ReplicaError::SetBack { .. }) => {
                self.events.set_back += 1;
                return Ok(false);
            }
            opened => opened.map_err(|error| format!("the replica does not open: {error}"))?,
        };
        self.claim = opened.claim;
        let (before, unknown) = self.unknown(&sim, &superblock, &opened)?;
        let marks = Arc::new(Marks::new(&sim));
        let store = std::mem::replace(&mut self.store, SimStore::new(Network::GOOD, 0));
        let mut replica = Replica::over(store, &opened, &marks, before, unknown, &mut self.random);
        if self.random.one_in(2) {
            replica.until(|replicator| *replicator.phase() == Phase::Streaming)?;
        }
        let (closes, held) = (self.random.one_in(2), self.holds);
        let over = replica.tap() as Arc<dyn Device>;
        let (model, made) = self.work(over, Some((&marks, &mut replica)), closes, seed, tally)?;
        let is_shipped = closes && self.random.below(3) > 0;
        if is_shipped {
            replica.close()?;
            self.holds = replica.tail();
        }
        let snapshots = |device: &Arc<SimDevice>, acknowledged: usize| {
            let there = shown_on(device, derive(seed, 11))?;
            for (name, shown) in &there {
                if made.get(name).is_none_or(|made| made.shown != *shown) {
                    return Err(format!("C10: snapshot {name} shows something else"));
                }
            }
            let missing = made.iter().find(|(name, made)| {
                made.from <= acknowledged && acknowledged < made.upto && !there.contains_key(*name)
            });
            missing.map_or(Ok(()), |(name, _)| Err(format!("C10: snapshot {name} is not there")))
        };
        let judged = Judged {
            claim: opened.claim,
            sim: &sim,
            model: &model,
            at_flush: &marks.at_flush(),
            is_closed: is_shipped,
            also: &snapshots,
        };
        replicas::judge(&mut replica, &judged, seed, &mut self.random, tally);
        if !tally.violations.is_empty() {
            return Ok(false);
        }
        self.store = replica.into_store();
        let disk = match closes {
            true => sim.settled(),
            false => {
                let is_set_back = self.random.one_in(4);
                if is_set_back {
                    self.holds = held;
                }
                self.crashed(&sim, is_set_back)
            }
        };
        self.go_on_from(disk, seed)?;
        Ok(true)
    }

    /// Opens for writing, without anybody else.
    fn open(&mut self, superblock: &Superblock, seed: u64) -> Result<Opened, ReplicaError> {
        let mut opening = Opening::new(Opener {
            uuid: UUID,
            blocks: self.start.disk.blocks(),
            continued: self.claim,
            marked: 0,
            generation: Some(superblock.generation.0),
            take_over: false,
            nonce: derive(seed, 1),
            time: 1,
            process: 1,
            host: "laboratory".to_owned(),
        });
        loop {
            if opening.to_mark().is_some() {
                opening.marked();
            }
            for request in opening.poll(u64::MAX) {
                let result = self.store.carry_out(&request.operation);
                opening.answer(request.id, 0, result);
            }
            if let Some(outcome) = opening.outcome() {
                return outcome.clone();
            }
        }
    }

    /// What the replica holds, and what may be otherwise in the volume.
    fn unknown(
        &mut self,
        sim: &Arc<SimDevice>,
        superblock: &Superblock,
        opened: &Opened,
    ) -> Result<(Option<Newest>, RunSet), String> {
        let blocks = sim.blocks();
        let Some(last) = opened.last.filter(|_| opened.may_stream()) else {
            return Ok((None, RunSet::from(0..blocks)));
        };
        if opened.is_closed_at(superblock.epoch, superblock.generation.0) {
            self.events.exact += 1;
            self.holds = opened.tail;
            return Ok((None, RunSet::default()));
        }
        let before = replicas::planned(&mut self.store)?;
        if !opened.is_earlier(superblock, self.holds) {
            self.events.whole += 1;
            return Ok((Some(before), RunSet::from(0..blocks)));
        }
        self.holds = opened.tail;
        let found = changed::since(&**sim, superblock, &before, &last)
            .map_err(|unclear| format!("it is not clear what has changed: {unclear}"))?;
        self.events.by_generations += 1;
        self.events.changed += found.blocks.blocks();
        self.events.of += blocks;
        Ok((Some(before), found.blocks))
    }

    /// Runs a workload, with snapshots in between.
    fn work(
        &mut self,
        device: Arc<dyn Device>,
        mut shipping: Option<(&Marks, &mut Replica)>,
        closes: bool,
        seed: u64,
        tally: &mut Tally,
    ) -> Result<(Model, BTreeMap<String, Made>), String> {
        let clock = SimClock::behind(&self.start.view);
        let fs = driver::open(device, &clock, derive(seed, 4))
            .map_err(|error| format!("the volume does not open: {error}"))?;
        let mut model = Model::with_times(&self.start.view);
        let earlier = std::mem::take(&mut self.snapshots).into_iter();
        let mut made: BTreeMap<String, Made> =
            earlier.map(|(name, shown)| (name, Made { shown, from: 0, upto: usize::MAX })).collect();
        let ops = self.operations(seed);
        // Some time before its end, or not, it cannot reach the store any more.
        let cut_off = self.random.below(1 + 2 * ops.len() as u64) as usize;
        for (number, op) in ops.into_iter().enumerate() {
            match driver::step(&fs, &clock, &mut model, &op) {
                Ok(Told::Failed(errno)) => {
                    return Err(format!("{op} fails with errno {errno} on a sound device"));
                }
                Ok(told) => tally.count(&op, told),
                Err(wrong) => {
                    return Err(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want));
                }
            }
            view::note_times(&fs, &mut model, &op)
                .map_err(|error| format!("attributes cannot be read after {op}: {error}"))?;
            if let Some((marks, _)) = &shipping {
                marks.acknowledge(model.syncs());
            }
            if self.has_trees && self.random.one_in(16) {
                self.snapshot(&fs, &mut model, &mut made, seed)?;
            }
            if let Some((marks, replica)) = &mut shipping {
                marks.acknowledge(model.syncs());
                if number < cut_off {
                    (0..self.random.below(6)).for_each(|_| replica.step());
                }
            }
        }
        if closes {
            fs.close().map_err(|error| format!("the volume does not close: {error}"))?;
        } else if let Some((_, replica)) = shipping.filter(|_| self.random.one_in(2)) {
            (0..self.random.below(30)).for_each(|_| replica.step());
        }
        Ok((model, made))
    }

    fn snapshot(
        &mut self,
        fs: &Arc<Fs>,
        model: &mut Model,
        made: &mut BTreeMap<String, Made>,
        seed: u64,
    ) -> Result<(), String> {
        let there: Vec<String> = fs.snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        if there.len() > 2 && self.random.one_in(2) {
            let name = self.random.pick(&there);
            // From here on it may be gone.
            made.entry(name.clone()).and_modify(|made| made.upto = model.syncs());
            let deleted = fs.delete_snapshot(name);
            return deleted.map_err(|error| format!("snapshot {name} is not deleted: {error}"));
        }
        self.names += 1;
        let name = format!("t{}", self.names);
        let entropy = SimEntropy::new(derive(seed, 1000 + self.names));
        match driver::make_snapshot(fs, &name, SnapshotData::Written, &entropy) {
            Ok(()) => {}
            Err(syncline_fs::Error::NoSpace) => return Ok(()),
            Err(error) => return Err(format!("snapshot {name} is not made: {error}")),
        }
        let at = fs.at(&name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        let shown = view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))?;
        model.sync(None);
        self.events.snapshots += 1;
        made.insert(name, Made { shown, from: model.syncs(), upto: usize::MAX });
        Ok(())
    }

    /// What a crash leaves: at the end, or for an image that is set back some time in front of it.
    fn crashed(&mut self, sim: &SimDevice, is_set_back: bool) -> Disk {
        let (base, trace) = sim.recorded();
        // Half of those that are set back stay behind the same checkpoint, mostly.
        let most = if self.random.one_in(2) { SET_BACK_MAX } else { SET_BACK_MAX / 20 };
        let back = if is_set_back { self.random.below(1 + most as u64) as usize } else { 0 };
        let from = trace.events.len().saturating_sub(back);
        let mut all = states(&trace, from, EFFORT, Lie::None, &mut self.random);
        if is_set_back {
            let upto = all.iter().position(|state| state.event > from).unwrap_or(all.len());
            all.truncate(upto.max(1));
        }
        if all.is_empty() {
            return crate::crash::durable(sim);
        }
        let state = all.swap_remove(self.random.below(all.len() as u64) as usize);
        Builder::new(base, &trace, Lie::None).build(&state)
    }

    /// What is there is what the next session begins with.
    fn go_on_from(&mut self, disk: Disk, seed: u64) -> Result<(), String> {
        let copy = SimDevice::new(disk.clone(), derive(seed, 6));
        let view = recover(&copy, derive(seed, 7))?;
        if self.has_trees {
            self.snapshots = shown_on(&copy, derive(seed, 8))?;
        }
        self.start = Start::new(disk, view);
        Ok(())
    }
}
