//! Snapshots and heads: workloads on a volume of version 2, in which trees come and go.
//!
//! [`run`] makes random ones: between the operations of a workload snapshots are made and deleted, heads are made of
//! snapshots, written to with workloads of their own, and deleted, the head is rolled back, and deletions go on a step
//! at a time. [`examine`] runs one that is written down; `ace` has all those of one and two operations.
//!
//! Each crash state has to show the snapshots and the heads of some moment that is not before the last acknowledged
//! one: each snapshot as it was when it was made, names, content and times, and each head as its own judge allows.
//! When a snapshot is made, it has to be what a crash could have left at that moment, with all metadata operations
//! (C10). Opened read-only, before anything recovers it, a state has to show the same as afterwards. What recovery
//! makes of a state has to stay so when recovery itself is cut. In the end all snapshots and all other heads are
//! deleted, and the offline check has to find nothing wrong.

use crate::crash::Effort;
use crate::device::{Disk, SimDevice};
use crate::driver::{self, SimClock, SimEntropy};
use crate::lab::{Depth, Start, Tally, guarded};
use crate::operation::Op;
use crate::oracle::{PAGE, View, difference};
use crate::random::{Random, derive};
use crate::{view, watchdog};
use judge::{Pains, judge};
use record::{MAIN, Recorder};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_device::Device;
use syncline_fs::{Error, Fs, FsOptions, MkfsOptions};

mod judge;
mod random;
mod record;

/// Blocks of the journal, and of the volumes, of random workloads.
const JOURNAL_BLOCKS: u64 = 96;
const BLOCKS: [u64; 3] = [1800, 2600, 5200];
/// Items of a node in half of the volumes, which have trees of several levels so, and a file's extents in several
/// leaves; and their blocks: there are many more nodes.
const NARROW: [usize; 3] = [4, 6, 10];
const BLOCKS_OF_NARROW: u64 = 6000;
/// How random workloads are judged.
const RANDOM: Pains = Pains {
    depth: Depth {
        effort: Effort { subsets: 2, torn: 1 },
        states_max: 50,
        check_every: 10,
        recovery_every: 25,
    },
    looked_at_every: 1,
    emptied_every: 10,
};

/// Snapshots or heads that people see, and what each shows.
pub type Shown = BTreeMap<String, View>;

/// One random workload of a seed.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- snapshots {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        match random::record(&start(seed), seed, tally) {
            Ok(run) => judge(&run, seed, RANDOM, tally),
            Err(what) => tally.violation(what),
        }
    })
}

/// Runs a workload and judges its crash states. Panics of the engine are violations.
pub fn examine(start: &Start, ops: &[Op], seed: u64, depth: Depth) -> Tally {
    let pains =
        Pains { depth, looked_at_every: depth.check_every, emptied_every: depth.check_every.max(2) * 4 };
    guarded(|tally| {
        tally.workloads += 1;
        let mut carry_out = || {
            let mut recorder = Recorder::begin(start, seed)?;
            for op in ops {
                recorder.carry_out(op, tally)?;
            }
            Ok::<_, String>(recorder.end(tally))
        };
        match carry_out() {
            Ok(run) => judge(&run, seed, pains, tally),
            Err(what) => tally.violation(what),
        }
    })
}

/// Makes a volume of version 2, runs the setup on it, and closes it.
pub fn prepare(blocks: u64, journal_blocks: u64, setup: &[Op], seed: u64) -> Start {
    prepare_narrow(blocks, journal_blocks, setup, seed, usize::MAX)
}

/// The same, with nodes that take so many items and no more.
pub fn prepare_narrow(
    blocks: u64,
    journal_blocks: u64,
    setup: &[Op],
    seed: u64,
    node_items_max: usize,
) -> Start {
    let mut empty = empty_volume(blocks, journal_blocks, MkfsOptions::default(), seed);
    empty.node_items_max = node_items_max;
    let mut recorder = Recorder::begin(&empty, derive(seed, 8)).expect("open after mkfs");
    let mut tally = Tally::default();
    for op in setup {
        recorder.carry_out(op, &mut tally).expect("the setup is carried out");
    }
    assert_eq!((tally.refused, tally.no_space), (0, 0), "nothing of the setup is refused");
    recorder.close().expect("close after the setup")
}

fn start(seed: u64) -> Start {
    let mut random = Random::new(derive(seed, 51));
    let mut blocks = *random.pick(&BLOCKS);
    let mut node_items_max = usize::MAX;
    if derive(seed, 66).is_multiple_of(2) {
        node_items_max = *random.pick(&NARROW);
        blocks = BLOCKS_OF_NARROW;
    }
    let mut options = MkfsOptions::default();
    if derive(seed, 57).is_multiple_of(2) {
        // All names collide.
        options.name_bits = 1;
    }
    Start { node_items_max, ..empty_volume(blocks, JOURNAL_BLOCKS, options, seed) }
}

fn empty_volume(blocks: u64, journal_blocks: u64, options: MkfsOptions, seed: u64) -> Start {
    let device = SimDevice::new(Disk::new(blocks), seed);
    let options = options.journal_bytes(journal_blocks * PAGE);
    Fs::format(&*device, &options, &*SimClock::new(), &SimEntropy::new(seed), &mut |_, _| {})
        .expect("mkfs on a sound device");
    let fs = open(&device, &SimClock::new(), seed, usize::MAX).expect("open after mkfs");
    let view = view::view(&fs).expect("view of an empty volume");
    fs.close().expect("close");
    Start::new(device.settled(), view)
}

fn open(
    device: &Arc<SimDevice>,
    clock: &Arc<SimClock>,
    seed: u64,
    node_items_max: usize,
) -> Result<Arc<Fs>, Error> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    driver::open_narrow(device, clock, derive(seed, 52), node_items_max)
}

fn read_only(device: &Arc<SimDevice>, seed: u64) -> Result<Arc<Fs>, String> {
    let options = FsOptions::default().memory_bytes_max(8 << 20).read_only(true);
    Fs::open(device.clone(), options, SimClock::new(), &SimEntropy::new(seed))
        .map_err(|error| format!("the volume does not open read-only: {error}"))
}

/// What the snapshots of a volume show.
pub(crate) fn snapshots(fs: &Fs) -> Result<Shown, String> {
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
