//! What the kernel sends: the header of every request and the fixed header of each operation.
//!
//! Field names are the kernel's (`include/uapi/linux/fuse.h`); all integers have the machine's byte order.

use super::flags::{
    FsyncFlags, GetattrFlags, IoctlFlags, LkFlags, OpenInFlags, PollFlags, ReadFlags, ReleaseFlags,
    SetattrValid, SetxattrFlags, WriteFlags,
};
use super::opcode::Opcode;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Begins every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the whole request as it would be read from /dev/fuse.
    pub len: u32,
    pub opcode: Opcode,
    /// Number of the request; its answer carries it.
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    /// Calling thread; 0 if the kernel asks of its own accord.
    pub pid: u32,
    /// Units of 8 bytes at the end of the request that are extensions (since 7.38).
    pub total_extlen: u16,
    pub padding: u16,
}
const _: () = assert!(size_of::<InHeader>() == 40);

/// FORGET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ForgetIn {
    pub nlookup: u64,
}
const _: () = assert!(size_of::<ForgetIn>() == 8);

/// One of BATCH_FORGET's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ForgetOne {
    pub nodeid: u64,
    pub nlookup: u64,
}
const _: () = assert!(size_of::<ForgetOne>() == 16);

/// BATCH_FORGET; `count` times [`ForgetOne`] follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BatchForgetIn {
    pub count: u32,
    pub dummy: u32,
}
const _: () = assert!(size_of::<BatchForgetIn>() == 8);

/// GETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetAttrIn {
    pub getattr_flags: GetattrFlags,
    pub dummy: u32,
    pub fh: u64,
}
const _: () = assert!(size_of::<GetAttrIn>() == 16);

/// SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetAttrIn {
    pub valid: SetattrValid,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub unused4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused5: u32,
}
const _: () = assert!(size_of::<SetAttrIn>() == 88);

/// MKNOD; the name follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MknodIn {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<MknodIn>() == 16);

/// MKDIR; the name follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MkdirIn {
    pub mode: u32,
    pub umask: u32,
}
const _: () = assert!(size_of::<MkdirIn>() == 8);

/// RENAME; the old and the new name follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RenameIn {
    pub newdir: u64,
}
const _: () = assert!(size_of::<RenameIn>() == 8);

/// RENAME2; the old and the new name follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Rename2In {
    pub newdir: u64,
    pub flags: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<Rename2In>() == 16);

/// LINK; the new name follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LinkIn {
    pub oldnodeid: u64,
}
const _: () = assert!(size_of::<LinkIn>() == 8);

/// OPEN and OPENDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenIn {
    pub flags: u32,
    pub open_flags: OpenInFlags,
}
const _: () = assert!(size_of::<OpenIn>() == 8);

/// CREATE and TMPFILE; the name follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateIn {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: OpenInFlags,
}
const _: () = assert!(size_of::<CreateIn>() == 16);

/// READ, READDIR and READDIRPLUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: ReadFlags,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<ReadIn>() == 40);

/// WRITE; the data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: WriteFlags,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<WriteIn>() == 40);

/// RELEASE and RELEASEDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReleaseIn {
    pub fh: u64,
    pub flags: u32,
    pub release_flags: ReleaseFlags,
    pub lock_owner: u64,
}
const _: () = assert!(size_of::<ReleaseIn>() == 24);

/// FSYNC and FSYNCDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FsyncIn {
    pub fh: u64,
    pub fsync_flags: FsyncFlags,
    pub padding: u32,
}
const _: () = assert!(size_of::<FsyncIn>() == 16);

/// Bytes of SETXATTR's header unless SETXATTR_EXT was agreed on.
pub const SETXATTR_SHORT_BYTES: usize = 8;

/// SETXATTR; the name and the value follow. Without SETXATTR_EXT only the first two fields are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetXattrIn {
    pub size: u32,
    pub flags: u32,
    pub setxattr_flags: SetxattrFlags,
    pub padding: u32,
}
const _: () = assert!(size_of::<SetXattrIn>() == 16);

/// GETXATTR, followed by the name, and LISTXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetXattrIn {
    pub size: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<GetXattrIn>() == 8);

/// FLUSH.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlushIn {
    pub fh: u64,
    pub unused: u32,
    pub padding: u32,
    pub lock_owner: u64,
}
const _: () = assert!(size_of::<FlushIn>() == 24);

/// Bytes of INIT's header before 7.36.
pub const INIT_SHORT_BYTES: usize = 16;

/// INIT; from 7.36 on all of it if INIT_EXT is set, else the first 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub flags2: u32,
    pub unused: [u32; 11],
}
const _: () = assert!(size_of::<InitIn>() == 64);

/// A lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileLock {
    pub start: u64,
    pub end: u64,
    pub type_: u32,
    pub pid: u32,
}
const _: () = assert!(size_of::<FileLock>() == 24);

/// GETLK, SETLK and SETLKW.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LkIn {
    pub fh: u64,
    pub owner: u64,
    pub lk: FileLock,
    pub lk_flags: LkFlags,
    pub padding: u32,
}
const _: () = assert!(size_of::<LkIn>() == 48);

/// ACCESS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AccessIn {
    pub mask: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<AccessIn>() == 8);

/// INTERRUPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptIn {
    /// The request that is not to be waited for any longer.
    pub unique: u64,
}
const _: () = assert!(size_of::<InterruptIn>() == 8);

/// BMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BmapIn {
    pub block: u64,
    pub blocksize: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<BmapIn>() == 16);

/// IOCTL; the input follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoctlIn {
    pub fh: u64,
    pub flags: IoctlFlags,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}
const _: () = assert!(size_of::<IoctlIn>() == 32);

/// POLL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PollIn {
    pub fh: u64,
    pub kh: u64,
    pub flags: PollFlags,
    pub events: u32,
}
const _: () = assert!(size_of::<PollIn>() == 24);

/// NOTIFY_REPLY; the data follows. As long as [`WriteIn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NotifyRetrieveIn {
    pub dummy1: u64,
    pub offset: u64,
    pub size: u32,
    pub dummy2: u32,
    pub dummy3: u64,
    pub dummy4: u64,
}
const _: () = assert!(size_of::<NotifyRetrieveIn>() == 40);

/// FALLOCATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<FallocateIn>() == 32);

/// LSEEK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LseekIn {
    pub fh: u64,
    pub offset: u64,
    pub whence: u32,
    pub padding: u32,
}
const _: () = assert!(size_of::<LseekIn>() == 24);

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CopyFileRangeIn {
    pub fh_in: u64,
    pub off_in: u64,
    pub nodeid_out: u64,
    pub fh_out: u64,
    pub off_out: u64,
    pub len: u64,
    pub flags: u64,
}
const _: () = assert!(size_of::<CopyFileRangeIn>() == 56);

/// SETUPMAPPING (only of virtiofs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetupMappingIn {
    pub fh: u64,
    pub foffset: u64,
    pub len: u64,
    pub flags: u64,
    pub moffset: u64,
}
const _: () = assert!(size_of::<SetupMappingIn>() == 40);

/// REMOVEMAPPING (only of virtiofs).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RemoveMappingIn {
    pub count: u32,
}
const _: () = assert!(size_of::<RemoveMappingIn>() == 4);

/// SYNCFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SyncfsIn {
    pub padding: u64,
}
const _: () = assert!(size_of::<SyncfsIn>() == 8);

/// STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StatxIn {
    pub getattr_flags: GetattrFlags,
    pub reserved: u32,
    pub fh: u64,
    pub sx_flags: u32,
    pub sx_mask: u32,
}
const _: () = assert!(size_of::<StatxIn>() == 24);
