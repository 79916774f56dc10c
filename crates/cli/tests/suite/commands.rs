//! check and inspect on healthy volumes, exit codes, JSON, other names.

use super::common::{Bench, PROGRAM, called, open, skip, syncline};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn check_of_a_healthy_volume_is_sound_and_counts() {
    let bench = Bench::new();
    let image = bench.populated();
    let report = syncline(&["check", "--json", image.to_str().unwrap()]).ok().json();
    assert_eq!(report["sound"], true);
    assert_eq!(report["errors_left"], 0);
    assert_eq!(report["totals"]["inodes"], 23, "root, directory, 20 files, symlink");
    assert!(report["totals"]["data_blocks_verified"].as_u64().unwrap() > 0);
    let text = syncline(&["check", image.to_str().unwrap()]).ok();
    assert!(text.out.contains("sound"), "{}", text.out);
}

#[test]
fn check_of_a_volume_in_use_is_refused() {
    let bench = Bench::new();
    let image = bench.populated();
    let volume = open(&image);
    syncline(&["check", image.to_str().unwrap()]).fails(8, &image, "in use");
    volume.close().expect("close");
    syncline(&["check", image.to_str().unwrap()]).ok();
}

#[test]
fn fsck_at_boot_returns_at_once_for_a_closed_volume() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    for letter in ["-a", "-p"] {
        let run = called("fsck.syncline", &[letter, path]).ok();
        assert!(run.out.contains("closed properly"), "{}", run.out);
    }
    assert!(called("fsck.syncline", &["-a", "-f", path]).ok().out.contains("sound"));
    assert!(called("fsck.syncline", &["-n", path]).ok().out.contains("sound"));
    assert_eq!(called("fsck.syncline", &["--nonsense"]).code, 16);
    assert_eq!(called("fsck.syncline", &["-a", "-n", path]).code, 16);
    assert_eq!(syncline(&["check"]).code, 16);
}

#[test]
fn wrong_usage_has_the_exit_code_of_the_tool_that_is_meant() {
    let bench = Bench::new();
    let image = bench.path("new.img");
    let wrong = ["--size", "8M", "--uuid", "none", image.to_str().unwrap()];
    assert_eq!(called("mkfs.syncline", &wrong).code, 1);
    assert_eq!(called("mkfs.syncline", &["--nonsense"]).code, 1);
    assert_eq!(syncline(&[&["mkfs"], &wrong[..]].concat()).code, 2);
    assert_eq!(called("mount.fuse.syncline", &["--nonsense"]).code, 1);
    assert!(!image.exists());
}

#[test]
fn what_is_no_mount_is_named() {
    let bench = Bench::new();
    let (image, missing) = (bench.volume(), bench.path("missing"));
    for command in ["stats", "umount"] {
        syncline(&[command, image.to_str().unwrap()]).fails(1, &image, "is not the root of a mounted");
        for missing in [&missing, &missing.join("below")] {
            syncline(&[command, missing.to_str().unwrap()]).fails(1, missing, "does not exist");
        }
    }
    let remount = ["mount", "-o", "remount,ro", image.to_str().unwrap(), missing.to_str().unwrap()];
    syncline(&remount).fails(32, &missing, "does not exist");
}

#[test]
fn every_name_of_the_program_tells_its_own() {
    let mounts = ["mount.syncline", "mount.fuse.syncline", "mount.fuseblk.syncline"];
    for name in ["syncline", "mkfs.syncline", "fsck.syncline"].into_iter().chain(mounts) {
        let version = called(name, &["--version"]).ok().out;
        assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
        let usage = called(name, &["--nonsense"]);
        assert!(usage.err.contains(&format!("Usage: {name} ")), "{}", usage.err);
    }
}

