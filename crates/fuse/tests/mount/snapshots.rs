//! `.snapshots` in the root of a mount.

use crate::harness::{Volume, as_user, check, errno, getxattr, lseek, renameat2, setxattr, statistics};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

// Shows: C10.
#[test]
fn a_directory_made_in_it_is_a_snapshot_that_no_later_change_reaches() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir_all(volume.path("d/e")).unwrap();
    fs::write(volume.path("d/f"), vec![1; 300_000]).unwrap();
    fs::write(volume.path("d/g"), b"small").unwrap();
    fs::set_permissions(volume.path("d/g"), fs::Permissions::from_mode(0o640)).unwrap();
    setxattr(&volume.path("d/g"), "user.a", b"b", 0).unwrap();
    symlink("g", volume.path("d/link")).unwrap();
    fs::create_dir(volume.path(".snapshots/one")).unwrap();
    fs::write(volume.path("d/f"), vec![2; 100]).unwrap();
    fs::remove_file(volume.path("d/g")).unwrap();
    fs::write(volume.path("d/new"), b"new").unwrap();
    fs::create_dir(volume.path(".snapshots/two")).unwrap();
    for _ in 0..2 {
        let one = volume.path(".snapshots/one");
        assert_eq!(names(&volume.path(".snapshots")), set(&["one", "two"]));
        assert_eq!(names(&one.join("d")), set(&["e", "f", "g", "link"]));
        assert!(fs::read(one.join("d/f")).unwrap() == vec![1; 300_000]);
        assert_eq!(fs::read(one.join("d/link")).unwrap(), b"small");
        assert_eq!(fs::metadata(one.join("d/g")).unwrap().mode(), libc::S_IFREG | 0o640);
        assert_eq!(getxattr(&one.join("d/g"), "user.a").unwrap(), b"b");
        assert_eq!(names(&volume.path(".snapshots/two/d")), set(&["e", "f", "link", "new"]));
        assert_eq!(fs::read(volume.path(".snapshots/two/d/f")).unwrap(), vec![2; 100]);
        // Made durable by the answer, as everything that was written before.
        volume.crash();
    }
    volume.unmount();
}

// Shows: C10.
#[test]
fn one_of_what_is_written_already_costs_one_write_and_one_flush_and_is_durable() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir(volume.path(".snapshots/first")).unwrap();
    let device = |volume: &Volume| {
        let device = &statistics(&volume.root())["device"];
        ["writes", "flushes"].map(|what| device[what].as_u64().unwrap())
    };
    let mut made = vec!["first".to_owned()];
    for number in 0..5 {
        let before = device(&volume);
        let name = format!("s{number}");
        fs::create_dir(volume.path(".snapshots").join(&name)).unwrap();
        assert_eq!(device(&volume), before.map(|count| count + 1), "{name}");
        assert_eq!(errno(fs::create_dir(volume.path(".snapshots").join(&name))), libc::EEXIST);
        made.push(name);
    }
    volume.crash();
    assert_eq!(names(&volume.path(".snapshots")), made.into_iter().collect());
    volume.unmount();
}

#[test]
fn no_listing_shows_it_and_its_inodes_are_nobody_elses() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), b"live").unwrap();
    fs::create_dir(volume.path(".snapshots/a")).unwrap();
    fs::create_dir(volume.path(".snapshots/b")).unwrap();
    assert_eq!(names(&volume.root()), set(&["f"]));
    let paths = ["", "f", ".snapshots", ".snapshots/a", ".snapshots/a/f", ".snapshots/b", ".snapshots/b/f"];
    let inodes: BTreeSet<u64> =
        paths.iter().map(|path| fs::metadata(volume.path(path)).unwrap().ino()).collect();
    assert_eq!(inodes.len(), paths.len());
    for entry in fs::read_dir(volume.path(".snapshots")).unwrap().map(Result::unwrap) {
        use std::os::unix::fs::DirEntryExt;
        assert_eq!(entry.ino(), entry.metadata().unwrap().ino());
    }
    let above = fs::metadata(volume.path(".snapshots/a/..")).unwrap();
    assert_eq!(above.ino(), fs::metadata(volume.path(".snapshots")).unwrap().ino());
}

