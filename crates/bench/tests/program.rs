//! The benchmark's program, run the way people run it.

use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncline-bench");

fn bench(line: &[&str]) -> Output {
    Command::new(PROGRAM).args(line).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn told_in_one_line(run: &Output) -> &str {
    let told = text(&run.stderr);
    assert_eq!(told.lines().count(), 1, "{told}");
    told
}

#[test]
fn what_the_benchmark_does_not_know_is_wrong_usage_and_files_are_named() {
    for line in
        [&["--workloads", "nope"][..], &["--systems", "nope"], &["--systems", "engine:nope"], &["--resume"]]
    {
        let run = bench(line);
        assert_eq!(run.status.code(), Some(2), "{line:?}: {}", told_in_one_line(&run));
    }
    let run = bench(&["--table", "/missing/results"]);
    let told = told_in_one_line(&run);
    assert_eq!(run.status.code(), Some(1), "{told}");
    assert!(told.contains("/missing/results: No such file or directory"), "{told}");
    assert!(!told.contains("os error"), "{told}");
}

#[test]
fn output_that_nobody_takes_is_a_failure_and_a_reader_that_leaves_is_none() {
    for line in [&["--list"][..], &["--plan", "--systems", "engine"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("there");
        let run = Command::new(PROGRAM).args(line).stdout(full).output().expect("the program starts");
        assert_eq!(run.status.code(), Some(1), "{line:?}");
        assert!(told_in_one_line(&run).contains("No space left"), "{line:?}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let run = Command::new(PROGRAM).args(line).stdout(writer).output().expect("the program starts");
        assert_eq!((run.status.code(), text(&run.stderr)), (Some(0), ""), "{line:?}");
    }
}

#[test]
fn remarks_that_nobody_takes_end_no_measurement() {
    let directory = tempfile::tempdir().expect("a directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let run = on_engine(directory.path(), &["--workloads", "append"]).stderr(writer).output().expect("runs");
    let told = text(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{told}");
    assert!(told.contains("append:") && told.contains("engine"), "{told}");
}

#[test]
fn the_engine_runs_without_each_mechanism() {
    let directory = tempfile::tempdir().expect("a directory");
    let run = on_engine(directory.path(), &["--ablation", "--workloads", "append"]).output().expect("runs");
    let told = text(&run.stdout);
    assert_eq!(run.status.code(), Some(0), "{told}{}", text(&run.stderr));
    assert!(told.contains("checkpoint-per-sync:") && told.contains("no-images:"), "{told}");
}

fn on_engine(directory: &Path, line: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["--rounds", "1", "--operations", "10", "--device-mib", "64"]).args(line);
    if !line.contains(&"--ablation") {
        command.args(["--systems", "engine"]);
    }
    command.arg("--work").arg(directory.join("work"));
    command
}

#[test]
fn a_processor_that_is_not_there_is_wrong_usage_of_the_benchmark() {
    let directory = tempfile::tempdir().expect("a directory");
    for cpu in ["1000", "99999"] {
        let run = on_engine(directory.path(), &["--cpu", cpu]).output().expect("the program starts");
        assert_eq!(run.status.code(), Some(2), "{cpu}");
        assert!(told_in_one_line(&run).contains(cpu), "{cpu}");
    }
}
