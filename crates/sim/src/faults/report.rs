//! Plants the faults, builds the laboratory with them, runs it once for each, and tells which were caught, and how.

use super::plant::{SWITCH, plant};
use super::{Fault, all};
use crate::watchdog;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A hunt ends itself after its share of processor time, and the watchdog ends it when it hangs. One that does
/// neither is stopped after so many times that share.
const SHARES_MAX: u32 = 20;
/// Address space of a hunt, in KiB: a fault may make the engine ask for more and more.
const MEMORY_KIB_MAX: u64 = 6 << 20;

/// How the faults are hunted.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub threads: u64,
    /// Of a processor, for one fault.
    pub time: Duration,
    /// No hunt begins after this; `None`: all are run.
    pub end: Option<Instant>,
    /// Only faults whose names begin like one of these; all if there is none.
    pub only: Vec<String>,
}

/// What became of one fault, or of the unchanged engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Found by a part of the laboratory, after so many crash states.
    Caught { part: String, states: u64, what: String },
    /// The watchdog ended the run, or it had to be stopped.
    Hang { what: String },
    /// The process died.
    Died { what: String },
    /// Nothing was found.
    Clean { states: u64, cut_short: bool },
}

impl Verdict {
    fn is_clean(&self) -> bool {
        matches!(self, Verdict::Clean { .. })
    }
}

/// The whole result.
pub struct Report {
    pub unchanged: Verdict,
    /// The faults that were hunted.
    pub faults: Vec<(Fault, Verdict)>,
    pub not_hunted: usize,
    pub build: Duration,
    pub hunts: Duration,
}

impl Report {
    pub fn caught(&self) -> usize {
        self.faults.iter().filter(|(_, verdict)| !verdict.is_clean()).count()
    }

    /// All faults are caught, and nothing is found in the engine without them.
    pub fn is_good(&self) -> bool {
        self.caught() == self.faults.len() && self.unchanged.is_clean()
    }
}

/// Plants, builds and hunts. `told` is called for each fault as soon as its hunt has ended.
///
/// Errors: the lists are wrong, a fault does not find its place, the copy does not build.
pub fn run(plan: &Plan, told: &(dyn Fn(&str, &str, &Verdict) + Sync)) -> Result<Report, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .ok_or("the sim crate lies in no workspace")?;
    let faults = all().map_err(|bad| bad.to_string())?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let place = target.join("planted");
    plant(root, &place.join("source"), &faults).map_err(|error| error.to_string())?;
    let began = Instant::now();
    let binary = build(&place)?;
    let built = Instant::now();
    let is_wanted =
        |fault: &Fault| plan.only.is_empty() || plan.only.iter().any(|only| fault.name.starts_with(only));
    // 0 is the engine without faults.
    let numbers: Vec<usize> =
        (0..=faults.len()).filter(|number| *number == 0 || is_wanted(&faults[number - 1])).collect();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..plan.threads {
            scope.spawn(|| {
                while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if number > 0 && plan.end.is_some_and(|end| Instant::now() > end) {
                        return;
                    }
                    let first = number.checked_sub(1).map_or("", |index| &faults[index].first);
                    let verdict = hunt(&binary, number, first, plan);
                    let (name, rule) = match number.checked_sub(1) {
                        Some(index) => (faults[index].name.as_str(), faults[index].rule.as_str()),
                        None => ("(no fault)", ""),
                    };
                    told(name, rule, &verdict);
                    verdicts.lock().insert(number, verdict);
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner();
    let unchanged = verdicts.remove(&0).ok_or("the engine without faults was not run")?;
    let not_hunted = numbers.len() - 1 - verdicts.len();
    let faults: Vec<_> =
        verdicts.into_iter().map(|(number, verdict)| (faults[number - 1].clone(), verdict)).collect();
    Ok(Report { unchanged, faults, not_hunted, build: built - began, hunts: built.elapsed() })
}

fn build(place: &Path) -> Result<PathBuf, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let target = place.join("target");
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "-p", "syncline-sim"])
        .current_dir(place.join("source"))
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("RUSTFLAGS", "--cap-lints=warn")
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the copy with the planted faults does not build:\n{text}"));
    }
    Ok(target.join("release").join("syncline-sim"))
}

/// Runs the laboratory with one fault.
fn hunt(binary: &Path, number: usize, first: &str, plan: &Plan) -> Verdict {
    // The same for all: on a loaded machine a shorter one takes slowness for a hang, and a hang counts as caught.
    let patience = watchdog::PATIENCE;
    let time = if number == 0 { plan.time * 4 } else { plan.time };
    let arguments = [
        "hunt".to_owned(),
        "--seed".to_owned(),
        plan.seed.to_string(),
        "--minutes".to_owned(),
        (time.as_secs_f64() / 60.0).to_string(),
        "--patience".to_owned(),
        patience.as_secs().to_string(),
        "--first".to_owned(),
        first.to_owned(),
    ];
    let child = Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {MEMORY_KIB_MAX}; exec \"$0\" \"$@\""))
        .arg(binary)
        .args(arguments)
        .env(SWITCH, number.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Verdict::Died { what: format!("cannot be started: {error}") },
    };
    let end = Instant::now() + time * SHARES_MAX + patience;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                break None;
            }
        }
    };
    let text = child.wait_with_output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    match status {
        Some(status) => verdict(&text, &status.to_string()),
        None => Verdict::Hang { what: "had to be stopped".to_owned() },
    }
}

/// What a hunt's output says.
fn verdict(text: &str, status: &str) -> Verdict {
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, '\t').collect();
        match words[..] {
            ["caught", part, states, what] => {
                let states = states.parse().unwrap_or(0);
                return Verdict::Caught { part: part.to_owned(), states, what: what.to_owned() };
            }
            ["clean", states, cut_short] => {
                return Verdict::Clean {
                    states: states.parse().unwrap_or(0),
                    cut_short: cut_short == "cut short",
                };
            }
            _ => {}
        }
    }
    match text.contains(watchdog::PREFIX) {
        true => Verdict::Hang { what: text.replace('\n', " ") },
        false => Verdict::Died { what: status.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hunt_tells_what_it_found() {
        let caught = Verdict::Caught { part: "seq-1".into(), states: 12, what: "C1: lost".into() };
        assert_eq!(verdict("caught\tseq-1\t12\tC1: lost\n", "exit status: 1"), caught);
        assert_eq!(verdict("clean\t99\tended\n", ""), Verdict::Clean { states: 99, cut_short: false });
        assert!(matches!(verdict("HANG no progress", "exit status: 3"), Verdict::Hang { .. }));
        assert!(matches!(verdict("", "signal: 6 (SIGABRT)"), Verdict::Died { .. }));
    }
}
