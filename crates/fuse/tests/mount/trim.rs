//! `fstrim`: what is free gets holes in the image, nothing else changes, and who may not is refused.

use crate::harness::{Volume, errno, fallocate, skipped, statistics};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// `FITRIM` of linux/fs.h.
const FITRIM: libc::Ioctl = 0xc018_5879;
const MIB: u64 = 1 << 20;

/// Trims; returns how many bytes were discarded.
fn trim(path: &Path, start: u64, length: u64, length_min: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let mut range = [start, length, length_min];
    // SAFETY: FITRIM reads and writes three u64.
    match unsafe { libc::ioctl(file.as_raw_fd(), FITRIM, range.as_mut_ptr()) } {
        0 => Ok(range[1]),
        _ => Err(io::Error::last_os_error()),
    }
}

fn held(volume: &Volume) -> u64 {
    fs::metadata(volume.image()).unwrap().blocks() * 512
}

/// A volume with a file of 8 MiB that stays, and one of 24 MiB that was removed.
fn with_a_hole_to_come(options: &str) -> Option<Volume> {
    let volume = Volume::mounted(options)?;
    fs::write(volume.path("stays"), vec![1; 8 << 20]).unwrap();
    fs::write(volume.path("goes"), vec![2; 24 << 20]).unwrap();
    File::open(volume.root()).unwrap().sync_all().unwrap();
    fs::remove_file(volume.path("goes")).unwrap();
    Some(volume)
}

#[test]
fn what_was_removed_gets_holes_in_the_image_and_the_rest_stays() {
    let Some(mut volume) = with_a_hole_to_come("volatile,commit=1000") else { return };
    let before = held(&volume);
    let discarded = trim(&volume.root(), 0, u64::MAX, 0).unwrap();
    assert!(discarded >= 24 * MIB, "{discarded} bytes");
    assert!(held(&volume) + 23 * MIB <= before, "{} bytes of {before} are left", held(&volume));
    assert!(statistics(&volume.root())["device"]["discards"].as_u64().unwrap() > 0);
    // On a file it is the same call, and there is as much to discard as before.
    let again = trim(&volume.path("stays"), 0, u64::MAX, 0).unwrap();
    assert!(again.abs_diff(discarded) < MIB, "{again} and {discarded} bytes");
    fs::write(volume.path("later"), vec![3; 16 << 20]).unwrap();
    File::open(volume.path("later")).unwrap().sync_all().unwrap();
    volume.crash();
    assert!(fs::read(volume.path("stays")).unwrap() == vec![1; 8 << 20]);
    assert!(fs::read(volume.path("later")).unwrap() == vec![3; 16 << 20]);
    assert!(!volume.path("goes").exists());
}

#[test]
fn start_length_and_minimum_are_kept_to() {
    let Some(volume) = with_a_hole_to_come("") else { return };
    let all = trim(&volume.root(), 0, u64::MAX, 0).unwrap();
    let parts: u64 = (0..4).map(|part| trim(&volume.root(), part * 16 * MIB, 16 * MIB, 0).unwrap()).sum();
    assert!(parts.abs_diff(all) < MIB, "{parts} bytes in parts, {all} at once");
    assert_eq!(trim(&volume.root(), 0, 64 << 10, 0).unwrap(), 0, "superblocks and journal");
    assert!(trim(&volume.root(), 0, u64::MAX, 20 * MIB).unwrap() >= 20 * MIB);
    assert_eq!(trim(&volume.root(), 0, u64::MAX, 60 * MIB).unwrap(), 0, "no run is as long as that");
    for (start, length, length_min) in [(64 * MIB, MIB, 0), (0, 100, 0), (0, MIB, 129 * MIB)] {
        assert_eq!(errno(trim(&volume.root(), start, length, length_min)), libc::EINVAL);
    }
}

#[test]
fn a_read_only_mount_is_not_trimmed() {
    let Some(mut volume) = with_a_hole_to_come("") else { return };
    volume.unmount();
    volume.mount("ro").unwrap();
    let before = held(&volume);
    assert_eq!(errno(trim(&volume.root(), 0, u64::MAX, 0)), libc::EROFS);
    assert_eq!(held(&volume), before);
}

#[test]
fn writers_go_on_while_all_is_trimmed_again_and_again() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1") else { return };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u8)
            .map(|number| {
                let path = volume.path(&format!("f{number}"));
                scope.spawn(move || {
                    for round in 0..30_u8 {
                        let _ = fs::remove_file(&path);
                        fs::write(&path, vec![round ^ number; 3 << 20]).unwrap();
                        File::open(&path).unwrap().sync_all().unwrap();
                    }
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            trim(&volume.root(), 0, u64::MAX, 0).unwrap();
        }
    });
    volume.crash();
    for number in 0..3_u8 {
        assert!(fs::read(volume.path(&format!("f{number}"))).unwrap() == vec![29 ^ number; 3 << 20]);
    }
}

/// A full volume: space that a trim holds is not lacking to anybody.
#[test]
fn no_space_is_lacking_because_of_a_trim() {
    let Some(volume) = Volume::mounted("commit=1") else { return };
    let path = volume.path("all");
    let file = File::create(&path).unwrap();
    let room = statistics(&volume.root())["space"]["blocks_available"].as_u64().unwrap() * 4096 * 9 / 10;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..20 {
                fallocate(&file, 0, 0, room as i64).unwrap();
                file.set_len(0).unwrap();
            }
        });
        while !writer.is_finished() {
            trim(&volume.root(), 0, u64::MAX, 0).unwrap();
        }
    });
}

/// Runs `fstrim` with what stands before it.
fn fstrim(before: &[&str], volume: &Volume) -> Option<(bool, String)> {
    let mut words = before.to_vec();
    words.push("fstrim");
    let output = Command::new(words[0]).args(&words[1..]).arg("-v").arg(volume.root()).output().ok()?;
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said))
}

#[test]
fn the_capability_counts_and_not_the_user() {
    let Some(volume) = with_a_hole_to_come("") else { return };
    let test = "the_capability_counts_and_not_the_user";
    let Some((true, said)) = fstrim(&[], &volume) else { return skipped(test, "there is no fstrim") };
    assert!(said.contains("bytes) trimmed"), "{said}");
    for directory in [volume.root().parent().unwrap(), &volume.root()] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let refused: [&[&str]; 3] = [
        &["setpriv", "--bounding-set", "-sys_admin"],
        &["setpriv", "--reuid", "1000", "--clear-groups"],
        &["unshare", "--user", "--map-root-user"],
    ];
    for before in refused {
        let Some((trimmed, said)) = fstrim(before, &volume) else { return skipped(test, before[0]) };
        assert!(!trimmed && said.contains("Operation not permitted"), "{before:?}: {said}");
    }
    let allowed = [
        "setpriv",
        "--reuid",
        "1000",
        "--clear-groups",
        "--inh-caps",
        "+sys_admin",
        "--ambient-caps",
        "+sys_admin",
    ];
    let Some((trimmed, said)) = fstrim(&allowed, &volume) else { return skipped(test, "setpriv") };
    assert!(trimmed && said.contains("trimmed"), "{said}");
}
