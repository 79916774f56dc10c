//! Making new inodes: files, directories, symbolic links, special files, files without a name.

use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR, MODE_GROUP_EXECUTE, MODE_SETGID};
use crate::attributes::flags::{forbid_change, is_immutable};
use crate::attributes::xattr::small_xattr_value;
use crate::content::change::{Admission, Change, Locked, admitted_along, estimate, put_inode};
use crate::content::inode::{Inode, InodeState};
use crate::names::find::{Slot, check_name, put_dirent};
use crate::{Context, Entry, Error, HandleId, Names, OpenFlags, Result};
use std::sync::Arc;
use syncline_format::item::{
    InodeItem, LINKS_MAX, MODE_BLOCK, MODE_CHARACTER, MODE_DIRECTORY, MODE_FIFO, MODE_REGULAR, MODE_SOCKET,
    MODE_SYMLINK, MODE_TYPE_MASK, OrphanReason, SYMLINK_BYTES_MAX,
};
use syncline_format::{Key, ObjectNo};
use syncline_store::{Batch, Class, Estimate, Permit};

/// Bound on the bytes of inherited ACLs: an access and a default one in xattr items.
const INHERITED_ACL_BYTES_MAX: usize = 2 * (13 + 32 + crate::acl::ACL_BYTES_MAX);

/// What a new inode is to be, before its directory has its say.
struct NewInode<'a> {
    mode: u32,
    rdev: u64,
    /// Target of a symbolic link.
    target: &'a [u8],
}

/// A new inode after inheritance: attributes and ACLs.
pub(crate) struct Inherited {
    pub(crate) item: InodeItem,
    access: Option<Acl>,
    default: Option<Acl>,
}

/// What a directory hands down to new files in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Legacy {
    group: Option<u32>,
    default_acl: Option<Acl>,
}

impl Inherited {
    /// The inode in memory. What it has of attributes is known.
    fn inode(&self, number: ObjectNo) -> Inode {
        let inode = Inode::new(number, self.item.clone());
        let mut state = inode.state.write();
        state.note_no_xattrs();
        state.has_access_acl = Some(self.access.is_some());
        state.default_acl = Some(self.default.clone());
        drop(state);
        inode
    }

    /// The ACL that the new file has as an extended attribute.
    pub(crate) fn access_xattr(&self) -> Option<Vec<u8>> {
        self.access.as_ref().map(Acl::encode)
    }
}

impl Names {
    /// Makes a regular file, FIFO, socket, or device node. `rdev` is `major << 32 | minor`.
    ///
    /// Errors: `Exists`, `NotDirectory`, `NotFound` (the directory was removed), name errors, `Invalid` for another
    /// type, `NotPermitted` in an immutable directory, `NoSpace`, `ReadOnly`.
    pub fn mknod(&self, ctx: &Context, parent: ObjectNo, name: &[u8], mode: u32, rdev: u64) -> Result<Entry> {
        let mode = mode & (MODE_TYPE_MASK | 0o7777);
        let rdev = match mode & MODE_TYPE_MASK {
            MODE_REGULAR | MODE_FIFO | MODE_SOCKET => 0,
            MODE_CHARACTER | MODE_BLOCK => rdev,
            0 => return self.mknod(ctx, parent, name, mode | MODE_REGULAR, 0),
            _ => return Err(Error::Invalid("mknod makes files, FIFOs, sockets and device nodes only")),
        };
        let inode = self.make_named(ctx, parent, name, &NewInode { mode, rdev, target: &[] }, false)?;
        Ok(self.attributes.entry(&inode))
    }

    /// Makes a directory. Errors: as `Names::mknod`, and `TooManyLinks`.
    pub fn mkdir(&self, ctx: &Context, parent: ObjectNo, name: &[u8], mode: u32) -> Result<Entry> {
        let mode = MODE_DIRECTORY | mode & 0o7777;
        let inode = self.make_named(ctx, parent, name, &NewInode { mode, rdev: 0, target: &[] }, false)?;
        Ok(self.attributes.entry(&inode))
    }

