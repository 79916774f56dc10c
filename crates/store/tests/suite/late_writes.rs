//! Crashes of a device whose writes complete late and out of order, driven by blocking and by polled forces, with
//! data in flight, streamed records, and commits in the middle of a checkpoint; and I/O errors at every single
//! operation.

use crate::support;
use crate::support::{CrashDevice, Random};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Ticket};
use syncline_format::item::{ExtentContent, ExtentItem};
use syncline_format::layout::Layout;
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Kind, Lsn, ObjectNo, TreeId, checksum};
use syncline_store::lock_order::elsewhere;
use syncline_store::{Batch, Class, Estimate, Pressure, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 1536;
const JOURNAL_BLOCKS: u64 = 64;
const FILE: ObjectNo = ObjectNo(500);
const PAGES: u64 = 10;

/// A write that was submitted and has not completed.
struct Waiting {
    at: BlockNo,
    data: Vec<Arc<Buffer>>,
    ticket: Ticket,
}

type Hook = Box<dyn FnMut() + Send>;

/// Completes writes late, in any order, only when polled or waited for.
struct LateDevice {
    inner: Arc<CrashDevice>,
    waiting: Mutex<Vec<Waiting>>,
    random: Mutex<Random>,
    layout: Layout,
    /// Called before a write outside of the journal.
    hook: Mutex<Option<Hook>>,
}

impl LateDevice {
    fn new(inner: Arc<CrashDevice>, seed: u64) -> Arc<LateDevice> {
        Arc::new(LateDevice {
            inner,
            waiting: Mutex::default(),
            random: Mutex::new(Random(seed)),
            layout: Layout::new(BLOCKS, Some(JOURNAL_BLOCKS)).expect("valid"),
            hook: Mutex::default(),
        })
    }

    fn complete(&self, write: Waiting) {
        let result = self.inner.wait(&self.inner.submit_write(write.at, write.data));
        write.ticket.complete(result);
    }

    fn complete_one(&self) -> bool {
        let write = {
            let mut waiting = self.waiting.lock().unwrap();
            if waiting.is_empty() {
                return false;
            }
            let index = self.random.lock().unwrap().below(waiting.len() as u64) as usize;
            waiting.swap_remove(index)
        };
        self.complete(write);
        true
    }

    /// The device after a power cut; writes still on their way may have arrived.
    fn crash(&self, random: &mut Random) -> Arc<CrashDevice> {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        for write in waiting {
            if !self.inner.is_off() && random.one_in(2) {
                self.complete(write);
            }
        }
        self.inner.crash(random)
    }
}

impl Device for LateDevice {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if self.layout.locate(at).is_some() {
            let hook = self.hook.lock().unwrap().take();
            if let Some(mut hook) = hook {
                elsewhere(&mut hook);
                *self.hook.lock().unwrap() = Some(hook);
            }
        }
        let len: u64 = data.iter().map(|buffer| buffer.blocks()).sum();
        let ticket = Ticket::pending();
        let mut waiting = self.waiting.lock().unwrap();
        for other in waiting.iter() {
            let other_len: u64 = other.data.iter().map(|buffer| buffer.blocks()).sum();
            let apart = other.at.0 + other_len <= at.0 || at.0 + len <= other.at.0;
            assert!(apart, "R8: no block is written while a write to it is in flight");
        }
        waiting.push(Waiting { at, data, ticket: ticket.clone() });
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        Ticket::completed(self.inner.flush())
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            assert!(self.complete_one(), "a pending ticket is waiting");
        }
    }

    fn poll(&self) {
        let count = self.random.lock().unwrap().below(4);
        for _ in 0..count {
            self.complete_one();
        }
    }

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

type Model = BTreeMap<Key, Vec<u8>>;
type Effects = Vec<(Key, Option<Vec<u8>>)>;
/// The store, what it shows, and where its pages lie.
type Recovered = (Arc<Store>, Model, BTreeMap<u64, BlockNo>);

