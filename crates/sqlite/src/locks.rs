//! SQLite's five lock levels on one database, among the connections of this process.
//!
//! Nobody waits here: a lock that cannot be had is `false`, and SQLite's busy handler decides. The rules are those of
//! <https://sqlite.org/lockingv3.html>: any number of readers; one that intends to write beside them; while it is
//! pending no new reader; exclusive when the last other reader has gone.

/// One connection to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnectionId(pub(crate) u64);

/// A lock level, in SQLite's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Level {
    #[default]
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

/// Who holds what on one database.
///
/// Invariants: `shared` counts every connection that holds any lock; at most one is beyond SHARED, and it is `writer`;
/// EXCLUSIVE implies `shared == 1`.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    shared: u32,
    writer: Option<(ConnectionId, Level)>,
}

impl Locks {
    /// Raises a connection's lock; returns the level it has afterwards, which is `to` if that was possible. A
    /// connection that wants to be exclusive and finds readers becomes pending.
    pub(crate) fn raise(&mut self, who: ConnectionId, from: Level, to: Level) -> Level {
        if to <= from {
            return from;
        }
        let mine = self.writer.is_some_and(|(writer, _)| writer == who);
        let other = self.writer.filter(|(writer, _)| *writer != who).map(|(_, level)| level);
        match to {
            Level::None => from,
            Level::Shared => {
                if other.is_some_and(|level| level >= Level::Pending) {
                    return from;
                }
                self.shared += 1;
                Level::Shared
            }
            // SQLite never asks for PENDING by itself.
            Level::Reserved | Level::Pending => {
                if from < Level::Shared || other.is_some() {
                    return from;
                }
                self.writer = Some((who, to));
                to
            }
            Level::Exclusive => {
                if from < Level::Shared || other.is_some() {
                    return from;
                }
                assert!(mine || from == Level::Shared, "whoever is beyond SHARED is the writer");
                let level = if self.shared == 1 { Level::Exclusive } else { Level::Pending };
                self.writer = Some((who, level));
                level
            }
        }
    }

    /// Lowers a connection's lock to SHARED or NONE.
    pub(crate) fn lower(&mut self, who: ConnectionId, from: Level, to: Level) {
        if to >= from {
            return;
        }
        if from > Level::Shared {
            assert!(self.writer.is_some_and(|(writer, _)| writer == who), "a lock is lowered by its holder");
            self.writer = None;
        }
        if to == Level::None {
            assert!(self.shared > 0, "every lock counts as a shared one");
            self.shared -= 1;
        }
    }

    /// Whether anybody intends to write, or does.
    pub(crate) fn is_reserved(&self) -> bool {
        self.writer.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[test]
    fn readers_share_and_one_writer_reserves() {
        let mut locks = Locks::default();
        assert_eq!(locks.raise(A, Level::None, Level::Shared), Level::Shared);
        assert_eq!(locks.raise(B, Level::None, Level::Shared), Level::Shared);
        assert!(!locks.is_reserved());
        assert_eq!(locks.raise(A, Level::Shared, Level::Reserved), Level::Reserved);
        assert!(locks.is_reserved());
        assert_eq!(locks.raise(B, Level::Shared, Level::Reserved), Level::Shared);
        assert_eq!(locks.raise(B, Level::Shared, Level::Exclusive), Level::Shared);
    }

    #[test]
    fn a_pending_writer_keeps_new_readers_out_and_waits_for_the_old_ones() {
        let mut locks = Locks::default();
        locks.raise(A, Level::None, Level::Shared);
        locks.raise(B, Level::None, Level::Shared);
        locks.raise(A, Level::Shared, Level::Reserved);
        assert_eq!(locks.raise(A, Level::Reserved, Level::Exclusive), Level::Pending);
        let third = ConnectionId(3);
        assert_eq!(locks.raise(third, Level::None, Level::Shared), Level::None);
        locks.lower(B, Level::Shared, Level::None);
        assert_eq!(locks.raise(A, Level::Pending, Level::Exclusive), Level::Exclusive);
        assert_eq!(locks.raise(third, Level::None, Level::Shared), Level::None);
        locks.lower(A, Level::Exclusive, Level::Shared);
        assert_eq!(locks.raise(third, Level::None, Level::Shared), Level::Shared);
        locks.lower(A, Level::Shared, Level::None);
        assert_eq!(locks.raise(third, Level::Shared, Level::Exclusive), Level::Exclusive);
    }

    #[test]
    fn a_hot_journal_is_played_back_from_shared_to_exclusive() {
        let mut locks = Locks::default();
        locks.raise(A, Level::None, Level::Shared);
        assert_eq!(locks.raise(A, Level::Shared, Level::Exclusive), Level::Exclusive);
        locks.lower(A, Level::Exclusive, Level::None);
        assert!(!locks.is_reserved());
        assert_eq!(locks.raise(B, Level::None, Level::Shared), Level::Shared);
    }
}
