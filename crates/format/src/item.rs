//! Values of items: inode, directory entry, extended attribute, extent, orphan.

use crate::key::array;
pub use crate::orphan::{ORPHAN_BYTES_MAX, OrphanReason, Shift};
use crate::range;
use crate::{BlockNo, Era, FormatError, ObjectNo};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A point in time: seconds since 1970 (negative before it) and nanoseconds below 10^9 after that second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct TimestampRaw {
    seconds: I64,
    nanoseconds: U32,
    reserved: U32,
}

impl From<Timestamp> for TimestampRaw {
    fn from(time: Timestamp) -> TimestampRaw {
        TimestampRaw {
            seconds: I64::new(time.seconds),
            nanoseconds: U32::new(range::INODE_CHANGED_NANOSECONDS.clamp(u64::from(time.nanoseconds)) as u32),
            reserved: U32::ZERO,
        }
    }
}

impl TryFrom<TimestampRaw> for Timestamp {
    type Error = FormatError;

    fn try_from(raw: TimestampRaw) -> Result<Timestamp, FormatError> {
        let nanoseconds = range::INODE_CHANGED_NANOSECONDS.check(u64::from(raw.nanoseconds.get()))? as u32;
        Ok(Timestamp { seconds: raw.seconds.get(), nanoseconds })
    }
}

/// An inode as stored.
#[repr(C)]
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
pub struct InodeRaw {
    mode: U32,
    nlink: U32,
    uid: U32,
    gid: U32,
    size: U64,
    blocks: U64,
    accessed: TimestampRaw,
    modified: TimestampRaw,
    changed: TimestampRaw,
    created: TimestampRaw,
    rdev: U64,
    parent: U64,
    entries: U64,
    flags: U32,
    project: U32,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<InodeRaw>() == INODE_BYTES);

impl InodeRaw {
    /// Holds every field but the times against its range. What only directories have is 0 of all others.
    fn check(&self) -> Result<(), FormatError> {
        let mode = range::INODE_MODE.check(u64::from(self.mode.get()))? as u32;
        let size = self.size.get();
        let of_type = |has: bool, field: &range::Field, value: u64| match has {
            true => field.check(value).map(drop),
            false if value == 0 => Ok(()),
            false => Err(FormatError::Field { what: "inode", field: field.name, value }),
        };
        match mode & MODE_TYPE_MASK {
            MODE_SYMLINK => range::INODE_TARGET_SIZE.check(size)?,
            MODE_REGULAR | MODE_DIRECTORY => range::INODE_SIZE.check(size)?,
            MODE_FIFO | MODE_CHARACTER | MODE_BLOCK | MODE_SOCKET => range::INODE_SIZE.check(size)?,
            _ => return Err(FormatError::Field { what: "inode", field: "mode", value: u64::from(mode) }),
        };
        range::INODE_NLINK.check(u64::from(self.nlink.get()))?;
        let is_directory = mode & MODE_TYPE_MASK == MODE_DIRECTORY;
        range::INODE_BLOCKS.check(self.blocks.get())?;
        of_type(is_directory, &range::INODE_PARENT, self.parent.get())?;
        of_type(is_directory, &range::INODE_ENTRIES, self.entries.get())?;
        range::INODE_PROJECT.check(u64::from(self.project.get())).map(drop)
    }
}

/// Bytes of an inode item's value.
pub const INODE_BYTES: usize = 160;

/// File type bits of `mode`.
pub const MODE_TYPE_MASK: u32 = 0o170000;
pub const MODE_FIFO: u32 = 0o010000;
pub const MODE_CHARACTER: u32 = 0o020000;
pub const MODE_DIRECTORY: u32 = 0o040000;
pub const MODE_BLOCK: u32 = 0o060000;
pub const MODE_REGULAR: u32 = 0o100000;
pub const MODE_SYMLINK: u32 = 0o120000;
pub const MODE_SOCKET: u32 = 0o140000;

/// Largest file size: pages are addressed by the extent key's offset, bytes by a signed 64-bit offset.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Longest name of a directory entry, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Most links to one inode (directories count `.` and the `..` of their subdirectories).
pub const LINKS_MAX: u32 = u32::MAX - 1;

