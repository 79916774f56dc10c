//! Walks of trees that are not in memory read leaves together: a device that answers many requests at once, or is far
//! away, is asked a few dozen times and not thousands of times. What is counted is how often the device is asked; what
//! is read together counts once.

use crate::support;
use crate::support::view::{object, shape};
use crate::support::{CrashDevice, checked};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, ReadRequest, Reading, Ticket};
use syncline_format::item::Timestamp;
use syncline_format::{BLOCK_BYTES, BlockNo, Key, Kind, NODE_BLOCKS, TreeId};
use syncline_store::{Class, Estimate, SnapshotLabel, Store, StoreError, StoreOptions};

/// Items of 3800 bytes, four to a leaf: more leaves than one interior node has children.
const ITEMS: u64 = 2400;
const BYTES: usize = 3800;
const LEAVES: u64 = ITEMS / 4;
/// So many leaves are read together on the average, at least. Walks begin with fewer where they come to another node
/// above leaves, and read those alone.
const TOGETHER_MIN: u64 = 6;

/// Leaves lie one behind the other as far as they were written together: so many are one request, at least.
const OF_A_REQUEST_MIN: u64 = 3;

/// A device that counts how often it is asked to read, by how many requests, and how many nodes that is.
struct Asked {
    below: Arc<CrashDevice>,
    times: AtomicU64,
    requests: AtomicU64,
    nodes: AtomicU64,
    /// How often somebody has waited for one node alone, ever.
    alone: AtomicU64,
    /// Nobody has waited since the last submission: what follows is read together with it.
    is_submitting: AtomicBool,
}

impl Asked {
    fn note(&self, requests: usize, blocks: usize) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.nodes.fetch_add(blocks as u64 / u64::from(NODE_BLOCKS), Ordering::Relaxed);
    }

    /// How often, by how many requests, and how many nodes, since the last call.
    fn since(&self) -> (u64, u64, u64) {
        let [times, requests, nodes] =
            [&self.times, &self.requests, &self.nodes].map(|count| count.swap(0, Ordering::Relaxed));
        (times, requests, nodes)
    }
}

impl Device for Asked {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.note(1, into.len() / BLOCK_BYTES);
        self.alone.fetch_add(1, Ordering::Relaxed);
        self.below.read(at, into)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        self.note(requests.len(), requests.iter().map(|request| request.into.len() / BLOCK_BYTES).sum());
        self.below.read_many(requests)
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        let is_first = !self.is_submitting.swap(true, Ordering::Relaxed);
        self.times.fetch_add(u64::from(is_first), Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.nodes.fetch_add(blocks as u64 / u64::from(NODE_BLOCKS), Ordering::Relaxed);
        self.below.submit_read(at, blocks)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.below.submit_write(at, data)
    }

    fn submit_flush(&self) -> Ticket {
        self.below.submit_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.is_submitting.store(false, Ordering::Relaxed);
        self.below.wait(ticket)
    }

    fn poll(&self) {
        self.below.poll();
    }

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.below.discard(at, blocks)
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        self.below.hole(at)
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
}

fn relieved<T>(store: &Store, call: impl Fn() -> Result<T, StoreError>) -> T {
    loop {
        match call() {
            Err(StoreError::Pressure(_)) => store.checkpoint().expect("checkpoint"),
            result => return result.expect("the store does it"),
        }
    }
}

/// Writes every item.
fn fill(store: &Store, value: u8) {
    for first in (0..ITEMS).step_by(8) {
        relieved(store, || {
            let estimate = Estimate { bytes: 100 + 8 * (BYTES + 100), items: 8, images: 0 };
            let permit = store.admit(Class::Normal, estimate)?;
            let mut batch = store.batch(TreeId::MAIN);
            (first..first + 8).for_each(|item| batch.put(shape(item), &[value; BYTES]));
            store.commit(permit, batch)
        });
    }
}

fn snapshot(store: &Store, name: &str) -> TreeId {
    let label = SnapshotLabel {
        name: name.to_owned(),
        uuid: [0; 16],
        made: Timestamp::default(),
        stay: Default::default(),
    };
    relieved(store, || store.snapshot(TreeId::MAIN, &label)).0
}

