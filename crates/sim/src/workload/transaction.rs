//! Random transactions, and what others do meanwhile.

use super::Maker;
use crate::operation::{End, Op, WriteKind};
use crate::oracle::PAGE;
use crate::random::Random;

/// Whether one of the operations names a file by a name that the first ones change, or changes one that they name.
fn depends(first: &[Op], second: &[Op]) -> bool {
    second.iter().any(|later| {
        let paths = later.paths();
        first.iter().any(|earlier| {
            (earlier.renames() || later.renames()) && earlier.paths().iter().any(|path| paths.contains(path))
        })
    })
}

impl Maker {
    /// One to six operations, now and then up to 64; others in between sometimes.
    pub(super) fn transaction(&mut self, random: &mut Random) -> Op {
        let most = if random.one_in(12) { 64 } else { 6 };
        let mut ops = Vec::new();
        // One in eight may be refused.
        let any = random.one_in(8);
        for _ in 0..1 + random.below(most) {
            let before = ops.len();
            self.stage(&mut ops, random);
            if !any && self.model.would_apply(&ops).is_err() {
                ops.truncate(before);
            }
        }
        if random.one_in(5) {
            self.absorbed(&mut ops, random);
        }
        let count = if random.one_in(3) { 1 + random.below(2) } else { 0 };
        let between = (0..count).map(|_| self.beside(random)).collect();
        let end = *random.pick(&[End::Commit, End::Commit, End::Commit, End::Start, End::Start, End::Abort]);
        Op::Transaction { ops, between, end }
    }

    /// Adds what another transaction has staged. It must not depend on the names that the first one changes, of which
    /// it sees nothing; that both change the same page is part of it.
    fn absorbed(&mut self, ops: &mut Vec<Op>, random: &mut Random) {
        let mut second = Vec::new();
        for _ in 0..1 + random.below(5) {
            let before = second.len();
            self.stage(&mut second, random);
            if self.model.would_apply(&second).is_err() || depends(ops, &second[before..]) {
                second.truncate(before);
            }
        }
        if !second.is_empty() {
            ops.push(Op::Absorb);
            ops.extend(second);
        }
    }

    fn stage(&self, ops: &mut Vec<Op>, random: &mut Random) {
        let file = self.any(&[1], random);
        let fill = random.below(250) as u8;
        let write = |path: String, random: &mut Random| {
            let offset = *random.pick(&[0, 0, 4096, 8192, 5000, 30_000]);
            // More than 128 KiB do not stay in memory.
            let most = *random.pick(&[300, 3000, 9000, 40_000, 40_000, 200_000 * self.large]);
            let mut len = 1 + random.below(most);
            // Whole pages replace what is staged without a look at it, wherever it is.
            if random.one_in(4) {
                len = len.next_multiple_of(PAGE);
            }
            Op::Write { path, kind: WriteKind::Buffered, offset, len, fill }
        };
        match random.below(12) {
            0..=4 => ops.push(write(file, random)),
            5 => ops.push(Op::Truncate { path: file, size: random.below(40_000) }),
            6..=7 => {
                let path = self.place(random);
                ops.push(Op::Creat(path.clone()));
                ops.push(write(path, random));
            }
            8 => ops.push(Op::Link(file, self.place(random))),
            9 => ops.push(Op::Unlink(self.any(&[1, 1, 2], random))),
            10 => ops.push(Op::Rename(file, self.any(&[1], random))),
            _ => ops.push(Op::SetXattr {
                path: self.any(&[0, 1], random),
                name: format!("user.x{}", random.below(4)),
                len: *random.pick(&[0, 20, 200, 3000]),
                fill,
            }),
        }
    }

    /// What others do while a transaction is under way.
    fn beside(&self, random: &mut Random) -> Op {
        let file = self.any(&[1], random);
        match random.below(10) {
            0 => Op::Creat(self.place(random)),
            1 => Op::Remove(self.any(&[0, 1, 1, 2], random)),
            2 => Op::Rename(self.any(&[0, 1, 1, 2], random), self.place(random)),
            3 => Op::Truncate { path: file, size: random.below(40_000) },
            4..=5 => Op::Fsync(file),
            6 => random.pick(&[Op::Sync, Op::Checkpoint, Op::Maintain { milliseconds: 6000 }]).clone(),
            _ => {
                let (offset, fill) = (random.below(10_000), random.below(250) as u8);
                let kind = WriteKind::Buffered;
                Op::Write { path: file, kind, offset, len: 1 + random.below(6000), fill }
            }
        }
    }
}
