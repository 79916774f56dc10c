//! Workloads that are written down, with operations on trees: on a volume with snapshots, and on one whose trees have
//! three levels.

use super::{Outcome, Plan, coprime, examined, run};
use crate::ace;
use crate::lab::Depth;
use crate::operation::Op;
use crate::random::derive;

/// How workloads on trees of three levels are judged.
pub(crate) const NARROW_DEPTH: Depth =
    Depth { states_max: 60, check_every: 6, recovery_every: 60, ..Depth::SAMPLED };

/// All workloads of one operation on trees, and of any other with snapshots before and deletions behind: one of `every`
/// of these (1: all).
pub fn seq1_of_trees(plan: Plan, every: u64) -> Outcome {
    let start = ace::start_of_trees();
    let around = ace::steps().into_iter().flat_map(|step| ace::around_trees(&step));
    let all: Vec<Vec<Op>> = ace::of_trees_alone().into_iter().chain(around.step_by(every as usize)).collect();
    run("seq-1 of trees", plan, Some(all.len() as u64), &|number| {
        let ops = ace::workload(&[&all[number as usize]]);
        examined("trees", &start, &ops, derive(plan.seed, number), Depth::FULL)
    })
}

/// Workloads on trees of three levels, which have more moments in their midst: one of `every` (1: all).
pub fn narrow_trees(plan: Plan, every: u64) -> Outcome {
    let start = ace::start_of_narrow_trees();
    let all: Vec<Vec<Op>> = ace::of_narrow_trees().into_iter().step_by(every as usize).collect();
    run("narrow trees", plan, Some(all.len() as u64), &|number| {
        let ops = ace::workload(&[&all[number as usize]]);
        examined("narrow", &start, &ops, derive(plan.seed, number), NARROW_DEPTH)
    })
}

/// All workloads of an operation on trees and another operation, in either order, and of two on trees, in an order that
/// samples them evenly if time is up before the end.
pub fn seq2_of_trees(plan: Plan, check_all: bool) -> Outcome {
    let start = ace::start_of_trees();
    let (trees, files) = (ace::tree_steps(), ace::steps());
    let (count, others) = (trees.len() as u64, (trees.len() + 2 * files.len()) as u64);
    let depth =
        Depth { check_every: if check_all { 1 } else { Depth::SAMPLED.check_every }, ..Depth::SAMPLED };
    let total = count * others;
    let stride = (total * 2 / 3..).find(|stride| coprime(*stride, total)).expect("there is always one");
    run("seq-2 of trees", plan, Some(total), &|number| {
        let chosen = (number * stride + plan.seed) % total;
        let (tree, other) = (&trees[(chosen % count) as usize], (chosen / count) as usize);
        let steps = match other.checked_sub(trees.len()) {
            None => [tree, &trees[other]],
            Some(file) if file < files.len() => [tree, &files[file]],
            Some(file) => [&files[file - files.len()], tree],
        };
        examined("trees", &start, &ace::workload(&steps), derive(plan.seed, chosen), depth)
    })
}
