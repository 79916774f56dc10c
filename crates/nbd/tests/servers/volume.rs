//! Volumes on servers that fail, stop and die: nothing that was acknowledged is lost, and every waiter is told.

use crate::Server;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use syncline::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use syncline_check::{CheckOptions, check};
use syncline_device::Device;

fn make(server: &Server) -> Volume {
    let device: Arc<dyn Device> = Arc::new(server.open().expect("the export"));
    VolumeOptions::new().create_device(device, &MkfsOptions::default()).expect("a volume")
}

fn open(server: &Server) -> Volume {
    VolumeOptions::new().open_device(Arc::new(server.open().expect("the export"))).expect("the volume")
}

fn is_sound(server: &Server) {
    let report = check(&server.open().expect("the export"), CheckOptions::default()).expect("a check");
    assert!(report.is_sound(), "{:?}", report.findings);
}

// Shows: C1.
#[test]
fn a_sync_is_one_write_and_one_flush() {
    let Some(server) = Server::nbdkit("a_sync_is_one_write_and_one_flush", &["memory", "256M"]) else {
        return;
    };
    let device = Arc::new(server.open().expect("the export"));
    let volume = VolumeOptions::new()
        .background(false)
        .create_device(device.clone(), &MkfsOptions::default())
        .expect("a volume");
    let mut file = OpenOptions::new().write(true).create(true).open(&volume, "/log").expect("a file");
    let before = device.counters();
    for _ in 0..100 {
        file.write_all(&[1; 1000]).and_then(|()| file.sync_all()).expect("a sync");
    }
    let after = device.counters();
    assert_eq!((after.writes - before.writes, after.flushes - before.flushes), (100, 100));
    drop(file);
    volume.close().expect("closed");
    drop(device);
    is_sound(&server);
}

#[test]
fn a_write_that_the_server_fails_stops_the_volume_and_what_was_synced_is_there() {
    let words = [
        "--filter=error",
        "memory",
        "64M",
        "error-pwrite=EIO",
        "error-pwrite-rate=100%",
        "error-pwrite-file=DIR/fail",
    ];
    told_and_latched("a_write_that_the_server_fails", &words);
}

// Shows: C8.
#[test]
fn a_flush_that_the_server_fails_stops_the_volume_and_what_was_synced_is_there() {
    // nbdkit's filter fails no flush: a plugin of its own does.
    let plugin = r#"#!/bin/sh
case "$1" in
    get_size) stat -Lc %s "DIR/image" ;;
    pread) dd iflag=skip_bytes,count_bytes if="DIR/image" skip="$4" count="$3" status=none ;;
    pwrite) dd oflag=seek_bytes conv=notrunc of="DIR/image" seek="$4" status=none ;;
    can_write | can_flush) ;;
    flush) if [ -e "DIR/fail" ]; then echo "EIO no" >&2; exit 1; fi ;;
    *) exit 2 ;;
esac
"#;
    let words = |directory: &Path| {
        let here = directory.display().to_string();
        std::fs::write(directory.join("plugin"), plugin.replace("DIR", &here)).expect("a plugin");
        let may_run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(directory.join("plugin"), may_run).expect("it may run");
        std::fs::File::create(directory.join("image"))
            .and_then(|image| image.set_len(8 << 20))
            .expect("an image");
        ["-f", "--unix", &format!("{here}/sock"), "sh", &format!("{here}/plugin")].map(str::to_owned).to_vec()
    };
    let Some(server) = Server::start("a_flush_that_the_server_fails", "nbdkit", &words) else { return };
    told_and_latched_on(&server);
}

fn told_and_latched(test: &str, words: &[&str]) {
    let Some(server) = Server::nbdkit(test, words) else { return };
    told_and_latched_on(&server);
}

