//! Volumes: paths, files, directories, errors as `std::io` has them.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use syncline::{File, MkfsOptions, OpenOptions, RenameFlags, SetAttr, SetXattr, Volume, VolumeOptions};
use syncline_device::{MemoryDevice, Volatile};

fn volume() -> Volume {
    Volume::create_in_memory(64 << 20).expect("a volume")
}

fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> ErrorKind {
    result.expect_err("this must fail").kind()
}

#[test]
fn files_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Volume>();
    shared::<File>();
}

#[test]
fn reading_writing_and_seeking_share_a_position() {
    let volume = volume();
    let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
    let mut file = options.open(&volume, "file").expect("open");
    assert_eq!(kind(options.open(&volume, "file")), ErrorKind::AlreadyExists);
    file.write_all(b"hello world").expect("write");
    assert_eq!(file.seek(SeekFrom::Start(6)).expect("seek"), 6);
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "world");
    assert_eq!(file.seek(SeekFrom::End(-5)).expect("seek"), 6);
    assert_eq!(kind(file.seek(SeekFrom::Current(-100))), ErrorKind::InvalidInput);
    (&file).write_all(b"there").expect("write");
    let mut bytes = [0; 5];
    file.read_exact_at(&mut bytes, 6).expect("read");
    assert_eq!(&bytes, b"there");
    assert_eq!(kind(file.read_exact_at(&mut bytes, 8)), ErrorKind::UnexpectedEof);
    file.set_len(3).expect("truncate");
    assert_eq!(file.metadata().expect("metadata").len(), 3);
    let time = UNIX_EPOCH + Duration::new(5, 6);
    file.set_times(Some(time), Some(time)).expect("times");
    assert_eq!(file.metadata().expect("metadata").modified(), time);
    file.set_permissions(0o600).expect("chmod");
    assert_eq!(volume.metadata("file").expect("metadata").mode(), 0o600);
}

#[test]
fn open_options_mean_what_those_of_std_mean() {
    let volume = volume();
    assert_eq!(kind(OpenOptions::new().open(&volume, "x")), ErrorKind::InvalidInput);
    assert_eq!(kind(OpenOptions::new().read(true).create(true).open(&volume, "x")), ErrorKind::InvalidInput);
    let both = OpenOptions::new().append(true).truncate(true).open(&volume, "x");
    assert_eq!(kind(both), ErrorKind::InvalidInput);
    assert_eq!(kind(volume.open_file("x")), ErrorKind::NotFound);
    volume.write("x", "one").expect("write");
    let mut appending = OpenOptions::new().append(true).open(&volume, "x").expect("open");
    appending.write_all(b"two").expect("append");
    assert_eq!(volume.read_to_string("x").expect("read"), "onetwo");
    volume.write("x", "3").expect("write");
    assert_eq!(volume.read("x").expect("read"), b"3");
    let private = OpenOptions::new().write(true).create(true).mode(0o640).open(&volume, "y").expect("open");
    assert_eq!(private.metadata().expect("metadata").mode(), 0o640);
    assert_eq!(kind(OpenOptions::new().write(true).open(&volume, "/")), ErrorKind::IsADirectory);
    assert_eq!(
        kind(OpenOptions::new().write(true).create(true).open(&volume, "z/")),
        ErrorKind::IsADirectory
    );
    volume.symlink("made", "dangling").expect("symlink");
    OpenOptions::new().write(true).create(true).open(&volume, "dangling").expect("creates the target");
    assert!(volume.metadata("made").expect("metadata").is_file());
    let no_follow = OpenOptions::new().read(true).follow_symlink(false).open(&volume, "dangling");
    assert_eq!(no_follow.expect_err("a link").raw_os_error(), Some(40));
}

