//! Items of the volume tree: what a tree is, and the pages that a snapshot inherited as images.

use crate::item::{ExtentContent, ExtentItem, NAME_BYTES_MAX, Timestamp};
use crate::key::{KEY_BYTES, array};
use crate::range;
use crate::{Era, FormatError, Key, Lsn, ObjectNo, TreeId};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A tree item as stored, without the name that follows.
#[repr(C)]
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct TreeItemRaw {
    role: u8,
    state: u8,
    flags: U16,
    era: U32,
    parent: U32,
    known: U32,
    lsn: U64,
    made_seconds: I64,
    made_nanoseconds: U32,
    reserved: U32,
    uuid: [u8; 16],
    received: [u8; 16],
    hash_key: [u8; 16],
    row: U64,
    pages: U64,
    cursor: [u8; KEY_BYTES],
    reserved2: [u8; 7],
    expires: U64,
    name_len: U16,
}

/// Bytes of a tree item in front of its name.
pub const TREE_ITEM_BYTES: usize = 138;

const _: () = assert!(size_of::<TreeItemRaw>() == TREE_ITEM_BYTES);
const _: () = assert!(std::mem::offset_of!(TreeItemRaw, cursor) == 104);
const _: () = assert!(std::mem::offset_of!(TreeItemRaw, expires) == 128);
const _: () = assert!(std::mem::offset_of!(TreeItemRaw, name_len) == 136);
const _: () = assert!(TREE_ITEM_BYTES + NAME_BYTES_MAX <= crate::ITEM_VALUE_BYTES_MAX);

/// What may be done with a tree. The numbers are persistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// Changes.
    Head = 1,
    /// Never changes.
    Snapshot = 2,
}

impl TryFrom<u8> for Role {
    type Error = FormatError;

    fn try_from(value: u8) -> Result<Role, FormatError> {
        match value {
            1 => Ok(Role::Head),
            2 => Ok(Role::Snapshot),
            _ => Err(FormatError::Field { what: "tree item", field: "role", value: u64::from(value) }),
        }
    }
}

/// Where a tree stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeState {
    Live,
    /// It goes away; what lies before the cursor has been dealt with.
    Deleting {
        cursor: Key,
    },
}

/// Flag: the head that is shown when nobody names one.
const DEFAULT_HEAD: u16 = 1;
/// Flag: kept because trees descend from it, and shown to nobody.
const HIDDEN: u16 = 2;
/// Flag: a snapshot that is not deleted before somebody releases it.
const HELD: u16 = 4;
/// Flag: a snapshot that the schedule has made, and deletes.
const SCHEDULED: u16 = 8;

/// What a snapshot says of its own end. A head has none of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stay {
    /// It is not deleted before somebody releases it.
    pub is_held: bool,
    /// The schedule has made it, and deletes it when its time has come.
    pub is_scheduled: bool,
    /// From then on it is deleted in the background, in seconds since 1970; 0: never.
    pub expires: u64,
}

/// A tree item, decoded: everything about a tree but its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeItem {
    pub role: Role,
    pub state: TreeState,
    pub is_default: bool,
    pub is_hidden: bool,
    /// Of a snapshot the era that it ends; 0 of a head.
    pub era: Era,
    /// The snapshot that it was made from or, of a head, its newest snapshot.
    pub parent: Option<TreeId>,
    /// Of a head, the newest era that ever ended over what it holds; it never falls. 0 of a snapshot.
    pub known: Era,
    /// The batch that made it.
    pub lsn: Lsn,
    pub made: Timestamp,
    pub uuid: [u8; 16],
    pub stay: Stay,
    /// 1 to 255 bytes of UTF-8, without `/` and NUL, neither `.` nor `..`; empty of a hidden tree.
    pub name: String,
}

/// Whether a tree may have this name.
pub fn is_tree_name(name: &str) -> bool {
    let reserved = matches!(name, "" | "." | "..");
    name.len() <= NAME_BYTES_MAX && !reserved && !name.contains(['/', '\0'])
}

