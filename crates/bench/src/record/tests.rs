//! What is kept of a run, and what it is refused for.

use super::*;
use clap::{Args, FromArgMatches};

fn arguments(words: &[&str]) -> Arguments {
    let command = Arguments::augment_args(clap::Command::new("bench"));
    let matches = command.get_matches_from(std::iter::once(&"bench").chain(words));
    Arguments::from_arg_matches(&matches).expect("arguments")
}

fn row(round: usize) -> Row {
    Row { round, ..Row::of("engine", "append", &[("p50_us", 200.0)]) }
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("syncline-bench-{}-{name}.json", std::process::id()))
}

#[test]
fn interrupted_run_is_taken_up_where_it_ended() {
    let path = file("resumed");
    let text = path.display().to_string();
    Record::open(&arguments(&["--json", &text])).expect("new").add(row(0)).expect("kept");
    let taken_up = Record::open(&arguments(&["--json", &text, "--resume"])).expect("resumed");
    assert!(taken_up.holds(0, "append", "engine") && !taken_up.holds(1, "append", "engine"));
    assert_eq!(taken_up.rows, [row(0)]);
    fs::remove_file(path).expect("removed");
}

#[test]
fn results_are_not_overwritten_nor_mixed_with_other_settings() {
    let path = file("refused");
    let text = path.display().to_string();
    Record::open(&arguments(&["--json", &text])).expect("new").add(row(0)).expect("kept");
    let again = Record::open(&arguments(&["--json", &text]));
    assert!(matches!(again, Err(BenchError::ResultsExist(_))), "{again:?}");
    let other = Record::open(&arguments(&["--json", &text, "--resume", "--operations", "7"]));
    assert!(matches!(other, Err(BenchError::OtherSettings { .. })), "{other:?}");
    fs::write(&path, "{\"rows\": [1]}").expect("damaged");
    let damaged = Record::open(&arguments(&["--json", &text, "--resume"]));
    assert!(matches!(damaged, Err(BenchError::BadResults { .. })), "{damaged:?}");
    fs::remove_file(path).expect("removed");
}
