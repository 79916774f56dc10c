//! The exhaustive workloads on a real mount whose daemon is killed.
//!
//! A volume is prepared as for `ace.rs` and written to an image file, which the `syncline-lab` command mounts with
//! option `volatile`: what no flush has covered is in the daemon's memory only, so that `kill -9` is a power cut. The
//! operations are system calls; the daemon is killed at a random moment of one of them or behind the last. The next
//! mount is recovery, which is killed too now and then; what the volume shows then is judged by the oracle, as in the
//! simulator, and the unmounted image is checked.
//!
//! Other than there, the moment of a cut does not follow from the seed, an operation that was under way may have
//! happened or not, and times are not judged. Transactions, ranged syncs and hints are ioctls; of the transactions
//! only those that a mount can express, and some more ([`TRANSACTIONS`]). Ranges are not collapsed or inserted (the
//! kernel refuses), and background work is a moment's wait.

mod calls;
pub mod control;
mod daemon;

use crate::ace;
use crate::lab::Start;
use crate::operation::{AllocateKind, End, Op, WriteKind, to_text};
use crate::oracle::{ENOTSUP, Kind, Model, ROOT, View};
use crate::random::{Random, derive};
use daemon::{Mount, Scratch};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a call may answer once the daemon is dead: `EINTR`, `ECONNABORTED`, `ENOTCONN`, `ECANCELED`.
const DEAD: [i32; 4] = [4, 103, 107, 125];

/// From the beginning of the chosen operation to the kill, at most.
const DELAY_MAX_US: u64 = 700;
/// The same where a recovery is killed.
const RECOVERY_DELAY_MAX_US: u64 = 12_000;
/// The same for transactions, which are several calls.
const TRANSACTION_DELAY_MAX_US: u64 = 2_000;
/// The same for what another process has to be started for.
const PROCESS_DELAY_MAX_US: u64 = 4_000;
/// Numbers for what an interrupted operation would have made, far from those that a volume gives.
const NEVER_MADE: u64 = 1 << 40;

/// Transactions besides those of `ace.rs`: of one file by the ioctls of f2fs, of several and their names by those of
/// groups.
const TRANSACTIONS: &[&str] = &[
    "txn:write,A/foo,100,5000,61",
    "txn:write,A/foo,4000,300000,62+truncate,A/foo,200000",
    "txn:truncate,A/foo,100+write,A/foo,9000,500,63",
    "txnabort:write,A/foo,0,300000,64+truncate,A/foo,100",
    "txn:write,A/C/foo,0,400000,65+rename,A/C/foo,A/bar+write,A/bar,4096,100,66",
    "txn:write,A/foo,0,9000,67+write,B/foo,0,9000,68+write,A/C/foo,0,9000,69+rename,A/foo,A/C/foo",
    "txnabort:write,A/foo,0,140000,70+rename,A/foo,B/foo+link,B/foo,E/bar",
];

/// What is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `syncline-lab` command.
    pub command: PathBuf,
    /// This program.
    pub program: PathBuf,
    /// `auto`, `dev` or `uring`.
    pub transport: String,
    pub scratch: PathBuf,
    pub seed: u64,
    pub cuts: u64,
}

/// What was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Score {
    pub cuts: u64,
    /// Of these, with an operation under way.
    pub interrupted: u64,
    /// Recoveries that were killed as well.
    pub in_recovery: u64,
    pub operations: u64,
    pub syncs: u64,
    /// Transactions that were committed, and those under way when the daemon died.
    pub transactions: (u64, u64),
    /// Cuts after which the volume showed something newer than at the start.
    pub changed: u64,
}

/// Why a run ended.
#[derive(Debug)]
pub enum Failure {
    /// The machine or the command cannot do it.
    SetUp(String),
    /// The contract was broken.
    Violation(String),
}

