//! The recipes. Content is made of few different bytes, so that the packed images stay small.

use super::{Recipe, look};
use crate::packed::SparseImage;
use crate::session;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use syncline::{Context, FallocateMode, OpenOptions, SetAttr, SetTime, Timestamp, Volume};
use syncline_check::Code;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, MemoryDevice, Ticket};
use syncline_format::item::{MODE_BLOCK, MODE_CHARACTER, MODE_FIFO, MODE_SOCKET};
use syncline_format::layout::{JOURNAL_BLOCKS_MIN, VOLUME_BLOCKS_MIN};
use syncline_format::record::{self, RECORD_HEADER_BYTES};
use syncline_format::superblock::{SUPERBLOCK_SLOTS, Superblock};
use syncline_format::{BLOCK_BYTES, BlockNo, GroupNo, ObjectNo};
use syncline_fs::SetXattr;

const REPLAY: &[Code] = &[Code::JournalReplay];
const CUT: &[Code] = &[Code::JournalReplay];
const ORPHANS: &[Code] = &[Code::JournalReplay, Code::OrphanPending];

mod version2;

pub(super) const ALL: &[Recipe] = &[
    Recipe { name: "v1-empty", findings: &[], make: empty },
    Recipe { name: "v1-clean", findings: &[], make: clean },
    Recipe { name: "v1-smallest", findings: &[], make: smallest },
    Recipe { name: "v1-attributes", findings: &[], make: attributes },
    Recipe { name: "v1-journal", findings: REPLAY, make: journal },
    Recipe { name: "v1-page-images", findings: REPLAY, make: page_images },
    Recipe { name: "v1-ring-wrapped", findings: REPLAY, make: ring_wrapped },
    Recipe { name: "v1-torn-record", findings: REPLAY, make: torn_record },
    Recipe { name: "v1-recovery-cut", findings: CUT, make: recovery_cut },
    Recipe { name: "v1-orphans", findings: ORPHANS, make: orphans },
    Recipe { name: "v1-truncating", findings: ORPHANS, make: truncating },
    Recipe { name: "v1-deep-tree", findings: &[], make: deep_tree },
    Recipe { name: "v1-nearly-full", findings: &[], make: nearly_full },
    Recipe { name: "v1-both-bitmap-slots", findings: &[], make: both_bitmap_slots },
    Recipe { name: "v1-two-groups", findings: &[], make: two_groups },
    Recipe { name: "v1-unwritten-bitmaps", findings: &[], make: unwritten_bitmaps },
    Recipe { name: "v2-empty", findings: &[], make: version2::empty },
    Recipe { name: "v2-clean", findings: &[], make: version2::clean },
    Recipe { name: "v2-snapshots", findings: &[], make: version2::snapshots },
    Recipe { name: "v2-journal-snapshot", findings: REPLAY, make: version2::journal_snapshot },
    Recipe { name: "v2-inherited-images", findings: REPLAY, make: version2::inherited_images },
    Recipe { name: "v2-overlay", findings: &[], make: version2::overlay },
    Recipe { name: "v2-deleting", findings: REPLAY, make: version2::deleting },
    Recipe { name: "v2-hidden-branch", findings: &[], make: version2::hidden_branch },
    Recipe { name: "v2-heads", findings: REPLAY, make: version2::heads },
    Recipe { name: "v2-many-trees", findings: &[], make: version2::many_trees },
    Recipe { name: "v2-recovery-cut-snapshot", findings: CUT, make: version2::recovery_cut_snapshot },
    Recipe { name: "v2-upgraded", findings: &[], make: version2::upgraded },
];

/// A device that is formatted and opened.
fn volume(blocks: u64, journal_blocks: u64, label: &str) -> io::Result<(Arc<MemoryDevice>, Volume)> {
    volume_of(1, blocks, journal_blocks, label)
}

/// The same, with this version of the format.
fn volume_of(
    version: u32,
    blocks: u64,
    journal_blocks: u64,
    label: &str,
) -> io::Result<(Arc<MemoryDevice>, Volume)> {
    let device = Arc::new(MemoryDevice::new(blocks));
    session::format(&*device, journal_blocks, label, version)?;
    let volume = session::open_volume(device.clone(), false, 2)?;
    Ok((device, volume))
}

