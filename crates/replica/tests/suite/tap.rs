//! What the tap makes of writes and flushes that complete when the test says so.

use crate::slow::{Slow, page};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Device, DeviceError, Operation};
use syncline_format::{BLOCK_BYTES, BlockNo};
use syncline_replica::runs::RunSet;
use syncline_replica::tap::{Change, Cut};
use syncline_replica::{Acknowledge, TapDevice};

fn over(slow: &Arc<Slow>) -> Arc<TapDevice> {
    TapDevice::new(Arc::clone(slow) as Arc<dyn Device>, 16 * BLOCK_BYTES, RunSet::default())
}

const EIO: DeviceError = DeviceError::Io { operation: Operation::Write, block: BlockNo(0), errno: 5 };

/// Flush, and block and first byte of each change; a discard is told as 255.
fn told(cuts: Vec<Cut>) -> Vec<(u64, Vec<(u64, u8)>)> {
    let change = |(at, change): &(BlockNo, Change)| match change {
        Change::Written(buffers) => (at.0, buffers[0][0]),
        Change::Discarded(_) => (at.0, 255),
    };
    cuts.iter().map(|cut| (cut.flush, cut.changes.iter().map(change).collect())).collect()
}

#[test]
fn a_cut_holds_what_had_completed_when_its_flush_was_issued() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.submit_write(BlockNo(1), page(1));
    tap.submit_write(BlockNo(2), page(2));
    slow.complete(0, Ok(()));
    tap.submit_flush();
    // The second write completes while the flush is in flight: it is not covered.
    slow.complete(0, Ok(()));
    assert_eq!(tap.state().cuts, 0);
    slow.complete(0, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(1, vec![(1, 1)])]);
    tap.submit_flush();
    slow.complete(0, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(2, vec![(2, 2)])]);
}

#[test]
fn a_flush_that_ends_first_takes_what_an_earlier_one_has_marked() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.submit_write(BlockNo(1), page(1));
    slow.complete(0, Ok(()));
    tap.submit_flush();
    tap.submit_write(BlockNo(2), page(2));
    slow.complete(1, Ok(()));
    tap.submit_flush();
    slow.complete(1, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(2, vec![(1, 1), (2, 2)])]);
    slow.complete(0, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(1, vec![])]);
}

#[test]
fn a_failed_flush_ends_it_and_what_ended_well_before_is_still_shipped() {
    let slow = Slow::new();
    let tap = over(&slow);
    for byte in 1..=2 {
        tap.submit_write(BlockNo(1), page(byte));
        slow.complete(0, Ok(()));
        tap.submit_flush();
        slow.complete(0, if byte == 1 { Ok(()) } else { Err(EIO) });
    }
    tap.submit_write(BlockNo(3), page(3));
    slow.complete(0, Ok(()));
    tap.submit_flush();
    slow.complete(0, Ok(()));
    assert!(tap.state().failed);
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(1, vec![(1, 1)])]);
}

#[test]
fn a_failed_write_ends_it() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.submit_write(BlockNo(1), page(1));
    slow.complete(0, Err(EIO));
    tap.submit_flush();
    slow.complete(0, Ok(()));
    assert!(tap.state().failed);
    assert!(tap.take_cuts(usize::MAX).is_empty());
}

#[test]
fn a_write_behind_a_discard_stays_and_the_other_way_round() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.discard(BlockNo(1), 1).unwrap();
    tap.submit_write(BlockNo(1), page(1));
    tap.submit_write(BlockNo(2), page(2));
    slow.complete(0, Ok(()));
    slow.complete(0, Ok(()));
    tap.discard(BlockNo(2), 1).unwrap();
    tap.submit_flush();
    slow.complete(0, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(1, vec![(1, 255), (1, 1), (2, 2), (2, 255)])]);
}

#[test]
fn full_memory_keeps_numbers_and_loses_no_block() {
    let slow = Slow::new();
    let tap = over(&slow);
    for block in 0..20 {
        tap.submit_write(BlockNo(block), page(1));
        if block < 18 {
            slow.complete(0, Ok(()));
        }
        if block == 4 {
            tap.submit_flush();
            slow.complete(0, Ok(()));
        }
    }
    let state = tap.state();
    assert!(!state.keeps && state.cuts == 0 && state.dirty == 20, "{state:?}");
    assert!(!tap.is_drained(), "two writes are in flight: whoever reads their blocks now may miss them");
    let dirty: Vec<Range<u64>> = tap.take_dirty(100);
    assert_eq!((dirty.len(), dirty.first()), (1, Some(&(0..18))));
    tap.keep();
    tap.submit_write(BlockNo(30), page(3));
    slow.complete(0, Ok(()));
    slow.complete(0, Ok(()));
    assert!(tap.is_drained());
    assert_eq!(tap.take_dirty(100).first(), Some(&(18..20)));
    slow.complete(0, Ok(()));
    tap.submit_flush();
    slow.complete(0, Ok(()));
    assert_eq!(told(tap.take_cuts(usize::MAX)), [(2, vec![(30, 3)])]);
}