#[test]
fn output_that_nobody_takes_is_a_failure_and_no_panic() {
    let bench = Bench::new();
    let image = bench.populated();
    let (path, new, out) = (image.to_str().unwrap(), bench.path("new.img"), bench.path("out"));
    for line in [
        &["mkfs", "--size", "8M", new.to_str().unwrap()][..],
        &["check", path],
        &["inspect", "journal", path],
        &["inspect", "super", "--json", path],
        &["inspect", "inode", path, "/dir"],
        &["ls", path],
        &["ls", "-l", path],
        &["cat", path, "/dir/file19"],
        &["export", path, "/dir", out.to_str().unwrap()],
        &["--help"],
        &["--version"],
        &["ls", "--help"],
    ] {
        let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
        let run = Command::new(PROGRAM).args(line).stdout(full()).output().unwrap();
        let told = String::from_utf8(run.stderr).unwrap();
        let code = if line[0] == "check" { 8 } else { 1 };
        assert_eq!(run.status.code(), Some(code), "{line:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{line:?}: {told}");
        assert!(told.contains("No space left"), "{line:?}: {told}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let run = Command::new(PROGRAM).args(["check", "/missing"]).stderr(full).output().unwrap();
    assert_eq!(run.status.code(), Some(8), "nor is a message that does not arrive");
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let exported = bench.path("exported");
    let to = exported.to_str().unwrap();
    for line in [
        &["check", path][..],
        &["inspect", "tree", "--items", path],
        &["ls", "-R", path],
        &["cat", path, "/dir/file19"],
        &["probe", path],
        &["export", path, "/dir", to],
        &["import", "-f", path, to, "/"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = Command::new(PROGRAM).args(line).stdout(writer).output().unwrap();
        let told = String::from_utf8(run.stderr).unwrap();
        assert_eq!((run.status.code(), told.as_str()), (Some(0), ""), "{line:?}");
    }
}

#[test]
fn tracers_find_each_probe_in_the_program() {
    let Ok(output) = Command::new("readelf").args(["--notes", "--wide", PROGRAM]).output() else {
        return skip("tracers_find_each_probe_in_the_program", "there is no readelf");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let is_known = cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));
    for name in ["sync_start", "seal", "flush_end", "reply"] {
        let notes = text.split("Provider: syncline\n").skip(1);
        let places: Vec<u64> = notes
            .filter(|note| note.trim_start().starts_with(&format!("Name: {name}\n")))
            .map(|note| {
                let place =
                    note.split("Location: 0x").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
                u64::from_str_radix(place, 16).unwrap()
            })
            .collect();
        assert_eq!(places.len(), usize::from(is_known), "{name}: {text}");
        // One that the linker has dropped would have an offset and no address.
        assert!(places.iter().all(|place| *place > 0x1000), "{name}: {places:?}");
    }
}

#[test]
fn probe_tells_udev_what_a_volume_is_and_nothing_of_anything_else() {
    let bench = Bench::new();
    let image = bench.path("image");
    let path = image.to_str().unwrap();
    let uuid = "2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99";
    syncline(&["mkfs", "-q", "--size", "4M", "-L", "my data\n;id", "-U", uuid, path]).ok();
    let told = syncline(&["probe", path]).ok().out;
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines,
        [
            "ID_FS_TYPE=syncline",
            "ID_FS_USAGE=filesystem",
            "ID_FS_VERSION=2",
            &format!("ID_FS_UUID={uuid}"),
            &format!("ID_FS_UUID_ENC={uuid}"),
            "ID_FS_LABEL=my_data__id",
            "ID_FS_LABEL_ENC=my\\x20data\\x0a\\x3bid",
            "ID_FS_SIZE=4194304",
            "ID_FS_BLOCKSIZE=4096",
        ]
    );
    assert_eq!(syncline(&["probe", "--json", path]).ok().json()["ID_FS_UUID"], uuid);
    let other = bench.path("other");
    std::fs::write(&other, vec![0; 1 << 20]).unwrap();
    let run = syncline(&["probe", other.to_str().unwrap()]).fails(1, &other, "no Syncline volume");
    assert_eq!(run.out, "");
}

#[test]
fn the_options_of_a_mount_are_explained() {
    for help in [syncline(&["mount", "--help"]), called("mount.syncline", &["--help"])] {
        let help = help.ok().out;
        for option in [
            "commit=SECONDS",
            "relatime",
            "memory=auto|SIZE",
            "metrics=[ADDRESS:]PORT|unix:PATH",
            "SYNCLINE_LOG",
            "Exit codes",
        ] {
            assert!(help.contains(option), "{option} in {help}");
        }
    }
}

#[test]
fn fsck_without_options_changes_nothing() {
    let bench = Bench::new();
    let image = bench.populated();
    let before = std::fs::read(&image).unwrap();
    called("fsck.syncline", &[image.to_str().unwrap()]).ok();
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn every_subject_of_inspect_is_valid_json_and_text() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    for subject in [
        &["super"][..],
        &["journal"],
        &["journal", "--items"],
        &["tree"],
        &["tree", "--items"],
        &["inode", "-i", "1"],
        &["extents"],
    ] {
        let mut line = vec!["inspect"];
        line.extend(subject);
        line.push(path);
        assert!(!syncline(&line).ok().out.is_empty(), "{subject:?}");
        line.push("--json");
        syncline(&line).ok().json();
    }
}

#[test]
fn inspect_shows_what_was_stored() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let root = syncline(&["inspect", "inode", "-i", "1", "--json", path]).ok().json();
    assert_eq!(root["type"], "directory");
    assert_eq!(root["nlink"], 3);
    assert_eq!(root["directory_entries"][0]["name"], "dir");
    let directory = root["directory_entries"][0]["inode"].as_u64().unwrap().to_string();
    let shown = syncline(&["inspect", "inode", "-i", &directory, "--json", path]).ok().json();
    let entries = shown["directory_entries"].as_array().unwrap();
    assert_eq!(entries.len(), 21);
    let named =
        |name: &str| entries.iter().find(|entry| entry["name"] == name).expect("listed")["inode"].clone();
    let last = named("file19").as_u64().unwrap().to_string();
    let file = syncline(&["inspect", "inode", "-i", &last, "--json", path]).ok().json();
    assert_eq!(file["size"], 19 * 5000 + 10);
    let pages: u64 =
        file["extents"].as_array().unwrap().iter().map(|extent| extent["pages"].as_u64().unwrap()).sum();
    assert_eq!(pages, (19_u64 * 5000 + 10).div_ceil(4096));
    let link =
        syncline(&["inspect", "inode", "-i", &named("link").as_u64().unwrap().to_string(), "--json", path]);
    assert_eq!(link.ok().json()["target"], "file3");
}

