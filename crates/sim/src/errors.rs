//! Device errors at every single operation (C8), and full volumes.
//!
//! After a failed write or flush no sync and no commit may succeed until the volume is opened again, nothing may
//! panic or hang, and what was acknowledged before is there then. A failed read is told, and changes nothing. Of a
//! transaction whose commit fails the running volume shows everything or nothing, and so does the next one (C4); one
//! that somebody else had staged before the error cannot be committed after it.

use crate::ace;
use crate::crash::{Builder, Effort, Lie, states};
use crate::device::{Disk, Failure, SimDevice};
use crate::driver::{self, SimClock, Told};
use crate::lab::{Depth, Start, Tally, examine_reliable, guarded, recover};
use crate::operation::{End, Op, WriteKind, from_text};
use crate::oracle::Model;
use crate::random::{Random, derive};
use crate::view;
use std::sync::Arc;
use syncline_device::{Device, Operation};
use syncline_fs::{Context, Error, Fs, ObjectNo, Transaction};

/// Crash states looked at after each injected error.
const STATES_MAX: usize = 12;

/// When the error comes: while the volume is opened, or afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Opening,
    Running,
}

/// How many reads, writes and flushes there are.
type Counts = [(Operation, u64); 3];

/// How many operations the device carries out while opening, and then for the workload.
fn operations(start: &Start, ops: &[Op], seed: u64) -> Option<(Counts, Counts)> {
    let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
    let clock = SimClock::new();
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 2)).ok()?;
    let opened = device.operations();
    let mut model = Model::new(&start.view);
    for op in ops.iter().chain([&Op::Sync]) {
        driver::step(&fs, &clock, &mut model, op).ok()?;
    }
    let mut running = device.operations();
    running.iter_mut().zip(opened).for_each(|((_, count), (_, before))| *count -= before);
    Some((opened, running))
}

/// Runs a workload with one failure.
pub fn inject(start: &Start, ops: &[Op], seed: u64, when: When, failure: Failure) -> Tally {
    guarded(|tally| {
        tally.workloads += 1;
        let device = SimDevice::new(start.disk.clone(), derive(seed, 1));
        let clock = SimClock::new();
        let mut model = Model::new(&start.view);
        if when == When::Opening {
            device.fail(failure);
        }
        match driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, derive(seed, 2)) {
            Ok(fs) => {
                let bystander = device.undisturbed(|| bystander(&fs));
                if when == When::Running {
                    device.fail(failure);
                }
                let mut run = Run { fs: &fs, device: &device, clock: &clock, failure };
                run.all(ops, &mut model, bystander, tally);
            }
            Err(error) if !device.has_failed() => {
                tally.violation(format!("the volume does not open, and no error was injected: {error}"));
            }
            Err(_) => {}
        }
        tally.errors += u64::from(device.has_failed());
        judge(&device, &model, seed, tally);
    })
}

/// A transaction of somebody else, with everything staged.
fn bystander(fs: &Arc<Fs>) -> Result<Transaction, Error> {
    let mut transaction = fs.begin()?;
    let file = transaction.create(&Context::root(), ObjectNo::ROOT_DIR, b"bystander", 0o600)?;
    transaction.write(file, 0, &[1; 5000])?;
    Ok(transaction)
}

struct Run<'a> {
    fs: &'a Arc<Fs>,
    device: &'a SimDevice,
    clock: &'a SimClock,
    failure: Failure,
}

impl Run<'_> {
    fn all(
        &mut self,
        ops: &[Op],
        model: &mut Model,
        bystander: Result<Transaction, Error>,
        tally: &mut Tally,
    ) {
        let mut stopped = false;
        for op in ops.iter().chain([&Op::Sync]) {
            let told = match driver::step(self.fs, self.clock, model, op) {
                Ok(told) => told,
                Err(wrong) => {
                    tally.violation(format!("{op} answers {:?}, want {:?} (errno)", wrong.got, wrong.want));
                    return;
                }
            };
            tally.count(op, told);
            if matches!(told, Told::Failed(_)) && !self.device.has_failed() {
                tally.violation(format!("{op} fails, and no error was injected"));
            }
            if let (Op::Transaction { .. }, Told::Failed(_)) = (op, told) {
                self.settle(op, model, tally);
            }
            if stopped && is_sync(op) && told == Told::Done {
                tally.violation(format!("C8: {op} succeeds although the volume had stopped"));
            }
            stopped |= self.fs.failure().is_some();
            self.device.acknowledge(model.syncs());
            if told == Told::Done && is_commit(op) && self.has_lost_writes() {
                tally.violation(format!("C8: the device failed a write or a flush, and {op} succeeds"));
            }
        }
        match bystander {
            Ok(transaction) if stopped => self.refuses(transaction, tally),
            Ok(transaction) => drop(transaction),
            Err(error) if !self.device.has_failed() => {
                tally.violation(format!("a transaction cannot be staged: {error}"));
            }
            Err(_) => {}
        }
        if !stopped && !self.failure.for_good {
            match view::view(self.fs) {
                Ok(view) if model.shows(&view) => {}
                Ok(_) => tally.violation("an operation that failed has changed something".to_owned()),
                Err(_) if self.failure.only != Some(Operation::Write) => {}
                Err(error) => tally.violation(format!("the running volume cannot be read: {error}")),
            }
        }
    }

    /// C4: of a commit that failed the running volume shows everything or nothing.
    fn settle(&self, op: &Op, model: &mut Model, tally: &mut Tally) {
        match self.device.undisturbed(|| view::view(self.fs)) {
            Ok(view) if model.settle_commit(&view) => {}
            Ok(_) => tally.violation(format!("C4: {op} fails, and the running volume shows a part of it")),
            Err(error) => {
                tally.violation(format!("the running volume cannot be read after {op} has failed: {error}"));
            }
        }
    }

    /// C8: nothing is committed any more, be it staged or empty.
    fn refuses(&self, staged: Transaction, tally: &mut Tally) {
        if staged.commit().is_ok() {
            tally.violation("C8: what was staged is committed although the volume has stopped".to_owned());
        }
        if self.fs.begin().and_then(Transaction::commit).is_ok() {
            tally.violation("C8: an empty commit succeeds although the volume has stopped".to_owned());
        }
    }

    fn has_lost_writes(&self) -> bool {
        let writes = matches!(self.failure.only, Some(Operation::Write | Operation::Flush));
        writes && self.device.has_failed()
    }
}