/// A running volume and what has to be found after a crash.
struct World {
    store: Arc<Store>,
    device: Arc<LateDevice>,
    base: Lsn,
    /// Effects per batch, from `base + 1` on.
    history: Vec<Effects>,
    blocks: BTreeMap<u64, BlockNo>,
    images: BTreeMap<u64, Vec<u8>>,
    acknowledged: Arc<AtomicU64>,
}

fn page_key(page: u64) -> Key {
    Key::new(FILE, Kind::Symlink, page)
}

impl World {
    fn admit(
        &mut self,
        class: Class,
        estimate: Estimate,
        in_checkpoint: bool,
    ) -> Option<syncline_store::Permit> {
        for _ in 0..6 {
            match self.store.admit(class, estimate) {
                Ok(permit) => return Some(permit),
                Err(StoreError::Pressure(_)) if in_checkpoint => return None,
                Err(StoreError::Pressure(pressure)) => {
                    if pressure == Pressure::Journal && class != Class::Destage {
                        self.destage();
                    }
                    self.store.checkpoint().ok()?;
                }
                Err(_) => return None,
            }
        }
        None
    }

    fn commit(&mut self, permit: syncline_store::Permit, batch: Batch, effects: Effects) {
        if let Ok(lsn) = self.store.commit(permit, batch) {
            assert_eq!(lsn.0, self.base.0 + self.history.len() as u64 + 1);
            self.history.push(effects);
        }
    }

    fn items(&mut self, random: &mut Random, in_checkpoint: bool) {
        let estimate = Estimate { bytes: 6000, items: 3, images: 0 };
        let Some(permit) = self.admit(Class::Normal, estimate, in_checkpoint) else { return };
        let (mut batch, mut effects) = (Batch::new(TreeId::MAIN), Effects::new());
        for _ in 0..1 + random.below(3) {
            let key = Key::inode(ObjectNo(2 + random.below(80)));
            if random.one_in(3) {
                batch.delete(key);
                effects.push((key, None));
            } else {
                let value = vec![random.next() as u8; random.below(1900) as usize];
                batch.put(key, &value);
                effects.push((key, Some(value)));
            }
        }
        self.commit(permit, batch, effects);
    }

    fn image(&mut self, random: &mut Random, in_checkpoint: bool) {
        let estimate = Estimate { bytes: 4300, items: 1, images: 1 };
        let Some(permit) = self.admit(Class::Normal, estimate, in_checkpoint) else { return };
        let (page, bytes) = (random.below(PAGES), vec![1 + random.next() as u8 / 2; BLOCK_BYTES]);
        let mut batch = Batch::new(TreeId::MAIN);
        batch.image(FILE, page, &bytes);
        self.images.insert(page, bytes.clone());
        self.commit(permit, batch, vec![(page_key(page), Some(bytes))]);
    }

    /// Writes pages as extents, dropping their images; their data is still on its way when the batch is logged.
    fn extent(&mut self, page: u64, bytes: &[u8], class: Class) {
        let estimate = Estimate { bytes: 400, items: 2, images: 0 };
        let Some(permit) = self.admit(class, estimate, false) else { return };
        let Ok(mut reservation) = self.store.reserve(1) else { return };
        let run = self.store.allocate(&mut reservation, 1, None);
        let ticket = self.device.submit_write(run.start, vec![Arc::new(Buffer::from_bytes(bytes))]);
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put_fresh_extent(
            Key::extent(FILE, page),
            &ExtentItem::written(run.start, vec![checksum(bytes)]),
        );
        batch.allocate(run.start, 1);
        if let Some(old) = self.blocks.insert(page, run.start) {
            batch.free(old, 1);
        }
        batch.drop_images(FILE, page, page + 1);
        self.images.remove(&page);
        match self.store.data_slot(BLOCK_BYTES as u64) {
            Some(slot) => batch.depends_on(ticket, slot),
            None if self.device.wait(&ticket).is_err() => return,
            None => {}
        }
        self.commit(permit, batch, vec![(page_key(page), Some(bytes.to_vec()))]);
    }

    fn destage(&mut self) {
        for (page, bytes) in self.images.clone() {
            self.extent(page, &bytes, Class::Destage);
        }
    }

    fn force(&self) {
        let lsn = self.store.last_lsn();
        if self.store.force(lsn).is_ok() && !self.device.inner.is_off() {
            self.acknowledged.fetch_max(lsn.0, Ordering::Relaxed);
        }
    }

