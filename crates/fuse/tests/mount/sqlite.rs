//! SQLite built with SQLITE_ENABLE_BATCH_ATOMIC_WRITE, which uses the f2fs ioctls by itself. Its source is that of
//! the crate libsqlite3-sys in cargo's cache, or what SYNCLINE_SQLITE_SOURCE names (a directory with sqlite3.c and
//! sqlite3.h).

use crate::harness::{VOLUME_BYTES, Volume, messages, skipped, statistics};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use syncline_device::FileDevice;
use syncline_fs::{Fs, MkfsOptions, SystemClock, SystemEntropy};

const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sqlite/driver.c");
const SUM: &str = "1000000";

fn source() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("SYNCLINE_SQLITE_SOURCE") {
        return Some(named.into());
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let registries = fs::read_dir(home.join("registry/src")).ok()?.flatten();
    let crates = registries.filter_map(|registry| fs::read_dir(registry.path()).ok()).flatten().flatten();
    let sources = crates.filter(|found| found.file_name().to_string_lossy().starts_with("libsqlite3-sys-"));
    sources.map(|found| found.path().join("sqlite3")).filter(|dir| dir.join("sqlite3.c").exists()).max()
}

fn compile(source: &Path, arguments: &[&str], to: &Path) -> bool {
    let own = to.with_extension(std::process::id().to_string());
    let compiled = Command::new("cc")
        .args(["-O1", "-DSQLITE_ENABLE_BATCH_ATOMIC_WRITE", "-DSQLITE_OMIT_LOAD_EXTENSION", "-I"])
        .arg(source)
        .args(arguments)
        .arg("-o")
        .arg(&own)
        .status();
    // Both test programs may be at it.
    compiled.is_ok_and(|status| status.success()) && fs::rename(own, to).is_ok()
}

/// The driver, built once.
fn driver(test: &str) -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = source()?;
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (library, driver) = (target.join("sqlite3-atomic.o"), target.join("sqlite-driver"));
        let sqlite = source.join("sqlite3.c");
        let has_library = library.exists() || compile(&source, &["-c", sqlite.to_str()?], &library);
        let arguments = [DRIVER, library.to_str()?, "-lpthread", "-lm"];
        (has_library && compile(&source, &arguments, &driver)).then_some(driver)
    });
    if built.is_none() {
        skipped(test, "SQLite cannot be built here: no C compiler, or no source of it");
    }
    built.as_deref()
}

fn run(driver: &Path, database: &Path, arguments: &[&str]) -> String {
    let output = Command::new(driver).arg(database).args(arguments).output().expect("the driver runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("numbers").trim().to_owned()
}

#[test]
fn a_commit_of_sqlite_makes_no_journal_and_costs_one_record_and_one_flush() {
    let test = "a_commit_of_sqlite_makes_no_journal_and_costs_one_record_and_one_flush";
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let Some(driver) = driver(test) else { return };
    let database = volume.path("db");
    run(driver, &database, &["make"]);
    let device = |counter: &str| statistics(&volume.root())["device"][counter].as_u64().unwrap();
    let count = || {
        let made: u64 = ["create", "mknod", "unlink"].iter().map(|kind| messages(&volume.root(), kind)).sum();
        (made, device("writes"), device("flushes"))
    };
    let before = count();
    run(driver, &database, &["insert", "50"]);
    let after = count();
    assert_eq!(after.0 - before.0, 0, "files made and removed");
    assert_eq!((after.1 - before.1, after.2 - before.2), (50, 50), "writes and flushes");
    run(driver, &database, &["rollback"]);
    assert_eq!(run(driver, &database, &["check"]), format!("{SUM} 0"));
}

/// A mounted volume with a small journal, so that records are small.
fn with_small_journal(options: &str) -> Option<Volume> {
    let mut volume = Volume::format(VOLUME_BYTES)?;
    let device = FileDevice::open(volume.image(), &Default::default()).expect("the image");
    let small = MkfsOptions::default().journal_bytes(1 << 20);
    Fs::format(&device, &small, &SystemClock, &SystemEntropy::default(), &mut |_, _| {})
        .expect("is formatted");
    drop(device);
    volume.mount(options).unwrap_or_else(|error| panic!("mount failed: {error}"));
    Some(volume)
}

#[test]
fn a_transaction_too_large_for_a_record_falls_back_to_a_journal() {
    let test = "a_transaction_too_large_for_a_record_falls_back_to_a_journal";
    let Some(volume) = with_small_journal("commit=1000") else { return };
    let Some(driver) = driver(test) else { return };
    let database = volume.path("db");
    run(driver, &database, &["make"]);
    run(driver, &database, &["make-large"]);
    let made = || messages(&volume.root(), "create") + messages(&volume.root(), "mknod");
    let (made_before, given_up_before) = (made(), messages(&volume.root(), "ioctl"));
    run(driver, &database, &["large"]);
    assert_eq!(made() - made_before, 1, "the journal");
    assert!(messages(&volume.root(), "ioctl") - given_up_before >= 2, "it was tried, and given up");
    assert!(!volume.path("db-journal").exists());
    assert_eq!(run(driver, &database, &["check"]), format!("{SUM} 0"));
    // And the next one is without it again.
    let made_before = made();
    run(driver, &database, &["insert", "5"]);
    assert_eq!(made() - made_before, 0);
}

#[test]
fn transfers_of_sqlite_survive_power_cuts() {
    cut_transfers("transfers_of_sqlite_survive_power_cuts", "transfer", "check");
}

#[test]
fn transfers_too_large_for_a_record_survive_power_cuts() {
    cut_transfers("transfers_too_large_for_a_record_survive_power_cuts", "transfer-large", "check-large");
}

fn cut_transfers(test: &str, transfer: &str, check: &str) {
    let Some(mut volume) = with_small_journal("volatile") else { return };
    let Some(driver) = driver(test) else { return };
    let cuts = std::env::var("SYNCLINE_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(6);
    let database = volume.path("db");
    run(driver, &database, &["make"]);
    run(driver, &database, &["make-large"]);
    let mut transfers = 0;
    for cut in 0..cuts {
        let mut child = Command::new(driver)
            .arg(&database)
            .arg(transfer)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the driver runs");
        let told = BufReader::new(child.stdout.take().expect("a pipe"));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let last_told = acknowledged.clone();
        let listener = std::thread::spawn(move || {
            let numbers = told.lines().map_while(Result::ok).filter_map(|line| line.parse().ok());
            numbers.for_each(|number| last_told.store(number, SeqCst));
        });
        std::thread::sleep(Duration::from_millis(20 + cut * 37 % 200));
        // What is said after the cut does not count: SQLite takes a directory that it cannot open any more, behind
        // the removal of a journal, for one that needs no sync.
        let acknowledged = acknowledged.load(SeqCst);
        // The daemon dies, and with it what was not flushed; the driver fails with its next call.
        volume.crash();
        child.wait().expect("it ends");
        listener.join().expect("no panic");
        let found = run(driver, &database, &[check]);
        let (sum, last) = found.split_once(' ').expect("two numbers");
        assert_eq!(sum, SUM, "after cut {cut}");
        let last: u64 = last.parse().expect("a number");
        assert!(last >= acknowledged, "cut {cut}: {last} of {acknowledged} acknowledged");
        transfers = last;
    }
    assert!(transfers > 0, "nothing was transferred");
    eprintln!("{transfers} transfers, {cuts} cuts");
}
