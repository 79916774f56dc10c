//! The kernel's requests, one method each: what is asked for, on which thread it is done (see the module above), the
//! answer.

use super::atomics::Atomic;
use super::controls::Control;
use super::operations::{Looked, Operations, Writing};
use super::{Caller, Filesystem};
use crate::account::Began;
use crate::convert::{self, errno};
use crate::ioctl;
use crate::messages::Message;
use crate::syncs::{By, Owed};
use crate::writers::Joining;
use fusering::abi::{FsyncFlags, InitFlags, OpenInFlags, SetxattrFlags, WriteFlags};
use fusering::request::*;
use fusering::{
    Attributes, DirectoryEntry, Entry, Errno, Interruption, Negotiated, NodeId, Notifier, Opened,
    ReplyAttributes, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatx, ReplyTotals, ReplyWrite, ReplyXattr,
    RequestContext, RequestId, TransportKind,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use syncline_fs::{DirEntry, ObjectNo, Reach, RenamePlan, SeekWhat, SyncPlan, SyncScope};

/// Most bytes that one copy request copies: a caller goes on where it ended, and the pool's thread is free in between.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// From this minor version on (Linux 6.18) a direct write drops, when it has ended, what of its range was read into the
/// page cache meanwhile. Before, a reader could be left with old content.
const COHERENT_DIRECT_MINOR: u32 = 45;

/// Of this minor version (Linux 6.18) it is known that an fsync ends each durable write through the page cache; so it
/// is of later ones.
const SYNCED_BEHIND_MINOR: u32 = 45;

fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn reply_entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

fn reply_attributes(reply: ReplyAttributes, result: Result<(Attributes, Duration), Errno>) {
    match result {
        Ok((attributes, valid)) => reply.attributes(&attributes, valid),
        Err(errno) => reply.error(errno),
    }
}

fn reply_create(reply: ReplyCreate, result: Result<(Entry, Opened), Errno>) {
    match result {
        Ok((entry, opened)) => reply.created(&entry, &opened),
        Err(errno) => reply.error(errno),
    }
}

fn reply_value(reply: ReplyXattr, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) => reply.value(&value),
        Err(errno) => reply.error(errno),
    }
}

fn directory_entry<'a>(found: &DirEntry<'a>) -> DirectoryEntry<'a> {
    DirectoryEntry {
        node: NodeId(found.inode.0),
        next: found.cookie,
        file_type: found.file_type,
        name: OsStr::from_bytes(found.name),
    }
}

/// What the flags of an open file demand of each write.
fn durability(flags: i32) -> Option<SyncScope> {
    match flags & libc::O_SYNC {
        libc::O_SYNC => Some(SyncScope::All),
        libc::O_DSYNC => Some(SyncScope::Data),
        _ => None,
    }
}

impl Filesystem {
    /// Who forces what the caller of a sync waits for. A queue's thread never does, but for its deputy: whoever makes
    /// a request on its CPU would wait for the device with it. It has the driver beside it do it.
    ///
    /// `may_wait`: data is written out before, in the pool.
    pub(super) fn forced_by(&self, context: &RequestContext<'_>, may_wait: bool) -> By {
        let alone = self.callers.is_lone_syncer(context.pid) && !context.others_wait();
        match context.transport() {
            TransportKind::Uring if may_wait => By::Driver,
            _ if alone && context.may_wait() => By::Here,
            TransportKind::Uring => By::DriverHere,
            TransportKind::Dev => By::Driver,
        }
    }
}

impl Filesystem {
    /// Does what a plan says: here as far as nothing has to be waited for, together with other syncs, or in the pool.
    pub(super) fn sync(&self, context: &RequestContext<'_>, plan: SyncPlan, began: Began, owed: Owed) {
        let syncs = self.operations.fs.syncs();
        let committed = match syncs.try_commit(&plan) {
            Ok(Some(lsn)) => Some(lsn),
            Ok(None) if context.transport() == TransportKind::Uring && !context.others_wait() => {
                syncs.write_at_once(&plan)
            }
            Ok(None) => None,
            Err(error) => return owed.error(errno(error)),
        };
        if let Some(lsn) = committed {
            let by = self.forced_by(context, false);
            return self.operations.syncs.force(lsn, by, began, owed);
        }
        let by = self.forced_by(context, true);
        if by != By::Here
            && let Some(pages) = plan.joins_others()
        {
            return self.join_writers(pages, Joining { plan, began, owed });
        }
        self.serve(context, true, move |operations, _| operations.syncs.commit(plan, by, began, owed));
    }
}

