//! In which order the acts of a round can have happened one after the other: each thread's in its own, what had ended
//! before another began in front of it, and each with what it answered and saw. If there is none, two acts were
//! mixed.

use super::Cast;
use super::acts::{Act, Outcome, Seen, appended};
use crate::operation::{Op, WriteKind};
use crate::oracle::{Model, View};

const EBUSY: i32 = 16;
/// Of a transaction's conflict.
const EAGAIN: i32 = 11;
/// Orders that are kept; with more it is not known which of them it was.
pub const ORDERS_MAX: usize = 48;
/// Steps of one search.
const STEPS_MAX: usize = 60_000;

/// One order: of each act its thread and its number there.
pub type Order = Vec<(usize, usize)>;

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Those in which what syncs comes earliest first.
    pub orders: Vec<Order>,
    /// There may be more.
    pub is_cut: bool,
}

struct Search<'a> {
    cast: &'a Cast,
    threads: &'a [Vec<Seen>],
    view: &'a View,
    next: Vec<usize>,
    order: Order,
    found: Found,
    steps: usize,
}

/// All orders that lead from one view to the other.
pub fn orders(before: &View, threads: &[Vec<Seen>], cast: &Cast, view: &View) -> Found {
    let next = vec![0; threads.len()];
    let mut search =
        Search { cast, threads, view, next, order: Vec::new(), found: Found::default(), steps: 0 };
    search.go(&Model::new(before));
    let mut found = search.found;
    let others_before = |order: &Order| {
        let syncs =
            |(_, (thread, number)): &(usize, &(usize, usize))| threads[*thread][*number].act.only_syncs();
        order.iter().enumerate().filter(syncs).map(|(place, _)| place).sum::<usize>()
    };
    found.orders.sort_by_key(others_before);
    found
}

impl Search<'_> {
    fn go(&mut self, state: &Model) {
        self.steps += 1;
        if self.steps > STEPS_MAX || self.found.orders.len() >= ORDERS_MAX {
            self.found.is_cut = true;
            return;
        }
        let left: Vec<usize> =
            (0..self.threads.len()).filter(|at| self.next[*at] < self.threads[*at].len()).collect();
        if left.is_empty() {
            if state.shows(self.view) {
                self.found.orders.push(self.order.clone());
            }
            return;
        }
        // Whoever began after another one's end is behind it.
        let first_end = left.iter().map(|at| self.threads[*at][self.next[*at]].ended).min().unwrap_or(0);
        for thread in left {
            let seen = &self.threads[thread][self.next[thread]];
            if seen.began > first_end {
                continue;
            }
            let mut after = state.clone();
            if !apply(&mut after, self.cast, seen, self.is_alone(thread)) {
                continue;
            }
            self.order.push((thread, self.next[thread]));
            self.next[thread] += 1;
            self.go(&after);
            self.next[thread] -= 1;
            self.order.pop();
        }
    }

    /// Whether no act of others was under way at any time of the thread's next one.
    fn is_alone(&self, thread: usize) -> bool {
        let own = &self.threads[thread][self.next[thread]];
        let others = self.threads.iter().enumerate().filter(|(other, _)| *other != thread);
        others.flat_map(|(_, acts)| acts).all(|seen| seen.ended < own.began || seen.began > own.ended)
    }
}

/// Applies what was seen; false if it cannot have happened here.
pub fn apply(model: &mut Model, cast: &Cast, seen: &Seen, alone: bool) -> bool {
    let ino = |file: usize| cast.inode(file).0;
    match (&seen.act, &seen.outcome) {
        (Act::Do(_, Op::Transaction { ops, .. }), Outcome::Committed(made)) => {
            model.apply_together(ops, made).is_ok()
        }
        (Act::Do(_, Op::Transaction { ops, .. }), Outcome::Failed(errno)) => match *errno {
            EAGAIN | EBUSY => !alone,
            _ => model.would_apply(ops).is_err(),
        },
        (Act::Do(_, op), Outcome::Done { made, written }) => {
            let Some(op) = &named(model, cast, &seen.act, op) else { return true };
            let whole = match op {
                Op::Write { len, .. } | Op::TmpLink { len, .. } => written == len,
                Op::CopyRange { from, at, len, .. } => {
                    let size = model.resolve(from).map_or(0, |ino| model.size_of(ino));
                    *written == size.saturating_sub(*at).min(*len)
                }
                _ => true,
            };
            whole && model.apply(op, *made, *written).is_ok()
        }
        (Act::Do(_, op), Outcome::Failed(errno)) => {
            if *errno == EBUSY && matches!(op, Op::Falloc { .. }) {
                return !alone;
            }
            let Some(op) = &named(model, cast, &seen.act, op) else { return true };
            // What is refused changes nothing; in a copy all the same.
            model.clone().apply(op, u64::MAX, 0) == Err(*errno)
        }
        // What was done to it without a name is not in the model either.
        (Act::Append { file, .. } | Act::Look { file, .. } | Act::Size(file), outcome)
            if !matches!(outcome, Outcome::Failed(_)) && name_of(model, cast, *file).is_none() =>
        {
            true
        }
        (Act::Append { file, len, fill }, Outcome::Appended { at }) => {
            if model.content_of(ino(*file)).size() != *at {
                return false;
            }
            model.write_raw(ino(*file), *at, &appended(*fill, *len));
            true
        }
        (Act::Look { file, offset, len }, Outcome::Saw(bytes)) => {
            model.content_of(ino(*file)).range(*offset, offset + len) == *bytes
        }
        (Act::Size(file), Outcome::Size(size)) => model.content_of(ino(*file)).size() == *size,
        _ => false,
    }
}