    fn start_force(&self) {
        let lsn = self.store.last_lsn();
        let (acknowledged, device) = (Arc::clone(&self.acknowledged), Arc::clone(&self.device.inner));
        let done = move |result: Result<(), StoreError>| {
            if result.is_ok() && !device.is_off() {
                acknowledged.fetch_max(lsn.0, Ordering::Relaxed);
            }
        };
        self.store.start_force(lsn, Box::new(done));
    }
}

fn step(world: &Arc<Mutex<World>>, random: &mut Random) {
    let mut now = world.lock().unwrap();
    match random.below(24) {
        0..=7 => now.items(random, false),
        8..=11 => now.image(random, false),
        12..=15 => {
            let (page, fill) = (random.below(PAGES), 1 + random.next() as u8 / 2);
            now.extent(page, &[fill; BLOCK_BYTES], Class::Normal);
        }
        16 => now.destage(),
        17 => {
            // Commits and forces fall between the checkpoint's own writes.
            let (store, device) = (Arc::clone(&now.store), Arc::clone(&now.device));
            drop(now);
            let (inside, mut random) = (Arc::clone(world), Random(random.next()));
            *device.hook.lock().unwrap() = Some(Box::new(move || {
                let mut world = inside.lock().unwrap();
                match random.below(5) {
                    0 | 1 => world.items(&mut random, true),
                    2 => world.image(&mut random, true),
                    3 => world.force(),
                    _ => {
                        world.start_force();
                        world.store.drive();
                    }
                }
            }));
            let _ = store.checkpoint();
            *device.hook.lock().unwrap() = None;
        }
        18..=19 => now.start_force(),
        20..=21 => {
            now.store.drive();
        }
        _ => now.force(),
    }
}

fn options(epoch: u64) -> StoreOptions {
    StoreOptions::new(epoch).node_cache_bytes(64 * 16384).stream_bytes(9000)
}

fn format(device: &CrashDevice) {
    support::format(device, JOURNAL_BLOCKS, Vec::new());
}

/// Opens the volume and destages its images as recovery must.
fn recover(device: Arc<dyn Device>, epoch: u64) -> Result<Recovered, StoreError> {
    let mut recovery = Store::open(device, options(epoch))?;
    let images = recovery.take_images();
    let store = Arc::clone(recovery.store());
    let mut blocks = contents(&store).1;
    let pages = recovery.read_images(&images)?;
    for (image, page) in images.iter().zip(pages) {
        let mut reservation = store.reserve(1)?;
        let run = store.allocate(&mut reservation, 1, None);
        let extent = ExtentItem::written(run.start, vec![checksum(&page)]);
        let ticket = store.device().submit_write(run.start, vec![Arc::new(page)]);
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put_fresh_extent(Key::extent(FILE, image.page), &extent);
        batch.allocate(run.start, 1);
        if let Some(old) = blocks.insert(image.page, run.start) {
            batch.free(old, 1);
        }
        batch.drop_images(FILE, image.page, image.page + 1);
        match store.data_slot(BLOCK_BYTES as u64) {
            Some(slot) => batch.depends_on(ticket, slot),
            None => store.device().wait(&ticket)?,
        }
        let permit = store.admit(Class::Destage, Estimate { bytes: batch.bytes(), items: 2, images: 0 })?;
        store.commit(permit, batch)?;
    }
    let store = recovery.finish()?;
    let (model, blocks) = contents(&store);
    Ok((store, model, blocks))
}

