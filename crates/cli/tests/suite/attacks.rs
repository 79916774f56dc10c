//! import and export where somebody else is at work in the same directories, and where they are asked to end.

use super::common::{Bench, PROGRAM, open, skip, syncline};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Somebody who is not root.
const SOMEBODY: u32 = 65_534;
/// Far more than anything here takes: what is waited for happens, or the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "needs root");
    }
    root
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
}

/// Waits for a program's end, which must come.
#[track_caller]
fn end_of(child: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().expect("kill");
            child.wait().expect("wait");
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process");
    kill_process(pid, signal).expect("the process is there");
}

/// Names that copies make for what is not whole.
fn places_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("list").map(|entry| entry.expect("entry").path());
    entries.filter(|path| path.file_name().unwrap().as_encoded_bytes().starts_with(b".syncline-")).collect()
}

/// A volume of 256 MiB with one large file, which takes a moment to copy.
fn with_large_file(bench: &Bench) -> PathBuf {
    let image = bench.path("large.img");
    syncline(&["mkfs", "-q", "--size", "256M", text(&image)]).ok();
    let volume = open(&image);
    let mut file = volume.create_file("/large").expect("create");
    for _ in 0..160 {
        file.write_all(&vec![7; 1 << 20]).expect("write");
    }
    drop(file);
    volume.close().expect("close");
    image
}

#[test]
fn export_goes_through_no_link_that_an_earlier_one_left() {
    let bench = Bench::new();
    let (first, second) = (bench.path("first.img"), bench.path("second.img"));
    let (out, outside) = (bench.path("out"), bench.path("outside"));
    fs::create_dir(&outside).unwrap();
    for (image, is_first) in [(&first, true), (&second, false)] {
        syncline(&["mkfs", "-q", "--size", "16M", text(image)]).ok();
        let volume = open(image);
        volume.create_dir("/tree").unwrap();
        if is_first {
            volume.symlink(&outside, "/tree/a").unwrap();
            volume.symlink(outside.join("file"), "/tree/b").unwrap();
        } else {
            volume.create_dir("/tree/a").unwrap();
            volume.write("/tree/a/file", "x").unwrap();
            volume.set_permissions("/tree/a/file", 0o4755).unwrap();
            volume.write("/tree/b", "new").unwrap();
        }
        volume.close().unwrap();
    }
    syncline(&["export", "-q", text(&first), "/tree", text(&out)]).ok();
    for force in [false, true] {
        let mut line = vec!["export", "-q", text(&second), "/tree/.", text(&out)];
        line.extend(force.then_some("--force"));
        let run = syncline(&line);
        assert_eq!(run.code, 1, "{}", run.err);
    }
    let run = syncline(&["export", "-q", "--force", text(&second), "/tree/a", text(&out)]);
    run.fails(1, &out.join("a"), "Not a directory");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "nothing was written outside of the target");
    syncline(&["export", "-q", "--force", text(&second), "/tree/b", text(&out)]).ok();
    assert_eq!(fs::read(out.join("b")).unwrap(), b"new");
    assert!(fs::symlink_metadata(out.join("b")).unwrap().is_file(), "the link is replaced, not followed");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(places_in(&out), [] as [PathBuf; 0]);
}

#[test]
fn import_goes_through_no_link_in_the_volume() {
    let bench = Bench::new();
    let (image, tree) = (bench.volume(), bench.path("tree"));
    let volume = open(&image);
    volume.create_dir("/outside").unwrap();
    volume.create_dir("/tree").unwrap();
    volume.symlink("/outside", "/tree/a").unwrap();
    volume.close().unwrap();
    fs::create_dir_all(tree.join("a")).unwrap();
    fs::write(tree.join("a/file"), "x").unwrap();
    let run = syncline(&["import", "--force", text(&image), &format!("{}/.", text(&tree)), "/tree"]);
    run.fails(1, &image, ":/tree/a: Not a directory");
    assert_eq!(syncline(&["ls", text(&image), "/outside"]).ok().out, "");
}