#[test]
fn inspect_finds_an_inode_by_its_path() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let shown = |line: &[&str]| syncline(&[&["inspect"], line].concat()).ok().json();
    assert_eq!(shown(&["inode", "--json", path, "/"])["inode"], 1);
    let file = shown(&["inode", "--json", path, "/dir/file19"]);
    assert_eq!(file["size"], 19 * 5000 + 10);
    assert_eq!(shown(&["inode", "--json", path, "dir/../dir/./file19"])["inode"], file["inode"]);
    assert_eq!(shown(&["inode", "--json", path, "dir/link"])["target"], "file3", "not followed");
    let extents = shown(&["extents", "--json", path, "/dir/file19"]);
    let extents = extents.as_array().unwrap();
    assert!(!extents.is_empty() && extents.iter().all(|extent| extent["inode"] == file["inode"]));
    for missing in ["/dir/none", "/dir/file19/below"] {
        syncline(&["inspect", "inode", path, missing]).fails(1, &image, missing);
    }
    let wrong =
        [&["inode", "-i", "1", path, "/dir"][..], &["super", path, "/dir"], &["tree", "-i", "1", path]];
    for line in wrong {
        assert_eq!(syncline(&[&["inspect"], line].concat()).code, 2, "{line:?}");
    }
}

#[test]
fn inspect_tells_the_paths_of_what_it_shows() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let shown = |line: &[&str]| syncline(&[&["inspect"], line].concat()).ok().json();
    let file = shown(&["inode", "--json", path, "/dir/file19"]);
    assert_eq!(file["paths"], serde_json::json!(["/dir/file19"]));
    let number = file["inode"].to_string();
    assert_eq!(shown(&["inode", "-i", &number, "--json", path])["paths"], file["paths"]);
    let extents = shown(&["extents", "--json", path]);
    let named =
        |extent: &serde_json::Value| extent["path"].as_str().unwrap_or_default().starts_with("/dir/file");
    assert!(!extents.as_array().unwrap().is_empty() && extents.as_array().unwrap().iter().all(named));
    let text = syncline(&["inspect", "extents", path, "/dir/file19"]).ok().out;
    assert!(text.lines().skip(1).all(|line| line.ends_with(" /dir/file19")), "{text}");
    let items = shown(&["tree", "--items", "--json", path, "/dir/file19"]);
    let items = items.as_array().unwrap();
    assert!(items.len() >= 2, "an inode and its extents");
    assert!(items.iter().all(|item| item["object"] == file["inode"] && item["path"] == "/dir/file19"));
    // Whatever the journal still holds of it has its name as well.
    for operation in shown(&["journal", "--items", "--json", path, "/dir/file19"]).as_array().unwrap() {
        assert_eq!(operation["path"], "/dir/file19", "{operation}");
    }
    assert_eq!(syncline(&["inspect", "journal", path, "/dir/file19"]).code, 2);
}

#[test]
fn ls_shows_the_numbers_that_inspect_takes() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let number = syncline(&["ls", "--json", path]).ok().json()[0]["inode"].to_string();
    for line in [&["ls", "-i", path][..], &["ls", "-li", path]] {
        let text = syncline(line).ok().out;
        let shown = text.lines().find(|line| line.ends_with("dir")).expect("listed");
        assert_eq!(shown.split_whitespace().next(), Some(number.as_str()), "{text}");
    }
    let inspected = syncline(&["inspect", "inode", "-i", &number, "--json", path]).ok().json();
    assert_eq!(inspected["type"], "directory");
}

