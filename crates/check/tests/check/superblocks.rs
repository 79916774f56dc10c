use crate::image::*;
use std::collections::BTreeSet;
use syncline_check::{CheckError, CheckOptions, Code, EXIT_OPERATIONAL, check, exit_code};
use syncline_device::MemoryDevice;
use syncline_format::{BlockNo, Generation, GroupNo, ObjectNo, header};

#[test]
fn a_damaged_other_slot_is_found_and_rewritten() {
    let device = Image::populated().build();
    patch(&device, BlockNo(1), |block| block[300] ^= 1);
    let report = expect(&device, &[Code::SuperblockSlot]);
    assert_eq!(report.exit_code(), 0, "the volume itself is whole");
    let report = expect_repaired(&device, &[]);
    assert_eq!(report.exit_code(), 1);
    expect(&device, &[]);
}

#[test]
fn an_empty_other_slot_is_damage_only_after_the_first_generation() {
    let device = Image::populated().build();
    patch(&device, BlockNo(1), |block| block.fill(0));
    expect(&device, &[Code::SuperblockSlot]);
}

#[test]
fn the_older_slot_serves_when_the_newer_one_is_torn() {
    let mut image = Image::populated();
    let device = image.build();
    patch(&device, BlockNo(2), |block| block[200..].fill(0));
    // The older generation's bitmaps and nodes are gone in this image: both are newer than it.
    let report = look(&device);
    assert!(report.has(Code::SuperblockSlot) && report.has(Code::NodeNewer) && report.has(Code::BitmapLost));
}

#[test]
fn a_slot_of_another_volume_is_found_and_replaced() {
    let mut image = Image::populated();
    let device = image.build();
    image.superblock.uuid = [9; 16];
    image.superblock.generation = Generation(4);
    write(&device, BlockNo(1), &image.superblock.encode(BlockNo(1)));
    expect(&device, &[Code::SuperblockDisagrees]);
    expect_repaired(&device, &[]);
}

#[test]
fn two_slots_of_one_generation_are_found() {
    let mut image = Image::populated();
    let device = image.build();
    write(&device, BlockNo(1), &image.superblock.encode(BlockNo(1)));
    image.superblock.label = "other".into();
    write(&device, BlockNo(2), &image.superblock.encode(BlockNo(2)));
    expect(&device, &[Code::SuperblockTwins]);
    expect_repaired(&device, &[]);
}

#[test]
fn lost_backups_are_found_and_rewritten() {
    let mut image = Image::populated();
    let device = image.build();
    let backup = image.superblock.layout.backup_start();
    patch(&device, backup, |block| block.fill(0));
    patch(&device, backup.plus(1), |block| block[100] ^= 1);
    let report = expect(&device, &[Code::BackupSuperblock]);
    assert_eq!(report.findings.len(), 2);
    assert_eq!(report.findings[0].block, Some(backup));
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn repair_does_not_revive_bitmaps_of_a_checkpoint_that_was_cut_off() {
    let mut image = Image::populated();
    let device = image.build();
    let superblock = &image.superblock;
    // Of another tree: this one's blocks are free in it.
    let next = superblock.generation.next();
    write_bitmap(&device, superblock, GroupNo(0), 1, next, &BTreeSet::new());
    expect(&device, &[]);
    patch(&device, superblock.layout.backup_start(), |block| block.fill(0));
    expect(&device, &[Code::BackupSuperblock]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn without_any_slot_the_backup_is_pointed_out_and_nothing_is_changed() {
    let device = Image::populated().build();
    for slot in [BlockNo(1), BlockNo(2)] {
        patch(&device, slot, |block| block.fill(0));
    }
    let before = device.to_bytes();
    let report = repair(&device);
    assert_eq!(codes(&report), [Code::NoSuperblock]);
    assert!(report.refused.is_some() && !report.repaired);
    assert_eq!(report.exit_code(), 4);
    assert_eq!(device.to_bytes(), before);
}

#[test]
fn counters_at_their_end_are_refused() {
    let mut image = Image::populated();
    let device = image.build();
    image.superblock.generation = Generation(u64::MAX);
    write(&device, BlockNo(2), &image.superblock.encode(BlockNo(2)));
    expect(&device, &[Code::SuperblockExhausted]);
}

#[test]
fn a_next_object_that_was_given_out_is_raised() {
    let mut image = Image::populated();
    image.superblock.next_object = ObjectNo(12);
    let device = image.build();
    expect(&device, &[Code::NextObject]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn what_is_no_volume_is_an_operational_error() {
    for (device, want) in [
        (MemoryDevice::new(8), CheckError::TooSmall { blocks: 8 }),
        (MemoryDevice::new(5000), CheckError::NotAVolume),
    ] {
        let outcome = check(&device, CheckOptions::default());
        assert_eq!(exit_code(&outcome), EXIT_OPERATIONAL);
        assert_eq!(outcome, Err(want));
    }
}

#[test]
fn another_version_is_told_apart_from_damage() {
    let device = Image::new().build();
    patch(&device, BlockNo(1), |block| block[16] = 9);
    expect(&device, &[Code::SuperblockSlot]);
    patch(&device, BlockNo(1), |block| {
        header::seal(block);
    });
    // Overwriting what a newer version wrote would be no repair.
    assert!(matches!(check(&device, CheckOptions::default()), Err(CheckError::Unsupported(_))));
}

#[test]
fn a_truncated_image_is_no_sound_volume() {
    let device = Image::populated().build();
    let mut bytes = device.to_bytes();
    bytes.truncate(bytes.len() / 2);
    let report = look(&MemoryDevice::from_bytes(bytes));
    assert_eq!(codes(&report), [Code::NoSuperblock]);
}
