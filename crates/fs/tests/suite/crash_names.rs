//! Power cuts: what a sync promised is there, and the namespace is a prefix of what was done (C1, C2, C3).

use crate::common::*;
use syncline_fs::{Error, OpenFlags, RenameFlags, SetAttr, SyncScope};

// Shows: C1, C2.
#[test]
fn fsync_makes_every_earlier_change_of_names_durable() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let a = mkdir(&fs, ROOT, "a");
    let b = mkdir(&fs, a, "b");
    touch(&fs, a, "renamed");
    fs.names().rename(&root(), a, b"renamed", b, b"here", RenameFlags::default()).expect("rename");
    fs.names().symlink(&root(), b, b"link", b"target").expect("symlink");
    let other = touch(&fs, ROOT, "unrelated");
    let handle = fs.files().open_handle(&root(), other, OpenFlags::READ_WRITE).expect("open");
    fs.files().sync_handle(handle, SyncScope::All).expect("fsync");
    mkdir(&fs, ROOT, "not synced");
    drop(fs);
    rig.crash();
    assert_eq!(names(&rig.fs, ROOT), ["a", "unrelated"]);
    assert_eq!(names(&rig.fs, b), ["here", "link"]);
    assert_eq!(names(&rig.fs, a), ["b"]);
    check_tree(&rig.fs);
}

#[test]
fn dropping_a_volume_without_close_keeps_what_was_synced() {
    let mut rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", b"kept");
    rig.fs.files().sync_inode(file, SyncScope::Data).expect("sync");
    rig.crash();
    assert_eq!(content(&rig.fs, file), b"kept");
}

// Shows: C2.
#[test]
fn after_a_crash_the_namespace_is_a_prefix_of_the_operations() {
    // Each step leaves a state that no other step leaves; syncs are strewn in.
    for crash_after in 0..40 {
        let mut rig = Rig::new();
        let dir = mkdir(&rig.fs, ROOT, "dir");
        let mut states = vec![names(&rig.fs, dir)];
        let mut synced = 0;
        for step in 0..crash_after {
            let fs = &rig.fs;
            match step % 4 {
                0 => drop(touch(fs, dir, &format!("made-{step}"))),
                1 => {
                    let (old, new) = (format!("made-{}", step - 1), format!("moved-{step}"));
                    let flags = RenameFlags::default();
                    fs.names()
                        .rename(&root(), dir, old.as_bytes(), dir, new.as_bytes(), flags)
                        .expect("rename");
                }
                2 => drop(mkdir(fs, dir, &format!("dir-{step}"))),
                _ => fs.names().rmdir(dir, format!("dir-{}", step - 1).as_bytes()).expect("rmdir"),
            }
            states.push(names(fs, dir));
            if step % 7 == 6 {
                fs.files().sync_inode(dir, SyncScope::All).expect("fsync");
                synced = step + 1;
            }
        }
        rig.crash();
        check_tree(&rig.fs);
        // Nothing at all was synced if there was no sync.
        let found = match lookup(&rig.fs, ROOT, "dir") {
            Ok(dir) => names(&rig.fs, dir),
            Err(Error::NotFound) if synced == 0 => continue,
            Err(error) => panic!("{error}"),
        };
        let position = states.iter().rposition(|state| *state == found).expect("a state that existed");
        assert!(position >= synced, "{position} < {synced}");
    }
}

// Shows: C3, R20.
#[test]
fn replacing_by_rename_shows_the_old_file_or_the_new_one() {
    for synced in [false, true] {
        let mut rig = Rig::new();
        let old = put(&rig.fs, ROOT, "file", b"old content");
        rig.fs.files().sync_inode(old, SyncScope::All).expect("sync");
        for size in [10, 5_000, 300_000] {
            let new = vec![size as u8; size];
            put(&rig.fs, ROOT, "new", &new);
            let flags = RenameFlags::default();
            rig.fs.names().rename(&root(), ROOT, b"new", ROOT, b"file", flags).expect("rename");
            if synced {
                // A sync of anything makes the rename durable, and with it the content.
                rig.fs.files().sync_inode(ROOT, SyncScope::All).expect("sync");
            }
            let before = content(&rig.fs, lookup(&rig.fs, ROOT, "file").expect("file"));
            assert_eq!(before, new);
            rig.crash();
            let found = content(&rig.fs, lookup(&rig.fs, ROOT, "file").expect("file"));
            if synced {
                assert!(found == new, "size {size}: {} bytes found", found.len());
            } else {
                assert!(found == new || found == b"old content", "size {size}: {} bytes", found.len());
            }
        }
    }
}

