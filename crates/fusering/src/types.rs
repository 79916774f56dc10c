//! What requests and answers are about: nodes, handles, times, attributes.

use crate::abi::{self, AttrFlags, OpenFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of a node (an inode as the kernel knows it).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The mount's root.
    pub const ROOT: NodeId = NodeId(1);
}

/// Number that the filesystem gave an open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Who owns locks: differs per process and open file, means nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// The kernel's number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// What a poll notification names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PollHandle(pub u64);

/// A time: `seconds` since 1970 began plus `nanoseconds` (below 10^9), also before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Time {
    pub fn now() -> Time {
        Time::from(SystemTime::now())
    }

    /// As the kernel has it: a signed number in an unsigned field.
    pub(crate) fn from_wire(seconds: u64, nanoseconds: u32) -> Time {
        Time { seconds: seconds as i64, nanoseconds: nanoseconds.min(999_999_999) }
    }

    fn to_sx(self) -> abi::SxTime {
        abi::SxTime { tv_sec: self.seconds, tv_nsec: self.nanoseconds, reserved: 0 }
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Time {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Time {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanoseconds: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
                match before.subsec_nanos() {
                    0 => Time { seconds, nanoseconds: 0 },
                    nanos => Time { seconds: seconds.saturating_sub(1), nanoseconds: 1_000_000_000 - nanos },
                }
            }
        }
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The filesystem's clock.
    Now,
    At(Time),
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Number that `stat` shows; mostly the same as the node's.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    /// Type and permission bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of special files, in the kernel's 32-bit encoding: see [`DeviceNumber`].
    pub device: DeviceNumber,
    /// What `stat` recommends for I/O.
    pub block_bytes: u32,
    pub flags: AttrFlags,
}

impl Attributes {
    pub(crate) fn to_wire(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.accessed.seconds as u64,
            mtime: self.modified.seconds as u64,
            ctime: self.changed.seconds as u64,
            atimensec: self.accessed.nanoseconds,
            mtimensec: self.modified.nanoseconds,
            ctimensec: self.changed.nanoseconds,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device.to_kernel(),
            blksize: self.block_bytes,
            flags: self.flags.bits(),
        }
    }
}

/// Major and minor number of a special file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// From the kernel's 32 bits: 12 bits of major between 8 and 12 bits of minor.
    pub fn from_kernel(encoded: u32) -> DeviceNumber {
        DeviceNumber { major: (encoded >> 8) & 0xfff, minor: (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00) }
    }

    pub fn to_kernel(self) -> u32 {
        (self.minor & 0xff) | ((self.major & 0xfff) << 8) | ((self.minor & 0xf_ff00) << 12)
    }
}

/// What STATX answers: attributes, and what `stat` has no place for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedAttributes {
    pub attributes: Attributes,
    /// Time of birth, if known.
    pub born: Option<Time>,
    /// `STATX_ATTR_*` that are set, and those that the filesystem knows.
    pub attribute_bits: u64,
    pub attribute_bits_known: u64,
}

impl ExtendedAttributes {
    pub(crate) fn to_wire(self) -> abi::Statx {
        let attributes = self.attributes;
        let birth = if self.born.is_some() { libc::STATX_BTIME } else { 0 };
        abi::Statx {
            mask: libc::STATX_BASIC_STATS | birth,
            blksize: attributes.block_bytes,
            attributes: self.attribute_bits,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: attributes.mode as u16,
            spare0: 0,
            ino: attributes.ino,
            size: attributes.size,
            blocks: attributes.blocks,
            attributes_mask: self.attribute_bits_known,
            atime: attributes.accessed.to_sx(),
            btime: self.born.unwrap_or_default().to_sx(),
            ctime: attributes.changed.to_sx(),
            mtime: attributes.modified.to_sx(),
            rdev_major: attributes.device.major,
            rdev_minor: attributes.device.minor,
            dev_major: 0,
            dev_minor: 0,
            spare2: [0; 14],
        }
    }
}

/// A name that was found or made, and how long the kernel may keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub node: NodeId,
    /// Tells apart nodes that have the same number one after the other.
    pub generation: u64,
    pub attributes: Attributes,
    /// How long the name and the attributes stay valid.
    pub entry_valid: Duration,
    pub attributes_valid: Duration,
}

impl Entry {
    pub(crate) fn to_wire(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.node.0,
            generation: self.generation,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attributes_valid.as_secs(),
            entry_valid_nsec: self.entry_valid.subsec_nanos(),
            attr_valid_nsec: self.attributes_valid.subsec_nanos(),
            attr: self.attributes.to_wire(),
        }
    }
}

/// A file or directory that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    pub handle: Handle,
    pub flags: OpenFlags,
}

impl Opened {
    pub(crate) fn to_wire(self) -> abi::OpenOut {
        abi::OpenOut { fh: self.handle.0, open_flags: self.flags, backing_id: 0 }
    }
}

/// Totals of the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// What `blocks` counts.
    pub fragment_bytes: u32,
    /// What is recommended for I/O.
    pub block_bytes: u32,
    pub blocks: u64,
    pub blocks_free: u64,
    /// Free for those who are not root.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_bytes_max: u32,
}

/// Kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    Read,
    Write,
    Unlocked,
}

/// A lock of the bytes `start..=end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub kind: LockKind,
    /// Process that holds it.
    pub pid: u32,
}

impl Lock {
    pub(crate) fn from_wire(lock: &abi::FileLock) -> Option<Lock> {
        let kind = match i32::try_from(lock.type_).ok()? {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlocked,
            _ => return None,
        };
        Some(Lock { start: lock.start, end: lock.end, kind, pid: lock.pid })
    }

    pub(crate) fn to_wire(self) -> abi::FileLock {
        let kind = match self.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlocked => libc::F_UNLCK,
        };
        abi::FileLock { start: self.start, end: self.end, type_: kind as u32, pid: self.pid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_place() {
        let quarter_after = UNIX_EPOCH - Duration::new(1, 750_000_000);
        assert_eq!(Time::from(quarter_after), Time { seconds: -2, nanoseconds: 250_000_000 });
        assert_eq!(Time::from(UNIX_EPOCH - Duration::from_secs(3)), Time { seconds: -3, nanoseconds: 0 });
        assert_eq!(Time::from_wire((-2_i64) as u64, 5), Time { seconds: -2, nanoseconds: 5 });
        assert_eq!(Time { seconds: -2, nanoseconds: 5 }.to_sx().tv_sec, -2);
    }

    #[test]
    fn device_numbers_survive_the_kernels_encoding() {
        for (major, minor) in [(0, 0), (1, 3), (8, 17), (259, 70_000), (0xfff, 0xf_ffff)] {
            let number = DeviceNumber { major, minor };
            assert_eq!(DeviceNumber::from_kernel(number.to_kernel()), number);
        }
        assert_eq!(DeviceNumber { major: 1, minor: 3 }.to_kernel(), 0x103);
    }

    #[test]
    fn locks_of_unknown_kind_are_refused() {
        assert_eq!(Lock::from_wire(&abi::FileLock { start: 0, end: 1, type_: 7, pid: 1 }), None);
        let lock = Lock { start: 3, end: 9, kind: LockKind::Write, pid: 12 };
        assert_eq!(Lock::from_wire(&lock.to_wire()), Some(lock));
    }
}
