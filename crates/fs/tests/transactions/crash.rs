//! Power cuts at every write: the volume is what it was behind one of the transactions, and not before the last one
//! that was acknowledged. Between them run what must not make a difference: syncs of others, maintenance,
//! checkpoints, conflicts, aborts.

use crate::common::{CountingEntropy, TickingClock, root};
use crate::device::{CrashDevice, Random};
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_check::{CheckOptions, Severity, check};
use syncline_fs::{
    Clock, Error, Fs, FsOptions, HandleId, MkfsOptions, ObjectNo, OpenFlags, SyncScope, Transaction,
};

const MIB: u64 = 1 << 20;

/// What the files of the directory are to be, by name.
type Files = BTreeMap<String, Vec<u8>>;

struct Run {
    random: Random,
    device: Arc<CrashDevice>,
    clock: Arc<TickingClock>,
    entropy: CountingEntropy,
    fs: Arc<Fs>,
    dir: ObjectNo,
    /// Not touched by transactions; for ordinary writes and syncs.
    other: HandleId,
    files: Files,
    /// After each commit; the last one acknowledged is `durable`.
    states: Vec<Files>,
    durable: usize,
}

fn open(device: &Arc<CrashDevice>, clock: &Arc<TickingClock>, entropy: &CountingEntropy) -> Arc<Fs> {
    // So little memory that a transaction spills after 32 pages.
    let options = FsOptions::default().memory_bytes_max(8 << 20);
    Fs::open(device.clone(), options, clock.clone(), entropy).expect("open")
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random(seed);
        let device = CrashDevice::new(48 * MIB / 4096, random.next());
        let clock = Arc::new(TickingClock::starting_at(1_000_000));
        let entropy = CountingEntropy::starting_at(seed * 1000 + 1);
        let mkfs = MkfsOptions::default().journal_bytes(2 * MIB);
        Fs::format(&*device, &mkfs, &*clock, &entropy, &mut |_, _| {}).expect("mkfs");
        let fs = open(&device, &clock, &entropy);
        let dir = fs.names().mkdir(&root(), ObjectNo::ROOT_DIR, b"dir", 0o755).expect("mkdir").attr.inode;
        let flags = OpenFlags::READ_WRITE;
        let (_, other) =
            fs.names().create(&root(), ObjectNo::ROOT_DIR, b"other", 0o644, flags).expect("create");
        let mut files = Files::new();
        for n in 0..3 {
            let content = vec![n; random.below(200_000) as usize];
            let name = format!("file-{n}");
            let (_, handle) = fs.names().create(&root(), dir, name.as_bytes(), 0o644, flags).expect("create");
            fs.files().write(&root(), handle, 0, &content).expect("write");
            fs.files().release(handle).expect("release");
            files.insert(name, content);
        }
        fs.sync_all().expect("sync");
        let states = vec![files.clone()];
        Run { random, device, clock, entropy, fs, dir, other, files, states, durable: 0 }
    }

    fn content(&self, len: usize) -> Vec<u8> {
        let mut random = Random(self.states.len() as u64 * 1_000_003 + len as u64);
        (0..len).map(|_| random.next() as u8).collect()
    }

    /// Stages one operation; the model follows.
    fn stage(&mut self, transaction: &mut Transaction, files: &mut Files) {
        let names: Vec<String> = files.keys().cloned().collect();
        let fresh = format!("new-{}", self.random.next() % 1000);
        let Some(name) = names.get(self.random.below(names.len().max(1) as u64) as usize) else {
            transaction.create(&root(), self.dir, fresh.as_bytes(), 0o644).expect("create");
            files.insert(fresh, Vec::new());
            return;
        };
        let file = transaction.lookup(self.dir, name.as_bytes()).expect("lookup").expect("the model has it");
        match self.random.below(8) {
            0..4 => {
                let at = self.random.below(300_000) as usize;
                let len = match self.random.below(4) {
                    0 => 1 + self.random.below(400_000) as usize,
                    _ => 1 + self.random.below(9_000) as usize,
                };
                let data = self.content(len);
                transaction.write(file, at as u64, &data).expect("write");
                let content = files.get_mut(name).expect("known");
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&data);
            }
            4 => {
                let size = self.random.below(300_000) as usize;
                transaction.truncate(file, size as u64).expect("truncate");
                files.get_mut(name).expect("known").resize(size, 0);
            }
            5 if names.len() < 12 && !files.contains_key(&fresh) => {
                transaction.create(&root(), self.dir, fresh.as_bytes(), 0o644).expect("create");
                files.insert(fresh, Vec::new());
            }
            6 => {
                let target = names[self.random.below(names.len() as u64) as usize].clone();
                transaction
                    .rename(self.dir, name.as_bytes(), self.dir, target.as_bytes(), false)
                    .expect("rename");
                if let Some(content) = files.remove(name) {
                    files.insert(target, content);
                }
            }
            7 if names.len() > 2 => {
                transaction.unlink(self.dir, name.as_bytes()).expect("unlink");
                files.remove(name);
            }
            _ => {
                let mut bytes = vec![0; 5000];
                let count = transaction.read(file, 1000, &mut bytes).expect("read");
                let content = &files[name];
                assert_eq!(bytes[..count], content[1000.min(content.len())..6000.min(content.len())]);
            }
        }
    }

    fn transact(&mut self) {
        let fs = self.fs.clone();
        let mut transaction = fs.begin().expect("begin");
        let mut files = self.files.clone();
        for _ in 0..1 + self.random.below(6) {
            self.stage(&mut transaction, &mut files);
        }
        if self.random.one_in(6) {
            drop(transaction);
            return;
        }
        if self.random.one_in(6) {
            // Somebody else is faster.
            let mut rival = fs.begin().expect("begin");
            let name = self.files.keys().next().expect("some file").clone();
            let file = rival.lookup(self.dir, name.as_bytes()).expect("lookup").expect("there");
            let data = self.content(3000);
            rival.write(file, 0, &data).expect("write");
            transaction
                .read(file, 0, &mut [0])
                .or_else(|error| match error {
                    // Its name is gone in this transaction, not its content.
                    Error::Stale => Ok(0),
                    other => Err(other),
                })
                .expect("read");
            let mut theirs = self.files.clone();
            let content = theirs.get_mut(&name).expect("known");
            content.resize(content.len().max(3000), 0);
            content[..3000].copy_from_slice(&data);
            self.commit(rival, theirs);
            assert_eq!(transaction.commit(), Err(Error::Conflict));
            return;
        }
        self.commit(transaction, files);
    }

    fn commit(&mut self, transaction: Transaction, files: Files) {
        self.states.push(files.clone());
        self.files = files;
        if self.random.one_in(3) {
            // Acknowledged by whichever sync comes next.
            transaction.commit_start(Box::new(|result| result.expect("force"))).expect("commit");
            return;
        }
        transaction.commit().expect("commit");
        self.acknowledged();
    }

    /// Everything so far is durable, if the power was still on.
    fn acknowledged(&mut self) {
        if !self.device.is_off() {
            self.durable = self.states.len() - 1;
        }
    }

    fn step(&mut self) {
        let fs = self.fs.clone();
        match self.random.below(12) {
            0 => {
                let data = vec![5; 1 + self.random.below(60_000) as usize];
                fs.files().write(&root(), self.other, self.random.below(500_000), &data).expect("write");
            }
            1 => {
                fs.files().sync_handle(self.other, SyncScope::All).expect("sync");
                self.acknowledged();
            }
            2 => drop(fs.maintain(self.clock.now(), 4).expect("maintain")),
            3 => {
                fs.checkpoint().expect("checkpoint");
                self.acknowledged();
            }
            _ => self.transact(),
        }
    }

    fn found(&self, fs: &Fs) -> Files {
        let mut found = Files::new();
        for (name, number) in crate::common::list(fs, self.dir) {
            found.insert(name, crate::common::content(fs, number));
        }
        found
    }

    /// Cuts the power, recovers, compares; goes on with what there is.
    fn crash(&mut self) {
        self.device = self.device.crash(&mut self.random);
        let report = check(&*self.device, CheckOptions::default()).expect("check");
        let damage: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(damage.is_empty(), "{damage:?}");
        self.fs = open(&self.device, &self.clock, &self.entropy);
        let found = self.found(&self.fs);
        let sizes = |files: &Files| files.iter().map(|(n, c)| (n.clone(), c.len())).collect::<Vec<_>>();
        let state = self.states.iter().rposition(|state| *state == found).unwrap_or_else(|| {
            panic!("no transaction left this: {:?}, the last one: {:?}", sizes(&found), sizes(&self.files))
        });
        assert!(state >= self.durable, "state {state} was found, {} was acknowledged", self.durable);
        crate::common::check_tree(&self.fs);
        self.files = found.clone();
        self.states = vec![found];
        self.durable = 0;
        let number = crate::common::lookup(&self.fs, ObjectNo::ROOT_DIR, "other").expect("other");
        self.other = self.fs.files().open_handle(&root(), number, OpenFlags::READ_WRITE).expect("open");
    }
}

