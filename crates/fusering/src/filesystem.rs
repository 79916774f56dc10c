//! What a filesystem implements.

use crate::errno::Errno;
use crate::notifier::Notifier;
use crate::reply::{
    ReplyAttributes, ReplyBmap, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatx, ReplyTotals,
    ReplyWrite, ReplyXattr,
};
use crate::request::{
    Access, Bmap, CopyFileRange, Create, Fallocate, Flush, Forget, Fsync, GetAttr, GetXattr, Ioctl, Link,
    ListXattr, LockRequest, Lookup, Lseek, Mkdir, Mknod, Open, Poll, Read, ReadDir, ReadLink, Release,
    Remove, RemoveXattr, Rename, RequestContext, Retrieved, SetAttr, SetXattr, StatFs, Statx, SymLink,
    SyncFs, Write,
};
use crate::session::Negotiated;
use crate::types::RequestId;

/// What became of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// Taken note of, or too late. The request is answered as ever, with EINTR if it was given up.
    Heard,
    /// The request has not been seen yet: the kernel tells again.
    Again,
    /// Interruptions are of no interest: the kernel never tells again.
    Ignored,
}

/// A filesystem. Methods are called from several threads at once and get a reply, which is answered exactly once:
/// before returning, or later from any thread. So a method should not wait long; one that has to says so with
/// [`RequestContext::about_to_wait`], so that over /dev/fuse another thread takes the next request. Over io_uring
/// nobody can take a queue's place: what may wait for a disk is handed, with its reply, to a
/// [`WorkPool`](crate::WorkPool).
///
/// Everything not implemented answers ENOSYS, which for many operations tells the kernel not to ask again: it then acts
/// as if the operation succeeded (`open`, `flush`, `fsync`, ...) or does without it.
///
/// A panic in a method is logged, its request is answered with EIO, and the session goes on.
pub trait Filesystem: Send + Sync + 'static {
    /// The handshake: what was agreed on with the kernel. Errors end the session.
    fn init(&self, _negotiated: &Negotiated, _notifier: &Notifier) -> Result<(), Errno> {
        Ok(())
    }

    /// The last call: at the kernel's DESTROY (which is answered when this has returned: `umount` of a block device
    /// waits for it), or when the connection has ended otherwise. Requests may still be unanswered.
    fn destroy(&self) {}

    /// The caller of a request got a signal and would rather not wait for the answer.
    fn interrupt(&self, _request: RequestId) -> Interruption {
        Interruption::Ignored
    }

    /// References to drop. Several in one message arrive one by one.
    fn forget(&self, _forget: &Forget) {}

    /// Data that [`Notifier::retrieve`] asked for; `id` is what it returned.
    fn retrieved(&self, _id: u64, _data: &Retrieved<'_>) {}

    fn lookup(&self, _context: &RequestContext<'_>, _request: &Lookup<'_>, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn getattr(&self, _context: &RequestContext<'_>, _request: &GetAttr, reply: ReplyAttributes) {
        reply.error(Errno::ENOSYS);
    }

    fn setattr(&self, _context: &RequestContext<'_>, _request: &SetAttr, reply: ReplyAttributes) {
        reply.error(Errno::ENOSYS);
    }

    /// `statx`, when it asks for more than GETATTR has (the time of birth). ENOSYS: never asked again.
    fn statx(&self, _context: &RequestContext<'_>, _request: &Statx, reply: ReplyStatx) {
        reply.error(Errno::ENOSYS);
    }

    fn readlink(&self, _context: &RequestContext<'_>, _request: &ReadLink, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    fn symlink(&self, _context: &RequestContext<'_>, _request: &SymLink<'_>, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn mknod(&self, _context: &RequestContext<'_>, _request: &Mknod<'_>, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn mkdir(&self, _context: &RequestContext<'_>, _request: &Mkdir<'_>, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    fn unlink(&self, _context: &RequestContext<'_>, _request: &Remove<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn rmdir(&self, _context: &RequestContext<'_>, _request: &Remove<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn rename(&self, _context: &RequestContext<'_>, _request: &Rename<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn link(&self, _context: &RequestContext<'_>, _request: &Link<'_>, reply: ReplyEntry) {
        reply.error(Errno::ENOSYS);
    }

    /// ENOSYS: files are opened without asking (if NO_OPEN_SUPPORT was offered).
    fn open(&self, _context: &RequestContext<'_>, _request: &Open, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    /// ENOSYS: the kernel does MKNOD and OPEN instead.
    fn create(&self, _context: &RequestContext<'_>, _request: &Create<'_>, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    /// A new file without a name. ENOSYS: `O_TMPFILE` fails with EOPNOTSUPP.
    fn tmpfile(&self, _context: &RequestContext<'_>, _request: &Create<'_>, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    fn read(&self, _context: &RequestContext<'_>, _request: &Read, reply: ReplyData) {
        reply.error(Errno::ENOSYS);
    }

    fn write(&self, _context: &RequestContext<'_>, _request: &Write<'_>, reply: ReplyWrite) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _context: &RequestContext<'_>, _request: &Flush, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// The kernel waits for the answer only on `fuseblk` mounts.
    fn release(&self, _context: &RequestContext<'_>, _request: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _context: &RequestContext<'_>, _request: &Fsync, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// ENOSYS: directories are opened without asking (if NO_OPENDIR_SUPPORT was offered).
    fn opendir(&self, _context: &RequestContext<'_>, _request: &Open, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, _context: &RequestContext<'_>, _request: &ReadDir, reply: ReplyDirectory) {
        reply.error(Errno::ENOSYS);
    }

    fn readdirplus(&self, _context: &RequestContext<'_>, _request: &ReadDir, reply: ReplyDirectoryPlus) {
        reply.error(Errno::ENOSYS);
    }

    fn releasedir(&self, _context: &RequestContext<'_>, _request: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _context: &RequestContext<'_>, _request: &Fsync, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn statfs(&self, _context: &RequestContext<'_>, _request: &StatFs, reply: ReplyTotals) {
        reply.error(Errno::ENOSYS);
    }

    /// `syncfs` and `sync`; sent to `fuseblk` mounts and virtiofs only.
    fn syncfs(&self, _context: &RequestContext<'_>, _request: &SyncFs, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(&self, _context: &RequestContext<'_>, _request: &SetXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _context: &RequestContext<'_>, _request: &GetXattr<'_>, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _context: &RequestContext<'_>, _request: &ListXattr, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _context: &RequestContext<'_>, _request: &RemoveXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Only without `default_permissions`.
    fn access(&self, _context: &RequestContext<'_>, _request: &Access, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Which lock would be in the way.
    fn getlk(&self, _context: &RequestContext<'_>, _request: &LockRequest, reply: ReplyLock) {
        reply.error(Errno::ENOSYS);
    }

    /// Takes or gives back a lock; EAGAIN if another one is in the way.
    fn setlk(&self, _context: &RequestContext<'_>, _request: &LockRequest, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// The same, but is answered only when the lock was got (or the request interrupted).
    fn setlkw(&self, _context: &RequestContext<'_>, _request: &LockRequest, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// Only on `fuseblk` mounts.
    fn bmap(&self, _context: &RequestContext<'_>, _request: &Bmap, reply: ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(&self, _context: &RequestContext<'_>, _request: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.error(Errno::ENOTTY);
    }

    fn poll(&self, _context: &RequestContext<'_>, _request: &Poll, reply: ReplyPoll) {
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(&self, _context: &RequestContext<'_>, _request: &Fallocate, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    /// ENOSYS: files have no holes.
    fn lseek(&self, _context: &RequestContext<'_>, _request: &Lseek, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    /// ENOSYS: the kernel copies by reading and writing.
    fn copy_file_range(&self, _context: &RequestContext<'_>, _request: &CopyFileRange, reply: ReplyCopy) {
        reply.error(Errno::ENOSYS);
    }
}
