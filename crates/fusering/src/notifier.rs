//! Messages to the kernel that no request asked for.
//!
//! They go out over /dev/fuse, whichever transport brings the requests. Those about cached data may wait for pages that
//! are being read or written, that is for answers of the filesystem itself: never send one from within a request's
//! method about the same node, or with locks held that such a method needs.

use crate::abi::{
    InvalEntryFlags, NotifyCode, NotifyDelete, NotifyInvalEntry, NotifyInvalInode, NotifyPollWakeup,
    NotifyRetrieve, NotifyStore, OutHeader,
};
use crate::transport::connection::Connection;
use crate::types::{NodeId, PollHandle};
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Number of the first retrieval. Over io_uring the kernel looks its message up among its own requests, whose even
/// numbers count from 2 on and never get here; odd ones it takes for interruptions.
const RETRIEVAL_FIRST: u64 = 1 << 62;

/// Sends notifications. Errors of all methods: ENOENT if the kernel does not know the node or name (nothing is cached
/// of it: mostly as good as success), ENODEV after the end of the connection.
#[derive(Clone)]
pub struct Notifier {
    connection: Arc<Connection>,
    retrievals: Arc<AtomicU64>,
}

impl Notifier {
    pub(crate) fn new(connection: Arc<Connection>) -> Notifier {
        Notifier { connection, retrievals: Arc::new(AtomicU64::new(RETRIEVAL_FIRST)) }
    }

    /// The kernel drops the node's attributes and its cached data in `len` bytes from `offset` on (`len` 0: up to the
    /// end; a negative `offset`: attributes only).
    pub fn invalidate_node(&self, node: NodeId, offset: i64, len: i64) -> io::Result<()> {
        let message = NotifyInvalInode { ino: node.0, off: offset, len };
        self.send(NotifyCode::INVAL_INODE, &[message.as_bytes()])
    }

    /// The kernel forgets what `name` is.
    pub fn invalidate_entry(&self, parent: NodeId, name: &OsStr) -> io::Result<()> {
        self.entry(parent, name, InvalEntryFlags::empty())
    }

    /// The kernel asks again what `name` is before it is used next; what is mounted or open below stays.
    pub fn expire_entry(&self, parent: NodeId, name: &OsStr) -> io::Result<()> {
        self.entry(parent, name, InvalEntryFlags::EXPIRE_ONLY)
    }

    fn entry(&self, parent: NodeId, name: &OsStr, flags: InvalEntryFlags) -> io::Result<()> {
        let name = name.as_bytes();
        let message = NotifyInvalEntry { parent: parent.0, namelen: name.len() as u32, flags };
        self.send(NotifyCode::INVAL_ENTRY, &[message.as_bytes(), name, &[0]])
    }

    /// `name`, which was `child`, was removed: watchers are told, unlike with an invalidation.
    pub fn deleted(&self, parent: NodeId, child: NodeId, name: &OsStr) -> io::Result<()> {
        let name = name.as_bytes();
        let message =
            NotifyDelete { parent: parent.0, child: child.0, namelen: name.len() as u32, padding: 0 };
        self.send(NotifyCode::DELETE, &[message.as_bytes(), name, &[0]])
    }

    /// Puts data into the kernel's cache of the node.
    pub fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
        let message = NotifyStore { nodeid: node.0, offset, size, padding: 0 };
        self.send(NotifyCode::STORE, &[message.as_bytes(), data])
    }

    /// Asks for cached data; [`Filesystem::retrieved`](crate::Filesystem::retrieved) gets it with the number returned
    /// here.
    pub fn retrieve(&self, node: NodeId, offset: u64, size: u32) -> io::Result<u64> {
        let notify_unique = self.retrievals.fetch_add(2, Ordering::Relaxed);
        let message = NotifyRetrieve { notify_unique, nodeid: node.0, offset, size, padding: 0 };
        self.send(NotifyCode::RETRIEVE, &[message.as_bytes()])?;
        Ok(notify_unique)
    }

    /// Whoever polls the file of [`Poll::wakeup`](crate::request::Poll) polls again.
    pub fn poll_wakeup(&self, handle: PollHandle) -> io::Result<()> {
        self.send(NotifyCode::POLL, &[NotifyPollWakeup { kh: handle.0 }.as_bytes()])
    }

    /// All names that the kernel knows are looked up again before they are used next (since 6.16).
    pub fn expire_all(&self) -> io::Result<()> {
        self.send(NotifyCode::INC_EPOCH, &[])
    }

    /// All requests that were read but not answered are sent again, with [`UNIQUE_RESEND`](crate::abi::UNIQUE_RESEND)
    /// set in their number; for a filesystem that took a connection over from another process (HAS_RESEND).
    pub fn resend(&self) -> io::Result<()> {
        self.send(NotifyCode::RESEND, &[])
    }

    fn send(&self, code: NotifyCode, parts: &[&[u8]]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = (size_of::<OutHeader>() + bytes) as u32;
        let header = OutHeader { len, error: code.0, unique: 0 };
        let mut pieces = Vec::with_capacity(parts.len() + 1);
        pieces.push(IoSlice::new(header.as_bytes()));
        pieces.extend(parts.iter().map(|part| IoSlice::new(part)));
        self.connection.write(&pieces)
    }
}
