//! Mounting, unmounting, dying.

use crate::harness::{
    UringSwitch, Volume, allow_transport, as_user, can_mount, errno_when_dead, is_mounted, server, skipped,
    statistics, wait_until, with_transport,
};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn kill(pid: libc::pid_t, signal: i32) {
    // SAFETY: a signal to a child of this process that was not waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn a_daemon_in_the_background_is_live_when_the_command_returns() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let mount = || {
        let _allowed = allow_transport();
        let mut command = Command::new(server());
        command.arg("--background").arg(volume.image()).arg(volume.root()).arg(with_transport(""));
        command.output().unwrap()
    };
    for round in 0..3_u8 {
        let output = mount();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if round > 0 {
            assert_eq!(fs::read(volume.path("f")).unwrap(), [round - 1]);
        }
        fs::write(volume.path("f"), [round]).unwrap();
        syncline_fuse::unmount(&volume.root(), false).unwrap();
        assert!(!is_mounted(&volume.root()));
    }
    fs::write(volume.image(), b"not a volume").unwrap();
    let output = mount();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_eq!(message.trim().lines().count(), 1, "one sentence: {message}");
    assert!(message.contains("image"), "{message}");
}

#[test]
fn a_volume_is_mounted_once_only() {
    let Some(volume) = Volume::mounted("") else { return };
    let second = tempfile::tempdir().unwrap();
    let output = volume.start("", second.path()).wait_with_output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("unmount it first"), "{message}");
    assert!(!is_mounted(second.path()));
    fs::write(volume.path("f"), b"the first mount goes on").unwrap();
}

#[test]
fn a_daemon_that_stands_still_is_named_and_keeps_its_volume() {
    let Some(mut volume) = Volume::mounted("") else { return };
    fs::write(volume.path("f"), b"before").unwrap();
    let daemon = volume.daemon();
    let second = tempfile::tempdir().unwrap();
    kill(daemon, libc::SIGSTOP);
    // Also where its own mount is, which cannot be looked at now; a file's lock cannot be broken.
    let root = volume.root();
    for (options, directory) in [("", second.path()), ("take_over", second.path()), ("", &root)] {
        let began = Instant::now();
        let output = volume.start(options, directory).wait_with_output().unwrap();
        let took = began.elapsed();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success());
        assert_eq!(message.trim().lines().count(), 1, "one sentence: {message}");
        let told = format!("process {daemon}, which does not answer and keeps its lock");
        assert!(message.contains(&told) && message.contains(&format!("kill -CONT {daemon}")), "{message}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(!is_mounted(second.path()));
    }
    kill(daemon, libc::SIGCONT);
    fs::write(volume.path("f"), b"after").unwrap();
    volume.remount();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"after");
}

#[test]
fn a_directory_that_does_not_exist_is_named() {
    let Some(volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let output = volume.start("", &volume.path("none")).wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("none is not a directory"));
}

#[test]
fn an_unmount_is_refused_while_a_file_is_open_unless_it_is_lazy() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let mut file = File::create(volume.path("f")).unwrap();
    let error = syncline_fuse::unmount(&volume.root(), false).unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    syncline_fuse::unmount(&volume.root(), true).unwrap();
    assert!(!is_mounted(&volume.root()));
    file.write_all(b"still possible").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert!(volume.wait_for_daemon().success());
    volume.mount("").unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"still possible");
}

#[test]
fn a_signal_leaves_a_clean_volume() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
        fs::write(volume.path("f"), b"not synced").unwrap();
        kill(volume.daemon(), signal);
        assert!(volume.wait_for_daemon().success());
        assert!(!is_mounted(&volume.root()));
        volume.mount("").unwrap();
        assert_eq!(fs::read(volume.path("f")).unwrap(), b"not synced");
        assert!(!volume.log().contains("recovered"), "{}", volume.log());
    }
}

#[test]
fn a_second_signal_does_not_wait_for_users() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let mut file = File::create(volume.path("f")).unwrap();
    file.write_all(b"written").unwrap();
    kill(volume.daemon(), libc::SIGTERM);
    while is_mounted(&volume.root()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill(volume.daemon(), libc::SIGTERM);
    assert!(volume.wait_for_daemon().success());
    assert_eq!(errno_when_dead(|| file.sync_all()), libc::ENOTCONN);
    volume.mount("").unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"written");
}

#[test]
fn after_the_daemons_death_calls_fail_and_the_next_mount_recovers() {
    let Some(mut volume) = Volume::mounted("") else { return };
    let mut file = File::create(volume.path("f")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    kill(volume.daemon(), libc::SIGSEGV);
    let status = volume.wait_for_daemon();
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
    assert!(volume.log().contains("signal=11"), "{}", volume.log());
    assert_eq!(errno_when_dead(|| fs::metadata(volume.path("f"))), libc::ENOTCONN);
    drop(file);
    // The dead mount is still there; mounting clears it away.
    volume.mount("").unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"synced");
}

