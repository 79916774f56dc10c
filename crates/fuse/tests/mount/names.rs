//! Links, renames, special files, attributes.

use crate::harness::{Volume, as_user, c_path, errno, getxattr, listxattr, removexattr, renameat2, setxattr};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};

#[test]
fn links_count_and_lead_to_one_inode() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("a"), b"x").unwrap();
    fs::hard_link(volume.path("a"), volume.path("b")).unwrap();
    let (a, b) = (fs::metadata(volume.path("a")).unwrap(), fs::metadata(volume.path("b")).unwrap());
    assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    fs::remove_file(volume.path("a")).unwrap();
    assert_eq!(fs::metadata(volume.path("b")).unwrap().nlink(), 1);
    symlink("b", volume.path("s")).unwrap();
    assert_eq!(fs::read_link(volume.path("s")).unwrap().to_str(), Some("b"));
    assert_eq!(fs::read(volume.path("s")).unwrap(), b"x");
    fs::create_dir_all(volume.path("d/e")).unwrap();
    assert_eq!(fs::metadata(volume.path("d")).unwrap().nlink(), 3);
}

#[test]
fn rename_flags_replace_exchange_and_leave_whiteouts() {
    let Some(volume) = Volume::mounted("") else { return };
    let (a, b) = (volume.path("a"), volume.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    assert_eq!(errno(renameat2(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
    renameat2(&a, &b, libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    renameat2(&a, &b, 0).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
    renameat2(&b, &a, libc::RENAME_WHITEOUT).unwrap();
    let whiteout = fs::symlink_metadata(&b).unwrap();
    assert!(whiteout.file_type().is_char_device());
    assert_eq!(whiteout.rdev(), 0);
    assert_eq!(errno(renameat2(&a, &b, libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE)), libc::EINVAL);
}

#[test]
fn renamed_directories_take_their_content_along() {
    let Some(mut volume) = Volume::mounted("") else { return };
    fs::create_dir_all(volume.path("x/y/z")).unwrap();
    fs::write(volume.path("x/y/z/f"), b"1").unwrap();
    fs::create_dir(volume.path("to")).unwrap();
    fs::rename(volume.path("x/y"), volume.path("to/y")).unwrap();
    assert_eq!(errno(fs::rename(volume.path("to"), volume.path("to/y/z/in"))), libc::EINVAL);
    volume.remount();
    assert_eq!(fs::read(volume.path("to/y/z/f")).unwrap(), b"1");
    assert_eq!(fs::metadata(volume.path("x")).unwrap().nlink(), 2);
}

#[test]
fn special_files_keep_their_type_and_number() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let make = |name: &str, mode: u32, device: libc::dev_t| {
        let path = c_path(&volume.path(name));
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mknod(path.as_ptr(), mode | 0o600, device) }, 0);
    };
    let device = libc::makedev(259, 70_000);
    make("fifo", libc::S_IFIFO, 0);
    make("socket", libc::S_IFSOCK, 0);
    make("block", libc::S_IFBLK, device);
    make("char", libc::S_IFCHR, device);
    volume.remount();
    let kind = |name: &str| fs::symlink_metadata(volume.path(name)).unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    assert!(kind("block").is_block_device() && kind("char").is_char_device());
    assert_eq!(fs::metadata(volume.path("char")).unwrap().rdev(), device);
}

#[test]
fn extended_attributes_are_set_listed_replaced_and_removed() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    File::create(&path).unwrap();
    let large = vec![0xa5; 65536];
    setxattr(&path, "user.small", b"1", 0).unwrap();
    setxattr(&path, "user.large", &large, libc::XATTR_CREATE).unwrap();
    setxattr(&path, "user.empty", b"", 0).unwrap();
    assert_eq!(errno(setxattr(&path, "user.small", b"2", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(setxattr(&path, "user.none", b"2", libc::XATTR_REPLACE)), libc::ENODATA);
    setxattr(&path, "trusted.t", b"t", 0).unwrap();
    volume.remount();
    assert_eq!(listxattr(&path).unwrap(), ["trusted.t", "user.empty", "user.large", "user.small"]);
    assert!(getxattr(&path, "user.large").unwrap() == large);
    assert_eq!(getxattr(&path, "user.empty").unwrap(), b"");
    removexattr(&path, "user.large").unwrap();
    assert_eq!(errno(getxattr(&path, "user.large")), libc::ENODATA);
    assert_eq!(errno(removexattr(&path, "user.large")), libc::ENODATA);
}

#[test]
fn umask_owner_and_permissions_are_those_of_the_caller() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::set_permissions(volume.root(), Permissions::from_mode(0o777)).unwrap();
    let path = volume.path("f");
    let denied = as_user(1234, 4321, || {
        // SAFETY: umask has no preconditions; this is a process of its own.
        unsafe { libc::umask(0o027) };
        File::create(&path)?;
        Ok(())
    });
    assert_eq!(denied, 0);
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (1234, 4321, 0o640));
    assert_eq!(as_user(99, 99, || File::open(&path).map(drop)), libc::EACCES);
    assert_eq!(as_user(99, 4321, || File::open(&path).map(drop)), 0);
    assert_eq!(as_user(99, 4321, || fs::write(&path, b"x")), libc::EACCES);
    assert_eq!(as_user(99, 99, || fs::set_permissions(&path, Permissions::from_mode(0o777))), libc::EPERM);
}

#[test]
fn sticky_and_set_group_id_directories_follow_the_rules() {
    let Some(volume) = Volume::mounted("") else { return };
    let dir = volume.path("d");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(0), Some(777)).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o3777)).unwrap();
    let (file, sub) = (dir.join("f"), dir.join("sub"));
    assert_eq!(as_user(5, 5, || File::create(&file).map(drop).and_then(|()| fs::create_dir(&sub))), 0);
    assert_eq!(fs::metadata(&file).unwrap().gid(), 777);
    let made = fs::metadata(&sub).unwrap();
    assert_eq!((made.gid(), made.mode() & 0o2000), (777, 0o2000));
    assert_eq!(as_user(6, 6, || fs::remove_file(&file)), libc::EPERM);
    assert_eq!(as_user(5, 5, || fs::remove_file(&file)), 0);
}

