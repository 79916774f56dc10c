//! Every flush has a reason, and a test that fails when it is missing: the order of writes and flushes as the device
//! sees them, at each place where something is acknowledged or may be overwritten from then on.

use crate::support;
use crate::support::CrashDevice;
use std::sync::{Arc, Mutex};
use syncline_device::{Buffer, Device, Layer, Ticket};
use syncline_format::layout::Layout;
use syncline_format::{BlockNo, Key, ObjectNo, TreeId};
use syncline_store::{Batch, Class, Estimate, Store, StoreOptions};

const BLOCKS: u64 = 4096;
const JOURNAL_BLOCKS: u64 = 128;

/// What a write was for, by where it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Area {
    Head,
    Superblock,
    Journal,
    Groups,
    Backup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Write(Area),
    Flush,
}

/// Notes the order of writes and flushes.
struct Observed {
    inner: Arc<CrashDevice>,
    layout: Layout,
    events: Mutex<Vec<Event>>,
}

impl Observed {
    fn new() -> Arc<Observed> {
        let layout = Layout::new(BLOCKS, Some(JOURNAL_BLOCKS)).expect("valid");
        Arc::new(Observed { inner: CrashDevice::new(BLOCKS), layout, events: Mutex::default() })
    }

    fn area(&self, at: BlockNo) -> Area {
        match at.0 {
            0 => Area::Head,
            1 | 2 => Area::Superblock,
            block if block < self.layout.groups_start.0 => Area::Journal,
            block if block >= self.layout.backup_start().0 => Area::Backup,
            _ => Area::Groups,
        }
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }
}

impl Layer for Observed {
    fn below(&self) -> &dyn Device {
        &*self.inner
    }

    fn on_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.events.lock().unwrap().push(Event::Write(self.area(at)));
        self.inner.submit_write(at, data)
    }

    fn on_flush(&self) -> Ticket {
        self.events.lock().unwrap().push(Event::Flush);
        self.inner.submit_flush()
    }
}

fn format(device: &Observed) {
    support::format(device, JOURNAL_BLOCKS, Vec::new());
}

fn open(device: &Arc<Observed>, epoch: u64) -> Arc<Store> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    Store::open(device, StoreOptions::new(epoch)).expect("open").finish().expect("finish")
}

fn put(store: &Store, object: u64) {
    let estimate = Estimate { bytes: 100, items: 1, images: 0 };
    let permit = store.admit(Class::Normal, estimate).expect("room");
    let mut batch = Batch::new(TreeId::MAIN);
    batch.put(Key::inode(ObjectNo(object)), b"value");
    store.commit(permit, batch).expect("commit");
}

/// Areas written since the last flush before position `end`.
fn unflushed(events: &[Event], end: usize) -> Vec<Area> {
    let start = events[..end].iter().rposition(|event| *event == Event::Flush).map_or(0, |flush| flush + 1);
    events[start..end]
        .iter()
        .filter_map(|event| match event {
            Event::Write(area) => Some(*area),
            Event::Flush => None,
        })
        .collect()
}

fn position(events: &[Event], wanted: Event) -> usize {
    events.iter().position(|event| *event == wanted).expect("the event took place")
}

#[test]
fn a_force_returns_after_a_flush_of_its_record() {
    let device = Observed::new();
    format(&device);
    let store = open(&device, 2);
    device.take();
    put(&store, 5);
    store.force(store.last_lsn()).expect("force");
    assert_eq!(device.take(), [Event::Write(Area::Journal), Event::Flush]);
}

// Shows: R1, R11.
#[test]
fn a_superblock_is_written_when_all_it_names_is_flushed_and_is_flushed_before_anything_is_reused() {
    let device = Observed::new();
    format(&device);
    let store = open(&device, 2);
    device.take();
    put(&store, 5);
    store.checkpoint().expect("checkpoint");
    let events = device.take();
    let superblock = position(&events, Event::Write(Area::Superblock));
    assert!(events[..superblock].contains(&Event::Write(Area::Groups)), "nodes and bitmaps come first");
    assert!(events[..superblock].contains(&Event::Write(Area::Journal)), "R1: force(X) comes first");
    assert_eq!(unflushed(&events, superblock), [], "nothing the superblock relies on is only in a cache");
    assert_eq!(
        unflushed(&events, events.len()),
        [],
        "R3, R11: what it frees is reusable only once it is durable"
    );
}

// Shows: R10, R13.
#[test]
fn recovery_flushes_before_its_first_write_and_before_and_after_its_superblock() {
    let device = Observed::new();
    format(&device);
    let store = open(&device, 2);
    put(&store, 5);
    store.force(store.last_lsn()).expect("force");
    drop(store);
    device.take();
    let store = open(&device, 3);
    let events = device.take();
    assert_eq!(events.first(), Some(&Event::Flush), "R13: what was read may have been in a cache only");
    let superblock = position(&events, Event::Write(Area::Superblock));
    assert!(events[..superblock].contains(&Event::Write(Area::Groups)), "there was something to recover");
    assert_eq!(unflushed(&events, superblock), [], "R10");
    assert_eq!(unflushed(&events, events.len()), [], "R10: no record of the epoch before it is durable");
    put(&store, 6);
    store.force(store.last_lsn()).expect("force");
}

#[test]
fn a_clean_open_makes_its_epoch_durable_before_it_returns() {
    let device = Observed::new();
    format(&device);
    open(&device, 2).close().expect("close");
    device.take();
    let store = open(&device, 3);
    let events = device.take();
    assert!(events.contains(&Event::Write(Area::Superblock)));
    assert_eq!(unflushed(&events, events.len()), []);
    store.close().expect("close");
    let events = device.take();
    assert_eq!(unflushed(&events, events.len()), [], "a closed volume is durable");
}

#[test]
fn mkfs_wipes_durably_first_and_names_the_volume_last() {
    let device = Observed::new();
    format(&device);
    let events = device.take();
    let journal = position(&events, Event::Write(Area::Journal));
    assert_eq!(
        unflushed(&events, journal),
        [],
        "the old superblocks are gone for good before anything is written"
    );
    let superblock = position(&events, Event::Write(Area::Superblock));
    assert!(events[..superblock].contains(&Event::Write(Area::Groups)));
    assert_eq!(unflushed(&events, superblock), [], "an interrupted mkfs leaves no volume");
    assert_eq!(unflushed(&events, events.len()), [], "a finished one is durable");
}
