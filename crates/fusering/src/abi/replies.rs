//! What the kernel reads: the header of every answer and the fixed parts of each.

use super::flags::{IoctlFlags, OpenFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Begins every answer, and every notification (with `unique` 0 and the kind in `error`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    pub len: u32,
    /// 0 or a negative error number.
    pub error: i32,
    pub unique: u64,
}
const _: () = assert!(size_of::<OutHeader>() == 16);

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}
const _: () = assert!(size_of::<Attr>() == 88);

/// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK; first half of CREATE and TMPFILE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryOut {
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}
const _: () = assert!(size_of::<EntryOut>() == 128);

/// GETATTR and SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}
const _: () = assert!(size_of::<AttrOut>() == 104);

/// A time of STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SxTime {
    pub tv_sec: i64,
    pub tv_nsec: u32,
    pub reserved: i32,
}
const _: () = assert!(size_of::<SxTime>() == 16);

/// Extended attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Statx {
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: SxTime,
    pub btime: SxTime,
    pub ctime: SxTime,
    pub mtime: SxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare2: [u64; 14],
}
const _: () = assert!(size_of::<Statx>() == 256);

/// STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub stat: Statx,
}
const _: () = assert!(size_of::<StatxOut>() == 288);

/// OPEN and OPENDIR; second half of CREATE and TMPFILE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenOut {
    pub fh: u64,
    pub open_flags: OpenFlags,
    pub backing_id: i32,
}
const _: () = assert!(size_of::<OpenOut>() == 16);

/// WRITE and COPY_FILE_RANGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteOut {
    pub size: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<WriteOut>() == 8);

/// COPY_FILE_RANGE_64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyFileRangeOut {
    pub bytes_copied: u64,
}
const _: () = assert!(size_of::<CopyFileRangeOut>() == 8);

/// STATFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatfsOut {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}
const _: () = assert!(size_of::<StatfsOut>() == 80);

/// GETXATTR and LISTXATTR when only the size was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetXattrOut {
    pub size: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<GetXattrOut>() == 8);

/// GETLK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LkOut {
    pub lk: super::requests::FileLock,
}
const _: () = assert!(size_of::<LkOut>() == 24);

/// INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub request_timeout: u16,
    pub unused: [u16; 11],
}
const _: () = assert!(size_of::<InitOut>() == 64);

/// BMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BmapOut {
    pub block: u64,
}
const _: () = assert!(size_of::<BmapOut>() == 8);

/// IOCTL; the output follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlOut {
    pub result: i32,
    pub flags: IoctlFlags,
    pub in_iovs: u32,
    pub out_iovs: u32,
}
const _: () = assert!(size_of::<IoctlOut>() == 16);

/// A piece of the caller's memory, for IOCTL's retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlIovec {
    pub base: u64,
    pub len: u64,
}
const _: () = assert!(size_of::<IoctlIovec>() == 16);

/// POLL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PollOut {
    pub revents: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<PollOut>() == 8);

/// LSEEK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LseekOut {
    pub offset: u64,
}
const _: () = assert!(size_of::<LseekOut>() == 8);

/// READDIR; the name follows, and zeros up to a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub namelen: u32,
    pub type_: u32,
}
const _: () = assert!(size_of::<Dirent>() == 24);

/// READDIRPLUS; the name follows, and zeros up to a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DirentPlus {
    pub entry_out: EntryOut,
    pub dirent: Dirent,
}
const _: () = assert!(size_of::<DirentPlus>() == 152);

/// Offset in FUSE's answers after which the kernel expects the next record of a directory.
pub const fn record_aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}