/// The attacker of [`who_owns_the_target_gains_nothing_by_swapping_names`]: puts links to the secret, and a file of
/// root's that lies in the directory, in place of whatever it finds there, until its standard input ends.
#[test]
fn swap_names_in_the_directory_of_the_environment() {
    let Some(out) = std::env::var_os("SYNCLINE_TEST_SWAP").map(PathBuf::from) else { return };
    let secret = PathBuf::from(std::env::var_os("SYNCLINE_TEST_SECRET").expect("the secret"));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ended.store(true, Ordering::Relaxed);
        });
        let precious = out.join("precious");
        fs::write(out.join("ready"), "").expect("the directory is mine");
        let mut count = 0_u64;
        while !ended.load(Ordering::Relaxed) {
            for entry in fs::read_dir(&out).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = entry.file_name().into_string().expect("UTF-8");
                if name == "ready" || name == "precious" || name.starts_with("aside") {
                    continue;
                }
                count += 1;
                let aside = out.join(format!("aside{}", count % 50));
                let _ = fs::rename(&path, &aside);
                match count % 3 {
                    0 => drop(symlink(&secret, &path)),
                    1 => drop(rustix::fs::renameat_with(CWD, &precious, CWD, &path, RenameFlags::NOREPLACE)),
                    _ => drop(symlink(secret.parent().expect("a parent"), &path)),
                }
                if count % 3 == 1 {
                    let back = rustix::fs::renameat_with(CWD, &path, CWD, &precious, RenameFlags::NOREPLACE);
                    if back.is_err() && !precious.exists() {
                        // It was moved on, or given another name: somebody will find it.
                        continue;
                    }
                }
                let _ = fs::remove_file(&aside);
            }
        }
    });
}

