//! The schedule of snapshots: who tends the volume makes them, and deletes those whose time has passed (C11).
//!
//! It is run by [`Fs::maintain`], with the time that is handed in there, and remembers nothing that it cannot find out
//! again: which hour has its snapshot, the snapshots themselves say. So hours in which nobody had the volume open are
//! made up for by one snapshot, and a clock that was set makes one more at most for each hour that it shows.
//!
//! A snapshot of the schedule shows what is committed, which nobody waits for: that is one batch, durable within the
//! commit interval like other changes. It is of the head that is shown when nobody names one, while that is open.

mod calendar;
mod keep;

use crate::clock::is_over;
use crate::core::agenda::Progress;
use crate::limits::{SCHEDULE_DELETIONS_MAX, SCHEDULE_LOOK_INTERVAL, SCHEDULE_RETRY_INTERVAL};
use crate::snapshots::make_snapshot;
use crate::{Error, Fs, Result, Timestamp};
use calendar::Period;
use keep::{Kept, doomed, kept};
use syncline_format::item::NAME_BYTES_MAX;
use syncline_format::schedule::{KeepFree, Schedule};
use syncline_format::tree_item::Stay;
use syncline_format::{TreeId, checksum};
use syncline_store::SnapshotLabel;

/// The schedule of a volume.
pub struct Schedules<'a> {
    fs: &'a Fs,
}

impl Fs {
    /// The schedule of snapshots. Call it on what [`Fs::open`] has returned.
    pub fn schedules(&self) -> Schedules<'_> {
        Schedules { fs: self }
    }
}

