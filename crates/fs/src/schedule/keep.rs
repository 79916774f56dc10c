//! Which snapshots have to go.

use super::calendar::Period;
use std::collections::{BTreeMap, BTreeSet};
use syncline_format::TreeId;
use syncline_format::schedule::Schedule;
use syncline_format::tree_item::{Role, TreeItem, TreeState};

/// A snapshot as the schedule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) tree: TreeId,
    /// Seconds since 1970.
    pub(crate) made: i64,
    pub(crate) is_scheduled: bool,
    /// Seconds since 1970; 0: never.
    pub(crate) expires: u64,
    /// It is held, or several trees descend from it: it is never deleted by the schedule.
    pub(crate) has_to_stay: bool,
}

/// The snapshots that the schedule may have to do with, in the order in which they were made.
pub(crate) fn kept(items: &BTreeMap<TreeId, TreeItem>) -> Vec<Kept> {
    let is_seen =
        |item: &TreeItem| item.role == Role::Snapshot && item.state == TreeState::Live && !item.is_hidden;
    let is_meant = |item: &TreeItem| is_seen(item) && (item.stay.is_scheduled || item.stay.expires != 0);
    if !items.values().any(is_meant) {
        return Vec::new();
    }
    let mut descendants: BTreeMap<TreeId, usize> = BTreeMap::new();
    for parent in items.values().filter_map(|item| item.parent) {
        *descendants.entry(parent).or_default() += 1;
    }
    let kept = |(tree, item): (&TreeId, &TreeItem)| Kept {
        tree: *tree,
        made: item.made.seconds,
        is_scheduled: item.stay.is_scheduled,
        expires: item.stay.expires,
        has_to_stay: item.stay.is_held || descendants.get(tree).is_some_and(|count| *count > 1),
    };
    items.iter().filter(|(_, item)| is_meant(item)).map(kept).collect()
}

/// Those of which no class keeps any more, and those that have expired, oldest first. What has to stay counts where it
/// lies.
///
/// The order is that in which they were made, and not that of their times: a clock that was set back or ahead makes
/// none of them older than it is. So no time that has passed deletes a snapshot, but those made since.
pub(crate) fn doomed(kept: &[Kept], schedule: Option<&Schedule>, now: i64) -> Vec<TreeId> {
    let mut classes: Vec<(Period, usize, BTreeSet<i64>)> = Vec::new();
    for (period, count) in schedule.into_iter().flat_map(Period::used) {
        classes.push((period, count, BTreeSet::new()));
    }
    let mut doomed = Vec::new();
    for snapshot in kept.iter().rev() {
        let mut is_kept = schedule.is_none() || !snapshot.is_scheduled;
        if snapshot.is_scheduled {
            for (period, count, seen) in &mut classes {
                let number = period.number(snapshot.made);
                is_kept |= seen.len() < *count && seen.insert(number);
            }
        }
        let is_expired = snapshot.expires != 0 && i64::try_from(snapshot.expires).is_ok_and(|end| end <= now);
        if (!is_kept || is_expired) && !snapshot.has_to_stay {
            doomed.push(snapshot.tree);
        }
    }
    doomed.reverse();
    doomed
}
