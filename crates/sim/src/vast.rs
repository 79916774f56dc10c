//! Truncations that take several batches, beside another thread on the same file.
//!
//! A file of several hundred extents loses them batch by batch. Meanwhile somebody else writes into a page, appends,
//! zeroes, sets the size or reads. None of the pages is in memory when that begins, and a third thread reads so much
//! that pages leave memory. What comes of it has to be what some order of theirs gives, also where the file grows
//! again, and also when the volume is opened again.
//!
//! Threads are real: a seed determines who does what, and how long the second waits for the first.

use crate::device::SimDevice;
use crate::driver::{self, SimClock};
use crate::lab::{Start, Tally, complaints, guarded, prepare};
use crate::operation::{AllocateKind, Op, WriteKind, to_text};
use crate::oracle::{Model, PAGE};
use crate::random::{Random, derive};
use crate::{view, watchdog};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, OnceLock};
use syncline_device::Device;
use syncline_fs::{Fs, ObjectNo};

const BLOCKS: u64 = 8192;
const JOURNAL_BLOCKS: u64 = 128;
/// Extents of the file, a page each, with a hole behind it: far more than one batch frees.
const EXTENTS: u64 = 600;
const FILE: &str = "vast";
/// Read to fill memory: more than the fewest pages that a cache has.
const OTHER: &str = "other";
const OTHER_BYTES: u64 = 9 << 20;

fn start() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let write = |path: &str, offset, len, fill| {
            let kind = WriteKind::Buffered;
            Op::Write { path: path.to_owned(), kind, offset, len, fill }
        };
        let mut setup = vec![Op::Creat(OTHER.to_owned()), write(OTHER, 0, OTHER_BYTES, 5)];
        setup.push(Op::Creat(FILE.to_owned()));
        setup.extend((0..EXTENTS).map(|number| write(FILE, 2 * number * PAGE, PAGE, (number % 250) as u8)));
        setup.extend([Op::Sync, Op::Maintain { milliseconds: 6000 }, Op::Checkpoint]);
        prepare(BLOCKS, JOURNAL_BLOCKS, &setup, 81)
    })
}

/// Writes of the second thread that follow one another: each may be the one that has looked at the file before it is
/// cut, and at its page behind that.
const WRITES: u64 = 12;

/// What the second thread does.
fn others(random: &mut Random) -> Vec<Op> {
    if random.one_in(4) {
        return vec![other(random)];
    }
    // Into parts of pages that are stored.
    let mut write = || Op::Write {
        path: FILE.to_owned(),
        kind: WriteKind::Buffered,
        offset: 2 * random.below(EXTENTS) * PAGE + random.below(PAGE - 20),
        len: 10,
        fill: random.below(250) as u8,
    };
    (0..WRITES).map(|_| write()).collect()
}

fn other(random: &mut Random) -> Op {
    let path = FILE.to_owned();
    let page = random.below(2 * EXTENTS);
    let (offset, fill) = (page * PAGE + random.below(PAGE), random.below(250) as u8);
    let falloc = |kind, len| Op::Falloc { path: path.clone(), kind, offset, len };
    match random.below(8) {
        0..=3 => Op::Write { path, kind: WriteKind::Buffered, offset, len: 1 + random.below(2 * PAGE), fill },
        4 => Op::Truncate { path, size: offset },
        5 => falloc(AllocateKind::Zero, 1 + random.below(3 * PAGE)),
        6 => falloc(AllocateKind::Punch, 1 + random.below(3 * PAGE)),
        _ => falloc(AllocateKind::Grow, 1 + random.below(3 * PAGE)),
    }
}

/// One truncation.
pub fn run(seed: u64) -> Tally {
    watchdog::replayed_by(format!("cargo run --release -p syncline-sim -- vast --seed {seed}"));
    guarded(|tally| {
        tally.workloads += 1;
        if let Err(what) = truncated(seed, tally) {
            tally.violation(what);
        }
    })
}

