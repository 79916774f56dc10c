use super::{MIB, TestVolume, pattern};
use crate::SyncScope;
use crate::content::extents::Cost;
use crate::content::inode::Inode;
use crate::content::select::Select;
use crate::writeback::round::{Round, Start, Started};
use crate::{Clock, Context, SetAttr};
use std::rc::Rc;
use std::sync::Arc;
use syncline_device::Device;
use syncline_format::ObjectNo;
use syncline_format::batch::BATCH_HEADER_BYTES;
use syncline_store::Class;
use syncline_store::lock_order::elsewhere;

// Shows: C1.
fn sync_point(volume: &TestVolume, inode: &Arc<Inode>) -> crate::Lsn {
    let mut plan = volume.fs.syncs.plan_for(inode, SyncScope::All, crate::Reach::Whole).unwrap();
    volume.fs.syncs.commit(&mut plan).unwrap()
}

#[test]
fn append_and_sync_is_one_write_and_one_flush() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("log");
    volume.sync(&inode);
    for round in 0..100 {
        let before = volume.device.counters();
        volume.write(&inode, round * 4096, &pattern(round, 4096));
        volume.sync(&inode);
        let after = volume.device.counters();
        assert_eq!(after.writes - before.writes, 1, "round {round}");
        assert_eq!(after.flushes - before.flushes, 1, "round {round}");
        // The image, its batch and the record's header.
        assert!(after.written_bytes - before.written_bytes <= 8192, "round {round}");
    }
}

// Shows: C1.
#[test]
fn create_write_and_sync_is_one_write_and_one_flush() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    for round in 0..50 {
        let before = volume.device.counters();
        let inode = volume.create(&format!("file{round}"));
        volume.write(&inode, 0, &pattern(round, 4096));
        volume.sync(&inode);
        let after = volume.device.counters();
        assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (1, 1), "round {round}");
    }
}

#[test]
fn large_sync_writes_data_once_and_flushes_once() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("large");
    volume.sync(&inode);
    volume.write(&inode, 0, &pattern(1, 512 << 10));
    let before = volume.device.counters();
    volume.sync(&inode);
    let after = volume.device.counters();
    assert_eq!(after.flushes - before.flushes, 1);
    assert!(after.written_bytes - before.written_bytes < (512 << 10) + (16 << 10), "data is not logged");
}

// Shows: C8a.
#[test]
fn sync_of_a_clean_file_does_no_io_once_everything_is_durable() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    volume.write(&inode, 0, b"content");
    volume.sync(&inode);
    let before = volume.device.counters();
    volume.sync(&inode);
    volume.fs.syncs.file_sync(&inode, SyncScope::Data).unwrap();
    assert_eq!(volume.device.counters(), before);
}

#[test]
fn a_sync_forces_nothing_that_was_committed_behind_it() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    for (round, len) in [100, 50_000].into_iter().enumerate() {
        let inode = volume.create(&format!("a{round}"));
        volume.write(&inode, 0, &pattern(1, len));
        let before = volume.fs.core.store.last_lsn();
        let fs = volume.fs.clone();
        volume.clock.meanwhile(move || {
            let is_committed = fs.core.store.last_lsn() > before;
            if is_committed {
                let name = format!("other{round}");
                fs.names.mkdir(&Context::root(), ObjectNo::ROOT_DIR, name.as_bytes(), 0o755).unwrap();
            }
            is_committed
        });
        let lsn = sync_point(&volume, &inode);
        assert_eq!(lsn, before.next(), "its own batch");
        assert_eq!(volume.fs.core.store.last_lsn(), lsn.next(), "that of the other one");
        // Nothing of its own to commit: all that had been before the call.
        assert_eq!(sync_point(&volume, &inode), lsn.next());
    }
}

// Shows: C1.
#[test]
fn sync_writes_no_data_of_other_files_but_small_ones() {
    let volume = TestVolume::new(256 * MIB, 16 * MIB);
    let (large, small) = (volume.create("large"), volume.create("small"));
    volume.write(&large, 0, &pattern(1, 16 << 20));
    volume.write(&small, 0, &pattern(2, 100));
    let before = volume.device.counters();
    volume.sync(&small);
    let after = volume.device.counters();
    assert!(after.written_bytes - before.written_bytes <= 72 << 10);
    assert!(large.state.read().data.has_dirty());
}

