//! Files without names, times of birth, file handles: what a filesystem is asked for beside reading and writing.

use crate::harness::{Volume, c_path, check, errno, statistics};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

fn nameless(directory: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE | flags).open(directory)
}

/// Gives an open file a name, as linkat(2) describes it.
fn link_open(file: &File, to: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL");
    let to = c_path(to);
    // SAFETY: both paths are NUL-terminated.
    let linked = unsafe {
        libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
    };
    check(i64::from(linked)).map(drop)
}

#[test]
fn a_file_without_a_name_gets_one_with_its_content_or_leaves_nothing() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    let mut file = nameless(&volume.path("d"), 0).unwrap();
    file.write_all(&[9; 10_000]).unwrap();
    assert_eq!(fs::read_dir(volume.path("d")).unwrap().count(), 0);
    link_open(&file, &volume.path("d/f")).unwrap();
    assert_eq!(errno(link_open(&file, &volume.path("d/f"))), libc::EEXIST);
    file.sync_all().unwrap();
    let mut lost = nameless(&volume.path("d"), 0).unwrap();
    lost.write_all(b"never linked").unwrap();
    lost.sync_all().unwrap();
    let exclusive = nameless(&volume.path("d"), libc::O_EXCL).unwrap();
    assert_eq!(errno(link_open(&exclusive, &volume.path("d/g"))), libc::ENOENT);
    drop((file, lost, exclusive));
    volume.crash();
    assert!(fs::read(volume.path("d/f")).unwrap() == [9; 10_000]);
    assert_eq!(fs::read_dir(volume.path("d")).unwrap().count(), 1);
}

#[test]
fn the_time_of_birth_is_told_and_stays() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let before = SystemTime::now() - Duration::from_secs(1);
    let file = File::create(volume.path("f")).unwrap();
    let born = fs::metadata(volume.path("f")).unwrap().created().unwrap();
    assert!(born >= before && born <= SystemTime::now());
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    drop(file);
    fs::write(volume.path("f"), b"rewritten").unwrap();
    fs::rename(volume.path("f"), volume.path("g")).unwrap();
    volume.remount();
    let metadata = fs::metadata(volume.path("g")).unwrap();
    assert_eq!(metadata.created().unwrap(), born);
    // The kernel keeps it as it keeps the other attributes.
    let asked = |volume: &Volume| statistics(&volume.root())["messages"]["statx"].as_u64().unwrap_or(0);
    let once = asked(&volume);
    fs::metadata(volume.path("g")).unwrap();
    assert_eq!(asked(&volume), once);
}

/// A file handle as name_to_handle_at(2) gives it.
#[repr(C)]
struct FileHandle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> FileHandle {
    let mut handle = FileHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let (path, mut mount) = (c_path(path), 0);
    // SAFETY: the structure has the layout of struct file_handle with room for 128 bytes, and says so.
    let got = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    check(got).expect("a file handle");
    handle
}

fn open_handle(mount: &File, handle: &mut FileHandle) -> io::Result<File> {
    // SAFETY: as above; the descriptor is open.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw mut *handle, libc::O_RDONLY)
    })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

#[test]
fn file_handles_of_nfs_servers_lead_to_their_files_after_a_remount() {
    let Some(mut volume) = Volume::mounted("") else { return };
    fs::create_dir_all(volume.path("a/b")).unwrap();
    fs::write(volume.path("a/b/f"), b"content").unwrap();
    fs::write(volume.path("gone"), b"x").unwrap();
    let mut file = handle_of(&volume.path("a/b/f"));
    let mut directory = handle_of(&volume.path("a/b"));
    let mut gone = handle_of(&volume.path("gone"));
    fs::remove_file(volume.path("gone")).unwrap();
    volume.remount();
    let mount = File::open(volume.root()).unwrap();
    let opened = open_handle(&mount, &mut file).unwrap();
    assert_eq!(io::read_to_string(opened).unwrap(), "content");
    // A directory is found together with those above it, which the kernel asks for as "..".
    let opened = open_handle(&mount, &mut directory).unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert_eq!(path, volume.path("a/b"));
    assert_eq!(errno(open_handle(&mount, &mut gone)), libc::ESTALE);
    drop((opened, mount));
}
