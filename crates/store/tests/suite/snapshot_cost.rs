//! What snapshots and clones cost: making one is one write and one flush, and a sync costs the same with many as with
//! none.

use crate::support;
use crate::support::CrashDevice;
use crate::support::reach::Volume;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::item::Timestamp;
use syncline_format::superblock::Superblock;
use syncline_format::{BLOCK_BYTES, BlockNo, FormatError, Key, ObjectNo, TreeId};
use syncline_store::{Class, Estimate, SnapshotLabel, Store, StoreError, StoreOptions};

const MAIN: TreeId = TreeId::MAIN;

fn open(device: &Arc<CrashDevice>, epoch: u64) -> Arc<Store> {
    Store::open(device.clone(), StoreOptions::new(epoch).trees()).expect("open").finish().expect("finish")
}

fn new_volume() -> (Arc<CrashDevice>, Arc<Store>) {
    let device = CrashDevice::new(16_384);
    support::format_with_trees(&*device, 256, Vec::new());
    let store = open(&device, 7);
    (device, store)
}

fn label(name: &str) -> SnapshotLabel {
    SnapshotLabel {
        name: name.to_owned(),
        uuid: [1; 16],
        made: Timestamp::default(),
        stay: Default::default(),
    }
}

fn put(store: &Store, object: u64, value: u8) {
    let permit = store.admit(Class::Normal, Estimate { bytes: 400, items: 1, images: 0 }).expect("room");
    let mut batch = store.batch(MAIN);
    batch.put(Key::inode(ObjectNo(object)), &[value; 160]);
    store.commit(permit, batch).expect("commit");
}

fn image(store: &Store, object: u64, page: u64, value: u8) {
    let permit = store.admit(Class::Normal, Estimate { bytes: 4300, items: 0, images: 1 }).expect("room");
    let mut batch = store.batch(MAIN);
    batch.image(ObjectNo(object), page, &[value; BLOCK_BYTES]);
    store.commit(permit, batch).expect("commit");
}

fn snapshot(store: &Store, name: &str) -> TreeId {
    let (tree, lsn) = store.snapshot(MAIN, &label(name)).expect("snapshot");
    store.force(lsn).expect("force");
    tree
}

/// Writes and flushes that something takes.
fn cost(device: &CrashDevice, what: impl FnOnce()) -> (u64, u64) {
    let before = device.counters();
    what();
    let after = device.counters();
    (after.writes - before.writes, after.flushes - before.flushes)
}

#[test]
fn making_a_snapshot_is_one_write_and_one_flush() {
    let (device, store) = new_volume();
    put(&store, 100, 1);
    store.checkpoint().expect("checkpoint");
    for (name, images) in [("none", 0), ("some", 20)] {
        (0..images).for_each(|page| image(&store, 100, page, 5));
        store.force(store.last_lsn()).expect("force");
        assert_eq!(
            cost(&device, || assert!(snapshot(&store, name).is_filesystem())),
            (1, 1),
            "{name} inherited"
        );
    }
}

// Shows: C12.
#[test]
fn making_a_clone_is_one_write_and_one_flush_and_so_is_a_sync_in_it() {
    let (device, store) = new_volume();
    (0..200).for_each(|object| put(&store, 100 + object, 1));
    let of = snapshot(&store, "a");
    store.checkpoint().expect("checkpoint");
    let mut clone = None;
    let made = cost(&device, || {
        let (reader, lsn) = store.clone_tree(of, &label("b"), false).expect("clone");
        store.force(lsn).expect("force");
        clone = Some(reader.tree());
    });
    assert_eq!(made, (1, 1));
    let clone = clone.expect("made");
    let synced = cost(&device, || {
        let permit = store.admit(Class::Normal, Estimate { bytes: 400, items: 1, images: 0 }).expect("room");
        let mut batch = store.batch(clone);
        batch.put(Key::inode(ObjectNo(100)), &[9; 160]);
        let lsn = store.commit(permit, batch).expect("commit");
        store.force(lsn).expect("force");
    });
    assert_eq!(synced, (1, 1));
    let value = |tree| store.get(tree, Key::inode(ObjectNo(100))).expect("get").expect("there")[0];
    assert_eq!((value(MAIN), value(of), value(clone)), (1, 1, 9));
}