#[test]
fn small_files_that_were_just_written_travel_with_a_sync() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let files: Vec<_> = (0..8).map(|n| volume.create(&format!("f{n}"))).collect();
    for (n, file) in files.iter().enumerate() {
        volume.write(file, 0, &pattern(n as u64, 3000));
    }
    volume.sync(&files[0]);
    let before = volume.device.counters();
    files.iter().for_each(|file| volume.sync(file));
    assert_eq!(volume.device.counters(), before, "they are durable already");
    drop(files);
    volume.crash();
    for n in 0..8 {
        assert_eq!(volume.content(&volume.find(&format!("f{n}"))), pattern(n, 3000));
    }
}

/// So many small files, written one after another.
fn small_files(volume: &TestVolume, name: &str, count: u64) -> Vec<Arc<Inode>> {
    let file = |n| {
        let file = volume.create(&format!("{name}{n}"));
        volume.write(&file, 0, &pattern(n, 4096));
        file
    };
    (0..count).map(file).collect()
}

#[test]
fn a_pass_of_syncs_over_a_thousand_small_files_takes_a_flush_for_about_fifty() {
    let volume = TestVolume::new(512 * MIB, 64 * MIB);
    let files = small_files(&volume, "f", 1000);
    let before = volume.device.counters();
    files.iter().for_each(|file| volume.sync(file));
    let flushes = volume.device.counters().flushes - before.flushes;
    assert!((16..25).contains(&flushes), "{flushes} flushes");
}

#[test]
fn passes_over_several_series_of_files_in_turn_find_their_own_done() {
    let volume = TestVolume::new(512 * MIB, 64 * MIB);
    let series: Vec<_> = (0..8).map(|n| small_files(&volume, &format!("{n}-"), 125)).collect();
    let before = volume.device.counters();
    (0..125).for_each(|index| series.iter().for_each(|files| volume.sync(&files[index])));
    let flushes = volume.device.counters().flushes - before.flushes;
    // Whether it was worth it is known later: until a series is come back to.
    assert!((16..50).contains(&flushes), "{flushes} flushes");
}

#[test]
fn when_nobody_syncs_what_was_taken_along_no_more_than_usual_is() {
    let volume = TestVolume::new(512 * MIB, 64 * MIB);
    small_files(&volume, "pass", 500).iter().for_each(|file| volume.sync(file));
    let (log, _others) = (volume.create("log"), small_files(&volume, "other", 1000));
    let written: Vec<u64> = (0..20)
        .map(|n| {
            let before = volume.device.counters().written_bytes;
            volume.write(&log, n * 4096, &pattern(n, 4096));
            volume.sync(&log);
            volume.device.counters().written_bytes - before
        })
        .collect();
    assert!(written[0] > 128 << 10, "the pass was worth taking more along: {written:?}");
    assert!(written[4..].iter().all(|&bytes| bytes <= 80 << 10), "{written:?}");
}

#[test]
fn logged_pages_are_destaged_and_read_back_from_the_device() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let data = pattern(3, 10_000);
    volume.write(&inode, 0, &data);
    volume.sync(&inode);
    assert_eq!(inode.state.read().data.logged_pages(), 3);
    let later = volume.clock.advance(10_000);
    while volume.fs.maintain(later, 16).unwrap() {}
    assert_eq!(inode.state.read().data.logged_pages(), 0);
    assert_eq!(inode.state.read().item.blocks, 3);
    volume.drop_cache(&inode);
    assert_eq!(inode.state.read().data.cached_pages(), 0);
    assert_eq!(volume.content(&inode), data);
    drop(inode);
    volume.reopen();
    assert_eq!(volume.content(&volume.find("a")), data);
}

