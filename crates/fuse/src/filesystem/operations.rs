//! What the engine is asked for; every method may be called from any thread.

use crate::MountOptions;
use crate::account::Began;
use crate::atomic::{Atomics, Member, Name};
use crate::convert::{self, CACHE_TIME, Caller, entry, errno, handle, object, opened};
use crate::droppers::Droppers;
use crate::ledger::Ledger;
use crate::makers::Makers;
use crate::memory::AutoMemory;
use crate::messages::MessageCounts;
use crate::mounts::{Mounts, Share};
use crate::removed::Removed;
use crate::replica::Replica;
use crate::syncs::{By, Owed, Syncs};
use fusering::request::{Fallocate, NewMode};
use fusering::{
    ActiveTransport, Classes, DeviceNumber, Entry, Errno, NodeId, Notifier, Opened, ReplyWrite, Totals,
};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use syncline_fs::{
    Attr, Context, DirEntry, Error, FallocateMode, Fs, HandleId, OpenFlags, RemovalKind, RemovalPlan,
    RenameFlags, RenamePlan, SetXattr, SyncScope,
};

/// What the kernel writes back in pieces of at least this is handed on to the background at once. Smaller pieces may
/// be all that an fsync has to write, and that is better off in its record.
const HINTED_BYTES_MIN: usize = 64 << 10;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

pub(super) struct Operations {
    // Constant.
    pub(super) fs: Arc<Fs>,
    pub(super) mounts: Arc<Mounts>,
    pub(super) syncs: Syncs,
    /// Where the bound on memory follows the machine.
    pub(super) memory: Option<Arc<AutoMemory>>,
    /// Where the volume is shipped to.
    pub(super) replica: Option<Arc<Replica>>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) atomics: Arc<Atomics>,
    pub(super) droppers: Droppers,
    pub(super) removed: Removed,
    pub(super) makers: Makers,
    /// Known since the handshake.
    pub(super) notifier: OnceLock<Notifier>,
    pub(super) messages: Arc<MessageCounts>,
    /// Changes of names and attributes are durable when they are answered.
    sync_names: bool,
    /// The kernel reads through handles that were opened for writing only.
    pub(super) writeback_cache: bool,
    /// Handles for writing only go past the kernel's page cache.
    direct_writes: bool,
    /// Set once requests are served.
    pub(super) transport: OnceLock<(ActiveTransport, Arc<Classes>)>,
    /// The kernel drops what was read into its page cache while a direct write was under way.
    direct_is_coherent: AtomicBool,
    /// The kernel ends durable writes through its page cache with an fsync.
    pub(super) writes_are_synced_behind: AtomicBool,
    /// The kernel says when an ACL takes off the set-group-ID bit.
    kernel_judges_groups: AtomicBool,
    pub(super) was_shut_down: AtomicBool,
}

/// What a name leads to.
pub(super) enum Looked {
    Found(Entry),
    /// And for how long the kernel may remember that.
    Nobody(Duration),
}

/// Where a write goes, and what has to be kept to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Writing {
    pub(super) handle: HandleId,
    pub(super) offset: u64,
    /// The writer may not keep set-id bits.
    pub(super) clears_set_id: bool,
    /// It comes out of the kernel's page cache.
    pub(super) is_write_back: bool,
    /// What `O_DSYNC` or `O_SYNC` demands.
    pub(super) durable: Option<SyncScope>,
    /// Who forces it then.
    pub(super) by: By,
}

impl Operations {
    pub(super) fn new(share: &Share, options: &MountOptions, messages: Arc<MessageCounts>) -> Operations {
        let fs = share.fs().clone();
        let ledger = Arc::new(Ledger::new(fs.clone()));
        Operations {
            mounts: share.mounts().clone(),
            memory: share.memory().cloned(),
            replica: share.replica().cloned(),
            syncs: Syncs::new(fs.clone(), ledger.clone()),
            atomics: Arc::new(Atomics::new(fs.clone(), ledger.clone())),
            ledger,
            droppers: Droppers::default(),
            removed: Removed::default(),
            makers: Makers::new(),
            notifier: OnceLock::new(),
            fs,
            messages,
            sync_names: options.sync || options.dirsync,
            writeback_cache: options.writeback_cache,
            direct_writes: options.direct_writes,
            direct_is_coherent: AtomicBool::new(false),
            writes_are_synced_behind: AtomicBool::new(false),
            transport: OnceLock::new(),
            kernel_judges_groups: AtomicBool::new(false),
            was_shut_down: AtomicBool::new(false),
        }
    }

