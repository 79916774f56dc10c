//! Snapshots of trees of three levels are deleted while their head changes, step by step and beside other threads.

use crate::support;
use crate::support::reach::Volume;
use crate::support::view::{extents, object, shape};
use crate::support::{CrashDevice, Random, checked};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentItem, Timestamp};
use syncline_format::superblock::SUPERBLOCK_SLOTS;
use syncline_format::tree_item::{Role, TreeState};
use syncline_format::{Key, TreeId};
use syncline_store::{Batch, Birth, Class, Estimate, Permit, SnapshotLabel, Store, StoreError, StoreOptions};

/// Items of 3800 bytes, four to a leaf: more leaves than one interior node has children.
const ITEMS: u64 = 4800;
const BYTES: usize = 3800;
/// Items that change: few, so that the same leaves change again and again.
const SPOTS: u64 = 60;

fn admit(store: &Store, items: usize) -> Permit {
    loop {
        let estimate = Estimate { bytes: 100 + items * (BYTES + 100), items, images: 0 };
        match store.admit(Class::Normal, estimate) {
            Ok(permit) => return permit,
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            Err(other) => panic!("{other}"),
        }
    }
}

fn put(store: &Store, items: &[u64], value: u8) {
    put_into(store, TreeId::MAIN, items, value);
}

fn put_into(store: &Store, head: TreeId, items: &[u64], value: u8) {
    let permit = admit(store, items.len());
    let mut batch = store.batch(head);
    items.iter().for_each(|item| batch.put(shape(*item), &[value; BYTES]));
    store.commit(permit, batch).expect("commit");
}

fn relieved<T>(store: &Store, call: impl Fn() -> Result<T, StoreError>) -> T {
    loop {
        match call() {
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            result => return result.expect("the store does it"),
        }
    }
}

fn snapshot(store: &Store, name: u64) -> TreeId {
    let label = SnapshotLabel {
        name: name.to_string(),
        uuid: [0; 16],
        made: Timestamp::default(),
        stay: Default::default(),
    };
    relieved(store, || store.snapshot(TreeId::MAIN, &label)).0
}

fn clone(store: &Store, of: TreeId, name: u64) -> TreeId {
    let label = SnapshotLabel {
        name: format!("c{name}"),
        uuid: [0; 16],
        made: Timestamp::default(),
        stay: Default::default(),
    };
    relieved(store, || store.clone_tree(of, &label, false)).0.tree()
}

fn open(seed: u64) -> (Arc<CrashDevice>, Arc<Store>) {
    let device = CrashDevice::new(65_536);
    support::format_with_trees(&*device, 512, Vec::new());
    let recovery = Store::open(device.clone(), StoreOptions::new(seed).trees()).expect("open");
    let store = recovery.finish().expect("finish");
    for first in (0..ITEMS).step_by(8) {
        put(&store, &Vec::from_iter(first..first + 8), 0);
    }
    (device, store)
}

fn judge(device: &CrashDevice, store: &Store, what: &str) -> Volume {
    store.checkpoint().expect("checkpoint");
    store.checkpoint().expect("checkpoint");
    let volume = Volume::read(device);
    volume.judge(device, what);
    checked(device, what);
    volume
}

// Shows: R23, R25, R27, R29.
#[test]
fn a_head_and_new_snapshots_change_while_the_nodes_of_an_old_one_are_looked_for() {
    for seed in 1..=3 {
        let (device, store) = open(seed);
        let mut random = Random(seed);
        let (mut name, mut gone, mut beside) = (0, 0, 0);
        let mut snapshots = Vec::new();
        for round in 0..12 {
            name += 1;
            snapshots.push(snapshot(&store, name));
            for _ in 0..30 {
                put(&store, &[random.below(SPOTS) * (ITEMS / SPOTS)], round);
            }
            store.checkpoint().expect("checkpoint");
            // The newest, whose nodes the head has, more often than another.
            let index = if random.one_in(3) { 0 } else { snapshots.len() - 1 };
            let tree = snapshots.remove(index);
            relieved(&store, || store.delete_tree(tree));
            let mut steps = 0;
            while relieved(&store, || store.reap(1)) {
                steps += 1;
                put(&store, &[random.below(SPOTS) * (ITEMS / SPOTS)], round);
                match random.below(12) {
                    0 | 1 if snapshots.len() < 12 => {
                        name += 1;
                        snapshots.push(snapshot(&store, name));
                        beside += 1;
                    }
                    2 => drop(judge(&device, &store, "while one goes away")),
                    3 => store.checkpoint().expect("checkpoint"),
                    _ => {}
                }
            }
            gone += u64::from(steps > 8);
            judge(&device, &store, "behind a deletion");
        }
        assert!(gone > 4 && beside > 2, "{gone} deletions of many steps, {beside} snapshots beside them");
        for tree in snapshots {
            relieved(&store, || store.delete_tree(tree));
        }
        while relieved(&store, || store.reap(32)) {}
        assert_eq!(judge(&device, &store, "in the end").infos.len(), 1);
    }
}

