//! Extended attributes: `user.`, `trusted.`, `security.`, and the two POSIX ACLs of `system.`.
//!
//! An attribute is one item, keyed like a directory entry by its name's hash; a value of more than 3 KiB is in pieces
//! beside it, under a number that no other value of the inode has. A new value replaces the old one in one batch.

use crate::acl::{ACCESS_XATTR, Acl, DEFAULT_XATTR};
use crate::attributes::flags::forbid_change;
use crate::content::change::{Change, Locked, estimate};
use crate::content::inode::{Inode, InodeState};
use crate::core::free_slot::FreeSlot;
use crate::{Attributes, Context, Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use syncline_format::item::{
    InodeItem, XATTR_INLINE_BYTES_MAX, XATTR_PIECE_BYTES, XATTR_PIECES_MAX, XATTR_VALUE_BYTES_MAX, XattrItem,
    XattrValue,
};
use syncline_format::{FormatError, Key, Kind, ObjectNo};
use syncline_store::{Batch, Class, Permit};

/// Longest name of an extended attribute, prefix included.
const NAME_BYTES_MAX: usize = 255;
/// Bytes of names, each with its NUL, that listxattr(2) returns at most (XATTR_LIST_MAX of linux/limits.h). An inode
/// with more could not be listed by anybody, nor be copied with its attributes.
const LIST_BYTES_MAX: usize = 65536;
/// The same without the ACLs' names, for which there is always room.
const OWN_LIST_BYTES_MAX: usize = LIST_BYTES_MAX - (ACCESS_XATTR.len() + 1) - (DEFAULT_XATTR.len() + 1);
/// The attribute that file capabilities are in: it goes when the content changes.
pub(crate) const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// Whether `Attributes::set_xattr` may create or replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Either.
    #[default]
    Any,
    /// Fails with `Exists` if there is one (XATTR_CREATE).
    Create,
    /// Fails with `NoAttribute` if there is none (XATTR_REPLACE).
    Replace,
}

/// A stored attribute, or where one of that name would go.
struct XattrSlot {
    slot: u64,
    present: Option<XattrValue>,
}

/// Where a batch that changes several attributes has put new ones.
#[derive(Default)]
pub(crate) struct FilledXattrs {
    slots: BTreeSet<(ObjectNo, u64)>,
    /// Last numbers of values in pieces.
    values: BTreeMap<ObjectNo, u64>,
}

/// The item value of an attribute whose value is kept inside it.
pub(crate) fn small_xattr_value(name: &[u8], value: Vec<u8>) -> Vec<u8> {
    XattrItem { name: name.to_vec(), value: XattrValue::Inline(value) }.encode()
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_XATTR || name == DEFAULT_XATTR
}

/// Whether an attribute of this name is possible. Errors: `NotSupported`, `Invalid`, `Range` (name too long).
pub(crate) fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::Range(NAME_BYTES_MAX));
    }
    if is_acl(name) {
        return Ok(());
    }
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match prefixes.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        Some([]) => Err(Error::Invalid("an extended attribute needs a name behind its namespace")),
        Some(rest) if rest.contains(&0) => Err(Error::Invalid("a name contains no NUL")),
        Some(_) => Ok(()),
        None => Err(Error::NotSupported),
    }
}

/// What a name takes of [`OWN_LIST_BYTES_MAX`].
pub(crate) fn list_bytes(name: &[u8]) -> usize {
    if is_acl(name) { 0 } else { name.len() + 1 }
}

/// Errors: `NoSpace`, as on other filesystems where an inode has no room for another attribute.
pub(crate) fn check_list_bytes(bytes: usize) -> Result<()> {
    if bytes > OWN_LIST_BYTES_MAX { Err(Error::NoSpace) } else { Ok(()) }
}

