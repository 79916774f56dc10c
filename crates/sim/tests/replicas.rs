//! Replication in the laboratory: what is shipped are crash states, and what counts is never lost.

use std::sync::Arc;
use syncline_device::{Device, DeviceCounters};
use syncline_replica::TapDevice;
use syncline_replica::runs::RunSet;
use syncline_sim::device::SimDevice;
use syncline_sim::driver::{self, SimClock};
use syncline_sim::keepers::Kept;
use syncline_sim::oracle::Model;
use syncline_sim::random::derive;
use syncline_sim::{fencing, lazy, replicas, resumed, retention, workload};

const SEED: u64 = 11;

// Shows: C13.
#[test]
fn every_consistent_unit_is_restored_to_a_state_that_a_crash_could_have_left() {
    let mut states = 0;
    for number in 0..24 {
        let tally = replicas::run(number, derive(SEED, number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
        states += tally.states;
    }
    assert!(states > 200, "{states} units were restored");
}

// Shows: C10, C13.
#[test]
fn a_volume_that_goes_on_ships_what_has_changed_and_nothing_is_missed() {
    let (mut states, mut seen) = (0, resumed::Events::default());
    for number in 0..60 {
        let (tally, events) = resumed::run_counting(derive(SEED, 5000 + number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
        states += tally.states;
        seen.exact += events.exact;
        seen.by_generations += events.by_generations;
        seen.whole += events.whole;
        seen.set_back += events.set_back;
        seen.changed += events.changed;
        seen.of += events.of;
        seen.snapshots += events.snapshots;
    }
    println!("{states} units were restored, {seen:?}");
    assert!(seen.exact > 5 && seen.by_generations > 20 && seen.whole > 5, "{seen:?}");
    assert!(seen.snapshots > 20 && 3 * seen.changed < seen.of, "{seen:?}");
}

// Shows: C1, C13.
#[test]
fn a_volume_that_is_fetched_while_it_is_used_survives_every_crash() {
    let (mut states, mut whole) = (0, 0);
    for number in 0..40 {
        let tally = lazy::run(derive(SEED, 2000 + number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
        states += tally.states;
        whole += tally.checks;
    }
    assert!(states > 1000, "{states} crash states were opened");
    assert!(whole > 0, "no run fetched everything");
}

/// An owner that was stalled read a replica in which nothing counted, and a later owner's base counted by the time it
/// was judged.
#[test]
fn an_owner_that_is_late_may_find_nothing_that_was_not_there_when_it_looked() {
    for number in [276, 355, 359, 598] {
        let tally = fencing::run(derive(77001, 20 << 32 | number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
    }
}

/// One of eight runs has a restore with pauses, one has answers that overtake each other.
// Shows: C13, C15.
#[test]
fn slow_restores_and_late_answers_change_nothing_of_what_counts() {
    for number in [3, 7, 11, 15, 19, 23] {
        let tally = fencing::run_number(number, derive(SEED, 3000 + number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
    }
}

/// A restore that had read a manifest, and stood still until the units behind it were pruned, took their place for the
/// end: it brought an older state, and told nobody.
// Shows: C13.
#[test]
fn a_restore_that_stood_still_takes_no_pruned_unit_for_the_end() {
    let tally = fencing::run(derive(5, 20 << 32 | 233));
    assert!(tally.violations.is_empty(), "{:?}", tally.violations);
}

/// The time of grace was counted from the moment when a compaction or an owner had begun, however long it had stood
/// still before its manifest was there. What others read was pruned too early.
// Shows: C13.
#[test]
fn nothing_is_pruned_within_the_time_of_grace_whoever_stood_still() {
    for number in [129, 414, 527, 631, 839, 1070, 1298, 1466, 3291, 3878] {
        let tally = fencing::run(derive(20, 20 << 32 | number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
    }
}

/// The replicator asked again and again for blocks whose writes it would have had to wait for.
#[test]
fn blocks_that_are_being_written_are_waited_for_without_asking_again_at_once() {
    let tally = replicas::run(69, derive(3, 19 << 32 | 69));
    assert!(tally.violations.is_empty(), "{:?}", tally.violations);
}

// Shows: C13, C15.
#[test]
fn nothing_that_counts_is_lost_however_machines_stall_and_take_over() {
    let (mut counted, mut fenced, mut taken_over) = (0, 0, 0);
    let mut kept = Kept::default();
    for number in 0..60 {
        let (tally, events) = fencing::run_counting(derive(SEED, 1000 + number));
        assert!(tally.violations.is_empty(), "run {number}: {:?}", tally.violations);
        counted += events.counted;
        fenced += events.fenced;
        taken_over += events.taken_over;
        kept.packs += events.kept.packs;
        kept.deleted += events.kept.deleted;
        kept.restored += events.kept.restored;
        kept.outrun += events.kept.outrun;
        kept.disturbed += events.kept.disturbed;
    }
    println!("{counted} counted, {fenced} fenced, {taken_over} taken over, {kept:?}");
    assert!(
        kept.packs > 150 && kept.deleted > 1000 && kept.restored > 500 && kept.disturbed > 10,
        "{kept:?}"
    );
    assert!(counted > 1000 && fenced > 30 && taken_over > 60, "{counted}, {fenced}, {taken_over}");
}

// Shows: C13.
// Who takes over lists the manifests, stands still for longer than the time of grace, and finds the newest deleted.
#[test]
fn a_restore_that_stands_still_before_it_reads_the_manifest_goes_by_a_newer_one() {
    let tally = fencing::run(derive(101, 20 << 32 | 1785));
    assert!(tally.violations.is_empty(), "{:?}", tally.violations);
}

// Shows: C13.
#[test]
fn a_day_that_is_packed_and_pruned_comes_back_at_every_position_that_is_kept() {
    for (number, hours, restores) in [(0, 24, 1000), (1, 5, 100), (2, 5, 100), (3, 9, 100)] {
        let told = retention::run(derive(SEED, 4000 + number), hours * 3600, restores);
        let events = told.unwrap_or_else(|what| panic!("day {number}: {what}"));
        println!("{events:?}");
        assert!(events.restored >= restores as usize && events.packs > 50, "{events:?}");
        assert!(events.deleted > 100 && events.sessions > 0, "{events:?}");
    }
}

/// What a device was asked to do by a workload, with a tap over it or without.
fn asked(number: u64, tapped: bool) -> DeviceCounters {
    let seed = derive(SEED, 2000 + number);
    let (start, ops) = workload::round(seed, 0).expect("a first round");
    let sim = SimDevice::new(start.disk.clone(), derive(seed, 1));
    let below = Arc::clone(&sim) as Arc<dyn Device>;
    let tap = TapDevice::new(Arc::clone(&below), 1 << 20, RunSet::default());
    let device = if tapped { Arc::clone(&tap) as Arc<dyn Device> } else { below };
    let clock = SimClock::behind(&start.view);
    let fs = driver::open(device, &clock, derive(seed, 2)).expect("the volume opens");
    let mut model = Model::new(&start.view);
    for op in &ops {
        driver::step(&fs, &clock, &mut model, op).expect("the operation answers as it should");
        // As an uploader does, that takes away what is noted.
        drop(tap.take_cuts(usize::MAX));
    }
    fs.close().expect("the volume closes");
    assert!(!tapped || tap.flushes() > 0, "the tap has seen nothing");
    sim.counters()
}

// Shows: C13.
#[test]
fn the_tap_adds_no_write_no_flush_and_no_read() {
    for number in 0..6 {
        let (with, without) = (asked(number, true), asked(number, false));
        assert!(without.writes > 10 && without.flushes > 5, "{without:?}");
        assert_eq!(with, without);
    }
}
