//! What users of one mount do to each other's files: what is left of set-id bits, and whether the kernel knows.
//!
//! `tests/workloads/users.sh` compares far more of this with ext4.

use crate::harness::{Volume, as_member, as_user, c_path, check, fallocate, messages, skipped, wait_until};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells who it runs as.
const PROGRAM: &str = "/usr/bin/id";
const USER: u32 = 4242;
const SET_FLAGS: libc::c_ulong = 0x4008_6602;

type Change = fn(&Path) -> io::Result<()>;

/// A program of root's that everybody may write to, and that the kernel has in its caches.
fn set_id_program(volume: &Volume, name: &str, mode: u32) -> PathBuf {
    let path = volume.path(name);
    fs::copy(PROGRAM, &path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    assert_eq!(runs_as(&path, "-u"), if mode & 0o4000 != 0 { "0" } else { "77" });
    path
}

/// The user or group that a third user's run of it acts for.
fn runs_as(path: &Path, option: &str) -> String {
    let mut output = None;
    // A child that another test has just forked may still have inherited a descriptor that writes to it.
    wait_until("the program is not written to", || {
        match Command::new(path).arg0("id").arg(option).uid(77).gid(77).output() {
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {}
            ran => output = Some(ran.unwrap()),
        }
        output.is_some()
    });
    String::from_utf8(output.expect("it ran").stdout).unwrap().trim().to_owned()
}

fn has_program(test: &str) -> bool {
    let found = Path::new(PROGRAM).exists();
    if !found {
        skipped(test, "there is no /usr/bin/id");
    }
    found
}

/// Mode and time of change: as the kernel knows them without asking (`DONT_SYNC`), as `stat` shows them (0), or asked
/// anew.
fn attributes(path: &Path, how: libc::c_int) -> (u32, i64, u32) {
    let path = c_path(path);
    // SAFETY: zero is a valid statx buffer.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (at, flags) = (libc::AT_FDCWD, how | libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: a NUL-terminated path and a buffer of the right type.
    let result = unsafe { libc::statx(at, path.as_ptr(), flags, libc::STATX_BASIC_STATS, &mut found) };
    check(i64::from(result)).unwrap();
    (u32::from(found.stx_mode), found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec)
}

fn open_with(path: &Path, flags: libc::c_int) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(flags).open(path)
}

fn program() -> Vec<u8> {
    fs::read(PROGRAM).unwrap()
}

fn write(path: &Path) -> io::Result<()> {
    open_with(path, 0)?.write_all_at(&program(), 0)
}

fn append(path: &Path) -> io::Result<()> {
    use std::io::Write;
    OpenOptions::new().append(true).open(path)?.write_all(b"more")
}

fn write_directly(path: &Path) -> io::Result<()> {
    let content = program();
    let file = open_with(path, libc::O_DIRECT)?;
    // O_DIRECT wants aligned memory.
    // SAFETY: a fresh private mapping of one page, filled from a longer buffer and unmapped after its use.
    let written = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(content.as_ptr(), page.cast(), 4096);
        let written = libc::pwrite(file.as_raw_fd(), page, 4096, 0);
        libc::munmap(page, 4096);
        written
    };
    check(written as i64).map(drop)
}

fn write_durably(path: &Path) -> io::Result<()> {
    open_with(path, libc::O_DSYNC)?.write_all_at(&program(), 0)
}

fn write_anew(path: &Path) -> io::Result<()> {
    open_with(path, libc::O_TRUNC)?.write_all_at(&program(), 0)
}

fn lengthen(path: &Path) -> io::Result<()> {
    open_with(path, 0)?.set_len(1 << 20)
}

fn allocate(path: &Path) -> io::Result<()> {
    fallocate(&open_with(path, 0)?, libc::FALLOC_FL_KEEP_SIZE, 1 << 20, 4096)
}

fn copy_over(path: &Path) -> io::Result<()> {
    let (from, to) = (File::open(path.with_extension("source"))?, open_with(path, 0)?);
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open, and no offset is handed over.
    let copied = unsafe { libc::copy_file_range(from.as_raw_fd(), none, to.as_raw_fd(), none, 1 << 20, 0) };
    check(copied as i64).map(drop)
}

#[test]
fn a_program_that_another_user_has_changed_runs_as_who_runs_it() {
    let changes: [(&str, Change); 8] = [
        ("write", write),
        ("append", append),
        ("O_DIRECT", write_directly),
        ("O_DSYNC", write_durably),
        ("O_TRUNC", write_anew),
        ("truncate", lengthen),
        ("fallocate", allocate),
        ("copy_file_range", copy_over),
    ];
    if !has_program("a_program_that_another_user_has_changed_runs_as_who_runs_it") {
        return;
    }
    for options in ["", "direct_writes", "writeback_cache"] {
        let Some(volume) = Volume::mounted(options) else { return };
        for (name, change) in changes {
            let path = set_id_program(&volume, name, 0o6777);
            fs::copy(PROGRAM, path.with_extension("source")).unwrap();
            assert_eq!(as_user(USER, USER, || change(&path)), 0, "{name}, {options}");
            // A run that began before the change has asked already, and goes by what the kernel knows.
            let known = attributes(&path, libc::AT_STATX_DONT_SYNC).0;
            assert_eq!(known & 0o7777, 0o777, "{name}, {options}: as the kernel knows it");
            assert_eq!(runs_as(&path, "-u"), "77", "{name}, {options}");
            assert_eq!(runs_as(&path, "-g"), "77", "{name}, {options}");
            assert_eq!(attributes(&path, 0).0 & 0o7777, 0o777, "{name}, {options}");
        }
    }
}