// Shows: R25, R27; what a clone lets go of its snapshot still has, while a deletion looks for nodes that the snapshot
// does not have.
#[test]
fn clones_change_while_the_nodes_of_an_old_snapshot_are_looked_for() {
    for seed in 1..=2 {
        let (device, store) = open(seed);
        let mut random = Random(seed + 10);
        let (mut heads, mut snapshots) = (vec![TreeId::MAIN], Vec::new());
        let (mut name, mut clones, mut clones_among_nodes) = (0, 0, 0);
        for round in 0..10 {
            (0..2).for_each(|_| {
                name += 1;
                snapshots.push(snapshot(&store, name));
                (0..10).for_each(|_| put(&store, &[random.below(SPOTS) * (ITEMS / SPOTS)], round));
            });
            store.checkpoint().expect("checkpoint");
            // The next newer one descends from it.
            let tree = snapshots.remove(snapshots.len() - 2);
            relieved(&store, || store.delete_tree(tree));
            while relieved(&store, || store.reap(1)) {
                // Of all steps a few only look for nodes: most clones are made, and changed, between these.
                let nodes = TreeState::Deleting { cursor: Key::MAX };
                let is_among_nodes = store.trees().get(&tree).is_some_and(|item| item.state == nodes);
                for _ in 0..if is_among_nodes { 12 } else { 1 } {
                    let head = heads[random.below(heads.len() as u64) as usize];
                    put_into(&store, head, &[random.below(SPOTS) * (ITEMS / SPOTS)], round);
                }
                if heads.len() < 4 && random.one_in(if is_among_nodes { 2 } else { 60 }) {
                    name += 1;
                    clones += 1;
                    clones_among_nodes += u64::from(is_among_nodes);
                    heads.push(clone(&store, snapshots[snapshots.len() - 1], name));
                }
                match random.below(12) {
                    2 => drop(judge(&device, &store, "while one goes away")),
                    3 => store.checkpoint().expect("checkpoint"),
                    _ => {}
                }
            }
            judge(&device, &store, "behind a deletion");
            if heads.len() > 2 {
                let head = heads.remove(1);
                relieved(&store, || store.delete_tree(head));
            }
        }
        assert!(clones > 4 && clones_among_nodes > 2, "{clones} clones, {clones_among_nodes} among nodes");
        for tree in snapshots.into_iter().chain(heads.into_iter().skip(1)) {
            relieved(&store, || store.delete_tree(tree));
        }
        while relieved(&store, || store.reap(32)) {}
        assert_eq!(judge(&device, &store, "in the end").infos.len(), 1);
    }
}

// Shows: R25, R29; a deletion, checkpoints and the head's changes on threads of their own.
#[test]
fn deletions_checkpoints_and_changes_run_beside_each_other() {
    let (device, store) = open(7);
    let done = AtomicBool::new(false);
    let gone = std::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.checkpoint().expect("checkpoint");
            }
        });
        let reaper = scope.spawn(|| {
            let mut deleted = 0;
            loop {
                let ends = done.load(Ordering::Relaxed);
                let trees = store.trees();
                let oldest =
                    trees.iter().find(|(_, item)| item.role == Role::Snapshot && !item.name.is_empty());
                if let Some((tree, _)) = oldest.filter(|_| !store.is_reaping()) {
                    relieved(&store, || store.delete_tree(*tree));
                    deleted += 1;
                }
                let reaped = relieved(&store, || store.reap(2));
                if ends && !reaped && store.trees().len() == 1 {
                    return deleted;
                }
            }
        });
        let mut random = Random(7);
        for round in 0..24_u64 {
            (0..12).for_each(|_| put(&store, &[random.below(SPOTS) * (ITEMS / SPOTS)], round as u8));
            snapshot(&store, round);
        }
        done.store(true, Ordering::Relaxed);
        checkpoints.join().expect("the checkpoints");
        reaper.join().expect("the reaper")
    });
    assert_eq!(gone, 24);
    judge(&device, &store, "beside each other");
}

