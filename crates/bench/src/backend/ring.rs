//! Syncs through the kernel's io_uring, up to 64 under way at once: the interface that any directory offers.

use io_uring::{IoUring, opcode, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Syncs under way at once.
const DEPTH: usize = 64;

/// Opens each file, begins its sync, and closes it when that has ended.
pub(super) fn sync_pass(directory: &Path, names: &[String]) -> io::Result<()> {
    let mut ring = IoUring::new(DEPTH as u32)?;
    let mut under_way: Vec<Option<File>> = (0..DEPTH).map(|_| None).collect();
    let mut free: Vec<usize> = (0..DEPTH).collect();
    for name in names {
        if free.is_empty() {
            ring.submit_and_wait(1)?;
            reap(&mut ring, &mut under_way, &mut free)?;
        }
        let file = File::options().write(true).open(directory.join(name))?;
        let Some(slot) = free.pop() else { return Err(io::Error::other("no sync has ended")) };
        let entry = opcode::Fsync::new(types::Fd(file.as_raw_fd())).build().user_data(slot as u64);
        under_way[slot] = Some(file);
        // SAFETY: the entry names no memory, and its file stays open until the kernel has reported its end.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        ring.submit()?;
    }
    while free.len() < DEPTH {
        ring.submit_and_wait(1)?;
        reap(&mut ring, &mut under_way, &mut free)?;
    }
    Ok(())
}

fn reap(ring: &mut IoUring, under_way: &mut [Option<File>], free: &mut Vec<usize>) -> io::Result<()> {
    for ended in ring.completion() {
        let slot = ended.user_data() as usize;
        under_way[slot] = None;
        free.push(slot);
        if ended.result() < 0 {
            return Err(io::Error::from_raw_os_error(-ended.result()));
        }
    }
    Ok(())
}