fn is_commit(op: &Op) -> bool {
    matches!(op, Op::Sync | Op::Transaction { end: End::Commit | End::Start, .. })
}

fn is_sync(op: &Op) -> bool {
    is_commit(op)
        || matches!(op, Op::Fsync(_) | Op::Fdatasync(_) | Op::SyncRange { .. } | Op::Sync)
        || matches!(op, Op::Write { kind: WriteKind::Dsync, .. })
}

/// The volume opens again, and holds what was acknowledged.
fn judge(device: &SimDevice, model: &Model, seed: u64, tally: &mut Tally) {
    let (base, trace) = device.recorded();
    let mut random = Random::new(derive(seed, 3));
    let effort = Effort { subsets: 1, torn: 1 };
    let mut all = states(&trace, trace.events.len(), effort, Lie::None, &mut random);
    while all.len() > STATES_MAX {
        all.swap_remove(random.below(all.len() as u64) as usize);
    }
    let mut builder = Builder::new(base, &trace, Lie::None);
    let disks: Vec<(Disk, usize)> =
        all.iter().map(|state| (builder.build(state), state.acknowledged)).collect();
    for (disk, acknowledged) in disks {
        tally.states += 1;
        match recover(&SimDevice::new(disk, derive(seed, 4)), derive(seed, 5)) {
            Ok(view) => {
                if let Err(violation) = model.judge(&view, acknowledged) {
                    tally.violation(format!("after the error and a crash: {violation:?}"));
                }
            }
            Err(what) => tally.violation(format!("after the error and a crash: {what}")),
        }
    }
}

/// Every failure of one workload: each operation, once and for good, while opening and afterwards.
pub fn failures(start: &Start, ops: &[Op], seed: u64) -> Vec<(When, Failure)> {
    let Some((opening, running)) = operations(start, ops, seed) else { return Vec::new() };
    let mut list = Vec::new();
    for (when, counts) in [(When::Opening, opening), (When::Running, running)] {
        for (only, count) in counts {
            for at in 0..count {
                for for_good in [false, true] {
                    list.push((when, Failure { at, for_good, only: Some(only) }));
                }
            }
        }
    }
    list
}

/// Workloads into which errors are injected.
pub const WORKLOADS: &[&str] = &[
    "write:A/foo:0:5000:41;fsync:A/foo;write:B/foo:0:30000:42;creat:A/bar;fsync:B/foo;rename:B/foo:A/bar;fsync:A",
    "creat:x;write:x:0:90000:43;maintain:2000;write:x:8192:100:44;fsync:x;checkpoint;write:x:0:5000:45;sync;unlink:x;fsync:",
    "dsyncwrite:A/foo:0:300:46;maintain:6000;truncate:A/foo:100;fsync:A/foo;setxattr:A/foo:user.n:9000:7;checkpoint;\
     rewrite:A/foo:9000:48;fdatasync:A/foo;mkdir:A/D;sync",
    "falloc:B/foo:0:40000;fsync:B/foo;write:B/foo:4096:8192:49;fsync:B/foo;punch:B/foo:8192:4096;link:B/foo:l;fsync:l;\
     maintain:40000;mwrite:B/foo:0:600:50;fsync:B/foo",
    "txn:write,A/foo,100,5000,51+write,B/foo,0,9000,52;txn:creat,A/bar+write,A/bar,0,7000,53+unlink,B/foo+setxattr,A/foo,user.n,30,54;\
     checkpoint;txnabort:write,A/foo,0,30000,55+unlink,A/bar;txnstart:truncate,A/foo,2500+write,A/C/foo,8192,9000,56+link,A/C/foo,B/bar",
    "creat:x;txn:write,x,0,200000,61+write,x,200000,190000,62;checkpoint;\
     txn:write,x,4096,300000,63+absorb+write,A/foo,100,150000,64+rename,A/foo,B/foo;txnabort:write,x,50,260000,65;\
     txnstart:write,x,10000,280000,66;maintain:6000;txn:truncate,x,5000+write,x,3000,150000,67",
    "txn:write,A/foo,4000,300,47!write,A/foo,100,50,48;txn:write,A/C/foo,0,100,49+creat,B/bar!write,A/foo,100,50,48+fsync,A/foo;\
     maintain:6000;txn:truncate,A/foo,100+write,A/foo,50,9000,50!fsync,B/foo+checkpoint;txnstart:unlink,A/foo+rename,B/foo,A/C/foo",
];

