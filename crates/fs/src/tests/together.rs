//! Syncs that are started together.

use super::{MIB, TestVolume, pattern};
use crate::content::inode::Inode;
use crate::{
    Context, HandleId, OpenFlags, Reach, Result, SyncPlan, SyncScope, SyncStart, TOGETHER_PAGES_MAX,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use syncline_device::Device;
use syncline_store::lock_order::elsewhere;

fn opened(volume: &TestVolume, inode: &Arc<Inode>) -> HandleId {
    volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ_WRITE).unwrap()
}

fn plan(volume: &TestVolume, handle: HandleId) -> SyncPlan {
    volume.fs.syncs.plan(handle, SyncScope::All, Reach::Whole).unwrap()
}

fn start(volume: &TestVolume, handle: HandleId, durable: &Arc<AtomicUsize>) -> SyncStart {
    let durable = durable.clone();
    let done = Box::new(move |result: Result<()>| {
        result.unwrap();
        durable.fetch_add(1, Ordering::Relaxed);
    });
    SyncStart { plan: plan(volume, handle), done }
}

#[test]
fn sixteen_files_are_one_data_write_one_record_and_one_flush() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let files: Vec<_> = (0..16).map(|n| volume.create(&format!("f{n}"))).collect();
    let durable = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = files.iter().map(|file| opened(&volume, file)).collect();
    for (n, file) in files.iter().enumerate() {
        volume.write(file, 0, &pattern(n as u64, 64 << 10));
    }
    let pages: u64 = handles.iter().map(|&handle| plan(&volume, handle).joins_others().unwrap()).sum();
    assert_eq!(pages, TOGETHER_PAGES_MAX);
    let before = volume.device.counters();
    // One of them is synced twice.
    let syncs = handles.iter().chain(&handles[..1]).map(|&handle| start(&volume, handle, &durable)).collect();
    assert!(volume.fs.syncs.start_together(syncs).is_empty());
    assert_eq!(durable.load(Ordering::Relaxed), 0, "nothing is acknowledged before its flush");
    volume.fs.core.sync_metadata().unwrap();
    assert_eq!(durable.load(Ordering::Relaxed), 17);
    let after = volume.device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (2, 1));
    drop(files);
    volume.crash();
    for n in 0..16 {
        assert_eq!(volume.content(&volume.find(&format!("f{n}"))), pattern(n, 64 << 10));
    }
}

#[test]
fn files_of_many_pieces_take_as_many_batches_as_they_need() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let files: Vec<_> = (0..8).map(|n| volume.create(&format!("f{n}"))).collect();
    let durable = Arc::new(AtomicUsize::new(0));
    let handles: Vec<_> = files.iter().map(|file| opened(&volume, file)).collect();
    for (n, file) in files.iter().enumerate() {
        for piece in 0..20 {
            volume.write(file, piece * 12288, &pattern(n as u64, 4096));
        }
    }
    assert_eq!(plan(&volume, handles[0]).joins_others(), None, "it would keep the others waiting");
    let syncs = handles.iter().map(|&handle| start(&volume, handle, &durable)).collect();
    assert!(volume.fs.syncs.start_together(syncs).is_empty());
    volume.fs.core.sync_metadata().unwrap();
    assert_eq!(durable.load(Ordering::Relaxed), 8);
    let contents: Vec<_> = files.iter().map(|file| volume.content(file)).collect();
    drop(files);
    volume.crash();
    for (n, content) in contents.into_iter().enumerate() {
        assert_eq!(volume.content(&volume.find(&format!("f{n}"))), content);
    }
}

#[test]
fn a_file_that_somebody_else_is_writing_is_given_back_and_keeps_nobody_waiting() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let (taken, free) = (volume.create("taken"), volume.create("free"));
    let durable = Arc::new(AtomicUsize::new(0));
    let handles = [opened(&volume, &taken), opened(&volume, &free)];
    for file in [&taken, &free] {
        volume.write(file, 0, &pattern(1, 64 << 10));
    }
    let turn = taken.lock_turn();
    assert_eq!(plan(&volume, handles[0]).joins_others(), None);
    let starts = handles.map(|handle| start(&volume, handle, &durable)).into();
    let alone = elsewhere(|| volume.fs.syncs.start_together(starts));
    assert_eq!(
        alone.iter().map(|sync| sync.plan.inode.as_ref().unwrap().number).collect::<Vec<_>>(),
        [taken.number]
    );
    drop(turn);
    volume.fs.core.sync_metadata().unwrap();
    assert_eq!(durable.load(Ordering::Relaxed), 1);
    for SyncStart { mut plan, done } in alone {
        let lsn = volume.fs.syncs.commit(&mut plan).unwrap();
        volume.fs.syncs.start_force(lsn, done);
    }
    volume.fs.core.sync_metadata().unwrap();
    assert_eq!(durable.load(Ordering::Relaxed), 2);
}