/// A page of one letter after another; each page of a file differs a little.
fn pages(letter: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| if at % BLOCK_BYTES == 0 { (at / BLOCK_BYTES) as u8 } else { letter }).collect()
}

/// Writes and syncs, so that small content is logged as page images and large content as extents.
fn write_synced(volume: &Volume, path: &str, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).open(volume, path)?;
    file.write_all_at(content, 0)?;
    file.sync_all()
}

/// Some of everything: directories, small and large files, a sparse one, links, long names.
fn populate(volume: &Volume) -> io::Result<()> {
    volume.create_dir_all("a/b/c")?;
    volume.create_dir("empty")?;
    volume.write("a/small", "one line\n")?;
    volume.write("a/b/nothing", "")?;
    volume.write("a/b/page", pages(b'p', BLOCK_BYTES))?;
    volume.write("a/b/large", pages(b'l', 300_000))?;
    volume.hard_link("a/small", "a/b/c/second-name")?;
    volume.symlink("../small", "a/b/link")?;
    volume.write(format!("a/{}", "n".repeat(255)), "the longest name")?;
    volume.write("a/b/c/\u{e4}\u{f6}\u{fc} space", "not only ASCII")?;
    let sparse = OpenOptions::new().write(true).create(true).open(volume, "a/sparse")?;
    sparse.write_all_at(b"begin", 0)?;
    sparse.write_all_at(b"far away", 3 << 20)?;
    let preallocated = OpenOptions::new().write(true).create(true).open(volume, "a/preallocated")?;
    preallocated.write_all_at(&pages(b'w', 10_000), 0)?;
    preallocated.fallocate(FallocateMode::Allocate { keep_size: false }, 8192, 60_000)?;
    preallocated.fallocate(FallocateMode::Allocate { keep_size: true }, 100_000, 50_000)?;
    for number in 0..60 {
        volume
            .write(format!("empty/../a/file-{number:03}"), vec![b'0' + number % 10; usize::from(number)])?;
    }
    for number in (0..60).step_by(7) {
        volume.remove_file(format!("a/file-{number:03}"))?;
    }
    volume.rename("a/file-001", "a/b/renamed")?;
    Ok(())
}

fn closed(device: &Arc<MemoryDevice>, volume: Volume) -> io::Result<SparseImage> {
    volume.close()?;
    Ok(SparseImage::of(device))
}

fn empty() -> io::Result<SparseImage> {
    let device = MemoryDevice::new(2048);
    session::format(&device, 128, "as mkfs leaves it", 1)?;
    Ok(SparseImage::of(&device))
}

fn clean() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 256, "clean")?;
    populate(&volume)?;
    closed(&device, volume)
}

fn smallest() -> io::Result<SparseImage> {
    let (device, volume) = volume(VOLUME_BLOCKS_MIN, JOURNAL_BLOCKS_MIN, "")?;
    populate(&volume)?;
    closed(&device, volume)
}

/// An access control list in the form that user space passes, of (tag, permissions, id).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

