//! Random operations on names and data against a model, with power cuts between and inside of them. After each cut the
//! offline check has to find nothing, and the recovered volume has to be what the contract allows: some prefix of the
//! operations on names that holds everything synced (C1, C2), every page of every file a version that is not older than
//! its last sync, no size without its data, no bytes that were cut off.
//!
//! Each run is made from its seed. `SYNCLINE_MODEL_SEEDS=FROM..END` runs others than the few of a normal test run.

mod device;
mod model;
mod operations;
mod verify;

use device::{CrashDevice, Random};
use model::{File, Kind, Names, Node, Number};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline::{Clock, Entropy, Fs, FsOptions, HandleId, MkfsOptions, ObjectNo, Timestamp};

const ROOT: Number = ObjectNo::ROOT_DIR.0;

#[derive(Default)]
pub struct ModelClock(AtomicU64);

impl Clock for ModelClock {
    fn now(&self) -> Timestamp {
        let milliseconds = self.0.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = (milliseconds % 1000) as u32 * 1_000_000;
        Timestamp { seconds: 1_000_000 + (milliseconds / 1000) as i64, nanoseconds }
    }
}

struct ModelEntropy(AtomicU64);

impl Entropy for ModelEntropy {
    fn number(&self) -> u64 {
        Random(self.0.fetch_add(1, Ordering::Relaxed)).next()
    }
}

/// One volume, and what it has to look like.
struct Run {
    random: Random,
    device: Arc<CrashDevice>,
    clock: Arc<ModelClock>,
    entropy: ModelEntropy,
    fs: Arc<Fs>,
    /// Everything happens below this directory.
    root: Number,
    /// The volume is small enough to be full at times.
    tight: bool,
    step: usize,
    /// The last step that a sync covers.
    durable: usize,
    names: Names,
    /// Names after every step since the last crash.
    history: BTreeMap<usize, Names>,
    files: BTreeMap<Number, File>,
    handles: Vec<(HandleId, Number)>,
    /// What was done, for the message of a failure.
    log: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let tight = random.one_in(4);
        let blocks = if tight { 1024 } else { 8192 };
        let device = CrashDevice::new(blocks, random.next());
        let clock = Arc::new(ModelClock::default());
        let entropy = ModelEntropy(AtomicU64::new(seed));
        let journal_bytes = Some(if random.one_in(2) { 1 << 20 } else { 2 << 20 });
        let mkfs = MkfsOptions { journal_bytes, ..MkfsOptions::default() };
        Fs::format(&*device, &mkfs, &*clock, &entropy, &mut |_, _| {}).expect("mkfs");
        let fs = Fs::open(device.clone(), options(), clock.clone(), &entropy).expect("open");
        let kind = Kind::Directory { parent: ROOT, entries: BTreeMap::new() };
        let root = Node { mode: 0o040755, nlink: 2, xattrs: BTreeMap::new(), kind };
        let names = Names { nodes: [(ROOT, root)].into() };
        let history = [(0, names.clone())].into();
        let (files, handles, log) = Default::default();
        Run {
            random,
            device,
            clock,
            entropy,
            fs,
            root: ROOT,
            tight,
            step: 0,
            durable: 0,
            names,
            history,
            files,
            handles,
            log,
        }
    }

    /// Some steps, up to a power cut; then recovery.
    fn session(&mut self) {
        if self.random.one_in(2) {
            let writes = self.random.below(60);
            self.device.power_off_after(writes);
        }
        for _ in 0..20 + self.random.below(60) {
            self.step += 1;
            if self.random.one_in(2) {
                self.mark();
            }
            self.operation();
            self.history.insert(self.step, self.names.clone());
            if self.device.is_off() {
                break;
            }
            if self.random.one_in(8) {
                self.compare_all();
            }
        }
        self.crash();
    }
}

fn options() -> FsOptions {
    FsOptions { memory_bytes_max: 16 << 20, ..FsOptions::default() }
}

fn run(seed: u64) {
    let mut run = Run::new(seed);
    let sessions = 1 + run.random.below(4);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..sessions {
            run.session();
        }
        run.finish();
    }));
    if let Err(panic) = result {
        let from = run.log.len().saturating_sub(400);
        eprintln!("{}", run.log[from..].join("\n"));
        eprintln!(
            "to repeat: SYNCLINE_MODEL_SEEDS={seed}..{} cargo test -p syncline --test review_model",
            seed + 1
        );
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn random_operations_and_power_cuts_keep_the_contract() {
    let seeds = match std::env::var("SYNCLINE_MODEL_SEEDS") {
        Ok(range) => {
            let (from, end) = range.split_once("..").expect("FROM..END");
            from.parse().expect("a number")..end.parse().expect("a number")
        }
        Err(_) => 0..60,
    };
    for seed in seeds {
        run(seed);
    }
}
