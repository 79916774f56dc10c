//! Real threads beside snapshots, and full volumes with snapshots: the bounded part.

use std::time::Duration;
use syncline_sim::campaign::{self, Outcome, Plan};

fn plan(workloads: u64) -> Plan {
    Plan { seed: 7, threads: 2, time: Duration::from_secs(900), workloads }
}

fn assert_sound(outcome: &Outcome) {
    let found: Vec<&str> = outcome.tally.violations.iter().map(|found| found.what.as_str()).collect();
    assert!(found.is_empty(), "{}: {}", outcome.name, found.join("\n"));
    assert!(outcome.done > 0 && outcome.tally.operations > 0, "{} has done nothing", outcome.name);
}

// Shows: C10, C11, C12.
#[test]
fn threads_beside_snapshots_find_them_as_they_were_made() {
    let outcome = campaign::beside_snapshots(plan(16));
    assert_sound(&outcome);
    assert!(outcome.tally.states > 50, "{} crash states", outcome.tally.states);
}

// Shows: C2, C7.
#[test]
fn a_truncation_of_many_batches_is_one_step_beside_others() {
    assert_sound(&campaign::beside_truncations(plan(24)));
}

// Shows: C8, C11, R33.
#[test]
fn a_full_volume_gets_its_space_back_when_its_snapshots_are_deleted() {
    let outcome = campaign::emptied(plan(u64::MAX), 17, None);
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
    assert!(
        outcome.tally.no_space > 8,
        "{} calls found no space: else this shows nothing",
        outcome.tally.no_space
    );
}