// Shows: the end of a deletion is logged behind two checkpoints: whichever superblock is lost then, the other one does
// not lead to the tree.
#[test]
fn the_loss_of_a_superblock_behind_a_deletion_loses_nothing() {
    let (device, store) = open(3);
    let tree = snapshot(&store, 1);
    put(&store, &[0, 1000, 2000], 1);
    relieved(&store, || store.delete_tree(tree));
    while relieved(&store, || store.reap(32)) {}
    assert_eq!(store.trees().len(), 1);
    store.force(store.last_lsn()).expect("force");
    let newest = Volume::read(&*device).superblock.generation;
    drop(store);
    for (slot, at) in SUPERBLOCK_SLOTS.into_iter().enumerate() {
        let copy = device.crash(&mut Random(1));
        copy.write(at, vec![Arc::new(Buffer::zeroed(1))]).expect("write");
        let recovery = match Store::open(copy.clone(), StoreOptions::new(9).trees()) {
            Ok(recovery) => recovery,
            // Where records of the newest generation are there, its superblock is missed, and nothing is guessed.
            Err(StoreError::SuperblockLost { .. }) => continue,
            Err(other) => panic!("slot {slot} of generation {newest:?}: {other}"),
        };
        let store = recovery.finish().expect("finish");
        judge(&copy, &store, "without a superblock");
        assert_eq!(store.trees().len(), 1);
    }
}

/// The deletion looks at one leaf at a time, and an extent reaches over the end of its leaf. The head lets go of the
/// extent's last page behind the step: had the cursor stopped at the leaf's end, the page would be nobody's.
// Shows: R29.
#[test]
fn a_cursor_never_stands_within_an_extent_that_reaches_over_the_end_of_its_leaf() {
    const FILE: u64 = 1;
    const PAGES: u64 = 5;
    let page = |page: u64| Key::extent(object(FILE), page);
    let device = CrashDevice::new(16_384);
    support::format_with_trees(&*device, 512, Vec::new());
    let options = StoreOptions::new(1).trees().node_items_max(4);
    let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
    let run = |batch: &mut Batch, pages: u64| {
        let run = store.allocate(&mut store.reserve(pages).expect("space"), pages as u32, None);
        batch.allocate(run.start, run.len);
        ExtentItem::unwritten(run.start, run.len)
    };
    // Leaves of four extents of a page each; then one extent has the pages of the first leaf, and one more.
    for first in 0..20 {
        let mut batch = store.batch(TreeId::MAIN);
        let item = run(&mut batch, 1);
        batch.put_extent(page(first), &item, Birth::Now, false);
        store.commit(admit(&store, 1), batch).expect("commit");
    }
    let mut batch = store.batch(TreeId::MAIN);
    let long = run(&mut batch, PAGES);
    for (at, old) in extents(&store, TreeId::MAIN, FILE).range(..PAGES) {
        if *at > 0 {
            batch.delete(page(*at));
        }
        batch.release(page(*at), old.start, 1, old.birth);
    }
    batch.put_extent(page(0), &long, Birth::Now, false);
    store.commit(admit(&store, 8), batch).expect("commit");
    let tree = snapshot(&store, 1);
    // What the snapshot has of the first leaf the head has not.
    let long = extents(&store, TreeId::MAIN, FILE)[&0].clone();
    let rest = |pages: u64| ExtentItem {
        birth: long.birth,
        ..ExtentItem::unwritten(long.start.plus(1), pages as u32)
    };
    let mut batch = store.batch(TreeId::MAIN);
    let new = run(&mut batch, 1);
    batch.put_extent(page(0), &new, Birth::Now, false);
    batch.put_extent(page(1), &rest(PAGES - 1), Birth::Kept, false);
    batch.release(page(0), long.start, 1, long.birth);
    store.commit(admit(&store, 2), batch).expect("commit");
    relieved(&store, || store.delete_tree(tree));
    let mut has_let_go = false;
    while relieved(&store, || store.reap(1)) {
        let Some(TreeState::Deleting { cursor }) = store.trees().get(&tree).map(|item| item.state) else {
            continue;
        };
        assert!(cursor <= page(0) || cursor >= page(PAGES), "the cursor stands at {cursor:?}");
        if cursor > page(0) && cursor < Key::MAX && !has_let_go {
            let mut batch = store.batch(TreeId::MAIN);
            batch.put_extent(page(1), &rest(PAGES - 2), Birth::Kept, false);
            batch.release(page(PAGES - 1), long.start.plus(PAGES - 1), 1, long.birth);
            store.commit(admit(&store, 1), batch).expect("commit");
            has_let_go = true;
        }
    }
    assert!(has_let_go, "the deletion has a step behind the first leaf");
    judge(&device, &store, "behind the deletion");
}