#[test]
fn set_id_bits_go_when_an_unprivileged_user_writes_and_when_the_owner_changes() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let reset = || {
        fs::write(&path, b"abc").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
    };
    reset();
    fs::write(&path, b"root keeps them").unwrap();
    assert_eq!(mode(), 0o6777);
    let write: fn(&std::path::Path) -> io::Result<()> = |path| {
        use std::os::unix::fs::FileExt;
        File::options().write(true).open(path)?.write_all_at(b"x", 0)
    };
    let truncate: fn(&std::path::Path) -> io::Result<()> =
        |path| File::options().write(true).open(path)?.set_len(1);
    for change in [write, truncate] {
        reset();
        assert_eq!(as_user(9, 9, || change(&path)), 0);
        assert_eq!(mode(), 0o777);
    }
    reset();
    chown(&path, Some(3), None).unwrap();
    assert_eq!(mode(), 0o777);
}

#[test]
fn flags_are_shown_and_immutable_files_stay_as_they_are() {
    use std::os::fd::AsRawFd;
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    let set = |flags: libc::c_int| {
        let mut flags = flags;
        // SAFETY: FS_IOC_SETFLAGS reads an int.
        unsafe { libc::ioctl(file.as_raw_fd(), 0x4008_6602, &mut flags) }
    };
    assert_eq!(set(0x10), 0, "{}", io::Error::last_os_error());
    let mut flags: libc::c_long = 0;
    // SAFETY: FS_IOC_GETFLAGS writes at most a long.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), 0x8008_6601, &mut flags) }, 0);
    assert_eq!(flags, 0x10);
    assert_eq!(errno(fs::remove_file(&path)), libc::EPERM);
    assert_eq!(errno(fs::write(&path, b"y")), libc::EPERM);
    assert_eq!(set(0), 0);
    fs::remove_file(&path).unwrap();
}
