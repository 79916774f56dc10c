//! A journal that is never relieved in the background: every record of its smallest size is needed, admission meets
//! pressure again and again, and whoever meets it destages and checkpoints (R17).

use crate::crash::Effort;
use crate::lab::{Depth, Tally, examine};
use crate::operation::Op;
use crate::random::derive;
use crate::workload;

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 1, torn: 1 }, states_max: 40, check_every: 8, recovery_every: 100 };

/// The operations of a random workload without background work, each forced into a record of its own.
pub fn run(seed: u64) -> Tally {
    let Some((start, ops)) = workload::round(seed, 0) else { return Tally::default() };
    let is_background = |op: &Op| matches!(op, Op::Maintain { .. } | Op::Checkpoint | Op::Sync);
    let alone = ops.into_iter().filter(|op| !is_background(op));
    let forced: Vec<Op> = alone.flat_map(|op| [op, Op::Fsync(String::new())]).collect();
    examine(&start, &forced, derive(seed, 1), DEPTH)
}
