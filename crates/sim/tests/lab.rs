//! The bounded part of the laboratory, and the proof that it can find something.

use std::time::Duration;
use syncline_sim::campaign::{self, Outcome, Plan};
use syncline_sim::controls::must_be_caught;
use syncline_sim::lab::{Depth, Tally, examine, record};
use syncline_sim::operation::from_text;
use syncline_sim::oracle::{Model, Violation};
use syncline_sim::random::derive;
use syncline_sim::{ace, campaign::replay, controls, damage, errors, snapshots};

const SEED: u64 = 7;

fn plan(workloads: u64) -> Plan {
    // Two threads, so that other tests get on; the time only ends what hangs.
    Plan { seed: SEED, threads: 2, time: Duration::from_secs(900), workloads }
}

fn assert_sound(outcome: &Outcome) {
    let found = &outcome.tally.violations;
    let lines: Vec<String> =
        found.iter().map(|found| format!("{}\n  {}", found.what, found.replay)).collect();
    assert!(found.is_empty(), "{}: {}", outcome.name, lines.join("\n"));
    assert!(outcome.tally.states > 0 && outcome.done > 0, "{} has done nothing", outcome.name);
}

#[test]
fn every_crash_state_of_every_single_operation_keeps_the_contract() {
    let outcome = campaign::seq1(plan(u64::MAX));
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
    assert!(outcome.tally.checks > 1000);
}

// Shows: C10, C11, C12, R22, R25, R29.
#[test]
fn operations_with_snapshots_around_them_keep_the_contract_in_a_sample() {
    let outcome = campaign::seq1_of_trees(plan(u64::MAX), 97);
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
    for kind in ["snap", "snap-now", "snapdel", "clone", "head", "rollback", "reap"] {
        assert!(outcome.tally.by_operation.contains_key(kind), "no {kind}");
    }
}

// Shows: C10, C11, C12, R17, R25, R26, R29.
#[test]
fn deletions_in_trees_of_three_levels_keep_the_contract_in_a_sample() {
    let outcome = campaign::narrow_trees(plan(u64::MAX), 17);
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
}

// Shows: C2, C10, C11, C12.
#[test]
fn pairs_with_an_operation_on_trees_keep_the_contract_in_a_sample() {
    assert_sound(&campaign::seq2_of_trees(plan(80), false));
}

#[test]
fn crash_states_of_two_operations_keep_the_contract_in_a_sample() {
    assert_sound(&campaign::seq2(plan(1500), false));
}

#[test]
fn crash_states_of_long_random_workloads_keep_the_contract() {
    assert_sound(&campaign::random(plan(60)));
}

#[test]
fn a_hint_on_a_part_of_a_file_does_not_make_the_rest_any_younger() {
    let text = "creat:n;write:n:0:100405:9;writeback:n:2646:26840;maintain:2000";
    let ops = from_text(text).expect("operations");
    let tally = examine(&ace::start(), &ops, 3, Depth::FULL);
    assert!(tally.violations.is_empty() && tally.states > 20, "{tally:?}");
}

/// A stale bitmap that frees as much as the lost one: recovery put a page into a block that was in use.
#[test]
fn the_bitmap_before_the_last_is_not_taken_for_the_one_that_rots() {
    for seed in [7, 9] {
        let tally = damage::run(590, derive(seed, 18 << 32 | 118));
        assert!(tally.violations.is_empty(), "{:?}", tally.violations);
    }
}

#[test]
fn long_files_keep_the_contract_where_free_space_is_in_small_pieces() {
    let outcome = campaign::in_pieces(plan(u64::MAX), 611);
    assert_sound(&outcome);
    assert!(outcome.tally.flushes > 100, "{} flushes", outcome.tally.flushes);
}

#[test]
fn blocks_are_used_again_while_the_journal_tells_of_their_old_content() {
    let outcome = campaign::reused(plan(u64::MAX), 97);
    assert_sound(&outcome);
    assert!(outcome.tally.states > 2000, "{} states", outcome.tally.states);
}

