//! The calls of `include/syncline/ioctl.h` through the mount, and what a durable write costs in messages.

use crate::gate::Gate;
use crate::harness::{Volume, check, errno, messages, statistics, wait_until};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use syncline_fuse::control::{self, SyncRequest};

fn device(root: &Path, counter: &str) -> u64 {
    statistics(root)["device"][counter].as_u64().unwrap()
}

fn range(range: std::ops::Range<u64>) -> SyncRequest {
    SyncRequest { range, data_only: true }
}

#[test]
fn a_ranged_sync_writes_its_range_and_makes_it_durable() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(&vec![1; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(&vec![2; 4 << 20], 0).unwrap();
    let before = device(&volume.root(), "written_bytes");
    control::sync_range(&file, &range(1 << 20..(1 << 20) + 8192)).unwrap();
    let written = device(&volume.root(), "written_bytes") - before;
    assert!((8192..256 << 10).contains(&written), "{written} bytes for 8 KiB of 4 MiB");
    drop(file);
    volume.crash();
    let content = fs::read(volume.path("f")).unwrap();
    assert_eq!(content.len(), 4 << 20);
    assert!(content[1 << 20..(1 << 20) + 8192].iter().all(|byte| *byte == 2));
}

#[test]
fn a_range_to_the_end_and_pages_changed_through_a_mapping_are_synced() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(volume.path("f")).unwrap();
    file.write_all_at(&[1; 16384], 0).unwrap();
    file.sync_all().unwrap();
    // SAFETY: a shared mapping of an open file, within its size.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), 16384, libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    // SAFETY: within the mapping.
    unsafe { mapped.cast::<u8>().add(9000).write(7) };
    control::sync_range(&file, &SyncRequest { range: 8192..u64::MAX, data_only: false }).unwrap();
    // SAFETY: mapped above.
    unsafe { libc::munmap(mapped, 16384) };
    drop(file);
    volume.crash();
    assert_eq!(fs::read(volume.path("f")).unwrap()[9000], 7);
}

#[test]
fn started_syncs_are_durable_when_their_tickets_end() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let files: Vec<File> = (0..100_u8)
        .map(|number| {
            let file = File::create(volume.path(&format!("f{number}"))).unwrap();
            file.write_all_at(&vec![number; 1000 * (usize::from(number) + 1)], 0).unwrap();
            file
        })
        .collect();
    let tickets: Vec<u64> =
        files.iter().map(|file| control::start_sync(file, &SyncRequest::WHOLE).unwrap()).collect();
    for (number, (file, ticket)) in files.iter().zip(&tickets).enumerate() {
        match number % 2 {
            0 => control::wait_for_sync(file, *ticket).unwrap(),
            _ => wait_until("a ticket", || {
                control::poll_sync(file, *ticket).unwrap().transpose().unwrap().is_some()
            }),
        }
        assert_eq!(errno(control::wait_for_sync(file, *ticket)), libc::EINVAL, "an end is told once");
        assert_eq!(errno(control::poll_sync(file, *ticket)), libc::EINVAL);
    }
    assert_eq!(errno(control::wait_for_sync(&files[0], 1 << 40)), libc::EINVAL);
    drop(files);
    volume.crash();
    for number in 0..100_u8 {
        let content = fs::read(volume.path(&format!("f{number}"))).unwrap();
        assert!(content == vec![number; 1000 * (usize::from(number) + 1)]);
    }
}

