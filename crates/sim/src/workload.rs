//! Random workloads from a seed: long ones, on a small volume with the smallest journal, so that it wraps, checkpoints
//! come in between, images are destaged, and the volume is nearly full now and then.
//!
//! A run has rounds: each starts from a state that a crash of the round before left, so that records of several
//! sessions lie in the journal. One volume of four has a file of many extents, out of which ranges are taken, and
//! into which they are put, in more than one batch.

use crate::campaign::replay_command;
use crate::crash::{Effort, Lie};
use crate::lab::{Depth, Start, Tally, guarded, judge_states, prepare_as, record};
use crate::operation::{AllocateKind, Op, WriteKind};
use crate::oracle::{Model, PAGE};
use crate::random::{Random, derive};
use crate::watchdog;

mod transaction;

/// Rounds of a run.
pub const ROUNDS: u64 = 3;
/// Blocks of the journal: the smallest there is.
const JOURNAL_BLOCKS: u64 = 64;
/// Inode numbers of the dry run, far from those that the volume gives.
const DRY_INODES: u64 = 1 << 40;

/// How thoroughly a round is examined.
const DEPTH: Depth =
    Depth { effort: Effort { subsets: 2, torn: 2 }, states_max: 60, check_every: 8, recovery_every: 30 };

/// The file of many extents, and how many it has at least and at most; a batch of the smallest journal moves some two
/// dozen.
const SCATTERED: &str = "scattered";
const EXTENTS: [u64; 2] = [30, 180];

/// The volume of a seed, before the first round.
fn first(seed: u64) -> Start {
    let blocks = [1024, 1024, 1400, 2048][(derive(seed, 20) % 4) as usize];
    let mut setup = Vec::new();
    if derive(seed, 22).is_multiple_of(4) {
        let extents = EXTENTS[0] + derive(seed, 23) % (EXTENTS[1] - EXTENTS[0]);
        setup.push(Op::Creat(SCATTERED.to_owned()));
        setup.extend((0..extents).map(|number| Op::Write {
            path: SCATTERED.to_owned(),
            kind: WriteKind::Buffered,
            offset: 2 * number * PAGE,
            len: PAGE,
            fill: (number % 250) as u8,
        }));
        setup.extend([Op::Sync, Op::Maintain { milliseconds: 6000 }, Op::Checkpoint]);
    }
    // One in four volumes has version 1 of the format.
    let version = if seed.is_multiple_of(4) { 1 } else { 2 };
    prepare_as(version, blocks, JOURNAL_BLOCKS, &setup, derive(seed, 21))
}

/// Runs all rounds of a seed. The replay command of a violation names seed and round.
pub fn run(seed: u64) -> Tally {
    let mut tally = Tally::default();
    let mut start = first(seed);
    for round in 0..ROUNDS {
        let (found, next) = run_round(&start, seed, round);
        let failed = !found.violations.is_empty();
        tally.add(found);
        match next {
            Some(next) if !failed => start = next,
            _ => break,
        }
    }
    tally
}

fn run_round(start: &Start, seed: u64, round: u64) -> (Tally, Option<Start>) {
    let ops = operations(start, seed, round);
    let name = format!("random:{seed}:{round}");
    let seed = derive(seed, 30 + round);
    watchdog::replayed_by(replay_command(&name, seed, "", &ops));
    let mut next = None;
    let tally = guarded(|tally| {
        tally.workloads += 1;
        if let Some(run) = record(start, &ops, seed, usize::MAX, tally) {
            next = judge_states(&run, seed, DEPTH, Lie::None, tally);
        }
    });
    (tally, next)
}

/// Where a round of a seed starts, and what it does.
pub fn round(seed: u64, round: u64) -> Option<(Start, Vec<Op>)> {
    let mut start = first(seed);
    for earlier in 0..round {
        start = run_round(&start, seed, earlier).1?;
    }
    let ops = operations(&start, seed, round);
    Some((start, ops))
}