#[test]
fn what_a_trim_discards_nobody_misses() {
    let outcome = campaign::trimmed(plan(160));
    assert_sound(&outcome);
    assert!(outcome.tally.states > 2000, "{} states", outcome.tally.states);
}

// Shows: C8.
#[test]
fn device_errors_at_every_operation_are_told_and_stay() {
    let outcome = campaign::device_errors(plan(u64::MAX), 1);
    assert_sound(&outcome);
    assert!(outcome.tally.errors > 200, "{} errors were injected", outcome.tally.errors);
}

#[test]
fn full_volumes_keep_what_they_had_and_recover_by_deletion() {
    let outcome = campaign::full_volumes(plan(u64::MAX), 11);
    assert_sound(&outcome);
    assert!(outcome.tally.no_space > 0, "some operation found no space");
}

#[test]
fn every_allocation_may_be_the_first_that_finds_no_space() {
    let outcome = campaign::allocations(plan(u64::MAX), 3);
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
    // A stored page that is overwritten uses what is kept for freeing space. The new file of 74 pages cannot and is
    // refused 16 times, the allocations of ranges 7 times, an attribute once.
    assert_eq!(outcome.tally.no_space, 24, "times no space");
}

/// C8: zeroing needs new blocks for those it frees, and is refused before anything was zeroed.
#[test]
fn zeroing_a_range_without_space_changes_nothing() {
    // Stored pages take what is kept for freeing space; the pages behind the end need a block each.
    let ops = from_text("zero:B/foo:0:20000;fsync:B/foo;zero:A/foo:1000:60000;sync").expect("operations");
    for free in 0..8 {
        let start = errors::full_start(free).expect("the volume can be filled");
        let tally = errors::on_full_volume(&start, &ops, SEED, Depth::REPLAY);
        assert_eq!(tally.violations, [], "{free} blocks free");
        assert!(tally.no_space > 0, "{free} blocks are not enough");
    }
}

/// A write that does not fit is done in pieces, and a crash may come between them.
#[test]
fn a_write_in_pieces_never_leaves_half_a_page() {
    let ops = from_text("falloc:A/foo:0:60000;dwrite:A/foo:8192:9000:7;fsync:A/foo").expect("operations");
    for free in 10..18 {
        let start = errors::full_start(free).expect("the volume can be filled");
        for seed in [SEED, 1_856_700_032_480_559_522] {
            let tally = errors::on_full_volume(&start, &ops, seed, Depth::FULL);
            assert_eq!(tally.violations, [], "{free} blocks free, seed {seed}");
        }
    }
}

// Shows: C7.
#[test]
fn every_kind_of_lie_of_the_device_is_caught_and_rot_is_never_served() {
    let (score, rot, told, _) = campaign::negative_controls(plan(u64::MAX));
    assert_sound(&rot);
    assert!(told > 50, "{told} flipped bits were noticed");
    assert!(score.len() >= 8, "kinds of lies: {score:?}");
    for (fault, (planted, caught)) in score {
        assert!(caught > 0 || !must_be_caught(fault), "{fault:?}: none of {planted} was caught");
    }
}

#[test]
fn rot_that_is_met_while_others_work_is_noticed_by_none_of_them() {
    let outcome = campaign::met_rot(plan(u64::MAX), 5);
    assert_sound(&outcome);
    assert_eq!(Some(outcome.done), outcome.of, "all of them");
    let Tally { workloads, refused, .. } = outcome.tally;
    assert!(refused * 4 < workloads, "of {workloads} volumes {refused} are lost with one block");
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    let ops = from_text(controls::WORKLOADS[2]).expect("operations");
    let runs: Vec<_> = (0..2)
        .map(|_| {
            let mut tally = Tally::default();
            let run = record(&ace::start(), &ops, SEED, usize::MAX, &mut tally).expect("the run is sound");
            let writes: Vec<_> =
                run.trace.writes.iter().map(|write| (write.at, write.pages.clone())).collect();
            (run.trace.events, writes)
        })
        .collect();
    assert!(runs[0] == runs[1]);
}

