//! Atomic changes through the mount: f2fs's ioctls on one file, groups of several.

use crate::harness::{Volume, as_user, check, errno, statistics, wait_until};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const START: libc::c_ulong = 0xf501;
const COMMIT: libc::c_ulong = 0xf502;
const ABORT: libc::c_ulong = 0xf505;
const FEATURES: libc::c_ulong = 0x8004_f50c;
pub(crate) const BEGIN: libc::c_ulong = 0x8008_e707;
pub(crate) const JOIN: libc::c_ulong = 0x4008_e708;
pub(crate) const GROUP_COMMIT: libc::c_ulong = 0x4008_e709;
pub(crate) const GROUP_ABORT: libc::c_ulong = 0x4008_e70a;

fn plain(file: &File, command: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the descriptor is open; the call takes no argument.
    check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), command, 0) })).map(drop)
}

pub(crate) fn with_number(file: &File, command: libc::c_ulong, number: &mut u64) -> io::Result<()> {
    // SAFETY: the descriptor is open; the calls take eight bytes at most.
    check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), command, &raw mut *number) })).map(drop)
}

pub(crate) fn begin(file: &File) -> u64 {
    let mut token = 0;
    with_number(file, BEGIN, &mut token).unwrap();
    token
}

fn make_fifo(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a string that ends in a NUL.
    check(i64::from(unsafe { libc::mkfifo(path.as_ptr(), 0o600) })).map(drop)
}

pub(crate) fn group(file: &File, command: libc::c_ulong, mut token: u64) -> io::Result<()> {
    with_number(file, command, &mut token)
}

fn device(root: &Path, counter: &str) -> u64 {
    statistics(root)["device"][counter].as_u64().unwrap()
}

pub(crate) fn open(path: PathBuf) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What is there beyond the kernel's page cache.
fn read_directly(path: PathBuf) -> Vec<u8> {
    #[repr(align(4096))]
    struct Pages([u8; 16384]);
    let mut pages = Box::new(Pages([0; 16384]));
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let bytes = file.read_at(&mut pages.0, 0).unwrap();
    pages.0[..bytes].to_vec()
}

#[test]
fn an_atomic_write_is_durable_with_one_record_and_one_flush() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let file = open(volume.path("f"));
    let mut features = 0;
    with_number(&file, FEATURES, &mut features).unwrap();
    assert_eq!(features, 4);
    file.write_all_at(&[1; 16384], 0).unwrap();
    file.sync_all().unwrap();
    plain(&file, START).unwrap();
    for page in [0, 2] {
        file.write_all_at(&[2; 4096], page * 4096).unwrap();
    }
    let mut seen = [0; 4096];
    file.read_exact_at(&mut seen, 8192).unwrap();
    assert_eq!(seen, [2; 4096], "its own writes");
    assert_eq!(read_directly(volume.path("f")), [1; 16384], "others see what is committed");
    let before = (device(&volume.root(), "writes"), device(&volume.root(), "flushes"));
    plain(&file, COMMIT).unwrap();
    file.sync_all().unwrap();
    let after = (device(&volume.root(), "writes"), device(&volume.root(), "flushes"));
    assert_eq!((after.0 - before.0, after.1 - before.1), (1, 1));
    let expected = [[2; 4096], [1; 4096], [2; 4096], [1; 4096]].concat();
    assert_eq!(read_directly(volume.path("f")), expected);
    assert_eq!(fs::read(volume.path("f")).unwrap(), expected);
    drop(file);
    volume.crash();
    assert_eq!(fs::read(volume.path("f")).unwrap(), expected);
}

#[test]
fn what_is_aborted_closed_or_killed_leaves_nothing() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let path = volume.path("f");
    let unchanged = || {
        wait_until("the old content", || fs::read(&path).unwrap() == [1; 8192]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    };
    fs::write(&path, [1; 8192]).unwrap();
    let file = open(path.clone());
    plain(&file, START).unwrap();
    file.write_all_at(&[2; 12288], 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 12288, "a new size is told");
    plain(&file, ABORT).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [1; 8192], "an abort is over when it returns");
    assert_eq!(file.metadata().unwrap().len(), 8192);
    plain(&file, START).unwrap();
    file.set_len(100).unwrap();
    file.write_all_at(&[3; 10], 0).unwrap();
    drop(file);
    unchanged();
    // SAFETY: the child makes system calls only and ends by a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let file = open(path.clone());
        plain(&file, START).unwrap();
        file.write_all_at(&[4; 4096], 0).unwrap();
        // SAFETY: ends this process.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    // SAFETY: the child made above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    unchanged();
    let file = open(path.clone());
    plain(&file, START).expect("nobody is in the way");
    plain(&file, COMMIT).unwrap();
    unchanged();
}

