//! Costs that must not grow with the size of the volume, a file, or the journal; counted, not timed.

use super::{MIB, TestVolume, pattern};
use crate::{Context, FsOptions};
use syncline_device::Device;
use syncline_format::ObjectNo;

#[test]
fn scattered_writes_read_only_the_extents_around_them() {
    let volume = TestVolume::new(256 * MIB, 16 * MIB);
    let inode = volume.create("scattered");
    let pages = 20_000u64;
    // Every second page, so that each is an extent of its own.
    for page in 0..pages {
        volume.write(&inode, page * 8192, &[page as u8 | 1]);
    }
    volume.sync(&inode);
    volume.fs.core.checkpoint().unwrap();
    let lookups = || {
        let counters = volume.fs.core.store.counters();
        counters.node_cache_hits + counters.node_cache_misses
    };
    // Too many for images.
    for part in 0..8 {
        volume.write(&inode, part * (pages / 8) * 8192, &[0xff; 4096]);
    }
    let before = lookups();
    volume.sync(&inode);
    let count = lookups() - before;
    assert!(count < 120, "{count} nodes were looked at for 8 pages");
}

#[test]
fn files_created_without_a_sync_need_few_checkpoints() {
    let options = FsOptions { memory_bytes_max: 8 << 20, ..FsOptions::default() };
    let volume = TestVolume::with_options(256 * MIB, 64 * MIB, options);
    // Some 100 leaves of entries, each of which is hit by one in so many creations.
    for index in 0..24_000 {
        let name = format!("file-{index}");
        volume.fs.names.mknod(&Context::root(), ObjectNo::ROOT_DIR, name.as_bytes(), 0o100644, 0).unwrap();
        if index % 1000 == 0 {
            let now = volume.clock.advance(10);
            volume.fs.maintain(now, 1).unwrap();
        }
    }
    let checkpoints = volume.fs.core.store.counters().checkpoints;
    assert!(checkpoints < 24, "{checkpoints} checkpoints");
}

#[test]
fn recovery_reads_the_journal_once() {
    let mut volume = TestVolume::new(128 * MIB, 32 * MIB);
    let inode = volume.create("overwritten");
    let load = || volume.fs.core.store.load();
    let mut count = 0;
    while load().ring_bytes * 4 < load().ring_bytes_max * 3 {
        volume.write(&inode, count % 64 * 4096, &pattern(count, 4096));
        volume.sync(&inode);
        count += 1;
    }
    let ring = load().ring_bytes_max;
    drop(inode);
    volume.crash();
    let read = volume.device.counters().read_bytes;
    // A window more: what is read ahead of the chain's end is read again when it is searched.
    assert!(read < ring + ring / 2, "{read} bytes read of a ring of {ring}");
    let content = volume.content(&volume.find("overwritten"));
    for page in 0..64 {
        let newest = (0..count).rev().find(|n| n % 64 == page).unwrap();
        assert_eq!(content[page as usize * 4096..][..4096], pattern(newest, 4096), "page {page}");
    }
}