#[test]
fn the_oracle_sees_a_lost_sync() {
    let ops = from_text("creat:A/bar;fsync:A/bar;write:A/bar:0:100:5;fsync:A/bar").expect("operations");
    let mut tally = Tally::default();
    let start = ace::start();
    let run = record(&start, &ops, SEED, usize::MAX, &mut tally).expect("the run is sound");
    assert_eq!(run.model.judge(&start.view, 0), Ok(()));
    assert!(matches!(run.model.judge(&start.view, 1), Err(Violation::NoPrefix { .. })));
    let mut short = run.model.live();
    short.contents.values_mut().filter(|content| content.size() == 100).for_each(|content| content.resize(0));
    assert_eq!(run.model.judge(&short, 1), Ok(()), "the data was not synced then");
    assert!(matches!(run.model.judge(&short, 2), Err(Violation::NotInAny(_))));
}

#[test]
fn the_oracle_sees_names_out_of_order() {
    let start = ace::start();
    let mut model = Model::new(&start.view);
    for (made, text) in [(100, "creat:one"), (101, "creat:two")] {
        model.apply(&text.parse().expect("an operation"), made, 0).expect("applied");
    }
    let mut later_only = Model::new(&start.view);
    later_only.apply(&"creat:two".parse().expect("an operation"), 101, 0).expect("applied");
    assert!(model.judge(&later_only.live(), 0).is_err());
    assert_eq!(model.judge(&model.live(), 0), Ok(()));
}

#[test]
fn a_replay_runs_what_its_command_says() {
    let text = "write:A/foo:0:5000:21;fsync:A/foo;checkpoint";
    let ops = from_text(text).expect("operations");
    let direct = examine(&ace::start(), &ops, 5, Depth::REPLAY);
    let replayed = replay("ace", 5, &ops, None).expect("a known start");
    assert_eq!(direct, replayed);
    let failure = campaign::parse_failure("running:flush:0:once");
    let failed = replay("ace", 5, &ops, Some(failure.expect("a failure"))).map(|tally| tally.errors);
    assert_eq!(failed, Some(1));
}

/// C4: a transaction logs whole pages, with what others have written behind its own bytes and not synced. The size on
/// record has to cover that, or a file that grows after a crash shows it where zeros belong.
#[test]
fn what_lies_behind_a_transactions_bytes_does_not_come_back_when_the_file_grows() {
    let text = "creat:f;write:f:0:4404:1;fsync:f;write:f:4404:2600:2;txn:write,f,4100,50,3;creat:x;fsync:x";
    let ops = from_text(text).expect("operations");
    for seed in 1..4 {
        let tally = examine(&ace::start(), &ops, seed, Depth::REPLAY);
        assert_eq!(tally.violations, [], "seed {seed}");
    }
}

/// Replays operations on nested directories, with every crash state.
fn holds_whenever_it_is_cut(text: &str) {
    let ops = from_text(text).expect("operations");
    let tally = examine(&ace::start(), &ops, 3, Depth::REPLAY);
    assert_eq!(tally.violations, [], "{text}");
    assert!(tally.states > 0);
}

/// C4: two transactions have staged the same attribute or name, one of them to what it was before. If one absorbs the
/// other, neither may get lost: both cannot be, and that is said.
#[test]
fn what_is_staged_as_it_was_before_counts_when_it_is_absorbed() {
    let texts = [
        "setxattr:A/foo:user.x:0:1;txn:setxattr,A/foo,user.x,20,139+absorb+setxattr,A/foo,user.x,0,170;\
         txn:write,A/foo,0,12288,38",
        "txnstart:creat,x+absorb+creat,x+unlink,x",
        "txn:unlink,A/foo+absorb+rename,A/foo,y+rename,y,A/foo",
    ];
    texts.into_iter().for_each(holds_whenever_it_is_cut);
}

