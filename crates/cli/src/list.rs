//! `syncline ls` and `syncline cat`: what lies in an unmounted volume.

use crate::arguments::{CatArguments, LsArguments};
use crate::copy;
use crate::error::Failure;
use crate::output::{Form, Table, printable};
use crate::snapshot;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use syncline::{Attr, Error, Metadata, Timestamp, Volume};

/// Columns of the long form; the name is last, because it may be of any length.
const COLUMNS: &[(&str, usize)] =
    &[("mode", 10), ("links", 5), ("uid", 6), ("gid", 6), ("size", 12), ("modified", 19), ("name", 1)];
/// The same, with the inode in front.
const COLUMNS_WITH_INODE: &[(&str, usize)] = &[
    ("inode", 10),
    ("mode", 10),
    ("links", 5),
    ("uid", 6),
    ("gid", 6),
    ("size", 12),
    ("modified", 19),
    ("name", 1),
];
/// Bytes of a file printed at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Lists a directory, or the attributes of one file.
pub(crate) fn ls(arguments: &LsArguments) -> Result<ExitCode, Failure> {
    let volume = copy::open(&arguments.path, true)?;
    let volume = snapshot::view(volume, &arguments.path, arguments.snapshot.as_deref())?;
    let listing = Listing { arguments, volume };
    let found = listing.collect()?;
    let printed = if arguments.json || arguments.long {
        listing.print_table(&found)
    } else {
        listing.print_names(&found)
    };
    printed.map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints files' contents one after another.
pub(crate) fn cat(arguments: &CatArguments) -> Result<ExitCode, Failure> {
    let volume = copy::open(&arguments.path, true)?;
    let volume = snapshot::view(volume, &arguments.path, arguments.snapshot.as_deref())?;
    let mut out = io::stdout().lock();
    let mut buffer = vec![0; CHUNK_BYTES];
    for path in &arguments.files {
        let failed = |source| Failure::inside(&arguments.path, path, source);
        let mut file = volume.open_file(path).map_err(failed)?;
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                break;
            }
            out.write_all(&buffer[..count]).map_err(Failure::io("cannot print"))?;
        }
    }
    out.flush().map_err(Failure::io("cannot print"))?;
    Ok(ExitCode::SUCCESS)
}

/// A name as it is shown, and what is there.
struct Found {
    shown: PathBuf,
    path: PathBuf,
    metadata: Metadata,
}

struct Listing<'a> {
    arguments: &'a LsArguments,
    volume: Volume,
}

impl Listing<'_> {
    fn failed(&self, path: &Path) -> impl Fn(io::Error) -> Failure + use<> {
        let (image, path) = (self.arguments.path.clone(), path.to_owned());
        move |source| Failure::inside(&image, &path, source)
    }

    fn collect(&self) -> Result<Vec<Found>, Failure> {
        let top = &self.arguments.directory;
        let metadata = self.volume.metadata(top).map_err(self.failed(top))?;
        if !metadata.is_dir() {
            let metadata = self.volume.symlink_metadata(top).map_err(self.failed(top))?;
            return Ok(vec![Found { shown: top.clone(), path: top.clone(), metadata }]);
        }
        let mut found = Vec::new();
        let mut pending = vec![PathBuf::new()];
        // On a damaged volume a directory may be in several places, and each of them would double what is listed.
        let mut listed = HashSet::from([metadata.attr().inode]);
        while let Some(directory) = pending.pop() {
            let path = top.join(&directory);
            for entry in self.volume.read_dir(&path).map_err(self.failed(&path))? {
                let entry = entry.map_err(self.failed(&path))?;
                let metadata = entry.metadata().map_err(self.failed(&entry.path()))?;
                let shown = directory.join(entry.file_name());
                if self.arguments.recursive && metadata.is_dir() {
                    if !listed.insert(metadata.attr().inode) {
                        let object = metadata.attr().inode;
                        let what = "a directory has several names";
                        return Err(self.failed(&entry.path())(Error::Inconsistent { object, what }.into()));
                    }
                    pending.push(shown.clone());
                }
                found.push(Found { shown, path: entry.path(), metadata });
            }
        }
        found.sort_by(|one, other| one.shown.cmp(&other.shown));
        Ok(found)
    }

    fn print_table(&self, found: &[Found]) -> io::Result<()> {
        let form = Form::json_if(self.arguments.json);
        let columns = if self.arguments.inode { COLUMNS_WITH_INODE } else { COLUMNS };
        let mut table = Table::new(form, columns)?;
        for one in found {
            let attr = one.metadata.attr();
            let leads_to = match one.metadata.is_symlink() {
                true => Some(self.volume.read_link(&one.path)?.display().to_string()),
                false => None,
            };
            table.row(&match form {
                Form::Json => as_json(one, attr, leads_to),
                Form::Text => as_text(one, attr, leads_to),
            })?;
        }
        table.finish()
    }

    /// Names as they are, byte by byte; on a terminal without what it would obey.
    fn print_names(&self, found: &[Found]) -> io::Result<()> {
        let is_terminal = io::stdout().is_terminal();
        let mut out = io::BufWriter::new(io::stdout().lock());
        for one in found {
            if self.arguments.inode {
                write!(out, "{:>10} ", one.metadata.attr().inode.0)?;
            }
            match is_terminal {
                true => out.write_all(printable(&one.shown.to_string_lossy()).as_bytes())?,
                false => out.write_all(one.shown.as_os_str().as_bytes())?,
            }
            out.write_all(b"\n")?;
        }
        out.flush()
    }
}

