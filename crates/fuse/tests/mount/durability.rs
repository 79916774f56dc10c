//! What is there after the daemon was killed over a device that forgets what was not flushed.

use crate::harness::{Volume, sync_directory};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};

fn write_synced(path: &std::path::Path, content: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

// Shows: C1, C2.
#[test]
fn a_synced_file_survives_and_so_does_every_name_made_before() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    fs::create_dir_all(volume.path("a/b")).unwrap();
    symlink("target", volume.path("a/link")).unwrap();
    fs::create_dir(volume.path("gone")).unwrap();
    fs::remove_dir(volume.path("gone")).unwrap();
    write_synced(&volume.path("a/b/f"), b"synced");
    volume.crash();
    assert_eq!(fs::read(volume.path("a/b/f")).unwrap(), b"synced");
    assert_eq!(fs::read_link(volume.path("a/link")).unwrap().to_str(), Some("target"));
    assert!(!volume.path("gone").exists());
}

#[test]
fn replacing_by_rename_shows_the_old_content_or_the_new() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    write_synced(&volume.path("config"), &[b'o'; 20_000]);
    for _ in 0..3 {
        fs::write(volume.path("config.new"), [b'n'; 30_000]).unwrap();
        fs::rename(volume.path("config.new"), volume.path("config")).unwrap();
        volume.crash();
        let content = fs::read(volume.path("config")).unwrap();
        assert!(content == [b'o'; 20_000] || content == [b'n'; 30_000], "{} bytes", content.len());
    }
}

/// Puts content into a new file of that length, in a way that leaves it in the kernel until `hand_over` is done.
struct Mapped {
    file: File,
    map: *mut libc::c_void,
}

const MAPPED_BYTES: usize = 3 * 4096;

/// Its name, and how it hands content over.
type Way<T> = (&'static str, fn(T));

impl Mapped {
    fn new(path: &std::path::Path, byte: u8) -> Mapped {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(MAPPED_BYTES as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file of that length.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), MAPPED_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: the mapping is that long and nobody else's.
        unsafe { std::ptr::write_bytes(map.cast::<u8>(), byte, MAPPED_BYTES) };
        Mapped { file, map }
    }
}

#[test]
fn what_a_mapping_has_handed_over_before_a_rename_survives_it() {
    let ways: [Way<Mapped>; 4] = [
        // SAFETY: the mapping exists, and is not used any more.
        ("munmap", |mapped| unsafe {
            assert_eq!(libc::munmap(mapped.map, MAPPED_BYTES), 0);
            std::mem::forget(mapped.file);
        }),
        // SAFETY: the mapping exists.
        ("msync", |mapped| unsafe {
            assert_eq!(libc::msync(mapped.map, MAPPED_BYTES, libc::MS_SYNC), 0);
            std::mem::forget(mapped.file);
        }),
        ("close", |mapped| drop(mapped.file)),
        ("fsync", |mapped| {
            mapped.file.sync_all().unwrap();
            std::mem::forget(mapped.file);
        }),
    ];
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    for (name, _) in ways {
        write_synced(&volume.path(name), &[b'o'; 20_000]);
    }
    for (name, hand_over) in ways {
        hand_over(Mapped::new(&volume.path("new"), b'n'));
        fs::rename(volume.path("new"), volume.path(name)).unwrap();
    }
    write_synced(&volume.path("other"), b"makes the renames durable");
    volume.crash();
    for (name, _) in ways {
        assert!(fs::read(volume.path(name)).unwrap() == [b'n'; MAPPED_BYTES], "{name}");
    }
}

#[test]
fn what_was_closed_or_synced_before_a_rename_survives_it_with_the_writeback_cache() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000,writeback_cache") else { return };
    let ways: [Way<File>; 3] = [
        ("close", drop),
        ("close of one of two", |file| std::mem::forget(file.try_clone().map(drop).map(|()| file))),
        ("fdatasync", |file| {
            file.sync_data().unwrap();
            std::mem::forget(file);
        }),
    ];
    for (name, _) in ways {
        write_synced(&volume.path(name), &[b'o'; 20_000]);
    }
    for (name, hand_over) in ways {
        let mut file = File::create_new(volume.path("new")).unwrap();
        file.write_all(&[b'n'; 30_000]).unwrap();
        hand_over(file);
        fs::rename(volume.path("new"), volume.path(name)).unwrap();
    }
    write_synced(&volume.path("other"), b"makes the renames durable");
    volume.crash();
    for (name, _) in ways {
        assert!(fs::read(volume.path(name)).unwrap() == [b'n'; 30_000], "{name}");
    }
}

