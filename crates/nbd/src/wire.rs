//! Numbers and messages of the protocol. All are big-endian.

/// What a server begins with: `NBDMAGIC`, then one of the two.
pub(crate) const HELLO: [u8; 8] = *b"NBDMAGIC";
pub(crate) const NEWSTYLE: [u8; 8] = *b"IHAVEOPT";
pub(crate) const OLDSTYLE: [u8; 8] = 0x0000_4202_8186_1253_u64.to_be_bytes();

/// Flags of the handshake, the same on both sides.
pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(crate) const NO_ZEROES: u16 = 1 << 1;

/// Options.
pub(crate) const OPTION_EXPORT_NAME: u32 = 1;
pub(crate) const OPTION_GO: u32 = 7;
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;

/// Replies to options.
pub(crate) const ACK: u32 = 1;
pub(crate) const INFO: u32 = 3;
pub(crate) const ERROR: u32 = 1 << 31;
pub(crate) const ERROR_UNSUPPORTED: u32 = ERROR | 1;
pub(crate) const ERROR_TLS: u32 = ERROR | 5;
pub(crate) const ERROR_UNKNOWN: u32 = ERROR | 6;

/// What an [`INFO`] is about.
pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

/// What an export can do.
pub(crate) const HAS_FLAGS: u16 = 1 << 0;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;

const REQUEST: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY: u32 = 0x6744_6698;

/// A command. What it says is done to `length` bytes from `offset` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Of [`Command::WriteZeroes`]: the space is to be there afterwards.
const NO_HOLE: u16 = 1 << 1;

pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REPLY_BYTES: usize = 16;

pub(crate) fn request(command: Command, cookie: u64, offset: u64, length: u32) -> [u8; REQUEST_BYTES] {
    let flags = if command == Command::WriteZeroes { NO_HOLE } else { 0 };
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The error and the cookie of a simple reply; `None` if it is none.
pub(crate) fn reply(bytes: &[u8; REPLY_BYTES]) -> Option<(u32, u64)> {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let cookie = u64::from(word(8)) << 32 | u64::from(word(12));
    (word(0) == SIMPLE_REPLY).then_some((word(4), cookie))
}

/// The errno of an error of the protocol, which are Linux' own numbers; what it does not know is EIO.
pub(crate) fn errno(error: u32) -> i32 {
    match error {
        1 => libc::EPERM,
        12 => libc::ENOMEM,
        22 => libc::EINVAL,
        28 => libc::ENOSPC,
        75 => libc::EOVERFLOW,
        95 => libc::EOPNOTSUPP,
        108 => libc::ESHUTDOWN,
        _ => libc::EIO,
    }
}
