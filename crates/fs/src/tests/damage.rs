//! Damage that the background, a close and recovery meet: the damaged file is set aside, and nobody else notices
//! anything.

use super::{MIB, TestVolume, pattern};
use crate::content::inode::Inode;
use crate::{Context, Error, OpenFlags, SetAside};
use std::sync::Arc;
use syncline_check::Code;
use syncline_format::{Kind, ObjectNo};
use syncline_store::StoreError;

const PAGE: u64 = 4096;
/// Every other page of the large file has an extent of its own, so that the extents fill leaves.
const EXTENTS: u64 = 1200;

fn spread(volume: &TestVolume, name: &str) {
    let inode = volume.create(name);
    for page in 0..EXTENTS {
        volume.write(&inode, 2 * page * PAGE, &pattern(page, 4096));
    }
    volume.sync(&inode);
}

/// A volume with a file, `large`, whose extents cannot be read.
fn damaged(journal_bytes: u64) -> (TestVolume, Arc<Inode>) {
    let mut volume = TestVolume::new(64 * MIB, journal_bytes);
    spread(&volume, "large");
    spread(&volume, "behind");
    volume.reopen();
    let large = volume.find("large");
    assert!(rot_extents(&volume, large.number) > 0);
    (volume, large)
}

fn rot_extents(volume: &TestVolume, number: ObjectNo) -> usize {
    volume.rot_leaves(|key| key.object == number && key.kind == Kind::Extent)
}

/// A page of the large file amid the damage.
const AMID: u64 = EXTENTS * PAGE;

// Shows: C7, C9.
#[test]
fn a_file_that_cannot_be_read_keeps_nothing_of_others_from_being_committed() {
    let (mut volume, large) = damaged(MIB);
    volume.write(&large, AMID, &pattern(7, 40_960));
    let other = volume.create("other");
    volume.write(&other, 0, &pattern(8, 50_000));
    for _ in 0..3 {
        volume.clock.advance(1500);
        volume.fs.maintain(crate::Clock::now(&*volume.clock), 64).unwrap();
    }
    let aside = volume.fs.stats().set_aside;
    assert_eq!((aside.files, aside.orphans), (1, 0));
    assert!(aside.pages >= 10, "{aside:?}");
    // Whoever touches it is told.
    let told = volume.fs.syncs.file_sync(&large, crate::SyncScope::All).unwrap_err();
    assert_eq!(told.errno(), 5, "{told}");
    assert_eq!(volume.try_write(&large, AMID, b"more").unwrap_err().errno(), 5);
    let told = volume.fs.syncs.sync_all().unwrap_err();
    assert!(matches!(told, Error::SetAside { files: 1, object, .. } if object == large.number), "{told}");
    volume.write(&other, 50_000, b"end");
    volume.clock.advance(1500);
    volume.fs.maintain(crate::Clock::now(&*volume.clock), 64).unwrap();
    drop((large, other));
    volume.cut();
    volume.recover();
    let other = volume.content(&volume.find("other"));
    assert_eq!(other[..50_000], pattern(8, 50_000));
    assert_eq!(&other[50_000..], b"end");
}

// Shows: C7.
#[test]
fn a_close_commits_what_can_be_committed_and_tells_the_rest() {
    let (mut volume, large) = damaged(MIB);
    volume.write(&large, AMID, &pattern(7, 40_960));
    for n in 0..20 {
        let other = volume.create(&format!("other{n}"));
        volume.write(&other, 0, &pattern(n, 30_000));
    }
    drop(large);
    let told = volume.fs.close().unwrap_err();
    assert!(matches!(told, Error::SetAside { files: 1, .. }), "{told}");
    volume.cut();
    volume.recover();
    for n in 0..20 {
        assert_eq!(volume.content(&volume.find(&format!("other{n}"))), pattern(n, 30_000));
    }
}

