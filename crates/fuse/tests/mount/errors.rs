//! The error numbers of the calls.

use crate::harness::{Volume, c_path, check, errno, setxattr};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

fn rmdir(path: &Path) -> std::io::Result<()> {
    let path = c_path(path);
    // SAFETY: a NUL-terminated path.
    check(i64::from(unsafe { libc::rmdir(path.as_ptr()) })).map(drop)
}

fn unlink(path: &Path) -> std::io::Result<()> {
    let path = c_path(path);
    // SAFETY: a NUL-terminated path.
    check(i64::from(unsafe { libc::unlink(path.as_ptr()) })).map(drop)
}

#[test]
fn calls_fail_with_the_errors_that_posix_names() {
    let Some(volume) = Volume::mounted("") else { return };
    let at = |name: &str| volume.path(name);
    fs::write(at("file"), b"1").unwrap();
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    symlink("loop", at("loop")).unwrap();
    let long = "n".repeat(256);

    assert_eq!(errno(File::open(at("none"))), libc::ENOENT);
    assert_eq!(errno(File::open(at("file/x"))), libc::ENOTDIR);
    assert_eq!(errno(File::open(at("loop"))), libc::ELOOP);
    assert_eq!(errno(File::open(at(&long))), libc::ENAMETOOLONG);
    assert_eq!(errno(File::create(at(&long))), libc::ENAMETOOLONG);
    assert_eq!(errno(OpenOptions::new().write(true).open(at("dir"))), libc::EISDIR);
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(at("file"))), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(at("dir"))), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(at("none/x"))), libc::ENOENT);
    assert_eq!(errno(rmdir(&at("dir"))), libc::ENOTEMPTY);
    assert_eq!(errno(rmdir(&at("file"))), libc::ENOTDIR);
    assert_eq!(errno(rmdir(&at("none"))), libc::ENOENT);
    assert_eq!(errno(unlink(&at("dir"))), libc::EISDIR);
    assert_eq!(errno(unlink(&at("none"))), libc::ENOENT);
    assert_eq!(errno(fs::hard_link(at("dir"), at("x"))), libc::EPERM);
    assert_eq!(errno(fs::hard_link(at("file"), at("dir"))), libc::EEXIST);
    assert_eq!(errno(fs::rename(at("none"), at("x"))), libc::ENOENT);
    assert_eq!(errno(fs::rename(at("file"), at("dir"))), libc::EISDIR);
    assert_eq!(errno(fs::rename(at("dir"), at("file"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(at("empty"), at("dir"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::rename(at("dir"), at("dir/sub/x"))), libc::EINVAL);
    assert_eq!(errno(symlink("x", at("file"))), libc::EEXIST);
    assert_eq!(errno(fs::read_link(at("file"))), libc::EINVAL);
    assert_eq!(errno(setxattr(&at("file"), "nosuchspace.x", b"1", 0)), libc::EOPNOTSUPP);
    assert_eq!(errno(setxattr(&at("loop"), "user.x", b"1", 0)), libc::EPERM);
    assert_eq!(errno(setxattr(&at("file"), "user.x", &vec![0; 65537], 0)), libc::E2BIG);
    let file = OpenOptions::new().write(true).open(at("file")).unwrap();
    assert_eq!(errno(file.write_at(b"x", u64::MAX >> 1)), libc::EINVAL);
    assert_eq!(errno(File::open(at("file")).unwrap().write_at(b"x", 0)), libc::EBADF);
}

#[test]
fn names_of_255_bytes_work() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let name = "ü".repeat(127) + "x";
    assert_eq!(name.len(), 255);
    fs::write(volume.path(&name), b"1").unwrap();
    volume.remount();
    assert_eq!(fs::read(volume.path(&name)).unwrap(), b"1");
}

#[test]
fn a_full_volume_says_so_and_goes_on_when_something_is_removed() {
    let Some(volume) = Volume::mounted("") else { return };
    let file = File::create(volume.path("big")).unwrap();
    let chunk = vec![1; 1 << 20];
    let mut offset = 0;
    let error = loop {
        match file.write_at(&chunk, offset) {
            Ok(len) => offset += len as u64,
            Err(error) => break error,
        }
        assert!(offset < crate::harness::VOLUME_BYTES, "more than the volume holds");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    file.sync_all().unwrap();
    fs::remove_file(volume.path("big")).unwrap();
    drop(file);
    // The kernel tells the daemon of the close after `close` has returned; the space is there a moment later.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let again = loop {
        match File::create(volume.path("again")).and_then(|file| file.write_all_at(&chunk, 0).map(|()| file))
        {
            Err(error)
                if error.raw_os_error() == Some(libc::ENOSPC) && std::time::Instant::now() < deadline =>
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            result => break result.unwrap(),
        }
    };
    again.sync_all().unwrap();
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let Some(mut volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), b"1").unwrap();
    volume.unmount();
    let before = fs::read(volume.image()).unwrap();
    volume.mount("ro").unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"1");
    assert_eq!(errno(File::create(volume.path("g"))), libc::EROFS);
    assert_eq!(errno(fs::write(volume.path("f"), b"2")), libc::EROFS);
    assert_eq!(errno(fs::remove_file(volume.path("f"))), libc::EROFS);
    volume.unmount();
    assert!(fs::read(volume.image()).unwrap() == before, "a read-only mount writes nothing");
}
