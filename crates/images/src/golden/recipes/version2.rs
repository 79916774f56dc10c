//! Volumes of version 2: snapshots, heads, what is under way between them.

use super::{FlushWatcher, closed, newest_superblock, pages, populate, volume_of, write_synced};
use crate::packed::SparseImage;
use crate::session::{self, CountingClock};
use std::io;
use std::sync::Arc;
use syncline::{Clock, OpenOptions, Volume};
use syncline_device::{Device, MemoryDevice};
use syncline_format::layout::JOURNAL_BLOCKS_MIN;
use syncline_format::tree_item::{TreeItem, TreeState};
use syncline_format::{BLOCK_BYTES, Key};
use syncline_store::Store;

const BLOCKS: u64 = 4096;

pub(super) fn empty() -> io::Result<SparseImage> {
    let device = MemoryDevice::new(BLOCKS);
    session::format(&device, 128, "as mkfs leaves it", 2)?;
    Ok(SparseImage::of(&device))
}

pub(super) fn clean() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "clean")?;
    populate(&volume)?;
    closed(&device, volume)
}

fn overwrite(volume: &Volume, path: &str, letter: u8, offset: u64, bytes: usize) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(volume, path)?;
    file.write_all_at(&vec![letter; bytes], offset)?;
    file.sync_all()
}

/// Three, with changes of every kind between them.
fn make_snapshots(volume: &Volume) -> io::Result<()> {
    populate(volume)?;
    volume.snapshot("first")?;
    overwrite(volume, "a/b/large", b'2', 40_000, 30_000)?;
    volume.remove_file("a/file-010")?;
    volume.rename("a/b/renamed", "a/b/renamed-again")?;
    volume.set_xattr("a/small", "user.second", "value")?;
    volume.checkpoint()?;
    volume.snapshot("second: \u{fc}ber alles")?;
    OpenOptions::new().write(true).open(volume, "a/b/large")?.set_len(100_000)?;
    overwrite(volume, "a/preallocated", b'3', 12_000, 20_000)?;
    volume.remove_dir_all("a/b/c")?;
    volume.write("new", pages(b'n', 50_000))?;
    volume.snapshot("third")?;
    volume.remove_file("new")?;
    volume.write("newest", "behind all snapshots")?;
    volume.sync_all()
}

pub(super) fn snapshots() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "snapshots")?;
    make_snapshots(&volume)?;
    closed(&device, volume)
}

/// Snapshots that no checkpoint holds, one of a head that has not changed since.
pub(super) fn journal_snapshot() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "journal")?;
    populate(&volume)?;
    volume.snapshot("in the checkpoint")?;
    volume.sync_all()?;
    volume.checkpoint()?;
    overwrite(&volume, "a/b/large", b'L', 0, 200_000)?;
    volume.remove_file("a/file-020")?;
    volume.snapshot("in the log")?;
    volume.snapshot("the same")?;
    overwrite(&volume, "a/b/large", b'M', 100_000, 100_000)?;
    volume.create_dir("late")?;
    volume.sync_all()?;
    Ok(SparseImage::of(&device))
}

/// Files whose newest content is in the journal, a snapshot that has inherited it, and later content.
fn make_inherited(volume: &Volume) -> io::Result<()> {
    populate(volume)?;
    volume.sync_all()?;
    volume.checkpoint()?;
    for number in 0..6 {
        write_synced(
            volume,
            &format!("image-{number}"),
            &pages(b'A' + number, 500 + 900 * usize::from(number)),
        )?;
    }
    overwrite(volume, "a/b/large", b'i', 50_000, 30)?;
    volume.snapshot_committed("inherits")?;
    overwrite(volume, "image-1", b'z', 0, 1000)?;
    overwrite(volume, "a/b/large", b'j', 50_010, 30)?;
    OpenOptions::new().write(true).open(volume, "image-5")?.set_len(100)?;
    volume.remove_file("image-2")?;
    volume.sync_all()
}

pub(super) fn inherited_images() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "inherited images")?;
    make_inherited(&volume)?;
    Ok(SparseImage::of(&device))
}

/// The same once they have blocks of their own.
pub(super) fn overlay() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "overlay")?;
    make_inherited(&volume)?;
    volume.close()?;
    let volume = session::open_volume(device.clone(), false, 3)?;
    closed(&device, volume)
}

/// A snapshot that is being taken apart: some of its data has come back, some in the log alone, and the head has
/// changed what lies in front of the cursor and behind it.
pub(super) fn deleting() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "deleting")?;
    let every_other = |name: &str, letter: u8| {
        let file = OpenOptions::new().write(true).create(true).open(&volume, name)?;
        (0..250).try_for_each(|page| file.write_all_at(&[letter], page * 2 * BLOCK_BYTES as u64))?;
        file.sync_all()
    };
    for name in ["one", "two", "three"] {
        every_other(name, b'o')?;
    }
    volume.snapshot("stays")?;
    every_other("one", b'd')?;
    every_other("three", b'd')?;
    volume.write("only-there", pages(b'd', 70_000))?;
    volume.snapshot("goes")?;
    for name in ["one", "two", "three"] {
        overwrite(&volume, name, b'h', 100_000, 60_000)?;
    }
    volume.remove_file("only-there")?;
    volume.sync_all()?;
    volume.checkpoint()?;
    volume.delete_snapshot("goes")?;
    let clock = CountingClock::new();
    let is_in_the_middle = |image: &SparseImage| {
        Ok::<_, io::Error>(cursor(image)?.filter(|cursor| *cursor != Key::MIN && *cursor != Key::MAX))
    };
    let mut at_checkpoint = None;
    for _ in 0..200 {
        volume.inner().maintain(clock.now(), 1)?;
        overwrite(&volume, "one", b'H', 120_000, 5000)?;
        overwrite(&volume, "three", b'H', 120_000, 5000)?;
        let image = SparseImage::of(&device);
        let Some(cursor) = is_in_the_middle(&image)? else { continue };
        match at_checkpoint {
            None => volume.checkpoint()?,
            Some(before) if before < cursor => return Ok(image),
            Some(_) => continue,
        }
        at_checkpoint = Some(cursor);
    }
    Err(io::Error::other("the cursor was never in the middle"))
}

