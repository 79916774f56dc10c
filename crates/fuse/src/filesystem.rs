//! [`Operations`] over the engine: what a mounted volume does with each request.
//!
//! Decisions made here:
//! - *Syncs.* A lone caller's sync is driven by the thread that read it (a hand-over costs several times what the
//!   whole round trip does). Among other traffic a sync is only started; its reply is kept, and one thread of its own
//!   drives the device for everybody who waits ([`Filesystem::drive_syncs`]).
//! - *Appending.* The kernel holds the inode's lock while it writes and knows the size, so its offsets are final. Handles
//!   are opened without the append flag, because a page written back from a mapping may arrive on any of them; only
//!   append-only files need it.
//! - *Directories* have no handles: their positions are stable, and the kernel is told to leave out `opendir`.
//! - *dirsync* and *sync* mounts make every change of names and attributes durable before it is answered.

use crate::messages::MessageCounts;
use crate::operations::{
    Answer, AttributeChange, Attributes, Caller, DeviceNumber, DirectoryEntry, DirectorySink, Errno, Handle,
    Mode, NewTime, Opened, Operations, Position, RenameHow, SyncReply, VolumeTotals, WriteRequest,
};
use crate::readers::Readers;
use crate::volume::OpenVolume;
use crate::{MountOptions, ioctl, statistics};
use parking_lot::{Condvar, Mutex};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use syncline::{
    Attr, Context, Error, ExtendedFlags, FallocateMode, Fs, HandleId, LatencyHistogram, ObjectNo, OpenFlags,
    RenameFlags, SeekWhat, SetAttr, SetTime, SetXattr, SyncScope,
};

/// A mounted volume.
pub(crate) struct Filesystem {
    // Constant.
    fs: Arc<Fs>,
    readers: Arc<Readers>,
    messages: Arc<MessageCounts>,
    /// Changes of names and attributes are durable when they are answered.
    sync_names: bool,
    /// The kernel reads through handles that were opened for writing only.
    writeback_cache: bool,
    sync_latency: Arc<LatencyHistogram>,
    was_shut_down: AtomicBool,
    driver: Driver,
}

/// Wakes the thread that drives syncs.
#[derive(Default)]
struct Driver {
    state: Mutex<DriverState>,
    changed: Condvar,
}

#[derive(Default)]
struct DriverState {
    /// Something was started since the driver last looked.
    started: bool,
    stopped: bool,
}

fn errno(error: Error) -> Errno {
    if error.errno() == libc::EIO {
        tracing::error!(%error, "a request failed");
    }
    Errno(error.errno())
}

fn context(caller: &Caller) -> Context {
    Context { uid: caller.uid, gid: caller.gid, groups: Vec::new(), umask: 0, pid: caller.pid }
}

/// The same with the caller's supplementary groups, which FUSE does not send.
fn context_with_groups(caller: &Caller) -> Context {
    Context { groups: supplementary_groups(caller.pid), ..context(caller) }
}

fn supplementary_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

fn attributes(attr: &Attr) -> Attributes {
    Attributes {
        node: attr.inode,
        mode: attr.mode,
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        sectors: attr.blocks,
        accessed: attr.accessed,
        modified: attr.modified,
        changed: attr.changed,
        device: DeviceNumber { major: (attr.rdev >> 32) as u32, minor: attr.rdev as u32 },
    }
}

fn set_time(time: NewTime) -> SetTime {
    match time {
        NewTime::Now => SetTime::Now,
        NewTime::At(at) => SetTime::At(at),
    }
}

fn fallocate_mode(mode: i32) -> Answer<FallocateMode> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(FallocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(FallocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocateMode::ZeroRange { keep_size }),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Ok(FallocateMode::CollapseRange),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Ok(FallocateMode::InsertRange),
        _ => Err(Errno(libc::EOPNOTSUPP)),
    }
}

