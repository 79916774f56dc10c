//! import, export, ls and cat.

use super::common::{Bench, PROGRAM, Run, assert_populated, can_mount, flip, open, pattern, skip, syncline};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A directory on the host with something of every kind that any user may make.
fn plant(at: &Path) {
    fs::create_dir_all(at.join("deep/er")).expect("mkdir");
    fs::write(at.join("file"), pattern(7)).expect("write");
    fs::set_permissions(at.join("file"), fs::Permissions::from_mode(0o751)).expect("chmod");
    fs::write(at.join("deep/er/empty"), "").expect("write");
    fs::hard_link(at.join("file"), at.join("deep/same")).expect("link");
    symlink("deep/er", at.join("short")).expect("symlink");
    symlink("nowhere", at.join("dangling")).expect("symlink");
    let sparse = File::create(at.join("sparse")).expect("create");
    sparse.write_all_at(b"middle", 3 << 20).expect("write");
    sparse.set_len(5 << 20).expect("grow");
    let then = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["file", "deep/er/empty", "deep/er", "deep"] {
        let times = fs::FileTimes::new().set_accessed(then).set_modified(then);
        File::open(at.join(name)).expect("open").set_times(times).expect("utimes");
    }
    fs::set_permissions(at.join("deep/er"), fs::Permissions::from_mode(0o555)).expect("chmod");
}

fn same(one: &Path, other: &Path) {
    let (left, right) =
        (fs::symlink_metadata(one).expect("stat"), fs::symlink_metadata(other).expect("stat"));
    assert_eq!(left.mode(), right.mode(), "{}", other.display());
    assert_eq!((left.uid(), left.gid()), (right.uid(), right.gid()), "{}", other.display());
    assert_eq!(left.mtime_nsec(), right.mtime_nsec(), "{}", other.display());
    assert_eq!(left.mtime(), right.mtime(), "{}", other.display());
    if left.is_symlink() {
        assert_eq!(fs::read_link(one).expect("readlink"), fs::read_link(other).expect("readlink"));
    } else if left.is_file() {
        assert!(fs::read(one).expect("read") == fs::read(other).expect("read"), "{}", other.display());
    } else {
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(one), names(other), "{}", one.display());
        names(one).iter().for_each(|name| same(&one.join(name), &other.join(name)));
    }
}