#[test]
fn nobody_waits_for_a_flush_that_is_in_flight() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.submit_write(BlockNo(1), page(1));
    slow.complete(0, Ok(()));
    let flush = tap.submit_flush();
    tap.submit_write(BlockNo(2), page(2));
    tap.submit_flush();
    assert!(flush.result().is_none() && tap.take_cuts(usize::MAX).is_empty());
    assert!(tap.state().unflushed);
}

fn over_remotely(slow: &Arc<Slow>) -> Arc<TapDevice> {
    let below = Arc::clone(slow) as Arc<dyn Device>;
    TapDevice::acknowledging(below, 16 * BLOCK_BYTES, RunSet::default(), Acknowledge::Remote)
}

fn fenced() -> DeviceError {
    DeviceError::Fenced("somebody else".into())
}

// Shows: C14.
#[test]
fn a_flush_that_is_acknowledged_remotely_ends_when_it_has_ended_and_counts() {
    let slow = Slow::new();
    let tap = over_remotely(&slow);
    tap.submit_write(BlockNo(1), page(1));
    slow.complete(0, Ok(()));
    let (first, second) = (tap.submit_flush(), tap.submit_flush());
    // The second one ends, and counts; the first one is still in flight on the device.
    slow.complete(1, Ok(()));
    tap.poll();
    assert_eq!(second.result(), None);
    tap.count(1);
    tap.poll();
    assert_eq!((first.result(), second.result()), (None, None));
    tap.count(2);
    assert_eq!((first.result(), second.result()), (None, Some(Ok(()))));
    slow.complete(0, Ok(()));
    tap.poll();
    assert_eq!(first.result(), Some(Ok(())));
    assert_eq!(tap.wait(&first), Ok(()));
}

// Shows: C8, C14.
#[test]
fn whoever_waits_for_what_will_never_count_is_told() {
    let slow = Slow::new();
    let tap = over_remotely(&slow);
    let (failed, stays) = (tap.submit_flush(), tap.submit_flush());
    slow.complete(0, Err(EIO));
    tap.poll();
    assert_eq!((failed.result(), stays.result()), (Some(Err(EIO)), None));
    slow.complete(0, Ok(()));
    tap.turn_off(&fenced());
    assert_eq!(stays.result(), Some(Err(fenced())));
    assert_eq!(tap.flush(), Err(fenced()));
    assert_eq!(tap.write(BlockNo(1), page(1)), Err(fenced()));
}

#[test]
fn somebody_who_waits_on_another_thread_is_woken() {
    let slow = Slow::new();
    let tap = over_remotely(&slow);
    let flush = tap.submit_flush();
    slow.complete(0, Ok(()));
    let woken = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&woken);
    tap.wake_by(move || *counts.lock() += 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tap.wait(&flush));
        while *woken.lock() == 0 {
            std::thread::yield_now();
        }
        tap.count(1);
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
    });
}

// Shows: C15.
#[test]
fn a_tap_that_was_told_of_a_successor_carries_nothing_out_any_more() {
    let slow = Slow::new();
    let tap = over(&slow);
    tap.submit_write(BlockNo(1), page(1));
    slow.complete(0, Ok(()));
    tap.refuse(fenced());
    assert_eq!(tap.submit_write(BlockNo(1), page(2)).result(), Some(Err(fenced())));
    assert_eq!(tap.submit_flush().result(), Some(Err(fenced())));
    assert_eq!(tap.flush_below(), Err(fenced()));
    assert!(slow.pending.lock().is_empty() && tap.take_cuts(usize::MAX).is_empty());
    // Without a successor, what is turned off goes on by itself.
    let tap = over(&slow);
    tap.turn_off(&fenced());
    let flush = tap.submit_flush();
    slow.complete(0, Ok(()));
    assert_eq!(flush.result(), Some(Ok(())));
}
