//! When the replicator wants to be polled, on a device whose requests complete when the test says so.

use crate::slow::{Slow, page};
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::BlockNo;
use syncline_format::replica::Manifest;
use syncline_replica::runs::RunSet;
use syncline_replica::{Acknowledge, Opened, Operation, Phase, Replicator, Settings, TapDevice};

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
