//! Transactions of several threads at once, beside syncs, destaging and checkpoints: as if one had run after the
//! other, and every acknowledged one there after a power cut.

use crate::common::*;
use crate::data::PAGE;
use crate::gate::Gate;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use syncline_fs::{
    Clock, Error, Fs, FsOptions, ObjectNo, OpenFlags, SyncScope, SystemClock, SystemEntropy, Timestamp,
};

/// Ends no test that goes well.
const LONG: Duration = Duration::from_secs(60);

const THREADS: u64 = 4;
const TRANSFERS: u64 = 150;
const ACCOUNTS: u64 = 40;
const FILES: u64 = 4;
const START: u64 = 1000;

fn account(files: &[ObjectNo], number: u64) -> (ObjectNo, u64) {
    (files[(number % FILES) as usize], number / FILES * PAGE)
}

fn balance(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

fn total(fs: &Fs, files: &[ObjectNo]) -> u64 {
    let contents: Vec<Vec<u8>> = files.iter().map(|file| content(fs, *file)).collect();
    (0..ACCOUNTS)
        .map(|number| {
            let at = (number / FILES * PAGE) as usize;
            balance(contents[(number % FILES) as usize][at..at + 8].try_into().expect("8 bytes"))
        })
        .sum()
}

/// Moves money and counts it; returns how often others were faster.
fn transfer(fs: &Arc<Fs>, files: &[ObjectNo], thread: u64, from: u64, to: u64) -> u64 {
    let mut conflicts = 0;
    loop {
        let mut transaction = fs.begin().expect("begin");
        for (number, amount) in [(from, u64::MAX), (to, 1)] {
            let (file, at) = account(files, number);
            let mut bytes = [0; 8];
            transaction.read(file, at, &mut bytes).expect("read");
            let new = balance(bytes).wrapping_add(amount);
            transaction.write(file, at, &new.to_le_bytes()).expect("write");
        }
        // A page of its own, so that acknowledged transfers can be counted.
        let (count_file, at) = (files[0], (100 + thread) * PAGE);
        let mut bytes = [0; 8];
        transaction.read(count_file, at, &mut bytes).expect("read");
        transaction.write(count_file, at, &(balance(bytes) + 1).to_le_bytes()).expect("write");
        match transaction.commit() {
            Ok(()) => return conflicts,
            Err(Error::Conflict) => conflicts += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn transfers_of_many_threads_neither_make_nor_lose_money() {
    let mut rig = Rig::with_size(96 * MIB);
    let fs = rig.fs.clone();
    let mut initial = vec![0; (ACCOUNTS / FILES * PAGE) as usize];
    initial.chunks_mut(PAGE as usize).for_each(|page| page[..8].copy_from_slice(&START.to_le_bytes()));
    let files: Vec<ObjectNo> = (0..FILES).map(|n| put(&fs, ROOT, &format!("{n}"), &initial)).collect();
    let (_, other) =
        fs.names().create(&root(), ROOT, b"other", 0o644, OpenFlags::READ_WRITE).expect("create");
    let last = fs.files().open_handle(&root(), files[0], OpenFlags::READ_WRITE).expect("open");
    write(&fs, last, 200 * PAGE, b"so that the pages of the counters exist");
    fs.sync_all().expect("sync");
    let over = AtomicBool::new(false);
    let conflicts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (fs, files, conflicts) = (&fs, &files, &conflicts);
                scope.spawn(move || {
                    for round in 0..TRANSFERS {
                        let from = (round * 7 + thread * 11) % ACCOUNTS;
                        let to = (round * 13 + thread * 3 + 1) % ACCOUNTS;
                        if from != to {
                            let met = transfer(fs, files, thread, from, to);
                            conflicts.fetch_add(met, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                write(&fs, other, round % 100 * 777, &[round as u8; 5000]);
                fs.files().sync_handle(other, SyncScope::All).expect("sync");
                write(&fs, last, 200 * PAGE, &round.to_le_bytes());
                fs.files()
                    .sync_handle(last, SyncScope::Data)
                    .expect("sync of a file that transactions change");
                round += 1;
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fs.maintain(rig.clock.now(), 4).expect("maintain");
                fs.checkpoint().expect("checkpoint");
            }
        });
        scope.spawn(|| {
            // A long one that is given up now and then, of the same files.
            while !over.load(Ordering::Relaxed) {
                let mut transaction = fs.begin().expect("begin");
                transaction.write(files[1], 300 * PAGE, &vec![1; 2 << 20]).expect("write");
                transaction.truncate(files[2], 10).expect("truncate");
            }
        });
        for worker in workers {
            worker.join().expect("no panic");
        }
        over.store(true, Ordering::Relaxed);
    });
    let sum = ACCOUNTS * START;
    let done = |fs: &Fs| -> Vec<u64> {
        let counts = content(fs, files[0]);
        let count = |thread: u64| {
            let at = ((100 + thread) * PAGE) as usize;
            balance(counts[at..at + 8].try_into().expect("8 bytes"))
        };
        (0..THREADS).map(count).collect()
    };
    let want: Vec<u64> = (0..THREADS)
        .map(|thread| {
            let moves = |round: &u64| {
                (round * 7 + thread * 11) % ACCOUNTS != (round * 13 + thread * 3 + 1) % ACCOUNTS
            };
            (0..TRANSFERS).filter(moves).count() as u64
        })
        .collect();
    assert_eq!((total(&fs, &files), done(&fs)), (sum, want.clone()));
    println!("{} conflicts", conflicts.load(Ordering::Relaxed));
    drop(fs);
    rig.crash();
    assert_eq!((total(&rig.fs, &files), done(&rig.fs)), (sum, want), "after the power cut");
    check_tree(&rig.fs);
}

#[test]
fn a_small_commit_does_not_wait_for_the_destaging_of_other_pages() {
    let gate = Gate::new(64 * MIB);
    let options = FsOptions::default().commit_interval(LONG);
    let open = |gate: &Arc<Gate>| {
        let entropy = SystemEntropy::default();
        Fs::open(gate.clone(), options.clone(), Arc::new(SystemClock), &entropy).expect("open")
    };
    let fs = open(&gate);
    let file = put(&fs, ROOT, "file", &vec![1; 100 * PAGE as usize]);
    fs.sync_all().expect("sync");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    for page in 0..10 {
        write(&fs, handle, page * PAGE, &[2; 100]);
        fs.files().sync_handle(handle, SyncScope::Data).expect("an image");
    }
    let closed = gate.close();
    let later = Timestamp { seconds: SystemClock.now().seconds + 60, nanoseconds: 0 };
    let destaging = {
        let fs = fs.clone();
        std::thread::spawn(move || fs.maintain(later, 4))
    };
    while gate.held() == 0 {
        std::thread::yield_now();
    }
    let commit = |page: u64, data: &'static [u8]| {
        let fs = fs.clone();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let mut transaction = fs.begin().expect("begin");
            transaction.write(file, page * PAGE, data).expect("write");
            transaction.commit_start(Box::new(|_| {})).expect("commit");
            sender.send(()).expect("the test waits");
        });
        receiver
    };
    commit(50, b"beside").recv_timeout(LONG).expect("it does not wait");
    let waiting = commit(3, b"the page itself");
    assert!(waiting.recv_timeout(Duration::from_millis(30)).is_err(), "it waits for the page's turn");
    drop(closed);
    waiting.recv_timeout(LONG).expect("it goes on");
    destaging.join().expect("no panic").expect("maintain");
    fs.sync_metadata().expect("force");
    let mut want = vec![1; 100 * PAGE as usize];
    for page in 0..10 {
        want[page * PAGE as usize..][..100].fill(2);
    }
    want[50 * PAGE as usize..][..6].copy_from_slice(b"beside");
    want[3 * PAGE as usize..][..15].copy_from_slice(b"the page itself");
    assert!(content(&fs, file) == want);
    assert!(content(&open(&gate.after_power_cut()), file) == want, "after the power cut");
}

#[test]
fn names_made_by_many_threads_are_made_once() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fs, made) = (&fs, &made);
            scope.spawn(move || {
                for n in 0..60 {
                    let mut transaction = fs.begin().expect("begin");
                    let name = format!("name-{n}");
                    let file = match transaction.create(&root(), ROOT, name.as_bytes(), 0o644) {
                        Ok(file) => file,
                        Err(Error::Exists) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let content = format!("{thread} made {n}");
                    transaction.write(file, 0, content.as_bytes()).expect("write");
                    match transaction.commit() {
                        Ok(()) => made.fetch_add(1, Ordering::Relaxed),
                        Err(Error::Conflict) => 0,
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
    });
    drop(fs);
    rig.crash();
    let found = list(&rig.fs, ROOT);
    assert_eq!((found.len() as u64, made.load(Ordering::Relaxed)), (60, 60));
    for (name, file) in found {
        let content = String::from_utf8(content(&rig.fs, file)).expect("text");
        assert!(content.ends_with(&format!(" made {}", &name[5..])), "{name}: {content}");
    }
    check_tree(&rig.fs);
}

#[test]
fn a_failure_stays_for_who_forces_when_nothing_is_left_to_force() {
    let gate = Gate::new(64 * MIB);
    let options = FsOptions::default().commit_interval(LONG);
    let entropy = SystemEntropy::default();
    let fs = Fs::open(gate.clone(), options, Arc::new(SystemClock), &entropy).expect("open");
    let file = put(&fs, ROOT, "file", &vec![1; 100 * PAGE as usize]);
    fs.sync_all().expect("sync");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    write(&fs, handle, 0, &vec![2; 100 * PAGE as usize]);
    gate.fail_writes();
    assert!(fs.files().sync_handle(handle, SyncScope::Data).is_err());
    assert!(
        fs.sync_metadata().is_err(),
        "all that was committed is durable, but the sync before has failed (C8)"
    );
}