fn contents(store: &Store) -> (Model, BTreeMap<u64, BlockNo>) {
    let (mut model, mut blocks, mut extents) = (Model::new(), BTreeMap::new(), Vec::new());
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

/// Whether `found` is the state after some prefix of the history that holds everything acknowledged.
fn is_prefix(world: &World, start: &Model, found: &Model) -> bool {
    let acknowledged = world.acknowledged.load(Ordering::Relaxed);
    let mut state = start.clone();
    if state == *found && acknowledged <= world.base.0 {
        return true;
    }
    for (index, effects) in world.history.iter().enumerate() {
        for (key, value) in effects {
            match value {
                Some(value) => drop(state.insert(*key, value.clone())),
                None => drop(state.remove(key)),
            }
        }
        if world.base.0 + index as u64 + 1 >= acknowledged && state == *found {
            return true;
        }
    }
    false
}

fn world(store: Arc<Store>, device: Arc<LateDevice>, blocks: BTreeMap<u64, BlockNo>) -> Arc<Mutex<World>> {
    let base = store.last_lsn();
    let acknowledged = Arc::new(AtomicU64::new(base.0));
    let (history, images) = (Vec::new(), BTreeMap::new());
    Arc::new(Mutex::new(World { store, device, base, history, blocks, images, acknowledged }))
}

fn explore(seed: u64) {
    let mut random = Random(seed);
    let plain = CrashDevice::new(BLOCKS);
    format(&plain);
    let mut device = LateDevice::new(plain, seed);
    for round in 0..3 {
        let opened = recover(Arc::clone(&device) as Arc<dyn Device>, random.next());
        let (store, start, blocks) = opened.expect("recovery");
        let world = world(store, Arc::clone(&device), blocks);
        if random.one_in(2) {
            device.inner.power_off_after(random.below(90));
        }
        for _ in 0..15 + random.below(110) {
            step(&world, &mut random);
        }
        let crashed = device.crash(&mut random);
        // Recovery may be cut as well, more than once; what it finds stays the same.
        let mut first: Option<Model> = None;
        let mut current = crashed;
        for _ in 0..random.below(3) {
            let late = LateDevice::new(current, random.next());
            late.inner.power_off_after(random.below(14));
            let (_, found, _) =
                recover(Arc::clone(&late) as Arc<dyn Device>, random.next()).expect("recovery");
            assert_eq!(
                *first.get_or_insert_with(|| found.clone()),
                found,
                "seed {seed}: recovery repeats itself"
            );
            current = late.crash(&mut random);
        }
        let late = LateDevice::new(current, random.next());
        let (_, found, _) = recover(Arc::clone(&late) as Arc<dyn Device>, random.next()).expect("recovery");
        assert!(first.is_none_or(|first| first == found), "seed {seed}: recovery repeats itself");
        let world = world.lock().unwrap();
        assert!(
            is_prefix(&world, &start, &found),
            "seed {seed} round {round}: no prefix that holds what was forced"
        );
        device = LateDevice::new(late.crash(&mut random), random.next());
    }
}

// Shows: C2, R7.
#[test]
fn late_writes_and_interleaved_checkpoints_leave_a_prefix_that_holds_what_was_forced() {
    let seeds = std::env::var("SYNCLINE_CRASH_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(120);
    for seed in 1..=seeds {
        explore(seed);
    }
}

#[test]
fn an_error_at_any_operation_is_told_and_loses_nothing_acknowledged() {
    for seed in 1..=4 {
        for fail_after in (0..90).step_by(if seed == 1 { 1 } else { 3 }) {
            let mut random = Random(seed);
            let plain = CrashDevice::new(BLOCKS);
            format(&plain);
            let device = LateDevice::new(plain, seed);
            let (store, start, blocks) =
                recover(Arc::clone(&device) as Arc<dyn Device>, 5).expect("recovery");
            let world = world(store, Arc::clone(&device), blocks);
            device.inner.fail_after(fail_after);
            for _ in 0..120 {
                step(&world, &mut random);
            }
            let world = world.lock().unwrap();
            if let Some(failed) = world.store.failure() {
                let lsn = world.store.last_lsn();
                if world.store.durable_lsn() < lsn {
                    assert_eq!(world.store.force(lsn), Err(failed.clone()), "later forces keep failing");
                }
                assert!(world.store.checkpoint().is_err(), "no checkpoint hides the failure");
                assert!(!world.store.drive(), "nobody is left waiting");
            }
            let crashed = LateDevice::new(device.crash(&mut random), 1);
            let (_, found, _) = recover(crashed, 6).expect("recovery");
            assert!(is_prefix(&world, &start, &found), "seed {seed}, error after {fail_after} operations");
        }
    }
}
