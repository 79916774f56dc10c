//! Operations that change content or attributes of one inode, in the model.

use super::{
    EACCES, EEXIST, EINVAL, EISDIR, ELOOP, ENODATA, ENOTSUP, ENXIO, EPERM, Kind, Model, Node, PAGE, View,
};
use crate::content::Content;
use crate::history::{FileEvent, History};
use crate::operation::{AllocateKind, Op, acl, acl_bits, pattern};
use crate::times::{Change, Stamp, StampHistory};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The attribute that holds an access ACL.
const ACL_NAME: &str = "system.posix_acl_access";
/// The attribute that holds the ACL which what is made in a directory takes over.
const DEFAULT_ACL_NAME: &str = "system.posix_acl_default";

impl Model {
    /// Content of a file of the running volume.
    ///
    /// # Panics
    ///
    /// If there was never such a file.
    pub fn content_of(&self, ino: u64) -> &Content {
        self.files[&ino].current()
    }

    /// Size of a file of the running volume; 0 if there is none.
    pub fn size_of(&self, ino: u64) -> u64 {
        self.files.get(&ino).map_or(0, |history| history.current().size())
    }

    /// Data that no operation tells: what an append has written.
    pub fn write_raw(&mut self, ino: u64, offset: u64, bytes: &[u8]) {
        self.record(ino, FileEvent::Write(offset, bytes.to_vec()));
    }

    pub(super) fn change_content(&mut self, op: &Op, written: u64) -> Result<(), i32> {
        match op {
            Op::Falloc { path, kind, offset, len } => {
                let ino = self.file(path)?;
                if matches!(kind, AllocateKind::Collapse | AllocateKind::Insert) {
                    return self.shift(ino, *kind, *offset, *len);
                }
                if matches!(kind, AllocateKind::Punch | AllocateKind::Zero) {
                    self.record(ino, FileEvent::Zero(*offset, *len));
                }
                self.meta();
                if matches!(kind, AllocateKind::Grow | AllocateKind::Zero) {
                    self.record(ino, FileEvent::Grow(offset + len));
                }
            }
            Op::Write { path, offset, fill, .. } => {
                let ino = self.file(path)?;
                if written > 0 {
                    self.record(ino, FileEvent::Write(*offset, pattern(*fill, *offset, written)));
                }
            }
            Op::CopyRange { from, to, at, to_at, len } => {
                // A directory can be opened to be read; that there is nothing to copy from it shows behind that.
                let source = match self.file(from) {
                    Err(errno) if errno != EISDIR => return Err(errno),
                    source => source,
                };
                let target = self.file(to)?;
                let source = source?;
                if source == target && at.max(to_at) - at.min(to_at) < *len {
                    return Err(EINVAL);
                }
                if written > 0 {
                    let bytes = self.files[&source].current().range(*at, at + written);
                    let event = FileEvent::Write(*to_at, bytes);
                    self.record(target, event);
                }
            }
            Op::Rewrite { path, fill, .. } => {
                let ino = self.file(path)?;
                self.meta();
                self.record(ino, FileEvent::Truncate(0));
                if written > 0 {
                    self.record(ino, FileEvent::Write(0, pattern(*fill, 0, written)));
                }
            }
            Op::Truncate { path, size } => {
                let ino = self
                    .file(path)
                    .map_err(|errno| if matches!(errno, ELOOP | ENXIO) { EINVAL } else { errno })?;
                self.meta();
                self.record(ino, FileEvent::Truncate(*size));
            }
            _ => unreachable!("only these change content"),
        }
        Ok(())
    }

    /// Collapses or inserts: everything before it is in the log, and then all of the content changes at once. What
    /// others write meanwhile in front of the range may miss that.
    fn shift(&mut self, ino: u64, kind: AllocateKind, offset: u64, len: u64) -> Result<(), i32> {
        let mut bytes = self.files[&ino].current().to_vec();
        let (from, count) = (offset as usize, len as usize);
        let insert = kind == AllocateKind::Insert;
        let aligned = offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0;
        if !aligned || insert && from >= bytes.len() || !insert && from + count >= bytes.len() {
            return Err(EINVAL);
        }
        match insert {
            true => drop(bytes.splice(from..from, std::iter::repeat_n(0, count))),
            false => drop(bytes.drain(from..from + count)),
        }
        let first = if self.overlaps { offset / PAGE } else { 0 };
        self.meta();
        self.record(ino, FileEvent::Replace(first, bytes));
        Ok(())
    }