// Shows: C9.
#[test]
fn unsynced_data_is_durable_after_the_commit_interval() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let data = pattern(4, 100_000);
    volume.write(&inode, 0, &data);
    volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
    assert!(inode.state.read().data.has_dirty(), "too young to be written");
    volume.fs.maintain(volume.clock.advance(600), 16).unwrap();
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), data);
}

#[test]
fn unsynced_data_that_a_hint_has_written_out_is_durable_after_the_commit_interval_too() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    volume.sync(&inode);
    let data = pattern(6, 100_000);
    volume.write(&inode, 0, &data);
    // Nothing is pending, so the next force for its age alone is a whole interval away.
    volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
    let root = crate::Context::root();
    let handle = volume.fs.files.open_handle(&root, inode.number, crate::OpenFlags::READ_WRITE).unwrap();
    assert!(volume.fs.files.write_back_handle(handle, 0..200_000).unwrap().bytes >= 100_000);
    volume.fs.maintain(volume.clock.advance(600), 16).unwrap();
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), data);
}

/// Written out by a hint or a rename long before it is due, and durable no later for that: the record is the first in
/// the log since, and its own age would be a whole interval more.
// Shows: C9.
#[test]
fn what_was_written_out_early_is_as_old_as_it_was_in_memory() {
    let early: [fn(&TestVolume, &Arc<Inode>); 2] = [
        |volume, inode| {
            let flags = crate::OpenFlags::READ_WRITE;
            let handle = volume.fs.files.open_handle(&crate::Context::root(), inode.number, flags).unwrap();
            volume.fs.files.write_back_handle(handle, 0..200_000).unwrap();
            volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
        },
        |volume, inode| {
            volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
            volume.fs.syncs.write_back_file(inode).unwrap();
        },
    ];
    for write_out in early {
        let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
        let inode = volume.create("a");
        volume.sync(&inode);
        let data = pattern(7, 100_000);
        volume.write(&inode, 0, &data);
        write_out(&volume, &inode);
        assert!(!inode.state.read().data.has_dirty() && !volume.fs.core.is_forced());
        volume.fs.maintain(volume.clock.advance(499), 16).unwrap();
        assert!(!volume.fs.core.is_forced(), "it is not due yet");
        volume.fs.maintain(volume.clock.advance(1), 16).unwrap();
        drop(inode);
        volume.crash();
        assert_eq!(volume.content(&volume.find("a")), data);
    }
}

#[test]
fn a_clock_that_is_set_back_keeps_nothing_in_memory() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    volume.clock.advance(3_600_000);
    let inode = volume.create("a");
    let data = pattern(11, 100_000);
    volume.write(&inode, 0, &data);
    volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
    volume.fs.maintain(volume.clock.set_back(3_600_000), 16).unwrap();
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), data);
}

/// A round of all that is dirty, with its data in flight.
fn start_round(volume: &TestVolume, inode: &Arc<Inode>) -> Round {
    let select = Select::dirty(volume.clock.now());
    let estimate = volume.fs.writeback.estimate(&[(inode.clone(), select.clone())]);
    let permit = volume.fs.core.store.admit(Class::Normal, estimate).unwrap();
    let turn = Rc::new(inode.lock_turn());
    let start = Start { inode, select: &select, pages_max: 1024, turn, behind: None, bulk: true };
    let cost = Cost { bytes: estimate.bytes - BATCH_HEADER_BYTES, items: estimate.items };
    match volume.fs.writeback.start_round(start, permit, cost).unwrap() {
        Started::Round(round, None) => round,
        _ => panic!("all of it is in the round"),
    }
}

#[test]
fn a_read_does_not_make_forgotten_what_is_being_written() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let mut data = pattern(8, 400_000);
    volume.write(&inode, 0, &data);
    volume.sync(&inode);
    volume.drop_cache(&inode);
    volume.write(&inode, 0, &pattern(9, 100_000));
    data[..100_000].copy_from_slice(&pattern(9, 100_000));
    let round = start_round(&volume, &inode);
    // The inode is in the log with that, the data is not.
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    elsewhere(|| {
        volume.fs.attributes.setattr(&Context::root(), inode.number, &mode, None).unwrap();
        volume.fs.core.sync_metadata().unwrap();
        assert_eq!(volume.content(&inode), data);
        volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
    });
    volume.fs.writeback.finish_round(round).unwrap();
    volume.fs.maintain(volume.clock.advance(500), 16).unwrap();
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), data);
}

