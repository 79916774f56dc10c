//! What repair writes, and what it leaves alone.

use crate::hostile::{Event, Random, Recorder};
use crate::image::*;
use syncline_check::{CheckError, CheckOptions, Code, check};
use syncline_device::MemoryDevice;
use syncline_format::batch::Op;
use syncline_format::item::*;
use syncline_format::*;

/// A volume with a file of four pages, a leak, and a log with images of pages 1, 2 and 5 of the file.
fn with_images() -> (Image, MemoryDevice, ObjectNo) {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "four", 4);
    image.bits.insert(25_000, true);
    let device = image.build();
    let mut grown = image.inode(file);
    grown.size = 5 * BLOCK_BYTES as u64 + 3;
    let grown = grown.encode();
    let page = |page, bytes| Op::Image { tree: TreeId::MAIN, object: file, page, bytes };
    let mut log = Log::new(&image);
    log.write(&device, &[put(Key::inode(file), &grown), page(1, b"old"), page(5, b"end")]);
    log.write(&device, &[page(1, b"one"), page(2, b"two")]);
    (image, device, file)
}

#[test]
fn repair_destages_images_and_ends_the_log() {
    let (_, device, _) = with_images();
    expect(&device, &[Code::JournalReplay, Code::BlockLeaked]);
    expect_repaired(&device, &[]);
    let report = expect(&device, &[]);
    assert_eq!(report.totals.data_blocks_verified, 23 + 5, "pages 0 to 3 and 5");
    let bytes = device.to_bytes();
    let found = |text: &[u8]| {
        let pages = bytes.chunks_exact(BLOCK_BYTES);
        pages.filter(|page| page.starts_with(text) && page[text.len()..].iter().all(|&b| b == 0)).count()
    };
    assert_eq!((found(b"one"), found(b"two"), found(b"end"), found(b"old")), (1, 1, 1, 0));
}

#[test]
fn repair_writes_only_to_blocks_that_nothing_names() {
    let (image, device, _) = with_images();
    let before = device.to_bytes();
    repair(&device);
    let after = device.to_bytes();
    let layout = image.superblock.layout;
    let changed: Vec<u64> = (0..VOLUME_BLOCKS)
        .filter(|&b| {
            let at = b as usize * BLOCK_BYTES;
            before[at..at + BLOCK_BYTES] != after[at..at + BLOCK_BYTES]
        })
        .collect();
    let current_bitmaps = [GroupNo(0), GroupNo(1)].map(|group| layout.bitmap_slot(group, 0).0);
    for block in changed {
        assert_ne!(block, 2, "the superblock that counts is not written over");
        assert!(!current_bitmaps.contains(&block));
        assert!(!(16..80).contains(&block), "the journal is not written to");
        assert!(!image.data.contains_key(&block), "data is not written over");
        let was_zero = before[block as usize * BLOCK_BYTES..][..BLOCK_BYTES].iter().all(|&b| b == 0);
        let superblock = block == 1 || block >= layout.backup_start().0;
        assert!(was_zero || superblock, "block {block}");
    }
}

#[test]
fn a_power_cut_during_repair_leaves_the_old_volume_or_the_new_one() {
    let (_, device, _) = with_images();
    let device = Recorder::new(device);
    check(&device, CheckOptions::default().repair(true)).expect("a volume");
    let events = device.events.into_inner().expect("no panic");
    let flushes = events.iter().filter(|event| matches!(event, Event::Flush)).count();
    assert_eq!(flushes, 4, "before the first write, before the superblock, behind it, behind the backups");
    let (mut old_seen, mut new_seen) = (0, 0);
    for cut in 0..=events.len() {
        for mode in 0..6 {
            let (_, device, _) = with_images();
            let mut random = Random(1 + cut as u64 * 7 + mode);
            let done = &events[..cut];
            let flushed = done.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
            for (index, event) in done.iter().enumerate() {
                let Event::Write(at, bytes) = event else { continue };
                let last = index + 1 == cut;
                let arrives = match mode {
                    0 => false,
                    1 => last,
                    2 => true,
                    _ => random.below(2) == 0,
                };
                if index < flushed || arrives {
                    write(&device, *at, bytes);
                }
            }
            let after = look(&device);
            match codes(&after)[..] {
                [Code::JournalReplay, Code::BlockLeaked] => old_seen += 1,
                [] | [Code::BackupSuperblock] => new_seen += 1,
                _ => panic!("{cut} events, mode {mode}: {:#?}", after.findings),
            }
        }
    }
    assert!(old_seen > 0 && new_seen > 0);
}

