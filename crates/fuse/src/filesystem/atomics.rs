//! The ioctls of atomic changes: f2fs's for a file by itself, and those of `include/syncline/ioctl.h` for several.

use super::operations::{Operations, Writing};
use super::{Caller, Filesystem};
use crate::account::Began;
use crate::atomic::{Group, Leftovers, Member, Name};
use crate::convert::{errno, handle, has_set_id, object, opened};
use crate::droppers::NoThread;
use crate::ioctl;
use crate::syncs::{By, HeldBack, Owed};
use fusering::request::Ioctl;
use fusering::{Entry, Errno, Handle, NodeId, Opened, ReplyIoctl, RequestContext};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;
use syncline_fs::{Context, HandleId, ObjectNo, OpenFlags, Reach, SyncScope};

/// What GET_FEATURES tells: atomic writes.
const FEATURE_ATOMIC_WRITE: u32 = 4;

/// One of these calls.
pub(super) enum Atomic {
    Features,
    Start,
    Commit,
    Abort,
    GroupBegin,
    GroupJoin(u64),
    GroupCommit(u64),
    GroupAbort(u64),
    Refused,
}

impl Atomic {
    /// `None`: another ioctl.
    pub(super) fn of(request: &Ioctl<'_>) -> Option<Atomic> {
        let token = || request.input.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        Some(match request.command {
            ioctl::F2FS_GET_FEATURES => Atomic::Features,
            ioctl::F2FS_START_ATOMIC_WRITE => Atomic::Start,
            ioctl::F2FS_COMMIT_ATOMIC_WRITE => Atomic::Commit,
            ioctl::F2FS_ABORT_ATOMIC_WRITE => Atomic::Abort,
            ioctl::F2FS_START_VOLATILE_WRITE | ioctl::F2FS_RELEASE_VOLATILE_WRITE => Atomic::Refused,
            ioctl::GROUP_BEGIN => Atomic::GroupBegin,
            ioctl::GROUP_JOIN => Atomic::GroupJoin(token()),
            ioctl::GROUP_COMMIT => Atomic::GroupCommit(token()),
            ioctl::GROUP_ABORT => Atomic::GroupAbort(token()),
            _ => return None,
        })
    }
}

