//! Trees of several levels over real volumes: batches that empty leaves, collapse the root, and start from a cold
//! cache.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::{Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 16384;

type Model = BTreeMap<Key, Vec<u8>>;

fn format(device: &CrashDevice) {
    support::format(device, 1024, Vec::new());
}

fn open(device: &Arc<CrashDevice>, epoch: u64) -> Arc<Store> {
    let options = StoreOptions::new(epoch).node_cache_bytes(64 * 16384);
    let device = Arc::clone(device) as Arc<dyn Device>;
    Store::open(device, options).expect("open").finish().expect("finish")
}

fn key(number: u64) -> Key {
    Key::inode(ObjectNo(number))
}

/// Commits puts (`Some`) and deletes (`None`) as one batch.
fn commit(store: &Store, model: &mut Model, changes: &[(u64, Option<usize>)]) {
    let mut batch = Batch::new(TreeId::MAIN);
    for (number, value) in changes {
        match value {
            Some(len) => {
                let value = vec![*number as u8; *len];
                batch.put(key(*number), &value);
                model.insert(key(*number), value);
            }
            None => {
                batch.delete(key(*number));
                model.remove(&key(*number));
            }
        }
    }
    let estimate = Estimate { bytes: batch.bytes(), items: changes.len(), images: 0 };
    let permit = loop {
        match store.admit(Class::Normal, estimate) {
            Ok(permit) => break permit,
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            Err(other) => panic!("{other}"),
        }
    };
    store.commit(permit, batch).expect("commit");
}

fn contents(store: &Store) -> Model {
    let mut model = Model::new();
    store
        .scan(TreeId::MAIN, Key::MIN, Key::MAX, &mut |key, value| {
            model.insert(key, value.to_vec());
            ControlFlow::Continue(())
        })
        .expect("scan");
    model
}

fn filled(device: &Arc<CrashDevice>, items: u64, len: usize) -> Model {
    format(device);
    let store = open(device, 1);
    let mut model = Model::new();
    for first in (0..items).step_by(20) {
        let changes: Vec<_> = (first..items.min(first + 20)).map(|n| (n * 10, Some(len))).collect();
        commit(&store, &mut model, &changes);
    }
    store.close().expect("close");
    model
}

#[test]
fn a_root_that_loses_all_children_but_a_clean_one_is_checkpointed() {
    let device = CrashDevice::new(BLOCKS);
    let mut model = filled(&device, 5, 4000);
    let store = open(&device, 2);
    assert_eq!(contents(&store), model, "all nodes are cached now");
    // One batch empties the right leaf; the left one stays as it is on the device.
    commit(&store, &mut model, &[(40, None)]);
    assert_eq!(contents(&store), model);
    store.close().expect("close");
    drop(store);
    let store = open(&device, 3);
    assert_eq!(contents(&store), model, "the checkpoint names the new root");
    for n in 0..40 {
        commit(&store, &mut model, &[(n * 10 + 5, Some(3000))]);
        store.checkpoint().expect("checkpoint");
    }
    store.close().expect("close");
    assert_eq!(contents(&open(&device, 4)), model);
}

#[test]
fn a_batch_may_empty_a_leaf_and_go_on_where_it_was() {
    for then in [Some(100), None] {
        for middle in [3u64, 40, 79, 150, 199] {
            let device = CrashDevice::new(BLOCKS);
            let mut model = filled(&device, 200, 4000);
            let store = open(&device, 2);
            // Leaves hold three or four of these: some of them vanish with their neighbours, nothing is cached.
            let from = middle.saturating_sub(4);
            let mut changes: Vec<_> = (from..(middle + 4).min(200)).map(|n| (n * 10, None)).collect();
            changes.push((middle * 10 + 1, then));
            changes.push((middle * 10 - 1, then));
            commit(&store, &mut model, &changes);
            assert_eq!(contents(&store), model);
        }
    }
}

/// The next leaf inherits the keys of the first one of its node, and is then split below the key that it had before.
// Shows: C7.
#[test]
fn keys_are_put_where_the_first_leaf_was_emptied() {
    let device = CrashDevice::new(BLOCKS);
    let mut model = filled(&device, 200, 500);
    let store = open(&device, 2);
    for n in 0..60 {
        commit(&store, &mut model, &[(n * 10, None)]);
    }
    for n in 0..100 {
        commit(&store, &mut model, &[(n * 3, Some(500))]);
    }
    assert_eq!(contents(&store), model);
    store.close().expect("close");
    drop(store);
    assert_eq!(contents(&open(&device, 3)), model);
}

#[test]
fn random_batches_over_a_cold_cache_agree_with_a_map() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let device = CrashDevice::new(BLOCKS);
        let mut model = filled(&device, 1500, 700);
        for session in 0..4 {
            let store = open(&device, 100 + session);
            for _ in 0..60 {
                let centre = random.below(15_000);
                let delete_mostly = random.one_in(2);
                let changes: Vec<_> = (0..1 + random.below(60))
                    .map(|step| {
                        let delete = random.one_in(if delete_mostly { 10 } else { 2 }) != delete_mostly;
                        let number =
                            if delete { (centre / 10 + step) * 10 } else { centre + random.below(300) };
                        (
                            number,
                            (!delete).then(|| random.below(if step % 7 == 0 { 4000 } else { 300 }) as usize),
                        )
                    })
                    .collect();
                commit(&store, &mut model, &changes);
                if random.one_in(12) {
                    store.checkpoint().expect("checkpoint");
                }
            }
            assert_eq!(contents(&store), model, "seed {seed} session {session}");
            store.close().expect("close");
        }
        assert_eq!(contents(&open(&device, 999)), model, "seed {seed}");
    }
}

#[test]
fn dirty_nodes_are_bounded_for_the_sake_of_recovery_however_large_the_memory_bound_is() {
    let device = CrashDevice::new(BLOCKS);
    format(&device);
    let options = StoreOptions::new(1).node_cache_bytes(12 << 30);
    let store = Store::open(Arc::clone(&device) as Arc<dyn Device>, options).expect("open").finish();
    let store = store.expect("finish");
    assert_eq!(store.load().dirty_node_bytes_max, 128 << 20);
    store.set_node_bounds(1 << 30, 12 << 30);
    assert_eq!(store.load().dirty_node_bytes_max, 128 << 20);
    store.set_node_bounds(1 << 30, 32 << 20);
    assert_eq!(store.load().dirty_node_bytes_max, 32 << 20, "a smaller bound is kept");
}