fn type_name(mode: u32) -> (char, &'static str) {
    match mode >> 12 {
        0o10 => ('-', "file"),
        0o04 => ('d', "directory"),
        0o12 => ('l', "symlink"),
        0o01 => ('p', "fifo"),
        0o14 => ('s', "socket"),
        0o02 => ('c', "character device"),
        0o06 => ('b', "block device"),
        _ => ('?', "unknown"),
    }
}

/// `drwxr-xr-x`, as ls(1) writes it.
fn mode_text(mode: u32) -> String {
    let mut text = String::from(type_name(mode).0);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift & 0o7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

fn as_json(found: &Found, attr: &Attr, leads_to: Option<String>) -> Map<String, Value> {
    let row = json!({
        "name": found.shown.display().to_string(),
        "type": type_name(attr.mode).1,
        "inode": attr.inode.0,
        "mode": format!("{:04o}", attr.mode & 0o7777),
        "links": attr.nlink,
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "blocks": attr.blocks,
        "modified": format!("{}.{:09}", attr.modified.seconds, attr.modified.nanoseconds),
        "target": leads_to,
    });
    match row {
        Value::Object(map) => map,
        _ => unreachable!("a row is an object"),
    }
}

fn as_text(found: &Found, attr: &Attr, leads_to: Option<String>) -> Map<String, Value> {
    let name = match leads_to {
        Some(target) => format!("{} -> {target}", found.shown.display()),
        None => found.shown.display().to_string(),
    };
    let mut row = as_json(found, attr, None);
    row.insert("name".to_owned(), name.into());
    row.insert("mode".to_owned(), mode_text(attr.mode).into());
    row.insert("modified".to_owned(), date(attr.modified).into());
    row
}

/// `2026-11-21T18:29:01`, in UTC; any time that can be stored, some of which have years of twelve digits.
/// As [`date`], of the standard library's time.
pub(crate) fn date_of(time: std::time::SystemTime) -> String {
    let seconds = match time.duration_since(std::time::UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            -whole.saturating_add(i64::from(before.subsec_nanos() > 0))
        }
    };
    date(Timestamp { seconds, nanoseconds: 0 })
}

pub(crate) fn date(time: Timestamp) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    // Days since 1970 to a date: http://howardhinnant.github.io/date_algorithms.html, civil_from_days.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_that_can_be_stored_has_a_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (-1, "1969-12-31T23:59:59"),
            (1_795_285_741, "2026-11-21T18:29:01"),
            (-62_167_219_201, "-001-12-31T23:59:59"),
            (i64::MAX, "292277026596-12-04T15:30:07"),
            (i64::MIN, "-292277022657-01-27T08:29:52"),
        ] {
            assert_eq!(date(Timestamp { seconds, nanoseconds: 999_999_999 }), text);
        }
    }

    #[test]
    fn modes_are_written_as_ls_does() {
        for (mode, text) in [
            (0o100644, "-rw-r--r--"),
            (0o040755, "drwxr-xr-x"),
            (0o120777, "lrwxrwxrwx"),
            (0o104711, "-rws--x--x"),
            (0o102644, "-rw-r-Sr--"),
            (0o041777, "drwxrwxrwt"),
        ] {
            assert_eq!(mode_text(mode), text);
        }
    }
}
