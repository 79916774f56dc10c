//! When the replicator wants to be polled, on a device whose requests complete when the test says so.

use crate::slow::{Slow, page};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::replica::{Flags, Manifest, UnitHeader};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_replica::merge::Content;
use syncline_replica::newest::{Layer, Newest};
use syncline_replica::runs::RunSet;
use syncline_replica::unit::{Outline, encode};
use syncline_replica::{
    Acknowledge, Answer, Opened, Operation, Phase, Replicator, Settings, StoreError, TapDevice,
};

const BLOCKS: u64 = 64;
const SECOND: u64 = 1_000_000_000;

fn opened() -> Opened {
    let uuid = [3; 16];
    let manifest = Manifest::unpacked(uuid, 1, 1, BLOCKS, Vec::new());
    Opened { uuid, claim: 1, manifest, tail: 0, last: None, doubt: None }
}

/// A replicator over a tap that keeps at most `held` bytes of content.
fn over(slow: &Arc<Slow>, held: usize) -> (Arc<TapDevice>, Replicator) {
    let tap = TapDevice::acknowledging(
        Arc::clone(slow) as Arc<dyn Device>,
        held,
        RunSet::default(),
        Acknowledge::Local,
    );
    let replicator = Replicator::new(Arc::clone(&tap), &opened(), Settings::default(), 0);
    (tap, replicator)
}

/// One write and its flush, both complete.
fn change(tap: &TapDevice, slow: &Slow, block: u64) {
    tap.submit_write(BlockNo(block), page(block as u8));
    slow.complete(0, Ok(()));
    tap.submit_flush();
    slow.complete(0, Ok(()));
}

/// Polls, and has the store answer at once: how many units were put.
fn units(replicator: &mut Replicator, now: u64) -> usize {
    let mut requests = VecDeque::from(replicator.poll(now));
    let mut count = 0;
    while let Some(request) = requests.pop_front() {
        let answer = match request.operation {
            Operation::Put { .. } => {
                count += 1;
                Ok(Answer::Done)
            }
            _ => Err(StoreError::Missing),
        };
        replicator.answer(request.id, now, answer);
        requests.extend(replicator.poll(now));
    }
    count
}

#[test]
fn a_change_behind_quiet_waits_for_its_neighbours_only() {
    let slow = Slow::new();
    let (tap, mut replicator) = over(&slow, 1 << 20);
    let mut now = 10 * SECOND;
    for block in 0..3 {
        assert_eq!(units(&mut replicator, now), 0);
        assert_eq!(replicator.next_due(), None);
        change(&tap, &slow, 1 + 2 * block);
        assert_eq!(units(&mut replicator, now), 0);
        assert_eq!(replicator.next_due(), Some(now + SECOND / 10));
        // What comes meanwhile is in the same unit, and makes it no later.
        change(&tap, &slow, 2 + 2 * block);
        assert_eq!(units(&mut replicator, now + SECOND / 10 - 1), 0);
        assert_eq!(units(&mut replicator, now + SECOND / 10), 1);
        assert_eq!((replicator.status(now + SECOND).lag, replicator.status(now).flush), (0, tap.flushes()));
        now += SECOND + SECOND / 10;
    }
}

#[test]
fn a_change_behind_a_unit_waits_until_that_is_an_interval_old() {
    let slow = Slow::new();
    let (tap, mut replicator) = over(&slow, 1 << 20);
    change(&tap, &slow, 1);
    assert_eq!(units(&mut replicator, 0), 0);
    assert_eq!(units(&mut replicator, SECOND / 10), 1);
    change(&tap, &slow, 2);
    assert_eq!(units(&mut replicator, SECOND / 5), 0);
    assert_eq!(replicator.next_due(), Some(SECOND + SECOND / 10));
    assert_eq!(units(&mut replicator, SECOND + SECOND / 10 - 1), 0);
    assert_eq!(units(&mut replicator, SECOND + SECOND / 10), 1);
    // One that comes shortly before the end of the interval still has its neighbours.
    change(&tap, &slow, 3);
    assert_eq!(units(&mut replicator, 2 * SECOND + SECOND / 20), 0);
    assert_eq!(replicator.next_due(), Some(2 * SECOND + SECOND / 20 + SECOND / 10));
}

#[test]
fn each_interval_has_one_unit_at_most_and_no_change_waits_for_longer() {
    let slow = Slow::new();
    let (tap, mut replicator) = over(&slow, 1 << 20);
    let mut random = 1_u64;
    let (mut shipped, mut oldest, mut changes) = (None, None, 0);
    // A millisecond at a time: bursts, and quiet of up to three intervals between them.
    let mut next = 0;
    for now in (0..200 * SECOND).step_by(1_000_000) {
        if now >= next {
            change(&tap, &slow, 1 + changes % (BLOCKS - 1));
            changes += 1;
            oldest.get_or_insert(now);
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pause = if random >> 60 == 0 { 3 * SECOND } else { SECOND / 4 };
            next = now + (random >> 20) % pause;
        }
        if units(&mut replicator, now) > 0 {
            assert!(shipped.is_none_or(|shipped| now - shipped >= SECOND), "units at {shipped:?} and {now}");
            shipped = Some(now);
            oldest = None;
        }
        assert!(oldest.is_none_or(|oldest| now - oldest < SECOND), "a change of {oldest:?} waits at {now}");
    }
    assert!(changes > 500, "{changes}");
}

