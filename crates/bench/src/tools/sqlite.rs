//! sqlite3: one row a transaction, synchronous=FULL, inserted, updated, deleted, in the journal modes that programs use.
//!
//! `--sqlite-atomic` names a sqlite3 built to use batch atomic writes: its DELETE mode is measured beside them.

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

pub(crate) fn atomic(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    let Some(program) = &context.arguments.sqlite_atomic else {
        return Ok(Outcome::skipped(
            "no sqlite3 with SQLITE_ENABLE_BATCH_ATOMIC_WRITE was given; name it by --sqlite-atomic",
        ));
    };
    match place(context, "", "") {
        Ok(directory) => measure(context, program.as_os_str(), directory, "DELETE"),
        Err(why) => Ok(Outcome::skipped(why)),
    }
}

fn rows(context: &Context<'_>, mode: &str) -> io::Result<Outcome> {
    match place(context, "sqlite3", "sqlite3") {
        Ok(directory) => measure(context, OsStr::new("sqlite3"), directory, mode),
        Err(why) => Ok(Outcome::skipped(why)),
    }
}

/// The headline is that of inserts; the device's counts are of all three.
fn measure(context: &Context<'_>, program: &OsStr, directory: &Path, mode: &str) -> io::Result<Outcome> {
    let shell = Shell { program, database: directory.join("bench.db") };
    shell
        .feed(&format!("PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);"))?;
    let count = context.arguments.operations.min(ROWS_MAX);
    let timed = |statement: &dyn Fn(u64) -> String| -> io::Result<Duration> {
        let mut script = format!("PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n");
        for index in 0..count {
            script.push_str(&statement(index));
        }
        let start = Instant::now();
        shell.feed(&script)?;
        Ok(start.elapsed())
    };
    context.meter.begin()?;
    let inserted = timed(&|index| format!("INSERT INTO t VALUES ({index}, '{:0100}');\n", index * 7919))?;
    let rows = shell.feed("SELECT count(*) FROM t;")?;
    if rows.trim() != count.to_string() {
        return Err(io::Error::other(format!("sqlite3 counts {} rows, not {count}", rows.trim())));
    }
    let updated = timed(&|index| {
        let row = index * 7919 % count;
        format!("UPDATE t SET text = '{:0100}' WHERE id = {row};\n", index * 104_729)
    })?;
    let deleted = timed(&|index| format!("DELETE FROM t WHERE id = {index};\n"))?;
    context.meter.end()?;
    let rows = shell.feed("SELECT count(*) FROM t;")?;
    if rows.trim() != "0" {
        return Err(io::Error::other(format!("sqlite3 has {} rows left", rows.trim())));
    }
    let per_second = |elapsed: Duration| count as f64 / elapsed.as_secs_f64();
    let elapsed = inserted + updated + deleted;
    Ok(Outcome { operations: 3 * count, elapsed, ..Outcome::default() }
        .with("ops_per_s", per_second(inserted))
        .with("insert_per_s", per_second(inserted))
        .with("update_per_s", per_second(updated))
        .with("delete_per_s", per_second(deleted)))
}

struct Shell<'a> {
    program: &'a OsStr,
    database: PathBuf,
}

impl Shell<'_> {
    /// Runs the shell with a script and returns what it printed. The shell prints little, so the pipes cannot fill up.
    fn feed(&self, script: &str) -> io::Result<String> {
        let mut command = Command::new(self.program);
        command.args(["-bail", "-batch"]).arg(&self.database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let written = match child.stdin.take() {
            Some(mut input) => input.write_all(script.as_bytes()),
            None => Ok(()),
        };
        let output = check("sqlite3", child.wait_with_output()?)?;
        written?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
