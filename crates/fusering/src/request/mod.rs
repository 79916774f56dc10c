//! Requests: one type for each operation, borrowing names and data from the message.
//!
//! Handles, offsets and flags are the kernel's and are passed on as they are. Names are those of one component: not
//! empty, without `/`, and neither `.` nor `..` except in [`Lookup`] (which NFS export needs). What does not decode is
//! answered with an error before a filesystem sees it.

mod decode;
#[cfg(test)]
mod tests;

pub(crate) use decode::{Agreed, Operation, decode};

use crate::abi::{
    FsyncFlags, IoctlFlags, OpenInFlags, PollFlags, ReadFlags, ReleaseFlags, SetxattrFlags, WriteFlags,
};
use crate::transport::{Source, TransportKind};
use crate::types::{DeviceNumber, Handle, Lock, LockOwner, NodeId, PollHandle, RequestId, SetTime, Time};
use std::ffi::OsStr;
use std::path::Path;

/// Who asks, and through which queue.
#[derive(Clone, Copy)]
pub struct RequestContext<'a> {
    pub id: RequestId,
    pub uid: u32,
    pub gid: u32,
    /// Calling thread; 0 if the kernel asks of its own accord.
    pub pid: u32,
    pub(crate) source: &'a dyn Source,
}

/// The calling thread counts as waiting until this is dropped.
pub struct Waiting<'a> {
    source: Option<&'a dyn Source>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(source) = self.source {
            source.end_wait();
        }
    }
}

impl<'a> RequestContext<'a> {
    /// To be called before waiting for I/O or for another request on this thread: if more requests are queued, another
    /// thread reads them in the meantime. Costs one `poll` on /dev/fuse, nothing over io_uring.
    pub fn about_to_wait(&self) -> Waiting<'a> {
        Waiting { source: self.source.begin_wait().then_some(self.source) }
    }

    /// Whether the calling thread may wait for I/O and keep no other request waiting by it: over /dev/fuse, where
    /// others read in its place (call [`RequestContext::about_to_wait`] all the same), and on the deputy of a queue
    /// of io_uring ([`UringSettings::deputy`](crate::UringSettings::deputy)).
    pub fn may_wait(&self) -> bool {
        self.source.may_wait()
    }

    /// Whether further requests are queued behind this one.
    pub fn others_wait(&self) -> bool {
        self.source.others_wait()
    }

    /// The transport that brought this request.
    pub fn transport(&self) -> TransportKind {
        self.source.transport()
    }
}

/// Mode of a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    /// Type and permission bits as asked for.
    pub bits: u32,
    /// The caller's umask: to be applied by the filesystem if DONT_MASK was agreed on (and the directory has no default
    /// ACL); otherwise it has been.
    pub umask: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lookup<'a> {
    pub parent: NodeId,
    /// May be `.` or `..` if EXPORT_SUPPORT was agreed on.
    pub name: &'a OsStr,
}

/// The kernel forgets `lookups` of the references that answers with entries gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forget {
    pub node: NodeId,
    pub lookups: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetAttr {
    pub node: NodeId,
    pub handle: Option<Handle>,
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetAttr {
    pub node: NodeId,
    pub handle: Option<Handle>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<SetTime>,
    pub modified: Option<SetTime>,
    /// Only with the writeback cache.
    pub changed: Option<Time>,
    pub lock_owner: Option<LockOwner>,
    /// Set-id bits are to be cleared (HANDLE_KILLPRIV_V2).
    pub kill_set_id: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLink {
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SymLink<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
    pub target: &'a Path,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mknod<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
    pub mode: NewMode,
    pub device: DeviceNumber,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mkdir<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
    pub mode: NewMode,
}

/// UNLINK and RMDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remove<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
}

/// RENAME and RENAME2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rename<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
    pub new_parent: NodeId,
    pub new_name: &'a OsStr,
    /// `RENAME_*` of `renameat2`.
    pub flags: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link<'a> {
    pub node: NodeId,
    pub new_parent: NodeId,
    pub new_name: &'a OsStr,
}

/// OPEN and OPENDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    pub node: NodeId,
    /// `O_*` of `open`, without `O_CREAT` and `O_EXCL`.
    pub flags: i32,
    /// KILL_SUIDGID comes with `O_TRUNC` if HANDLE_KILLPRIV_V2 and ATOMIC_O_TRUNC were agreed on.
    pub open_flags: OpenInFlags,
}

