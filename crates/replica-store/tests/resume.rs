//! A volume goes on with its replica: what is read of it for that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline::{MkfsOptions, OpenOptions as FileOptions, SystemClock, SystemEntropy, Volume, VolumeOptions};
use syncline_device::{Device, FileDevice, MemoryDevice, OpenOptions};
use syncline_format::BLOCK_BYTES;
use syncline_fs::Fs;
use syncline_replica::{Phase, Target};
use syncline_replica_store::{Address, Client, Options, Session, image};

const BYTES: u64 = 1 << 30;
const FILES: usize = 48;
const FILE_BYTES: usize = 4 << 20;

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder for temporary files") }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> Address {
        let folder = self.folder.path().join("replica");
        Address::make(folder.to_str().expect("UTF-8")).expect("a folder")
    }

    fn made(&self, name: &str, format: u32) -> Arc<dyn Device> {
        let device = FileDevice::create(self.image(name), BYTES).expect("an image");
        let options = MkfsOptions::default().format(format);
        Fs::format(&device, &options, &SystemClock, &SystemEntropy::default(), &mut |_, _| {}).expect("mkfs");
        Arc::new(device)
    }

    /// What the replica holds, in memory.
    fn restored(&self) -> Volume {
        let mut client = Client::new(&self.address()).expect("a client");
        let uuid = image::volume(&client, None).expect("a volume");
        let mut made = None;
        let plan = image::restore(&mut client, uuid, Target::Newest, |blocks| {
            let device = Arc::new(MemoryDevice::new(blocks));
            made = Some(Arc::clone(&device));
            Ok(device)
        });
        plan.expect("the replica is restored");
        let device = made.expect("a restore that succeeds makes the device");
        Volume::on_device(device, &VolumeOptions::new()).expect("what is restored opens")
    }
}

fn opened(path: &Path) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, &OpenOptions::default()).expect("the image"))
}

fn options() -> Options {
    Options { interval: Duration::from_millis(20), housekeeping: None, ..Options::default() }
}

fn volume(device: Arc<dyn Device>) -> Volume {
    Volume::on_device(device, &VolumeOptions::new()).expect("the volume opens")
}

fn until_streaming(session: &Session) {
    let start = Instant::now();
    loop {
        let status = session.status();
        if status.phase == Phase::Streaming && status.flush >= session.flushes() && status.lag == 0 {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "shipping: {status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
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
    until_streaming(&session);
    drop(session);
    read(&*device)
}

/// Ships a volume with many files, and ends without closing it.
fn shipped(place: &Place, format: u32) -> Volume {
    let session = Session::open(place.made("a", format), &place.address(), &options()).unwrap();
    let volume = volume(session.device());
    for number in 0..FILES {
        volume.write(format!("/{number}"), content(number as u64, FILE_BYTES)).unwrap();
    }
    volume.sync_all().unwrap();
    until_streaming(&session);
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
    let copy = place.image(name);
    std::fs::copy(place.image("a"), &copy).unwrap();
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

        let restored = place.restored();
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
    let session = Session::open(place.made("a", 2), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    (0..FILES / 4)
        .for_each(|file| first.write(format!("/{file}"), content(file as u64, FILE_BYTES)).unwrap());
    first.close().unwrap();
    session.close().unwrap();
    for round in 0..3 {
        let alone = volume(opened(&place.image("a")));
        alone.write(format!("/alone-{round}"), content(round, 100_000)).unwrap();
        alone.close().unwrap();
    }
    let blocks = gone_on(&place, &place.image("a"));
    println!("{blocks} blocks were read");
    assert!(blocks < 600, "{blocks} blocks were read, 75 had changed");
    let restored = place.restored();
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
    let session = Session::open(place.made("a", 2), &place.address(), &options()).unwrap();
    let first = volume(session.device());
    first.write("/early", content(1, FILE_BYTES)).unwrap();
    durable(&first);
    until_streaming(&session);
    let back = place.image("back");
    std::fs::copy(place.image("a"), &back).unwrap();
    for number in 0..4 {
        first.write(format!("/late-{number}"), content(10 + number, FILE_BYTES)).unwrap();
        durable(&first);
    }
    until_streaming(&session);
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
    let restored = place.restored();
    assert!(restored.read("/early").unwrap() == content(1, FILE_BYTES));
    (0..8).for_each(|number| {
        assert!(restored.read(format!("/other-{number}")).unwrap() == content(20 + number, 300_000));
    });
    assert!(restored.read("/late-0").is_err());
}