/// Cuts the power so many times; `told` is called now and then.
pub fn run(plan: &Plan, told: &dyn Fn(&Score)) -> Result<Score, Failure> {
    let start = ace::start();
    let mut steps: Vec<Vec<Op>> = ace::steps_of(TRANSACTIONS);
    steps.extend(ace::steps().into_iter().filter(|step| step.iter().all(control::is_possible)));
    let is_transaction = |step: &&Vec<Op>| matches!(step[0], Op::Transaction { .. });
    let transactions: Vec<Vec<Op>> = steps.iter().filter(is_transaction).cloned().collect();
    let scratch = Scratch::new(&plan.scratch).map_err(|error| Failure::SetUp(error.to_string()))?;
    let mut score = Score::default();
    for cut in 0..plan.cuts {
        let seed = derive(plan.seed, 13 << 32 | cut);
        let step = |salt| &steps[(derive(seed, salt) % steps.len() as u64) as usize];
        // Each step alone, in turn; and a sample of pairs, every other one with a transaction.
        let ops = match cut % 3 {
            0 => ace::workload(&[&steps[(cut / 3) as usize % steps.len()]]),
            1 => ace::workload(&[step(1), step(2)]),
            _ => ace::workload(&[step(1), &transactions[(seed % transactions.len() as u64) as usize]]),
        };
        one_cut(plan, &start, &ops, seed, &scratch, &mut score).map_err(|failure| match failure {
            Failure::SetUp(what) => Failure::SetUp(what),
            Failure::Violation(what) => Failure::Violation(format!(
                "cut {cut} of seed {}: {what}\n    in: {}",
                plan.seed,
                to_text(&ops)
            )),
        })?;
        if (cut + 1) % 100 == 0 {
            told(&score);
        }
    }
    Ok(score)
}

fn violation(what: impl ToString) -> Failure {
    Failure::Violation(what.to_string())
}

fn one_cut(
    plan: &Plan,
    start: &Start,
    ops: &[Op],
    seed: u64,
    scratch: &Scratch,
    score: &mut Score,
) -> Result<(), Failure> {
    let mut random = Random::new(derive(seed, 3));
    scratch.write_image(&start.disk).map_err(|error| Failure::SetUp(error.to_string()))?;
    let commit = *random.pick(&["commit=3600", "commit=0.01"]);
    let mount = Mount::new(plan, scratch, commit).map_err(Failure::SetUp)?;
    let mut model = Model::new(&start.view);
    let transaction = ops.iter().position(|op| matches!(op, Op::Transaction { .. }));
    let chosen = match transaction {
        Some(index) if random.one_in(2) => index,
        _ => random.below(ops.len() as u64 + 1) as usize,
    };
    let delay = match ops.get(chosen) {
        Some(Op::Write { kind: WriteKind::Mapped, .. }) => PROCESS_DELAY_MAX_US,
        Some(Op::Transaction { .. }) => TRANSACTION_DELAY_MAX_US,
        _ => DELAY_MAX_US,
    };
    let delay = Duration::from_micros(random.below(delay));
    let under_way = perform(plan, mount, scratch, ops, &mut model, (chosen, delay), score)?;
    score.cuts += 1;
    score.transactions.1 += u64::from(matches!(under_way, Some(Op::Transaction { .. })));
    score.interrupted += u64::from(under_way.is_some());
    score.syncs += model.syncs() as u64;
    while random.one_in(4) {
        // Wherever recovery is then, mounted or not.
        let delay = Duration::from_micros(random.below(RECOVERY_DELAY_MAX_US));
        Mount::killed_after(plan, scratch, commit, delay).map_err(Failure::SetUp)?;
        score.in_recovery += 1;
    }
    let mount = Mount::new(plan, scratch, commit).map_err(violation)?;
    let view = calls::view(scratch.top())
        .map_err(|error| violation(format!("the recovered volume cannot be read: {error}")))?;
    // A sync within an operation that was under way need not have been.
    let acknowledged = model.syncs();
    if let Some(op) = under_way {
        let made = made_by(&op, &view).unwrap_or(NEVER_MADE);
        // Whether it was refused does not matter any more.
        let _ = model.apply(&op, made, length_of(&op, &model));
    }
    model
        .judge(&view, acknowledged)
        .map_err(|wrong| violation(format!("{acknowledged} syncs acknowledged: {wrong:?}")))?;
    score.changed += u64::from(view.names != start.view.names || view.contents != start.view.contents);
    mount.unmount(plan, scratch).map_err(violation)?;
    daemon::check(plan, scratch).map_err(violation)
}

