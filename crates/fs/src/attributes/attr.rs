//! Attributes: reading them, changing them, access times.

use crate::acl::{strip_set_id, strip_setgid};
use crate::attributes::flags::{is_append_only, is_immutable};
use crate::content::change::{Admission, Change, Locked, admitted_along, estimate};
use crate::content::inode::{Inode, InodeState};
use crate::error::not_found_is_stale;
use crate::{AccessTimes, Attributes, Context, Error, FLAG_NO_ATIME, HandleId, Result, Timestamp};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use syncline_format::item::{FILE_BYTES_MAX, InodeItem, is_symlink_target};
use syncline_format::{BLOCK_BYTES, ObjectNo};
use syncline_store::Class;

/// Bytes that a directory's size counts per entry.
const DIRECTORY_ENTRY_SIZE: u64 = 32;
/// `st_blocks` counts units of 512 bytes.
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES as u64 / 512;
/// Relative access times are brought up to date at least this often.
const RELATIVE_ATIME_SECONDS: i64 = 24 * 60 * 60;

const NANOSECONDS_PER_SECOND: u32 = 1_000_000_000;

/// Attributes of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub inode: ObjectNo,
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Whether `blocks` stays like that until somebody changes the file. While it is being written it may not.
    pub blocks_settled: bool,
    /// Last read.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of content or attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// Device number of a special file, `major << 32 | minor`.
    pub rdev: u64,
    /// `FS_IOC_GETFLAGS` bits.
    pub flags: u32,
}

/// What a lookup or a creation returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The inode's attributes.
    pub attr: Attr,
    /// Distinguishes inodes that had the same number one after another; numbers are never reused, so it is always 1.
    pub generation: u64,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The volume's clock.
    Now,
    /// This one.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (the type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates or extends.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<SetTime>,
    /// Last change of the content.
    pub modified: Option<SetTime>,
    /// Last change; set to now by any other change if not given.
    pub changed: Option<Timestamp>,
    /// Take off the set-id bits, as a change of content or owner does.
    pub strip_set_id: bool,
}

impl SetAttr {
    fn is_empty(&self) -> bool {
        *self == SetAttr::default()
    }

    /// Only brings times up to now, or goes with a write: that is allowed even for append-only files.
    fn touches_only(&self) -> bool {
        let now = |time: Option<SetTime>| !matches!(time, Some(SetTime::At(_)));
        let rest = SetAttr { accessed: None, modified: None, strip_set_id: false, ..*self };
        rest.is_empty() && now(self.accessed) && now(self.modified)
    }
}

impl Attributes {
    /// Attributes of an inode. Errors: `Stale` if it is gone.
    pub fn getattr(&self, number: ObjectNo) -> Result<Attr> {
        let inode = self.content.inode(number).map_err(not_found_is_stale)?;
        Ok(self.attr(&inode))
    }

    pub(crate) fn attr_of_nameless(&self, inode: &Arc<Inode>) -> Option<Attr> {
        let has_names = inode.state.read().item.nlink > 0;
        (!has_names).then(|| self.attr(inode))
    }

    pub(crate) fn attr(&self, inode: &Inode) -> Attr {
        self.attr_of(inode.number, &inode.state.read())
    }

    /// Attributes of an inode that is locked.
    pub(crate) fn attr_of(&self, number: ObjectNo, state: &InodeState) -> Attr {
        let item = &state.item;
        let size =
            if item.is_directory() { item.entries.saturating_mul(DIRECTORY_ENTRY_SIZE) } else { item.size };
        // Written data counts before it has its place: a file that seems to have no blocks is taken for a hole by
        // programs that copy.
        let (blocks, blocks_settled) = state.data.blocks(item.size, item.blocks);
        Attr {
            inode: number,
            mode: item.mode,
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            size,
            blocks: blocks.saturating_mul(SECTORS_PER_BLOCK),
            blocks_settled,
            accessed: item.accessed,
            modified: item.modified,
            changed: item.changed,
            created: item.created,
            rdev: item.rdev,
            flags: item.flags,
        }
    }

    pub(crate) fn entry(&self, inode: &Inode) -> Entry {
        Entry { attr: self.attr(inode), generation: 1 }
    }

    /// Changes attributes and returns the new ones. With a handle, `size` needs it to be open for writing.
    ///
    /// Errors: `NotPermitted` (immutable, append-only), `IsDirectory` or `Invalid` (size of something that is no
    /// file), `FileTooLarge`, `BadHandle`, `NotSupported` (mode of a symbolic link), `NoSpace`, `ReadOnly`, `Stale`.
    pub fn setattr(
        &self,
        ctx: &Context,
        number: ObjectNo,
        set: &SetAttr,
        handle: Option<HandleId>,
    ) -> Result<Attr> {
        self.core.check_writable()?;
        for time in [set.accessed, set.modified, set.changed.map(SetTime::At)].into_iter().flatten() {
            if matches!(time, SetTime::At(time) if time.nanoseconds >= NANOSECONDS_PER_SECOND) {
                return Err(Error::Invalid("a time has less than 10^9 nanoseconds"));
            }
        }
        let inode = match handle {
            Some(handle) => {
                let open = self.content.open_file(handle)?;
                if set.size.is_some() && !open.flags.write {
                    return Err(Error::BadHandle);
                }
                open.inode.clone()
            }
            None => self.content.live_inode(number)?,
        };
        if let Some(size) = set.size {
            self.set_size(ctx, &inode, size, set)?;
        }
        let rest = SetAttr { size: None, ..*set };
        if !rest.is_empty() {
            self.set_attributes(ctx, &inode, &rest)?;
        }
        Ok(self.attr(&inode))
    }

