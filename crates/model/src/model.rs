//! The transitions: which can be taken in a state, and what each leads to.

use crate::contract::Violation;
use crate::engine::{Mode, State};
use crate::scope::{Ops, Scope};
use crate::volume::{Extent, Role, Spot, spots_in};

/// One step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Write(Spot),
    Sync {
        file: u8,
        as_extents: bool,
    },
    Truncate(u8),
    Create(u8),
    Unlink(u8),
    Rename(u8, u8),
    Link(u8, u8),
    Preallocate(Spot),
    Share(u8, u8),
    Transact {
        first: u8,
        second: u8,
        as_extents: bool,
    },
    Snapshot,
    Clone(u8),
    RollBack(u8),
    Doom(u8),
    Read(u8),
    EndRead,
    Turn(u8),
    Settle(u8),
    Reap,
    StartWriteback(Spot),
    LogWriteback(u8),
    Seal,
    Flush,
    FailFlush,
    Freeze,
    WriteOut,
    WriteSuper,
    Finish,
    Abort,
    FailSuper,
    MarkCut,
    FlushMark,
    DestageAll,
    WriteFirstSuper,
    EndRecovery,
    /// The survivors, as counted by [`crate::device::Device::losses`].
    CutPower(u32),
    Kill,
    Rot(u8),
}

impl Action {
    /// Whether the store takes this step by itself and comes nearer to its ends.
    pub fn is_own_step(self) -> bool {
        use Action::*;
        matches!(
            self,
            StartWriteback(_) | LogWriteback(_) | Seal | Flush | Freeze | WriteOut | WriteSuper | Finish
        ) || matches!(self, Settle(_) | Reap)
            || matches!(self, MarkCut | FlushMark | DestageAll | WriteFirstSuper | EndRecovery)
    }
}

impl State {
    /// The state after an action, `None` if it cannot be taken now.
    pub fn after(&self, scope: &Scope, action: Action) -> Option<Result<State, Violation>> {
        match action {
            Action::CutPower(choice) => return Some(self.cut_power(scope, choice)),
            Action::Kill => return Some(self.kill(scope)),
            _ => {}
        }
        let mut next = self.clone();
        next.take(scope, action)?;
        Some(match next.complaint.take() {
            Some(violation) => Err(violation),
            None => Ok(next),
        })
    }

    fn take(&mut self, scope: &Scope, action: Action) -> Option<()> {
        match action {
            Action::Write(spot) => self.write(scope, spot),
            Action::Sync { file, as_extents } => self.sync(scope, file, as_extents),
            Action::Truncate(file) => self.truncate(scope, file),
            Action::Create(name) => self.create(scope, name),
            Action::Unlink(name) => self.unlink(scope, name),
            Action::Rename(from, to) => self.rename(scope, from, to),
            Action::Link(from, to) => self.link(scope, from, to),
            Action::Preallocate(spot) => self.preallocate(scope, spot),
            Action::Share(from, to) => self.share(scope, from, to),
            Action::Transact { first, second, as_extents } => self.transact(scope, first, second, as_extents),
            Action::Snapshot => self.snapshot(scope),
            Action::Clone(of) => self.clone_tree(scope, of),
            Action::RollBack(to) => self.roll_back(scope, to),
            Action::Doom(tree) => self.doom(scope, tree),
            Action::Read(tree) => self.begin_read(tree),
            Action::EndRead => self.end_read(),
            Action::Turn(head) => self.turn(head),
            Action::Settle(tree) => self.settle_image(scope, tree),
            Action::Reap => self.reap(scope),
            Action::StartWriteback(spot) => self.start_writeback(scope, spot),
            Action::LogWriteback(index) => self.log_writeback(scope, index),
            Action::Seal => self.seal(scope),
            Action::Flush => self.flush(scope),
            Action::FailFlush => self.fail_flush(scope),
            Action::Freeze => self.freeze(scope),
            Action::WriteOut => self.write_out(scope),
            Action::WriteSuper => self.write_super(scope),
            Action::Finish => self.finish(scope),
            Action::Abort => self.abort(scope),
            Action::FailSuper => self.fail_super(scope),
            Action::MarkCut => self.mark_cut(scope),
            Action::FlushMark => self.flush_mark(),
            Action::DestageAll => self.destage_all(scope),
            Action::WriteFirstSuper => self.write_first_super(scope),
            Action::EndRecovery => self.end_recovery(scope),
            Action::Rot(block) => self.rot(block),
            Action::CutPower(_) | Action::Kill => None,
        }
    }

