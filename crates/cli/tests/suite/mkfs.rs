//! mkfs: what it makes, and what it refuses before it has changed anything.

use super::common::{Bench, PROGRAM, Run, assert_populated, called, open, pattern, poke, skip, syncline};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use syncline::VolumeOptions;
use syncline_device::{Device, FileDevice, OpenOptions};
use syncline_format::BlockNo;
use syncline_format::layout::Layout;

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
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&image).unwrap());
    assert_eq!(mode & 0o777, 0o600, "who reads an image reads every file in it");
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

/// Whether the host tells holes of a file; says so if not.
fn tells_holes(image: &Path, test: &str) -> bool {
    let device = FileDevice::open(image, &OpenOptions::default()).expect("opened");
    let tells = device.hole(BlockNo(0)).is_some();
    if !tells {
        skip(test, "the file system of the temporary directory does not tell holes");
    }
    tells
}

#[test]
fn a_huge_volume_in_a_file_with_holes_takes_no_space() {
    const TEST: &str = "a_huge_volume_in_a_file_with_holes_takes_no_space";
    let bench = Bench::new();
    let image = bench.path("huge.img");
    let made = mkfs(&["--size", "12T"], &image);
    if made.code != 0 && made.err.contains("its file system takes no file of") {
        return skip(TEST, "the file system of the temporary directory takes no file of 12 TiB");
    }
    made.ok();
    if !tells_holes(&image, TEST) {
        return;
    }
    let taken = || fs::metadata(&image).expect("there").blocks() * 512;
    assert!(taken() <= 64 << 20, "{} bytes", taken());
    syncline(&["check", image.to_str().unwrap()]).ok();
    // Files and nodes come to lie far from each other.
    let volume = open(&image);
    for index in 0..20_usize {
        let mut file = volume.create_file(format!("file{index}")).expect("create");
        std::io::Write::write_all(&mut file, &pattern(index)).expect("write");
        file.sync_all().expect("sync");
    }
    volume.close().expect("close");
    syncline(&["check", image.to_str().unwrap()]).ok();
    let volume = open(&image);
    for index in 0..20 {
        assert!(volume.read(format!("file{index}")).expect("read") == pattern(index), "file {index}");
    }
    volume.close().expect("close");
    assert!(taken() <= 80 << 20, "{} bytes", taken());
}

#[test]
fn lost_bitmaps_are_told_from_those_that_were_never_written() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let layout = Layout::new((16 << 20) / 4096, None).expect("as mkfs has it");
    poke(&image, layout.groups_start.byte_offset(), &[0; 2 * 4096]);
    let found = syncline(&["check", "--json", path]);
    assert_eq!(found.code, 4, "{}", found.out);
    assert_eq!(found.json()["counts"]["SL-B001"], 1, "{}", found.out);
    syncline(&["ls", path]).fails(1, &image, "a bitmap is missing");
    assert_eq!(syncline(&["check", "--repair", path]).code, 1);
    assert_populated(&image);
    syncline(&["check", path]).ok();
}

#[test]
fn a_journal_with_holes_is_written_ahead_of_its_records() {
    const TEST: &str = "a_journal_with_holes_is_written_ahead_of_its_records";
    const SYNCS: u64 = 600;
    let bench = Bench::new();
    let image = bench.path("holes.img");
    mkfs(&["--size", "256M", "--journal-size", "64M"], &image).ok();
    let layout = Layout::new((256 << 20) / 4096, Some((64 << 20) / 4096)).expect("valid");
    let device = FileDevice::open(&image, &OpenOptions::default()).expect("opened");
    device.discard(layout.journal_start.plus(1), layout.journal_blocks - 1).expect("punched");
    device.flush().expect("flushed");
    drop(device);
    if !tells_holes(&image, TEST) {
        return;
    }
    // Each sync is a record of two blocks: its page and what is said of it.
    let wrote = |from: u64, syncs: u64| {
        let volume = VolumeOptions::new().background(false).open(&image).expect("open");
        let file = match from {
            0 => volume.create_file("file").expect("create"),
            _ => syncline::OpenOptions::new().write(true).open(&volume, "file").expect("open"),
        };
        file.sync_all().expect("sync");
        let before = volume.stats().engine.device;
        for index in from..from + syncs {
            file.write_all_at(&[(index as u8).wrapping_add(1); 4096], index * 4096).expect("write");
            file.sync_all().expect("sync");
        }
        let after = volume.stats().engine.device;
        assert_eq!(after.flushes - before.flushes, syncs);
        volume.close().expect("close");
        after.writes - before.writes - syncs
    };
    let ahead = wrote(0, SYNCS);
    assert!((4..=6).contains(&ahead), "{ahead} times a MiB was written ahead");
    assert_eq!(wrote(SYNCS, 100), 0, "what was written once is not written again");
    let volume = open(&image);
    let content = volume.read("file").expect("read");
    assert_eq!(content.len() as u64, (SYNCS + 100) * 4096);
    assert!(
        content
            .chunks(4096)
            .enumerate()
            .all(|(page, bytes)| bytes.iter().all(|&b| b == (page as u8).wrapping_add(1)))
    );
    volume.close().expect("close");
    syncline(&["check", image.to_str().unwrap()]).ok();
}
