//! The kernel's requests, once more: those on nodes of `.snapshots` are answered here, all others go to the volume.
//!
//! None is answered with ENOSYS that the volume does not answer so: the kernel would take it for the whole mount.

use super::answers::usual;
use super::nodes::{Own, Slot};
use super::views::Views;
use super::{Browsed, Filesystem as Volume};
use crate::convert::{self, errno};
use crate::messages::Message;
use fusering::request::*;
use fusering::{
    Errno, Filesystem, Interruption, Negotiated, Notifier, ReplyAttributes, ReplyCopy, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatx, ReplyTotals, ReplyWrite, ReplyXattr, RequestContext, RequestId,
};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use syncline_fs::{ObjectNo, OpenFlags, SeekWhat};

/// Changes of what is in a snapshot.
macro_rules! read_only {
    ($($method:ident($request:ty, $reply:ty) of $node:ident;)*) => {
        $(fn $method(&self, context: &RequestContext<'_>, request: &$request, reply: $reply) {
            match self.own(request.$node) {
                Some(_) => reply.error(Errno::EROFS),
                None => Volume::$method(&self.volume, context, request, reply),
            }
        })*
    };
}

/// What the volume alone is asked for.
macro_rules! passed_on {
    ($($method:ident($request:ty, $reply:ty);)*) => {
        $(fn $method(&self, context: &RequestContext<'_>, request: &$request, reply: $reply) {
            Volume::$method(&self.volume, context, request, reply);
        })*
    };
}

impl Browsed {
    /// Counts a request on a node of ours, and answers it here, or in the pool if it may wait.
    fn serve(
        &self,
        context: &RequestContext<'_>,
        message: Message,
        may_wait: bool,
        views: &Arc<Views>,
        work: impl FnOnce(&Views, &convert::Caller) + Send + 'static,
    ) {
        let views = views.clone();
        self.volume.serve_beside(context, message, may_wait, move |caller| work(&views, caller));
    }
}

/// The object of a snapshot that a node stands for. Errors: EISDIR for `.snapshots`.
fn object(own: Own) -> Result<(Slot, ObjectNo), Errno> {
    match own {
        Own::Directory => Err(Errno::EISDIR),
        Own::Object(slot, object) => Ok((slot, object)),
    }
}

impl Filesystem for Browsed {
    fn init(&self, negotiated: &Negotiated, notifier: &Notifier) -> Result<(), Errno> {
        self.volume.init(negotiated, notifier)
    }

    fn destroy(&self) {
        self.volume.destroy();
    }

    fn interrupt(&self, request: RequestId) -> Interruption {
        self.volume.interrupt(request)
    }

    fn forget(&self, forget: &Forget) {
        if self.own(forget.node).is_none() {
            self.volume.forget(forget);
        }
    }

