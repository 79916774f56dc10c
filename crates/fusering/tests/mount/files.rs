//! What programs do with files, on the example filesystem.

use crate::filesystem::{BACKWARDS, MemoryFilesystem, config};
use crate::harness::{Mounted, Test, c_path, check, errno, over_both_transports, wait_until};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

over_both_transports!(
    content_of_any_size_comes_back,
    directories_list_all_names,
    names_are_moved_linked_and_removed,
    times_before_1970_and_of_birth_are_kept,
    files_without_a_name_get_one,
    attributes_of_any_size_are_kept,
    holes_are_made_and_found,
    ranges_are_copied,
    ioctls_carry_data_both_ways,
    writing_clears_set_id_bits,
    the_umask_is_applied_once,
    nodes_are_forgotten,
    many_clients_at_once,
    data_goes_past_the_page_cache,
);

fn mounted(test: &Test) -> Option<Mounted<MemoryFilesystem>> {
    test.mount(MemoryFilesystem::new(), config())
}

/// Bytes that tell their place.
fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

fn content_of_any_size_comes_back(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    for (number, bytes) in [0, 1, 4095, 4096, 4097, 131_072, 1 << 20, (3 << 20) + 17].into_iter().enumerate()
    {
        let path = mount.path(&format!("file{number}"));
        let data = pattern(bytes, number as u32);
        fs::write(&path, &data).expect("write");
        let file = File::open(&path).expect("open");
        file.sync_all().expect("sync");
        // Out of the page cache, so that the filesystem is asked.
        // SAFETY: an open descriptor.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        assert!(fs::read(&path).expect("read") == data, "{bytes} bytes");
        assert_eq!(fs::metadata(&path).expect("stat").len(), bytes as u64);
    }
    let mut file = File::options().append(true).read(true).open(mount.path("file1")).expect("open");
    file.write_all(b"appended").expect("append");
    file.set_len(5).expect("truncate");
    file.seek(SeekFrom::Start(1)).expect("seek");
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "appe");
}

fn directories_list_all_names(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let mut expected = Vec::new();
    for number in 0..1500 {
        let name = format!("{number}-{}", "n".repeat(number % 200));
        File::create(mount.path(&name)).expect("create");
        expected.push(name);
    }
    let list = || {
        let entries = fs::read_dir(mount.root()).expect("open").map(|entry| entry.expect("entry"));
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().expect("text")).collect();
        names.sort();
        names
    };
    expected.sort();
    assert_eq!(list(), expected);
    for entry in fs::read_dir(mount.root()).expect("open") {
        let entry = entry.expect("entry");
        assert!(entry.metadata().expect("stat").is_file());
        fs::remove_file(entry.path()).expect("remove");
    }
    assert!(list().is_empty());
}

fn rename_with(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: NUL-terminated paths.
    let result =
        unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) };
    check(i64::from(result)).map(drop)
}

fn names_are_moved_linked_and_removed(test: &Test) {
    let Some(mut mount) = mounted(test) else { return };
    let [a, b, dir] = ["a", "b", "dir"].map(|name| mount.path(name));
    fs::write(&a, "a").expect("write");
    fs::write(&b, "b").expect("write");
    fs::create_dir(&dir).expect("mkdir");
    assert_eq!(errno(rename_with(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename_with(&a, &b, libc::RENAME_EXCHANGE).expect("exchange");
    assert_eq!(fs::read_to_string(&a).expect("read"), "b");
    fs::rename(&a, dir.join("c")).expect("move");
    assert_eq!(errno(fs::remove_dir(&dir)), libc::ENOTEMPTY);
    fs::hard_link(dir.join("c"), &a).expect("link");
    assert_eq!(fs::metadata(&a).expect("stat").nlink(), 2);
    symlink("dir/c", mount.path("link")).expect("symlink");
    assert_eq!(fs::read_link(mount.path("link")).expect("readlink"), Path::new("dir/c"));
    assert_eq!(fs::read_to_string(mount.path("link")).expect("read"), "b");
    fs::remove_file(dir.join("c")).expect("unlink");
    fs::remove_dir(&dir).expect("rmdir");
    assert_eq!(errno(fs::metadata(&dir)), libc::ENOENT);
    assert_eq!(errno(File::create(mount.path(&"x".repeat(256)))), libc::ENAMETOOLONG);
    mount.unmount();
    assert_eq!(errno(fs::metadata(&b)), libc::ENOENT);
}

fn times_before_1970_and_of_birth_are_kept(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let path = mount.path("old");
    File::create(&path).expect("create");
    let time = |seconds, nanoseconds| libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = [time(-2, 250_000_000), time(-4_000_000_000, 1)];
    let name = c_path(&path);
    // SAFETY: a NUL-terminated path and two times.
    let set = unsafe { libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), 0) };
    check(i64::from(set)).expect("utimensat");
    // SAFETY: a zeroed statx is valid, and the call fills it in.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
        let flags = libc::AT_STATX_FORCE_SYNC;
        check(i64::from(libc::statx(libc::AT_FDCWD, name.as_ptr(), flags, mask, &raw mut stat)))
            .expect("statx");
        stat
    };
    assert_eq!((stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec), (-2, 250_000_000));
    assert_eq!((stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec), (-4_000_000_000, 1));
    assert_ne!(stat.stx_mask & libc::STATX_BTIME, 0, "the time of birth is told");
    assert_ne!(stat.stx_btime.tv_sec, 0);
}

