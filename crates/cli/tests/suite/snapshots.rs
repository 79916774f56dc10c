//! Snapshots as people make them: of images and of mounted volumes.

use super::common::{Bench, can_mount, open, syncline};
use super::mounted::{MountPoint, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A volume of version 2.
fn volume(bench: &Bench, size: &str) -> PathBuf {
    let image = bench.path("volume.img");
    syncline(&["mkfs", "--quiet", "--format", "2", "--size", size, text(&image)]).ok();
    image
}

fn names(shown: &serde_json::Value) -> Vec<&str> {
    shown
        .as_array()
        .expect("a list")
        .iter()
        .map(|snapshot| snapshot["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn snapshots_of_an_image_are_made_listed_read_renamed_and_deleted() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let write = |content: &str| {
        let volume = open(&image);
        volume.write("/f", content).expect("write");
        volume.close().expect("close");
    };
    write("first");
    let made = syncline(&["snapshot", "create", "--json", text(&image), "one"]).ok().json();
    assert_eq!(made["name"], "one");
    write("second");
    syncline(&["snapshot", "create", text(&image), "two"]).ok();
    write("third");
    let cat = |arguments: &[&str]| syncline(&[&["cat"], arguments, &[text(&image), "/f"]].concat()).ok().out;
    assert_eq!(cat(&[]), "third");
    assert_eq!(cat(&["--snapshot", "one"]), "first");
    assert_eq!(cat(&["--snapshot", "two"]), "second");
    let to = bench.path("out");
    syncline(&["export", "--quiet", "--snapshot", "one", text(&image), "/f", text(&to)]).ok();
    assert_eq!(fs::read(&to).expect("read"), b"first");
    assert!(syncline(&["ls", "--snapshot", "two", text(&image)]).ok().out.contains('f'));
    syncline(&["snapshot", "rename", text(&image), "one", "eins"]).ok();
    let shown = syncline(&["snapshot", "list", "--json", text(&image)]).ok().json();
    assert_eq!(names(&shown), ["eins", "two"]);
    let table = syncline(&["snapshot", "list", text(&image)]).ok().out;
    assert_eq!(table.lines().count(), 3, "{table}");
    syncline(&["snapshot", "delete", "--wait", text(&image), "eins", "two"]).ok();
    assert_eq!(names(&syncline(&["snapshot", "list", "--json", text(&image)]).ok().json()), [""; 0]);
    assert_eq!(cat(&[]), "third");
}

#[test]
fn a_volume_with_snapshots_is_checked_and_its_trees_are_listed() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let write = |pages: usize| {
        let volume = open(&image);
        volume.write("/f", vec![7; pages * 4096]).expect("write");
        volume.close().expect("close");
    };
    write(40);
    syncline(&["snapshot", "create", text(&image), "one"]).ok();
    write(60);
    syncline(&["snapshot", "create", text(&image), "two"]).ok();
    let report = syncline(&["check", "--all", "--json", text(&image)]).ok().json();
    assert_eq!((&report["sound"], &report["totals"]["trees"]), (&true.into(), &3.into()));
    assert!(syncline(&["check", text(&image)]).ok().out.ends_with("sound\n"));

    let trees = syncline(&["inspect", "trees", "--json", text(&image)]).ok().json();
    assert_eq!(names(&trees), ["main", "one", "two"]);
    let of = |key: &str| {
        trees.as_array().expect("a list").iter().map(|tree| tree[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(of("tree"), [1, 16, 17]);
    assert_eq!(of("role"), ["head", "snapshot", "snapshot"]);
    assert_eq!(of("state"), ["default", "live", "live"]);
    assert_eq!(of("pages"), [60, 40, 60]);
    assert_eq!(of("parent"), [17.into(), serde_json::Value::Null, 16.into()]);
    let table = syncline(&["inspect", "trees", text(&image)]).ok().out;
    assert_eq!(table.lines().count(), 4, "{table}");

    syncline(&["snapshot", "delete", text(&image), "one"]).ok();
    let trees = syncline(&["inspect", "trees", "--json", text(&image)]).ok().json();
    assert!(!names(&trees).contains(&"one"));
    syncline(&["check", "--all", text(&image)]).ok();
}

#[test]
fn heads_of_an_image_are_made_listed_mounted_and_deleted_and_a_snapshot_is_gone_back_to() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let write = |content: &str| {
        let volume = open(&image);
        volume.write("/f", content).expect("write");
        volume.close().expect("close");
    };
    let cat = |arguments: &[&str]| syncline(&[&["cat"], arguments, &[text(&image), "/f"]].concat()).ok().out;
    write("first");
    syncline(&["snapshot", "create", text(&image), "one"]).ok();
    write("second");
    syncline(&["snapshot", "clone", text(&image), "one", "attempt"]).ok();
    let diff = |arguments: &[&str]| syncline(&[&["snapshot", "diff", text(&image)], arguments].concat());
    assert_eq!(diff(&["one"]).ok().out, "change path\nM      f\n");
    assert_eq!(diff(&["one", "attempt"]).ok().out, "change path\n");
    let told = diff(&["--json", "one", "main"]).ok().json();
    assert_eq!((&told[0]["change"], &told[0]["path"]), (&"modified".into(), &"f".into()), "{told:?}");
    diff(&["missing"]).fails(1, &image, "no snapshot \"missing\"");
    diff(&["one", "missing"]).fails(1, &image, "no snapshot \"missing\"");
    let heads = || syncline(&["snapshot", "list", "--heads", "--json", text(&image)]).ok().json();
    let shown = heads();
    assert_eq!(names(&shown), ["main", "attempt"]);
    assert_eq!((&shown[0]["default"], &shown[1]["default"]), (&true.into(), &false.into()));
    assert_eq!(shown[1]["parent"], "one");
    assert!(
        shown[0]["made"].is_null() && shown[0]["uuid"].is_null(),
        "a volume's first has neither: {shown:?}"
    );
    assert!(shown[1]["made"].is_string() && shown[1]["uuid"].is_string(), "{shown:?}");
    let table = syncline(&["snapshot", "list", "--heads", text(&image)]).ok().out;
    assert_eq!(table.lines().count(), 3, "{table}");
    if can_mount("heads_of_an_image_are_made_listed_mounted_and_deleted_and_a_snapshot_is_gone_back_to") {
        let at = MountPoint::new(&bench, "mnt");
        syncline(&["mount", "-o", "head=attempt", text(&image), at.text()]).ok();
        assert_eq!(fs::read(at.0.join("f")).expect("read"), b"first");
        fs::write(at.0.join("f"), b"of the attempt").expect("write");
        let mounted = "when it is unmounted";
        syncline(&["snapshot", "rollback", at.text(), "one"]).fails(1, &at.0, mounted);
        syncline(&["snapshot", "clone", at.text(), "one", "beside"]).ok();
        syncline(&["snapshot", "clone", at.text(), "one", "beside"]).fails(1, &at.0, "already");
        syncline(&["snapshot", "clone", at.text(), "none", "x"]).fails(1, &at.0, "no snapshot \"none\"");
        let shown = syncline(&["snapshot", "list", "--heads", "--json", at.text()]).ok().json();
        assert_eq!(names(&shown), ["main", "attempt", "beside"]);
        assert_eq!((&shown[0]["default"], &shown[2]["parent"]), (&true.into(), &"one".into()));
        assert!(shown[0]["made"].is_null() && shown[2]["made"].is_string(), "{shown:?}");
        let beside = MountPoint::new(&bench, "beside");
        syncline(&["mount", "-o", "head=beside", text(&image), beside.text()]).ok();
        assert_eq!(fs::read(beside.0.join("f")).expect("read"), b"first");
        fs::write(beside.0.join("f"), b"beside").expect("write");
        assert_eq!(fs::read(at.0.join("f")).expect("read"), b"of the attempt");
        syncline(&["snapshot", "delete", at.text(), "beside"]).fails(1, &at.0, "is mounted");
        syncline(&["snapshot", "delete", at.text(), "main"]).fails(1, &at.0, "when nobody names one");
        beside.unmount();
        syncline(&["snapshot", "delete", at.text(), "beside"]).ok();
        syncline(&["snapshot", "delete", at.text(), "beside"]).fails(1, &at.0, "no snapshot \"beside\"");
        at.unmount();
        syncline(&["mount", "-o", "head=nothing", text(&image), at.text()]).fails(
            32,
            &image,
            "no head named",
        );
    }
    assert_eq!(cat(&[]), "second", "a head shows nothing of another one");
    let fails = |arguments: &[&str], words: &str| {
        syncline(&[&["snapshot"], arguments].concat()).fails(1, Path::new(&image), words);
    };
    fails(&["clone", text(&image), "none", "x"], "has no snapshot \"none\"");
    fails(&["clone", text(&image), "one", "attempt"], "already");
    fails(&["rollback", text(&image), "none"], "has no snapshot \"none\"");
    fails(&["rollback", "--keep", "one", text(&image), "one"], "already");
    assert_eq!(cat(&[]), "second");
    syncline(&["snapshot", "rollback", "--keep", "two", text(&image), "one"]).ok();
    assert_eq!((cat(&[]).as_str(), cat(&["--snapshot", "two"]).as_str()), ("first", "second"));
    let listed = syncline(&["snapshot", "list", "--json", text(&image)]).ok().json();
    assert_eq!(names(&listed), ["one", "two"]);
    assert_eq!(names(&heads()), ["attempt", "main"]);
    syncline(&["snapshot", "delete", "--wait", text(&image), "attempt", "two"]).ok();
    assert_eq!(names(&heads()), ["main"]);
    assert!(syncline(&["check", "--all", text(&image)]).ok().out.ends_with("sound\n"));
    syncline(&["snapshot", "rollback", text(&image), "one"]).ok();
    assert_eq!(cat(&[]), "first");
    let trees = syncline(&["inspect", "trees", "--json", text(&image)]).ok().json();
    assert!(names(&trees).contains(&"main"));
}

#[test]
fn snapshots_are_held_and_released_and_their_usage_is_what_a_deletion_gives_back() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    for (name, byte) in [("one", 1), ("two", 1), ("three", 2)] {
        let volume = open(&image);
        volume.write("/f", vec![byte; 4 << 20]).expect("write");
        volume.snapshot(name).expect("snapshot");
        volume.close().expect("close");
    }
    let run = |arguments: &[&str]| syncline(&[&["snapshot"], arguments].concat());
    let usage = |names: &[&str]| {
        let shown = run(&[&["usage", "--json", text(&image)], names].concat()).ok().json();
        let row = |row: &serde_json::Value| (row["name"].clone(), row["usage"].as_u64().expect("bytes"));
        shown.as_array().expect("a list").iter().map(row).collect::<Vec<_>>()
    };
    let all = usage(&[]);
    assert_eq!(all.len(), 4);
    assert_eq!((&all[0].0, &all[3].0), (&"one".into(), &serde_json::Value::Null));
    let two = usage(&["two", "one"]);
    assert_eq!((&two[0], &two[1]), (&all[1], &all[0]));
    assert!(two[2].1 >= two[0].1 + two[1].1 && two[2].1 >= 4 << 20, "{two:?}");
    assert_eq!(usage(&["three"])[0], all[2]);
    let table = run(&["usage", text(&image), "one", "two"]).ok().out;
    assert!(table.lines().count() == 4 && table.ends_with("(together)\n"), "{table}");
    run(&["usage", text(&image), "one", "none"]).fails(1, &image, "has no snapshot \"none\"");

    run(&["hold", text(&image), "one", "three"]).ok();
    let held = run(&["list", "--json", text(&image)]).ok().json();
    let held = |at: usize| held[at]["held"] == true;
    assert_eq!([held(0), held(1), held(2)], [true, false, true]);
    assert!(run(&["list", text(&image)]).ok().out.contains("yes"));
    run(&["delete", text(&image), "one"]).fails(1, &image, "\"one\" is held; \"syncline snapshot release\"");
    let before = usage(&[])[0].1;
    let count = || open(&image).statfs().blocks_free * 4096;
    run(&["release", text(&image), "one"]).ok();
    let free = count();
    run(&["delete", "--wait", text(&image), "one"]).ok();
    assert_eq!(count() - free, before);
    run(&["release", text(&image), "none"]).fails(1, &image, "has no snapshot \"none\"");
}

#[test]
fn a_volume_without_snapshots_has_one_tree() {
    let bench = Bench::new();
    let image = bench.path("volume.img");
    syncline(&["mkfs", "--quiet", "--size", "64M", text(&image)]).ok();
    let trees = syncline(&["inspect", "trees", "--json", text(&image)]).ok().json();
    assert_eq!(names(&trees), ["main"]);
}

#[test]
fn what_cannot_be_is_told_in_one_sentence() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let fails = |arguments: &[&str], words: &str| {
        syncline(&[&["snapshot"], arguments].concat()).fails(1, Path::new(arguments[1]), words);
    };
    syncline(&["snapshot", "create", text(&image), "s"]).ok();
    fails(&["create", text(&image), "s"], "already");
    fails(&["create", text(&image), "a/b"], "is no name");
    fails(&["rename", text(&image), "s", ""], "is no name");
    fails(&["rename", text(&image), "t", "u"], "has no snapshot \"t\"");
    fails(&["delete", text(&image), "t"], "has no snapshot \"t\"");
    fails(&["delete", text(&image), "main"], "the default head cannot be deleted");
    syncline(&["cat", "--snapshot", "t", text(&image), "/f"]).fails(1, &image, "has no snapshot \"t\"");
    fails(&["create", bench.path("").to_str().expect("UTF-8"), "s"], "on no mounted Syncline volume");
    let old = bench.path("old.img");
    syncline(&["mkfs", "--quiet", "--size", "16M", text(&old)]).ok();
    fails(&["create", text(&old), "s"], "syncline upgrade");
    assert_eq!(syncline(&["mkfs", "--format", "3", "--size", "16M", text(&bench.path("new"))]).code, 2);
}

#[test]
fn an_old_volume_is_upgraded_once_and_has_snapshots_then() {
    let bench = Bench::new();
    let image = bench.path("old.img");
    syncline(&["mkfs", "--quiet", "--format", "1", "--size", "16M", text(&image)]).ok();
    let volume = open(&image);
    volume.write("/f", "first").expect("write");
    syncline(&["upgrade", text(&image)]).fails(1, &image, "in use");
    volume.close().expect("close");
    assert!(syncline(&["upgrade", text(&image)]).ok().out.ends_with("has version 2 of the format now\n"));
    let before = fs::read(&image).expect("read");
    let again = syncline(&["upgrade", text(&image)]).ok().out;
    assert!(again.ends_with("already has version 2 of the format; nothing was changed\n"), "{again}");
    assert_eq!(fs::read(&image).expect("read").len(), before.len());
    syncline(&["snapshot", "create", text(&image), "s"]).ok();
    let volume = open(&image);
    volume.write("/f", "second").expect("write");
    volume.close().expect("close");
    assert_eq!(syncline(&["cat", "--snapshot", "s", text(&image), "/f"]).ok().out, "first");
    assert!(syncline(&["check", "--all", text(&image)]).ok().out.ends_with("sound\n"));
}

/// A volume of version 1 in which no page has room; its files.
fn full(bench: &Bench, size: &str) -> (PathBuf, Vec<String>) {
    let image = bench.path(&format!("full-{size}.img"));
    syncline(&["mkfs", "--quiet", "--format", "1", "--size", size, text(&image)]).ok();
    let volume = open(&image);
    let (mut bytes, mut names) = (1_usize << 20, Vec::new());
    while bytes >= 4096 {
        let name = format!("/f{}", names.len());
        let written = volume.write(&name, vec![7; bytes]).and_then(|()| volume.sync_all());
        if written.is_err() {
            bytes /= 2;
        }
        names.push(name);
    }
    volume.close().expect("close");
    (image, names)
}

#[test]
fn a_full_volume_is_upgraded_or_told_that_it_has_no_room_and_can_be_emptied() {
    let bench = Bench::new();
    for size in ["4M", "5M", "6M", "8M", "16M"] {
        let (image, names) = full(&bench, size);
        let run = syncline(&["upgrade", text(&image)]);
        if run.code != 0 {
            run.fails(1, &image, "no room for version 2");
        }
        assert!(syncline(&["check", text(&image)]).ok().out.ends_with("sound\n"), "{size}");
        let volume = open(&image);
        for name in names.iter().filter(|name| volume.try_exists(name).expect("exists")) {
            volume.remove_file(name).unwrap_or_else(|error| panic!("{size} {name}: {error}"));
        }
        volume.close().expect("close");
        let volume = open(&image);
        volume.write("/new", "new").expect("there is room again");
        volume.close().expect("close");
        let again = syncline(&["upgrade", text(&image)]);
        assert_eq!(again.code, 0, "{size}: {}", again.err);
    }
}

#[test]
fn what_cannot_be_upgraded_says_why_and_stays_as_it_is() {
    let bench = Bench::new();
    let damaged = bench.path("damaged.img");
    syncline(&["mkfs", "--quiet", "--format", "1", "--size", "16M", text(&damaged)]).ok();
    let mut bytes = fs::read(&damaged).expect("read");
    bytes[4096..3 * 4096].fill(9);
    fs::write(&damaged, &bytes).expect("write");
    let run = syncline(&["upgrade", text(&damaged)]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(fs::read(&damaged).expect("read") == bytes);
    let none = bench.path("none.img");
    assert_eq!(syncline(&["upgrade", text(&none)]).code, 1);
}

fn free(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).expect("statvfs").f_bfree
}

#[test]
fn a_mounted_volume_is_snapshotted_by_its_directory_and_a_snapshot_can_be_mounted() {
    if !can_mount("a_mounted_volume_is_snapshotted_by_its_directory_and_a_snapshot_can_be_mounted") {
        return;
    }
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    fs::create_dir(at.0.join("d")).expect("mkdir");
    fs::write(at.0.join("d/f"), vec![7; 8 << 20]).expect("write");
    let made = syncline(&["snapshot", "create", "--json", text(&at.0.join("d")), "s"]).ok().json();
    assert_eq!(made["name"], "s");
    let used = free(&at.0);
    fs::write(at.0.join("d/f"), b"changed").expect("write");
    assert_eq!(names(&syncline(&["snapshot", "list", "--json", at.text()]).ok().json()), ["s"]);
    syncline(&["snapshot", "create", at.text(), "s"]).fails(1, &at.0, "already");
    syncline(&["snapshot", "rename", at.text(), "s", "t"]).ok();
    syncline(&["snapshot", "hold", at.text(), "t"]).ok();
    syncline(&["snapshot", "delete", at.text(), "t"]).fails(1, &at.0, "is held");
    assert_eq!(syncline(&["snapshot", "list", "--json", at.text()]).ok().json()[0]["held"], true);
    syncline(&["snapshot", "release", at.text(), "t"]).ok();
    let usage = syncline(&["snapshot", "usage", "--json", at.text()]).ok().json();
    assert!(usage[0]["usage"].as_u64().expect("bytes") >= 8 << 20, "{usage}");
    syncline(&["snapshot", "usage", at.text(), "s"]).fails(1, &at.0, "has no snapshot \"s\"");
    at.unmount();
    syncline(&["mount", "-o", "snapshot=t", text(&image), at.text()]).ok();
    assert!(fs::read(at.0.join("d/f")).expect("read") == vec![7; 8 << 20]);
    assert_eq!(fs::write(at.0.join("x"), b"x").expect_err("it never changes").raw_os_error(), Some(30));
    at.unmount();
    syncline(&["mount", "-o", "snapshot=none", text(&image), at.text()]).fails(
        32,
        &image,
        "has no snapshot \"none\"",
    );
    syncline(&["mount", text(&image), at.text()]).ok();
    assert_eq!(fs::read(at.0.join("d/f")).expect("read"), b"changed");
    syncline(&["snapshot", "delete", at.text(), "t"]).ok();
    // In the background.
    let began = Instant::now();
    while free(&at.0) < used + 2000 {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the space of a deleted snapshot does not come back"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    at.unmount();
}
