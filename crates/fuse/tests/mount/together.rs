//! Syncs of more than a few pages, of many callers at once.

use crate::gate::Gate;
use crate::harness::{messages, statistics, wait_until};
use crate::syncs::lookups_are_answered;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Callers at once.
const CALLERS: usize = 64;
const BYTES: usize = 64 << 10;
/// Threads of the daemon's pool at most.
const POOL_MAX: usize = 8;

/// Threads of the daemon's pool; those that the kernel adds for writes that block are not counted.
fn pool_of(daemon: libc::pid_t) -> usize {
    let threads = fs::read_dir(format!("/proc/{daemon}/task")).expect("the daemon runs");
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.flatten().map(name).filter(|name| name.starts_with("fuse-work")).count()
}

#[test]
fn syncs_with_data_to_write_hold_up_no_lookup_and_go_together() {
    let Some(gate) = Gate::new("syncs_with_data_to_write_hold_up_no_lookup_and_go_together") else {
        return;
    };
    let volume = gate.mounted("commit=1000");
    let root = volume.root();
    let content = |number: usize| vec![number as u8; BYTES];
    let files: Vec<File> = (0..CALLERS)
        .map(|number| {
            let file = File::create(root.join(format!("{number}"))).unwrap();
            file.write_all_at(&content(number), 0).unwrap();
            file
        })
        .collect();
    let syncs = messages(&root, "fsync");
    let writes = || statistics(&root)["device"]["writes"].as_u64().unwrap();
    let writes_before = writes();
    let closed = gate.close();
    let callers: Vec<_> = files.into_iter().map(|file| std::thread::spawn(move || file.sync_all())).collect();
    wait_until("all syncs to arrive", || messages(&root, "fsync") == syncs + CALLERS as u64);
    lookups_are_answered(&root);
    let writers = pool_of(volume.daemon());
    assert!((1..=POOL_MAX).contains(&writers), "{writers} threads");
    assert!(callers.iter().all(|caller| !caller.is_finished()), "a sync was answered before its flush");
    drop(closed);
    for caller in callers {
        caller.join().unwrap().unwrap();
    }
    assert!(writes() - writes_before < CALLERS as u64, "each went by itself");
    for number in 0..CALLERS {
        assert!(fs::read(root.join(format!("{number}"))).unwrap() == content(number), "file {number}");
    }
}