#[test]
fn unlinked_but_open_files_are_removed_at_the_next_open() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    fs.checkpoint().expect("checkpoint");
    let before = fs.statfs().blocks_free;
    let file = put(&fs, ROOT, "file", &vec![1; 3_000_000]);
    fs.files().sync_inode(file, SyncScope::All).expect("sync");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    fs.names().unlink(ROOT, b"file").expect("unlink");
    let mut bytes = [0; 8];
    assert_eq!(fs.files().read(handle, 2_999_996, &mut bytes), Ok(4), "still readable");
    fs.files().sync_handle(handle, SyncScope::All).expect("sync");
    let dir = mkdir(&fs, ROOT, "dir");
    let held = fs.files().opendir(dir).expect("opendir");
    fs.names().rmdir(ROOT, b"dir").expect("rmdir");
    fs.files().sync_handle(held, SyncScope::All).expect("sync");
    drop(fs);
    rig.crash();
    assert_eq!(error(rig.fs.attributes().getattr(file)), Error::Stale);
    assert_eq!(error(rig.fs.attributes().getattr(dir)), Error::Stale);
    rig.fs.checkpoint().expect("checkpoint");
    let after = rig.fs.statfs().blocks_free;
    assert!(after + 16 >= before, "{before} blocks free before, {after} after");
}

#[test]
fn the_last_close_gives_the_space_back() {
    let rig = Rig::new();
    let fs = &rig.fs;
    fs.checkpoint().expect("checkpoint");
    let before = fs.statfs().blocks_free;
    let file = put(fs, ROOT, "file", &vec![1; 4_000_000]);
    fs.files().sync_inode(file, SyncScope::All).expect("sync");
    let first = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    let second = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    fs.names().unlink(ROOT, b"file").expect("unlink");
    fs.files().release(first).expect("release");
    assert_eq!(fs.files().handle_attr(second).expect("attr").size, 4_000_000);
    fs.files().release(second).expect("release");
    assert_eq!(error(fs.files().release(second)), Error::BadHandle);
    fs.checkpoint().expect("checkpoint");
    let after = fs.statfs().blocks_free;
    assert!(after + 16 >= before, "{before} blocks free before, {after} after");
}

#[test]
fn truncations_keep_their_place_among_the_operations() {
    let mut rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", &vec![7; 100_000]);
    rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    rig.fs.attributes().setattr(&root(), file, &size(5_000), None).expect("truncate");
    let dir = mkdir(&rig.fs, ROOT, "dir");
    rig.fs.files().sync_inode(dir, SyncScope::All).expect("sync of something else");
    rig.crash();
    assert_eq!(content(&rig.fs, file), vec![7; 5_000]);
    rig.fs.attributes().setattr(&root(), file, &size(9_000), None).expect("extend");
    assert_eq!(&content(&rig.fs, file)[5_000..], &[0; 4_000]);
}

#[test]
fn a_sync_with_nothing_new_does_no_io() {
    let rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", b"x");
    rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    let before = syncline_device::Device::counters(&*rig.volatile);
    for _ in 0..10 {
        rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    }
    assert_eq!(syncline_device::Device::counters(&*rig.volatile), before);
}

#[test]
fn a_read_only_volume_is_recovered_in_memory_and_not_written() {
    let mut rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", b"synced");
    rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    rig.options.read_only = true;
    let image = rig.memory.to_bytes();
    rig.crash();
    let fs = &rig.fs;
    assert_eq!(content(fs, file), b"synced");
    assert_eq!(error(fs.names().mkdir(&root(), ROOT, b"x", 0o755)), Error::ReadOnly);
    assert_eq!(error(fs.names().unlink(ROOT, b"file")), Error::ReadOnly);
    assert_eq!(error(fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE)), Error::ReadOnly);
    assert_eq!(
        error(fs.attributes().setattr(&root(), file, &SetAttr { mode: Some(0), ..SetAttr::default() }, None)),
        Error::ReadOnly
    );
    fs.files().sync_inode(file, SyncScope::All).expect("nothing to sync");
    fs.close().expect("close");
    assert!(rig.memory.to_bytes() == image, "the device is as it was");
}

#[test]
fn a_shut_down_volume_refuses_changes_and_syncs_but_reads() {
    let rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", b"x");
    rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    rig.fs.shut_down();
    assert_eq!(error(rig.fs.names().mkdir(&root(), ROOT, b"x", 0o755)).errno(), 30);
    for _ in 0..2 {
        assert_eq!(error(rig.fs.files().sync_inode(file, SyncScope::All)).errno(), 5);
    }
    assert_eq!(rig.fs.names().lookup(ROOT, b"file").expect("lookup").attr.inode, file);
}