/// The seed by which the crash states of a round are made.
pub fn round_seed(seed: u64, round: u64) -> u64 {
    derive(seed, 30 + round)
}

/// What a round of a seed does.
pub(crate) fn operations(start: &Start, seed: u64, round: u64) -> Vec<Op> {
    let mut random = Random::new(derive(seed, 40 + round));
    let mut maker = Maker { model: Model::new(&start.view), made: DRY_INODES, large: 1 + random.below(3) };
    let count = 30 + random.below(150);
    let mut ops = Vec::new();
    // A third of the runs is nearly out of space from the beginning.
    if round == 0 && seed.is_multiple_of(3) {
        let len = (start.disk.blocks() - 140 - random.below(200)) * PAGE;
        ops.push(Op::Creat("filler".to_owned()));
        let kind = AllocateKind::KeepSize;
        ops.push(Op::Falloc { path: "filler".to_owned(), kind, offset: 0, len });
        let _ = maker.model.apply(&ops[0], DRY_INODES - 1, 0);
    }
    ops.extend((0..count).map(|_| maker.next(&mut random)));
    ops
}

/// Makes operations that mostly make sense, by carrying them out on a model.
struct Maker {
    model: Model,
    made: u64,
    /// How large writes are: 1 small to 3.
    large: u64,
}

impl Maker {
    fn next(&mut self, random: &mut Random) -> Op {
        let op = self.choose(random);
        self.made += 1;
        let written = match &op {
            Op::Write { kind: WriteKind::Mapped, .. } => 0,
            Op::Write { len, .. } | Op::Rewrite { len, .. } => *len,
            Op::TmpLink { len, .. } | Op::UnlinkOpen { len, .. } => *len,
            _ => 0,
        };
        // Operations that are refused are part of the workload.
        let _ = self.model.apply(&op, self.made, written);
        op
    }

    fn any(&self, kinds: &[usize], random: &mut Random) -> String {
        let paths = self.model.paths();
        let all: Vec<&String> = kinds.iter().flat_map(|kind| &paths[*kind]).collect();
        match all.is_empty() {
            true => "missing".to_owned(),
            false => (*random.pick(&all)).clone(),
        }
    }

    /// A path that may or may not be taken.
    fn place(&self, random: &mut Random) -> String {
        let directory = self.any(&[0], random);
        let name = format!("n{}", random.below(12));
        if directory.is_empty() { name } else { format!("{directory}/{name}") }
    }

