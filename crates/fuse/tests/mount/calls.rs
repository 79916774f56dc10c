//! System calls on open files.

use crate::harness::{Volume, check, errno, fallocate, lseek};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

#[test]
fn a_descriptor_for_nothing_tells_the_attributes_of_what_was_removed() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), vec![1; 5000]).unwrap();
    fs::write(volume.path("new"), b"new").unwrap();
    fs::create_dir(volume.path("d")).unwrap();
    let open = |name: &str| {
        OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(volume.path(name)).unwrap()
    };
    let (file, directory) = (open("f"), open("d"));
    fs::remove_dir(volume.path("d")).unwrap();
    assert!(directory.metadata().unwrap().is_dir());
    fs::rename(volume.path("new"), volume.path("f")).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.nlink()), (5000, 0));
    let replaced = open("f");
    fs::remove_file(volume.path("f")).unwrap();
    assert_eq!((replaced.metadata().unwrap().len(), replaced.metadata().unwrap().nlink()), (3, 0));
}

#[test]
fn what_is_written_is_read_back_after_remounting() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let pattern: Vec<u8> = (0..3_000_001_u32).map(|i| (i * 7 + i / 4096) as u8).collect();
    fs::write(volume.path("big"), &pattern).unwrap();
    fs::write(volume.path("empty"), b"").unwrap();
    volume.remount();
    assert!(fs::read(volume.path("big")).unwrap() == pattern);
    assert_eq!(fs::metadata(volume.path("empty")).unwrap().len(), 0);
}

#[test]
fn appending_writes_of_many_threads_do_not_overwrite_each_other() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("log");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..250 {
                    file.write_all(&[thread; 100]).unwrap();
                }
            });
        }
    });
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 4 * 250 * 100);
    assert!(content.chunks(100).all(|record| record.iter().all(|byte| *byte == record[0])));
}

#[test]
fn a_page_written_back_from_a_mapping_of_an_appending_file_goes_where_it_belongs() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, [1; 4096]).unwrap();
    let file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    // SAFETY: a fresh shared mapping of a file of 4096 bytes, unmapped below.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        *map.cast::<u8>() = 9;
        assert_eq!(libc::msync(map, 4096, libc::MS_SYNC), 0);
        libc::munmap(map, 4096);
    }
    drop(file);
    volume.remount();
    let content = fs::read(&path).unwrap();
    assert_eq!((content.len(), content[0], content[1]), (4096, 9, 1));
}

#[test]
fn an_unlinked_open_file_keeps_its_content_until_it_is_closed() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "still here");
    file.set_len(5).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5);
    drop(file);
    volume.remount();
    assert!(!path.exists());
}

#[test]
fn truncating_up_and_down_leaves_zeros_and_no_old_bytes() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, vec![7; 10_000]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    file.set_len(5_000).unwrap();
    file.set_len(9_000).unwrap();
    let expected: Vec<u8> = (0..9_000).map(|i| if i < 5_000 { 7 } else { 0 }).collect();
    assert!(fs::read(&path).unwrap() == expected);
    drop(file);
    volume.remount();
    assert!(fs::read(&path).unwrap() == expected);
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "O_TRUNC");
}

#[test]
fn fallocate_allocates_punches_and_zeroes() {
    let Some(volume) = Volume::mounted("") else { return };
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(volume.path("f")).unwrap();
    fallocate(&file, 0, 0, 1 << 20).unwrap();
    let allocated = file.metadata().unwrap();
    assert_eq!((allocated.len(), allocated.blocks()), (1 << 20, 2048));
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);

    file.write_all_at(&[5; 65536], 0).unwrap();
    fallocate(&file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 4096, 8192).unwrap();
    fallocate(&file, libc::FALLOC_FL_ZERO_RANGE, 20_000, 1000).unwrap();
    let mut content = vec![1; 65536];
    file.read_exact_at(&mut content, 0).unwrap();
    for (at, byte) in content.iter().enumerate() {
        let hole = (4096..12288).contains(&at) || (20_000..21_000).contains(&at);
        assert_eq!(*byte, if hole { 0 } else { 5 }, "at {at}");
    }
    // The kernel's FUSE client passes no other mode on.
    assert_eq!(errno(fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
}

#[test]
fn seeking_finds_holes_and_data() {
    let Some(volume) = Volume::mounted("") else { return };
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(&[1; 8192], 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    for synced in [false, true] {
        if synced {
            file.sync_all().unwrap();
        }
        assert_eq!(lseek(&file, 0, libc::SEEK_DATA).unwrap(), 1 << 20);
        assert_eq!(lseek(&file, 0, libc::SEEK_HOLE).unwrap(), 0);
        assert_eq!(lseek(&file, 1 << 20, libc::SEEK_HOLE).unwrap(), (1 << 20) + 8192);
        assert_eq!(errno(lseek(&file, (1 << 20) + 8192, libc::SEEK_DATA)), libc::ENXIO);
        assert_eq!(errno(lseek(&file, 3 << 20, libc::SEEK_HOLE)), libc::ENXIO);
    }
}

#[test]
fn copy_file_range_copies_within_the_volume() {
    let Some(volume) = Volume::mounted("") else { return };
    let pattern: Vec<u8> = (0..200_000_u32).map(|i| (i / 13) as u8).collect();
    fs::write(volume.path("a"), &pattern).unwrap();
    let (from, to) = (File::open(volume.path("a")).unwrap(), File::create(volume.path("b")).unwrap());
    let (mut at, mut target) = (1000_i64, 0_i64);
    while at < 150_000 {
        let len = (150_000 - at) as usize;
        // SAFETY: both descriptors are open, both offsets valid.
        let copied = check(unsafe {
            libc::copy_file_range(from.as_raw_fd(), &mut at, to.as_raw_fd(), &mut target, len, 0)
        } as i64);
        assert!(copied.unwrap() > 0);
    }
    assert!(fs::read(volume.path("b")).unwrap() == pattern[1000..150_000]);
}

#[test]
fn direct_and_synchronous_writes_are_read_back() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    let mut open = OpenOptions::new();
    open.write(true).create(true);
    let direct = open.custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(&path).unwrap();
    direct.write_all_at(&[3; 5000], 100).unwrap();
    let synchronous = open.custom_flags(libc::O_SYNC).open(&path).unwrap();
    synchronous.write_all_at(&[4; 10], 0).unwrap();
    drop((direct, synchronous));
    volume.remount();
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 5100);
    assert_eq!((content[9], content[10], content[99], content[100], content[5099]), (4, 0, 0, 3, 3));
}