#[test]
fn a_conflict_is_told_and_applies_nothing() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    fs::write(volume.path("f"), [1; 8192]).unwrap();
    let (one, two) = (open(volume.path("f")), open(volume.path("f")));
    plain(&one, START).unwrap();
    assert_eq!(errno(plain(&two, START)), libc::EBUSY);
    one.write_all_at(&[2; 8192], 0).unwrap();
    two.write_all_at(&[3; 10], 0).unwrap();
    assert_eq!(errno(plain(&one, COMMIT)), libc::EAGAIN);
    plain(&one, ABORT).expect("there is nothing left to abort");
    let mut expected = [1; 8192];
    expected[..10].fill(3);
    assert_eq!(fs::read(volume.path("f")).unwrap(), expected);
    plain(&two, START).expect("the file is free again");
}

#[test]
fn the_page_cache_holds_what_is_staged_until_it_is_given_up() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    fs::write(volume.path("f"), [1; 4096]).unwrap();
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(volume.path("f")).unwrap();
    for (end, after) in [(ABORT, 1), (COMMIT, 2)] {
        plain(&direct, START).unwrap();
        direct.write_all_at(&Page([2; 4096]).0, 0).unwrap();
        assert_eq!(fs::read(volume.path("f")).unwrap(), [2; 4096]);
        assert_eq!(read_directly(volume.path("f")), [1; 4096]);
        plain(&direct, end).unwrap();
        assert_eq!(fs::read(volume.path("f")).unwrap(), [after; 4096]);
        assert_eq!(read_directly(volume.path("f")), [after; 4096]);
    }
}

#[test]
fn there_are_no_atomic_writes_with_the_writeback_cache() {
    let Some(volume) = Volume::mounted("writeback_cache") else { return };
    let file = open(volume.path("f"));
    let mut features = 7;
    with_number(&file, FEATURES, &mut features).unwrap();
    assert_eq!(features, 0);
    assert_eq!(errno(plain(&file, START)), libc::EOPNOTSUPP);
}

#[test]
fn what_is_not_offered_is_refused() {
    let Some(volume) = Volume::mounted("") else { return };
    let file = open(volume.path("f"));
    for volatile in [0xf503, 0xf504] {
        assert_eq!(errno(plain(&file, volatile)), libc::EOPNOTSUPP);
    }
    assert_eq!(errno(plain(&file, 0xf506)), libc::ENOTTY);
    assert_eq!(errno(plain(&File::open(volume.root()).unwrap(), START)), libc::EISDIR);
    plain(&file, COMMIT).expect("without a start a plain sync");
    assert_eq!(errno(group(&file, JOIN, 5)), libc::EINVAL);
    assert_eq!(errno(group(&file, GROUP_COMMIT, 5)), libc::EINVAL);
    let token = begin(&file);
    let other = open(volume.path("other"));
    assert_eq!(errno(group(&other, GROUP_COMMIT, token)), libc::EINVAL, "it is bound to its opener");
    group(&other, JOIN, token).unwrap();
    assert_eq!(errno(plain(&other, COMMIT)), libc::EINVAL);
    assert_eq!(errno(fallocate(&other)), libc::EBUSY);
    group(&file, GROUP_ABORT, token).unwrap();
    fallocate(&other).unwrap();
}

fn fallocate(file: &File) -> io::Result<()> {
    crate::harness::fallocate(file, 0, 0, 4096)
}

/// Ten files replaced in a group that is not committed yet.
fn replace_ten(volume: &Volume, token: u64, content: u8) {
    for number in 0..10 {
        let (old, new) = (volume.path(&format!("f{number}")), volume.path(&format!("f{number}.new")));
        let file = File::create(&new).unwrap();
        group(&file, JOIN, token).unwrap();
        file.write_all_at(&[content; 5000], 0).unwrap();
        drop(file);
        fs::rename(new, old).unwrap();
    }
}

fn all_are(volume: &Volume, content: u8) -> bool {
    (0..10).all(|number| fs::read(volume.path(&format!("f{number}"))).unwrap() == [content; 5000])
}

