//! Open file descriptions, and the operations on them.
//!
//! A handle keeps its inode: as long as one exists, an inode without names stays. What was opened by truncating to zero
//! has its writeback started at close (C3).

use crate::attr::not_found_is_stale;
use crate::data::WriteAt;
use crate::flags::{is_append_only, is_immutable};
use crate::inode::{Inode, InodeState};
use crate::{Context, Error, FallocateMode, Fs, Result, SeekWhat, SetAttr, SyncScope};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use syncline_format::ObjectNo;
use syncline_format::item::{FILE_BYTES_MAX, InodeItem};

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
}

/// All open file descriptions of a volume.
#[derive(Default)]
pub(crate) struct HandleTable {
    next: AtomicU64,
    open: RwLock<HashMap<HandleId, Arc<OpenFile>>>,
}

impl HandleTable {
    fn add(&self, open: OpenFile) -> HandleId {
        let id = HandleId(self.next.fetch_add(1, Ordering::Relaxed) + 1);
        open.inode.writers.fetch_add(u64::from(open.flags.write), Ordering::Relaxed);
        self.open.write().insert(id, Arc::new(open));
        id
    }

    fn get(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        self.open.read().get(&id).cloned().ok_or(Error::BadHandle)
    }

    fn remove(&self, id: HandleId) -> Result<Arc<OpenFile>> {
        let open = self.open.write().remove(&id).ok_or(Error::BadHandle)?;
        open.inode.writers.fetch_sub(u64::from(open.flags.write), Ordering::Relaxed);
        Ok(open)
    }

    fn take_all(&self) -> Vec<HandleId> {
        self.open.read().keys().copied().collect()
    }
}

/// Keeps an inode's content like an open handle does, for the length of one operation.
pub(crate) struct Held<'a> {
    fs: &'a Fs,
    inode: Option<Arc<Inode>>,
}

impl Held<'_> {
    /// Lets go; removes the inode if that was the last thing that kept it.
    pub(crate) fn release(mut self) -> Result<()> {
        match self.inode.take() {
            Some(inode) => self.fs.let_go(&inode),
            None => Ok(()),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(inode) = self.inode.take()
            && let Err(error) = self.fs.let_go(&inode)
        {
            // The orphan item stays, so the next mount removes the inode.
            tracing::warn!(inode = %inode.number, %error, "removing an unlinked inode failed");
        }
    }
}

