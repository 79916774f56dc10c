//! Open file descriptions.

use crate::common::*;
use syncline_fs::{Context, Error, FallocateMode, OpenFlags, SeekWhat, SyncScope};

#[test]
fn access_modes_are_kept() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"0123456789");
    let write_only = OpenFlags { write: true, ..OpenFlags::default() };
    let reader = fs.files().open_handle(&root(), file, OpenFlags::READ).expect("open");
    let writer = fs.files().open_handle(&root(), file, write_only).expect("open");
    let mut bytes = [0; 4];
    assert_eq!(fs.files().read(reader, 3, &mut bytes), Ok(4));
    assert_eq!(&bytes, b"3456");
    assert_eq!(error(fs.files().read(writer, 0, &mut bytes)), Error::BadHandle);
    assert_eq!(error(fs.files().write(&root(), reader, 0, b"x")), Error::BadHandle);
    let keep = FallocateMode::Allocate { keep_size: true };
    assert_eq!(error(fs.files().fallocate(&root(), reader, keep, 0, 1)), Error::BadHandle);
    assert_eq!(error(fs.files().copy_file_range(&root(), (writer, 0), (writer, 0), 1)), Error::BadHandle);
    assert_eq!(fs.files().read(reader, 10, &mut bytes), Ok(0));
    assert_eq!(fs.files().read(reader, u64::MAX, &mut bytes), Ok(0));
    fs.files().release(reader).expect("release");
    fs.files().release(writer).expect("release");
    assert_eq!(error(fs.files().read(reader, 0, &mut bytes)), Error::BadHandle);
}

#[test]
fn only_files_are_opened_for_content() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let dir = mkdir(fs, ROOT, "dir");
    let link = fs.names().symlink(&root(), ROOT, b"link", b"x").expect("symlink").attr.inode;
    let fifo = fs.names().mknod(&root(), ROOT, b"fifo", 0o010600, 0).expect("fifo").attr.inode;
    assert_eq!(error(fs.files().open_handle(&root(), dir, OpenFlags::READ_WRITE)), Error::IsDirectory);
    assert_eq!(error(fs.files().open_handle(&root(), link, OpenFlags::READ)), Error::SymlinkLoop);
    assert_eq!(error(fs.files().open_handle(&root(), fifo, OpenFlags::READ)), Error::NoSuchDevice);
    let handle =
        fs.files().open_handle(&root(), dir, OpenFlags::READ).expect("a directory can be opened to sync it");
    assert_eq!(error(fs.files().read(handle, 0, &mut [0; 4])), Error::IsDirectory);
    fs.files().sync_handle(handle, SyncScope::All).expect("fsync of a directory");
    fs.files().release(handle).expect("release");
}

#[test]
fn appending_handles_always_write_at_the_end() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let (entry, first) = {
        let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
        fs.names().create(&root(), ROOT, b"log", 0o644, flags).expect("create")
    };
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
                let handle = fs.files().open_handle(&root(), entry.attr.inode, flags).expect("open");
                for _ in 0..200 {
                    fs.files().write(&root(), handle, 0, &[b'a' + thread; 10]).expect("write");
                }
                fs.files().release(handle).expect("release");
            });
        }
    });
    let bytes = content(fs, entry.attr.inode);
    assert_eq!(bytes.len(), 8000);
    assert!(bytes.chunks(10).all(|line| line.iter().all(|&byte| byte == line[0])), "lines are whole");
    fs.files().release(first).expect("release");
}

#[test]
fn truncating_at_open_empties_the_file() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let file = put(fs, ROOT, "file", b"old");
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = fs.files().open_handle(&root(), file, flags).expect("open");
    assert_eq!(fs.files().handle_attr(handle).expect("attr").size, 0);
    fs.files().release(handle).expect("release");
}

#[test]
fn synchronous_writes_are_durable_on_return() {
    for (sync, dsync) in [(true, false), (false, true)] {
        let mut rig = Rig::new();
        let flags = OpenFlags { sync, dsync, ..OpenFlags::READ_WRITE };
        let (entry, handle) = rig.fs.names().create(&root(), ROOT, b"file", 0o644, flags).expect("create");
        write(&rig.fs, handle, 0, b"durable");
        rig.crash();
        assert_eq!(content(&rig.fs, entry.attr.inode), b"durable");
    }
}