#[test]
fn a_snapshot_is_renamed_and_deleted_as_a_directory_is() {
    let Some(volume) = Volume::mounted("") else { return };
    let at = |name: &str| volume.path(".snapshots").join(name);
    fs::write(volume.path("f"), vec![7; 50_000]).unwrap();
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    assert_eq!(errno(fs::create_dir(at("a"))), libc::EEXIST);
    let long = "n".repeat(256);
    assert_eq!(errno(fs::create_dir(at(&long))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(at("a"), at(&long))), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(at(&long))), libc::ENAMETOOLONG);
    assert_eq!(errno(renameat2(&at("a"), &at("b"), libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(errno(renameat2(&at("a"), &at("b"), libc::RENAME_EXCHANGE)), libc::EINVAL);
    fs::rename(at("a"), at("c")).unwrap();
    assert_eq!(names(&volume.path(".snapshots")), set(&["b", "c"]));
    // What is open stays open.
    let mut open = File::open(at("c/f")).unwrap();
    fs::remove_dir(at("c")).unwrap();
    assert_eq!(errno(fs::metadata(at("c"))), libc::ENOENT);
    let mut content = Vec::new();
    open.read_to_end(&mut content).unwrap();
    assert!(content == vec![7; 50_000]);
    assert_eq!(errno(fs::remove_dir(at("c"))), libc::ENOENT);
    // What the command and its ioctl make and delete is seen at once.
    let root = File::open(volume.root()).unwrap();
    syncline_fuse::snapshots::make_snapshot(&root, "d", false, None).unwrap();
    assert_eq!(fs::metadata(at("d/f")).unwrap().len(), 50_000);
    syncline_fuse::snapshots::delete_snapshot(&root, "d").unwrap();
    assert_eq!(errno(fs::metadata(at("d/f"))), libc::ENOENT);
    assert_eq!(names(&volume.path(".snapshots")), set(&["b"]));
}

#[test]
fn nothing_in_a_snapshot_can_be_changed_and_what_is_read_of_it_can_be_copied() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), vec![3; 5000]).unwrap();
    fs::create_dir(volume.path("d")).unwrap();
    fs::create_dir(volume.path(".snapshots/a")).unwrap();
    let at = |name: &str| volume.path(".snapshots/a").join(name);
    let results = [
        errno(File::options().write(true).open(at("f"))),
        errno(File::create(at("new"))),
        errno(fs::create_dir(at("new"))),
        errno(fs::remove_file(at("f"))),
        errno(fs::remove_dir(at("d"))),
        errno(fs::rename(at("f"), at("g"))),
        errno(fs::set_permissions(at("f"), fs::Permissions::from_mode(0o600))),
        errno(setxattr(&at("f"), "user.a", b"b", 0)),
        errno(symlink("f", at("new"))),
    ];
    assert!(results.iter().all(|errno| [libc::EROFS, libc::EXDEV].contains(errno)), "{results:?}");
    assert_eq!(errno(fs::hard_link(at("f"), volume.path("h"))), libc::EXDEV);
    assert_eq!(errno(fs::rename(at("f"), volume.path("h"))), libc::EXDEV);
    assert_eq!(errno(fs::rename(volume.path("f"), at("h"))), libc::EXDEV);
    assert_eq!(errno(File::create(volume.path(".snapshots/f"))), libc::EROFS);
    assert_eq!(errno(fs::remove_dir(volume.path(".snapshots"))), libc::EBUSY);
    assert_eq!(errno(fs::rename(volume.path(".snapshots"), volume.path("h"))), libc::EBUSY);
    assert_eq!(errno(fs::create_dir(volume.path(".snapshots"))), libc::EEXIST);
    // copy_file_range and a mapping.
    fs::copy(at("f"), volume.path("copy")).unwrap();
    assert_eq!(fs::read(volume.path("copy")).unwrap(), vec![3; 5000]);
    let mut file = File::open(at("f")).unwrap();
    assert_eq!(lseek(&file, 0, libc::SEEK_HOLE).unwrap(), 5000);
    file.rewind().unwrap();
    file.sync_all().unwrap();
    // The live volume's syncs are as they were.
    let mut live = File::create(volume.path("live")).unwrap();
    live.write_all(b"x").unwrap();
    live.sync_all().unwrap();
    // SAFETY: the descriptor is open.
    check(i64::from(unsafe { libc::syncfs(live.as_raw_fd()) })).unwrap();
}

