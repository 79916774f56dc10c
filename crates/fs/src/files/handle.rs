//! Open file descriptions, and the operations on them.
//!
//! A handle keeps its inode: as long as one exists, an inode without names stays. What was opened by truncating to zero
//! has its writeback started at close (C3).

use crate::attributes::flags::{is_append_only, is_immutable};
use crate::content::handles::OpenFile;
use crate::content::inode::{Inode, InodeState};
use crate::write::WriteAt;
use crate::{
    Context, Error, FallocateMode, Files, Handle, HandleId, OpenFlags, Opened, Reach, Result, SeekWhat,
    SetAttr, SyncScope,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::ObjectNo;
use syncline_format::item::{FILE_BYTES_MAX, InodeItem};

impl Files {
    /// Opens a file. Errors: `Stale`, `IsDirectory` (for writing), `SymlinkLoop` (a symbolic link), `NotPermitted`
    /// (immutable; append-only without append), `ReadOnly`.
    pub fn open_handle(&self, ctx: &Context, number: ObjectNo, flags: OpenFlags) -> Result<HandleId> {
        let inode = self.content.live_inode(number)?;
        if flags.write || flags.truncate {
            self.core.check_writable()?;
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
            self.content.count_handle(&inode, &state)?;
        }
        let id = self.content.add_counted_handle(inode, flags);
        if flags.truncate {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            if let Err(error) = self.attributes.setattr(ctx, number, &set, None) {
                self.release(id)?;
                return Err(error);
            }
        }
        Ok(id)
    }

    /// Opens a directory for `Names::readdir`. Errors: `Stale`, `NotDirectory`.
    pub fn opendir(&self, number: ObjectNo) -> Result<HandleId> {
        let inode = self.content.live_inode(number)?;
        {
            let state = inode.state.read();
            if !state.item.is_directory() {
                return Err(Error::NotDirectory);
            }
            self.content.count_handle(&inode, &state)?;
        }
        Ok(self.content.add_counted_handle(inode, OpenFlags::READ))
    }

    /// What a handle names, for who calls often: it is given to calls in the handle's place, and nothing is looked up.
    /// Once the handle is released, they fail as with the handle. Errors: `BadHandle`.
    pub fn opened(&self, handle: HandleId) -> Result<Opened> {
        self.content.opened(handle)
    }

    /// Inode number of an open file.
    pub fn handle_inode(&self, handle: HandleId) -> Result<ObjectNo> {
        Ok(self.content.open_file(handle)?.inode.number)
    }

    /// Whether the file was opened for writing. Errors: `BadHandle`.
    pub fn handle_is_writable(&self, handle: HandleId) -> Result<bool> {
        Ok(self.content.open_file(handle)?.flags.write)
    }

    /// Whether the file was opened with [`OpenFlags::direct`]. Errors: `BadHandle`.
    pub fn handle_is_direct(&self, handle: HandleId) -> Result<bool> {
        Ok(self.content.open_file(handle)?.flags.direct)
    }

    /// Whether somebody has it open for writing. Errors: `Stale`.
    pub fn is_open_for_writing(&self, number: ObjectNo) -> Result<bool> {
        Ok(self.content.live_inode(number)?.writers.load(Ordering::Relaxed) > 0)
    }

    /// Type and permission bits of an open file. Errors: `BadHandle`.
    pub fn handle_mode(&self, handle: HandleId) -> Result<u32> {
        Ok(self.content.open_file(handle)?.inode.state.read().item.mode)
    }

    /// Attributes of an open file, which may have lost all its names.
    pub fn handle_attr(&self, handle: HandleId) -> Result<crate::Attr> {
        Ok(self.attributes.attr(&self.content.open_file(handle)?.inode))
    }

    /// Reads; returns fewer bytes than asked for only at the end of the file.
    ///
    /// Errors: `BadHandle` (not open for reading), `IsDirectory`, `Checksum` (C7), I/O errors.
    pub fn read<'a>(&self, handle: impl Into<Handle<'a>>, offset: u64, into: &mut [u8]) -> Result<usize> {
        let open = self.regular(handle)?;
        if !open.flags.read {
            return Err(Error::BadHandle);
        }
        let count = self.shape.file_read(&open.inode, offset, into)?;
        if !into.is_empty() {
            self.attributes.touch_accessed(&open.inode, open.flags.no_atime);
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

    /// Like `Files::write`, but leaves the sync that the handle's flags demand to the caller, who gets its scope.
    pub fn write_unsynced<'a>(
        &self,
        ctx: &Context,
        handle: impl Into<Handle<'a>>,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize, Option<SyncScope>)> {
        let open = self.content.open_file(handle)?;
        let scope = match (open.flags.sync, open.flags.dsync) {
            (true, _) => Some(SyncScope::All),
            (false, true) => Some(SyncScope::Data),
            (false, false) => None,
        };
        let at = if open.flags.append { WriteAt::End } else { WriteAt::Offset(offset) };
        let may = |state: &InodeState| {
            let item = &state.item;
            let is_plain = item.is_regular() && state.has_capabilities == Some(false);
            open.flags.write && is_plain && !is_immutable(item)
        };
        if let Some(at) = self.writer.write_at_once(&open.inode, at, data, &may, &mut strip_for(ctx)) {
            return Ok((at, data.len(), scope));
        }
        let may_have_capabilities = self.check_writable(&open)?;
        self.core.check_writable()?;
        if data.is_empty() {
            return Ok((offset, 0, None));
        }
        if !open.flags.append && offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX)
        {
            return Err(Error::FileTooLarge);
        }
        if may_have_capabilities {
            self.attributes.drop_capabilities(&open.inode)?;
        }
        let (written_at, count) = self.writer.file_write(&open.inode, at, data, &mut strip_for(ctx))?;
        Ok((written_at, count, scope))
    }

    /// `close(2)` of one descriptor: a file that was truncated to zero and rewritten is written back (C3).
    pub fn flush(&self, handle: HandleId) -> Result<()> {
        let open = self.content.open_file(handle)?;
        if open.flags.write && open.inode.truncated_to_zero.swap(false, Ordering::Relaxed) {
            self.syncs.write_back_file(&open.inode)?;
        }
        Ok(())
    }

    /// Ends a handle of a file or directory. An inode that this leaves without names and handles is removed.
    ///
    /// Errors: `BadHandle`; what writeback or removal met, with the handle gone all the same.
    pub fn release(&self, handle: HandleId) -> Result<()> {
        let flushed = self.flush(handle);
        let open = self.content.handles.remove(handle)?;
        let removed = self.removal.let_go(&open.inode);
        match flushed {
            // Its content is removed anyway.
            Err(_) if open.inode.state.read().is_gone() => removed,
            flushed => flushed.and(removed),
        }
    }

    /// Makes an open file durable (C1). For a directory that is every metadata operation up to now.
    pub fn sync_handle<'a>(&self, handle: impl Into<Handle<'a>>, scope: SyncScope) -> Result<()> {
        self.syncs.sync(handle, scope, Reach::Whole)
    }

    /// Makes an inode durable (C1). Errors: `Stale`, I/O errors, and once the volume failed always its cause (C8).
    pub fn sync_inode(&self, number: ObjectNo, scope: SyncScope) -> Result<()> {
        let inode = self.content.live_inode(number)?;
        self.syncs.file_sync(&inode, scope)
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
        let (open, _) = self.writable(handle)?;
        self.core.check_writable()?;
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
        self.attributes.drop_capabilities(&open.inode)?;
        self.shape.file_allocate(&open.inode, mode, offset, len, &mut strip_for(ctx))
    }

    /// Offset of the next data or hole at or behind `offset`. Errors: `NoSuchDevice` when there is none.
    pub fn seek(&self, handle: HandleId, offset: u64, what: SeekWhat) -> Result<u64> {
        let open = self.regular(handle)?;
        self.shape.file_seek(&open.inode, offset, what)
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
        let (to, _) = self.writable(target.0)?;
        if !from.flags.read || to.flags.append {
            return Err(Error::BadHandle);
        }
        self.core.check_writable()?;
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
        self.attributes.drop_capabilities(&to.inode)?;
        if !ctx.is_privileged() {
            self.strip_before_copy(ctx, &to.inode)?;
        }
        self.writer.file_copy_range(&from.inode, source.1, &to.inode, target.1, len)
    }

    fn strip_before_copy(&self, ctx: &Context, inode: &Arc<Inode>) -> Result<()> {
        const SET_ID: u32 = crate::acl::MODE_SETUID | crate::acl::MODE_SETGID;
        if inode.state.read().item.mode & SET_ID == 0 {
            return Ok(());
        }
        let set = SetAttr { strip_set_id: true, ..SetAttr::default() };
        self.attributes.setattr(ctx, inode.number, &set, None).map(drop)
    }

    /// Releases what is still open, so that unlinked files are removed before the volume is closed.
    pub(crate) fn release_all(&self) {
        for handle in self.content.handles.take_all() {
            if let Err(error) = self.release(handle) {
                tracing::warn!(%error, "closing a file at the end of the session failed");
            }
        }
    }

    pub(crate) fn regular<'a>(&self, handle: impl Into<Handle<'a>>) -> Result<Arc<OpenFile>> {
        let open = self.content.open_file(handle)?;
        check_regular(&open.inode.state.read().item)?;
        Ok(open)
    }

    /// An open file that may be written to, and whether it may have capabilities, which a write takes away.
    fn writable(&self, handle: HandleId) -> Result<(Arc<OpenFile>, bool)> {
        let open = self.content.open_file(handle)?;
        let may_have_capabilities = self.check_writable(&open)?;
        Ok((open, may_have_capabilities))
    }

    /// Whether a file that may be written to may have capabilities.
    fn check_writable(&self, open: &OpenFile) -> Result<bool> {
        let state = open.inode.state.read();
        check_regular(&state.item)?;
        if !open.flags.write {
            return Err(Error::BadHandle);
        }
        if is_immutable(&state.item) {
            return Err(Error::NotPermitted);
        }
        Ok(state.has_capabilities != Some(false))
    }
}

fn check_regular(item: &InodeItem) -> Result<()> {
    if item.is_directory() {
        return Err(Error::IsDirectory);
    }
    if !item.is_regular() {
        return Err(Error::Invalid("not a regular file"));
    }
    Ok(())
}

/// What a write by this caller does to a file's set-id bits.
fn strip_for(ctx: &Context) -> impl FnMut(&mut InodeItem) {
    |item| {
        if !ctx.is_privileged() {
            crate::acl::strip_set_id(ctx, item);
        }
    }
}