    fn choose(&mut self, random: &mut Random) -> Op {
        let file = self.any(&[1], random);
        let fill = random.below(250) as u8;
        if random.one_in(12)
            && let Ok(ino) = self.model.resolve(SCATTERED)
        {
            return self.shift(ino, random);
        }
        match random.below(100) {
            0..=11 => Op::Creat(self.place(random)),
            12..=15 => Op::Mkdir(self.place(random)),
            16..=33 => self.write(file, fill, random),
            34..=36 => self.transaction(random),
            37 => Op::CopyRange {
                from: self.any(&[1], random),
                to: file,
                at: random.below(9000),
                to_at: random.below(20_000),
                len: 1 + random.below(20_000),
            },
            38..=40 => Op::Rewrite { path: file, len: 1 + random.below(20_000), fill },
            41..=43 => Op::Falloc {
                path: file,
                kind: *random.pick(&[AllocateKind::Grow, AllocateKind::KeepSize, AllocateKind::Punch]),
                offset: random.below(30_000),
                len: 1 + random.below(30_000),
            },
            44 => Op::Falloc {
                path: file,
                kind: *random.pick(&[AllocateKind::Collapse, AllocateKind::Insert]),
                offset: random.below(6) * PAGE,
                len: (1 + random.below(3)) * PAGE,
            },
            45..=48 => Op::Truncate { path: file, size: random.below(40_000) },
            49..=51 => Op::Link(file, self.place(random)),
            52 => Op::TmpLink {
                path: self.place(random),
                len: 1 + random.below(30_000),
                fill,
                sync: random.one_in(2),
            },
            53..=57 => Op::Remove(self.any(&[0, 1, 1, 2], random)),
            58..=59 => Op::Unlink(file),
            60 => Op::UnlinkOpen { path: file, len: 1 + random.below(30_000), fill },
            61 => Op::Whiteout(self.any(&[0, 1, 1, 2], random), self.place(random)),
            62..=67 => Op::Rename(self.any(&[0, 1, 1, 2], random), self.place(random)),
            68..=70 => Op::Rename(file, self.any(&[1], random)),
            71 => Op::Exchange(self.any(&[0, 1, 2], random), self.any(&[0, 1, 2], random)),
            72..=73 => Op::Symlink(format!("target{}", random.below(100)), self.place(random)),
            74..=77 => Op::SetXattr {
                path: self.any(&[0, 1], random),
                name: format!("user.x{}", random.below(4)),
                len: *random.pick(&[0, 20, 60, 100, 150, 200, 3000, 9000]),
                fill,
            },
            78 => Op::RemoveXattr {
                path: self.any(&[0, 1], random),
                name: format!("user.x{}", random.below(4)),
            },
            79..=80 => self.attributes(random),
            81..=85 => Op::Fsync(self.any(&[0, 1, 1], random)),
            86..=87 => Op::SyncRange { path: file, offset: random.below(60_000), len: random.below(30_000) },
            88..=89 => Op::Fdatasync(file),
            90 => Op::WriteBack { path: file, offset: random.below(60_000), len: random.below(30_000) },
            91..=92 => Op::Sync,
            93..=97 => Op::Maintain { milliseconds: *random.pick(&[50, 500, 600, 1000, 2000, 6000, 40_000]) },
            _ => Op::Checkpoint,
        }
    }

    /// Takes a range out of the file of many extents, or puts one in.
    fn shift(&self, ino: u64, random: &mut Random) -> Op {
        let pages = self.model.pages_of(ino).max(1);
        Op::Falloc {
            path: SCATTERED.to_owned(),
            kind: *random.pick(&[AllocateKind::Collapse, AllocateKind::Insert]),
            // Mostly near the beginning, so that much is behind it.
            offset: if random.one_in(3) { random.below(pages) } else { random.below(8) } * PAGE,
            len: (1 + random.below(12)) * PAGE,
        }
    }

    fn attributes(&self, random: &mut Random) -> Op {
        let path = self.any(&[0, 1], random);
        match random.below(6) {
            0 => Op::Chmod { path, mode: random.below(0o10000) as u32 },
            1 => Op::Chown { path, uid: random.below(5) as u32, gid: random.below(5) as u32 },
            2 => Op::SetAcl { path, bits: random.below(0o1000) as u32 },
            3 => {
                let bits = random.below(0o1000) as u32;
                Op::SetDefaultAcl { path: self.any(&[0, 0, 1], random), bits }
            }
            4 => Op::SetFlags { path, flags: 0x40 * random.below(4) as u32 },
            _ => Op::Utimes { path, seconds: random.below(1 << 30) as u32 },
        }
    }

    fn write(&self, path: String, fill: u8, random: &mut Random) -> Op {
        let kind = *random.pick(&[
            WriteKind::Buffered,
            WriteKind::Buffered,
            WriteKind::Buffered,
            WriteKind::Direct,
            WriteKind::Mapped,
            WriteKind::Dsync,
        ]);
        let most = match random.below(8) {
            0 => 100_000 * self.large,
            1..=3 => 20_000,
            _ => 3000,
        };
        let offset = match random.below(3) {
            0 => 0,
            1 => random.below(60_000),
            _ => random.below(10) * 4096,
        };
        Op::Write { path, kind, offset, len: 1 + random.below(most), fill }
    }
}
