//! The SQLite workload: the `sqlite3` program, one transaction per row, each acknowledged when the program says so.

use super::ledger::{Acknowledged, Ledger};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether the program is there.
pub(super) fn is_available() -> bool {
    let version =
        Command::new("sqlite3").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

fn value(row: u64) -> String {
    format!("{:016x}", row.wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4)
}

/// Inserts rows from `first` on, one durable transaction each, until the database fails.
pub(super) fn work(
    database: &Path,
    journal_mode: &str,
    first: u64,
    acknowledge: &mut dyn FnMut(Acknowledged) -> io::Result<()>,
) -> io::Result<()> {
    let mut program = Command::new("sqlite3")
        .arg(database)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (Some(mut input), Some(output)) = (program.stdin.take(), program.stdout.take()) else {
        return Err(io::Error::other("no pipe to sqlite3"));
    };
    let mut output = BufReader::new(output).lines();
    let mut transact = || -> io::Result<()> {
        // With FULL, SQLite does not sync the directory after it has unlinked a rollback journal: the last commit may
        // be rolled back after a power cut, on any file system. EXTRA makes it durable before the statement returns.
        writeln!(input, ".bail on\nPRAGMA journal_mode={journal_mode};\nPRAGMA synchronous=EXTRA;")?;
        writeln!(input, "CREATE TABLE IF NOT EXISTS rows(n INTEGER PRIMARY KEY, v TEXT);")?;
        for row in first.. {
            writeln!(input, "INSERT INTO rows VALUES({row},'{}');\nSELECT 'row {row}';", value(row))?;
            input.flush()?;
            loop {
                let line = output.next().ok_or(io::ErrorKind::UnexpectedEof)??;
                if let Some(acknowledged) = Acknowledged::parse(&line) {
                    acknowledge(acknowledged)?;
                    break;
                }
            }
        }
        Ok(())
    };
    let result = transact();
    drop(input);
    // It may hang on a dead mount; whether it is gone already does not matter.
    let _ = program.kill();
    let _ = program.wait();
    result
}

/// Checks the database's own integrity and every acknowledged row; returns the sentences about what is wrong.
pub(super) fn verify(database: &Path, ledger: &mut Ledger) -> Vec<String> {
    if ledger.rows == 0 {
        return Vec::new();
    }
    let output = Command::new("sqlite3")
        .arg(database)
        .arg("PRAGMA integrity_check; SELECT n, v FROM rows ORDER BY n;")
        .output();
    let output = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(output) => return vec![format!("sqlite3: {}", String::from_utf8_lossy(&output.stderr).trim())],
        Err(error) => return vec![format!("sqlite3: {error}")],
    };
    let mut lines = output.lines();
    if lines.next() != Some("ok") {
        return vec![format!("integrity_check: {}", output.lines().next().unwrap_or("no answer"))];
    }
    let mut wrong = Vec::new();
    for row in 0..ledger.rows {
        if lines.next() != Some(&format!("{row}|{}", value(row))) {
            wrong.push(format!("row {row} is missing or wrong"));
        }
    }
    // Rows committed without having been acknowledged are right as well; the next run continues behind them.
    ledger.rows += lines.count() as u64;
    wrong
}