/// Lets the temporary directory be removed by a user who is not root.
fn unlock(at: &Path) {
    fs::set_permissions(at.join("deep/er"), fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn a_tree_comes_back_as_it_went_in() {
    let bench = Bench::new();
    let (image, tree, back) = (bench.volume(), bench.path("tree"), bench.path("back"));
    plant(&tree);
    let figures = syncline(&["import", "--json", text(&image), text(&tree)]).ok().json();
    assert_eq!(figures["files"], 3);
    assert_eq!(figures["directories"], 3);
    assert_eq!(figures["symbolic_links"], 2);
    assert_eq!(figures["hard_links"], 1);
    assert!(figures["bytes"].as_u64().unwrap() < 2 << 20, "holes are left out: {figures}");
    assert!(syncline(&["check", text(&image)]).ok().out.contains("sound"));
    let run = syncline(&["export", text(&image), "/tree", text(&back)]).ok();
    assert!(run.out.starts_with("exported 3 files"), "{}", run.out);
    same(&tree, &back);
    let inode = |name: &str| fs::metadata(back.join(name)).expect("stat").ino();
    assert_eq!(inode("file"), inode("deep/same"), "one file under two names");
    assert!(fs::metadata(back.join("sparse")).expect("stat").blocks() < 1 << 11, "the hole is one again");
    unlock(&tree);
    unlock(&back);
}

#[test]
fn copies_go_into_directories_that_exist_and_to_names_that_do_not() {
    let bench = Bench::new();
    let (image, tree) = (bench.volume(), bench.path("tree"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "1").unwrap();
    let contents = format!("{}/.", text(&tree));
    syncline(&["import", text(&image), &contents, "/"]).ok();
    syncline(&["import", text(&image), text(&tree), "/new"]).ok();
    syncline(&["import", text(&image), text(&tree), "/new"]).ok();
    syncline(&["import", "-q", text(&image), text(&tree.join("a")), "/b"]).ok();
    let names = syncline(&["ls", "-R", text(&image)]).ok().out;
    assert_eq!(names.lines().collect::<Vec<_>>(), ["a", "b", "new", "new/a", "new/tree", "new/tree/a"]);
    let out = bench.path("out");
    syncline(&["export", text(&image), "/", text(&out)]).ok();
    assert_eq!(fs::read(out.join("new/tree/a")).unwrap(), b"1");
    syncline(&["export", text(&image), "/b", text(&out.join("new"))]).ok();
    assert_eq!(fs::read(out.join("new/b")).unwrap(), b"1");
}

#[test]
fn what_exists_is_replaced_only_with_force() {
    let bench = Bench::new();
    let (image, file) = (bench.volume(), bench.path("file"));
    fs::write(&file, "old").unwrap();
    syncline(&["import", text(&image), text(&file), "/file"]).ok();
    fs::write(&file, "new").unwrap();
    syncline(&["import", text(&image), text(&file), "/file"]).fails(1, &image, "--force");
    assert_eq!(syncline(&["cat", text(&image), "/file"]).ok().out, "old");
    syncline(&["import", "--force", text(&image), text(&file), "/file"]).ok();
    assert_eq!(syncline(&["cat", text(&image), "/file", "file"]).ok().out, "newnew");
    fs::write(&file, "kept").unwrap();
    syncline(&["export", text(&image), "/file", text(&file)]).fails(1, &file, "--force");
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    syncline(&["export", "-f", text(&image), "/file", text(&file)]).ok();
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, "file\n", "nothing is left beside it");
}

#[test]
fn a_directory_does_not_replace_a_file_nor_the_other_way_round() {
    let bench = Bench::new();
    let image = bench.populated();
    let tree = bench.path("tree");
    fs::create_dir_all(tree.join("file1")).unwrap();
    fs::write(tree.join("dir"), "").unwrap();
    syncline(&["import", text(&image), text(&tree.join("file1")), "/dir"]).fails(
        1,
        &image,
        "Not a directory",
    );
    let contents = format!("{}/.", text(&tree));
    syncline(&["import", "-f", text(&image), &contents, "/"]).fails(1, &image, "Is a directory");
    assert_populated(&image);
}

#[test]
fn extended_attributes_travel_both_ways() {
    let bench = Bench::new();
    let (image, file, back) = (bench.volume(), bench.path("file"), bench.path("back"));
    fs::write(&file, "x").unwrap();
    let set = Command::new("setfattr").args(["-n", "user.colour", "-v", "blue", text(&file)]).status();
    if !set.is_ok_and(|status| status.success()) {
        // Without the program, or on a filesystem without attributes: the volume's side alone.
        syncline(&["import", "-q", text(&image), text(&file)]).ok();
        let volume = open(&image);
        volume.set_xattr("/file", "user.colour", "blue").unwrap();
        volume.close().unwrap();
        syncline(&["export", "-q", text(&image), "/file", text(&back)]).ok();
        return;
    }
    syncline(&["import", "-q", text(&image), text(&file)]).ok();
    let volume = open(&image);
    assert_eq!(volume.xattr("/file", "user.colour").unwrap().as_deref(), Some(&b"blue"[..]));
    volume.close().unwrap();
    syncline(&["export", "-q", text(&image), "/file", text(&back)]).ok();
    let got = Command::new("getfattr").args(["--only-values", "-n", "user.colour", text(&back)]).output();
    assert_eq!(got.expect("getfattr").stdout, b"blue");
}

#[test]
fn what_is_damaged_is_left_out_and_all_the_rest_comes_out() {
    let bench = Bench::new();
    let (image, out) = (bench.populated(), bench.path("out"));
    flip(&image, place_of_data(&image, "/dir", "file7") + 5);

    let run = syncline(&["export", "--json", text(&image), "/dir", text(&out)]);
    assert_eq!(run.code, 1, "{}", run.err);
    assert_eq!(run.json()["unreadable"], 1);
    assert_eq!(run.json()["files"], 19);
    assert!(run.err.contains(":/dir/file7: ") && run.err.contains("checksum"), "{}", run.err);
    assert!(!out.join("file7").exists(), "half a file does not pass for a whole one");
    for index in (0..20).filter(|&index| index != 7) {
        assert!(fs::read(out.join(format!("file{index}"))).unwrap() == pattern(index), "file{index}");
    }

    // With --force what is there already stays, because nothing better has come.
    fs::write(out.join("file7"), "older").unwrap();
    assert_eq!(syncline(&["export", "--force", text(&image), "/dir/.", text(&out)]).code, 1);
    assert_eq!(fs::read(out.join("file7")).unwrap(), b"older");
    syncline(&["export", text(&image), "/dir/file7", text(&bench.path("one"))]).fails(1, &image, "checksum");
    assert!(!bench.path("one").exists());
    let names = fs::read_dir(&out).unwrap().count();
    assert_eq!(names, 21, "nothing is left beside the files");
}

#[test]
fn a_file_without_its_attributes_is_left_out_and_takes_no_name() {
    let bench = Bench::new();
    let (image, out) = (bench.populated(), bench.path("out"));
    let volume = open(&image);
    // So large that the value has leaves of its own.
    let value: Vec<u8> = (0..15_000_u32).flat_map(u32::to_le_bytes).collect();
    volume.set_xattr("/dir/file3", "user.large", &value).unwrap();
    volume.close().unwrap();
    let content = fs::read(&image).unwrap();
    let places: Vec<usize> = content
        .windows(64)
        .enumerate()
        .filter(|(_, window)| *window == &value[30_000..30_064])
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| flip(&image, at as u64));
    let output = Command::new(PROGRAM).args(["cat", text(&image), "/dir/file3"]).output().unwrap();
    assert!(output.status.success() && output.stdout == pattern(3), "the data is whole");

    let run = syncline(&["export", "--json", text(&image), "/dir", text(&out)]);
    assert_eq!((run.code, run.json()["unreadable"].as_u64()), (1, Some(1)), "{}", run.err);
    assert!(run.err.contains(":/dir/file3: extended attributes: "), "{}", run.err);
    assert!(!out.join("file3").exists(), "without its access list it would be somebody else's to read");
    assert_eq!(run.json()["files"], 19);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 20, "nothing is left beside the files");

    let run = syncline(&["export", "--partial", "--json", text(&image), "/dir/file3", text(&out)]);
    assert_eq!((run.code, &run.json()["damaged"][0]["without_attributes"]), (1, &true.into()), "{}", run.err);
    assert!(fs::read(out.join("file3")).unwrap() == pattern(3), "the data is whole");
    assert_eq!(fs::metadata(out.join("file3")).unwrap().mode() & 0o7777, 0o600, "nobody else may read it");
}