#[test]
fn allocation_and_seeking_know_holes() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let ctx = Context::root();
    let (entry, handle) =
        fs.names().create(&ctx, ROOT, b"file", 0o644, OpenFlags::READ_WRITE).expect("create");
    write(fs, handle, 65_536, b"data");
    assert_eq!(fs.files().seek(handle, 0, SeekWhat::Data), Ok(65_536));
    assert_eq!(fs.files().seek(handle, 0, SeekWhat::Hole), Ok(0));
    assert_eq!(fs.files().seek(handle, 65_536, SeekWhat::Hole), Ok(65_540));
    assert_eq!(error(fs.files().seek(handle, 70_000, SeekWhat::Data)), Error::NoSuchDevice);
    fs.files().fallocate(&ctx, handle, FallocateMode::PunchHole, 65_536, 4).expect("punch");
    assert_eq!(content(fs, entry.attr.inode), vec![0; 65_540]);
    fs.files()
        .fallocate(&ctx, handle, FallocateMode::Allocate { keep_size: false }, 0, 100_000)
        .expect("allocate");
    assert_eq!(fs.files().handle_attr(handle).expect("attr").size, 100_000);
    assert_eq!(error(fs.files().fallocate(&ctx, handle, FallocateMode::PunchHole, 0, 0)).errno(), 22);
    let beyond = fs.files().fallocate(&ctx, handle, FallocateMode::PunchHole, u64::MAX, 10);
    assert_eq!(error(beyond), Error::FileTooLarge);
    fs.files().release(handle).expect("release");
}

#[test]
fn ranges_are_copied_between_files_and_within_one() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let source = put(fs, ROOT, "source", &(0..50_000u32).map(|n| n as u8).collect::<Vec<_>>());
    let from = fs.files().open_handle(&root(), source, OpenFlags::READ_WRITE).expect("open");
    let (target, to) =
        fs.names().create(&root(), ROOT, b"target", 0o644, OpenFlags::READ_WRITE).expect("create");
    let mut done = 0;
    while done < 40_000 {
        let count = fs
            .files()
            .copy_file_range(&root(), (from, 1_000 + done), (to, 77 + done), 40_000 - done)
            .expect("copy");
        assert!(count > 0);
        done += count;
    }
    assert_eq!(content(fs, target.attr.inode)[77..], content(fs, source)[1_000..41_000]);
    assert_eq!(fs.files().copy_file_range(&root(), (from, 60_000), (to, 0), 10), Ok(0), "beyond the end");
    assert_eq!(error(fs.files().copy_file_range(&root(), (from, 0), (from, 5), 10)).errno(), 22);
    fs.files().release(from).expect("release");
    fs.files().release(to).expect("release");
}

#[test]
fn the_largest_offset_is_the_largest_file() {
    let rig = Rig::new();
    let fs = &rig.fs;
    let (_, handle) =
        fs.names().create(&root(), ROOT, b"file", 0o644, OpenFlags::READ_WRITE).expect("create");
    assert_eq!(error(fs.files().write(&root(), handle, i64::MAX as u64, b"x")), Error::FileTooLarge);
    assert_eq!(error(fs.files().write(&root(), handle, u64::MAX, b"x")), Error::FileTooLarge);
    assert_eq!(fs.files().write(&root(), handle, i64::MAX as u64 - 1, b"x"), Ok((i64::MAX as u64 - 1, 1)));
    assert_eq!(fs.files().handle_attr(handle).expect("attr").size, i64::MAX as u64);
    fs.files().release(handle).expect("release");
}

#[test]
fn open_flags_are_understood_as_linux_numbers_them() {
    let flags = OpenFlags::from_linux(0o2 | 0o2000 | 0o4010000);
    assert!(flags.read && flags.write && flags.append && flags.sync && flags.dsync && !flags.truncate);
    let flags = OpenFlags::from_linux(0o1 | 0o1000 | 0o10000);
    assert!(!flags.read && flags.write && flags.truncate && flags.dsync && !flags.sync);
    assert_eq!(OpenFlags::from_linux(0), OpenFlags::READ);
}
