//! Making, finding, linking and removing names.

use crate::common::*;
use std::ops::ControlFlow;
use syncline_fs::{Error, ObjectNo, OpenFlags, SetAttr};

#[test]
fn what_is_created_is_found_with_its_attributes() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let ctx = user(7, 8);
    let file = fs.names().mknod(&ctx, ROOT, b"file", 0o100666, 0).expect("file").attr;
    assert_eq!((file.mode, file.nlink, file.uid, file.gid, file.size), (0o100644, 1, 7, 8, 0));
    let dir = fs.names().mkdir(&ctx, ROOT, b"dir", 0o777).expect("dir").attr;
    assert_eq!((dir.mode, dir.nlink), (0o040755, 2));
    let link = fs.names().symlink(&ctx, ROOT, b"link", b"where/ever").expect("symlink").attr;
    assert_eq!((link.mode, link.size), (0o120777, 10));
    assert_eq!(fs.attributes().readlink(link.inode).expect("readlink"), b"where/ever");
    let device = fs.names().mknod(&ctx, ROOT, b"device", 0o060600, 8 << 32 | 1).expect("device").attr;
    assert_eq!((device.mode, device.rdev), (0o060600, 8 << 32 | 1));
    for (name, mode) in [(b"fifo", 0o010600), (b"sock", 0o140600)] {
        assert_eq!(fs.names().mknod(&ctx, ROOT, name, mode, 5).expect("special").attr.rdev, 0);
    }
    for (name, attr) in [("file", &file), ("dir", &dir), ("device", &device)] {
        assert_eq!(&fs.names().lookup(ROOT, name.as_bytes()).expect(name).attr, attr);
    }
    let attr = fs.attributes().getattr(ROOT).expect("root");
    assert_eq!(attr.nlink, 3, "one subdirectory");
    check_tree(fs);
}

#[test]
fn names_and_types_are_checked() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    let long = [b'x'; 256];
    assert_eq!(error(fs.names().mkdir(&root(), ROOT, &long, 0o755)), Error::NameTooLong);
    assert_eq!(error(fs.names().lookup(ROOT, &long)), Error::NameTooLong);
    assert_eq!(error(fs.names().mkdir(&root(), ROOT, b"", 0o755)), Error::NotFound);
    for bad in [b"a/b".as_slice(), b"a\0b", b".", b".."] {
        assert_eq!(error(fs.names().mkdir(&root(), ROOT, bad, 0o755)).errno(), 22, "{bad:?}");
    }
    fs.names().mkdir(&root(), ROOT, &long[..255], 0o755).expect("255 bytes are allowed");
    assert_eq!(error(fs.names().mkdir(&root(), ROOT, b"file", 0o755)), Error::Exists);
    assert_eq!(error(fs.names().mkdir(&root(), file, b"x", 0o755)), Error::NotDirectory);
    assert_eq!(error(fs.names().lookup(file, b"x")), Error::NotDirectory);
    assert_eq!(error(fs.names().lookup(ROOT, b"none")), Error::NotFound);
    assert_eq!(error(fs.names().mknod(&root(), ROOT, b"l", 0o120777, 0)).errno(), 22);
    assert_eq!(error(fs.names().symlink(&root(), ROOT, b"l", b"")), Error::NotFound);
    assert_eq!(error(fs.names().symlink(&root(), ROOT, b"l", &[b'x'; 4096])), Error::NameTooLong);
    fs.names().symlink(&root(), ROOT, b"l", &[b'x'; 4095]).expect("4095 bytes are allowed");
    assert_eq!(error(fs.attributes().readlink(file)).errno(), 22);
    assert_eq!(error(fs.attributes().getattr(ObjectNo(1 << 40))), Error::Stale);
    check_tree(fs);
}

#[test]
fn dot_and_dot_dot_lead_to_the_directory_and_its_parent() {
    let rig = Rig::new();
    let a = mkdir(&rig.fs, ROOT, "a");
    let b = mkdir(&rig.fs, a, "b");
    assert_eq!(lookup(&rig.fs, b, "."), Ok(b));
    assert_eq!(lookup(&rig.fs, b, ".."), Ok(a));
    assert_eq!(lookup(&rig.fs, ROOT, ".."), Ok(ROOT));
}

