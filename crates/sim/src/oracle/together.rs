//! Transactions in the model: several operations that are one metadata operation (C4).

use super::{Kind, Model, Names};
use crate::history::FileEvent;
use crate::operation::{End, Op, WriteKind};
use crate::oracle::View;
use std::collections::{BTreeMap, BTreeSet};

/// A transaction under way.
#[derive(Clone)]
pub(super) struct Together {
    names: Names,
    made: Vec<u64>,
    events: Vec<(u64, FileEvent)>,
}

impl Together {
    pub(super) fn note(&mut self, ino: u64, event: FileEvent) {
        self.events.push((ino, event));
    }

    pub(super) fn note_made(&mut self, ino: u64) {
        self.made.push(ino);
    }
}

impl Model {
    /// Applies operations as one. `made` are the numbers of the inodes that they made, one for each operation.
    ///
    /// Errors: the errno of the first that has to be refused; nothing is changed then.
    pub fn apply_together(&mut self, ops: &[Op], made: &[u64]) -> Result<(), i32> {
        self.together = Some(Together { names: self.names.clone(), made: Vec::new(), events: Vec::new() });
        for (op, made) in ops.iter().zip(made) {
            let written = if let Op::Write { len, kind: WriteKind::Buffered, .. } = op { *len } else { 0 };
            if let Err(errno) = self.apply(op, *made, written) {
                self.give_up();
                return Err(errno);
            }
        }
        self.end_together();
        Ok(())
    }

    /// A whole transaction, in a dry run: numbers from `made` on are free.
    pub(super) fn apply_dry(&mut self, ops: &[Op], between: &[Op], end: End, made: u64) -> Result<(), i32> {
        let numbers: Vec<u64> =
            (1..).map(|index| made + (index << 42)).take(ops.len() + between.len()).collect();
        for (op, made) in between.iter().zip(&numbers[ops.len()..]) {
            let written = if let Op::Write { len, .. } = op { *len } else { 0 };
            // What is refused is part of it.
            let _ = self.apply(op, *made, written);
        }
        if end == End::Abort { Ok(()) } else { self.apply_together(ops, &numbers) }
    }

    /// A commit has failed with an I/O error. Until [`Model::settle_commit`] nothing of it is applied.
    pub fn commit_failed(&mut self, ops: Vec<Op>, made: Vec<u64>) {
        self.unsettled = Some((ops, made));
    }

    /// A commit that failed has made everything visible or nothing (C4), which may or may not survive; what is shown
    /// tells. False: it is something else.
    pub fn settle_commit(&mut self, shown: &View) -> bool {
        let Some((ops, made)) = self.unsettled.take() else { return true };
        self.shows(shown) || self.apply_together(&ops, &made).is_ok() && self.shows(shown)
    }

    /// Whether two lists of operations name one file, or one name: what may keep one from being absorbed.
    pub fn share_something(&self, first: &[Op], second: &[Op]) -> bool {
        let all = |ops: &[Op]| -> (BTreeSet<String>, BTreeSet<u64>) {
            let paths: BTreeSet<String> = ops.iter().flat_map(Op::paths).collect();
            let inodes = paths.iter().filter_map(|path| self.resolve(path).ok()).collect();
            (paths, inodes)
        };
        let (first, second) = (all(first), all(second));
        !first.0.is_disjoint(&second.0) || !first.1.is_disjoint(&second.1)
    }

    /// Whether the operations would be applied.
    pub fn would_apply(&mut self, ops: &[Op]) -> Result<(), i32> {
        self.together = Some(Together { names: self.names.clone(), made: Vec::new(), events: Vec::new() });
        let first = self.names.keys().max().copied().unwrap_or(0) + (1 << 41);
        let result = ops.iter().zip(first..).try_for_each(|(op, made)| self.apply(op, made, 0));
        self.give_up();
        result
    }

    fn give_up(&mut self) {
        let Some(together) = self.together.take() else { return };
        self.names = together.names;
        together.made.iter().for_each(|ino| drop(self.files.remove(ino)));
    }

    fn end_together(&mut self) {
        let Some(together) = self.together.take() else { return };
        let mut by_file: Vec<(u64, Vec<FileEvent>)> = Vec::new();
        for (ino, event) in together.events {
            match by_file.iter_mut().find(|(of, _)| *of == ino) {
                Some((_, events)) => events.push(event),
                None => by_file.push((ino, vec![event])),
            }
        }
        // A file that the transaction has made and taken away again never was.
        by_file.retain(|(ino, _)| self.names.contains_key(ino) || !together.made.contains(ino));
        // Renamed over a file and back again: nothing is replaced (C3).
        for (ino, events) in &mut by_file {
            if !self.takes_over(&together.names, *ino) {
                events.retain(|event| *event != FileEvent::Barrier);
            }
        }
        let is_data = |event: &FileEvent| matches!(event, FileEvent::Write(..) | FileEvent::Truncate(_));
        for (ino, events) in &by_file {
            if events.iter().any(is_data) && self.names.contains_key(ino) {
                self.strip_set_id(*ino);
            }
        }
        let changed =
            self.names != together.names || by_file.iter().any(|(_, events)| events.iter().any(is_data));
        if changed {
            self.snapshot();
            for (ino, events) in by_file {
                self.record(ino, FileEvent::Together(events));
            }
        }
    }

    /// Whether a file has a name that another one had before.
    fn takes_over(&self, before: &Names, ino: u64) -> bool {
        let children =
            |names: &Names, directory: &u64| match names.get(directory).map(|node| node.kind.clone()) {
                Some(Kind::Directory(children)) => children,
                _ => BTreeMap::new(),
            };
        self.names.keys().any(|directory| {
            let had = children(before, directory);
            let given =
                |(name, now): (&String, &u64)| *now == ino && had.get(name).is_some_and(|was| *was != ino);
            children(&self.names, directory).iter().any(given)
        })
    }

    fn strip_set_id(&mut self, ino: u64) {
        let node = self.node_mut(ino);
        if node.kind == Kind::File {
            let group = if node.mode & 0o10 != 0 { 0o2000 } else { 0 };
            node.mode &= !(0o4000 | group);
        }
    }

    /// A commit that has returned: everything before it is durable. The number that its acknowledgement names.
    pub fn committed(&mut self) -> usize {
        self.syncs.push(self.metas());
        self.syncs.len()
    }
}
