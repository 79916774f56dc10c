//! Renaming: what may replace what, flags, directories, link counts.

use crate::common::*;
use syncline_fs::{Error, Fs, ObjectNo, RenameFlags, Result};

const PLAIN: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };
const NO_REPLACE: RenameFlags = RenameFlags { no_replace: true, ..PLAIN };
const EXCHANGE: RenameFlags = RenameFlags { exchange: true, ..PLAIN };
const WHITEOUT: RenameFlags = RenameFlags { whiteout: true, ..PLAIN };

fn rename(fs: &Fs, from: (ObjectNo, &str), to: (ObjectNo, &str), flags: RenameFlags) -> Result<()> {
    fs.names().rename(&root(), from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
}

/// Makes a source or target of the given kind.
fn make(fs: &Fs, parent: ObjectNo, name: &str, kind: &str) {
    match kind {
        "file" => drop(put(fs, parent, name, name.as_bytes())),
        "symlink" => drop(fs.names().symlink(&root(), parent, name.as_bytes(), b"x").expect("symlink")),
        "fifo" => drop(fs.names().mknod(&root(), parent, name.as_bytes(), 0o010600, 0).expect("fifo")),
        "empty" => drop(mkdir(fs, parent, name)),
        "full" => drop(touch(fs, mkdir(fs, parent, name), "inside")),
        "none" => {}
        other => panic!("no such kind: {other}"),
    }
}

#[test]
fn every_kind_replaces_only_what_it_may() {
    let is_directory = |kind: &str| kind == "empty" || kind == "full";
    for source in ["file", "symlink", "fifo", "empty", "full"] {
        for target in ["none", "file", "symlink", "fifo", "empty", "full"] {
            for same_directory in [true, false] {
                let rig = Rig::with_size(16 * MIB);
                let fs = &rig.fs;
                let a = mkdir(fs, ROOT, "a");
                let b = if same_directory { a } else { mkdir(fs, ROOT, "b") };
                make(fs, a, "source", source);
                make(fs, b, "target", target);
                let moved = lookup(fs, a, "source").expect("source");
                let expected = match (is_directory(source), target) {
                    (_, "none") => Ok(()),
                    (true, "empty") => Ok(()),
                    (true, "full") => Err(Error::NotEmpty),
                    (true, _) => Err(Error::NotDirectory),
                    (false, "empty" | "full") => Err(Error::IsDirectory),
                    (false, _) => Ok(()),
                };
                let result = rename(fs, (a, "source"), (b, "target"), PLAIN);
                assert_eq!(result, expected, "{source} over {target}");
                if result.is_ok() {
                    assert_eq!(lookup(fs, b, "target"), Ok(moved));
                    assert_eq!(lookup(fs, a, "source"), Err(Error::NotFound));
                } else {
                    assert_eq!(lookup(fs, a, "source"), Ok(moved), "a failed rename changes nothing");
                }
                check_tree(fs);
            }
        }
    }
}

#[test]
fn no_replace_refuses_and_otherwise_renames() {
    let rig = Rig::new();
    let fs = &rig.fs;
    touch(fs, ROOT, "a");
    touch(fs, ROOT, "b");
    assert_eq!(error(rename(fs, (ROOT, "a"), (ROOT, "b"), NO_REPLACE)), Error::Exists);
    assert_eq!(error(rename(fs, (ROOT, "a"), (ROOT, "a"), NO_REPLACE)), Error::Exists);
    rename(fs, (ROOT, "a"), (ROOT, "c"), NO_REPLACE).expect("rename");
    assert_eq!(names(fs, ROOT), ["b", "c"]);
}

#[test]
fn exchange_swaps_anything_with_anything() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let (a, b) = (mkdir(fs, ROOT, "a"), mkdir(fs, ROOT, "b"));
    let file = touch(fs, a, "x");
    let dir = mkdir(fs, b, "y");
    touch(fs, dir, "inside");
    rename(fs, (a, "x"), (b, "y"), EXCHANGE).expect("exchange");
    assert_eq!((lookup(fs, a, "x"), lookup(fs, b, "y")), (Ok(dir), Ok(file)));
    check_tree(fs);
    assert_eq!(error(rename(fs, (a, "x"), (b, "none"), EXCHANGE)), Error::NotFound);
    let both = RenameFlags { exchange: true, no_replace: true, whiteout: false };
    assert_eq!(error(rename(fs, (a, "x"), (b, "y"), both)).errno(), 22);
    // Within one directory, and of a directory with its own ancestor.
    touch(fs, a, "z");
    rename(fs, (a, "x"), (a, "z"), EXCHANGE).expect("exchange");
    check_tree(fs);
    let deep = mkdir(fs, dir, "deep");
    assert_eq!(lookup(fs, a, "z"), Ok(dir));
    touch(fs, deep, "leaf");
    assert_eq!(error(rename(fs, (deep, "leaf"), (ROOT, "a"), EXCHANGE)).errno(), 22);
    assert_eq!(error(rename(fs, (ROOT, "a"), (deep, "leaf"), EXCHANGE)).errno(), 22);
    check_tree(fs);
}