#[test]
fn links_share_an_inode_until_the_last_name_goes() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let file = put(fs, ROOT, "one", b"content");
    let before = fs.attributes().getattr(file).expect("attr");
    let linked = fs.names().link(file, dir, b"two").expect("link").attr;
    assert_eq!((linked.inode, linked.nlink), (file, 2));
    assert!(linked.changed > before.changed && linked.modified == before.modified);
    assert_eq!(error(fs.names().link(file, dir, b"two")), Error::Exists);
    assert_eq!(error(fs.names().link(dir, ROOT, b"dir2")), Error::NotPermitted);
    assert_eq!(error(fs.names().link(dir, dir, b"self")), Error::NotPermitted);
    fs.names().unlink(ROOT, b"one").expect("unlink");
    assert_eq!(fs.attributes().getattr(file).expect("attr").nlink, 1);
    assert_eq!(content(fs, file), b"content");
    check_tree(fs);
    fs.names().unlink(dir, b"two").expect("unlink");
    assert_eq!(error(fs.attributes().getattr(file)), Error::Stale);
    assert_eq!(error(fs.names().unlink(dir, b"two")), Error::NotFound);
    check_tree(fs);
}

#[test]
fn many_links_to_one_inode() {
    let rig = Rig::with_size(128 * MIB);
    let fs = &rig.fs;
    let file = touch(fs, ROOT, "file");
    let dir = mkdir(fs, ROOT, "dir");
    for number in 0..65_000 {
        fs.names().link(file, dir, format!("link-{number}").as_bytes()).expect("link");
    }
    assert_eq!(fs.attributes().getattr(file).expect("attr").nlink, 65_001);
    assert_eq!(list(fs, dir).len(), 65_000);
}

#[test]
fn unlink_and_rmdir_know_files_from_directories() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    touch(fs, dir, "file");
    assert_eq!(error(fs.names().unlink(ROOT, b"dir")), Error::IsDirectory);
    assert_eq!(error(fs.names().rmdir(dir, b"file")), Error::NotDirectory);
    assert_eq!(error(fs.names().rmdir(ROOT, b"dir")), Error::NotEmpty);
    assert_eq!(error(fs.names().rmdir(dir, b".")).errno(), 22);
    assert_eq!(error(fs.names().rmdir(dir, b"..")), Error::NotEmpty);
    assert_eq!(error(fs.names().rmdir(ROOT, b"none")), Error::NotFound);
    fs.names().unlink(dir, b"file").expect("unlink");
    fs.names().rmdir(ROOT, b"dir").expect("rmdir");
    assert_eq!(error(fs.names().mkdir(&root(), dir, b"late", 0o755)), Error::NotFound);
    check_tree(fs);
}

#[test]
fn a_removed_directory_that_is_open_is_empty_and_takes_no_names() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let handle = fs.files().opendir(dir).expect("opendir");
    fs.names().rmdir(ROOT, b"dir").expect("rmdir");
    assert_eq!(fs.files().handle_attr(handle).expect("attr").nlink, 0);
    let mut seen = 0;
    fs.names()
        .readdir(handle, 0, &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .expect("readdir");
    assert_eq!(seen, 0);
    assert_eq!(error(fs.names().mkdir(&root(), dir, b"late", 0o755)), Error::NotFound);
    assert_eq!(error(fs.names().lookup(dir, b"late")), Error::NotFound);
    fs.files().release(handle).expect("release");
    assert_eq!(error(fs.attributes().getattr(dir)), Error::Stale);
}

