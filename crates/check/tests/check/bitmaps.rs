use crate::image::*;
use std::collections::BTreeSet;
use syncline_check::Code;
use syncline_device::MemoryDevice;
use syncline_format::item::ExtentItem;
use syncline_format::{BlockNo, Generation, GroupNo, Key, ObjectNo, header};

const FREE: u64 = 20_000;

#[test]
fn leaked_blocks_are_found_as_one_run_and_freed() {
    let mut image = Image::populated();
    image.bits.extend((FREE..FREE + 5).map(|block| (block, true)));
    let device = image.build();
    let report = expect(&device, &[Code::BlockLeaked]);
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].block, Some(BlockNo(FREE)));
    assert!(report.findings[0].message.starts_with("5 blocks"));
    assert_eq!(report.exit_code(), 4);
    let report = expect_repaired(&device, &[]);
    assert!(report.findings[0].corrected);
    expect(&device, &[]);
}

#[test]
fn used_blocks_marked_free_are_found_and_marked() {
    let mut image = Image::populated();
    let block = *image.data.keys().next().expect("some data");
    image.bits.insert(block, false);
    let device = image.build();
    let report = expect(&device, &[Code::BlockUnmarked]);
    assert_eq!(report.findings[0].block, Some(BlockNo(block)));
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_block_of_two_files_is_found_and_left_alone() {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "twin", 1);
    let (_, theirs) =
        image.items.iter().find(|(key, _)| key.kind == syncline_format::Kind::Extent).expect("an extent");
    let theirs = ExtentItem::decode(theirs).expect("valid").slice(0, 1);
    let ours = image.items.insert(Key::extent(file, 0), theirs.encode()).expect("it had one");
    let ours = ExtentItem::decode(&ours).expect("valid");
    image.data.remove(&ours.start.0);
    let device = image.build();
    let report = expect(&device, &[Code::BlockShared]);
    assert_eq!(report.findings[0].object, Some(file));
    assert!(!repair(&device).repaired, "which one is right would be a guess");
}

#[test]
fn an_extent_outside_the_groups_is_found() {
    for start in [3, 0, u64::MAX / 8192, VOLUME_BLOCKS - 2] {
        let mut image = Image::populated();
        let file = image.add_file(ObjectNo::ROOT_DIR, "far", 1);
        let extent = ExtentItem::written(BlockNo(start), vec![0]);
        image.put(Key::extent(file, 0), extent.encode());
        let report = expect(&image.build(), &[Code::BlockRange]);
        assert_eq!(report.findings[0].block, Some(BlockNo(start)));
    }
}

#[test]
fn a_group_without_a_valid_bitmap_gets_a_new_one() {
    let mut image = Image::populated();
    let device = image.build();
    let at = image.superblock.layout.group_start(GroupNo(0));
    patch(&device, at, |block| block[2000] ^= 1);
    expect(&device, &[Code::BitmapLost]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

/// Without the feature, zeros are a bitmap that was lost.
#[test]
fn zeros_are_a_bitmap_only_on_volumes_that_say_so() {
    for unwritten_bitmaps in [false, true] {
        let mut image = Image::populated();
        let device = image.build();
        let groups = [GroupNo(0), GroupNo(1)].map(|group| image.superblock.layout.group_start(group));
        let free = |at| {
            let bits = read(&device, at, 1)[64..].to_vec();
            bits.iter().map(|byte| u64::from(byte.count_zeros())).sum::<u64>()
        };
        image.superblock.free_blocks = groups.iter().map(|&at| free(at)).sum();
        image.superblock.unwritten_bitmaps = unwritten_bitmaps;
        image.write_superblocks(&device);
        expect(&device, &[]);
        patch(&device, groups[1], |block| block.fill(0));
        if !unwritten_bitmaps {
            expect(&device, &[Code::BitmapLost]);
            expect_repaired(&device, &[]);
        }
        expect(&device, &[]);
    }
}

#[test]
fn a_damaged_slot_beside_a_valid_one_is_no_error() {
    let mut image = Image::populated();
    let device = image.build();
    let at = image.superblock.layout.bitmap_slot(GroupNo(0), 1);
    patch(&device, at, |block| block[0] = 1);
    let report = expect(&device, &[Code::BitmapSlot]);
    assert_eq!(report.exit_code(), 0, "an aborted checkpoint leaves this");
}

#[test]
fn a_slot_newer_than_the_superblock_does_not_count() {
    let mut image = Image::populated();
    let device = image.build();
    let newer = Generation(GENERATION.0 + 1);
    write_bitmap(&device, &image.superblock, GroupNo(0), 1, newer, &BTreeSet::new());
    expect(&device, &[]);
    // As old as the superblock it counts, and marks everything free.
    let newest = Generation(GENERATION.0);
    image.superblock.generation = newer;
    image.write_superblocks(&device);
    write_bitmap(&device, &image.superblock, GroupNo(0), 0, newest, &BTreeSet::new());
    assert!(look(&device).has(Code::BlockUnmarked));
}

#[test]
fn a_bitmap_that_offers_its_own_head_is_found() {
    let mut image = Image::populated();
    let device = image.build();
    let at = image.superblock.layout.group_start(GroupNo(0));
    patch(&device, at, |block| {
        block[64] &= !1;
        header::seal(block);
    });
    expect(&device, &[Code::BitmapEdge, Code::FreeBlocks]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

/// By this count an older bitmap is told from the current one, so a wrong one would make a sound volume a damaged one.
#[test]
fn a_wrong_count_of_free_blocks_is_found_and_corrected() {
    let mut image = Image::populated();
    let sound = image.build().to_bytes();
    let right = image.superblock.free_blocks;
    for wrong in [0, right - 1, right + 1, u64::MAX] {
        image.superblock.free_blocks = wrong;
        let device = MemoryDevice::from_bytes(sound.clone());
        image.write_superblocks(&device);
        // One slot of each group is one of zeros.
        let report = expect(&device, &[Code::FreeBlocks]);
        assert_eq!(report.exit_code(), 4);
        expect_repaired(&device, &[]);
        expect(&device, &[]);
    }
}

#[test]
fn twins_of_which_the_one_that_counts_is_wrong_are_repaired_as_a_whole() {
    let mut image = Image::populated();
    let device = image.build();
    image.superblock.free_blocks += 1;
    write(&device, BlockNo(1), &image.superblock.encode(BlockNo(1)));
    expect(&device, &[Code::SuperblockTwins, Code::FreeBlocks]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn an_older_bitmap_is_not_taken_for_one_that_was_lost() {
    let mut image = Image::populated();
    let device = image.build();
    // What the checkpoint before knew: nothing was in use.
    let older = Generation(GENERATION.0 - 1);
    write_bitmap(&device, &image.superblock, GroupNo(0), 1, older, &BTreeSet::new());
    expect(&device, &[]);
    let at = image.superblock.layout.bitmap_slot(GroupNo(0), 0);
    patch(&device, at, |block| block[2000] ^= 1);
    expect(&device, &[Code::BitmapLost, Code::BitmapSlot, Code::BlockUnmarked, Code::FreeBlocks]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}