    pub(super) fn change_attributes(&mut self, op: &Op) -> Result<(), i32> {
        match op {
            Op::SetXattr { path, name, len, fill } => {
                let ino = self.resolve(path)?;
                if matches!(self.node(ino).kind, Kind::Symlink(_) | Kind::Special) {
                    return Err(EPERM);
                }
                self.node_mut(ino).xattrs.insert(name.clone(), pattern(*fill, 0, *len));
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.resolve(path)?;
                if matches!(self.node(ino).kind, Kind::Symlink(_) | Kind::Special) {
                    return Err(EPERM);
                }
                self.node_mut(ino).xattrs.remove(name).ok_or(ENODATA)?;
            }
            Op::Chmod { path, mode } => {
                let ino = self.resolve(path)?;
                if matches!(self.node(ino).kind, Kind::Symlink(_)) {
                    return Err(ENOTSUP);
                }
                let node = self.node_mut(ino);
                node.mode = node.mode & !0o7777 | mode & 0o7777;
                if let Some(value) = node.xattrs.get_mut(ACL_NAME) {
                    *value = acl(*mode);
                }
            }
            Op::Chown { path, uid, gid } => {
                let ino = self.resolve(path)?;
                let node = self.node_mut(ino);
                node.owner = (*uid, *gid);
                if node.kind == Kind::File {
                    let group = if node.mode & 0o10 != 0 { 0o2000 } else { 0 };
                    node.mode &= !(0o4000 | group);
                }
            }
            Op::Utimes { path, .. } => drop(self.resolve(path)?),
            Op::SetAcl { path, bits } => {
                let ino = self.resolve(path)?;
                if matches!(self.node(ino).kind, Kind::Symlink(_)) {
                    return Err(ENOTSUP);
                }
                let node = self.node_mut(ino);
                node.xattrs.insert(ACL_NAME.to_owned(), acl(*bits));
                node.mode = node.mode & !0o777 | bits & 0o777;
            }
            Op::SetDefaultAcl { path, bits } => {
                let ino = self.resolve(path)?;
                match self.node(ino).kind {
                    Kind::Directory(_) => {}
                    Kind::Symlink(_) => return Err(ENOTSUP),
                    Kind::File | Kind::Special => return Err(EACCES),
                }
                self.node_mut(ino).xattrs.insert(DEFAULT_ACL_NAME.to_owned(), acl(*bits));
            }
            Op::SetFlags { path, flags } => {
                let ino = self.resolve(path)?;
                if matches!(self.node(ino).kind, Kind::Symlink(_) | Kind::Special) {
                    return Err(ENOTSUP);
                }
                self.node_mut(ino).flags = *flags;
            }
            _ => unreachable!("only these change attributes"),
        }
        self.meta();
        Ok(())
    }

    /// A file that was made without a name gets one.
    pub(super) fn link_nameless(
        &mut self,
        path: &str,
        made: u64,
        written: u64,
        fill: u8,
        sync: bool,
    ) -> Result<(), i32> {
        let (directory, name) = self.place(path)?;
        if self.child(directory, &name)?.is_some() {
            return Err(EEXIST);
        }
        self.files.insert(made, History::new(Content::default()));
        if written > 0 {
            self.record(made, FileEvent::Write(0, pattern(fill, 0, written)));
        }
        if sync {
            self.sync(Some(made));
        }
        self.names.insert(made, Arc::new(self.new_node(directory, Kind::File, 0o100600)));
        self.entries(directory).insert(name, made);
        self.meta();
        Ok(())
    }

    /// Whether a running volume shows what was done; times apart, which are not noted when operations may fail.
    pub fn shows(&self, view: &View) -> bool {
        let live = self.live();
        live.names == view.names && live.contents == view.contents
    }

    /// What root makes in a directory: with a set-group-id bit it gives away its group, and directories take the bit
    /// over; its default ACL says what of the mode is left, and is taken over too.
    pub(super) fn new_node(&self, directory: u64, kind: Kind, mode: u32) -> Node {
        let parent = self.node(directory);
        let set_group = parent.mode & 0o2000;
        let owner = (0, if set_group == 0 { 0 } else { parent.owner.1 });
        let is_directory = matches!(kind, Kind::Directory(_));
        let mut mode = if is_directory { mode | set_group } else { mode };
        let mut xattrs = BTreeMap::new();
        let default = parent.xattrs.get(DEFAULT_ACL_NAME);
        // A whiteout stands for nothing, and takes nothing over.
        if let Some(default) = default.filter(|_| !matches!(kind, Kind::Symlink(_) | Kind::Special)) {
            let bits = mode & acl_bits(default);
            mode = mode & !0o777 | bits;
            xattrs.insert(ACL_NAME.to_owned(), acl(bits));
            if is_directory {
                xattrs.insert(DEFAULT_ACL_NAME.to_owned(), default.clone());
            }
        }
        Node { kind, mode, owner, nlink: if is_directory { 2 } else { 1 }, flags: 0, xattrs }
    }

    /// Inodes that have a name.
    pub fn alive(&self) -> Vec<u64> {
        self.names.keys().copied().collect()
    }

    /// Whether times are noted after each operation of this run.
    pub fn has_times(&self) -> bool {
        !self.stamps.is_empty()
    }

    /// Notes the times that the running volume shows after an operation.
    pub fn note_times(&mut self, op: &Op, shown: &[(u64, Stamp)]) {
        let metas = self.metas();
        let change = match op {
            Op::Rewrite { .. } | Op::TmpLink { .. } | Op::UnlinkOpen { .. } | Op::CopyRange { .. } => {
                Change::Steps
            }
            // A write that meets a full volume is done in pieces.
            Op::Falloc { .. } | Op::Write { .. } => Change::Steps,
            _ if metas > self.noted => Change::Logged,
            _ => Change::Dirty,
        };
        // Steps may be there when the operation as a whole is not.
        let since = if change == Change::Steps { self.noted } else { metas };
        self.noted = metas;
        for (ino, stamp) in shown {
            let known = self.stamps.entry(*ino).or_insert_with(|| StampHistory::new(*stamp));
            if known.current() != *stamp {
                known.change(since, change, *stamp);
            }
        }
    }
}
