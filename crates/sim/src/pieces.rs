//! Long files on volumes whose free space is in pieces of a few blocks: what a sync writes there takes many extents,
//! each of which cuts the extent under it in two, and a batch holds only so many items.
//!
//! *Exhaustive*: free space in one of [`PATTERNS`]; of a window of pages in the middle of one long extent those are
//! written that a number says, and made durable in one of [`WAYS`]. *Random*: many such writes on the same volume,
//! beside truncations, holes, moved ranges and transactions, with the freed pieces given out again by checkpoints.

use crate::crash::Effort;
use crate::errors;
use crate::lab::{Depth, Start, prepare};
use crate::operation::{AllocateKind, Op, WriteKind, from_text};
use crate::oracle::PAGE;
use crate::random::{Random, derive};
use std::sync::OnceLock;

const BLOCKS: u64 = 1024;
const JOURNAL_BLOCKS: u64 = 64;

/// Lengths of the pieces, in turn; each is followed by one block that is used.
pub const PATTERNS: &[&[u64]] = &[&[1], &[2], &[1, 2], &[3, 1], &[1, 1, 4], &[5, 2], &[6, 1, 3], &[8]];
/// How what was written is made durable.
const WAYS: &[&str] = &[
    "fsync:long",
    "maintain:6000",
    "fsync:long;maintain:6000",
    "syncrange:long:300000:60000",
    "writeback:long:0:700000;fsync:long",
    "checkpoint;sync",
];

/// Pages of the long file, and of the one whose holes are the free space.
const LONG_PAGES: u64 = 160;
const FILLER_PAGES: u64 = 160;
/// Where the window begins, and how many pages it has: each page of it is written or not, as a bit says.
const WINDOW_FIRST: u64 = 68;
const WINDOW_PAGES: u64 = 24;
/// Subsets of the first ten pages: each of them is written with every pattern; the ways, and the rest of the window,
/// are spread over them.
const SUBSETS: u64 = 1 << 10;
/// Workloads: those, and to two of them a random one and a worn one.
pub const COUNT: u64 = SUBSETS * PATTERNS.len() as u64 * 2;

const DEPTH: Depth =
    Depth { effort: Effort { subsets: 1, torn: 1 }, states_max: 14, check_every: 4, recovery_every: 40 };
const RANDOM_DEPTH: Depth = Depth { states_max: 40, ..DEPTH };
/// Operations of a random workload.
const OPERATIONS: u64 = 60;
/// Syncs of a worn one, and after how many the freed pieces are given out again.
const WORN_SYNCS: u64 = 300;
const WORN_ROUND: u64 = 12;
const WORN_DEPTH: Depth = Depth { states_max: 8, ..DEPTH };

fn operations(text: &str) -> Vec<Op> {
    from_text(text).expect("the list holds operations")
}

/// A volume with free space in these pieces, and little else.
pub fn start(pattern: usize) -> &'static Start {
    static STARTS: [OnceLock<Start>; PATTERNS.len()] = [const { OnceLock::new() }; PATTERNS.len()];
    STARTS[pattern].get_or_init(|| {
        let mut setup =
            operations(&format!("creat:long;write:long:0:{}:7;sync;creat:filler", LONG_PAGES * PAGE));
        setup.push(allocate("filler", AllocateKind::KeepSize, 0, FILLER_PAGES));
        setup.extend(operations("creat:rest;sync;checkpoint"));
        let start = prepare(BLOCKS, JOURNAL_BLOCKS, &setup, 3);
        let in_pieces = errors::changed(&start, &mut |step| {
            errors::fill(step, "rest")?;
            let mut page = 0;
            for pages in PATTERNS[pattern].iter().cycle() {
                if page + pages >= FILLER_PAGES {
                    break;
                }
                step(&allocate("filler", AllocateKind::Punch, page, *pages).to_string())?;
                page += pages + 1;
            }
            step("sync")?;
            step("checkpoint").map(drop)
        });
        in_pieces.expect("the volume can be filled up")
    })
}

fn allocate(path: &str, kind: AllocateKind, page: u64, pages: u64) -> Op {
    Op::Falloc { path: path.to_owned(), kind, offset: page * PAGE, len: pages * PAGE }
}

fn write(page: u64, pages: u64, fill: u8) -> Op {
    let (offset, len) = (page * PAGE, pages * PAGE);
    Op::Write { path: "long".to_owned(), kind: WriteKind::Buffered, offset, len, fill }
}

/// The writes of those pages of the window whose bits are set.
fn writes(bits: u64, fill: u8) -> Vec<Op> {
    let is_set = |page: u64| page < WINDOW_PAGES && bits >> page & 1 == 1;
    let mut ops = Vec::new();
    let mut page = 0;
    while page < WINDOW_PAGES {
        let pages = (page..).take_while(|page| is_set(*page)).count() as u64;
        if pages > 0 {
            ops.push(write(WINDOW_FIRST + page, pages, fill));
        }
        page += pages + 1;
    }
    ops
}

