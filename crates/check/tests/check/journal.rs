use crate::image::*;
use syncline_check::Code;
use syncline_device::MemoryDevice;
use syncline_format::batch::{BatchBuf, Op};
use syncline_format::item::*;
use syncline_format::*;

/// A populated volume, its device and an empty log.
fn volume() -> (Image, MemoryDevice, Log) {
    let mut image = Image::populated();
    let device = image.build();
    let log = Log::new(&image);
    (image, device, log)
}

/// Operations that add a file of one page under the root, with its extent fresh. The data is written.
struct NewFile {
    inode: Vec<u8>,
    root: Vec<u8>,
    dirent: (Key, Vec<u8>),
    extent: (Key, Vec<u8>),
    block: BlockNo,
    object: ObjectNo,
}

impl NewFile {
    fn new(image: &mut Image, device: &MemoryDevice, name: &str, block: u64) -> NewFile {
        let object = ObjectNo(1000 + block);
        let mut file = inode(MODE_REGULAR | 0o644);
        file.size = 10;
        file.blocks = 1;
        let mut page = vec![0; BLOCK_BYTES];
        page[..10].copy_from_slice(b"0123456789");
        write(device, BlockNo(block), &page);
        image.change_inode(ObjectNo::ROOT_DIR, |root| root.entries += 1);
        let extent = ExtentItem::written(BlockNo(block), vec![checksum(&page)]);
        let dirent = DirentItem { inode: object, file_type: 8, name: name.into() };
        NewFile {
            inode: file.encode().to_vec(),
            root: image.items[&Key::inode(ObjectNo::ROOT_DIR)].clone(),
            dirent: (image.name_key(ObjectNo::ROOT_DIR, name), dirent.encode()),
            extent: (Key::extent(object, 0), extent.encode()),
            block: BlockNo(block),
            object,
        }
    }

    fn ops(&self) -> [Op<'_>; 5] {
        [
            put(Key::inode(self.object), &self.inode),
            put(Key::inode(ObjectNo::ROOT_DIR), &self.root),
            put(self.dirent.0, &self.dirent.1),
            Op::Allocate { start: self.block, len: 1 },
            Op::Put { tree: TreeId::MAIN, key: self.extent.0, value: &self.extent.1, fresh: true },
        ]
    }
}

fn tear(device: &MemoryDevice, image: &Image, position: u64) {
    patch(device, image.superblock.layout.journal_start.plus(position), |block| block[200] ^= 1);
}

#[test]
fn an_unclean_volume_is_judged_as_it_would_recover() {
    let (mut image, device, mut log) = volume();
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        log.write(&device, &NewFile::new(&mut image, &device, name, 20_000 + index as u64).ops());
    }
    let report = expect(&device, &[Code::JournalReplay]);
    assert_eq!((report.totals.batches_replayed, report.totals.data_blocks_verified), (3, 26));
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn the_chain_goes_round_the_end_of_the_ring() {
    let mut image = Image::populated();
    image.superblock.tail.block = 9;
    let device = image.build();
    let mut log = Log::new(&image);
    let big = vec![7u8; BLOCK_BYTES - 300];
    let mut positions = Vec::new();
    for index in 0..30 {
        let file = NewFile::new(&mut image, &device, &format!("f{index}"), 20_000 + index);
        let mut ops = file.ops().to_vec();
        // Two blocks a record from an odd position on: the last block of the ring stays empty.
        let image = Op::Image { tree: TreeId::MAIN, object: file.object, page: 0, bytes: &big };
        ops.push(image);
        positions.push(log.write(&device, &ops));
    }
    assert!(positions.contains(&0), "the log wrapped");
    assert_eq!(look(&device).totals.batches_replayed, 30);
}

#[test]
fn a_record_that_does_not_fit_the_rest_of_the_ring_begins_at_its_start() {
    let mut image = Image::populated();
    image.superblock.tail.block = 63;
    let device = image.build();
    let mut log = Log::new(&image);
    let file = NewFile::new(&mut image, &device, "wrapped", 20_000);
    let mut ops = file.ops().to_vec();
    let bytes = vec![1; BLOCK_BYTES];
    ops.push(Op::Image { tree: TreeId::MAIN, object: file.object, page: 0, bytes: &bytes });
    assert_eq!(log.write(&device, &ops), 0);
    assert_eq!(look(&device).totals.batches_replayed, 1);
}

#[test]
fn batches_of_the_checkpoint_give_only_their_images() {
    let (_, device, mut log) = volume();
    log.lsn = Lsn(100);
    let gone = inode(MODE_REGULAR).encode();
    let image = Op::Image { tree: TreeId::MAIN, object: ObjectNo(12), page: 1, bytes: b"image" };
    log.write(&device, &[put(Key::inode(ObjectNo(700)), &gone), image]);
    let report = expect(&device, &[Code::JournalReplay]);
    assert_eq!(report.totals.batches_replayed, 0);
    assert!(report.findings[0].message.contains("1 page images"));
}