/// Carries the operations out until the daemon dies; returns the one that was under way then.
fn perform(
    plan: &Plan,
    mut mount: Mount,
    scratch: &Scratch,
    ops: &[Op],
    model: &mut Model,
    (chosen, delay): (usize, Duration),
    score: &mut Score,
) -> Result<Option<Op>, Failure> {
    let now = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&now);
    let killer = std::thread::spawn(move || {
        while !waits.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // A sleep would be longer than an operation.
        let begin = Instant::now();
        while begin.elapsed() < delay {
            std::hint::spin_loop();
        }
        mount.kill();
        mount
    });
    let mut result = Ok(None);
    for (index, op) in ops.iter().enumerate() {
        now.fetch_or(index == chosen, Ordering::Release);
        match step(plan, scratch, model, op) {
            Ok(true) => {
                score.operations += 1;
                let committed = matches!(op, Op::Transaction { end: End::Commit | End::Start, .. });
                score.transactions.0 += u64::from(committed);
            }
            Ok(false) => {
                result = Ok(Some(op.clone()));
                break;
            }
            Err(failure) => {
                result = Err(failure);
                break;
            }
        }
    }
    now.store(true, Ordering::Release);
    drop(killer.join().map_err(|_| violation("the daemon could not be killed"))?);
    result
}

/// One operation on mount and model; false if the daemon died under it.
fn step(plan: &Plan, scratch: &Scratch, model: &mut Model, op: &Op) -> Result<bool, Failure> {
    model.begin(op);
    let told = calls::carry_out(&plan.program, scratch.top(), op);
    let effect = match told {
        Err(errno) if DEAD.contains(&errno) => return Ok(false),
        // The kernel hands neither on.
        Err(ENOTSUP)
            if matches!(op, Op::Falloc { kind: AllocateKind::Collapse | AllocateKind::Insert, .. }) =>
        {
            return Ok(true);
        }
        Err(errno) => {
            // What is aborted changes nothing in the model, but a step of it may be refused as in a commit.
            let asked = match op {
                Op::Transaction { ops, between, end: End::Abort } => {
                    &Op::Transaction { ops: ops.clone(), between: between.clone(), end: End::Commit }
                }
                _ => op,
            };
            return match model.apply(asked, 0, 0) {
                // The kernel may find another reason first.
                Err(_) => Ok(true),
                Ok(()) => Err(violation(format!("{op} fails with errno {errno}"))),
            };
        }
        Ok(effect) => effect,
    };
    model
        .apply(op, effect.made, effect.written)
        .map_err(|want| violation(format!("{op} succeeds, want errno {want}")))?;
    match op {
        Op::Transaction { end: End::Commit | End::Start, .. } => drop(model.committed()),
        Op::SyncRange { path, offset, len } => {
            let ino = model.resolve(path).expect("the model has just accepted the path");
            model.sync_range(ino, *offset, *len);
        }
        Op::Fsync(path) | Op::Fdatasync(path) | Op::Write { path, kind: WriteKind::Dsync, .. } => {
            let ino = model.resolve(path).expect("the model has just accepted the path");
            model.sync(Some(ino));
        }
        Op::UnlinkOpen { .. } => drop(model.sync(Some(effect.made))),
        Op::Sync => drop(model.sync(None)),
        _ => {}
    }
    Ok(true)
}

/// Bytes that an interrupted operation would have written.
fn length_of(op: &Op, model: &Model) -> u64 {
    match op {
        Op::Write { path, kind: WriteKind::Mapped, offset, len, .. } => {
            size_of(model, path).saturating_sub(*offset).min(*len)
        }
        Op::CopyRange { from, at, len, .. } => size_of(model, from).saturating_sub(*at).min(*len),
        Op::Write { len, .. } | Op::Rewrite { len, .. } => *len,
        Op::TmpLink { len, .. } | Op::UnlinkOpen { len, .. } => *len,
        _ => 0,
    }
}

fn size_of(model: &Model, path: &str) -> u64 {
    let ino = model.resolve(path).ok();
    ino.and_then(|ino| Some(model.live().contents.get(&ino)?.size())).unwrap_or(0)
}

/// The inode that an interrupted operation has made, if the volume shows it.
fn made_by(op: &Op, view: &View) -> Option<u64> {
    let path = match op {
        Op::Creat(path) | Op::Mkdir(path) | Op::Symlink(_, path) => path,
        Op::TmpLink { path, .. } | Op::Whiteout(path, _) => path,
        _ => return None,
    };
    path.split('/').filter(|part| !part.is_empty()).try_fold(ROOT, |at, part| {
        match &view.names.get(&at)?.kind {
            Kind::Directory(children) => children.get(part).copied(),
            _ => None,
        }
    })
}
