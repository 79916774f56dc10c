//! A filesystem that answers at once and keeps nothing, so that only the way to it and back takes time.

use fusering::abi::{AttrFlags, FsyncFlags, OpenFlags};
use fusering::request::{Create, Fsync, GetAttr, Lookup, Open, ReadDir, Write};
use fusering::{
    Attributes, DeviceNumber, DirectoryEntry, Entry, Errno, Filesystem, Handle, NodeId, Opened,
    ReplyAttributes, ReplyBatch, ReplyCreate, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, RequestContext, Time,
};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Names that the directory shows.
pub const ENTRIES: u64 = 10_000;
/// Numbers of the files that callers make.
const FIRST_NEW: u64 = 1 << 32;

/// Names are kept, so that only what is measured is asked for.
const LONG: Duration = Duration::from_secs(3600);

/// Files `0` to `7`, which take all data and keep none.
pub struct Nothing {
    syncs: Sender<ReplyEmpty>,
    made: AtomicU64,
}

impl Nothing {
    pub fn new() -> Nothing {
        let (syncs, requests) = channel();
        std::thread::spawn(move || answer_together(&requests));
        Nothing { syncs, made: AtomicU64::new(FIRST_NEW) }
    }

    fn attributes(node: NodeId) -> Attributes {
        let root = node == NodeId::ROOT;
        Attributes {
            ino: node.0,
            mode: if root { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 },
            size: if root { 0 } else { 4096 },
            links: 1,
            blocks: 8,
            accessed: Time::default(),
            modified: Time::default(),
            changed: Time::default(),
            uid: 0,
            gid: 0,
            device: DeviceNumber::default(),
            block_bytes: 4096,
            flags: AttrFlags::empty(),
        }
    }
}

impl Nothing {
    fn entry(node: NodeId) -> Entry {
        let attributes = Nothing::attributes(node);
        // The attributes are never believed: `stat` is to ask.
        let attributes_valid = Duration::ZERO;
        Entry { node, generation: 0, attributes, entry_valid: LONG, attributes_valid }
    }

    fn opened() -> Opened {
        Opened { handle: Handle(0), flags: OpenFlags::NOFLUSH }
    }
}

impl Filesystem for Nothing {
    fn lookup(&self, _: &RequestContext<'_>, request: &Lookup<'_>, reply: ReplyEntry) {
        match request.name.as_bytes() {
            [digit @ b'0'..=b'7'] => {
                reply.entry(&Nothing::entry(NodeId(u64::from(digit - b'0') + 2)));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &RequestContext<'_>, request: &GetAttr, reply: ReplyAttributes) {
        // Those of the directory are kept: a path through it is one request.
        let valid = if request.node == NodeId::ROOT { LONG } else { Duration::ZERO };
        reply.attributes(&Nothing::attributes(request.node), valid);
    }

    fn open(&self, _: &RequestContext<'_>, _: &Open, reply: ReplyOpen) {
        reply.opened(&Nothing::opened());
    }

    fn create(&self, _: &RequestContext<'_>, _: &Create<'_>, reply: ReplyCreate) {
        let node = NodeId(self.made.fetch_add(1, Ordering::Relaxed));
        reply.created(&Nothing::entry(node), &Nothing::opened());
    }

    fn readdir(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectory) {
        list(request.offset, |entry| reply.add(entry));
        reply.ok();
    }

    fn readdirplus(&self, _: &RequestContext<'_>, request: &ReadDir, mut reply: ReplyDirectoryPlus) {
        list(request.offset, |entry| reply.add(entry, None));
        reply.ok();
    }

    fn write(&self, _: &RequestContext<'_>, request: &Write<'_>, reply: ReplyWrite) {
        reply.written(request.data.len() as u32);
    }

    fn fsync(&self, _: &RequestContext<'_>, request: &Fsync, reply: ReplyEmpty) {
        if request.flags.contains(FsyncFlags::FDATASYNC) {
            // The thread lives as long as this sender.
            let _ = self.syncs.send(reply);
        } else {
            reply.ok();
        }
    }
}

/// Adds the names from `offset` on, as long as there is room.
fn list(offset: u64, mut add: impl FnMut(&DirectoryEntry<'_>) -> bool) {
    for index in offset..ENTRIES {
        let (name, node) = (format!("entry-{index}"), NodeId(FIRST_NEW + index));
        if !add(&DirectoryEntry { node, next: index + 1, file_type: libc::DT_REG, name: name.as_ref() }) {
            return;
        }
    }
}

/// Answers what has come together in one batch, as a group commit does.
fn answer_together(requests: &Receiver<ReplyEmpty>) {
    let mut batch = ReplyBatch::new();
    while let Ok(first) = requests.recv() {
        batch.ok(first);
        requests.try_iter().for_each(|reply| batch.ok(reply));
        batch.send();
    }
}
