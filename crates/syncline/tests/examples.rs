//! The examples do what they say.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example, which cargo builds with the tests; returns what it prints.
fn run(example: &str, arguments: &[&str]) -> String {
    let own = std::env::current_exe().expect("a test knows its path");
    let built: PathBuf = own.ancestors().nth(2).expect("tests lie in deps").join("examples").join(example);
    let output = Command::new(&built).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", built.display()));
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