#[test]
fn a_group_of_files_and_their_names_is_committed_at_once_or_not_at_all() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    for number in 0..10 {
        fs::write(volume.path(&format!("f{number}")), [1; 5000]).unwrap();
    }
    let owner = open(volume.path("owner"));
    owner.sync_all().unwrap();
    File::open(volume.root()).unwrap().sync_all().unwrap();
    replace_ten(&volume, begin(&owner), 2);
    assert!(all_are(&volume, 2), "who renames sees it");
    volume.crash();
    assert!(all_are(&volume, 1), "nothing of it was committed");
    let owner = open(volume.path("owner"));
    replace_ten(&volume, begin(&owner), 3);
    drop(owner);
    wait_until("the old content", || all_are(&volume, 1));
    wait_until("the end of the group", || statistics(&volume.root())["staged"]["groups"] == 0);
    for number in 0..10 {
        assert_eq!(
            fs::metadata(volume.path(&format!("f{number}.new"))).unwrap().len(),
            0,
            "made, and given up"
        );
    }
    let owner = open(volume.path("owner"));
    let token = begin(&owner);
    replace_ten(&volume, token, 4);
    let before = (device(&volume.root(), "writes"), device(&volume.root(), "flushes"));
    group(&owner, GROUP_COMMIT, token).unwrap();
    let after = (device(&volume.root(), "writes"), device(&volume.root(), "flushes"));
    assert_eq!(after.1 - before.1, 1, "one flush");
    assert!(after.0 - before.0 <= 2, "{} writes", after.0 - before.0);
    assert!(all_are(&volume, 4));
    drop(owner);
    volume.crash();
    assert!(all_are(&volume, 4));
    assert!(!volume.path("f0.new").exists());
}

#[test]
fn links_of_joined_files_are_part_of_the_group() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let file = open(volume.path("f"));
    let token = begin(&file);
    group(&file, JOIN, token).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    fs::hard_link(volume.path("f"), volume.path("other")).unwrap();
    assert_eq!(fs::read(volume.path("other")).unwrap(), b"content");
    group(&file, GROUP_ABORT, token).unwrap();
    assert!(!volume.path("other").exists());
    let token = begin(&file);
    group(&file, JOIN, token).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    fs::hard_link(volume.path("f"), volume.path("other")).unwrap();
    group(&file, GROUP_COMMIT, token).unwrap();
    drop(file);
    volume.crash();
    assert_eq!(fs::read(volume.path("other")).unwrap(), b"content");
}

#[test]
fn who_may_only_read_a_file_cannot_make_it_part_of_a_transaction() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let writer = open(volume.path("f"));
    let reader = File::open(volume.path("f")).unwrap();
    assert_eq!(errno(plain(&reader, START)), libc::EBADF);
    let mut token = 0;
    assert_eq!(errno(with_number(&reader, BEGIN, &mut token)), libc::EBADF);
    let owner = open(volume.path("owner"));
    assert_eq!(errno(group(&reader, JOIN, begin(&owner))), libc::EBADF);
    plain(&writer, START).expect("nobody has got hold of it");
    plain(&writer, COMMIT).unwrap();
    for _ in 1..64 {
        begin(&owner);
    }
    assert_eq!(errno(with_number(&owner, BEGIN, &mut token)), libc::EAGAIN);
    begin(&writer);
}

#[test]
fn what_another_user_does_to_names_is_no_part_of_the_group() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    fs::set_permissions(volume.path("d"), fs::Permissions::from_mode(0o777)).unwrap();
    let file = open(volume.path("d/f"));
    fs::set_permissions(volume.path("d/f"), fs::Permissions::from_mode(0o666)).unwrap();
    let token = begin(&file);
    group(&file, JOIN, token).unwrap();
    file.write_all_at(b"staged", 0).unwrap();
    let (from, to) = (volume.path("d/f"), volume.path("d/g"));
    let link = volume.path("d/link");
    let renamed = as_user(1000, 1000, || {
        fs::hard_link(&from, &link)?;
        fs::rename(&from, &to)?;
        crate::harness::sync_directory(to.parent().unwrap())
    });
    assert_eq!(renamed, 0);
    group(&file, GROUP_ABORT, token).unwrap();
    assert!(to.exists() && link.exists() && !from.exists());
    drop(file);
    volume.crash();
    assert!(to.exists() && link.exists() && !from.exists(), "it was synced");
}