impl Filesystem {
    pub(crate) fn new(
        volume: &OpenVolume,
        options: &MountOptions,
        readers: Arc<Readers>,
        messages: Arc<MessageCounts>,
    ) -> Filesystem {
        Filesystem {
            fs: volume.fs().clone(),
            readers,
            messages,
            sync_names: options.sync || options.dirsync,
            writeback_cache: options.writeback_cache,
            sync_latency: Arc::default(),
            was_shut_down: AtomicBool::new(false),
            driver: Driver::default(),
        }
    }

    /// Whether FS_IOC_SHUTDOWN has stopped the volume.
    pub(crate) fn was_shut_down(&self) -> bool {
        self.was_shut_down.load(Ordering::Relaxed)
    }

    /// Drives started syncs until [`Filesystem::stop_driving`].
    pub(crate) fn drive_syncs(&self) {
        loop {
            {
                let mut state = self.driver.state.lock();
                while !state.started && !state.stopped {
                    self.driver.changed.wait(&mut state);
                }
                if !state.started {
                    return;
                }
                state.started = false;
            }
            // A blocking force completes what was started before it; every waiter gets its own result.
            if let Err(error) = self.fs.sync_metadata() {
                tracing::debug!(%error, "a group commit failed; its waiters were told");
            }
        }
    }

    pub(crate) fn stop_driving(&self) {
        self.driver.state.lock().stopped = true;
        self.driver.changed.notify_all();
    }

    fn kick_driver(&self) {
        let mut state = self.driver.state.lock();
        if !state.started {
            state.started = true;
            self.driver.changed.notify_one();
        }
    }

    /// Makes an answered change of names durable if the mount demands it.
    fn settle<T>(&self, result: syncline::Result<T>) -> Answer<T> {
        let value = result.map_err(errno)?;
        if self.sync_names {
            let _waiting = self.readers.about_to_wait();
            self.fs.sync_metadata().map_err(errno)?;
        }
        Ok(value)
    }

    /// Syncs an open file for a lone caller on this thread, for others by the driver.
    fn sync_file(&self, caller: &Caller, handle: HandleId, scope: SyncScope, reply: SyncReply) {
        let started = Instant::now();
        if self.readers.is_lone_sync(caller.pid) {
            let result = self.fs.sync_handle(handle, scope);
            self.sync_latency.record(started.elapsed());
            return reply(result.map_err(errno));
        }
        if let Err(error) = self.fs.handle_inode(handle) {
            return reply(Err(errno(error)));
        }
        let latency = self.sync_latency.clone();
        let done = Box::new(move |result: syncline::Result<()>| {
            latency.record(started.elapsed());
            reply(result.map_err(errno));
        });
        if let Err(error) = self.fs.start_sync_handle(handle, scope, done) {
            // The handle was released in between, which the kernel does not do; the dropped reply says EIO.
            tracing::error!(%error, "a sync was not started");
        }
        self.kick_driver();
    }

    fn open_flags(&self, flags: i32) -> OpenFlags {
        let mut flags = OpenFlags { append: false, ..OpenFlags::from_linux(flags) };
        if self.writeback_cache && flags.write {
            flags.read = true;
        }
        flags
    }

    fn extended_flags_ioctl(&self, caller: &Caller, node: ObjectNo, input: &[u8]) -> Answer<Vec<u8>> {
        let field = |at: usize| {
            let bytes = input.get(at..at + 4).ok_or(Errno(libc::EINVAL))?;
            Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let (xflags, extent_hint, project, cow_hint) = (field(0)?, field(4)?, field(12)?, field(16)?);
        if extent_hint != 0 || cow_hint != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let wanted = ExtendedFlags { xflags, project, ..ExtendedFlags::default() };
        self.settle(self.fs.set_extended_flags(&context(caller), node, wanted)).map(|()| Vec::new())
    }
}

impl Operations for Filesystem {
    fn lookup(&self, parent: ObjectNo, name: &[u8]) -> Answer<Option<Attributes>> {
        match self.fs.lookup(parent, name) {
            Ok(entry) => Ok(Some(attributes(&entry.attr))),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(errno(error)),
        }
    }