#[test]
fn directory_times_follow_their_entries() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let mut last = fs.attributes().getattr(dir).expect("attr");
    let mut expect_newer = |what: &str| {
        let now = fs.attributes().getattr(dir).expect("attr");
        assert!(now.modified > last.modified && now.changed > last.changed, "{what}");
        last = now;
    };
    let file = touch(fs, dir, "file");
    expect_newer("create");
    fs.names().link(file, dir, b"link").expect("link");
    expect_newer("link");
    fs.names().rename(&root(), dir, b"link", dir, b"moved", Default::default()).expect("rename");
    expect_newer("rename");
    fs.names().unlink(dir, b"moved").expect("unlink");
    expect_newer("unlink");
    mkdir(fs, dir, "sub");
    expect_newer("mkdir");
    fs.names().rmdir(dir, b"sub").expect("rmdir");
    expect_newer("rmdir");
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let set = SetAttr { mode: Some(0o2777), gid: Some(50), ..SetAttr::default() };
    fs.attributes().setattr(&root(), dir, &set, None).expect("setattr");
    let ctx = user(7, 8);
    let file = fs.names().mknod(&ctx, dir, b"file", 0o100644, 0).expect("file").attr;
    assert_eq!((file.gid, file.mode), (50, 0o100644));
    let sub = fs.names().mkdir(&ctx, dir, b"sub", 0o755).expect("dir").attr;
    assert_eq!((sub.gid, sub.mode), (50, 0o042755));
    let program = fs.names().mknod(&ctx, dir, b"program", 0o102755, 0).expect("file").attr;
    assert_eq!(program.mode, 0o100755, "not a member of the group");
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let mut rig = Rig::new();
    let fs = rig.fs.clone();
    let (entry, handle) =
        fs.names().tmpfile(&root(), ROOT, 0o600, OpenFlags::READ_WRITE, false).expect("tmpfile");
    assert_eq!(entry.attr.nlink, 0);
    write(&fs, handle, 0, b"here");
    fs.names().link(entry.attr.inode, ROOT, b"name").expect("link");
    fs.files().release(handle).expect("release");
    assert_eq!(content(&fs, entry.attr.inode), b"here");
    let (secret, handle) =
        fs.names().tmpfile(&root(), ROOT, 0o600, OpenFlags::READ_WRITE, true).expect("tmpfile");
    assert_eq!(error(fs.names().link(secret.attr.inode, ROOT, b"other")), Error::NotFound);
    fs.files().release(handle).expect("release");
    assert_eq!(error(fs.attributes().getattr(secret.attr.inode)), Error::Stale);
    drop(fs);
    rig.reopen();
    assert_eq!(names(&rig.fs, ROOT), ["name"]);
    check_tree(&rig.fs);
}

#[test]
fn a_removed_name_does_not_come_back_with_its_inode() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"x");
    let handle = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    fs.names().unlink(ROOT, b"file").expect("unlink");
    assert_eq!(error(fs.names().link(file, ROOT, b"again")), Error::NotFound);
    fs.files().release(handle).expect("release");
}

#[test]
fn concurrent_creates_and_removes_keep_counts_exact() {
    let rig = Rig::new();
    let dir = mkdir(&rig.fs, ROOT, "dir");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &rig.fs;
            scope.spawn(move || {
                for round in 0..300 {
                    // All threads fight for the same names.
                    let name = format!("name-{}", round % 10);
                    let made = match (thread + round) % 3 {
                        0 => fs.names().mkdir(&root(), dir, name.as_bytes(), 0o755).map(drop),
                        1 => fs.names().mknod(&root(), dir, name.as_bytes(), 0o100644, 0).map(drop),
                        _ => fs.names().rename(
                            &root(),
                            dir,
                            format!("name-{}", (round + 1) % 10).as_bytes(),
                            dir,
                            name.as_bytes(),
                            Default::default(),
                        ),
                    };
                    let removed = match round % 2 {
                        0 => fs.names().rmdir(dir, name.as_bytes()),
                        _ => fs.names().unlink(dir, name.as_bytes()),
                    };
                    for result in [made, removed] {
                        match result {
                            Ok(())
                            | Err(
                                Error::Exists
                                | Error::NotFound
                                | Error::IsDirectory
                                | Error::NotDirectory
                                | Error::NotEmpty,
                            ) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            });
        }
    });
    check_tree(&rig.fs);
}
