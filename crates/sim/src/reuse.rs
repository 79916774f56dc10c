//! Blocks that are used again while the journal still tells of what was in them before.
//!
//! A record that is needed for a live image also holds extents whose blocks were freed since, and a checkpoint that
//! holds the free hands them out. Who then looks at them for the old content finds another file's, or half of it (R4,
//! R11, R16). So on a volume with room for one file and a half, a file gets blocks in each of the [`WRITTEN`] ways,
//! loses them in each of the [`FREED`] ways, something small is made durable in each of the [`SYNCED`] ways, the
//! journal moves on in each of the [`SETTLED`] ways, and another file takes what there is in each of the [`TAKEN`]
//! ways. Every fourth workload is random: the same steps in any order, on any of the files. In the lists `@` is the
//! file.

use crate::crash::Effort;
use crate::errors;
use crate::lab::{Depth, Start, prepare};
use crate::operation::{Op, from_text};
use crate::random::{Random, derive};
use std::sync::OnceLock;

const BLOCKS: u64 = 1024;
const JOURNAL_BLOCKS: u64 = 64;

const SETUP: &str = "creat:a;creat:b;creat:c;creat:small;write:small:0:700:1;mkdir:d;sync";

/// 16 or 18 pages, and how they come into the journal. Only the last two force it.
const WRITTEN: &[&str] = &[
    "write:@:0:73728:1;writeback:@:0:73728;maintain:50",
    "creat:d/new;write:d/new:0:73728:2;rename:d/new:@",
    "write:@:0:100:3;rewrite:@:73728:4;maintain:50",
    "falloc:@:0:73728;write:@:4096:65536:5;writeback:@:0:73728;maintain:50",
    "write:@:0:36864:6;writeback:@:0:36864;maintain:50;write:@:36864:36864:7;writeback:@:0:73728;maintain:50",
    "write:@:0:73728:9;fsync:@",
    "txn:write,@,0,73728,11",
];

/// How they are lost again.
const FREED: &[&str] = &[
    "remove:@",
    "truncate:@:0",
    "truncate:@:5000",
    "punch:@:4096:73728",
    "creat:d/other;rename:d/other:@",
    "collapse:@:0:61440",
    "rewrite:@:300:12",
    "unlinkopen:@:300:13",
];

/// Something small that is made durable: page images, names and attributes.
const SYNCED: &[&str] = &[
    "write:small:0:300:21;fsync:small",
    "write:small:0:300:22;sync",
    "dsyncwrite:small:4000:300:23",
    "txn:write,small,0,300,24",
    "write:small:0:300:25;syncrange:small:0:300",
    "setxattr:small:user.x:30:26;fsync:",
];

/// What becomes of the journal.
const SETTLED: &[&str] =
    &["checkpoint", "checkpoint;creat:d/x;fsync:d", "maintain:6000;checkpoint", "maintain:40000"];

/// How another file takes the blocks.
const TAKEN: &[&str] = &[
    "write:c:0:73728:31;fsync:c",
    "write:c:0:73728:32;writeback:c:0:73728;maintain:50;checkpoint",
    "txn:write,c,0,73728,33",
    "falloc:c:0:73728;write:c:0:73728:34;maintain:2000",
    "write:c:0:73728:35;writeback:c:0:73728;maintain:50;write:small:0:300:36;fsync:small",
];

/// Free blocks: enough for one of the files, too little for two.
const FREE_BLOCKS: &[u64] = &[22, 26, 32];

/// Background work that finds nothing to do: what is committed from now on is forced a commit interval later, not at
/// once.
const FIRST: &str = "maintain:50";

/// Steps of a random workload.
const STEPS: u64 = 24;

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 1, torn: 1 }, states_max: 60, check_every: 8, recovery_every: 60 };

/// Orders of the steps.
const ORDERS: u64 = (WRITTEN.len() * FREED.len() * SYNCED.len() * SETTLED.len() * TAKEN.len()) as u64;
/// Workloads: those, and to three of them a random one.
pub const COUNT: u64 = ORDERS / 3 * 4;

/// A volume with so many blocks left.
pub fn start(free: u64) -> Option<&'static Start> {
    static STARTS: [OnceLock<Start>; FREE_BLOCKS.len()] = [const { OnceLock::new() }; FREE_BLOCKS.len()];
    let index = FREE_BLOCKS.iter().position(|blocks| *blocks == free)?;
    Some(STARTS[index].get_or_init(|| {
        let start = prepare(BLOCKS, JOURNAL_BLOCKS, &operations(SETUP, "a"), 4);
        errors::filled_but_for(&start, free).expect("the volume can be filled up")
    }))
}

/// A workload: the free blocks of the volume that it is for, and its operations.
pub struct Workload {
    pub free: u64,
    pub ops: Vec<Op>,
    pub depth: Depth,
}

/// `number` counts up to [`COUNT`], and begins again with other chances.
pub fn workload(number: u64, seed: u64) -> Workload {
    let mut random = Random::new(derive(seed, 1));
    let free = *random.pick(FREE_BLOCKS);
    let mut ops = operations(FIRST, "a");
    ops.extend(match number % 4 {
        3 => shuffled(&mut random),
        turn => in_order(number / 4 * 3 + turn),
    });
    Workload { free, ops, depth: DEPTH }
}

fn operations(steps: &str, file: &str) -> Vec<Op> {
    from_text(&steps.replace('@', file)).expect("the list holds operations")
}

/// One of the orders in which each list gives a step.
fn in_order(mut number: u64) -> Vec<Op> {
    let lists = [WRITTEN, FREED, SYNCED, SETTLED, TAKEN];
    let mut ops = Vec::new();
    for list in lists {
        let count = list.len() as u64;
        ops.extend(operations(list[(number % count) as usize], "a"));
        number /= count;
    }
    ops
}

/// Steps of all lists in any order. What lacks space or a file is refused, as the model says.
fn shuffled(random: &mut Random) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..STEPS {
        let file = *random.pick(&["a", "b", "c"]);
        let list = *random.pick(&[WRITTEN, WRITTEN, FREED, FREED, SYNCED, SETTLED]);
        ops.extend(operations(&format!("creat:{file}"), file));
        let step: &str = list[random.below(list.len() as u64) as usize];
        ops.extend(operations(step, file));
    }
    ops
}