// Shows: C11.
#[test]
fn the_space_of_a_deleted_snapshot_is_free_behind_one_checkpoint() {
    let (device, store) = new_volume();
    (0..400).for_each(|object| put(&store, 100 + object, 1));
    store.checkpoint().expect("checkpoint");
    let tree = snapshot(&store, "a");
    for changed in [0, 400] {
        (0..changed).for_each(|object| put(&store, 100 + object, 2));
        store.checkpoint().expect("checkpoint");
    }
    store.delete_tree(tree).map(|lsn| store.force(lsn)).expect("delete").expect("force");
    let before = store.space().available;
    let steps = cost(&device, || while store.reap_space(usize::MAX).expect("a step") {});
    assert_eq!(steps, (0, 0), "nothing of it has to be durable");
    let (_, flushes) = cost(&device, || store.checkpoint_of_freed().expect("checkpoint"));
    assert_eq!(flushes, 3, "of what is logged, of the nodes, and of the superblock");
    let free = store.space();
    assert!(free.available >= before + 20, "{before} blocks were available, and {} are", free.available);
    assert_eq!(free.pinned, 0);
    assert_eq!(cost(&device, || store.checkpoint_of_freed().expect("checkpoint")), (0, 0), "it is free");
    // Its item is left, and gives nothing back.
    assert!(store.is_reaping() && !store.reap_space(usize::MAX).expect("a step"));
    while store.reap(usize::MAX).expect("a step") {}
    assert!(!store.is_reaping());
    store.checkpoint().expect("checkpoint");
    Volume::read(&*device).judge(&*device, "behind the deletion");
}

// Shows: C11.
#[test]
fn a_snapshot_of_what_has_not_changed_goes_without_a_checkpoint() {
    for changed in [0, 1] {
        let (device, store) = new_volume();
        // None of it is on the device so far but in the journal.
        (0..400).for_each(|object| put(&store, 100 + object, 1));
        let tree = snapshot(&store, "a");
        (0..changed).for_each(|object| put(&store, 100 + object, 2));
        store.delete_tree(tree).map(|lsn| store.force(lsn)).expect("delete").expect("force");
        let steps = cost(&device, || {
            while store.reap_space(usize::MAX).expect("a step") {}
            store.checkpoint_of_freed().expect("checkpoint");
        });
        match changed {
            0 => assert_eq!(steps, (0, 0), "the head has all that it had, wherever that lies"),
            _ => assert!(steps.1 > 0, "what it had alone has to be written to be found"),
        }
        // What it shared is the head's: it lets go of it, and goes on.
        (0..400).for_each(|object| put(&store, 100 + object, 3));
        store.checkpoint().expect("checkpoint");
        while store.reap(usize::MAX).expect("a step") {}
        store.checkpoint().expect("checkpoint");
        Volume::read(&*device).judge(&*device, "behind the deletion");
        drop(store);
        let store = open(&device, 8);
        let value = |object| store.get(MAIN, Key::inode(ObjectNo(object))).expect("get").expect("there")[0];
        assert!((100..500).all(|object| value(object) == 3));
        assert_eq!(store.trees().len(), 1);
    }
}

// Shows: C11.
#[test]
fn whoever_waits_for_space_goes_on_with_the_next_tree_behind_the_end_of_one() {
    let (device, store) = new_volume();
    let trees: Vec<TreeId> = (0..4)
        .map(|number| {
            (0..100).for_each(|object| put(&store, 100 + object, number));
            snapshot(&store, &number.to_string())
        })
        .collect();
    store.checkpoint().expect("checkpoint");
    for tree in &trees {
        store.delete_tree(*tree).expect("delete");
    }
    while store.reap_space(usize::MAX).expect("a step") {}
    store.checkpoint_of_freed().expect("checkpoint");
    assert_eq!(store.trees().len(), 2, "the head, and the last one's item");
    while store.reap(usize::MAX).expect("a step") {}
    assert_eq!(store.trees().len(), 1);
    store.checkpoint().expect("checkpoint");
    Volume::read(&*device).judge(&*device, "behind the deletions");
}

