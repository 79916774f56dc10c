//! Names whose hashes collide, on a volume of version 2 one bit of whose hash counts.

use super::{MIB, TestVolume};
use crate::{Context, Error, FsOptions, MkfsOptions, SetXattr};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use syncline_format::{KEYED_SLOTS, ObjectNo};

const ROOT: ObjectNo = ObjectNo::ROOT_DIR;
const NAMES: usize = 400;

fn volume() -> TestVolume {
    let mut mkfs = MkfsOptions::default().journal_bytes(MIB);
    mkfs.name_bits = 1;
    TestVolume::made(64 * MIB, mkfs, FsOptions::default())
}

/// What a listing shows behind a cookie, read `step` entries at a time: cookies by name.
fn listed(volume: &TestVolume, cookie: u64, step: usize) -> BTreeMap<String, u64> {
    let handle = volume.fs.files.opendir(ROOT).unwrap();
    let (mut found, mut cookie) = (BTreeMap::new(), cookie);
    loop {
        let mut visited = 0;
        let last = cookie;
        volume
            .fs
            .names
            .readdir(handle, last, &mut |entry| {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                assert!(entry.cookie > cookie && found.insert(name, entry.cookie).is_none());
                (cookie, visited) = (entry.cookie, visited + 1);
                if visited == step { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        if visited == 0 {
            volume.fs.files.release(handle).unwrap();
            return found;
        }
    }
}

fn rename(volume: &TestVolume, from: &str, to: &str) {
    let flags = crate::RenameFlags::default();
    volume.fs.names.rename(&Context::root(), ROOT, from.as_bytes(), ROOT, to.as_bytes(), flags).unwrap();
}

#[test]
fn names_that_collide_are_made_found_renamed_removed_and_listed() {
    let mut volume = volume();
    let mut numbers = BTreeMap::new();
    for name in (0..NAMES).map(|number| format!("n{number}")) {
        numbers.insert(name.clone(), volume.create(&name).number);
    }
    let cookies = listed(&volume, 0, 7);
    let rows: std::collections::BTreeSet<u64> =
        cookies.iter().filter(|(name, _)| name.starts_with('n')).map(|(_, at)| at / KEYED_SLOTS).collect();
    assert_eq!(rows.into_iter().collect::<Vec<_>>(), [1, 2], "all names have one of two hashes");
    for number in (0..NAMES).step_by(3) {
        let name = format!("n{number}");
        volume.fs.names.unlink(ROOT, name.as_bytes()).unwrap();
        numbers.remove(&name);
    }
    for number in (1..NAMES).step_by(6).filter(|number| number % 3 != 0) {
        let (from, to) = (format!("n{number}"), format!("m{number}"));
        rename(&volume, &from, &to);
        let moved = numbers.remove(&from).unwrap();
        numbers.insert(to, moved);
    }
    for round in 0..2 {
        for (name, number) in &numbers {
            assert_eq!(volume.find(name).number, *number, "{name} in round {round}");
        }
        for number in (0..NAMES).step_by(3) {
            let gone = volume.fs.names.lookup(ROOT, format!("n{number}").as_bytes());
            assert!(matches!(gone, Err(Error::NotFound)), "n{number} in round {round}");
        }
        let found = listed(&volume, 0, 11);
        assert_eq!(found.len(), numbers.len() + 2);
        for (name, cookie) in found.iter().filter(|(name, _)| name.starts_with('n')) {
            assert_eq!(cookies[name], *cookie, "{name} lies where it lay");
        }
        volume.reopen();
    }
    for name in numbers.keys() {
        volume.fs.names.unlink(ROOT, name.as_bytes()).unwrap();
    }
    volume.fs.names.unlink(ROOT, b"none").unwrap_err();
    assert_eq!(listed(&volume, 0, 5).len(), 2, "the directory is empty");
    volume.reopen();
}

#[test]
fn a_listing_goes_on_at_a_cookie_whatever_happens_to_the_names_around_it() {
    let volume = volume();
    for number in 0..60 {
        volume.create(&format!("n{number}"));
    }
    let before = listed(&volume, 0, 64);
    let mut places: Vec<(u64, String)> = before.into_iter().map(|(name, at)| (at, name)).collect();
    places.sort();
    let (cookie, _) = places[30];
    for (_, name) in places[2..25].iter().step_by(2).chain(&places[30..31]) {
        volume.fs.names.unlink(ROOT, name.as_bytes()).unwrap();
    }
    let rest = listed(&volume, cookie, 4);
    let wanted: Vec<&str> = places[31..].iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(rest.len(), wanted.len());
    assert!(wanted.iter().all(|name| rest.contains_key(*name)));
}

#[test]
fn attributes_whose_names_collide_are_kept_apart() {
    let mut volume = volume();
    let (ctx, inode) = (Context::root(), volume.create("file").number);
    let name = |number: u32| format!("user.{number}").into_bytes();
    for number in 0..100_u32 {
        let value = number.to_le_bytes();
        volume.fs.attributes.set_xattr(&ctx, inode, &name(number), &value, SetXattr::Create).unwrap();
    }
    for number in (0..100).step_by(2) {
        volume.fs.attributes.remove_xattr(&ctx, inode, &name(number)).unwrap();
    }
    volume.fs.sync_all().unwrap();
    volume.reopen();
    for number in 0..100_u32 {
        let found = volume.fs.attributes.xattr(&ctx, inode, &name(number));
        match number % 2 {
            0 => assert!(matches!(found, Err(Error::NoAttribute))),
            _ => assert_eq!(found.unwrap(), number.to_le_bytes()),
        }
    }
    assert_eq!(volume.fs.attributes.list_xattrs(&ctx, inode).unwrap().split(|byte| *byte == 0).count(), 51);
}