#[test]
fn paths_follow_links_and_parents() {
    let volume = volume();
    volume.create_dir_all("/a/b/c").expect("dirs");
    volume.create_dir_all("a/b/c").expect("they exist already");
    volume.write("a/b/file", "content").expect("write");
    volume.symlink("b", "a/relative").expect("symlink");
    volume.symlink("/a/b", "absolute").expect("symlink");
    volume.symlink("loop2", "loop1").expect("symlink");
    volume.symlink("loop1", "loop2").expect("symlink");
    for path in [
        "a/b/file",
        "/a/b/file",
        "a//b/./file",
        "a/relative/file",
        "absolute/file",
        "absolute/c/../file",
        "../a/b/file",
    ] {
        assert_eq!(volume.read_to_string(path).expect(path), "content", "{path}");
        assert_eq!(volume.canonicalize(path).expect(path), Path::new("/a/b/file"), "{path}");
    }
    assert_eq!(volume.canonicalize("/").expect("root"), Path::new("/"));
    assert_eq!(volume.canonicalize("absolute/..").expect("dir"), Path::new("/a"));
    assert_eq!(volume.read("loop1").expect_err("a loop").raw_os_error(), Some(40));
    assert_eq!(kind(volume.read("a/b/file/x")), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.metadata("a/b/file/")), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.metadata("")), ErrorKind::NotFound);
    assert_eq!(kind(volume.metadata("a/none/..")), ErrorKind::NotFound);
    assert_eq!(volume.read_link("a/relative").expect("readlink"), Path::new("b"));
    assert!(volume.symlink_metadata("absolute").expect("metadata").is_symlink());
    assert!(volume.metadata("absolute").expect("metadata").is_dir());
    assert!(!volume.try_exists("nothing").expect("no error"));
    // Forty links are followed, one more is too many.
    volume.write("link0", "end").expect("write");
    for number in 1..=41 {
        volume.symlink(format!("link{}", number - 1), format!("link{number}")).expect("symlink");
    }
    assert_eq!(volume.read("link40").expect("forty"), b"end");
    assert!(volume.read("link41").is_err());
}

#[test]
fn names_are_made_moved_and_removed() {
    let volume = volume();
    volume.create_dir("dir").expect("mkdir");
    volume.write("dir/file", "x").expect("write");
    volume.hard_link("dir/file", "link").expect("link");
    assert_eq!(volume.metadata("link").expect("metadata").attr().nlink, 2);
    assert_eq!(kind(volume.create_dir("dir")), ErrorKind::AlreadyExists);
    assert_eq!(kind(volume.remove_dir("dir")), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(volume.remove_file("dir")), ErrorKind::IsADirectory);
    assert_eq!(kind(volume.remove_dir("link")), ErrorKind::NotADirectory);
    assert_eq!(kind(volume.remove_file("none")), ErrorKind::NotFound);
    volume.write("other", "y").expect("write");
    let no_replace = RenameFlags { no_replace: true, ..RenameFlags::default() };
    assert_eq!(kind(volume.rename_with("link", "other", no_replace)), ErrorKind::AlreadyExists);
    volume.rename("link", "other").expect("rename");
    assert_eq!(volume.read("other").expect("read"), b"x");
    assert_eq!(kind(volume.rename("dir", "dir/sub")), ErrorKind::InvalidInput);
    volume.create_dir_all("dir/deep/er").expect("dirs");
    volume.symlink("/", "dir/deep/root").expect("symlink");
    let mut names: Vec<_> = volume
        .read_dir("dir")
        .expect("readdir")
        .map(|entry| entry.expect("entry").file_name().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["deep", "file"]);
    volume.remove_dir_all("dir").expect("remove all");
    assert_eq!(volume.read_dir("/").expect("readdir").count(), 1);
}

#[test]
fn extended_attributes_by_path() {
    let volume = volume();
    volume.write("file", "").expect("write");
    assert_eq!(volume.xattr("file", "user.x").expect("none"), None);
    volume.set_xattr("file", "user.x", "value").expect("set");
    assert_eq!(volume.xattr("file", "user.x").expect("get").as_deref(), Some(b"value".as_slice()));
    assert_eq!(volume.list_xattrs("file").expect("list"), ["user.x"]);
    volume.remove_xattr("file", "user.x").expect("remove");
    assert!(volume.list_xattrs("file").expect("list").is_empty());
}

