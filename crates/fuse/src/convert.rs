//! Between the engine's types and the kernel's: attributes, times, errors, modes.

use fusering::abi::{AttrFlags, OpenFlags};
use fusering::{
    Attributes, DeviceNumber, Entry, Errno, ExtendedAttributes, Handle, NodeId, Opened, RequestContext,
};
use std::time::Duration;
use syncline_fs::{Attr, Context, Error, FallocateMode, HandleId, ObjectNo, SetTime, Timestamp};

/// How long the kernel may keep what it was told; nobody else changes the volume.
pub(crate) const CACHE_TIME: Duration = Duration::from_secs(24 * 3600);
const BLOCK_BYTES: u32 = 4096;
/// The engine's flags have the numbers of `FS_IOC_GETFLAGS`, and so have these three of `statx`.
const STATX_FLAGS: u64 =
    (libc::STATX_ATTR_IMMUTABLE | libc::STATX_ATTR_APPEND | libc::STATX_ATTR_NODUMP) as u64;

pub(crate) fn errno(error: Error) -> Errno {
    if error.errno() == libc::EIO {
        tracing::error!(%error, "a request failed");
    }
    Errno::from_number(error.errno())
}

pub(crate) fn object(node: NodeId) -> ObjectNo {
    ObjectNo(node.0)
}

pub(crate) fn handle(handle: Handle) -> HandleId {
    HandleId(handle.0)
}

/// Who asks, apart from the request: work that waits is done after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

impl Caller {
    pub(crate) fn of(context: &RequestContext<'_>) -> Caller {
        Caller { uid: context.uid, gid: context.gid, pid: context.pid }
    }

    pub(crate) fn context(&self) -> Context {
        Context { uid: self.uid, gid: self.gid, groups: Vec::new(), umask: 0, pid: self.pid }
    }

    /// The same with the caller's supplementary groups, which FUSE does not send.
    pub(crate) fn context_with_groups(&self) -> Context {
        Context { groups: supplementary_groups(self.pid), ..self.context() }
    }
}

fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

fn time(time: Timestamp) -> fusering::Time {
    fusering::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(crate) fn timestamp(time: fusering::Time) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(crate) fn set_time(time: fusering::SetTime) -> SetTime {
    match time {
        fusering::SetTime::Now => SetTime::Now,
        fusering::SetTime::At(at) => SetTime::At(timestamp(at)),
    }
}

pub(crate) fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        ino: attr.inode.0,
        size: attr.size,
        blocks: attr.blocks,
        accessed: time(attr.accessed),
        modified: time(attr.modified),
        changed: time(attr.changed),
        mode: attr.mode,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        device: DeviceNumber { major: (attr.rdev >> 32) as u32, minor: attr.rdev as u32 },
        block_bytes: BLOCK_BYTES,
        flags: AttrFlags::empty(),
    }
}

pub(crate) fn extended(attr: &Attr) -> ExtendedAttributes {
    ExtendedAttributes {
        attributes: attributes(attr),
        born: Some(time(attr.created)),
        attribute_bits: u64::from(attr.flags) & STATX_FLAGS,
        attribute_bits_known: STATX_FLAGS,
    }
}

/// Whether what has this mode runs as somebody else.
pub(crate) fn has_set_id(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// How long the kernel may keep attributes: see `filesystem::attributes`.
pub(crate) fn keeps_attributes(attr: &Attr) -> Duration {
    if has_set_id(attr.mode) || !attr.blocks_settled { Duration::ZERO } else { CACHE_TIME }
}

/// Object numbers are never used twice, so all of them are of the same generation.
pub(crate) fn entry(attr: &Attr) -> Entry {
    Entry {
        node: NodeId(attr.inode.0),
        generation: 1,
        attributes: attributes(attr),
        entry_valid: CACHE_TIME,
        attributes_valid: keeps_attributes(attr),
    }
}

/// `direct`: reads and writes go past the kernel's page cache.
pub(crate) fn opened(handle: HandleId, direct: bool) -> Opened {
    let flags = match direct {
        true => OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
        false => OpenFlags::KEEP_CACHE,
    };
    Opened { handle: Handle(handle.0), flags }
}

pub(crate) fn fallocate_mode(mode: i32) -> Result<FallocateMode, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(FallocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(FallocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocateMode::ZeroRange { keep_size }),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Ok(FallocateMode::CollapseRange),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Ok(FallocateMode::InsertRange),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