/// A volume with a snapshot that shares no leaf with its head, of which nothing is in memory.
fn reopened() -> (Arc<CrashDevice>, Arc<Asked>, Arc<Store>, TreeId) {
    let device = CrashDevice::new(65_536);
    support::format_with_trees(&*device, 512, Vec::new());
    let open = |device: Arc<dyn Device>, epoch| {
        let recovery = Store::open(device, StoreOptions::new(epoch).trees()).expect("open");
        recovery.finish().expect("finish")
    };
    let store = open(device.clone(), 1);
    fill(&store, 0);
    let tree = snapshot(&store, "old");
    fill(&store, 1);
    store.close().expect("close");
    let asked = Arc::new(Asked {
        below: device.clone(),
        times: AtomicU64::new(0),
        requests: AtomicU64::new(0),
        nodes: AtomicU64::new(0),
        alone: AtomicU64::new(0),
        is_submitting: AtomicBool::new(false),
    });
    let store = open(asked.clone(), 2);
    asked.since();
    (device, asked, store, tree)
}

fn judge(asked: &Asked, leaves: Range<u64>, what: &str) {
    let (times, requests, nodes) = asked.since();
    assert!(leaves.contains(&nodes), "{what}: {nodes} nodes are read, not {leaves:?}");
    assert!(times * TOGETHER_MIN <= nodes, "{what}: {nodes} nodes are asked for {times} times");
    assert!(requests * OF_A_REQUEST_MIN <= nodes, "{what}: {nodes} nodes are read by {requests} requests");
}

// Shows: C11.
#[test]
fn a_deletion_reads_leaves_of_both_trees_together() {
    let (device, asked, store, tree) = reopened();
    relieved(&store, || store.delete_tree(tree));
    while relieved(&store, || store.reap(usize::MAX)) {}
    judge(&asked, 2 * LEAVES..3 * LEAVES, "a deletion");
    assert_eq!(store.trees().len(), 1);
    checked(&*device, "behind a deletion");
}

/// Beside syncs a step looks at few leaves. The one behind them is the next step's, and is on its way already.
#[test]
fn a_step_of_a_deletion_waits_for_no_leaf_alone() {
    let (device, asked, store, tree) = reopened();
    relieved(&store, || store.delete_tree(tree));
    let (before, mut steps) = (asked.alone.load(Ordering::Relaxed), 0);
    while relieved(&store, || store.reap(4)) {
        steps += 1;
    }
    let alone = asked.alone.load(Ordering::Relaxed) - before;
    assert!(steps >= LEAVES / 4, "{steps} steps");
    assert!(alone * 8 <= steps, "{alone} nodes are read alone by {steps} steps");
    let nodes = asked.since().2;
    assert!((2 * LEAVES..2 * LEAVES + LEAVES / 10).contains(&nodes), "{nodes} nodes are read");
    checked(&*device, "behind a deletion");
}

#[test]
fn the_question_what_a_deletion_would_give_back_reads_leaves_of_both_trees_together() {
    let (_, asked, store, tree) = reopened();
    let blocks = store.usage(&BTreeSet::from([tree])).expect("a usage");
    assert!(blocks >= LEAVES * u64::from(NODE_BLOCKS), "{blocks} blocks");
    judge(&asked, 2 * LEAVES..3 * LEAVES, "a usage");
}

#[test]
fn a_comparison_reads_leaves_of_both_trees_together() {
    let (_, asked, store, old) = reopened();
    let new = snapshot(&store, "new");
    store.checkpoint().expect("checkpoint");
    let _readers = [old, new].map(|tree| store.reader(tree).expect("a snapshot"));
    asked.since();
    let mut items = 0;
    let mut count = |_: Key, one: Option<&[u8]>, other: Option<&[u8]>| {
        assert_eq!((one.map(|one| one[0]), other.map(|other| other[0])), (Some(0), Some(1)));
        items += 1;
        ControlFlow::Continue(())
    };
    store.difference(old, new, &mut count).expect("a comparison");
    assert_eq!(items, ITEMS);
    judge(&asked, 2 * LEAVES..3 * LEAVES, "a comparison");
}

#[test]
fn a_scan_reads_leaves_together() {
    let (_, asked, store, old) = reopened();
    let mut items = 0;
    let mut count = |_: Key, _: &[u8]| {
        items += 1;
        ControlFlow::Continue(())
    };
    let end = Key::new(object(ITEMS), Kind::XattrPiece, u64::MAX);
    store.scan(old, Key::MIN, end, &mut count).expect("a scan");
    assert_eq!(items, ITEMS);
    judge(&asked, LEAVES..2 * LEAVES, "a scan");
}
