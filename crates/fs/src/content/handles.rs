//! Open file descriptions. A handle keeps its inode: as long as one exists, an inode without names stays.

use crate::content::Content;
use crate::content::inode::{Inode, InodeState};
use crate::core::levels::Lock;
use crate::error::not_found_is_stale;
use crate::{Error, ObjectNo, Result};
use foldhash::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use syncline_store::lock_order::RwLock;

/// Names an open file description of one [`Fs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleId(pub u64);

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Reading is allowed.
    pub read: bool,
    /// Writing is allowed.
    pub write: bool,
    /// Every write goes to the end (O_APPEND).
    pub append: bool,
    /// Truncate to zero first (O_TRUNC).
    pub truncate: bool,
    /// A write returns when it and all attributes are durable (O_SYNC).
    pub sync: bool,
    /// A write returns when it is durable (O_DSYNC).
    pub dsync: bool,
    /// The caller does not want caching (O_DIRECT); a hint.
    pub direct: bool,
    /// Reading does not change the access time (O_NOATIME).
    pub no_atime: bool,
}

impl OpenFlags {
    /// For reading only.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        truncate: false,
        sync: false,
        dsync: false,
        direct: false,
        no_atime: false,
    };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };

    /// From the flags of `open(2)` as Linux on x86-64 and most other architectures numbers them.
    pub fn from_linux(flags: i32) -> OpenFlags {
        let has = |bit: i32| flags & bit == bit;
        let access = flags & 0o3;
        OpenFlags {
            read: access == 0 || access == 2,
            write: access == 1 || access == 2,
            append: has(0o2000),
            truncate: has(0o1000),
            sync: has(0o4010000),
            dsync: has(0o10000),
            direct: has(0o40000),
            no_atime: has(0o1000000),
        }
    }
}

/// An open file description.
pub(crate) struct OpenFile {
    pub(crate) inode: Arc<Inode>,
    pub(crate) flags: OpenFlags,
    /// The handle has ended: whoever still has this gets `BadHandle`. Relaxed: a call that runs beside the end of its
    /// handle may come before it or behind.
    released: AtomicBool,
}

/// An open file description that is held: calls that get it look nothing up. It does not keep the handle from ending.
#[derive(Clone)]
pub struct Opened(Arc<OpenFile>);

/// Which open file description a call is for.
#[derive(Clone, Copy)]
pub enum Handle<'a> {
    /// It is looked up.
    Named(HandleId),
    /// It is there.
    Held(&'a Opened),
}

impl From<HandleId> for Handle<'_> {
    fn from(id: HandleId) -> Self {
        Handle::Named(id)
    }
}

impl<'a> From<&'a Opened> for Handle<'a> {
    fn from(opened: &'a Opened) -> Self {
        Handle::Held(opened)
    }
}

/// All open file descriptions of a volume.
pub(crate) struct HandleTable {
    next: AtomicU64,
    open: RwLock<HashMap<HandleId, Arc<OpenFile>>>,
}

impl Default for HandleTable {
    fn default() -> HandleTable {
        HandleTable { next: AtomicU64::new(0), open: RwLock::new(Lock::Handles, HashMap::default()) }
    }
}

impl HandleTable {
    pub(crate) fn add(&self, open: OpenFile) -> HandleId {
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        open.inode.writers.fetch_add(u64::from(open.flags.write), Ordering::Relaxed);
        self.open.write().insert(id, Arc::new(open));
        id
    }

    pub(crate) fn get(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        self.open.read().get(&id).cloned().ok_or(Error::BadHandle)
    }

    pub(crate) fn remove(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        let open = self.open.write().remove(&id).ok_or(Error::BadHandle)?;
        open.released.store(true, Ordering::Relaxed);
        open.inode.writers.fetch_sub(u64::from(open.flags.write), Ordering::Relaxed);
        Ok(open)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.read().is_empty()
    }

    pub(crate) fn take_all(&self) -> Vec<HandleId> {
        self.open.read().keys().copied().collect()
    }
}

impl Content {
    /// Counts a handle; the caller holds the inode's state, so that it cannot be removed in between.
    pub(crate) fn count_handle(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        if state.is_gone() {
            return Err(Error::Stale);
        }
        inode.handles.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The inode, if it is still in use. Errors: `Stale`.
    pub(crate) fn live_inode(&self, number: ObjectNo) -> Result<Arc<Inode>> {
        let inode = self.inode(number).map_err(not_found_is_stale)?;
        if inode.state.read().is_gone() {
            return Err(Error::Stale);
        }
        Ok(inode)
    }

    /// Errors: `BadHandle`.
    pub(crate) fn open_file<'a>(&self, handle: impl Into<Handle<'a>>) -> Result<Arc<OpenFile>> {
        match handle.into() {
            Handle::Named(id) => self.handles.get(id),
            Handle::Held(Opened(open)) if open.released.load(Ordering::Relaxed) => Err(Error::BadHandle),
            Handle::Held(Opened(open)) => Ok(open.clone()),
        }
    }

    /// What the handle names, to be held. Errors: `BadHandle`.
    pub(crate) fn opened(&self, handle: HandleId) -> Result<Opened> {
        self.open_file(handle).map(Opened)
    }

    /// Registers a handle that is counted in `Inode::handles` already.
    pub(crate) fn add_counted_handle(&self, inode: Arc<Inode>, flags: OpenFlags) -> HandleId {
        self.handles.add(OpenFile { inode, flags, released: AtomicBool::new(false) })
    }
}
