//! Inodes without names: what a crash finds of them is what the offline check calls an orphan, and the next session
//! removes it.

use crate::common::*;
use syncline_check::{CheckOptions, Severity, check};
use syncline_fs::{OpenFlags, SetAttr, SyncScope};

/// A file of as many extents as a truncation needs several batches for.
fn scatter(rig: &Rig, handle: syncline_fs::HandleId) {
    for page in 0..700 {
        write(&rig.fs, handle, page * 8192, &[page as u8 | 1; 4096]);
    }
    rig.fs.files().sync_handle(handle, SyncScope::All).expect("sync");
}

fn truncate(rig: &Rig, handle: syncline_fs::HandleId, size: u64) {
    let number = rig.fs.files().handle_inode(handle).expect("inode");
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    rig.fs.attributes().setattr(&root(), number, &set, Some(handle)).expect("truncate");
}

fn is_sound(rig: &Rig) {
    let report = check(&*rig.memory, CheckOptions::default().data(true)).expect("check");
    let bad: Vec<_> = report.findings.iter().filter(|finding| finding.severity > Severity::Info).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn a_file_truncated_after_its_last_name_went_stays_an_orphan() {
    let mut rig = Rig::new();
    let (_, handle) =
        rig.fs.names().create(&root(), ROOT, b"file", 0o644, OpenFlags::READ_WRITE).expect("create");
    scatter(&rig, handle);
    rig.fs.names().unlink(ROOT, b"file").expect("unlink");
    truncate(&rig, handle, 10);
    rig.fs.sync_metadata().expect("sync");
    is_sound(&rig);
    rig.crash();
    rig.fs.checkpoint().expect("checkpoint");
    is_sound(&rig);
    let space = rig.fs.statfs();
    assert!(space.blocks - space.blocks_free < 32, "{space:?}");
}

#[test]
fn a_nameless_file_that_was_truncated_can_get_a_name() {
    let mut rig = Rig::new();
    let (entry, handle) =
        rig.fs.names().tmpfile(&root(), ROOT, 0o644, OpenFlags::READ_WRITE, false).expect("tmpfile");
    scatter(&rig, handle);
    truncate(&rig, handle, 10);
    rig.fs.names().link(entry.attr.inode, ROOT, b"file").expect("link");
    rig.fs.files().sync_handle(handle, SyncScope::All).expect("sync");
    is_sound(&rig);
    rig.crash();
    assert_eq!(content(&rig.fs, lookup(&rig.fs, ROOT, "file").expect("lookup")).len(), 10);
    check_tree(&rig.fs);
    is_sound(&rig);
}