fn truncated(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(derive(seed, 71));
    let device = SimDevice::new(start().disk.clone(), derive(seed, 72));
    let clock = SimClock::behind(&start().view);
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 73))
        .map_err(|error| format!("the volume does not open: {error}"))?;
    device.let_others_in();
    let size = if random.one_in(2) { 0 } else { random.below(40 * PAGE) };
    let cut = Op::Truncate { path: FILE.to_owned(), size };
    let others = others(&mut random);
    let later = if random.one_in(2) { 0 } else { random.below(30_000) };
    let told = beside(&fs, &clock, &cut, &others, later)?;
    tally.operations += 1 + others.len() as u64;
    let orders: Vec<Model> = (0..=others.len()).map(|before| in_order(&cut, &others, before)).collect();
    let told =
        |what: String| format!("{cut}, beside {}: {what} (the others are told {told:?})", to_text(&others));
    let file = inode(&fs, FILE)?;
    let shown = read(&fs, file)?;
    let fits = orders.iter().position(|model| content(model).is_ok_and(|wanted| wanted == shown));
    let Some(fits) = fits else {
        let sizes: Vec<usize> = orders.iter().filter_map(|model| Some(content(model).ok()?.len())).collect();
        return Err(told(format!("{} bytes are shown as in no order, which has {sizes:?}", shown.len())));
    };
    // Grown, it has zeros behind what was its end.
    let grow = Op::Truncate { path: FILE.to_owned(), size: 2 * EXTENTS * PAGE + 5000 };
    let mut model = orders[fits].clone();
    for op in [grow, Op::Sync] {
        driver::step(&fs, &clock, &mut model, &op).map_err(|wrong| told(format!("{wrong:?}")))?;
    }
    let wanted = content(&model).map_err(|errno| told(format!("errno {errno}")))?;
    if read(&fs, file)? != wanted {
        return Err(told("grown, the file shows what was cut off".to_owned()));
    }
    drop(fs);
    let again = SimDevice::new(device.settled(), derive(seed, 74));
    tally.states += 1;
    let fs = driver::open(Arc::clone(&again) as Arc<dyn Device>, &clock, derive(seed, 75))
        .map_err(|error| told(format!("the volume does not open again: {error}")))?;
    if read(&fs, file)? != wanted {
        return Err(told("opened again, the file shows something else".to_owned()));
    }
    drop(fs);
    match complaints(&*SimDevice::new(again.settled(), 0)).pop() {
        Some(what) => Err(told(format!("check: {what}"))),
        None => Ok(()),
    }
}

/// Does both at once, the second a little later, while a third thread reads. What the second was told.
fn beside(fs: &Arc<Fs>, clock: &SimClock, cut: &Op, others: &[Op], later: u64) -> Result<Vec<i32>, String> {
    let (barrier, over) = (Barrier::new(3), AtomicBool::new(false));
    let act = |ops: &[Op], later: u64| -> Vec<i32> {
        barrier.wait();
        (0..later).for_each(|_| std::hint::spin_loop());
        ops.iter().filter_map(|op| driver::carry_out(fs, clock, op).err()).collect()
    };
    let cut = std::slice::from_ref(cut);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let file = inode(fs, OTHER)?;
            barrier.wait();
            while !over.load(Ordering::Relaxed) {
                read(fs, file)?;
            }
            Ok::<(), String>(())
        });
        let first = scope.spawn(|| act(cut, 0));
        let second = scope.spawn(|| act(others, later));
        let told = [first, second].map(|thread| thread.join());
        over.store(true, Ordering::Relaxed);
        let read = reader.join();
        let [Ok(first), Ok(second)] = told else { return Err("a thread has panicked".to_owned()) };
        read.map_err(|_| "a reader has panicked".to_owned())??;
        match first.first() {
            None => Ok(second),
            Some(errno) => Err(format!("a truncation answers errno {errno}")),
        }
    })
}

/// What the file is when so many of the others come before it is cut.
fn in_order(cut: &Op, others: &[Op], before: usize) -> Model {
    let mut model = Model::new(&start().view);
    for op in others[..before].iter().chain([cut]).chain(&others[before..]) {
        let written = if let Op::Write { len, .. } = op { *len } else { 0 };
        // An act that is refused in this order changes nothing in it.
        let _ = model.apply(op, 0, written);
    }
    model
}

fn content(model: &Model) -> Result<Vec<u8>, i32> {
    Ok(model.content_of(model.resolve(FILE)?).to_vec())
}

fn inode(fs: &Fs, name: &str) -> Result<ObjectNo, String> {
    let found = fs.names().lookup(ObjectNo::ROOT_DIR, name.as_bytes());
    found.map(|entry| entry.attr.inode).map_err(|error| format!("{name}: {error}"))
}

fn read(fs: &Fs, file: ObjectNo) -> Result<Vec<u8>, String> {
    let failed = |error| format!("file {file} cannot be read: {error}");
    let size = fs.attributes().getattr(file).map_err(failed)?.size;
    Ok(view::content(fs, file, size).map_err(failed)?.to_vec())
}
