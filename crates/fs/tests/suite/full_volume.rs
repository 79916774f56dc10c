//! Full volumes: what frees space always gets through, nothing is half done, and everything comes back.

use crate::common::*;
use syncline_fs::{Error, FallocateMode, OpenFlags, RenameFlags, SetAttr, SyncScope};

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// Makes files of `bytes` bytes until there is no more space.
fn fill(rig: &Rig, bytes: usize) -> Vec<String> {
    let fs = &rig.fs;
    let content = vec![7; bytes.max(1)];
    let mut made = Vec::new();
    for number in 0.. {
        let name = format!("file-{number}");
        let created = fs.names().create(&root(), ROOT, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
        let handle = match created {
            Ok((_, handle)) => handle,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("create: {error}"),
        };
        made.push(name);
        let written = if bytes == 0 { Ok((0, 0)) } else { fs.files().write(&root(), handle, 0, &content) };
        fs.files().release(handle).expect("release");
        match written {
            Ok((_, count)) if count == bytes => {}
            Ok(_) | Err(Error::NoSpace) => break,
            Err(error) => panic!("write: {error}"),
        }
    }
    made
}

#[test]
fn everything_can_be_deleted_from_a_full_volume() {
    for (bytes, synced) in
        [(0, false), (300, true), (5000, false), (5000, true), (400_000, false), (400_000, true)]
    {
        let mut rig = Rig::with_size(12 * MIB);
        let before = rig.fs.statfs().blocks_free;
        let made = fill(&rig, bytes);
        if synced {
            rig.fs.sync_all().unwrap_or_else(|error| panic!("sync of a full volume: {error}"));
            rig.crash();
        }
        for name in &made {
            rig.fs
                .names()
                .unlink(ROOT, name.as_bytes())
                .unwrap_or_else(|error| panic!("{bytes} {synced} {name}: {error}"));
        }
        rig.fs.checkpoint().expect("checkpoint");
        let after = rig.fs.statfs().blocks_free;
        assert!(after + 64 >= before, "{bytes} {synced}: {before} blocks free before, {after} after");
        rig.reopen();
        assert!(names(&rig.fs, ROOT).is_empty());
    }
}

#[test]
fn files_of_a_full_volume_can_be_cut_punched_and_removed() {
    for bytes in [400_000, 5000] {
        let rig = Rig::with_size(12 * MIB);
        let made = fill(&rig, bytes);
        let fs = &rig.fs;
        fs.sync_all().expect("sync");
        for (index, name) in made.iter().enumerate() {
            let file = lookup(fs, ROOT, name).expect("lookup");
            match index % 4 {
                0 => drop(
                    fs.attributes()
                        .setattr(&root(), file, &size(4096), None)
                        .expect("truncate to a whole page"),
                ),
                // The cut page is written anew, which takes a block for a while.
                1 => match fs.attributes().setattr(&root(), file, &size(1000), None) {
                    Ok(attr) => assert_eq!(attr.size, 1000),
                    Err(error) => {
                        assert_eq!(error, Error::NoSpace);
                        assert_eq!(
                            fs.attributes().getattr(file).expect("attributes").size,
                            bytes as u64,
                            "half done"
                        );
                    }
                },
                2 => {
                    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
                    fs.files().fallocate(&root(), handle, FallocateMode::PunchHole, 0, 4096).expect("punch");
                    fs.files().release(handle).expect("release");
                }
                _ => fs.names().unlink(ROOT, name.as_bytes()).expect("unlink"),
            }
        }
        fs.sync_all().expect("sync");
        check_tree(fs);
    }
}

#[test]
fn what_was_written_into_a_full_volume_can_be_synced() {
    let mut rig = Rig::with_size(12 * MIB);
    let made = fill(&rig, 5000);
    for name in &made {
        let file = lookup(&rig.fs, ROOT, name).expect("lookup");
        rig.fs.files().sync_inode(file, SyncScope::All).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    rig.crash();
    for name in &made[..made.len() - 1] {
        let file = lookup(&rig.fs, ROOT, name).expect("lookup");
        assert_eq!(content(&rig.fs, file), vec![7; 5000], "{name}");
    }
}

#[test]
fn a_failed_write_leaks_nothing() {
    let rig = Rig::with_size(12 * MIB);
    let fs = &rig.fs;
    fill(&rig, 400_000);
    fs.sync_all().expect("sync");
    fs.checkpoint().expect("checkpoint");
    let before = fs.statfs();
    let file = lookup(fs, ROOT, "file-0").expect("lookup");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    for _ in 0..50 {
        let _ = fs.files().write(&root(), handle, 1 << 30, &vec![1; 3_000_000]);
        fs.attributes().setattr(&root(), file, &size(400_000), None).expect("truncate");
        let _ = fs.files().fallocate(
            &root(),
            handle,
            FallocateMode::Allocate { keep_size: true },
            1 << 20,
            9 << 20,
        );
    }
    fs.files().release(handle).expect("release");
    fs.sync_all().expect("sync");
    fs.checkpoint().expect("checkpoint");
    let after = fs.statfs();
    assert!(after.blocks_free + 16 >= before.blocks_free, "{before:?} {after:?}");
}

#[test]
fn names_of_a_full_volume_can_be_replaced() {
    let rig = Rig::with_size(12 * MIB);
    let made = fill(&rig, 5000);
    let fs = &rig.fs;
    fs.sync_all().expect("sync");
    // Replacing frees more than it takes.
    for pair in made.chunks_exact(2) {
        let (old, new) = (pair[0].as_bytes(), pair[1].as_bytes());
        match fs.names().rename(&root(), ROOT, old, ROOT, new, RenameFlags::default()) {
            Ok(()) | Err(Error::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
    }
    check_tree(fs);
}

/// A database in a file, and its log, which has filled the volume: bringing the log home overwrites stored pages only.
#[test]
fn stored_pages_of_a_full_volume_can_be_overwritten_as_often_as_one_likes() {
    const PAGES: u64 = 700;
    let mut rig = Rig::with_size(24 * MIB);
    let page = |round: u64, page: u64| vec![(round * 31 + page) as u8 | 1; 4096];
    let mut pages = vec![0; PAGES as usize];
    let database = {
        let fs = &rig.fs;
        let flags = OpenFlags::READ_WRITE;
        let (entry, handle) = fs.names().create(&root(), ROOT, b"database", 0o644, flags).expect("create");
        (0..PAGES).for_each(|at| write(fs, handle, at * 4096, &page(0, at)));
        fs.files().sync_handle(handle, SyncScope::All).expect("sync");
        let (_, log) = fs.names().create(&root(), ROOT, b"log", 0o644, flags).expect("create");
        fill(&rig, 100_000);
        let filled = (0..).find(|at| fs.files().write(&root(), log, at * 4096, &[3; 4096]).is_err());
        assert!(filled.is_some_and(|filled| filled < 1000), "the log fills what is left");
        fs.files().release(log).expect("release");
        fs.sync_all().expect("sync");
        assert!(
            matches!(fs.files().write(&root(), handle, PAGES * 4096, &[1; 4096]), Err(Error::NoSpace)),
            "is full"
        );
        let mut random = 12345u64;
        for round in 1..6 {
            for step in 0..PAGES {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // In the order of the file, and strewn over it.
                let at = if round % 2 == 0 { step } else { (random >> 33) % PAGES };
                let (_, count) = fs
                    .files()
                    .write(&root(), handle, at * 4096, &page(round, at))
                    .unwrap_or_else(|error| panic!("round {round}, page {step}: {error}"));
                assert_eq!(count, 4096);
                pages[at as usize] = round;
            }
            fs.files().sync_handle(handle, SyncScope::Data).expect("sync");
        }
        // What makes the log empty, and what removes files, gets through too.
        fs.attributes()
            .setattr(&root(), lookup(fs, ROOT, "file-0").expect("lookup"), &size(10), None)
            .expect("truncate");
        fs.names().unlink(ROOT, b"file-1").expect("unlink");
        fs.files().release(handle).expect("release");
        entry.attr.inode
    };
    rig.crash();
    let content = content(&rig.fs, database);
    for (at, round) in pages.iter().enumerate() {
        assert!(content[at * 4096..][..4096] == page(*round, at as u64), "page {at}");
    }
    check_tree(&rig.fs);
}
