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
        let mounted = "unmount it first";
        syncline(&["snapshot", "rollback", at.text(), "one"]).fails(1, &at.0, mounted);
        syncline(&["snapshot", "rollback", text(&image), "one"]).fails(1, &image, "in use");
        assert_eq!(fs::read(at.0.join("f")).expect("read"), b"of the attempt");
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
    syncline(&["mkfs", "--quiet", "--format", "1", "--size", "16M", text(&old)]).ok();
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

#[test]
fn every_verb_tells_programs_what_it_has_done() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let run = |arguments: &[&str]| syncline(&[&["snapshot"], arguments].concat());
    let tell = |verb: &str, arguments: &[&str]| {
        run(&[&[verb, "--json", text(&image)], arguments].concat()).ok().json()
    };
    let made = run(&["create", "--json", "--hold", "--expires", "12h", text(&image), "one"]).ok().json();
    assert_eq!((&made["held"], &made["scheduled"]), (&true.into(), &false.into()));
    assert!(made["expires"].as_str().expect("a moment") > made["made"].as_str().expect("a moment"), "{made}");
    assert_eq!(tell("release", &["one"])["released"], serde_json::json!(["one"]));
    assert_eq!(tell("hold", &["one"])["held"], serde_json::json!(["one"]));
    assert_eq!(tell("rename", &["one", "two"]), serde_json::json!({"renamed": "one", "name": "two"}));
    let head = tell("clone", &["two", "branch"]);
    assert_eq!((&head["name"], &head["parent"]), (&"branch".into(), &"two".into()));
    assert_eq!(tell("diff", &["two"]), serde_json::json!([]));
    let rolled = run(&["rollback", "--json", "--keep", "three", text(&image), "two"]).ok().json();
    assert_eq!(rolled, serde_json::json!({"rolled_back_to": "two", "kept": "three"}));
    tell("release", &["two"]);
    let deleted = tell("delete", &["two", "branch", "three"]);
    assert_eq!(deleted["deleted"], serde_json::json!(["two", "branch", "three"]));
    assert_eq!(tell("list", &[]), serde_json::json!([]));
    // People see that nothing went wrong.
    assert_eq!(run(&["create", text(&image), "x"]).ok().out, "");
    assert_eq!(run(&["delete", text(&image), "x"]).ok().out, "");
    for wrong in ["0h", "1y", ""] {
        assert_eq!(run(&["create", "--expires", wrong, text(&image), "x"]).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_schedule_is_set_shown_and_ended_on_an_image_and_on_a_mount() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let run = |arguments: &[&str]| syncline(&[&["snapshot", "schedule"], arguments].concat());
    let show = |target: &str| run(&["show", "--json", target]).ok().json();
    assert!(show(text(&image))["schedule"].is_null());
    assert!(run(&["show", text(&image)]).ok().out.contains("none"));
    let words = "hourly=24 daily=7 weekly=4 monthly=12 keep-free=10% prefix=auto";
    let told = run(&["set", "--json", text(&image)]).ok().json();
    assert_eq!((&told["schedule"], &told["paused"]), (&words.into(), &false.into()));
    assert_eq!(show(text(&image)), told);
    let set = ["set", "--daily", "3", "--keep-free", "1M", "--prefix", "day", text(&image)];
    assert_eq!(run(&set).ok().out, "");
    let told = show(text(&image));
    assert_eq!(told["schedule"], "daily=3 keep-free=1048576 prefix=day");
    assert_eq!((&told["hourly"], &told["keep_free"]), (&0.into(), &(1 << 20).into()));
    for wrong in [&["--hourly", "0"][..], &["--hourly", "10000"], &["--prefix", "a/b"], &["--prefix", ""]] {
        let refused = run(&[&["set"], wrong, &[text(&image)]].concat());
        assert_eq!((refused.code, refused.err.lines().count()), (2, 1), "{wrong:?}: {}", refused.err);
    }
    assert_eq!(run(&["set", "--keep-free", "95%", text(&image)]).code, 2);
    assert_eq!(show(text(&image)), told, "nothing was changed");
    let old = bench.path("old.img");
    syncline(&["mkfs", "--quiet", "--format", "1", "--size", "16M", text(&old)]).ok();
    run(&["set", text(&old)]).fails(1, &old, "syncline upgrade");
    assert!(show(text(&old))["schedule"].is_null());
    if can_mount("a_schedule_is_set_shown_and_ended_on_an_image_and_on_a_mount") {
        let at = MountPoint::new(&bench, "mnt");
        syncline(&["mount", text(&image), at.text()]).ok();
        assert_eq!(show(at.text()), told);
        fs::write(at.0.join("f"), b"1").expect("write");
        fs::File::open(at.0.join("f")).expect("open").sync_all().expect("sync");
        run(&["set", "--hourly", "2", at.text()]).ok();
        let made = || syncline(&["snapshot", "list", "--json", at.text()]).ok().json();
        let began = Instant::now();
        // It may have made one of the day before; that is the hour's as well.
        while made().as_array().expect("a list").is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "no snapshot is made");
            std::thread::sleep(Duration::from_millis(20));
        }
        let made = made();
        assert_eq!(made[0]["scheduled"], true);
        let name = made[0]["name"].as_str().expect("a name").to_owned();
        assert!(at.0.join(".snapshots").join(&name).is_dir(), "{name}");
        assert!(run(&["off", "--json", at.text()]).ok().json()["schedule"].is_null());
        assert!(show(at.text())["schedule"].is_null());
        at.unmount();
        syncline(&["mount", "-o", "ro", text(&image), at.text()]).ok();
        run(&["set", at.text()]).fails(1, &at.0, "Read-only file system");
        assert!(show(at.text())["schedule"].is_null());
        at.unmount();
    }
    run(&["off", text(&image)]).ok();
    assert!(show(text(&image))["schedule"].is_null());
    assert!(syncline(&["check", "--all", text(&image)]).ok().out.ends_with("sound\n"));
}

