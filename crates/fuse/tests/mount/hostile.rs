//! What one user can do to others through the mount, or to whoever mounts: names and space that a group holds, the
//! shutdown, the daemon's own rights, what it opens.

use crate::atomic::{BEGIN, GROUP_ABORT, GROUP_COMMIT, JOIN, begin, group, open, with_number};
use crate::harness::{
    VOLUME_BYTES, Volume, allow_transport, as_user, c_path, can_mount, check, errno, has_begun, is_mounted,
    listxattr, renameat2, server, setxattr, skipped, statistics, wait_until, with_transport,
};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const USER: u32 = 1000;
const OTHER: u32 = 1001;

fn allow_all(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Others reach the mount.
fn open_to_all(volume: &Volume) {
    allow_all(volume.root().parent().unwrap(), 0o755);
    allow_all(&volume.root(), 0o1777);
}

/// A group of root's that has renamed `f` to `g` in a sticky directory, and `theirs` of another user's.
fn with_a_vacated_name() -> Option<(Volume, File, u64)> {
    let volume = Volume::mounted("commit=1000,allow_other")?;
    open_to_all(&volume);
    fs::write(volume.path("f"), "root's").unwrap();
    fs::write(volume.path("theirs"), "theirs").unwrap();
    chown(volume.path("theirs"), Some(USER), Some(USER)).unwrap();
    let file = open(volume.path("f"));
    let token = begin(&file);
    group(&file, JOIN, token).unwrap();
    fs::rename(volume.path("f"), volume.path("g")).unwrap();
    assert!(!volume.path("f").exists() && volume.path("g").exists());
    Some((volume, file, token))
}

#[test]
fn nothing_is_renamed_over_a_name_that_a_group_has_taken_away() {
    let Some((volume, file, token)) = with_a_vacated_name() else { return };
    let (theirs, vacated, given) = (volume.path("theirs"), volume.path("f"), volume.path("g"));
    assert_eq!(as_user(USER, USER, || fs::rename(&theirs, &vacated)), libc::EBUSY);
    assert_eq!(as_user(USER, USER, || renameat2(&theirs, &vacated, libc::RENAME_NOREPLACE)), libc::EBUSY);
    assert_eq!(as_user(USER, USER, || File::create(&vacated).map(drop)), libc::EBUSY);
    assert_eq!(as_user(USER, USER, || fs::create_dir(&vacated)), libc::EBUSY);
    assert_eq!(as_user(USER, USER, || fs::hard_link(&theirs, &vacated)), libc::EBUSY);
    // The group's own user, with what is no part of the group.
    assert_eq!(errno(fs::rename(&theirs, &vacated)), libc::EBUSY);
    assert_eq!(errno(fs::rename(&theirs, &given)), libc::EBUSY);
    assert_eq!(errno(renameat2(&theirs, &given, libc::RENAME_EXCHANGE)), libc::EBUSY);
    fs::create_dir(volume.path("directory")).unwrap();
    assert_eq!(errno(fs::rename(volume.path("directory"), &vacated)), libc::EBUSY);
    group(&file, GROUP_COMMIT, token).expect("nobody has changed its names");
    assert_eq!(fs::read(&given).unwrap(), b"root's");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    assert_eq!(as_user(USER, USER, || fs::rename(&theirs, &vacated)), 0, "the name is free now");
}

#[test]
fn who_may_not_replace_a_file_may_not_after_a_group_either() {
    let Some((volume, file, token)) = with_a_vacated_name() else { return };
    let (theirs, vacated) = (volume.path("theirs"), volume.path("f"));
    // As part of a group of his own.
    let in_a_group = || {
        let joined = OpenOptions::new().write(true).open(&theirs)?;
        let mut token = 0;
        with_number(&joined, BEGIN, &mut token)?;
        group(&joined, JOIN, token)?;
        let replaced = fs::rename(&theirs, &vacated);
        group(&joined, GROUP_COMMIT, token)?;
        replaced
    };
    assert_eq!(as_user(USER, USER, in_a_group), libc::EBUSY);
    group(&file, GROUP_ABORT, token).unwrap();
    assert_eq!(as_user(USER, USER, || fs::rename(&theirs, &vacated)), libc::EPERM, "the sticky bit");
    assert_eq!(as_user(USER, USER, in_a_group), libc::EPERM);
    assert_eq!(fs::read(&vacated).unwrap(), b"root's");
    assert_eq!((file.metadata().unwrap().nlink(), volume.path("g").exists()), (1, false));
}

#[test]
fn what_others_do_to_a_name_that_a_group_has_given_is_not_done_to_the_file_below() {
    let Some(volume) = Volume::mounted("commit=1000,allow_other") else { return };
    open_to_all(&volume);
    fs::create_dir(volume.path("d")).unwrap();
    allow_all(&volume.path("d"), 0o777);
    fs::write(volume.path("d/name"), "old").unwrap();
    let file = open(volume.path("d/new"));
    let token = begin(&file);
    group(&file, JOIN, token).unwrap();
    fs::rename(volume.path("d/new"), volume.path("d/name")).unwrap();
    let (name, away) = (volume.path("d/name"), volume.path("d/away"));
    assert_eq!(as_user(USER, USER, || fs::remove_file(&name)), libc::EBUSY);
    assert_eq!(as_user(USER, USER, || fs::rename(&name, &away)), libc::EBUSY);
    group(&file, GROUP_ABORT, token).unwrap();
    assert_eq!(fs::read(&name).unwrap(), b"old");
    assert_eq!(as_user(USER, USER, || fs::remove_file(&name)), 0);
}

#[test]
fn a_users_groups_are_limited_shown_and_end_with_the_process() {
    let Some(volume) = Volume::mounted("commit=1000,allow_other") else { return };
    open_to_all(&volume);
    let staged = |what: &str| statistics(&volume.root())["staged"][what].as_u64().unwrap();
    let own = open(volume.path("own"));
    for _ in 0..3 {
        begin(&own);
    }
    assert_eq!((staged("users"), staged("groups")), (1, 3));
    let path = |number: usize| volume.path(&format!("f{number}"));
    let as_many_as_there_can_be = || {
        let files: Vec<File> = (0..17).map(|number| File::create(path(number))).collect::<io::Result<_>>()?;
        let mut token = 0;
        let begun = files.iter().flat_map(|file| std::iter::repeat_n(file, 64));
        let begun = begun.take_while(|file| with_number(file, BEGIN, &mut token).is_ok()).count();
        assert_eq!(begun, 1024);
        with_number(&files[16], BEGIN, &mut token)
    };
    assert_eq!(as_user(USER, USER, as_many_as_there_can_be), libc::EAGAIN);
    wait_until("the end of the user's groups", || staged("groups") == 3);
    begin(&own);
    drop(own);
    wait_until("the end of all groups", || staged("users") == 0 && staged("groups_not_settled") == 0);
}

#[test]
fn a_user_stages_half_of_what_is_free_and_others_have_the_rest() {
    let Some(volume) = Volume::mounted("commit=1000,allow_other") else { return };
    open_to_all(&volume);
    let number = |part: &str, what: &str| statistics(&volume.root())[part][what].as_u64().unwrap();
    let charged = || statistics(&volume.root())["charged_bytes"].as_u64().unwrap();
    let available = number("space", "blocks_available");
    let path = volume.path("staged");
    let stage_all = || {
        let file = File::create(&path)?;
        let mut token = 0;
        with_number(&file, BEGIN, &mut token)?;
        group(&file, JOIN, token)?;
        let mut offset = 0;
        let result = loop {
            if let Err(error) = file.write_all_at(&[1; 65536], offset) {
                break Err(error);
            }
            offset += 65536;
        };
        let reserved = number("staged", "reserved_blocks");
        assert!(reserved * 4096 == offset && reserved <= available / 2, "{reserved} of {available} blocks");
        assert!(reserved > available / 2 - 64, "{reserved} of {available} blocks");
        assert!(number("staged", "memory_bytes") >= reserved * 100 && charged() >= reserved * 100);
        result
    };
    assert_eq!(as_user(USER, USER, stage_all), libc::EDQUOT);
    wait_until("the end of the group", || number("staged", "users") == 0);
    assert_eq!((number("staged", "reserved_blocks"), number("staged", "memory_bytes")), (0, 0));
    assert_eq!(charged(), 0);
}

#[test]
fn a_shutdown_needs_the_capability_where_the_daemon_is() {
    let Some(volume) = Volume::mounted("allow_other") else { return };
    open_to_all(&volume);
    let root = volume.root();
    let shut_down = || {
        let directory = File::open(&root)?;
        // SAFETY: the number says that four bytes are written.
        check(i64::from(unsafe { libc::ioctl(directory.as_raw_fd(), 0x8004_587d, &mut 0_u32) })).map(drop)
    };
    assert_eq!(as_user(USER, USER, shut_down), libc::EPERM);
    const NO_CONTAINER: i32 = libc::ENOSYS;
    let in_a_container = || {
        // SAFETY: the child has one thread.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::from_raw_os_error(NO_CONTAINER));
        }
        fs::write("/proc/self/uid_map", "0 0 1")?;
        shut_down()
    };
    match as_user(0, 0, in_a_container) {
        NO_CONTAINER => skipped("a_shutdown_needs_the_capability_where_the_daemon_is", "no user namespaces"),
        errno => assert_eq!(errno, libc::EPERM, "root of a container"),
    }
    fs::write(volume.path("f"), "goes on").unwrap();
    File::open(volume.path("f")).unwrap().sync_all().unwrap();
    assert_eq!(as_user(0, 0, shut_down), 0);
    assert!(fs::write(volume.path("f"), "too late").is_err());
}