impl TreeItem {
    /// The first head of a volume that has no snapshot.
    pub fn first_head() -> TreeItem {
        TreeItem {
            role: Role::Head,
            state: TreeState::Live,
            is_default: true,
            is_hidden: false,
            era: Era(0),
            parent: None,
            known: Era(0),
            lsn: Lsn(0),
            made: Timestamp::default(),
            uuid: [0; 16],
            stay: Stay::default(),
            name: "main".to_owned(),
        }
    }

    /// The item's value. Panics if the name is longer than 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.name.len() <= NAME_BYTES_MAX, "a tree's name of {} bytes", self.name.len());
        let mut raw = TreeItemRaw::new_zeroed();
        raw.role = self.role as u8;
        raw.state = 1;
        if let TreeState::Deleting { cursor } = self.state {
            raw.state = 2;
            let mut bytes = Vec::with_capacity(KEY_BYTES);
            bytes.extend_from_slice(&cursor.encode());
            raw.cursor.copy_from_slice(&bytes);
        }
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let stay = flag(self.stay.is_held, HELD) | flag(self.stay.is_scheduled, SCHEDULED);
        raw.flags = U16::new(flag(self.is_default, DEFAULT_HEAD) | flag(self.is_hidden, HIDDEN) | stay);
        raw.expires = U64::new(self.stay.expires);
        raw.era = U32::new(self.era.0);
        raw.parent = U32::new(self.parent.map_or(0, |parent| parent.0));
        raw.known = U32::new(self.known.0);
        raw.lsn = U64::new(self.lsn.0);
        raw.made_seconds = I64::new(self.made.seconds);
        let nanoseconds = range::TREE_MADE_NANOSECONDS.clamp(u64::from(self.made.nanoseconds));
        raw.made_nanoseconds = U32::new(nanoseconds as u32);
        raw.uuid = self.uuid;
        raw.name_len = U16::new(self.name.len() as u16);
        [raw.as_bytes(), self.name.as_bytes()].concat()
    }

    pub fn decode(bytes: &[u8]) -> Result<TreeItem, FormatError> {
        let Ok((raw, name)) = TreeItemRaw::ref_from_prefix(bytes) else {
            return Err(FormatError::Truncated {
                what: "tree item",
                want: TREE_ITEM_BYTES,
                got: bytes.len(),
            });
        };
        raw.check()?;
        let name_field = |value: usize| field("name", value as u64);
        if name.len() != usize::from(raw.name_len.get()) {
            return Err(name_field(name.len()));
        }
        let name = std::str::from_utf8(name).map_err(|_| name_field(name.len()))?;
        let is_hidden = raw.flags.get() & HIDDEN != 0;
        // What goes away has no name any more.
        let may_be_nameless = is_hidden || raw.state == 2;
        let is_legal = is_tree_name(name) || (name.is_empty() && may_be_nameless);
        if !is_legal {
            return Err(name_field(name.len()));
        }
        Ok(TreeItem {
            role: Role::try_from(raw.role)?,
            state: match raw.state {
                2 => TreeState::Deleting { cursor: Key::decode(&raw.cursor)? },
                _ => TreeState::Live,
            },
            is_default: raw.flags.get() & DEFAULT_HEAD != 0,
            is_hidden,
            era: Era(raw.era.get()),
            parent: Some(TreeId(raw.parent.get())).filter(|parent| parent.0 != 0),
            known: Era(raw.known.get()),
            lsn: Lsn(raw.lsn.get()),
            made: Timestamp { seconds: raw.made_seconds.get(), nanoseconds: raw.made_nanoseconds.get() },
            uuid: raw.uuid,
            stay: Stay {
                is_held: raw.flags.get() & HELD != 0,
                is_scheduled: raw.flags.get() & SCHEDULED != 0,
                expires: raw.expires.get(),
            },
            name: name.to_owned(),
        })
    }
}

fn field(field: &'static str, value: u64) -> FormatError {
    FormatError::Field { what: "tree item", field, value }
}

