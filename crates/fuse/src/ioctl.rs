//! Numbers and layouts of the ioctls that the mount answers.
//!
//! | ioctl | number | answer |
//! |---|---|---|
//! | `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` | `_IOR('f', 1, long)`, `_IOW('f', 2, long)` | flags as `chattr` sets them |
//! | `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` | `_IOR('X', 31, fsxattr)`, `_IOW('X', 32, fsxattr)` | the same, extended |
//! | `FITRIM` | `_IOWR('X', 121, fstrim_range)` | `EOPNOTSUPP`: freed blocks are not discarded yet |
//! | `FS_IOC_SHUTDOWN` | `_IOR('X', 125, u32)` | the volume stops at once, as in a power cut; root only |
//! | statistics | `_IOR(0xe7, 1, [u8; 14336])` | little-endian `u32` length, then that many bytes of JSON |
//!
//! The statistics are answered on every file and directory of the volume. The kernel hands `FS_IOC_SHUTDOWN` over without
//! its argument, so all its modes are the same one.

/// Direction bits as in asm-generic/ioctl.h.
const WRITE: u32 = 1;
const READ: u32 = 2;

const fn number(direction: u32, kind: u8, index: u8, size: u32) -> u32 {
    assert!(size < 1 << 14, "the size field has 14 bits");
    direction << 30 | size << 16 | (kind as u32) << 8 | index as u32
}

const LONG_BYTES: u32 = size_of::<libc::c_long>() as u32;
/// Bytes of `struct fsxattr`.
pub(crate) const FSXATTR_BYTES: usize = 28;
/// Bytes of the statistics' buffer.
pub(crate) const STATISTICS_BYTES: usize = 14336;

pub(crate) const GET_FLAGS: u32 = number(READ, b'f', 1, LONG_BYTES);
pub(crate) const SET_FLAGS: u32 = number(WRITE, b'f', 2, LONG_BYTES);
pub(crate) const GET_EXTENDED_FLAGS: u32 = number(READ, b'X', 31, FSXATTR_BYTES as u32);
pub(crate) const SET_EXTENDED_FLAGS: u32 = number(WRITE, b'X', 32, FSXATTR_BYTES as u32);
pub(crate) const TRIM: u32 = number(READ | WRITE, b'X', 121, 24);
pub(crate) const SHUT_DOWN: u32 = number(READ, b'X', 125, 4);
pub(crate) const STATISTICS: u32 = number(READ, 0xe7, 1, STATISTICS_BYTES as u32);

/// Whether it changes an inode.
pub(crate) fn is_change(command: u32) -> bool {
    matches!(command, SET_FLAGS | SET_EXTENDED_FLAGS)
}

/// Puts a text into the form of the statistics ioctl. A text that is too long is an error of the caller.
pub(crate) fn encode_statistics(json: &str) -> Vec<u8> {
    assert!(json.len() <= STATISTICS_BYTES - 4, "statistics of {} bytes", json.len());
    let mut out = Vec::with_capacity(4 + json.len());
    out.extend_from_slice(&(json.len() as u32).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out
}

/// The text in a buffer that the statistics ioctl has filled.
pub(crate) fn decode_statistics(buffer: &[u8]) -> Option<String> {
    let (len, rest) = buffer.split_first_chunk::<4>()?;
    let text = rest.get(..u32::from_le_bytes(*len) as usize)?;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernels_headers() {
        assert_eq!(GET_FLAGS, 0x8008_6601);
        assert_eq!(SET_FLAGS, 0x4008_6602);
        assert_eq!(GET_EXTENDED_FLAGS, 0x801c_581f);
        assert_eq!(SET_EXTENDED_FLAGS, 0x401c_5820);
        assert_eq!(TRIM, 0xc018_5879);
        assert_eq!(SHUT_DOWN, 0x8004_587d);
    }

    #[test]
    fn statistics_come_back_as_they_went_in() {
        let mut buffer = encode_statistics("{\"a\":1}");
        buffer.resize(STATISTICS_BYTES, 0);
        assert_eq!(decode_statistics(&buffer).as_deref(), Some("{\"a\":1}"));
        assert_eq!(decode_statistics(&[255; 16]), None);
    }
}