/// CREATE, and TMPFILE (whose name means nothing).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Create<'a> {
    pub parent: NodeId,
    pub name: &'a OsStr,
    pub mode: NewMode,
    pub flags: i32,
    pub open_flags: OpenInFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    pub node: NodeId,
    pub handle: Handle,
    pub offset: u64,
    pub size: u32,
    pub read_flags: ReadFlags,
    pub lock_owner: Option<LockOwner>,
    /// The open file's `O_*`.
    pub flags: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'a> {
    pub node: NodeId,
    pub handle: Handle,
    pub offset: u64,
    /// Begins on a page boundary with either transport.
    pub data: &'a [u8],
    pub write_flags: WriteFlags,
    pub lock_owner: Option<LockOwner>,
    /// The open file's `O_*`.
    pub flags: i32,
}

/// RELEASE and RELEASEDIR: the last descriptor of an open file was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    pub node: NodeId,
    pub handle: Handle,
    pub flags: i32,
    pub release_flags: ReleaseFlags,
    pub lock_owner: LockOwner,
}

/// A descriptor was closed; others of the same open file may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flush {
    pub node: NodeId,
    pub handle: Handle,
    pub lock_owner: LockOwner,
}

/// FSYNC and FSYNCDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fsync {
    pub node: NodeId,
    pub handle: Handle,
    pub flags: FsyncFlags,
}

/// READDIR and READDIRPLUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDir {
    pub node: NodeId,
    pub handle: Handle,
    /// 0, or the `next` of an entry: the entries after that one are wanted.
    pub offset: u64,
    pub size: u32,
    pub flags: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'a> {
    pub node: NodeId,
    pub name: &'a OsStr,
    pub value: &'a [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE`.
    pub flags: i32,
    /// Empty unless SETXATTR_EXT was agreed on.
    pub setxattr_flags: SetxattrFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetXattr<'a> {
    pub node: NodeId,
    pub name: &'a OsStr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListXattr {
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoveXattr<'a> {
    pub node: NodeId,
    pub name: &'a OsStr,
}

/// GETLK, SETLK and SETLKW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    pub node: NodeId,
    pub handle: Handle,
    pub owner: LockOwner,
    pub lock: Lock,
    /// An `flock` lock: of the whole file and the open file.
    pub flock: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub node: NodeId,
    /// `R_OK`, `W_OK`, `X_OK`.
    pub mask: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bmap {
    pub node: NodeId,
    pub block: u64,
    pub block_bytes: u32,
}

/// Only ioctls whose number says how much goes in and out (unless the mount is of a kind that allows others).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ioctl<'a> {
    pub node: NodeId,
    pub handle: Handle,
    pub flags: IoctlFlags,
    pub command: u32,
    /// The caller's argument as a number.
    pub argument: u64,
    pub input: &'a [u8],
    /// Most bytes of output.
    pub output_bytes_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    pub node: NodeId,
    pub handle: Handle,
    /// To be notified by [`Notifier::poll_wakeup`](crate::Notifier::poll_wakeup), if `flags` has SCHEDULE_NOTIFY.
    pub wakeup: PollHandle,
    pub flags: PollFlags,
    /// `POLLIN` and so on.
    pub events: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallocate {
    pub node: NodeId,
    pub handle: Handle,
    pub offset: u64,
    pub length: u64,
    /// `FALLOC_FL_*`.
    pub mode: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lseek {
    pub node: NodeId,
    pub handle: Handle,
    pub offset: i64,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    pub whence: i32,
}

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    pub node: NodeId,
    pub handle: Handle,
    pub offset: u64,
    pub to_node: NodeId,
    pub to_handle: Handle,
    pub to_offset: u64,
    /// Never more than the answer can tell.
    pub length: u64,
    pub flags: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncFs {
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statx {
    pub node: NodeId,
    pub handle: Option<Handle>,
    /// `AT_STATX_*`.
    pub flags: u32,
    /// `STATX_*`.
    pub mask: u32,
}

/// Cached data that [`Notifier::retrieve`](crate::Notifier::retrieve) asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retrieved<'a> {
    pub node: NodeId,
    pub offset: u64,
    pub data: &'a [u8],
}