#[test]
fn what_cannot_be_cloned_is_refused_and_leaves_no_trace() {
    let (_, store) = new_volume();
    let of = snapshot(&store, "first");
    let last = store.last_lsn();
    let refused = |of, name: &str| store.clone_tree(of, &label(name), false).map(drop);
    assert_eq!(refused(of, "a/b"), Err(StoreError::BadTreeName { name: "a/b".to_owned() }));
    assert_eq!(refused(of, "first"), Err(StoreError::TreeExists { name: "first".to_owned() }));
    assert_eq!(refused(MAIN, "b"), Err(StoreError::NotASnapshot { tree: MAIN }));
    assert_eq!(refused(TreeId::VOLUME, "b"), Err(StoreError::NoTree { tree: TreeId::VOLUME }));
    assert_eq!(refused(TreeId(77), "b"), Err(StoreError::NoTree { tree: TreeId(77) }));
    assert_eq!(store.last_lsn(), last);
    // A snapshot that was deleted, and is kept for its clones, has no name to be cloned by.
    let (_reader, _) = store.clone_tree(of, &label("b"), false).expect("clone");
    store.delete_tree(of).expect("delete");
    assert_eq!(refused(of, "c"), Err(StoreError::NoTree { tree: of }));
    assert_eq!(store.default_head(), MAIN);
    assert_eq!(store.delete_tree(MAIN), Err(StoreError::DefaultHead));
}

#[test]
fn a_sync_costs_the_same_with_many_snapshots_as_with_none() {
    let (device, store) = new_volume();
    let sync = |number: u64| {
        cost(&device, || {
            put(&store, 100, number as u8);
            image(&store, 100, 0, number as u8 + 1);
            store.force(store.last_lsn()).expect("force");
        })
    };
    assert_eq!(sync(0), (1, 1));
    for number in 0..200 {
        snapshot(&store, &number.to_string());
        if number % 10 == 9 {
            // The head's image is logged anew: what is older keeps the journal's tail.
            image(&store, 100, 0, 9);
            while store.settle().expect("settle") {}
            store.checkpoint().expect("checkpoint");
        }
    }
    let misses = store.counters().node_cache_misses;
    assert_eq!(sync(1), (1, 1), "with 200 snapshots");
    assert_eq!(store.counters().node_cache_misses, misses, "nothing has to be read for it");
}

#[test]
fn many_snapshots_are_there_after_a_restart_and_share_what_has_not_changed() {
    let (device, store) = new_volume();
    const MANY: u64 = 400;
    put(&store, 100, 0);
    for number in 0..MANY {
        put(&store, 101, number as u8);
        snapshot(&store, &format!("number {number}"));
        if number % 60 == 59 {
            store.checkpoint().expect("checkpoint");
        }
    }
    store.close().expect("close");
    drop(store);
    let volume = Volume::read(&*device);
    assert!(volume.superblock.root.level > 0, "the root tree has several leaves");
    volume.judge(&*device, "with many snapshots");
    let store = open(&device, 8);
    let trees = store.trees();
    assert_eq!(trees.len() as u64, MANY + 1);
    for (tree, item) in trees.iter().filter(|(tree, _)| **tree != MAIN) {
        let number: u64 = item.name.strip_prefix("number ").expect("its name").parse().expect("a number");
        let value = |object| store.get(*tree, Key::inode(ObjectNo(object))).expect("get").expect("there")[0];
        assert_eq!((value(100), value(101)), (0, number as u8), "{}", item.name);
    }
}

