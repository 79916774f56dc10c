//! sqlite3: one row a transaction, synchronous=FULL, in the three journal modes that programs use.

use super::{check, place};
use crate::measure::Outcome;
use crate::workload::Context;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

pub(crate) fn delete(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    insert(context, "DELETE")
}

pub(crate) fn truncate(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    insert(context, "TRUNCATE")
}

pub(crate) fn wal(context: &Context<'_>, _width: usize) -> io::Result<Outcome> {
    insert(context, "WAL")
}

fn insert(context: &Context<'_>, mode: &str) -> io::Result<Outcome> {
    let directory = match place(context, "sqlite3", "sqlite3") {
        Ok(directory) => directory,
        Err(why) => return Ok(Outcome::skipped(why)),
    };
    let database = directory.join("bench.db");
    let shell = || {
        let mut command = Command::new("sqlite3");
        command.args(["-bail", "-batch"]).arg(&database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    feed(
        shell(),
        &format!("PRAGMA journal_mode={mode}; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);"),
    )?;
    let operations = context.arguments.operations.min(5000);
    let mut script = format!("PRAGMA journal_mode={mode}; PRAGMA synchronous=FULL;\n");
    for index in 0..operations {
        script.push_str(&format!("INSERT INTO t VALUES ({index}, '{:0100}');\n", index * 7919));
    }
    context.meter.begin()?;
    let start = Instant::now();
    feed(shell(), &script)?;
    let elapsed = start.elapsed();
    context.meter.end()?;
    let rows = feed(shell(), "SELECT count(*) FROM t;")?;
    if rows.trim() != operations.to_string() {
        return Err(io::Error::other(format!("sqlite3 counts {} rows, not {operations}", rows.trim())));
    }
    Ok(Outcome { operations, elapsed, ..Outcome::default() })
}

/// Runs the shell with a script and returns what it printed. The shell prints little, so the pipes cannot fill up.
fn feed(mut shell: Command, script: &str) -> io::Result<String> {
    let mut child = shell.spawn()?;
    let written = match child.stdin.take() {
        Some(mut input) => input.write_all(script.as_bytes()),
        None => Ok(()),
    };
    let output = check("sqlite3", child.wait_with_output()?)?;
    written?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