/// Free blocks that are left on the full volumes.
pub const FREE_BLOCKS: &[u64] = &[0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64];

/// Workloads for volumes with each number of free blocks: data in images and extents, large attributes, many names,
/// nodes that split, holes and preallocation, files without names.
pub const ALLOCATING: &[&str] = &[
    "write:A/foo:0:5000:61;fsync:A/foo;creat:x;write:x:0:60000:62;fsync:x;write:A/foo:0:30000:63;sync;checkpoint;\
     rewrite:B/foo:40000:64;maintain:6000;checkpoint",
    "setxattr:A/foo:user.a:3000:1;setxattr:A/foo:user.b:9000:2;setxattr:A:user.c:5000:3;sync;checkpoint;\
     setxattr:A/foo:user.a:12000:4;fsync:A/foo;removexattr:A/foo:user.b;checkpoint;setacl:A/foo:480",
    "mkdir:d;creat:d/a;creat:d/b;symlink:t:d/c;link:A/foo:d/e;mkdir:d/f;checkpoint;rename:A/foo:d/a;whiteout:d/b:d/g;sync;checkpoint;\
     tmpsynclink:d/h:9000:5;unlinkopen:d/a:50000:6;maintain:6000;checkpoint;rename:d:E",
    "falloc:A/foo:0:60000;dwrite:A/foo:8192:9000:7;fsync:A/foo;punch:A/foo:4096:20000;insert:A/foo:4096:8192;checkpoint;\
     collapse:A/foo:0:8192;copyrange:A/foo:B/foo:0:100:30000;zero:B/foo:0:20000;mwrite:B/foo:0:700:8;sync;maintain:6000;checkpoint",
    "creat:n;write:n:0:200000:9;fsync:n;write:n:200000:100000:8;sync;maintain:6000;checkpoint",
];

/// With so many free blocks each of them has enough.
pub const ALLOCATIONS_MAX: u64 = 120;

/// What has to work again once the filler is gone.
const AFTER_DELETION: &str = "unlink:filler;sync;checkpoint;creat:fresh;write:fresh:0:100000:9;fsync:fresh";

/// Carries out one operation that is written down.
pub type Step<'a> = dyn FnMut(&str) -> Option<Told> + 'a;

/// Gives a file all the space there is.
pub fn fill(step: &mut Step<'_>, path: &str) -> Option<()> {
    let mut size = 0;
    for piece in [65_536, 4096] {
        while step(&format!("fallockeep:{path}:{size}:{piece}"))? == Told::Done {
            size += piece;
        }
    }
    Some(())
}

/// What a volume is after `change`, closed.
pub fn changed(start: &Start, change: &mut dyn FnMut(&mut Step<'_>) -> Option<()>) -> Option<Start> {
    let device = SimDevice::new(start.disk.clone(), 77);
    let clock = SimClock::new();
    let fs = driver::open(Arc::clone(&device) as Arc<dyn Device>, &clock, 78).ok()?;
    let mut model = Model::new(&start.view);
    change(&mut |text: &str| {
        let op: Op = text.parse().expect("operations of this list");
        driver::step(&fs, &clock, &mut model, &op).ok()
    })?;
    let view = view::view(&fs).ok()?;
    fs.close().ok()?;
    Some(Start::new(device.settled(), view))
}

/// The volume of the exhaustive workloads, filled up but for so many blocks.
pub fn full_start(free: u64) -> Option<Start> {
    filled_but_for(&ace::start(), free)
}

/// A volume filled up but for so many blocks.
pub fn filled_but_for(start: &Start, free: u64) -> Option<Start> {
    changed(start, &mut |step| {
        step("creat:spare")?;
        if free > 0 {
            step(&format!("fallockeep:spare:0:{}", free * 4096))?;
        }
        step("creat:filler")?;
        fill(step, "filler")?;
        for op in ["sync", "checkpoint", "unlink:spare", "checkpoint"] {
            step(op)?;
        }
        Some(())
    })
}

/// One workload on a full volume; the filler is deleted at the end, and then there is space again.
pub fn on_full_volume(start: &Start, ops: &[Op], seed: u64, depth: Depth) -> Tally {
    let mut all = ops.to_vec();
    let reliable = all.len();
    all.extend(from_text(AFTER_DELETION).expect("operations of this list"));
    examine_reliable(start, &all, reliable, seed, depth)
}
