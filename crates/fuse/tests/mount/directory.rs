//! Reading directories, also while they change.

use crate::harness::{Volume, c_path};
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{self, File};

/// A directory stream of the C library.
struct Stream(*mut libc::DIR);

impl Stream {
    fn open(path: &std::path::Path) -> Stream {
        let path = c_path(path);
        // SAFETY: a NUL-terminated path.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Stream(stream)
    }

    fn tell(&self) -> libc::c_long {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&self, position: libc::c_long) {
        // SAFETY: the stream is open, the position came from telldir.
        unsafe { libc::seekdir(self.0, position) }
    }
}

impl Iterator for Stream {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        // SAFETY: the stream is open; the entry is used before the next call.
        unsafe {
            let entry = libc::readdir(self.0);
            (!entry.is_null())
                .then(|| CStr::from_ptr((*entry).d_name.as_ptr()).to_string_lossy().into_owned())
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is open and not used afterwards.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn every_entry_is_listed_once_and_positions_can_be_returned_to() {
    let Some(volume) = Volume::mounted("") else { return };
    let names: HashSet<String> = (0..3000).map(|i| format!("file-{i}")).collect();
    for name in &names {
        File::create(volume.path(name)).unwrap();
    }
    let mut stream = Stream::open(&volume.root());
    let mut seen = Vec::new();
    let mut positions = Vec::new();
    loop {
        positions.push(stream.tell());
        let Some(name) = stream.next() else { break };
        seen.push(name);
    }
    assert_eq!(seen.len(), names.len() + 2, "with . and ..");
    let listed: HashSet<String> = seen.iter().filter(|name| !name.starts_with('.')).cloned().collect();
    assert!(listed == names);
    for at in [seen.len() - 1, 5, 1777, 0, 2500] {
        stream.seek(positions[at]);
        assert_eq!(stream.next().as_ref(), Some(&seen[at]), "at {at}");
    }
}

#[test]
fn a_listing_survives_removal_and_creation_in_the_middle() {
    let Some(volume) = Volume::mounted("") else { return };
    for i in 0..2000 {
        File::create(volume.path(&format!("old-{i}"))).unwrap();
    }
    let mut stream = Stream::open(&volume.root());
    let mut seen: Vec<String> = stream.by_ref().take(500).collect();
    for i in (0..2000).step_by(2) {
        fs::remove_file(volume.path(&format!("old-{i}"))).unwrap();
        File::create(volume.path(&format!("new-{i}"))).unwrap();
    }
    seen.extend(stream);
    let distinct: HashSet<&String> = seen.iter().collect();
    assert_eq!(distinct.len(), seen.len(), "no entry twice");
    for i in (1..2000).step_by(2) {
        assert!(distinct.contains(&format!("old-{i}")), "old-{i} was there all the time");
    }
}

#[test]
fn a_removed_directory_that_is_still_open_is_empty() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    let mut stream = Stream::open(&volume.path("d"));
    fs::remove_dir(volume.path("d")).unwrap();
    assert_eq!(stream.find(|name| !name.starts_with('.')), None);
}

#[test]
fn removing_a_tree_while_listing_it_leaves_nothing() {
    let Some(volume) = Volume::mounted("") else { return };
    for i in 0..20 {
        let dir = volume.path(&format!("tree/{i}"));
        fs::create_dir_all(&dir).unwrap();
        for j in 0..50 {
            fs::write(dir.join(format!("f{j}")), [0; 100]).unwrap();
        }
    }
    fs::remove_dir_all(volume.path("tree")).unwrap();
    assert_eq!(fs::read_dir(volume.root()).unwrap().count(), 0);
}
