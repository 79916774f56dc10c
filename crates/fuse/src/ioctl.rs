//! Numbers and layouts of the ioctls that the mount answers.
//!
//! | ioctl | number | answer |
//! |---|---|---|
//! | `FS_IOC_GETFLAGS`, `FS_IOC_SETFLAGS` | `_IOR('f', 1, long)`, `_IOW('f', 2, long)` | flags as `chattr` sets them |
//! | `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR` | `_IOR('X', 31, fsxattr)`, `_IOW('X', 32, fsxattr)` | the same, extended |
//! | `FITRIM` | `_IOWR('X', 121, fstrim_range)` | free blocks are discarded (C7a); the length becomes what was; needs CAP_SYS_ADMIN (`privilege`) |
//! | `FS_IOC_SHUTDOWN` | `_IOR('X', 125, u32)` | the volume stops at once, as in a power cut; needs CAP_SYS_ADMIN (`privilege`) |
//! | statistics | `_IOR(0xe7, 1, [u8; 15872])` | little-endian `u32` length, then that many bytes of JSON |
//! | sync of a range | `_IOW(0xe7, 2, syncline_range)` | as `fsync`, for a part of the file (C5) |
//! | start of a sync | `_IOWR(0xe7, 3, syncline_range)` | a ticket, at once |
//! | look at a ticket | `_IOWR(0xe7, 4, syncline_ticket)` | whether its sync has ended, and how |
//! | wait for a ticket | `_IOW(0xe7, 5, syncline_ticket)` | as the `fsync` would have |
//! | atomic writes | `_IOR(0xf5, 12, u32)`, `_IO(0xf5, 1)`, `2`, `5` | features, start, commit, abort, as f2fs has them; 3 and 4: `EOPNOTSUPP` |
//! | multi-file commit | `_IOR(0xe7, 7, u64)`, `_IOW(0xe7, 8, u64)`, `9`, `10` | begin (gives a token), join, commit, abort (C4) |
//! | writeback hint | `_IOWR(0xe7, 6, syncline_range)` | how many bytes are on their way (C6) |
//! | snapshot | `_IOWR(0xe7, 11, syncline_snapshot)` | make, delete, rename, hold, release, tell the next, of snapshots and heads (C10 to C12); changes need CAP_SYS_ADMIN |
//! | usage of snapshots | `_IOWR(0xe7, 12, syncline_snapshot_usage)` | what their deletion would give back; needs CAP_SYS_ADMIN |
//! | schedule of snapshots | `_IOWR(0xe7, 13, syncline_schedule)` | told, set, ended; changes need CAP_SYS_ADMIN |
//! | difference of snapshots | `_IOWR(0xe7, 14, syncline_snapshot_diff)` | which paths differ, a part at a time; needs CAP_SYS_ADMIN |
//!
//! Those from 2 on are for programs: `include/syncline/ioctl.h` says how they are used, and a test compares its numbers
//! and layouts with these. They are answered on open files, not on directories. Statistics and snapshots are answered
//! on every file and directory of the volume. The kernel hands `FS_IOC_SHUTDOWN` over without its argument, so all its
//! modes are the same one.

use std::ops::Range;

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
/// Bytes of `struct fstrim_range`.
pub(crate) const TRIM_BYTES: usize = 24;
/// Bytes of the statistics' buffer.
pub(crate) const STATISTICS_BYTES: usize = 15872;

pub(crate) const GET_FLAGS: u32 = number(READ, b'f', 1, LONG_BYTES);
pub(crate) const SET_FLAGS: u32 = number(WRITE, b'f', 2, LONG_BYTES);
pub(crate) const GET_EXTENDED_FLAGS: u32 = number(READ, b'X', 31, FSXATTR_BYTES as u32);
pub(crate) const SET_EXTENDED_FLAGS: u32 = number(WRITE, b'X', 32, FSXATTR_BYTES as u32);
pub(crate) const TRIM: u32 = number(READ | WRITE, b'X', 121, TRIM_BYTES as u32);
pub(crate) const SHUT_DOWN: u32 = number(READ, b'X', 125, 4);
pub(crate) const STATISTICS: u32 = number(READ, 0xe7, 1, STATISTICS_BYTES as u32);

