//! The transport over the crate fuser: /dev/fuse messages to calls of [`Operations`] and back.
//!
//! Why the kernel is told what it is told (figures in `docs/design.md`):
//! - entries, attributes and absent names are cached for long: the daemon is the only writer of its volume;
//! - `flush` and `opendir` are answered once with ENOSYS, after which the kernel leaves them out. `release` carries what
//!   a close has to do, and directories need no handle because their positions are stable;
//! - HANDLE_KILLPRIV_V2: otherwise each write would be preceded by a question for `security.capability`.
//!
//! What fuser 0.18 leaves out, and what stands in for it:
//! - it drops the kernel's "clear set-id bits" flag of truncation and of `open(O_TRUNC)`: whether the caller is root decides;
//! - it hands on times before 1970 with the nanoseconds subtracted instead of added: [`from_request_time`] undoes that;
//! - negating the lowest 64-bit time overflows there, so it is built without overflow checks (see the profiles in
//!   the workspace's manifest): the result is right all the same, and a panic would end the daemon;
//! - SETXATTR_EXT makes it panic, so it is not asked for; the group test behind it is made by the daemon;
//! - `statx` with a birth time, O_TMPFILE and `syncfs` never arrive.
//!
//! Longer than the limit because fuser's trait wants all its methods in one block.

mod convert;
mod handshake;

pub(crate) use handshake::MESSAGE_BYTES_MAX;

use crate::messages::{Message, MessageCounts};
use crate::operations::{
    AttributeChange, Caller, DeviceNumber, Handle, Mode, Operations, Position, RenameHow, WriteRequest,
};
use crate::readers::Readers;
use convert::{
    PlainSink, PlusSink, absent, errno, from_request_time, new_time, node, open_flags, reply_attributes,
    reply_empty, reply_entry, reply_sized, sync_reply, to_file_attr,
};
use fuser::{KernelConfig, Request};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the kernel may keep what it was told; nobody else changes the volume.
const CACHE_TIME: Duration = Duration::from_secs(24 * 3600);
/// Object numbers are never used twice, so all of them are of the first generation.
const GENERATION: fuser::Generation = fuser::Generation(0);

thread_local! {
    /// Where a read's data is put together; as large as the largest read of this thread.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static END: RefCell<Option<EndOfThread>> = const { RefCell::new(None) };
}

/// The transport's threads end only with the connection; the first one that does lets the parked ones go.
struct EndOfThread(Arc<Readers>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// Presents an [`Operations`] to fuser.
pub(crate) struct Transport<O> {
    pub(crate) operations: Arc<O>,
    pub(crate) readers: Arc<Readers>,
    pub(crate) messages: Arc<MessageCounts>,
    pub(crate) writeback_cache: bool,
}

impl<O: Operations> Transport<O> {
    /// Serves one request: `act` calls the operation and replies.
    fn serve(&self, request: &Request, message: Message, act: impl FnOnce(&O, &Caller)) {
        self.messages.count(message);
        self.readers.begin(request.pid());
        let caller = Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() };
        act(&self.operations, &caller);
        self.readers.end();
        END.with_borrow_mut(|end| {
            if end.is_none() {
                *end = Some(EndOfThread(self.readers.clone()));
            }
        });
    }

    /// The same for a request that may have to wait for I/O.
    fn serve_waiting(&self, request: &Request, message: Message, act: impl FnOnce(&O, &Caller)) {
        self.serve(request, message, |operations, caller| {
            let _waiting = self.readers.about_to_wait();
            act(operations, caller);
        });
    }
}