/// An inode, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InodeItem {
    /// Type and permission bits, as in `st_mode`.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes of a file's content, or of a symbolic link's target; 0 for other types.
    pub size: u64,
    /// 4 KiB blocks of data that extents hold for this inode (unwritten ones included).
    pub blocks: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    /// Device number of a special file (`major << 32 | minor`).
    pub rdev: u64,
    /// A directory's parent; its own number for the root, 0 for other types.
    pub parent: ObjectNo,
    /// Entries of a directory, `.` and `..` not counted.
    pub entries: u64,
    /// `FS_IOC_GETFLAGS` bits.
    pub flags: u32,
    /// Reserved for project quotas; 0.
    pub project: u32,
}

impl InodeItem {
    /// The item's value. Counts beyond what any volume can hold (a damaged or forged one began with them) are stored
    /// as the highest that can be read again.
    pub fn encode(&self) -> [u8; INODE_BYTES] {
        let mut raw = InodeRaw::new_zeroed();
        raw.mode = U32::new(self.mode);
        raw.nlink = U32::new(self.nlink.min(LINKS_MAX));
        raw.uid = U32::new(self.uid);
        raw.gid = U32::new(self.gid);
        raw.size = U64::new(self.size);
        raw.blocks = U64::new(range::INODE_BLOCKS.clamp(self.blocks));
        raw.accessed = self.accessed.into();
        raw.modified = self.modified.into();
        raw.changed = self.changed.into();
        raw.created = self.created.into();
        raw.rdev = U64::new(self.rdev);
        raw.parent = U64::new(self.parent.0);
        raw.entries = U64::new(range::INODE_ENTRIES.clamp(self.entries));
        raw.flags = U32::new(self.flags);
        raw.project = U32::new(self.project);
        let mut out = [0; INODE_BYTES];
        out.copy_from_slice(raw.as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<InodeItem, FormatError> {
        let Ok(raw) = InodeRaw::read_from_bytes(bytes) else {
            return Err(FormatError::Truncated { what: "inode", want: INODE_BYTES, got: bytes.len() });
        };
        raw.check()?;
        let mode = raw.mode.get();
        Ok(InodeItem {
            mode,
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            size: raw.size.get(),
            blocks: raw.blocks.get(),
            accessed: raw.accessed.try_into()?,
            modified: raw.modified.try_into()?,
            changed: raw.changed.try_into()?,
            created: raw.created.try_into()?,
            rdev: raw.rdev.get(),
            parent: ObjectNo(raw.parent.get()),
            entries: raw.entries.get(),
            flags: raw.flags.get(),
            project: raw.project.get(),
        })
    }

    pub fn is_directory(&self) -> bool {
        self.mode & MODE_TYPE_MASK == MODE_DIRECTORY
    }

    pub fn is_regular(&self) -> bool {
        self.mode & MODE_TYPE_MASK == MODE_REGULAR
    }

    pub fn is_symlink(&self) -> bool {
        self.mode & MODE_TYPE_MASK == MODE_SYMLINK
    }
}

/// Whether these bytes can be the target of a symbolic link whose inode tells this size.
pub fn is_symlink_target(target: &[u8], size: u64) -> bool {
    range::INODE_TARGET_SIZE.holds(target.len() as u64) && target.len() as u64 == size && !target.contains(&0)
}

/// A directory entry: inode number (8 bytes), type (1 byte, the mode's type bits shifted right by 12), name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirentItem {
    pub inode: ObjectNo,
    /// `mode >> 12`, the value of `d_type`.
    pub file_type: u8,
    /// 1 to 255 bytes, without `/` and NUL, neither `.` nor `..`.
    pub name: Vec<u8>,
}

/// A directory entry whose name is somebody else's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirentView<'a> {
    pub inode: ObjectNo,
    pub file_type: u8,
    pub name: &'a [u8],
}

/// Bytes of a directory entry's value before its name.
const DIRENT_HEAD_BYTES: usize = 9;
/// Longest value of a directory entry.
pub const DIRENT_BYTES_MAX: usize = DIRENT_HEAD_BYTES + NAME_BYTES_MAX;