#[test]
fn an_unclean_volume_without_errors_is_left_to_the_mount() {
    let mut image = Image::populated();
    let device = image.build();
    let mut log = Log::new(&image);
    let root = image.items[&Key::inode(ObjectNo::ROOT_DIR)].clone();
    log.write(&device, &[put(Key::inode(ObjectNo::ROOT_DIR), &root)]);
    let before = device.to_bytes();
    let report = repair(&device);
    assert!(!report.repaired);
    assert_eq!(report.exit_code(), 0);
    assert_eq!(device.to_bytes(), before);
}

#[test]
fn a_full_volume_is_not_changed() {
    let mut image = Image::populated();
    let (start, end) = (image.superblock.layout.groups_start.0, image.superblock.layout.backup_start().0);
    let unused = (start..end).filter(|block| !image.data.contains_key(block)).filter(|block| block % 4 == 1);
    image.bits = unused.map(|block| (block, true)).collect();
    let device = image.build();
    let before = device.to_bytes();
    let outcome = check(&device, CheckOptions::default().repair(true));
    assert!(matches!(outcome, Err(CheckError::NoSpace { .. })), "{outcome:?}");
    assert_eq!(device.to_bytes(), before);
}

#[test]
fn a_tree_of_many_leaves_is_rewritten_whole() {
    let mut image = Image::populated();
    for index in 0..3000 {
        image.add_file(ObjectNo::ROOT_DIR, &format!("a-file-with-a-longer-name-{index}"), 1);
    }
    image.superblock.next_object = ObjectNo(10_000);
    image.leaf_items(60);
    image.change_inode(ObjectNo::ROOT_DIR, |inode| inode.entries = 0);
    let device = image.build();
    let before = expect(&device, &[Code::EntryCount]).totals;
    expect_repaired(&device, &[]);
    let after = expect(&device, &[]).totals;
    assert_eq!((after.items, after.inodes), (before.items, before.inodes));
    assert!(after.nodes > 30);
}

#[test]
fn images_split_an_extent_in_its_middle_and_free_its_blocks() {
    let (image, device, file) = with_images();
    let extent = ExtentItem::decode(&image.items[&Key::extent(file, 0)]).expect("valid");
    let used = look(&device).totals.blocks_used;
    expect_repaired(&device, &[]);
    assert!(look(&device).totals.blocks_used <= used + 3, "the pages below the images are free");
    let bytes = device.to_bytes();
    for page in [0, 3] {
        let at = extent.start.plus(page).0 as usize * BLOCK_BYTES;
        assert!(bytes[at..at + BLOCK_BYTES].iter().any(|&b| b != 0));
    }
}

#[test]
fn images_are_found_anywhere_in_a_long_record() {
    let mut image = Image::populated();
    let file = image.add_file(ObjectNo::ROOT_DIR, "six", 6);
    image.bits.insert(25_000, true);
    let device = image.build();
    let pages: Vec<Vec<u8>> = (0..6u8).map(|page| vec![0xa0 + page; BLOCK_BYTES]).collect();
    let numbered = (0u64..).zip(&pages);
    let ops: Vec<_> =
        numbered.map(|(page, bytes)| Op::Image { tree: TreeId::MAIN, object: file, page, bytes }).collect();
    Log::new(&image).write(&device, &ops);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
    let bytes = device.to_bytes();
    let places: Vec<_> = pages
        .iter()
        .map(|page| bytes.chunks_exact(BLOCK_BYTES).position(|block| block == page).expect("destaged"))
        .collect();
    assert!(places.windows(2).all(|two| two[1] == two[0] + 1), "one run of blocks: {places:?}");
}

/// R12: a record that was cut off could count after all, were its data to appear later.
#[test]
fn repair_keeps_off_the_blocks_of_records_that_were_cut_off() {
    let mut image = Image::populated();
    image.bits.insert(25_000, true);
    let device = image.build();
    let free = (0..200).map(|index| image.superblock.layout.groups_start.plus(index)).filter(|&block| {
        read(&device, block, 1).iter().all(|&b| b == 0) && image.superblock.layout.holds_run(block, 1)
    });
    let named: Vec<BlockNo> = free.collect();
    assert!(named.len() > 50);
    let extent = ExtentItem::written(named[0], vec![1]).encode();
    let mut ops =
        vec![Op::Put { tree: TreeId::MAIN, key: Key::extent(ObjectNo(12), 9), value: &extent, fresh: true }];
    ops.extend(named[1..].iter().map(|&start| Op::Allocate { start, len: 1 }));
    Log::new(&image).write(&device, &ops);
    expect(&device, &[Code::JournalUnproven, Code::BlockLeaked]);
    expect_repaired(&device, &[]);
    for block in named {
        assert!(read(&device, block, 1).iter().all(|&b| b == 0), "block {block} was written to");
    }
}
