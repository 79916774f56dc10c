//! The design keeps its contract in every small scope, and needs each of its rules for that.

use syncline_model::explore::{explore, walk};
use syncline_model::rules::Rule;
use syncline_model::scopes::{SMALL, WIDE, WIDE_FAULTS, WIDE_TREES, WIDE_TREES_FAULTS, questions, scope_of};

/// No small scope comes near; one that does has lost its bounds.
const STATES_MAX: usize = 200_000;
/// Without a rule there are more states.
const STATES_WITHOUT_MAX: usize = 1_000_000;

#[test]
fn no_promise_is_broken_while_all_rules_are_kept() {
    for scope in SMALL {
        let outcome = explore(&scope, STATES_MAX);
        assert!(outcome.found.is_none(), "{}: {:#?}", scope.name, outcome.found);
        assert!(outcome.complete, "{}: not explored to its end", scope.name);
        assert!(
            scope.budget.cuts == 0 || outcome.recoveries > 100,
            "{}: the power hardly ever failed",
            scope.name
        );
    }
}

#[test]
fn a_promise_is_broken_without_any_one_of_the_rules() {
    for rule in Rule::ALL {
        let outcome = explore(&scope_of(rule).without(rule), STATES_WITHOUT_MAX);
        let found = outcome.found.unwrap_or_else(|| panic!("{}: nothing is found without it", rule.name()));
        assert!(!found.steps.is_empty(), "{}: a violation has a trace", rule.name());
    }
}

#[test]
fn the_questions_have_the_answers_that_the_design_tells() {
    for question in questions() {
        let outcome = explore(&question.scope, STATES_MAX);
        assert_eq!(outcome.found.is_none(), question.kept, "{}: {:#?}", question.asks, outcome.found);
        assert!(!question.kept || outcome.complete, "{}: not explored to its end", question.asks);
    }
}

#[test]
fn random_walks_through_a_wide_scope_break_no_promise() {
    for scope in [WIDE, WIDE_FAULTS, WIDE_TREES, WIDE_TREES_FAULTS] {
        let outcome = walk(&scope, 7, 30_000);
        assert!(outcome.found.is_none(), "{}: {:#?}", scope.name, outcome.found);
        assert!(outcome.recoveries > 50, "{}: the power hardly ever failed", scope.name);
    }
}

#[test]
fn the_shortest_trace_is_told_in_words() {
    let outcome = explore(&scope_of(Rule::R4).without(Rule::R4), STATES_MAX);
    let found = outcome.found.expect("a record is believed whose data did not arrive");
    let steps: Vec<&str> = found.steps.iter().map(String::as_str).collect();
    assert_eq!(
        steps,
        [
            "write file 0 page 0 (content 3), in memory",
            "fsync file 0 is called: dirty pages written to blocks beside the record",
            "record 1 is sealed, its write started",
            "POWER CUT; survives: ring block 0; lost: block 1; the volume is opened",
        ]
    );
    assert!(found.violation.what.contains("does not match its checksum"), "{}", found.violation.what);
}