impl fusering::Filesystem for Filesystem {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> Result<(), Errno> {
        let first = self.operations.notifier.set(notifier.clone()).is_ok();
        assert!(first, "a connection has one handshake");
        if negotiated.flags.contains(InitFlags::SETXATTR_EXT) {
            self.operations.note_that_kernel_judges_groups();
        }
        if negotiated.minor >= COHERENT_DIRECT_MINOR {
            self.operations.note_that_direct_is_coherent();
        }
        if negotiated.minor >= SYNCED_BEHIND_MINOR {
            self.operations.note_that_writes_are_synced_behind();
        }
        tracing::debug!(flags = ?negotiated.flags, write_bytes_max = negotiated.write_bytes_max, "agreed");
        Ok(())
    }

    fn destroy(&self) {
        self.close_once();
    }

    fn interrupt(&self, _: RequestId) -> Interruption {
        self.messages.count(Message::Interrupt);
        Interruption::Ignored
    }

    fn forget(&self, forget: &Forget) {
        self.messages.count(Message::Forget);
        self.operations.removed.forget(ObjectNo(forget.node.0));
    }

    fn lookup(&self, context: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        self.count(context, Message::Lookup);
        match self.operations.lookup(request.parent, request.name) {
            Ok(Looked::Found(entry)) => reply.entry(&entry),
            Ok(Looked::Nobody(valid)) => reply.absent(valid),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, context: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        self.count(context, Message::Getattr);
        reply_attributes(reply, self.operations.getattr(request.node));
    }

    fn statx(&self, context: &RequestContext<'_>, request: &Statx, reply: ReplyStatx) {
        self.count(context, Message::Statx);
        match self.operations.statx(request.node) {
            Ok((attributes, valid)) => reply.attributes(&attributes, valid),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(&self, context: &RequestContext<'_>, request: &SetAttr, reply: ReplyAttributes) {
        self.count(context, Message::Setattr);
        let request = *request;
        let truncated = request.handle.filter(|_| request.size.is_some()).map(convert::handle);
        let member = truncated.and_then(|file| self.operations.atomics.member(file));
        let may_wait = match request.size {
            Some(size) => {
                self.operations.resize_may_wait(request.node, size)
                    || member.as_ref().is_some_and(|member| member.group.may_wait())
            }
            None => self.operations.change_may_wait(),
        };
        self.serve(context, may_wait, move |operations, caller| {
            reply_attributes(reply, operations.setattr(caller, &request, member.as_ref()));
        });
    }

    fn readlink(&self, context: &RequestContext<'_>, request: &ReadLink, reply: ReplyData) {
        self.count(context, Message::Readlink);
        match self.operations.fs.attributes().readlink(ObjectNo(request.node.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn symlink(&self, context: &RequestContext<'_>, request: &SymLink<'_>, reply: ReplyEntry) {
        self.count(context, Message::Symlink);
        let (parent, name, target) = (request.parent, request.name.to_owned(), request.target.to_owned());
        self.serve(context, self.operations.change_may_wait(), move |operations, caller| {
            let target = target.as_os_str().as_bytes();
            reply_entry(reply, operations.symlink(caller, parent, &name, target));
        });
    }

    fn mknod(&self, context: &RequestContext<'_>, request: &Mknod<'_>, reply: ReplyEntry) {
        self.count(context, Message::Mknod);
        let (parent, mode, device) = (request.parent, request.mode, request.device);
        let may_wait = self.operations.change_may_wait();
        self.serve_named(context, may_wait, request.name, move |operations, caller, name| {
            reply_entry(reply, operations.mknod(caller, parent, name, mode, device));
        });
    }

    fn mkdir(&self, context: &RequestContext<'_>, request: &Mkdir<'_>, reply: ReplyEntry) {
        self.count(context, Message::Mkdir);
        let (parent, mode) = (request.parent, request.mode);
        let may_wait = self.operations.change_may_wait();
        self.serve_named(context, may_wait, request.name, move |operations, caller, name| {
            reply_entry(reply, operations.mkdir(caller, parent, name, mode));
        });
    }

    fn unlink(&self, context: &RequestContext<'_>, request: &Remove<'_>, reply: ReplyEmpty) {
        self.count(context, Message::Unlink);
        let (parent, name) = (request.parent, request.name);
        let plan = self.operations.fs.names().plan_removal(ObjectNo(parent.0), name.as_bytes()).ok();
        let may_wait = self.operations.removal_may_wait(parent, name, plan.as_ref());
        self.serve_named(context, may_wait, name, move |operations, caller, name| {
            reply_empty(reply, operations.unlink(caller, parent, name, plan));
        });
    }

    fn rmdir(&self, context: &RequestContext<'_>, request: &Remove<'_>, reply: ReplyEmpty) {
        self.count(context, Message::Rmdir);
        let (parent, may_wait) = (request.parent, self.operations.change_may_wait());
        self.serve_named(context, may_wait, request.name, move |operations, _, name| {
            reply_empty(reply, operations.rmdir(parent, name));
        });
    }

    fn rename(&self, context: &RequestContext<'_>, request: &Rename<'_>, reply: ReplyEmpty) {
        self.count(context, Message::Rename);
        let operations = &self.operations;
        let (parent, name) = (request.parent, request.name.to_owned());
        let (new_parent, new_name, flags) = (request.new_parent, request.new_name.to_owned(), request.flags);
        let plan = operations.fs.names().plan_rename(
            ObjectNo(parent.0),
            name.as_bytes(),
            ObjectNo(new_parent.0),
            new_name.as_bytes(),
        );
        let plan = plan.ok();
        let may_wait = operations.change_may_wait()
            || plan.as_ref().is_some_and(RenamePlan::is_heavy)
            || operations.atomics.name_may_wait(ObjectNo(parent.0), name.as_bytes())
            || operations.atomics.name_may_wait(ObjectNo(new_parent.0), new_name.as_bytes())
            || operations.atomics.rename_may_wait(ObjectNo(parent.0), name.as_bytes());
        self.serve(context, may_wait, move |operations, caller| {
            let renamed = operations.rename(caller, (parent, &name), (new_parent, &new_name), flags, plan);
            reply_empty(reply, renamed);
        });
    }

    fn link(&self, context: &RequestContext<'_>, request: &Link<'_>, reply: ReplyEntry) {
        self.count(context, Message::Link);
        let (node, parent, name) = (request.node, request.new_parent, request.new_name);
        let may_wait = self.operations.name_may_wait(parent, name)
            || self.operations.atomics.object_may_wait(ObjectNo(node.0));
        self.serve_named(context, may_wait, name, move |operations, caller, name| {
            reply_entry(reply, operations.link(caller, node, parent, name));
        });
    }

    fn open(&self, context: &RequestContext<'_>, request: &Open, reply: ReplyOpen) {
        self.count(context, Message::Open);
        let request = *request;
        let may_wait = request.flags & libc::O_TRUNC != 0 && self.operations.content_may_wait(request.node);
        self.serve(context, may_wait, move |operations, caller| {
            let clears_set_id = request.open_flags.contains(OpenInFlags::KILL_SUIDGID);
            match operations.open(caller, request.node, request.flags, clears_set_id) {
                Ok(opened) => reply.opened(&opened),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn create(&self, context: &RequestContext<'_>, request: &Create<'_>, reply: ReplyCreate) {
        self.count(context, Message::Create);
        let (parent, mode, flags) = (request.parent, request.mode, request.flags);
        let may_wait = self.operations.name_may_wait(parent, request.name);
        self.serve_named(context, may_wait, request.name, move |operations, caller, name| {
            reply_create(reply, operations.create(caller, parent, name, mode, flags));
        });
    }

    fn tmpfile(&self, context: &RequestContext<'_>, request: &Create<'_>, reply: ReplyCreate) {
        self.count(context, Message::Tmpfile);
        let (parent, mode, flags) = (request.parent, request.mode, request.flags);
        self.serve(context, self.operations.change_may_wait(), move |operations, caller| {
            reply_create(reply, operations.tmpfile(caller, parent, mode, flags));
        });
    }

    fn read(&self, context: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        self.count(context, Message::Read);
        let (file, offset) = (convert::handle(request.handle), request.offset);
        let mut buffer = reply.buffer(request.size as usize);
        let (atomics, object) = (&self.operations.atomics, ObjectNo(request.node.0));
        // What goes to the page cache is what the transaction sees, past it only the transaction itself does.
        let is_staged = match request.flags & libc::O_DIRECT {
            0 => atomics.group_of(object).is_some(),
            _ => atomics.member(file).is_some(),
        };
        let staged = is_staged.then_some(object);
        let cached = match staged {
            Some(_) => Ok(None),
            None => self.operations.fs.files().read_cached(file, offset, &mut buffer),
        };
        match cached {
            Ok(Some(bytes)) => buffer.send(bytes),
            Ok(None) => {
                let read =
                    move |operations: &Operations| match operations.read(file, staged, offset, &mut buffer) {
                        Ok(bytes) => buffer.send(bytes),
                        Err(errno) => buffer.error(errno),
                    };
                match context.transport() {
                    // A deputy holds up nobody.
                    TransportKind::Uring if context.may_wait() => read(&self.operations),
                    _ => self.serve(context, true, move |operations, _| read(operations)),
                }
            }
            Err(error) => buffer.error(errno(error)),
        }
    }

    fn write(&self, context: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        self.count(context, Message::Write);
        let file = convert::handle(request.handle);
        let end = request.offset.saturating_add(request.data.len() as u64);
        self.operations.makers.wrote(context.pid, end, || {
            self.operations.fs.files().handle_is_direct(file).is_ok_and(|direct| direct)
        });
        let member = self.operations.atomics.member(file);
        let may_wait = member.as_ref().is_some_and(|member| member.group.may_wait())
            || self.operations.fs.files().write_may_wait(file, request.offset, request.data.len());
        let durable = durability(request.flags)
            .filter(|_| !self.operations.is_synced_behind(file, request.write_flags));
        let writing = Writing {
            handle: file,
            offset: request.offset,
            clears_set_id: request.write_flags.contains(WriteFlags::KILL_SUIDGID),
            is_write_back: request.write_flags.contains(WriteFlags::CACHE),
            durable,
            by: durable.map_or(By::Driver, |_| self.forced_by(context, may_wait)),
        };
        if may_wait && context.transport() == TransportKind::Uring {
            // The message's memory is the queue's again when this returns.
            let data = request.data.to_vec();
            return self.serve(context, true, move |operations, caller| {
                operations.write(caller, writing, member.as_ref(), &data, reply);
            });
        }
        let _waiting = (may_wait || durable.is_some()).then(|| context.about_to_wait());
        self.operations.write(&Caller::of(context), writing, member.as_ref(), request.data, reply);
    }

    /// A close is no concern of ours until the last one, which is RELEASE.
    fn flush(&self, context: &RequestContext<'_>, _: &Flush, reply: ReplyEmpty) {
        self.count(context, Message::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(&self, context: &RequestContext<'_>, request: &Release, reply: ReplyEmpty) {
        self.count(context, Message::Release);
        let closed = request.handle;
        let may_wait = self.operations.fs.files().release_may_wait(convert::handle(closed))
            || self.operations.atomics.owns_groups(convert::handle(closed));
        self.serve(context, may_wait, move |operations, _| {
            operations.release(closed);
            reply.ok();
        });
    }

    fn fsync(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        self.count(context, Message::Fsync);
        let began = Began::now(context.pid);
        let scope = match request.flags.contains(FsyncFlags::FDATASYNC) {
            true => SyncScope::Data,
            false => SyncScope::All,
        };
        match self.operations.fs.syncs().plan(convert::handle(request.handle), scope, Reach::Whole) {
            Ok(plan) => self.sync(context, plan, began, Owed::Done(reply)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn opendir(&self, context: &RequestContext<'_>, _: &Open, reply: ReplyOpen) {
        self.count(context, Message::Opendir);
        reply.error(Errno::ENOSYS);
    }

    fn readdir(&self, context: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        self.count(context, Message::Readdir);
        let read = self
            .operations
            .readdir(request.node, request.offset, &mut |found| reply.add(&directory_entry(found)));
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(&self, context: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectoryPlus) {
        self.count(context, Message::Readdirplus);
        let parent = ObjectNo(request.node.0);
        let read = self.operations.readdir_plus(request.node, request.offset, &mut |found, attr| {
            // The listing tells what is committed. Who has a name in a transaction the kernel is to ask for by itself.
            let attr = attr.filter(|_| self.operations.atomics.staged_name(parent, found.name).is_none());
            reply.add(&directory_entry(found), attr.map(|attr| self.operations.entry(attr.clone())).as_ref())
        });
        match read {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsyncdir(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        self.count(context, Message::Fsyncdir);
        if request.node == NodeId::ROOT {
            // Stands in for syncfs(2), which reaches only mounts of block devices: everything becomes durable.
            return self.serve(context, true, |operations, _| reply_empty(reply, operations.sync_all()));
        }
        let (node, began) = (request.node, Began::now(context.pid));
        let by = self.forced_by(context, false);
        self.serve(context, false, move |operations, _| {
            operations.sync_directory(node, by, began, Owed::Done(reply));
        });
    }

    fn syncfs(&self, context: &RequestContext<'_>, _: &SyncFs, reply: ReplyEmpty) {
        self.count(context, Message::Syncfs);
        self.serve(context, true, |operations, _| reply_empty(reply, operations.sync_all()));
    }

    fn statfs(&self, context: &RequestContext<'_>, _: &StatFs, reply: ReplyTotals) {
        self.count(context, Message::Statfs);
        reply.totals(&self.operations.totals());
    }

    fn setxattr(&self, context: &RequestContext<'_>, request: &SetXattr<'_>, reply: ReplyEmpty) {
        self.count(context, Message::Setxattr);
        let (node, name, value) = (request.node, request.name.to_owned(), request.value.to_vec());
        let flags = request.flags;
        let clears_setgid = request.setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
        self.serve(context, self.operations.change_may_wait(), move |operations, caller| {
            let set = operations.setxattr(caller, node, &name, &value, flags, clears_setgid);
            reply_empty(reply, set);
        });
    }

    fn getxattr(&self, context: &RequestContext<'_>, request: &GetXattr<'_>, reply: ReplyXattr) {
        self.count(context, Message::Getxattr);
        reply_value(reply, self.operations.getxattr(&Caller::of(context), request.node, request.name));
    }

    fn listxattr(&self, context: &RequestContext<'_>, request: &ListXattr, reply: ReplyXattr) {
        self.count(context, Message::Listxattr);
        reply_value(reply, self.operations.listxattr(&Caller::of(context), request.node));
    }

    fn removexattr(&self, context: &RequestContext<'_>, request: &RemoveXattr<'_>, reply: ReplyEmpty) {
        self.count(context, Message::Removexattr);
        let (node, name) = (request.node, request.name.to_owned());
        self.serve(context, self.operations.change_may_wait(), move |operations, caller| {
            reply_empty(reply, operations.removexattr(caller, node, &name));
        });
    }

    fn fallocate(&self, context: &RequestContext<'_>, request: &Fallocate, reply: ReplyEmpty) {
        self.count(context, Message::Fallocate);
        let request = *request;
        let mode = match convert::fallocate_mode(request.mode) {
            Ok(mode) => mode,
            Err(errno) => return reply.error(errno),
        };
        let may_wait = self.operations.allocation_may_wait(&request, mode);
        self.serve(context, may_wait, move |operations, caller| {
            reply_empty(reply, operations.fallocate(caller, &request, mode));
        });
    }

    fn lseek(&self, context: &RequestContext<'_>, request: &Lseek, reply: ReplyLseek) {
        self.count(context, Message::Lseek);
        let Ok(offset) = u64::try_from(request.offset) else { return reply.error(Errno::ENXIO) };
        let what = match request.whence {
            libc::SEEK_DATA => SeekWhat::Data,
            libc::SEEK_HOLE => SeekWhat::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        match self.operations.fs.files().seek(convert::handle(request.handle), offset, what) {
            Ok(found) => reply.offset(found),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn copy_file_range(&self, context: &RequestContext<'_>, request: &CopyFileRange, reply: ReplyCopy) {
        self.count(context, Message::CopyFileRange);
        let from = (convert::handle(request.handle), request.offset);
        let to = (convert::handle(request.to_handle), request.to_offset);
        let length = request.length.min(COPY_BYTES_MAX);
        if self.operations.atomics.member(to.0).is_some() {
            return reply.error(Errno::EBUSY);
        }
        let may_wait = self.operations.fs.files().copy_may_wait(from, to, length);
        self.serve(context, may_wait, move |operations, caller| {
            let context = operations.changer(caller, || operations.fs.files().handle_mode(to.0).unwrap_or(0));
            match operations.fs.files().copy_file_range(&context, from, to, length) {
                Ok(copied) => reply.copied(copied),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn ioctl(&self, context: &RequestContext<'_>, request: &Ioctl<'_>, reply: ReplyIoctl) {
        self.count(context, Message::Ioctl);
        if let Some(call) = Atomic::of(request) {
            return self.atomic(context, request.handle, call, reply);
        }
        if let Some(control) = Control::of(request) {
            return self.control(context, request.handle, control, reply);
        }
        let (node, command, input) = (request.node, request.command, request.input.to_vec());
        let may_wait = ioctl::is_change(command) && self.operations.change_may_wait();
        self.serve(context, may_wait, move |operations, caller| {
            match operations.ioctl(caller, node, command, &input) {
                Ok(output) => reply.output(0, &output),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
