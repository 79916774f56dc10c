use super::{MIB, TestVolume, pattern};
use crate::FallocateMode;

#[test]
fn synced_content_of_every_size_survives_a_crash() {
    for size in [1, 4095, 4096, 4097, 16_384, 16_385, 100_000, 3 << 20] {
        let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
        let inode = volume.create("a");
        let data = pattern(size as u64, size);
        volume.write(&inode, 0, &data);
        volume.sync(&inode);
        drop(inode);
        volume.crash();
        assert_eq!(volume.content(&volume.find("a")), data, "size {size}");
    }
}

#[test]
fn unsynced_growth_never_shows_a_size_without_its_data() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    volume.write(&inode, 0, b"first");
    volume.sync(&inode);
    volume.write(&inode, 5, &pattern(1, 50_000));
    // A sync of another file makes this one's earlier metadata durable, and no data of it.
    let other = volume.create("b");
    volume.sync(&other);
    drop((inode, other));
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), b"first");
}

#[test]
fn bytes_cut_off_by_truncation_never_come_back() {
    for synced in [false, true] {
        let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
        let inode = volume.create("a");
        volume.write(&inode, 0, &vec![7; 10_000]);
        volume.sync(&inode);
        volume.fs.writeback.destage_everything().unwrap();
        if !synced {
            volume.write(&inode, 4000, &[8; 2000]);
        }
        volume.truncate(&inode, 5000);
        volume.fs.core.store.force(volume.fs.core.store.last_lsn()).unwrap();
        drop(inode);
        volume.crash();
        let inode = volume.find("a");
        assert_eq!(inode.state.read().item.size, 5000);
        volume.truncate(&inode, 9000);
        volume.drop_cache(&inode);
        let content = volume.content(&inode);
        assert_eq!(content[..4000], [7; 4000]);
        assert_eq!(content[5000..], [0; 4000], "old bytes came back");
        drop(inode);
        volume.reopen();
        assert_eq!(volume.content(&volume.find("a"))[5000..], [0; 4000]);
    }
}

#[test]
fn newest_of_image_and_extent_wins_after_a_crash() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let mut want = pattern(0, 200_000);
    volume.write(&inode, 0, &want);
    volume.sync(&inode);
    for round in 0..30u64 {
        let at = (round * 7919) as usize % 190_000;
        let len = if round % 3 == 0 { 60_000.min(200_000 - at) } else { 500 };
        let data = pattern(round + 1, len);
        want[at..at + len].copy_from_slice(&data);
        volume.write(&inode, at as u64, &data);
        volume.sync(&inode);
        match round % 5 {
            3 => volume.fs.writeback.destage_everything().unwrap(),
            4 => volume.fs.core.store.checkpoint().unwrap(),
            _ => {}
        }
    }
    drop(inode);
    for _ in 0..3 {
        volume.crash();
        assert_eq!(volume.content(&volume.find("a")), want);
    }
}

#[test]
fn first_write_into_preallocated_blocks_goes_in_place() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let mode = FallocateMode::Allocate { keep_size: false };
    volume.fs.shape.file_allocate(&inode, mode, 0, MIB, &mut |_| {}).unwrap();
    assert_eq!(inode.state.read().item.blocks, 256);
    assert_eq!(volume.content(&inode), vec![0; MIB as usize]);
    let before = volume.fs.core.store.space().free;
    let data = pattern(9, 300_000);
    volume.write(&inode, 8192, &data);
    volume.sync(&inode);
    assert_eq!(inode.state.read().item.blocks, 256);
    assert_eq!(volume.fs.core.store.space().free, before);
    drop(inode);
    volume.crash();
    let content = volume.content(&volume.find("a"));
    assert_eq!(content[8192..8192 + 300_000], data);
    assert!(content[..8192].iter().chain(&content[308_192..]).all(|&byte| byte == 0));
}

#[test]
fn interrupted_large_truncation_is_finished_by_the_next_session() {
    let mut volume = TestVolume::new(64 * MIB, MIB);
    let inode = volume.create("a");
    // Every other page: an extent each.
    for page in 0..1000u64 {
        volume.write(&inode, page * 8192, &[page as u8; 4096]);
    }
    volume.sync(&inode);
    let used = volume.fs.core.store.space().total - volume.fs.core.store.space().free;
    volume.truncate(&inode, 4096);
    assert_eq!(inode.state.read().item.blocks, 1);
    volume.fs.core.store.checkpoint().unwrap();
    volume.fs.core.store.checkpoint().unwrap();
    let left = volume.fs.core.store.space().total - volume.fs.core.store.space().free;
    assert!(left + 900 < used, "{left} of {used} blocks are still in use");
    drop(inode);
    volume.crash();
    let inode = volume.find("a");
    assert_eq!(inode.state.read().item.blocks, 1);
    assert_eq!(volume.content(&inode), vec![0; 4096]);
}

#[test]
fn collapse_and_insert_move_what_follows() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let data = pattern(5, 100_000);
    volume.write(&inode, 0, &data);
    volume.fs.shape.file_allocate(&inode, FallocateMode::CollapseRange, 8192, 12_288, &mut |_| {}).unwrap();
    let mut want = data[..8192].to_vec();
    want.extend_from_slice(&data[20_480..]);
    assert_eq!(volume.content(&inode), want);
    volume.fs.shape.file_allocate(&inode, FallocateMode::InsertRange, 4096, 8192, &mut |_| {}).unwrap();
    want.splice(4096..4096, vec![0; 8192]);
    assert_eq!(volume.content(&inode), want);
    volume.sync(&inode);
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), want);
}

#[test]
fn rename_over_after_writeback_shows_old_or_new_content() {
    for size in [5_000, 300_000, 3 << 20] {
        let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
        let target = volume.create("target");
        volume.write(&target, 0, b"old");
        volume.sync(&target);
        let temporary = volume.create("temporary");
        let data = pattern(1, size);
        volume.write(&temporary, 0, &data);
        let ctx = crate::Context::root();
        let root = syncline_format::ObjectNo::ROOT_DIR;
        let flags = crate::RenameFlags::default();
        volume.fs.names.rename(&ctx, root, b"temporary", root, b"target", flags).unwrap();
        // The sync of another file makes the rename durable.
        let other = volume.create("other");
        volume.sync(&other);
        drop((target, temporary, other));
        volume.crash();
        assert_eq!(volume.content(&volume.find("target")), data);
    }
}

#[test]
fn removed_file_gives_its_space_back_and_its_images_stay_dead() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let root = syncline_format::ObjectNo::ROOT_DIR;
    volume.fs.core.store.checkpoint().unwrap();
    let before = volume.fs.core.store.space().free;
    for round in 0..20u64 {
        let inode = volume.create("a");
        volume.write(&inode, 0, &pattern(round, 10_000));
        volume.sync(&inode);
        volume.write(&inode, 10_000, &pattern(round, 500_000));
        if round % 2 == 0 {
            volume.sync(&inode);
        }
        drop(inode);
        volume.fs.names.unlink(root, b"a").unwrap();
    }
    assert_eq!(volume.fs.core.account.pinned(), 0);
    assert_eq!(volume.fs.core.store.load().images, 0);
    volume.crash();
    volume.fs.core.store.checkpoint().unwrap();
    let after = volume.fs.core.store.space().free;
    assert!(before.abs_diff(after) < 64, "{before} blocks were free, now {after}");
}