/// The place of a file's data on the device.
fn place_of_data(image: &Path, directory: &str, name: &str) -> u64 {
    let listed = syncline(&["ls", "--json", text(image), directory]).ok().json();
    let row = listed.as_array().unwrap().iter().find(|row| row["name"] == name).expect("listed");
    let extents = syncline(&["inspect", "extents", "--json", text(image)]).ok().json();
    let of_file = extents.as_array().unwrap().iter().find(|extent| extent["inode"] == row["inode"]);
    of_file.expect("the file has data")["block"].as_u64().unwrap() * 4096
}

#[test]
fn a_damaged_file_comes_out_as_far_as_it_is_readable_if_asked_for() {
    let bench = Bench::new();
    let (image, out) = (bench.populated(), bench.path("out"));
    let at = place_of_data(&image, "/dir", "file19");
    flip(&image, at + 4096 + 5);
    flip(&image, at + 3 * 4096 + 5);
    flip(&image, at + 4 * 4096 + 5);

    let run = syncline(&["export", "--partial", "--json", text(&image), "/dir", text(&out)]);
    let figures = run.json();
    assert_eq!(
        (run.code, &figures["unreadable"], &figures["files"]),
        (1, &0.into(), &20.into()),
        "{}",
        run.err
    );
    assert_eq!(figures["damaged"].as_array().unwrap().len(), 1);
    let damaged = &figures["damaged"][0];
    assert!(damaged["path"].as_str().unwrap().ends_with(":/dir/file19"));
    assert_eq!(damaged["without_attributes"], false);
    let lost: Vec<_> =
        damaged["lost"].as_array().unwrap().iter().map(|lost| (&lost["start"], &lost["end"])).collect();
    assert_eq!(lost, [(&4096.into(), &8192.into()), (&12288.into(), &20480.into())]);
    assert!(run.err.contains(":/dir/file19: bytes 4096 to 8191 cannot be read and are zeros"), "{}", run.err);
    assert!(run.err.contains("1 could be read only in part"), "{}", run.err);
    let mut expected = pattern(19);
    expected[4096..8192].fill(0);
    expected[12288..20480].fill(0);
    assert!(fs::read(out.join("file19")).unwrap() == expected);
    for index in 0..19 {
        assert!(fs::read(out.join(format!("file{index}"))).unwrap() == pattern(index), "file{index}");
    }

    // What is there already is better than what is damaged.
    fs::write(out.join("file19"), "older").unwrap();
    let run = syncline(&["export", "--partial", "--force", text(&image), "/dir/.", text(&out)]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("file19: kept as it was"), "{}", run.err);
    assert_eq!(fs::read(out.join("file19")).unwrap(), b"older");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 21, "nothing is left beside the files");
    let one = syncline(&["export", "--partial", text(&image), "/dir/file19", text(&bench.path("one"))]);
    assert_eq!(one.code, 1, "{}", one.err);
    assert!(fs::read(bench.path("one")).unwrap() == expected);
}

