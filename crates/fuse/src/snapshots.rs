//! The snapshot ioctl: its layout, what the daemon does for it, and the calls of programs.

use crate::ioctl::{self, SNAPSHOT_BYTES};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};
use syncline_fs::{Error, Fs, SnapshotData, SnapshotInfo, SystemEntropy};

/// Bytes of a name's field: what is behind the name is zeros.
const FIELD_BYTES: usize = 256;
const NAME_AT: usize = 48;
const TO_AT: usize = NAME_AT + FIELD_BYTES;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Action {
    Make = 1,
    Delete = 2,
    Rename = 3,
    /// Tells the first snapshot that was made later than `tree`; ENOENT behind the last.
    Next = 4,
}

/// `struct syncline_snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotArgument {
    action: Action,
    tree: u32,
    uuid: [u8; 16],
    seconds: i64,
    nanoseconds: u32,
    name: String,
    to: String,
}

impl SnapshotArgument {
    fn new(action: Action, tree: u32, name: &str, to: &str) -> SnapshotArgument {
        let (name, to) = (name.to_owned(), to.to_owned());
        SnapshotArgument { action, tree, uuid: [0; 16], seconds: 0, nanoseconds: 0, name, to }
    }

    /// `None`: not understood.
    pub(crate) fn decode(bytes: &[u8]) -> Option<SnapshotArgument> {
        let bytes: &[u8; SNAPSHOT_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let action = match number(0) {
            1 => Action::Make,
            2 => Action::Delete,
            3 => Action::Rename,
            4 => Action::Next,
            _ => return None,
        };
        let text = |at: usize| {
            let field = &bytes[at..at + FIELD_BYTES];
            let end = field.iter().position(|byte| *byte == 0)?;
            String::from_utf8(field[..end].to_vec()).ok()
        };
        let seconds = i64::from_ne_bytes(*bytes[24..].first_chunk()?);
        let uuid = *bytes[8..].first_chunk()?;
        let (name, to) = (text(NAME_AT)?, text(TO_AT)?);
        Some(SnapshotArgument { action, tree: number(4), uuid, seconds, nanoseconds: number(32), name, to })
    }

    /// `None`: a name is too long.
    pub(crate) fn encode(&self) -> Option<[u8; SNAPSHOT_BYTES]> {
        let mut bytes = [0; SNAPSHOT_BYTES];
        bytes[..4].copy_from_slice(&(self.action as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.tree.to_ne_bytes());
        bytes[8..24].copy_from_slice(&self.uuid);
        bytes[24..32].copy_from_slice(&self.seconds.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.nanoseconds.to_ne_bytes());
        for (at, text) in [(NAME_AT, &self.name), (TO_AT, &self.to)] {
            if text.len() >= FIELD_BYTES || text.contains('\0') {
                return None;
            }
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        Some(bytes)
    }

    /// Whether it changes the volume.
    pub(crate) fn is_change(&self) -> bool {
        self.action != Action::Next
    }

    /// Does what is asked for; returns what the caller gets back.
    pub(crate) fn run(self, fs: &Fs) -> Result<SnapshotArgument, Error> {
        let told = |info: SnapshotInfo| SnapshotArgument {
            tree: info.tree,
            uuid: info.uuid,
            seconds: info.made.seconds,
            nanoseconds: info.made.nanoseconds,
            name: info.name,
            ..self.clone()
        };
        match self.action {
            Action::Make => {
                fs.snapshot(&self.name, SnapshotData::Written, &SystemEntropy::default()).map(told)
            }
            Action::Delete => fs.delete_snapshot(&self.name).map(|()| self),
            Action::Rename => fs.rename_snapshot(&self.name, &self.to).map(|()| self),
            Action::Next => {
                let next = fs.snapshots().into_iter().find(|info| info.tree > self.tree);
                next.map(told).ok_or(Error::NotFound)
            }
        }
    }
}

/// A snapshot of a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// What people call it.
    pub name: String,
    /// Of this snapshot alone.
    pub uuid: [u8; 16],
    /// When it was made.
    pub made: SystemTime,
}

impl From<SnapshotArgument> for SnapshotEntry {
    fn from(told: SnapshotArgument) -> SnapshotEntry {
        let seconds = Duration::from_secs(told.seconds.unsigned_abs());
        let whole = match told.seconds {
            0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
            _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
        };
        let nanoseconds = Duration::from_nanos(u64::from(told.nanoseconds));
        let made = whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH);
        SnapshotEntry { name: told.name, uuid: told.uuid, made }
    }
}

fn call(file: &File, argument: &SnapshotArgument) -> io::Result<SnapshotArgument> {
    // The kernel would cut what is too long.
    let mut bytes = argument.encode().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    crate::control::call(file, ioctl::SNAPSHOT, &mut bytes)?;
    SnapshotArgument::decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Makes a snapshot of the volume that an open file or directory is on. What the kernel has of files goes to the daemon
/// before. Errors: EEXIST, EINVAL for what is no name, EPERM for others than administrators, EOPNOTSUPP on version 1.
pub fn make_snapshot(file: &File, name: &str) -> io::Result<SnapshotEntry> {
    // SAFETY: the descriptor is open.
    if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    call(file, &SnapshotArgument::new(Action::Make, 0, name, "")).map(SnapshotEntry::from)
}

/// Deletes a snapshot. Errors: ENOENT, EPERM.
pub fn delete_snapshot(file: &File, name: &str) -> io::Result<()> {
    call(file, &SnapshotArgument::new(Action::Delete, 0, name, "")).map(drop)
}

/// Gives a snapshot another name. Errors: ENOENT, EEXIST, EINVAL, EPERM.
pub fn rename_snapshot(file: &File, name: &str, to: &str) -> io::Result<()> {
    call(file, &SnapshotArgument::new(Action::Rename, 0, name, to)).map(drop)
}

/// The snapshots of the volume, in the order in which they were made.
pub fn snapshots(file: &File) -> io::Result<Vec<SnapshotEntry>> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        match call(file, &SnapshotArgument::new(Action::Next, after, "", "")) {
            Ok(told) if told.tree > after => {
                after = told.tree;
                entries.push(told.into());
            }
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(entries),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_keeps_every_field_and_names_that_do_not_fit_are_refused() {
        let argument = SnapshotArgument {
            action: Action::Rename,
            tree: 77,
            uuid: [5; 16],
            seconds: -3,
            nanoseconds: 999,
            name: "ä".repeat(127),
            to: "b".to_owned(),
        };
        let bytes = argument.encode().expect("it fits");
        assert_eq!(SnapshotArgument::decode(&bytes), Some(argument.clone()));
        assert_eq!(SnapshotArgument { to: "c".repeat(256), ..argument.clone() }.encode(), None);
        assert_eq!(SnapshotArgument { name: "a\0b".to_owned(), ..argument }.encode(), None);
        for (at, byte) in [(0, 9), (NAME_AT, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(SnapshotArgument::decode(&wrong), None, "byte {at}");
        }
        let mut endless = bytes;
        endless[NAME_AT..TO_AT].fill(b'x');
        assert_eq!(SnapshotArgument::decode(&endless), None);
        assert_eq!(SnapshotArgument::decode(&bytes[1..]), None);
    }
}
