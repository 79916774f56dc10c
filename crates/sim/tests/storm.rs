//! A bounded part of what `storm` runs for longer.

use std::time::Duration;
use syncline_sim::campaign::{self, Plan};

#[test]
fn whatever_threads_do_at_once_some_order_of_it_explains() {
    let plan = Plan { seed: 11, threads: 2, time: Duration::from_secs(600), workloads: 500 };
    let outcome = campaign::storms(plan);
    let found: Vec<&str> = outcome.tally.violations.iter().map(|found| found.what.as_str()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(outcome.tally.states > 3000, "{} states", outcome.tally.states);
    for name in ["truncate", "write", "zero", "punch", "rename", "txn", "fsync", "collapse", "sync"] {
        assert!(outcome.tally.by_operation.contains_key(name), "no {name}: {:?}", outcome.tally.by_operation);
    }
}