#[test]
fn whiteout_leaves_a_device_behind() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let file = touch(fs, ROOT, "file");
    rename(fs, (ROOT, "file"), (dir, "moved"), WHITEOUT).expect("rename");
    let left = fs.names().lookup(ROOT, b"file").expect("whiteout").attr;
    assert_eq!((left.mode & 0o170000, left.rdev), (0o020000, 0));
    assert_eq!(lookup(fs, dir, "moved"), Ok(file));
    check_tree(fs);
}

#[test]
fn a_directory_cannot_move_into_itself_or_replace_its_ancestor() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let a = mkdir(fs, ROOT, "a");
    let b = mkdir(fs, a, "b");
    let c = mkdir(fs, b, "c");
    assert_eq!(error(rename(fs, (ROOT, "a"), (c, "x"), PLAIN)).errno(), 22);
    assert_eq!(error(rename(fs, (ROOT, "a"), (a, "x"), PLAIN)).errno(), 22);
    assert_eq!(error(rename(fs, (b, "c"), (ROOT, "a"), PLAIN)), Error::NotEmpty);
    touch(fs, c, "file");
    assert_eq!(error(rename(fs, (c, "file"), (ROOT, "a"), PLAIN)), Error::IsDirectory);
    check_tree(fs);
}

#[test]
fn a_name_below_a_directory_is_looked_at_before_the_directory_is_found_above_it() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let a = mkdir(fs, ROOT, "a");
    assert_eq!(error(rename(fs, (ROOT, "a"), (a, "none"), EXCHANGE)), Error::NotFound);
    touch(fs, a, "x");
    assert_eq!(error(rename(fs, (ROOT, "a"), (a, "x"), NO_REPLACE)), Error::Exists);
    assert_eq!(error(rename(fs, (ROOT, "a"), (a, "none"), NO_REPLACE)).errno(), 22);
    assert_eq!(error(rename(fs, (ROOT, "a"), (a, "x"), EXCHANGE)).errno(), 22);
    check_tree(fs);
}

#[test]
fn moving_a_directory_changes_its_parent() {
    let mut rig = Rig::new();
    let a = mkdir(&rig.fs, ROOT, "a");
    let b = mkdir(&rig.fs, ROOT, "b");
    let moved = mkdir(&rig.fs, a, "moved");
    rename(&rig.fs, (a, "moved"), (b, "here"), PLAIN).expect("rename");
    assert_eq!(lookup(&rig.fs, moved, ".."), Ok(b));
    check_tree(&rig.fs);
    rig.reopen();
    assert_eq!(lookup(&rig.fs, moved, ".."), Ok(b));
    check_tree(&rig.fs);
}

#[test]
fn two_names_of_one_inode_are_not_changed() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "a");
    fs.names().link(file, ROOT, b"b").expect("link");
    rename(fs, (ROOT, "a"), (ROOT, "b"), PLAIN).expect("no-op");
    rename(fs, (ROOT, "a"), (ROOT, "a"), PLAIN).expect("no-op");
    assert_eq!(names(fs, ROOT), ["a", "b"]);
    assert_eq!(error(rename(fs, (ROOT, "none"), (ROOT, "b"), PLAIN)), Error::NotFound);
}

#[test]
fn a_replaced_file_that_is_open_stays_readable() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let old = put(fs, ROOT, "target", b"old content");
    let handle = fs.files().open_handle(&root(), old, syncline_fs::OpenFlags::READ).expect("open");
    put(fs, ROOT, "source", b"new");
    rename(fs, (ROOT, "source"), (ROOT, "target"), PLAIN).expect("rename");
    let mut bytes = [0; 20];
    assert_eq!(fs.files().read(handle, 0, &mut bytes), Ok(11));
    assert_eq!(&bytes[..11], b"old content");
    fs.files().release(handle).expect("release");
    assert_eq!(error(fs.attributes().getattr(old)), Error::Stale);
}

#[test]
fn concurrent_directory_moves_never_make_a_cycle() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let tops: Vec<_> = (0..4).map(|n| mkdir(fs, ROOT, &format!("top{n}"))).collect();
    let roaming: Vec<_> = (0..4).map(|n| mkdir(fs, tops[n], &format!("roam{n}"))).collect();
    let places: Vec<_> = tops.iter().chain(&roaming).copied().collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (places, roaming) = (&places, &roaming);
            scope.spawn(move || {
                for round in 0..400 {
                    let who = (thread + round) % 4;
                    let name = format!("roam{who}");
                    let Ok(parent) = lookup(fs, roaming[who], "..") else { continue };
                    let to = places[(round * 7 + thread * 3) % places.len()];
                    match rename(fs, (parent, &name), (to, &name), PLAIN) {
                        Ok(()) | Err(Error::NotFound | Error::Invalid(_)) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            });
        }
    });
    check_tree(fs);
    for &directory in &roaming {
        let mut current = directory;
        for _ in 0..10 {
            current = lookup(fs, current, "..").expect("parent");
        }
        assert_eq!(current, ROOT, "every directory still hangs below the root");
    }
}

#[test]
fn a_name_that_is_replaced_over_and_over_is_never_missing() {
    let rig = Rig::new();
    let fs = &rig.fs;
    touch(fs, ROOT, "name");
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            for _ in 0..2000 {
                touch(fs, ROOT, "temporary");
                rename(fs, (ROOT, "temporary"), (ROOT, "name"), PLAIN).expect("rename");
            }
        });
        while !writer.is_finished() {
            fs.names().lookup(ROOT, b"name").expect("there is always one");
        }
    });
}