fn attributes() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 256, "attributes")?;
    let (fs, root) = (volume.inner().clone(), Context::root());
    let nodes = [
        ("fifo", MODE_FIFO | 0o640, 0),
        ("socket", MODE_SOCKET | 0o755, 0),
        ("character", MODE_CHARACTER | 0o666, (1 << 32) | 3),
        ("block", MODE_BLOCK | 0o660, (259 << 32) | 70_000),
    ];
    for (name, mode, rdev) in nodes {
        fs.names().mknod(&root, ObjectNo::ROOT_DIR, name.as_bytes(), mode, rdev)?;
    }
    volume.write("file", "content")?;
    volume.write("old", "from before 1970")?;
    volume.create_dir("sticky")?;
    volume.set_permissions("sticky", 0o1777)?;
    volume.set_permissions("file", 0o6711)?;
    let time = Timestamp { seconds: -86_400, nanoseconds: 999_999_999 };
    let modified = Some(SetTime::At(time));
    let set = SetAttr { uid: Some(1000), gid: Some(u32::MAX - 1), modified, ..SetAttr::default() };
    volume.set_attributes("old", &set)?;
    for number in 0..20 {
        volume.hard_link("file", format!("sticky/name-{number}"))?;
    }
    volume.set_xattr("file", "user.empty", "")?;
    volume.set_xattr("file", "user.small", "value")?;
    volume.set_xattr("file", "user.inline-most", vec![b'i'; 3072])?;
    volume.set_xattr("file", "user.pieces", vec![b'q'; 3073])?;
    volume.set_xattr("file", "user.largest", vec![b'x'; 65_536])?;
    volume.set_xattr("file", "security.capability", [1, 0, 0, 2, 0, 4, 0, 0])?;
    volume.set_xattr("sticky", "trusted.mark", "t")?;
    let list = acl(&[
        (1, 7, u32::MAX),
        (2, 5, 1000),
        (4, 5, u32::MAX),
        (8, 1, 50),
        (16, 5, u32::MAX),
        (32, 1, u32::MAX),
    ]);
    let directory = volume.metadata("sticky")?.attr().inode;
    let file = volume.metadata("old")?.attr().inode;
    fs.attributes().set_xattr(&root, directory, b"system.posix_acl_default", &list, SetXattr::Any)?;
    fs.attributes().set_xattr(&root, file, b"system.posix_acl_access", &list, SetXattr::Any)?;
    volume.write("sticky/heir", "inherits the list")?;
    volume.symlink("s".repeat(4095), "longest-target")?;
    closed(&device, volume)
}

/// Names and extents in the journal, newer than the checkpoint.
fn journal() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 256, "journal")?;
    populate(&volume)?;
    volume.checkpoint()?;
    volume.create_dir("after")?;
    write_synced(&volume, "after/large", &pages(b'L', 200_000))?;
    volume.rename("after/large", "after/moved")?;
    volume.remove_file("a/b/large")?;
    volume.set_xattr("a/small", "user.late", "yes")?;
    volume.sync_all()?;
    Ok(SparseImage::of(&device))
}

/// Content that is nowhere but in the journal, some of it superseded, dropped and cut.
fn page_images() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 256, "page images")?;
    populate(&volume)?;
    volume.sync_all()?;
    volume.checkpoint()?;
    for round in 0..3 {
        for number in 0..12 {
            let content = pages(b'A' + round, 100 + 1000 * usize::from(round + number));
            write_synced(&volume, &format!("image-{number:02}"), &content)?;
        }
    }
    let over = OpenOptions::new().write(true).open(&volume, "a/b/large")?;
    over.write_all_at(b"an image over an extent", 50_000)?;
    over.sync_data()?;
    let cut = OpenOptions::new().write(true).open(&volume, "image-11")?;
    cut.set_len(5000)?;
    volume.remove_file("image-00")?;
    volume.rename("image-01", "image-02")?;
    cut.sync_all()?;
    Ok(SparseImage::of(&device))
}

/// The journal has begun its second lap, and the log crosses the ring's end.
fn ring_wrapped() -> io::Result<SparseImage> {
    let (device, volume) = volume(VOLUME_BLOCKS_MIN, JOURNAL_BLOCKS_MIN, "wrapped")?;
    populate(&volume)?;
    volume.sync_all()?;
    for round in 0..10_000u32 {
        write_synced(&volume, &format!("turn-{}", round % 5), &round.to_le_bytes().repeat(300))?;
        let image = SparseImage::of(&device);
        if crosses_the_end(&image) && look(&image)?.counts.keys().eq(REPLAY) {
            return Ok(image);
        }
    }
    Err(io::Error::other("the log never crossed the end of the ring"))
}

/// Whether records of the log lie both in the last and in the first quarter of the ring.
fn crosses_the_end(image: &SparseImage) -> bool {
    let Some(superblock) = newest_superblock(image) else { return false };
    let records = records(image, &superblock);
    let ring = superblock.layout.journal_blocks;
    let (first, last) = (superblock.tail.block, records.last().copied().unwrap_or(0));
    records.len() > 3 && first > ring / 2 && last < ring / 4
}

