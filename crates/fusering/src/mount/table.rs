//! The table of mounts: /proc/self/mountinfo.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the mounted filesystem.
    pub device: String,
    pub path: PathBuf,
    /// As `fuse.subtype`.
    pub kind: String,
    pub source: PathBuf,
    /// The user who mounted it, where it is a FUSE mount.
    pub owner: Option<u32>,
}

/// The mount whose root `path` is; the topmost one if there are several.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let path = absolute(path)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(parse(&table).into_iter().rfind(|entry| entry.path == path))
}

/// Where a filesystem is mounted that is, or was, mounted as `entry` says: it may be bound to several directories.
pub fn mounted_as(entry: &MountEntry) -> io::Result<Option<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let is_same = |other: &MountEntry| {
        other.device == entry.device && other.kind == entry.kind && other.source == entry.source
    };
    Ok(parse(&table).into_iter().find(is_same).map(|entry| entry.path))
}

/// Like `canonicalize`, but without touching the last component: a dead mount cannot be looked at.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}

fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = fields.nth(2)?;
    let path = fields.nth(1)?;
    // Optional fields end with a lone dash.
    fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    let source = fields.next()?;
    let options = fields.next().unwrap_or_default();
    Some(MountEntry {
        device: String::from_utf8_lossy(device).into_owned(),
        path: unescaped(path),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: unescaped(source),
        owner: owner(options),
    })
}

/// The number behind `user_id=` among a filesystem's own options.
fn owner(options: &[u8]) -> Option<u32> {
    let number = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"user_id="))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// Undoes the kernel's `\040` for blanks, tabs, newlines and backslashes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits =
            tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) => {
                out.push(digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0')) as u8);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_escapes() {
        let table = b"36 35 98:0 / /mnt/with\\040blank rw,noatime master:1 - ext3 /dev/root rw\n\
                      41 35 0:52 / /mnt/a rw - fuse.x /var/img\\134x rw,user_id=1000,group_id=0\n";
        let entries = parse(table);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].path, Path::new("/mnt/with blank"));
        assert_eq!(entries[1].source, Path::new("/var/img\\x"));
        assert_eq!((entries[1].device.as_str(), entries[1].kind.as_str()), ("0:52", "fuse.x"));
        assert_eq!((entries[0].owner, entries[1].owner), (None, Some(1000)));
    }

    #[test]
    fn damaged_lines_are_skipped() {
        assert!(parse(b"\n1 2\n1 2 3:4 / /x rw\n").is_empty());
    }
}