    /// Steps that may be possible, but for power cuts. Some of them [`State::after`] will still refuse.
    pub fn candidates(&self, scope: &Scope) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.engine.mode == Mode::Running {
            if !self.engine.latched {
                // An upgrade comes before all else.
                if self.engine.durable.trees == scope.trees {
                    self.calls(scope, &mut actions);
                    self.tree_calls(scope, &mut actions);
                }
                self.background(scope, &mut actions);
            }
        } else {
            actions.extend(self.recovery_step());
        }
        if self.left.kills > 0 {
            actions.push(Action::Kill);
        }
        actions
    }

    /// What callers may do.
    fn calls(&self, scope: &Scope, actions: &mut Vec<Action>) {
        let (tree, head, ops) = (self.engine.tree(), self.engine.head, scope.ops);
        let files = || (0..self.born).filter(|file| tree.exists[usize::from(*file)]);
        let names = || 0..scope.names;
        let spots = |file: u8| (0..scope.pages).map(move |page| Spot { tree: head, file, page });
        if self.left.ops > 0 {
            for file in files() {
                if ops.has(Ops::WRITE) {
                    actions.extend(spots(file).map(Action::Write));
                }
                if ops.has(Ops::TRUNCATE) {
                    actions.push(Action::Truncate(file));
                }
                if ops.has(Ops::PREALLOCATE) {
                    actions.extend(spots(file).map(Action::Preallocate));
                }
                if ops.has(Ops::SHARE) {
                    let others = files().filter(|other| *other != file);
                    actions.extend(others.map(|other| Action::Share(file, other)));
                }
            }
            for name in names() {
                if ops.has(Ops::CREATE) {
                    actions.push(Action::Create(name));
                }
                if tree.names[usize::from(name)].is_none() {
                    continue;
                }
                if ops.has(Ops::UNLINK) {
                    actions.push(Action::Unlink(name));
                }
                for other in names().filter(|other| *other != name) {
                    if ops.has(Ops::RENAME) {
                        actions.push(Action::Rename(name, other));
                    }
                    if ops.has(Ops::LINK) {
                        actions.push(Action::Link(name, other));
                    }
                }
            }
            if ops.has(Ops::TRANSACTION) && self.left.syncs > 0 {
                for as_extents in [false, true] {
                    actions.push(Action::Transact { first: 0, second: 1, as_extents });
                }
            }
        }
        if self.left.syncs > 0 && self.engine.waiters.len() < 2 {
            for file in files() {
                let dirty = spots(file).any(|spot| self.engine.is_dirty(spot));
                if !dirty && self.engine.journal.durable == self.engine.lsn {
                    continue;
                }
                if ops.has(Ops::SYNC_IMAGES) || !dirty {
                    actions.push(Action::Sync { file, as_extents: false });
                }
                if ops.has(Ops::SYNC_EXTENTS) && dirty {
                    actions.push(Action::Sync { file, as_extents: true });
                }
            }
        }
    }

    /// What the store does by itself, and what goes wrong in it.
    fn background(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if scope.ops.has(Ops::WRITEBACK) && self.left.writebacks > 0 {
            actions.extend(self.pages_to_write().map(Action::StartWriteback));
        }
        for index in 0..self.engine.writebacks.len() as u8 {
            actions.push(Action::LogWriteback(index));
        }
        let faults = self.left.faults > 0 && !scope.ops.has(Ops::ROT);
        if self.left.faults > 0 && scope.ops.has(Ops::ROT) {
            actions.extend((0..scope.blocks).map(Action::Rot));
        }
        self.tree_background(actions);
        let journal = &self.engine.journal;
        if journal.can_seal(scope) {
            actions.push(Action::Seal);
        }
        if journal.records.iter().any(|record| !record.flushed) {
            actions.push(Action::Flush);
            if faults {
                actions.push(Action::FailFlush);
            }
        }
        match &self.engine.checkpoint {
            None if self.left.checkpoints > 0 => actions.push(Action::Freeze),
            None => {}
            Some(running) if running.superblock.is_some() => {
                actions.push(Action::Finish);
                if faults {
                    actions.push(Action::FailSuper);
                }
            }
            Some(running) if running.root.is_some() => {
                actions.push(Action::WriteSuper);
                if self.left.aborts > 0 {
                    actions.push(Action::Abort);
                }
            }
            Some(_) => actions.push(Action::WriteOut),
        }
    }

    fn pages_to_write(&self) -> impl Iterator<Item = Spot> {
        let heads = self.engine.forest.shown(Role::Head);
        heads
            .flat_map(spots_in)
            .filter(|spot| self.engine.pages.at(*spot).is_some() && self.engine.writeback_of(*spot).is_none())
    }

    fn recovery_step(&self) -> Option<Action> {
        match self.engine.mode {
            Mode::Replayed { .. } => Some(Action::MarkCut),
            Mode::Marking => Some(Action::FlushMark),
            Mode::Marked => Some(Action::DestageAll),
            Mode::Written => Some(Action::WriteFirstSuper),
            Mode::Ending => Some(Action::EndRecovery),
            Mode::Running => None,
        }
    }

    /// The store's own steps that can be taken, however often they have been taken already: what it needs no caller
    /// for.
    pub fn engine_steps(&self, scope: &Scope) -> Vec<Action> {
        if self.engine.mode != Mode::Running {
            let step = self.recovery_step();
            return step.into_iter().filter(|step| matches!(self.after(scope, *step), Some(Ok(_)))).collect();
        }
        let mut unbounded = self.clone();
        unbounded.left.checkpoints = 1;
        unbounded.left.writebacks = 1;
        unbounded.left.faults = 0;
        unbounded.left.aborts = 0;
        let mut actions = Vec::new();
        unbounded.background(&Scope { ops: scope.ops.and(Ops::WRITEBACK), ..*scope }, &mut actions);
        actions.retain(|action| matches!(unbounded.after(scope, *action), Some(Ok(_))));
        actions
    }

    /// An action in words, as taken in this state.
    pub fn describe(&self, action: Action) -> String {
        let name = |name: u8| ["a", "b", "c"][usize::from(name)];
        let lsn = self.engine.lsn;
        match action {
            Action::Write(spot) => format!(
                "write file {} page {} (content {}), in memory",
                spot.file,
                spot.page,
                self.contract.clock() + 1
            ),
            Action::Sync { file, as_extents: false } => {
                format!("fsync file {file} is called: dirty pages logged as images, waits for the last LSN")
            }
            Action::Sync { file, as_extents: true } => {
                format!("fsync file {file} is called: dirty pages written to blocks beside the record")
            }
            Action::Truncate(file) => format!("truncate file {file} to zero (LSN {})", lsn + 1),
            Action::Create(to) => format!("create {} (LSN {})", name(to), lsn + 1),
            Action::Unlink(from) => format!("unlink {} (LSN {})", name(from), lsn + 1),
            Action::Rename(from, to) => format!("rename {} to {} (LSN {})", name(from), name(to), lsn + 1),
            Action::Link(from, to) => format!("link {} as {} (LSN {})", name(from), name(to), lsn + 1),
            Action::Preallocate(spot) => format!("preallocate file {} page {}", spot.file, spot.page),
            Action::Share(from, to) => format!("file {to} shares the first page of file {from}"),
            Action::Transact { first, second, as_extents } => format!(
                "transaction over files {first} and {second} is committed, as {}",
                if as_extents { "extents" } else { "images" }
            ),
            Action::Snapshot => {
                let next = self.engine.forest.next;
                format!("snapshot {next} of head {} is made (LSN {})", self.engine.head, lsn + 1)
            }
            Action::Clone(of) => {
                format!("head {} is made of snapshot {of}", self.engine.forest.next)
            }
            Action::RollBack(to) => {
                format!("the volume is rolled back to snapshot {to}, by head {}", self.engine.forest.next)
            }
            Action::Doom(tree) if self.engine.is_snapshot(tree) => {
                format!("snapshot {tree} is deleted (LSN {})", lsn + 1)
            }
            Action::Doom(tree) => format!("head {tree} is deleted (LSN {})", lsn + 1),
            Action::Read(tree) => format!("somebody begins to read snapshot {tree}"),
            Action::EndRead => "the reader goes on, and ends".to_owned(),
            Action::Turn(head) => format!("callers turn to head {head}"),
            Action::Settle(tree) => {
                format!("an image that snapshot {tree} has inherited is settled (LSN {})", lsn + 1)
            }
            Action::Reap => format!("a step of a deletion: {}", self.reap_in_words()),
            Action::StartWriteback(spot) => {
                let extent =
                    self.engine.forest.tree(spot.tree).map(|tree| *tree.extents.at(spot)).unwrap_or_default();
                let place =
                    if matches!(extent, Extent::Unwritten { .. }) { "in place" } else { "to a free block" };
                format!("writeback of file {} page {} starts, {place}", spot.file, spot.page)
            }
            Action::LogWriteback(index) => match self.engine.writebacks.get(usize::from(index)) {
                Some(one) => format!(
                    "writeback of file {} page {} is logged: block {} (content {})",
                    one.spot.file, one.spot.page, one.block, one.content
                ),
                None => "writeback is logged".to_owned(),
            },
            Action::Seal => {
                format!("record {} is sealed, its write started", self.engine.journal.next_sequence)
            }
            Action::Flush => "the group's flush succeeds; syncs up to its last LSN return 0".to_owned(),
            Action::FailFlush => "the group's flush fails with EIO".to_owned(),
            Action::Freeze => format!("checkpoint: freeze at LSN {lsn}"),
            Action::WriteOut => "checkpoint: tree and bitmaps are being written".to_owned(),
            Action::WriteSuper => "checkpoint: flush; the superblock is being written".to_owned(),
            Action::Finish => {
                "checkpoint: the superblock is flushed; frees are released, the tail moves".to_owned()
            }
            Action::Abort => "checkpoint: given up".to_owned(),
            Action::FailSuper => "checkpoint: the superblock's write fails with EIO".to_owned(),
            Action::MarkCut => match self.engine.mode {
                Mode::Replayed { cut: Some(cut) } => format!("recovery: the log is cut at LSN {cut}"),
                _ => "recovery: the log is whole to its end".to_owned(),
            },
            Action::FlushMark => "recovery: the mark of the cut is flushed".to_owned(),
            Action::DestageAll => {
                "recovery: images are destaged, tree and bitmaps are being written".to_owned()
            }
            Action::WriteFirstSuper => {
                "recovery: flush; the superblock of the new epoch is being written".to_owned()
            }
            Action::EndRecovery => "recovery: the superblock is flushed, the session begins".to_owned(),
            Action::CutPower(choice) => {
                format!("POWER CUT{}; the volume is opened", self.device.describe_loss(choice))
            }
            Action::Rot(block) => format!("block {block} rots"),
            Action::Kill => {
                "the process is killed; the volume is opened, the device's cache is still there".to_owned()
            }
        }
    }
}