impl DirentItem {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(DIRENT_HEAD_BYTES + self.name.len());
        out.extend_from_slice(&self.inode.0.to_le_bytes());
        out.push(self.file_type);
        out.extend_from_slice(&self.name);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<DirentItem, FormatError> {
        let DirentView { inode, file_type, name } = DirentView::decode(bytes)?;
        Ok(DirentItem { inode, file_type, name: name.to_vec() })
    }
}

impl<'a> DirentView<'a> {
    /// The value, which `room` holds then. The name has at most [`NAME_BYTES_MAX`] bytes.
    pub fn encode_into<'b>(&self, room: &'b mut [u8; DIRENT_BYTES_MAX]) -> &'b [u8] {
        let len = DIRENT_HEAD_BYTES + self.name.len();
        room[..8].copy_from_slice(&self.inode.0.to_le_bytes());
        room[8] = self.file_type;
        room[DIRENT_HEAD_BYTES..len].copy_from_slice(self.name);
        &room[..len]
    }

    pub fn decode(bytes: &'a [u8]) -> Result<DirentView<'a>, FormatError> {
        if bytes.len() < 10 {
            return Err(FormatError::Truncated { what: "directory entry", want: 10, got: bytes.len() });
        }
        let name = &bytes[9..];
        let reserved = matches!(name, b"." | b"..");
        if name.len() > NAME_BYTES_MAX || reserved || name.contains(&0) || name.contains(&b'/') {
            return Err(FormatError::Field {
                what: "directory entry",
                field: "name",
                value: name.len() as u64,
            });
        }
        if !matches!(bytes[8], 1 | 2 | 4 | 6 | 8 | 10 | 12) {
            return Err(FormatError::Field {
                what: "directory entry",
                field: "type",
                value: u64::from(bytes[8]),
            });
        }
        let inode = range::DIRENT_INODE.check(u64::from_le_bytes(array(&bytes[0..8])))?;
        Ok(DirentView { inode: ObjectNo(inode), file_type: bytes[8], name })
    }
}

/// An extended attribute: name length (1 byte), value length (4 bytes), value number (8 bytes), name, and the value
/// itself when it is small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XattrItem {
    /// Full name with its namespace prefix, 1 to 255 bytes.
    pub name: Vec<u8>,
    pub value: XattrValue,
}

/// Where an extended attribute's value is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum XattrValue {
    /// In the item itself.
    Inline(Vec<u8>),
    /// In `XattrPiece` items of [`XATTR_PIECE_BYTES`] (the last one shorter) at offsets `number * 32 + i`.
    Pieces { number: u64, len: u32 },
}

/// Largest value kept in the item.
pub const XATTR_INLINE_BYTES_MAX: usize = 3072;
/// Bytes per piece of a larger value.
pub const XATTR_PIECE_BYTES: usize = 4096;
/// Largest value in all (the kernel's XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Pieces per value number.
pub const XATTR_PIECES_MAX: u64 = 32;

const _: () = assert!(XATTR_VALUE_BYTES_MAX.div_ceil(XATTR_PIECE_BYTES) as u64 <= XATTR_PIECES_MAX);
const _: () = assert!(13 + NAME_BYTES_MAX + XATTR_INLINE_BYTES_MAX <= crate::ITEM_VALUE_BYTES_MAX);

impl XattrItem {
    pub fn encode(&self) -> Vec<u8> {
        let (len, number, inline): (u32, u64, &[u8]) = match &self.value {
            XattrValue::Inline(value) => (value.len() as u32, 0, value),
            XattrValue::Pieces { number, len } => (*len, *number, &[]),
        };
        let mut out = Vec::with_capacity(13 + self.name.len() + inline.len());
        out.push(self.name.len() as u8);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&self.name);
        out.extend_from_slice(inline);
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<XattrItem, FormatError> {
        let field = |field, value| Err(FormatError::Field { what: "xattr", field, value });
        if bytes.len() < 14 {
            return Err(FormatError::Truncated { what: "xattr", want: 14, got: bytes.len() });
        }
        let name_len = range::XATTR_NAME_LENGTH.check(u64::from(bytes[0]))? as usize;
        let len = u32::from_le_bytes(array(&bytes[1..5]));
        range::XATTR_VALUE_LENGTH.check(u64::from(len))?;
        let number = range::XATTR_VALUE_NUMBER.check(u64::from_le_bytes(array(&bytes[5..13])))?;
        if 13 + name_len > bytes.len() {
            return field("name length", name_len as u64);
        }
        let (name, inline) = bytes[13..].split_at(name_len);
        if name.contains(&0) {
            return field("name", name_len as u64);
        }
        let value = if len as usize <= XATTR_INLINE_BYTES_MAX {
            if inline.len() != len as usize {
                return field("inline length", inline.len() as u64);
            }
            XattrValue::Inline(inline.to_vec())
        } else {
            if !inline.is_empty() {
                return field("inline length", inline.len() as u64);
            }
            XattrValue::Pieces { number, len }
        };
        Ok(XattrItem { name: name.to_vec(), value })
    }
}

