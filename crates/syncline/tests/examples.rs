//! The examples do what they say.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Runs an example, which cargo builds with the tests; returns what it prints.
fn run(example: &str, arguments: &[&str]) -> String {
    run_with(example, arguments, "")
}

/// Also types lines for it.
fn run_with(example: &str, arguments: &[&str], typed: &str) -> String {
    let own = std::env::current_exe().expect("a test knows its path");
    let built: PathBuf = own.ancestors().nth(2).expect("tests lie in deps").join("examples").join(example);
    let mut command = Command::new(&built);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", built.display()));
    // A program that reads nothing may have ended.
    let _ = running.stdin.take().expect("piped").write_all(typed.as_bytes());
    let output = running.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn the_ledger_keeps_its_entries_from_one_run_to_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    let image = image.to_str().expect("UTF-8");
    assert_eq!(run("ledger", &[image, "42 coins"]), "entries: 1\n");
    assert_eq!(run("ledger", &[image, "7 coins"]), "entries: 2\n");
}

#[test]
fn many_files_are_written() {
    assert_eq!(run("many_files", &[]), "letters: 100\n");
}

#[test]
fn what_other_languages_are_measured_against_answers_each_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    let said = run_with("baseline", &[image.to_str().expect("UTF-8")], "sync 3\nread 1\n");
    let nanoseconds: Vec<u64> = said.lines().map(|line| line.parse().expect("a number")).collect();
    assert!(matches!(nanoseconds[..], [synced, read] if synced > 0 && read > 0), "{said}");
}

#[test]
fn a_device_of_ones_own_is_asked_for_one_write_and_one_flush() {
    assert_eq!(run("own_device", &[]), "writes: 1, flushes: 1\n");
}

#[test]
fn what_instructions_are_counted_of_runs() {
    assert_eq!(run("append_sync", &["20"]), "");
}