/// Bytes of the argument that a number names.
pub(crate) const fn argument_bytes(command: u32) -> usize {
    (command >> 16 & 0x3fff) as usize
}

/// Bytes of `struct syncline_range` and `struct syncline_ticket`.
pub(crate) const RANGE_BYTES: usize = 32;
pub(crate) const TICKET_BYTES: usize = 16;

pub(crate) const SYNC_RANGE: u32 = number(WRITE, 0xe7, 2, RANGE_BYTES as u32);
pub(crate) const SYNC_START: u32 = number(READ | WRITE, 0xe7, 3, RANGE_BYTES as u32);
pub(crate) const SYNC_POLL: u32 = number(READ | WRITE, 0xe7, 4, TICKET_BYTES as u32);
pub(crate) const SYNC_WAIT: u32 = number(WRITE, 0xe7, 5, TICKET_BYTES as u32);
pub(crate) const WRITE_BACK: u32 = number(READ | WRITE, 0xe7, 6, RANGE_BYTES as u32);

pub(crate) const GROUP_BEGIN: u32 = number(READ, 0xe7, 7, 8);
pub(crate) const GROUP_JOIN: u32 = number(WRITE, 0xe7, 8, 8);
pub(crate) const GROUP_COMMIT: u32 = number(WRITE, 0xe7, 9, 8);
pub(crate) const GROUP_ABORT: u32 = number(WRITE, 0xe7, 10, 8);

/// Bytes of `struct syncline_snapshot`.
pub(crate) const SNAPSHOT_BYTES: usize = 560;
pub(crate) const SNAPSHOT: u32 = number(READ | WRITE, 0xe7, 11, SNAPSHOT_BYTES as u32);

/// Bytes of `struct syncline_snapshot_usage`.
pub(crate) const SNAPSHOT_USAGE_BYTES: usize = 15_376;
pub(crate) const SNAPSHOT_USAGE: u32 = number(READ | WRITE, 0xe7, 12, SNAPSHOT_USAGE_BYTES as u32);

/// Bytes of `struct syncline_schedule`.
pub(crate) const SCHEDULE_BYTES: usize = 512;
pub(crate) const SCHEDULE: u32 = number(READ | WRITE, 0xe7, 13, SCHEDULE_BYTES as u32);

/// Bytes of `struct syncline_snapshot_diff`.
pub(crate) const SNAPSHOT_DIFF_BYTES: usize = 15_904;
pub(crate) const SNAPSHOT_DIFF: u32 = number(READ | WRITE, 0xe7, 14, SNAPSHOT_DIFF_BYTES as u32);

/// f2fs's, which SQLite uses.
pub(crate) const F2FS_START_ATOMIC_WRITE: u32 = number(0, 0xf5, 1, 0);
pub(crate) const F2FS_COMMIT_ATOMIC_WRITE: u32 = number(0, 0xf5, 2, 0);
pub(crate) const F2FS_START_VOLATILE_WRITE: u32 = number(0, 0xf5, 3, 0);
pub(crate) const F2FS_RELEASE_VOLATILE_WRITE: u32 = number(0, 0xf5, 4, 0);
pub(crate) const F2FS_ABORT_ATOMIC_WRITE: u32 = number(0, 0xf5, 5, 0);
pub(crate) const F2FS_GET_FEATURES: u32 = number(READ, 0xf5, 12, 4);

/// As `fdatasync` instead of `fsync`.
pub(crate) const FLAG_DATA: u32 = 1;

/// Which bytes of a file, and how: `struct syncline_range`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeArgument {
    /// Up to `u64::MAX` if it has no end.
    pub(crate) range: Range<u64>,
    pub(crate) data_only: bool,
}

