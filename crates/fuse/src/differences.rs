//! The ioctl that tells what differs between snapshots: its layout, what the daemon does for it, and the call of
//! programs.
//!
//! What differs may be longer than an ioctl. So the daemon keeps the answer as one string of bytes, and the caller
//! fetches it in parts. A few answers are kept at a time, and none for long: a caller that went away has left it.
//!
//! Lock: `state` is innermost; nothing is called under it.

use crate::ioctl::{self, SNAPSHOT_DIFF_BYTES};
use parking_lot::Mutex;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_fs::{Change, ChangeKind, Error, Fs, SystemEntropy};

/// Bytes of a name's field: what is behind the name is zeros.
const FIELD_BYTES: usize = 256;
const OLDER_AT: usize = 24;
const NEWER_AT: usize = OLDER_AT + FIELD_BYTES;
const DATA_AT: usize = NEWER_AT + FIELD_BYTES;
/// Flag: compare checksums.
const CONTENT: u32 = 1;
/// Bytes of `struct syncline_snapshot_change`.
const CHANGE_BYTES: usize = 16;

/// Answers that are kept at a time.
const ANSWERS_MAX: usize = 4;
/// An answer of which nothing is fetched for so long is forgotten.
const ANSWER_AGE: Duration = Duration::from_secs(60);

/// `struct syncline_snapshot_diff`, as the caller fills it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiffArgument {
    token: u64,
    offset: u64,
    flags: u32,
    older: String,
    newer: String,
}

impl DiffArgument {
    /// `None`: not understood.
    pub(crate) fn decode(bytes: &[u8]) -> Option<DiffArgument> {
        let bytes: &[u8; SNAPSHOT_DIFF_BYTES] = bytes.try_into().ok()?;
        let text = |at: usize| {
            let field = &bytes[at..at + FIELD_BYTES];
            let end = field.iter().position(|byte| *byte == 0)?;
            String::from_utf8(field[..end].to_vec()).ok()
        };
        let flags = u32::from_ne_bytes(*bytes[16..].first_chunk()?);
        let argument = DiffArgument {
            token: u64::from_ne_bytes(*bytes.first_chunk()?),
            offset: u64::from_ne_bytes(*bytes[8..].first_chunk()?),
            flags,
            older: text(OLDER_AT)?,
            newer: text(NEWER_AT)?,
        };
        (flags & !CONTENT == 0).then_some(argument)
    }

