//! Attributes as a program wants them.

use crate::{Attr, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use syncline_format::item::{MODE_DIRECTORY, MODE_REGULAR, MODE_SYMLINK, MODE_TYPE_MASK};

/// Attributes of a file, directory or symbolic link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    attr: Attr,
}

impl Metadata {
    pub(crate) fn new(attr: Attr) -> Metadata {
        Metadata { attr }
    }

    /// All attributes, as the engine has them.
    pub fn attr(&self) -> &Attr {
        &self.attr
    }

    fn has_type(&self, file_type: u32) -> bool {
        self.attr.mode & MODE_TYPE_MASK == file_type
    }

    /// A regular file.
    pub fn is_file(&self) -> bool {
        self.has_type(MODE_REGULAR)
    }

    /// A directory.
    pub fn is_dir(&self) -> bool {
        self.has_type(MODE_DIRECTORY)
    }

    /// A symbolic link (only [`crate::Volume::symlink_metadata`] shows one).
    pub fn is_symlink(&self) -> bool {
        self.has_type(MODE_SYMLINK)
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.attr.size
    }

    /// Permission bits, the set-id and sticky bits included.
    pub fn mode(&self) -> u32 {
        self.attr.mode & 0o7777
    }

    /// Last change of the content.
    pub fn modified(&self) -> SystemTime {
        to_system_time(self.attr.modified)
    }

    /// Last read.
    pub fn accessed(&self) -> SystemTime {
        to_system_time(self.attr.accessed)
    }

    /// Creation.
    pub fn created(&self) -> SystemTime {
        to_system_time(self.attr.created)
    }
}

/// What the platform's time cannot hold is the epoch.
fn to_system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let base =
        if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(time.nanoseconds))))
        .unwrap_or(UNIX_EPOCH)
}

pub(crate) fn from_system_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let borrow = i64::from(before.subsec_nanos() > 0);
            let nanoseconds = (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000;
            // From zero downwards: the earliest second has no positive counterpart.
            let seconds = 0i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN);
            Timestamp { seconds: seconds.saturating_sub(borrow), nanoseconds }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_the_conversion() {
        for (seconds, nanoseconds) in
            [(0, 0), (5, 7), (-1, 999_999_999), (-5, 0), (1 << 40, 1), (i64::MIN, 0), (i64::MAX, 5)]
        {
            let time = Timestamp { seconds, nanoseconds };
            assert_eq!(from_system_time(to_system_time(time)), time);
        }
    }
}
