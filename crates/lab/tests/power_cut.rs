//! The command as people use it, with a power cut in between.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_syncline-lab");

fn lab(words: &[&str], paths: &[&Path]) -> Output {
    Command::new(PROGRAM).args(words).args(paths).output().expect("the program starts")
}

fn ok(run: &Output) {
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn killed_daemon_loses_nothing_that_was_synced() {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        let why = "/dev/fuse cannot be opened; load the fuse module or run where it is allowed";
        writeln!(std::io::stderr(), "skipped: killed_daemon_loses_nothing_that_was_synced: {why}")
            .expect("standard error is open");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (image, at) = (directory.path().join("volume.img"), directory.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    ok(&lab(&["mkfs", "--quiet", "--size", "16M"], &[&image]));
    let live = at.join("live");
    fs::write(directory.path().join("live"), "x").unwrap();
    ok(&lab(&["import", "--quiet"], &[&image, &directory.path().join("live")]));
    let mut daemon = Command::new(PROGRAM)
        .args(["mount", "--foreground", "-o", "volatile,commit=1000"])
        .args([&image, &at])
        .spawn()
        .expect("the daemon starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !live.exists() {
        assert!(Instant::now() < deadline, "the mount is not live after a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    let synced = at.join("synced");
    let mut file = File::create(&synced).unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    fs::rename(&synced, at.join("renamed")).unwrap();
    File::create(at.join("other")).unwrap().sync_all().unwrap();
    File::create(at.join("unsynced")).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(fs::read(at.join("renamed")).is_err(), "the mount is dead, not silent");
    let dead = lab(&["stats"], &[&at]);
    assert_eq!(dead.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&dead.stderr).contains("has died"));
    drop(file);
    // The next mount takes the dead one away.
    ok(&lab(&["mount"], &[&image, &at]));
    assert_eq!(fs::read(at.join("renamed")).unwrap(), b"kept");
    assert!(!at.join("synced").exists(), "the rename came before the last sync (C1)");
    assert!(!at.join("unsynced").exists(), "the kill was a power cut");
    ok(&lab(&["umount"], &[&at]));
    ok(&lab(&["check"], &[&image]));
}