#[test]
fn a_copy_that_ends_early_leaves_no_part_of_a_file() {
    let bench = Bench::new();
    let (image, large) = (bench.volume(), bench.path("large"));
    fs::write(&large, vec![7; 20 << 20]).unwrap();
    syncline(&["import", text(&image), text(&large), "/large"]).fails(1, &image, ":/large: No space left");
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, "");
}

#[test]
fn a_volume_in_use_says_to_use_the_mount() {
    let bench = Bench::new();
    let image = bench.populated();
    let volume = open(&image);
    for line in [
        vec!["import", text(&image), "/etc/hostname"],
        vec!["export", text(&image), "/dir", text(&bench.path("out"))],
        vec!["ls", text(&image)],
        vec!["cat", text(&image), "/dir/file1"],
    ] {
        syncline(&line).fails(1, &image, "through the mount");
    }
    volume.close().unwrap();
    syncline(&["ls", text(&image)]).ok();
}

#[test]
fn a_mounted_volume_names_its_mount() {
    if !can_mount("a_mounted_volume_names_its_mount") {
        return;
    }
    let bench = Bench::new();
    let (image, there) = (bench.populated(), bench.path("there"));
    fs::create_dir(&there).unwrap();
    syncline(&["mount", text(&image), text(&there)]).ok();
    let ways = [(1, vec!["ls"]), (1, vec!["inspect", "super"]), (1, vec!["mkfs", "-f"]), (8, vec!["check"])];
    let refused = ways.map(|(code, mut words)| {
        words.push(text(&image));
        (code, syncline(&words))
    });
    let unmounted: Run = syncline(&["umount", text(&there)]);
    unmounted.ok();
    for (code, run) in refused {
        run.fails(code, &image, &format!("mounted on {}", there.display()));
    }
}