    /// With a part of the answer. `None`: a name is too long. Panics if the part is.
    fn encode(&self, part: &[u8]) -> Option<Box<[u8; SNAPSHOT_DIFF_BYTES]>> {
        let mut bytes = Box::new([0; SNAPSHOT_DIFF_BYTES]);
        bytes[..8].copy_from_slice(&self.token.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[20..24].copy_from_slice(&(part.len() as u32).to_ne_bytes());
        for (at, text) in [(OLDER_AT, &self.older), (NEWER_AT, &self.newer)] {
            if text.len() >= FIELD_BYTES || text.contains('\0') {
                return None;
            }
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        bytes[DATA_AT..DATA_AT + part.len()].copy_from_slice(part);
        Some(bytes)
    }
}

/// Answers that are being fetched.
#[derive(Default)]
pub(crate) struct Differences {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answers: Vec<Answer>,
    /// Number of the last one.
    last: u64,
}

struct Answer {
    token: u64,
    bytes: Arc<Vec<u8>>,
    used: Instant,
}

impl Differences {
    /// The part of the answer that is asked for, as the caller gets it back; the first one has it made. `fs` is the
    /// head that is mounted, `whole` knows all heads.
    ///
    /// Errors: `Stale`, the answer is not kept any more; those of [`Fs::difference`].
    pub(crate) fn run(
        &self,
        argument: DiffArgument,
        fs: &Fs,
        whole: &Fs,
    ) -> Result<Box<[u8; SNAPSHOT_DIFF_BYTES]>, Error> {
        let (token, bytes) = match argument.token {
            0 => {
                let bytes = Arc::new(encode_all(&changes(&argument, fs, whole)?));
                (self.keep(&bytes), bytes)
            }
            token => (token, self.find(token)?),
        };
        let begin = usize::try_from(argument.offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = bytes.len().min(begin + SNAPSHOT_DIFF_BYTES - DATA_AT);
        if begin == bytes.len() {
            self.forget(token);
        }
        let told = DiffArgument { token, ..argument };
        told.encode(&bytes[begin..end]).ok_or(Error::NameTooLong)
    }

    fn keep(&self, bytes: &Arc<Vec<u8>>) -> u64 {
        let state = &mut *self.state.lock();
        let now = Instant::now();
        state.answers.retain(|answer| now.duration_since(answer.used) < ANSWER_AGE);
        if state.answers.len() >= ANSWERS_MAX {
            let oldest = (0..state.answers.len()).min_by_key(|index| state.answers[*index].used);
            oldest.map(|index| state.answers.swap_remove(index));
        }
        state.last += 1;
        state.answers.push(Answer { token: state.last, bytes: bytes.clone(), used: now });
        state.last
    }

    fn find(&self, token: u64) -> Result<Arc<Vec<u8>>, Error> {
        let mut state = self.state.lock();
        let answer = state.answers.iter_mut().find(|answer| answer.token == token).ok_or(Error::Stale)?;
        answer.used = Instant::now();
        Ok(answer.bytes.clone())
    }

    fn forget(&self, token: u64) {
        self.state.lock().answers.retain(|answer| answer.token != token);
    }
}

fn changes(argument: &DiffArgument, fs: &Fs, whole: &Fs) -> Result<Vec<Change>, Error> {
    let entropy = SystemEntropy::default();
    let (older, content) = (argument.older.as_str(), argument.flags & CONTENT != 0);
    if argument.newer.is_empty() {
        return fs.difference(older, None, content, &entropy);
    }
    let newer = argument.newer.as_str();
    let heads = whole.heads();
    let list = heads.list();
    if !list.iter().any(|head| head.name == newer) {
        return whole.difference(older, Some(newer), content, &entropy);
    }
    match heads.open(newer) {
        Ok(head) => head.difference(older, None, content, &entropy),
        // It is the one that the volume was opened with.
        Err(Error::Busy) => whole.difference(older, None, content, &entropy),
        Err(error) => Err(error),
    }
}

fn encode_all(changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for change in changes {
        let (kind, flags, from) = match &change.kind {
            ChangeKind::Removed => (1_u32, 0, None),
            ChangeKind::Added => (2, 0, None),
            ChangeKind::Renamed { from } => (3, 0, Some(from)),
            ChangeKind::Modified { content, attributes } => {
                (4, u32::from(*content) | u32::from(*attributes) << 1, None)
            }
            // There are no others.
            _ => continue,
        };
        let of = |path: &Path| path.as_os_str().as_bytes().to_vec();
        let (path, from) = (of(&change.path), from.map_or_else(Vec::new, |from| of(from)));
        for number in [kind, flags, path.len() as u32, from.len() as u32] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.extend_from_slice(&path);
        bytes.extend_from_slice(&from);
    }
    bytes
}

/// `None`: the bytes are no answer.
fn decode_all(mut bytes: &[u8]) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(CHANGE_BYTES)?;
        let number = |index: usize| Some(u32::from_ne_bytes(*head[4 * index..].first_chunk()?));
        let (path, rest) = rest.split_at_checked(number(2)? as usize)?;
        let (from, rest) = rest.split_at_checked(number(3)? as usize)?;
        let text = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let flags = number(1)?;
        let kind = match number(0)? {
            1 => ChangeKind::Removed,
            2 => ChangeKind::Added,
            3 => ChangeKind::Renamed { from: text(from) },
            4 => ChangeKind::Modified { content: flags & 1 != 0, attributes: flags & 2 != 0 },
            _ => return None,
        };
        changes.push(Change::new(text(path), kind));
        bytes = rest;
    }
    Some(changes)
}

/// What differs between a snapshot and a later one, a head, or, without a name, the mounted volume as it is; sorted by
/// path. What the kernel has of files goes to the daemon before. With `content` checksums are compared.
///
/// Errors: ENOENT, there is no such snapshot; EPERM for others than administrators; without a later one those of
/// [`make_snapshot`](crate::snapshots::make_snapshot).
pub fn diff(file: &File, older: &str, newer: Option<&str>, content: bool) -> io::Result<Vec<Change>> {
    crate::snapshots::hand_on(file)?;
    let (older, newer) = (older.to_owned(), newer.unwrap_or_default().to_owned());
    let flags = u32::from(content) * CONTENT;
    let mut argument = DiffArgument { token: 0, offset: 0, flags, older, newer };
    let mut answer = Vec::new();
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let mut bytes =
            argument.encode(&[]).ok_or_else(|| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        crate::control::call(file, ioctl::SNAPSHOT_DIFF, &mut bytes[..])?;
        let length = u32::from_ne_bytes(*bytes[20..].first_chunk().ok_or_else(invalid)?) as usize;
        let part = bytes[DATA_AT..].get(..length).ok_or_else(invalid)?;
        argument.token = u64::from_ne_bytes(*bytes.first_chunk().ok_or_else(invalid)?);
        argument.offset += length as u64;
        answer.extend_from_slice(part);
        if part.is_empty() {
            return decode_all(&answer).ok_or_else(invalid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Change> {
        let path = |text: &str| PathBuf::from(text);
        let modified = |content, attributes| ChangeKind::Modified { content, attributes };
        vec![
            Change::new(path(""), modified(false, true)),
            Change::new(path("a"), ChangeKind::Removed),
            Change::new(path("a/ä"), ChangeKind::Added),
            Change::new(path("b"), ChangeKind::Renamed { from: path("c/d") }),
            Change::new(PathBuf::from(OsString::from_vec(vec![0xff, b'/', 0x80])), modified(true, false)),
        ]
    }

    #[test]
    fn an_answer_keeps_every_change_and_what_is_cut_is_none() {
        let bytes = encode_all(&every_kind());
        assert_eq!(decode_all(&bytes), Some(every_kind()));
        let ends: Vec<usize> =
            (0..=every_kind().len()).map(|end| encode_all(&every_kind()[..end]).len()).collect();
        for cut in (0..bytes.len()).filter(|cut| !ends.contains(cut)) {
            assert_eq!(decode_all(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut unknown = bytes;
        unknown[0] = 9;
        assert_eq!(decode_all(&unknown), None);
    }

    #[test]
    fn an_argument_keeps_every_field_and_names_that_do_not_fit_are_refused() {
        let name = "ä".repeat(127);
        let argument =
            DiffArgument { token: 7, offset: 1 << 40, flags: CONTENT, older: name, newer: "n".to_owned() };
        let bytes = argument.encode(&[1; SNAPSHOT_DIFF_BYTES - DATA_AT]).expect("it fits");
        assert_eq!(DiffArgument::decode(&bytes[..]), Some(argument.clone()));
        assert!(DiffArgument { newer: "c".repeat(256), ..argument.clone() }.encode(&[]).is_none());
        assert!(DiffArgument { newer: "a\0b".to_owned(), ..argument }.encode(&[]).is_none());
        for (at, byte) in [(16, 2), (OLDER_AT, 0xff)] {
            let mut wrong = bytes.clone();
            wrong[at] = byte;
            assert_eq!(DiffArgument::decode(&wrong[..]), None, "byte {at}");
        }
        assert_eq!(DiffArgument::decode(&bytes[1..]), None);
    }

    #[test]
    fn a_few_answers_are_kept_and_each_until_it_is_fetched() {
        let differences = Differences::default();
        let first = differences.keep(&Arc::default());
        let others: Vec<u64> = (0..ANSWERS_MAX).map(|_| differences.keep(&Arc::default())).collect();
        assert!(matches!(differences.find(first), Err(Error::Stale)), "the oldest has made room");
        for token in &others {
            assert!(differences.find(*token).is_ok());
        }
        differences.forget(others[0]);
        assert!(differences.find(others[0]).is_err() && differences.find(others[1]).is_ok());
        assert_eq!(differences.state.lock().answers.len(), ANSWERS_MAX - 1);
    }
}
