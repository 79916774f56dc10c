//! The protocol of replication keeps what counts, and needs each of its rules for that.

use syncline_model::replica::protocol::{Rule, SMALL};
use syncline_model::replica::search::explore;

/// No small scope comes near; one that does has lost its bounds.
const STATES_MAX: usize = 1_000_000;

#[test]
fn nothing_that_counts_is_lost_while_all_rules_of_replication_are_kept() {
    for scope in SMALL {
        let outcome = explore(&scope, STATES_MAX);
        assert!(outcome.found.is_none(), "{}: {:#?}", scope.name, outcome.found);
        assert!(outcome.complete, "{}: not explored to its end ({} states)", scope.name, outcome.states);
        assert!(outcome.depth > 10, "{}: hardly anything happened", scope.name);
    }
}

#[test]
fn something_is_lost_without_any_one_of_the_rules_of_replication() {
    for rule in Rule::ALL {
        let outcome = explore(&rule.scope().without(rule), STATES_MAX);
        let found = outcome.found.unwrap_or_else(|| panic!("{}: nothing is found without it", rule.name()));
        assert!(!found.steps.is_empty(), "{}: a violation has a trace", rule.name());
    }
}

#[test]
fn a_unit_that_counts_without_a_look_for_the_next_claim_is_lost_to_whoever_took_over() {
    let outcome = explore(&Rule::Looked.scope().without(Rule::Looked), STATES_MAX);
    let found = outcome.found.expect("nobody asked");
    assert!(found.violation.what.contains("counted and is not restored"), "{}", found.violation.what);
    assert!(found.steps.iter().any(|step| step == "B puts its claim"), "{:#?}", found.steps);
}
