//! Several heads and snapshots of one volume, mounted at the same time by one daemon.

use crate::harness::{
    VOLUME_BYTES, Volume, allow_transport, as_user, detach, errno, is_mounted, server, skipped, statistics,
    wait_until, with_transport,
};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::linux::fs::MetadataExt;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use syncline_fuse::snapshots;

/// A mounted volume with the snapshot `s` and the heads `one` and `two` made of it, and directories to mount them on.
fn branched(options: &str) -> Option<(Volume, tempfile::TempDir)> {
    let mut volume = Volume::mounted("")?;
    fs::write(volume.path("f"), b"base").unwrap();
    fs::create_dir(volume.path(".snapshots/s")).unwrap();
    volume.unmount();
    let whole = syncline::Volume::open(volume.image()).unwrap();
    whole.clone_snapshot("s", "one").unwrap();
    whole.clone_snapshot("s", "two").unwrap();
    whole.close().unwrap();
    volume.mount(options).unwrap();
    let directory = tempfile::tempdir().unwrap();
    ["one", "two", "s", "else"].iter().for_each(|name| fs::create_dir(directory.path().join(name)).unwrap());
    Some((volume, directory))
}

/// Mounts more of the volume; what is said if that fails.
fn join(volume: &Volume, at: &Path, options: &str) -> Result<(), String> {
    let _allowed = allow_transport();
    let mut command = Command::new(server());
    command.arg("--background").arg(volume.image()).arg(at).arg(with_transport(options));
    let output = command.output().expect("run serve");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn unmount(at: &Path) {
    let elsewhere =
        syncline_fuse::unmount(at, false).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
    assert_eq!(elsewhere, None, "{}", at.display());
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

// Shows: C12.
#[test]
fn heads_and_snapshots_are_mounted_at_the_same_time_and_each_keeps_what_was_synced_in_it() {
    let Some((mut volume, places)) = branched("volatile,commit=1000") else { return };
    let at = |name: &str| places.path().join(name);
    for name in ["one", "two"] {
        join(&volume, &at(name), &format!("head={name}")).unwrap();
        assert_eq!(statistics(&at(name))["transport"], crate::TRANSPORT.1);
    }
    join(&volume, &at("s"), "snapshot=s").unwrap();
    fs::write(volume.path("f"), b"main").unwrap();
    fs::write(at("one/f"), b"first").unwrap();
    fs::create_dir(at("two/d")).unwrap();
    fs::write(at("two/d/g"), b"second").unwrap();
    let shown = |root: &Path| read(root.join("f"));
    assert_eq!(
        [volume.root(), at("one"), at("two"), at("s")].map(|root| shown(&root)),
        ["main", "first", "base", "base"]
    );
    assert!(fs::write(at("s/f"), b"x").is_err(), "a snapshot is not written");
    // Each head is snapshotted on its own.
    fs::create_dir(at("one/.snapshots/of-one")).unwrap();
    assert_eq!(read(volume.path(".snapshots/of-one/f")), "first");
    for file in [volume.path("f"), at("one/f"), at("two/d/g")] {
        File::open(file).unwrap().sync_all().unwrap();
    }
    fs::write(at("two/f"), b"not synced").unwrap();
    // A power cut: all that was synced is there, in each head.
    volume.crash();
    ["one", "two", "s"].iter().for_each(|name| detach(&at(name)));
    join(&volume, &at("one"), "head=one").unwrap();
    join(&volume, &at("two"), "head=two").unwrap();
    assert_eq!((shown(&volume.root()), shown(&at("one"))), ("main".to_owned(), "first".to_owned()));
    assert_eq!(read(at("two/d/g")), "second");
    unmount(&at("one"));
    unmount(&at("two"));
    volume.unmount();
}

#[test]
fn the_volume_is_closed_with_the_last_mount_whichever_that_is() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = |name: &str| places.path().join(name);
    join(&volume, &at("one"), "head=one").unwrap();
    fs::write(volume.path("f"), b"main").unwrap();
    unmount(&volume.root());
    assert!(is_mounted(&at("one")) && !is_mounted(&volume.root()));
    fs::write(at("one/g"), vec![3; 100_000]).unwrap();
    assert!(syncline::Volume::open(volume.image()).is_err(), "the daemon has it");
    // What was mounted first comes back, by the same daemon.
    join(&volume, &volume.root(), "").unwrap();
    assert_eq!(read(volume.path("f")), "main");
    let deleted = snapshots::delete_snapshot(&File::open(volume.root()).unwrap(), "s");
    deleted.expect("others go on beside a mount that came later");
    unmount(&volume.root());
    unmount(&at("one"));
    let status = volume.wait_for_daemon();
    assert!(status.success(), "the daemon ended with {status}: {}", volume.log());
    let whole = syncline::Volume::open(volume.image()).unwrap();
    assert_eq!(whole.read("f").unwrap(), b"main");
    assert!(whole.head("one").unwrap().read("g").unwrap() == vec![3; 100_000]);
    whole.close().unwrap();
}

#[test]
fn what_cannot_be_mounted_beside_is_refused_and_leaves_nothing() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = |name: &str| places.path().join(name);
    join(&volume, &at("one"), "head=one").unwrap();
    let refused = |options: &str| join(&volume, &at("else"), options).expect_err(options);
    assert!(refused("head=one").contains("mounted on"), "each head is at one place");
    assert!(refused("").contains("mounted on"));
    assert!(refused("head=none").contains("no head named \"none\""));
    assert!(refused("snapshot=none").contains("no snapshot \"none\""));
    assert!(refused("head=two,memory=64M").contains("option memory is for the daemon"));
    assert!(!is_mounted(&at("else")));
    let stacked = join(&volume, &volume.root(), "head=two").expect_err("stacked");
    assert!(stacked.contains("shows another head or snapshot"), "{stacked}");
    // A file or directory that is no place leaves the head free.
    assert!(join(&volume, &at("nowhere"), "head=two").is_err());
    join(&volume, &at("two"), "head=two").unwrap();
    unmount(&at("two"));
    unmount(&at("one"));
    volume.unmount();
    volume.mount("ro").unwrap();
    assert!(join(&volume, &at("one"), "head=one").expect_err("rw").contains("read-only"));
    join(&volume, &at("one"), "head=one,ro").unwrap();
    assert!(fs::write(at("one/x"), b"x").is_err());
    unmount(&at("one"));
    volume.unmount();
    volume.mount("snapshot=s").unwrap();
    assert!(join(&volume, &at("one"), "head=one,ro").expect_err("of a snapshot").contains("one snapshot"));
    volume.unmount();
}

