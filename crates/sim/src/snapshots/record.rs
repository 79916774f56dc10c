//! A volume with heads and snapshots: what is done to it, and what became of it.
//!
//! Whoever drives it says which operation comes next in which head. The recorder carries it out on the engine and on
//! the head's model. It notes what the trees show behind each change of them, and what was acknowledged by then.

use super::{Shown, differs, open, read_only, snapshots};
use crate::device::{Disk, SimDevice, Trace};
use crate::driver::{self, SimClock, SimEntropy, Told};
use crate::lab::{Start, Tally};
use crate::operation::Op;
use crate::oracle::{EEXIST, ENOENT, Model, PAGE, View, difference};
use crate::random::derive;
use crate::view;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_fs::{Clock, Error, Fs, Head, ObjectNo, SnapshotData, SyncScope};

/// Sixteenths of the ring's blocks that may be live images, what gives space back included.
const IMAGE_SIXTEENTHS: u64 = 6;

/// The first head.
pub(super) const MAIN: &str = "main";

/// The trees that people see from some moment on.
pub(super) struct Step {
    /// The acknowledgement of the call: an index into `Run::acks`.
    pub(super) ack: usize,
    pub(super) shown: Shown,
    /// Which model a head goes by.
    pub(super) heads: BTreeMap<String, usize>,
    /// Metadata operations of each model by then.
    pub(super) metas: Vec<usize>,
}

/// A recorded run.
pub(super) struct Run {
    pub(super) base: Disk,
    /// Items of a node at most, also in the sessions behind a crash.
    pub(super) node_items_max: usize,
    pub(super) trace: Trace,
    pub(super) opened: usize,
    pub(super) models: Vec<Model>,
    /// What had been acknowledged at some moments: how many syncs of each model.
    pub(super) acks: Vec<Vec<usize>>,
    /// The first is the start.
    pub(super) steps: Vec<Step>,
}

/// A head that is there. The main one is open as `Recorder::fs`.
struct Open {
    head: Option<Head>,
    model: usize,
}

/// Why something was not done.
pub(super) enum Trouble {
    /// The engine answers so.
    Told(Error),
    /// That must not be.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Told(error)
    }
}

impl From<String> for Trouble {
    fn from(what: String) -> Trouble {
        Trouble::Wrong(what)
    }
}

/// An open volume whose changes are recorded.
pub(super) struct Recorder {
    seed: u64,
    node_items_max: usize,
    device: Arc<SimDevice>,
    clock: Arc<SimClock>,
    fs: Arc<Fs>,
    opened: usize,
    heads: BTreeMap<String, Open>,
    /// Where operations are carried out that name no head.
    current: String,
    entropy: SimEntropy,
    models: Vec<Model>,
    acks: Vec<Vec<usize>>,
    steps: Vec<Step>,
    sessions: u64,
}

impl Recorder {
    /// Opens a volume.
    pub(super) fn begin(start: &Start, seed: u64) -> Result<Recorder, String> {
        let device = SimDevice::new(start.disk.clone(), derive(seed, 53));
        let clock = SimClock::behind(&start.view);
        let node_items_max = start.node_items_max;
        let fs = open(&device, &clock, seed, node_items_max)
            .map_err(|error| format!("the volume does not open: {error}"))?;
        let opened = device.position();
        let heads = BTreeMap::from([(MAIN.to_owned(), 0)]);
        let first = Step { ack: 0, shown: start.snapshots.clone(), heads, metas: vec![0] };
        Ok(Recorder {
            seed,
            node_items_max,
            device,
            clock,
            fs,
            opened,
            heads: BTreeMap::from([(MAIN.to_owned(), Open { head: None, model: 0 })]),
            current: MAIN.to_owned(),
            entropy: SimEntropy::new(derive(seed, 55)),
            models: vec![Model::with_times(&start.view)],
            acks: vec![vec![0]],
            steps: vec![first],
            sessions: 0,
        })
    }

