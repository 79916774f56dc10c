//! A broad run of SQL: every file of `tests/sql` gives the same results on the VFS as on SQLite's own, and the ones
//! written down, in every journal mode with every setting of synchronous.
//!
//! The files are in the manner of sqllogictest: records with an empty line between them, each of them
//! - `statement ok` or `statement error`, and SQL below it;
//! - `query`, SQL, `----`, and the rows, columns separated by `|`; without `----` the rows are only compared;
//! - `reopen`: the connection is closed and opened again;
//! - `requires rollback` at the top: not for journal mode OFF, in which SQLite cannot undo anything;
//! - `#` begins a comment. `$uri(NAME)` is the URI of another database beside this one.

use crate::common::{Place, open, set_modes};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use std::fmt::Write;
use std::path::{Path, PathBuf};

#[derive(Debug)]
enum Expected {
    Ok,
    Error,
    Rows(Option<Vec<String>>),
}

#[derive(Debug)]
struct Record {
    line: usize,
    sql: String,
    expected: Expected,
    reopen: bool,
}

struct Script {
    name: String,
    requires_rollback: bool,
    records: Vec<Record>,
}

fn parse(path: &Path) -> Script {
    let text = std::fs::read_to_string(path).expect("read");
    let mut script = Script {
        name: path.file_name().expect("a name").to_string_lossy().into_owned(),
        requires_rollback: false,
        records: Vec::new(),
    };
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')).peekable();
    while let Some((number, first)) = lines.next() {
        let mut body = Vec::new();
        if first.is_empty() {
            continue;
        }
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.is_empty()) {
            body.push(line);
        }
        let expected = match first.trim() {
            "requires rollback" => {
                script.requires_rollback = true;
                continue;
            }
            "statement ok" | "reopen" => Expected::Ok,
            "statement error" => Expected::Error,
            "query" => Expected::Rows(None),
            other => panic!("{}:{}: what is {other:?}?", script.name, number + 1),
        };
        let split = body.iter().position(|line| *line == "----");
        let rows = split.map(|at| body[at + 1..].iter().map(|&row| row.to_owned()).collect());
        let sql = body[..split.unwrap_or(body.len())].join("\n");
        let expected = if let Expected::Rows(_) = expected { Expected::Rows(rows) } else { expected };
        let reopen = first == "reopen";
        script.records.push(Record { line: number + 1, sql, expected, reopen });
    }
    script
}

fn scripts() -> Vec<Script> {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sql"));
    let mut paths: Vec<_> =
        directory.read_dir().expect("list").map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "test"))
        .map(|path| parse(path))
        .collect()
}

fn show(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "NULL".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => format!("{number:?}"),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => bytes.iter().fold("x".to_owned(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes everything");
            text
        }),
    }
}

fn query(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let columns: rusqlite::Result<Vec<String>> =
            (0..columns).map(|column| Ok(show(row.get_ref(column)?))).collect();
        found.push(columns?.join("|"));
    }
    Ok(found)
}

/// Runs a script; what every record gave.
fn run(script: &Script, uri: &dyn Fn(&str) -> String, journal: &str, synchronous: &str) -> Vec<String> {
    let connect = || {
        let connection = open(&uri("main")).expect("open");
        set_modes(&connection, journal, synchronous);
        connection
    };
    let mut connection = connect();
    let mut results = Vec::new();
    for record in &script.records {
        let place = format!("{}:{} ({journal}, {synchronous})", script.name, record.line);
        if record.reopen {
            drop(connection);
            connection = connect();
        }
        let mut sql = record.sql.clone();
        while let Some(start) = sql.find("$uri(") {
            let end = start + sql[start..].find(')').expect("a closing parenthesis");
            let name = sql[start + 5..end].to_owned();
            sql.replace_range(start..=end, &uri(&name));
        }
        let result = match &record.expected {
            Expected::Rows(expected) => query(&connection, &sql).map(|rows| {
                if let Some(expected) = expected {
                    assert_eq!(&rows, expected, "{place}: {sql}");
                }
                rows.join("\n")
            }),
            _ => connection.execute_batch(&sql).map(|()| "ok".to_owned()),
        };
        assert_eq!(result.is_err(), matches!(record.expected, Expected::Error), "{place}: {result:?}: {sql}");
        results.push(result.unwrap_or_else(|error| error.to_string()));
    }
    results
}

/// Runs all scripts in one journal mode: on SQLite's own VFS once, and on this one with every setting of synchronous.
fn compare(journal: &str) {
    let scripts = scripts();
    assert!(scripts.len() >= 8, "the scripts are in tests/sql");
    for script in scripts.iter().filter(|script| journal != "off" || !script.requires_rollback) {
        let directory = tempfile::tempdir().expect("a directory");
        let host = |name: &str| format!("file:{}?vfs=unix", directory.path().join(name).display());
        let want = run(script, &host, journal, "OFF");
        for synchronous in ["OFF", "NORMAL", "FULL", "EXTRA"] {
            let place = Place::new();
            let got = run(script, &|name| place.uri(name), journal, synchronous);
            for ((want, got), record) in want.iter().zip(&got).zip(&script.records) {
                assert_eq!(
                    got, want,
                    "{}:{} ({journal}, {synchronous}): {}",
                    script.name, record.line, record.sql
                );
            }
        }
    }
}

#[test]
fn results_are_the_same_in_journal_mode_delete() {
    compare("delete");
}

#[test]
fn results_are_the_same_in_journal_mode_truncate() {
    compare("truncate");
}

#[test]
fn results_are_the_same_in_journal_mode_persist() {
    compare("persist");
}

#[test]
fn results_are_the_same_in_journal_mode_memory() {
    compare("memory");
}

#[test]
fn results_are_the_same_in_journal_mode_off() {
    compare("off");
}

#[test]
fn results_are_the_same_in_journal_mode_wal() {
    compare("wal");
}