#[test]
fn a_ticket_waits_for_the_device_and_neither_its_start_nor_a_close_does() {
    let Some(gate) = Gate::new("a_ticket_waits_for_the_device_and_neither_its_start_nor_a_close_does") else {
        return;
    };
    let volume = gate.mounted("commit=1000");
    let file = File::create(volume.path("f")).unwrap();
    // More than is logged: the data itself has to be written.
    file.write_all_at(&vec![3; 1 << 20], 0).unwrap();
    let other = File::create(volume.path("other")).unwrap();
    other.write_all_at(b"small", 0).unwrap();
    let closed = gate.close();
    let ticket = control::start_sync(&file, &SyncRequest::WHOLE).unwrap();
    let abandoned = control::start_sync(&other, &SyncRequest::WHOLE).unwrap();
    for (file, ticket) in [(&file, ticket), (&other, abandoned)] {
        let polled = control::poll_sync(file, ticket).unwrap();
        assert!(polled.is_none(), "{polled:?}");
    }
    drop(other);
    let waiter = std::thread::spawn(move || control::wait_for_sync(&file, ticket));
    wait_until("the wait", || messages(&volume.root(), "ioctl") >= 5);
    assert!(!waiter.is_finished());
    drop(closed);
    waiter.join().unwrap().unwrap();
}

#[test]
fn a_started_sync_goes_on_when_the_file_is_closed_at_once() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let syncs = |volume: &Volume| statistics(&volume.root())["fsync_us"]["count"].as_u64().unwrap();
    let before = syncs(&volume);
    for number in 0..200_u8 {
        let file = File::create(volume.path(&format!("f{number}"))).unwrap();
        // Few pages are logged where the request arrives, more are written by the pool.
        file.write_all_at(&vec![number; 4096 * if number % 2 == 0 { 1 } else { 20 }], 0).unwrap();
        control::start_sync(&file, &SyncRequest::WHOLE).unwrap();
    }
    wait_until("the syncs", || syncs(&volume) >= before + 200);
    volume.crash();
    for number in 0..200_u8 {
        let content = fs::read(volume.path(&format!("f{number}"))).unwrap();
        assert!(content == vec![number; 4096 * if number % 2 == 0 { 1 } else { 20 }], "{number}");
    }
}

#[test]
fn a_failed_sync_is_told_by_its_ticket() {
    let Some(volume) = Volume::mounted("") else { return };
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    syncline_fuse::shut_down(&volume.root()).unwrap();
    let ticket = control::start_sync(&file, &SyncRequest::WHOLE).unwrap();
    assert_eq!(errno(control::wait_for_sync(&file, ticket)), libc::EIO);
    assert_eq!(errno(control::sync_range(&file, &range(0..1))), libc::EIO);
}

#[test]
fn a_hint_writes_in_the_background_and_flushes_nothing() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(&vec![5; 2 << 20], 0).unwrap();
    let (bytes, flushes) = (device(&volume.root(), "written_bytes"), device(&volume.root(), "flushes"));
    assert_eq!(control::write_back(&file, 0..1 << 20).unwrap(), 1 << 20);
    wait_until("the data", || device(&volume.root(), "written_bytes") >= bytes + (1 << 20));
    assert!(device(&volume.root(), "written_bytes") < bytes + (2 << 20), "what is not in the range stays");
    assert_eq!(control::write_back(&file, 0..1 << 20).unwrap(), 0, "it is written already");
    assert_eq!(device(&volume.root(), "flushes"), flushes);
}

#[test]
fn sync_file_range_begins_to_write_where_the_kernel_held_the_data() {
    for (options, begins) in [("commit=1000,writeback_cache", true), ("commit=1000", false)] {
        let Some(volume) = Volume::mounted(options) else { return };
        let file = File::create(volume.path("f")).unwrap();
        // The kernel may begin before it is asked to.
        let before = (device(&volume.root(), "written_bytes"), device(&volume.root(), "flushes"));
        file.write_all_at(&vec![5; 1 << 20], 0).unwrap();
        // SAFETY: the descriptor is open.
        let called =
            unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 1 << 20, libc::SYNC_FILE_RANGE_WRITE) };
        assert_eq!(called, 0);
        let written = || device(&volume.root(), "written_bytes") - before.0;
        match begins {
            true => wait_until("the data", || written() >= 1 << 20),
            false => assert_eq!(written(), 0, "the kernel says nothing"),
        }
        assert_eq!(device(&volume.root(), "flushes"), before.1, "nothing is durable");
    }
}