// Shows: C7, R2, R17.
#[test]
fn images_of_a_damaged_file_fill_no_journal_and_survive_every_session() {
    let (mut volume, large) = damaged(MIB / 4);
    for page in 0..4 {
        volume.write(&large, AMID + page * PAGE, &pattern(100 + page, 4096));
    }
    volume.sync(&large);
    volume.write(&large, AMID + 8 * PAGE, &pattern(104, 4096));
    volume.sync(&large);
    drop(large);
    for session in 0..4 {
        let other = volume.create(&format!("other{session}"));
        for round in 0..400 {
            volume.write(&other, round % 30 * PAGE, &pattern(round, 4096));
            volume.sync(&other);
            volume.create(&format!("name{session}-{round}"));
        }
        volume.fs.maintain(volume.clock.advance(6000), 64).unwrap();
        assert_eq!(volume.fs.stats().set_aside, SetAside { files: 1, pages: 5, orphans: 0 });
        drop(other);
        if session == 2 {
            volume.fs.close().unwrap();
        }
        volume.cut();
        volume.recover();
        let large = volume.find("large");
        for (page, seed) in [(0, 100), (1, 101), (2, 102), (3, 103), (8, 104)] {
            let mut content = vec![0; 4096];
            volume.fs.shape.file_read(&large, AMID + page * PAGE, &mut content).unwrap();
            assert_eq!(content, pattern(seed, 4096), "session {session}, page {page}");
        }
        let content = volume.content(&volume.find(&format!("other{session}")));
        for (page, bytes) in (0u64..).zip(content.chunks(4096)) {
            let last = (0..400).rev().find(|round| round % 30 == page).unwrap();
            assert_eq!(bytes, pattern(last, 4096));
        }
    }
    // What was unreadable can be read again: everything goes home.
    let large = volume.find("large");
    rot_extents(&volume, large.number);
    volume.fs.syncs.sync_all().unwrap();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    volume.fs.close().unwrap();
    drop(large);
    volume.crash();
    let content = volume.content(&volume.find("large"));
    assert_eq!(content[AMID as usize..][..4096], pattern(100, 4096));
}

