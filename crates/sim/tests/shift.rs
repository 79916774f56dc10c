//! Ranges taken out of, and put into, a file of more extents than one batch moves: the volume of these workloads has
//! the smallest journal, whose batches move some two dozen. A crash between two of them has to show the file before
//! or after.

use syncline_sim::ace;
use syncline_sim::lab::{Depth, examine};
use syncline_sim::operation::from_text;

/// Every second page of the file is written: each is an extent.
const EXTENTS: u64 = 80;

fn run(shifts: &str) {
    let mut text = String::from("creat:f;");
    for extent in 0..EXTENTS {
        text += &format!("write:f:{}:4096:{};", extent * 8192, 1 + extent);
    }
    text += "fsync:f;maintain:6000;checkpoint;";
    text += shifts;
    let ops = from_text(&text).expect("operations");
    for seed in 1..3 {
        let tally = examine(&ace::start(), &ops, seed, Depth::REPLAY);
        assert_eq!(tally.violations, [], "seed {seed}");
        assert!(
            tally.states > 20 && tally.recovery_states > 20,
            "{} and {} states",
            tally.states,
            tally.recovery_states
        );
    }
}

#[test]
fn a_range_taken_out_in_many_batches_is_there_or_not_after_a_crash() {
    run("collapse:f:8192:20480;creat:x;fsync:x;write:f:100000:5000:99;fsync:f");
}

#[test]
fn a_range_put_in_in_many_batches_is_there_or_not_after_a_crash() {
    run("insert:f:4096:12288;creat:x;fsync:x;truncate:f:300000;sync");
}

#[test]
fn ranges_are_moved_to_and_fro_without_a_sync_between() {
    run("insert:f:0:4096;collapse:f:4096:4096;rename:f:g;insert:g:204800:409600;maintain:6000;unlink:g;sync");
}
