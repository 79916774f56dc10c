//! Attributes, times, owners, flags, extended attributes and access control lists.

use crate::common::*;
use syncline_fs::{
    AccessTimes, Context, Error, ExtendedFlags, FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NO_ATIME, FLAG_NO_DUMP, Fs,
    ObjectNo, OpenFlags, SetAttr, SetTime, SetXattr, Timestamp,
};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(fs: &Fs, ctx: &Context, number: ObjectNo, set: SetAttr) -> syncline_fs::Result<syncline_fs::Attr> {
    fs.attributes().setattr(ctx, number, &set, None)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

#[test]
fn attributes_are_set_and_survive_reopening() {
    let mut rig = Rig::new();
    let file = touch(&rig.fs, ROOT, "file");
    let times = SetAttr {
        accessed: Some(SetTime::At(Timestamp { seconds: -5, nanoseconds: 3 })),
        modified: Some(SetTime::At(Timestamp { seconds: 1 << 40, nanoseconds: 999_999_999 })),
        ..SetAttr::default()
    };
    set(&rig.fs, &root(), file, SetAttr { uid: Some(5), gid: Some(6), ..mode(0o1640) }).expect("setattr");
    let attr = set(&rig.fs, &root(), file, times).expect("setattr");
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o101640, 5, 6));
    assert_eq!((attr.accessed.seconds, attr.modified.seconds), (-5, 1 << 40));
    rig.reopen();
    assert_eq!(rig.fs.attributes().getattr(file), Ok(attr));
    let now = SetAttr { modified: Some(SetTime::Now), ..SetAttr::default() };
    let touched = set(&rig.fs, &root(), file, now).expect("touch");
    assert!(touched.modified.seconds < 1 << 30);
    let changed = Timestamp { seconds: 9, nanoseconds: 9 };
    let given = SetAttr { changed: Some(changed), ..now };
    assert_eq!(set(&rig.fs, &root(), file, given).expect("setattr").changed, changed);
}

#[test]
fn symbolic_links_have_no_mode_of_their_own() {
    let rig = Rig::new();
    let link = rig.fs.names().symlink(&root(), ROOT, b"link", b"x").expect("symlink").attr.inode;
    assert_eq!(error(set(&rig.fs, &root(), link, mode(0o600))), Error::NotSupported);
}

#[test]
fn changing_owner_or_content_takes_set_id_bits_off() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "program", b"code");
    let chown = SetAttr { uid: Some(5), ..SetAttr::default() };
    set(fs, &root(), file, mode(0o6755)).expect("chmod");
    assert_eq!(set(fs, &root(), file, chown).expect("chown").mode, 0o100755);
    set(fs, &root(), file, mode(0o6644)).expect("chmod");
    assert_eq!(set(fs, &root(), file, chown).expect("chown").mode, 0o102644, "not executable for the group");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    set(fs, &root(), file, mode(0o6755)).expect("chmod");
    fs.files().write(&root(), handle, 0, b"root").expect("write");
    assert_eq!(
        fs.attributes().getattr(file).expect("attr").mode,
        0o106755,
        "the superuser's writes leave them"
    );
    fs.files().write(&user(5, 5), handle, 0, b"user").expect("write");
    assert_eq!(fs.attributes().getattr(file).expect("attr").mode, 0o100755);
    set(fs, &root(), file, mode(0o6755)).expect("chmod");
    let truncate = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(set(fs, &user(5, 5), file, truncate).expect("truncate").mode, 0o100755);
    fs.files().release(handle).expect("release");
    let attr = set(fs, &user(5, 77), file, mode(0o2755)).expect("chmod");
    assert_eq!(attr.mode, 0o100755, "not a member of the file's group");
    for (gid, left) in [(0, 0o102644), (77, 0o100644)] {
        set(fs, &root(), file, mode(0o2644)).expect("chmod");
        let changed = set(fs, &user(5, gid), file, truncate).expect("truncate");
        assert_eq!(changed.mode, left, "only a member leaves the bit that runs nothing");
    }
    let fifo = fs.names().mknod(&root(), ROOT, b"fifo", 0o010600, 0).expect("fifo").attr.inode;
    let dir = mkdir(fs, ROOT, "dir");
    for (inode, left) in [(fifo, 0o010555), (dir, 0o046555)] {
        set(fs, &root(), inode, mode(0o6555)).expect("chmod");
        assert_eq!(set(fs, &root(), inode, chown).expect("chown").mode, left);
    }
}

