//! Many callers at once, and a daemon that dies among them.

use crate::harness::{Volume, errno_when_dead, messages};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// More than the machine has CPUs, and as many as one queue has entries.
const CALLERS: usize = 64;

#[test]
fn a_large_write_lets_go_of_its_cpu_several_times_and_a_large_read_is_one_message() {
    const BYTES: usize = 1 << 20;
    let Some(volume) = Volume::mounted("") else { return };
    let (root, path) = (volume.root(), volume.path("f"));
    let file = File::create(&path).unwrap();
    let before = messages(&root, "write");
    assert_eq!(file.write_at(&vec![7; BYTES], 0).unwrap(), BYTES);
    assert_eq!(messages(&root, "write") - before, 4, "others run in between");

    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let mut memory = vec![0; BYTES + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let before = messages(&root, "read");
    assert_eq!(direct.read_at(&mut memory[start..start + BYTES], 0).unwrap(), BYTES);
    assert_eq!(messages(&root, "read") - before, 1);
    assert!(memory[start..start + BYTES].iter().all(|&byte| byte == 7));
}

#[test]
fn sixty_four_callers_at_once_get_what_they_wrote() {
    let Some(mut volume) = Volume::mounted("volatile") else { return };
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let path = volume.path(&format!("f{caller}"));
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
                for round in 0..10_u64 {
                    file.write_all_at(&[caller as u8; 5000], round * 5000).unwrap();
                    file.sync_data().unwrap();
                }
            });
        }
    });
    volume.crash();
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let path = volume.path(&format!("f{caller}"));
            scope.spawn(move || assert!(fs::read(path).unwrap() == [caller as u8; 50_000]));
        }
    });
}

#[test]
fn a_full_journal_and_cold_reads_keep_no_lookup_waiting_for_good() {
    let Some(mut volume) = Volume::format(256 << 20) else { return };
    volume.mount("memory=32M").unwrap();
    fs::write(volume.path("cold"), vec![3; 48 << 20]).unwrap();
    volume.remount();
    let done = AtomicBool::new(false);
    let looked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (path, cold) = (volume.path(&format!("w{writer}")), volume.path("cold"));
                scope.spawn(move || {
                    let mut file = File::create(path).unwrap();
                    for _ in 0..8 {
                        file.write_all(&vec![writer; 2 << 20]).unwrap();
                        file.sync_all().unwrap();
                    }
                    assert!(fs::read(cold).unwrap() == vec![3; 48 << 20]);
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Never asked before: each is a message.
                let name = format!("none-{}", looked.fetch_add(1, Ordering::Relaxed));
                assert!(fs::metadata(volume.path(&name)).is_err());
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(looked.load(Ordering::Relaxed) > 100, "{} lookups", looked.load(Ordering::Relaxed));
}

#[test]
fn callers_of_a_daemon_that_is_killed_get_errors_and_never_hang() {
    let Some(volume) = Volume::mounted("") else { return };
    fs::write(volume.path("read"), vec![1; 8 << 20]).unwrap();
    let (tell, told) = mpsc::channel();
    for caller in 0..16_usize {
        let (path, root) = (volume.path(&format!("f{caller}")), volume.root());
        let tell = tell.clone();
        // Not joined: one that hangs must not keep the test from failing.
        std::thread::spawn(move || {
            let error = loop {
                let step = || -> std::io::Result<()> {
                    let mut file = File::create(&path)?;
                    file.write_all(&[7; 10_000])?;
                    file.sync_all()?;
                    fs::metadata(root.join(format!("none-{caller}"))).map(drop).or_else(
                        |error| match error.raw_os_error() {
                            Some(libc::ENOENT) => Ok(()),
                            _ => Err(error),
                        },
                    )?;
                    fs::remove_file(&path)
                };
                if let Err(error) = step() {
                    break error;
                }
            };
            // Whoever waits for the answer may be gone already.
            let _ = tell.send(error.raw_os_error());
        });
    }
    std::thread::sleep(Duration::from_millis(200));
    // SAFETY: a signal to the daemon that this test has started.
    assert_eq!(unsafe { libc::kill(volume.daemon(), libc::SIGKILL) }, 0);
    for _ in 0..16 {
        let errno = told.recv_timeout(Duration::from_secs(30)).expect("a caller hangs");
        let expected = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED), Some(libc::ECANCELED)];
        assert!(expected.contains(&errno), "{errno:?}");
    }
    assert_eq!(errno_when_dead(|| fs::metadata(volume.path("read"))), libc::ENOTCONN);
}