impl<O: Operations> fuser::Filesystem for Transport<O> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        handshake::agree(config, self.writeback_cache)
    }

    fn lookup(&self, request: &Request, parent: fuser::INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.serve(request, Message::Lookup, |operations, _| {
            match operations.lookup(node(parent), name.as_bytes()) {
                Ok(Some(attributes)) => reply.entry(&CACHE_TIME, &to_file_attr(&attributes), GENERATION),
                Ok(None) => reply.entry(&CACHE_TIME, &absent(), GENERATION),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn forget(&self, request: &Request, _: fuser::INodeNo, _: u64) {
        self.serve(request, Message::Forget, |_, _| {});
    }

    fn getattr(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        _: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        self.serve(request, Message::Getattr, |operations, _| {
            reply_attributes(reply, operations.getattr(node(ino)))
        });
    }

    fn setattr(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<fuser::TimeOrNow>,
        mtime: Option<fuser::TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<fuser::FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let change = AttributeChange {
            mode,
            uid,
            gid,
            size,
            accessed: atime.map(new_time),
            modified: mtime.map(new_time),
            changed: ctime.map(from_request_time),
        };
        self.serve(request, Message::Setattr, |operations, caller| {
            let _waiting = size.and_then(|_| self.readers.about_to_wait());
            reply_attributes(reply, operations.setattr(caller, node(ino), &change));
        });
    }

    fn readlink(&self, request: &Request, ino: fuser::INodeNo, reply: fuser::ReplyData) {
        self.serve(request, Message::Readlink, |operations, _| match operations.readlink(node(ino)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let mode = Mode { bits: mode, umask };
        self.serve(request, Message::Mknod, |operations, caller| {
            let device = DeviceNumber::from_kernel(rdev);
            reply_entry(reply, operations.mknod(caller, node(parent), name.as_bytes(), mode, device));
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let mode = Mode { bits: mode, umask };
        self.serve(request, Message::Mkdir, |operations, caller| {
            reply_entry(reply, operations.mkdir(caller, node(parent), name.as_bytes(), mode));
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        self.serve(request, Message::Symlink, |operations, caller| {
            let target = target.as_os_str().as_bytes();
            reply_entry(reply, operations.symlink(caller, node(parent), name.as_bytes(), target));
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        newparent: fuser::INodeNo,
        newname: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        self.serve(request, Message::Link, |operations, caller| {
            reply_entry(reply, operations.link(caller, node(ino), node(newparent), newname.as_bytes()));
        });
    }

    fn unlink(&self, request: &Request, parent: fuser::INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve_waiting(request, Message::Unlink, |operations, caller| {
            reply_empty(reply, operations.unlink(caller, node(parent), name.as_bytes()));
        });
    }

    fn rmdir(&self, request: &Request, parent: fuser::INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve(request, Message::Rmdir, |operations, caller| {
            reply_empty(reply, operations.rmdir(caller, node(parent), name.as_bytes()));
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        newparent: fuser::INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let bits = flags.bits();
        let how = RenameHow {
            no_replace: bits & libc::RENAME_NOREPLACE != 0,
            exchange: bits & libc::RENAME_EXCHANGE != 0,
            whiteout: bits & libc::RENAME_WHITEOUT != 0,
        };
        let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
        self.serve_waiting(request, Message::Rename, |operations, caller| {
            if bits & !known != 0 || (how.exchange && (how.no_replace || how.whiteout)) {
                return reply.error(fuser::Errno::EINVAL);
            }
            let from = (node(parent), name.as_bytes());
            let to = (node(newparent), newname.as_bytes());
            reply_empty(reply, operations.rename(caller, from, to, how));
        });
    }

    fn open(&self, request: &Request, ino: fuser::INodeNo, flags: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.serve(request, Message::Open, |operations, caller| {
            match operations.open(caller, node(ino), flags.0) {
                Ok(opened) => reply.opened(fuser::FileHandle(opened.handle.0), open_flags(&opened)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: fuser::INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        let mode = Mode { bits: mode, umask };
        self.serve(request, Message::Create, |operations, caller| {
            match operations.create(caller, node(parent), name.as_bytes(), mode, flags) {
                Ok((attributes, opened)) => {
                    let handle = fuser::FileHandle(opened.handle.0);
                    let attr = to_file_attr(&attributes);
                    reply.created(&CACHE_TIME, &attr, GENERATION, handle, open_flags(&opened));
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn read(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh: fuser::FileHandle,
        offset: u64,
        size: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        self.serve_waiting(request, Message::Read, |operations, caller| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let size = size as usize;
                if buffer.len() < size {
                    buffer.resize(size, 0);
                }
                match operations.read(caller, Handle(fh.0), offset, &mut buffer[..size]) {
                    Ok(len) => reply.data(&buffer[..len]),
                    Err(error) => reply.error(errno(error)),
                }
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh: fuser::FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: fuser::WriteFlags,
        flags: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let write = WriteRequest {
            offset,
            data,
            clear_set_id: write_flags.contains(fuser::WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            durable: flags.0 & libc::O_DSYNC != 0,
        };
        self.serve(request, Message::Write, |operations, caller| {
            let _waiting = if write.durable { self.readers.about_to_wait() } else { None };
            match operations.write(caller, Handle(fh.0), write) {
                Ok(len) => reply.written(len as u32),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn flush(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        _: fuser::FileHandle,
        _: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve(request, Message::Flush, |_, _| reply.error(fuser::Errno::ENOSYS));
    }

    fn release(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh: fuser::FileHandle,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        _: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve_waiting(request, Message::Release, |operations, _| {
            operations.release(Handle(fh.0));
            reply.ok();
        });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        fh: fuser::FileHandle,
        datasync: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve(request, Message::Fsync, |operations, caller| {
            operations.fsync(caller, node(ino), Handle(fh.0), datasync, sync_reply(reply));
        });
    }

    fn opendir(&self, request: &Request, _: fuser::INodeNo, _: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.serve(request, Message::Opendir, |_, _| reply.error(fuser::Errno::ENOSYS));
    }

    fn readdir(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        _: fuser::FileHandle,
        offset: u64,
        reply: fuser::ReplyDirectory,
    ) {
        self.serve(request, Message::Readdir, |operations, caller| {
            let mut sink = PlainSink(reply);
            match operations.readdir(caller, node(ino), offset, &mut sink) {
                Ok(()) => sink.0.ok(),
                Err(error) => sink.0.error(errno(error)),
            }
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        _: fuser::FileHandle,
        offset: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        self.serve(request, Message::Readdirplus, |operations, caller| {
            let mut sink = PlusSink(reply);
            match operations.readdir(caller, node(ino), offset, &mut sink) {
                Ok(()) => sink.0.ok(),
                Err(error) => sink.0.error(errno(error)),
            }
        });
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        _: fuser::FileHandle,
        _: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve(request, Message::Fsyncdir, |operations, caller| {
            operations.fsyncdir(caller, node(ino), sync_reply(reply));
        });
    }

    fn statfs(&self, request: &Request, _: fuser::INodeNo, reply: fuser::ReplyStatfs) {
        self.serve(request, Message::Statfs, |operations, _| match operations.statfs() {
            Ok(totals) => reply.statfs(
                totals.blocks,
                totals.blocks_free,
                totals.blocks_available,
                totals.inodes,
                totals.inodes_free,
                totals.block_bytes,
                totals.name_bytes_max,
                totals.block_bytes,
            ),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve(request, Message::Setxattr, |operations, caller| {
            reply_empty(reply, operations.setxattr(caller, node(ino), name.as_bytes(), value, flags));
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        self.serve(request, Message::Getxattr, |operations, caller| {
            reply_sized(reply, size, operations.getxattr(caller, node(ino), name.as_bytes()));
        });
    }

    fn listxattr(&self, request: &Request, ino: fuser::INodeNo, size: u32, reply: fuser::ReplyXattr) {
        self.serve(request, Message::Listxattr, |operations, caller| {
            reply_sized(reply, size, operations.listxattr(caller, node(ino)));
        });
    }

    fn removexattr(&self, request: &Request, ino: fuser::INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve(request, Message::Removexattr, |operations, caller| {
            reply_empty(reply, operations.removexattr(caller, node(ino), name.as_bytes()));
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh: fuser::FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve_waiting(request, Message::Fallocate, |operations, caller| {
            reply_empty(reply, operations.fallocate(caller, Handle(fh.0), mode, offset, length));
        });
    }

    fn lseek(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh: fuser::FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        self.serve(request, Message::Lseek, |operations, caller| {
            let Ok(offset) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
            match operations.lseek(caller, Handle(fh.0), offset, whence) {
                Ok(found) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: fuser::INodeNo,
        fh_in: fuser::FileHandle,
        offset_in: u64,
        _: fuser::INodeNo,
        fh_out: fuser::FileHandle,
        offset_out: u64,
        len: u64,
        _: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        let from = Position { handle: Handle(fh_in.0), offset: offset_in };
        let to = Position { handle: Handle(fh_out.0), offset: offset_out };
        // The reply has 32 bits for what was copied; a caller goes on where a short copy ended.
        let len = len.min(1 << 30);
        self.serve_waiting(request, Message::CopyFileRange, |operations, caller| {
            match operations.copy_file_range(caller, from, to, len) {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: fuser::INodeNo,
        _: fuser::FileHandle,
        _: fuser::IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        self.serve(request, Message::Ioctl, |operations, caller| {
            match operations.ioctl(caller, node(ino), cmd, in_data, out_size as usize) {
                Ok(output) => reply.ioctl(0, &output),
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}
