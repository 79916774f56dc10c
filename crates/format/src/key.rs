//! Keys of the tree: (object, kind, offset), compared in that order.

use crate::{FormatError, ObjectNo, TreeId, range};

/// What an item is. The numbers are persistent and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// An inode; offset 0.
    Inode = 1,
    /// Target of a symbolic link; offset 0.
    Symlink = 2,
    /// A directory entry; offset = hash of the name.
    Dirent = 3,
    /// An extended attribute; offset = hash of the name.
    Xattr = 4,
    /// A piece of a large extended attribute's value; offset = value number * 32 + piece.
    XattrPiece = 5,
    /// Data of a file; offset = first page.
    Extent = 6,
    /// In object 0: an inode whose removal or truncation has to be finished; offset = its number.
    Orphan = 7,
    /// In the root tree: pointer to a tree's root node; object = tree number, offset 0.
    Tree = 8,
    /// In the volume tree: what a tree is; object = tree number, offset 0.
    TreeInfo = 9,
    /// Reserved for reference counts of shared blocks.
    Shared = 10,
    /// In the volume tree: a page run whose image a snapshot inherited; object = the snapshot's number, offset = 0,
    /// 1, 2 ...
    Overlay = 13,
    /// In the volume tree, object = the volume tree's number: the schedule of snapshots; offset 0.
    Policy = 15,
}

impl TryFrom<u8> for Kind {
    type Error = FormatError;

    fn try_from(value: u8) -> Result<Kind, FormatError> {
        Ok(match value {
            1 => Kind::Inode,
            2 => Kind::Symlink,
            3 => Kind::Dirent,
            4 => Kind::Xattr,
            5 => Kind::XattrPiece,
            6 => Kind::Extent,
            7 => Kind::Orphan,
            8 => Kind::Tree,
            9 => Kind::TreeInfo,
            10 => Kind::Shared,
            13 => Kind::Overlay,
            15 => Kind::Policy,
            _ => return Err(FormatError::Field { what: "key", field: "kind", value: u64::from(value) }),
        })
    }
}

/// A tree key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub object: ObjectNo,
    pub kind: Kind,
    pub offset: u64,
}

/// Encoded size of a key inside a batch.
pub const KEY_BYTES: usize = 17;

impl Key {
    /// The smallest possible key.
    pub const MIN: Key = Key { object: ObjectNo(0), kind: Kind::Inode, offset: 0 };
    /// The largest possible key. (Its kind is that of version 2's first preview: cursors on volumes have it.)
    pub const MAX: Key = Key { object: ObjectNo(u64::MAX), kind: Kind::Overlay, offset: u64::MAX };

    pub fn new(object: ObjectNo, kind: Kind, offset: u64) -> Key {
        Key { object, kind, offset }
    }

    pub fn inode(object: ObjectNo) -> Key {
        Key::new(object, Kind::Inode, 0)
    }

    pub fn symlink(object: ObjectNo) -> Key {
        Key::new(object, Kind::Symlink, 0)
    }

    pub fn dirent(directory: ObjectNo, hash: u64) -> Key {
        Key::new(directory, Kind::Dirent, hash)
    }

    pub fn xattr(object: ObjectNo, hash: u64) -> Key {
        Key::new(object, Kind::Xattr, hash)
    }

    pub fn extent(object: ObjectNo, page: u64) -> Key {
        Key::new(object, Kind::Extent, page)
    }

    pub fn orphan(object: ObjectNo) -> Key {
        Key::new(ObjectNo::VOLUME, Kind::Orphan, object.0)
    }

    pub fn tree(tree: TreeId) -> Key {
        Key::new(ObjectNo(u64::from(tree.0)), Kind::Tree, 0)
    }

    pub fn tree_info(tree: TreeId) -> Key {
        Key::new(ObjectNo(u64::from(tree.0)), Kind::TreeInfo, 0)
    }

    pub fn overlay(tree: TreeId, number: u64) -> Key {
        Key::new(ObjectNo(u64::from(tree.0)), Kind::Overlay, number)
    }

    /// The schedule of snapshots.
    pub fn policy() -> Key {
        Key::new(ObjectNo(u64::from(TreeId::VOLUME.0)), Kind::Policy, 0)
    }

    /// Whether an item of the volume tree may lie at this key. Errors: the field that is outside of its range.
    pub fn check_volume(&self) -> Result<(), FormatError> {
        range::VOLUME_KEY_TREE.check(self.object.0)?;
        match self.kind {
            Kind::TreeInfo => range::KEY_TREE_INFO_OFFSET.check(self.offset).map(drop),
            Kind::Overlay => range::KEY_OVERLAY_OFFSET.check(self.offset).map(drop),
            Kind::Policy => {
                range::POLICY_KEY_TREE.check(self.object.0)?;
                range::KEY_POLICY_OFFSET.check(self.offset).map(drop)
            }
            kind => Err(FormatError::Field { what: "key", field: "kind", value: kind as u64 }),
        }
    }