#[test]
fn a_volume_in_an_image_file_is_created_once_opened_once_and_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    let options = MkfsOptions::default().size_bytes(32 << 20).label("test");
    let volume = Volume::create(&path, &options).expect("create");
    assert_eq!(volume.inner().volume_info().label, "test");
    volume.write("kept", "safe").expect("write");
    assert!(Volume::open(&path).is_err(), "it is in use");
    volume.close().expect("close");
    assert_eq!(kind(Volume::create(&path, &options)), ErrorKind::AlreadyExists);
    let volume = Volume::open(&path).expect("open");
    assert_eq!(volume.read("kept").expect("read"), b"safe");
    let file = volume.create_file("synced").expect("create");
    file.write_all_at(&[5; 100_000], 0).expect("write");
    file.sync_all().expect("sync");
    assert_eq!(volume.stats().sync_latency.count(), 1);
    drop(file);
    drop(volume);
    let reader = VolumeOptions::new().read_only(true).open(&path).expect("open");
    assert_eq!(reader.read("synced").expect("read"), vec![5; 100_000]);
    assert_eq!(kind(reader.write("new", "x")), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn making_a_volume_overwrites_no_data_and_leaves_nothing_where_it_fails() {
    let directory = tempfile::tempdir().expect("a directory");
    let (letter, image) = (directory.path().join("letter"), directory.path().join("image"));
    std::fs::write(&letter, "dear reader\n".repeat(1000)).expect("write");
    let options = MkfsOptions::default();
    for options in [options.clone(), options.clone().size_bytes(32 << 20)] {
        let refused = Volume::create(&letter, &options).expect_err("it holds somebody's data");
        assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
        assert!(refused.to_string().contains("already holds data of an unknown kind"), "{refused}");
    }
    assert_eq!(std::fs::read_to_string(&letter).expect("read"), "dear reader\n".repeat(1000));
    let long = options.clone().size_bytes(32 << 20).label("x".repeat(65));
    assert!(Volume::create(&image, &long).is_err());
    assert!(!image.exists(), "a file that is no volume is worth nothing");
    std::fs::write(&image, vec![0; 32 << 20]).expect("write");
    Volume::create(&image, &options).expect("zeros are nobody's data").close().expect("close");
}

// Shows: C9.
#[test]
fn unsynced_data_is_durable_after_the_commit_interval() {
    let memory = Arc::new(MemoryDevice::new(8192));
    let clock = syncline::SystemClock;
    let entropy = syncline::SystemEntropy::default();
    syncline_fs::Fs::format(&*memory, &MkfsOptions::default(), &clock, &entropy, &mut |_, _| {})
        .expect("mkfs");
    let options = VolumeOptions::new().commit_interval(Duration::from_millis(50));
    let volume = Volume::on_device(Arc::new(Volatile::new(memory.clone())), &options).expect("open");
    volume.write("file", "not synced").expect("write");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        std::thread::sleep(Duration::from_millis(100));
        // What a power cut now would leave.
        let copy = Arc::new(MemoryDevice::from_bytes(memory.to_bytes()));
        let after_cut = Volume::on_device(copy, &VolumeOptions::new().read_only(true));
        if after_cut.is_ok_and(|volume| volume.read("file").is_ok_and(|content| content == b"not synced")) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "never written");
    }
}

#[test]
fn files_outlive_a_volume_that_is_dropped_but_not_one_that_is_closed() {
    let volume = volume();
    let file = volume.create_file("file").expect("create");
    let clone = volume.clone();
    drop(volume);
    file.write_at(b"x", 0).expect("write");
    clone.remove_file("file").expect("unlink");
    clone.close().expect("close");
    assert_eq!(file.write_at(b"x", 0).expect_err("closed").raw_os_error(), Some(9));
}

#[test]
fn statistics_count_checkpoints_and_what_the_page_cache_is_good_for() {
    let volume = Volume::create_in_memory(64 << 20).expect("create");
    let before = volume.stats().engine;
    volume.write("file", vec![7; 100_000]).expect("write");
    volume.sync_all().expect("sync");
    volume.checkpoint().expect("checkpoint");
    let written = volume.stats().engine;
    let checkpoints = written.checkpoint_latency.count() - before.checkpoint_latency.count();
    assert_eq!(checkpoints, written.store.checkpoints - before.store.checkpoints);
    assert!(checkpoints > 0);
    assert!(written.pages.cached >= 25 && written.pages.cached <= written.pages.cached_max);
    assert_eq!(written.pages.dirty, 0, "everything is synced");
    assert_eq!(volume.read("file").expect("read").len(), 100_000);
    let read = volume.stats().engine.pages;
    assert!(read.hits >= written.pages.hits + 25, "{read:?}");
    assert_eq!(read.misses, written.pages.misses, "what was written is in memory");
    let sparse = volume.create_file("sparse").expect("create");
    sparse.set_len(3 * 4096).expect("truncate");
    assert_eq!(volume.read("sparse").expect("read"), vec![0; 3 * 4096]);
    let holes = volume.stats().engine.pages;
    assert!(holes.misses >= read.misses + 3, "holes are not kept: {holes:?}");
}

