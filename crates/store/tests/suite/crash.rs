//! Random batches, forces and checkpoints, a power cut at a random moment, recovery: what was forced is there, and the
//! whole is some prefix of the batches (C1, C2).

use crate::support;
use crate::support::{CrashDevice, Random};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_device::{Buffer, Device};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Kind, Lsn, ObjectNo, TreeId, checksum};
use syncline_store::{Batch, Class, Estimate, Pressure, Reservation, Run, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 2048;

/// An empty volume but for one item.
fn format(device: &CrashDevice) {
    support::format(device, 64, vec![(Key::inode(ObjectNo(1)), vec![1; 160])]);
}

fn options(epoch: u64) -> StoreOptions {
    StoreOptions::new(epoch).node_cache_bytes(40 * 16384)
}

/// Everything that can be seen: items, and pages by image or extent.
type Model = BTreeMap<Key, Vec<u8>>;

/// Applies the visible effect of one step to the model: plain items, and pages as pseudo-items of kind `Symlink`.
#[derive(Clone)]
enum Effect {
    Put(Key, Vec<u8>),
    Delete(Key),
}

struct Run1 {
    store: Arc<Store>,
    /// Effects per batch, by LSN from `base + 1` on.
    history: Vec<Vec<Effect>>,
    base: Lsn,
    state: Model,
    /// Extents of the current state: page -> block.
    blocks: BTreeMap<u64, BlockNo>,
    images: BTreeMap<u64, Vec<u8>>,
    durable: Lsn,
}

const FILE: ObjectNo = ObjectNo(500);

fn page_key(page: u64) -> Key {
    Key::new(FILE, Kind::Symlink, page)
}

fn admit(run: &mut Run1, class: Class, estimate: Estimate) -> Option<syncline_store::Permit> {
    for _ in 0..8 {
        match run.store.admit(class, estimate) {
            Ok(permit) => return Some(permit),
            Err(StoreError::Pressure(pressure)) => {
                if pressure == Pressure::Journal && class != Class::Destage {
                    destage(run);
                }
                if run.store.checkpoint().is_err() {
                    return None;
                }
            }
            Err(StoreError::NoSpace) => return None,
            Err(other) => panic!("{other}"),
        }
    }
    None
}

fn commit(run: &mut Run1, permit: syncline_store::Permit, batch: Batch, effects: Vec<Effect>) {
    let lsn = run.store.commit(permit, batch).expect("commit");
    assert_eq!(lsn.0, run.base.0 + run.history.len() as u64 + 1);
    for effect in &effects {
        apply(&mut run.state, effect);
    }
    run.history.push(effects);
}

fn apply(model: &mut Model, effect: &Effect) {
    match effect {
        Effect::Put(key, value) => model.insert(*key, value.clone()),
        Effect::Delete(key) => model.remove(key),
    };
}

/// Writes one page as an extent, dropping its image.
fn write_extent(run: &mut Run1, page: u64, bytes: &[u8], class: Class) {
    let estimate = Estimate { bytes: 400, items: 2, images: 0 };
    let Some(permit) = admit(run, class, estimate) else { return };
    let Ok(mut reservation) = run.store.reserve(1) else { return };
    let allocated: Run = run.store.allocate(&mut reservation, 1, None);
    let device = Arc::clone(run.store.device());
    device.write(allocated.start, vec![Arc::new(Buffer::from_bytes(bytes))]).expect("write");
    let mut batch = Batch::new(TreeId::MAIN);
    let extent = ExtentItem::written(allocated.start, vec![checksum(bytes)]);
    batch.put_fresh_extent(Key::extent(FILE, page), &extent);
    batch.allocate(allocated.start, 1);
    if let Some(old) = run.blocks.insert(page, allocated.start) {
        batch.free(old, 1);
    }
    batch.drop_images(FILE, page, page + 1);
    run.images.remove(&page);
    commit(run, permit, batch, vec![Effect::Put(page_key(page), bytes.to_vec())]);
}

fn destage(run: &mut Run1) {
    for (page, bytes) in run.images.clone() {
        write_extent(run, page, &bytes, Class::Destage);
    }
}

fn step(run: &mut Run1, random: &mut Random) {
    match random.below(20) {
        0..=8 => {
            let Some(permit) = admit(run, Class::Normal, Estimate { bytes: 4000, items: 3, images: 0 })
            else {
                return;
            };
            let mut batch = Batch::new(TreeId::MAIN);
            let mut effects = Vec::new();
            for _ in 0..1 + random.below(3) {
                let key = Key::inode(ObjectNo(2 + random.below(300)));
                if random.one_in(4) {
                    batch.delete(key);
                    effects.push(Effect::Delete(key));
                } else {
                    let value = vec![random.next() as u8; random.below(1000) as usize];
                    batch.put(key, &value);
                    effects.push(Effect::Put(key, value));
                }
            }
            commit(run, permit, batch, effects);
        }
        9..=11 => {
            let Some(permit) = admit(run, Class::Normal, Estimate { bytes: 4300, items: 1, images: 1 })
            else {
                return;
            };
            let page = random.below(12);
            let bytes = vec![1 + random.next() as u8 / 2; BLOCK_BYTES];
            let mut batch = Batch::new(TreeId::MAIN);
            batch.image(FILE, page, &bytes);
            run.images.insert(page, bytes.clone());
            commit(run, permit, batch, vec![Effect::Put(page_key(page), bytes)]);
        }
        12..=14 => {
            let (page, fill) = (random.below(12), 1 + random.next() as u8 / 2);
            write_extent(run, page, &[fill; BLOCK_BYTES], Class::Normal);
        }
        15 => destage(run),
        16 => {
            let _ = run.store.checkpoint();
        }
        _ => {
            let lsn = run.store.last_lsn();
            if run.store.force(lsn).is_ok() {
                run.durable = lsn;
            }
        }
    }
}

/// Opens the device, destages images as recovery must, and returns the store with its visible content.
fn recover(device: Arc<dyn Device>, epoch: u64) -> (Arc<Store>, Model, BTreeMap<u64, BlockNo>) {
    let mut recovery = Store::open(device, options(epoch)).expect("recovery");
    let images = recovery.take_images();
    let store = Arc::clone(recovery.store());
    let mut blocks = contents(&store).1;
    let pages = recovery.read_images(&images).expect("images are in the ring");
    for (image, page) in images.iter().zip(pages) {
        let mut reservation: Reservation = store.reserve(1).expect("space for images");
        let run = store.allocate(&mut reservation, 1, None);
        let extent = ExtentItem::written(run.start, vec![checksum(&page)]);
        store.device().write(run.start, vec![Arc::new(page)]).expect("write");
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put_fresh_extent(Key::extent(FILE, image.page), &extent);
        batch.allocate(run.start, 1);
        if let Some(old) = blocks.insert(image.page, run.start) {
            batch.free(old, 1);
        }
        batch.drop_images(FILE, image.page, image.page + 1);
        let permit = store
            .admit(Class::Destage, Estimate { bytes: batch.bytes(), items: 2, images: 0 })
            .expect("recovery admits everything");
        store.commit(permit, batch).expect("commit");
    }
    let store = recovery.finish().expect("finish");
    let (model, blocks) = contents(&store);
    (store, model, blocks)
}

fn contents(store: &Store) -> (Model, BTreeMap<u64, BlockNo>) {
    let mut model = Model::new();
    let mut blocks = BTreeMap::new();
    let mut extents = Vec::new();
    store
        .scan(TreeId::MAIN, Key::MIN, Key::MAX, &mut |key, value| {
            if key.kind == Kind::Extent {
                extents.push((key.offset, ExtentItem::decode(value).expect("extent")));
            } else {
                model.insert(key, value.to_vec());
            }
            ControlFlow::Continue(())
        })
        .expect("scan");
    for (page, extent) in extents {
        let ExtentContent::Written(sums) = &extent.content else { panic!("written") };
        let mut bytes = Buffer::zeroed(1);
        store.device().read(extent.start, &mut bytes).expect("read");
        assert_eq!(checksum(&bytes), sums[0], "a recovered extent's data is whole");
        model.insert(page_key(page), bytes.to_vec());
        blocks.insert(page, extent.start);
    }
    (model, blocks)
}

fn explore(seed: u64) {
    let mut random = Random(seed);
    let device = CrashDevice::new(BLOCKS);
    format(&device);
    let mut device = device;
    let (mut store, mut state, mut blocks) = recover(Arc::clone(&device) as Arc<dyn Device>, seed * 1000 + 1);
    for round in 0..4 {
        let base = store.last_lsn();
        let start = state.clone();
        let mut run =
            Run1 { store, history: Vec::new(), base, state, blocks, images: BTreeMap::new(), durable: base };
        // The cut may fall between any two device writes, inside a checkpoint too.
        let steps = 20 + random.below(150);
        if random.one_in(2) {
            device.power_off_after(random.below(120));
        }
        let mut acknowledged = run.durable;
        for _ in 0..steps {
            let before = device.counters();
            step(&mut run, &mut random);
            let _ = before;
            if !device.is_off() {
                acknowledged = run.durable;
            }
        }
        let crashed = device.crash(&mut random);
        if random.one_in(3) {
            // A crash during recovery, too.
            crashed.power_off_after(random.below(12));
            let (store, _, _) = recover(Arc::clone(&crashed) as Arc<dyn Device>, random.next());
            drop(store);
            device = crashed.crash(&mut random);
        } else {
            device = crashed;
        }
        let (recovered, model, recovered_blocks) =
            recover(Arc::clone(&device) as Arc<dyn Device>, random.next());
        let mut expected = start;
        let mut matched = expected == model && acknowledged == base;
        for (index, effects) in run.history.iter().enumerate() {
            effects.iter().for_each(|effect| apply(&mut expected, effect));
            if base.0 + index as u64 + 1 >= acknowledged.0 && expected == model {
                matched = true;
                break;
            }
        }
        assert!(
            matched,
            "seed {seed} round {round}: after the crash the volume is no prefix of the {} batches that holds {} forced",
            run.history.len(),
            acknowledged.0 - base.0
        );
        drop(run);
        (store, state, blocks) = (recovered, model, recovered_blocks);
    }
}

// Shows: C2.
#[test]
fn every_crash_leaves_a_prefix_that_holds_what_was_forced() {
    let seeds = std::env::var("SYNCLINE_CRASH_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(150);
    for seed in 1..=seeds {
        explore(seed);
    }
}

#[test]
fn a_device_that_ignores_flushes_is_found_out() {
    let lost = (1..=60).any(|seed| {
        let mut random = Random(seed);
        let device = CrashDevice::new(BLOCKS);
        format(&device);
        let (store, _, _) = recover(Arc::clone(&device) as Arc<dyn Device>, 5);
        device.ignore_flushes();
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put(Key::inode(ObjectNo(9)), b"x");
        let permit = store.admit(Class::Normal, Estimate { bytes: 100, items: 1, images: 0 }).expect("room");
        let lsn = store.commit(permit, batch).expect("commit");
        store.force(lsn).expect("force");
        let crashed = device.crash(&mut random);
        let (_, model, _) = recover(crashed, 6);
        !model.contains_key(&Key::inode(ObjectNo(9)))
    });
    assert!(lost, "the crash device can lose what no flush covered");
}
