//! Requests to operations on the tree, and results to answers.
//!
//! One lock guards all nodes. A sync has nothing to do in memory; it stands for what a filesystem with a disk does:
//! replies are kept, a thread of its own completes all that have come together as one group, and one batch answers
//! them.

use crate::tree::{DOT, DOT_DOT, Kind, New, Node, Tree};
use fusering::abi::{InitFlags, OpenFlags, OpenInFlags, ReleaseFlags, WriteFlags};
use fusering::request::*;
use fusering::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Nobody else changes the tree, so the kernel may keep what it was told.
const VALID: Duration = Duration::from_secs(3600);
/// What `statfs` shows as the size.
const BYTES_MAX: u64 = 1 << 30;
/// An ioctl of this example, `_IOWR('M', 1, 16 bytes)`: returns its input backwards.
pub const BACKWARDS: u32 = 0xc010_4d01;

/// What this filesystem can do.
pub fn config() -> Config {
    let config = Config::default();
    let wanted = config.wanted
        | InitFlags::DONT_MASK
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::SETXATTR_EXT
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::CACHE_SYMLINKS
        | InitFlags::NO_OPENDIR_SUPPORT;
    // As a lone caller is served best.
    config.wanted(wanted).idle_class(true).uring(UringSettings::default().deputy(true))
}

pub struct MemoryFilesystem {
    tree: Mutex<Tree>,
    syncs: Sender<ReplyEmpty>,
}

impl MemoryFilesystem {
    pub fn new() -> MemoryFilesystem {
        // SAFETY: neither call has preconditions.
        let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
        let (syncs, requests) = channel();
        std::thread::spawn(move || complete_syncs(&requests));
        MemoryFilesystem { tree: Mutex::new(Tree::new(uid, gid)), syncs }
    }