#[test]
fn who_owns_the_target_gains_nothing_by_swapping_names() {
    let test = "who_owns_the_target_gains_nothing_by_swapping_names";
    if !is_root(test) {
        return;
    }
    let bench = Bench::new();
    let (image, out, vault) = (bench.volume(), bench.path("out"), bench.path("vault"));
    fs::set_permissions(out.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::chown(&out, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::create_dir(&vault).unwrap();
    let (secret, precious) = (vault.join("secret"), out.join("precious"));
    for path in [&secret, &precious] {
        fs::write(path, "root's").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let precious = File::open(precious).unwrap();

    let volume = open(&image);
    for index in 0..40 {
        volume.write(format!("/file{index}"), "theirs").unwrap();
        volume.create_dir(format!("/dir{index}")).unwrap();
        volume.write(format!("/dir{index}/below"), "theirs").unwrap();
        volume.hard_link(format!("/file{index}"), format!("/link{index}")).unwrap();
        for name in ["file", "dir"] {
            let given = syncline::SetAttr {
                uid: Some(SOMEBODY),
                gid: Some(SOMEBODY),
                mode: None,
                ..syncline::SetAttr::default()
            };
            volume.set_attributes(format!("/{name}{index}"), &given).unwrap();
            volume.set_permissions(format!("/{name}{index}"), 0o4777).unwrap();
        }
    }
    volume.close().unwrap();

    let mut attacker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attacks::swap_names_in_the_directory_of_the_environment"])
        .env("SYNCLINE_TEST_SWAP", &out)
        .env("SYNCLINE_TEST_SECRET", &secret)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .uid(SOMEBODY)
        .gid(SOMEBODY)
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !out.join("ready").exists() {
        assert!(attacker.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE, "no attacker");
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..25 {
        // What comes of it is the attacker's doing: their directory, their files.
        let mut export = start(&["export", "-q", "--force", text(&image), "/.", text(&out)]);
        end_of(&mut export);
        let (found, lying) = (fs::metadata(&secret).unwrap(), precious.metadata().unwrap());
        for metadata in [&found, &lying] {
            assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (0, 0o600), "root's file was given away");
        }
        let vault = fs::metadata(&vault).unwrap();
        assert_eq!((vault.uid(), vault.mode() & 0o7777), (0, 0o755), "root's directory was given away");
        // The export gives the directory itself the attributes of the volume's root.
        std::os::unix::fs::chown(&out, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    }
    assert_eq!(fs::read(&secret).unwrap(), b"root's");
    assert_eq!(fs::read_dir(&vault).unwrap().count(), 1, "nothing was written there");
    drop(attacker.stdin.take());
    end_of(&mut attacker);
}

#[test]
fn set_id_bits_and_capabilities_travel_both_ways() {
    let test = "set_id_bits_and_capabilities_travel_both_ways";
    if !is_root(test) {
        return;
    }
    let bench = Bench::new();
    let (image, file, back) = (bench.volume(), bench.path("file"), bench.path("back"));
    fs::write(&file, "program").unwrap();
    std::os::unix::fs::chown(&file, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6751)).unwrap();
    // cap_net_raw=ep, as `struct vfs_cap_data` of version 2.
    let capability: Vec<u8> =
        [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Err(error) = rustix::fs::setxattr(&file, "security.capability", &capability, XattrFlags::empty()) {
        skip(test, &format!("capabilities cannot be set here: {error}"));
        return;
    }
    syncline(&["import", "-q", text(&image), text(&file)]).ok();
    let volume = open(&image);
    assert_eq!(volume.xattr("/file", "security.capability").unwrap(), Some(capability.clone()));
    assert_eq!(volume.metadata("/file").unwrap().mode() & 0o7777, 0o6751);
    volume.close().unwrap();
    syncline(&["export", "-q", text(&image), "/file", text(&back)]).ok();
    let mut found = vec![0; 64];
    let length = rustix::fs::getxattr(&back, "security.capability", &mut found).unwrap();
    assert_eq!(found[..length], capability);
    let metadata = fs::metadata(&back).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (SOMEBODY, 0o6751));
}

#[test]
fn files_that_the_kernel_makes_up_are_read_to_their_end() {
    let bench = Bench::new();
    let image = bench.volume();
    syncline(&["import", "-q", text(&image), "/proc/self/status"]).ok();
    let status = syncline(&["cat", text(&image), "/status"]).ok().out;
    assert!(status.starts_with("Name:\tsyncline\n") && status.contains("\nPid:"), "{status}");
    // One of a page in size, of which a few bytes are there.
    let made_up = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if let Ok(content) = fs::read(made_up) {
        assert!(made_up.metadata().unwrap().len() > content.len() as u64);
        syncline(&["import", "-q", text(&image), text(made_up)]).ok();
        assert_eq!(syncline(&["cat", text(&image), "/enabled"]).ok().out.as_bytes(), content);
    }
}

#[test]
fn nothing_that_a_file_turns_into_holds_up_an_import() {
    let bench = Bench::new();
    let (image, tree) = (bench.volume(), bench.path("tree"));
    fs::create_dir(&tree).unwrap();
    let (file, fifo) = (tree.join("one"), tree.join("other"));
    fs::write(&file, "content").unwrap();
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    syncline(&["import", "-q", text(&image), text(&tree)]).ok();
    let rows = syncline(&["ls", "--json", text(&image), "/tree"]).ok().json();
    assert_eq!((&rows[0]["type"], &rows[1]["type"]), (&"file".into(), &"fifo".into()));

    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0_u32;
            while !ended.load(Ordering::Relaxed) && count < 50_000_000 {
                rustix::fs::renameat_with(CWD, &file, CWD, &fifo, RenameFlags::EXCHANGE).expect("exchange");
                count += 1;
            }
        });
        for _ in 0..40 {
            let mut import = start(&["import", "--force", "-q", text(&image), text(&tree)]);
            let status = end_of(&mut import);
            assert!(matches!(status.code(), Some(0 | 1)), "{status}");
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(syncline(&["check", text(&image)]).ok().out.contains("sound"));
}

#[test]
fn a_file_that_is_written_while_it_is_copied_is_told() {
    let bench = Bench::new();
    let (image, growing) = (bench.path("roomy.img"), bench.path("growing"));
    syncline(&["mkfs", "-q", "--size", "256M", text(&image)]).ok();
    let ended = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        let mut file = File::create(&growing).unwrap();
        file.write_all(&vec![1; 8 << 20]).unwrap();
        scope.spawn(|| {
            let file = File::options().write(true).open(&growing).unwrap();
            while !ended.load(Ordering::Relaxed) {
                use std::os::unix::fs::FileExt;
                file.write_all_at(&[2; 4096], 0).unwrap();
                file.write_all_at(&[3; 4096], 4 << 20).unwrap();
            }
        });
        let told = (0..50).any(|_| {
            let run = syncline(&["import", "--force", "--json", text(&image), text(&growing)]);
            match run.json()["changed"].as_u64() {
                Some(1) => {
                    assert!(run.err.contains("growing: changed while it was copied"), "{}", run.err);
                    assert!(run.err.contains("1 changed while being copied"), "{}", run.err);
                    assert_eq!(run.code, 1);
                    true
                }
                _ => false,
            }
        });
        ended.store(true, Ordering::Relaxed);
        told
    });
    assert!(told, "50 copies of a file that is written all the time, and no word of it");
}