#[test]
fn a_listing_during_a_group_leaves_no_old_name_behind() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    let (old, new) = (volume.path("d/f"), volume.path("d/f.new"));
    fs::write(&old, "old").unwrap();
    // Whoever has it open keeps the replaced file, so that nothing fails with ESTALE.
    let replaced = File::open(&old).unwrap();
    let owner = open(volume.path("owner"));
    let token = begin(&owner);
    let file = open(new.clone());
    group(&file, JOIN, token).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    fs::rename(&new, &old).unwrap();
    let before = fs::metadata(volume.path("d")).unwrap();
    let listed = fs::read_dir(volume.path("d")).unwrap();
    let mut names: Vec<_> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["f", "f.new"], "what is committed");
    assert_eq!(fs::read_to_string(&old).unwrap(), "new", "who looks a name up finds what is staged");
    group(&owner, GROUP_COMMIT, token).unwrap();
    assert_eq!(fs::read_to_string(&old).unwrap(), "new");
    assert!(!new.exists());
    let after = fs::metadata(volume.path("d")).unwrap();
    assert!(
        after.modified().unwrap() > before.modified().unwrap(),
        "the directory's times are those of the commit"
    );
    drop(replaced);
}

#[test]
fn a_start_right_behind_a_commit_begins_another_one() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let file = open(volume.path("f"));
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(volume.path("f")).unwrap();
    // Others force what is committed at any moment.
    let over = Arc::new(AtomicBool::new(false));
    let syncers: Vec<_> = (0..2)
        .map(|number| {
            let (other, over) = (open(volume.path(&format!("other{number}"))), over.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    other.write_all_at(b"x", 0).unwrap();
                    other.sync_data().unwrap();
                }
            })
        })
        .collect();
    file.write_all_at(&[0; 4096], 0).unwrap();
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut committed = Page([9; 4096]);
    for round in 1..400_u32 {
        plain(&file, START).unwrap();
        file.write_all_at(&[round as u8; 4096], 0).unwrap();
        assert_eq!(direct.read_at(&mut committed.0, 0).unwrap(), 4096);
        assert_eq!(committed.0, [(round - 1) as u8; 4096], "staged and not written");
        plain(&file, COMMIT).unwrap();
    }
    over.store(true, Ordering::Relaxed);
    syncers.into_iter().for_each(|syncer| syncer.join().unwrap());
}

#[test]
fn writes_beside_commits_and_aborts_are_part_of_the_group_or_busy() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let file = Arc::new(open(volume.path("f")));
    file.write_all_at(&[0; 8192], 0).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let (file, over) = (file.clone(), over.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if let Err(error) = file.write_all_at(&[7; 4096], 4096) {
                    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
                }
            }
        })
    };
    for round in 1..200_u32 {
        plain(&file, START).unwrap();
        file.write_all_at(&[round as u8; 4096], 0).unwrap();
        plain(&file, if round % 2 == 0 { ABORT } else { COMMIT }).unwrap();
    }
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    assert_eq!(read_directly(volume.path("f"))[..4096], [199; 4096]);
}

#[test]
fn who_has_joined_a_group_that_is_given_up_is_told() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    fs::write(volume.path("f"), [1; 4096]).unwrap();
    let owner = open(volume.path("owner"));
    let file = open(volume.path("f"));
    group(&file, JOIN, begin(&owner)).unwrap();
    file.write_all_at(&[2; 4096], 0).unwrap();
    drop(owner);
    wait_until("the old content", || fs::read(volume.path("f")).unwrap() == [1; 4096]);
    assert_eq!(errno(file.write_all_at(&[3; 4096], 0)), libc::EBUSY);
    assert_eq!(errno(file.set_len(100)), libc::EBUSY);
    assert_eq!(read_directly(volume.path("f")), [1; 4096]);
    // Others are not concerned, nor is this one in another group.
    fs::write(volume.path("f"), [4; 4096]).unwrap();
    let owner = open(volume.path("owner"));
    let token = begin(&owner);
    group(&file, JOIN, token).unwrap();
    file.write_all_at(&[5; 4096], 0).unwrap();
    group(&owner, GROUP_COMMIT, token).unwrap();
    file.write_all_at(&[6; 100], 0).expect("it is in no group");
    group(&file, JOIN, begin(&owner)).unwrap();
    drop(owner);
    wait_until("the group is over", || file.write_all_at(&[7; 100], 0).is_err());
    plain(&file, START).unwrap();
    file.write_all_at(&[8; 4096], 0).unwrap();
    plain(&file, COMMIT).unwrap();
    assert_eq!(read_directly(volume.path("f")), [8; 4096]);
}

/// A file made under a name, written as part of a group, and renamed.
pub(crate) fn put(volume: &Volume, token: u64, temporary: &str, name: &str, content: &[u8]) {
    let file = OpenOptions::new().write(true).create_new(true).open(volume.path(temporary)).unwrap();
    group(&file, JOIN, token).unwrap();
    file.write_all_at(content, 0).unwrap();
    drop(file);
    assert_eq!(fs::read(volume.path(temporary)).unwrap(), content);
    fs::rename(volume.path(temporary), volume.path(name)).unwrap();
}