#[test]
fn file_capabilities_go_with_a_write() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "program", b"code");
    fs.attributes().set_xattr(&root(), file, b"security.capability", b"caps", SetXattr::Any).expect("set");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    write(fs, handle, 0, b"x");
    assert_eq!(error(fs.attributes().xattr(&root(), file, b"security.capability")), Error::NoAttribute);
    fs.files().release(handle).expect("release");
}

#[test]
fn size_is_for_files() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    let dir = mkdir(fs, ROOT, "dir");
    let fifo = fs.names().mknod(&root(), ROOT, b"fifo", 0o010600, 0).expect("fifo").attr.inode;
    let file = put(fs, ROOT, "file", b"0123456789");
    assert_eq!(error(set(fs, &root(), dir, size(0))), Error::IsDirectory);
    assert_eq!(error(set(fs, &root(), fifo, size(0))).errno(), 22);
    assert_eq!(error(set(fs, &root(), file, size(1 << 63))), Error::FileTooLarge);
    let before = fs.attributes().getattr(file).expect("attr");
    let after = set(fs, &root(), file, size(4)).expect("truncate");
    assert!(after.modified > before.modified && after.changed > before.changed);
    assert_eq!(content(fs, file), b"0123");
    set(fs, &root(), file, size(6)).expect("extend");
    assert_eq!(content(fs, file), b"0123\0\0");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    assert_eq!(error(fs.attributes().setattr(&root(), file, &size(0), Some(handle))), Error::BadHandle);
    fs.files().release(handle).expect("release");
}

#[test]
fn access_times_follow_the_option() {
    let day = 86_400;
    for option in [AccessTimes::Never, AccessTimes::Relative, AccessTimes::Always] {
        let mut rig = Rig::new();
        rig.options.access_times = option;
        rig.reopen();
        let fs = rig.fs.clone();
        let file = put(&fs, ROOT, "file", b"x");
        let created = fs.attributes().getattr(file).expect("attr").accessed;
        content(&fs, file);
        let first = fs.attributes().getattr(file).expect("attr").accessed;
        content(&fs, file);
        let second = fs.attributes().getattr(file).expect("attr").accessed;
        let expected = match option {
            AccessTimes::Never => (false, false),
            AccessTimes::Relative => (true, false),
            AccessTimes::Always => (true, true),
        };
        assert_eq!((first > created, second > first), expected, "{option:?}");
        let old = Timestamp { seconds: second.seconds - 2 * day, nanoseconds: 0 };
        let past = SetAttr {
            accessed: Some(SetTime::At(Timestamp { seconds: old.seconds + 1, nanoseconds: 0 })),
            modified: Some(SetTime::At(old)),
            changed: Some(old),
            ..SetAttr::default()
        };
        let before = set(&fs, &root(), file, past).expect("setattr").accessed;
        content(&fs, file);
        let after = fs.attributes().getattr(file).expect("attr").accessed;
        assert_eq!(after > before, option != AccessTimes::Never, "older than a day, {option:?}");
        drop(fs);
        rig.reopen();
        assert_eq!(rig.fs.attributes().getattr(file).expect("attr").accessed, after, "kept, {option:?}");
        rig.fs.attributes().set_inode_flags(&root(), file, FLAG_NO_ATIME).expect("chattr");
        content(&rig.fs, file);
        assert_eq!(rig.fs.attributes().getattr(file).expect("attr").accessed, after, "no-atime flag");
    }
}

