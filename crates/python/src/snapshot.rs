//! What a snapshot is, as Python gets it.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};
use syncline::Snapshot;

/// Name, UUID, when it was made in nanoseconds since 1970, number.
pub(crate) type Told = (String, Cow<'static, [u8]>, i128, u32);

pub(crate) fn told(snapshot: Snapshot) -> Told {
    (snapshot.name, Cow::Owned(snapshot.uuid.to_vec()), nanoseconds(snapshot.made), snapshot.number)
}

fn nanoseconds(time: SystemTime) -> i128 {
    let length = |since: std::time::Duration| i128::try_from(since.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => length(since),
        Err(before) => -length(before.duration()),
    }
}
