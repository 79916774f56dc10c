//! Interleaved actors: a sample of what `actors` runs for longer.

use syncline_sim::actors;
use syncline_sim::lab::Tally;
use syncline_sim::random::derive;

#[test]
fn syncs_that_are_pending_while_others_go_on_keep_the_contract() {
    let mut all = Tally::default();
    for number in 0..30 {
        all.add(actors::run(derive(1, 5 << 32 | number)));
        assert_eq!(all.violations, []);
    }
    assert!(all.states > 1000 && all.by_operation.contains_key("fsync"), "the workloads do what they should");
}