    fn lookup(&self, context: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        let parent = match (self.own(request.parent), &self.snapshots) {
            (Some((views, own)), _) => Some((views, Some(own))),
            (None, Some(views)) if self.is_entrance(request.parent, request.name) => Some((views, None)),
            _ => None,
        };
        let Some((views, parent)) = parent else {
            return self.volume.lookup(context, request, reply);
        };
        let name = request.name.to_owned();
        let may_wait = parent.is_some_and(|own| !views.is_name_at_hand(own, request.name));
        self.serve(context, Message::Lookup, may_wait, views, move |views, _| {
            match parent.map_or_else(|| views.entrance(), |own| views.lookup(own, &name)) {
                Ok(entry) => reply.entry(&entry),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn getattr(&self, context: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.getattr(context, request, reply);
        };
        self.serve(context, Message::Getattr, !views.is_at_hand(own), views, move |views, _| {
            match usual(views.attributes(own)) {
                Ok((attributes, valid)) => reply.attributes(&attributes, valid),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn statx(&self, context: &RequestContext<'_>, request: &Statx, reply: ReplyStatx) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.statx(context, request, reply);
        };
        self.serve(context, Message::Statx, !views.is_at_hand(own), views, move |views, _| {
            match views.attributes(own) {
                Ok((attributes, valid)) => reply.attributes(&attributes, valid),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readlink(&self, context: &RequestContext<'_>, request: &ReadLink, reply: ReplyData) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.readlink(context, request, reply);
        };
        self.serve(context, Message::Readlink, !views.is_at_hand(own), views, move |views, _| {
            let target = object(own)
                .and_then(|(slot, object)| views.view(slot)?.attributes().readlink(object).map_err(errno));
            match target {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn mkdir(&self, context: &RequestContext<'_>, request: &Mkdir<'_>, reply: ReplyEntry) {
        match self.own(request.parent) {
            None => self.volume.mkdir(context, request, reply),
            Some((_, Own::Object(..))) => reply.error(Errno::EROFS),
            Some((views, Own::Directory)) => {
                let name = request.name.to_owned();
                match views.try_make(&convert::Caller::of(context), &name) {
                    Ok(Some((entry, lsn))) => {
                        return self.volume.force_beside(context, Message::Mkdir, lsn, reply, entry);
                    }
                    Ok(None) => {}
                    Err(errno) => {
                        return self
                            .serve(context, Message::Mkdir, false, views, move |_, _| reply.error(errno));
                    }
                }
                self.serve(context, Message::Mkdir, true, views, move |views, caller| {
                    match views.make(caller, &name) {
                        Ok(entry) => reply.entry(&entry),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
        }
    }

    fn rmdir(&self, context: &RequestContext<'_>, request: &Remove<'_>, reply: ReplyEmpty) {
        match self.own(request.parent) {
            None if self.is_entrance(request.parent, request.name) => reply.error(Errno::EBUSY),
            None => self.volume.rmdir(context, request, reply),
            Some((_, Own::Object(..))) => reply.error(Errno::EROFS),
            Some((views, Own::Directory)) => {
                let name = request.name.to_owned();
                self.serve(context, Message::Rmdir, true, views, move |views, caller| {
                    match views.delete(caller, &name) {
                        Ok(()) => reply.ok(),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
        }
    }

    fn rename(&self, context: &RequestContext<'_>, request: &Rename<'_>, reply: ReplyEmpty) {
        let (from, to) = (self.own(request.parent), self.own(request.new_parent));
        match (from, to) {
            (None, None)
                if self.is_entrance(request.parent, request.name)
                    || self.is_entrance(request.new_parent, request.new_name) =>
            {
                reply.error(Errno::EBUSY);
            }
            (None, None) => self.volume.rename(context, request, reply),
            (Some((views, Own::Directory)), Some((_, Own::Directory))) => {
                let (name, to, flags) = (request.name.to_owned(), request.new_name.to_owned(), request.flags);
                self.serve(context, Message::Rename, true, views, move |views, caller| {
                    match views.rename(caller, &name, &to, flags) {
                        Ok(()) => reply.ok(),
                        Err(errno) => reply.error(errno),
                    }
                });
            }
            _ => reply.error(Errno::EXDEV),
        }
    }

    fn link(&self, context: &RequestContext<'_>, request: &Link<'_>, reply: ReplyEntry) {
        match self.own(request.node).or(self.own(request.new_parent)) {
            Some(_) => reply.error(Errno::EXDEV),
            None => self.volume.link(context, request, reply),
        }
    }

    fn open(&self, context: &RequestContext<'_>, request: &Open, reply: ReplyOpen) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.open(context, request, reply);
        };
        let flags = request.flags;
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return reply.error(Errno::EROFS);
        }
        self.serve(context, Message::Open, !views.is_at_hand(own), views, move |views, caller| {
            let opened = object(own).and_then(|(slot, object)| {
                // Counted first: nobody closes the snapshot in between.
                views.count_file(slot, true);
                let wanted = OpenFlags { append: false, ..OpenFlags::from_linux(flags) };
                let opened = views.view(slot).and_then(|view| {
                    view.files().open_handle(&caller.context(), object, wanted).map_err(errno)
                });
                opened.inspect_err(|_| views.count_file(slot, false))
            });
            match opened {
                Ok(handle) => reply.opened(&convert::opened(handle, false)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn read(&self, context: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.read(context, request, reply);
        };
        let (file, offset) = (convert::handle(request.handle), request.offset);
        let mut buffer = reply.buffer(request.size as usize);
        self.serve(context, Message::Read, true, views, move |views, _| {
            let read = object(own).and_then(|(slot, _)| {
                views.view(slot)?.files().read(file, offset, &mut buffer).map_err(errno)
            });
            match read {
                Ok(bytes) => buffer.send(bytes),
                Err(errno) => buffer.error(errno),
            }
        });
    }

    fn release(&self, context: &RequestContext<'_>, request: &Release, reply: ReplyEmpty) {
        let Some((views, Own::Object(slot, _))) = self.own(request.node) else {
            return self.volume.release(context, request, reply);
        };
        let file = convert::handle(request.handle);
        self.serve(context, Message::Release, false, views, move |views, _| {
            let released = views.view(slot).and_then(|view| view.files().release(file).map_err(errno));
            views.count_file(slot, false);
            match released {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// What a snapshot shows is durable.
    fn fsync(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        match self.own(request.node) {
            Some(_) => reply.ok(),
            None => self.volume.fsync(context, request, reply),
        }
    }

    fn fsyncdir(&self, context: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        match self.own(request.node) {
            Some(_) => reply.ok(),
            None => self.volume.fsyncdir(context, request, reply),
        }
    }

    fn readdir(&self, context: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.readdir(context, request, reply);
        };
        let from = request.offset;
        self.serve(context, Message::Readdir, !views.is_at_hand(own), views, move |views, _| {
            match views.list(own, from, &mut |entry, _| reply.add(entry)) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdirplus(&self, context: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectoryPlus) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.readdirplus(context, request, reply);
        };
        let from = request.offset;
        self.serve(context, Message::Readdirplus, !views.is_at_hand(own), views, move |views, _| match views
            .list(own, from, &mut |entry, found| reply.add(entry, found))
        {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        });
    }

    fn getxattr(&self, context: &RequestContext<'_>, request: &GetXattr<'_>, reply: ReplyXattr) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.getxattr(context, request, reply);
        };
        let name = request.name.to_owned();
        self.serve(context, Message::Getxattr, !views.is_at_hand(own), views, move |views, caller| {
            let value = match own {
                Own::Directory => Err(Errno::ENODATA),
                Own::Object(slot, object) => views.view(slot).and_then(|view| {
                    view.attributes().xattr(&caller.context(), object, name.as_bytes()).map_err(errno)
                }),
            };
            match value {
                Ok(value) => reply.value(&value),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn listxattr(&self, context: &RequestContext<'_>, request: &ListXattr, reply: ReplyXattr) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.listxattr(context, request, reply);
        };
        self.serve(context, Message::Listxattr, !views.is_at_hand(own), views, move |views, caller| {
            let names = match own {
                Own::Directory => Ok(Vec::new()),
                Own::Object(slot, object) => views
                    .view(slot)
                    .and_then(|view| view.attributes().list_xattrs(&caller.context(), object).map_err(errno)),
            };
            match names {
                Ok(names) => reply.value(&names),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn lseek(&self, context: &RequestContext<'_>, request: &Lseek, reply: ReplyLseek) {
        let Some((views, own)) = self.own(request.node) else {
            return self.volume.lseek(context, request, reply);
        };
        let Ok(offset) = u64::try_from(request.offset) else { return reply.error(Errno::ENXIO) };
        let what = match request.whence {
            libc::SEEK_DATA => SeekWhat::Data,
            libc::SEEK_HOLE => SeekWhat::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let file = convert::handle(request.handle);
        self.serve(context, Message::Lseek, true, views, move |views, _| {
            let found = object(own)
                .and_then(|(slot, _)| views.view(slot)?.files().seek(file, offset, what).map_err(errno));
            match found {
                Ok(found) => reply.offset(found),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// The kernel copies by itself then.
    fn copy_file_range(&self, context: &RequestContext<'_>, request: &CopyFileRange, reply: ReplyCopy) {
        match self.own(request.node).or(self.own(request.to_node)) {
            Some(_) => reply.error(Errno::EXDEV),
            None => self.volume.copy_file_range(context, request, reply),
        }
    }

    fn ioctl(&self, context: &RequestContext<'_>, request: &Ioctl<'_>, reply: ReplyIoctl) {
        if self.own(request.node).is_some() {
            return reply.error(Errno::ENOTTY);
        }
        self.volume.ioctl(context, request, reply);
    }

    read_only! {
        setattr(SetAttr, ReplyAttributes) of node;
        symlink(SymLink<'_>, ReplyEntry) of parent;
        mknod(Mknod<'_>, ReplyEntry) of parent;
        unlink(Remove<'_>, ReplyEmpty) of parent;
        create(Create<'_>, ReplyCreate) of parent;
        tmpfile(Create<'_>, ReplyCreate) of parent;
        write(Write<'_>, ReplyWrite) of node;
        setxattr(SetXattr<'_>, ReplyEmpty) of node;
        removexattr(RemoveXattr<'_>, ReplyEmpty) of node;
        fallocate(Fallocate, ReplyEmpty) of node;
    }

    passed_on! {
        flush(Flush, ReplyEmpty);
        opendir(Open, ReplyOpen);
        statfs(StatFs, ReplyTotals);
        syncfs(SyncFs, ReplyEmpty);
    }
}