#[test]
fn catching_up_is_polled_while_writes_that_it_waits_for_are_in_flight() {
    let slow = Slow::new();
    let (tap, mut replicator) = over(&slow, 0);
    assert_eq!(replicator.next_due(), None);
    // Its content is not kept, so its block has to be read when it has completed.
    tap.submit_write(BlockNo(7), page(7));
    let mut now = SECOND;
    for _ in 0..3 {
        assert_eq!(replicator.poll(now), []);
        assert_eq!(replicator.phase(), &Phase::CatchingUp);
        // Nobody tells when the write completes.
        let due = replicator.next_due().expect("it looks again by itself");
        assert!(due > now && due < now + SECOND / 10, "{due}");
        now = due;
    }
    slow.complete(0, Ok(()));
    assert_eq!(replicator.poll(now), []);
    tap.submit_flush();
    slow.complete(0, Ok(()));
    let requests = replicator.poll(now);
    assert!(
        matches!(requests.as_slice(), [one] if matches!(one.operation, Operation::Put { .. })),
        "{requests:?}"
    );
    assert_eq!(replicator.phase(), &Phase::Streaming);
    assert_eq!(replicator.next_due(), None);
}

/// One that knows which blocks nobody has written, and does something when block 5 is read.
struct Sparse(MemoryDevice, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Device for Sparse {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let act = self.1.lock().take_if(|_| at == BlockNo(5));
        if let Some(act) = act {
            act();
        }
        self.0.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.0.submit_write(at, data)
    }

    fn submit_flush(&self) -> Ticket {
        self.0.submit_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.0.wait(ticket)
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.0.discard(at, blocks)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        let is_hole = |block: &u64| {
            let mut content = vec![1; BLOCK_BYTES];
            self.0.read(BlockNo(*block), &mut content).expect("memory");
            content == [0; BLOCK_BYTES]
        };
        let start = (at.0..self.blocks()).find(is_hole)?;
        let end = (start..self.blocks()).find(|block| !is_hole(block)).unwrap_or(self.blocks());
        Some(BlockNo(start)..BlockNo(end))
    }
}

#[test]
fn parts_of_the_volume_of_which_little_has_content_share_a_unit() {
    let device = Arc::new(Sparse(MemoryDevice::new(BLOCKS), Mutex::new(None)));
    for part in 0..16 {
        device.write(BlockNo(4 * part + 1), page(part as u8 + 1)).expect("written");
    }
    let unknown = RunSet::from(0..BLOCKS);
    let tap = TapDevice::new(device, 1 << 20, unknown);
    // Parts of four blocks.
    let settings = Settings { read_blocks: 4, rest_blocks: 0, ..Settings::default() };
    let mut replicator = Replicator::new(Arc::clone(&tap), &opened(), settings, 0);
    let mut puts = 0;
    for step in 0..200 {
        puts += units(&mut replicator, step * SECOND);
    }
    assert_eq!(*replicator.phase(), Phase::Streaming);
    assert!((5..12).contains(&puts), "{puts} units of 16 parts");
}

// Shows: C13.
#[test]
fn what_is_read_twice_for_one_unit_is_shipped_as_it_was_read_last() {
    let header = UnitHeader {
        flags: Flags::CONSISTENT.with(Flags::BASE),
        uuid: [3; 16],
        claim: 1,
        number: 0,
        predecessor: 0,
        epoch: 1,
        generation: 1,
        lsn: 1,
        cuts: 1,
        time: 1,
        blocks: BLOCKS,
    };
    let known: BTreeMap<u64, Content> =
        page(9).into_iter().map(|content| (1, Content::Written(content, 0))).collect();
    let outline = Outline::of(&encode(&header, &known).bytes).expect("a unit");
    let mut newest = Newest::default();
    newest.lay_under(Layer { name: "unit".to_owned(), outline });
    let device = Arc::new(Sparse(MemoryDevice::new(BLOCKS), Mutex::new(None)));
    device.write(BlockNo(1), page(8)).expect("written");
    device.write(BlockNo(5), page(5)).expect("written");
    let tap = TapDevice::new(Arc::clone(&device) as Arc<dyn Device>, 1 << 20, RunSet::from(0..BLOCKS));
    let settings = Settings { read_blocks: 4, rest_blocks: 0, ..Settings::default() };
    let mut replicator = Replicator::resuming(Arc::clone(&tap), &opened(), settings, 0, newest);
    // Between two parts of one unit the block gets the content that the replica has.
    let its = Arc::downgrade(&tap);
    *device.1.lock() = Some(Box::new(move || {
        its.upgrade().expect("the tap").submit_write(BlockNo(1), page(9));
    }));
    let put = replicator.poll(0).into_iter().find_map(|request| match request.operation {
        Operation::Put { bytes, .. } => Some(bytes),
        _ => None,
    });
    let runs = Outline::of(&put.expect("a unit")).expect("a unit").index.runs;
    assert!(runs.iter().any(|run| run.first == BlockNo(5)), "{runs:?}");
    assert!(runs.iter().all(|run| run.first.0 > 1 || run.end() < 2), "{runs:?}");
}

#[test]
fn a_volume_that_was_not_flushed_when_it_was_closed_is_not_waited_for() {
    let slow = Slow::new();
    let (tap, mut replicator) = over(&slow, 1 << 20);
    change(&tap, &slow, 1);
    tap.submit_write(BlockNo(2), page(2));
    slow.complete(
        0,
        Err(DeviceError::Io { operation: syncline_device::Operation::Write, block: BlockNo(2), errno: 28 }),
    );
    replicator.close();
    // What was flushed is shipped first.
    assert_eq!(units(&mut replicator, SECOND), 1);
    units(&mut replicator, SECOND + 1);
    assert_eq!(*replicator.phase(), Phase::Failed(syncline_replica::ReplicaError::VolumeFailed));
}