#[test]
fn an_unclean_volume_is_listed_without_being_changed() {
    let bench = Bench::new();
    let image = bench.volume();
    let volume = open(&image);
    let mut file = volume.create_file("/synced").unwrap();
    file.write_all(b"kept").unwrap();
    file.sync_all().unwrap();
    drop(file);
    drop(volume);
    let before = fs::read(&image).unwrap();
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, "synced\n");
    assert_eq!(syncline(&["cat", text(&image), "synced"]).ok().out, "kept");
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn ls_tells_type_size_and_target() {
    let bench = Bench::new();
    let image = bench.populated();
    let rows = syncline(&["ls", "--json", text(&image), "/dir"]).ok().json();
    let named = |name: &str| {
        let rows = rows.as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).expect("listed").clone()
    };
    assert_eq!(rows.as_array().unwrap().len(), 21);
    assert_eq!(named("file3")["size"], 15010);
    assert_eq!(named("file3")["type"], "file");
    assert_eq!(named("link")["type"], "symlink");
    assert_eq!(named("link")["target"], "file3");
    let long = syncline(&["ls", "-l", text(&image), "/dir"]).ok().out;
    assert!(
        long.lines().any(|line| line.starts_with("lrwxrwxrwx") && line.ends_with("link -> file3")),
        "{long}"
    );
    let one = syncline(&["ls", "--json", text(&image), "/dir/file3"]).ok().json();
    assert_eq!(one[0]["size"], 15010);
}

#[test]
fn what_is_missing_is_named_with_its_volume() {
    let bench = Bench::new();
    let image = bench.populated();
    let missing = bench.path("missing");
    syncline(&["ls", text(&image), "/nowhere"]).fails(1, &image, ":/nowhere: No such file");
    syncline(&["cat", text(&image), "nowhere"]).fails(1, &image, ":/nowhere: No such file");
    syncline(&["cat", text(&image), "/dir"]).fails(1, &image, ":/dir: Is a directory");
    syncline(&["export", text(&image), "/nowhere", text(&missing)]).fails(
        1,
        &image,
        ":/nowhere: No such file",
    );
    syncline(&["import", text(&image), text(&missing)]).fails(1, &missing, "No such file");
    syncline(&["ls", text(&missing)]).fails(1, &missing, "No such file");
    assert_eq!(syncline(&["cat", text(&image)]).code, 2);
    assert_eq!(syncline(&["import", text(&image)]).code, 2);
}

#[test]
fn the_volume_is_not_copied_into_itself() {
    let bench = Bench::new();
    let image = bench.volume();
    fs::write(bench.path("file"), "x").unwrap();
    let run = syncline(&["import", text(&image), &format!("{}/.", text(image.parent().unwrap())), "/"]);
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("the volume itself"), "{}", run.err);
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, "file\n");
}

#[test]
fn a_full_volume_is_a_sentence() {
    let bench = Bench::new();
    let (image, large) = (bench.volume(), bench.path("large"));
    fs::write(&large, vec![7; 20 << 20]).unwrap();
    syncline(&["import", text(&image), text(&large)]).fails(1, &image, "No space left");
    assert!(syncline(&["check", text(&image)]).ok().out.contains("sound"));
}

/// What the program writes to a terminal, which script(1) makes.
fn on_a_terminal(line: &str) -> Option<String> {
    let output = Command::new("script").args(["-qec", &format!("{PROGRAM} {line}"), "/dev/null"]).output();
    let output = output.ok()?;
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn progress_tells_how_much_there_is_to_a_terminal_and_to_nobody_else() {
    let bench = Bench::new();
    let (image, from, to) = (bench.path("image"), bench.path("from"), bench.path("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), vec![1; 24 << 20]).unwrap();
    fs::hard_link(from.join("large"), from.join("same")).unwrap();
    let show = |path: &Path| path.to_str().unwrap().to_owned();
    let (image, from, to) = (show(&image), show(&from), show(&to));
    syncline(&["mkfs", "-q", "--size", "64M", &image]).ok();
    let Some(told) = on_a_terminal(&format!("import {image} {from} /")) else {
        return skip("progress_tells_how_much_there_is", "script(1) is not installed");
    };
    assert!(told.contains("importing") && told.contains("of 24.00 MiB") && told.contains("left"), "{told:?}");
    let told = on_a_terminal(&format!("check {image}")).unwrap();
    assert!(told.contains("blocks of data verified:") && told.contains("left"), "{told:?}");
    for quiet in [format!("import -q -f {image} {from} /"), format!("check -q {image}")] {
        let told = on_a_terminal(&quiet).unwrap();
        assert!(!told.contains("importing") && !told.contains("verified:"), "{told:?}");
    }
    let told = syncline(&["export", &image, "/", &to]).ok();
    assert_eq!(told.err, "", "standard error is no terminal");
}