fn seeds() -> std::ops::Range<u64> {
    let range = std::env::var("SYNCLINE_TRANSACTION_SEEDS").unwrap_or_else(|_| "0..16".to_owned());
    let (from, end) = range.split_once("..").expect("FROM..END");
    from.parse().expect("a number")..end.parse().expect("a number")
}

// Shows: C4.
#[test]
fn any_crash_shows_a_state_between_transactions_and_none_before_the_last_acknowledged() {
    for seed in seeds() {
        let mut run = Run::new(seed);
        for round in 0..6 {
            let writes = run.random.below(60);
            run.device.power_off_after(writes);
            for _ in 0..60 {
                if run.device.is_off() {
                    break;
                }
                run.step();
            }
            println!("seed {seed}, round {round}: {} states", run.states.len());
            run.crash();
        }
    }
}

// Shows: C4.
#[test]
fn a_crash_at_each_write_of_a_mixed_transaction_shows_all_or_nothing() {
    for writes in 0..40 {
        let mut run = Run::new(1000 + writes);
        let fs = run.fs.clone();
        run.device.power_off_after(writes);
        let mut transaction = fs.begin().expect("begin");
        let mut files = run.files.clone();
        let large = run.content(600_000);
        let new = transaction.create(&root(), run.dir, b"new", 0o644).expect("create");
        transaction.write(new, 0, &large).expect("write");
        let first = transaction.lookup(run.dir, b"file-0").expect("lookup").expect("there");
        transaction.write(first, 100, b"small").expect("write");
        transaction.unlink(run.dir, b"file-1").expect("unlink");
        transaction.rename(run.dir, b"file-2", run.dir, b"file-1", false).expect("rename");
        let content = files.get_mut("file-0").expect("known");
        content.resize(content.len().max(105), 0);
        content[100..105].copy_from_slice(b"small");
        let moved = files.remove("file-2").expect("known");
        files.insert("file-1".to_owned(), moved);
        files.insert("new".to_owned(), large);
        run.commit(transaction, files);
        drop(fs);
        run.crash();
        run.crash();
    }
}