/// `user.` attributes belong to files and directories only.
pub(crate) fn check_user_namespace(name: &[u8], item: &InodeItem) -> Result<()> {
    if name.starts_with(b"user.") && !item.is_regular() && !item.is_directory() {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

impl Attributes {
    /// The value of an extended attribute. Errors: `NoAttribute`, `NotSupported` (unknown namespace).
    pub fn xattr(&self, ctx: &Context, number: ObjectNo, name: &[u8]) -> Result<Vec<u8>> {
        check_xattr_name(name)?;
        let inode = self.content.live_inode(number)?;
        if name.starts_with(b"trusted.") && !ctx.is_privileged() {
            return Err(Error::NoAttribute);
        }
        let unchanged = inode.state.read();
        if unchanged.lacks_xattr(name) {
            return Err(Error::NoAttribute);
        }
        self.stored_xattr(number, name)?.ok_or(Error::NoAttribute)
    }

    /// Names of all extended attributes, each followed by a NUL. `trusted.` ones are shown to privileged callers only.
    pub fn list_xattrs(&self, ctx: &Context, number: ObjectNo) -> Result<Vec<u8>> {
        let inode = self.content.live_inode(number)?;
        let unchanged = inode.state.read();
        let mut names = Vec::new();
        if unchanged.lacks_xattrs() {
            return Ok(names);
        }
        self.for_each_xattr(number, &mut |item| {
            if ctx.is_privileged() || !item.name.starts_with(b"trusted.") {
                names.extend_from_slice(&item.name);
                names.push(0);
            }
        })?;
        Ok(names)
    }

    /// Sets an extended attribute. An ACL changes the mode with it.
    ///
    /// Errors: `Exists`, `NoAttribute` (by `how`), `TooBig` (more than 64 KiB), `Range` (name), `NotSupported`
    /// (namespace), `NotPermitted` (immutable, append-only, or `user.` on a special file), `NoSpace` (also for more
    /// than 64 KiB of names, which could not be listed), `ReadOnly`.
    pub fn set_xattr(
        &self,
        ctx: &Context,
        number: ObjectNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::TooBig);
        }
        self.core.check_writable()?;
        if is_acl(name) {
            return self.set_acl(ctx, number, name, Acl::parse(value)?);
        }
        let inode = self.content.live_inode(number)?;
        let (permit, locked) = self.admit_replacement(Class::Normal, &inode, name, value.len())?;
        let mut change = Change::new(&self.content, locked);
        let item = change.item(number);
        forbid_change(item)?;
        check_user_namespace(name, item)?;
        item.changed = self.core.clock.now();
        let is_present = self.find_xattr(number, name)?.present.is_some();
        match (how, is_present) {
            (SetXattr::Create, true) => return Err(Error::Exists),
            (SetXattr::Replace, false) => return Err(Error::NoAttribute),
            _ => {}
        }
        let added = if is_present { 0 } else { list_bytes(name) };
        let listed = self.xattr_list_bytes(number, change.state(number))? + added;
        if added > 0 {
            check_list_bytes(listed)?;
        }
        self.replace_xattr(&mut change, number, name, Some(value))?;
        let mut locked = change.commit(&self.content, permit)?;
        locked.state_mut(number).xattr_list_bytes = Some(listed);
        if name == CAPABILITY_XATTR {
            locked.state_mut(number).has_capabilities = Some(true);
        }
        Ok(())
    }

    /// Removes an extended attribute. Errors: `NoAttribute`, and as `Attributes::set_xattr`.
    pub fn remove_xattr(&self, ctx: &Context, number: ObjectNo, name: &[u8]) -> Result<()> {
        check_xattr_name(name)?;
        self.core.check_writable()?;
        if is_acl(name) {
            if self.stored_xattr(number, name)?.is_none() {
                return Err(Error::NoAttribute);
            }
            return self.set_acl(ctx, number, name, None);
        }
        let inode = self.content.live_inode(number)?;
        let (permit, locked) = self.admit_replacement(Class::Reclaim, &inode, name, 0)?;
        let mut change = Change::new(&self.content, locked);
        let item = change.item(number);
        forbid_change(item)?;
        check_user_namespace(name, item)?;
        item.changed = self.core.clock.now();
        if self.find_xattr(number, name)?.present.is_none() {
            return Err(Error::NoAttribute);
        }
        self.replace_xattr(&mut change, number, name, None)?;
        let mut locked = change.commit(&self.content, permit)?;
        if let Some(listed) = &mut locked.state_mut(number).xattr_list_bytes {
            *listed -= list_bytes(name);
        }
        if name == CAPABILITY_XATTR {
            locked.state_mut(number).has_capabilities = Some(false);
        }
        Ok(())
    }

    /// Admission for replacing an attribute's value, with the inode locked: no more is asked for than the old value
    /// takes, so that a small one can be removed on a full volume.
    fn admit_replacement<'a>(
        &self,
        class: Class,
        inode: &'a Arc<Inode>,
        name: &[u8],
        bytes: usize,
    ) -> Result<(Permit, Locked<'a>)> {
        let pieces = || Ok::<_, Error>(pieces_of(self.find_xattr(inode.number, name)?.present.as_ref()));
        loop {
            let bound = pieces()?;
            let permit = self.writeback.admit(class, replacement_estimate(bound, bytes))?;
            let locked = Locked::new(&[inode]);
            if pieces()? <= bound {
                return Ok((permit, locked));
            }
        }
    }

    /// Removes file capabilities before a file's content or owner changes. Whether there are any is remembered.
    pub(crate) fn drop_capabilities(&self, inode: &Arc<Inode>) -> Result<()> {
        let known = inode.state.read().has_capabilities;
        if known == Some(false) {
            return Ok(());
        }
        {
            let mut state = inode.state.write();
            if self.find_xattr(inode.number, CAPABILITY_XATTR)?.present.is_none() {
                state.has_capabilities = Some(false);
                return Ok(());
            }
        }
        match self.remove_xattr(&Context::root(), inode.number, CAPABILITY_XATTR) {
            Err(Error::NoAttribute) => Ok(()),
            result => result,
        }
    }

    /// Puts (or with `None` deletes) an attribute inside an operation, and deletes what the old value was kept in.
    pub(crate) fn replace_xattr(
        &self,
        change: &mut Change<'_>,
        number: ObjectNo,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<()> {
        self.log_xattr(&mut change.batch, number, name, value, &mut FilledXattrs::default())
    }

    /// As `Attributes::replace_xattr`, for one of several attributes that the batch changes.
    pub(crate) fn log_xattr(
        &self,
        batch: &mut Batch,
        number: ObjectNo,
        name: &[u8],
        value: Option<&[u8]>,
        filled: &mut FilledXattrs,
    ) -> Result<()> {
        let XattrSlot { slot, present } = self.find_xattr_besides(number, name, &filled.slots)?;
        if let Some(XattrValue::Pieces { number: old, len }) = present {
            for piece in 0..(len as usize).div_ceil(XATTR_PIECE_BYTES) as u64 {
                batch.delete(piece_key(number, old, piece));
            }
        }
        let key = Key::xattr(number, slot);
        let value = match value {
            None => {
                batch.delete(key);
                return Ok(());
            }
            Some(value) if value.len() <= XATTR_INLINE_BYTES_MAX => XattrValue::Inline(value.to_vec()),
            Some(value) => {
                let value_number = match filled.values.get(&number) {
                    Some(last) => last + 1,
                    None => self.unused_value_number(number)?,
                };
                filled.values.insert(number, value_number);
                for (piece, bytes) in value.chunks(XATTR_PIECE_BYTES).enumerate() {
                    batch.put(piece_key(number, value_number, piece as u64), bytes);
                }
                XattrValue::Pieces { number: value_number, len: value.len() as u32 }
            }
        };
        filled.slots.insert((number, slot));
        batch.put(key, &XattrItem { name: name.to_vec(), value }.encode());
        Ok(())
    }

    /// The slot of an attribute that is there.
    pub(crate) fn xattr_slot(&self, number: ObjectNo, name: &[u8]) -> Result<u64> {
        Ok(self.find_xattr(number, name)?.slot)
    }

    /// An attribute's value as stored.
    pub(crate) fn stored_xattr(&self, number: ObjectNo, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.find_xattr(number, name)?.present {
            None => Ok(None),
            Some(XattrValue::Inline(value)) => Ok(Some(value)),
            Some(XattrValue::Pieces { number: value_number, len }) => {
                let mut value = Vec::with_capacity(len as usize);
                for piece in 0..(len as usize).div_ceil(XATTR_PIECE_BYTES) as u64 {
                    let bytes =
                        self.core.store.get(self.content.tree, piece_key(number, value_number, piece))?;
                    let what = "a piece of an extended attribute is missing";
                    value.extend(bytes.ok_or(Error::Inconsistent { object: number, what })?);
                }
                if value.len() != len as usize {
                    let what = "the pieces of an extended attribute have the wrong length";
                    return Err(Error::Inconsistent { object: number, what });
                }
                Ok(Some(value))
            }
        }
    }

    /// Pieces that an attribute's value is kept in now.
    pub(crate) fn xattr_pieces(&self, number: ObjectNo, name: &[u8]) -> Result<usize> {
        Ok(pieces_of(self.find_xattr(number, name)?.present.as_ref()))
    }

    fn find_xattr(&self, number: ObjectNo, name: &[u8]) -> Result<XattrSlot> {
        self.find_xattr_besides(number, name, &BTreeSet::new())
    }

    fn find_xattr_besides(
        &self,
        number: ObjectNo,
        name: &[u8],
        filled: &BTreeSet<(ObjectNo, u64)>,
    ) -> Result<XattrSlot> {
        let slots = self.core.name_hash.slots(name);
        let mut free = FreeSlot::of(&slots, |slot| filled.contains(&(number, slot)));
        let mut found: std::result::Result<Option<XattrSlot>, FormatError> = Ok(None);
        let (from, end) = (Key::xattr(number, slots.start), Key::xattr(number, slots.end));
        self.core.store.scan(self.content.tree, from, end, &mut |key, value| {
            free.passes(key.offset);
            match XattrItem::decode(value) {
                Ok(item) if item.name == name => {
                    found = Ok(Some(XattrSlot { slot: key.offset, present: Some(item.value) }));
                    ControlFlow::Break(())
                }
                Ok(_) => ControlFlow::Continue(()),
                Err(error) => {
                    found = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(found) = found? {
            return Ok(found);
        }
        Ok(XattrSlot { slot: free.found().ok_or(Error::NoSpace)?, present: None })
    }

    fn for_each_xattr(&self, number: ObjectNo, visit: &mut dyn FnMut(XattrItem)) -> Result<()> {
        let mut damaged = Ok(());
        let end = Key::new(number, Kind::XattrPiece, 0);
        self.core.store.scan(self.content.tree, Key::xattr(number, 0), end, &mut |_, value| {
            match XattrItem::decode(value) {
                Ok(item) => {
                    visit(item);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    damaged = Err(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        Ok(damaged?)
    }

    /// What the names of an inode's attributes take in a list, ACLs left out. The state is that of the inode, locked.
    pub(crate) fn xattr_list_bytes(&self, number: ObjectNo, state: &InodeState) -> Result<usize> {
        if let Some(known) = state.xattr_list_bytes {
            return Ok(known);
        }
        let mut bytes = 0;
        self.for_each_xattr(number, &mut |item| bytes += list_bytes(&item.name))?;
        Ok(bytes)
    }

    fn unused_value_number(&self, number: ObjectNo) -> Result<u64> {
        let mut unused = 1;
        self.for_each_xattr(number, &mut |item| {
            if let XattrValue::Pieces { number, .. } = item.value {
                unused = unused.max(number + 1);
            }
        })?;
        if unused > u64::MAX / XATTR_PIECES_MAX - 1 {
            let what = "an extended attribute has an impossible value number";
            return Err(Error::Inconsistent { object: number, what });
        }
        Ok(unused)
    }
}

fn piece_key(number: ObjectNo, value_number: u64, piece: u64) -> Key {
    Key::new(number, Kind::XattrPiece, value_number * XATTR_PIECES_MAX + piece)
}

/// Pieces that a value is kept in.
fn pieces_of(value: Option<&XattrValue>) -> usize {
    match value {
        Some(XattrValue::Pieces { len, .. }) => (*len as usize).div_ceil(XATTR_PIECE_BYTES),
        _ => 0,
    }
}

/// Bound of the batch that replaces a value kept in `pieces` pieces by one of `bytes` bytes.
pub(crate) fn replacement_estimate(pieces: usize, bytes: usize) -> syncline_store::Estimate {
    let mut bound = estimate(1, 0, 1 + bytes.div_ceil(XATTR_PIECE_BYTES), 13 + NAME_BYTES_MAX + bytes);
    bound.bytes += pieces * syncline_format::batch::DELETE_BYTES;
    bound.items += pieces;
    bound
}
