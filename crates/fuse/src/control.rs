//! What a program can ask of files on a mounted volume beyond POSIX: the Rust side of `include/syncline/ioctl.h`, which
//! says what each call means. On a file of another filesystem all fail with ENOTTY.

use crate::ioctl::{self, RANGE_BYTES, RangeArgument, TICKET_BYTES, TicketArgument};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// How a file is synced by the calls of this module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncRequest {
    /// An end of `u64::MAX` means the file's, wherever it is.
    pub range: Range<u64>,
    /// As `fdatasync` instead of `fsync`.
    pub data_only: bool,
}

impl SyncRequest {
    /// The whole file.
    pub const WHOLE: SyncRequest = SyncRequest { range: 0..u64::MAX, data_only: false };

    fn argument(&self) -> io::Result<RangeArgument> {
        let Range { start, end } = self.range;
        // A length of 0 stands for no end.
        match start < end {
            true => Ok(RangeArgument { range: start..end, data_only: self.data_only }),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// Makes a range of a file durable, and every change of names and attributes before it.
pub fn sync_range(file: &File, request: &SyncRequest) -> io::Result<()> {
    let argument = request.argument()?;
    hand_on(file, &request.range)?;
    call(file, ioctl::SYNC_RANGE, &mut argument.encode(0))
}

/// Starts the same; returns its ticket.
pub fn start_sync(file: &File, request: &SyncRequest) -> io::Result<u64> {
    let argument = request.argument()?;
    hand_on(file, &request.range)?;
    let mut bytes: [u8; RANGE_BYTES] = argument.encode(0);
    call(file, ioctl::SYNC_START, &mut bytes)?;
    Ok(RangeArgument::result(&bytes))
}

/// How a started sync ended, `None` if it has not. That it ended is told once.
pub fn poll_sync(file: &File, ticket: u64) -> io::Result<Option<io::Result<()>>> {
    let mut bytes: [u8; TICKET_BYTES] = TicketArgument { ticket, error: 0 }.encode();
    call(file, ioctl::SYNC_POLL, &mut bytes)?;
    let polled = TicketArgument::decode(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok(match polled.error {
        libc::EINPROGRESS => None,
        0 => Some(Ok(())),
        errno => Some(Err(io::Error::from_raw_os_error(errno))),
    })
}

/// Waits until a started sync has ended, and says how.
pub fn wait_for_sync(file: &File, ticket: u64) -> io::Result<()> {
    call(file, ioctl::SYNC_WAIT, &mut TicketArgument { ticket, error: 0 }.encode())
}

/// Begins to write what is dirty in a range; returns how many bytes that are.
pub fn write_back(file: &File, range: Range<u64>) -> io::Result<u64> {
    let argument = SyncRequest { range: range.clone(), data_only: false }.argument()?;
    hand_on(file, &range)?;
    let mut bytes: [u8; RANGE_BYTES] = argument.encode(0);
    call(file, ioctl::WRITE_BACK, &mut bytes)?;
    Ok(RangeArgument::result(&bytes))
}

/// Hands the daemon what the kernel holds of the range.
fn hand_on(file: &File, range: &Range<u64>) -> io::Result<()> {
    let signed = |number: u64| i64::try_from(number).map_err(|_| io::ErrorKind::InvalidInput);
    let length = if range.end == u64::MAX { 0 } else { signed(range.end - range.start)? };
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), signed(range.start)?, length, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn call(file: &File, command: u32, argument: &mut [u8]) -> io::Result<()> {
    assert_eq!(ioctl::argument_bytes(command), argument.len(), "the number names the size of its argument");
    // SAFETY: the descriptor is open, and the kernel reads and writes as many bytes as the number says.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command as libc::c_ulong, argument.as_mut_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
