//! Damaged and foreign images: one sentence, the right exit code, and nothing lost.

use super::common::{Bench, Run, age, assert_populated, called, flip, syncline};
use std::fs;
use std::path::Path;

const SLOT_0: u64 = 4096;
const SLOT_1: u64 = 8192;

/// Every command that opens a volume, with the exit code of failure.
fn commands(image: &Path) -> Vec<(Run, i32)> {
    let image = image.to_str().expect("UTF-8");
    let fake = ["-f", image, "/"];
    vec![
        (syncline(&["check", image]), 8),
        (called("fsck.syncline", &["-n", image]), 8),
        (syncline(&["inspect", "journal", image]), 1),
        (syncline(&["inspect", "tree", image]), 1),
        (syncline(&["inspect", "extents", image]), 1),
        (called("mount.syncline", &fake), 32),
    ]
}

#[track_caller]
fn all_fail(image: &Path, words: &str) {
    let before = fs::read(image).expect("read");
    for (run, code) in commands(image) {
        run.fails(code, image, words);
    }
    assert!(fs::read(image).expect("read") == before, "looking changes nothing");
}

#[test]
fn missing_image_is_named() {
    let bench = Bench::new();
    let image = bench.path("missing.img");
    for (run, code) in commands(&image) {
        run.fails(code, &image, "No such file");
    }
}

#[test]
fn zeroed_image_is_no_volume() {
    let bench = Bench::new();
    let image = bench.path("zero.img");
    fs::write(&image, vec![0; 8 << 20]).unwrap();
    all_fail(&image, "check the path");
}

#[test]
fn foreign_image_is_no_volume() {
    let bench = Bench::new();
    let image = bench.path("foreign.img");
    fs::write(&image, b"PNG or whatever ".repeat(1 << 19)).unwrap();
    all_fail(&image, "check the path");
}

#[test]
fn empty_image_is_no_volume() {
    let bench = Bench::new();
    let image = bench.path("empty.img");
    fs::write(&image, b"").unwrap();
    all_fail(&image, "check the path");
}

#[test]
fn image_of_a_few_bytes_is_no_volume() {
    let bench = Bench::new();
    let image = bench.path("tiny.img");
    fs::write(&image, vec![1; 3000]).unwrap();
    all_fail(&image, "check the path");
    syncline(&["ls", image.to_str().unwrap()]).fails(1, &image, "check the path");
}

#[test]
fn newer_version_asks_for_newer_software() {
    let bench = Bench::new();
    let image = bench.populated();
    let blocks = fs::metadata(&image).unwrap().len() / 4096;
    for block in [SLOT_0 / 4096, SLOT_1 / 4096, blocks - 2, blocks - 1] {
        age(&image, block);
    }
    all_fail(&image, "newer version");
}

#[test]
fn truncated_image_is_an_error_and_never_repaired() {
    let bench = Bench::new();
    let image = bench.populated();
    let content = fs::read(&image).unwrap();
    fs::write(&image, &content[..content.len() / 2]).unwrap();
    let path = image.to_str().unwrap();
    let before = fs::read(&image).unwrap();
    for arguments in [vec!["check", path], vec!["check", "--repair", path]] {
        let run = syncline(&arguments);
        assert!([4, 8].contains(&run.code), "exit {}: {}{}", run.code, run.out, run.err);
    }
    assert!(fs::read(&image).unwrap() == before, "half a volume is not written to");
    let told = syncline(&["check", path]).out;
    assert!(told.contains("cannot be repaired") && told.contains("it was cut off"), "{told}");
    assert!(!told.contains("export"), "no advice that does not help: {told}");
    syncline(&["ls", path]).fails(1, &image, "restore the whole image");
    syncline(&["inspect", "tree", path]).fails(1, &image, "restore the whole image");
    // The other half is put back: nothing was lost.
    fs::write(&image, &content).unwrap();
    assert_populated(&image);
}

#[test]
fn overwritten_beginning_is_told_from_a_foreign_image() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let content = fs::read(&image).unwrap();
    let mut damaged = content.clone();
    damaged[..1 << 20].fill(0);
    fs::write(&image, &damaged).unwrap();
    for arguments in [&["ls", path][..], &["inspect", "tree", path], &["inspect", "journal", path]] {
        syncline(arguments).fails(1, &image, "were overwritten");
    }
    syncline(&["mkfs", path]).fails(1, &image, "give -f");
    let run = syncline(&["check", "--repair", path]);
    assert!(run.code == 4 && run.out.contains("both superblock slots are lost"), "{}{}", run.code, run.out);
    assert!(fs::read(&image).unwrap() == damaged, "nothing was written");
    fs::write(&image, &content).unwrap();
    assert_populated(&image);
}

