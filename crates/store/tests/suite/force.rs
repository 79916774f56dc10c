//! Group commit and checkpoints as the device sees them: how many writes and flushes, who waits for whom, who is told.

use crate::support;
use crate::support::CrashDevice;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use syncline_device::{Buffer, Device, Layer, Ticket};
use syncline_format::layout::Layout;
use syncline_format::{BlockNo, Key, Lsn, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Pressure, Store, StoreError, StoreOptions};

const BLOCKS: u64 = 4096;
const JOURNAL_BLOCKS: u64 = 64;

/// Holds back writes outside of the journal (a checkpoint's) until released.
struct HeldDevice {
    inner: Arc<CrashDevice>,
    layout: Layout,
    held: Mutex<bool>,
    released: Condvar,
    waiting: AtomicBool,
}

impl HeldDevice {
    fn new(inner: Arc<CrashDevice>) -> Arc<HeldDevice> {
        let layout = Layout::new(BLOCKS, Some(JOURNAL_BLOCKS)).expect("valid");
        Arc::new(HeldDevice {
            inner,
            layout,
            held: Mutex::new(false),
            released: Condvar::new(),
            waiting: AtomicBool::new(false),
        })
    }

    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.released.notify_all();
    }
}

impl Layer for HeldDevice {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if self.layout.locate(at).is_some() {
            let mut held = self.held.lock().unwrap();
            while *held {
                self.waiting.store(true, Ordering::Release);
                held = self.released.wait(held).unwrap();
            }
        }
        self.inner.submit_write(at, data)
    }
}

fn format(device: &dyn Device) {
    support::format(device, JOURNAL_BLOCKS, Vec::new());
}

fn open(device: Arc<dyn Device>) -> Arc<Store> {
    format(&*device);
    reopen(device)
}

fn reopen(device: Arc<dyn Device>) -> Arc<Store> {
    Store::open(device, StoreOptions::new(7)).expect("open").finish().expect("finish")
}

fn put(store: &Store, object: u64, value: &[u8]) -> Result<Lsn, StoreError> {
    let permit = store.admit(Class::Normal, Estimate { bytes: 60 + value.len(), items: 1, images: 0 })?;
    let mut batch = Batch::new(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(object)), value);
    store.commit(permit, batch)
}

#[test]
fn a_force_is_one_write_and_one_flush_and_none_when_nothing_is_new() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone());
    let before = device.counters();
    for object in 0..10 {
        put(&store, object, b"value").expect("put");
    }
    store.force(store.last_lsn()).expect("force");
    let after = device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1));
    store.force(store.last_lsn()).expect("force");
    assert_eq!(device.counters(), after, "C8a: nothing new, no I/O");
}

#[test]
fn forces_complete_while_a_checkpoint_is_held_back() {
    let device = HeldDevice::new(CrashDevice::new(BLOCKS));
    let store = open(device.clone());
    for object in 0..100 {
        put(&store, object, &[1; 100]).expect("put");
    }
    device.hold(true);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| store.checkpoint());
        while !device.waiting.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The ring is small: a thousand records do not fit while its tail stands still, so they come in groups.
        let mut forced = 0;
        for object in 0..1000 {
            match put(&store, object, b"x") {
                Ok(_) => {}
                Err(StoreError::Pressure(Pressure::Journal)) => break,
                Err(other) => panic!("{other}"),
            }
            store.force(store.last_lsn()).expect("force");
            forced += 1;
        }
        assert!(forced >= 35, "only {forced} forces went through");
        assert!(!checkpoint.is_finished());
        // The ring is full now: admission says so at once instead of waiting for the checkpoint.
        device.hold(false);
        checkpoint.join().expect("no panic").expect("checkpoint");
    });
    // It was frozen before the thousand; the next one moves the tail past them.
    store.checkpoint().expect("checkpoint");
    put(&store, 5, b"room again").expect("the checkpoint has moved the tail");
}

// Shows: C1.
#[test]
fn a_thousand_forces_complete_while_a_checkpoint_is_held_back_on_a_larger_ring() {
    let inner = CrashDevice::new(16384);
    support::format(&*inner, 2048, Vec::new());
    let device = Arc::new(HeldDevice {
        inner,
        layout: Layout::new(16384, Some(2048)).expect("valid"),
        held: Mutex::new(false),
        released: Condvar::new(),
        waiting: AtomicBool::new(false),
    });
    let store = reopen(device.clone());
    put(&store, 1, &[1; 100]).expect("put");
    device.hold(true);
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| store.checkpoint());
        while !device.waiting.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for object in 0..1000 {
            let lsn = put(&store, object, b"x").expect("put");
            store.force(lsn).expect("force");
            assert!(store.durable_lsn() >= lsn);
        }
        assert!(!checkpoint.is_finished());
        device.hold(false);
        checkpoint.join().expect("no panic").expect("checkpoint");
    });
}

/// Holds back writes of the journal that are submitted, not those that a caller makes itself.
struct HeldStream(HeldDevice);

impl Layer for HeldStream {
    fn below(&self) -> &dyn Device {
        &*self.0.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        if self.0.layout.locate(at).is_none() {
            let mut held = self.0.held.lock().unwrap();
            while *held {
                self.0.waiting.store(true, Ordering::Release);
                held = self.0.released.wait(held).unwrap();
            }
        }
        self.0.inner.submit_write(at, data)
    }
}

