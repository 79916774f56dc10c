//! mkfs: what it makes, and what it refuses before it has changed anything.

use super::common::{Bench, PROGRAM, Run, assert_populated, called, open, syncline};
use std::fs;
use std::path::Path;
use std::process::Command;

fn mkfs(arguments: &[&str], image: &Path) -> Run {
    let mut line = vec!["mkfs"];
    line.extend(arguments);
    line.push(image.to_str().expect("UTF-8"));
    syncline(&line)
}

#[test]
fn new_volume_is_what_was_asked_for() {
    let bench = Bench::new();
    let image = bench.path("a.img");
    let uuid = "2f6c1e0a-5d0b-4c43-9a53-7d3f0c1b2a99";
    let made =
        mkfs(&["--size", "32M", "--journal-size", "1M", "--label", "data", "--uuid", uuid, "--json"], &image)
            .ok();
    let made = made.json();
    assert_eq!(made["uuid"], uuid);
    assert_eq!(made["bytes"], 32 << 20);
    assert_eq!(made["journal_bytes"], 1 << 20);

    let shown = syncline(&["inspect", "super", "--json", image.to_str().unwrap()]).ok().json();
    assert_eq!(shown["slot_0"]["label"], "data");
    assert_eq!(shown["slot_0"]["uuid"], uuid);
    assert_eq!(shown["slot_0"]["blocks"], (32 << 20) / 4096);
    assert_eq!(shown["backup_1"]["valid"], true);
    open(&image).close().expect("an empty volume opens and closes");
}

#[test]
fn smallest_volume_and_journal_work() {
    let bench = Bench::new();
    let image = bench.path("small.img");
    mkfs(&["--size", "4M", "--journal-size", "256K"], &image).ok();
    let volume = open(&image);
    volume.create_dir("/a").expect("there is room for a directory");
    volume.close().expect("close");
    syncline(&["check", image.to_str().unwrap()]).ok();
}

#[test]
fn sizes_below_the_smallest_are_refused_and_nothing_is_created() {
    let bench = Bench::new();
    let image = bench.path("none.img");
    mkfs(&["--size", "3M"], &image).fails(1, &image, "at least 4 MiB");
    mkfs(&["--size", "16M", "--journal-size", "128K"], &image).fails(1, &image, "at least 256 KiB");
    mkfs(&["--size", "16M", "--journal-size", "9M"], &image).fails(1, &image, "half of the volume");
    assert!(!image.exists());
}

#[test]
fn missing_image_needs_a_size() {
    let bench = Bench::new();
    let image = bench.path("none.img");
    mkfs(&[], &image).fails(1, &image, "give --size");
    let nowhere = bench.path("no/such/directory.img");
    mkfs(&["--size", "16M"], &nowhere).fails(1, &nowhere, "No such file");
}

#[test]
fn wrong_words_on_the_command_line_are_usage_errors() {
    let bench = Bench::new();
    let image = bench.path("none.img");
    assert_eq!(mkfs(&["--size", "big"], &image).code, 2);
    assert_eq!(mkfs(&["--size", "16M", "--uuid", "x"], &image).code, 2);
    assert_eq!(mkfs(&["--size", "16M", "--label", &"x".repeat(65)], &image).code, 2);
    assert_eq!(mkfs(&["--frobnicate"], &image).code, 2);
    for (size, words) in [("-5", "\"-5\" is no size"), ("99999999999999999999", "more than any")] {
        let run = mkfs(&["--size", size], &image);
        assert!(run.code == 2 && run.err.contains(words), "{size}: {}", run.err);
    }
    assert!(!image.exists());
}

#[test]
fn a_size_that_the_host_cannot_give_is_said_and_leaves_no_file() {
    let bench = Bench::new();
    let image = bench.path("none.img");
    // A limit on files stands for a file system that has one.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1000; exec \"$0\" mkfs --size 16M \"$1\"", PROGRAM]);
    let output = shell.arg(&image).output().expect("sh");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(image.to_str().unwrap()) && told.contains("takes no file of 16 MiB"), "{told}");
    assert!(!image.exists());
}

#[test]
fn data_of_others_is_refused_without_force_and_left_alone() {
    let bench = Bench::new();
    let image = bench.path("foreign.img");
    let mut ext4 = vec![0; 8 << 20];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
    ext4[1024 + 0x4c..][..4].copy_from_slice(&1_u32.to_le_bytes());
    let mut letters = vec![0; 8 << 20];
    letters[..9].copy_from_slice(b"Dear Ada,");
    for content in [ext4, letters] {
        fs::write(&image, &content).unwrap();
        mkfs(&[], &image).fails(1, &image, "give -f");
        assert!(fs::read(&image).unwrap() == content, "a refusal changes nothing");
        mkfs(&["-f"], &image).ok();
        open(&image).close().expect("close");
    }
}

#[test]
fn volume_is_not_made_over_a_volume_without_force() {
    let bench = Bench::new();
    let image = bench.populated();
    mkfs(&[], &image).fails(1, &image, "Syncline");
    assert_populated(&image);
    mkfs(&["--force"], &image).ok();
    let volume = open(&image);
    assert!(volume.metadata("/dir").is_err(), "the old content is gone");
}

#[test]
fn volume_in_use_is_refused_even_with_force() {
    let bench = Bench::new();
    let image = bench.populated();
    let volume = open(&image);
    mkfs(&["-f"], &image).fails(1, &image, "in use");
    volume.close().expect("close");
    assert_populated(&image);
}

#[test]
fn existing_image_gives_its_own_size() {
    let bench = Bench::new();
    let image = bench.path("zero.img");
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let made = mkfs(&["--json"], &image).ok().json();
    assert_eq!(made["bytes"], 8 << 20);
}

#[test]
fn directory_and_character_device_are_refused() {
    let bench = Bench::new();
    let directory = bench.path("directory");
    fs::create_dir(&directory).unwrap();
    for path in [&directory, Path::new("/dev/zero")] {
        mkfs(&["--size", "16M"], path).fails(1, path, "neither a regular file nor a block device");
        mkfs(&["--size", "16M", "-f"], path).fails(1, path, "neither a regular file nor a block device");
    }
    assert!(directory.is_dir());
}

#[test]
fn mkfs_is_called_by_its_own_name() {
    let bench = Bench::new();
    let image = bench.path("named.img");
    called("mkfs.syncline", &["-q", "-L", "x", "--size", "8M", image.to_str().unwrap()]).ok();
    assert_eq!(called("mkfs.syncline", &["--no-such-option"]).code, 1);
    assert!(called("/sbin/mkfs.syncline", &["--version"]).ok().out.contains("mkfs.syncline"));
}
