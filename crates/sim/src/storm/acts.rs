//! What one thread of a storm does, and what it saw.
//!
//! Content is changed through handles that were opened before the round, so that an act is one call on one file,
//! whatever happens to its names meanwhile.

use super::Cast;
use crate::driver::{self, SimClock};
use crate::operation::{AllocateKind, Op, WriteKind, pattern};
use crate::oracle::{Model, PAGE};
use crate::random::Random;
use crate::transact;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_fs::{Context, Error, FallocateMode, Fs, HandleId, OpenFlags, Reach, SetAttr, SyncScope};

const ESTALE: i32 = 116;
/// Times that an act by path is done again because the path led to what was replaced meanwhile.
const STALE_MAX: usize = 1000;

/// One act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// An operation on the file of this number of the cast, or by path if there is none.
    Do(Option<usize>, Op),
    /// Appends so many bytes. (An operation has its offset; this one gets it.)
    Append { file: usize, len: u64, fill: u8 },
    /// Reads within one page.
    Look { file: usize, offset: u64, len: u64 },
    /// Asks for the size.
    Size(usize),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done {
        /// Inode that was made.
        made: u64,
        /// Bytes written.
        written: u64,
    },
    /// A transaction was committed; the inodes that its operations have made.
    Committed(Vec<u64>),
    Appended {
        at: u64,
    },
    Saw(Vec<u8>),
    Size(u64),
    Failed(i32),
}

/// An act that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub act: Act,
    pub outcome: Outcome,
    /// Of all beginnings and ends of the round, the number of its own.
    pub began: u64,
    pub ended: u64,
    /// Events that the device had recorded when it had ended.
    pub position: usize,
}

impl Act {
    /// Whether it has no effect but to make durable what is there.
    pub fn only_syncs(&self) -> bool {
        matches!(
            self,
            Act::Do(
                _,
                Op::Fsync(_)
                    | Op::Fdatasync(_)
                    | Op::SyncRange { .. }
                    | Op::WriteBack { .. }
                    | Op::Sync
                    | Op::Maintain { .. }
                    | Op::Checkpoint
                    | Op::Trim
            )
        )
    }
}

/// What the threads of a round share.
pub struct Stage<'a> {
    pub fs: &'a Arc<Fs>,
    pub clock: &'a SimClock,
    pub cast: &'a Cast,
    pub handles: &'a [HandleId],
    pub steps: &'a AtomicU64,
    pub position: &'a (dyn Fn() -> usize + Sync),
}

