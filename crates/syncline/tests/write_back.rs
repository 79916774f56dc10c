//! Writeback hints: what they start, and that they wait for nothing (C6).

#[path = "../../fs/tests/gate/mod.rs"]
mod gate;

use gate::Gate;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline::{File, OpenOptions, Started, SyncScope, Volume, VolumeOptions};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

fn quiet(gate: &Arc<Gate>) -> Volume {
    VolumeOptions::new().background(false).open_device(gate.clone()).expect("open")
}

fn file(volume: &Volume, every: u64) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).write_back_every(every);
    options.open(volume, "file").expect("open a file")
}

/// Background work. The first call after opening finds nothing to force, and takes note of the time.
fn maintain(volume: &Volume) {
    let now = syncline::Clock::now(&syncline::SystemClock);
    while volume.inner().maintain(now, 64).expect("background work") {}
}

// Shows: C6.
#[test]
fn a_hint_writes_its_range_without_a_flush_and_the_sync_has_little_left() {
    let gate = Gate::new(64 << 20);
    let volume = quiet(&gate);
    let file = file(&volume, 0);
    volume.sync_all().expect("sync");
    maintain(&volume);
    file.write_all_at(&vec![1; 4 * MIB as usize], 0).expect("write");
    let before = volume.stats().engine.device;
    assert_eq!(file.write_back(MIB..3 * MIB).expect("hint"), Started { bytes: 2 * MIB });
    assert_eq!(file.write_back(MIB..3 * MIB).expect("hint"), Started { bytes: 0 }, "started already");
    assert_eq!(volume.stats().engine.device.writes, before.writes, "the caller writes nothing");
    maintain(&volume);
    let written = volume.stats().engine.device;
    assert_eq!(written.written_bytes - before.written_bytes, 2 * MIB);
    assert_eq!(written.flushes, before.flushes);
    file.sync_range(MIB..3 * MIB, SyncScope::Data).expect("sync");
    let synced = volume.stats().engine.device;
    assert!(synced.written_bytes - written.written_bytes <= 4 * PAGE, "only the record is left");
    assert_eq!(synced.flushes - written.flushes, 1);
    let content = quiet(&gate.after_power_cut()).read("file").expect("read");
    assert_eq!(content.len() as u64, 3 * MIB);
    assert!(content[MIB as usize..].iter().all(|byte| *byte == 1));
    assert!(content[..MIB as usize].iter().all(|byte| *byte == 0));
}

// Shows: C6.
#[test]
fn a_hint_starts_no_more_than_the_bound() {
    let gate = Gate::new(256 << 20);
    let volume = quiet(&gate);
    let file = file(&volume, 0);
    file.write_all_at(&vec![2; 24 * MIB as usize], 0).expect("write");
    assert_eq!(file.write_back(..).expect("hint"), Started { bytes: 16 * MIB });
    assert_eq!(file.write_back(..).expect("hint"), Started { bytes: 0 });
    maintain(&volume);
    assert_eq!(file.write_back(30 * MIB..).expect("hint"), Started { bytes: 0 }, "beyond the end");
    file.sync_all().expect("sync");
    assert_eq!(file.write_back(..).expect("hint"), Started { bytes: 0 }, "nothing is dirty");
}

// Shows: C6.
#[test]
fn a_hint_waits_for_no_write_and_the_volume_thread_carries_it_out() {
    let gate = Gate::new(64 << 20);
    let options = VolumeOptions::new().commit_interval(Duration::from_secs(3600));
    let volume = options.open_device(gate.clone()).expect("open");
    let file = file(&volume, MIB);
    volume.sync_all().expect("sync");
    maintain(&volume);
    let flushes = gate.flushes();
    let before = volume.stats().engine.device.written_bytes;
    let closed = gate.close();
    // Each megabyte gives a hint.
    for at in 0..2 {
        file.write_all_at(&vec![3; MIB as usize], at * MIB).expect("write");
    }
    drop(closed);
    let since = Instant::now();
    while volume.stats().engine.device.written_bytes - before < 2 * MIB {
        assert!(since.elapsed() < Duration::from_secs(60), "nobody writes");
        std::thread::yield_now();
    }
    assert_eq!(gate.flushes(), flushes);
}

#[test]
fn a_hint_on_a_failed_volume_tells_the_failure() {
    let gate = Gate::new(64 << 20);
    let volume = quiet(&gate);
    let file = file(&volume, 0);
    file.write_all_at(b"content", 0).expect("write");
    gate.fail_flushes();
    assert!(file.sync_all().is_err());
    assert!(file.write_back(..).is_err());
}
