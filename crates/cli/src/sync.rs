//! `syncline sync`: makes files durable, whole or in part, one after another or all at once.
//!
//! A range, and a sync that is started before it is waited for, are calls of mounted Syncline volumes. Whole files,
//! one after another, are synced on any filesystem.

use crate::arguments::SyncArguments;
use crate::error::Failure;
use crate::size::Size;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use syncline_fuse::control::{self, SyncRequest};

/// Most files that are open at once with `--async`.
const OPEN_MAX: usize = 512;

/// A part of a file, as `OFFSET:LENGTH`; a length of 0 or none reaches to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileRange {
    offset: u64,
    end: u64,
}

impl FromStr for FileRange {
    type Err = String;

    fn from_str(text: &str) -> Result<FileRange, String> {
        let (offset, length) = text.split_once(':').ok_or("a range is written as OFFSET:LENGTH")?;
        let offset = Size::from_str(offset)?.0;
        let end = match length {
            "" => u64::MAX,
            length => match Size::from_str(length)?.0 {
                0 => u64::MAX,
                length => offset.checked_add(length).ok_or("the range ends beyond all files")?,
            },
        };
        Ok(FileRange { offset, end })
    }
}

/// Syncs all files; the first error is told, and the others are synced all the same.
pub(crate) fn run(arguments: &SyncArguments) -> Result<ExitCode, Failure> {
    let mut result = Ok(());
    match arguments.start_all {
        true => {
            for files in arguments.files.chunks(OPEN_MAX) {
                result = result.and(sync_together(arguments, files));
            }
        }
        false => {
            for path in &arguments.files {
                let synced = open(path).and_then(|file| sync(arguments, &file));
                result = result.and(synced.map_err(|error| failed(path, error)));
            }
        }
    }
    result.map(|()| ExitCode::SUCCESS)
}

fn request(arguments: &SyncArguments) -> SyncRequest {
    let range = arguments.range.map_or(0..u64::MAX, |range| range.offset..range.end);
    SyncRequest { range, data_only: arguments.data }
}

/// Reading is enough to sync, and a directory cannot be opened for more. Nothing is waited for: a FIFO cannot be
/// synced anyway.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn sync(arguments: &SyncArguments, file: &File) -> io::Result<()> {
    match (arguments.range, arguments.data) {
        (Some(_), _) => control::sync_range(file, &request(arguments)),
        (None, true) => file.sync_data(),
        (None, false) => file.sync_all(),
    }
}

/// Starts all syncs and waits for them then.
fn sync_together(arguments: &SyncArguments, files: &[PathBuf]) -> Result<(), Failure> {
    let request = request(arguments);
    let started: Vec<io::Result<(File, u64)>> = files
        .iter()
        .map(|path| {
            let file = open(path)?;
            let ticket = control::start_sync(&file, &request)?;
            Ok((file, ticket))
        })
        .collect();
    let ended = started.into_iter().zip(files).map(|(started, path)| {
        let ended = started.and_then(|(file, ticket)| control::wait_for_sync(&file, ticket));
        ended.map_err(|error| failed(path, error))
    });
    ended.fold(Ok(()), Result::and)
}

fn failed(path: &Path, source: io::Error) -> Failure {
    match source.raw_os_error() {
        // ENOTTY and EISDIR; the standard library has a kind for the second only.
        Some(25) => Failure::NotOnSyncline { path: path.to_owned() },
        Some(21) => Failure::SyncOfDirectory { path: path.to_owned() },
        _ => Failure::Io { doing: format!("cannot sync {}", path.display()), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_with_units_and_without_an_end() {
        let range = |text: &str| text.parse::<FileRange>().map(|range| (range.offset, range.end));
        assert_eq!(range("0:4096"), Ok((0, 4096)));
        assert_eq!(range("1M:64k"), Ok((1 << 20, (1 << 20) + (64 << 10))));
        assert_eq!(range("10:"), Ok((10, u64::MAX)));
        assert_eq!(range("10:0"), Ok((10, u64::MAX)));
        assert!(range("10").is_err_and(|why| why.contains("OFFSET:LENGTH")));
        assert!(range("x:1").is_err());
        assert!(range("16383P:16383P").is_err_and(|why| why.contains("beyond")));
    }
}