    fn set_size(&self, ctx: &Context, inode: &Arc<Inode>, size: u64, set: &SetAttr) -> Result<()> {
        {
            let state = inode.state.read();
            let item = &state.item;
            if item.is_directory() {
                return Err(Error::IsDirectory);
            }
            if !item.is_regular() {
                return Err(Error::Invalid("only regular files have a size that can be set"));
            }
            crate::attributes::flags::forbid_change(item)?;
        }
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooLarge);
        }
        // Held like an open file, so that the last unlink does not remove it underneath.
        let held = self.removal.hold(inode)?;
        self.drop_capabilities(inode)?;
        if size == 0 {
            inode.truncated_to_zero.store(true, Ordering::Relaxed);
        }
        let strip = set.strip_set_id || !ctx.is_privileged();
        let result = self.shape.file_truncate(inode, size, &mut |item| {
            if strip {
                strip_set_id(ctx, item);
            }
        });
        held.release()?;
        result
    }

    fn set_attributes(&self, ctx: &Context, inode: &Arc<Inode>, set: &SetAttr) -> Result<()> {
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        if changes_owner || set.strip_set_id {
            self.drop_capabilities(inode)?;
        }
        let acl_bytes = 300 + crate::acl::ACL_BYTES_MAX;
        admitted_along(
            || self.writeback.admit(Class::Normal, estimate(1, 0, 1, acl_bytes)),
            |admission| self.change_attributes(ctx, inode, set, admission),
        )
    }

    fn change_attributes(
        &self,
        ctx: &Context,
        inode: &Arc<Inode>,
        set: &SetAttr,
        admission: Admission,
    ) -> Result<()> {
        let number = inode.number;
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        let mut change = Change::new(&self.content, Locked::new(&[inode]));
        if change.state(number).is_gone() {
            return Err(Error::Stale);
        }
        let now = self.core.clock.now();
        let item = change.item(number);
        if is_immutable(item) || (is_append_only(item) && !set.touches_only()) {
            return Err(Error::NotPermitted);
        }
        if (changes_owner || set.strip_set_id) && set.mode.is_none() {
            strip_set_id(ctx, item);
        }
        if changes_owner {
            item.uid = set.uid.unwrap_or(item.uid);
            item.gid = set.gid.unwrap_or(item.gid);
        }
        if let Some(mode) = set.mode {
            if item.is_symlink() {
                return Err(Error::NotSupported);
            }
            item.mode = item.mode & !0o7777 | mode & 0o7777;
            strip_setgid(ctx, item);
        }
        set_times(item, set, now);
        if set.mode.is_some() {
            self.follow_mode(&mut change, number)?;
        }
        drop(change.commit(&self.content, admission)?);
        Ok(())
    }

    /// Notes that an inode was read, as the volume's rule for access times says. Nothing is logged for it.
    pub(crate) fn touch_accessed(&self, inode: &Arc<Inode>, no_atime: bool) {
        if no_atime || self.core.options.read_only || self.core.options.access_times == AccessTimes::Never {
            return;
        }
        let now = self.core.clock.now();
        let due = |item: &InodeItem| {
            let stale = match self.core.options.access_times {
                AccessTimes::Never => false,
                AccessTimes::Always => item.accessed != now,
                AccessTimes::Relative => {
                    item.accessed <= item.modified
                        || item.accessed <= item.changed
                        || now.seconds.saturating_sub(item.accessed.seconds) >= RELATIVE_ATIME_SECONDS
                }
            };
            stale && item.flags & FLAG_NO_ATIME == 0
        };
        if !due(&inode.state.read().item) {
            return;
        }
        let mut state = inode.state.write();
        if !state.is_gone() && due(&state.item) {
            state.item.accessed = now;
            state.item_dirty = true;
            self.content.note_dirty(inode, &mut state);
        }
    }

    /// Target of a symbolic link. Errors: `Invalid` for anything else.
    pub fn readlink(&self, number: ObjectNo) -> Result<Vec<u8>> {
        let inode = self.content.live_inode(number)?;
        if !inode.state.read().item.is_symlink() {
            return Err(Error::Invalid("not a symbolic link"));
        }
        let target = self.core.store.get(self.content.tree, syncline_format::Key::symlink(number))?;
        let size = inode.state.read().item.size;
        let Some(target) = target.filter(|target| is_symlink_target(target, size)) else {
            // A link that was removed meanwhile has lost its target with its inode.
            self.content.live_inode(number)?;
            let what = "a symbolic link has no target of its size";
            return Err(Error::Inconsistent { object: number, what });
        };
        self.touch_accessed(&inode, false);
        Ok(target)
    }
}

fn set_times(item: &mut InodeItem, set: &SetAttr, now: Timestamp) {
    let at = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    if let Some(time) = set.accessed {
        item.accessed = at(time);
    }
    if let Some(time) = set.modified {
        item.modified = at(time);
    }
    item.changed = set.changed.unwrap_or(now);
}
