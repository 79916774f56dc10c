//! Random workloads of several heads, with snapshots in between.

use super::Shown;
use super::record::{MAIN, Recorder, Run, Trouble};
use crate::lab::{Start, Tally};
use crate::operation::Op;
use crate::oracle::View;
use crate::random::{Random, derive};
use crate::{view, workload};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use syncline_fs::{Error, Fs, SnapshotData};

/// Heads at a time.
const HEADS_MAX: usize = 3;

/// Somebody who reads a snapshot for long, and what it shows.
struct Reader {
    name: String,
    fs: Arc<Fs>,
    wanted: View,
}

struct Wanderer<'a> {
    start: &'a Start,
    seed: u64,
    recorder: Recorder,
    /// What the heads other than the main one still have to do.
    ops: BTreeMap<String, VecDeque<Op>>,
    reader: Option<Reader>,
    random: Random,
    names: u64,
}

/// Runs the workloads of the heads, with snapshots in between.
pub(super) fn record(start: &Start, seed: u64, tally: &mut Tally) -> Result<Run, String> {
    let mut wanderer = Wanderer {
        start,
        seed,
        recorder: Recorder::begin(start, seed)?,
        ops: BTreeMap::new(),
        reader: None,
        random: Random::new(derive(seed, 54)),
        names: 0,
    };
    wanderer.run(operations(start, seed), tally)?;
    wanderer.reader = None;
    Ok(wanderer.recorder.end(tally))
}

/// A workload on what a tree shows.
fn operations(start: &Start, seed: u64) -> Vec<Op> {
    workload::operations(start, derive(seed, 50), 1)
}

impl Wanderer<'_> {
    fn run(&mut self, ops: Vec<Op>, tally: &mut Tally) -> Result<(), String> {
        for op in ops {
            self.recorder.step(MAIN, &op, tally)?;
            for (head, ops) in &mut self.ops {
                if self.random.one_in(3) {
                    continue;
                }
                if let Some(op) = ops.pop_front() {
                    self.recorder.step(head, &op, tally)?;
                }
            }
            let done = match self.random.below(22) {
                0 | 1 => self.make(),
                2 | 3 => self.delete(),
                4..=7 => self.recorder.reap(),
                8 if self.reader.is_none() => self.begin_reading(),
                9 | 10 => self.clone(tally),
                11 => self.delete_head(),
                13 => self.compare(),
                12 if self.reader.is_none() => self.roll_back(tally),
                _ => Ok(()),
            };
            self.end_reading(&op)?;
            match done {
                Ok(()) | Err(Trouble::Told(Error::NoSpace)) => {}
                Err(Trouble::Told(error)) => {
                    return Err(format!("behind {op}, trees cannot be changed: {error}"));
                }
                Err(Trouble::Wrong(what)) => return Err(format!("behind {op}, {what}")),
            }
        }
        Ok(())
    }

    fn next_name(&mut self) -> String {
        self.names += 1;
        format!("t{}", self.names)
    }

    fn any_head(&mut self) -> String {
        self.random.pick(&self.recorder.heads()).clone()
    }

    fn make(&mut self) -> Result<(), Trouble> {
        let (name, head) = (self.next_name(), self.any_head());
        let data = match self.random.below(4) {
            0 | 1 => SnapshotData::Written,
            // What is dirty is left out.
            2 => SnapshotData::Committed,
            _ => {
                self.recorder.sync_each(&head)?;
                SnapshotData::Committed
            }
        };
        self.recorder.make(&head, &name, data)
    }

    fn delete(&mut self) -> Result<(), Trouble> {
        let names: Vec<String> = self.recorder.shown().keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        // The newest, beside whose deletion the head goes on, as often as all others together.
        let newest = self.recorder.volume().snapshots().pop().map(|snapshot| snapshot.name);
        let is_newest = self.random.one_in(2);
        let name = newest.filter(|_| is_newest).unwrap_or_else(|| self.random.pick(&names).clone());
        self.recorder.delete(&name)
    }

    /// What differs between a snapshot and the head: of what is made for that no crash leaves anything.
    fn compare(&mut self) -> Result<(), Trouble> {
        let Some((name, _)) = self.any_snapshot() else { return Ok(()) };
        let head = self.any_head();
        let fs = self.recorder.fs_of(&head);
        Ok(fs.difference(&name, None, true, self.recorder.entropy()).map(drop)?)
    }

    /// Some snapshot.
    fn any_snapshot(&mut self) -> Option<(String, View)> {
        let shown: &Shown = self.recorder.shown();
        let index = self.random.below((shown.len() as u64).max(1)) as usize;
        shown.iter().nth(index).map(|(name, view)| (name.clone(), view.clone()))
    }

    /// Makes a head of some snapshot, with a workload of its own.
    fn clone(&mut self, tally: &mut Tally) -> Result<(), Trouble> {
        let is_room = self.recorder.heads().len() < HEADS_MAX;
        let Some((of, view)) = self.any_snapshot().filter(|_| is_room) else { return Ok(()) };
        let name = self.next_name();
        self.recorder.clone_of(&of, &name)?;
        *tally.by_operation.entry("clone").or_default() += 1;
        let start = Start::new(self.start.disk.clone(), view);
        // A seed that leaves the volume's space to all.
        let ops = operations(&start, derive(self.seed, 100 + self.names));
        self.ops.insert(name, ops.into());
        Ok(())
    }

    fn delete_head(&mut self) -> Result<(), Trouble> {
        let name = self.any_head();
        if name == MAIN {
            return Ok(());
        }
        self.recorder.delete_head(&name)?;
        self.ops.remove(&name);
        Ok(())
    }

    fn roll_back(&mut self, tally: &mut Tally) -> Result<(), Trouble> {
        let Some((to, _)) = self.any_snapshot() else { return Ok(()) };
        let keep = self.random.one_in(2).then(|| self.next_name());
        self.recorder.roll_back(&to, keep.as_deref())?;
        *tally.by_operation.entry("rollback").or_default() += 1;
        Ok(())
    }

    /// Opens some snapshot, to be read later.
    fn begin_reading(&mut self) -> Result<(), Trouble> {
        let Some((name, wanted)) = self.any_snapshot() else { return Ok(()) };
        self.reader = Some(Reader { fs: self.recorder.volume().at(&name)?, name, wanted });
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
}
