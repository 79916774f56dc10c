//! Damage of what a snapshot has beside its tree, and what waits for the space of a deleted one.

use super::{MIB, TestVolume, pattern};
use crate::{Error, FsOptions, MkfsOptions, SnapshotData, SystemEntropy};
use std::sync::Arc;
use syncline_device::{Buffer, Device};

use syncline_format::{BlockNo, ObjectNo, TreeId};

const PAGE: usize = 4096;

/// Two files whose first pages are images when the snapshot is made, and on the device where the tree has others.
fn with_overlay() -> (TestVolume, Vec<BlockNo>) {
    let mkfs = MkfsOptions { journal_bytes: Some(MIB), ..MkfsOptions::default() };
    let volume = TestVolume::made(64 * MIB, mkfs, FsOptions::default());
    let files = ["a", "b"].map(|name| volume.create(name));
    for (file, seed) in files.iter().zip(1..) {
        volume.write(file, 0, &pattern(seed, 3 * PAGE));
    }
    volume.fs.sync_all().unwrap();
    volume.fs.writeback.destage_everything().unwrap();
    for (file, seed) in files.iter().zip(11..) {
        volume.write(file, 0, &pattern(seed, PAGE));
        volume.sync(file);
    }
    let made = volume.fs.snapshot("s", SnapshotData::Committed, &SystemEntropy::default()).unwrap();
    drop(volume.fs.at("s").unwrap());
    let overlay = volume.fs.core.store.overlay(TreeId(made.tree)).unwrap();
    let blocks = overlay.iter().map(|item| (item.object, item.extent.start));
    let blocks: Vec<BlockNo> = files
        .iter()
        .filter_map(|file| blocks.clone().find(|(object, _)| *object == file.number))
        .map(|(_, block)| block)
        .collect();
    assert_eq!(blocks.len(), 2, "both were inherited: {overlay:?}");
    for file in &files {
        volume.write(file, 0, &[0; 3 * PAGE]);
    }
    drop(files);
    volume.fs.sync_all().unwrap();
    (volume, blocks)
}

fn rot(volume: &TestVolume, block: BlockNo) {
    let mut content = Buffer::zeroed(1);
    volume.memory.read(block, &mut content).unwrap();
    content[17] ^= 4;
    volume.memory.write(block, vec![Arc::new(content)]).unwrap();
}

fn read(volume: &TestVolume, name: &str, page: usize) -> crate::Result<Vec<u8>> {
    let view = volume.fs.at("s")?;
    let found = view.names().lookup(syncline_format::ObjectNo::ROOT_DIR, name.as_bytes())?;
    let file = view.content.inode(found.attr.inode)?;
    let mut content = vec![0xAA; PAGE];
    assert_eq!(view.shape.file_read(&file, (page * PAGE) as u64, &mut content)?, PAGE);
    Ok(content)
}

// Shows: C7, C10.
#[test]
fn a_damaged_page_beside_the_tree_is_missing_from_its_file_and_from_nothing_else() {
    let (volume, blocks) = with_overlay();
    let expected = |seed: u64, page: usize| match page {
        0 => pattern(10 + seed, PAGE),
        page => pattern(seed, 3 * PAGE)[page * PAGE..][..PAGE].to_vec(),
    };
    for page in 0..3 {
        assert!(read(&volume, "a", page).unwrap() == expected(1, page), "page {page}");
    }
    rot(&volume, blocks[0]);
    let told = read(&volume, "a", 0).unwrap_err();
    assert!(matches!(told, Error::Checksum { page: 0, block, .. } if block == blocks[0]), "{told}");
    for page in 1..3 {
        assert!(read(&volume, "a", page).unwrap() == expected(1, page), "page {page}");
    }
    for page in 0..3 {
        assert!(read(&volume, "b", page).unwrap() == expected(2, page), "page {page}");
    }
    rot(&volume, blocks[0]);
    assert!(read(&volume, "a", 0).unwrap() == expected(1, 0));
}