impl Schedules<'_> {
    /// The schedule; without one, and on a volume of version 1, none.
    pub fn get(&self) -> Option<Schedule> {
        self.fs.core.store.schedule().map(|schedule| Schedule::clone(&schedule))
    }

    /// Gives the volume a schedule, or takes it away, for good when this has returned. What it has made stays; the next
    /// schedule goes on with it.
    ///
    /// Errors: EINVAL for what is none ([`Schedule::fault`]); EOPNOTSUPP on a volume of version 1; ENOSPC.
    pub fn set(&self, schedule: Option<&Schedule>) -> Result<()> {
        self.fs.core.check_writable()?;
        if let Some(fault) = schedule.and_then(Schedule::fault) {
            return Err(Error::Invalid(fault));
        }
        let lsn = self.fs.relieved(|store| store.set_schedule(schedule))?;
        Ok(self.fs.core.store.force(lsn)?)
    }

    /// Whether so little is free that none is made, and the oldest go.
    pub fn is_low(&self) -> bool {
        self.fs.core.store.schedule().is_some_and(|schedule| self.falls_below(schedule.keep_free))
    }

    /// `told` is called, without locks, when snapshots were deleted because their time had come. Only the first one
    /// given counts.
    pub fn on_deletion(&self, told: Box<dyn Fn() + Send + Sync>) {
        drop(self.fs.core.agenda.on_deletion.set(told));
    }

    /// Does what is due at `now`; true if there is more to do. Errors: the volume has latched (C8).
    pub(crate) fn follow(&self, now: Timestamp) -> Result<bool> {
        let core = &self.fs.core;
        let is_whole = core.opened.get() == Some(&self.fs.content.tree);
        if !is_whole || core.options.read_only || core.store.failure().is_some() || !core.store.has_trees() {
            return Ok(false);
        }
        let Some(mut progress) = core.agenda.progress.try_lock() else { return Ok(false) };
        let schedule = core.store.schedule();
        if progress.schedule != schedule {
            *progress = Progress { schedule: schedule.clone(), ..Progress::default() };
        }
        let followed = self.clear(&mut progress, now).and_then(|more| {
            let Some(schedule) = schedule else { return Ok(more) };
            let made = self.make_if_due(&mut progress, &schedule, now)?;
            Ok(self.make_room(&mut progress, &schedule)? | made | more)
        });
        let deleted = std::mem::take(&mut progress.has_deleted);
        drop(progress);
        if let Some(told) = core.agenda.on_deletion.get().filter(|_| deleted) {
            told();
        }
        match followed {
            // Others hinder it, and not for good; what fails for good has latched.
            Err(error) if core.store.failure().is_none() => {
                tracing::warn!(%error, "the schedule of snapshots could not be followed");
                Ok(false)
            }
            followed => followed,
        }
    }

    /// Deletes what no class keeps any more, and what has expired; true if there is more of it.
    fn clear(&self, progress: &mut Progress, now: Timestamp) -> Result<bool> {
        if progress.looked.is_some_and(|looked| !is_over(SCHEDULE_LOOK_INTERVAL, now, looked)) {
            return Ok(false);
        }
        // Also where it fails: the next look is not before the interval is over.
        progress.looked = Some(now);
        let doomed = doomed(&self.kept(), progress.schedule.as_deref(), now.seconds);
        for tree in doomed.iter().take(SCHEDULE_DELETIONS_MAX) {
            self.delete(progress, *tree, now)?;
        }
        let more = doomed.len() > SCHEDULE_DELETIONS_MAX;
        if more {
            progress.looked = None;
        }
        Ok(more)
    }

    fn delete(&self, progress: &mut Progress, tree: TreeId, now: Timestamp) -> Result<()> {
        let is_scheduled = progress.schedule.is_some();
        let seconds = u64::try_from(now.seconds).unwrap_or(0);
        self.fs.relieved(|store| store.delete_due(tree, is_scheduled, seconds))?;
        progress.has_deleted = true;
        self.fs.writeback.wake_background();
        Ok(())
    }

    fn kept(&self) -> Vec<Kept> {
        self.fs.core.store.look_at_trees(kept).unwrap_or_default()
    }

    /// Makes the snapshot of this hour (or day, week, month), if it has none and something has changed; true if so.
    fn make_if_due(&self, progress: &mut Progress, schedule: &Schedule, now: Timestamp) -> Result<bool> {
        let Some((period, _)) = Period::used(schedule).next() else { return Ok(false) };
        let number = period.number(now.seconds);
        let has_failed = progress.failed.is_some_and(|then| !is_over(SCHEDULE_RETRY_INTERVAL, now, then));
        if progress.decided == Some(number) || has_failed || self.falls_below(schedule.keep_free) {
            return Ok(false);
        }
        let store = &self.fs.core.store;
        let head = store.default_head();
        let beside = self.fs.open_heads.lock().get(&head).map(|open| open.fs.clone());
        let fs = match &beside {
            Some(fs) => fs,
            None if head == self.fs.content.tree => self.fs,
            // Nobody changes it.
            None => return Ok(false),
        };
        let kept = self.kept();
        let mut scheduled = kept.iter().filter(|snapshot| snapshot.is_scheduled);
        let is_made = scheduled.clone().any(|snapshot| period.number(snapshot.made) == number);
        let newest = scheduled.next_back();
        let is_due = !is_made && !newest.is_some_and(|newest| store.is_unchanged(head, newest.tree));
        if is_due {
            // Tried once, whatever comes of it; whoever fails comes back later.
            progress.failed = Some(now);
            let label = self.label(&schedule.prefix, now);
            make_snapshot(fs, &label)?;
            progress.failed = None;
            tracing::info!(name = %label.name, "a snapshot of the schedule was made");
            progress.looked = None;
        }
        progress.decided = Some(number);
        Ok(is_due)
    }

    /// A name that nobody has, and a number that follows from what is made and when: the engine draws none.
    fn label(&self, prefix: &str, now: Timestamp) -> SnapshotLabel {
        let store = &self.fs.core.store;
        let name = format!("{prefix}-{}", calendar::moment(now.seconds));
        let is_free = |name: &String| {
            let is_taken = store.look_at_trees(|items| items.values().any(|item| item.name == *name));
            name.len() <= NAME_BYTES_MAX && is_taken != Some(true)
        };
        let others = (2_u32..).map(|number| format!("{name}.{number}"));
        let name = std::iter::once(name.clone()).chain(others).find(is_free).unwrap_or(name);
        let what = [&store.info().uuid[..], name.as_bytes(), &store.last_lsn().0.to_le_bytes()].concat();
        let half = |salt: u8| checksum(&[&what[..], &now.nanoseconds.to_le_bytes(), &[salt]].concat());
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&half(0).to_le_bytes());
        uuid[8..].copy_from_slice(&half(1).to_le_bytes());
        // Version 8, variant 1 of RFC 9562.
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        SnapshotLabel { name, uuid, made: now, stay: Stay { is_scheduled: true, ..Stay::default() } }
    }

    /// Deletes the oldest snapshot of the schedule that may go while too little is free: one after the other, each when
    /// the space of the one before has come back. True if one was deleted.
    fn make_room(&self, progress: &mut Progress, schedule: &Schedule) -> Result<bool> {
        let store = &self.fs.core.store;
        let is_low = self.falls_below(schedule.keep_free);
        if is_low && !progress.is_low {
            tracing::warn!(
                "less is free than the schedule keeps free; its oldest snapshots go, and none is made"
            );
        }
        progress.is_low = is_low;
        if !is_low || store.can_reap() {
            return Ok(false);
        }
        let kept = self.kept();
        let may_go = |snapshot: &&Kept| {
            snapshot.is_scheduled && !snapshot.has_to_stay && store.is_free_to_go(snapshot.tree)
        };
        let Some(oldest) = kept.iter().find(may_go) else { return Ok(false) };
        self.delete(progress, oldest.tree, Timestamp::default())?;
        Ok(true)
    }

    /// Whether less is free, or will be behind the next checkpoint.
    fn falls_below(&self, bound: KeepFree) -> bool {
        let space = self.fs.core.store.space();
        let blocks = match bound {
            KeepFree::Nothing => return false,
            KeepFree::Percent(percent) => {
                space.total / 100 * u64::from(percent) + space.total % 100 * u64::from(percent) / 100
            }
            KeepFree::Bytes(bytes) => bytes.div_ceil(syncline_format::BLOCK_BYTES as u64),
        };
        space.available + space.pinned < blocks
    }
}
