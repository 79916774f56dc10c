//! What is done to a volume with several heads, and what became of it.

use super::{Shown, differs, open, operations, snapshots};
use crate::device::{Disk, SimDevice, Trace};
use crate::driver::{self, SimClock, SimEntropy, Told};
use crate::lab::{Start, Tally};
use crate::operation::Op;
use crate::oracle::{Model, View};
use crate::random::{Random, derive};
use crate::view;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use syncline_fs::{Error, Fs, Head, ObjectNo, SnapshotData, SyncScope};

/// The first head.
pub(super) const MAIN: &str = "main";
/// Heads at a time.
const HEADS_MAX: usize = 3;

/// The trees that people see from some moment on.
pub(super) struct Step {
    /// The acknowledgement of the call: an index into `Run::acks`.
    pub(super) ack: usize,
    pub(super) shown: Shown,
    /// Which model a head goes by.
    pub(super) heads: BTreeMap<String, usize>,
}

/// A recorded run.
pub(super) struct Run {
    pub(super) base: Disk,
    pub(super) trace: Trace,
    pub(super) opened: usize,
    pub(super) models: Vec<Model>,
    /// What had been acknowledged at some moments: how many syncs of each model.
    pub(super) acks: Vec<Vec<usize>>,
    /// The first is the start.
    pub(super) steps: Vec<Step>,
}

/// A head that is open; the main one is `Recorder::fs`.
struct Open {
    head: Option<Head>,
    model: usize,
    ops: VecDeque<Op>,
}

/// Somebody who reads a snapshot for long, and what it shows.
struct Reader {
    name: String,
    fs: Arc<Fs>,
    wanted: View,
}

struct Recorder<'a> {
    start: &'a Start,
    seed: u64,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    fs: Arc<Fs>,
    heads: BTreeMap<String, Open>,
    reader: Option<Reader>,
    random: Random,
    entropy: SimEntropy,
    models: Vec<Model>,
    acks: Vec<Vec<usize>>,
    steps: Vec<Step>,
    names: u64,
}

/// Runs the workloads of the heads, with snapshots in between.
pub(super) fn record(start: &Start, seed: u64, tally: &mut Tally) -> Option<Run> {
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
    let main = Open { head: None, model: 0, ops: VecDeque::new() };
    let first = Step { ack: 0, shown: Shown::new(), heads: BTreeMap::from([(MAIN.to_owned(), 0)]) };
    let mut recorder = Recorder {
        start,
        seed,
        device,
        clock,
        fs,
        heads: BTreeMap::from([(MAIN.to_owned(), main)]),
        reader: None,
        random: Random::new(derive(seed, 54)),
        entropy: SimEntropy::new(derive(seed, 55)),
        models: vec![Model::with_times(&start.view)],
        acks: vec![vec![0]],
        steps: vec![first],
        names: 0,
    };
    if let Err(what) = recorder.run(operations(start, seed), tally) {
        tally.violation(what);
        return None;
    }
    let (base, trace) = recorder.device.recorded();
    if let Err(what) = recorder.end() {
        tally.violation(format!("at the end, {what}"));
    }
    tally.writes += trace.writes.len() as u64;
    tally.flushes += trace.flushes as u64;
    let Recorder { models, acks, steps, .. } = recorder;
    Some(Run { base, trace, opened, models, acks, steps })
}

