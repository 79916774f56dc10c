//! What snapshots and heads are, as Python gets it.

use std::borrow::Cow;
use std::ffi::OsString;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline::{Change, ChangeKind, HeadInfo, Snapshot};

/// Name, UUID, when it was made in nanoseconds since 1970, number, whether it is held, whether the schedule made it.
pub(crate) type Told = (String, Cow<'static, [u8]>, i128, u32, bool, bool);

pub(crate) fn told(snapshot: Snapshot) -> Told {
    let uuid = Cow::Owned(snapshot.uuid.to_vec());
    (snapshot.name, uuid, nanoseconds(snapshot.made), snapshot.number, snapshot.held, snapshot.scheduled)
}

/// Name, UUID, when it was made in nanoseconds since 1970, number, whether it is shown when nobody names one, and what
/// it was made of.
pub(crate) type ToldHead = (String, Cow<'static, [u8]>, i128, u32, bool, Option<String>);

pub(crate) fn told_head(head: HeadInfo) -> ToldHead {
    let uuid = Cow::Owned(head.uuid.to_vec());
    (head.name, uuid, nanoseconds(head.made), head.number, head.is_default, head.parent)
}

/// What happened, the path, the path before, whether the content and whether the attributes differ.
pub(crate) type Changed = (&'static str, OsString, Option<OsString>, bool, bool);

pub(crate) fn changed(change: Change) -> Changed {
    let path = change.path.into_os_string();
    match change.kind {
        ChangeKind::Removed => ("removed", path, None, false, false),
        ChangeKind::Added => ("added", path, None, false, false),
        ChangeKind::Renamed { from } => ("renamed", path, Some(from.into_os_string()), false, false),
        ChangeKind::Modified { content, attributes } => ("modified", path, None, content, attributes),
        other => unreachable!("{other:?} is listed above"),
    }
}

fn nanoseconds(time: SystemTime) -> i128 {
    let length = |since: std::time::Duration| i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => length(since),
        Err(before) => -length(before.duration()),
    }
}