#[test]
fn what_is_bound_to_another_directory_is_not_waited_for() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = |name: &str| places.path().join(name);
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("what_is_bound_to_another_directory_is_not_waited_for", "binding needs root");
    }
    join(&volume, &at("one"), "head=one").unwrap();
    for place in [at("one"), volume.root()] {
        let bound = Command::new("mount").arg("--bind").arg(&place).arg(at("else")).status();
        assert!(bound.expect("mount").success());
        assert_eq!(syncline_fuse::unmount(&place, false).unwrap(), Some(at("else")));
        assert_eq!(read(at("else/f")), "base");
        unmount(&at("else"));
    }
    assert!(volume.wait_for_daemon().success());
}

#[test]
fn a_daemon_that_is_asked_to_end_unmounts_all_it_has_mounted() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = |name: &str| places.path().join(name);
    join(&volume, &at("one"), "head=one").unwrap();
    join(&volume, &at("s"), "snapshot=s").unwrap();
    fs::write(at("one/f"), b"first").unwrap();
    // SAFETY: the process is this test's own.
    assert_eq!(unsafe { libc::kill(volume.daemon(), libc::SIGTERM) }, 0);
    let status = volume.wait_for_daemon();
    assert!(status.success(), "the daemon ended with {status}: {}", volume.log());
    assert!(!is_mounted(&volume.root()) && !is_mounted(&at("one")) && !is_mounted(&at("s")));
    volume.mount("head=one").unwrap();
    assert_eq!(read(volume.path("f")), "first");
    volume.unmount();
}

/// Where the daemon of an image listens.
fn address(image: &Path) -> std::io::Result<SocketAddr> {
    let metadata = fs::metadata(image)?;
    SocketAddr::from_abstract_name(format!("syncline/image/{}/{}", metadata.st_dev(), metadata.st_ino()))
}

fn message(fields: &[&[u8]]) -> Vec<u8> {
    let fields = fields.join(&0);
    [&(fields.len() as u32).to_ne_bytes()[..], &fields].concat()
}

