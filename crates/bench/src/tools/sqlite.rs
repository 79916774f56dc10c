//! sqlite3: one row a transaction, synchronous=FULL, inserted, updated, deleted, in the journal modes that programs
//! use; with batch atomic writes; on the VFS, which opens the engine's volume in the process of sqlite3; and on the
//! engine's volume in this process.
//!
//! sqlite3 itself tells the time before the first transaction and behind the last. So the program's start is not
//! counted, nor that on the VFS it mounts and unmounts the volume, which no other system is charged with; it is told
//! as a figure of its own.

mod atomic;
mod lent;
mod library;

pub(crate) use lent::{delete as lent_delete, persist as lent_persist};

use super::{check, place};
use crate::measure::Outcome;
use crate::workload::Context;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More rows than these tell nothing new.
const ROWS_MAX: u64 = 5000;
/// Has sqlite3 print what time it is, in milliseconds.
const MOMENT: &str = "SELECT 'moment', CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER);\n";
/// What it prints before the time.
const MOMENT_MARK: &str = "moment|";

pub(crate) fn delete(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    rows(context, "DELETE")
}

pub(crate) fn truncate(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    rows(context, "TRUNCATE")
}

pub(crate) fn persist(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    rows(context, "PERSIST")
}

pub(crate) fn wal(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    rows(context, "WAL")
}

/// With the atomic writes of f2fs, where the file system has them.
pub(crate) fn atomic(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let directory = match place(context, "", "") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let program = match &context.arguments.sqlite_atomic {
        Some(program) => Some(program.clone()),
        None => atomic::program(&context.arguments.work)?,
    };
    let Some(program) = program else {
        return Ok(Outcome::skipped(
            "there is no sqlite3 with SQLITE_ENABLE_BATCH_ATOMIC_WRITE and none can be compiled; name one by --sqlite-atomic",
        ));
    };
    match context.backend.has_atomic_writes()? {
        true => measure(context, &Shell::of(program.as_os_str(), directory), "DELETE"),
        false => Ok(Outcome::skipped("the file system has no atomic writes; its figure is sqlite-delete")),
    }
}

pub(crate) fn vfs_delete(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    vfs(context, "DELETE")
}

pub(crate) fn vfs_wal(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    vfs(context, "WAL")
}

/// On the VFS, in the process of sqlite3.
fn vfs(context: &Context<'_>, mode: &str) -> io::Result<Outcome> {
    let Some(volume) = context.released else {
        return Ok(Outcome::skipped(
            "the VFS opens a volume that nobody has mounted; measured as the engine",
        ));
    };
    let library = match &context.arguments.sqlite_vfs {
        Some(library) => library.clone(),
        None => std::env::current_exe()?.with_file_name("libsyncline_sqlite.so"),
    };
    if !library.exists() {
        let why =
            format!("{} is missing; make build makes it, --sqlite-vfs names another", library.display());
        return Ok(Outcome::skipped(why));
    }
    let uri = format!("file:/bench.db?vfs=syncline&volume={}", volume.display());
    let before = format!(".load {}\n.open '{uri}'\n", library.display());
    let shell = Shell { program: OsStr::new("sqlite3"), database: PathBuf::from(":memory:"), before };
    measure(context, &shell, mode)
}

fn rows(context: &Context<'_>, mode: &str) -> io::Result<Outcome> {
    match place(context, "sqlite3", "sqlite3") {
        Ok(directory) => measure(context, &Shell::of(OsStr::new("sqlite3"), directory), mode),
        Err(why) => Ok(Outcome::skipped(why)),
    }
}