impl Fs {
    /// Opens a file. Errors: `Stale`, `IsDirectory` (for writing), `SymlinkLoop` (a symbolic link), `NotPermitted`
    /// (immutable; append-only without append), `ReadOnly`.
    pub fn open_handle(&self, ctx: &Context, number: ObjectNo, flags: OpenFlags) -> Result<HandleId> {
        let inode = self.live_inode(number)?;
        if flags.write || flags.truncate {
            self.check_writable()?;
        }
        {
            let state = inode.state.read();
            let item = &state.item;
            if flags.write && item.is_directory() {
                return Err(Error::IsDirectory);
            }
            if item.is_symlink() {
                return Err(Error::SymlinkLoop);
            }
            if !item.is_regular() && !item.is_directory() {
                return Err(Error::NoSuchDevice);
            }
            if flags.write && is_immutable(item) {
                return Err(Error::NotPermitted);
            }
            if is_append_only(item) && ((flags.write && !flags.append) || flags.truncate) {
                return Err(Error::NotPermitted);
            }
            self.count_handle(&inode, &state)?;
        }
        let id = self.add_counted_handle(inode, flags);
        if flags.truncate {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(error) = self.setattr(ctx, number, &set, None) {
                self.release(id)?;
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Opens a directory for [`Fs::readdir`]. Errors: `Stale`, `NotDirectory`.
    pub fn opendir(&self, number: ObjectNo) -> Result<HandleId> {
        let inode = self.live_inode(number)?;
        {
            let state = inode.state.read();
            if !state.item.is_directory() {
                return Err(Error::NotDirectory);
            }
            self.count_handle(&inode, &state)?;
        }
        Ok(self.add_counted_handle(inode, OpenFlags::READ))
    }

    /// Counts a handle; the caller holds the inode's state, so that it cannot be removed in between.
    fn count_handle(&self, inode: &Inode, state: &InodeState) -> Result<()> {
        if state.is_gone() {
            return Err(Error::Stale);
        }
        inode.handles.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Registers a handle that is counted in `Inode::handles` already.
    pub(crate) fn add_counted_handle(&self, inode: Arc<Inode>, flags: OpenFlags) -> HandleId {
        self.handles.add(OpenFile { inode, flags })
    }

    pub(crate) fn open_file(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        self.handles.get(handle)
    }

    pub(crate) fn hold(&self, inode: &Arc<Inode>) -> Result<Held<'_>> {
        self.count_handle(inode, &inode.state.read())?;
        Ok(Held { fs: self, inode: Some(inode.clone()) })
    }

    pub(crate) fn let_go(&self, inode: &Arc<Inode>) -> Result<()> {
        if inode.handles.fetch_sub(1, Ordering::SeqCst) == 1 && inode.state.read().item.nlink == 0 {
            return self.reap_if_unused(inode);
        }
        Ok(())
    }

    /// Inode number of an open file.
    pub fn handle_inode(&self, handle: HandleId) -> Result<ObjectNo> {
        Ok(self.open_file(handle)?.inode.number)
    }

    /// Whether the file was opened for writing. Errors: `BadHandle`.
    pub fn handle_is_writable(&self, handle: HandleId) -> Result<bool> {
        Ok(self.open_file(handle)?.flags.write)
    }

    /// Whether the file was opened with [`OpenFlags::direct`]. Errors: `BadHandle`.
    pub fn handle_is_direct(&self, handle: HandleId) -> Result<bool> {
        Ok(self.open_file(handle)?.flags.direct)
    }

    /// Whether somebody has it open for writing. Errors: `Stale`.
    pub fn is_open_for_writing(&self, number: ObjectNo) -> Result<bool> {
        Ok(self.live_inode(number)?.writers.load(Ordering::Relaxed) > 0)
    }

    /// Type and permission bits of an open file. Errors: `BadHandle`.
    pub fn handle_mode(&self, handle: HandleId) -> Result<u32> {
        Ok(self.open_file(handle)?.inode.state.read().item.mode)
    }

    /// Attributes of an open file, which may have lost all its names.
    pub fn handle_attr(&self, handle: HandleId) -> Result<crate::Attr> {
        Ok(self.attr(&self.open_file(handle)?.inode))
    }

    /// Reads; returns fewer bytes than asked for only at the end of the file.
    ///
    /// Errors: `BadHandle` (not open for reading), `IsDirectory`, `Checksum` (C7), I/O errors.
    pub fn read(&self, handle: HandleId, offset: u64, into: &mut [u8]) -> Result<usize> {
        let open = self.regular(handle)?;
        if !open.flags.read {
            return Err(Error::BadHandle);
        }
        let count = self.file_read(&open.inode, offset, into)?;
        if !into.is_empty() {
            self.touch_accessed(&open.inode, open.flags.no_atime);
        }
        Ok(count)
    }

    /// Writes; returns where the data went and how much was written (less than asked for only when space ran out).
    /// With `O_SYNC` or `O_DSYNC` it is durable on return.
    ///
    /// Errors: `BadHandle` (not open for writing), `IsDirectory`, `FileTooLarge`, `NoSpace`, `NotPermitted`,
    /// `ReadOnly`.
    pub fn write(&self, ctx: &Context, handle: HandleId, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        let (written_at, count, scope) = self.write_unsynced(ctx, handle, offset, data)?;
        if let Some(scope) = scope {
            self.sync_handle(handle, scope)?;
        }
        Ok((written_at, count))
    }

    /// Like [`Fs::write`], but leaves the sync that the handle's flags demand to the caller, who gets its scope.
    pub fn write_unsynced(
        &self,
        ctx: &Context,
        handle: HandleId,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize, Option<SyncScope>)> {
        let open = self.writable(handle)?;
        self.check_writable()?;
        if data.is_empty() {
            return Ok((offset, 0, None));
        }
        if !open.flags.append && offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX)
        {
            return Err(Error::FileTooLarge);
        }
        let at = if open.flags.append { WriteAt::End } else { WriteAt::Offset(offset) };
        self.drop_capabilities(&open.inode)?;
        let (written_at, count) = self.file_write(&open.inode, at, data, &mut strip_for(ctx))?;
        let scope = match (open.flags.sync, open.flags.dsync) {
            (true, _) => Some(SyncScope::All),
            (false, true) => Some(SyncScope::Data),
            (false, false) => None,
        };
        Ok((written_at, count, scope))
    }

    /// `close(2)` of one descriptor: a file that was truncated to zero and rewritten is written back (C3).
    pub fn flush(&self, handle: HandleId) -> Result<()> {
        let open = self.open_file(handle)?;
        if open.flags.write && open.inode.truncated_to_zero.swap(false, Ordering::Relaxed) {
            self.write_back_file(&open.inode)?;
        }
        Ok(())
    }

    /// Ends a handle of a file or directory. An inode that this leaves without names and handles is removed.
    ///
    /// Errors: `BadHandle`; what writeback or removal met, with the handle gone all the same.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        let flushed = self.flush(handle);
        let open = self.handles.remove(handle)?;
        let removed = self.let_go(&open.inode);
        match flushed {
            // Its content is removed anyway.
            Err(_) if open.inode.state.read().is_gone() => removed,
            flushed => flushed.and(removed),
        }
    }

    /// Makes an open file durable (C1). For a directory that is every metadata operation up to now.
    pub fn sync_handle(&self, handle: HandleId, scope: SyncScope) -> Result<()> {
        let open = self.open_file(handle)?;
        self.sync_inode_object(&open.inode, scope)
    }

    /// Makes an inode durable (C1). Errors: `Stale`, I/O errors, and once the volume failed always its cause (C8).
    pub fn sync_inode(&self, number: ObjectNo, scope: SyncScope) -> Result<()> {
        let inode = self.live_inode(number)?;
        self.sync_inode_object(&inode, scope)
    }

    fn sync_inode_object(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()> {
        if self.is_read_only() {
            return self.store.failure().map_or(Ok(()), |failure| Err(failure.into()));
        }
        self.file_sync(inode, scope)
    }

    /// Starts making an open file durable; `done` is called when it is, maybe before this returns.
    pub fn start_sync_handle(
        &self,
        handle: HandleId,
        scope: SyncScope,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) -> Result<()> {
        let open = self.open_file(handle)?;
        self.start_file_sync(&open.inode, scope, done);
        Ok(())
    }

    /// Allocates, punches, zeroes, collapses or inserts. Errors: `BadHandle`, `Invalid`, `FileTooLarge`, `NoSpace`,
    /// `NotPermitted` (immutable, append-only), `ReadOnly`.
    pub fn fallocate(
        &self,
        ctx: &Context,
        handle: HandleId,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let open = self.writable(handle)?;
        self.check_writable()?;
        if len == 0 {
            return Err(Error::Invalid("nothing to allocate: the length is 0"));
        }
        if offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(Error::FileTooLarge);
        }
        if is_append_only(&open.inode.state.read().item)
            && !matches!(mode, FallocateMode::Allocate { keep_size: true })
        {
            return Err(Error::NotPermitted);
        }
        self.drop_capabilities(&open.inode)?;
        self.file_allocate(&open.inode, mode, offset, len, &mut strip_for(ctx))
    }

    /// Offset of the next data or hole at or behind `offset`. Errors: `NoSuchDevice` when there is none.
    pub fn seek(&self, handle: HandleId, offset: u64, what: SeekWhat) -> Result<u64> {
        let open = self.regular(handle)?;
        self.file_seek(&open.inode, offset, what)
    }

    /// Copies a range between two open files; returns how much was copied.
    ///
    /// Errors: `BadHandle`, `Invalid` (overlap within one file), `FileTooLarge`, `NoSpace`, `ReadOnly`.
    pub fn copy_file_range(
        &self,
        ctx: &Context,
        source: (HandleId, u64),
        target: (HandleId, u64),
        len: u64,
    ) -> Result<u64> {
        let from = self.regular(source.0)?;
        let to = self.writable(target.0)?;
        if !from.flags.read || to.flags.append {
            return Err(Error::BadHandle);
        }
        self.check_writable()?;
        let too_far = |at: u64| at.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX);
        if too_far(target.1) {
            return Err(Error::FileTooLarge);
        }
        if too_far(source.1) {
            return Err(Error::Invalid("the range to copy ends beyond the largest possible offset"));
        }
        let (first, second) = (source.1.min(target.1), source.1.max(target.1));
        if Arc::ptr_eq(&from.inode, &to.inode) && first + len > second {
            return Err(Error::Invalid("the ranges to copy overlap"));
        }
        if len == 0 {
            return Ok(0);
        }
        self.drop_capabilities(&to.inode)?;
        if !ctx.is_privileged() {
            self.strip_before_copy(ctx, &to.inode)?;
        }
        self.file_copy_range(&from.inode, source.1, &to.inode, target.1, len)
    }