    /// Makes a symbolic link. Errors: as `Names::mknod`; `NotFound` for an empty target, `NameTooLong` for one beyond
    /// 4095 bytes.
    pub fn symlink(&self, ctx: &Context, parent: ObjectNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(Error::NameTooLong);
        }
        if target.contains(&0) {
            return Err(Error::Invalid("the target of a symbolic link contains no NUL"));
        }
        let new = NewInode { mode: MODE_SYMLINK | 0o777, rdev: 0, target };
        let inode = self.make_named(ctx, parent, name, &new, false)?;
        Ok(self.attributes.entry(&inode))
    }

    /// Makes a regular file and opens it. Errors: as `Names::mknod`.
    pub fn create(
        &self,
        ctx: &Context,
        parent: ObjectNo,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Entry, HandleId)> {
        let mode = MODE_REGULAR | mode & 0o7777;
        let inode = self.make_named(ctx, parent, name, &NewInode { mode, rdev: 0, target: &[] }, true)?;
        let entry = self.attributes.entry(&inode);
        Ok((entry, self.content.add_counted_handle(inode, flags)))
    }

    /// Makes a regular file without a name and opens it; `Names::link` may give it one, unless `exclusive`.
    pub fn tmpfile(
        &self,
        ctx: &Context,
        parent: ObjectNo,
        mode: u32,
        flags: OpenFlags,
        exclusive: bool,
    ) -> Result<(Entry, HandleId)> {
        self.core.check_writable()?;
        let directory = self.content.directory(parent)?;
        let permit = self.writeback.admit(Class::Normal, estimate(1, 1, 2, INHERITED_ACL_BYTES_MAX))?;
        let mut locked = Locked::new(&[&directory]);
        if locked.state(parent).is_dead() {
            return Err(Error::NotFound);
        }
        let new = NewInode { mode: MODE_REGULAR | mode & 0o7777, rdev: 0, target: &[] };
        let default = self.attributes.default_acl(parent, locked.state_mut(parent))?;
        let mut inherited = self.inherit(ctx, parent, &locked.state(parent).item, default, &new);
        inherited.item.nlink = 0;
        let number = self.core.store.new_object();
        let mut batch = self.content.batch();
        batch.put(Key::orphan(number), &OrphanReason::Unlinked.encode());
        let inode = inherited.inode(number);
        inode.state.write().linkable = !exclusive;
        self.put_new(&mut batch, &inode, &inherited, &new);
        inode.handles.store(1, std::sync::atomic::Ordering::SeqCst);
        let inode = self.content.inodes.insert_new(inode);
        if let Err(error) = self.core.store.commit(permit, batch) {
            self.content.inodes.remove(number);
            return Err(error.into());
        }
        drop(locked);
        let entry = self.attributes.entry(&inode);
        Ok((entry, self.content.add_counted_handle(inode, flags)))
    }

    /// The batch that makes a named inode. `counted`: it starts with one handle, which the caller registers.
    fn make_named(
        &self,
        ctx: &Context,
        parent: ObjectNo,
        name: &[u8],
        new: &NewInode<'_>,
        counted: bool,
    ) -> Result<Arc<Inode>> {
        check_name(name)?;
        self.core.check_writable()?;
        let directory = self.content.directory(parent)?;
        let bound = estimate(2, 1, 3, INHERITED_ACL_BYTES_MAX + new.target.len());
        admitted_along(
            || self.admit_name(parent, name, bound),
            |admission| self.make_in(&directory, ctx, name, new, counted, admission),
        )
    }

    fn make_in(
        &self,
        directory: &Arc<Inode>,
        ctx: &Context,
        name: &[u8],
        new: &NewInode<'_>,
        counted: bool,
        admission: Admission,
    ) -> Result<Arc<Inode>> {
        let parent = directory.number;
        let mut locked = Locked::new(&[directory]);
        let state = locked.state(parent);
        if state.is_dead() {
            return Err(Error::NotFound);
        }
        let slot = match self.find_name(parent, name)? {
            Slot::Taken(_) => return Err(Error::Exists),
            Slot::Full => return Err(Error::NoSpace),
            Slot::Free(slot) => slot,
        };
        if is_immutable(&state.item) {
            return Err(Error::NotPermitted);
        }
        let is_directory = new.mode & MODE_TYPE_MASK == MODE_DIRECTORY;
        if is_directory && state.item.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let default = self.attributes.default_acl(parent, locked.state_mut(parent))?;
        let inherited = self.inherit(ctx, parent, &locked.state(parent).item, default, new);
        let number = self.core.store.new_object();
        let inode = inherited.inode(number);
        inode.handles.store(u64::from(counted), std::sync::atomic::Ordering::SeqCst);
        let mut change = Change::new(&self.content, locked);
        self.put_new(&mut change.batch, &inode, &inherited, new);
        put_dirent(&mut change.batch, Key::dirent(parent, slot), number, new.mode, name);
        let item = change.item(parent);
        item.entries = item.entries.saturating_add(1);
        item.nlink += u32::from(is_directory);
        item.modified = inherited.item.created;
        item.changed = inherited.item.created;
        // In the table before anybody can learn the number, so that there is never a second copy of it.
        let inode = self.content.inodes.insert_new(inode);
        if let Err(error) = change.commit(&self.content, admission) {
            inode.state.write().gone = true;
            self.content.inodes.remove(number);
            return Err(error);
        }
        Ok(inode)
    }

    /// Admission for a new name: on a full volume one that is taken still is, rather than that there is no space.
    fn admit_name(&self, parent: ObjectNo, name: &[u8], bound: Estimate) -> Result<Permit> {
        match self.writeback.admit(Class::Normal, bound) {
            Err(Error::NoSpace) if matches!(self.find_name(parent, name)?, Slot::Taken(_)) => {
                Err(Error::Exists)
            }
            result => result,
        }
    }

    /// A character device 0:0: what a whiteout leaves at the old name.
    pub(crate) fn new_whiteout(&self, ctx: &Context, parent: ObjectNo, directory: &InodeItem) -> Inode {
        let new = NewInode { mode: MODE_CHARACTER, rdev: 0, target: &[] };
        let inherited = self.inherit(ctx, parent, directory, None, &new);
        Inode::new(self.core.store.new_object(), inherited.item)
    }

    /// Owner, mode and ACLs of a new inode in a directory.
    fn inherit(
        &self,
        ctx: &Context,
        parent: ObjectNo,
        directory: &InodeItem,
        default: Option<Acl>,
        new: &NewInode<'_>,
    ) -> Inherited {
        let file_type = new.mode & MODE_TYPE_MASK;
        let is_directory = file_type == MODE_DIRECTORY;
        let now = self.core.clock.now();
        let mut mode = new.mode;
        let gid = if directory.mode & MODE_SETGID != 0 {
            if is_directory {
                mode |= MODE_SETGID;
            }
            directory.gid
        } else {
            ctx.gid
        };
        let set_gid_program = MODE_SETGID | MODE_GROUP_EXECUTE;
        if !is_directory
            && mode & set_gid_program == set_gid_program
            && !ctx.is_privileged()
            && !ctx.in_group(gid)
        {
            mode &= !MODE_SETGID;
        }
        let mut access = None;
        let default = default.filter(|_| file_type != MODE_SYMLINK);
        match &default {
            Some(acl) => {
                let (inherited, permissions) = acl.inherited(mode);
                mode = mode & !0o777 | permissions;
                access = inherited;
            }
            None if file_type == MODE_SYMLINK => {}
            None => mode &= !(ctx.umask & 0o777),
        }
        let item = InodeItem {
            mode,
            nlink: if is_directory { 2 } else { 1 },
            uid: ctx.uid,
            gid,
            size: new.target.len() as u64,
            blocks: 0,
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            rdev: new.rdev,
            parent: if is_directory { parent } else { ObjectNo(0) },
            entries: 0,
            flags: 0,
            project: 0,
        };
        Inherited { item, access, default: default.filter(|_| is_directory) }
    }

    /// Owner, mode and ACLs of a new regular file in a directory, for a transaction, and what that depends on.
    pub(crate) fn inherit_file(
        &self,
        ctx: &Context,
        directory: &Arc<Inode>,
        mode: u32,
    ) -> Result<(Inherited, Legacy)> {
        let new = NewInode { mode: MODE_REGULAR | mode & 0o7777, rdev: 0, target: &[] };
        let mut state = directory.state.write();
        let legacy = self.legacy(directory.number, &mut state)?;
        let default = legacy.default_acl.clone();
        Ok((self.inherit(ctx, directory.number, &state.item, default, &new), legacy))
    }

    /// What the directory hands down now.
    pub(crate) fn legacy(&self, directory: ObjectNo, state: &mut InodeState) -> Result<Legacy> {
        let default_acl = self.attributes.default_acl(directory, state)?;
        let group = (state.item.mode & MODE_SETGID != 0).then_some(state.item.gid);
        Ok(Legacy { group, default_acl })
    }

    /// Puts a new inode's own items.
    fn put_new(&self, batch: &mut Batch, inode: &Inode, inherited: &Inherited, new: &NewInode<'_>) {
        let number = inode.number;
        put_inode(batch, number, &inode.state.read(), &inherited.item);
        if !new.target.is_empty() {
            batch.put(Key::symlink(number), new.target);
        }
        let access_slot = self.core.name_hash.first(ACCESS_XATTR);
        if let Some(acl) = &inherited.access {
            batch.put(Key::xattr(number, access_slot), &small_xattr_value(ACCESS_XATTR, acl.encode()));
        }
        if let Some(acl) = &inherited.default {
            let mut slot = self.core.name_hash.first(DEFAULT_XATTR);
            slot += u64::from(slot == access_slot);
            batch.put(Key::xattr(number, slot), &small_xattr_value(DEFAULT_XATTR, acl.encode()));
        }
    }

    /// Gives an inode another name. Errors: `NotPermitted` for a directory or an immutable or append-only file,
    /// `TooManyLinks`, `NotFound` if its last name was removed, and as `Names::mknod`.
    pub fn link(&self, number: ObjectNo, parent: ObjectNo, name: &[u8]) -> Result<Entry> {
        check_name(name)?;
        self.core.check_writable()?;
        let directory = self.content.directory(parent)?;
        let inode = self.content.inode(number)?;
        if number == parent {
            return Err(Error::NotPermitted);
        }
        let permit = self.admit_name(parent, name, estimate(2, 2, 0, 0))?;
        let locked = Locked::new(&[&directory, &inode]);
        if locked.state(parent).is_dead() {
            return Err(Error::NotFound);
        }
        let slot = match self.find_name(parent, name)? {
            Slot::Taken(_) => return Err(Error::Exists),
            Slot::Full => return Err(Error::NoSpace),
            Slot::Free(slot) => slot,
        };
        let state = locked.state(number);
        if is_immutable(&locked.state(parent).item) || state.item.is_directory() {
            return Err(Error::NotPermitted);
        }
        forbid_change(&state.item)?;
        if state.is_gone() || (state.item.nlink == 0 && !state.linkable) {
            return Err(Error::NotFound);
        }
        if state.item.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let (mode, nameless) = (state.item.mode, state.item.nlink == 0);
        let unfinished = state.data.orphan_reason();
        let now = self.core.clock.now();
        let mut change = Change::new(&self.content, locked);
        put_dirent(&mut change.batch, Key::dirent(parent, slot), number, mode, name);
        match unfinished {
            Some(reason) if nameless => change.batch.put(Key::orphan(number), &reason.encode()),
            None if nameless => change.batch.delete(Key::orphan(number)),
            _ => {}
        }
        let item = change.item(number);
        item.nlink += 1;
        item.changed = now;
        let item = change.item(parent);
        item.entries = item.entries.saturating_add(1);
        item.modified = now;
        item.changed = now;
        drop(change.commit(&self.content, permit)?);
        self.name_moved()?;
        Ok(self.attributes.entry(&inode))
    }

    /// Called behind each rename and link. That it does nothing is the mechanism: a later sync makes the name durable
    /// (C2).
    pub(crate) fn name_moved(&self) -> Result<()> {
        if self.core.options.forced_names() {
            self.core.store.force(self.core.store.last_lsn())?;
        }
        Ok(())
    }
}
