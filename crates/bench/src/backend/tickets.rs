//! Syncs by the ioctls of `include/syncline/ioctl.h`: started one after another, then waited for. No thread, here or in
//! the kernel, waits for one of them meanwhile.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Once;

/// Files that a thread has open at once: a ticket belongs to the open file on which it was started.
const OPEN_MAX: usize = 1024;
/// `_IOWR(0xe7, 3, struct syncline_range)` and `_IOW(0xe7, 5, struct syncline_ticket)`.
const START: libc::Ioctl = 0xc020_e703u32 as libc::Ioctl;
const WAIT: libc::Ioctl = 0x4010_e705;

/// As the header has it.
#[repr(C)]
#[derive(Default)]
struct Range {
    offset: u64,
    length: u64,
    flags: u32,
    reserved: u32,
    result: u64,
}

/// As the header has it.
#[repr(C)]
#[derive(Default)]
struct Ticket {
    ticket: u64,
    error: i32,
    reserved: u32,
}

const _: () = assert!(size_of::<Range>() == 32 && size_of::<Ticket>() == 16);

/// Opens each file and starts its sync; waits for the oldest when too many are open, and for all in the end.
pub(super) fn pass(directory: &Path, names: &[String]) -> io::Result<()> {
    raise_open_files();
    let mut under_way: VecDeque<(File, u64)> = VecDeque::new();
    for name in names {
        if under_way.len() == OPEN_MAX {
            under_way.pop_front().map_or(Ok(()), |(file, ticket)| wait(&file, ticket))?;
        }
        let file = File::options().write(true).open(directory.join(name))?;
        let ticket = start(&file)?;
        under_way.push_back((file, ticket));
    }
    under_way.into_iter().try_for_each(|(file, ticket)| wait(&file, ticket))
}

/// A ticket for the whole file. Errors: `Unsupported` where the file system has none.
fn start(file: &File) -> io::Result<u64> {
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let mut range = Range::default();
    // SAFETY: the first call touches no memory, the second one the range, which is as the request has it.
    let started = unsafe {
        // As the header asks for: what only the kernel has is handed on first.
        match libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) {
            0 => libc::ioctl(file.as_raw_fd(), START, &raw mut range),
            failed => failed,
        }
    };
    match started {
        0 => Ok(range.result),
        _ => Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOTTY) => io::ErrorKind::Unsupported.into(),
            error => error,
        }),
    }
}

fn wait(file: &File, ticket: u64) -> io::Result<()> {
    let mut waited = Ticket { ticket, ..Ticket::default() };
    // SAFETY: the request reads the ticket, which is as it has it.
    match unsafe { libc::ioctl(file.as_raw_fd(), WAIT, &raw mut waited) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As many open files as the machine lets this process have.
fn raise_open_files() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Where that fails opening fails, with a sentence of its own.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_without_tickets_says_so() {
        let name = format!("syncline-tickets-{}", std::process::id());
        let directory = std::env::temp_dir();
        std::fs::write(directory.join(&name), "x").expect("written");
        let error = pass(&directory, std::slice::from_ref(&name)).expect_err("no tickets here");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        std::fs::remove_file(directory.join(name)).expect("removed");
    }
}