/// The headline is that of inserts; the device's counts are of all three.
fn measure(context: &Context<'_>, shell: &Shell<'_>, mode: &str) -> io::Result<Outcome> {
    shell
        .feed(&format!("PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);"))?;
    let count = context.arguments.operations.min(ROWS_MAX);
    let mut around = Duration::ZERO;
    let mut timed = |statement: &dyn Fn(u64) -> String| -> io::Result<Duration> {
        let mut script = format!("PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n{MOMENT}");
        for index in 0..count {
            script.push_str(&statement(index));
        }
        script.push_str(MOMENT);
        let start = Instant::now();
        let elapsed = between_moments(&shell.feed(&script)?)?;
        around += start.elapsed().saturating_sub(elapsed);
        Ok(elapsed)
    };
    context.meter.begin()?;
    let inserted = timed(&inserting)?;
    let rows = shell.feed("SELECT count(*) FROM t;")?;
    if rows.lines().last() != Some(&count.to_string()) {
        return Err(io::Error::other(format!("sqlite3 counts {} rows, not {count}", rows.trim())));
    }
    let updated = timed(&|index| updating(index, count))?;
    let deleted = timed(&deleting)?;
    context.meter.end()?;
    let rows = shell.feed("SELECT count(*) FROM t;")?;
    if rows.lines().last() != Some("0") {
        return Err(io::Error::other(format!("sqlite3 has {} rows left", rows.trim())));
    }
    let per_second = |elapsed: Duration| count as f64 / elapsed.as_secs_f64();
    let elapsed = inserted + updated + deleted;
    Ok(Outcome { operations: 3 * count, elapsed, ..Outcome::default() }
        .with("ops_per_s", per_second(inserted))
        .with("start_and_end_ms", around.as_secs_f64() * 1e3 / 3.0)
        .with("insert_per_s", per_second(inserted))
        .with("update_per_s", per_second(updated))
        .with("delete_per_s", per_second(deleted)))
}

/// The transactions; the table has as many rows as there are of each.
fn inserting(index: u64) -> String {
    format!("INSERT INTO t VALUES ({index}, '{:0100}');\n", index * 7919)
}

fn updating(index: u64, count: u64) -> String {
    let row = index * 7919 % count;
    format!("UPDATE t SET text = '{:0100}' WHERE id = {row};\n", index * 104_729)
}

fn deleting(index: u64) -> String {
    format!("DELETE FROM t WHERE id = {index};\n")
}

/// The time between the two moments that were printed.
fn between_moments(printed: &str) -> io::Result<Duration> {
    let moments = printed.lines().filter_map(|line| line.strip_prefix(MOMENT_MARK));
    let moments: Vec<u64> = moments.filter_map(|moment| moment.parse().ok()).collect();
    match moments[..] {
        // A run shorter than the clock's unit has taken less than one.
        [first, last] if last >= first => Ok(Duration::from_millis((last - first).max(1))),
        _ => Err(io::Error::other(format!("sqlite3 does not tell the time: {}", printed.trim()))),
    }
}

struct Shell<'a> {
    program: &'a OsStr,
    database: PathBuf,
    /// What each script begins with.
    before: String,
}

impl<'a> Shell<'a> {
    fn of(program: &'a OsStr, directory: &Path) -> Shell<'a> {
        Shell { program, database: directory.join("bench.db"), before: String::new() }
    }

    /// Runs the shell with a script and returns what it printed. The shell prints little, so the pipes cannot fill up.
    fn feed(&self, script: &str) -> io::Result<String> {
        let mut command = Command::new(self.program);
        command.args(["-bail", "-batch"]).arg(&self.database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let written = match child.stdin.take() {
            Some(mut input) => input.write_all(format!("{}{script}", self.before).as_bytes()),
            None => Ok(()),
        };
        let output = check("sqlite3", child.wait_with_output()?)?;
        written?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_what_lies_between_the_two_moments_that_sqlite_prints() {
        let printed = "delete\nmoment|1700000000123\nother\nmoment|1700000000623\n";
        assert_eq!(between_moments(printed).expect("two moments"), Duration::from_millis(500));
        assert!(between_moments("moment|1700000000123\n").is_err());
        assert!(between_moments("moment|5\nmoment|4\n").is_err());
    }
}
