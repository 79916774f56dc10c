//! `mount -o remount,ro` and `remount,rw`, as the helper of mount(8) is asked for them.

use crate::harness::{Volume, errno, server};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// What mount(8) says behind the change.
const REPEATED: &str = "relatime,remount,user_id=0,group_id=0,default_permissions,allow_other";

/// What the refusal says.
fn remount(volume: &Volume, options: &str) -> Result<(), String> {
    let mut command = Command::new(server());
    command.arg("--background").arg(volume.image()).arg(volume.root()).arg(options);
    let output = command.output().expect("run serve");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn change(path: &Path) -> std::io::Result<()> {
    File::create(path).map(drop)
}

#[test]
fn a_mount_made_read_only_has_everything_durable_and_takes_no_change() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    fs::write(volume.path("d/f"), vec![3; 300_000]).unwrap();
    remount(&volume, &format!("ro,{REPEATED}")).unwrap();
    assert_eq!(errno(change(&volume.path("g"))), libc::EROFS);
    assert_eq!(errno(fs::remove_file(volume.path("d/f"))), libc::EROFS);
    assert!(fs::read(volume.path("d/f")).unwrap() == vec![3; 300_000]);
    remount(&volume, &format!("ro,{REPEATED}")).unwrap();
    volume.crash();
    assert!(fs::read(volume.path("d/f")).unwrap() == vec![3; 300_000]);
    remount(&volume, "remount,ro").unwrap();
    remount(&volume, &format!("rw,{REPEATED}")).unwrap();
    change(&volume.path("g")).unwrap();
    volume.unmount();
}

#[test]
fn a_file_open_for_writing_keeps_a_mount_writable() {
    let Some(volume) = Volume::mounted("") else { return };
    let file = File::create(volume.path("f")).unwrap();
    let said = remount(&volume, "remount,ro").unwrap_err();
    assert!(said.contains("busy") && said.contains("open for writing"), "{said}");
    change(&volume.path("g")).unwrap();
    drop(file);
}

#[test]
fn what_was_mounted_read_only_stays_so_and_other_options_stay_as_they_are() {
    let Some(mut volume) = Volume::mounted("nosuid") else { return };
    for options in ["remount,rw,noatime", "remount,commit=5", "remount,suid,ro"] {
        let said = remount(&volume, options).unwrap_err();
        assert!(said.contains("only ro and rw can be changed"), "{options}: {said}");
    }
    remount(&volume, "remount,ro,commit=5").unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = volume.root();
    let line = table.lines().find(|line| line.contains(root.to_str().unwrap())).unwrap();
    assert!(line.contains(" ro,nosuid,") && line.contains("relatime"), "{line}");
    volume.unmount();
    volume.mount("ro").unwrap();
    let said = remount(&volume, &format!("rw,{REPEATED}")).unwrap_err();
    assert!(said.contains("mounted read-only") && said.contains("mount it again with rw"), "{said}");
    assert_eq!(errno(change(&volume.path("g"))), libc::EROFS);
    volume.unmount();
    let said = remount(&volume, "remount,ro").unwrap_err();
    assert!(said.contains("is not the root of a mounted Syncline volume"), "{said}");
}
