//! Trims: what is discarded reads as zeros or garbage, so whoever refers to it, now or after a crash, is found.
//!
//! Every other workload is one of `reuse`: files that get and lose their blocks on a volume with room for one and a half,
//! with a trim behind one of three operations. So trims come while blocks are freed but pinned, written but in no batch, named by records
//! whose superblock is to come. The others are those of `between` that interrupt a trim at each of its discards, with writes, syncs and checkpoints.

use crate::between;
use crate::lab::{Tally, examine, guarded};
use crate::operation::Op;
use crate::random::{Random, derive};
use crate::reuse;

/// One of so many workloads of `reuse`.
const REUSE_EVERY: u64 = 53;

/// One run from a seed.
pub fn run(number: u64, seed: u64) -> Tally {
    if number % 2 == 1 {
        return between::run_trims(seed);
    }
    guarded(|tally| {
        let work = reuse::workload(number / 2 * REUSE_EVERY % reuse::COUNT, seed);
        let start = reuse::start(work.free).expect("the workloads name volumes that there are");
        let mut random = Random::new(derive(seed, 7));
        let mut ops = Vec::new();
        for op in work.ops {
            ops.push(op);
            if random.one_in(3) {
                ops.push(Op::Trim);
            }
        }
        tally.add(examine(start, &ops, seed, work.depth));
    })
}