#[test]
fn one_flipped_bit_in_a_superblock_slot_loses_nothing() {
    let bench = Bench::new();
    let image = bench.populated();
    let shown = syncline(&["inspect", "super", "--json", image.to_str().unwrap()]).ok().json();
    // The slot that does not count.
    let other = if shown["slot_0"]["counts"] == true { SLOT_1 } else { SLOT_0 };
    flip(&image, other + 200);
    assert_populated(&image);
}

#[test]
fn flipped_bits_are_found_by_the_check_wherever_they_are() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap().to_owned();
    let shown = syncline(&["inspect", "super", "--json", &path]).ok().json();
    let counts = if shown["slot_0"]["counts"] == true { "slot_0" } else { "slot_1" };
    let root = shown[counts]["root_block"].as_u64().unwrap() * 4096;
    let extents = syncline(&["inspect", "extents", "--json", &path]).ok().json();
    let data = extents[0]["block"].as_u64().expect("the volume has data") * 4096;

    let pristine = fs::read(&image).unwrap();
    let sound = syncline(&["check", "--json", &path]).ok().json();
    let blocks_of_data = sound["totals"]["data_blocks_verified"].as_u64().unwrap();
    for (place, name) in [(root + 100, "root node"), (data + 5, "data")] {
        flip(&image, place);
        let run = syncline(&["check", "--json", &path]);
        assert_eq!(run.code, 4, "{name}: {}", run.out);
        let report = run.json();
        assert_eq!(report["sound"], false, "{name}");
        let title = report["findings"][0]["title"].as_str().unwrap();
        assert!(
            syncline(&["check", &path]).out.contains(title),
            "people are told what a code means: {title}"
        );
        assert!(!report["findings"].as_array().unwrap().is_empty(), "{name}");
        assert_eq!(report["repairable"], 0, "{name}");
        let told = syncline(&["check", &path]).out;
        assert!(!told.contains("--repair"), "{name}: no advice that does not help: {told}");
        if name == "data" {
            let (place, totals) = (&report["findings"][0]["path"], &report["totals"]);
            let place = format!("{} (inode ", place.as_str().expect("a path"));
            assert!(place.starts_with('/') && told.contains(&place), "{place}: {told}");
            assert!(told.contains("replace or remove the files named above"), "{told}");
            assert_eq!(totals["data_blocks_damaged"], 1);
            assert_eq!(totals["data_blocks_verified"].as_u64().unwrap() + 1, blocks_of_data);
        }
        // Repair must not make it worse: with the bit back in place everything is there.
        let repaired = syncline(&["check", "--repair", &path]);
        assert!(
            repaired.code & 4 != 0,
            "{name}: damage that cannot be repaired stays told, not {}",
            repaired.code
        );
        fs::write(&image, &pristine).unwrap();
        assert_populated(&image);
        fs::write(&image, &pristine).unwrap();
    }
}

#[test]
fn damaged_volumes_can_still_be_inspected() {
    let bench = Bench::new();
    let image = bench.populated();
    let path = image.to_str().unwrap();
    let shown = syncline(&["inspect", "super", "--json", path]).ok().json();
    let counts = if shown["slot_0"]["counts"] == true { "slot_0" } else { "slot_1" };
    flip(&image, shown[counts]["root_block"].as_u64().unwrap() * 4096 + 100);
    let run = syncline(&["inspect", "tree", "--json", path]);
    assert_eq!(run.code, 1, "damage is told by the exit code");
    assert!(run.out.contains("checksum"), "{}", run.out);
    run.json();
    syncline(&["inspect", "super", path]).ok();
    syncline(&["inspect", "journal", path]).ok();
}

#[test]
fn image_of_noise_with_a_valid_superblock_ends_every_command() {
    let bench = Bench::new();
    let image = bench.populated();
    let mut content = fs::read(&image).unwrap();
    let end = content.len() - 8192;
    let mut state = 1_u64;
    for byte in &mut content[12288..end] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (state >> 56) as u8;
    }
    fs::write(&image, &content).unwrap();
    let path = image.to_str().unwrap();
    for arguments in [
        vec!["check", path],
        vec!["check", "--repair", path],
        vec!["inspect", "tree", path],
        vec!["inspect", "journal", "--items", path],
        vec!["inspect", "inode", "--inode", "1", path],
    ] {
        let run = syncline(&arguments);
        assert!(run.code <= 8, "{arguments:?} exits {}", run.code);
        assert!(!run.err.contains("panicked"), "{arguments:?}: {}", run.err);
    }
}