fn done(reply: ReplyIoctl, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.output(0, &[]),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem {
    pub(super) fn atomic(&self, context: &RequestContext<'_>, file: Handle, call: Atomic, reply: ReplyIoctl) {
        let operations = &self.operations;
        let (atomics, offered) = (&operations.atomics, !operations.writeback_cache);
        let (file, uid) = (handle(file), context.uid);
        match call {
            Atomic::Features => {
                let features = if offered { FEATURE_ATOMIC_WRITE } else { 0 };
                reply.output(0, &features.to_ne_bytes());
            }
            Atomic::Refused => reply.error(Errno::EOPNOTSUPP),
            // Written data would stay in the kernel, beyond any transaction.
            _ if !offered => reply.error(Errno::EOPNOTSUPP),
            // Directories are opened without asking, so they have no handle.
            _ if file == HandleId(0) => reply.error(Errno::EISDIR),
            Atomic::Start => {
                let may_wait = atomics.member(file).is_some_and(|member| member.group.may_wait());
                self.serve(context, may_wait, move |operations, caller| {
                    done(reply, operations.atomics.start(file, caller.uid));
                });
            }
            Atomic::Commit => match atomics.of_single(file) {
                Ok(Some(group)) => self.commit(context, group, reply),
                // As on f2fs, a plain sync.
                Ok(None) => self.sync_whole(context, file, reply),
                Err(errno) => reply.error(errno),
            },
            Atomic::Abort => match atomics.of_single(file) {
                Ok(Some(group)) => self.abort(context, group, reply),
                Ok(None) => reply.output(0, &[]),
                Err(errno) => reply.error(errno),
            },
            Atomic::GroupBegin => match atomics.begin(file, uid) {
                Ok(token) => reply.output(0, &token.to_ne_bytes()),
                Err(errno) => reply.error(errno),
            },
            Atomic::GroupJoin(token) => {
                self.serve(context, atomics.join_may_wait(token), move |operations, caller| {
                    done(reply, operations.atomics.join(file, token, caller.uid));
                });
            }
            Atomic::GroupCommit(token) => match atomics.of_token(file, token) {
                Ok(group) => self.commit(context, group, reply),
                Err(errno) => reply.error(errno),
            },
            Atomic::GroupAbort(token) => match atomics.of_token(file, token) {
                Ok(group) => self.abort(context, group, reply),
                Err(errno) => reply.error(errno),
            },
        }
    }

    /// What was staged is given back, maybe a file removed that only the group has kept.
    fn abort(&self, context: &RequestContext<'_>, group: Arc<Group>, reply: ReplyIoctl) {
        self.serve(context, true, move |operations, _: &Caller| operations.abort(&group, reply));
    }

    fn sync_whole(&self, context: &RequestContext<'_>, file: HandleId, reply: ReplyIoctl) {
        let began = Began::now(context.pid);
        match self.operations.fs.syncs().plan(file, SyncScope::All, Reach::Whole) {
            Ok(plan) => self.sync(context, plan, began, Owed::Controlled(reply)),
            Err(error) => reply.error(errno(error)),
        }
    }

    fn commit(&self, context: &RequestContext<'_>, group: Arc<Group>, reply: ReplyIoctl) {
        let may_wait = group.may_wait() || self.operations.fs.files().change_may_wait();
        let by = self.forced_by(context, may_wait);
        self.serve(context, may_wait, move |operations, caller: &Caller| {
            operations.commit(&group, by, Began::now(caller.pid), reply);
        });
    }
}

impl Operations {
    /// Whether making a name may have to wait: as any small change, or for a group.
    pub(super) fn name_may_wait(&self, parent: NodeId, name: &OsStr) -> bool {
        self.change_may_wait() || self.atomics.name_may_wait(object(parent), name.as_bytes())
    }

    /// Errors: EBUSY, a group has changed the name. One that it has taken away is there for nobody, and yet not free
    /// before the group is over; and who may replace what was judged by what the group shows.
    pub(super) fn check_free(&self, parent: NodeId, name: &OsStr) -> Result<(), Errno> {
        self.atomics.check_names(None, &[(object(parent), name.as_bytes())])
    }

    fn commit(&self, group: &Arc<Group>, by: By, began: Began, reply: ReplyIoctl) {
        // It is answered when it is durable, or here if it fails before that. Others may force it at once: a START
        // that follows the answer is not to find this group.
        let held = HeldBack::new(Owed::Controlled(reply));
        let answer = self.syncs.answering_held(began, held.clone());
        match self.atomics.finish(group, |transaction| transaction.commit_start(answer)) {
            // What the kernel has cached is committed now.
            Some((Ok(()), left)) => {
                self.atomics.settle(&left.group);
                held.ready();
                self.syncs.kick(by);
            }
            Some((Err(error), left)) => {
                let errno = errno(error);
                self.give_up(left, Box::new(move || held.fail(errno)));
            }
            // Somebody else has ended it.
            None => held.fail(Errno::EINVAL),
        }
    }

    fn abort(&self, group: &Arc<Group>, reply: ReplyIoctl) {
        match self.atomics.finish(group, drop) {
            Some(((), left)) => self.give_up(left, Box::new(move || reply.output(0, &[]))),
            // Somebody else has ended it.
            None => reply.output(0, &[]),
        }
    }

    /// Ends the groups of an open file that is gone.
    pub(super) fn release_groups(&self, closed: HandleId) {
        for left in self.atomics.release(closed) {
            self.give_up(left, Box::new(|| {}));
        }
    }

    /// A write of an open file that is part of a transaction; it is durable with the commit, whatever the file was
    /// opened with.
    pub(super) fn write_staged(
        &self,
        caller: &Caller,
        member: &Member,
        writing: Writing,
        data: &[u8],
    ) -> Option<Result<u32, Errno>> {
        let staged = self.atomics.write(member, writing.offset, data)?;
        let strip = || -> syncline_fs::Result<()> {
            let mode = self.fs.attributes().getattr(member.object)?.mode;
            if writing.clears_set_id && has_set_id(mode) {
                let set = syncline_fs::SetAttr { strip_set_id: true, ..syncline_fs::SetAttr::default() };
                let context = self.writer(caller, true, || mode);
                self.fs.attributes().setattr(&context, member.object, &set, None)?;
            }
            Ok(())
        };
        let bytes = u32::try_from(data.len()).expect("a message is far smaller");
        Some(staged.and_then(|()| strip().map_err(errno)).map(|()| bytes))
    }

    /// Makes a file where a group has taken the name away. Its name is the group's, and so is what is written through
    /// it.
    pub(super) fn create_staged(
        &self,
        context: &Context,
        group: &Arc<Group>,
        name: &Name,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        let (made, file) = self.settle(self.fs.names().tmpfile(context, name.0, mode, flags, false))?;
        if let Err(errno) = self.atomics.adopt(group, file, made.attr.inode, name) {
            if let Err(error) = self.fs.files().release(file) {
                tracing::warn!(%error, "closing a file failed");
            }
            return Err(errno);
        }
        let entry = Entry { entry_valid: Duration::ZERO, ..self.entry(made.attr) };
        Ok((entry, opened(file, flags.direct)))
    }

    /// Reads what is not in memory; of a file that is `staged` what its transaction sees.
    pub(super) fn read(
        &self,
        file: HandleId,
        staged: Option<ObjectNo>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        match staged.and_then(|object| self.atomics.read(object, offset, into)) {
            Some(read) => read,
            None => self.fs.files().read(file, offset, into).map_err(errno),
        }
    }

    /// Has the kernel drop what it cached of a group that was not committed, settles it, and calls `then`.
    fn give_up(&self, left: Leftovers, then: Box<dyn FnOnce() + Send>) {
        let atomics = self.atomics.clone();
        let notifier = match self.notifier.get() {
            Some(notifier) if !left.is_empty() => notifier.clone(),
            _ => {
                atomics.settle(&left.group);
                return then();
            }
        };
        let uid = left.uid();
        let work = move || {
            for file in left.files {
                note(notifier.invalidate_node(NodeId(file.0), 0, 0), "what a transaction has left");
            }
            for (parent, name) in left.names {
                let name = OsStr::from_bytes(&name);
                note(notifier.invalidate_entry(NodeId(parent.0), name), "what a transaction has left");
            }
            atomics.settle(&left.group);
            then();
        };
        if let Err(NoThread { error, works }) = self.droppers.run(uid, Box::new(work)) {
            tracing::warn!(%error, "no thread to be had; what a transaction has left in the kernel's caches is dropped here");
            works.into_iter().for_each(|work| work());
        }
    }
}

pub(super) fn note(result: io::Result<()>, what: &str) {
    match result {
        // The kernel knew nothing, or is gone.
        Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN)) => {
            tracing::warn!(%error, "the kernel keeps {what} in its caches");
        }
        _ => {}
    }
}