#[test]
fn a_shutdown_is_a_power_cut() {
    let Some(mut volume) = Volume::mounted("commit=1000") else { return };
    let mut file = File::create(volume.path("f")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    fs::write(volume.path("later"), b"not synced").unwrap();
    syncline_fuse::shut_down(&volume.root()).unwrap();
    assert!(file.sync_all().is_err());
    assert!(fs::write(volume.path("g"), b"x").is_err());
    drop(file);
    syncline_fuse::unmount(&volume.root(), false).unwrap();
    assert!(volume.wait_for_daemon().success(), "{}", volume.log());
    volume.mount("").unwrap();
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"synced");
    assert!(!volume.path("later").exists());
}

#[test]
fn unmounting_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = syncline_fuse::unmount(dir.path(), false).unwrap_err().to_string();
    assert!(error.contains("is not the root of a mounted Syncline volume"), "{error}");
    let error = syncline_fuse::statistics(dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not the root of a mounted Syncline volume"), "{error}");
}

#[test]
fn other_requests_are_served_while_a_large_sync_runs() {
    let Some(mut volume) = Volume::format(512 << 20) else { return };
    volume.mount("memory=256M").unwrap();
    let mut file = File::create(volume.path("large")).unwrap();
    file.write_all(&vec![1; 96 << 20]).unwrap();
    fs::write(volume.path("small"), b"x").unwrap();
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| file.sync_all().unwrap());
        let mut served = 0;
        while !syncing.is_finished() {
            // Not in the kernel's caches: each is a message.
            assert!(fs::metadata(volume.path(&format!("none-{served}"))).is_err());
            served += 1;
        }
        assert!(served > 3, "only {served} lookups were served during the sync");
    });
}

/// Names of the process' threads of class SCHED_IDLE.
fn threads_in_idle_class(process: libc::pid_t) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().map(|thread| thread.unwrap().path());
    let number = |at: &Path| at.file_name().unwrap().to_str().unwrap().parse().unwrap();
    threads
        // SAFETY: takes no pointers.
        .filter(|at| unsafe { libc::sched_getscheduler(number(at)) } == libc::SCHED_IDLE)
        // A thread may end meanwhile.
        .filter_map(|at| fs::read_to_string(at.join("comm")).ok())
        .collect()
}

/// A thread that answers, or the watch of the readers, which would make their CPU busy.
fn answers(name: &str) -> bool {
    ["fuse-ring", "fuse-deputy", "fuse-dev-"].iter().any(|kind| name.starts_with(kind))
}

#[test]
fn threads_that_answer_have_the_class_that_was_asked_for_and_say_so() {
    let Some(mut volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    for (options, wanted) in [("", true), ("scheduling=usual", false)] {
        volume.mount(options).unwrap();
        let told = statistics(&volume.root())["scheduling"].as_str().unwrap().to_owned();
        let idle = threads_in_idle_class(volume.daemon());
        assert!(idle.iter().all(|name| answers(name)), "{idle:?}");
        match (wanted, told.contains("could not be left")) {
            (true, true) => assert!(idle.is_empty(), "{told}"),
            // One that waited for a CPU has left it.
            (true, false) => assert!(!idle.is_empty() && told.contains("threads in SCHED_IDLE"), "{told}"),
            (false, _) => assert!(idle.is_empty() && told.contains("as asked for"), "{idle:?}: {told}"),
        }
        volume.unmount();
    }
}

/// What a sync starts would be of that class as well: the kernel's threads for the device, those for blocking work.
#[test]
fn no_sync_is_handled_in_the_class_of_threads_that_only_answer() {
    let Some(mut volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    volume.mount("").unwrap();
    let sync_for_a_while = |caller: u32| {
        let file = File::create(volume.path(&format!("synced-{caller}"))).unwrap();
        for page in 0..200 {
            file.write_all_at(&[caller as u8; 4096], page * 4096).unwrap();
            file.sync_all().unwrap();
        }
    };
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let sync_for_a_while = &sync_for_a_while;
            scope.spawn(move || sync_for_a_while(caller));
        }
    });
    let idle = threads_in_idle_class(volume.daemon());
    assert!(idle.iter().all(|name| answers(name)), "{idle:?}");
    volume.unmount();
}

#[test]
fn the_transport_that_was_asked_for_is_told_and_auto_says_why_it_is_not_io_uring() {
    let Some(mut volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    let forbidden = match UringSwitch::set(false) {
        Ok(switch) => switch,
        Err(why) => return skipped("the_transport_that_was_asked_for_is_told", &why),
    };
    let refused = volume.start("transport=uring", &volume.root()).wait_with_output().unwrap();
    assert!(!refused.status.success());
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("enable_uring") && message.trim().lines().count() == 1, "{message}");
    assert!(!is_mounted(&volume.root()));
    // Over io_uring the harness allows it again for the mount.
    drop(forbidden);
    volume.mount("transport=auto").unwrap();
    let told = statistics(&volume.root());
    match told["transport"].as_str().unwrap() {
        "io_uring" => assert!(told["not_io_uring_because"].is_null()),
        "/dev/fuse" => assert!(told["not_io_uring_because"].as_str().unwrap().contains("kernel")),
        other => panic!("{other}"),
    }
    if crate::TRANSPORT.0 == "uring" {
        assert_eq!(told["transport"], "io_uring");
    }
    let active = told["transport"].as_str().unwrap();
    // The mount can be used a moment before.
    wait_until("the log tells the transport", || {
        volume.log().lines().any(|line| line.contains("mounted") && line.contains(active))
    });
}

