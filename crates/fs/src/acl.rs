//! POSIX access control lists, in the form the kernel passes them (xattr version 2) and in which they are stored.
//!
//! The engine enforces no permissions; it keeps ACL and mode consistent: setting one changes the other, new inodes
//! inherit, and an ACL that says no more than the mode is not stored.

use crate::{Context, Error, Result};
use syncline_format::item::{InodeItem, XATTR_INLINE_BYTES_MAX};

/// The attribute that holds an access ACL.
pub(crate) const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default ACL.
pub(crate) const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";
/// Largest ACL in bytes: 383 entries.
pub(crate) const ACL_BYTES_MAX: usize = XATTR_INLINE_BYTES_MAX;

/// Set-group-id bit of a mode.
pub(crate) const MODE_SETGID: u32 = 0o2000;
/// Set-user-id bit of a mode.
pub(crate) const MODE_SETUID: u32 = 0o4000;
/// Group-execute bit of a mode.
pub(crate) const MODE_GROUP_EXECUTE: u32 = 0o010;

const XATTR_VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

/// A valid access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// `None` when it has no entries, which means "remove it".
    ///
    /// Errors: `Invalid` for anything that is no valid ACL, `NotSupported` for another version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Acl>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let invalid = Error::Invalid("the value is not a valid access control list");
        let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else { return Err(invalid) };
        if header != XATTR_VERSION.to_le_bytes() {
            return Err(Error::NotSupported);
        }
        if body.len() % ENTRY_BYTES != 0 {
            return Err(invalid);
        }
        let entries: Vec<AclEntry> = body
            .chunks_exact(ENTRY_BYTES)
            .map(|raw| AclEntry {
                tag: u16::from_le_bytes([raw[0], raw[1]]),
                permissions: u16::from_le_bytes([raw[2], raw[3]]),
                id: u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(invalid) }
    }

    /// Entries ascend by tag, the three base entries are there once, and a mask goes with named entries.
    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let known = USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER;
        let well_formed = self
            .entries
            .iter()
            .all(|entry| entry.tag.count_ones() == 1 && entry.tag & known != 0 && entry.permissions <= 7);
        let named = count(USER) + count(GROUP);
        well_formed
            && self.entries.is_sorted_by_key(|entry| entry.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            let id = if matches!(entry.tag, USER | GROUP) { entry.id } else { u32::MAX };
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    fn has(&self, tag: u16) -> bool {
        self.entries.iter().any(|entry| entry.tag == tag)
    }

    /// The tag whose permissions are the mode's group bits.
    fn group_class(&self) -> u16 {
        if self.has(MASK) { MASK } else { GROUP_OBJ }
    }

    fn permissions(&self, tag: u16) -> u32 {
        let entry = self.entries.iter().find(|entry| entry.tag == tag);
        u32::from(entry.expect("a valid ACL has every base entry").permissions)
    }

    fn set_permissions(&mut self, tag: u16, change: impl Fn(u16) -> u16) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
            entry.permissions = change(entry.permissions);
        }
    }

    /// The nine permission bits that a mode shows for this ACL.
    pub(crate) fn mode_bits(&self) -> u32 {
        self.permissions(USER_OBJ) << 6 | self.permissions(self.group_class()) << 3 | self.permissions(OTHER)
    }

    /// The ACL says no more than its mode bits.
    pub(crate) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The ACL after a `chmod`.
    pub(crate) fn with_mode(mut self, mode: u32) -> Acl {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        self.set_permissions(USER_OBJ, |_| bits(6));
        self.set_permissions(self.group_class(), |_| bits(3));
        self.set_permissions(OTHER, |_| bits(0));
        self
    }

    /// This default ACL's access ACL for an inode created with `mode` (none if the mode says it all), and the new
    /// inode's permission bits.
    pub(crate) fn inherited(&self, mode: u32) -> (Option<Acl>, u32) {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        let mut acl = self.clone();
        acl.set_permissions(USER_OBJ, |allowed| allowed & bits(6));
        acl.set_permissions(acl.group_class(), |allowed| allowed & bits(3));
        acl.set_permissions(OTHER, |allowed| allowed & bits(0));
        let permissions = acl.mode_bits();
        (Some(acl).filter(|acl| !acl.is_minimal()), permissions)
    }
}

/// An unprivileged caller outside the file's group cannot leave the set-group-id bit on.
pub(crate) fn strip_setgid(ctx: &Context, item: &mut InodeItem) {
    if !ctx.is_privileged() && !ctx.in_group(item.gid) {
        item.mode &= !MODE_SETGID;
    }
}

/// Takes the set-id bits off what `ctx` gives another owner, or content. Directories keep theirs. The item still has
/// its old group.
pub(crate) fn strip_set_id(ctx: &Context, item: &mut InodeItem) {
    if item.is_directory() {
        return;
    }
    item.mode &= !MODE_SETUID;
    // Without group-execute the bit once meant mandatory locking: it runs nothing, and members of the group leave it.
    let runs = item.mode & MODE_GROUP_EXECUTE != 0;
    if runs || !(ctx.is_privileged() || ctx.in_group(item.gid)) {
        item.mode &= !MODE_SETGID;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, permissions, id)| AclEntry { tag, permissions, id });
        Acl { entries: entries.collect() }.encode()
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn a_valid_acl_survives_parsing_and_encoding() {
        let bytes = acl(&[
            (USER_OBJ, 7, NONE),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NONE),
            (GROUP, 4, 50),
            (MASK, 6, NONE),
            (OTHER, 0, NONE),
        ]);
        let parsed = Acl::parse(&bytes).expect("valid").expect("not empty");
        assert_eq!(parsed.encode(), bytes);
        assert_eq!(parsed.mode_bits(), 0o760, "the group bits show the mask");
        assert_eq!(parsed.clone().with_mode(0o640).mode_bits(), 0o640);
        let (access, bits) = parsed.inherited(0o666);
        assert_eq!(bits, 0o660);
        assert_eq!(access.expect("it has named entries").permissions(GROUP_OBJ), 5);
    }

    #[test]
    fn malformed_acls_are_refused() {
        let base = [(USER_OBJ, 7, NONE), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)];
        assert!(Acl::parse(&acl(&base)).is_ok());
        let named = [(USER_OBJ, 7, NONE), (USER, 7, 1), (GROUP_OBJ, 5, NONE), (OTHER, 0, NONE)];
        assert!(Acl::parse(&acl(&named)).is_err(), "a named entry needs a mask");
        assert!(Acl::parse(&acl(&base[..2])).is_err(), "no entry for others");
        assert!(Acl::parse(&acl(&[base[1], base[0], base[2]])).is_err(), "order");
        assert!(Acl::parse(&acl(&[base[0], base[1], (OTHER, 8, NONE)])).is_err(), "permissions");
        assert!(Acl::parse(&acl(&[base[0], base[0], base[1], base[2]])).is_err(), "twice");
        assert!(Acl::parse(&[2, 0, 0]).is_err());
        assert!(Acl::parse(&acl(&base)[..11]).is_err());
        assert_eq!(Acl::parse(&[1, 0, 0, 0]), Err(Error::NotSupported));
        assert_eq!(Acl::parse(&[2, 0, 0, 0]), Ok(None));
    }
}
