//! The times of one inode, and which of them may be there after a crash.
//!
//! What time it is, is the volume's to say; the oracle notes the times that the running volume shows after each
//! operation, and judges which of them survive: a metadata operation logs the inode with its times, so in a prefix
//! that holds it nothing older is allowed; a write changes them in memory, so what was before stays allowed until the
//! next sync of the inode. Access times are not judged (C9).

/// Seconds and nanoseconds.
pub type Time = (i64, u32);

/// The times of an inode that are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub modified: Time,
    pub changed: Time,
    pub created: Time,
}

/// How an operation has changed the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// In the log, in order.
    Logged,
    /// In memory.
    Dirty,
    /// In several steps, some of them in the log: anything between the times before and after.
    Steps,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Changed(Change, Stamp),
    /// Durable once the sync of this number is acknowledged.
    Synced(usize),
    /// As [`crate::history::FileEvent::Moment`].
    Moment(usize, Option<usize>),
}

/// Both ends are allowed, and what the clock showed between them. (A time of modification may have been set to any
/// other.)
#[derive(Clone, Copy)]
struct Range(Stamp, Stamp);

impl Range {
    fn holds(&self, stamp: &Stamp) -> bool {
        let clock = self.0.changed..=self.1.changed;
        let set = [self.0.modified, self.1.modified];
        (clock.contains(&stamp.modified) || set.contains(&stamp.modified))
            && clock.contains(&stamp.changed)
            && self.0.created == stamp.created
            && (self.0.changed != self.1.changed || self.0 == *stamp)
    }
}

/// Events, each with the number of metadata operations that had returned by then.
#[derive(Debug, Clone)]
pub struct StampHistory {
    start: Stamp,
    events: Vec<(usize, Event)>,
    current: Stamp,
}

impl StampHistory {
    pub fn new(start: Stamp) -> StampHistory {
        StampHistory { start, events: Vec::new(), current: start }
    }

    /// What the running volume shows.
    pub fn current(&self) -> Stamp {
        self.current
    }

    pub fn change(&mut self, metas: usize, change: Change, stamp: Stamp) {
        self.events.push((metas, Event::Changed(change, stamp)));
        self.current = stamp;
    }

    pub fn sync(&mut self, metas: usize, id: usize) {
        self.events.push((metas, Event::Synced(id)));
    }

    pub fn note_moment(&mut self, metas: usize, moment: usize) {
        self.events.push((metas, Event::Moment(moment, None)));
    }

    /// What there was at a moment is durable once a sync is acknowledged.
    pub fn age(&mut self, moment: usize, id: usize) {
        for (_, event) in self.events.iter_mut().rev() {
            if let Event::Moment(number, sync) = event
                && *number == moment
            {
                *sync = Some(id);
            }
        }
    }

    /// Whether `got` is allowed when the first `prefix` metadata operations survived and `acknowledged` syncs had
    /// returned.
    pub fn allows(&self, got: &Stamp, prefix: usize, acknowledged: usize) -> bool {
        let mut now = self.start;
        let mut allowed = vec![Range(now, now)];
        for (_, event) in self.events.iter().filter(|(metas, _)| *metas <= prefix) {
            match *event {
                Event::Moment(_, None) => {}
                Event::Synced(id) | Event::Moment(_, Some(id)) if id > acknowledged => {}
                Event::Synced(_) | Event::Moment(..) => allowed = vec![Range(now, now)],
                Event::Changed(change, stamp) => {
                    match change {
                        Change::Logged => allowed = vec![Range(stamp, stamp)],
                        Change::Dirty => allowed.push(Range(stamp, stamp)),
                        Change::Steps => allowed.push(Range(now, stamp)),
                    }
                    now = stamp;
                }
            }
        }
        allowed.iter().any(|range| range.holds(got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(modified: i64, changed: i64) -> Stamp {
        Stamp { modified: (modified, 0), changed: (changed, 0), created: (1, 0) }
    }

    #[test]
    fn a_logged_time_is_in_its_prefix_and_a_written_one_needs_a_sync() {
        let mut history = StampHistory::new(stamp(1, 1));
        history.change(0, Change::Dirty, stamp(2, 2));
        history.change(1, Change::Logged, stamp(2, 3));
        history.change(1, Change::Dirty, stamp(4, 4));
        history.sync(1, 1);
        assert!(history.allows(&stamp(1, 1), 0, 0) && history.allows(&stamp(2, 2), 0, 0));
        assert!(!history.allows(&stamp(4, 4), 0, 0), "later than the prefix");
        assert!(!history.allows(&stamp(1, 1), 1, 0) && history.allows(&stamp(2, 3), 1, 0));
        assert!(history.allows(&stamp(4, 4), 1, 0) && !history.allows(&stamp(2, 3), 1, 1));
        assert!(!history.allows(&stamp(2, 4), 1, 0), "one time of each of two moments");
    }
}