/// Most pages of one extent: 512 KiB.
pub const EXTENT_PAGES_MAX: u32 = 128;
/// Bytes of an extent item before its checksums.
pub const EXTENT_HEADER_BYTES: usize = 16;
/// Where an extent item's birth is.
pub const EXTENT_BIRTH_AT: usize = 12;

const EXTENT_UNWRITTEN: u16 = 1;

/// A file's data: `len` blocks from `start`, for as many pages from the key's offset.
///
/// Stored as block (8 bytes), pages (2), flags (2), birth (4), then one XXH3-64 per page unless unwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentItem {
    pub start: BlockNo,
    pub content: ExtentContent,
    /// The era in which the item's tree got these blocks at this place of the file. Every part keeps it.
    pub birth: Era,
}

/// An extent without what its blocks hold, for who asks for no checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentPlace {
    pub start: BlockNo,
    /// Its length, also in blocks.
    pub pages: u32,
    /// As in [`ExtentItem`].
    pub birth: Era,
    pub is_unwritten: bool,
}

/// What an extent's blocks hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtentContent {
    /// Data, with the checksum of each 4 KiB page.
    Written(Vec<u64>),
    /// Allocated, never written: reads as zeros.
    Unwritten { pages: u32 },
}

impl ExtentItem {
    pub fn written(start: BlockNo, checksums: Vec<u64>) -> ExtentItem {
        ExtentItem { start, content: ExtentContent::Written(checksums), birth: Era(0) }
    }

    pub fn unwritten(start: BlockNo, pages: u32) -> ExtentItem {
        ExtentItem { start, content: ExtentContent::Unwritten { pages }, birth: Era(0) }
    }

    /// The same, born in that era.
    #[must_use]
    pub fn born(self, birth: Era) -> ExtentItem {
        ExtentItem { birth, ..self }
    }

    /// Length in pages (= blocks).
    pub fn pages(&self) -> u32 {
        match &self.content {
            ExtentContent::Written(checksums) => checksums.len() as u32,
            ExtentContent::Unwritten { pages } => *pages,
        }
    }

    /// The block that holds page `index` of the extent: the one place that says where a page lies. `pages()` gives the
    /// block behind the last.
    pub fn block_of(&self, index: u64) -> BlockNo {
        self.start.plus(index)
    }

    /// The part of the extent from page `skip` on, `pages` long.
    pub fn slice(&self, skip: u32, pages: u32) -> ExtentItem {
        let start = self.block_of(u64::from(skip));
        let slice = match &self.content {
            ExtentContent::Written(checksums) => {
                ExtentItem::written(start, checksums[skip as usize..(skip + pages) as usize].to_vec())
            }
            ExtentContent::Unwritten { .. } => ExtentItem::unwritten(start, pages),
        };
        slice.born(self.birth)
    }

