//! Group commit in every order of its threads' steps, with a bounded number of preemptions.
//!
//! Small on purpose: two or three threads, one or two syncs each. What is acknowledged is recovered, at once and by
//! the store as it ships, from what the device then holds durably. A lost wakeup is a deadlock, which loom reports.
//! Longer histories, crash states and slow devices are shuttle's part (`crates/threads`).

#[path = "../../tests/interleavings/image.rs"]
mod image;

use image::{Image, ImageDevice};
use loom::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use store_under_loom::{Batch, Class, Estimate, Store, StoreError, StoreOptions};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Lsn, ObjectNo, TreeId};

const BLOCKS: u64 = 1024;

static FORMATTED: LazyLock<Image> = LazyLock::new(|| {
    let device = ImageDevice::new(BLOCKS, Image::default());
    let options = syncline_store::FormatOptions {
        uuid: [3; 16],
        label: String::new(),
        journal_blocks: Some(64),
        blocks: None,
        hash_seed: 1,
        name_key: None,
        epoch: 1,
        created_seconds: 0,
        created_nanoseconds: 0,
        items: Vec::new(),
    };
    syncline_store::Store::format(&device, &options, &mut |_, _| {}).expect("format");
    device.into_image()
});

/// A request in flight: nothing happens to it before somebody waits for it or polls.
enum Request {
    Write {
        at: u64,
        bytes: Vec<u8>,
    },
    /// Covers this many of the completed writes.
    Flush {
        covers: usize,
    },
}

#[derive(Default)]
struct Inner {
    durable: Image,
    completed: Vec<(u64, Vec<u8>)>,
    flying: Vec<(Ticket, Request)>,
    fail_flushes: bool,
}

/// A device whose requests are in flight until someone waits or polls.
struct LazyDevice(Mutex<Inner>);

impl LazyDevice {
    fn new() -> Arc<LazyDevice> {
        Arc::new(LazyDevice(Mutex::new(Inner { durable: FORMATTED.clone(), ..Inner::default() })))
    }

    fn durable(&self) -> Image {
        self.0.lock().unwrap().durable.clone()
    }

    fn submit(&self, request: Request) -> Ticket {
        let ticket = Ticket::pending();
        self.0.lock().unwrap().flying.push((ticket.clone(), request));
        ticket
    }
}

impl Inner {
    fn complete(&mut self, index: usize) {
        let (ticket, request) = self.flying.remove(index);
        match request {
            Request::Write { at, bytes } => self.completed.push((at, bytes)),
            Request::Flush { .. } if self.fail_flushes => {
                let operation = Operation::Flush;
                return ticket.complete(Err(DeviceError::Io { operation, block: BlockNo(0), errno: 5 }));
            }
            Request::Flush { covers } => {
                for (at, bytes) in &self.completed[..covers] {
                    for (block, page) in (*at..).zip(bytes.chunks(BLOCK_BYTES)) {
                        self.durable.put(block, page.into());
                    }
                }
            }
        }
        ticket.complete(Ok(()));
    }
}

impl Device for LazyDevice {
    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let inner = self.0.lock().unwrap();
        for (block, page) in (at.0..).zip(into.chunks_mut(BLOCK_BYTES)) {
            page.copy_from_slice(inner.durable.page(block));
            for (start, bytes) in &inner.completed {
                if let Some(from) = block.checked_sub(*start).map(|from| from as usize * BLOCK_BYTES)
                    && from < bytes.len()
                {
                    page.copy_from_slice(&bytes[from..from + BLOCK_BYTES]);
                }
            }
        }
        Ok(())
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let bytes = data.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        self.submit(Request::Write { at: at.0, bytes })
    }

    fn submit_flush(&self) -> Ticket {
        let covers = self.0.lock().unwrap().completed.len();
        self.submit(Request::Flush { covers })
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        let mut inner = self.0.lock().unwrap();
        while !ticket.is_complete() {
            inner.complete(0);
        }
        ticket.result().expect("just seen")
    }

    fn poll(&self) {
        let mut inner = self.0.lock().unwrap();
        while !inner.flying.is_empty() {
            inner.complete(0);
        }
    }

    fn discard(&self, _at: BlockNo, _blocks: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

struct Volume {
    device: Arc<LazyDevice>,
    store: Arc<Store>,
}

impl Volume {
    fn new() -> Arc<Volume> {
        let device = LazyDevice::new();
        let store =
            Store::open(device.clone(), StoreOptions::new(7)).expect("open").finish().expect("finish");
        Arc::new(Volume { device, store })
    }

    /// Puts one item.
    fn put(&self, object: u64) -> Lsn {
        let permit = self
            .store
            .admit(Class::Normal, Estimate { bytes: 100, items: 1, images: 0 })
            .expect("the ring is empty");
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put(Key::inode(ObjectNo(object)), b"value");
        self.store.commit(permit, batch).expect("commit")
    }

    /// Puts one item, admitted by the commit itself.
    fn put_at_once(&self, object: u64) -> Lsn {
        let mut batch = Batch::new(TreeId::MAIN);
        batch.put(Key::inode(ObjectNo(object)), b"value");
        self.store.try_commit(Class::Normal, batch).expect("the ring is empty")
    }

    /// A power cut now must not lose the items.
    fn durable(&self, objects: &[u64]) {
        let device = Arc::new(ImageDevice::new(BLOCKS, self.device.durable()));
        let options = syncline_store::StoreOptions::new(9).read_only(true);
        let store = syncline_store::Store::open(device, options).expect("open").finish().expect("finish");
        for object in objects {
            let found = store.get(TreeId::MAIN, Key::inode(ObjectNo(*object))).expect("get");
            assert!(found.is_some(), "item {object} was acknowledged and is lost");
        }
    }
}

/// Every order with at most `preemptions` of them (`PREEMPTIONS` overrides it).
fn explore(name: &str, preemptions: usize, scenario: fn()) {
    let preemptions = match std::env::var("PREEMPTIONS") {
        Ok(text) => text.parse().expect("PREEMPTIONS is a number"),
        Err(_) => preemptions,
    };
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let orders = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&orders);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    eprintln!("{name}: {} orders, at most {preemptions} preemptions", orders.load(Ordering::Relaxed));
}