#[test]
fn arguments_that_are_not_understood_are_refused() {
    let Some(volume) = Volume::mounted("") else { return };
    let directory = File::open(volume.root()).unwrap();
    assert_eq!(errno(control::start_sync(&directory, &SyncRequest::WHOLE)), libc::EISDIR);
    let foreign = tempfile::tempfile().unwrap();
    assert_eq!(errno(control::start_sync(&foreign, &SyncRequest::WHOLE)), libc::ENOTTY);
    let file = File::create(volume.path("f")).unwrap();
    let call = |flags: u32, reserved: u32, length: u64| {
        let (sync_range, mut argument) = (0x4020_e702, [0_u64; 4]);
        argument[0] = 1;
        argument[1] = length;
        argument[2] = u64::from(flags) | u64::from(reserved) << 32;
        // SAFETY: the number says that 32 bytes are read.
        check(i64::from(unsafe { libc::ioctl(file.as_raw_fd(), sync_range, argument.as_ptr()) }))
    };
    assert_eq!(call(1, 0, 1).unwrap(), 0);
    assert_eq!(errno(call(2, 0, 1)), libc::EINVAL);
    assert_eq!(errno(call(0, 1, 1)), libc::EINVAL);
    assert_eq!(errno(call(0, 0, u64::MAX)), libc::EINVAL);
}

/// Writes with `RWF_DSYNC`.
fn write_durably(file: &File, data: &[u8], offset: i64) -> io::Result<i64> {
    let piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: one piece of readable memory.
    check(unsafe { libc::pwritev2(file.as_raw_fd(), &raw const piece, 1, offset, libc::RWF_DSYNC) } as i64)
}

/// Memory that O_DIRECT takes.
#[repr(align(4096))]
struct Page([u8; 4096]);

#[test]
fn a_durable_write_is_one_message_where_the_kernel_lets_it_be() {
    let Some(volume) = Volume::mounted("commit=1000") else { return };
    let page = Page([9; 4096]);
    let cases = [
        ("O_DSYNC", libc::O_WRONLY | libc::O_DSYNC, false, 1),
        ("O_SYNC", libc::O_WRONLY | libc::O_SYNC, false, 1),
        ("RWF_DSYNC, O_DIRECT", libc::O_RDWR | libc::O_DIRECT, true, 1),
        ("O_DSYNC, O_DIRECT", libc::O_RDWR | libc::O_DIRECT | libc::O_DSYNC, false, 1),
        // Through the page cache the kernel sends an fsync behind the write.
        ("O_DSYNC, for reading too", libc::O_RDWR | libc::O_DSYNC, false, 2),
        ("RWF_DSYNC", libc::O_WRONLY, true, 2),
    ];
    for (name, flags, rwf, expected) in cases {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .read(flags & libc::O_RDWR != 0)
            .create(true)
            .custom_flags(flags & !libc::O_ACCMODE);
        let file = options.open(volume.path("f")).unwrap();
        // The first write asks for more.
        file.write_all_at(&page.0, 0).unwrap();
        let count = || {
            ["write", "fsync", "getxattr", "getattr", "setattr"].map(|kind| messages(&volume.root(), kind))
        };
        let (before, flushes) = (count(), device(&volume.root(), "flushes"));
        for _ in 0..10 {
            match rwf {
                true => assert_eq!(write_durably(&file, &page.0, 0).unwrap(), 4096),
                false => file.write_all_at(&page.0, 0).unwrap(),
            }
        }
        let sent: u64 = count().iter().zip(before).map(|(after, before)| after - before).sum();
        assert_eq!(sent, 10 * expected, "{name}: {:?} before, {:?} after", before, count());
        assert_eq!(device(&volume.root(), "flushes") - flushes, 10, "{name}");
    }
}