    fn getattr(&self, node: ObjectNo) -> Answer<Attributes> {
        self.fs.getattr(node).map(|attr| attributes(&attr)).map_err(errno)
    }

    fn setattr(&self, caller: &Caller, node: ObjectNo, change: &AttributeChange) -> Answer<Attributes> {
        let set = SetAttr {
            mode: change.mode,
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            accessed: change.accessed.map(set_time),
            modified: change.modified.map(set_time),
            changed: change.changed,
            strip_set_id: false,
        };
        let keeps_setgid = change.mode.is_some_and(|mode| mode & libc::S_ISGID != 0) && caller.uid != 0;
        let context = if keeps_setgid { context_with_groups(caller) } else { context(caller) };
        self.settle(self.fs.setattr(&context, node, &set, None)).map(|attr| attributes(&attr))
    }

    fn readlink(&self, node: ObjectNo) -> Answer<Vec<u8>> {
        self.fs.readlink(node).map_err(errno)
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: ObjectNo,
        name: &[u8],
        mode: Mode,
        device: DeviceNumber,
    ) -> Answer<Attributes> {
        let context = Context { umask: mode.umask, ..context(caller) };
        let rdev = u64::from(device.major) << 32 | u64::from(device.minor);
        self.settle(self.fs.mknod(&context, parent, name, mode.bits, rdev))
            .map(|entry| attributes(&entry.attr))
    }

    fn mkdir(&self, caller: &Caller, parent: ObjectNo, name: &[u8], mode: Mode) -> Answer<Attributes> {
        let context = Context { umask: mode.umask, ..context(caller) };
        self.settle(self.fs.mkdir(&context, parent, name, mode.bits)).map(|entry| attributes(&entry.attr))
    }

    fn symlink(&self, caller: &Caller, parent: ObjectNo, name: &[u8], target: &[u8]) -> Answer<Attributes> {
        self.settle(self.fs.symlink(&context(caller), parent, name, target))
            .map(|entry| attributes(&entry.attr))
    }

    fn link(&self, _: &Caller, node: ObjectNo, parent: ObjectNo, name: &[u8]) -> Answer<Attributes> {
        self.settle(self.fs.link(node, parent, name)).map(|entry| attributes(&entry.attr))
    }

    fn unlink(&self, _: &Caller, parent: ObjectNo, name: &[u8]) -> Answer<()> {
        self.settle(self.fs.unlink(parent, name))
    }

