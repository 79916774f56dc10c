//! Snapshots that are made while a checkpoint is under way: what they share with their head, and no checkpoint has
//! written yet, is written once.

use crate::support;
use crate::support::CrashDevice;
use crate::support::reach::Volume;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_format::item::Timestamp;
use syncline_format::{Key, ObjectNo, TreeId};
use syncline_store::{Class, Estimate, Permit, SnapshotLabel, Store, StoreError, StoreOptions};

const SNAPSHOTS: u64 = 40;
/// Items of 1500 bytes: a tree of two levels.
const ITEMS: u64 = 60;

fn admit(store: &Store) -> Permit {
    loop {
        match store.admit(Class::Normal, Estimate { bytes: 1700, items: 1, images: 0 }) {
            Ok(permit) => return permit,
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            Err(other) => panic!("{other}"),
        }
    }
}

fn put(store: &Store, item: u64, value: u8) {
    let permit = admit(store);
    let mut batch = store.batch(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(100 + item)), &[value; 1500]);
    store.commit(permit, batch).expect("commit");
}

fn snapshot(store: &Store, name: u64) {
    let label = SnapshotLabel {
        name: name.to_string(),
        uuid: [0; 16],
        made: Timestamp::default(),
        stay: Default::default(),
    };
    loop {
        match store.snapshot(TreeId::MAIN, &label) {
            Ok(_) => return,
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            Err(other) => panic!("{other}"),
        }
    }
}

// Shows: R23, R25.
#[test]
fn nodes_that_trees_share_are_written_once_also_beside_a_checkpoint() {
    let device = CrashDevice::new(16_384);
    support::format_with_trees(&*device, 512, Vec::new());
    let recovery = Store::open(device.clone(), StoreOptions::new(7).trees()).expect("open");
    let store = recovery.finish().expect("finish");
    (0..ITEMS).for_each(|item| put(&store, item, 0));
    let done = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.checkpoint().expect("checkpoint");
            }
            store.counters().checkpoints
        });
        let mut step = 0;
        let mut change = |value: u64| {
            step += 11;
            put(&store, step % ITEMS, value as u8);
        };
        for number in 0..SNAPSHOTS {
            // Somewhere in a checkpoint, never behind the same one.
            let before = store.counters().checkpoints;
            while store.counters().checkpoints == before {
                change(number);
            }
            (0..number % 8).for_each(|_| change(number));
            snapshot(&store, number);
        }
        done.store(true, Ordering::Relaxed);
        checkpoints.join().expect("the other thread")
    });
    assert!(beside >= SNAPSHOTS, "{beside} checkpoints");
    store.checkpoint().expect("checkpoint");
    store.checkpoint().expect("checkpoint");
    let volume = Volume::read(&*device);
    assert_eq!(volume.infos.len() as u64, SNAPSHOTS + 1);
    volume.judge(&*device, "beside checkpoints");
}
