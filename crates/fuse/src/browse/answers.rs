//! What is told of `.snapshots` and of what is in it.

use super::nodes::{Own, Slot};
use super::views::Views;
use crate::convert::{self, CACHE_TIME, Caller, errno};
use crate::privilege::may_administer;
use fusering::{Attributes, DirectoryEntry, Entry, Errno, ExtendedAttributes, NodeId};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use syncline_fs::{Attr, DirEntry, Lsn, ObjectNo, SnapshotData, SnapshotInfo, SystemEntropy};

/// `d_type` of a directory.
const DIRECTORY_TYPE: u8 = (libc::S_IFDIR >> 12) as u8;
/// What may be done with `.snapshots`, besides by its owner, who has the root directory.
const DIRECTORY_MODE: u32 = libc::S_IFDIR | 0o755;
/// Cookies of `.` and `..` in it; that of a snapshot is its tree's number and this.
const COOKIE_DOT_DOT: u64 = 2;

/// Bytes of a snapshot's name, at most.
const NAME_BYTES_MAX: usize = 255;

/// The name that somebody gives a snapshot. Errors: ENAMETOOLONG; EINVAL for what is no text.
fn text(name: &OsStr) -> Result<&str, Errno> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    name.to_str().ok_or(Errno::EINVAL)
}

/// How an object of a snapshot is shown.
fn shown(slot: Slot, attr: &Attr) -> Result<ExtendedAttributes, Errno> {
    let mut shown = convert::extended(attr);
    shown.attributes.ino = Own::Object(slot, attr.inode).node()?.0;
    Ok(shown)
}

fn entry(slot: Slot, attr: &Attr) -> Result<Entry, Errno> {
    let attributes = shown(slot, attr)?.attributes;
    let node = NodeId(attributes.ino);
    Ok(Entry { node, generation: 1, attributes, entry_valid: CACHE_TIME, attributes_valid: CACHE_TIME })
}

impl Views {
    /// Whether looking a name up waits for nothing: there is none of it, or what it leads to is open.
    pub(super) fn is_name_at_hand(&self, parent: Own, name: &OsStr) -> bool {
        match parent {
            Own::Directory if name == "." => true,
            Own::Directory => match self.named(name) {
                Ok(found) => self.slot(&found).is_ok_and(|slot| self.is_open(slot)),
                Err(_) => true,
            },
            Own::Object(slot, _) => self.is_open(slot),
        }
    }

    /// Whether looking at a node waits for nothing.
    pub(super) fn is_at_hand(&self, own: Own) -> bool {
        match own {
            Own::Directory => true,
            Own::Object(slot, _) => self.is_open(slot),
        }
    }

    fn named(&self, name: &OsStr) -> Result<SnapshotInfo, Errno> {
        let name = text(name).map_err(|errno| if errno == Errno::EINVAL { Errno::ENOENT } else { errno })?;
        self.fs.snapshot_names().find(name).ok_or(Errno::ENOENT)
    }

    /// `.snapshots`, owned by whoever has the root directory.
    fn directory(&self) -> Result<ExtendedAttributes, Errno> {
        let root = self.fs.attributes().getattr(ObjectNo::ROOT_DIR).map_err(errno)?;
        let since = self.listed_since(root.modified);
        let mut shown = convert::extended(&Attr { modified: since, changed: since, ..root });
        let attributes = &mut shown.attributes;
        attributes.ino = Own::Directory.node()?.0;
        attributes.mode = DIRECTORY_MODE;
        attributes.links = 2;
        (attributes.size, attributes.blocks) = (0, 0);
        shown.attribute_bits = 0;
        Ok(shown)
    }

    /// What the root's name `.snapshots` leads to.
    pub(super) fn entrance(&self) -> Result<Entry, Errno> {
        let attributes = self.directory()?.attributes;
        let node = NodeId(attributes.ino);
        Ok(Entry {
            node,
            generation: 1,
            attributes,
            entry_valid: CACHE_TIME,
            attributes_valid: Duration::ZERO,
        })
    }

    /// With how long it is valid.
    pub(super) fn attributes(&self, own: Own) -> Result<(ExtendedAttributes, Duration), Errno> {
        match own {
            Own::Directory => Ok((self.directory()?, Duration::ZERO)),
            Own::Object(slot, object) => {
                let attr = self.view(slot)?.attributes().getattr(object).map_err(errno)?;
                Ok((shown(slot, &attr)?, CACHE_TIME))
            }
        }
    }

    pub(super) fn lookup(&self, parent: Own, name: &OsStr) -> Result<Entry, Errno> {
        match parent {
            // An NFS server asks so for any node that it has a file handle of.
            Own::Directory if name == "." => self.entrance(),
            Own::Directory => {
                let slot = self.slot(&self.named(name)?)?;
                let root = self.view(slot)?.attributes().getattr(ObjectNo::ROOT_DIR).map_err(errno)?;
                Ok(Entry { entry_valid: Duration::ZERO, ..entry(slot, &root)? })
            }
            Own::Object(slot, object) if name == "." => {
                entry(slot, &self.view(slot)?.attributes().getattr(object).map_err(errno)?)
            }
            Own::Object(slot, object) => {
                let view = self.view(slot)?;
                let found = view.names().lookup(object, name.as_bytes()).map_err(errno)?;
                entry(slot, &found.attr)
            }
        }
    }