#[test]
fn records_of_another_epoch_are_no_part_of_the_log() {
    let (mut image, device, mut log) = volume();
    log.superblock.epoch += 1;
    log.write(&device, &NewFile::new(&mut image, &device, "old", 20_000).ops());
    expect(&device, &[]);
}

#[test]
fn a_torn_last_record_ends_the_log() {
    let (mut image, device, mut log) = volume();
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    let torn = log.write(&device, &NewFile::new(&mut image, &device, "b", 20_001).ops());
    tear(&device, &image, torn);
    let report = expect(&device, &[Code::JournalReplay]);
    assert_eq!(report.totals.batches_replayed, 1);
}

#[test]
fn a_torn_record_that_a_later_one_knew_durable_is_corruption() {
    let (mut image, device, mut log) = volume();
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    let torn = log.write(&device, &NewFile::new(&mut image, &device, "b", 20_001).ops());
    log.known_flushed = Sequence(2);
    log.write(&device, &NewFile::new(&mut image, &device, "c", 20_002).ops());
    expect(&device, &[Code::JournalReplay]);
    tear(&device, &image, torn);
    let report = expect(&device, &[Code::JournalReplay, Code::JournalBroken]);
    assert_eq!(report.exit_code(), 4);
    assert!(repair(&device).refused.is_some());
}

#[test]
fn a_log_that_ends_before_the_checkpoint_is_corruption() {
    let (mut image, device, mut log) = volume();
    log.lsn = Lsn(90);
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    assert!(look(&device).has(Code::JournalBroken));
}

#[test]
fn a_log_whose_first_record_is_lost_is_corruption_unless_the_epoch_is_new() {
    let mut image = Image::populated();
    image.superblock.tail.block = 7;
    image.superblock.tail.sequence = Sequence(3);
    let device = image.build();
    expect(&device, &[Code::JournalBroken]);
    let mut log = Log::new(&image);
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    expect(&device, &[Code::JournalReplay]);
}

#[test]
fn data_that_did_not_arrive_ends_the_log_before_its_record() {
    let (mut image, device, mut log) = volume();
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    let missing = NewFile::new(&mut image, &device, "b", 20_001);
    log.known_flushed = Sequence(1);
    log.write(&device, &missing.ops());
    log.write(&device, &NewFile::new(&mut image, &device, "c", 20_002).ops());
    write(&device, missing.block, &[0; BLOCK_BYTES]);
    let report = expect(&device, &[Code::JournalReplay, Code::JournalUnproven]);
    assert_eq!(report.totals.batches_replayed, 1);
    assert_eq!(report.exit_code(), 0);
}

#[test]
fn the_batches_before_the_one_without_data_count() {
    let (mut image, device, mut log) = volume();
    let files = ["a", "b", "c"].map(|name| {
        let block = 20_000 + u64::from(name.as_bytes()[0]);
        NewFile::new(&mut image, &device, name, block)
    });
    let mut payload = Vec::new();
    for file in &files {
        let mut batch = BatchBuf::new();
        file.ops().iter().for_each(|op| batch.push(*op));
        payload.extend_from_slice(&batch.into_encoded());
    }
    log.write_payload(&device, &payload, 3);
    expect(&device, &[Code::JournalReplay]);
    write(&device, files[1].block, &[0; BLOCK_BYTES]);
    let report = expect(&device, &[Code::JournalReplay, Code::JournalUnproven]);
    assert_eq!(report.totals.batches_replayed, 1);
}

#[test]
fn data_of_a_record_known_durable_that_does_not_match_is_corruption() {
    let (mut image, device, mut log) = volume();
    let damaged = NewFile::new(&mut image, &device, "a", 20_000);
    log.write(&device, &damaged.ops());
    log.known_flushed = Sequence(1);
    log.write(&device, &NewFile::new(&mut image, &device, "b", 20_001).ops());
    write(&device, damaged.block, &[0; BLOCK_BYTES]);
    let report = look(&device);
    assert_eq!(codes(&report), [Code::JournalReplay, Code::JournalData, Code::DataChecksum]);
}

#[test]
fn a_record_newer_than_the_superblock_is_corruption() {
    let (mut image, device, mut log) = volume();
    log.superblock.generation = Generation(GENERATION.0 + 1);
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    expect(&device, &[Code::JournalFuture]);
}

/// Writes a record of a newer superblock's session into the ring; returns the volume.
fn with_record_of_newer_superblock(position: u64, epoch: u64) -> MemoryDevice {
    let (mut image, device, mut log) = volume();
    // The chain's end is elsewhere.
    let mut chained = Log::new(&image);
    chained.write(&device, &NewFile::new(&mut image, &device, "b", 20_001).ops());
    log.superblock.epoch = epoch;
    log.superblock.generation = Generation(GENERATION.0 + 1);
    log.position = position;
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    device
}

