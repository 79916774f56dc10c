//! A volume goes on with its replica: what is read of it for that.

use crate::common::{Place, options, settle, volume};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use syncline::{MkfsOptions, OpenOptions as FileOptions, Volume};
use syncline_device::{Device, FileDevice, OpenOptions};
use syncline_format::BLOCK_BYTES;
use syncline_replica::Target;
use syncline_replica_store::Session;

const BYTES: u64 = 1 << 30;
const FILES: usize = 48;
const FILE_BYTES: usize = 4 << 20;

fn opened(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, &OpenOptions::default()).expect("the image"))
}

/// Bytes that nothing makes smaller.
fn content(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

/// Blocks that were read of a device so far.
fn read(device: &dyn Device) -> u64 {
    device.counters().read_bytes / BLOCK_BYTES as u64
}

/// Goes on with a volume until its replica holds it, without opening it: blocks that were read for that.
fn gone_on(place: &Place, image: &Path) -> u64 {
    let device = opened(image);
    let session = Session::open(Arc::clone(&device), &place.address(), &options()).expect("it goes on");
    settle(&session);
    drop(session);
    read(&*device)
}

/// Ships a volume with many files, and ends without closing it.
fn shipped(place: &Place, format: u32) -> Volume {
    let session = Session::open(
        place.made("a", BYTES, &MkfsOptions::default().format(format)),
        &place.address(),
        &options(),
    )
    .unwrap();
    let volume = volume(session.device());
    for number in 0..FILES {
        volume.write(format!("/{number}"), content(number as u64, FILE_BYTES)).unwrap();
    }
    volume.sync_all().unwrap();
    settle(&session);
    drop(session);
    volume
}

/// Another checkpoint, with everything in it.
fn durable(volume: &Volume) {
    volume.sync_all().unwrap();
    volume.checkpoint().unwrap();
}

/// A crash leaves what is in the file.
fn crashed(place: &Place, volume: Volume, name: &str) -> PathBuf {
    let copy = place.path(name);
    std::fs::copy(place.path("a"), &copy).unwrap();
    std::mem::forget(volume);
    copy
}

// Shows: C13.
#[test]
fn behind_a_crash_only_what_has_changed_is_read_and_shipped() {
    for format in [1, 2] {
        let place = Place::new();
        let volume = shipped(&place, format);
        if format == 2 {
            volume.snapshot("before").unwrap();
        }
        // A hundredth of it, half of that behind a checkpoint.
        let (old, new) = (FILES * FILE_BYTES / 200, content(1000, FILES * FILE_BYTES / 200));
        volume.write("/0", &new).unwrap();
        volume.sync_all().unwrap();
        volume.checkpoint().unwrap();
        let file = FileOptions::new().write(true).open(&volume, "/7").unwrap();
        assert_eq!(file.write_at(&new, 0).unwrap(), new.len());
        volume.write("/small", "and a little").unwrap();
        volume.sync_all().unwrap();
        let image = crashed(&place, volume, "b");

        let changed = 2 * (old / BLOCK_BYTES) as u64;
        let blocks = gone_on(&place, &image);
        println!(
            "format {format}: {changed} blocks changed, {blocks} of {} were read",
            BYTES / BLOCK_BYTES as u64
        );
        assert!(
            blocks > changed && blocks < changed + 600,
            "{blocks} blocks were read, {changed} had changed"
        );

        let restored = place.restored(Target::Newest).expect("the replica is restored");
        assert!(restored.read("/0").unwrap() == new);
        assert!(restored.read("/7").unwrap()[..new.len()] == new);
        assert!(restored.read("/7").unwrap()[new.len()..] == content(7, FILE_BYTES)[new.len()..]);
        assert!(restored.read("/small").unwrap() == b"and a little");
        assert!(restored.read("/23").unwrap() == content(23, FILE_BYTES));
    }
}

// Shows: C13.
#[test]
fn a_volume_that_was_used_without_its_replica_behind_a_close_is_not_read_whole() {
    let place = Place::new();
    let session =
        Session::open(place.made("a", BYTES, &MkfsOptions::default()), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    (0..FILES / 4)
        .for_each(|file| first.write(format!("/{file}"), content(file as u64, FILE_BYTES)).unwrap());
    first.close().unwrap();
    session.close().unwrap();
    for round in 0..3 {
        let alone = volume(opened(&place.path("a")));
        alone.write(format!("/alone-{round}"), content(round, 100_000)).unwrap();
        alone.close().unwrap();
    }
    let blocks = gone_on(&place, &place.path("a"));
    println!("{blocks} blocks were read");
    assert!(blocks < 600, "{blocks} blocks were read, 75 had changed");
    let restored = place.restored(Target::Newest).expect("the replica is restored");
    (0..3).for_each(|round| {
        assert!(restored.read(format!("/alone-{round}")).unwrap() == content(round, 100_000));
    });
    assert!(restored.read("/1").unwrap() == content(1, FILE_BYTES));
}

/// An image that was set back and used without its replica has nodes of the same generations, and others.
// Shows: C13.
#[test]
fn a_volume_whose_past_is_another_is_read_whole() {
    let place = Place::new();
    let session =
        Session::open(place.made("a", BYTES, &MkfsOptions::default()), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/early", content(1, FILE_BYTES)).unwrap();
    durable(&first);
    settle(&session);
    let back = place.path("back");
    std::fs::copy(place.path("a"), &back).unwrap();
    for number in 0..4 {
        first.write(format!("/late-{number}"), content(10 + number, FILE_BYTES)).unwrap();
        durable(&first);
    }
    settle(&session);
    drop(session);
    std::mem::forget(first);

    // As many generations, and more.
    let other = volume(opened(&back));
    for number in 0..8 {
        other.write(format!("/other-{number}"), content(20 + number, 300_000)).unwrap();
        durable(&other);
    }
    other.close().unwrap();
    let blocks = gone_on(&place, &back);
    assert!(blocks > 4 * 300_000 / BLOCK_BYTES as u64 + 1024, "{blocks} blocks were read");
    let restored = place.restored(Target::Newest).expect("the replica is restored");
    assert!(restored.read("/early").unwrap() == content(1, FILE_BYTES));
    (0..8).for_each(|number| {
        assert!(restored.read(format!("/other-{number}")).unwrap() == content(20 + number, 300_000));
    });
    assert!(restored.read("/late-0").is_err());
}