/// Paths whose inode is replaced between its lookup and its use lead to the one that has the name then.
#[test]
fn calls_by_path_never_answer_that_a_replaced_file_is_stale() {
    use std::sync::atomic::{AtomicBool, Ordering};
    const ESTALE: i32 = 116;
    let volume = Volume::create_in_memory(32 << 20).expect("volume");
    volume.write("name", "0").expect("write");
    volume.symlink("name", "link").expect("symlink");
    volume.create_dir("directory").expect("mkdir");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                volume.write("next", "1").expect("write");
                volume.rename("next", "name").expect("rename");
                volume.symlink("name", "next link").expect("symlink");
                volume.rename("next link", "link").expect("rename");
                volume.create_dir("next directory").expect("mkdir");
                volume.rename("next directory", "directory").expect("rename");
            }
        });
        let tell = |what: &str, result: std::io::Result<()>| {
            if let Err(error) = result {
                ended.store(true, Ordering::Relaxed);
                assert_ne!(error.raw_os_error(), Some(ESTALE), "{what}");
                panic!("{what}: {error}");
            }
        };
        for round in 0..4000 {
            tell("read", volume.read("link").map(drop));
            tell("metadata", volume.metadata("name").map(drop));
            tell("permissions", volume.set_permissions("name", 0o600));
            tell("set attribute", volume.set_xattr("name", "user.a", [round as u8]));
            tell("attribute", volume.xattr("name", "user.a").map(drop));
            tell("attributes", volume.list_xattrs("name").map(drop));
            tell("link", volume.read_link("link").map(drop));
            tell("canonical", volume.canonicalize("link").map(drop));
            tell("list", volume.read_dir("directory").map(drop));
            tell("hard link", volume.hard_link("name", "second"));
            tell("remove", volume.remove_file("second"));
        }
        ended.store(true, Ordering::Relaxed);
    });
    volume.close().expect("close");
}

// Shows: C8.
#[test]
fn a_volume_that_was_shut_down_syncs_nothing_and_shows_after_the_next_open_what_was_synced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("v.img");
    let options = MkfsOptions::default().size_bytes(32 << 20);
    let volume = VolumeOptions::new().create(&path, &options).expect("mkfs");
    let file = volume.create_file("file").expect("create");
    file.write_at(b"synced", 0).expect("write");
    file.sync_all().expect("sync");
    file.write_at(b"doomed", 0).expect("write");
    volume.shut_down();
    assert!(file.sync_all().is_err());
    assert!(volume.sync_all().is_err());
    drop((file, volume));
    let volume = Volume::open(&path).expect("open");
    assert_eq!(volume.read("file").expect("read"), b"synced");
}

#[test]
fn attributes_of_a_link_and_of_what_it_leads_to_are_changed_apart() {
    let volume = Volume::create_in_memory(64 << 20).expect("volume");
    volume.create_dir_with_mode("directory", 0o750).expect("mkdir");
    assert_eq!(volume.metadata("directory").expect("stat").mode(), 0o750);
    volume.write("file", "x").expect("write");
    volume.symlink("file", "link").expect("symlink");
    let owner = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    volume.set_symlink_attributes("link", &owner(7)).expect("chown of the link");
    volume.set_attributes("link", &owner(9)).expect("chown through the link");
    assert_eq!(volume.symlink_metadata("link").expect("stat").attr().uid, 7);
    assert_eq!(volume.metadata("link").expect("stat").attr().uid, 9);
    let set =
        |how| volume.set_xattr_with("file", "user.a", "1", how).map_err(|error| syncline::errno(&error));
    assert_eq!(set(SetXattr::Replace), Err(61));
    assert_eq!(set(SetXattr::Create), Ok(()));
    assert_eq!(set(SetXattr::Create), Err(17));
    assert_eq!(set(SetXattr::Replace), Ok(()));
}

#[test]
fn a_closed_file_is_gone_and_appending_needs_a_file_for_that() {
    let volume = Volume::create_in_memory(64 << 20).expect("volume");
    let file = volume.create_file("file").expect("create");
    assert_eq!(file.append(b"x").map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    volume.remove_file("file").expect("remove");
    let free = volume.statfs().blocks_free;
    file.write_at(&[1; 1 << 20], 0).expect("write");
    file.sync_all().expect("sync");
    file.close().expect("close");
    volume.sync_all().expect("sync");
    assert!(volume.statfs().blocks_free.abs_diff(free) < 16);
    let file = volume.create_file("other").expect("create");
    volume.clone().close().expect("close");
    assert!(file.close().is_err(), "the volume has closed it");
}

#[test]
fn a_volume_of_an_impossible_size_is_refused_and_leaves_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("v.img");
    let sized = |bytes: u64| MkfsOptions::default().size_bytes(bytes);
    for options in [
        sized(1 << 20),
        sized(u64::MAX),
        sized(64 << 20).journal_bytes(60 << 20),
        sized(64 << 20).journal_bytes(1),
    ] {
        assert_eq!(kind(Volume::create(&path, &options)), ErrorKind::InvalidInput);
        assert!(!path.exists());
    }
    assert_eq!(kind(Volume::create_in_memory(1 << 20)), ErrorKind::InvalidInput);
    assert_eq!(
        kind(VolumeOptions::new().read_only(true).create(&path, &sized(64 << 20))),
        ErrorKind::InvalidInput
    );
}
