//! When the replicator wants to be polled, on a device whose requests complete when the test says so.

use crate::slow::{Slow, page};
use std::collections::VecDeque;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::BlockNo;
use syncline_format::replica::Manifest;
use syncline_replica::runs::RunSet;
use syncline_replica::{
    Acknowledge, Answer, Opened, Operation, Phase, Replicator, Settings, StoreError, TapDevice,
};

const BLOCKS: u64 = 64;
const SECOND: u64 = 1_000_000_000;

fn opened() -> Opened {
    let uuid = [3; 16];
    let manifest = Manifest::unpacked(uuid, 1, 1, BLOCKS, Vec::new());
    Opened { uuid, claim: 1, manifest, tail: 0, last: None }
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