fn told_and_latched_on(server: &Server) {
    let volume = make(server);
    let mut file = OpenOptions::new().write(true).create(true).open(&volume, "/file").expect("a file");
    file.write_all(b"synced").and_then(|()| file.sync_all()).expect("a sync");
    let switch = server.directory.path().join("fail");
    let file_of = |thread: u32| {
        OpenOptions::new().write(true).create(true).open(&volume, format!("/t{thread}")).expect("a file")
    };
    let mut files: Vec<_> = (0..8).map(file_of).collect();
    // Before anything fails: a volume that has stopped takes no writes.
    for file in &mut files {
        file.write_all(b"not synced").expect("a write");
    }
    std::fs::write(&switch, "").expect("the switch");
    std::thread::scope(|scope| {
        for file in files {
            scope.spawn(move || {
                file.sync_all().expect_err("everybody who waits is told");
                file.sync_all().expect_err("and told again");
            });
        }
    });
    std::fs::remove_file(&switch).expect("the switch");
    file.sync_all().expect_err("it stays, though the server is well again");
    assert!(volume.write("/other", "x").is_err(), "the volume is read-only");
    assert_eq!(volume.read("/file").expect("a read"), b"synced");
    drop(file);
    // A volume that has stopped cannot be closed properly.
    let _ = volume.close();
    let volume = open(server);
    assert_eq!(volume.read("/file").expect("a read"), b"synced");
    volume.write("/other", "x").expect("it goes on after it was opened again");
    volume.close().expect("closed");
    is_sound(server);
}

/// The server keeps a file, and its cache in memory is what a kill takes: it is started again on what it has flushed.
// Shows: C1, C8.
#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_server_is_killed_amid_syncs() {
    const ROUNDS: u64 = 5;
    let test = "nothing_that_was_acknowledged_is_lost";
    let image = tempfile::tempdir().expect("a directory");
    let path = image.path().join("image");
    std::fs::File::create(&path).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let words = |directory: &Path| {
        let (socket, image) = (directory.join("sock").display().to_string(), path.display().to_string());
        // Writes stay in the server's memory until it is told to flush.
        let words = ["-f", "--unix", &socket, "--filter=cache", "file", &image, "cache=writeback"];
        words.map(str::to_owned).to_vec()
    };
    let Some(mut server) = Server::start(test, "nbdkit", &words) else { return };
    make(&server).close().expect("closed");
    let acknowledged: Arc<Vec<AtomicU64>> = Arc::new((0..8).map(|_| AtomicU64::new(0)).collect());
    let mut records = 0;
    for round in 0..ROUNDS {
        let volume = open(&server);
        for (thread, known) in acknowledged.iter().enumerate() {
            let content = volume.read(format!("/log{thread}")).unwrap_or_default();
            let words =
                content.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
            assert!(words.eq(0..content.len() as u64 / 8), "log {thread} of round {round} is torn");
            let found = content.len() as u64 / 8;
            assert!(found >= known.load(Ordering::SeqCst), "log {thread} of round {round}: {found} records");
        }
        std::thread::scope(|scope| {
            for (thread, known) in acknowledged.iter().enumerate() {
                let volume = &volume;
                scope.spawn(move || {
                    let name = format!("/log{thread}");
                    let mut next = volume.read(&name).unwrap_or_default().len() as u64 / 8;
                    let mut file =
                        OpenOptions::new().append(true).create(true).open(volume, &name).expect("a file");
                    while file.write_all(&next.to_le_bytes()).and_then(|()| file.sync_all()).is_ok() {
                        next += 1;
                        known.store(next, Ordering::SeqCst);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(150 + 130 * round));
            server.kill();
        });
        drop(volume);
        records = acknowledged.iter().map(|known| known.load(Ordering::SeqCst)).sum();
        server = Server::start(test, "nbdkit", &words).expect("nbdkit was there");
        is_sound(&server);
    }
    assert!(records > 100, "{records} syncs in {ROUNDS} rounds are too few to tell");
}

#[test]
fn the_library_makes_opens_and_upgrades_volumes_by_their_address() {
    let Some(server) = Server::nbdkit("the_library_makes_volumes", &["memory", "64M"]) else { return };
    let address = server.address().to_string();
    let made = Volume::create(&address, &MkfsOptions::default().format(1)).expect("a volume");
    made.write("/file", "content").expect("a write");
    let busy = VolumeOptions::new().open(&address).map(drop).expect_err("one process has a volume");
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy, "{busy}");
    made.close().expect("closed");
    let refused = Volume::create(&address, &MkfsOptions::default()).map(drop).expect_err("there is one");
    assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists, "{refused}");
    assert!(Volume::upgrade(&address).expect("an upgrade"));
    let volume = Volume::open(&address).expect("the volume");
    volume.snapshot("first").expect("a snapshot");
    assert_eq!(volume.read("/file").expect("a read"), b"content");
    volume.close().expect("closed");
    let wrong = Volume::open("nbd:///x").map(drop).expect_err("no address").to_string();
    assert!(wrong.contains("nbd://host/export"), "{wrong}");
}
