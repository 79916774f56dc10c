//! What the store does without each of its mechanisms, by counts of writes and flushes: the switches exist for a
//! benchmark, and one without effect would make a mechanism look worthless.

use crate::support;
use crate::support::CrashDevice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use syncline_device::{Buffer, Device, Layer, Ticket};
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_format::{BlockNo, Key, Lsn, ObjectNo, TreeId};
use syncline_store::lock_order::elsewhere;
use syncline_store::{Ablation, Batch, Class, Estimate, Piggyback, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 4096;
const JOURNAL_BLOCKS: u64 = 256;

fn open(device: Arc<dyn Device>, ablation: Ablation) -> Arc<Store> {
    support::format(&*device, JOURNAL_BLOCKS, Vec::new());
    let options = StoreOptions::new(7).without(ablation);
    Store::open(device, options).expect("open").finish().expect("finish")
}

fn put(store: &Store, object: u64) -> Lsn {
    let permit = store.admit(Class::Normal, Estimate { bytes: 100, items: 1, images: 0 }).expect("admitted");
    let mut batch = Batch::new(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(object)), b"value");
    store.commit(permit, batch).expect("committed")
}

/// Writes and flushes of `work`.
fn counted(device: &dyn Device, work: impl FnOnce()) -> (u64, u64) {
    let before = device.counters();
    work();
    let after = device.counters();
    (after.writes - before.writes, after.flushes - before.flushes)
}

#[test]
fn without_group_commit_every_sync_writes_and_flushes_its_own() {
    for (ablation, expected) in
        [(Ablation::default(), (1, 1)), (Ablation { no_group_commit: true, ..Ablation::default() }, (3, 3))]
    {
        let device = CrashDevice::new(BLOCKS);
        let store = open(device.clone(), ablation);
        let spent = counted(&*device, || {
            // Three who sync together: the first to be served is the last or the first of them.
            let lsns: Vec<Lsn> = (0..3).map(|object| put(&store, object)).collect();
            match ablation.no_group_commit {
                true => lsns.iter().for_each(|&lsn| store.force(lsn).expect("forced")),
                false => lsns.iter().rev().for_each(|&lsn| store.force(lsn).expect("forced")),
            }
        });
        assert_eq!(spent, expected, "{ablation:?}");
    }
}

#[test]
fn without_group_commit_many_threads_flush_as_often_as_they_sync() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone(), Ablation { no_group_commit: true, ..Ablation::default() });
    let (writes, flushes) = counted(&*device, || {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &store;
                scope.spawn(move || {
                    for index in 0..10 {
                        store.force(put(store, thread * 10 + index)).expect("forced");
                    }
                });
            }
        });
    });
    // One that found its LSN durable when it came has nothing left to flush.
    assert!(flushes >= writes && flushes <= 40, "{writes} writes, {flushes} flushes");
}

#[test]
fn ordered_records_hold_one_batch_each() {
    for (ordered_records, expected) in [(false, (1, 1)), (true, (10, 1))] {
        let device = CrashDevice::new(BLOCKS);
        let store = open(device.clone(), Ablation { ordered_records, ..Ablation::default() });
        let spent = counted(&*device, || {
            for object in 0..10 {
                put(&store, object);
            }
            store.force(store.last_lsn()).expect("forced");
        });
        assert_eq!(spent, expected);
    }
}

// Shows: R17.
#[test]
fn a_ring_of_single_batches_is_never_overfilled() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone(), Ablation { ordered_records: true, ..Ablation::default() });
    let estimate = Estimate { bytes: 100, items: 1, images: 0 };
    let mut refused = 0;
    for object in 0..2000 {
        match store.admit(Class::Normal, estimate) {
            Ok(permit) => drop(permit),
            Err(StoreError::Pressure(_)) => {
                refused += 1;
                store.checkpoint().expect("checkpoint");
            }
            Err(other) => panic!("{other}"),
        }
        put(&store, object % 50);
    }
    assert!(refused >= 2000 / JOURNAL_BLOCKS, "{refused}");
    store.force(store.last_lsn()).expect("forced");
}

#[test]
fn data_is_not_in_flight_beside_its_record_when_it_is_waited_for() {
    for (waiting_for_data, granted) in [(false, true), (true, false)] {
        let store = open(CrashDevice::new(BLOCKS), Ablation { waiting_for_data, ..Ablation::default() });
        assert_eq!(store.data_slot(4096).is_some(), granted);
    }
}

struct Filler(AtomicU64);

impl Piggyback for Filler {
    fn has_any(&self) -> bool {
        true
    }

    fn fill(&self, _room: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn without_piggyback_nobody_is_asked_to_fill_a_record() {
    for (no_piggyback, asked) in [(false, 1), (true, 0)] {
        let store = open(CrashDevice::new(BLOCKS), Ablation { no_piggyback, ..Ablation::default() });
        let filler = Arc::new(Filler(AtomicU64::new(0)));
        let hook = Arc::downgrade(&filler);
        store.set_piggyback(hook);
        store.force(put(&store, 1)).expect("forced");
        assert_eq!(filler.0.load(Ordering::Relaxed), asked);
    }
}

/// Runs something in the middle of a checkpoint, behind its own force: at the write of its superblock.
struct Interrupted {
    inner: Arc<CrashDevice>,
    work: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Layer for Interrupted {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if SUPERBLOCK_SLOTS.contains(&at) {
            let work = self.work.lock().expect("not poisoned").take();
            if let Some(work) = work {
                work();
            }
        }
        self.inner.submit_write(at, data)
    }
}

#[test]
fn a_force_waits_for_the_checkpoint_only_where_logging_is_blocked() {
    for blocked_logging in [false, true] {
        let device = Arc::new(Interrupted { inner: CrashDevice::new(BLOCKS), work: Mutex::new(None) });
        let store = open(device.clone(), Ablation { blocked_logging, ..Ablation::default() });
        put(&store, 1);
        let checkpoints_seen = Arc::new(AtomicU64::new(u64::MAX));
        let forcing: Arc<OnceLock<std::thread::JoinHandle<()>>> = Arc::default();
        let (of_work, seen, thread) = (store.clone(), checkpoints_seen.clone(), forcing.clone());
        *device.work.lock().expect("not poisoned") = Some(Box::new(move || {
            let lsn = elsewhere(|| put(&of_work, 2));
            let handle = std::thread::spawn(move || {
                of_work.force(lsn).expect("forced");
                seen.store(of_work.counters().checkpoints, Ordering::SeqCst);
            });
            if blocked_logging {
                // Nobody else makes this batch durable. A force that did not wait would be through in this time.
                std::thread::sleep(Duration::from_millis(50));
                thread.set(handle).expect("once");
            } else {
                handle.join().expect("the force ends in the middle of the checkpoint");
            }
        }));
        let before = store.counters().checkpoints;
        store.checkpoint().expect("checkpoint");
        if let Some(handle) = Arc::into_inner(forcing).and_then(OnceLock::into_inner) {
            handle.join().expect("no panic");
        }
        let expected = before + u64::from(blocked_logging);
        assert_eq!(checkpoints_seen.load(Ordering::SeqCst), expected, "{blocked_logging}");
    }
}