#[test]
fn what_was_overwritten_behind_its_sync_is_carried_with_the_size_on_record() {
    let mut volume = TestVolume::new(64 * MIB, MIB / 4);
    ["large", "behind", "last"].iter().for_each(|name| spread(&volume, name));
    volume.reopen();
    let large = volume.find("large");
    // The last extents of the file are in a leaf with what is behind it, which was not read yet.
    let behind = ObjectNo(large.number.0 + 1);
    let first = large.number;
    let rotten = |key: syncline_format::Key| (first..=behind).contains(&key.object);
    assert!(volume.rot_leaves(rotten) > 0);
    let end = 2 * EXTENTS * PAGE;
    volume.write(&large, end, b"synced");
    volume.sync(&large);
    volume.write(&large, end, b"newer, and longer");
    volume.fs.maintain(volume.clock.advance(6000), 64).unwrap();
    assert_eq!(volume.fs.stats().set_aside.files, 1);
    let other = volume.create("other");
    for round in 0..300 {
        volume.write(&other, 0, &pattern(round, 4096));
        volume.sync(&other);
    }
    drop((large, other));
    volume.cut();
    volume.recover();
    let large = volume.find("large");
    assert_eq!(large.state.read().item.size, end + 6);
    // Readable again, so that it can grow.
    assert!(volume.rot_leaves(rotten) > 0);
    volume.truncate(&large, end + PAGE);
    let mut content = vec![1; 4096];
    volume.fs.shape.file_read(&large, end, &mut content).unwrap();
    assert!([b"synced", b"newer,"].contains(&content[..6].try_into().unwrap()), "{content:?}");
    assert!(content[6..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_damaged_orphan_is_left_and_the_volume_opens_for_writing() {
    let mut volume = TestVolume::new(64 * MIB, MIB);
    spread(&volume, "large");
    spread(&volume, "behind");
    let context = Context::root();
    let number = volume.find("large").number;
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    volume.fs.files.open_handle(&context, number, flags).unwrap();
    volume.fs.names.unlink(ObjectNo::ROOT_DIR, b"large").unwrap();
    volume.fs.core.sync_metadata().unwrap();
    volume.fs.core.checkpoint().unwrap();
    volume.cut();
    assert!(rot_extents(&volume, number) > 0);
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside.orphans, 1);
    let other = volume.create("other");
    volume.write(&other, 0, &pattern(1, 20_000));
    volume.sync(&other);
    volume.fs.close().unwrap();
    drop(other);
    volume.cut();
    rot_extents(&volume, number);
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    assert_eq!(volume.content(&volume.find("other")), pattern(1, 20_000));
    // The check finds no orphan left, and all its blocks free.
    volume.reopen();
}

#[test]
fn images_of_a_file_whose_inode_cannot_be_read_are_kept_and_found_again() {
    let mut volume = TestVolume::new(64 * MIB, MIB / 4);
    // Leaves of inodes: those of the names before it are in others.
    let names: Vec<String> = (0..400).map(|n| format!("file{n}")).collect();
    names.iter().for_each(|name| drop(volume.create(name)));
    volume.reopen();
    let file = volume.find("file200");
    let number = file.number;
    volume.write(&file, 0, &pattern(1, 5000));
    volume.sync(&file);
    volume.fs.core.checkpoint().unwrap();
    drop(file);
    volume.cut();
    let beside = |key: syncline_format::Key| key.object.0.abs_diff(number.0) < 100;
    assert!(volume.rot_leaves(beside) > 0);
    for session in 0..3 {
        volume.recover();
        assert_eq!(volume.fs.stats().set_aside, SetAside { files: 1, pages: 2, orphans: 0 });
        assert_eq!(volume.fs.content.inode(number).map(drop).unwrap_err().errno(), 5);
        let other = volume.create(&format!("other{session}"));
        for round in 0..300 {
            volume.write(&other, 0, &pattern(round, 4096));
            volume.sync(&other);
        }
        drop(other);
        if session < 2 {
            volume.cut();
        }
    }
    // It can be read again, in the session that has kept it.
    volume.rot_leaves(beside);
    let file = volume.fs.content.inode(number).unwrap();
    assert_eq!(volume.content(&file), pattern(1, 5000));
    volume.fs.close().unwrap();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    drop(file);
    volume.crash();
    assert_eq!(volume.content(&volume.find("file200")), pattern(1, 5000));
}

#[test]
fn writers_that_are_slowed_down_or_lack_space_do_not_meet_the_damage_of_others() {
    let options = crate::FsOptions { memory_bytes_max: 1 << 20, ..crate::FsOptions::default() };
    let mut volume = TestVolume::with_options(32 * MIB, MIB, options);
    spread(&volume, "large");
    spread(&volume, "behind");
    volume.reopen();
    let large = volume.find("large");
    assert!(rot_extents(&volume, large.number) > 0);
    volume.write(&large, AMID, &pattern(7, 204_800));
    let other = volume.create("other");
    let mut written = 0;
    let full = loop {
        match volume.try_write(&other, written, &pattern(written, 65_536)) {
            Ok((_, len)) => written += len as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Error::NoSpace);
    assert!(written > 16 * MIB, "only {written} bytes were written");
    assert_eq!(volume.fs.stats().set_aside.files, 1);
}

// Shows: C7.
#[test]
fn repair_brings_images_of_a_damaged_file_home_and_leaves_nothing_set_aside() {
    let (mut volume, large) = damaged(MIB / 4);
    for page in 0..4 {
        volume.write(&large, AMID + page * PAGE, &pattern(100 + page, 4096));
    }
    volume.sync(&large);
    let size = large.state.read().item.size;
    let other = volume.create("other");
    volume.write(&other, 0, &pattern(1, 30_000));
    volume.sync(&other);
    drop((large, other));
    // One session that carries them, and a close that says so.
    volume.cut();
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside { files: 1, pages: 4, orphans: 0 });
    volume.fs.close().unwrap();
    volume.cut();
    let told = volume.repair();
    assert!(told.contains(&Code::LeafUnreadable) && told.contains(&Code::ItemLost), "{told:?}");
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    let large = volume.find("large");
    assert_eq!(large.state.read().item.size, size);
    let content = volume.content(&large);
    for page in 0..4 {
        let at = (AMID + page * PAGE) as usize;
        assert_eq!(content[at..][..4096], pattern(100 + page, 4096), "page {page}");
    }
    assert_eq!(volume.content(&volume.find("other")), pattern(1, 30_000));
    let behind = volume.content(&volume.find("behind"));
    for page in 0..EXTENTS {
        assert_eq!(behind[(2 * page * PAGE) as usize..][..4096], pattern(page, 4096));
    }
    // It is a file like others again.
    volume.write(&large, AMID, &pattern(7, 40_960));
    volume.sync(&large);
    drop(large);
    volume.reopen();
    let content = volume.content(&volume.find("large"));
    assert_eq!(content[AMID as usize..][..40_960], pattern(7, 40_960));
}

#[test]
fn repair_keeps_images_of_a_file_whose_inode_is_lost() {
    let mut volume = TestVolume::new(64 * MIB, MIB / 4);
    let names: Vec<String> = (0..400).map(|n| format!("file{n}")).collect();
    names.iter().for_each(|name| drop(volume.create(name)));
    volume.reopen();
    let file = volume.find("file200");
    let number = file.number;
    volume.write(&file, 0, &pattern(1, 5000));
    volume.sync(&file);
    volume.fs.core.checkpoint().unwrap();
    drop(file);
    volume.cut();
    assert!(volume.rot_leaves(|key| key.object.0.abs_diff(number.0) < 100) > 0);
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside { files: 1, pages: 2, orphans: 0 });
    volume.cut();
    volume.repair();
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    let file = volume.find("file200");
    assert_eq!(file.number, number);
    assert_eq!(volume.content(&file)[..5000], pattern(1, 5000));
    for name in ["file0", "file399"] {
        volume.find(name);
    }
}

/// A volume whose journal changes leaves that cannot be read any more.
fn with_changes_of_a_lost_leaf() -> (TestVolume, ObjectNo) {
    let mut volume = TestVolume::new(64 * MIB, MIB);
    let names: Vec<String> = (0..400).map(|n| format!("file{n}")).collect();
    names.iter().for_each(|name| drop(volume.create(name)));
    let other = volume.create("other");
    volume.write(&other, 0, &pattern(3, 30_000));
    volume.sync(&other);
    drop(other);
    volume.reopen();
    let file = volume.find("file200");
    let number = file.number;
    volume.write(&file, 0, &pattern(1, 5000));
    volume.sync(&file);
    drop(file);
    volume.cut();
    assert!(volume.rot_leaves(|key| key.object.0.abs_diff(number.0) < 100) > 0);
    (volume, number)
}

// Shows: C7.
#[test]
fn a_journal_that_changes_what_cannot_be_read_is_told_and_opens_read_only() {
    let (volume, number) = with_changes_of_a_lost_leaf();
    let told = volume.refused();
    assert!(matches!(&told, Error::Store(StoreError::ReplayUnreadable { .. })), "{told}");
    let sentence = told.to_string();
    assert!(sentence.contains("open it read-only") && sentence.contains("check --repair"), "{sentence}");
    let copy = volume.read_only_copy();
    assert_eq!(copy.content(&copy.find("other")), pattern(3, 30_000));
    assert_eq!(copy.fs.content.inode(number).map(drop).unwrap_err().errno(), 5);
    // The item as it was before the journal's change is not shown, should the node be readable now.
    copy.rot_leaves(|key| key.object.0.abs_diff(number.0) < 100);
    assert_eq!(copy.fs.content.inode(number).map(drop).unwrap_err().errno(), 5);
    assert_eq!(copy.content(&copy.find("other")), pattern(3, 30_000));
}

// Shows: C7.
#[test]
fn repair_makes_a_volume_writable_whose_journal_changes_what_cannot_be_read() {
    let (mut volume, number) = with_changes_of_a_lost_leaf();
    volume.repair();
    volume.recover();
    assert_eq!(volume.fs.stats().set_aside, SetAside::default());
    // The journal has its inode and all of its content.
    let file = volume.find("file200");
    assert_eq!((file.number, volume.content(&file)), (number, pattern(1, 5000)));
    assert_eq!(volume.content(&volume.find("other")), pattern(3, 30_000));
    volume.write(&file, 5000, b"more");
    volume.sync(&file);
    drop(file);
    volume.reopen();
    assert_eq!(volume.content(&volume.find("file200"))[5000..], *b"more");
}