impl TreeItemRaw {
    /// Holds every field against its range, but for the name.
    fn check(&self) -> Result<(), FormatError> {
        range::TREE_STATE.check(u64::from(self.state))?;
        range::TREE_FLAGS.check(u64::from(self.flags.get()))?;
        let era = range::TREE_ERA.check(u64::from(self.era.get()))?;
        let known = range::TREE_KNOWN.check(u64::from(self.known.get()))?;
        range::TREE_PARENT.check(u64::from(self.parent.get()))?;
        range::TREE_LSN.check(self.lsn.get())?;
        range::TREE_MADE_NANOSECONDS.check(u64::from(self.made_nanoseconds.get()))?;
        range::TREE_NAME_LENGTH.check(u64::from(self.name_len.get()))?;
        let is_snapshot = Role::try_from(self.role)? == Role::Snapshot;
        if is_snapshot != (era > 0) {
            return Err(field("era", era));
        }
        if !is_snapshot && self.flags.get() & (HELD | SCHEDULED) != 0 {
            return Err(field("flags", u64::from(self.flags.get())));
        }
        let expires = range::TREE_EXPIRES.check(self.expires.get())?;
        if !is_snapshot && expires > 0 {
            return Err(field("expires", expires));
        }
        if is_snapshot && known > 0 {
            return Err(field("known", known));
        }
        let has_cursor = self.cursor != [0; KEY_BYTES];
        if self.state != 2 && has_cursor {
            return Err(field("cursor kind", u64::from(self.cursor[8])));
        }
        Ok(())
    }
}

/// Bytes of an overlay item in front of its extent's value.
pub const OVERLAY_HEAD_BYTES: usize = 16;

/// An overlay item: pages of a snapshot that were images when it was made. They stand for whatever its tree has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayItem {
    pub object: ObjectNo,
    /// The first page.
    pub page: u64,
    /// Written.
    pub extent: ExtentItem,
}

impl OverlayItem {
    pub fn encode(&self) -> Vec<u8> {
        let head = [self.object.0.to_le_bytes(), self.page.to_le_bytes()].concat();
        [head, self.extent.encode()].concat()
    }

