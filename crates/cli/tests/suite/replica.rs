//! Replicas in a folder, as people make them and bring them back.

use super::common::{Bench, PROGRAM, Run, assert_populated, can_mount, open, syncline};
use super::mounted::{MountPoint, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A populated volume that has been shipped, and where to.
fn begun(bench: &Bench) -> (PathBuf, String) {
    let (image, url) = (bench.populated(), format!("file://{}", bench.path("store").display()));
    let told = syncline(&["replica", "init", "--json", &url, text(&image)]).ok().json();
    assert_eq!(told["claim"], 1);
    (image, url)
}

fn replica(arguments: &[&str]) -> Run {
    syncline(&[&["replica"], arguments].concat())
}

/// The objects of a folder.
fn units(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { units(&path) } else { vec![path] }).collect();
    found.retain(|path| path.components().any(|part| part.as_os_str() == "u"));
    found.sort();
    found
}

#[test]
fn a_replica_is_begun_shown_verified_and_restored() {
    let bench = Bench::new();
    let (image, url) = begun(&bench);
    let shown = replica(&["status", "--json", &url]).ok().json();
    assert_eq!((&shown["claim"], &shown["size"]), (&1.into(), &(16 << 20).into()));
    assert_eq!(shown["restores_to"]["position"], format!("1/{}", shown["units"].as_u64().unwrap() - 1));
    assert!(replica(&["status", &url]).ok().out.contains("restores to"));
    let verified = replica(&["verify", "--json", &url]).ok().json();
    assert_eq!(verified["damage"], serde_json::json!([]));

    let copy = bench.path("copy.img");
    replica(&["restore", &url, text(&copy)]).ok();
    syncline(&["check", "--quiet", text(&copy)]).ok();
    assert_populated(&copy);
    replica(&["restore", &url, text(&copy)]).fails(1, &copy, "a restore makes a new image");
    let told = replica(&["init", &url, text(&image)]);
    assert!(told.code == 1 && told.err.contains("holds a replica of this volume already"), "{}", told.err);
    for when in ["yesterday", "lsn:x", "1/"] {
        let told = replica(&["restore", "--at", when, &url, text(&bench.path("none.img"))]);
        assert!(told.code == 2 && told.err.contains("says no moment"), "{}", told.err);
    }
    let told = replica(&["restore", "--at", "2001-01-01T00:00:00Z", &url, text(&bench.path("none.img"))]);
    assert!(told.code == 1 && told.err.contains("holds no state"), "{}", told.err);
    assert!(!bench.path("none.img").exists() && !bench.path("none.img.restoring").exists());
}

#[test]
fn damage_and_wrong_places_are_told_in_a_sentence() {
    let bench = Bench::new();
    let (_, url) = begun(&bench);
    let store = bench.path("store");
    let first = &units(&store)[0];
    let sound = fs::read(first).expect("read");
    let mut damaged = sound.clone();
    damaged[300] ^= 1;
    fs::write(first, &damaged).expect("write");
    let told = replica(&["verify", &url]);
    assert!(told.code == 1 && told.out.contains("a frame does not match its checksum"), "{}", told.out);
    let told = replica(&["restore", &url, text(&bench.path("copy.img"))]);
    assert!(told.code == 1 && told.err.contains("a frame does not match its checksum"), "{}", told.err);
    assert!(!bench.path("copy.img").exists());
    fs::write(first, &sound).expect("write");

    let nowhere = bench.path("nowhere");
    let told = replica(&["status", text(&nowhere)]);
    assert!(told.code == 1 && told.err.contains("there is no such folder"), "{}", told.err);
    assert!(!nowhere.exists(), "looking makes nothing");
    fs::create_dir(&nowhere).expect("mkdir");
    let told = replica(&["restore", text(&nowhere), text(&bench.path("copy.img"))]);
    assert!(told.code == 1 && told.err.contains("holds no replica"), "{}", told.err);
    let told = replica(&["status", "ftp://x/y"]);
    assert!(told.code == 1 && told.err.contains("is neither file nor s3"), "{}", told.err);

    let other = bench.path("other.img");
    syncline(&["mkfs", "--quiet", "--size", "8M", text(&other)]).ok();
    replica(&["init", &url, text(&other)]).ok();
    let told = replica(&["status", &url]);
    assert!(told.code == 1 && told.err.contains("holds replicas of 2 volumes"), "{}", told.err);
}

