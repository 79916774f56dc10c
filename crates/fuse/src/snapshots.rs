//! The snapshot ioctl: its layout, what the daemon does for it, and the calls of programs.

use crate::ioctl::{self, SNAPSHOT_BYTES, SNAPSHOT_USAGE_BYTES};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime};
use syncline_fs::{Error, Fs, HeadInfo, SnapshotData, SnapshotInfo, SnapshotKind, SystemEntropy};

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
    Hold = 5,
    Release = 6,
    /// Makes the head `to` of the snapshot `name`.
    MakeHead = 7,
    DeleteHead = 8,
    /// Tells the first head whose tree has a greater number, and what it descends from; ENOENT behind the last.
    NextHead = 9,
}

/// Flag: the snapshot is held.
const HELD: u32 = 1;
/// Flag: the head is shown when nobody names one.
const DEFAULT: u32 = 2;
/// Flag: the schedule has made the snapshot.
const SCHEDULED: u32 = 4;
/// Snapshots of one usage at most.
pub(crate) const USAGE_MAX: usize = 3840;
/// Where their numbers begin in `struct syncline_snapshot_usage`.
const USAGE_TREES_AT: usize = 16;

/// `struct syncline_snapshot`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotArgument {
    action: Action,
    tree: u32,
    uuid: [u8; 16],
    seconds: i64,
    nanoseconds: u32,
    flags: u32,
    expires: u64,
    name: String,
    to: String,
}

impl SnapshotArgument {
    fn new(action: Action, tree: u32, name: &str, to: &str) -> SnapshotArgument {
        let (name, to) = (name.to_owned(), to.to_owned());
        let uuid = [0; 16];
        SnapshotArgument { action, tree, uuid, seconds: 0, nanoseconds: 0, flags: 0, expires: 0, name, to }
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
            5 => Action::Hold,
            6 => Action::Release,
            7 => Action::MakeHead,
            8 => Action::DeleteHead,
            9 => Action::NextHead,
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
        let (tree, nanoseconds, flags) = (number(4), number(32), number(36));
        let expires = u64::from_ne_bytes(*bytes[40..].first_chunk()?);
        Some(SnapshotArgument { action, tree, uuid, seconds, nanoseconds, flags, expires, name, to })
    }

