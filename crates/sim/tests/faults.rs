//! The parts of the laboratory that need something around a workload, and the watchdog. That planted faults are
//! caught is shown by `make crash`, which builds the engine once more for it.

use std::process::Command;
use std::time::Duration;
use syncline_sim::lab::Tally;
use syncline_sim::operation::from_text;
use syncline_sim::random::derive;
use syncline_sim::watchdog::{self, Watch};
use syncline_sim::{
    ace, between, bitmaps, carried, controls, errors, frozen, killed, leaks, mkfs, polled, shapes, trims,
    upgrade, volatile,
};

const SEED: u64 = 11;

fn assert_sound(workloads: impl Iterator<Item = Tally>) -> Tally {
    let mut all = Tally::default();
    workloads.for_each(|tally| all.add(tally));
    let found: Vec<&str> = all.violations.iter().map(|found| found.what.as_str()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(all.states > 0, "something was recovered");
    all
}

#[test]
fn an_interrupted_mkfs_leaves_the_old_volume_or_none_or_the_new_one() {
    assert_sound((0..4).map(|number| mkfs::run(derive(SEED, number))));
}

#[test]
fn an_interrupted_upgrade_leaves_a_volume_of_either_version_with_the_same_content() {
    let all = assert_sound((0..2).map(|number| upgrade::run(derive(SEED, number))));
    assert!(all.states > 50, "{} crash states", all.states);
}

#[test]
fn a_force_that_is_polled_is_durable_when_it_is_acknowledged() {
    assert_sound((0..6).map(|number| polled::run(derive(SEED, number))));
}

#[test]
fn a_sync_reaches_the_device_below_the_one_that_forgets() {
    let start = ace::start();
    assert_sound(controls::WORKLOADS.iter().map(|text| {
        let ops = from_text(text).expect("the list holds operations");
        volatile::run(&start, &ops, SEED)
    }));
}

#[test]
fn recovery_after_a_kill_survives_the_loss_of_what_was_only_in_the_cache() {
    let all = assert_sound((0..20).map(|number| killed::run(derive(SEED, number))));
    assert!(all.recovery_states > 1000, "{} crashes of recovery", all.recovery_states);
}

#[test]
fn others_may_work_between_the_writes_of_checkpoints_and_writeback() {
    assert_sound((0..40).map(|number| between::run(derive(SEED, number))));
}

/// A rename that wrote its source back and freed what it had replaced once asked for relief here, and waited for the
/// very checkpoint that it interrupted.
#[test]
fn what_interrupts_a_checkpoint_on_its_own_thread_never_waits_for_it() {
    let (seed, number) = (77_123, 3117);
    assert_sound(std::iter::once(trims::run(number / 13, derive(seed, 7 << 32 | number))));
}

#[test]
fn bitmaps_are_those_of_the_freeze_whatever_is_committed_before_they_are_written() {
    assert_sound((0..frozen::RUNS).map(|number| frozen::run(number, derive(SEED, number))));
}

#[test]
fn a_bitmap_left_newer_than_the_superblock_is_never_taken_for_current() {
    assert_sound((0..2).map(|number| shapes::newer_slots(derive(SEED, number))));
}

// Shows: R9, C7.
#[test]
fn a_bitmap_that_is_torn_hurts_nobody_and_one_that_is_lost_is_never_replaced_by_the_one_before() {
    let all = assert_sound((0..bitmaps::COUNT).map(|number| bitmaps::run(number, derive(SEED, number))));
    assert!(all.refused > 0, "no volume was refused for a bitmap that rots");
}

// Shows: R10, C7.
#[test]
fn images_that_recovery_cannot_bring_home_survive_every_cut_of_every_recovery() {
    let runs = (0..6).map(|number| carried::run(number, derive(SEED, number), carried::Depth::SAMPLED));
    let all = assert_sound(runs);
    assert!(
        all.carried > 100 && all.recovery_states > 60,
        "{} images, {} cuts",
        all.carried,
        all.recovery_states
    );
    assert!(all.refused * 4 < all.states, "{} volumes of {} are refused", all.refused, all.states);
}

#[test]
fn no_space_is_lost_by_what_fails_for_lack_of_it() {
    let steps = ace::steps();
    for free in [0, 3, 12, 48] {
        let start = errors::full_start(free).expect("the volume can be filled");
        let few = steps.iter().step_by(11);
        assert_sound(few.map(|step| leaks::run(&start, &ace::workload(&[step]), SEED)));
    }
}

/// Set in the process that hangs.
const HANGS: &str = "SYNCLINE_SIM_TEST_HANGS";

#[test]
fn a_workload_that_hangs_ends_the_process_with_its_replay_command() {
    if std::env::var_os(HANGS).is_some() {
        watchdog::set_patience(Duration::from_millis(100));
        watchdog::replayed_by("replay --seed 5 'creat:x'".to_owned());
        let _watch = Watch::begin();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let me = std::env::current_exe().expect("the test's own program");
    let name = "a_workload_that_hangs_ends_the_process_with_its_replay_command";
    let output = Command::new(me)
        .args(["--exact", "--nocapture", name])
        .env(HANGS, "1")
        .output()
        .expect("the test's own program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(watchdog::EXIT_CODE), "{text}");
    assert!(text.contains("HANG") && text.contains("replay --seed 5 'creat:x'"), "{text}");
}
