//! The demo, which `syncline demo` starts: cuts the power under a database and many small files, recovers, and compares
//! what is there with what had been acknowledged.
//!
//! The power cut is real in the only sense that matters: the device keeps un-flushed writes in the memory of the
//! process that serves the volume (`Volatile`), and that process is killed with SIGKILL while both workloads run. What
//! was not flushed is gone. The workloads tell a ledger outside of that process what has been acknowledged to them.

#![forbid(unsafe_code)]

mod arguments;
mod database;
mod embedded;
mod error;
mod files;
mod ledger;
mod mounted;

pub use arguments::{Arguments, PAGE, command};

use error::Failure;
use ledger::Ledger;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use syncline_check::CheckOptions;
use syncline_cli::ProgramError;
use syncline_device::{FileDevice, OpenOptions};
use syncline_fs::{Fs, MkfsOptions, SystemClock, SystemEntropy};

const IMAGE_MIB: u64 = 512;
/// How long the workloads run before each cut. Odd, so that the cut is not in step with the commit interval.
const ROUND: Duration = Duration::from_millis(4_321);

/// Where everything lies during the demo.
struct Stage {
    directory: PathBuf,
    image: PathBuf,
    mount_point: PathBuf,
    temporary: bool,
}

impl Stage {
    fn set_up(keep_in: Option<&Path>) -> Result<Stage, Failure> {
        let directory = match keep_in {
            Some(directory) => directory.to_owned(),
            None => std::env::temp_dir().join(format!("syncline-demo-{}", std::process::id())),
        };
        let mount_point = directory.join("mnt");
        std::fs::create_dir_all(&mount_point)
            .map_err(Failure::io(format!("cannot create {}", mount_point.display())))?;
        let image = directory.join("demo.img");
        Ok(Stage { directory, image, mount_point, temporary: keep_in.is_none() })
    }

    fn tear_down(&self) {
        if self.temporary {
            // Left-overs in the temporary directory are a nuisance, no failure.
            let _ = std::fs::remove_dir(&self.mount_point);
            let _ = std::fs::remove_file(&self.image);
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

/// What the syncs of one round cost on the device, and how many syncs there were.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    syncs: u64,
    writes: u64,
    flushes: u64,
}

impl Cost {
    /// From what the daemon says about itself.
    fn from_statistics(figures: &Value) -> Cost {
        let number = |path: &str| figures.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        Cost {
            syncs: number("/fsync_us/count"),
            writes: number("/device/writes"),
            flushes: number("/device/flushes"),
        }
    }

    fn add(&mut self, other: Cost) {
        self.syncs += other.syncs;
        self.writes += other.writes;
        self.flushes += other.flushes;
    }

    fn per_sync(count: u64, syncs: u64) -> f64 {
        count as f64 / syncs.max(1) as f64
    }
}

/// How the volume is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Mounted { sqlite: bool },
    Embedded,
}

impl Way {
    fn choose(embedded: bool) -> Way {
        let mountable = mounted::is_possible();
        if !embedded && mountable {
            return Way::Mounted { sqlite: database::is_available() };
        }
        Way::Embedded
    }

    fn describe(self, asked: bool) -> &'static str {
        match self {
            Way::Mounted { sqlite: true } => "mounted; SQLite and small files run on the mount",
            Way::Mounted { sqlite: false } => {
                "mounted; the sqlite3 program is missing, so synced rows of a plain file stand in for it"
            }
            Way::Embedded if asked => {
                "the embedded engine, as asked for; synced rows of a plain file stand in for SQLite"
            }
            Way::Embedded => {
                "no usable /dev/fuse here: the embedded engine, in a process of its own; SQLite needs a mount, so synced rows of \
                 a plain file stand in for it"
            }
        }
    }
}

/// Runs the demo, or what it wants of its children. Exit code 1 if anything acknowledged is missing.
pub fn run(arguments: Arguments) -> Result<ExitCode, ProgramError> {
    let done = match (&arguments.child, &arguments.serve) {
        (Some(child), _) => embedded::serve(Path::new(&child[1]), &child[0]),
        (_, Some(place)) => mounted::serve(&place[0], &place[1], arguments.volatile),
        _ => demonstrate(&arguments),
    };
    Ok(done?)
}

fn demonstrate(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let stage = Stage::set_up(arguments.keep_in.as_deref())?;
    let shown = Show { quiet: arguments.json };
    shown.line("A power cut under a database and many small files", "");
    let way = Way::choose(arguments.embedded);
    make_volume(&stage.image)?;
    shown.line("  volume", &format!("{} of {IMAGE_MIB} MiB", stage.image.display()));
    shown.line("  access", way.describe(arguments.embedded));
    shown.line("  device", "forgets what was not flushed when its process is killed");

    let mut ledger = Ledger::default();
    let mut cost = Cost::default();
    let mut wrong = Vec::new();
    for cut in 1..=arguments.cuts {
        shown.line(&format!("\nPower cut {cut}"), "");
        wrong.extend(round(&stage, way, cut, &mut ledger, &mut cost, &shown)?);
        if !wrong.is_empty() {
            break;
        }
    }
    let errors = check(&stage.image, &shown)?;
    shown.line(
        "  cost",
        &format!(
            "{:.2} device writes and {:.2} flushes per sync ({} syncs, background writes included)",
            Cost::per_sync(cost.writes, cost.syncs),
            Cost::per_sync(cost.flushes, cost.syncs),
            thousands(cost.syncs)
        ),
    );
    finish(arguments, &stage, way, &ledger, cost, &wrong, errors)
}

