//! Durable writes of several messages: how often they flush, and that they are durable.

use crate::harness::{Volume, check, messages, statistics};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const BYTES: usize = 1 << 20;

/// Memory that O_DIRECT takes.
#[repr(align(4096))]
struct Pages([u8; BYTES]);

/// How the write is made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Pwrite,
    /// With `RWF_DSYNC`.
    Flag,
    /// O_DIRECT is switched on after the file was opened.
    LaterDirect,
    /// The same, and nobody waits for the write.
    LaterDirectSubmitted,
}

fn write(file: &File, data: &[u8], by: By) {
    if matches!(by, By::LaterDirect | By::LaterDirectSubmitted) {
        // SAFETY: the descriptor is open.
        let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_DIRECT) };
        check(i64::from(set)).unwrap();
    }
    match by {
        By::Pwrite | By::LaterDirect => file.write_all_at(data, 0).unwrap(),
        By::Flag => {
            let piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
            // SAFETY: one piece of readable memory.
            let written =
                unsafe { libc::pwritev2(file.as_raw_fd(), &raw const piece, 1, 0, libc::RWF_DSYNC) };
            assert_eq!(check(written as i64).unwrap(), BYTES as i64);
        }
        By::LaterDirectSubmitted => {
            let mut ring = io_uring::IoUring::new(1).expect("a ring");
            let fd = io_uring::types::Fd(file.as_raw_fd());
            let request = io_uring::opcode::Write::new(fd, data.as_ptr(), BYTES as u32).build();
            // SAFETY: file and memory stay until the request has ended.
            unsafe { ring.submission().push(&request) }.expect("room");
            ring.submit_and_wait(1).expect("wait");
            let ended = ring.completion().next().expect("the end").result();
            assert_eq!(ended, BYTES as i32);
        }
    }
}

/// What takes several messages is synced once where the kernel says when it ends, by an fsync, and message by message
/// where it does not. Durable it is in any case.
#[test]
fn a_large_durable_write_flushes_once_where_the_kernel_says_when_it_ends() {
    let Some(mut volume) = Volume::mounted("volatile,commit=1000") else { return };
    let (read_write, write_only) = (libc::O_RDWR, libc::O_WRONLY);
    let cases = [
        ("O_DSYNC", read_write | libc::O_DSYNC, By::Pwrite, true),
        ("O_SYNC", read_write | libc::O_SYNC, By::Pwrite, true),
        ("RWF_DSYNC", read_write, By::Flag, true),
        ("RWF_DSYNC, write-only", write_only, By::Flag, true),
        ("O_DSYNC, write-only", write_only | libc::O_DSYNC, By::Pwrite, false),
        ("O_DSYNC, O_DIRECT", read_write | libc::O_DSYNC | libc::O_DIRECT, By::Pwrite, false),
        ("RWF_DSYNC, O_DIRECT", read_write | libc::O_DIRECT, By::Flag, false),
        ("O_DSYNC, then O_DIRECT", read_write | libc::O_DSYNC, By::LaterDirect, false),
        ("O_DSYNC, then O_DIRECT, submitted", read_write | libc::O_DSYNC, By::LaterDirectSubmitted, false),
    ];
    let data = Box::new(Pages([7; BYTES]));
    for (name, flags, by, once) in cases {
        let mut options = OpenOptions::new();
        options.write(true).read(flags & libc::O_RDWR != 0).create(true);
        let file = options.custom_flags(flags & !libc::O_ACCMODE).open(volume.path(name)).unwrap();
        // So that the write changes no size, which the kernel would wait for.
        file.write_all_at(&[1; BYTES], 0).or_else(|_| file.set_len(BYTES as u64)).unwrap();
        file.sync_all().unwrap();
        let flushes = || statistics(&volume.root())["device"]["flushes"].as_u64().unwrap();
        let before = (messages(&volume.root(), "write"), flushes());
        write(&file, &data.0, by);
        let sent = messages(&volume.root(), "write") - before.0;
        assert!(sent > 1, "{name}: {sent} messages");
        // Messages that are under way together share a flush.
        let most = if once { 1 } else { sent };
        let flushed = flushes() - before.1;
        assert!((1..=most).contains(&flushed), "{name}: {sent} messages, {flushed} flushes");
        drop(file);
        volume.crash();
        assert!(fs::read(volume.path(name)).unwrap() == data.0, "{name}");
    }
}