/// C9: what was dirty for longer than the commit interval is forced, also where a hint has written out the rest of
/// it. Free space is in pieces, so that this takes several batches, the last of them for the hint.
#[test]
fn what_a_hint_has_written_out_late_is_forced() {
    let text = "write:long:233472:77824:157;write:long:339968:61440:157;writeback:long:253952:80000;\
                write:long:409600:45056:238;fsync:long;write:long:241664:32768:22;write:long:401408:77824:22;\
                insert:long:73728:12288;write:long:487424:24576:220;sync;write:long:163840:45056:177;\
                write:long:249856:45056:177;maintain:6000";
    let ops = from_text(text).expect("operations");
    let tally = replay("pieces:5", 17_988_203_853_124_921_341, &ops, None).expect("a known start");
    assert_eq!(tally.violations, []);
}

/// R12: a page's image lies in the journal, the page gets a preallocated block, and is then destaged into it in
/// place. If the record that says so survives a crash and the block's write does not, the record is cut off, and
/// recovery itself writes the same bytes to the block. After a crash of this recovery the record would be proven,
/// were it not for the cut in the superblock.
// Shows: R12.
#[test]
fn a_record_that_was_cut_off_stays_cut_off_after_a_crash_of_recovery() {
    let text =
        "creat:n;dsyncwrite:n:0:14824:222;falloc:n:8328:2620;write:n:0:100:1;maintain:6000;creat:x;fsync:x";
    let ops = from_text(text).expect("operations");
    let start = ace::start();
    for seed in 1..5 {
        let tally = examine(&start, &ops, seed, Depth::REPLAY);
        assert_eq!(tally.violations, [], "seed {seed}");
        assert!(tally.recovery_states > 0);
    }
}

/// C4: a new file of a transaction takes over an ACL and a group from its directory. If that hands down others by the
/// time of the commit, the file would have what nobody who makes one then can get.
#[test]
fn a_transactions_new_file_takes_over_what_its_directory_has_at_the_commit() {
    let texts = [
        "txn:creat,A/new+write,A/new,0,100,5!setdefaultacl,A,414;fsync:A/new",
        "txnstart:creat,A/new+write,A/new,0,140000,5+creat,A/other!setdefaultacl,A,414",
        "txn:creat,A/new!chown,A,0,7+chmod,A,1533",
        "chown:A:0:7;chmod:A:1533;txn:creat,A/new!chown,A,0,8",
    ];
    texts.into_iter().for_each(holds_whenever_it_is_cut);
}

/// The same where actors take turns: the ACL is set between the turn that stages and the one that commits.
#[test]
fn a_default_acl_that_another_actor_sets_is_not_disregarded_by_a_transaction() {
    let seed = 520_447_935_861_642_096;
    let text = "sync;mkdir:n8;setxattr::user.x1:9000:10;creat:n8/n11;truncate:n8/n11:36875;setdefaultacl::414;creat:n4;\
                link:missing:n4/n4;remove:;mkdir:n8/n6;creat:n8/n1;truncate:n8/n1:36406;link:n8/n1:n9;\
                txnstart:creat,n8/n2+write,n8/n2,8192,69632,65+creat,n6+write,n6,4096,1903,59;mkdir:n8/n3;maintain:2000;\
                dsyncwrite:n8/n2:20480:1168:157;remove:n4;write:n8/n2:16384:18104:42;setflags:n8/n3/n11:0;\
                write:n8/n3/n6:53852:16338:101";
    let ops = from_text(text).expect("operations");
    let tally = replay(&format!("actors:{seed}"), seed, &ops, None).expect("a known start");
    assert_eq!(tally.violations, []);
    assert!(tally.states > 0);
}

/// Behind a crash the log told of a write in place by a head whose parent, a deleted snapshot, was gone when it was
/// made, and was there again: the check called that head damaged.
#[test]
fn what_has_passed_from_a_deleted_snapshot_may_be_written_in_place() {
    let tally = snapshots::run(7_637_621_399_760_307_693);
    assert_eq!(tally.violations, []);
}
