//! Replicas in a folder, as people make them and bring them back.

use super::common::{Bench, Run, assert_populated, can_mount, open, syncline};
use super::mounted::{MountPoint, text};
use std::fs;
use std::path::{Path, PathBuf};
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
