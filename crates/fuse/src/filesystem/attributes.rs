//! Attributes: what the kernel is told of them, for how long it may keep that, and changes of them.
//!
//! The kernel keeps attributes for a day. It takes for unknown what its own calls change: size, blocks and times behind
//! a write, everything of a directory behind a change of its names. What only the daemon knows to have changed, the
//! daemon has to say:
//!
//! | what changes | how the kernel learns of it |
//! |---|---|
//! | set-id bits, when content or owner changes | may not be kept of a file that has some; taken off first, see below |
//! | blocks, in the background | nothing may be kept while they are not settled |
//! | time of change, by the ioctls for flags | a notification |
//! | files and directories of an open group | nothing of them may be kept |
//! | all else | the answer to the call carries it, or the kernel forgets it by itself |
//!
//! - *Set-id bits.* A program is run with the bits that the kernel knows, and only attributes correct those. A day
//!   would be a day in which what somebody has written into another one's program is run as that user. A notification
//!   is not enough: the answer to a change of attributes overwrites what is known, whatever came in between.
//! - *A change of nothing.* That is how `chown(2)` arrives that names neither owner nor group, and how the kernel
//!   announces a write, an allocation or a copy by somebody who may not keep the bits (HANDLE_KILLPRIV_V2), with the
//!   inode's lock held. Both take them off, so they are gone before the first byte is written, as on other
//!   filesystems. The kernel checks nobody's right to the former: who is neither owner nor root may only be about to
//!   write. A write through a direct handle is not announced, so what has such bits is not opened as one.

use super::operations::Operations;
use crate::atomic::Member;
use crate::convert::{Caller, attributes, errno, extended, keeps_attributes, object, set_time, timestamp};
use crate::filesystem::atomics::note;
use fusering::request::SetAttr;
use fusering::{Attributes, Errno, ExtendedAttributes, NodeId};
use std::time::Duration;
use syncline_fs::{Attr, Context, Error, ObjectNo};

/// As an offset of an invalidation.
const ATTRIBUTES_ONLY: i64 = -1;

/// Whether there is nothing that it asks for but what `chown` and the writeback cache add by themselves.
fn says_nothing(request: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, size, accessed, modified, .. } = request;
    let numbers = [mode, uid, gid].into_iter().all(Option::is_none);
    numbers && size.is_none() && accessed.is_none() && modified.is_none()
}

impl Operations {
    fn attr(&self, node: NodeId) -> Result<Attr, Errno> {
        match self.fs.attributes().getattr(object(node)) {
            Err(Error::Stale) => self.removed.get(object(node)).ok_or(Errno::ESTALE),
            found => found.map_err(errno),
        }
    }

    /// Type and permission bits; none if the inode is gone, which whatever comes next finds out.
    pub(super) fn mode(&self, node: NodeId) -> u32 {
        self.fs.attributes().getattr(object(node)).map_or(0, |attr| attr.mode)
    }

    /// Puts in what a transaction sees; for how long the kernel may keep the attributes.
    fn amend(&self, attr: &mut Attr) -> Duration {
        if self.atomics.amend(attr) { Duration::ZERO } else { keeps_attributes(attr) }
    }

    /// With how long they are valid.
    pub(super) fn getattr(&self, node: NodeId) -> Result<(Attributes, Duration), Errno> {
        let mut attr = self.attr(node)?;
        let valid = self.amend(&mut attr);
        Ok((attributes(&attr), valid))
    }

    pub(super) fn statx(&self, node: NodeId) -> Result<(ExtendedAttributes, Duration), Errno> {
        let mut attr = self.attr(node)?;
        let valid = self.amend(&mut attr);
        Ok((extended(&attr), valid))
    }

    pub(super) fn setattr(
        &self,
        caller: &Caller,
        request: &SetAttr,
        member: Option<&Member>,
    ) -> Result<(Attributes, Duration), Errno> {
        if let (Some(member), Some(size)) = (member, request.size) {
            self.atomics.truncate(member, size).unwrap_or(Err(Errno::EBUSY))?;
            return self.getattr(request.node);
        }
        let says_nothing = says_nothing(request) && !request.kill_set_id;
        if says_nothing {
            self.may_strip(caller, request.node)?;
        }
        // A truncation takes the bits off on behalf of its writer.
        let strips = request.size.is_none() && (request.kill_set_id || says_nothing);
        let set = syncline_fs::SetAttr {
            mode: request.mode,
            uid: request.uid,
            gid: request.gid,
            size: request.size,
            accessed: request.accessed.map(set_time),
            modified: request.modified.map(set_time),
            changed: request.changed.map(timestamp),
            strip_set_id: strips,
        };
        let keeps_setgid = request.mode.is_some_and(|mode| mode & libc::S_ISGID != 0) && caller.uid != 0;
        let mode = || self.mode(request.node);
        let context = match (keeps_setgid, request.size, request.mode) {
            (true, ..) => caller.context_with_groups(),
            (false, Some(_), None) => self.writer(caller, request.kill_set_id, mode),
            _ if strips => self.changer(caller, mode),
            _ => caller.context(),
        };
        let changed = self.fs.attributes().setattr(&context, object(request.node), &set, None);
        let mut attr = self.settle(changed)?;
        let valid = self.amend(&mut attr);
        Ok((attributes(&attr), valid))
    }

    /// Whether a change of nothing may take set-id bits off. Errors: EPERM, as for a change of the mode.
    fn may_strip(&self, caller: &Caller, node: NodeId) -> Result<(), Errno> {
        let attr = self.attr(node)?;
        if caller.uid == 0 || caller.uid == attr.uid || attr.mode & libc::S_IFMT == libc::S_IFDIR {
            return Ok(());
        }
        let is_member = || caller.gid == attr.gid || caller.context_with_groups().groups.contains(&attr.gid);
        let loses_group = attr.mode & libc::S_ISGID != 0 && (attr.mode & libc::S_IXGRP != 0 || !is_member());
        if attr.mode & libc::S_ISUID == 0 && !loses_group {
            return Ok(());
        }
        match self.fs.files().is_open_for_writing(attr.inode).map_err(errno)? {
            true => Ok(()),
            false => Err(Errno::EPERM),
        }
    }

    /// On whose behalf content or an owner changes: with the caller's groups where the file's bits hang on them.
    pub(super) fn changer(&self, caller: &Caller, mode: impl FnOnce() -> u32) -> Context {
        let hangs_on_groups = |mode: u32| mode & (libc::S_ISGID | libc::S_IXGRP) == libc::S_ISGID;
        match caller.uid != 0 && hangs_on_groups(mode()) {
            true => caller.context_with_groups(),
            false => caller.context(),
        }
    }

    /// The same for a change of content, of which the kernel has said whether it takes off the set-id bits. (The
    /// engine leaves them to the privileged.)
    pub(super) fn writer(&self, caller: &Caller, clears_set_id: bool, mode: impl FnOnce() -> u32) -> Context {
        let uid = u32::from(clears_set_id);
        self.changer(&Caller { uid, ..*caller }, mode)
    }

    /// Has the kernel ask again for attributes, because it does not know that a call has changed some. Waits for
    /// nobody: only content would be waited for.
    pub(super) fn tell_attributes(&self, node: ObjectNo) {
        if let Some(notifier) = self.notifier.get() {
            note(
                notifier.invalidate_node(NodeId(node.0), ATTRIBUTES_ONLY, 0),
                "attributes that have changed",
            );
        }
    }
}