/// Applies what was seen to the model of the whole run; the number of the sync that it was, if it was one.
pub fn commit(model: &mut Model, cast: &Cast, seen: &Seen) -> Option<usize> {
    let op = match &seen.act {
        Act::Do(_, op) => named(model, cast, &seen.act, op),
        _ => None,
    };
    if let Some(op) = &op {
        model.begin(op);
    }
    assert!(apply(model, cast, seen, false), "the order was found with this act in its place");
    if matches!(seen.outcome, Outcome::Failed(_)) {
        return None;
    }
    let file = |model: &Model, path: &str| model.resolve(path).ok();
    match &op? {
        Op::Fsync(path) | Op::Fdatasync(path) => file(model, path).map(|ino| model.sync(Some(ino))),
        Op::Write { path, kind: WriteKind::Dsync, .. } => file(model, path).map(|ino| model.sync(Some(ino))),
        Op::SyncRange { path, offset, len } => {
            file(model, path).map(|ino| model.sync_range(ino, *offset, *len))
        }
        Op::Sync => Some(model.sync(None)),
        Op::Transaction { .. } => Some(model.committed()),
        _ => None,
    }
}

/// The operation with a name that its file has now; an act on an open file goes on when that one has lost its names.
/// `None` if it has none: nobody sees what is done to it.
fn named(model: &Model, cast: &Cast, act: &Act, op: &Op) -> Option<Op> {
    let Act::Do(Some(file), _) = act else { return Some(op.clone()) };
    let now = name_of(model, cast, *file)?;
    if now == cast.path(*file) {
        return Some(op.clone());
    }
    let mut op = op.clone();
    match &mut op {
        Op::Write { path, .. } | Op::Truncate { path, .. } | Op::Falloc { path, .. } => *path = now,
        Op::SyncRange { path, .. } | Op::WriteBack { path, .. } => *path = now,
        Op::CopyRange { to, .. } => *to = now,
        Op::Fsync(path) | Op::Fdatasync(path) => *path = now,
        _ => unreachable!("no operation on an open file"),
    }
    Some(op)
}

/// A name that a file of the cast has now.
fn name_of(model: &Model, cast: &Cast, file: usize) -> Option<String> {
    let is_it = |path: &String| model.resolve(path) == Ok(cast.inode(file).0);
    let first = cast.path(file);
    if is_it(&first) {
        return Some(first);
    }
    let [_, files, _] = model.paths();
    files.into_iter().find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::AllocateKind;

    #[test]
    fn what_is_done_to_a_file_without_a_name_explains_what_is_seen_of_it_later() {
        let mut model = Model::new(&super::super::start().view);
        let cast = Cast::of(&model).expect("the files of the beginning");
        let seen = |act: Act, outcome: Outcome, at: u64| Seen {
            act,
            outcome,
            began: at,
            ended: at + 1,
            position: 0,
        };
        let replaced = Op::Rename("a".to_owned(), cast.path(1));
        let grown = Op::Falloc { path: cast.path(1), kind: AllocateKind::Grow, offset: 3867, len: 1219 };
        let done = Outcome::Done { made: 0, written: 0 };
        let acts = [
            vec![seen(Act::Do(None, replaced), done.clone(), 0)],
            vec![seen(Act::Do(Some(1), grown), done, 2)],
            vec![seen(Act::Append { file: 1, len: 1131, fill: 179 }, Outcome::Appended { at: 5086 }, 4)],
        ];
        assert!(acts.iter().flatten().all(|seen| apply(&mut model, &cast, seen, false)));
    }
}
