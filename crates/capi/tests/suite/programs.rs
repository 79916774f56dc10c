//! The C suite (`tests/c`), with the shared and the static library, under sanitizers and under valgrind.

use crate::built::{self, compile, has, libraries, skip, succeeded};
use std::path::PathBuf;
use std::process::Command;

/// Tests of the suite without those that fork: what a child leaves to its parent is a leak there.
const UNDER_VALGRIND: &[&str] = &[
    "volumes",
    "files",
    "names",
    "attributes",
    "tickets",
    "transactions",
    "snapshots",
    "hostile",
    "threads",
];

fn sources() -> Vec<PathBuf> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let entries = std::fs::read_dir(directory).expect("the suite is there");
    let mut sources: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    sources.sort();
    sources
}

/// Compiles the suite, and runs it by `runner`.
#[track_caller]
fn run(flags: &[&str], linked: &[String], runner: &[&str], tests: &[&str]) {
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("suite");
    let mut arguments = flags.to_vec();
    arguments.extend(linked.iter().map(String::as_str));
    compile(&sources(), &program, &arguments);
    let mut command = match runner {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    let output = command.arg(directory.path()).args(tests).output().expect("the suite runs");
    succeeded(&output);
    let passed =
        String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(passed, if tests.is_empty() { 11 } else { tests.len() });
}

// Shows: C8b.
#[test]
fn the_suite_passes_with_the_shared_library() {
    let Some(libraries) = libraries("the_suite_passes_with_the_shared_library") else { return };
    run(&[], &built::shared(libraries), &[], &[]);
}

/// Whether programs with these flags can be made and run here.
fn can_sanitize(flags: &[&str]) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("x.c"), directory.path().join("x"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("write");
    let compiled = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&program).output();
    compiled.is_ok_and(|output| output.status.success())
        && Command::new(&program).status().is_ok_and(|status| status.success())
}

#[test]
fn the_suite_passes_with_the_static_library_under_sanitizers() {
    let name = "the_suite_passes_with_the_static_library_under_sanitizers";
    let Some(libraries) = libraries(name) else { return };
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
    if !can_sanitize(&flags) {
        skip(name, "cc has no AddressSanitizer here; the suite runs without it");
        return run(&[], &built::static_(libraries), &[], &[]);
    }
    run(&flags, &built::static_(libraries), &[], &[]);
}

#[test]
fn the_suite_passes_under_valgrind() {
    let name = "the_suite_passes_under_valgrind";
    let Some(libraries) = libraries(name) else { return };
    if !has("valgrind", "--version") {
        return skip(name, "valgrind is not installed");
    }
    // A thread's own handle in Rust's library is only found by a pointer into it, at the program's end.
    let valgrind = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--show-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    run(&[], &built::shared(libraries), &valgrind, UNDER_VALGRIND);
}