    /// Panics if the extent is empty or longer than [`EXTENT_PAGES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let pages = self.pages();
        assert!((1..=EXTENT_PAGES_MAX).contains(&pages), "extent of {pages} pages");
        let (flags, checksums): (u16, &[u64]) = match &self.content {
            ExtentContent::Written(checksums) => (0, checksums),
            ExtentContent::Unwritten { .. } => (EXTENT_UNWRITTEN, &[]),
        };
        let mut out = Vec::with_capacity(EXTENT_HEADER_BYTES + 8 * checksums.len());
        out.extend_from_slice(&self.start.0.to_le_bytes());
        out.extend_from_slice(&(pages as u16).to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.birth.0.to_le_bytes());
        for sum in checksums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<ExtentItem, FormatError> {
        let ExtentPlace { start, pages, birth, is_unwritten } = ExtentPlace::decode(bytes)?;
        if is_unwritten {
            return Ok(ExtentItem::unwritten(start, pages).born(birth));
        }
        let sums = bytes[EXTENT_HEADER_BYTES..].chunks_exact(8).map(|sum| u64::from_le_bytes(array(sum)));
        Ok(ExtentItem::written(start, sums.collect()).born(birth))
    }
}

impl ExtentPlace {
    /// The block that holds page `index` of the extent; as [`ExtentItem::block_of`].
    pub fn block_of(&self, index: u64) -> BlockNo {
        self.start.plus(index)
    }

