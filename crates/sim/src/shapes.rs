//! Volumes of shapes that workloads on a small fresh one do not come to by themselves, and what shows on them only.
//!
//! - *In fragments*: no two chunks that a tree node fits into are neighbours, so a checkpoint cannot join its writes,
//!   and others come between its freeze and its bitmaps (`between.rs`).
//! - *Two groups*: a checkpoint writes two bitmaps that are not neighbours either, so one of them may survive without
//!   the journal's record of what it says.
//! - *Nodes in one group, data in the other*: to free such data is to write both bitmaps, and the first is submitted
//!   before the journal is forced. It may survive alone; recovery then has nothing to replay, and no reason to write
//!   it but R9.
//! - *Many extents*: truncating or removing a file takes several batches, in several records.

use crate::crash::Effort;
use crate::lab::{Depth, Start, Tally, examine, guarded};
use crate::operation::{Op, from_text};
use crate::oracle::PAGE;
use crate::random::{Random, derive};
use std::sync::OnceLock;

/// The file that takes the space which is not to be free.
pub const FILLER: &str = "filler";

const JOURNAL_BLOCKS: u64 = 64;
const FRAGMENTED_BLOCKS: u64 = 3000;
/// Pages of the file that is punched full of holes: what is free, and then the rest, which is kept for nodes at first
/// and where they are looked for first.
const FILLER_PAGES: [u64; 2] = [2500, 380];
/// Seven free blocks hold one aligned chunk of four, wherever they begin.
const HOLE_PAGES: u64 = 7;

/// More than a group has, and the part of the first group that is filled.
const TWO_GROUPS_BLOCKS: u64 = 32_768 + 1024;
const FIRST_GROUP_PAGES: u64 = 32_400;
/// The fillers are filled by so many at a time.
const PART_PAGES: u64 = 300;

/// The file whose blocks lie in the second group.
const FAR: &str = "far";
/// Pages of the file that pushes it there, which is removed then.
const NEAR_PAGES: u64 = 32_400;
const FAR_PAGES: u64 = 1500;
/// Its first pages take what is left of the first group.
const FAR_FIRST_PAGE: u64 = 700;
const APART_BLOCKS: u64 = 32_768 + 3000;

const MANY_BLOCKS: u64 = 3000;
/// Extents of one page each: enough for more batches than a record of the smallest journal holds.
const EXTENTS: u64 = 1600;

const GROUPS_DEPTH: Depth =
    Depth { effort: Effort { subsets: 3, torn: 1 }, states_max: 80, check_every: 1, recovery_every: 60 };
const EXTENTS_DEPTH: Depth =
    Depth { effort: Effort { subsets: 1, torn: 1 }, states_max: 16, check_every: 1, recovery_every: 60 };

fn operations(text: &str) -> Vec<Op> {
    from_text(text).expect("the list holds operations")
}

/// A volume whose free space is in fragments.
pub fn in_fragments() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = operations("mkdir:d;creat:d/a;creat:b;write:b:0:9000:7;creat:filler;sync");
        let mut first = 0;
        for pages in FILLER_PAGES {
            setup.extend(filled_from(FILLER, first, pages));
            let holes = (0..pages / HOLE_PAGES).step_by(2);
            setup.extend(holes.map(|hole| punch(FILLER, first + hole * HOLE_PAGES, HOLE_PAGES)));
            setup.extend(operations("sync;checkpoint"));
            first += pages;
        }
        prepare(FRAGMENTED_BLOCKS, setup)
    })
}

/// Gives a file blocks, a part at a time.
fn filled(path: &str, pages: u64) -> Vec<Op> {
    filled_from(path, 0, pages)
}

fn filled_from(path: &str, first: u64, pages: u64) -> Vec<Op> {
    let end = first + pages;
    let part = |from: u64| {
        let pages = PART_PAGES.min(end - from);
        format!("fallockeep:{path}:{}:{};sync", from * PAGE, pages * PAGE)
    };
    (first..end).step_by(PART_PAGES as usize).flat_map(|from| operations(&part(from))).collect()
}

fn punch(path: &str, page: u64, pages: u64) -> Op {
    let (offset, len) = (page * PAGE, pages * PAGE);
    Op::Falloc { path: path.to_owned(), kind: crate::operation::AllocateKind::Punch, offset, len }
}

fn prepare(blocks: u64, setup: Vec<Op>) -> Start {
    crate::lab::prepare(blocks, JOURNAL_BLOCKS, &setup, 2)
}

