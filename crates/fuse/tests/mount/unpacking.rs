//! What a tree of small files costs in messages: to make it, to read it, to remove it.

use crate::harness::{Volume, statistics};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// Behind so many the rest of a thread's new files are taken for small ones.
const BEFORE: usize = 8;
const FILES: usize = 20;

/// Messages by kind, those of asking left out.
struct Cost(serde_json::Map<String, serde_json::Value>);

impl Cost {
    fn of(volume: &Volume, act: impl FnOnce()) -> Cost {
        let told = || statistics(&volume.root())["messages"].as_object().unwrap().clone();
        let before = told();
        act();
        // What nobody waits for, the end of an open file, comes a moment later.
        sleep(Duration::from_millis(50));
        let mut after = told();
        for (kind, count) in &mut after {
            let known = before.get(kind).and_then(serde_json::Value::as_u64).unwrap_or(0);
            *count = (count.as_u64().unwrap() - known).into();
        }
        Cost(after)
    }

    fn count(&self, kind: &str) -> u64 {
        self.0.get(kind).map_or(0, |count| count.as_u64().unwrap())
    }

    fn counts<const N: usize>(&self, kinds: [&str; N]) -> [u64; N] {
        kinds.map(|kind| self.count(kind))
    }
}

fn content(number: usize) -> Vec<u8> {
    (0..9_000).map(|at| (at * 31 + number) as u8).collect()
}

/// As tar does: in pieces that end anywhere, with times, owner and mode set at the end.
fn unpack(path: &Path, content: &[u8]) {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    for piece in content.chunks(5_000) {
        file.write_all(piece).unwrap();
    }
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fchown(&file, Some(1), Some(1)).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o644)).unwrap();
}

fn names(kind: &str, count: usize) -> impl Iterator<Item = (usize, String)> {
    (0..count).map(move |number| (number, format!("{kind}{number}")))
}

fn check_content(volume: &Volume) {
    for (number, name) in names("f", FILES) {
        assert!(fs::read(volume.path(&name)).unwrap() == content(number), "{name}");
    }
}

#[test]
fn a_small_file_that_is_unpacked_costs_ten_messages_and_three_to_be_read() {
    let Some(mut volume) = Volume::mounted("") else { return };
    names("first", BEFORE).for_each(|(number, name)| unpack(&volume.path(&name), &content(number)));
    let cost = Cost::of(&volume, || {
        names("f", FILES).for_each(|(number, name)| unpack(&volume.path(&name), &content(number)));
    });
    let files = FILES as u64;
    let kinds = ["lookup", "create", "write", "setattr", "release"];
    assert_eq!(cost.counts(kinds), [files, files, 2 * files, 3 * files, files], "{:?}", cost.0);
    // Asked for by chown, not by a write. And once for the default ACL of the directory.
    assert!(cost.count("getxattr") <= files + 1, "{:?}", cost.0);
    assert!(cost.count("getattr") <= files + 1, "{:?}", cost.0);
    assert_eq!(cost.counts(["flush", "open", "read", "opendir", "statx", "fsync"]), [0; 6]);

    let read = |volume: &Volume| Cost::of(volume, || check_content(volume));
    let (first, again) = (read(&volume), read(&volume));
    assert_eq!(
        first.counts(["open", "read", "release", "lookup"]),
        [files, files, files, 0],
        "{:?}",
        first.0
    );
    assert_eq!(again.counts(["open", "read", "release", "lookup"]), [files, 0, files, 0], "{:?}", again.0);
    volume.remount();
    check_content(&volume);
    let cost = Cost::of(&volume, || {
        names("f", FILES).for_each(|(_, name)| fs::remove_file(volume.path(&name)).unwrap());
    });
    assert_eq!(cost.counts(["unlink", "lookup", "open", "read"]), [files, 0, 0, 0], "{:?}", cost.0);
}

#[test]
fn what_has_become_large_is_kept_by_the_kernel_and_so_is_what_comes_next() {
    let Some(volume) = Volume::mounted("") else { return };
    names("first", BEFORE).for_each(|(number, name)| unpack(&volume.path(&name), &content(number)));
    // The size of a new file is not known: this one is taken for a small one.
    let large = vec![7; 1 << 20];
    unpack(&volume.path("large"), &large);
    assert!(fs::read(volume.path("large")).unwrap() == large);
    let next = vec![8; 1 << 20];
    let cost = Cost::of(&volume, || File::create(volume.path("next")).unwrap().write_all(&next).unwrap());
    assert_eq!(cost.counts(["create", "getxattr"]), [1, 1], "{:?}", cost.0);
    let cost = Cost::of(&volume, || assert!(fs::read(volume.path("next")).unwrap() == next));
    assert_eq!(cost.counts(["open", "read"]), [1, 0], "{:?}", cost.0);
}

#[test]
fn readers_of_a_new_small_file_see_each_write() {
    let Some(volume) = Volume::mounted("") else { return };
    names("first", BEFORE).for_each(|(number, name)| unpack(&volume.path(&name), &content(number)));
    let mut file = File::create(volume.path("f")).unwrap();
    let mut reader = File::open(volume.path("f")).unwrap();
    let mut seen = Vec::new();
    for round in 1..20_u8 {
        file.write_all(&[round; 1_000]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1_000 * u64::from(round));
        reader.read_to_end(&mut seen).unwrap();
        assert_eq!(seen.len(), 1_000 * usize::from(round));
        assert!(seen[seen.len() - 1_000..].iter().all(|byte| *byte == round));
    }
}

#[test]
fn a_new_file_with_set_id_bits_is_announced_before_it_is_written() {
    let Some(volume) = Volume::mounted("") else { return };
    names("first", BEFORE).for_each(|(number, name)| unpack(&volume.path(&name), &content(number)));
    let make = |name: &str, mode: u32| {
        let mut options = OpenOptions::new();
        let cost = Cost::of(&volume, || {
            let path = volume.path(name);
            let mut file = options.write(true).create_new(true).mode(mode).open(path).unwrap();
            file.write_all(&[1; 100]).unwrap();
        });
        cost.count("getxattr")
    };
    assert_eq!([make("plain", 0o755), make("program", 0o4755), make("plain again", 0o755)], [0, 1, 0]);
}