    pub fn decode(bytes: &[u8]) -> Result<OverlayItem, FormatError> {
        const WHAT: &str = "overlay item";
        let Some((head, extent)) = bytes.split_at_checked(OVERLAY_HEAD_BYTES) else {
            return Err(FormatError::Truncated { what: WHAT, want: OVERLAY_HEAD_BYTES, got: bytes.len() });
        };
        let object = range::OVERLAY_OBJECT.check(u64::from_le_bytes(array(&head[..8])))?;
        let page = range::OVERLAY_PAGE.check(u64::from_le_bytes(array(&head[8..])))?;
        let extent = ExtentItem::decode(extent)?;
        if !matches!(extent.content, ExtentContent::Written(_)) {
            return Err(FormatError::Field { what: WHAT, field: "flags", value: 1 });
        }
        if page > range::FILE_PAGES_MAX - u64::from(extent.pages()) {
            return Err(FormatError::Field { what: WHAT, field: "page", value: page });
        }
        Ok(OverlayItem { object: ObjectNo(object), page, extent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockNo;

    fn snapshot() -> TreeItem {
        TreeItem {
            role: Role::Snapshot,
            state: TreeState::Live,
            is_default: false,
            is_hidden: false,
            era: Era(7),
            parent: Some(TreeId(16)),
            known: Era(0),
            lsn: Lsn(99),
            made: Timestamp { seconds: -5, nanoseconds: 999_999_999 },
            uuid: [3; 16],
            stay: Stay::default(),
            name: "before the upgrade".to_owned(),
        }
    }

    #[test]
    fn a_tree_item_keeps_every_field() {
        let cursor = Key::extent(ObjectNo(9), 4);
        let deleting = TreeState::Deleting { cursor };
        for item in [
            snapshot(),
            TreeItem::first_head(),
            TreeItem { parent: Some(TreeId(20)), known: Era(7), ..TreeItem::first_head() },
            TreeItem { state: deleting, name: String::new(), ..snapshot() },
            TreeItem { is_hidden: true, name: String::new(), ..snapshot() },
            TreeItem { name: "ä".repeat(127), ..snapshot() },
            TreeItem { stay: Stay { is_held: true, ..Stay::default() }, ..snapshot() },
            TreeItem { stay: Stay { is_held: true, is_scheduled: true, expires: 1 << 33 }, ..snapshot() },
        ] {
            let bytes = item.encode();
            assert_eq!(bytes.len(), TREE_ITEM_BYTES + item.name.len());
            assert_eq!(TreeItem::decode(&bytes), Ok(item));
            for cut in 0..bytes.len() {
                assert!(TreeItem::decode(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_tree_item_that_contradicts_itself_is_refused() {
        let name = |name: &str| TreeItem { name: name.to_owned(), ..snapshot() };
        for item in [
            TreeItem { era: Era(0), ..snapshot() },
            TreeItem { era: Era(4), ..TreeItem::first_head() },
            TreeItem { known: Era(4), ..snapshot() },
            TreeItem { stay: Stay { is_held: true, ..Stay::default() }, ..TreeItem::first_head() },
            TreeItem { stay: Stay { is_scheduled: true, ..Stay::default() }, ..TreeItem::first_head() },
            TreeItem { stay: Stay { expires: 1, ..Stay::default() }, ..TreeItem::first_head() },
            name(""),
            name("."),
            name(".."),
            name("a/b"),
            name("a\0b"),
        ] {
            assert!(TreeItem::decode(&item.encode()).is_err(), "{item:?}");
        }
        let mut bytes = snapshot().encode();
        bytes[TREE_ITEM_BYTES] = 0xff;
        assert!(TreeItem::decode(&bytes).is_err(), "a name that is not UTF-8");
        let mut bytes = snapshot().encode();
        bytes[range::TREE_CURSOR_KIND.at] = 6;
        assert!(TreeItem::decode(&bytes).is_err(), "a cursor of a live tree");
    }

    #[test]
    fn each_field_of_a_tree_item_is_refused_right_behind_the_ends_of_its_range() {
        let mut looked_at = 0;
        for field in range::ALL.iter().filter(|field| field.structure == range::Structure::TreeItem) {
            let cursor = TreeState::Deleting { cursor: Key::MIN };
            let base = match field.name {
                "known" => TreeItem::first_head(),
                "cursor object" | "cursor kind" | "cursor offset" => TreeItem { state: cursor, ..snapshot() },
                // The role decides whether there is an era, the length is that of the name.
                "role" | "name length" | "state" => continue,
                _ => snapshot(),
            };
            let decodes = |number: u64| {
                let mut bytes = base.encode();
                bytes[field.at..field.at + field.bytes].copy_from_slice(&number.to_le_bytes()[..field.bytes]);
                TreeItem::decode(&bytes).is_ok()
            };
            looked_at += 1;
            assert!(decodes(field.most), "{field:?} at its most");
            let widest = u64::MAX >> (64 - 8 * field.bytes);
            if field.most < widest {
                assert!(!decodes(field.most + 1), "{field:?} above its most");
                assert!(!decodes(widest), "{field:?} of nothing but ones");
            }
        }
        assert_eq!(looked_at, 11, "a field of a tree item has come or gone");
    }

    #[test]
    fn an_overlay_item_holds_written_pages_of_a_file() {
        let extent = ExtentItem::written(BlockNo(500), vec![1]).born(Era(3));
        let item = OverlayItem { object: ObjectNo(9), page: range::FILE_PAGES_MAX - 1, extent };
        let bytes = item.encode();
        assert_eq!(OverlayItem::decode(&bytes), Ok(item.clone()));
        for cut in 0..bytes.len() {
            assert!(OverlayItem::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let unwritten = ExtentItem::unwritten(BlockNo(500), 1);
        let long = ExtentItem::written(BlockNo(500), vec![1, 2]);
        for bad in [
            OverlayItem { object: ObjectNo(0), ..item.clone() },
            OverlayItem { page: range::FILE_PAGES_MAX, ..item.clone() },
            OverlayItem { extent: unwritten, ..item.clone() },
            OverlayItem { extent: long, ..item },
        ] {
            assert!(OverlayItem::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }
}