#[test]
fn immutable_files_and_directories_do_not_change() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let file = put(fs, dir, "file", b"fixed");
    let writer = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    fs.attributes().set_inode_flags(&root(), file, FLAG_IMMUTABLE).expect("chattr");
    let denied = [
        fs.names().unlink(dir, b"file"),
        fs.names().link(file, ROOT, b"link").map(drop),
        fs.names().rename(&root(), dir, b"file", ROOT, b"moved", Default::default()),
        set(fs, &root(), file, mode(0o600)).map(drop),
        set(fs, &root(), file, SetAttr { size: Some(0), ..SetAttr::default() }).map(drop),
        fs.files().write(&root(), writer, 0, b"x").map(drop),
        fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).map(drop),
        fs.attributes().set_xattr(&root(), file, b"user.x", b"", SetXattr::Any),
        fs.attributes().set_inode_flags(&user(1, 1), file, 0),
    ];
    for (number, result) in denied.into_iter().enumerate() {
        assert_eq!(result, Err(Error::NotPermitted), "operation {number}");
    }
    assert_eq!(content(fs, file), b"fixed");
    fs.attributes().set_inode_flags(&root(), file, 0).expect("chattr");
    fs.attributes().set_inode_flags(&root(), dir, FLAG_IMMUTABLE).expect("chattr");
    assert_eq!(error(fs.names().unlink(dir, b"file")), Error::NotPermitted);
    assert_eq!(error(fs.names().mkdir(&root(), dir, b"new", 0o755)), Error::NotPermitted);
    write(fs, writer, 0, b"moved");
    fs.files().release(writer).expect("release");
}

#[test]
fn append_only_files_grow_at_the_end() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let file = put(fs, dir, "log", b"one");
    fs.attributes().set_inode_flags(&root(), file, FLAG_APPEND | FLAG_NO_DUMP).expect("chattr");
    assert_eq!(error(fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE)), Error::NotPermitted);
    let append = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let truncate = OpenFlags { truncate: true, ..append };
    assert_eq!(error(fs.files().open_handle(&root(), file, truncate)), Error::NotPermitted);
    let handle = fs.files().open_handle(&root(), file, append).expect("open");
    assert_eq!(fs.files().write(&root(), handle, 0, b"two"), Ok((3, 3)));
    fs.files().release(handle).expect("release");
    assert_eq!(content(fs, file), b"onetwo");
    assert_eq!(error(fs.names().unlink(dir, b"log")), Error::NotPermitted);
    let now = SetAttr { modified: Some(SetTime::Now), ..SetAttr::default() };
    set(fs, &root(), file, now).expect("touching is allowed");
    assert_eq!(error(set(fs, &root(), file, mode(0o600))), Error::NotPermitted);
    fs.attributes().set_inode_flags(&root(), dir, FLAG_APPEND).expect("chattr");
    touch(fs, dir, "more");
    assert_eq!(error(fs.names().unlink(dir, b"more")), Error::NotPermitted);
}

#[test]
fn inode_flags_in_both_forms() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    fs.attributes().set_inode_flags(&user(1, 1), file, FLAG_NO_DUMP | FLAG_NO_ATIME).expect("chattr");
    assert_eq!(fs.attributes().inode_flags(file), Ok(FLAG_NO_DUMP | FLAG_NO_ATIME));
    assert_eq!(fs.attributes().extended_flags(file).expect("flags").xflags, 0x80 | 0x40);
    let wanted = ExtendedFlags { xflags: 0x8, ..ExtendedFlags::default() };
    assert_eq!(error(fs.attributes().set_extended_flags(&user(1, 1), file, wanted)), Error::NotPermitted);
    fs.attributes().set_extended_flags(&root(), file, wanted).expect("set");
    assert_eq!(fs.attributes().inode_flags(file), Ok(FLAG_IMMUTABLE));
    assert_eq!(error(fs.attributes().set_inode_flags(&root(), file, 0x4)), Error::NotSupported);
    let project = ExtendedFlags { project: 7, ..ExtendedFlags::default() };
    assert_eq!(error(fs.attributes().set_extended_flags(&root(), file, project)), Error::NotSupported);
    let fifo = fs.names().mknod(&root(), ROOT, b"fifo", 0o010600, 0).expect("fifo").attr.inode;
    assert_eq!(error(fs.attributes().set_inode_flags(&root(), fifo, FLAG_NO_DUMP)), Error::NotSupported);
}