/// Prints the verdict and tidies up if it is good.
fn finish(
    arguments: &Arguments,
    stage: &Stage,
    way: Way,
    ledger: &Ledger,
    cost: Cost,
    wrong: &[String],
    errors: u64,
) -> Result<ExitCode, Failure> {
    if arguments.json {
        let value = json!({
            "mounted": way != Way::Embedded,
            "power_cuts": arguments.cuts,
            "acknowledged": ledger.count,
            "rows": ledger.rows,
            "files": ledger.files.len(),
            "wrong": wrong,
            "check_errors": errors,
            "syncs": cost.syncs,
            "device_writes": cost.writes,
            "device_flushes": cost.flushes,
        });
        print(&serde_json::to_string_pretty(&value).map_err(|error| Failure::Print(error.into()))?)?;
    }
    if wrong.is_empty() && errors == 0 {
        stage.tear_down();
        if !arguments.json {
            let cuts = if arguments.cuts == 1 {
                "the power cut".to_owned()
            } else {
                format!("{} power cuts", arguments.cuts)
            };
            print(&format!("\nEvery acknowledged change survived {cuts}."))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let first = wrong.first().map_or("the check found errors", String::as_str);
    Err(Failure::Demo(format!(
        "{} of {} acknowledged changes are wrong after a power cut, first: {first}; the image is kept at {}",
        wrong.len(),
        ledger.count,
        stage.image.display()
    )))
}

/// One round: work, cut, recover, verify. Returns what is wrong.
fn round(
    stage: &Stage,
    way: Way,
    cut: u32,
    ledger: &mut Ledger,
    cost: &mut Cost,
    shown: &Show,
) -> Result<Vec<String>, Failure> {
    let before = (ledger.rows, ledger.count);
    let journal_mode = if cut.is_multiple_of(2) { "WAL" } else { "DELETE" };
    let rows_by = match way {
        Way::Mounted { sqlite: true } => {
            cost.add(mounted::work(stage, Some(journal_mode), ledger)?);
            format!("SQLite ({journal_mode})")
        }
        Way::Mounted { sqlite: false } => {
            cost.add(mounted::work(stage, None, ledger)?);
            "synced rows".to_owned()
        }
        Way::Embedded => {
            cost.add(embedded::work(stage, ledger)?);
            "synced rows".to_owned()
        }
    };
    let rows = ledger.rows - before.0;
    shown.line(&format!("  {rows_by}"), &format!("{} transactions acknowledged", thousands(rows)));
    let files = ledger.count - before.1 - rows;
    shown.line("  small files", &format!("{} creations and replacements acknowledged", thousands(files)));
    shown.line("  cut", "SIGKILL in the middle of both");

    let started = Instant::now();
    let (ready_after, wrong) = match way {
        Way::Mounted { sqlite } => mounted::verify(stage, sqlite, ledger, started)?,
        Way::Embedded => embedded::verify(stage, ledger, started)?,
    };
    shown.line("  recovered", &format!("open again after {} ms", ready_after.as_millis()));
    let verdict = match wrong.len() {
        0 => format!("all {} acknowledged so far are there, whole", thousands(ledger.count)),
        some => format!("{some} acknowledged changes are missing or wrong"),
    };
    shown.line("  verified", &verdict);
    Ok(wrong)
}

fn make_volume(image: &Path) -> Result<(), Failure> {
    let device = FileDevice::create(image, IMAGE_MIB << 20)?;
    let options = MkfsOptions::default()
        .label("demo".to_owned())
        .root_uid(rustix::process::geteuid().as_raw())
        .root_gid(rustix::process::getegid().as_raw());
    Fs::format(&device, &options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {})
        .map_err(|source| Failure::Format { path: image.to_owned(), source })
}

/// Prints lines. Unlike `println!` it does not panic when nobody takes them.
fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}").map_err(Failure::Print)
}

/// The offline check; returns the number of errors.
fn check(image: &Path, shown: &Show) -> Result<u64, Failure> {
    let device = FileDevice::open(
        image,
        &OpenOptions::default().read_only(true).wait_for_lock(Duration::from_secs(10)),
    )?;
    let report = syncline_check::check(&device, CheckOptions::default().data(true))
        .map_err(|source| Failure::Check { path: image.to_owned(), source })?;
    let totals = report.totals;
    let verdict = match report.errors_left() {
        0 => format!(
            "sound: {} inodes, {} blocks of data verified",
            thousands(totals.inodes),
            thousands(totals.data_blocks_verified)
        ),
        errors => format!("{errors} errors"),
    };
    shown.line("\nAfterwards", "");
    shown.line("  check", &verdict);
    Ok(report.errors_left())
}

/// Prints what happens, unless figures only were asked for.
struct Show {
    quiet: bool,
}

impl Show {
    fn line(&self, title: &str, text: &str) {
        if !self.quiet {
            // Whoever stopped looking does not stop the demo.
            let _ = print(format!("{title:18} {text}").trim_end());
        }
    }
}

/// `1234567` as `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(1234), "1,234");
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