#[test]
fn a_mounted_volume_is_compared_as_an_image_is() {
    if !can_mount("a_mounted_volume_is_compared_as_an_image_is") {
        return;
    }
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    let path = |name: &str| at.0.join(name);
    fs::create_dir(path("d")).expect("mkdir");
    for name in ["d/same", "d/changed", "gone", "old"] {
        fs::write(path(name), name).expect("write");
    }
    syncline(&["snapshot", "create", at.text(), "one"]).ok();
    fs::write(path("d/changed"), b"otherwise").expect("write");
    fs::remove_file(path("gone")).expect("unlink");
    fs::rename(path("old"), path("new")).expect("rename");
    // More than one part of an answer.
    for number in 0..400 {
        fs::write(path(&format!("{number:0100}")), b"").expect("write");
    }
    let diff = |target: &str, arguments: &[&str]| {
        syncline(&[&["snapshot", "diff", "--json", target], arguments].concat())
    };
    let now = diff(at.text(), &["one"]).ok().json();
    let changes = now.as_array().expect("a list");
    assert_eq!(changes.len(), 403);
    let find = |path: &str| changes.iter().find(|change| change["path"] == path).expect("it is told");
    assert_eq!(find("gone")["change"], "removed");
    assert_eq!((&find("new")["change"], &find("new")["from"]), (&"renamed".into(), &"old".into()));
    assert_eq!(
        (&find("d/changed")["content"], &find("d/changed")["attributes"]),
        (&true.into(), &false.into())
    );
    syncline(&["snapshot", "create", at.text(), "two"]).ok();
    assert_eq!(diff(at.text(), &["one", "two"]).ok().json(), now);
    assert_eq!(diff(at.text(), &["one", "main"]).ok().json(), now);
    syncline(&["snapshot", "clone", at.text(), "one", "branch"]).ok();
    assert_eq!(diff(at.text(), &["one", "branch"]).ok().json(), serde_json::json!([]));
    assert_eq!(diff(at.text(), &["two", "two"]).ok().json(), serde_json::json!([]));
    assert_eq!(
        diff(at.text(), &["--content", "one", "two"]).ok().json().as_array().expect("a list").len(),
        403
    );
    diff(at.text(), &["none"]).fails(1, &at.0, "no snapshot \"none\"");
    diff(at.text(), &["one", "none"]).fails(1, &at.0, "no snapshot \"none\"");
    assert!(syncline(&["snapshot", "diff", at.text(), "one"]).ok().out.contains("R      old -> new\n"));
    at.unmount();
    assert_eq!(diff(text(&image), &["one", "two"]).ok().json(), now, "an image tells the same");
    syncline(&["mount", "-o", "ro", text(&image), at.text()]).ok();
    assert_eq!(diff(at.text(), &["one", "two"]).ok().json(), now);
    diff(at.text(), &["one"]).fails(1, &at.0, "Read-only file system");
    at.unmount();
    assert!(syncline(&["check", "--all", text(&image)]).ok().out.ends_with("sound\n"));
}

#[test]
fn names_that_cannot_be_are_refused_on_an_image_and_on_a_mount() {
    let bench = Bench::new();
    let image = volume(&bench, "64M");
    syncline(&["snapshot", "create", text(&image), "s"]).ok();
    syncline(&["snapshot", "create", text(&image), "t"]).ok();
    let long = "n".repeat(256);
    let refused = |target: &str, at: &Path| {
        let fails = |arguments: &[&str], words: &str| {
            syncline(&[&["snapshot"], arguments].concat()).fails(1, at, words);
        };
        for name in ["", ".", "..", "a/b", long.as_str()] {
            fails(&["create", target, name], "is no name");
            fails(&["rename", target, "s", name], "is no name");
            fails(&["clone", target, "s", name], "is no name");
        }
        for taken in ["s", "main"] {
            fails(&["create", target, taken], "already");
            fails(&["rename", target, "t", taken], "already");
            fails(&["clone", target, "t", taken], "already");
        }
        for missing in ["none", "", "a/b"] {
            fails(&["delete", target, missing], "has no snapshot");
            fails(&["rename", target, missing, "u"], "has no snapshot");
            fails(&["clone", target, missing, "u"], "has no snapshot");
            fails(&["hold", target, missing], "has no snapshot");
            fails(&["release", target, missing], "has no snapshot");
            fails(&["usage", target, missing], "has no snapshot");
            fails(&["diff", target, missing], "has no snapshot");
        }
        let shown = syncline(&["snapshot", "list", "--json", target]).ok().json();
        assert_eq!(names(&shown), ["s", "t"]);
    };
    refused(text(&image), &image);
    if can_mount("names_that_cannot_be_are_refused_on_an_image_and_on_a_mount") {
        let at = MountPoint::new(&bench, "mnt");
        syncline(&["mount", text(&image), at.text()]).ok();
        refused(at.text(), &at.0);
        at.unmount();
    }
}
