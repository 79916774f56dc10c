//! Volumes mounted by the program. Skipped, with a sentence, where nothing can be mounted.

use super::common::{Bench, PROGRAM, age, assert_populated, called, can_mount, skip, syncline};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syncline_device::{FileDevice, OpenOptions};

/// A directory for a mount, unmounted whatever happens.
pub struct MountPoint(pub PathBuf);

impl MountPoint {
    pub fn new(bench: &Bench, name: &str) -> MountPoint {
        let path = bench.path(name);
        fs::create_dir(&path).expect("mkdir");
        MountPoint(path)
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }

    pub fn unmount(&self) {
        syncline(&["umount", self.text()]).ok();
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        // Already unmounted in the good case.
        let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(&self.0).output();
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn mounted_volume_keeps_what_was_written_and_unmounts_clean() {
    if !can_mount("mounted_volume_keeps_what_was_written_and_unmounts_clean") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    assert_eq!(fs::read(at.0.join("dir/link")).expect("read through a link").len(), 3 * 5000 + 10);
    fs::write(at.0.join("new"), b"written through the mount").expect("write");
    at.unmount();
    assert!(!at.0.join("new").exists());
    let shown = syncline(&["inspect", "super", "--json", text(&image)]).ok().json();
    let current = if shown["slot_0"]["counts"] == true { "slot_0" } else { "slot_1" };
    assert_eq!(shown[current]["state"], "clean");
    syncline(&["check", text(&image)]).ok();
    assert_populated(&image);
    let volume = super::common::open(&image);
    assert_eq!(volume.read("new").expect("read"), b"written through the mount");
}

#[test]
fn an_image_that_a_program_holds_is_refused_and_not_waited_for() {
    if !can_mount("an_image_that_a_program_holds_is_refused_and_not_waited_for") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let volume = super::common::open(&image);
    // One sentence: nothing is said of waiting.
    syncline(&["mount", text(&image), at.text()]).fails(
        32,
        &image,
        "in use by another process, which is no mount",
    );
    volume.close().expect("close");
    syncline(&["mount", text(&image), at.text()]).ok();
    at.unmount();
}

#[test]
fn a_lock_of_somebody_who_only_reads_holds_up_no_mount_or_is_told_as_what_it_is() {
    use rustix::fs::{FlockOperation, flock};
    if !can_mount("a_lock_of_somebody_who_only_reads_holds_up_no_mount_or_is_told_as_what_it_is") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let reader = File::open(&image).expect("open");
    flock(&reader, FlockOperation::LockExclusive).expect("lock");
    syncline(&["mount", text(&image), at.text()]).ok();
    // Nor does unmounting wait for it.
    at.unmount();
    drop(reader);
    let reading = FileDevice::open(&image, &OpenOptions::default().read_only(true));
    let reading = reading.expect("open");
    let by_us = format!("is locked by process {} that reads it", std::process::id());
    syncline(&["mount", text(&image), at.text()]).fails(32, &image, &by_us);
    syncline(&["mount", "-o", "ro", text(&image), at.text()]).ok();
    at.unmount();
    drop(reading);
}

#[test]
fn umount_waits_for_no_fifo_where_the_image_was() {
    if !can_mount("umount_waits_for_no_fifo_where_the_image_was") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    let elsewhere = bench.path("elsewhere.img");
    fs::rename(&image, &elsewhere).expect("rename");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &image, rustix::fs::FileType::Fifo, mode, 0).expect("mkfifo");
    let mut umount = Command::new(PROGRAM).args(["umount", at.text()]).spawn().expect("the program starts");
    let began = std::time::Instant::now();
    let status = loop {
        if let Some(status) = umount.try_wait().expect("wait") {
            break status;
        }
        if began.elapsed() > std::time::Duration::from_secs(100) {
            umount.kill().expect("kill");
            panic!("it waits for a writer");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn an_image_that_a_daemon_is_leaving_is_waited_for() {
    if !can_mount("an_image_that_a_daemon_is_leaving_is_waited_for") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let leaving = FileDevice::open(&image, &OpenOptions::default()).expect("open");
    leaving.hold_for_mount();
    let mut mount = Command::new(PROGRAM);
    mount.args(["mount", text(&image), at.text()]).stderr(Stdio::piped());
    let mut mount = mount.spawn().expect("the program starts");
    let mut told = String::new();
    let mut errors = BufReader::new(mount.stderr.take().expect("piped"));
    errors.read_line(&mut told).expect("a line");
    assert!(told.contains("waiting for it to leave"), "{told}");
    drop(leaving);
    assert!(mount.wait().expect("ended").success());
    assert!(at.0.join("dir/file3").exists());
    at.unmount();
}

#[test]
fn one_volume_is_mounted_once() {
    if !can_mount("one_volume_is_mounted_once") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let (first, second) = (MountPoint::new(&bench, "first"), MountPoint::new(&bench, "second"));
    syncline(&["mount", text(&image), first.text()]).ok();
    syncline(&["mount", text(&image), second.text()]).fails(32, &image, "unmount it first");
    syncline(&["check", text(&image)]).fails(8, &image, "unmount it first");
    syncline(&["mkfs", "-f", text(&image)]).fails(1, &image, "unmount it first");
    assert!(first.0.join("dir/file7").exists(), "the first mount goes on");
    first.unmount();
    assert_populated(&image);
}

#[test]
fn a_mounted_image_is_not_mounted_again_through_a_loop_device() {
    let test = "a_mounted_image_is_not_mounted_again_through_a_loop_device";
    if !can_mount(test) {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let (first, second) = (MountPoint::new(&bench, "first"), MountPoint::new(&bench, "second"));
    let set_up = Command::new("losetup").args(["--find", "--show", text(&image)]).output();
    let Some(set_up) = set_up.ok().filter(|output| output.status.success()) else {
        return skip(test, "no loop device can be set up; run as root where there are loop devices");
    };
    let disk = PathBuf::from(String::from_utf8(set_up.stdout).expect("UTF-8").trim());
    syncline(&["mount", text(&image), first.text()]).ok();
    let refused = [
        (syncline(&["mount", text(&disk), second.text()]), 32),
        (syncline(&["check", text(&disk)]), 8),
        (syncline(&["mkfs", "-f", text(&disk)]), 1),
    ];
    first.unmount();
    let through_the_device = syncline(&["mount", text(&disk), second.text()]);
    let by_its_name = syncline(&["mount", text(&image), first.text()]);
    second.unmount();
    Command::new("losetup").args(["--detach", text(&disk)]).status().expect("losetup");
    refused.into_iter().for_each(|(run, code)| drop(run.fails(code, &disk, "unmount it first")));
    through_the_device.ok();
    by_its_name.fails(32, &image, "unmount it first");
    assert_populated(&image);
}

/// Whether a process holds a file open, or is in the directory.
fn is_held(path: &Path) -> bool {
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    processes.filter(|process| process.join("fd").exists()).any(|process| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
        open.chain([process.join("cwd")])
            .any(|link| fs::read_link(link).is_ok_and(|leads_to| leads_to == path))
    })
}

#[test]
fn a_daemon_holds_neither_the_directory_nor_the_files_of_its_caller() {
    if !can_mount("a_daemon_holds_neither_the_directory_nor_the_files_of_its_caller") {
        return;
    }
    let bench = Bench::new();
    let (image, at) = (bench.populated(), MountPoint::new(&bench, "mnt"));
    let (directory, lock) = (bench.path("here"), bench.path("lock"));
    fs::create_dir(&directory).expect("mkdir");
    let script = "exec 9>\"$1\"; test -e /proc/self/fd/9 && \"$0\" mount ../volume.img ../mnt";
    let mut shell = Command::new("sh");
    let mounted =
        shell.args(["-c", script, PROGRAM, text(&lock)]).current_dir(&directory).output().expect("sh");
    let held = [is_held(&lock), is_held(&directory)];
    let serves = at.0.join("dir/file7").exists();
    at.unmount();
    assert!(mounted.status.success() && serves, "{}", String::from_utf8_lossy(&mounted.stderr));
    assert_eq!(held, [false, false], "lock and directory");
    assert_populated(&image);
}

#[test]
fn unusable_images_and_directories_are_one_sentence() {
    if !can_mount("unusable_images_and_directories_are_one_sentence") {
        return;
    }
    let bench = Bench::new();
    let at = MountPoint::new(&bench, "mnt");
    let missing = bench.path("missing.img");
    syncline(&["mount", text(&missing), at.text()]).fails(32, &missing, "No such file");
    let zero = bench.path("zero.img");
    fs::write(&zero, vec![0; 8 << 20]).unwrap();
    syncline(&["mount", text(&zero), at.text()]).fails(32, &zero, "superblock");
    let image = bench.populated();
    let nowhere = bench.path("nowhere");
    syncline(&["mount", text(&image), text(&nowhere)]).fails(32, &nowhere, "No such file");
    let no_log = bench.path("no/log");
    let log = format!("log={}", no_log.display());
    syncline(&["mount", "-o", &log, text(&image), at.text()]).fails(32, &no_log, "No such file");
    for cpu in ["cpu=1000", "cpu=99999"] {
        let run = syncline(&["mount", "-o", cpu, text(&image), at.text()]);
        assert!(run.code == 1 && run.err.contains("needs the number of a CPU"), "{cpu}: {}", run.err);
    }
    for slot in [1, 2] {
        age(&image, slot);
    }
    syncline(&["mount", text(&image), at.text()]).fails(32, &image, "version");
    assert!(fs::read_dir(&at.0).expect("still a plain directory").next().is_none());
}

#[test]
fn wrong_mount_options_are_usage_errors() {
    let bench = Bench::new();
    let image = bench.populated();
    for option in ["frobnicate", "commit=never", "memory=1"] {
        let run = called("mount.syncline", &[text(&image), "/nowhere", "-o", option]);
        assert_eq!(run.code, 1, "{option}: {}", run.err);
        assert!(run.err.contains(option), "{}", run.err);
        assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    }
    assert_eq!(called("mount.syncline", &[text(&image)]).code, 1);
    called("mount.syncline", &[text(&image), "/nowhere", "-s", "-f", "-o", "rw,frobnicate"]).ok();
}

#[test]
fn mount_by_its_own_name_takes_the_words_of_fstab() {
    if !can_mount("mount_by_its_own_name_takes_the_words_of_fstab") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let options = "rw,noatime,nofail,x-systemd.automount,commit=5";
    called("mount.fuse.syncline", &[text(&image), at.text(), "-n", "-o", options]).ok();
    assert!(at.0.join("dir").is_dir());
    at.unmount();
}

#[test]
fn read_only_mount_changes_nothing() {
    if !can_mount("read_only_mount_changes_nothing") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let before = fs::read(&image).unwrap();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", "-o", "ro", text(&image), at.text()]).ok();
    let refused = File::create(at.0.join("new")).expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read_dir(at.0.join("dir")).unwrap().count(), 21);
    at.unmount();
    assert!(fs::read(&image).unwrap() == before, "not one byte differs");
}

#[test]
fn full_volume_tells_the_writer_and_loses_nothing() {
    if !can_mount("full_volume_tells_the_writer_and_loses_nothing") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    let mut big = File::create(at.0.join("big")).expect("create");
    let block = vec![7; 64 << 10];
    let mut written = 0_u64;
    let error = loop {
        match big.write(&block) {
            Ok(bytes) => written += bytes as u64,
            Err(error) => break error,
        }
        assert!(written < 32 << 20, "more than the volume holds");
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    big.sync_all().expect("a lack of space does not latch the volume (C8)");
    drop(big);
    assert_eq!(fs::metadata(at.0.join("big")).unwrap().len(), written);
    fs::remove_file(at.0.join("big")).expect("a full volume can be cleared");
    fs::write(at.0.join("again"), &block).expect("there is room again");
    at.unmount();
    syncline(&["check", text(&image)]).ok();
    assert_populated(&image);
}

#[test]
fn image_that_cannot_be_written_is_said_so() {
    let test = "image_that_cannot_be_written_is_said_so";
    let bench = Bench::new();
    let image = bench.populated();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(image.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root may write everything, so the program runs as somebody else, from where that one may read it.
    let program = bench.path("syncline");
    fs::copy(PROGRAM, &program).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&program)
            .args(arguments)
            .output()
    };
    match as_nobody(&["--version"]) {
        Ok(output) if output.status.success() => {}
        _ => return skip(test, "another user cannot be taken on; run as root with util-linux's setpriv"),
    }
    let before = fs::read(&image).unwrap();
    for (arguments, code) in [
        (&["mkfs", "-f", text(&image)][..], 1),
        (&["check", "--repair", text(&image)], 8),
        (&["mount", text(&image), "/"], 32),
    ] {
        let output = as_nobody(arguments).unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("make it writable"), "{arguments:?}: {message}");
    }
    assert!(
        as_nobody(&["check", text(&image)]).unwrap().status.success(),
        "reading needs no more than reading"
    );
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn statistics_of_a_mount_are_json_and_count_syncs() {
    if !can_mount("statistics_of_a_mount_are_json_and_count_syncs") {
        return;
    }
    let bench = Bench::new();
    let image = bench.volume();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    let flushes = |figures: &serde_json::Value| figures["device"]["flushes"].as_u64().expect("counted");
    let before = syncline(&["stats", "--json", at.text()]).ok().json();
    let mut file = File::create(at.0.join("synced")).unwrap();
    for _ in 0..10 {
        file.write_all(b"line\n").unwrap();
        file.sync_all().unwrap();
    }
    let after = syncline(&["stats", "--json", at.text()]).ok().json();
    assert!(flushes(&after) >= flushes(&before) + 10, "{before} {after}");
    let histogram = &after["fsync_us"];
    let counts = histogram["buckets"].as_array().expect("a list").iter().map(|bucket| &bucket["count"]);
    let counted: u64 = counts.map(|count| count.as_u64().expect("a number")).sum();
    assert_eq!(Some(counted), histogram["count"].as_u64());
    assert!(counted >= 10, "{histogram}");
    for figure in
        ["/checkpoint_us/max", "/page_cache/misses", "/page_cache/evictions", "/ratios/batches_per_record"]
    {
        assert!(after.pointer(figure).is_some_and(|value| value.is_number()), "{figure} in {after}");
    }
    let callers = after["callers"].as_array().expect("a list");
    let own = callers.iter().find(|caller| caller["pid"] == std::process::id());
    assert!(own.is_some_and(|own| own["fsyncs"].as_u64() >= Some(10)), "{after}");
    let once = syncline(&["top", "--once", "--interval", "0.1", at.text()]).ok().out;
    for word in ["syncline top", at.text(), "since the mount", "journal in use", "who syncs"] {
        assert!(once.contains(word), "{word} in {once}");
    }
    watched_line_by_line(at.text());
    let transport = after["transport"].as_str().expect("the transport is told").to_owned();
    assert!(["io_uring", "/dev/fuse"].contains(&transport.as_str()), "{transport}");
    let text = syncline(&["stats", at.text()]).ok().out;
    assert!(text.lines().any(|line| line.contains("transport") && line.contains(&transport)), "{text}");
    assert!(text.contains("fsync latency:") && text.contains(" us ") && text.contains("  #"), "{text}");
    assert!(text.starts_with("device writes per fsync "), "what a sync costs comes first: {text}");
    let first = text.lines().nth(1).expect("a line");
    assert!(first.starts_with("device flushes per fsync "), "{text}");
    assert!(text.lines().any(|line| line.contains("written bytes") && line.contains("iB")), "{text}");
    drop(file);
    at.unmount();
}

/// Reads two looks of each form and ends the reader, which ends the command.
fn watched_line_by_line(mount: &str) {
    use std::io::{BufRead, BufReader};
    for (form, first) in [(None, "  syncs/s  "), (Some("--json"), "{")] {
        let mut command = Command::new(PROGRAM);
        command.args(["stats", "--watch=0.1"]).args(form).arg(mount);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("runs");
        let out = child.stdout.take().expect("a pipe");
        let lines: Vec<String> =
            BufReader::new(out).lines().take(3).map(|line| line.expect("text")).collect();
        assert!(lines[0].starts_with(first), "{lines:?}");
        match form {
            None => assert_eq!(lines[1].len(), lines[0].len(), "{lines:?}"),
            Some(_) => assert!(lines.iter().all(|line| line.ends_with('}')), "{lines:?}"),
        }
        assert!(child.wait().expect("ends").success());
    }
}

#[test]
fn a_mount_that_is_called_as_mount_fuse_does_it_can_be_remounted() {
    if !can_mount("a_mount_that_is_called_as_mount_fuse_does_it_can_be_remounted") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(
            "a_mount_that_is_called_as_mount_fuse_does_it_can_be_remounted",
            "only root may remount",
        );
    }
    let bench = Bench::new();
    let image = bench.volume();
    let at = MountPoint::new(&bench, "mnt");
    // The words that mount.fuse3 hands to the program of the subtype.
    syncline(&[text(&image), at.text(), "-o", "rw,dev,suid"]).ok();
    fs::write(at.0.join("before"), b"x").expect("writable");
    syncline(&[text(&image), at.text(), "-o", "ro,remount,dev,suid"]).ok();
    let refused = fs::write(at.0.join("after"), b"x").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    at.unmount();
}

#[test]
fn inodes_that_nobody_counts_are_not_made_up() {
    if !can_mount("inodes_that_nobody_counts_are_not_made_up") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", text(&image), at.text()]).ok();
    let totals = rustix::fs::statvfs(&at.0).expect("statvfs");
    assert_eq!((totals.f_files, totals.f_ffree, totals.f_favail), (0, 0, 0));
    assert!(totals.f_bfree > 0 && totals.f_blocks > totals.f_bfree);
    at.unmount();
}

#[test]
fn another_user_is_told_who_mounted_and_what_to_do() {
    use std::os::unix::process::CommandExt;
    const TEST: &str = "another_user_is_told_who_mounted_and_what_to_do";
    const NOBODY: u32 = 65_534;
    if !can_mount(TEST) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "only root may become another user");
    }
    let bench = Bench::new();
    fs::set_permissions(bench.path(""), fs::Permissions::from_mode(0o755)).expect("chmod");
    let image = bench.volume();
    let at = MountPoint::new(&bench, "mnt");
    // Where anybody may run it.
    let program = bench.path("syncline");
    fs::copy(PROGRAM, &program).expect("copy the program");
    syncline(&["mount", text(&image), at.text()]).ok();
    for command in ["umount", "stats"] {
        syncline(&[command, text(&image)]).fails(1, &image, &format!("is mounted on {}", at.text()));
    }
    for line in [&["umount"][..], &["umount", "--lazy"]] {
        let run =
            Command::new(&program).uid(NOBODY).gid(NOBODY).args(line).arg(&at.0).output().expect("runs");
        let told = String::from_utf8(run.stderr).expect("UTF-8");
        assert_eq!(run.status.code(), Some(1), "{told}");
        assert!(told.contains("was mounted by root") && told.contains("sudo syncline umount"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert!(fs::read_dir(&at.0).is_ok(), "it is mounted still");
    at.unmount();
}

#[test]
fn sync_makes_files_durable_whole_in_part_and_together() {
    if !can_mount("sync_makes_files_durable_whole_in_part_and_together") {
        return;
    }
    let bench = Bench::new();
    let image = bench.volume();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", "-o", "commit=1000", text(&image), at.text()]).ok();
    let names: Vec<String> = (0..20).map(|number| format!("{}/f{number}", at.text())).collect();
    for name in &names {
        fs::write(name, vec![7; 20_000]).unwrap();
    }
    syncline(&["sync", "--data", "--range", "4K:4K", &names[0]]).ok();
    syncline(&["sync", &names[1]]).ok();
    let mut together = vec!["sync", "--async"];
    together.extend(names[2..].iter().map(String::as_str));
    syncline(&together).ok();
    syncline(&["sync", "--async", at.text()]).fails(1, &at.0, "directory");
    syncline(&["sync", at.text()]).ok();
    let elsewhere = bench.path("elsewhere");
    fs::write(&elsewhere, b"x").unwrap();
    syncline(&["sync", text(&elsewhere)]).ok();
    syncline(&["sync", "--range", "0:1", text(&elsewhere)]).fails(1, &elsewhere, "--range");
    let none = at.0.join("none");
    syncline(&["sync", "--async", &names[3], text(&none)]).fails(1, &none, "No such file");
    for name in &names {
        assert_eq!(fs::read(name).unwrap(), [7; 20_000]);
    }
    at.unmount();
}

#[test]
fn umount_says_when_the_volume_could_not_be_closed() {
    if !can_mount("umount_says_when_the_volume_could_not_be_closed") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    let log = bench.path("log");
    let options = format!("commit=1000,log={}", text(&log));
    syncline(&["mount", "-o", &options, text(&image), at.text()]).ok();
    fs::write(at.0.join("unsynced"), b"x").unwrap();
    if let Err(error) = syncline_fuse::shut_down(&at.0) {
        at.unmount();
        return skip("umount_says_when_the_volume_could_not_be_closed", &format!("shutting down: {error}"));
    }
    syncline(&["umount", at.text()]).fails(1, &at.0, "could not be closed");
    assert!(!at.0.join("dir").exists(), "unmounted all the same");
    assert!(!fs::read(&log).unwrap().is_empty());
    syncline(&["mount", text(&image), at.text()]).ok();
    at.unmount();
    syncline(&["check", text(&image)]).ok();
    assert_populated(&image);
}

#[test]
fn umount_by_the_name_that_umount8_calls_returns_when_the_image_is_closed() {
    if !can_mount("umount_by_the_name_that_umount8_calls_returns_when_the_image_is_closed") {
        return;
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", "-o", "commit=1000", text(&image), at.text()]).ok();
    fs::write(at.0.join("new"), vec![7; 300_000]).expect("write");
    called("umount.fuse.syncline", &[at.text(), "-n", "-v", "-t", "fuse.syncline"]).ok();
    // Nobody holds it any more, and it was closed properly.
    syncline(&["check", text(&image)]).ok();
    let volume = super::common::open(&image);
    assert_eq!(volume.read("new").expect("read"), vec![7; 300_000]);
    called("umount.fuse.syncline", &[at.text()]).fails(32, &at.0, "not the root of a mounted");
}

#[test]
fn umount_of_a_volume_in_use_can_make_it_read_only_or_end_it_by_force() {
    let name = "umount_of_a_volume_in_use_can_make_it_read_only_or_end_it_by_force";
    if !can_mount(name) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(name, "only root may remount");
    }
    let bench = Bench::new();
    let image = bench.populated();
    let at = MountPoint::new(&bench, "mnt");
    syncline(&["mount", "-o", "commit=1000", text(&image), at.text()]).ok();
    fs::write(at.0.join("new"), b"durable once it is read-only").expect("write");
    let used = File::open(at.0.join("new")).expect("open");
    called("umount.syncline", &[at.text()]).fails(32, &at.0, "busy");
    called("umount.syncline", &[at.text(), "-r"]).ok();
    let refused = fs::write(at.0.join("after"), b"x").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    called("umount.syncline", &[at.text(), "-f"]).ok();
    assert!(!at.0.join("dir").exists(), "out of the tree");
    drop(used);
    syncline(&["mount", text(&image), at.text()]).ok();
    assert_eq!(fs::read(at.0.join("new")).expect("read"), b"durable once it is read-only");
    at.unmount();
    syncline(&["check", text(&image)]).ok();
}