#[test]
fn nobody_who_commits_waits_while_a_long_buffer_is_written_out() {
    let device = Arc::new(HeldStream(HeldDevice {
        inner: CrashDevice::new(BLOCKS),
        layout: Layout::new(BLOCKS, Some(JOURNAL_BLOCKS)).expect("valid"),
        held: Mutex::new(false),
        released: Condvar::new(),
        waiting: AtomicBool::new(false),
    }));
    let store = open(device.clone());
    device.0.hold(true);
    std::thread::scope(|scope| {
        let streaming = scope.spawn(|| {
            let mut object = 0;
            while !device.0.waiting.load(Ordering::Acquire) {
                object += 1;
                put(&store, object, &[1; 200]).expect("there is room until the buffer is long");
            }
        });
        while !device.0.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // Hangs here if the one who writes holds what a commit needs.
        for object in 1000..1010 {
            put(&store, object, b"x").expect("put");
        }
        assert!(!streaming.is_finished());
        device.0.hold(false);
        streaming.join().expect("no panic");
    });
    store.force(store.last_lsn()).expect("force");
    let crashed = device.0.inner.crash(&mut support::Random(1));
    drop(store);
    let store = reopen(crashed);
    assert!(store.get(TreeId::MAIN, Key::inode(ObjectNo(1009))).expect("get").is_some());
}

#[test]
fn many_threads_share_flushes_and_all_of_their_batches_survive() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone());
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let object = next.fetch_add(1, Ordering::Relaxed);
                    if object >= 400 {
                        return;
                    }
                    let lsn = loop {
                        match put(&store, object, &object.to_le_bytes()) {
                            Ok(lsn) => break lsn,
                            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
                            Err(other) => panic!("{other}"),
                        }
                    };
                    store.force(lsn).expect("force");
                }
            });
        }
    });
    let crashed = device.crash(&mut support::Random(1));
    drop(store);
    let store = reopen(crashed);
    let found: HashSet<u64> = (0..400)
        .filter(|o| store.get(TreeId::MAIN, Key::inode(ObjectNo(*o))).expect("get").is_some())
        .collect();
    assert_eq!(found.len(), 400);
}

// Shows: C8.
#[test]
fn a_failed_write_or_flush_is_told_to_every_waiter_and_stays_failed() {
    for after in 0..2 {
        let device = CrashDevice::new(BLOCKS);
        let store = open(device.clone());
        let lsn = put(&store, 1, b"x").expect("put");
        device.fail_after(after);
        let told = Arc::new(AtomicU64::new(0));
        for _ in 0..3 {
            let told = Arc::clone(&told);
            store.start_force(
                lsn,
                Box::new(move |result| {
                    assert!(result.is_err());
                    told.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        assert!(matches!(store.force(lsn), Err(StoreError::Failed { .. })), "failing operation {after}");
        assert_eq!(told.load(Ordering::Relaxed), 3);
        assert!(matches!(store.force(lsn), Err(StoreError::Failed { .. })), "it stays failed");
        assert!(matches!(put(&store, 2, b"y"), Err(StoreError::Failed { .. })));
        assert!(matches!(store.checkpoint(), Err(StoreError::Failed { .. })));
        assert_eq!(
            store.get(TreeId::MAIN, Key::inode(ObjectNo(1))).expect("reads go on").as_deref(),
            Some(&b"x"[..])
        );
    }
}

#[test]
fn started_forces_complete_when_they_are_driven() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone());
    let done = Arc::new(AtomicU64::new(0));
    let before = device.counters().flushes;
    for object in 0..50 {
        let lsn = put(&store, object, b"x").expect("put");
        let done = Arc::clone(&done);
        store.start_force(
            lsn,
            Box::new(move |result| {
                result.expect("forced");
                done.fetch_add(1, Ordering::Relaxed);
            }),
        );
    }
    assert_eq!(done.load(Ordering::Relaxed), 0);
    while store.drive() {}
    assert_eq!(done.load(Ordering::Relaxed), 50);
    assert_eq!(device.counters().flushes - before, 1, "fifty forces, one flush");
}

#[test]
fn a_clean_close_leaves_nothing_to_replay() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone());
    put(&store, 4, b"kept").expect("put");
    store.close().expect("close");
    drop(store);
    let recovery = Store::open(device.clone(), StoreOptions::new(8)).expect("open");
    assert!(recovery.summary().batches == 0);
    let store = recovery.finish().expect("finish");
    assert_eq!(store.get(TreeId::MAIN, Key::inode(ObjectNo(4))).expect("get").as_deref(), Some(&b"kept"[..]));
}

#[test]
fn a_read_only_open_writes_nothing_and_sees_what_was_forced() {
    let device = CrashDevice::new(BLOCKS);
    let store = open(device.clone());
    let lsn = put(&store, 4, b"kept").expect("put");
    store.force(lsn).expect("force");
    drop(store);
    let before = device.counters();
    let options = StoreOptions::new(8).read_only(true);
    let store = Store::open(device.clone(), options).expect("open").finish().expect("finish");
    assert_eq!(store.get(TreeId::MAIN, Key::inode(ObjectNo(4))).expect("get").as_deref(), Some(&b"kept"[..]));
    assert!(matches!(put(&store, 5, b"no"), Err(StoreError::ReadOnly)));
    let after = device.counters();
    assert_eq!((before.writes, before.flushes), (after.writes, after.flushes));
}