/// Starts an export and stops it while something is being made.
fn stopped_export(image: &Path, out: &Path) -> Option<Child> {
    let mut export = start(&["export", "--force", "-q", text(image), "/large", text(out)]);
    let began = Instant::now();
    loop {
        if places_in(out).iter().any(|place| place.join("new").exists()) {
            signal(&export, Signal::STOP);
            return Some(export);
        }
        if export.try_wait().unwrap().is_some() {
            return None;
        }
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
}

#[test]
fn an_export_that_is_asked_to_end_leaves_nothing_half_made() {
    let bench = Bench::new();
    let (image, out) = (with_large_file(&bench), bench.path("out"));
    fs::create_dir(&out).unwrap();
    let ended = (0..20).any(|_| {
        let Some(mut export) = stopped_export(&image, &out) else { return false };
        signal(&export, Signal::TERM);
        signal(&export, Signal::CONT);
        let status = end_of(&mut export);
        assert_eq!(places_in(&out), [] as [PathBuf; 0]);
        let was_early = status.code() == Some(143);
        if was_early {
            let mut told = String::new();
            export.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            assert!(told.contains("ended by a signal") && told.lines().count() == 1, "{told}");
            assert!(!out.join("large").exists());
        }
        let _ = fs::remove_file(out.join("large"));
        was_early
    });
    assert!(ended, "20 exports were all done before they could be asked to end");
}

#[test]
fn what_a_killed_export_left_the_next_one_removes_and_nothing_else() {
    let bench = Bench::new();
    let (image, out) = (with_large_file(&bench), bench.path("out"));
    fs::create_dir(&out).unwrap();
    let killed = (0..20).any(|_| {
        let Some(mut export) = stopped_export(&image, &out) else { return false };
        export.kill().unwrap();
        end_of(&mut export);
        places_in(&out).len() == 1
    });
    assert!(killed, "20 exports were all done before they could be killed");
    // Somebody's who is alive (and one with the number of nobody, which is held), and what only looks like one.
    let alive = out.join(format!(".syncline-{}", std::process::id()));
    let held = out.join(".syncline-4194305");
    for place in [&alive, &held] {
        fs::DirBuilder::new().create(place).unwrap();
        fs::set_permissions(place, fs::Permissions::from_mode(0o700)).unwrap();
    }
    let holder = File::open(&held).unwrap();
    rustix::fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    let (file, open_to_all) = (out.join(".syncline-12-0-file"), out.join(".syncline-4194306"));
    fs::write(&file, "").unwrap();
    fs::create_dir(&open_to_all).unwrap();
    syncline(&["export", "--force", "-q", text(&image), "/large", text(&out)]).ok();
    let mut left = places_in(&out);
    left.sort();
    let mut kept = vec![file, open_to_all, alive, held];
    kept.sort();
    assert_eq!(left, kept);
    assert_eq!(fs::metadata(out.join("large")).unwrap().len(), 160 << 20);
}

#[test]
fn an_import_that_is_asked_to_end_closes_the_volume_and_leaves_nothing_half_made() {
    let bench = Bench::new();
    let (image, large) = (bench.path("roomy.img"), bench.path("large"));
    syncline(&["mkfs", "-q", "--size", "512M", text(&image)]).ok();
    fs::write(&large, vec![9; 200 << 20]).unwrap();
    let ended = (0..20).any(|_| {
        let mut import = start(&["import", "--force", "-q", text(&image), text(&large)]);
        let descriptors = format!("/proc/{}/fd", import.id());
        let began = Instant::now();
        let reads = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|path| path == large);
        while !fs::read_dir(&descriptors).into_iter().flatten().flatten().any(reads) {
            if import.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(began.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        signal(&import, Signal::TERM);
        let status = end_of(&mut import);
        assert!(matches!(status.code(), Some(0 | 143)), "{status}");
        let names = syncline(&["ls", "-R", text(&image)]).ok().out;
        assert!(!names.contains(".syncline-"), "{names}");
        assert!(syncline(&["check", text(&image)]).ok().out.contains("sound"));
        status.code() == Some(143)
    });
    assert!(ended, "20 imports were all done before they could be asked to end");
}

#[test]
fn what_a_killed_import_left_the_next_one_removes_and_nothing_else() {
    let bench = Bench::new();
    let (image, file) = (bench.volume(), bench.path("file"));
    fs::write(&file, "x").unwrap();
    let volume = open(&image);
    for (place, name, mode) in
        [("/.syncline-12", "new", 0o700), ("/.syncline-13", "mine", 0o700), ("/.syncline-14", "new", 0o755)]
    {
        volume.create_dir(place).unwrap();
        volume.write(format!("{place}/{name}"), "half").unwrap();
        volume.set_permissions(place, mode).unwrap();
    }
    volume.close().unwrap();
    syncline(&["import", "-q", text(&image), text(&file)]).ok();
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, ".syncline-13\n.syncline-14\nfile\n");
}

#[test]
fn a_directory_takes_over_no_access_list_from_where_it_is_put() {
    let bench = Bench::new();
    let (image, tree) = (bench.volume(), bench.path("tree"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    let volume = open(&image);
    volume.create_dir("/there").unwrap();
    // user::rwx, user:65534:rwx, group::r-x, mask::rwx, other::r-x
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in
        [(1_u16, 7_u16, u32::MAX), (2, 7, SOMEBODY), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(bits.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    volume.set_xattr("/there", "system.posix_acl_default", &acl).unwrap();
    volume.close().unwrap();
    syncline(&["import", "-q", text(&image), text(&tree), "/there"]).ok();
    let volume = open(&image);
    for path in ["/there/tree", "/there/tree/file"] {
        assert_eq!(volume.list_xattrs(path).unwrap(), [] as [&str; 0], "{path}");
    }
    volume.close().unwrap();
}

#[test]
fn a_lock_of_somebody_who_may_only_read_holds_up_nobody() {
    let test = "a_lock_of_somebody_who_may_only_read_holds_up_nobody";
    if !is_root(test) {
        return;
    }
    let bench = Bench::new();
    let (image, file) = (bench.volume(), bench.path("file"));
    fs::write(&file, "x").unwrap();
    fs::set_permissions(image.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o644)).unwrap();
    for how in ["--shared", "--exclusive"] {
        // It says when it has the lock, and gives it back when its standard input ends.
        let holder = Command::new("flock")
            .args([how, text(&image), "sh", "-c", "echo held; read line"])
            .uid(SOMEBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut holder) = holder else { return skip(test, "there is no flock(1)") };
        let mut said = [0; 5];
        holder.stdout.take().unwrap().read_exact(&mut said).expect("it has the lock");
        syncline(&["import", "--force", "-q", text(&image), text(&file)]).ok();
        assert!(syncline(&["check", text(&image)]).ok().out.contains("sound"));
        drop(holder.stdin.take());
        end_of(&mut holder);
    }
}

#[test]
fn names_are_shown_on_a_terminal_without_what_it_would_obey() {
    let test = "names_are_shown_on_a_terminal_without_what_it_would_obey";
    let bench = Bench::new();
    let image = bench.volume();
    let volume = open(&image);
    volume.write("/a\x1b[31mb\nc", "").unwrap();
    volume.close().unwrap();
    assert_eq!(syncline(&["ls", text(&image)]).ok().out, "a\x1b[31mb\nc\n", "programs get names as they are");
    let line = format!("{PROGRAM} ls {}", text(&image));
    let script = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
    match script {
        Ok(output) => {
            let shown = String::from_utf8(output.stdout).unwrap();
            assert_eq!(shown.trim_end(), "a\\u{1b}[31mb\\nc");
        }
        Err(_) => skip(test, "there is no script(1)"),
    }
    let run = syncline(&["cat", text(&image), "/no\x1b[31m\nsuch"]);
    run.fails(1, &image, "no\\u{1b}[31m\\nsuch: No such file");
}

#[test]
fn an_image_path_that_became_a_fifo_is_refused_at_once() {
    let bench = Bench::new();
    let fifo = bench.path("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for line in [["ls"].as_slice(), &["check"], &["mkfs", "--size", "16M"], &["inspect", "super"], &["sync"]]
    {
        let mut line = line.to_vec();
        line.push(text(&fifo));
        let mut child = start(&line);
        assert!(!end_of(&mut child).success());
    }
    let mut kept =
        rustix::fs::open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).map(File::from).unwrap();
    assert_eq!(kept.read(&mut [0; 1]).unwrap(), 0, "nobody has it open");
}