fn newest_superblock(image: &SparseImage) -> Option<Superblock> {
    let read = |block: BlockNo| {
        Superblock::decode(&image.bytes(block.byte_offset(), BLOCK_BYTES), block, image.blocks).ok()
    };
    SUPERBLOCK_SLOTS.into_iter().filter_map(read).max_by_key(|superblock| superblock.generation)
}

/// Ring blocks of the log's records, in the order of their sequence.
fn records(image: &SparseImage, superblock: &Superblock) -> Vec<u64> {
    let mut found = Vec::new();
    for block in 0..superblock.layout.journal_blocks {
        let at = superblock.layout.journal_start.plus(block);
        let head = image.bytes(at.byte_offset(), RECORD_HEADER_BYTES);
        if let Ok(info) = record::peek(&head, at, superblock.volume_id())
            && info.epoch == superblock.epoch
            && info.sequence >= superblock.tail.sequence
        {
            found.push((info.sequence, block));
        }
    }
    found.sort();
    found.into_iter().map(|(_, block)| block).collect()
}

/// The last record did not arrive whole.
fn torn_record() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 128, "torn")?;
    populate(&volume)?;
    volume.sync_all()?;
    volume.checkpoint()?;
    write_synced(&volume, "acknowledged", &pages(b'a', 10_000))?;
    write_synced(&volume, "not-acknowledged", &pages(b'n', 10_000))?;
    let mut image = SparseImage::of(&device);
    let superblock = newest_superblock(&image).ok_or(io::ErrorKind::InvalidData)?;
    let last = *records(&image, &superblock).last().ok_or(io::ErrorKind::InvalidData)?;
    let at = superblock.layout.journal_start.plus(last).byte_offset();
    image.patch(at + 512, &[0; BLOCK_BYTES - 512]);
    Ok(image)
}

/// The data of the last record did not arrive; recovery has cut it off the log and was cut off itself.
fn recovery_cut() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 256, "cut")?;
    populate(&volume)?;
    volume.sync_all()?;
    volume.checkpoint()?;
    write_synced(&volume, "acknowledged", &pages(b'a', 100_000))?;
    write_synced(&volume, "not-acknowledged", &pages(b'z', 100_000))?;
    let mut image = SparseImage::of(&device);
    image.content.retain(|_, block| block[1..].iter().any(|&byte| byte != b'z'));
    let device = FlushWatcher::new(image.device());
    session::open_volume(device.clone(), false, 3)?;
    let seen = device.take_seen().into_iter();
    let mut cut = seen.filter(|image| newest_superblock(image).is_some_and(|newest| newest.cut.is_some()));
    cut.next().ok_or_else(|| io::Error::other("recovery has cut nothing off"))
}

/// Files without a name that were open at the crash.
fn orphans() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 128, "orphans")?;
    populate(&volume)?;
    let mut open = Vec::new();
    for (name, letter, bytes) in [("small", b's', 700), ("large", b'l', 400_000), ("empty-one", b'e', 0)] {
        write_synced(&volume, name, &pages(letter, bytes))?;
        open.push(volume.open_file(name)?);
        volume.set_xattr(name, "user.piece", vec![letter; 5000])?;
        volume.remove_file(name)?;
    }
    volume.sync_all()?;
    let image = SparseImage::of(&device);
    drop(open);
    Ok(image)
}

/// A truncation that takes several batches, cut off between two of them.
fn truncating() -> io::Result<SparseImage> {
    let device = FlushWatcher::new(Arc::new(MemoryDevice::new(2048)));
    session::format(&*device, JOURNAL_BLOCKS_MIN, "truncating", 1)?;
    let volume = session::open_volume(device.clone(), false, 2)?;
    volume.write("stays", "stays")?;
    let file = OpenOptions::new().write(true).create(true).open(&volume, "holed")?;
    // Every other page, each an extent of its own.
    for page in 0..700 {
        file.write_all_at(&[b'h'; 100], page * 2 * BLOCK_BYTES as u64)?;
    }
    file.sync_all()?;
    volume.checkpoint()?;
    device.take_seen();
    file.set_len(100_000)?;
    volume.close()?;
    for image in device.take_seen() {
        if look(&image)?.counts.keys().eq(ORPHANS) {
            return Ok(image);
        }
    }
    Err(io::Error::other("no flush came between the batches of the truncation"))
}

