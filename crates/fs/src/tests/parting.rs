//! Small files whose content goes with their last name.

use super::{MIB, TestVolume, pattern};
use crate::content::change::{Change, Locked};
use crate::{Context, Error, ObjectNo, OpenFlags};

const ROOT: ObjectNo = ObjectNo::ROOT_DIR;

fn batches(volume: &TestVolume, act: impl FnOnce()) -> u64 {
    let before = volume.fs.core.store.last_lsn();
    act();
    volume.fs.core.store.last_lsn().0 - before.0
}

fn unlink(volume: &TestVolume, name: &str) {
    volume.fs.names.unlink(ROOT, name.as_bytes()).unwrap();
}

/// Written out, logged as an image, and only in memory.
fn three_files(volume: &TestVolume) -> [Vec<u8>; 3] {
    let contents = [pattern(1, 40 << 10), pattern(2, 5000), pattern(3, 9000)];
    for (name, content) in ["written", "logged", "dirty"].iter().zip(&contents) {
        let file = volume.create(name);
        volume.write(&file, 0, content);
        match *name {
            "written" => {
                volume
                    .fs
                    .shape
                    .file_allocate(
                        &file,
                        crate::FallocateMode::Allocate { keep_size: true },
                        0,
                        MIB / 2,
                        &mut |_| {},
                    )
                    .unwrap();
                volume.fs.core.sync_metadata().unwrap();
                volume.sync(&file);
            }
            "logged" => volume.sync(&file),
            _ => {}
        }
    }
    contents
}

// Shows: C2, R5.
#[test]
fn a_small_file_goes_in_one_batch_and_a_crash_shows_all_of_it_or_nothing() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let contents = three_files(&volume);
    for name in ["written", "logged", "dirty"] {
        assert_eq!(batches(&volume, || unlink(&volume, name)), 1, "{name}");
        assert_eq!(volume.fs.names.lookup(ROOT, name.as_bytes()).unwrap_err(), Error::NotFound);
    }
    volume.crash();
    assert_eq!(volume.content(&volume.find("written")), contents[0]);
    assert_eq!(volume.content(&volume.find("logged")), contents[1]);
    for name in ["written", "logged"] {
        assert_eq!(batches(&volume, || unlink(&volume, name)), 1, "{name}, found on the device");
    }
    volume.fs.core.sync_metadata().unwrap();
    volume.crash();
    for name in ["written", "logged"] {
        assert_eq!(volume.fs.names.lookup(ROOT, name.as_bytes()).unwrap_err(), Error::NotFound);
    }
}

#[test]
fn its_space_comes_back_with_its_name() {
    let mut volume = TestVolume::new(64 * MIB, 4 * MIB);
    let kept = volume.create("kept");
    volume.write(&kept, 0, &pattern(9, 4096));
    volume.fs.sync_all().unwrap();
    let free = |volume: &TestVolume| volume.fs.statfs().blocks_free;
    let before = free(&volume);
    for round in 0..3 {
        three_files(&volume);
        for name in ["written", "logged", "dirty"] {
            unlink(&volume, name);
        }
        volume.reopen();
        assert_eq!(free(&volume), before, "round {round}");
    }
}

#[test]
fn who_has_it_open_keeps_the_content_and_a_second_name_keeps_the_file() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    let [written, logged, _] = three_files(&volume);
    let file = volume.find("written");
    let handle = volume.fs.files.open_handle(&Context::root(), file.number, OpenFlags::READ).unwrap();
    unlink(&volume, "written");
    assert_eq!(volume.content(&file), written);
    volume.fs.files.release(handle).unwrap();
    assert!(file.state.read().gone);

    let file = volume.find("logged");
    volume.fs.names.link(file.number, ROOT, b"second").unwrap();
    unlink(&volume, "logged");
    assert_eq!(volume.content(&volume.find("second")), logged);
}

// Shows: R8.
#[test]
fn nothing_goes_with_a_name_while_somebody_writes_the_file_out_or_has_opened_it_since() {
    let volume = TestVolume::new(64 * MIB, 4 * MIB);
    three_files(&volume);
    let (root, file) = (volume.fs.content.inode(ROOT).unwrap(), volume.find("written"));
    let turn = file.lock_turn();
    assert!(volume.fs.removal.part(&file).is_none(), "its blocks may be in flight");
    drop(turn);

    let leaves = || {
        let mut parting = volume.fs.removal.part(&file).expect("nothing keeps it");
        let open = || volume.fs.files.open_handle(&Context::root(), file.number, OpenFlags::READ).unwrap();
        let handle = open();
        let mut change = Change::new(&volume.fs.content, Locked::new(&[&root, &file]));
        let left = volume.fs.removal.leave_with_name(&mut change, &file, &mut parting).unwrap();
        drop(change);
        drop(parting);
        volume.fs.files.release(handle).unwrap();
        left
    };
    assert!(!leaves());
    assert!(volume.fs.removal.part(&file).is_some(), "it was closed again");
    volume
        .fs
        .attributes
        .set_xattr(&Context::root(), file.number, b"user.a", b"b", crate::SetXattr::Any)
        .unwrap();
    assert_eq!(batches(&volume, || unlink(&volume, "written")), 3, "the name, the attribute, the content");
}