    pub(super) fn set_transport(&self, transport: &ActiveTransport, classes: &Arc<Classes>) {
        let first = self.transport.set((transport.clone(), classes.clone())).is_ok();
        assert!(first, "a session has one transport for all its life");
    }

    pub(super) fn note_that_kernel_judges_groups(&self) {
        self.kernel_judges_groups.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_that_direct_is_coherent(&self) {
        self.direct_is_coherent.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_that_writes_are_synced_behind(&self) {
        self.writes_are_synced_behind.store(true, Ordering::Relaxed);
    }

    pub(super) fn was_shut_down(&self) -> bool {
        self.was_shut_down.load(Ordering::Relaxed)
    }

    /// Whether a small change may have to wait: for room, or because it is to be durable.
    pub(super) fn change_may_wait(&self) -> bool {
        self.sync_names || self.fs.files().change_may_wait()
    }

    /// Whether removing a name, and with it maybe the last one of a file, may have to wait.
    pub(super) fn removal_may_wait(&self, parent: NodeId, name: &OsStr, plan: Option<&RemovalPlan>) -> bool {
        self.change_may_wait()
            || plan.is_some_and(RemovalPlan::is_heavy)
            || self.atomics.name_may_wait(object(parent), name.as_bytes())
    }

    /// The same for a truncation.
    pub(super) fn content_may_wait(&self, node: NodeId) -> bool {
        self.sync_names || self.fs.files().content_may_wait(object(node))
    }

    /// The same for setting a size.
    pub(super) fn resize_may_wait(&self, node: NodeId, size: u64) -> bool {
        self.sync_names || self.fs.files().resize_may_wait(object(node), size)
    }

    /// The same for `fallocate`.
    pub(super) fn allocation_may_wait(&self, request: &Fallocate, mode: FallocateMode) -> bool {
        let (file, offset, length) = (handle(request.handle), request.offset, request.length);
        self.sync_names || self.fs.files().fallocate_may_wait(file, mode, offset, length)
    }

    /// Makes an answered change of names durable if the mount demands it.
    pub(super) fn settle<T>(&self, result: syncline_fs::Result<T>) -> Result<T, Errno> {
        let value = result.map_err(errno)?;
        if self.sync_names {
            self.fs.sync_metadata().map_err(errno)?;
        }
        Ok(value)
    }

    /// A name as groups are asked for it; `None` while there is no group.
    fn name_of_groups(&self, parent: NodeId, name: &OsStr) -> Option<Name> {
        (!self.atomics.is_idle()).then(|| (object(parent), name.as_bytes().to_vec()))
    }

    /// An entry of a file that may be part of a transaction.
    pub(super) fn entry(&self, mut attr: Attr) -> Entry {
        let is_staged = self.atomics.amend(&mut attr);
        let entry = entry(&attr);
        match is_staged {
            true => Entry { attributes_valid: Duration::ZERO, ..entry },
            false => entry,
        }
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &OsStr) -> Result<Looked, Errno> {
        if name == "." {
            // An NFS server asks so for any inode that it has a file handle of.
            return self
                .fs
                .attributes()
                .getattr(object(parent))
                .map(|attr| Looked::Found(self.entry(attr)))
                .map_err(errno);
        }
        if let Some(staged) = self.atomics.staged_name(object(parent), name.as_bytes()) {
            let Some(found) = staged else { return Ok(Looked::Nobody(Duration::ZERO)) };
            let attr = self.fs.attributes().getattr(found).map_err(errno)?;
            return Ok(Looked::Found(Entry { entry_valid: Duration::ZERO, ..self.entry(attr) }));
        }
        match self.fs.names().lookup(object(parent), name.as_bytes()) {
            Ok(found) => Ok(Looked::Found(self.entry(found.attr))),
            Err(Error::NotFound) => Ok(Looked::Nobody(CACHE_TIME)),
            Err(error) => Err(errno(error)),
        }
    }

    /// Ends a change that may have taken somebody's last name: for as long as the kernel knows that, it may be asked
    /// about.
    fn took(&self, result: syncline_fs::Result<Option<Attr>>) -> Result<(), Errno> {
        if let Some(attr) = self.settle(result)? {
            self.removed.keep(attr);
        }
        Ok(())
    }

    pub(super) fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: NewMode,
        device: DeviceNumber,
    ) -> Result<Entry, Errno> {
        self.check_free(parent, name)?;
        let context = with_umask(caller, mode);
        let rdev = u64::from(device.major) << 32 | u64::from(device.minor);
        let made = self.fs.names().mknod(&context, object(parent), name.as_bytes(), mode.bits, rdev);
        self.settle(made).map(|made| entry(&made.attr))
    }

    pub(super) fn mkdir(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: NewMode,
    ) -> Result<Entry, Errno> {
        self.check_free(parent, name)?;
        let made =
            self.fs.names().mkdir(&with_umask(caller, mode), object(parent), name.as_bytes(), mode.bits);
        self.settle(made).map(|made| entry(&made.attr))
    }

    pub(super) fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        target: &[u8],
    ) -> Result<Entry, Errno> {
        self.check_free(parent, name)?;
        let made = self.fs.names().symlink(&caller.context(), object(parent), name.as_bytes(), target);
        self.settle(made).map(|made| entry(&made.attr))
    }