    /// Of an encoded [`ExtentItem`], whose length is looked at as well.
    pub fn decode(bytes: &[u8]) -> Result<ExtentPlace, FormatError> {
        let field = |field, value| Err(FormatError::Field { what: "extent", field, value });
        if bytes.len() < EXTENT_HEADER_BYTES {
            return Err(FormatError::Truncated {
                what: "extent",
                want: EXTENT_HEADER_BYTES,
                got: bytes.len(),
            });
        }
        let start = BlockNo(u64::from_le_bytes(array(&bytes[0..8])));
        let pages = u32::from(u16::from_le_bytes(array(&bytes[8..10])));
        let flags = u16::from_le_bytes(array(&bytes[10..12]));
        let birth = Era(u32::from_le_bytes(array(&bytes[EXTENT_BIRTH_AT..EXTENT_HEADER_BYTES])));
        range::EXTENT_PAGES.check(u64::from(pages))?;
        range::EXTENT_START.check(start.0)?;
        let (is_unwritten, sums) = match flags {
            0 => (false, pages as usize),
            EXTENT_UNWRITTEN => (true, 0),
            _ => return field("flags", u64::from(flags)),
        };
        if bytes.len() != EXTENT_HEADER_BYTES + 8 * sums {
            return field("length", bytes.len() as u64);
        }
        Ok(ExtentPlace { start, pages, birth, is_unwritten })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_keeps_every_field_and_times_before_1970() {
        let inode = InodeItem {
            mode: MODE_REGULAR | 0o4755,
            nlink: 65_000,
            uid: 1,
            gid: u32::MAX,
            size: FILE_BYTES_MAX,
            blocks: 77,
            accessed: Timestamp { seconds: -5, nanoseconds: 999_999_999 },
            modified: Timestamp { seconds: i64::MIN, nanoseconds: 0 },
            changed: Timestamp { seconds: i64::MAX, nanoseconds: 1 },
            created: Timestamp { seconds: 0, nanoseconds: 2 },
            rdev: 3,
            parent: ObjectNo(0),
            entries: 0,
            flags: 6,
            project: 0,
        };
        assert_eq!(InodeItem::decode(&inode.encode()), Ok(inode.clone()));
        assert!(InodeItem::decode(&[0; INODE_BYTES]).is_err(), "type 0 is no inode");
        let directory = InodeItem {
            mode: MODE_DIRECTORY | 0o1777,
            nlink: LINKS_MAX,
            size: 0,
            blocks: 0,
            parent: ObjectNo(4),
            entries: range::ENTRIES_MAX,
            ..inode
        };
        assert_eq!(InodeItem::decode(&directory.encode()), Ok(directory));
    }

    #[test]
    fn counts_beyond_every_volume_are_stored_so_that_they_can_be_read_again() {
        let bytes = InodeItem { blocks: u64::MAX, ..regular() }.encode();
        assert_eq!(InodeItem::decode(&bytes).map(|inode| inode.blocks), Ok(range::INODE_BLOCKS.most));
        let late = Timestamp { seconds: 7, nanoseconds: u32::MAX };
        let bytes = InodeItem { modified: late, ..regular() }.encode();
        assert_eq!(
            InodeItem::decode(&bytes).map(|inode| inode.modified.nanoseconds),
            Ok(999_999_999),
            "a clock that is wrong makes no inode unreadable"
        );
    }

    fn regular() -> InodeItem {
        let since = Timestamp::default();
        InodeItem {
            mode: MODE_REGULAR | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            accessed: since,
            modified: since,
            changed: since,
            created: since,
            rdev: 0,
            parent: ObjectNo(0),
            entries: 0,
            flags: 0,
            project: 0,
        }
    }

    /// The value with one field of its structure overwritten.
    fn patched(value: &[u8], field: &range::Field, number: u64) -> Vec<u8> {
        let mut bytes = value.to_vec();
        bytes[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
        bytes
    }

    #[test]
    fn each_field_of_an_item_is_refused_right_behind_the_ends_of_its_range() {
        use range::Structure;
        let file = regular().encode();
        let directory = InodeItem { mode: MODE_DIRECTORY, parent: ObjectNo(1), ..regular() }.encode();
        let symlink = InodeItem { mode: MODE_SYMLINK, size: 9, ..regular() }.encode();
        let dirent = DirentItem { inode: ObjectNo(5), file_type: 8, name: b"name".to_vec() }.encode();
        let pieces = XattrValue::Pieces { number: 3, len: 65_536 };
        let xattr = XattrItem { name: b"user.x".to_vec(), value: pieces }.encode();
        let extent = ExtentItem::unwritten(BlockNo(500), 1).encode();
        let mut looked_at = 0;
        type Decodes = fn(&[u8]) -> bool;
        for field in range::ALL {
            let (value, decodes): (&[u8], Decodes) = match field.structure {
                Structure::Inode => (
                    match field.name {
                        "parent" | "entries" => &directory,
                        "size of a symlink" => &symlink,
                        _ => &file,
                    },
                    |value| InodeItem::decode(value).is_ok(),
                ),
                Structure::Dirent => (&dirent, |value| DirentItem::decode(value).is_ok()),
                // The lengths of names and values are bounded by the item's own as well.
                Structure::Xattr if field.name == "value number" => {
                    (&xattr, |value| XattrItem::decode(value).is_ok())
                }
                Structure::Extent => (&extent, |value| ExtentItem::decode(value).is_ok()),
                _ => continue,
            };
            looked_at += 1;
            let widest = u64::MAX >> (64 - 8 * field.bytes);
            // An extent without checksums of its own is an unwritten one.
            let least =
                if field.name == "flags" && field.structure == Structure::Extent { 1 } else { field.least };
            let least = if field.name == "mode" { 0o100000 } else { least };
            assert!(decodes(&patched(value, field, least)), "{field:?} at its least");
            let most = if field.name == "mode" { 0o107777 } else { field.most };
            assert!(decodes(&patched(value, field, most)), "{field:?} at its most");
            if field.most < widest {
                assert!(!decodes(&patched(value, field, field.most + 1)), "{field:?} above its most");
                assert!(!decodes(&patched(value, field, widest)), "{field:?} of nothing but ones");
            }
            if field.least > 0 {
                assert!(!decodes(&patched(value, field, field.least - 1)), "{field:?} below its least");
            }
        }
        assert_eq!(looked_at, 27, "a field of an item has come or gone");
    }

    #[test]
    fn extents_of_both_kinds_survive_encoding_and_slicing() {
        let written = ExtentItem::written(BlockNo(100), vec![1, 2, 3, 4]).born(Era(7));
        assert_eq!(ExtentItem::decode(&written.encode()), Ok(written.clone()));
        assert_eq!(written.slice(1, 2), ExtentItem::written(BlockNo(101), vec![2, 3]).born(Era(7)));
        let unwritten = ExtentItem::unwritten(BlockNo(5), 128);
        assert_eq!(ExtentItem::decode(&unwritten.encode()), Ok(unwritten));
        assert!(ExtentItem::decode(&written.encode()[..24]).is_err());
    }

    #[test]
    fn small_and_large_xattrs_survive_encoding() {
        for value in [XattrValue::Inline(vec![9; 100]), XattrValue::Pieces { number: 3, len: 65536 }] {
            let item = XattrItem { name: b"user.x".to_vec(), value };
            assert_eq!(XattrItem::decode(&item.encode()), Ok(item));
        }
    }
}