#[test]
fn only_one_superblock_counts() {
    for is_new in [true, false] {
        let bench = Bench::new();
        let image = if is_new { bench.volume() } else { bench.populated() };
        let shown = syncline(&["inspect", "super", "--json", image.to_str().unwrap()]).ok().json();
        let count = shown.as_object().unwrap().values().filter(|copy| copy["counts"] == true).count();
        assert_eq!(count, 1, "{shown}");
        assert_eq!(
            (&shown["backup_0"]["counts"], &shown["backup_1"]["counts"]),
            (&false.into(), &false.into())
        );
    }
}

#[test]
fn inspect_of_an_inode_needs_its_number() {
    let bench = Bench::new();
    let image = bench.volume();
    let path = image.to_str().unwrap();
    assert_eq!(syncline(&["inspect", "inode", path]).code, 2);
    syncline(&["inspect", "inode", "-i", "77", path]).fails(1, &image, "no inode 77");
}

#[test]
fn help_names_every_subcommand() {
    let help = syncline(&["--help"]).ok().out;
    for word in [
        "mkfs", "mount", "umount", "check", "inspect", "import", "export", "ls", "cat", "sync", "stats",
        "top",
    ] {
        assert!(help.contains(word), "{word}");
        assert!(!syncline(&[word, "--help"]).ok().out.is_empty());
    }
    assert!(help.contains("demo") && help.contains("bench"));
    assert!(syncline(&["stats", "--help"]).ok().out.contains("--watch[=<SECONDS>]"));
    let top = syncline(&["top", "--help"]).ok().out;
    assert!(
        top.contains("--once") && top.contains("--interval <SECONDS>") && top.contains("q ends it"),
        "{top}"
    );
    assert_eq!(syncline(&["frobnicate"]).code, 2);
    assert_eq!(syncline::<&str>(&[]).code, 2);
}

#[test]
fn commands_on_a_directory_that_is_no_mount_say_so() {
    let bench = Bench::new();
    let directory = bench.path("plain");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.to_str().unwrap();
    syncline(&["umount", path]).fails(1, &directory, "not");
    syncline(&["stats", path]).fails(1, &directory, "not");
}

/// Runs a program that was written just now. While another test forks, its child has the file open for writing.
fn output(command: &mut Command) -> Output {
    loop {
        match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            done => return done.expect("the program starts"),
        }
    }
}

/// A copy of the program where no companion lies beside it.
fn alone(bench: &Bench) -> PathBuf {
    let program = bench.path("syncline");
    std::fs::copy(PROGRAM, &program).expect("copied");
    program
}

#[test]
fn a_companion_that_is_not_installed_is_named_with_what_to_do() {
    let bench = Bench::new();
    for (word, name) in [("bench", "syncline-bench"), ("demo", "syncline-demo")] {
        let run = output(Command::new(alone(&bench)).args([word, "--help"]).env("PATH", "/nowhere"));
        let told = String::from_utf8(run.stderr).unwrap();
        assert_eq!((run.status.code(), told.lines().count()), (Some(1), 1), "{told}");
        assert!(told.contains(name) && told.contains("install-tools"), "{told}");
    }
}

#[test]
fn a_companion_gets_the_arguments_as_they_stand_and_its_exit_code_counts() {
    let bench = Bench::new();
    let program = alone(&bench);
    let elsewhere = bench.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let script = |path: &Path, code: i32| {
        std::fs::write(path, format!("#!/bin/sh\nprintf '<%s>' \"$@\"\nexit {code}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let run = || {
        let line = ["bench", "--help", "-x", "--", "a b", "--json=y"];
        let run = output(Command::new(&program).args(line).env("PATH", &elsewhere));
        assert_eq!(String::from_utf8(run.stdout).unwrap(), "<--help><-x><--><a b><--json=y>");
        run.status.code()
    };
    script(&elsewhere.join("syncline-bench"), 7);
    assert_eq!(run(), Some(7), "in PATH");
    script(&bench.path("syncline-bench"), 9);
    assert_eq!(run(), Some(9), "beside the program, which comes first");
}

#[test]
fn the_shipped_command_mounts_on_nothing_that_forgets() {
    let bench = Bench::new();
    let (image, at) = (bench.volume(), bench.path("mnt"));
    std::fs::create_dir(&at).unwrap();
    // Nothing is mounted in either build.
    let run = called(
        "mount.syncline",
        &[image.as_os_str(), at.as_os_str(), "-f".as_ref(), "-o".as_ref(), "volatile".as_ref()],
    );
    if run.code == 0 {
        return skip(
            "the_shipped_command_mounts_on_nothing_that_forgets",
            "built together with crates that switch the feature on; run cargo test -p syncline-cli",
        );
    }
    assert_eq!((run.code, run.err.lines().count()), (1, 1), "{}", run.err);
    assert!(run.err.contains("volatile") && run.err.contains("syncline-lab"), "{}", run.err);
}