    fn rmdir(&self, _: &Caller, parent: ObjectNo, name: &[u8]) -> Answer<()> {
        self.settle(self.fs.rmdir(parent, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (ObjectNo, &[u8]),
        to: (ObjectNo, &[u8]),
        how: RenameHow,
    ) -> Answer<()> {
        let flags =
            RenameFlags { no_replace: how.no_replace, exchange: how.exchange, whiteout: how.whiteout };
        self.settle(self.fs.rename(&context(caller), from.0, from.1, to.0, to.1, flags))
    }

    fn open(&self, caller: &Caller, node: ObjectNo, flags: i32) -> Answer<Opened> {
        let wanted = self.open_flags(flags);
        let context = context(caller);
        let opened = match self.fs.open_handle(&context, node, wanted) {
            Err(Error::NotPermitted) if flags & libc::O_APPEND != 0 => {
                self.fs.open_handle(&context, node, OpenFlags { append: true, ..wanted })
            }
            opened => opened,
        };
        let handle = opened.map_err(errno)?;
        if wanted.truncate && self.sync_names {
            self.settle(Ok(()))?;
        }
        Ok(Opened { handle: Handle(handle.0), direct_io: wanted.direct })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: ObjectNo,
        name: &[u8],
        mode: Mode,
        flags: i32,
    ) -> Answer<(Attributes, Opened)> {
        let context = Context { umask: mode.umask, ..context(caller) };
        let wanted = self.open_flags(flags);
        let (entry, handle) = self.settle(self.fs.create(&context, parent, name, mode.bits, wanted))?;
        Ok((attributes(&entry.attr), Opened { handle: Handle(handle.0), direct_io: wanted.direct }))
    }

    fn read(&self, _: &Caller, handle: Handle, offset: u64, into: &mut [u8]) -> Answer<usize> {
        self.fs.read(HandleId(handle.0), offset, into).map_err(errno)
    }

    fn write(&self, caller: &Caller, handle: Handle, request: WriteRequest<'_>) -> Answer<usize> {
        let started = Instant::now();
        let handle = HandleId(handle.0);
        // Set-id bits are cleared on behalf of an unprivileged writer; the kernel says whether this one is.
        let writer = Context { uid: u32::from(request.clear_set_id), ..context(caller) };
        let written = self.fs.write_unsynced(&writer, handle, request.offset, request.data);
        let (_, len, _) = written.map_err(errno)?;
        if request.durable {
            self.fs.sync_handle(handle, SyncScope::Data).map_err(errno)?;
            self.sync_latency.record(started.elapsed());
        }
        Ok(len)
    }

    fn release(&self, handle: Handle) {
        if let Err(error) = self.fs.release(HandleId(handle.0)) {
            tracing::warn!(%error, "closing a file failed");
        }
    }

    fn fsync(&self, caller: &Caller, _: ObjectNo, handle: Handle, data_only: bool, reply: SyncReply) {
        let scope = if data_only { SyncScope::Data } else { SyncScope::All };
        self.sync_file(caller, HandleId(handle.0), scope, reply);
    }

    fn fsyncdir(&self, caller: &Caller, node: ObjectNo, reply: SyncReply) {
        if node == ObjectNo::ROOT_DIR {
            // Stands in for syncfs(2), which does not reach a FUSE mount: everything becomes durable.
            let _waiting = self.readers.about_to_wait();
            return reply(self.fs.sync_all().map_err(errno));
        }
        match self.fs.opendir(node) {
            Ok(handle) => {
                self.sync_file(caller, handle, SyncScope::All, reply);
                if let Err(error) = self.fs.release(handle) {
                    tracing::warn!(%error, "closing a directory failed");
                }
            }
            Err(error) => reply(Err(errno(error))),
        }
    }

    fn readdir(&self, _: &Caller, node: ObjectNo, from: u64, sink: &mut dyn DirectorySink) -> Answer<()> {
        fn go_on(added: bool) -> ControlFlow<()> {
            if added { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
        fn entry<'a>(entry: &syncline::DirEntry<'a>) -> DirectoryEntry<'a> {
            DirectoryEntry {
                name: entry.name,
                node: entry.inode,
                file_type: entry.file_type,
                next: entry.cookie,
            }
        }
        let handle = self.fs.opendir(node).map_err(errno)?;
        let result = if sink.wants_attributes() {
            let mut visit = |found: syncline::DirEntry<'_>, attr: Attr| {
                go_on(sink.add(&entry(&found), Some(&attributes(&attr))))
            };
            self.fs.readdir_plus(handle, from, &mut visit)
        } else {
            self.fs.readdir(handle, from, &mut |found| go_on(sink.add(&entry(&found), None)))
        };
        self.fs.release(handle).map_err(errno)?;
        result.map_err(errno)
    }

    fn statfs(&self) -> Answer<VolumeTotals> {
        let space = self.fs.statfs();
        Ok(VolumeTotals {
            block_bytes: space.block_bytes,
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            inodes: space.blocks,
            inodes_free: space.inodes_free,
            name_bytes_max: space.name_bytes_max,
        })
    }

    fn setxattr(&self, caller: &Caller, node: ObjectNo, name: &[u8], value: &[u8], flags: i32) -> Answer<()> {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let is_acl = name == b"system.posix_acl_access" && caller.uid != 0;
        let context = if is_acl { context_with_groups(caller) } else { context(caller) };
        self.settle(self.fs.set_xattr(&context, node, name, value, how))
    }

    fn getxattr(&self, caller: &Caller, node: ObjectNo, name: &[u8]) -> Answer<Vec<u8>> {
        self.fs.xattr(&context(caller), node, name).map_err(errno)
    }

    fn listxattr(&self, caller: &Caller, node: ObjectNo) -> Answer<Vec<u8>> {
        self.fs.list_xattrs(&context(caller), node).map_err(errno)
    }

    fn removexattr(&self, caller: &Caller, node: ObjectNo, name: &[u8]) -> Answer<()> {
        self.settle(self.fs.remove_xattr(&context(caller), node, name))
    }

    fn fallocate(&self, caller: &Caller, handle: Handle, mode: i32, offset: u64, len: u64) -> Answer<()> {
        let mode = fallocate_mode(mode)?;
        self.settle(self.fs.fallocate(&context(caller), HandleId(handle.0), mode, offset, len))
    }

    fn lseek(&self, _: &Caller, handle: Handle, offset: u64, whence: i32) -> Answer<u64> {
        let what = match whence {
            libc::SEEK_DATA => SeekWhat::Data,
            libc::SEEK_HOLE => SeekWhat::Hole,
            _ => return Err(Errno(libc::EINVAL)),
        };
        self.fs.seek(HandleId(handle.0), offset, what).map_err(errno)
    }

    fn copy_file_range(&self, caller: &Caller, from: Position, to: Position, len: u64) -> Answer<u64> {
        let source = (HandleId(from.handle.0), from.offset);
        let target = (HandleId(to.handle.0), to.offset);
        self.fs.copy_file_range(&context(caller), source, target, len).map_err(errno)
    }

    fn ioctl(
        &self,
        caller: &Caller,
        node: ObjectNo,
        command: u32,
        input: &[u8],
        out_bytes_max: usize,
    ) -> Answer<Vec<u8>> {
        let mut output = match command {
            ioctl::GET_FLAGS => self.fs.inode_flags(node).map_err(errno)?.to_le_bytes().to_vec(),
            ioctl::SET_FLAGS => {
                let flags = input.first_chunk().ok_or(Errno(libc::EINVAL))?;
                let flags = u32::from_le_bytes(*flags);
                self.settle(self.fs.set_inode_flags(&context(caller), node, flags))?;
                Vec::new()
            }
            ioctl::GET_EXTENDED_FLAGS => {
                let flags = self.fs.extended_flags(node).map_err(errno)?;
                let mut out = Vec::with_capacity(ioctl::FSXATTR_BYTES);
                for field in [flags.xflags, 0, flags.extents, flags.project, 0] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
                out.resize(ioctl::FSXATTR_BYTES, 0);
                out
            }
            ioctl::SET_EXTENDED_FLAGS => self.extended_flags_ioctl(caller, node, input)?,
            ioctl::TRIM => return Err(Errno(libc::EOPNOTSUPP)),
            ioctl::SHUT_DOWN if caller.uid != 0 => return Err(Errno(libc::EPERM)),
            ioctl::SHUT_DOWN => {
                tracing::warn!(pid = caller.pid, "shut down on request: nothing is written any more");
                self.was_shut_down.store(true, Ordering::Relaxed);
                self.fs.shut_down();
                Vec::new()
            }
            ioctl::STATISTICS => {
                let text = statistics::describe(&self.fs, &self.sync_latency, &self.messages);
                ioctl::encode_statistics(&text)
            }
            _ => return Err(Errno(libc::ENOTTY)),
        };
        output.truncate(out_bytes_max);
        Ok(output)
    }
}