#[test]
fn extended_attributes_of_every_size_survive() {
    let mut rig = Rig::new();
    let file = touch(&rig.fs, ROOT, "file");
    let sizes = [0, 1, 3072, 3073, 4096, 4097, 65_535, 65_536];
    let value = |size: usize| (0..size).map(|byte| (byte * 7 + size) as u8).collect::<Vec<u8>>();
    for size in sizes {
        let name = format!("user.{size}");
        rig.fs
            .attributes()
            .set_xattr(&root(), file, name.as_bytes(), &value(size), SetXattr::Create)
            .expect("set");
    }
    rig.reopen();
    let fs = &rig.fs;
    for size in sizes {
        assert_eq!(
            fs.attributes().xattr(&root(), file, format!("user.{size}").as_bytes()),
            Ok(value(size)),
            "{size}"
        );
    }
    // Replacing in every combination of small and large.
    for (name, size) in [("user.1", 65_536), ("user.65536", 5000), ("user.4097", 3), ("user.0", 4)] {
        fs.attributes()
            .set_xattr(&root(), file, name.as_bytes(), &value(size), SetXattr::Replace)
            .expect("replace");
        assert_eq!(fs.attributes().xattr(&root(), file, name.as_bytes()), Ok(value(size)));
    }
    for size in sizes {
        fs.attributes().remove_xattr(&root(), file, format!("user.{size}").as_bytes()).expect("remove");
    }
    assert_eq!(fs.attributes().list_xattrs(&root(), file), Ok(Vec::new()));
}

#[test]
fn extended_attribute_errors() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    let set = |name: &[u8], value: &[u8], how| fs.attributes().set_xattr(&root(), file, name, value, how);
    assert_eq!(set(b"user.x", b"1", SetXattr::Replace), Err(Error::NoAttribute));
    set(b"user.x", b"1", SetXattr::Create).expect("create");
    assert_eq!(set(b"user.x", b"1", SetXattr::Create), Err(Error::Exists));
    assert_eq!(set(b"user.x", &[0; 65_537], SetXattr::Any), Err(Error::TooBig));
    assert_eq!(set(b"other.x", b"", SetXattr::Any), Err(Error::NotSupported));
    assert_eq!(set(b"user.", b"", SetXattr::Any).expect_err("no name").errno(), 22);
    let long = [b"user.".as_slice(), &[b'n'; 251]].concat();
    assert_eq!(set(&long, b"", SetXattr::Any).expect_err("too long").errno(), 34);
    set(&long[..255], b"", SetXattr::Any).expect("255 bytes are allowed");
    assert_eq!(error(fs.attributes().xattr(&root(), file, b"user.none")), Error::NoAttribute);
    assert_eq!(error(fs.attributes().remove_xattr(&root(), file, b"user.none")), Error::NoAttribute);
    assert_eq!(error(fs.attributes().remove_xattr(&root(), file, ACCESS)), Error::NoAttribute);
    let fifo = fs.names().mknod(&root(), ROOT, b"fifo", 0o010600, 0).expect("fifo").attr.inode;
    assert_eq!(
        error(fs.attributes().set_xattr(&root(), fifo, b"user.x", b"", SetXattr::Any)),
        Error::NotPermitted
    );
    fs.attributes().set_xattr(&root(), fifo, b"trusted.x", b"t", SetXattr::Any).expect("trusted");
    assert_eq!(fs.attributes().list_xattrs(&root(), fifo), Ok(b"trusted.x\0".to_vec()));
    assert_eq!(fs.attributes().list_xattrs(&user(1, 1), fifo), Ok(Vec::new()));
    assert_eq!(error(fs.attributes().xattr(&user(1, 1), fifo, b"trusted.x")), Error::NoAttribute);
}

#[test]
fn many_extended_attributes_go_with_their_inode() {
    let rig = Rig::new();
    let fs = &rig.fs;
    fs.checkpoint().expect("checkpoint");
    let before = fs.statfs().blocks_free;
    let file = touch(fs, ROOT, "file");
    for number in 0..600 {
        let name = format!("user.{number}");
        fs.attributes().set_xattr(&root(), file, name.as_bytes(), &[1; 2000], SetXattr::Any).expect("set");
    }
    fs.names().unlink(ROOT, b"file").expect("unlink");
    fs.checkpoint().expect("checkpoint");
    fs.checkpoint().expect("checkpoint");
    let after = fs.statfs().blocks_free;
    assert!(after + 16 >= before, "{before} free before, {after} after");
}

/// An ACL in the kernel's form: (tag, permissions, id).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NOBODY: u32 = u32::MAX;

