//! The filesystem's part of the switches that a benchmark turns: each has the effect that its name says, by counts.

use super::{MIB, TestVolume, pattern};
use crate::{Ablation, Context, FsOptions, RenameFlags};
use syncline_device::Device;
use syncline_format::ObjectNo;

fn volume(ablation: Ablation) -> TestVolume {
    TestVolume::with_options(64 * MIB, 4 * MIB, FsOptions { ablation, ..FsOptions::default() })
}

/// Writes, flushes and KiB written by `work`.
fn counted(volume: &TestVolume, work: impl FnOnce()) -> (u64, u64, u64) {
    let before = volume.device.counters();
    work();
    let after = volume.device.counters();
    let bytes = after.written_bytes - before.written_bytes;
    (after.writes - before.writes, after.flushes - before.flushes, bytes / 1024)
}

#[test]
fn without_images_a_small_sync_writes_data_and_record_apart() {
    for (no_images, expected) in [(false, (1, 1, 8)), (true, (2, 1, 8))] {
        let volume = volume(Ablation { no_images, ..Ablation::default() });
        let inode = volume.create("log");
        volume.sync(&inode);
        volume.write(&inode, 0, &pattern(1, 4096));
        let other = volume.create("other");
        volume.write(&other, 0, &pattern(2, 4096));
        assert_eq!(counted(&volume, || volume.sync(&inode)), if no_images { expected } else { (1, 1, 12) });
        let logged = volume.fs.stats().load.images;
        assert_eq!(logged, if no_images { 0 } else { 2 }, "the other file's page travelled as an image");
    }
}

#[test]
fn forced_names_cost_a_write_and_a_flush_each() {
    for (forced_names, expected) in [(false, (0, 0)), (true, (2, 2))] {
        let volume = volume(Ablation { forced_names, ..Ablation::default() });
        let inode = volume.create("a");
        volume.sync(&inode);
        let (writes, flushes, _) = counted(&volume, || {
            volume.fs.names.link(inode.number, ObjectNo::ROOT_DIR, b"b").unwrap();
            let root = ObjectNo::ROOT_DIR;
            volume.fs.names.rename(&Context::root(), root, b"b", root, b"c", RenameFlags::default()).unwrap();
        });
        assert_eq!((writes, flushes), expected);
    }
}

#[test]
fn a_sync_that_ends_with_a_checkpoint_flushes_three_times() {
    for (checkpoint_per_sync, flushes_expected) in [(false, 1), (true, 3)] {
        let volume = volume(Ablation { checkpoint_per_sync, ..Ablation::default() });
        let inode = volume.create("log");
        volume.sync(&inode);
        volume.write(&inode, 0, &pattern(1, 4096));
        let checkpoints = volume.fs.stats().store.checkpoints;
        let (_, flushes, _) = counted(&volume, || volume.sync(&inode));
        assert_eq!(flushes, flushes_expected);
        assert_eq!(volume.fs.stats().store.checkpoints - checkpoints, u64::from(checkpoint_per_sync));
    }
}

#[test]
fn whatever_is_switched_off_a_synced_file_survives_a_crash() {
    let on = Ablation::default();
    for ablation in [
        Ablation { blocked_logging: true, ..on },
        Ablation { waiting_for_data: true, ..on },
        Ablation { ordered_records: true, ..on },
        Ablation { no_group_commit: true, ..on },
        Ablation { no_piggyback: true, ..on },
        Ablation { no_images: true, ..on },
        Ablation { forced_names: true, ..on },
        Ablation { checkpoint_per_sync: true, ..on },
    ] {
        let mut volume = volume(ablation);
        for round in 0..30 {
            let inode = volume.create(&format!("file{round}"));
            volume.write(&inode, 0, &pattern(round, if round % 3 == 0 { 300_000 } else { 5000 }));
            volume.sync(&inode);
            if round % 10 == 9 {
                volume.crash();
            }
        }
        for round in 0..30 {
            let expected = pattern(round, if round % 3 == 0 { 300_000 } else { 5000 });
            assert!(volume.content(&volume.find(&format!("file{round}"))) == expected, "{ablation:?}");
        }
    }
}
