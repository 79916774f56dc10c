//! Reading directories while they change.

use crate::common::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use syncline_fs::{Error, Fs, HandleId};

/// Reads up to `count` entries behind `cookie`; returns names and the last cookie.
fn chunk(fs: &Fs, handle: HandleId, cookie: &mut u64, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    fs.names()
        .readdir(handle, *cookie, &mut |entry| {
            if names.len() == count {
                return ControlFlow::Break(());
            }
            *cookie = entry.cookie;
            names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
            ControlFlow::Continue(())
        })
        .expect("readdir");
    names
}

#[test]
fn removing_while_reading_neither_skips_nor_doubles() {
    let rig = Rig::with_size(128 * MIB);
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..20_000 {
        touch(fs, dir, &format!("file-{number}"));
    }
    let handle = fs.files().opendir(dir).expect("opendir");
    let mut cookie = 0;
    let mut seen = BTreeSet::new();
    let mut removed = BTreeSet::new();
    loop {
        let names = chunk(fs, handle, &mut cookie, 100);
        if names.is_empty() {
            break;
        }
        for (position, name) in names.iter().enumerate() {
            assert!(seen.insert(name.clone()), "{name} came twice");
            assert!(!removed.contains(name), "{name} was removed before");
            // Some of those just seen, among them the one the cookie points at.
            if name.starts_with("file-") && position % 2 == 1 {
                fs.names().unlink(dir, name.as_bytes()).expect("unlink");
            }
        }
        // And some that may or may not have been seen yet.
        let number = seen.len();
        let ahead = format!("file-{}", (number * 7919) % 20_000);
        if fs.names().unlink(dir, ahead.as_bytes()).is_ok() {
            removed.insert(ahead);
        }
        touch(fs, dir, &format!("new-{number}"));
    }
    fs.files().release(handle).expect("releasedir");
    for number in 0..20_000 {
        let name = format!("file-{number}");
        assert!(seen.contains(&name) || removed.contains(&name), "{name} was skipped");
    }
    check_tree(fs);
}

#[test]
fn removing_all_that_was_read_empties_the_directory_in_one_pass() {
    let rig = Rig::with_size(128 * MIB);
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..5_000 {
        touch(fs, dir, &format!("file-{number}"));
    }
    let handle = fs.files().opendir(dir).expect("opendir");
    let mut cookie = 2;
    loop {
        let names = chunk(fs, handle, &mut cookie, 64);
        if names.is_empty() {
            break;
        }
        names.iter().for_each(|name| fs.names().unlink(dir, name.as_bytes()).expect("unlink"));
    }
    fs.files().release(handle).expect("releasedir");
    fs.names().rmdir(ROOT, b"dir").expect("it is empty");
}

#[test]
fn dots_come_first_and_cookies_can_be_returned_to() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..50 {
        touch(fs, dir, &format!("{number}"));
    }
    let handle = fs.files().opendir(dir).expect("opendir");
    let mut cookie = 0;
    assert_eq!(chunk(fs, handle, &mut cookie, 1), ["."]);
    assert_eq!(cookie, 1);
    assert_eq!(chunk(fs, handle, &mut cookie, 1), [".."]);
    assert_eq!(cookie, 2);
    chunk(fs, handle, &mut cookie, 20);
    let middle = cookie;
    let rest = chunk(fs, handle, &mut cookie, 100);
    assert_eq!(rest.len(), 30);
    assert_eq!(chunk(fs, handle, &mut middle.clone(), 100), rest, "seekdir");
    assert!(chunk(fs, handle, &mut cookie, 100).is_empty());
    assert!(cookie <= i64::MAX as u64, "cookies are positive offsets");
    let mut plus = 0;
    fs.names()
        .readdir_plus(handle, 2, &mut |entry, attr| {
            let attr = attr.expect("what is in memory is shown");
            assert_eq!(entry.inode, attr.inode);
            assert_eq!(u32::from(entry.file_type), attr.mode >> 12);
            plus += 1;
            ControlFlow::Continue(())
        })
        .expect("readdirplus");
    assert_eq!(plus, 50);
    fs.files().release(handle).expect("releasedir");
    assert_eq!(error(fs.names().readdir(handle, 0, &mut |_| ControlFlow::Continue(()))), Error::BadHandle);
    let file = lookup(fs, dir, "7").expect("file");
    assert_eq!(error(fs.files().opendir(file)), Error::NotDirectory);
}