fn files_without_a_name_get_one(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let mut options = File::options();
    options.read(true).write(true).mode(0o640).custom_flags(libc::O_TMPFILE);
    let file = options.open(mount.root()).expect("open without a name");
    file.write_all_at(b"later", 0).expect("write");
    assert_eq!(file.metadata().expect("stat").nlink(), 0);
    let from = c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    let to = c_path(&mount.path("named"));
    // SAFETY: NUL-terminated paths.
    let linked = unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    check(i64::from(linked)).expect("linkat");
    assert_eq!(fs::read_to_string(mount.path("named")).expect("read"), "later");
}

fn setxattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c_path(path), c_path(Path::new(name)));
    // SAFETY: NUL-terminated strings and a valid value.
    let set =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    check(i64::from(set)).map(drop)
}

fn getxattr(path: &Path, name: &str, into: &mut [u8]) -> io::Result<usize> {
    let (path, name) = (c_path(path), c_path(Path::new(name)));
    // SAFETY: NUL-terminated strings and a valid buffer.
    let got = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), into.as_mut_ptr().cast(), into.len()) };
    check(got as i64).map(|bytes| bytes as usize)
}

fn attributes_of_any_size_are_kept(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let path = mount.path("a");
    File::create(&path).expect("create");
    for bytes in [0, 1, 4096, 65_536] {
        let value = pattern(bytes, 3);
        setxattr(&path, "user.a", &value, 0).expect("set");
        assert_eq!(getxattr(&path, "user.a", &mut []).expect("size"), bytes);
        let mut got = vec![0; bytes.max(1)];
        assert_eq!(getxattr(&path, "user.a", &mut got).expect("value"), bytes);
        assert!(got[..bytes] == value);
        if bytes > 1 {
            assert_eq!(errno(getxattr(&path, "user.a", &mut got[..bytes - 1])), libc::ERANGE);
        }
    }
    assert_eq!(errno(setxattr(&path, "user.a", b"", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(setxattr(&path, "user.b", b"", libc::XATTR_REPLACE)), libc::ENODATA);
    assert_eq!(errno(getxattr(&path, "user.b", &mut [])), libc::ENODATA);
    setxattr(&path, "user.b", b"x", 0).expect("set");
    let mut names = [0_u8; 64];
    let name = c_path(&path);
    // SAFETY: a NUL-terminated path and a valid buffer.
    let bytes = unsafe { libc::listxattr(name.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    let bytes = check(bytes as i64).expect("list") as usize;
    assert_eq!(&names[..bytes], b"user.a\0user.b\0");
}

fn holes_are_made_and_found(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("a")).expect("create");
    file.write_all_at(&pattern(64 << 10, 1), 0).expect("write");
    let allocate = |mode, offset, len| {
        // SAFETY: an open descriptor.
        check(i64::from(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) }))
    };
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(punch, 8192, 16_384).expect("punch");
    assert_eq!(errno(allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)), libc::EOPNOTSUPP);
    // SAFETY: an open descriptor.
    let seek = |at, whence| check(unsafe { libc::lseek(file.as_raw_fd(), at, whence) });
    assert_eq!(seek(0, libc::SEEK_HOLE).expect("hole"), 8192);
    assert_eq!(seek(8192, libc::SEEK_DATA).expect("data"), 24_576);
    assert_eq!(seek(24_576, libc::SEEK_HOLE).expect("end"), 65_536);
    assert_eq!(errno(seek(65_536, libc::SEEK_DATA)), libc::ENXIO);
    let mut middle = [1; 16_384];
    file.read_exact_at(&mut middle, 8192).expect("read");
    assert!(middle.iter().all(|byte| *byte == 0));
    allocate(0, 0, 100_000).expect("allocate");
    assert_eq!(file.metadata().expect("stat").len(), 100_000);
}