#[test]
fn a_program_that_root_has_changed_keeps_its_bits() {
    if !has_program("a_program_that_root_has_changed_keeps_its_bits") {
        return;
    }
    let Some(volume) = Volume::mounted("") else { return };
    for (name, change) in [("write", write as Change), ("O_DIRECT", write_directly), ("O_TRUNC", write_anew)]
    {
        let path = set_id_program(&volume, name, 0o6777);
        change(&path).unwrap();
        assert_eq!((runs_as(&path, "-u"), runs_as(&path, "-g")), ("0".to_owned(), "0".to_owned()), "{name}");
    }
}

#[test]
fn writes_of_other_files_are_not_announced() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, b"").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    let before = messages(&volume.root(), "setattr");
    let written = as_user(USER, USER, || {
        let file = open_with(&path, 0)?;
        (0..100).try_for_each(|at| file.write_all_at(b"x", at).and_then(|()| file.sync_data()))
    });
    assert_eq!(written, 0);
    assert_eq!(messages(&volume.root(), "setattr"), before);
}

#[test]
fn the_time_of_change_of_flags_is_seen_at_once() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, b"x").unwrap();
    let before = attributes(&path, 0);
    let file = File::open(&path).unwrap();
    let mut flags: libc::c_long = 0x40;
    // SAFETY: FS_IOC_SETFLAGS reads an int.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), SET_FLAGS, &mut flags) }, 0);
    let after = attributes(&path, 0);
    assert!(after > before, "{after:?}, {before:?}");
    assert_eq!(after, attributes(&path, libc::AT_STATX_FORCE_SYNC));
}

fn make(path: &Path, kind: u32) {
    let name = c_path(path);
    let made = match kind {
        // SAFETY: a NUL-terminated path.
        libc::S_IFDIR => unsafe { libc::mkdir(name.as_ptr(), 0o700) },
        // SAFETY: as above.
        _ => unsafe { libc::mknod(name.as_ptr(), kind | 0o600, libc::makedev(1, 3)) },
    };
    assert_eq!(made, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_new_owner_or_group_takes_set_id_bits_off_whatever_has_them() {
    const GROUP: u32 = 4300;
    let Some(volume) = Volume::mounted("") else { return };
    let kinds = [libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK, libc::S_IFDIR];
    for (at, kind) in kinds.into_iter().enumerate() {
        let path = volume.path(&at.to_string());
        make(&path, kind);
        let kept = |mode: u32, left: u32| if kind == libc::S_IFDIR { mode } else { left };
        let check = |mode: u32, group: u32, owners: Option<Option<u32>>, left: u32, what: &str| {
            chown(&path, Some(USER), Some(group)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let before = attributes(&path, 0);
            match owners {
                Some(to) => {
                    assert_eq!(as_member(USER, USER, &[GROUP], || chown(&path, None, to)), 0, "{what}")
                }
                None => chown(&path, Some(9), None).unwrap(),
            }
            let after = attributes(&path, 0);
            let says = format!("{kind:o} {mode:o} of group {group}, {what}");
            assert_eq!(after.0 & 0o7777, kept(mode, left), "{says}");
            assert!((after.1, after.2) > (before.1, before.2), "{says}: time of change");
        };
        for mode in [0o6555, 0o6777] {
            check(mode, USER, None, mode & 0o777, "by root");
            check(mode, USER, Some(Some(USER)), mode & 0o777, "by its owner, the same group");
            check(mode, USER, Some(Some(GROUP)), mode & 0o777, "by its owner");
            check(mode, USER, Some(None), mode & 0o777, "by its owner, to nothing");
        }
        if kind != libc::S_IFDIR {
            check(0o6777, USER, Some(Some(GROUP)), 0o777, "set-id bits for the next lines");
            fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
            assert_eq!(as_user(9, 9, || chown(&path, None, None)), libc::EPERM, "{kind:o}: by a stranger");
            assert_eq!(attributes(&path, 0).0 & 0o7777, 0o6777, "{kind:o}: by a stranger");
        }
        // Mandatory locking: only who is in the group may leave it on.
        check(0o2644, USER, None, 0o2644, "by root");
        check(0o2644, USER, Some(Some(GROUP)), 0o2644, "by a member");
        check(0o2644, GROUP, Some(Some(USER)), 0o2644, "by a member of others");
        check(0o2644, 999, Some(Some(USER)), 0o644, "by its owner, who is not in its group");
    }
}

#[test]
fn who_is_not_in_the_group_takes_the_groups_bit_off_by_writing() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    for (group, groups, left) in
        [(USER, &[][..], 0o2767), (4300, &[4300][..], 0o2767), (4300, &[][..], 0o767)]
    {
        for change in
            [|path: &Path| open_with(path, 0)?.write_all_at(b"x", 0), write_a_byte_durably, allocate, shorten]
        {
            fs::write(&path, b"content").unwrap();
            chown(&path, Some(0), Some(group)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o2767)).unwrap();
            assert_eq!(as_member(USER, USER, groups, || change(&path)), 0);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, left, "{group}, {groups:?}");
        }
    }
}

fn write_a_byte_durably(path: &Path) -> io::Result<()> {
    open_with(path, libc::O_DSYNC)?.write_all_at(b"y", 0)
}

fn shorten(path: &Path) -> io::Result<()> {
    open_with(path, 0)?.set_len(3)
}