#[test]
fn what_is_written_to_a_file_while_it_is_written_out_is_no_younger_for_that() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("a");
    let mut data = pattern(10, 100_000);
    volume.write(&inode, 0, &data);
    let round = start_round(&volume, &inode);
    volume.write(&inode, 0, &[5; 4096]);
    data[..4096].fill(5);
    volume.clock.advance(900);
    volume.fs.writeback.finish_round(round).unwrap();
    volume.fs.maintain(volume.clock.advance(100), 16).unwrap();
    drop(inode);
    volume.crash();
    assert_eq!(volume.content(&volume.find("a")), data);
}

#[test]
fn destaging_many_small_files_shares_batches_and_writes() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let files: Vec<_> = (0..100).map(|n| volume.create(&format!("f{n}"))).collect();
    for (n, file) in files.iter().enumerate() {
        volume.write(file, 0, &pattern(n as u64, 4096));
        volume.sync(file);
    }
    let (before, batches) = (volume.device.counters(), volume.fs.core.store.last_lsn());
    volume.fs.writeback.destage_everything().unwrap();
    let writes = volume.device.counters().writes - before.writes;
    assert!(writes <= 10, "{writes} writes");
    assert!(volume.fs.core.store.last_lsn().0 - batches.0 <= 4);
    for (n, file) in files.iter().enumerate() {
        volume.drop_cache(file);
        assert_eq!(volume.content(file), pattern(n as u64, 4096));
    }
}

// Shows: C2.
#[test]
fn a_ranged_sync_covers_no_size_that_the_file_has_grown_to_behind_its_look() {
    let volume = &mut TestVolume::new(64 * MIB, 4 * MIB);
    let inode = volume.create("grows");
    volume.write(&inode, 0, &pattern(1, 43_146));
    volume.sync(&inode);
    let reach = crate::Reach::Range(47_435..51_168);
    volume.write(&inode, 43_146, &pattern(2, 10));
    let mut plan = volume.fs.syncs.plan_for(&inode, SyncScope::All, reach).unwrap();
    // In the range, and nothing that the sync has promised.
    volume.write(&inode, 46_310, &[38; 35]);
    let lsn = volume.fs.syncs.commit(&mut plan).unwrap();
    volume.fs.syncs.force(lsn).unwrap();
    drop((inode, plan));
    volume.crash();
    let content = volume.content(&volume.find("grows"));
    assert!(content.len() >= 43_156, "{} bytes: the range ends beyond what the file was", content.len());
    if content.len() > 46_310 {
        assert_eq!(content[46_310..], [38; 35], "a size without its content");
    }
}

/// What a volume without a snapshot could have costs its syncs nothing.
#[test]
fn a_sync_costs_the_same_writes_bytes_and_flushes_in_both_versions_of_the_format() {
    let cost = |format: u32| {
        let mkfs = crate::MkfsOptions { journal_bytes: Some(4 * MIB), ..Default::default() };
        let volume = TestVolume::made(64 * MIB, mkfs.format(format), crate::FsOptions::default());
        let log = volume.create("log");
        let mut costs = Vec::new();
        for round in 0..60 {
            let before = volume.device.counters();
            // Appended to, overwritten, and of a size that is no image.
            let (at, len) = match round % 3 {
                0 => (round * 4096, 4096),
                1 => (0, 4096),
                _ => (round * 4096, 40_960),
            };
            volume.write(&log, at, &pattern(round, len));
            volume.sync(&log);
            let after = volume.device.counters();
            let written = after.written_bytes - before.written_bytes;
            costs.push((after.writes - before.writes, written, after.flushes - before.flushes));
        }
        costs
    };
    assert_eq!(cost(1), cost(2));
}