#[test]
fn an_access_acl_and_the_mode_follow_each_other() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    let named =
        |mask| acl(&[(1, 6, NOBODY), (2, 7, 1000), (4, 4, NOBODY), (16, mask, NOBODY), (32, 0, NOBODY)]);
    fs.attributes().set_xattr(&root(), file, ACCESS, &named(5), SetXattr::Any).expect("set");
    assert_eq!(fs.attributes().getattr(file).expect("attr").mode, 0o100650, "the mask is the group's bits");
    assert_eq!(fs.attributes().xattr(&root(), file, ACCESS), Ok(named(5)));
    set(fs, &root(), file, mode(0o620)).expect("chmod");
    assert_eq!(fs.attributes().xattr(&root(), file, ACCESS), Ok(named(2)), "chmod sets the mask");
    // One that says no more than the mode is not kept.
    let minimal = acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 1, NOBODY)]);
    fs.attributes().set_xattr(&root(), file, ACCESS, &minimal, SetXattr::Any).expect("set");
    assert_eq!(fs.attributes().getattr(file).expect("attr").mode, 0o100751);
    assert_eq!(error(fs.attributes().xattr(&root(), file, ACCESS)), Error::NoAttribute);
    assert_eq!(fs.attributes().list_xattrs(&root(), file), Ok(Vec::new()));
    assert_eq!(
        error(fs.attributes().set_xattr(&root(), file, ACCESS, b"junk!", SetXattr::Any)),
        Error::NotSupported
    );
    assert_eq!(
        error(fs.attributes().set_xattr(&root(), file, ACCESS, b"\x02\0\0\0x", SetXattr::Any)).errno(),
        22
    );
    assert_eq!(
        error(fs.attributes().set_xattr(&root(), file, DEFAULT, &minimal, SetXattr::Any)),
        Error::AccessDenied
    );
    let link = fs.names().symlink(&root(), ROOT, b"link", b"x").expect("symlink").attr.inode;
    assert_eq!(
        error(fs.attributes().set_xattr(&root(), link, ACCESS, &minimal, SetXattr::Any)),
        Error::NotSupported
    );
}

#[test]
fn a_default_acl_is_inherited_and_replaces_the_umask() {
    let mut rig = Rig::new();
    let dir = mkdir(&rig.fs, ROOT, "dir");
    let default = acl(&[(1, 7, NOBODY), (2, 6, 1000), (4, 5, NOBODY), (16, 7, NOBODY), (32, 5, NOBODY)]);
    rig.fs.attributes().set_xattr(&root(), dir, DEFAULT, &default, SetXattr::Any).expect("set");
    rig.reopen();
    let fs = &rig.fs;
    let ctx = Context { umask: 0o077, ..root() };
    let file = fs.names().mknod(&ctx, dir, b"file", 0o100664, 0).expect("file").attr;
    assert_eq!(file.mode, 0o100664, "the umask does not count");
    let expected = acl(&[(1, 6, NOBODY), (2, 6, 1000), (4, 5, NOBODY), (16, 6, NOBODY), (32, 4, NOBODY)]);
    assert_eq!(fs.attributes().xattr(&root(), file.inode, ACCESS), Ok(expected));
    assert_eq!(error(fs.attributes().xattr(&root(), file.inode, DEFAULT)), Error::NoAttribute);
    let sub = fs.names().mkdir(&ctx, dir, b"sub", 0o700).expect("dir").attr;
    assert_eq!(sub.mode, 0o040700);
    assert_eq!(fs.attributes().xattr(&root(), sub.inode, DEFAULT), Ok(default));
    let link = fs.names().symlink(&ctx, dir, b"link", b"x").expect("symlink").attr;
    assert_eq!(fs.attributes().list_xattrs(&root(), link.inode), Ok(Vec::new()));
    // A minimal default ACL leaves only mode bits behind.
    let minimal = acl(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 0, NOBODY)]);
    fs.attributes().set_xattr(&root(), dir, DEFAULT, &minimal, SetXattr::Any).expect("set");
    let plain = fs.names().mknod(&ctx, dir, b"plain", 0o100666, 0).expect("file").attr;
    assert_eq!(plain.mode, 0o100640);
    assert_eq!(fs.attributes().list_xattrs(&root(), plain.inode), Ok(Vec::new()));
    fs.attributes().remove_xattr(&root(), dir, DEFAULT).expect("remove");
    let after = fs.names().mknod(&ctx, dir, b"after", 0o100666, 0).expect("file").attr;
    assert_eq!(after.mode, 0o100600, "the umask counts again");
}