fn ranges_are_copied(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let data = pattern(3 << 20, 5);
    fs::write(mount.path("from"), &data).expect("write");
    let from = File::open(mount.path("from")).expect("open");
    let to = File::options().read(true).write(true).create_new(true).open(mount.path("to")).expect("create");
    let (mut at_from, mut at_to) = (100_i64, 7_i64);
    let end = data.len() as i64;
    while at_from < end {
        let left = (end - at_from) as usize;
        // SAFETY: open descriptors and valid offsets.
        let copied = unsafe {
            libc::copy_file_range(from.as_raw_fd(), &raw mut at_from, to.as_raw_fd(), &raw mut at_to, left, 0)
        };
        assert!(check(copied as i64).expect("copy") > 0);
    }
    let copy = fs::read(mount.path("to")).expect("read");
    assert_eq!(copy.len(), data.len() - 100 + 7);
    assert!(copy[7..] == data[100..]);
}

fn ioctls_carry_data_both_ways(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let file = File::create(mount.path("a")).expect("create");
    let mut data = *b"0123456789abcdef";
    // SAFETY: the number says that 16 bytes go in and out.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(BACKWARDS), data.as_mut_ptr()) };
    check(i64::from(result)).expect("ioctl");
    assert_eq!(&data, b"fedcba9876543210");
    let directory = File::open(mount.root()).expect("open");
    // SAFETY: as above, on a directory.
    let result =
        unsafe { libc::ioctl(directory.as_raw_fd(), libc::Ioctl::from(BACKWARDS), data.as_mut_ptr()) };
    check(i64::from(result)).expect("ioctl of a directory");
    assert_eq!(&data, b"0123456789abcdef");
    // SAFETY: unknown to the filesystem, which touches nothing.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), 0x1234, data.as_mut_ptr()) };
    assert_eq!(errno(check(i64::from(result))), libc::ENOTTY);
}

/// Runs `action` on a thread that has no privileges towards filesystems.
fn unprivileged<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: concerns this thread only, which ends soon.
            unsafe {
                libc::setfsgid(12_345);
                libc::setfsuid(12_345);
            }
            action()
        });
        thread.join().expect("no panic")
    })
}

fn writing_clears_set_id_bits(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let path = mount.path("a");
    fs::write(&path, "content").expect("write");
    let mode = || fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
    let set = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
    set();
    File::options().write(true).open(&path).expect("open").write_all(b"x").expect("write");
    assert_eq!(mode(), 0o6777, "root may keep them");
    unprivileged(|| File::options().write(true).open(&path).expect("open").write_all(b"y").expect("write"));
    assert_eq!(mode(), 0o777);
    set();
    unprivileged(|| File::options().write(true).open(&path).expect("open").set_len(3).expect("truncate"));
    assert_eq!(mode(), 0o777);
    set();
    unprivileged(|| drop(File::options().write(true).truncate(true).open(&path).expect("open")));
    assert_eq!(mode(), 0o777);
}

fn the_umask_is_applied_once(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o666).open(mount.path("a")).expect("create");
    // SAFETY: reads the mask by setting it to what it is; tests of this process do not change it.
    let umask = unsafe {
        let umask = libc::umask(0o22);
        libc::umask(umask);
        umask
    };
    let mode = fs::metadata(mount.path("a")).expect("stat").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o666 & !umask);
}

fn nodes_are_forgotten(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    for number in 0..200 {
        let path = mount.path(&format!("a{number}"));
        fs::write(&path, "x").expect("write");
        fs::remove_file(&path).expect("remove");
    }
    wait_until("only the root is left", || mount.filesystem.nodes() == 1);
}

fn many_clients_at_once(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    std::thread::scope(|scope| {
        for client in 0..16_u32 {
            let mount = &mount;
            scope.spawn(move || {
                let directory = mount.path(&format!("client{client}"));
                fs::create_dir(&directory).expect("mkdir");
                for round in 0..40 {
                    let (path, moved) = (directory.join("a"), directory.join("b"));
                    let data = pattern(1 + (round * 977) % 20_000, client);
                    let mut file = File::create(&path).expect("create");
                    file.write_all(&data).expect("write");
                    file.sync_all().expect("sync");
                    drop(file);
                    fs::rename(&path, &moved).expect("rename");
                    assert!(fs::read(&moved).expect("read") == data);
                }
            });
        }
    });
    assert_eq!(fs::read_dir(mount.root()).expect("open").count(), 16);
}

fn data_goes_past_the_page_cache(test: &Test) {
    let Some(mount) = mounted(test) else { return };
    let mut options = File::options();
    options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
    let file = options.open(mount.path("a")).expect("open");
    let data = pattern(2 << 20, 9);
    file.write_all_at(&data, 0).expect("write");
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).expect("read");
    assert!(back == data);
}