#[test]
fn a_failed_write_or_flush_fails_the_commit_and_stops_the_volume() {
    let mut failures = 0;
    for successes in 0..30 {
        let mut run = Run::new(2000 + successes);
        let fs = run.fs.clone();
        let before = run.files.clone();
        let mut after = before.clone();
        let mut transaction = fs.begin().expect("begin");
        run.device.fail_after(successes);
        let large = run.content(500_000);
        let new = transaction.create(&root(), run.dir, b"new", 0o644).expect("create");
        let staged = transaction.write(new, 0, &large);
        after.insert("new".to_owned(), large);
        transaction.unlink(run.dir, b"file-1").map(|()| after.remove("file-1")).ok();
        let result = staged.and_then(|()| transaction.commit());
        let failed = run.device.has_failed();
        assert_eq!(result.is_err(), failed, "{result:?}");
        if failed {
            failures += 1;
            assert!(fs.failure().is_some() && matches!(fs.begin(), Err(Error::ReadOnly)));
        }
        drop(fs);
        // Unacknowledged it may be there or not, but whole; acknowledged it has to be.
        run.states = vec![before, after.clone()];
        run.durable = usize::from(result.is_ok());
        run.files = after;
        run.crash();
    }
    assert!((3..30).contains(&failures), "{failures} of 30 runs have met the failure");
}

/// Only what has no blocks of its own is taken: the counters of space agree after crashes in the middle of staging.
#[test]
fn a_crash_while_staging_leaves_no_block_behind() {
    let mut run = Run::new(7);
    run.fs.checkpoint().expect("checkpoint");
    run.fs.checkpoint().expect("checkpoint");
    let before = run.fs.statfs().blocks_free;
    let fs = run.fs.clone();
    let mut transaction = fs.begin().expect("begin");
    let file = transaction.create(&root(), run.dir, b"new", 0o644).expect("create");
    transaction.write(file, 0, &vec![1; 4 << 20]).expect("write");
    // A checkpoint in between writes bitmaps; what is staged is not in them (R15).
    fs.files().write(&root(), run.other, 0, b"x").expect("write");
    fs.files().sync_handle(run.other, SyncScope::All).expect("sync");
    fs.checkpoint().expect("checkpoint");
    run.crash();
    std::mem::forget(transaction);
    run.fs.checkpoint().expect("checkpoint");
    run.fs.checkpoint().expect("checkpoint");
    let after = run.fs.statfs().blocks_free;
    assert!(after + 16 >= before, "{before} blocks were free, {after} are");
}

const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Transaction>();
};