#[test]
fn first_record_of_the_ring_under_a_superblock_that_is_lost_is_corruption_in_any_epoch() {
    let (mut image, device, mut log) = volume();
    log.superblock.epoch += 1;
    log.superblock.generation = Generation(GENERATION.0 + 1);
    log.position = 0;
    log.write(&device, &NewFile::new(&mut image, &device, "a", 20_000).ops());
    expect(&device, &[Code::JournalFuture]);
}

#[test]
fn what_looks_like_a_record_amid_the_ring_proves_nothing_without_the_epoch() {
    let epoch = Image::new().superblock.epoch;
    expect(&with_record_of_newer_superblock(40, epoch), &[Code::JournalReplay, Code::JournalFuture]);
    // The page image of a user can look like this.
    expect(&with_record_of_newer_superblock(40, epoch + 1), &[Code::JournalReplay]);
}

#[test]
fn an_object_of_an_impossibly_high_number_is_corruption_even_if_the_log_deletes_it_again() {
    let (_, device, mut log) = volume();
    let key = Key::inode(ObjectNo(1 << 62));
    let item = inode(MODE_REGULAR | 0o644).encode();
    log.write(&device, &[put(key, &item), Op::Delete { tree: TreeId::MAIN, key }]);
    expect(&device, &[Code::SuperblockExhausted, Code::JournalReplay]);
}

#[test]
fn a_record_whose_batches_do_not_decode_is_corruption() {
    let (_, device, mut log) = volume();
    log.write_payload(&device, &[9; 50], 1);
    expect(&device, &[Code::JournalBatch]);
}

#[test]
fn missing_batches_are_corruption() {
    for (first, second) in [(102, 103), (101, 105)] {
        let (mut image, device, mut log) = volume();
        for (lsn, name) in [(first, "a"), (second, "b")] {
            log.lsn = Lsn(lsn);
            log.write(&device, &NewFile::new(&mut image, &device, name, 20_000 + lsn).ops());
        }
        assert!(look(&device).has(Code::JournalGap));
    }
}

#[test]
fn a_batch_of_an_unknown_tree_is_corruption() {
    let (_, device, mut log) = volume();
    log.write(&device, &[Op::Delete { tree: TreeId(7), key: Key::MIN }]);
    let report = look(&device);
    assert!(report.has(Code::JournalTree));
}

#[test]
fn an_image_of_no_file_is_found_and_not_destaged() {
    let (_, device, mut log) = volume();
    log.write(&device, &[Op::Image { tree: TreeId::MAIN, object: ObjectNo(700), page: 0, bytes: b"x" }]);
    expect(&device, &[Code::JournalReplay, Code::JournalImage]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn a_dropped_image_is_void() {
    let (_, device, mut log) = volume();
    let image = |page| Op::Image { tree: TreeId::MAIN, object: ObjectNo(700), page, bytes: b"x" };
    let drop = Op::Drop { tree: TreeId::MAIN, object: ObjectNo(700), first: 0, end: u64::MAX };
    log.write(&device, &[image(0), image(5), drop]);
    expect(&device, &[Code::JournalReplay]);
}

#[test]
fn blocks_that_cannot_be_allocated_are_corruption() {
    for (start, len) in [(0, 1), (u64::MAX, u32::MAX), (20_000, 0), (32_330, 10)] {
        let (_, device, mut log) = volume();
        log.write(&device, &[Op::Allocate { start: BlockNo(start), len }]);
        assert!(look(&device).has(Code::JournalSpace), "{len} from {start}");
    }
}

#[test]
fn allocating_twice_is_found() {
    let (image, device, mut log) = volume();
    let used = BlockNo(*image.data.keys().next().expect("some data"));
    log.write(&device, &[Op::Allocate { start: used, len: 1 }, Op::Free { start: BlockNo(20_000), len: 1 }]);
    let report = expect(&device, &[Code::JournalReplay, Code::JournalDoubleSpace]);
    assert_eq!(report.findings.iter().filter(|f| f.code == Code::JournalDoubleSpace).count(), 2);
}

#[test]
fn blocks_allocated_by_the_log_and_used_by_nothing_are_leaked() {
    let (_, device, mut log) = volume();
    log.write(&device, &[Op::Allocate { start: BlockNo(20_000), len: 3 }]);
    expect(&device, &[Code::JournalReplay, Code::BlockLeaked]);
    expect_repaired(&device, &[]);
    expect(&device, &[]);
}

#[test]
fn what_is_cut_off_has_to_be_well_formed_all_the_same() {
    let beyond = [Op::Allocate { start: BlockNo(0), len: 1 }];
    let mut batch = BatchBuf::new();
    beyond.iter().for_each(|op| batch.push(*op));
    for (payload, code) in [(vec![9; 50], Code::JournalBatch), (batch.into_encoded(), Code::JournalSpace)] {
        let (mut image, device, mut log) = volume();
        let missing = NewFile::new(&mut image, &device, "b", 20_001);
        log.write(&device, &missing.ops());
        log.write_payload(&device, &payload, 1);
        write(&device, missing.block, &[0; BLOCK_BYTES]);
        expect(&device, &[Code::JournalUnproven, code]);
    }
}