    pub(super) fn link(
        &self,
        caller: &Caller,
        node: NodeId,
        parent: NodeId,
        name: &OsStr,
    ) -> Result<Entry, Errno> {
        let (node, new_name) = (object(node), self.name_of_groups(parent, name));
        let parent = object(parent);
        if let Some(staged) = new_name.and_then(|name| self.atomics.link(caller.uid, node, &name)) {
            staged?;
            let attr = self.fs.attributes().getattr(node).map_err(errno)?;
            return Ok(Entry { entry_valid: Duration::ZERO, ..self.entry(attr) });
        }
        self.atomics.check_names(None, &[(parent, name.as_bytes())])?;
        let linked = self.fs.names().link(node, parent, name.as_bytes());
        self.settle(linked).map(|linked| self.entry(linked.attr))
    }

    /// `plan`: what was found under the name.
    pub(super) fn unlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        plan: Option<RemovalPlan>,
    ) -> Result<(), Errno> {
        if let Some(staged_name) = self.name_of_groups(parent, name)
            && let Some(staged) = self.atomics.unlink(caller.uid, &staged_name)
        {
            return staged;
        }
        self.check_free(parent, name)?;
        let names = self.fs.names();
        let plan = plan.map_or_else(|| names.plan_removal(object(parent), name.as_bytes()), Ok);
        self.took(plan.and_then(|plan| names.remove(plan, RemovalKind::File)))
    }

    pub(super) fn rmdir(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.check_free(parent, name)?;
        let names = self.fs.names();
        let plan = names.plan_rmdir(object(parent), name.as_bytes());
        self.took(plan.and_then(|plan| names.remove(plan, RemovalKind::Directory)))
    }

    /// `flags` are those of `renameat2`; `plan`: what was found under the names.
    pub(super) fn rename(
        &self,
        caller: &Caller,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        flags: u32,
        plan: Option<RenamePlan>,
    ) -> Result<(), Errno> {
        let how = RenameFlags {
            no_replace: flags & libc::RENAME_NOREPLACE != 0,
            exchange: flags & libc::RENAME_EXCHANGE != 0,
            whiteout: flags & libc::RENAME_WHITEOUT != 0,
        };
        let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
        if flags & !known != 0 || (how.exchange && (how.no_replace || how.whiteout)) {
            return Err(Errno::EINVAL);
        }
        if !how.exchange
            && !how.whiteout
            && let Some(from) = self.name_of_groups(from.0, from.1)
            && let Some(to) = self.name_of_groups(to.0, to.1)
            && let Some(staged) = self.atomics.rename(caller.uid, &from, &to, how.no_replace)
        {
            return staged;
        }
        let (from, from_name) = (object(from.0), from.1.as_bytes());
        let (to, to_name) = (object(to.0), to.1.as_bytes());
        self.atomics.check_names(None, &[(from, from_name), (to, to_name)])?;
        let names = self.fs.names();
        let plan = plan.map_or_else(|| names.plan_rename(from, from_name, to, to_name), Ok);
        self.took(plan.and_then(|plan| names.rename_planned(&caller.context(), plan, how)))
    }

    fn open_flags(&self, flags: i32) -> OpenFlags {
        let mut flags = OpenFlags { append: false, ..OpenFlags::from_linux(flags) };
        if self.writeback_cache && flags.write {
            flags.read = true;
        }
        let only_written = flags.write && !flags.read;
        // A durable write through the page cache is two messages: the kernel sends an fsync behind it.
        let durable = (flags.sync || flags.dsync) && self.direct_is_coherent.load(Ordering::Relaxed);
        flags.direct |= only_written && !self.writeback_cache && (self.direct_writes || durable);
        flags
    }

    /// Of a file that is made under a name.
    fn new_file_flags(&self, caller: &Caller, mode: NewMode, flags: i32) -> OpenFlags {
        let mut flags = self.open_flags(flags);
        let may_be_direct = flags.write
            && !flags.read
            && !self.writeback_cache
            && self.direct_is_coherent.load(Ordering::Relaxed);
        flags.direct |= may_be_direct && self.makers.will_be_small(caller.pid);
        // See `open`.
        flags.direct &= !convert::has_set_id(mode.bits | libc::S_IFREG);
        flags
    }

    /// `flags` are those of `open(2)`; `O_CREAT` and `O_EXCL` are dealt with by the kernel, `O_TRUNC` is not.
    pub(super) fn open(
        &self,
        caller: &Caller,
        node: NodeId,
        flags: i32,
        clears_set_id: bool,
    ) -> Result<Opened, Errno> {
        let mut wanted = self.open_flags(flags);
        let context = self.writer(caller, clears_set_id, || self.mode(node));
        // Only before a write through its own code does the kernel take the bits off what it knows of the file.
        wanted.direct &= !(wanted.write && convert::has_set_id(self.mode(node)));
        let result = match self.fs.files().open_handle(&context, object(node), wanted) {
            Err(Error::NotPermitted) if flags & libc::O_APPEND != 0 => {
                self.fs.files().open_handle(&context, object(node), OpenFlags { append: true, ..wanted })
            }
            result => result,
        };
        let handle = result.map_err(errno)?;
        if wanted.truncate {
            self.settle(Ok(()))?;
        }
        Ok(opened(handle, wanted.direct))
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &OsStr,
        mode: NewMode,
        flags: i32,
    ) -> Result<(Entry, Opened), Errno> {
        let wanted = self.new_file_flags(caller, mode, flags);
        let context = with_umask(caller, mode);
        if let Some(staged_name) = self.name_of_groups(parent, name)
            && let Some(group) = self.atomics.vacated(caller.uid, &staged_name)
        {
            return self.create_staged(&context, &group, &staged_name, mode.bits, wanted);
        }
        self.check_free(parent, name)?;
        let made = self.fs.names().create(&context, object(parent), name.as_bytes(), mode.bits, wanted);
        let (made, handle) = self.settle(made)?;
        Ok((entry(&made.attr), opened(handle, wanted.direct)))
    }

    /// A file without a name. Whether it may get one later is decided by the kernel.
    pub(super) fn tmpfile(
        &self,
        caller: &Caller,
        parent: NodeId,
        mode: NewMode,
        flags: i32,
    ) -> Result<(Entry, Opened), Errno> {
        let wanted = self.open_flags(flags);
        let made =
            self.fs.names().tmpfile(&with_umask(caller, mode), object(parent), mode.bits, wanted, false);
        let (made, handle) = self.settle(made)?;
        Ok((entry(&made.attr), opened(handle, wanted.direct)))
    }

    /// `member`: what the open file was part of when the request came.
    pub(super) fn write(
        &self,
        caller: &Caller,
        writing: Writing,
        member: Option<&Member>,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        if let Some(member) = member {
            match self.write_staged(caller, member, writing, data) {
                Some(Ok(bytes)) => return reply.written(bytes),
                Some(Err(errno)) => return reply.error(errno),
                // A mapping's page belongs to no group of its own accord.
                None if writing.is_write_back => {}
                None => return reply.error(Errno::EBUSY),
            }
        }
        let began = Instant::now();
        let mode = || self.fs.files().handle_mode(writing.handle).unwrap_or(0);
        let writer = self.writer(caller, writing.clears_set_id, mode);
        let written = writing.offset..writing.offset + data.len() as u64;
        let bytes = match self.fs.files().write_unsynced(&writer, writing.handle, writing.offset, data) {
            Ok((_, bytes, _)) => u32::try_from(bytes).expect("a message is far smaller"),
            Err(error) => return reply.error(errno(error)),
        };
        if writing.is_write_back && data.len() >= HINTED_BYTES_MIN {
            // Somebody called sync_file_range, or the kernel has had it for long: the device may have it, too.
            let _ = self.fs.files().write_back_handle(writing.handle, written);
        }
        match writing.durable {
            None => reply.written(bytes),
            Some(scope) => {
                let began = Began::since(began, caller.pid);
                self.syncs.sync(writing.handle, scope, writing.by, began, Owed::Written(reply, bytes));
            }
        }
    }

    pub(super) fn sync_all(&self) -> Result<(), Errno> {
        self.fs.sync_all().map_err(errno)
    }

    pub(super) fn sync_directory(&self, node: NodeId, by: By, began: Began, owed: Owed) {
        match self.fs.files().opendir(object(node)) {
            Ok(directory) => {
                self.syncs.sync(directory, SyncScope::All, by, began, owed);
                if let Err(error) = self.fs.files().release(directory) {
                    tracing::warn!(%error, "closing a directory failed");
                }
            }
            Err(error) => owed.error(errno(error)),
        }
    }

    pub(super) fn release(&self, closed: fusering::Handle) {
        self.syncs.tickets().forget(handle(closed));
        self.release_groups(handle(closed));
        if let Err(error) = self.fs.files().release(handle(closed)) {
            tracing::warn!(%error, "closing a file failed");
        }
    }

    /// Entries from `from` on, `.` and `..` among them; until `put` has no room left.
    pub(super) fn readdir(
        &self,
        node: NodeId,
        from: u64,
        put: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.fs.files().opendir(object(node)).map_err(errno)?;
        let result = self.fs.names().readdir(directory, from, &mut |found| go_on(put(&found)));
        self.fs.files().release(directory).map_err(errno)?;
        result.map_err(errno)
    }

    /// The same with the attributes that are at hand.
    pub(super) fn readdir_plus(
        &self,
        node: NodeId,
        from: u64,
        put: &mut dyn FnMut(&DirEntry<'_>, Option<&Attr>) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.fs.files().opendir(object(node)).map_err(errno)?;
        let result = self
            .fs
            .names()
            .readdir_plus(directory, from, &mut |found, attr| go_on(put(&found, attr.as_ref())));
        self.fs.files().release(directory).map_err(errno)?;
        result.map_err(errno)
    }

    pub(super) fn totals(&self) -> Totals {
        let space = self.fs.statfs();
        Totals {
            fragment_bytes: space.block_bytes,
            block_bytes: space.block_bytes,
            blocks: space.blocks,
            blocks_free: space.blocks_free,
            blocks_available: space.blocks_available,
            // Nothing but space bounds the number of inodes, and nobody counts them: df(1) shows a dash for this, as
            // for btrfs.
            files: 0,
            files_free: 0,
            name_bytes_max: space.name_bytes_max,
        }
    }

    /// `flags` are those of `setxattr(2)`; `clears_setgid` is what the kernel says of an ACL's setter.
    pub(super) fn setxattr(
        &self,
        caller: &Caller,
        node: NodeId,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        clears_setgid: bool,
    ) -> Result<(), Errno> {
        let how = match flags {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let is_acl = name.as_bytes() == ACCESS_ACL;
        let context = match is_acl {
            true if self.kernel_judges_groups.load(Ordering::Relaxed) => {
                // Neither the caller's group nor any other counts.
                Context { gid: u32::MAX, uid: u32::from(clears_setgid), ..caller.context() }
            }
            true if caller.uid != 0 => caller.context_with_groups(),
            _ => caller.context(),
        };
        self.settle(self.fs.attributes().set_xattr(&context, object(node), name.as_bytes(), value, how))
    }

    pub(super) fn getxattr(&self, caller: &Caller, node: NodeId, name: &OsStr) -> Result<Vec<u8>, Errno> {
        self.fs.attributes().xattr(&caller.context(), object(node), name.as_bytes()).map_err(errno)
    }

    pub(super) fn listxattr(&self, caller: &Caller, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.fs.attributes().list_xattrs(&caller.context(), object(node)).map_err(errno)
    }

    pub(super) fn removexattr(&self, caller: &Caller, node: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.settle(self.fs.attributes().remove_xattr(&caller.context(), object(node), name.as_bytes()))
    }

    pub(super) fn fallocate(
        &self,
        caller: &Caller,
        request: &Fallocate,
        mode: FallocateMode,
    ) -> Result<(), Errno> {
        let file = handle(request.handle);
        if self.atomics.member(file).is_some() {
            return Err(Errno::EBUSY);
        }
        let context = self.changer(caller, || self.fs.files().handle_mode(file).unwrap_or(0));
        self.settle(self.fs.files().fallocate(&context, file, mode, request.offset, request.length))
    }
}

fn with_umask(caller: &Caller, mode: NewMode) -> Context {
    Context { umask: mode.umask, ..caller.context() }
}

fn go_on(added: bool) -> ControlFlow<()> {
    if added { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