/// Where the deletion of an image stands.
fn cursor(image: &SparseImage) -> io::Result<Option<Key>> {
    let options = syncline_store::StoreOptions::new(1).read_only(true).trees();
    let recovery = Store::open(image.device(), options).map_err(io::Error::other)?;
    let cursor = |item: &TreeItem| match item.state {
        TreeState::Deleting { cursor } => Some(cursor),
        TreeState::Live => None,
    };
    Ok(recovery.store().trees().iter().find_map(|(_, item)| cursor(item)))
}

/// A snapshot that was deleted, and from which two heads descend.
pub(super) fn hidden_branch() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "hidden")?;
    populate(&volume)?;
    volume.snapshot("branch point")?;
    volume.clone_snapshot("branch point", "attempt")?;
    overwrite(&volume, "a/b/large", b'm', 40_000, 30_000)?;
    let attempt = volume.head("attempt")?;
    overwrite(&attempt, "a/b/large", b'a', 70_000, 30_000)?;
    attempt.remove_dir_all("a/b/c")?;
    attempt.close()?;
    volume.delete_snapshot("branch point")?;
    closed(&device, volume)
}

/// Several heads, one of which was rolled back to, with images in the journal of each.
pub(super) fn heads() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "heads")?;
    make_inherited(&volume)?;
    volume.clone_snapshot("inherits", "of inherited images")?;
    volume.snapshot("later")?;
    volume.rollback("inherits", Some("before the rollback"))?;
    let volume = session::open_volume(device.clone(), false, 3)?;
    volume.clone_snapshot("later", "second")?;
    volume.checkpoint()?;
    let other = volume.head("second")?;
    for (head, letter) in [(&volume, b'1'), (&other, b'2')] {
        write_synced(head, "image-3", &pages(letter, 3000))?;
        write_synced(head, "of-its-own", &pages(letter, 40_000))?;
        overwrite(head, "a/b/large", letter, 90_000, 30_000)?;
    }
    other.snapshot("of the second")?;
    overwrite(&other, "a/b/large", b'3', 90_000, 10_000)?;
    other.sync_all()?;
    volume.sync_all()?;
    Ok(SparseImage::of(&device))
}

/// So many that the root tree has several levels.
pub(super) fn many_trees() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, 4 * BLOCKS, 1024, "many trees")?;
    for number in 0..320 {
        if number % 40 == 0 {
            volume.write("counter", format!("{number}"))?;
            volume.sync_all()?;
            volume.checkpoint()?;
        }
        volume.snapshot(&format!("{number:03}"))?;
    }
    closed(&device, volume)
}

/// The data of the last batch in front of a snapshot did not arrive: recovery has cut the snapshot off with it, and was
/// cut off itself.
pub(super) fn recovery_cut_snapshot() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(2, BLOCKS, 256, "cut")?;
    populate(&volume)?;
    volume.snapshot("stays")?;
    volume.checkpoint()?;
    write_synced(&volume, "acknowledged", &pages(b'a', 100_000))?;
    volume.write("not-acknowledged", pages(b'z', 100_000))?;
    volume.snapshot("is cut off")?;
    let mut image = SparseImage::of(&device);
    image.content.retain(|_, block| block[1..].iter().any(|&byte| byte != b'z'));
    let device = FlushWatcher::new(image.device());
    session::open_volume(device.clone(), false, 3)?;
    let seen = device.take_seen().into_iter();
    let mut cut = seen.filter(|image| newest_superblock(image).is_some_and(|newest| newest.cut.is_some()));
    cut.next().ok_or_else(|| io::Error::other("recovery has cut nothing off"))
}

/// A volume of version 1 that was upgraded, and has had a snapshot made and its head changed since.
pub(super) fn upgraded() -> io::Result<SparseImage> {
    let (device, volume) = volume_of(1, 2048, JOURNAL_BLOCKS_MIN, "upgraded")?;
    populate(&volume)?;
    volume.close()?;
    let of_device: Arc<dyn Device> = device.clone();
    Store::upgrade(&*of_device).map_err(io::Error::other)?;
    let volume = session::open_volume(device.clone(), false, 3)?;
    volume.snapshot("of version 1")?;
    overwrite(&volume, "a/b/large", b'u', 100_000, 20_000)?;
    volume.write("after", "the upgrade")?;
    closed(&device, volume)
}