#[test]
fn a_mount_ships_what_is_synced_and_is_stopped_by_its_successor() {
    if !can_mount("a_mount_ships_what_is_synced_and_is_stopped_by_its_successor") {
        return;
    }
    let bench = Bench::new();
    let (image, url) = begun(&bench);
    let at = MountPoint::new(&bench, "mnt");
    let option = format!("replica={url},replica_interval=0.1");
    syncline(&["mount", "-o", &option, text(&image), at.text()]).ok();
    let stats = || syncline(&["stats", "--json", at.text()]).ok().json()["replica"].clone();
    let until = |what: &str, done: &dyn Fn(&serde_json::Value) -> bool| {
        let began = Instant::now();
        while !done(&stats()) {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}: {}", stats());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // What the mount itself has written is a unit: what comes then is another one.
    until("beginning", &|replica| replica["lag_ms"] == 0 && replica["units"] != 0);
    let before = stats()["units"].as_u64();
    fs::write(at.0.join("new"), b"shipped").expect("write");
    fs::File::open(at.0.join("new")).and_then(|file| file.sync_all()).expect("sync");
    until("shipping", &|replica| replica["lag_ms"] == 0 && replica["units"].as_u64() > before);
    assert_eq!((&stats()["state"], &stats()["claim"]), (&"streaming".into(), &2.into()));

    let copy = bench.path("copy.img");
    replica(&["restore", "--take-over", &url, text(&copy)]).ok();
    let volume = open(&copy);
    assert_eq!(volume.read("new").expect("read"), b"shipped");
    volume.close().expect("close");
    let _ = fs::write(at.0.join("late"), b"nowhere");
    let _ = fs::File::open(at.0.join("late")).and_then(|file| file.sync_all());
    until("being told", &|replica| replica["state"] == "stopped");
    assert!(stats()["trouble"].as_str().is_some_and(|told| told.contains("has taken over the replica")));
    let later = at.0.join("later");
    let synced = fs::write(&later, b"x").and_then(|()| fs::File::open(&later)?.sync_all());
    synced.expect_err("the volume has stopped");
    drop(at);

    let told = syncline(&["mount", "-o", "ack=remote", text(&copy), text(&bench.path("mnt"))]);
    assert!(told.code == 1 && told.err.contains("there is no replica="), "{}", told.err);
}

#[test]
fn a_unit_that_is_missing_is_told_with_what_it_takes_with_it_and_what_to_do() {
    let bench = Bench::new();
    let (_, url) = begun(&bench);
    // From then on it is known how many units there are.
    replica(&["fence", &url]).ok();
    let all = units(&bench.path("store"));
    fs::remove_file(all.last().expect("a unit")).expect("remove");
    let told = replica(&["verify", &url]);
    let unit = format!("unit 1/{} is missing", all.len() - 1);
    assert!(told.code == 1 && told.out.contains(&unit), "{} {}", told.out, told.err);
    assert!(told.out.contains("no state from after ") && told.out.contains("`syncline replica init`"));
}

#[test]
fn a_daemon_that_stands_still_is_named_and_not_waited_for() {
    if !can_mount("a_daemon_that_stands_still_is_named_and_not_waited_for") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let mut daemon = Command::new(PROGRAM)
        .args(["mount", "--foreground", text(&image), at.text()])
        .spawn()
        .expect("the program starts");
    let began = Instant::now();
    while syncline(&["stats", at.text()]).code != 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "it mounts");
        std::thread::sleep(Duration::from_millis(20));
    }
    let process = daemon.id().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &process]).status().expect("kill").success());
    };
    signal("-STOP");
    for command in ["stats", "umount"] {
        let began = Instant::now();
        let told = syncline(&[command, at.text()]);
        assert!(told.code != 0 && told.err.contains(&format!("kill -CONT {process}")), "{}", told.err);
        assert!(began.elapsed() < Duration::from_secs(8), "{command}: {:?}", began.elapsed());
    }
    signal("-CONT");
    at.unmount();
    assert!(daemon.wait().expect("ended").success());
}

/// A disk of 30 MiB in memory, as long as it lives; `None` for whoever may not mount one.
struct Small(PathBuf);

impl Small {
    fn new(bench: &Bench) -> Option<Small> {
        let path = bench.path("small");
        fs::create_dir(&path).expect("mkdir");
        let words = ["-t", "tmpfs", "-o", "size=30M", "tmpfs", text(&path)];
        let mounted = Command::new("mount").args(words).output().is_ok_and(|output| output.status.success());
        mounted.then_some(Small(path))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

// Shows: C8.
#[test]
fn an_unmount_fails_at_once_and_says_why_when_the_local_disk_is_full() {
    let name = "an_unmount_fails_at_once_and_says_why_when_the_local_disk_is_full";
    if !can_mount(name) {
        return;
    }
    let bench = Bench::new();
    let Some(small) = Small::new(&bench) else {
        return super::common::skip(name, "no tmpfs can be mounted; run as root");
    };
    let (image, url) = (bench.path("large.img"), format!("file://{}", bench.path("store").display()));
    syncline(&["mkfs", "--quiet", "--size", "256M", text(&image)]).ok();
    replica(&["init", &url, text(&image)]).ok();
    let at = MountPoint::new(&bench, "mnt");
    let local = small.0.join("local.img");
    syncline(&["mount", "--local", text(&local), &url, at.text()]).ok();
    let noise = |seed: u8| -> Vec<u8> {
        let mut state = u64::from(seed) + 1;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..8 << 20).map(next).collect()
    };
    for number in 0..8 {
        let path = at.0.join(format!("{number}"));
        let _ = fs::write(&path, noise(number)).and_then(|()| fs::File::open(&path)?.sync_all());
    }
    let began = Instant::now();
    let told = syncline(&["umount", at.text()]);
    assert!(told.code != 0 && told.err.contains("No space left on device"), "{}: {}", told.code, told.err);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