#[test]
fn only_administrators_make_and_delete_and_others_read_what_they_may() {
    let Some(volume) = Volume::mounted("allow_other") else { return };
    fs::write(volume.path("open"), b"o").unwrap();
    fs::write(volume.path("secret"), b"s").unwrap();
    fs::set_permissions(volume.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(volume.path(".snapshots/a")).unwrap();
    // What is secret today does not open what was not then.
    fs::set_permissions(volume.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let at = |name: &str| volume.path(".snapshots").join(name);
    assert_eq!(as_user(1000, 1000, || fs::read(at("a/open")).map(drop)), 0);
    assert_eq!(as_user(1000, 1000, || fs::read(at("a/secret")).map(drop)), libc::EACCES);
    assert_eq!(as_user(1000, 1000, || fs::create_dir(at("b"))), libc::EACCES);
    assert_eq!(as_user(1000, 1000, || fs::remove_dir(at("a"))), libc::EACCES);
    assert_eq!(names(&volume.path(".snapshots")), set(&["a"]));
}

#[test]
fn many_snapshots_are_looked_at_in_turn_and_their_space_comes_back() {
    let Some(volume) = Volume::mounted("") else { return };
    let at = |name: usize| volume.path(".snapshots").join(name.to_string());
    for number in 0..12 {
        fs::write(volume.path("f"), vec![number as u8; 1 << 20]).unwrap();
        fs::create_dir(at(number)).unwrap();
    }
    for _ in 0..2 {
        for number in 0..12 {
            assert!(fs::read(at(number).join("f")).unwrap() == vec![number as u8; 1 << 20], "{number}");
        }
    }
    for number in 0..12 {
        fs::remove_dir(at(number)).unwrap();
    }
    fs::remove_file(volume.path("f")).unwrap();
    // More than there is room for beside eleven MiB of them.
    crate::harness::wait_until("the space of deleted snapshots is back", || {
        let written = File::create(volume.path("big")).and_then(|mut file| {
            file.write_all(&vec![1; 46 << 20])?;
            file.sync_all()
        });
        written.is_ok()
    });
}

#[test]
fn a_listing_shows_what_the_command_has_changed() {
    let Some(volume) = Volume::mounted("") else { return };
    let at = volume.path(".snapshots");
    fs::create_dir(at.join("one")).unwrap();
    assert_eq!(names(&at), set(&["one"]));
    let root = File::open(volume.path("")).unwrap();
    syncline_fuse::snapshots::make_snapshot(&root, "two", false, None).unwrap();
    assert_eq!(names(&at), set(&["one", "two"]));
    syncline_fuse::snapshots::delete_snapshot(&root, "one").unwrap();
    assert_eq!(names(&at), set(&["two"]));
    syncline_fuse::snapshots::rename_snapshot(&root, "two", "three").unwrap();
    assert_eq!(names(&at), set(&["three"]));
}

// Shows: C11.
#[test]
fn a_held_snapshot_is_removed_by_nobody_and_a_usage_is_what_its_removal_gives_back() {
    let Some(volume) = Volume::mounted("") else { return };
    let root = File::open(volume.root()).unwrap();
    let at = |name: &str| volume.path(".snapshots").join(name);
    fs::write(volume.path("f"), vec![1; 8 << 20]).unwrap();
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(volume.path("f"), b"less").unwrap();
    File::open(volume.path("f")).unwrap().sync_all().unwrap();
    syncline_fuse::snapshots::hold_snapshot(&root, "a", true).unwrap();
    assert_eq!(errno(fs::remove_dir(at("a"))), libc::EBUSY);
    let refused = syncline_fuse::snapshots::delete_snapshot(&root, "a").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
    assert_eq!(fs::metadata(at("a/f")).unwrap().len(), 8 << 20);
    let all = syncline_fuse::snapshots::snapshots(&root).unwrap();
    assert_eq!(
        all.iter().map(|one| (one.name.as_str(), one.held)).collect::<Vec<_>>(),
        [("a", true), ("b", false)]
    );
    syncline_fuse::snapshots::hold_snapshot(&root, "a", false).unwrap();
    let missing = syncline_fuse::snapshots::hold_snapshot(&root, "c", false).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));

    let numbers: Vec<u32> = all.iter().map(|one| one.number).collect();
    let usage = |numbers: &[u32]| syncline_fuse::snapshots::snapshot_usage(&root, numbers);
    let each = [usage(&numbers[..1]).unwrap(), usage(&numbers[1..]).unwrap()];
    let both = usage(&numbers).unwrap();
    assert!(each[0] + each[1] < 1 << 20 && both >= 8 << 20, "{each:?} alone, {both} together");
    assert_eq!(usage(&[99]).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    assert_eq!(usage(&vec![numbers[0]; 3841]).unwrap_err().raw_os_error(), Some(libc::E2BIG));
    let free = || statistics(&volume.root())["space"]["blocks_free"].as_u64().expect("a number") * 4096;
    let before = free();
    fs::remove_dir(at("a")).unwrap();
    fs::remove_dir(at("b")).unwrap();
    crate::harness::wait_until("the space is back", || free() >= before + both);
}

// Shows: C11.
#[test]
fn a_deleted_snapshot_gives_its_space_back_when_its_last_file_is_closed() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), vec![1; 20 << 20]).unwrap();
    fs::create_dir(volume.path(".snapshots/a")).unwrap();
    fs::remove_file(volume.path("f")).unwrap();
    let mut file = File::open(volume.path(".snapshots/a/f")).unwrap();
    fs::remove_dir(volume.path(".snapshots/a")).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert!(read == vec![1; 20 << 20], "who reads it goes on to the end");
    drop(file);
    crate::harness::wait_until("the space is back", || {
        let written = File::create(volume.path("big")).and_then(|mut file| {
            file.write_all(&vec![1; 46 << 20])?;
            file.sync_all()
        });
        written.is_ok()
    });
}

