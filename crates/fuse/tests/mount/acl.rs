//! POSIX access control lists, as raw attributes in the kernel's form.

use crate::harness::{Volume, as_user, errno, getxattr, removexattr, setxattr};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO_ID: u32 = u32::MAX;

/// (tag, permissions, id) entries in version 2.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&permissions.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// Owner rwx, user 1000 with `permissions`, group r-x, mask rwx, others nothing.
fn with_user(permissions: u16) -> Vec<u8> {
    acl(&[(1, 7, NO_ID), (2, permissions, 1000), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)])
}

#[test]
fn a_named_user_gets_what_the_list_says() {
    let Some(mut volume) = Volume::mounted("") else { return };
    fs::set_permissions(volume.root(), Permissions::from_mode(0o755)).unwrap();
    let path = volume.path("f");
    fs::write(&path, b"x").unwrap();
    setxattr(&path, ACCESS, &with_user(6), 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o770, "the group bits show the mask");
    volume.remount();
    assert_eq!(getxattr(&path, ACCESS).unwrap(), with_user(6));
    assert_eq!(as_user(1000, 1000, || File::options().write(true).open(&path).map(drop)), 0);
    assert_eq!(as_user(1001, 1001, || File::open(&path).map(drop)), libc::EACCES);
    fs::set_permissions(&path, Permissions::from_mode(0o740)).unwrap();
    assert_eq!(as_user(1000, 1000, || File::options().write(true).open(&path).map(drop)), libc::EACCES);
    removexattr(&path, ACCESS).unwrap();
    assert_eq!(errno(getxattr(&path, ACCESS)), libc::ENODATA);
}

#[test]
fn a_default_list_is_inherited_and_takes_the_umasks_place() {
    let Some(volume) = Volume::mounted("") else { return };
    let dir = volume.path("d");
    fs::create_dir(&dir).unwrap();
    setxattr(&dir, DEFAULT, &with_user(7), 0).unwrap();
    File::create(dir.join("f")).unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    assert_eq!(fs::metadata(dir.join("f")).unwrap().mode() & 0o777, 0o660);
    assert_eq!(getxattr(&dir.join("sub"), DEFAULT).unwrap(), with_user(7));
    assert!(getxattr(&dir.join("f"), ACCESS).unwrap().len() == with_user(7).len());
    assert_eq!(errno(setxattr(&dir.join("f"), DEFAULT, &with_user(7), 0)), libc::EACCES);
}

#[test]
fn nonsense_is_no_list() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    File::create(&path).unwrap();
    assert_eq!(errno(setxattr(&path, ACCESS, b"nonsense", 0)), libc::EOPNOTSUPP);
    assert_eq!(errno(setxattr(&path, ACCESS, &acl(&[(1, 7, NO_ID)]), 0)), libc::EINVAL);
}