    fn strip_before_copy(&self, ctx: &Context, inode: &Arc<Inode>) -> Result<()> {
        const SET_ID: u32 = crate::namespace::MODE_SETUID | crate::namespace::MODE_SETGID;
        if inode.state.read().item.mode & SET_ID == 0 {
            return Ok(());
        }
        let set = SetAttr { strip_set_id: true, ..SetAttr::default() };
        self.setattr(ctx, inode.number, &set, None).map(drop)
    }

    /// Releases what is still open, so that unlinked files are removed before the volume is closed.
    pub(crate) fn release_all(&self) {
        for handle in self.handles.take_all() {
            if let Err(error) = self.release(handle) {
                tracing::warn!(%error, "closing a file at the end of the session failed");
            }
        }
    }

    pub(crate) fn regular(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let open = self.open_file(handle)?;
        let state = open.inode.state.read();
        if state.item.is_directory() {
            return Err(Error::IsDirectory);
        }
        if !state.item.is_regular() {
            return Err(Error::Invalid("not a regular file"));
        }
        drop(state);
        Ok(open)
    }

    fn writable(&self, handle: HandleId) -> Result<Arc<OpenFile>> {
        let open = self.regular(handle)?;
        if !open.flags.write {
            return Err(Error::BadHandle);
        }
        if is_immutable(&open.inode.state.read().item) {
            return Err(Error::NotPermitted);
        }
        Ok(open)
    }

    /// The inode, if it is still in use. Errors: `Stale`.
    pub(crate) fn live_inode(&self, number: ObjectNo) -> Result<Arc<Inode>> {
        let inode = self.inode(number).map_err(not_found_is_stale)?;
        if inode.state.read().is_gone() {
            return Err(Error::Stale);
        }
        Ok(inode)
    }
}

/// What a write by this caller does to a file's set-id bits.
fn strip_for(ctx: &Context) -> impl FnMut(&mut InodeItem) {
    |item| {
        if !ctx.is_privileged() {
            crate::acl::strip_set_id(ctx, item);
        }
    }
}