    /// `None`: a name is too long.
    pub(crate) fn encode(&self) -> Option<[u8; SNAPSHOT_BYTES]> {
        let mut bytes = [0; SNAPSHOT_BYTES];
        bytes[..4].copy_from_slice(&(self.action as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.tree.to_ne_bytes());
        bytes[8..24].copy_from_slice(&self.uuid);
        bytes[24..32].copy_from_slice(&self.seconds.to_ne_bytes());
        bytes[32..36].copy_from_slice(&self.nanoseconds.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[40..48].copy_from_slice(&self.expires.to_ne_bytes());
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
        !matches!(self.action, Action::Next | Action::NextHead)
    }

    /// Whether it may delete a snapshot.
    pub(crate) fn is_deletion(&self) -> bool {
        self.action == Action::Delete
    }

    /// Does what is asked for in the head `fs`, and returns what the caller gets back. `whole` knows all heads.
    pub(crate) fn run(self, fs: &Fs, whole: &Fs) -> Result<SnapshotArgument, Error> {
        let told = |info: SnapshotInfo| SnapshotArgument {
            tree: info.tree,
            uuid: info.uuid,
            seconds: info.made.seconds,
            nanoseconds: info.made.nanoseconds,
            flags: (u32::from(info.is_held) * HELD) | (u32::from(info.is_scheduled) * SCHEDULED),
            expires: info.expires,
            name: info.name,
            ..self.clone()
        };
        let told_of_head = |head: HeadInfo| SnapshotArgument {
            tree: head.tree,
            uuid: head.uuid,
            seconds: head.made.seconds,
            nanoseconds: head.made.nanoseconds,
            flags: u32::from(head.is_default) * DEFAULT,
            name: head.name,
            to: head.parent.unwrap_or_default(),
            ..self.clone()
        };
        match self.action {
            Action::Make => {
                let kind = SnapshotKind {
                    data: SnapshotData::Written,
                    expires: self.expires,
                    is_held: self.flags & HELD != 0,
                };
                fs.snapshot(&self.name, kind, &SystemEntropy::default()).map(told)
            }
            Action::Delete => fs.delete_snapshot(&self.name).map(|()| self),
            Action::Rename => fs.rename_snapshot(&self.name, &self.to).map(|()| self),
            Action::Hold => fs.hold_snapshot(&self.name).map(|()| self),
            Action::Release => fs.release_snapshot(&self.name).map(|()| self),
            Action::Next => fs.snapshot_names().behind(self.tree).map(told).ok_or(Error::NotFound),
            Action::MakeHead => {
                whole.heads().make(&self.name, &self.to, &SystemEntropy::default()).map(told_of_head)
            }
            Action::DeleteHead => whole.heads().delete(&self.name).map(|()| self),
            Action::NextHead => {
                let next = whole.heads().list().into_iter().find(|head| head.tree > self.tree);
                next.map(told_of_head).ok_or(Error::NotFound)
            }
        }
    }
}

/// The numbers of `struct syncline_snapshot_usage`. `None`: not understood.
pub(crate) fn decode_usage(bytes: &[u8]) -> Option<Vec<u32>> {
    let (count, rest) = bytes.split_first_chunk()?;
    let count = u32::from_ne_bytes(*count) as usize;
    let trees = rest.get(USAGE_TREES_AT - 4..)?.as_chunks::<4>().0.get(..count)?;
    (bytes.len() == SNAPSHOT_USAGE_BYTES)
        .then(|| trees.iter().map(|tree| u32::from_ne_bytes(*tree)).collect())
}

/// The same with what was found. Panics if there are more than [`USAGE_MAX`].
pub(crate) fn encode_usage(trees: &[u32], found: u64) -> Vec<u8> {
    assert!(trees.len() <= USAGE_MAX, "usage of {} snapshots", trees.len());
    let mut bytes = vec![0; SNAPSHOT_USAGE_BYTES];
    bytes[..4].copy_from_slice(&(trees.len() as u32).to_ne_bytes());
    bytes[8..16].copy_from_slice(&found.to_ne_bytes());
    for (into, tree) in bytes[USAGE_TREES_AT..].chunks_exact_mut(4).zip(trees) {
        into.copy_from_slice(&tree.to_ne_bytes());
    }
    bytes
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
    /// Of a snapshot that was made later it is greater.
    pub number: u32,
    /// It is not deleted before it is released.
    pub held: bool,
    /// The schedule has made it, and deletes it.
    pub scheduled: bool,
    /// From then on it is deleted in the background.
    pub expires: Option<SystemTime>,
}

impl SnapshotArgument {
    fn made(&self) -> SystemTime {
        let seconds = Duration::from_secs(self.seconds.unsigned_abs());
        let whole = match self.seconds {
            0.. => SystemTime::UNIX_EPOCH.checked_add(seconds),
            _ => SystemTime::UNIX_EPOCH.checked_sub(seconds),
        };
        let nanoseconds = Duration::from_nanos(u64::from(self.nanoseconds));
        whole.and_then(|whole| whole.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    fn expiry(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.expires)).filter(|_| self.expires != 0)
    }
}

impl From<SnapshotArgument> for SnapshotEntry {
    fn from(told: SnapshotArgument) -> SnapshotEntry {
        let (made, held, expires) = (told.made(), told.flags & HELD != 0, told.expiry());
        let scheduled = told.flags & SCHEDULED != 0;
        SnapshotEntry { name: told.name, uuid: told.uuid, made, number: told.tree, held, scheduled, expires }
    }
}

/// A head of a mounted volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadEntry {
    /// What people call it.
    pub name: String,
    /// Of this head alone; zeros of a volume's first.
    pub uuid: [u8; 16],
    /// When it was made; the epoch for a volume's first.
    pub made: SystemTime,
    /// It is shown when nobody names a head.
    pub is_default: bool,
    /// The newest snapshot of it, or the one that it was made of, if that has a name.
    pub parent: Option<String>,
}

impl From<SnapshotArgument> for HeadEntry {
    fn from(told: SnapshotArgument) -> HeadEntry {
        let (made, is_default) = (told.made(), told.flags & DEFAULT != 0);
        let parent = (!told.to.is_empty()).then_some(told.to);
        HeadEntry { name: told.name, uuid: told.uuid, made, is_default, parent }
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
///
/// One that is held is not deleted before it is released; one that expires is deleted in the background from then on.
pub fn make_snapshot(
    file: &File,
    name: &str,
    held: bool,
    expires: Option<SystemTime>,
) -> io::Result<SnapshotEntry> {
    hand_on(file)?;
    let seconds = |expires: SystemTime| match expires.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since.as_secs() > 0 => Ok(since.as_secs()),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    let (flags, expires) = (u32::from(held) * HELD, expires.map(seconds).transpose()?.unwrap_or(0));
    let argument = SnapshotArgument { flags, expires, ..SnapshotArgument::new(Action::Make, 0, name, "") };
    call(file, &argument).map(SnapshotEntry::from)
}

/// Hands the daemon what the kernel has of all files.
pub(crate) fn hand_on(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::syncfs(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Deletes a snapshot. Errors: ENOENT, EPERM, EBUSY if it is held.
pub fn delete_snapshot(file: &File, name: &str) -> io::Result<()> {
    call(file, &SnapshotArgument::new(Action::Delete, 0, name, "")).map(drop)
}

/// Gives a snapshot another name. Errors: ENOENT, EEXIST, EINVAL, EPERM.
pub fn rename_snapshot(file: &File, name: &str, to: &str) -> io::Result<()> {
    call(file, &SnapshotArgument::new(Action::Rename, 0, name, to)).map(drop)
}

/// Holds a snapshot, so that it is not deleted, or releases it. Errors: ENOENT, EPERM.
pub fn hold_snapshot(file: &File, name: &str, hold: bool) -> io::Result<()> {
    let action = if hold { Action::Hold } else { Action::Release };
    call(file, &SnapshotArgument::new(action, 0, name, "")).map(drop)
}

/// Bytes that would become free if these snapshots were deleted together, by their numbers. Errors: ENOENT, EPERM;
/// E2BIG for more than 3840 of them.
pub fn snapshot_usage(file: &File, numbers: &[u32]) -> io::Result<u64> {
    if numbers.len() > USAGE_MAX {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    let mut bytes = encode_usage(numbers, 0);
    crate::control::call(file, ioctl::SNAPSHOT_USAGE, &mut bytes)?;
    let found = bytes[8..].first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    Ok(u64::from_ne_bytes(*found))
}

/// The snapshots of the volume, in the order in which they were made.
pub fn snapshots(file: &File) -> io::Result<Vec<SnapshotEntry>> {
    all(file, Action::Next)
}

/// Makes a head of a snapshot. Errors: ENOENT, there is no such snapshot; EEXIST, EINVAL, EPERM, ENOSPC.
pub fn make_head(file: &File, of: &str, name: &str) -> io::Result<HeadEntry> {
    call(file, &SnapshotArgument::new(Action::MakeHead, 0, of, name)).map(HeadEntry::from)
}

/// Deletes a head. Errors: ENOENT, EPERM; EBUSY if it is mounted, or is the one that is shown when nobody names one.
pub fn delete_head(file: &File, name: &str) -> io::Result<()> {
    call(file, &SnapshotArgument::new(Action::DeleteHead, 0, name, "")).map(drop)
}

/// The heads of the volume, in the order in which they were made.
pub fn heads(file: &File) -> io::Result<Vec<HeadEntry>> {
    all(file, Action::NextHead)
}

fn all<T: From<SnapshotArgument>>(file: &File, next: Action) -> io::Result<Vec<T>> {
    let (mut entries, mut after) = (Vec::new(), 0);
    loop {
        match call(file, &SnapshotArgument::new(next, after, "", "")) {
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
            flags: HELD,
            expires: 1 << 33,
            name: "ä".repeat(127),
            to: "b".to_owned(),
        };
        let bytes = argument.encode().expect("it fits");
        assert_eq!(SnapshotArgument::decode(&bytes), Some(argument.clone()));
        assert_eq!(SnapshotArgument { to: "c".repeat(256), ..argument.clone() }.encode(), None);
        assert_eq!(SnapshotArgument { name: "a\0b".to_owned(), ..argument }.encode(), None);
        for (at, byte) in [(0, 10), (NAME_AT, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = byte;
            assert_eq!(SnapshotArgument::decode(&wrong), None, "byte {at}");
        }
        let mut endless = bytes;
        endless[NAME_AT..TO_AT].fill(b'x');
        assert_eq!(SnapshotArgument::decode(&endless), None);
        assert_eq!(SnapshotArgument::decode(&bytes[1..]), None);
        for trees in [Vec::new(), vec![16, 99], vec![7; USAGE_MAX]] {
            assert_eq!(decode_usage(&encode_usage(&trees, 5)), Some(trees));
        }
        let mut many = encode_usage(&[], 0);
        many[..4].copy_from_slice(&(USAGE_MAX as u32 + 1).to_ne_bytes());
        assert_eq!(decode_usage(&many), None);
        assert_eq!(decode_usage(&many[1..]), None);
    }
}