    /// Whether an item of a filesystem may lie at this key. Errors: the field that is outside of its range.
    pub fn check(&self) -> Result<(), FormatError> {
        if self.kind != Kind::Orphan {
            range::KEY_OBJECT.check(self.object.0)?;
        } else if self.object != ObjectNo::VOLUME {
            return Err(FormatError::Field { what: "key", field: "object", value: self.object.0 });
        }
        self.check_offset()
    }

    /// The same for kind and offset alone.
    pub(crate) fn check_offset(&self) -> Result<(), FormatError> {
        let offset = match self.kind {
            Kind::Inode => &range::KEY_INODE_OFFSET,
            Kind::Symlink => &range::KEY_SYMLINK_OFFSET,
            Kind::Dirent => &range::KEY_DIRENT_OFFSET,
            Kind::Xattr => &range::KEY_XATTR_OFFSET,
            Kind::XattrPiece => &range::KEY_PIECE_OFFSET,
            Kind::Extent => &range::KEY_EXTENT_OFFSET,
            Kind::Orphan => &range::KEY_ORPHAN_OFFSET,
            Kind::Tree | Kind::TreeInfo | Kind::Shared | Kind::Overlay | Kind::Policy => {
                return range::KEY_KIND.check(self.kind as u64).map(drop);
            }
        };
        offset.check(self.offset).map(drop)
    }

    pub(crate) fn encode(self) -> [u8; KEY_BYTES] {
        let mut out = [0; KEY_BYTES];
        out[..8].copy_from_slice(&self.object.0.to_le_bytes());
        out[8] = self.kind as u8;
        out[9..].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8; KEY_BYTES]) -> Result<Key, FormatError> {
        let object = u64::from_le_bytes(array(&bytes[0..8]));
        let offset = u64::from_le_bytes(array(&bytes[9..17]));
        Ok(Key { object: ObjectNo(object), kind: Kind::try_from(bytes[8])?, offset })
    }
}

/// Copies a slice whose length the caller has fixed into an array.
pub(crate) fn array<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(slice);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_legal_up_to_the_ends_of_their_ranges() {
        let of = ObjectNo(range::COUNTER_MAX - 1);
        for key in [
            Key::inode(of),
            Key::symlink(ObjectNo(1)),
            Key::dirent(of, crate::NAME_HASH_MIN),
            Key::dirent(of, range::NAME_SLOT_MAX),
            Key::xattr(of, range::NAME_SLOT_MAX),
            Key::new(of, Kind::XattrPiece, u64::MAX),
            Key::extent(of, range::FILE_PAGES_MAX - 1),
            Key::orphan(of),
        ] {
            assert_eq!(key.check(), Ok(()), "{key:?}");
        }
        let beyond = ObjectNo(range::COUNTER_MAX);
        for key in [
            Key::inode(beyond),
            Key::inode(ObjectNo(0)),
            Key::new(of, Kind::Inode, 1),
            Key::dirent(of, crate::NAME_HASH_MIN - 1),
            Key::dirent(of, range::NAME_SLOT_MAX + 1),
            Key::dirent(of, i64::MAX as u64 + 1),
            Key::extent(of, range::FILE_PAGES_MAX),
            Key::orphan(beyond),
            Key::new(of, Kind::Orphan, 5),
            Key::new(of, Kind::Tree, 0),
            Key::tree_info(TreeId::MAIN),
            Key::overlay(TreeId::FIRST_MADE, 0),
            Key::MIN,
            Key::MAX,
        ] {
            assert!(key.check().is_err(), "{key:?}");
        }
    }

    #[test]
    fn the_volume_tree_has_keys_of_its_own() {
        let last = TreeId(range::TREES_MAX as u32 - 1);
        for key in [
            Key::tree_info(TreeId::MAIN),
            Key::tree_info(last),
            Key::overlay(last, 0),
            Key::overlay(TreeId::FIRST_MADE, range::OVERLAY_ITEMS_MAX - 1),
            Key::policy(),
        ] {
            assert_eq!(key.check_volume(), Ok(()), "{key:?}");
        }
        for key in [
            Key::tree_info(TreeId::ROOT),
            Key::tree_info(TreeId(range::TREES_MAX as u32)),
            Key::new(ObjectNo(16), Kind::TreeInfo, 1),
            Key::overlay(last, range::OVERLAY_ITEMS_MAX),
            Key::new(ObjectNo(16), Kind::Policy, 0),
            Key { offset: 1, ..Key::policy() },
            Key::inode(ObjectNo(16)),
            Key::new(ObjectNo(16), Kind::Shared, 0),
        ] {
            assert!(key.check_volume().is_err(), "{key:?}");
        }
    }
}