/// A workload: the pattern of the volume that it is for, its operations, and how thoroughly it is examined.
pub struct Workload {
    pub pattern: usize,
    pub ops: Vec<Op>,
    pub depth: Depth,
}

/// Every fourth is a random one, and the one after it worn; `number` counts up to [`COUNT`] and begins again with
/// other chances.
pub fn workload(number: u64, seed: u64) -> Workload {
    let mut random = Random::new(derive(seed, 1));
    match number % 4 {
        3 => {
            let pattern = random.below(PATTERNS.len() as u64) as usize;
            let ops = (0..OPERATIONS).flat_map(|_| step(&mut random)).collect();
            Workload { pattern, ops, depth: RANDOM_DEPTH }
        }
        1 => worn(&mut random),
        even => exhaustive(number / 4 * 2 + even / 2, &mut random),
    }
}

/// Every subset of the first pages of the window, and dense ones of the others.
fn exhaustive(number: u64, random: &mut Random) -> Workload {
    let pattern = (number % PATTERNS.len() as u64) as usize;
    let number = number / PATTERNS.len() as u64;
    let others = random.number() | random.number() | random.number();
    let bits = (number % SUBSETS) | (others << SUBSETS.ilog2());
    let mut ops = writes(bits, 1 + (number % 200) as u8);
    if random.one_in(6) {
        ops = together("txn", &ops);
    }
    ops.extend(operations(WAYS[(number % WAYS.len() as u64) as usize]));
    // The same once more where the extents are short already.
    ops.extend(writes(random.number(), 250));
    ops.extend(operations("fsync:long;maintain:6000;checkpoint"));
    Workload { pattern, ops, depth: DEPTH }
}

/// One or two runs of pages are written and synced, again and again.
fn worn(random: &mut Random) -> Workload {
    let pattern = random.below(PATTERNS.len() as u64) as usize;
    let mut ops = Vec::new();
    for sync in 0..WORN_SYNCS {
        let fill = sync as u8;
        let mut page = random.below(LONG_PAGES - 60);
        for _ in 0..1 + random.below(2) {
            let pages = 5 + random.below(16);
            ops.push(write(page, pages, fill));
            page += pages + 1 + random.below(12);
        }
        ops.extend(operations("fsync:long"));
        if sync % WORN_ROUND == 0 {
            ops.extend(operations("checkpoint"));
        }
    }
    Workload { pattern, ops, depth: WORN_DEPTH }
}

fn together(how: &str, ops: &[Op]) -> Vec<Op> {
    let parts = ops.iter().map(|op| op.to_string().replace(':', ",")).collect::<Vec<_>>();
    operations(&format!("{how}:{}", parts.join("+")))
}

fn step(random: &mut Random) -> Vec<Op> {
    let fill = random.below(250) as u8;
    let page = random.below(LONG_PAGES - 40);
    let some = |random: &mut Random| {
        let mut page = page;
        let count = 1 + random.below(3);
        (0..count)
            .map(|_| {
                let pages = 5 + random.below(16);
                let op = write(page, pages, fill);
                page = (page + pages + 1 + random.below(12)).min(LONG_PAGES - 1);
                op
            })
            .collect::<Vec<_>>()
    };
    match random.below(24) {
        0..=10 => {
            let mut ops = some(random);
            let way =
                *random.pick(&["fsync:long", "fsync:long", "fdatasync:long", "maintain:6000", "sync", ""]);
            ops.extend(operations(way));
            ops
        }
        11..=13 => {
            let ops = some(random);
            together(["txn", "txn", "txnstart", "txnabort"][random.below(4) as usize], &ops)
        }
        14 => vec![allocate("long", AllocateKind::Punch, page, 1 + random.below(6))],
        15 => vec![allocate("long", AllocateKind::Grow, page, 1 + random.below(20))],
        16 => vec![allocate("long", AllocateKind::Zero, page, 1 + random.below(20))],
        17 => vec![allocate("long", AllocateKind::Collapse, page, 1 + random.below(4))],
        18 => vec![allocate("long", AllocateKind::Insert, page, 1 + random.below(4))],
        19 => vec![allocate("filler", AllocateKind::Punch, random.below(FILLER_PAGES), 1)],
        20 => operations(&format!("writeback:long:{}:80000", page * PAGE)),
        21 => operations(&format!("dwrite:long:{}:{}:{fill}", page * PAGE, (1 + random.below(20)) * PAGE)),
        22 => operations(&format!("setxattr:long:user.x:{}:{fill}", random.below(3000))),
        _ => operations("checkpoint"),
    }
}