fn two_groups() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = operations("creat:filler");
        setup.extend(filled(FILLER, FIRST_GROUP_PAGES));
        setup.extend(operations("mkdir:d;creat:d/a;write:d/a:0:20000:3;creat:b;write:b:0:9000:4;sync"));
        prepare(TWO_GROUPS_BLOCKS, setup)
    })
}

/// Changes in both groups, and checkpoints whose bitmaps may survive what nobody forced.
pub fn groups(seed: u64) -> Tally {
    let mut random = Random::new(derive(seed, 50));
    let mut ops = Vec::new();
    for _ in 0..1 + random.below(3) {
        ops.push(punch(FILLER, random.below(FIRST_GROUP_PAGES), 1 + random.below(300)));
        ops.extend((0..random.below(4)).map(|_| in_second_group(&mut random)));
        ops.push(if random.one_in(4) { Op::Maintain { milliseconds: 6000 } } else { Op::Checkpoint });
    }
    guarded(|tally| tally.add(examine(two_groups(), &ops, derive(seed, 51), GROUPS_DEPTH)))
}

fn in_second_group(random: &mut Random) -> Op {
    let (number, fill) = (random.below(4), random.below(250) as u8);
    let text = match random.below(6) {
        0 => format!("creat:d/n{number}"),
        1 => format!("write:d/a:{}:30000:{fill}", number * PAGE),
        2 => format!("dwrite:b:0:{}:{fill}", (1 + number) * PAGE),
        3 => format!("setxattr:b:user.x{number}:3000:{fill}"),
        4 => format!("truncate:d/a:{}", number * 5000),
        _ => format!("fsync:{}", ["d/a", "b", "d", ""][number as usize]),
    };
    text.parse().expect("an operation")
}

fn nodes_apart() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = operations("creat:filler;creat:far");
        setup.extend(filled(FILLER, NEAR_PAGES));
        setup.extend(filled(FAR, FAR_PAGES));
        setup.extend(operations("remove:filler;creat:b;write:b:0:9000:4;sync;checkpoint"));
        prepare(APART_BLOCKS, setup)
    })
}

/// Frees in the second group, in checkpoints that a crash cuts off between a bitmap and the superblock.
pub fn newer_slots(seed: u64) -> Tally {
    let mut random = Random::new(derive(seed, 54));
    let mut ops = Vec::new();
    for number in 0..1 + random.below(2) {
        let page = FAR_FIRST_PAGE + random.below(FAR_PAGES - FAR_FIRST_PAGE - 20);
        ops.push(punch(FAR, page, 1 + random.below(20)));
        if random.one_in(2) {
            ops.extend(operations(&format!("setxattr:b:user.x:{}:{number}", 10 + random.below(3000))));
        }
        ops.push(Op::Checkpoint);
    }
    guarded(|tally| tally.add(examine(nodes_apart(), &ops, derive(seed, 55), GROUPS_DEPTH)))
}

fn many_extents() -> &'static Start {
    static START: OnceLock<Start> = OnceLock::new();
    START.get_or_init(|| {
        let mut setup = operations("creat:f;creat:g;write:g:0:5000:9");
        let page = |number: u64| format!("write:f:{}:4096:{}", 2 * number * PAGE, number % 250);
        setup.extend((0..EXTENTS).map(|number| page(number).parse::<Op>().expect("an operation")));
        setup.extend(operations("sync;checkpoint"));
        prepare(MANY_BLOCKS, setup)
    })
}

/// A file of many extents is cut, grown again, replaced and removed piece by piece.
pub fn extents(seed: u64) -> Tally {
    let mut random = Random::new(derive(seed, 52));
    let bytes = 2 * EXTENTS * PAGE;
    let mut ops = Vec::new();
    for _ in 0..1 + random.below(3) {
        let text = match random.below(10) {
            0..=2 => "truncate:f:0".to_owned(),
            3..=5 => format!("truncate:f:{}", random.below(bytes / 4)),
            6 => format!("truncate:f:{}", bytes / 2 + random.below(bytes)),
            7 => "rename:g:f".to_owned(),
            8 => "remove:f".to_owned(),
            _ => "unlinkopen:f:9000:5".to_owned(),
        };
        ops.push(text.parse().expect("an operation"));
        let then = *random.pick(&["", "fsync:f", "fsync:", "checkpoint", "maintain:6000"]);
        ops.extend(operations(then));
    }
    ops.push(Op::Sync);
    guarded(|tally| tally.add(examine(many_extents(), &ops, derive(seed, 53), EXTENTS_DEPTH)))
}