impl RangeArgument {
    /// `None`: not understood, also if a later version's flags are in it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<RangeArgument> {
        let (offset, length) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?);
        let (flags, reserved) = (u32_at(bytes, 16)?, u32_at(bytes, 20)?);
        if bytes.len() != RANGE_BYTES || flags & !FLAG_DATA != 0 || reserved != 0 {
            return None;
        }
        let end = if length == 0 { u64::MAX } else { offset.checked_add(length)? };
        Some(RangeArgument { range: offset..end, data_only: flags & FLAG_DATA != 0 })
    }

    /// With the number that the call returns.
    pub(crate) fn encode(&self, result: u64) -> [u8; RANGE_BYTES] {
        let length = if self.range.end == u64::MAX { 0 } else { self.range.end - self.range.start };
        let mut bytes = [0; RANGE_BYTES];
        bytes[..8].copy_from_slice(&self.range.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&length.to_ne_bytes());
        bytes[16..20].copy_from_slice(&u32::from(self.data_only).to_ne_bytes());
        bytes[24..].copy_from_slice(&result.to_ne_bytes());
        bytes
    }

    /// The number that a call returned.
    pub(crate) fn result(bytes: &[u8; RANGE_BYTES]) -> u64 {
        u64_at(bytes, 24).expect("the array is long enough")
    }
}

/// A started sync and how it ended: `struct syncline_ticket`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TicketArgument {
    pub(crate) ticket: u64,
    /// 0, an error number, or `EINPROGRESS`.
    pub(crate) error: i32,
}

impl TicketArgument {
    pub(crate) fn decode(bytes: &[u8]) -> Option<TicketArgument> {
        let (ticket, error) = (u64_at(bytes, 0)?, u32_at(bytes, 8)? as i32);
        let reserved = u32_at(bytes, 12)?;
        (bytes.len() == TICKET_BYTES && reserved == 0).then_some(TicketArgument { ticket, error })
    }

    pub(crate) fn encode(&self) -> [u8; TICKET_BYTES] {
        let mut bytes = [0; TICKET_BYTES];
        bytes[..8].copy_from_slice(&self.ticket.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.error.to_ne_bytes());
        bytes
    }
}

/// What is to be trimmed, in bytes: `struct fstrim_range`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrimArgument {
    /// Of the volume; may go beyond its end.
    pub(crate) range: Range<u64>,
    pub(crate) length_min: u64,
}

impl TrimArgument {
    pub(crate) fn decode(bytes: &[u8]) -> Option<TrimArgument> {
        let (start, length, length_min) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        // A length without end is what `fstrim` asks for.
        let range = start..start.saturating_add(length);
        (bytes.len() == TRIM_BYTES).then_some(TrimArgument { range, length_min })
    }