impl Stage<'_> {
    pub fn play(&self, act: &Act) -> Seen {
        let began = self.steps.fetch_add(1, Ordering::SeqCst);
        let mut outcome = self.carry_out(act);
        for _ in 0..STALE_MAX {
            let by_path = matches!(act, Act::Do(None, op) if !matches!(op, Op::Transaction { .. }));
            if !by_path || outcome != Outcome::Failed(ESTALE) {
                break;
            }
            outcome = self.carry_out(act);
        }
        let ended = self.steps.fetch_add(1, Ordering::SeqCst);
        Seen { act: act.clone(), outcome, began, ended, position: (self.position)() }
    }

    fn carry_out(&self, act: &Act) -> Outcome {
        let result = match act {
            Act::Do(None, Op::Transaction { ops, .. }) => self.transact(ops).map(Outcome::Committed),
            Act::Do(None, op) => {
                return match driver::carry_out(self.fs, self.clock, op) {
                    Ok(effect) => effect.failed.map_or(
                        Outcome::Done { made: effect.made, written: effect.written },
                        Outcome::Failed,
                    ),
                    Err(errno) => Outcome::Failed(errno),
                };
            }
            Act::Do(Some(file), op) => {
                self.on_handle(self.handles[*file], op).map(|written| Outcome::Done { made: 0, written })
            }
            Act::Append { file, len, fill } => self.append(*file, *len, *fill),
            Act::Look { file, offset, len } => {
                let mut bytes = vec![0xEE; *len as usize];
                self.fs.files().read(self.handles[*file], *offset, &mut bytes).map(|count| {
                    bytes.truncate(count);
                    Outcome::Saw(bytes)
                })
            }
            Act::Size(file) => {
                self.fs.files().handle_attr(self.handles[*file]).map(|attr| Outcome::Size(attr.size))
            }
        };
        result.unwrap_or_else(|error| Outcome::Failed(error.errno()))
    }

    /// The bytes of an append depend on where it goes, which nobody knows before; so they do not tell their place.
    fn append(&self, file: usize, len: u64, fill: u8) -> Result<Outcome, Error> {
        let (root, fs) = (Context::root(), self.fs);
        let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
        let handle = fs.files().open_handle(&root, self.cast.inode(file), flags)?;
        let result = fs.files().write(&root, handle, 0, &appended(fill, len));
        fs.files().release(handle)?;
        let (at, count) = result?;
        assert_eq!(count as u64, len, "an append on a roomy volume is whole");
        Ok(Outcome::Appended { at })
    }

    fn on_handle(&self, handle: HandleId, op: &Op) -> Result<u64, Error> {
        let (root, fs) = (Context::root(), self.fs);
        match op {
            Op::Write { offset, len, fill, .. } => {
                return Ok(fs.files().write(&root, handle, *offset, &pattern(*fill, *offset, *len))?.1 as u64);
            }
            Op::Truncate { size, .. } => {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                fs.attributes().setattr(&root, fs.files().handle_inode(handle)?, &set, Some(handle))?;
            }
            Op::Falloc { kind, offset, len, .. } => {
                let mode = match kind {
                    AllocateKind::Grow => FallocateMode::Allocate { keep_size: false },
                    AllocateKind::KeepSize => FallocateMode::Allocate { keep_size: true },
                    AllocateKind::Punch => FallocateMode::PunchHole,
                    AllocateKind::Zero => FallocateMode::ZeroRange { keep_size: false },
                    AllocateKind::Collapse => FallocateMode::CollapseRange,
                    AllocateKind::Insert => FallocateMode::InsertRange,
                };
                fs.files().fallocate(&root, handle, mode, *offset, *len)?;
            }
            Op::CopyRange { from, at, to_at, len, .. } => {
                return driver::copy_to_handle(fs, (from, *at), (handle, *to_at), *len);
            }
            Op::Fsync(_) => fs.files().sync_handle(handle, SyncScope::All)?,
            Op::Fdatasync(_) => fs.files().sync_handle(handle, SyncScope::Data)?,
            Op::SyncRange { offset, len, .. } => {
                fs.syncs().sync(handle, SyncScope::All, Reach::Range(*offset..offset + len))?;
            }
            Op::WriteBack { offset, len, .. } => {
                fs.files().write_back_handle(handle, *offset..offset + len)?;
            }
            _ => unreachable!("no operation on an open file"),
        }
        Ok(0)
    }

    fn transact(&self, ops: &[Op]) -> Result<Vec<u64>, Error> {
        let mut transaction = self.fs.begin()?;
        let made =
            ops.iter().map(|op| transact::stage_one(&mut transaction, op)).collect::<Result<_, _>>()?;
        transaction.commit()?;
        Ok(made)
    }
}

/// What an append writes.
pub fn appended(fill: u8, len: u64) -> Vec<u8> {
    (0..len).map(|at| fill | 1 | (at as u8) << 4).collect()
}

/// Draws acts.
pub struct Drawing<'a> {
    pub random: &'a mut Random,
    pub model: &'a Model,
    pub cast: &'a Cast,
}