#[test]
fn statfs_tells_the_volumes_size_and_what_is_left() {
    let Some(volume) = Volume::mounted("") else { return };
    let free = || {
        // SAFETY: a zeroed statvfs is valid to be filled; the path is NUL-terminated.
        unsafe {
            let mut info: libc::statvfs = std::mem::zeroed();
            let path = crate::harness::c_path(&volume.root());
            assert_eq!(libc::statvfs(path.as_ptr(), &mut info), 0);
            assert_eq!((info.f_frsize, info.f_namemax), (4096, 255));
            assert!(info.f_blocks * 4096 <= crate::harness::VOLUME_BYTES && info.f_bavail <= info.f_bfree);
            info.f_bfree
        }
    };
    let before = free();
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    assert!(free() <= before - 256, "1 MiB is 256 blocks");
}

#[test]
fn times_are_set_and_kept_also_before_1970() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    File::create(&path).unwrap();
    let set = |accessed: (i64, i64), modified: (i64, i64)| {
        let time = |(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec };
        let times = [time(accessed), time(modified)];
        let path = crate::harness::c_path(&path);
        // SAFETY: a NUL-terminated path and an array of two timespecs.
        assert_eq!(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) }, 0);
    };
    for (accessed, modified) in
        [((5, 6), (1 << 33, 999_999_999)), ((-1, 1), (-86_401, 250_000_000)), ((i64::MIN, 0), (i64::MAX, 0))]
    {
        set(accessed, modified);
        volume.remount();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.atime(), metadata.atime_nsec()), accessed);
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), modified);
    }
}

#[test]
fn statistics_count_messages_and_syncs() {
    let Some(volume) = Volume::mounted("") else { return };
    let mut file = File::create(volume.path("f")).unwrap();
    for _ in 0..10 {
        file.write_all(&[0; 4096]).unwrap();
        file.sync_all().unwrap();
    }
    let text = syncline_fuse::statistics(&volume.root()).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(parsed["messages"]["fsync"], 10);
    assert_eq!(parsed["messages"]["write"], 10);
    assert_eq!(parsed["fsync_us"]["count"], 10);
    // One for the directory's default ACL when the file is created, none for the writes.
    assert!(parsed["messages"]["getxattr"].as_u64().unwrap_or(0) <= 1, "{text}");
    assert!(parsed["device"]["flushes"].as_u64().unwrap() >= 10);
}

/// Messages that `act` costs.
fn messages_of(volume: &Volume, act: impl FnOnce()) -> Vec<(String, u64)> {
    let told = || crate::harness::statistics(&volume.root())["messages"].clone();
    let before = told();
    act();
    let after = told();
    let after = after.as_object().unwrap().iter().filter(|(name, _)| *name != "ioctl");
    let cost = after
        .map(|(name, count)| (name.clone(), count.as_u64().unwrap() - before[name].as_u64().unwrap_or(0)));
    cost.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_file_that_is_made_written_and_synced_costs_no_message_more_than_the_kernel_asks_for() {
    for (options, questions) in [("", 1), ("direct_writes", 0)] {
        let Some(volume) = Volume::mounted(options) else { return };
        let make = |name: &str| {
            let mut file = File::create(volume.path(name)).unwrap();
            // A constant lies in the program's file, which the kernel may drop: it splits a write where a page is
            // missing.
            file.write_all(&vec![1; 5000]).unwrap();
            file.sync_all().unwrap();
        };
        // FLUSH is declined once.
        make("first");
        let cost = messages_of(&volume, || {
            for name in ["a", "b", "c", "d"] {
                make(name);
            }
        });
        let count = |name: &str| cost.iter().find(|(found, _)| found == name).map_or(0, |(_, count)| *count);
        assert_eq!((count("lookup"), count("create"), count("write"), count("fsync")), (4, 4, 4, 4));
        assert_eq!(count("getxattr"), 4 * questions, "{cost:?}");
        assert_eq!(count("flush") + count("setattr") + count("opendir") + count("statx"), 0, "{cost:?}");
        assert!(count("getattr") <= 4, "{cost:?}");
        assert!(fs::read(volume.path("c")).unwrap() == [1; 5000]);
        // A known file, an absent name and attributes are not asked for again.
        let again = messages_of(&volume, || {
            for _ in 0..3 {
                fs::metadata(volume.path("b")).unwrap();
                assert!(!volume.path("absent").exists());
            }
        });
        let total: u64 = again.iter().map(|(_, count)| count).sum();
        assert!(total <= 4, "{again:?}");
    }
}