/// Values of a line in a file of /proc, for each thread of a process.
fn of_threads(process: libc::pid_t, line: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let values = statuses.map(|status| {
        let value = status.lines().find_map(|found| found.strip_prefix(line)).unwrap_or("missing");
        value.trim().to_owned()
    });
    values.collect()
}

fn leaves_no_core_dump(process: libc::pid_t) -> bool {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    core.split_whitespace().filter(|word| *word == "0").count() == 2
}

/// Whether the limit on its threads' priority lets them leave SCHED_IDLE.
fn may_be_nice(process: libc::pid_t) -> bool {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let nice = limits.lines().find_map(|line| line.strip_prefix("Max nice priority")).unwrap();
    nice.split_whitespace().next().is_some_and(|soft| soft.parse::<u32>().unwrap() >= 20)
}

#[test]
fn roots_daemon_keeps_the_capabilities_of_the_mount_and_gains_no_others() {
    let Some(volume) = Volume::mounted("") else { return };
    // All threads that there can be, and some work for each.
    fs::write(volume.path("f"), vec![1; 4 << 20]).unwrap();
    File::open(volume.path("f")).unwrap().sync_all().unwrap();
    // CAP_DAC_READ_SEARCH, CAP_IPC_LOCK, CAP_SYS_PTRACE, CAP_SYS_ADMIN; CAP_SYS_NICE where it takes its place.
    let kept = if may_be_nice(volume.daemon()) { "0000000000284004" } else { "0000000000a84004" };
    for (line, value) in [
        ("CapEff:", kept),
        ("CapPrm:", kept),
        ("CapBnd:", kept),
        ("CapInh:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
    ] {
        let found = of_threads(volume.daemon(), line);
        assert!(found.len() > 3 && found.iter().all(|found| found == value), "{line} {found:?}");
    }
    assert!(leaves_no_core_dump(volume.daemon()));
}

#[test]
fn roots_daemon_has_its_rings_where_no_memory_may_be_locked() {
    let Some(volume) = Volume::format(VOLUME_BYTES) else { return };
    let (image, at) = (volume.image(), volume.root());
    let mut command = Command::new(server());
    command.args([image.as_os_str(), at.as_os_str(), with_transport("").as_ref()]);
    let limit = || {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        check(i64::from(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const none) })).map(drop)
    };
    // SAFETY: the child makes one system call.
    unsafe { command.pre_exec(limit) };
    let allowed = allow_transport();
    let mut daemon = command.spawn().unwrap();
    let tells = || syncline_fuse::statistics(&at).is_ok_and(|told| told.contains("\"transport\":\""));
    wait_until("the mount", || is_mounted(&at) && tells() || daemon.try_wait().unwrap().is_some());
    assert_eq!(daemon.try_wait().unwrap(), None, "the daemon serves");
    assert_eq!(statistics(&at)["transport"], crate::TRANSPORT.1);
    drop(allowed);
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) }, 0);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_users_daemon_unmounts_at_a_signal() {
    let test = "a_users_daemon_unmounts_at_a_signal";
    if !can_mount() {
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o6 != 0o6 {
        return skipped(test, "/dev/fuse is root's alone");
    }
    if Command::new("fusermount3").arg("--version").output().is_err() {
        return skipped(test, "there is no fusermount3");
    }
    let dir = tempfile::tempdir().unwrap();
    allow_all(dir.path(), 0o755);
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    let serve = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new(server());
        command.args(arguments).uid(USER).gid(USER).env("HOME", dir.path());
        command
    };
    let made = serve(&["--format".as_ref(), VOLUME_BYTES.to_string().as_ref(), image.as_os_str()]).output();
    match made {
        Ok(made) => assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr)),
        Err(_) => return skipped(test, "another user cannot run the test's server"),
    }
    fs::create_dir(&at).unwrap();
    chown(&at, Some(USER), Some(USER)).unwrap();
    let allowed = allow_transport();
    let mut daemon =
        serve(&[image.as_os_str(), at.as_os_str(), with_transport("").as_ref()]).spawn().unwrap();
    wait_until("the mount", || is_mounted(&at) || daemon.try_wait().unwrap().is_some());
    assert_eq!(daemon.try_wait().unwrap(), None, "the daemon serves");
    let process = daemon.id() as libc::pid_t;
    let answers = || match has_begun(&at) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotConnected.into()),
    };
    wait_until("the first answer", || as_user(USER, USER, answers) == 0);
    // The kernel looks at its leave once more when queues are registered, which is behind the mount.
    drop(allowed);
    assert!(leaves_no_core_dump(process));
    assert!(of_threads(process, "CapEff:").iter().all(|found| found == "0000000000000000"));
    // SAFETY: a signal to a child that was not waited for.
    assert_eq!(unsafe { libc::kill(process, libc::SIGTERM) }, 0);
    assert!(daemon.wait().unwrap().success());
    assert!(!is_mounted(&at));
}