/// The kernel's switch, locked with others (`LOCK_SH`) or alone.
fn locked_switch(how: libc::c_int) -> std::io::Result<File> {
    let switch = File::open("/sys/module/fuse/parameters/enable_uring")?;
    // SAFETY: the descriptor is open.
    match unsafe { libc::flock(switch.as_raw_fd(), how) } {
        0 => Ok(switch),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn is_on(mut switch: &File) -> bool {
    let mut text = String::new();
    switch.read_to_string(&mut text).expect("readable");
    text.trim() == "Y"
}

#[test]
fn root_switches_io_uring_on_for_the_moment_of_its_mount_unless_that_is_forbidden() {
    let test = "root_switches_io_uring_on_for_the_moment_of_its_mount_unless_that_is_forbidden";
    // It names the transports itself: once is enough.
    if crate::TRANSPORT.0 != "dev" {
        return;
    }
    let Some(mut volume) = Volume::format(crate::harness::VOLUME_BYTES) else { return };
    // Like another mount of the same moment: nobody else may decide, mounts may switch it on, and it stays on.
    let other = match locked_switch(libc::LOCK_SH) {
        Ok(switch) if is_on(&switch) => return skipped(test, "io_uring is switched on here"),
        Ok(switch) => switch,
        Err(error) => return skipped(test, &format!("the kernel has no switch: {error}")),
    };
    volume.mount("transport=auto,uring=keep").unwrap();
    assert_eq!(statistics(&volume.root())["transport"], "/dev/fuse");
    volume.unmount();
    volume.mount("transport=auto").unwrap();
    assert_eq!(statistics(&volume.root())["transport"], "io_uring");
    assert_eq!(volume.log().matches("switched on for the moment").count(), 1, "{}", volume.log());
    volume.unmount();
    drop(other);
    // The last one of the moment switches it off. Tests of other processes may hold it up.
    for _ in 0..50 {
        volume.mount("transport=auto").unwrap();
        volume.unmount();
        if !is_on(&locked_switch(libc::LOCK_EX).unwrap()) {
            return;
        }
    }
    panic!("it is still on");
}

/// Whom `nobody` is.
const NOBODY: u32 = 65534;

/// /dev/fuse as it is on most systems, until this is dropped: everybody may open it.
struct OpenToAll(fs::Permissions);

impl OpenToAll {
    fn set() -> OpenToAll {
        let before = fs::metadata("/dev/fuse").expect("it can be opened").permissions();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).expect("root may");
        OpenToAll(before)
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        let restored = fs::set_permissions("/dev/fuse", self.0.clone());
        assert!(std::thread::panicking() || restored.is_ok(), "/dev/fuse keeps its permissions");
    }
}

#[test]
fn a_user_without_rights_mounts_through_fusermount3() {
    let test = "a_user_without_rights_mounts_through_fusermount3";
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    for path in [dir.path(), &at] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // The program is copied, because nobody else can reach it where it is built; by another process, because children
    // that other tests start meanwhile would hold what this one has open for writing ("text file busy").
    let program = dir.path().join("serve");
    assert!(Command::new("cp").arg(server()).arg(&program).status().unwrap().success());
    let as_nobody = |program: &std::path::Path| {
        let mut command = Command::new(program);
        command.uid(NOBODY).gid(NOBODY).current_dir(dir.path());
        command
    };
    let bytes = crate::harness::VOLUME_BYTES.to_string();
    assert!(as_nobody(&program).args(["--format", &bytes]).arg(&image).status().unwrap().success());
    let mount = || {
        let _allowed = allow_transport();
        as_nobody(&program).arg("--background").arg(&image).arg(&at).arg(with_transport("")).output()
    };
    let helper = std::path::Path::new("fusermount3");
    if as_nobody(helper).arg("--version").output().is_err() {
        return skipped(test, "there is no fusermount3");
    }
    let _open_to_all = OpenToAll::set();
    for round in 0..2_u8 {
        let output = mount().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(
            crate::harness::errno(fs::metadata(at.join("f"))),
            libc::EACCES,
            "it is its owner's alone"
        );
        let path = at.join("f");
        let used = as_user(NOBODY, NOBODY, || {
            let told = syncline_fuse::statistics(&at).map_err(std::io::Error::other)?;
            assert!(told.contains(&format!("\"transport\":\"{}\"", crate::TRANSPORT.1)));
            if round > 0 && fs::read(&path)? != [round - 1] {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
            fs::write(&path, [round])?;
            File::open(&path)?.sync_all()
        });
        assert_eq!(used, 0);
        let unmounted = as_user(NOBODY, NOBODY, || {
            syncline_fuse::unmount(&at, false).map(drop).map_err(std::io::Error::other)
        });
        assert_eq!(unmounted, 0);
        assert!(!is_mounted(&at));
    }
}
