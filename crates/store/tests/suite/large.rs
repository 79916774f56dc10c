//! A batch that is large enough to have a record to itself, beside small ones: in the log, in its place.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::item::ExtentItem;
use syncline_format::{Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Run, Store, StoreOptions};

/// A record of this journal holds 2 MiB.
const JOURNAL_BLOCKS: u64 = 4096;
const VALUE: usize = 1000;
/// More than 1 MiB, with which a record of several batches ends.
const ITEMS: u64 = 1500;

fn open(device: &Arc<CrashDevice>) -> Arc<Store> {
    Store::open(device.clone(), StoreOptions::new(7)).expect("open").finish().expect("finish")
}

fn commit(store: &Store, bytes: usize, items: usize, fill: impl FnOnce(&mut Batch)) {
    let permit = store.admit(Class::Normal, Estimate { bytes, items, images: 0 }).expect("admitted");
    let mut batch = Batch::new(TreeId::MAIN);
    fill(&mut batch);
    store.commit(permit, batch).expect("committed");
}

fn key(index: u64) -> Key {
    Key::extent(ObjectNo(900), index * 128)
}

fn value(index: u64, round: u8) -> [u8; VALUE] {
    let mut value = [round; VALUE];
    value[..8].copy_from_slice(&index.to_le_bytes());
    value
}

#[test]
fn a_record_of_one_large_batch_is_recovered_between_small_ones() {
    let device = CrashDevice::new(16 * JOURNAL_BLOCKS);
    support::format(&*device, JOURNAL_BLOCKS, Vec::new());
    let store = open(&device);
    let before = device.counters();
    for round in 1..=2 {
        let small = |name: u64| {
            commit(&store, 200, 1, |batch| batch.put(Key::inode(ObjectNo(600 + name)), &[round; 64]));
        };
        small(0);
        commit(&store, ITEMS as usize * (VALUE + 50), ITEMS as usize, |batch| {
            (0..ITEMS).for_each(|index| batch.put(key(index), &value(index, round)));
        });
        small(1);
        small(2);
    }
    store.force(store.last_lsn()).expect("forced");
    let records = device.counters().writes - before.writes;
    assert_eq!(records, 5, "small, large, three small, large, two small");
    let store = open(&device.crash(&mut Random(3)));
    for index in 0..ITEMS {
        assert_eq!(
            store.get(TreeId::MAIN, key(index)).expect("read").as_deref(),
            Some(&value(index, 2)[..]),
            "item {index}"
        );
    }
    for name in 0..3 {
        let got = store.get(TreeId::MAIN, Key::inode(ObjectNo(600 + name))).expect("read");
        assert_eq!(got.as_deref(), Some(&[2; 64][..]), "object {name}");
    }
}

/// Runs that follow one another are entered as one, whatever else lies between them in the batch.
#[test]
fn space_of_a_batch_of_many_runs_is_counted_and_comes_back() {
    let device = CrashDevice::new(4 * JOURNAL_BLOCKS);
    support::format(&*device, JOURNAL_BLOCKS, Vec::new());
    let store = open(&device);
    let free = store.space().free;
    let mut pool = store.reserve(600).expect("space");
    let mut runs: Vec<Run> = Vec::new();
    while pool.blocks() > 0 {
        let near = runs.last().map(|run| run.start.plus(u64::from(run.len)));
        runs.push(store.allocate(&mut pool, 100, near));
    }
    // One of them is freed with a gap before and behind it, the others as they follow one another.
    let lone = runs[2];
    commit(&store, 1 << 16, runs.len(), |batch| {
        for (index, run) in (0..).zip(&runs) {
            batch.allocate(run.start, run.len);
            batch.put(key(index), &ExtentItem::written(run.start, vec![0; run.len as usize]).encode());
        }
    });
    assert_eq!(store.space().free, free - 600);
    commit(&store, 1 << 16, 1, |batch| {
        batch.free(lone.start, lone.len);
        batch.delete(key(2));
    });
    commit(&store, 1 << 16, runs.len(), |batch| {
        for (index, run) in (0..).zip(&runs).filter(|(index, _)| *index != 2) {
            batch.delete(key(index));
            batch.free(run.start, run.len);
        }
    });
    assert_eq!((store.space().free, store.space().pinned), (free, 600));
    store.force(store.last_lsn()).expect("forced");
    let reopened = open(&device.crash(&mut Random(5)));
    assert_eq!(reopened.get(TreeId::MAIN, key(0)).expect("read"), None);
    // What recovery's own checkpoint takes for nodes is little.
    assert!(reopened.space().free + 64 > free, "{} of {free} are free", reopened.space().free);
}