/// Tries to mount; what was said.
fn mount_said(image: &Path, at: &Path, options: &str) -> String {
    let _allowed = allow_transport();
    let output = Command::new(server())
        .arg("--background")
        .args([image, at])
        .arg(with_transport(options))
        .output()
        .unwrap();
    if output.status.success() {
        syncline_fuse::unmount(at, false).unwrap();
    }
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_log_or_image_that_is_a_fifo_or_another_users_link_is_refused() {
    let Some(volume) = Volume::format(VOLUME_BYTES) else { return };
    let dir = volume.root().parent().unwrap().to_owned();
    let at = |name: &str| dir.join(name);
    for (name, target) in [
        ("own-log", "real-log"),
        ("own-image", "image"),
        ("log-of-other", "real-log"),
        ("image-of-other", "image"),
    ] {
        symlink(at(target), at(name)).unwrap();
    }
    lchown(at("log-of-other"), Some(OTHER), Some(OTHER)).unwrap();
    lchown(at("image-of-other"), Some(OTHER), Some(OTHER)).unwrap();
    // SAFETY: a NUL-terminated path.
    check(i64::from(unsafe { libc::mkfifo(c_path(&at("fifo")).as_ptr(), 0o600) })).unwrap();
    let said = |image: &str, log: &str| {
        mount_said(&at(image), &volume.root(), &format!("log={}", at(log).display()))
    };
    assert_eq!(said("own-image", "own-log"), "", "one's own links are followed");
    assert!(fs::read_to_string(at("real-log")).unwrap().contains("mounted"));
    for (image, log, why) in [
        ("image", "fifo", "neither a regular file nor a character device"),
        ("fifo", "real-log", "neither a regular file nor a block device"),
        ("image", "log-of-other", "symbolic link of another user"),
        ("image-of-other", "own-log", "symbolic link of another user"),
    ] {
        let said = said(image, log);
        assert!(said.contains(why), "{image}, {log}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "one sentence: {said}");
    }
    assert_eq!(mount_said(&at("image"), &volume.root(), "log=/dev/null"), "");
}

#[test]
fn attributes_that_could_not_be_listed_are_refused() {
    let Some(volume) = Volume::mounted("") else { return };
    let path = volume.path("f");
    fs::write(&path, "").unwrap();
    let name = |count: usize| format!("user.{count:0250}");
    let refused = (0..).find_map(|count| Some((count, setxattr(&path, &name(count), b"x", 0).err()?)));
    let (count, error) = refused.unwrap();
    assert_eq!((count, error.raw_os_error()), (255, Some(libc::ENOSPC)));
    assert_eq!(listxattr(&path).unwrap().len(), 255);
    setxattr(&path, &name(0), b"another value", 0).unwrap();
}
