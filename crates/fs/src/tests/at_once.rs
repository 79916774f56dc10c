//! Syncs that are written out by a caller who must not wait.

use super::{MIB, TestVolume, pattern};
use crate::content::inode::Inode;
use crate::{Context, HandleId, Lsn, OpenFlags, Reach, SyncScope};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_device::Device;

const PAGES_MAX: usize = 32;

fn opened(volume: &TestVolume, inode: &Arc<Inode>) -> HandleId {
    volume.fs.files.open_handle(&Context::root(), inode.number, OpenFlags::READ_WRITE).unwrap()
}

fn at_once(volume: &TestVolume, handle: HandleId) -> Option<Lsn> {
    volume.fs.syncs.write_at_once(&volume.fs.syncs.plan(handle, SyncScope::All, Reach::Whole).unwrap())
}

#[test]
fn eight_pages_are_one_data_write_one_record_and_one_flush_and_survive_a_crash() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let file = volume.create("log");
    // As a log that is filled once and written over.
    volume.write(&file, 0, &vec![0; 256 << 10]);
    volume.sync(&file);
    let handle = opened(&volume, &file);
    volume.write(&file, 40960, &pattern(1, 32 << 10));
    let before = volume.device.counters();
    let written = at_once(&volume, handle).expect("nothing is in the way");
    let durable = Arc::new(AtomicBool::new(false));
    let tells = durable.clone();
    let done = Box::new(move |result: crate::Result<()>| {
        result.unwrap();
        tells.store(true, Ordering::Relaxed);
    });
    volume.fs.syncs.start_force(written, done);
    assert!(!durable.load(Ordering::Relaxed), "nothing is acknowledged before its flush");
    volume.fs.core.sync_metadata().unwrap();
    assert!(durable.load(Ordering::Relaxed));
    let after = volume.device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (2, 1));
    let content = volume.content(&file);
    drop(file);
    volume.crash();
    assert_eq!(volume.content(&volume.find("log")), content);
}

#[test]
fn what_would_have_to_wait_or_could_go_with_others_is_left_alone() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let (file, other) = (volume.create("file"), volume.create("other"));
    volume.fs.core.sync_metadata().unwrap();
    let handle = opened(&volume, &file);
    assert!(at_once(&volume, handle).is_none(), "there is nothing to write");

    volume.write(&file, 0, &pattern(1, (PAGES_MAX + 1) * 4096));
    assert!(at_once(&volume, handle).is_none(), "it is too much");
    volume.sync(&file);

    volume.write(&file, 0, &pattern(2, 32 << 10));
    let turn = file.lock_turn();
    assert!(at_once(&volume, handle).is_none(), "somebody else writes the file");
    drop(turn);

    let window = volume.fs.core.store.data_slot(MIB).expect("nothing is in flight");
    assert!(at_once(&volume, handle).is_none(), "the data would have to be waited for");
    drop(window);

    volume.write(&other, 0, &pattern(3, 4096));
    let started = opened(&volume, &other);
    volume.fs.syncs.start(started, SyncScope::All, Reach::Whole, Box::new(|result| result.unwrap())).unwrap();
    assert!(at_once(&volume, handle).is_none(), "it can share the other one's flush");
    volume.fs.core.sync_metadata().unwrap();

    assert!(at_once(&volume, handle).is_some(), "nothing is in the way any more");
    volume.fs.core.sync_metadata().unwrap();
    assert_eq!(volume.content(&file)[..32 << 10], pattern(2, 32 << 10));
}
