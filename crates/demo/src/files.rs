//! The many-small-files workload, over a mounted directory or the embedded engine.
//!
//! Each file is created, written and synced, nothing else: no sync of its directory, which C1 makes unnecessary.
//! Every eighth time an older file is replaced the way editors and package managers do it: write a new one, sync it,
//! rename it over, sync.

use super::ledger::{Acknowledged, Ledger, content};
use std::io;

/// Where files can be kept. Paths are relative, with `/` between their parts.
pub(super) trait Place: Send + Sync {
    fn make_directory(&self, path: &str) -> io::Result<()>;
    /// Creates or overwrites a file, and syncs it.
    fn put(&self, path: &str, content: &[u8]) -> io::Result<()>;
    /// Appends to a file, and syncs it.
    fn append(&self, path: &str, content: &[u8]) -> io::Result<()>;
    /// Renames, and syncs the file under its new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn get(&self, path: &str) -> io::Result<Vec<u8>>;
}

const DIRECTORIES: u64 = 16;

fn directory(index: u64) -> String {
    format!("files/{:02}", index % DIRECTORIES)
}

fn name(index: u64) -> String {
    format!("{}/{index:06}", directory(index))
}

/// Whether creating `index` is followed by the replacement of an older file, and of which.
fn replaced_after(index: u64) -> Option<u64> {
    (index % 8 == 7).then(|| index - 4)
}

/// Works until the place fails (the power is cut) or the receiver of acknowledgements says stop.
pub(super) fn work(
    place: &dyn Place,
    first: u64,
    acknowledge: &mut dyn FnMut(Acknowledged) -> io::Result<()>,
) -> io::Result<()> {
    ignore_existing(place.make_directory("files"))?;
    for index in 0..DIRECTORIES {
        ignore_existing(place.make_directory(&directory(index)))?;
    }
    for index in first.. {
        place.put(&name(index), &content(index, 0))?;
        acknowledge(Acknowledged::File { index, version: 0 })?;
        if let Some(older) = replaced_after(index) {
            let temporary = format!("{}/new", directory(older));
            place.put(&temporary, &content(older, 1))?;
            place.rename(&temporary, &name(older))?;
            acknowledge(Acknowledged::File { index: older, version: 1 })?;
        }
    }
    Ok(())
}

fn ignore_existing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Compares every acknowledged file; returns the sentences about those that are wrong.
pub(super) fn verify(place: &dyn Place, ledger: &Ledger) -> Vec<String> {
    let mut wrong = Vec::new();
    for (&index, &version) in &ledger.files {
        match place.get(&name(index)) {
            // A replacement under way at the cut may have become durable without having been acknowledged.
            Ok(found) if found == content(index, version) || found == content(index, version + 1) => {}
            Ok(found) => wrong.push(format!("{} has other content ({} bytes)", name(index), found.len())),
            Err(error) => wrong.push(format!("{}: {error}", name(index))),
        }
    }
    wrong
}

/// The rows of the stand-in for the database: a file of lines.
const ROWS: &str = "rows";

/// Appends one synced row after the other. For places where no database can run.
pub(super) fn append_rows(
    place: &dyn Place,
    first: u64,
    acknowledge: &mut dyn FnMut(Acknowledged) -> io::Result<()>,
) -> io::Result<()> {
    for row in first.. {
        place.append(ROWS, row_line(row).as_bytes())?;
        acknowledge(Acknowledged::Row(row))?;
    }
    Ok(())
}

fn row_line(row: u64) -> String {
    format!("{row:010} {:016x}\n", row.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Compares every acknowledged row, and cuts off what follows (so that the next run continues there).
pub(super) fn verify_rows(place: &dyn Place, ledger: &mut Ledger) -> Vec<String> {
    if ledger.rows == 0 {
        return Vec::new();
    }
    let found = match place.get(ROWS) {
        Ok(found) => String::from_utf8_lossy(&found).into_owned(),
        Err(error) => return vec![format!("{ROWS}: {error}")],
    };
    let mut lines = found.lines();
    let expected = (0..ledger.rows).map(row_line);
    let wrong: Vec<_> = expected
        .filter(|line| lines.next() != Some(line.trim_end()))
        .map(|line| format!("row {} is missing or wrong", &line[..10]))
        .collect();
    // Rows that became durable without having been acknowledged are right as well.
    ledger.rows += lines.count() as u64;
    wrong
}