#[test]
fn two_blocking_forces() {
    explore("two_blocking_forces", 3, || {
        let volume = Volume::new();
        let first = volume.put(1);
        let second = volume.put(2);
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            other.store.force(first).expect("force");
            other.durable(&[1]);
        });
        volume.store.force(second).expect("force");
        volume.durable(&[1, 2]);
        thread.join().unwrap();
    });
}

#[test]
fn three_blocking_forces() {
    explore("three_blocking_forces", 3, || {
        let volume = Volume::new();
        let lsns = [volume.put(1), volume.put(2), volume.put(3)];
        let spawn = |index: usize| {
            let other = Arc::clone(&volume);
            loom::thread::spawn(move || {
                other.store.force(lsns[index]).expect("force");
                other.durable(&[index as u64 + 1]);
            })
        };
        let threads = [spawn(0), spawn(1)];
        volume.store.force(lsns[2]).expect("force");
        volume.durable(&[1, 2, 3]);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_checkpoint_beside_a_force() {
    explore("a_checkpoint_beside_a_force", 3, || {
        let volume = Volume::new();
        let lsn = volume.put(1);
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            other.store.checkpoint().expect("checkpoint");
            other.durable(&[1]);
        });
        let second = volume.put(2);
        volume.store.force(second).expect("force");
        volume.durable(&[1, 2]);
        assert!(second > lsn);
        thread.join().unwrap();
    });
}

#[test]
fn a_commit_beside_a_group() {
    explore("a_commit_beside_a_group", 3, || {
        let volume = Volume::new();
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            let lsn = other.put(1);
            other.store.force(lsn).expect("force");
            other.durable(&[1]);
        });
        let lsn = volume.put(2);
        volume.store.force(lsn).expect("force");
        volume.durable(&[2]);
        thread.join().unwrap();
    });
}

#[test]
fn two_who_commit_at_once_out_of_what_is_promised_ahead() {
    explore("two_who_commit_at_once_out_of_what_is_promised_ahead", 2, || {
        let volume = Volume::new();
        // It leaves room for one of the two.
        volume.put_at_once(1);
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            let lsn = other.put_at_once(2);
            other.store.force(lsn).expect("force");
            other.durable(&[1, 2]);
        });
        let lsn = volume.put_at_once(3);
        volume.store.force(lsn).expect("force");
        volume.durable(&[1, 3]);
        thread.join().unwrap();
    });
}

#[test]
fn a_started_force_beside_a_blocking_one() {
    explore("a_started_force_beside_a_blocking_one", 3, || {
        let volume = Volume::new();
        let lsn = volume.put(1);
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            let told = Arc::new(AtomicU64::new(0));
            let (seen, judge) = (Arc::clone(&told), Arc::clone(&other));
            let done = move |result: Result<(), StoreError>| {
                result.expect("forced");
                judge.durable(&[1]);
                seen.fetch_add(1, Ordering::Relaxed);
            };
            other.store.start_force(lsn, Box::new(done));
            while other.store.drive() {
                loom::thread::yield_now();
            }
            told.load(Ordering::Relaxed)
        });
        volume.store.force(lsn).expect("force");
        volume.durable(&[1]);
        let told = thread.join().unwrap();
        assert!(told <= 1);
    });
}

#[test]
fn a_failing_flush_is_told_to_both() {
    explore("a_failing_flush_is_told_to_both", 3, || {
        let volume = Volume::new();
        let first = volume.put(1);
        let second = volume.put(2);
        volume.device.0.lock().unwrap().fail_flushes = true;
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || other.store.force(first).is_err());
        assert!(volume.store.force(second).is_err());
        assert!(thread.join().unwrap());
    });
}

#[test]
fn a_shut_down_ends_a_wait() {
    explore("a_shut_down_ends_a_wait", 3, || {
        let volume = Volume::new();
        let lsn = volume.put(1);
        let other = Arc::clone(&volume);
        let thread = loom::thread::spawn(move || {
            if other.store.force(lsn).is_ok() {
                other.durable(&[1]);
            }
        });
        volume.store.shut_down();
        assert!(volume.store.force(lsn).is_err() || volume.store.durable_lsn() >= lsn);
        thread.join().unwrap();
    });
}