    /// Entries from a cookie on, until `put` has no room left.
    pub(super) fn list(
        &self,
        own: Own,
        from: u64,
        put: &mut dyn FnMut(&DirectoryEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<(), Errno> {
        match own {
            Own::Directory => self.list_snapshots(from, put),
            Own::Object(slot, object) => self.list_within(slot, object, from, put),
        }
    }

    fn list_snapshots(
        &self,
        from: u64,
        put: &mut dyn FnMut(&DirectoryEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<(), Errno> {
        let own = Own::Directory.node()?;
        let mut add = |node: NodeId, next: u64, name: &str| {
            let entry = DirectoryEntry { node, next, file_type: DIRECTORY_TYPE, name: OsStr::new(name) };
            next <= from || put(&entry, None)
        };
        if !add(own, 1, ".") || !add(NodeId::ROOT, COOKIE_DOT_DOT, "..") {
            return Ok(());
        }
        for snapshot in self.fs.snapshots() {
            let node = Own::Object(self.slot(&snapshot)?, ObjectNo::ROOT_DIR).node()?;
            if !add(node, COOKIE_DOT_DOT + u64::from(snapshot.tree), &snapshot.name) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn list_within(
        &self,
        slot: Slot,
        object: ObjectNo,
        from: u64,
        put: &mut dyn FnMut(&DirectoryEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<(), Errno> {
        let view = self.view(slot)?;
        let mut failed = None;
        let mut add = |found: DirEntry<'_>, attr: Option<Attr>| -> Result<bool, Errno> {
            let is_above = object == ObjectNo::ROOT_DIR && found.name == b"..";
            let own = if is_above { Own::Directory } else { Own::Object(slot, found.inode) };
            let entry = attr.map(|attr| entry(slot, &attr)).transpose()?;
            let name = OsStr::from_bytes(found.name);
            let shown =
                DirectoryEntry { node: own.node()?, next: found.cookie, file_type: found.file_type, name };
            Ok(put(&shown, entry.as_ref()))
        };
        let directory = view.files().opendir(object).map_err(errno)?;
        let read = view.names().readdir_plus(directory, from, &mut |found, attr| match add(found, attr) {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(errno) => {
                failed = Some(errno);
                ControlFlow::Break(())
            }
        });
        view.files().release(directory).map_err(errno)?;
        read.map_err(errno)?;
        failed.map_or(Ok(()), Err)
    }

    /// Makes a snapshot of what was written until now (C10). What it leads to is asked for again: to open it now would
    /// take longer than to make it.
    pub(super) fn make(&self, caller: &Caller, name: &OsStr) -> Result<Entry, Errno> {
        self.may_change(caller)?;
        let made = self.fs.snapshot(text(name)?, SnapshotData::Written, &SystemEntropy::default());
        self.made(&made.map_err(errno)?)
    }

    /// The same without a wait; `None` if there is something to wait for. It is durable when the LSN is forced.
    pub(super) fn try_make(&self, caller: &Caller, name: &OsStr) -> Result<Option<(Entry, Lsn)>, Errno> {
        self.may_change(caller)?;
        let made = self.fs.try_snapshot(text(name)?, &SystemEntropy::default()).map_err(errno)?;
        made.map(|(made, lsn)| Ok((self.made(&made)?, lsn))).transpose()
    }

    /// How a snapshot is shown that was made just now.
    fn made(&self, snapshot: &SnapshotInfo) -> Result<Entry, Errno> {
        let slot = self.slot(snapshot)?;
        let root = self.fs.attributes().getattr(ObjectNo::ROOT_DIR).map_err(errno)?;
        Ok(Entry { entry_valid: Duration::ZERO, attributes_valid: Duration::ZERO, ..entry(slot, &root)? })
    }

    pub(super) fn delete(&self, caller: &Caller, name: &OsStr) -> Result<(), Errno> {
        self.may_change(caller)?;
        self.fs.delete_snapshot(&self.named(name)?.name).map_err(errno)?;
        self.mounts.snapshot_deleted();
        Ok(())
    }

    /// `flags` are those of `renameat2`.
    pub(super) fn rename(&self, caller: &Caller, name: &OsStr, to: &OsStr, flags: u32) -> Result<(), Errno> {
        self.may_change(caller)?;
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        self.fs.rename_snapshot(&self.named(name)?.name, text(to)?).map_err(errno)
    }

    fn may_change(&self, caller: &Caller) -> Result<(), Errno> {
        match may_administer(caller) {
            _ if self.fs.is_read_only() => Err(Errno::EROFS),
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }
}

/// Attributes as GETATTR has them.
pub(super) fn usual(
    told: Result<(ExtendedAttributes, Duration), Errno>,
) -> Result<(Attributes, Duration), Errno> {
    told.map(|(shown, valid)| (shown.attributes, valid))
}