#[test]
fn a_synced_directory_keeps_its_renames_and_removals() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    fs::create_dir_all(volume.path("from/inner")).unwrap();
    fs::create_dir(volume.path("to")).unwrap();
    write_synced(&volume.path("from/inner/f"), b"1");
    fs::rename(volume.path("from/inner"), volume.path("to/inner")).unwrap();
    fs::hard_link(volume.path("to/inner/f"), volume.path("linked")).unwrap();
    sync_directory(&volume.path("to")).unwrap();
    volume.crash();
    assert_eq!(fs::read(volume.path("to/inner/f")).unwrap(), b"1");
    assert_eq!(fs::read(volume.path("linked")).unwrap(), b"1");
    assert!(!volume.path("from/inner").exists());
}

#[test]
fn an_fsync_of_the_root_directory_commits_everything() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    fs::write(volume.path("d/f"), vec![3; 100_000]).unwrap();
    fs::write(volume.path("g"), b"small").unwrap();
    sync_directory(&volume.root()).unwrap();
    volume.crash();
    assert!(fs::read(volume.path("d/f")).unwrap() == vec![3; 100_000]);
    assert_eq!(fs::read(volume.path("g")).unwrap(), b"small");
}

#[test]
fn a_synchronous_write_is_durable_when_it_returns() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    for (name, flags) in
        [("o_sync", libc::O_SYNC), ("o_dsync", libc::O_DSYNC), ("direct", libc::O_DIRECT | libc::O_DSYNC)]
    {
        let mut open = OpenOptions::new();
        let mut file = open.write(true).create(true).custom_flags(flags).open(volume.path(name)).unwrap();
        file.write_all(&[7; 8192]).unwrap();
    }
    volume.crash();
    for name in ["o_sync", "o_dsync", "direct"] {
        assert!(fs::read(volume.path(name)).unwrap() == [7; 8192], "{name}");
    }
}

#[test]
fn a_dirsync_mount_forgets_no_name() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000,dirsync") else { return };
    fs::create_dir(volume.path("d")).unwrap();
    File::create(volume.path("d/f")).unwrap();
    fs::rename(volume.path("d/f"), volume.path("d/g")).unwrap();
    volume.crash();
    assert!(volume.path("d/g").exists() && !volume.path("d/f").exists());
}

#[test]
fn a_sync_mount_forgets_no_write() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000,sync") else { return };
    fs::write(volume.path("f"), [1; 5000]).unwrap();
    volume.crash();
    assert!(fs::read(volume.path("f")).unwrap() == [1; 5000]);
}

// Shows: C9.
#[test]
fn unsynced_data_is_committed_within_the_interval() {
    // More patience for a busy machine; without a commit no patience is enough.
    let committed = [1.5, 10.0, 40.0].into_iter().any(|seconds| {
        let Some(mut volume) = Volume::mounted("volatile,commit=0.2") else { return true };
        fs::write(volume.path("f"), [1; 5000]).unwrap();
        std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
        volume.crash();
        fs::read(volume.path("f")).is_ok_and(|content| content == [1; 5000])
    });
    assert!(committed);
}

#[test]
fn without_a_sync_a_crash_shows_a_prefix_of_what_was_done() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    for i in 0..200 {
        File::create(volume.path(&format!("{i:03}"))).unwrap();
        if i == 120 {
            sync_directory(&volume.root()).unwrap();
        }
    }
    volume.crash();
    let mut names: Vec<String> = fs::read_dir(volume.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 121, "{} names", names.len());
    assert!(names.iter().enumerate().all(|(i, name)| *name == format!("{i:03}")), "not a prefix: {names:?}");
}

#[test]
fn many_threads_that_sync_lose_nothing() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let dir = volume.path(&format!("t{thread}"));
            scope.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for i in 0..40_u32 {
                    write_synced(&dir.join(i.to_string()), &i.to_le_bytes());
                }
            });
        }
    });
    volume.crash();
    for thread in 0..8 {
        for i in 0..40_u32 {
            let path = volume.path(&format!("t{thread}/{i}"));
            assert_eq!(fs::read(&path).unwrap(), i.to_le_bytes(), "{}", path.display());
        }
    }
}