#[test]
fn written_data_counts_as_blocks_before_it_is_synced() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", &[1; 10_000]);
    assert_eq!(fs.attributes().getattr(file).expect("attr").blocks, 24);
    fs.files().sync_inode(file, syncline_fs::SyncScope::All).expect("sync");
    assert_eq!(fs.attributes().getattr(file).expect("attr").blocks, 24);
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ_WRITE).expect("open");
    write(fs, handle, 0, &[2; 10_000]);
    assert_eq!(fs.attributes().getattr(file).expect("attr").blocks, 24);
    fs.files().release(handle).expect("release");
}

/// Sets attributes until there is no room for another name; how many there are then.
fn fill_with_xattrs(fs: &Fs, file: ObjectNo, name_bytes: usize) -> usize {
    for count in 0.. {
        let name = format!("user.{count:0width$}", width = name_bytes - 5);
        match fs.attributes().set_xattr(&root(), file, name.as_bytes(), b"", SetXattr::Any) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Error::NoSpace);
                return count;
            }
        }
    }
    unreachable!("a list has an end")
}

#[test]
fn no_more_attributes_are_taken_than_can_be_listed() {
    let mut rig = Rig::new();
    let file = touch(&rig.fs, ROOT, "file");
    // 65,536 bytes with the two ACLs, each name with its NUL.
    let fits = (65536 - ACCESS.len() - DEFAULT.len() - 2) / 256;
    assert_eq!(fill_with_xattrs(&rig.fs, file, 255), fits);
    let names = rig.fs.attributes().list_xattrs(&root(), file).expect("list");
    assert_eq!(names.len(), fits * 256);
    for is_known in [true, false] {
        // What is there may be replaced, and what goes makes room for as much.
        let first = names.split(|byte| *byte == 0).next().expect("a name");
        let set = |name: &[u8]| rig.fs.attributes().set_xattr(&root(), file, name, b"new", SetXattr::Any);
        set(first).expect("replaced");
        let other = [b"user.".as_slice(), &[b'x'; 250]].concat();
        assert_eq!(error(set(&other)), Error::NoSpace, "known: {is_known}");
        rig.fs.attributes().remove_xattr(&root(), file, first).expect("removed");
        set(&other).expect("there is room again");
        assert_eq!(error(set(first)), Error::NoSpace);
        rig.fs.attributes().remove_xattr(&root(), file, &other).expect("removed");
        set(first).expect("there is room again");
        rig.reopen();
    }
    let acl = [2_u32.to_le_bytes().as_slice(), &acl_entry(1, 7), &acl_entry(2, 6), &acl_entry(4, 5)].concat();
    let acl = [acl, acl_entry(0x10, 7).to_vec(), acl_entry(0x20, 0).to_vec()].concat();
    rig.fs.attributes().set_xattr(&root(), file, ACCESS, &acl, SetXattr::Any).expect("an ACL has its room");
    assert!(rig.fs.attributes().list_xattrs(&root(), file).expect("list").len() <= 65536);
}

/// One entry of an ACL as it is passed: tag, permissions, and whom it is for.
fn acl_entry(tag: u16, permissions: u16) -> [u8; 8] {
    let [tag, permissions] = [tag, permissions].map(u16::to_le_bytes);
    let id: u32 = if tag == [2, 0] { 5 } else { u32::MAX };
    [[tag, permissions].concat(), id.to_le_bytes().to_vec()].concat().try_into().expect("eight bytes")
}

#[test]
fn a_transaction_adds_no_more_attributes_than_can_be_listed() {
    let rig = Rig::new();
    let file = touch(&rig.fs, ROOT, "file");
    let name = |count: usize| format!("user.{count:0250}").into_bytes();
    let fits = fill_with_xattrs(&rig.fs, file, 255);
    let mut swap = rig.fs.begin().expect("begin");
    swap.remove_xattr(file, &name(0)).expect("staged");
    swap.set_xattr(file, &name(fits), b"").expect("staged");
    swap.commit().expect("one for one");
    let mut more = rig.fs.begin().expect("begin");
    more.set_xattr(file, &name(0), b"").expect("staged");
    assert_eq!(error(more.commit()), Error::NoSpace);
    rig.fs.attributes().remove_xattr(&root(), file, &name(1)).expect("removed");
    rig.fs
        .attributes()
        .set_xattr(&root(), file, &name(0), b"", SetXattr::Any)
        .expect("the commit's names were counted");
    assert_eq!(
        error(rig.fs.attributes().set_xattr(&root(), file, &name(1), b"", SetXattr::Any)),
        Error::NoSpace
    );
}