#[test]
fn whoever_joins_and_goes_wrong_leaves_the_daemon_and_the_head_to_others() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = places.path().join("one");
    let path = at.to_str().unwrap().as_bytes();
    for said in [
        &b"no message at all, and much longer than its length says it would be"[..],
        &message(&[b"mount"]),
        &message(&[b"mount", b"999", path, b"head=one"]),
        &message(&[b"\xff\xfe", b"", b"", b"", b""]),
        // Nothing is handed over, or something else than a descriptor.
        &message(&[b"mount", b"1", path, b"head=one"]),
        &[&message(&[b"mount", b"1", path, b"head=one"])[..], b"x"].concat(),
    ] {
        let mut stream = UnixStream::connect_addr(&address(&volume.image()).unwrap()).unwrap();
        stream.write_all(said).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Other users have no business here, whatever the image's mode says.
    let address = address(&volume.image()).unwrap();
    let refused = as_user(54_321, 54_321, || {
        let mut stream = UnixStream::connect_addr(&address)?;
        let mut said = Vec::new();
        let asked = stream.write_all(&message(&[b"mount", b"1", b"/", b"head=one"]));
        let _ = asked.and_then(|()| stream.read_to_end(&mut said));
        Err(std::io::Error::from_raw_os_error(if said.is_empty() { libc::EPERM } else { libc::EPROTO }))
    });
    assert_eq!(refused, libc::EPERM);
    wait_until("the head is free", || join(&volume, &at, "head=one").is_ok());
    unmount(&at);
    volume.unmount();
}

#[test]
fn a_volume_without_heads_is_mounted_once() {
    let Some(volume) = Volume::mounted("") else { return };
    let place = tempfile::tempdir().unwrap();
    assert!(join(&volume, place.path(), "").expect_err("twice").contains("mounted on"));
    assert!(join(&volume, place.path(), "head=main").expect_err("no heads").contains("head"));
    assert_eq!(fs::metadata(volume.image()).unwrap().len(), VOLUME_BYTES);
}

// Shows: C11.
#[test]
fn a_snapshot_that_one_mount_has_read_gives_its_space_back_when_another_deletes_it() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = places.path().join("one");
    join(&volume, &at, "head=one").unwrap();
    fs::write(volume.path("large"), vec![1; 16 << 20]).unwrap();
    fs::create_dir(volume.path(".snapshots/large")).unwrap();
    fs::remove_file(volume.path("large")).unwrap();
    // The view stays open for the next reader.
    assert_eq!(fs::metadata(at.join(".snapshots/large/large")).unwrap().len(), 16 << 20);
    let free = || statistics(&volume.root())["space"]["blocks_free"].as_u64().expect("a number");
    let before = free();
    fs::remove_dir(volume.path(".snapshots/large")).unwrap();
    wait_until("the space is back", || free() >= before + 4000);
    unmount(&at);
    volume.unmount();
}

#[test]
fn heads_are_made_listed_and_deleted_on_any_mount() {
    let Some((mut volume, places)) = branched("") else { return };
    let at = places.path().join("one");
    join(&volume, &at, "head=one").unwrap();
    let (whole, beside) = (File::open(volume.root()).unwrap(), File::open(&at).unwrap());
    let made = snapshots::make_head(&beside, "s", "three").unwrap();
    assert_eq!((made.name.as_str(), made.parent.as_deref()), ("three", Some("s")));
    let names = |root: &File| -> Vec<String> {
        snapshots::heads(root).unwrap().into_iter().map(|head| head.name).collect()
    };
    assert_eq!(names(&whole), ["main", "one", "two", "three"]);
    assert_eq!(names(&beside), names(&whole));
    assert_eq!(errno(snapshots::make_head(&whole, "s", "three")), libc::EEXIST);
    assert_eq!(errno(snapshots::make_head(&whole, "none", "x")), libc::ENOENT);
    assert_eq!(errno(snapshots::make_head(&whole, "s", "a/b")), libc::EINVAL);
    assert_eq!(errno(snapshots::delete_head(&whole, "one")), libc::EBUSY);
    assert_eq!(errno(snapshots::delete_head(&beside, "main")), libc::EBUSY);
    assert_eq!(errno(snapshots::delete_head(&whole, "none")), libc::ENOENT);
    let other = as_user(54_321, 54_321, || snapshots::make_head(&whole, "s", "theirs").map(drop));
    assert_eq!(other, libc::EPERM);
    snapshots::delete_head(&beside, "three").unwrap();
    assert_eq!(names(&whole), ["main", "one", "two"]);
    drop((whole, beside));
    unmount(&at);
    volume.unmount();
}