    /// What was done so far, and what is shown without any crash.
    pub(super) fn end(self, tally: &mut Tally) -> Run {
        let (base, trace) = self.device.recorded();
        if let Err(what) = self.check_running() {
            tally.violation(format!("at the end, {what}"));
        }
        tally.writes += trace.writes.len() as u64;
        tally.flushes += trace.flushes as u64;
        let Recorder { node_items_max, opened, models, acks, steps, .. } = self;
        Run { base, node_items_max, trace, opened, models, acks, steps }
    }

    /// Closes the volume.
    pub(super) fn close(self) -> Result<Start, String> {
        self.check_running()?;
        let view = view::view(&self.fs).map_err(|error| error.to_string())?;
        self.fs.close().map_err(|error| format!("the volume cannot be closed: {error}"))?;
        let snapshots = self.shown().clone();
        Ok(Start { disk: self.device.settled(), view, snapshots, node_items_max: self.node_items_max })
    }

    pub(super) fn volume(&self) -> &Arc<Fs> {
        &self.fs
    }

    pub(super) fn entropy(&self) -> &SimEntropy {
        &self.entropy
    }

    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.keys().cloned().collect()
    }

    pub(super) fn fs_of(&self, head: &str) -> Arc<Fs> {
        let opened = self.heads[head].head.as_ref();
        opened.map_or_else(|| self.fs.clone(), |head| head.fs().clone())
    }

    /// What the snapshots show.
    pub(super) fn shown(&self) -> &Shown {
        &self.steps.last().expect("the start at least").shown
    }

    /// Carries out an operation of a workload that is written down.
    pub(super) fn carry_out(&mut self, op: &Op, tally: &mut Tally) -> Result<(), String> {
        let current = self.current.clone();
        let want = self.refusal(op);
        let done = match op {
            Op::Snap { name, now: false } => self.make(&current, name, SnapshotData::Written),
            Op::Snap { name, now: true } => self.make(&current, name, SnapshotData::Committed),
            Op::SnapDelete(name) => self.delete(name),
            Op::Clone { of, name } => self.clone_of(of, name),
            Op::Head(name) => self.enter(name),
            Op::Rollback { to, keep } => self.roll_back(to, keep.as_deref()),
            Op::Reap => self.reap(),
            _ => {
                let told = self.step(&current, op, tally)?;
                return match told == Told::NoSpace && op.needs_no_space() {
                    true => Err(format!("C8: {op} needs no space, and finds none")),
                    false => Ok(()),
                };
            }
        };
        let told = match (done, want) {
            (Ok(()), None) => Told::Done,
            (Err(Trouble::Told(error)), Some(want)) if error.errno() == want => Told::Refused(want),
            (Err(Trouble::Told(Error::NoSpace)), None) if may_lack_space(op) => Told::NoSpace,
            (Err(Trouble::Wrong(what)), _) => return Err(what),
            (Err(Trouble::Told(error)), want) => {
                return Err(format!("{op} answers '{error}', want {want:?} (errno)"));
            }
            (Ok(()), Some(want)) => return Err(format!("{op} succeeds, want {want} (errno)")),
        };
        tally.count(op, told);
        Ok(())
    }

    /// What a change of the trees has to be answered with.
    fn refusal(&self, op: &Op) -> Option<i32> {
        let is_shown = |name: &String| self.shown().contains_key(name);
        let is_taken = |name: &String| is_shown(name) || self.heads.contains_key(name);
        match op {
            Op::Snap { name, .. } if is_taken(name) => Some(EEXIST),
            Op::SnapDelete(name) if !is_shown(name) => Some(ENOENT),
            Op::Clone { of, .. } if !is_shown(of) => Some(ENOENT),
            Op::Clone { name, .. } if is_taken(name) => Some(EEXIST),
            Op::Head(name) if !self.heads.contains_key(name) => Some(ENOENT),
            Op::Rollback { keep: Some(keep), .. } if is_taken(keep) => Some(EEXIST),
            Op::Rollback { to, .. } if !is_shown(to) => Some(ENOENT),
            _ => None,
        }
    }

    /// One operation on the files of a head.
    pub(super) fn step(&mut self, head: &str, op: &Op, tally: &mut Tally) -> Result<Told, String> {
        let (fs, index) = (self.fs_of(head), self.heads[head].model);
        let model = &mut self.models[index];
        let syncs = model.syncs();
        let told = match driver::step(&fs, &self.clock, model, op) {
            Ok(Told::Failed(errno)) => {
                return Err(format!("in {head}, {op} fails with errno {errno} on a sound device"));
            }
            Ok(told) => told,
            Err(wrong) => {
                let (got, want) = (wrong.got, wrong.want);
                return Err(format!("in {head}, {op} answers {got:?}, want {want:?} (errno)"));
            }
        };
        tally.count(op, told);
        view::note_times(&fs, model, op)
            .map_err(|error| format!("in {head}, attributes cannot be read after {op}: {error}"))?;
        // What the background has made durable is what was old enough, and not all up to now.
        if model.syncs() > syncs && !matches!(op, Op::Maintain { .. }) {
            self.order_others(index);
        }
        self.acknowledge();
        self.check_room()?;
        Ok(told)
    }

    /// There are no more live images, of heads and snapshots together, than the ring keeps room for to log all of them
    /// once more (R17, R26): on a sound volume that room is never needed, so nothing else would tell that it lacks.
    fn check_room(&self) -> Result<(), String> {
        let load = self.fs.stats().load;
        let ring = load.ring_bytes_max / PAGE;
        match load.images * 16 <= ring * IMAGE_SIXTEENTHS {
            true => Ok(()),
            false => Err(format!("R26: {} images live in a ring of {ring} blocks", load.images)),
        }
    }

    /// Syncs each file of a head alone: small ones live in the journal then, and a snapshot inherits them.
    pub(super) fn sync_each(&mut self, head: &str) -> Result<(), Error> {
        let (fs, index) = (self.fs_of(head), self.heads[head].model);
        for ino in self.models[index].alive() {
            fs.files().sync_inode(ObjectNo(ino), SyncScope::All)?;
        }
        self.models[index].sync(None);
        self.order_others(index);
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

    /// The call that made this of the trees has returned.
    fn told(&mut self, shown: Shown) {
        let ack = self.acknowledge();
        let heads = self.heads.iter().map(|(name, open)| (name.clone(), open.model)).collect();
        let metas = self.models.iter().map(Model::metas).collect();
        self.steps.push(Step { ack, shown, heads, metas });
    }

    /// Makes a snapshot of a head.
    pub(super) fn make(&mut self, head: &str, name: &str, data: SnapshotData) -> Result<(), Trouble> {
        let (fs, index) = (self.fs_of(head), self.heads[head].model);
        driver::make_snapshot(&fs, name, data, &self.entropy)?;
        let view = self.look_at(name)?;
        let model = &mut self.models[index];
        match data {
            SnapshotData::Written if view != model.live() => {
                let what = difference(&model.live(), &view);
                return Err(format!("snapshot {name} lacks what was written before it: {what}").into());
            }
            // All that was written before is in it, so it is durable (C10).
            SnapshotData::Written => drop(model.sync(None)),
            SnapshotData::Committed => {
                if let Err(violation) = model.judge_now(&view) {
                    let what = format!("snapshot {name} is not what a crash would have left: {violation:?}");
                    return Err(what.into());
                }
                model.sync(Some(0));
            }
        }
        self.order_others(index);
        let mut shown = self.shown().clone();
        shown.insert(name.to_owned(), view);
        self.told(shown);
        Ok(self.check_room()?)
    }

    /// What a snapshot shows. Nobody who uses the volume notices that somebody looks: on the volume itself it would be
    /// settled.
    fn look_at(&self, name: &str) -> Result<View, String> {
        let copy = SimDevice::new(self.device.completed(), derive(self.seed, 64));
        let fs = read_only(&copy, derive(self.seed, 65))?;
        let at = fs.at(name).map_err(|error| format!("snapshot {name} does not open: {error}"))?;
        view::view(&at).map_err(|error| format!("snapshot {name} cannot be read: {error}"))
    }

    /// Deletes a snapshot.
    pub(super) fn delete(&mut self, name: &str) -> Result<(), Trouble> {
        self.fs.delete_snapshot(name)?;
        let mut shown = self.shown().clone();
        shown.remove(name);
        // The order of metadata is durable up to here (C2), and no content.
        self.order_others(usize::MAX);
        self.told(shown);
        Ok(())
    }

    /// One step of the background, in which no time passes.
    pub(super) fn reap(&mut self) -> Result<(), Trouble> {
        Ok(self.fs.maintain(self.clock.now(), 1).map(drop)?)
    }

    /// Makes a head of a snapshot, and opens it.
    pub(super) fn clone_of(&mut self, of: &str, name: &str) -> Result<(), Trouble> {
        self.fs.heads().make(of, name, &self.entropy)?;
        self.order_others(usize::MAX);
        let model = Model::with_times(&self.shown()[of]);
        self.models.push(model);
        self.heads.insert(name.to_owned(), Open { head: None, model: self.models.len() - 1 });
        let shown = self.shown().clone();
        self.told(shown);
        let head = Some(self.fs.heads().open(name)?);
        self.heads.entry(name.to_owned()).and_modify(|open| open.head = head);
        Ok(())
    }

    /// What names no head is done in this one from here on.
    fn enter(&mut self, name: &str) -> Result<(), Trouble> {
        match self.heads.contains_key(name) {
            true => self.current = name.to_owned(),
            false => return Err(Error::NotFound.into()),
        }
        Ok(())
    }

    /// Deletes a head other than the main one.
    pub(super) fn delete_head(&mut self, name: &str) -> Result<(), Trouble> {
        let Some(mut open) = self.heads.remove(name) else { return Ok(()) };
        open.head = None;
        if let Err(error) = self.fs.heads().delete(name) {
            open.head = Some(self.fs.heads().open(name)?);
            self.heads.insert(name.to_owned(), open);
            return Err(error.into());
        }
        self.order_others(usize::MAX);
        let shown = self.shown().clone();
        self.told(shown);
        Ok(())
    }

    /// Rolls the main head back, and opens the volume again.
    pub(super) fn roll_back(&mut self, to: &str, keep: Option<&str>) -> Result<(), Trouble> {
        let mut shown = self.shown().clone();
        if let Some(name) = keep {
            shown.insert(name.to_owned(), view::view(&self.fs)?);
        }
        self.fs.heads().roll_back(to, keep, &self.entropy)?;
        self.models.push(Model::with_times(&self.shown()[to]));
        let model = self.models.len() - 1;
        self.heads.insert(MAIN.to_owned(), Open { head: None, model });
        self.order_others(model);
        self.told(shown);
        // All heads end with the session, and everything of them is written.
        self.heads.values_mut().for_each(|open| open.head = None);
        self.fs.close()?;
        for open in self.heads.values() {
            self.models[open.model].sync(None);
        }
        self.acknowledge();
        self.sessions += 1;
        let seed = derive(self.seed, 1000 + self.sessions);
        self.fs = open(&self.device, &self.clock, seed, self.node_items_max)?;
        for name in self.heads().into_iter().filter(|name| name != MAIN) {
            let head = self.fs.heads().open(&name)?;
            self.heads.entry(name).and_modify(|open| open.head = Some(head));
        }
        self.current = MAIN.to_owned();
        Ok(())
    }

    /// What is shown without any crash.
    fn check_running(&self) -> Result<(), String> {
        let shown = snapshots(&self.fs)?;
        if shown != *self.shown() {
            return Err(differs("snapshot", self.shown(), &shown));
        }
        for (name, open) in &self.heads {
            let view = view::view(&self.fs_of(name)).map_err(|error| format!("head {name}: {error}"))?;
            let live = self.models[open.model].live();
            if view != live {
                let what = difference(&live, &view);
                return Err(format!("head {name} does not show what was done: {what}"));
            }
        }
        Ok(())
    }
}

/// Whether a change of the trees may be refused on a full volume. A deletion never is (R33).
fn may_lack_space(op: &Op) -> bool {
    !matches!(op, Op::SnapDelete(_) | Op::Reap | Op::Head(_))
}