impl Drawing<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn fill(&mut self) -> u8 {
        self.below(250) as u8
    }

    fn size(&self, file: usize) -> u64 {
        self.model.size_of(self.cast.inode(file).0)
    }

    /// A place where something may go wrong: at the end, at a page's border, or anywhere near.
    fn place(&mut self, file: usize) -> u64 {
        let size = self.size(file);
        match self.below(6) {
            0 => size,
            1 => size.saturating_sub(self.below(200)),
            2 => size + self.below(6000),
            3 => (size / PAGE) * PAGE,
            4 => self.below(12) * PAGE,
            _ => self.below(size.max(PAGE) + PAGE),
        }
        .min(super::SIZE_MAX)
    }

    fn len(&mut self) -> u64 {
        match self.below(5) {
            0 => 1 + self.below(50),
            1 => PAGE,
            2 => 1 + self.below(PAGE),
            3 => 1 + self.below(3 * PAGE),
            _ => 600 + self.below(1000),
        }
    }

    fn write(&mut self, file: usize) -> Act {
        let kind = if self.random.one_in(12) { WriteKind::Direct } else { WriteKind::Buffered };
        let (offset, len, fill) = (self.place(file), self.len(), self.fill());
        Act::Do(Some(file), Op::Write { path: self.cast.path(file), kind, offset, len, fill })
    }

    fn truncate(&mut self, file: usize) -> Act {
        let size = if self.random.one_in(3) { self.size(file) } else { self.place(file) };
        Act::Do(Some(file), Op::Truncate { path: self.cast.path(file), size })
    }

    fn allocate(&mut self, file: usize) -> Act {
        use AllocateKind::{Collapse, Grow, Insert, KeepSize, Punch, Zero};
        let kind = *self.random.pick(&[Grow, KeepSize, Punch, Punch, Zero, Zero, Collapse, Insert]);
        let (mut offset, mut len) = (self.place(file), self.len());
        if matches!(kind, Collapse | Insert) {
            (offset, len) = (offset / PAGE / 2 * PAGE, len.next_multiple_of(PAGE));
        }
        Act::Do(Some(file), Op::Falloc { path: self.cast.path(file), kind, offset, len })
    }

    fn sync(&mut self, file: usize) -> Act {
        let path = self.cast.path(file);
        let (offset, len) = (self.place(file), self.len());
        match self.below(9) {
            0 | 1 => Act::Do(Some(file), Op::Fsync(path)),
            2 | 3 => Act::Do(Some(file), Op::Fdatasync(path)),
            4 => Act::Do(Some(file), Op::SyncRange { path, offset, len }),
            5 => Act::Do(Some(file), Op::WriteBack { path, offset, len }),
            6 => Act::Do(None, Op::Sync),
            7 => Act::Do(None, Op::Checkpoint),
            _ => Act::Do(None, Op::Trim),
        }
    }

    fn look(&mut self, file: usize) -> Act {
        if self.random.one_in(3) {
            return Act::Size(file);
        }
        let offset = self.place(file);
        let len = (1 + self.below(PAGE)).min(PAGE - offset % PAGE);
        Act::Look { file, offset, len }
    }

    fn append(&mut self, file: usize) -> Act {
        let (len, fill) = (self.len(), self.fill());
        Act::Append { file, len, fill }
    }

    /// What a thread that only watches does.
    pub fn watched(&mut self, file: usize) -> Act {
        self.look(file)
    }

    /// What changes content, or makes it durable.
    pub fn content(&mut self, file: usize) -> Act {
        match self.below(20) {
            0..5 => self.write(file),
            5..8 => self.append(file),
            8..12 => self.truncate(file),
            12..15 => self.allocate(file),
            15..17 => self.sync(file),
            17 => self.look(file),
            18 => self.copy(file),
            _ => self.background(),
        }
    }

    /// From a file that nobody changes. To an open one: between a look at its name and the copy others could rename it.
    fn copy(&mut self, file: usize) -> Act {
        let (from, to) = (super::SOURCE.to_owned(), self.cast.path(file));
        let (at, to_at, len) = (self.below(3 * PAGE), self.place(file), self.len());
        Act::Do(Some(file), Op::CopyRange { from, to, at, to_at, len })
    }

    fn background(&mut self) -> Act {
        Act::Do(None, Op::Maintain { milliseconds: self.below(8000) })
    }

    /// A transaction on content and names.
    fn transaction(&mut self) -> Act {
        let mut ops = Vec::new();
        for _ in 0..1 + self.below(3) {
            let file = self.below(self.cast.len() as u64) as usize;
            let path = self.cast.path(file);
            ops.push(match self.below(7) {
                0 => Op::Creat(self.name()),
                1 => Op::Rename(self.name(), self.name()),
                2 => Op::Unlink(self.name()),
                3 => Op::Link(self.name(), self.name()),
                4 => Op::Truncate { path, size: self.place(file) },
                _ => {
                    let (offset, len, fill) = (self.place(file), self.len(), self.fill());
                    Op::Write { path, kind: WriteKind::Buffered, offset, len, fill }
                }
            });
        }
        let end = crate::operation::End::Commit;
        Act::Do(None, Op::Transaction { ops, between: Vec::new(), end })
    }

    fn name(&mut self) -> String {
        (*self.random.pick(super::NAMES)).to_owned()
    }

    /// What changes names: none of the cast's.
    pub fn names(&mut self) -> Act {
        let (one, other, fill) = (self.name(), self.name(), self.fill());
        // By path these look a file up and act on it then, as anywhere: names that change in between would be another
        // one's.
        let file = self.below(self.cast.len() as u64) as usize;
        let stable = self.cast.path(file);
        let op = match self.below(14) {
            0 | 1 => Op::Creat(one),
            2 => Op::Symlink("target".to_owned(), one),
            3 => Op::Link(stable, other),
            4 => Op::Unlink(one),
            5..8 => Op::Rename(one, other),
            8 => Op::Exchange(one, other),
            9 => Op::SetXattr { path: stable, name: "user.a".to_owned(), len: self.below(300), fill },
            10 => Op::Chmod { path: stable, mode: 0o600 + self.below(64) as u32 },
            11 => Op::TmpLink { path: one, len: self.below(9000), fill, sync: false },
            _ => return self.transaction(),
        };
        Act::Do(None, op)
    }

    /// What takes a name of the cast away, or gives it one.
    pub fn renaming(&mut self, file: usize) -> Act {
        let path = self.cast.path(file);
        Act::Do(
            None,
            match self.below(4) {
                0 => Op::Link(path, self.name()),
                1 => Op::Chmod { path, mode: 0o600 + self.below(64) as u32 },
                2 => Op::Rename(self.name(), path),
                _ => Op::Exchange(path, self.name()),
            },
        )
    }
}