#[test]
fn a_group_uses_the_same_temporary_name_again() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let names = ["a", "b", "c"];
    for name in names {
        fs::write(volume.path(name), "old").unwrap();
    }
    let owner = open(volume.path("owner"));
    owner.sync_all().unwrap();
    let replace_all = |volume: &Volume, token: u64| {
        names.iter().for_each(|name| put(volume, token, "t", name, name.as_bytes()));
        // One that is made again and thrown away.
        fs::write(volume.path("t"), "nothing").unwrap();
        fs::remove_file(volume.path("t")).unwrap();
        assert!(!volume.path("t").exists());
        names.iter().for_each(|name| assert_eq!(fs::read(volume.path(name)).unwrap(), name.as_bytes()));
    };
    let token = begin(&owner);
    replace_all(&volume, token);
    group(&owner, GROUP_ABORT, token).unwrap();
    names.iter().for_each(|name| assert_eq!(fs::read(volume.path(name)).unwrap(), b"old"));
    // The first one was made before it joined.
    fs::remove_file(volume.path("t")).unwrap();
    let token = begin(&owner);
    replace_all(&volume, token);
    group(&owner, GROUP_COMMIT, token).unwrap();
    drop(owner);
    for crashed in [false, true] {
        names.iter().for_each(|name| assert_eq!(fs::read(volume.path(name)).unwrap(), name.as_bytes()));
        assert!(!volume.path("t").exists());
        assert_eq!(fs::metadata(volume.path("b")).unwrap().nlink(), 1);
        if !crashed {
            volume.crash();
        }
    }
}

#[test]
fn removing_a_name_of_the_group_is_part_of_the_group() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    fs::write(volume.path("f"), "old").unwrap();
    let owner = open(volume.path("owner"));
    let token = begin(&owner);
    put(&volume, token, "t", "f", b"new");
    fs::remove_file(volume.path("f")).unwrap();
    assert!(!volume.path("f").exists());
    assert_eq!(errno(fs::remove_file(volume.path("f"))), libc::ENOENT);
    group(&owner, GROUP_ABORT, token).unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"old", "only the group had removed it");
    fs::remove_file(volume.path("t")).unwrap();
    let token = begin(&owner);
    put(&volume, token, "t", "f", b"new");
    fs::remove_file(volume.path("f")).unwrap();
    group(&owner, GROUP_COMMIT, token).unwrap();
    assert!(!volume.path("f").exists());
    assert!(!volume.path("t").exists());
}

#[test]
fn what_cannot_be_part_of_a_group_is_not_made_under_a_name_that_it_has_taken_away() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let owner = open(volume.path("owner"));
    let token = begin(&owner);
    put(&volume, token, "t", "f", b"new");
    let name = volume.path("t");
    fs::write(volume.path("other"), "other").unwrap();
    let makers: [(&str, &dyn Fn() -> io::Result<()>); 4] = [
        ("mkdir", &|| fs::create_dir(&name)),
        ("symlink", &|| std::os::unix::fs::symlink("target", &name)),
        ("mknod", &|| make_fifo(&name)),
        ("link", &|| fs::hard_link(volume.path("other"), &name)),
    ];
    for (what, make) in makers {
        assert!(!name.exists());
        assert_eq!(errno(make()), libc::EBUSY, "{what}");
    }
    group(&owner, GROUP_COMMIT, token).unwrap();
    fs::create_dir(&name).unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"new");
}

#[test]
fn the_example_of_the_header_replaces_ten_files() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (program, include) =
        (dir.path().join("replace_ten"), concat!(env!("CARGO_MANIFEST_DIR"), "/../../include"));
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I", include, "-o"])
        .arg(&program)
        .arg(format!("{include}/examples/replace_ten.c"))
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        let has_compiler = Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_ok();
        assert!(!has_compiler, "the example does not compile");
        return crate::harness::skipped("the_example_of_the_header_replaces_ten_files", "no C compiler");
    }
    for generation in ["1", "2"] {
        let done = Command::new(&program).arg(volume.root()).arg(generation).status().unwrap();
        assert!(done.success());
        volume.crash();
        for number in 0..10 {
            let content = fs::read_to_string(volume.path(&format!("config{number}"))).unwrap();
            assert_eq!(content, format!("generation {generation} of file {number}\n"));
        }
    }
}