#[test]
fn what_cannot_be_a_snapshot_is_refused_with_one_sentence_and_leaves_no_trace() {
    let (_, store) = new_volume();
    let first = snapshot(&store, "first");
    let last = store.last_lsn();
    let long = "x".repeat(256);
    for name in ["", ".", "..", "a/b", "a\0b", &long] {
        let refused = store.snapshot(MAIN, &label(name)).expect_err("no name");
        assert_eq!(refused, StoreError::BadTreeName { name: name.to_owned() });
        assert!(!refused.to_string().contains('\n'));
    }
    let taken = StoreError::TreeExists { name: "first".to_owned() };
    assert_eq!(store.snapshot(MAIN, &label("first")), Err(taken));
    let main = StoreError::TreeExists { name: "main".to_owned() };
    assert_eq!(store.snapshot(MAIN, &label("main")), Err(main), "the head has a name as well");
    assert_eq!(store.snapshot(first, &label("b")), Err(StoreError::NotAHead { tree: first }));
    let volume = StoreError::NotAHead { tree: TreeId::VOLUME };
    assert_eq!(store.snapshot(TreeId::VOLUME, &label("b")), Err(volume));
    let none = StoreError::NoTree { tree: TreeId(77) };
    assert_eq!(store.snapshot(TreeId(77), &label("b")), Err(none));
    let permit = store.admit(Class::Normal, Estimate { bytes: 400, items: 1, images: 0 }).expect("room");
    let mut batch = store.batch(first);
    batch.put(Key::inode(ObjectNo(100)), &[1; 160]);
    assert_eq!(store.commit(permit, batch), Err(StoreError::NotAHead { tree: first }), "it never changes");
    assert_eq!((store.last_lsn(), store.trees().len()), (last, 2));
}

#[test]
fn a_volume_of_version_1_has_no_snapshots_and_stays_one() {
    let device = CrashDevice::new(4096);
    support::format(&*device, 64, Vec::new());
    let store = open(&device, 7);
    assert_eq!(store.snapshot(MAIN, &label("a")), Err(StoreError::NeedsUpgrade));
    assert!(store.trees().is_empty());
    put(&store, 100, 1);
    store.close().expect("close");
    let superblock = Volume::read(&*device).superblock;
    assert_eq!(superblock.trees, None);
    Volume::read(&*device).judge(&*device, "version 1");
}

#[test]
fn version_2_is_opened_by_nobody_who_does_not_know_of_trees() {
    let (device, store) = new_volume();
    drop(store);
    let refused = Store::open(device, StoreOptions::new(9)).err().expect("refused");
    let source = FormatError::Features { unknown: 32 };
    assert_eq!(refused, StoreError::NoSuperblock { source });
}

// Shows: R35.
#[test]
fn a_snapshot_of_a_volume_that_is_almost_full_is_refused() {
    let (_, store) = new_volume();
    let space = store.space();
    let kept = space.total / 50;
    let most = store.reserve(space.available - kept - 8).expect("space");
    assert_eq!(store.snapshot(MAIN, &label("a")), Err(StoreError::NoSpace));
    drop(most);
    let a = snapshot(&store, "a");
    let space = store.space();
    let most = store.reserve(space.available - kept + 8).expect("space");
    assert_eq!(store.clone_tree(a, &label("b"), false).map(drop), Err(StoreError::NoSpace));
    drop(most);
    drop(store.clone_tree(a, &label("b"), false).expect("there is room again"));
}

#[test]
fn settling_gives_back_what_was_reserved_for_it() {
    let (device, store) = new_volume();
    store.checkpoint().expect("checkpoint");
    let before = store.space().available;
    (0..30).for_each(|page| image(&store, 100, page, page as u8 + 1));
    let tree = snapshot(&store, "a");
    // The head's own images hold no blocks here: a filesystem reserves them with the pages.
    while store.settle().expect("settle") {}
    let overlay = store.overlay(tree).expect("overlay");
    assert_eq!(overlay.len(), 30);
    for item in &overlay {
        let mut bytes = vec![0; BLOCK_BYTES];
        device.read(item.extent.start, &mut bytes).expect("read");
        assert_eq!(bytes, [item.page as u8 + 1; BLOCK_BYTES], "page {}", item.page);
    }
    assert_eq!(store.load().images, 30, "the head's");
    store.checkpoint().expect("checkpoint");
    store.checkpoint().expect("checkpoint");
    let taken = before - store.space().available;
    assert!((30..60).contains(&taken), "30 blocks and a few nodes: {taken}");
    let slot: Superblock = Volume::read(&*device).superblock;
    assert_eq!(slot.checkpoint_lsn, store.last_lsn());
    assert_ne!(slot.root.block, BlockNo(0));
}
