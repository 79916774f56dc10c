//! Many threads at once: everything together, maintenance included, and the tree is consistent afterwards.

use crate::common::*;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use syncline_fs::{Clock, Error, Fs, OpenFlags, RenameFlags, Result, SetAttr, SyncScope};

/// Errors that come of others doing the same.
fn tolerate(result: Result<()>) {
    match result {
        Ok(())
        | Err(
            Error::Exists
            | Error::NotFound
            | Error::Stale
            | Error::IsDirectory
            | Error::NotDirectory
            | Error::NotEmpty
            | Error::Invalid(_),
        ) => {}
        Err(other) => panic!("{other}"),
    }
}

fn step(fs: &Fs, random: u64) -> Result<()> {
    let name = |bits: u64| format!("name-{}", bits % 12).into_bytes();
    let directories = ["a", "b", "c"];
    let directory = |bits: u64| lookup(fs, ROOT, directories[(bits % 3) as usize]);
    let (from, to) = (directory(random >> 8)?, directory(random >> 12)?);
    let (old, new) = (name(random >> 16), name(random >> 24));
    match random % 9 {
        0 => {
            let (_, handle) = fs.names().create(&root(), from, &old, 0o644, OpenFlags::READ_WRITE)?;
            fs.files().write(&root(), handle, random % 50_000, &old)?;
            fs.names().unlink(from, &old)?;
            fs.files().write(&root(), handle, 0, &old)?;
            fs.files().release(handle)
        }
        1 | 2 => {
            let number = fs.names().lookup(from, &old)?.attr.inode;
            let handle = fs.files().open_handle(&root(), number, OpenFlags::READ_WRITE)?;
            fs.files().write(
                &root(),
                handle,
                random % 200_000,
                &vec![random as u8; (random % 9_000) as usize],
            )?;
            if random & 1 << 40 != 0 {
                fs.files().sync_handle(handle, SyncScope::All)?;
            }
            fs.files().release(handle)
        }
        3 => fs.names().mknod(&root(), from, &old, 0o100644, 0).map(drop),
        4 => fs.names().unlink(from, &old),
        5 => {
            let flags = RenameFlags { exchange: random & 1 << 41 != 0, ..RenameFlags::default() };
            fs.names().rename(&root(), from, &old, to, &new, flags)
        }
        6 => fs.names().link(fs.names().lookup(from, &old)?.attr.inode, to, &new).map(drop),
        7 => {
            let size = SetAttr { size: Some(random % 100_000), ..SetAttr::default() };
            fs.attributes().setattr(&root(), fs.names().lookup(from, &old)?.attr.inode, &size, None).map(drop)
        }
        _ => {
            let handle = fs.files().opendir(from)?;
            let read = fs.names().readdir_plus(handle, 0, &mut |_, _| ControlFlow::Continue(()));
            fs.files().release(handle)?;
            read
        }
    }
}

#[test]
fn a_storm_of_operations_leaves_a_consistent_tree() {
    let mut rig = Rig::with_size(128 * MIB);
    for name in ["a", "b", "c"] {
        mkdir(&rig.fs, ROOT, name);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fs, clock, stop) = (&rig.fs, &rig.clock, &stop);
        let maintenance = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                fs.maintain(clock.now(), 256).expect("maintenance");
                std::thread::yield_now();
            }
        });
        let workers: Vec<_> = (0..4u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                    for _ in 0..3_000 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        tolerate(step(fs, random));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
        stop.store(true, Ordering::Relaxed);
        maintenance.join().expect("maintenance");
    });
    check_tree(&rig.fs);
    let before: Vec<_> = ["a", "b", "c"].map(|name| snapshot(&rig.fs, name)).into();
    rig.reopen();
    check_tree(&rig.fs);
    let after: Vec<_> = ["a", "b", "c"].map(|name| snapshot(&rig.fs, name)).into();
    assert!(before == after, "closing and opening changes nothing");
}

/// Names and contents of a directory.
fn snapshot(fs: &Fs, directory: &str) -> Vec<(String, Vec<u8>)> {
    let directory = lookup(fs, ROOT, directory).expect("directory");
    list(fs, directory).into_iter().map(|(name, inode)| (name, content(fs, inode))).collect()
}

#[test]
fn memory_for_inodes_is_bounded() {
    let mut rig = Rig::with_size(256 * MIB);
    rig.options.memory_bytes_max = 4 << 20;
    rig.reopen();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..20_000 {
        touch(fs, dir, &format!("file-{number}"));
    }
    assert!(fs.stats().inodes_cached <= 1024, "{} inodes in memory", fs.stats().inodes_cached);
    let handle = fs.files().opendir(dir).expect("opendir");
    let before = fs.stats().store.node_cache_misses;
    let (mut entries, mut shown) = (0, 0);
    fs.names()
        .readdir_plus(handle, 2, &mut |_, attr| {
            if let Some(attr) = attr {
                assert_eq!(attr.nlink, 1);
                shown += 1;
            }
            entries += 1;
            ControlFlow::Continue(())
        })
        .expect("readdirplus");
    assert!(entries == 20_000 && shown > 0, "{entries} entries, {shown} with attributes");
    let reads = fs.stats().store.node_cache_misses - before;
    assert!(reads < 1000, "{reads} nodes read: not one for each entry");
    assert!(fs.stats().inodes_cached <= 1024, "{} inodes in memory", fs.stats().inodes_cached);
    fs.files().release(handle).expect("release");
}

#[test]
fn a_listing_of_a_directory_that_is_cached_in_part_reads_few_nodes_at_a_time() {
    let mut rig = Rig::with_size(256 * MIB);
    rig.options.memory_bytes_max = 4 << 20;
    rig.reopen();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..20_000 {
        touch(fs, dir, &format!("file-{number}"));
    }
    let handle = fs.files().opendir(dir).expect("opendir");
    let (mut cookie, mut most) = (2, 0);
    loop {
        let before = fs.stats().store.node_cache_misses;
        let mut visited = 0;
        fs.names()
            .readdir_plus(handle, cookie, &mut |entry, _| {
                cookie = entry.cookie;
                visited += 1;
                if visited < 200 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })
            .expect("readdirplus");
        if visited == 0 {
            break;
        }
        most = most.max(fs.stats().store.node_cache_misses - before);
    }
    assert!((1..=10).contains(&most), "{most} nodes read for 200 entries");
    fs.files().release(handle).expect("release");
}

#[test]
fn a_file_truncated_and_rewritten_is_written_back_at_close() {
    let mut rig = Rig::new();
    let file = put(&rig.fs, ROOT, "file", b"old");
    rig.fs.files().sync_inode(file, SyncScope::All).expect("sync");
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = rig.fs.files().open_handle(&root(), file, flags).expect("open");
    write(&rig.fs, handle, 0, b"new content");
    rig.fs.files().release(handle).expect("close");
    // Something else makes the log durable; the content was logged at close and comes with it.
    let other = touch(&rig.fs, ROOT, "other");
    rig.fs.files().sync_inode(other, SyncScope::All).expect("sync");
    rig.crash();
    assert_eq!(content(&rig.fs, file), b"new content");
}