    /// With what was discarded as its length.
    pub(crate) fn encode(&self, discarded: u64) -> [u8; TRIM_BYTES] {
        let mut bytes = [0; TRIM_BYTES];
        bytes[..8].copy_from_slice(&self.range.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&discarded.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.length_min.to_ne_bytes());
        bytes
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_ne_bytes(*field))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_ne_bytes(*field))
}

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

    /// What the C header says, each as a name and a number.
    const HEADER: &[(&str, u64)] = &[
        ("SYNCLINE_DATA", FLAG_DATA as u64),
        ("sizeof(struct syncline_range)", RANGE_BYTES as u64),
        ("offsetof(struct syncline_range, offset)", 0),
        ("offsetof(struct syncline_range, length)", 8),
        ("offsetof(struct syncline_range, flags)", 16),
        ("offsetof(struct syncline_range, reserved)", 20),
        ("offsetof(struct syncline_range, result)", 24),
        ("sizeof(struct syncline_ticket)", TICKET_BYTES as u64),
        ("offsetof(struct syncline_ticket, ticket)", 0),
        ("offsetof(struct syncline_ticket, error)", 8),
        ("offsetof(struct syncline_ticket, reserved)", 12),
        ("SYNCLINE_IOC_SYNC_RANGE", SYNC_RANGE as u64),
        ("SYNCLINE_IOC_SYNC_START", SYNC_START as u64),
        ("SYNCLINE_IOC_SYNC_POLL", SYNC_POLL as u64),
        ("SYNCLINE_IOC_SYNC_WAIT", SYNC_WAIT as u64),
        ("SYNCLINE_IOC_WRITE_BACK", WRITE_BACK as u64),
        ("sizeof(struct syncline_snapshot)", SNAPSHOT_BYTES as u64),
        ("offsetof(struct syncline_snapshot, tree)", 4),
        ("offsetof(struct syncline_snapshot, uuid)", 8),
        ("offsetof(struct syncline_snapshot, seconds)", 24),
        ("offsetof(struct syncline_snapshot, nanoseconds)", 32),
        ("offsetof(struct syncline_snapshot, flags)", 36),
        ("offsetof(struct syncline_snapshot, expires)", 40),
        ("offsetof(struct syncline_snapshot, name)", 48),
        ("offsetof(struct syncline_snapshot, to)", 304),
        ("SYNCLINE_SNAPSHOT_MAKE", 1),
        ("SYNCLINE_SNAPSHOT_DELETE", 2),
        ("SYNCLINE_SNAPSHOT_RENAME", 3),
        ("SYNCLINE_SNAPSHOT_NEXT", 4),
        ("SYNCLINE_SNAPSHOT_HOLD", 5),
        ("SYNCLINE_SNAPSHOT_RELEASE", 6),
        ("SYNCLINE_SNAPSHOT_MAKE_HEAD", 7),
        ("SYNCLINE_SNAPSHOT_DELETE_HEAD", 8),
        ("SYNCLINE_SNAPSHOT_NEXT_HEAD", 9),
        ("SYNCLINE_SNAPSHOT_HELD", 1),
        ("SYNCLINE_SNAPSHOT_DEFAULT", 2),
        ("SYNCLINE_SNAPSHOT_SCHEDULED", 4),
        ("sizeof(struct syncline_schedule)", SCHEDULE_BYTES as u64),
        ("offsetof(struct syncline_schedule, flags)", 4),
        ("offsetof(struct syncline_schedule, text)", 8),
        ("SYNCLINE_SCHEDULE_TELL", 1),
        ("SYNCLINE_SCHEDULE_SET", 2),
        ("SYNCLINE_SCHEDULE_END", 3),
        ("SYNCLINE_SCHEDULE_EXISTS", 1),
        ("SYNCLINE_SCHEDULE_PAUSED", 2),
        ("SYNCLINE_IOC_SCHEDULE", SCHEDULE as u64),
        ("sizeof(struct syncline_snapshot_diff)", SNAPSHOT_DIFF_BYTES as u64),
        ("offsetof(struct syncline_snapshot_diff, offset)", 8),
        ("offsetof(struct syncline_snapshot_diff, flags)", 16),
        ("offsetof(struct syncline_snapshot_diff, length)", 20),
        ("offsetof(struct syncline_snapshot_diff, older)", 24),
        ("offsetof(struct syncline_snapshot_diff, newer)", 280),
        ("offsetof(struct syncline_snapshot_diff, data)", 536),
        ("sizeof(struct syncline_snapshot_change)", 16),
        ("offsetof(struct syncline_snapshot_change, path_length)", 8),
        ("SYNCLINE_DIFF_CONTENT", 1),
        ("SYNCLINE_IOC_SNAPSHOT_DIFF", SNAPSHOT_DIFF as u64),
        ("sizeof(struct syncline_snapshot_usage)", SNAPSHOT_USAGE_BYTES as u64),
        ("offsetof(struct syncline_snapshot_usage, count)", 0),
        ("offsetof(struct syncline_snapshot_usage, bytes)", 8),
        ("offsetof(struct syncline_snapshot_usage, trees)", 16),
        ("SYNCLINE_SNAPSHOT_USAGE_MAX", crate::snapshots::USAGE_MAX as u64),
        ("SYNCLINE_IOC_SNAPSHOT_USAGE", SNAPSHOT_USAGE as u64),
        ("SYNCLINE_IOC_SNAPSHOT", SNAPSHOT as u64),
        ("SYNCLINE_IOC_GROUP_BEGIN", GROUP_BEGIN as u64),
        ("SYNCLINE_IOC_GROUP_JOIN", GROUP_JOIN as u64),
        ("SYNCLINE_IOC_GROUP_COMMIT", GROUP_COMMIT as u64),
        ("SYNCLINE_IOC_GROUP_ABORT", GROUP_ABORT as u64),
        ("F2FS_IOC_START_ATOMIC_WRITE", F2FS_START_ATOMIC_WRITE as u64),
        ("F2FS_IOC_COMMIT_ATOMIC_WRITE", F2FS_COMMIT_ATOMIC_WRITE as u64),
        ("F2FS_IOC_ABORT_ATOMIC_WRITE", F2FS_ABORT_ATOMIC_WRITE as u64),
        ("F2FS_IOC_GET_FEATURES", F2FS_GET_FEATURES as u64),
    ];

    /// Compiles the header with each compiler that there is, with an assertion for each line above.
    #[test]
    fn the_c_header_says_the_same() {
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
        let dir = tempfile::tempdir().unwrap();
        for (compiler, standard, extension) in [("cc", "-std=c11", "c"), ("c++", "-std=c++11", "cc")] {
            let assert = if extension == "c" { "_Static_assert" } else { "static_assert" };
            let mut text =
                "#define _GNU_SOURCE\n#include <stddef.h>\n#include \"syncline/ioctl.h\"\n".to_owned();
            for (name, number) in HEADER {
                text += &format!("{assert}({name} == {number}, \"{name}\");\n");
            }
            let source = dir.path().join("layout").with_extension(extension);
            std::fs::write(&source, text).unwrap();
            // C++ compilers define _GNU_SOURCE themselves.
            let compiled = std::process::Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Werror", "-U_GNU_SOURCE", "-I", include])
                .args(["-fsyntax-only"])
                .arg(&source)
                .output();
            match compiled {
                Err(_) => eprintln!("skipped: the_c_header_says_the_same: there is no {compiler}"),
                Ok(output) => {
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
            }
        }
    }

    #[test]
    fn arguments_come_back_as_they_went_in_and_others_are_refused() {
        for (range, length) in [(10..30, 20_u64), (7..u64::MAX, 0)] {
            let argument = RangeArgument { range, data_only: true };
            let bytes = argument.encode(99);
            assert_eq!(RangeArgument::decode(&bytes), Some(argument));
            assert_eq!((u64_at(&bytes, 8), RangeArgument::result(&bytes)), (Some(length), 99));
        }
        let mut bytes = RangeArgument { range: 1..2, data_only: false }.encode(0);
        assert_eq!(RangeArgument::decode(&bytes[..31]), None);
        for (at, value) in [(16, 2), (20, 1)] {
            let before = std::mem::replace(&mut bytes[at], value);
            assert_eq!(RangeArgument::decode(&bytes), None, "byte {at}");
            bytes[at] = before;
        }
        bytes[..16].fill(0xff);
        assert_eq!(RangeArgument::decode(&bytes), None, "beyond the end of all files");
        let ticket = TicketArgument { ticket: 5, error: -1 };
        assert_eq!(TicketArgument::decode(&ticket.encode()), Some(ticket));
        assert_eq!(TicketArgument::decode(&[0; 15]), None);
        let trim = TrimArgument { range: 4096..u64::MAX, length_min: 8192 };
        let [start, length, length_min] = [4096, u64::MAX, 8192].map(u64::to_ne_bytes);
        assert_eq!(TrimArgument::decode(&[start, length, length_min].concat()), Some(trim.clone()));
        assert_eq!(trim.encode(77)[..], [start, 77_u64.to_ne_bytes(), length_min].concat());
        assert_eq!(TrimArgument::decode(&[0; 23]), None);
    }

    #[test]
    fn statistics_come_back_as_they_went_in() {
        let mut buffer = encode_statistics("{\"a\":1}");
        buffer.resize(STATISTICS_BYTES, 0);
        assert_eq!(decode_statistics(&buffer).as_deref(), Some("{\"a\":1}"));
        assert_eq!(decode_statistics(&[255; 16]), None);
    }
}