// Shows: C10.
#[test]
fn whoever_must_not_wait_makes_a_snapshot_only_of_what_is_written() {
    let volume = TestVolume::new(64 * MIB, MIB);
    let at_once = |name: &str| volume.fs.try_snapshot(name, &SystemEntropy::default()).unwrap();
    let file = volume.create("a");
    volume.write(&file, 0, &pattern(1, 3 * PAGE));
    assert!(at_once("dirty").is_none(), "a page is in memory only");
    volume.sync(&file);
    volume.write(&file, 0, &pattern(2, PAGE));
    volume.sync(&file);
    assert!(at_once("logged").is_none(), "a page is in the journal only");
    volume.fs.write_for_snapshot().unwrap();
    let (made, lsn) = at_once("s").expect("there is nothing to write");
    assert!(volume.fs.core.store.durable_lsn() < lsn, "nobody has waited for it");
    volume.fs.syncs().force(lsn).unwrap();
    assert_eq!(volume.fs.snapshots(), [made]);
    assert_eq!(read(&volume, "a", 0).unwrap(), pattern(2, PAGE));
    let again = volume.fs.try_snapshot("s", &SystemEntropy::default());
    assert_eq!(again.unwrap_err().errno(), 17);
}

#[test]
fn a_volume_is_clean_when_it_is_closed_behind_a_snapshot_of_what_is_in_the_journal() {
    for data in [SnapshotData::Written, SnapshotData::Committed] {
        let mut volume = TestVolume::new(64 * MIB, MIB);
        let file = volume.create("a");
        volume.write(&file, 0, &pattern(1, 3 * PAGE));
        volume.sync(&file);
        volume.fs.snapshot("s", data, &SystemEntropy::default()).unwrap();
        volume.write(&file, 0, &pattern(2, 2 * PAGE));
        drop(file);
        volume.reopen();
        for page in 0..3 {
            assert!(
                read(&volume, "a", page).unwrap() == pattern(1, 3 * PAGE)[page * PAGE..][..PAGE],
                "page {page}"
            );
        }
    }
}

// Shows: C11.
#[test]
fn reclaim_writes_a_checkpoint_for_what_deletions_have_freed_and_for_nothing_else() {
    // Whoever takes the steps: the background may be faster.
    for is_done_before in [false, true] {
        let volume = TestVolume::new(64 * MIB, MIB);
        let write = |name: &str, seed| volume.write(&volume.create(name), 0, &pattern(seed, 100 * PAGE));
        let remove = |name: &str| volume.fs.names().unlink(ObjectNo::ROOT_DIR, name.as_bytes()).unwrap();
        ["a", "b", "c"].into_iter().zip(1..).for_each(|(name, seed)| write(name, seed));
        volume.fs.sync_all().unwrap();
        volume.fs.checkpoint().unwrap();
        let store = &volume.fs.core.store;
        let delete = || {
            volume.fs.delete_snapshot("s").unwrap();
            while is_done_before && store.reap_space(usize::MAX).unwrap() {}
        };
        let checkpoints = || {
            let before = store.counters().checkpoints;
            volume.fs.reclaim().unwrap();
            store.counters().checkpoints - before
        };
        remove("a");
        volume.fs.sync_all().unwrap();
        volume.fs.snapshot("s", SnapshotData::Written, &SystemEntropy::default()).unwrap();
        delete();
        assert!(store.space().pinned >= 100, "of a file of the head");
        assert_eq!(checkpoints(), 0, "the head has all that the snapshot had");
        while store.reap(usize::MAX).unwrap() {}
        volume.fs.snapshot("s", SnapshotData::Written, &SystemEntropy::default()).unwrap();
        remove("b");
        volume.fs.checkpoint().unwrap();
        delete();
        let before = store.space();
        assert_eq!(checkpoints(), 1, "the snapshot alone had a file");
        let behind = store.space();
        let is_pinned = if is_done_before { 100 } else { 0 };
        assert!(before.pinned >= is_pinned && behind.pinned == 0, "{before:?}, {behind:?}");
        assert!(behind.available >= before.available + 100, "{before:?}, {behind:?}");
        assert_eq!(checkpoints(), 0, "it is free");
    }
}