    /// Nodes that exist, the root among them.
    pub fn nodes(&self) -> usize {
        self.tree().len()
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_later(&self, reply: ReplyEmpty) {
        // The thread lives as long as the sender; were it gone, the reply would be dropped and answer EIO.
        let _ = self.syncs.send(reply);
    }

    /// A named node was made or found: the kernel has one more reference to it.
    fn entry(tree: &mut Tree, node: NodeId) -> Result<Entry, Errno> {
        let found = tree.get_mut(node)?;
        found.lookups += 1;
        Ok(Entry {
            node,
            generation: 0,
            attributes: found.attributes(node),
            entry_valid: VALID,
            attributes_valid: VALID,
        })
    }

    fn make(
        &self,
        context: &RequestContext<'_>,
        parent: NodeId,
        name: &OsStr,
        mode: NewMode,
        device: DeviceNumber,
    ) -> Result<Entry, Errno> {
        let new = New::of_mode(mode.bits & !(mode.umask & 0o777), context.uid, context.gid, device);
        let mut tree = self.tree();
        let node = tree.make(parent, name, new)?;
        MemoryFilesystem::entry(&mut tree, node)
    }

    fn open_node(tree: &mut Tree, node: NodeId) -> Result<Opened, Errno> {
        tree.get_mut(node)?.opened += 1;
        // The node is all there is to know of an open file.
        Ok(Opened { handle: Handle(node.0), flags: OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH })
    }

    fn change(&self, request: &SetAttr) -> Result<Attributes, Errno> {
        let mut tree = self.tree();
        let node = tree.get_mut(request.node)?;
        let now = Time::now();
        let at = |time| if let SetTime::At(time) = time { time } else { now };
        if let Some(size) = request.size {
            node.file()?.truncate(size);
            node.size = size;
            node.modified = now;
        }
        if request.kill_set_id {
            node.clear_set_id();
        }
        node.mode = request.mode.map_or(node.mode, |mode| node.mode & libc::S_IFMT | mode & 0o7777);
        node.uid = request.uid.unwrap_or(node.uid);
        node.gid = request.gid.unwrap_or(node.gid);
        node.accessed = request.accessed.map_or(node.accessed, at);
        node.modified = request.modified.map_or(node.modified, at);
        node.changed = request.changed.unwrap_or(now);
        Ok(node.attributes(request.node))
    }

    fn list(
        &self,
        request: &ReadDir,
        put: &mut dyn FnMut(&mut Tree, &DirectoryEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let mut tree = self.tree();
        let directory = tree.get(request.node)?.directory()?;
        let mut names = vec![(DOT, ".".into(), request.node), (DOT_DOT, "..".into(), directory.parent)];
        // A message has room for a few hundred.
        let rest = directory.by_number.range(request.offset + 1..).take(1024);
        names.extend(rest.map(|(number, (name, node))| (*number, name.clone(), *node)));
        for (number, name, node) in names.iter().filter(|(number, ..)| *number > request.offset) {
            let file_type = tree.get(*node).map_or(0, |node| (node.mode >> 12) as u8);
            if !put(&mut tree, &DirectoryEntry { node: *node, next: *number, file_type, name }) {
                break;
            }
        }
        Ok(())
    }

    fn allocate(&self, request: &Fallocate) -> Result<(), Errno> {
        let mut tree = self.tree();
        let node = tree.get_mut(request.node)?;
        let end = request.offset.checked_add(request.length).ok_or(Errno::EFBIG)?;
        let keeps_size = request.mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        match request.mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => {}
            libc::FALLOC_FL_PUNCH_HOLE if !keeps_size => return Err(Errno::EOPNOTSUPP),
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE => {
                node.file()?.punch(request.offset, request.length);
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        if !keeps_size {
            node.size = node.size.max(end);
        }
        node.clear_set_id();
        node.touch();
        Ok(())
    }

    fn copy(&self, request: &CopyFileRange) -> Result<u64, Errno> {
        let mut tree = self.tree();
        let from = tree.get_mut(request.node)?;
        let bytes = request.length.min(from.size.saturating_sub(request.offset)).min(1 << 20);
        let mut data = vec![0; bytes as usize];
        from.file()?.read(request.offset, &mut data);
        let to = tree.get_mut(request.to_node)?;
        write(to, request.to_offset, &data)?;
        Ok(bytes)
    }

    fn seek(&self, request: &Lseek) -> Result<u64, Errno> {
        let mut tree = self.tree();
        let node = tree.get_mut(request.node)?;
        let size = node.size;
        let offset =
            u64::try_from(request.offset).ok().filter(|offset| *offset < size).ok_or(Errno::ENXIO)?;
        match request.whence {
            libc::SEEK_DATA => node.file()?.next_data(offset).filter(|at| *at < size).ok_or(Errno::ENXIO),
            libc::SEEK_HOLE => Ok(node.file()?.next_hole(offset).min(size)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn set_xattr(&self, request: &SetXattr<'_>) -> Result<(), Errno> {
        let mut tree = self.tree();
        let node = tree.get_mut(request.node)?;
        match (request.flags, node.xattrs.contains_key(request.name)) {
            (libc::XATTR_CREATE, true) => return Err(Errno::EEXIST),
            (libc::XATTR_REPLACE, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        node.xattrs.insert(request.name.to_owned(), request.value.to_vec());
        node.changed = Time::now();
        Ok(())
    }
}

fn write(node: &mut Node, offset: u64, data: &[u8]) -> Result<(), Errno> {
    let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
    node.file()?.write(offset, data);
    node.size = node.size.max(end);
    node.touch();
    Ok(())
}

/// Answers syncs, all that wait at once.
fn complete_syncs(requests: &Receiver<ReplyEmpty>) {
    let mut batch = ReplyBatch::new();
    while let Ok(first) = requests.recv() {
        batch.ok(first);
        requests.try_iter().for_each(|reply| batch.ok(reply));
        batch.send();
    }
}

fn reply_entry(reply: ReplyEntry, result: Result<Entry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(errno) => reply.error(errno),
    }
}

fn reply_empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

impl Filesystem for MemoryFilesystem {
    fn forget(&self, forget: &Forget) {
        self.tree().forget(forget.node, forget.lookups);
    }

    fn lookup(&self, _: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        let mut tree = self.tree();
        match tree.lookup(request.parent, request.name) {
            Err(Errno::ENOENT) => reply.absent(VALID),
            found => reply_entry(reply, found.and_then(|node| MemoryFilesystem::entry(&mut tree, node))),
        }
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        match self.tree().get(request.node) {
            Ok(node) => reply.attributes(&node.attributes(request.node), VALID),
            Err(errno) => reply.error(errno),
        }
    }

    fn statx(&self, _: &RequestContext<'_>, request: &Statx, reply: ReplyStatx) {
        match self.tree().get(request.node) {
            Ok(node) => reply.attributes(&node.extended(request.node), VALID),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(&self, _: &RequestContext<'_>, request: &SetAttr, reply: ReplyAttributes) {
        match self.change(request) {
            Ok(attributes) => reply.attributes(&attributes, VALID),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &RequestContext<'_>, request: &ReadLink, reply: ReplyData) {
        match self.tree().get(request.node).map(|node| &node.kind) {
            Ok(Kind::Link(target)) => reply.data(target.as_os_str().as_bytes()),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn symlink(&self, context: &RequestContext<'_>, request: &SymLink<'_>, reply: ReplyEntry) {
        let mut tree = self.tree();
        let made =
            tree.make(request.parent, request.name, New::link(request.target, context.uid, context.gid));
        reply_entry(reply, made.and_then(|node| MemoryFilesystem::entry(&mut tree, node)));
    }

    fn mknod(&self, context: &RequestContext<'_>, request: &Mknod<'_>, reply: ReplyEntry) {
        let (parent, name) = (request.parent, request.name);
        reply_entry(reply, self.make(context, parent, name, request.mode, request.device));
    }

    fn mkdir(&self, context: &RequestContext<'_>, request: &Mkdir<'_>, reply: ReplyEntry) {
        let mode = NewMode { bits: request.mode.bits | libc::S_IFDIR, ..request.mode };
        let none = DeviceNumber::default();
        reply_entry(reply, self.make(context, request.parent, request.name, mode, none));
    }

    fn unlink(&self, _: &RequestContext<'_>, request: &Remove<'_>, reply: ReplyEmpty) {
        reply_empty(reply, self.tree().remove(request.parent, request.name, false));
    }

    fn rmdir(&self, _: &RequestContext<'_>, request: &Remove<'_>, reply: ReplyEmpty) {
        reply_empty(reply, self.tree().remove(request.parent, request.name, true));
    }

    fn rename(&self, _: &RequestContext<'_>, request: &Rename<'_>, reply: ReplyEmpty) {
        let (from, to) = ((request.parent, request.name), (request.new_parent, request.new_name));
        reply_empty(reply, self.tree().rename(from, to, request.flags));
    }

    fn link(&self, _: &RequestContext<'_>, request: &Link<'_>, reply: ReplyEntry) {
        let mut tree = self.tree();
        let linked = tree.link(request.node, request.new_parent, request.new_name);
        reply_entry(reply, linked.and_then(|()| MemoryFilesystem::entry(&mut tree, request.node)));
    }

    fn open(&self, _: &RequestContext<'_>, request: &Open, reply: ReplyOpen) {
        let mut tree = self.tree();
        let opened = MemoryFilesystem::open_node(&mut tree, request.node).and_then(|opened| {
            let node = tree.get_mut(request.node)?;
            if request.flags & libc::O_TRUNC != 0 {
                node.file()?.truncate(0);
                node.size = 0;
                node.touch();
                if request.open_flags.contains(OpenInFlags::KILL_SUIDGID) {
                    node.clear_set_id();
                }
            }
            Ok(opened)
        });
        match opened {
            Ok(opened) => reply.opened(&opened),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(&self, context: &RequestContext<'_>, request: &Create<'_>, reply: ReplyCreate) {
        let made = self.make(context, request.parent, request.name, request.mode, DeviceNumber::default());
        let opened = made.and_then(|entry| {
            MemoryFilesystem::open_node(&mut self.tree(), entry.node).map(|opened| (entry, opened))
        });
        match opened {
            Ok((entry, opened)) => reply.created(&entry, &opened),
            Err(errno) => reply.error(errno),
        }
    }

    fn tmpfile(&self, context: &RequestContext<'_>, request: &Create<'_>, reply: ReplyCreate) {
        let mode = request.mode.bits & !(request.mode.umask & 0o777);
        let mut tree = self.tree();
        let node = tree.insert(New::of_mode(mode, context.uid, context.gid, DeviceNumber::default()));
        let opened = MemoryFilesystem::entry(&mut tree, node)
            .and_then(|entry| Ok((entry, MemoryFilesystem::open_node(&mut tree, node)?)));
        match opened {
            Ok((entry, opened)) => reply.created(&entry, &opened),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(&self, _: &RequestContext<'_>, request: &Read, reply: ReplyData) {
        reply.fill(request.size as usize, |into| {
            let mut tree = self.tree();
            let node = tree.get_mut(request.node)?;
            let bytes = (into.len() as u64).min(node.size.saturating_sub(request.offset)) as usize;
            node.file()?.read(request.offset, &mut into[..bytes]);
            Ok(bytes)
        });
    }

    fn write(&self, _: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        let mut tree = self.tree();
        let written = tree.get_mut(request.node).and_then(|node| {
            if request.write_flags.contains(WriteFlags::KILL_SUIDGID) {
                node.clear_set_id();
            }
            write(node, request.offset, request.data)
        });
        match written {
            Ok(()) => reply.written(request.data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn release(&self, _: &RequestContext<'_>, request: &Release, reply: ReplyEmpty) {
        debug_assert!(!request.release_flags.contains(ReleaseFlags::FLOCK_UNLOCK), "locks are the kernel's");
        self.tree().close(request.node);
        reply.ok();
    }

    fn fsync(&self, _: &RequestContext<'_>, _: &Fsync, reply: ReplyEmpty) {
        self.sync_later(reply);
    }

    fn fsyncdir(&self, _: &RequestContext<'_>, _: &Fsync, reply: ReplyEmpty) {
        self.sync_later(reply);
    }

    fn syncfs(&self, _: &RequestContext<'_>, _: &SyncFs, reply: ReplyEmpty) {
        self.sync_later(reply);
    }

    fn readdir(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        match self.list(request, &mut |_, entry| reply.add(entry)) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectoryPlus) {
        let listed = self.list(request, &mut |tree, entry| {
            if entry.name == "." || entry.name == ".." {
                return reply.add(entry, None);
            }
            let Ok(found) = MemoryFilesystem::entry(tree, entry.node) else { return true };
            let added = reply.add(entry, Some(&found));
            if !added {
                tree.forget(entry.node, 1);
            }
            added
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &RequestContext<'_>, _: &StatFs, reply: ReplyTotals) {
        let tree = self.tree();
        let blocks = BYTES_MAX / 4096;
        let free = blocks.saturating_sub(tree.allocated() / 4096);
        reply.totals(&Totals {
            fragment_bytes: 4096,
            block_bytes: 4096,
            blocks,
            blocks_free: free,
            blocks_available: free,
            files: tree.len() as u64,
            files_free: u64::from(u32::MAX),
            name_bytes_max: 255,
        });
    }

    fn setxattr(&self, _: &RequestContext<'_>, request: &SetXattr<'_>, reply: ReplyEmpty) {
        reply_empty(reply, self.set_xattr(request));
    }

    fn getxattr(&self, _: &RequestContext<'_>, request: &GetXattr<'_>, reply: ReplyXattr) {
        let tree = self.tree();
        match tree.get(request.node).and_then(|node| node.xattrs.get(request.name).ok_or(Errno::ENODATA)) {
            Ok(value) => reply.value(value),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _: &RequestContext<'_>, request: &ListXattr, reply: ReplyXattr) {
        match self.tree().get(request.node) {
            Ok(node) => {
                let names = node.xattrs.keys().flat_map(|name| [name.as_bytes(), b"\0"].concat());
                reply.value(&names.collect::<Vec<u8>>());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn removexattr(&self, _: &RequestContext<'_>, request: &RemoveXattr<'_>, reply: ReplyEmpty) {
        let mut tree = self.tree();
        let removed = tree.get_mut(request.node).and_then(|node| {
            node.changed = Time::now();
            node.xattrs.remove(request.name).ok_or(Errno::ENODATA)
        });
        reply_empty(reply, removed.map(drop));
    }

    fn fallocate(&self, _: &RequestContext<'_>, request: &Fallocate, reply: ReplyEmpty) {
        reply_empty(reply, self.allocate(request));
    }

    fn lseek(&self, _: &RequestContext<'_>, request: &Lseek, reply: ReplyLseek) {
        match self.seek(request) {
            Ok(offset) => reply.offset(offset),
            Err(errno) => reply.error(errno),
        }
    }

    fn copy_file_range(&self, _: &RequestContext<'_>, request: &CopyFileRange, reply: ReplyCopy) {
        match self.copy(request) {
            Ok(bytes) => reply.copied(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn ioctl(&self, _: &RequestContext<'_>, request: &Ioctl<'_>, reply: ReplyIoctl) {
        match request.command {
            BACKWARDS => {
                let output: Vec<u8> = request.input.iter().rev().copied().collect();
                reply.output(0, &output);
            }
            _ => reply.error(Errno::ENOTTY),
        }
    }
}