impl Recorder<'_> {
    fn run(&mut self, ops: Vec<Op>, tally: &mut Tally) -> Result<(), String> {
        for op in ops {
            self.step(MAIN, &op, tally)?;
            let others: Vec<String> = self.heads.keys().filter(|name| *name != MAIN).cloned().collect();
            for name in others {
                if self.random.one_in(3) {
                    continue;
                }
                if let Some(op) = self.heads.get_mut(&name).and_then(|open| open.ops.pop_front()) {
                    self.step(&name, &op, tally)?;
                }
            }
            let done = match self.random.below(22) {
                0 | 1 => self.make(),
                2 | 3 => self.delete(),
                4..=7 => self.fs.maintain(syncline_fs::Clock::now(&*self.clock), 1).map(drop),
                8 if self.reader.is_none() => self.begin_reading(),
                9 | 10 => self.clone(tally),
                11 => self.delete_head(),
                13 => self.compare(),
                12 if self.reader.is_none() => self.roll_back(tally),
                _ => Ok(()),
            };
            self.end_reading(&op)?;
            match done {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => return Err(format!("behind {op}, trees cannot be changed: {error}")),
            }
        }
        Ok(())
    }

    fn fs_of(&self, name: &str) -> Arc<Fs> {
        let head = self.heads[name].head.as_ref();
        head.map_or_else(|| self.fs.clone(), |head| head.fs().clone())
    }

    /// One operation in a head.
    fn step(&mut self, name: &str, op: &Op, tally: &mut Tally) -> Result<(), String> {
        let (fs, index) = (self.fs_of(name), self.heads[name].model);
        let model = &mut self.models[index];
        let syncs = model.syncs();
        match driver::step(&fs, &self.clock, model, op) {
            Ok(Told::Failed(errno)) => {
                return Err(format!("in {name}, {op} fails with errno {errno} on a sound device"));
            }
            Ok(told) => tally.count(op, told),
            Err(wrong) => {
                let (got, want) = (wrong.got, wrong.want);
                return Err(format!("in {name}, {op} answers {got:?}, want {want:?} (errno)"));
            }
        }
        view::note_times(&fs, model, op)
            .map_err(|error| format!("in {name}, attributes cannot be read after {op}: {error}"))?;
        // What the background has made durable is what was old enough, and not all up to now.
        if model.syncs() > syncs && !matches!(op, Op::Maintain { .. }) {
            self.order_others(index);
        }
        self.acknowledge();
        Ok(())
    }

    /// A sync makes what happened before to names in other heads durable as well, and no content (C12).
    fn order_others(&mut self, index: usize) {
        for open in self.heads.values().filter(|open| open.model != index) {
            self.models[open.model].sync(Some(0));
        }
    }

    /// What the models hold for synced was acknowledged.
    fn acknowledge(&mut self) -> usize {
        let syncs: Vec<usize> = self.models.iter().map(Model::syncs).collect();
        if self.acks.last() != Some(&syncs) {
            self.acks.push(syncs);
        }
        self.device.acknowledge(self.acks.len() - 1);
        self.acks.len() - 1
    }

    fn last(&self) -> &Step {
        self.steps.last().expect("the start at least")
    }

    /// The call that made this of the trees has returned.
    fn told(&mut self, shown: Shown) {
        let ack = self.acknowledge();
        let heads = self.heads.iter().map(|(name, open)| (name.clone(), open.model)).collect();
        self.steps.push(Step { ack, shown, heads });
    }

    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    fn any_head(&mut self) -> String {
        let names: Vec<String> = self.heads.keys().cloned().collect();
        self.random.pick(&names).clone()
    }

    fn make(&mut self) -> Result<(), Error> {
        let (name, head) = (self.next_name(), self.any_head());
        let (fs, index) = (self.fs_of(&head), self.heads[&head].model);
        let data = match self.random.one_in(2) {
            true => SnapshotData::Written,
            false => {
                // Synced one by one, small ones live in the journal: the snapshot inherits them.
                for ino in self.models[index].alive() {
                    fs.files().sync_inode(ObjectNo(ino), SyncScope::All)?;
                }
                SnapshotData::Committed
            }
        };
        fs.snapshot(&name, data, &self.entropy)?;
        let mut shown = self.last().shown.clone();
        shown.insert(name, view::view(&fs)?);
        // All that was written before is in it, so it is durable (C10).
        self.models[index].sync(None);
        self.order_others(index);
        self.told(shown);
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Error> {
        let mut shown = self.last().shown.clone();
        let names: Vec<String> = shown.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        // The newest, beside whose deletion the head goes on, as often as all others together.
        let newest = self.fs.snapshots().pop().map(|snapshot| snapshot.name);
        let is_newest = self.random.one_in(2);
        let name = newest.filter(|_| is_newest).unwrap_or_else(|| self.random.pick(&names).clone());
        self.fs.delete_snapshot(&name)?;
        shown.remove(&name);
        // The order of metadata is durable up to here (C2), and no content.
        self.order_others(usize::MAX);
        self.told(shown);
        Ok(())
    }

    /// What differs between a snapshot and the head: of what is made for that no crash leaves anything.
    fn compare(&mut self) -> Result<(), Error> {
        let Some((name, _)) = self.any_snapshot() else { return Ok(()) };
        let head = self.any_head();
        self.fs_of(&head).difference(&name, None, true, &self.entropy).map(drop)
    }

    /// Some snapshot.
    fn any_snapshot(&mut self) -> Option<(String, View)> {
        let count = self.last().shown.len() as u64;
        let index = self.random.below(count.max(1)) as usize;
        self.last().shown.iter().nth(index).map(|(name, view)| (name.clone(), view.clone()))
    }

    /// Makes a head of some snapshot, with a workload of its own.
    fn clone(&mut self, tally: &mut Tally) -> Result<(), Error> {
        let Some((of, view)) = self.any_snapshot().filter(|_| self.heads.len() < HEADS_MAX) else {
            return Ok(());
        };
        let name = self.next_name();
        self.fs.heads().make(&of, &name, &self.entropy)?;
        *tally.by_operation.entry("clone").or_default() += 1;
        self.order_others(usize::MAX);
        self.models.push(Model::with_times(&view));
        let start = Start { disk: self.start.disk.clone(), view };
        // A seed that leaves the volume's space to all.
        let ops = operations(&start, derive(self.seed, 100 + self.names));
        let head = Some(self.fs.heads().open(&name)?);
        let model = self.models.len() - 1;
        self.heads.insert(name, Open { head, model, ops: ops.into() });
        let shown = self.last().shown.clone();
        self.told(shown);
        Ok(())
    }

    fn delete_head(&mut self) -> Result<(), Error> {
        let name = self.any_head();
        if name == MAIN {
            return Ok(());
        }
        let Some(mut open) = self.heads.remove(&name) else { return Ok(()) };
        open.head = None;
        if let Err(error) = self.fs.heads().delete(&name) {
            open.head = Some(self.fs.heads().open(&name)?);
            self.heads.insert(name, open);
            return Err(error);
        }
        self.order_others(usize::MAX);
        let shown = self.last().shown.clone();
        self.told(shown);
        Ok(())
    }

    /// Rolls the main head back, and opens the volume again.
    fn roll_back(&mut self, tally: &mut Tally) -> Result<(), Error> {
        let Some((to, view)) = self.any_snapshot() else { return Ok(()) };
        let keep = self.random.one_in(2).then(|| self.next_name());
        let mut shown = self.last().shown.clone();
        if let Some(name) = &keep {
            shown.insert(name.clone(), view::view(&self.fs)?);
        }
        let rolled = self.fs.heads().roll_back(&to, keep.as_deref(), &self.entropy);
        if rolled.is_ok() {
            *tally.by_operation.entry("rollback").or_default() += 1;
            self.models.push(Model::with_times(&view));
            let model = self.models.len() - 1;
            self.heads.insert(MAIN.to_owned(), Open { head: None, model, ops: VecDeque::new() });
            self.order_others(model);
            self.told(shown);
        }
        // All heads end with the session, and everything of them is written.
        self.heads.values_mut().for_each(|open| open.head = None);
        self.fs.close()?;
        for open in self.heads.values() {
            self.models[open.model].sync(None);
        }
        self.acknowledge();
        self.fs = open(&self.device, &self.clock, derive(self.seed, 1000 + self.names))?;
        let names: Vec<String> = self.heads.keys().filter(|name| *name != MAIN).cloned().collect();
        for name in names {
            let head = self.fs.heads().open(&name)?;
            self.heads.entry(name).and_modify(|open| open.head = Some(head));
        }
        rolled
    }

    /// Opens some snapshot, to be read later.
    fn begin_reading(&mut self) -> Result<(), Error> {
        let Some((name, wanted)) = self.any_snapshot() else { return Ok(()) };
        self.reader = Some(Reader { fs: self.fs.at(&name)?, name, wanted });
        Ok(())
    }

    fn end_reading(&mut self, op: &Op) -> Result<(), String> {
        let random = &mut self.random;
        match self.reader.take_if(|_| random.one_in(8)) {
            Some(Reader { name, fs, wanted }) if view::view(&fs).as_ref() != Ok(&wanted) => {
                Err(format!("behind {op}, snapshot {name} is not for its reader what it was"))
            }
            _ => Ok(()),
        }
    }

    /// What is shown without any crash.
    fn end(&self) -> Result<(), String> {
        let shown = snapshots(&self.fs)?;
        if shown != self.last().shown {
            return Err(differs("snapshot", &self.last().shown, &shown));
        }
        for (name, open) in &self.heads {
            let view = view::view(&self.fs_of(name)).map_err(|error| format!("head {name}: {error}"))?;
            if view.names != self.models[open.model].live().names {
                return Err(format!("head {name} shows other names than its operations have made"));
            }
        }
        Ok(())
    }
}
