//! Inode flags (`chattr`): immutable, append-only, no-dump, no-atime.

use crate::content::change::{Change, Locked, estimate};
use crate::{Attributes, Context, Error, Result};
use syncline_format::ObjectNo;
use syncline_format::item::InodeItem;
use syncline_store::Class;

/// `FS_IMMUTABLE_FL`: nothing about the file may change.
pub const FLAG_IMMUTABLE: u32 = 0x10;
/// `FS_APPEND_FL`: content may only be added at the end; in a directory, names may only be added.
pub const FLAG_APPEND: u32 = 0x20;
/// `FS_NODUMP_FL`: backup programs leave it out.
pub const FLAG_NO_DUMP: u32 = 0x40;
/// `FS_NOATIME_FL`: access times are not updated.
pub const FLAG_NO_ATIME: u32 = 0x80;

/// Flags that can be set.
const SETTABLE: u32 = FLAG_IMMUTABLE | FLAG_APPEND | FLAG_NO_DUMP | FLAG_NO_ATIME;
/// Flags that only a privileged caller may change.
const PRIVILEGED: u32 = FLAG_IMMUTABLE | FLAG_APPEND;

/// `fsx_xflags` bits of the same flags (`FS_XFLAG_*`).
const XFLAGS: [(u32, u32); 4] =
    [(FLAG_IMMUTABLE, 0x8), (FLAG_APPEND, 0x10), (FLAG_NO_ATIME, 0x40), (FLAG_NO_DUMP, 0x80)];

/// What `FS_IOC_FSGETXATTR` reports; the other fields of `struct fsxattr` are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedFlags {
    /// `FS_XFLAG_*` bits.
    pub xflags: u32,
    /// Extents of the file are not counted; always 0.
    pub extents: u32,
    /// Project identifier; always 0.
    pub project: u32,
}

pub(crate) fn is_immutable(item: &InodeItem) -> bool {
    item.flags & FLAG_IMMUTABLE != 0
}

pub(crate) fn is_append_only(item: &InodeItem) -> bool {
    item.flags & FLAG_APPEND != 0
}

/// Immutable and append-only files can be neither renamed nor removed, linked or given other attributes.
pub(crate) fn forbid_change(item: &InodeItem) -> Result<()> {
    if is_immutable(item) || is_append_only(item) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Names cannot be taken out of an immutable or append-only directory.
pub(crate) fn forbid_removal_in(directory: &InodeItem) -> Result<()> {
    forbid_change(directory)
}

impl Attributes {
    /// The `FS_IOC_GETFLAGS` bits.
    pub fn inode_flags(&self, number: ObjectNo) -> Result<u32> {
        Ok(self.content.live_inode(number)?.state.read().item.flags)
    }

    /// Sets the `FS_IOC_SETFLAGS` bits.
    ///
    /// Errors: `NotSupported` for a flag other than immutable, append, nodump and noatime, or an inode that is neither
    /// file nor directory; `NotPermitted` when an unprivileged caller changes immutable or append.
    pub fn set_inode_flags(&self, ctx: &Context, number: ObjectNo, flags: u32) -> Result<()> {
        self.core.check_writable()?;
        if flags & !SETTABLE != 0 {
            return Err(Error::NotSupported);
        }
        let inode = self.content.live_inode(number)?;
        let permit = self.writeback.admit(Class::Normal, estimate(1, 0, 0, 0))?;
        let mut change = Change::new(&self.content, Locked::new(&[&inode]));
        let now = self.core.clock.now();
        let item = change.item(number);
        if !item.is_regular() && !item.is_directory() {
            return Err(Error::NotSupported);
        }
        if (item.flags ^ flags) & PRIVILEGED != 0 && !ctx.is_privileged() {
            return Err(Error::NotPermitted);
        }
        item.flags = flags;
        item.changed = now;
        drop(change.commit(&self.content, permit)?);
        Ok(())
    }

    /// The data of `FS_IOC_FSGETXATTR`.
    pub fn extended_flags(&self, number: ObjectNo) -> Result<ExtendedFlags> {
        let flags = self.inode_flags(number)?;
        let xflags = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, xflag)| xflag).sum();
        Ok(ExtendedFlags { xflags, ..ExtendedFlags::default() })
    }

    /// `FS_IOC_FSSETXATTR`. Errors: as `set_inode_flags`; `NotSupported` for extent size hints, projects and
    /// other bits.
    pub fn set_extended_flags(&self, ctx: &Context, number: ObjectNo, wanted: ExtendedFlags) -> Result<()> {
        let known: u32 = XFLAGS.iter().map(|(_, xflag)| xflag).sum();
        if wanted.xflags & !known != 0 || wanted.project != 0 {
            return Err(Error::NotSupported);
        }
        let flags = XFLAGS.iter().filter(|(_, xflag)| wanted.xflags & xflag != 0).map(|(flag, _)| flag).sum();
        self.set_inode_flags(ctx, number, flags)
    }
}