#[test]
fn a_volume_of_version_1_has_none_and_a_name_of_its_own_comes_first() {
    let Some(volume) = Volume::mounted_as_version_1("") else { return };
    assert_eq!(errno(fs::metadata(volume.path(".snapshots"))), libc::ENOENT);
    fs::create_dir(volume.path(".snapshots")).unwrap();
    fs::write(volume.path(".snapshots/f"), b"f").unwrap();
    drop(volume);
    let Some(mut volume) = Volume::mounted("") else { return };
    volume.unmount();
    volume.mount("ro").unwrap();
    assert_eq!(names(&volume.path(".snapshots")), set(&[]));
    assert_eq!(errno(fs::create_dir(volume.path(".snapshots/a"))), libc::EROFS);
}

// Shows: C11.
#[test]
fn a_snapshot_that_expires_gives_its_space_back_though_the_mount_has_read_it() {
    use std::time::{Duration, SystemTime};
    let Some(volume) = Volume::mounted("") else { return };
    let root = File::open(volume.root()).unwrap();
    fs::write(volume.path("f"), vec![1; 24 << 20]).unwrap();
    let expires = SystemTime::now() + Duration::from_secs(4);
    let made = syncline_fuse::snapshots::make_snapshot(&root, "short", true, Some(expires)).unwrap();
    assert!(made.held && !made.scheduled && made.expires.is_some());
    assert!(fs::read(volume.path(".snapshots/short/f")).unwrap() == vec![1; 24 << 20]);
    fs::remove_file(volume.path("f")).unwrap();
    syncline_fuse::snapshots::hold_snapshot(&root, "short", false).unwrap();
    crate::harness::wait_until("the space of an expired snapshot is back", || {
        let written = File::create(volume.path("big")).and_then(|mut file| {
            file.write_all(&vec![1; 40 << 20])?;
            file.sync_all()
        });
        written.is_ok()
    });
    assert_eq!(names(&volume.path(".snapshots")), set(&[]));
    for wrong in [SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH - Duration::from_secs(9)] {
        let refused = syncline_fuse::snapshots::make_snapshot(&root, "x", false, Some(wrong)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
    let endless = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 62);
    syncline_fuse::snapshots::make_snapshot(&root, "y", false, Some(endless)).unwrap();
}

#[test]
fn others_than_administrators_see_the_schedule_and_change_nothing() {
    use syncline_fs::Schedule;
    use syncline_fuse::{differences, schedule};
    let Some(volume) = Volume::mounted("allow_other") else { return };
    let root = File::open(volume.root()).unwrap();
    let wanted = Schedule { daily: 3, ..Schedule::default() };
    assert_eq!(schedule::set(&root, Some(&wanted)).unwrap().schedule, Some(wanted.clone()));
    fs::create_dir(volume.path(".snapshots/a")).unwrap();
    let user = |call: &dyn Fn() -> std::io::Result<()>| as_user(1000, 1000, call);
    assert_eq!(user(&|| schedule::tell(&root).map(drop)), 0);
    assert_eq!(user(&|| schedule::set(&root, None).map(drop)), libc::EPERM);
    assert_eq!(user(&|| schedule::set(&root, Some(&wanted)).map(drop)), libc::EPERM);
    assert_eq!(user(&|| differences::diff(&root, "a", None, false).map(drop)), libc::EPERM);
    let no_schedule = Schedule { hourly: 0, daily: 0, weekly: 0, monthly: 0, ..wanted.clone() };
    assert_eq!(errno(schedule::set(&root, Some(&no_schedule))), libc::EINVAL);
    assert_eq!(schedule::tell(&root).unwrap().schedule, Some(wanted));
    assert_eq!(schedule::set(&root, None).unwrap().schedule, None);
}