/// Keeps what the device holds at each flush.
struct FlushWatcher {
    inner: Arc<MemoryDevice>,
    seen: Mutex<Vec<SparseImage>>,
}

impl FlushWatcher {
    fn new(inner: Arc<MemoryDevice>) -> Arc<FlushWatcher> {
        Arc::new(FlushWatcher { inner, seen: Mutex::default() })
    }

    fn take_seen(&self) -> Vec<SparseImage> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for FlushWatcher {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(at, into)
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        self.inner.submit_write(at, data)
    }

    fn submit_flush(&self) -> Ticket {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(SparseImage::of(&self.inner));
        self.inner.submit_flush()
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        self.inner.wait(ticket)
    }

    fn poll(&self) {}

    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        self.inner.discard(at, blocks)
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}

/// Three levels: large values make few items a leaf.
fn deep_tree() -> io::Result<SparseImage> {
    let (device, volume) = volume(4096, 256, "deep")?;
    for number in 0..64 {
        let name = format!("file-{number:02}");
        volume.write(&name, format!("content {number}"))?;
        volume.set_xattr(&name, "user.large", vec![b'a' + number % 26; 65_536])?;
    }
    closed(&device, volume)
}

fn nearly_full() -> io::Result<SparseImage> {
    let (device, volume) = volume(VOLUME_BLOCKS_MIN, JOURNAL_BLOCKS_MIN, "nearly full")?;
    volume.create_dir("d")?;
    for number in 0..40 {
        volume.write(format!("d/small-{number}"), vec![b's'; 200])?;
    }
    let file = OpenOptions::new().write(true).create(true).open(&volume, "filler")?;
    let mut at = 0;
    while let Ok(written) = file.write_at(&pages(b'f', 16 * BLOCK_BYTES), at) {
        at += written as u64;
    }
    file.sync_all()?;
    // Holes of one block: free space, but not a chunk for a node.
    for page in (0..40).step_by(4) {
        file.punch_hole(page * BLOCK_BYTES as u64, BLOCK_BYTES as u64)?;
    }
    drop(file);
    closed(&device, volume)
}

/// Several checkpoints, so that both slots of the bitmap and of the superblock were written more than once.
fn both_bitmap_slots() -> io::Result<SparseImage> {
    let (device, volume) = volume(2048, 128, "both slots")?;
    for round in 0..5 {
        volume.write(format!("round-{round}"), pages(b'r', 30_000))?;
        volume.sync_all()?;
        volume.checkpoint()?;
        if round > 1 {
            volume.remove_file(format!("round-{}", round - 2))?;
        }
    }
    closed(&device, volume)
}

/// A second group, a short one, in use.
/// As a volume of many groups is made, of which all but the first are in a hole.
fn unwritten_bitmaps() -> io::Result<SparseImage> {
    let (device, volume) = volume(35_000, 256, "unwritten bitmaps")?;
    populate(&volume)?;
    let mut image = closed(&device, volume)?;
    let layout = newest_superblock(&image).ok_or(io::ErrorKind::InvalidData)?.layout;
    for slot in 0..2 {
        image.content.remove(&layout.bitmap_slot(GroupNo(1), slot).0);
    }
    for block in
        [SUPERBLOCK_SLOTS[0], SUPERBLOCK_SLOTS[1], layout.backup_start(), layout.backup_start().plus(1)]
    {
        let bytes = image.bytes(block.byte_offset(), BLOCK_BYTES);
        if let Ok(superblock) = Superblock::decode(&bytes, block, image.blocks) {
            let superblock = Superblock { unwritten_bitmaps: true, ..superblock };
            image.patch(block.byte_offset(), &superblock.encode(block));
        }
    }
    Ok(image)
}

fn two_groups() -> io::Result<SparseImage> {
    let (device, volume) = volume(35_000, 256, "two groups")?;
    let file = OpenOptions::new().write(true).create(true).open(&volume, "preallocated")?;
    file.allocate(0, 32_300 * BLOCK_BYTES as u64)?;
    volume.write("behind", pages(b'b', 20_000))?;
    volume.sync_all()?;
    file.set_len(5000)?;
    drop(file);
    populate(&volume)?;
    closed(&device, volume)
}
